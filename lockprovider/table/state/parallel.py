"""Requests in parallel threads, a folder's listing, and reads that repeat when other writers overtake them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from fsspec_cas import Entry, Store
from fsspec_cas.bridge.threads import in_order

T = TypeVar("T")
U = TypeVar("U")
_MOST = 8  # requests at a time


def concurrently(store: Store, calls: Sequence[Callable[[], T]]) -> list[T]:
    """Make all calls, up to `_MOST` in parallel for a remote store; return their results in order.

    A call's error is raised at its turn; calls not begun are cancelled.
    """
    return list(in_order(calls, min(_MOST, max(1, len(calls))) if store.is_remote else 1))


def both(store: Store, first: Callable[[], T], second: Callable[[], U]) -> tuple[T, U]:
    """Make both calls as `concurrently`."""
    calls: list[Callable[[], Any]] = [first, second]
    one, other = concurrently(store, calls)
    return one, other


def files_below(store: Store, folder: str, *, after: str = "", until: str = "") -> dict[str, Entry]:
    """List a folder's files that sort after `after` and before `until`, by path relative to it."""
    prefix = f"{folder}/"
    start, stop = prefix + after if after else None, prefix + until if until else None
    entries = store.list(prefix, start_after=start, stop_at=stop)
    return {entry.path.removeprefix(prefix): entry for entry in entries}


_LOOKS = 10  # then reading cannot keep up


class Stale(Exception):
    """Read overtaken by other writers; `error` is raised if all repeats are, too."""

    def __init__(self, error: Exception) -> None:
        super().__init__(str(error))
        self.error = error


def repeat_while_stale(look: Callable[[], T]) -> T:
    """Call `look` until it does not raise `Stale`, at most `_LOOKS` times; return its result or raise the `error`."""
    for _ in range(_LOOKS):
        try:
            return look()
        except Stale as stale:
            error = stale.error
    raise error
