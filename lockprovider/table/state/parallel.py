"""How a table's store is asked: several requests at a time, and again where others were in the middle of a look."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import chain, islice
from typing import TypeVar

from fsspec_cas import Entry, Store
from fsspec_cas.bridge.background import submit

T = TypeVar("T")
_MOST = 8  # requests at a time


def at_once(store: Store, calls: Sequence[Callable[[], T]]) -> list[T]:
    """The answers of all calls; where a request does not wait for a network they are made one after the other."""
    return list(in_order(calls, min(_MOST, max(1, len(calls))) if store.is_remote else 1))


def in_order(jobs: Iterable[Callable[[], T]], limit: int) -> Iterator[T]:
    """What the jobs return, in their order, with up to `limit` of them running; none runs any more when this ends."""
    jobs = iter(jobs)
    first = list(islice(jobs, 2))
    if limit == 1 or len(first) <= 1:
        yield from (job() for job in chain(first, jobs))
        return
    with ThreadPoolExecutor(limit) as threads:
        try:
            running: deque[Future[T]] = deque()
            for job in chain(first, jobs):  # which may be made here, one after the other, and be large
                if len(running) == 2 * limit:
                    yield running.popleft().result()
                running.append(submit(threads, job))
            yield from (one.result() for one in running)
        finally:
            threads.shutdown(cancel_futures=True)


def files_below(store: Store, folder: str, *, after: str = "", until: str = "") -> dict[str, Entry]:
    """The files below a folder by their names in it: those behind the name `after`, and before the name `until`.

    On the timeline all names begin with digits, and `until=":"` leaves the archive out.
    """
    prefix = f"{folder}/"
    start, stop = prefix + after if after else None, prefix + until if until else None
    found = store.list(prefix, start_after=start, stop_at=stop)
    return {entry.path.removeprefix(prefix): entry for entry in found}


# Looking again from the start, when others have changed the table in the middle of a look.

_LOOKS = 10  # what has changed so often is changed faster than it can be read


class Stale(Exception):
    """A look went by what others may have changed meanwhile; `error` is what is said if it goes on like that."""

    def __init__(self, error: Exception) -> None:
        super().__init__(str(error))
        self.error = error


def look_again(look: Callable[[], T]) -> T:
    """What `look` finds; it looks from the start as long as it raises `Stale`, ten times at most.

    Raises:
        the error of the last look that was stale, and whatever else a look does.
    """
    for _ in range(_LOOKS - 1):
        try:
            return look()
        except Stale:
            continue
    try:
        return look()
    except Stale as stale:
        raise stale.error from None
