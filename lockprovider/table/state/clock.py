"""The clock for times on the timeline: this machine's, unless the store's is behind it.

A commit from the future hides what others commit after it, from every reader. The store's clock is read from answers
that come anyway (`Store.time_ms`). A difference in either direction is logged once for each process and store.
"""

from __future__ import annotations

import logging

from fsspec_cas import CasError, Store, World
from lockprovider.table.format.layout import PROPERTIES

_LOG = logging.getLogger("lockprovider.table")
_DIFFERS_MS = 1500  # the lock's grace, and a second more: over HTTP the store's clock comes in whole ones
_BELIEVED_S = 60.0
_warned: set[object] = set()


class TimelineClock:
    """The clock of one open table. Thread-safe."""

    def __init__(self, store: Store, url: str, world: World) -> None:
        self._store = store
        self._url = url
        self._world = world
        self._asked_s = -_BELIEVED_S

    def now_ms(self) -> int:
        """Epoch ms: by this machine, or by the store where that is behind it by more than the lock's grace.

        So no time is taken that the store's clock has not reached, within that grace and a second.
        """
        if self.ahead_ms and self._world.monotonic_s() - self._asked_s >= _BELIEVED_S:
            self._ask()  # the machine may have slept since the last answer
        return self._world.now_ms() - max(0, self._warned(self.ahead_ms))

    def store_ms(self) -> int:
        """For rules by hours, which remove things: the store's clock as it says it now, or this machine's if behind."""
        self._ask()
        by_store, own_ms = self._store.time_ms, self._world.now_ms()
        return own_ms if by_store is None else min(own_ms, by_store)

    def asked_ahead_ms(self) -> int:
        """`ahead_ms` as the store says it now; a difference is logged, too."""
        self._ask()
        return self._warned(self.ahead_ms)

    def _warned(self, ahead_ms: int) -> int:
        """Log the difference, once in a process for each store."""
        if ahead_ms and self._store.place not in _warned:
            _warned.add(self._store.place)
            _LOG.warning("%s: %s: set the clock", self._url, clock_difference(ahead_ms))
        return ahead_ms

    @property
    def ahead_ms(self) -> int:
        """How far this machine's clock is ahead of the store's, negative if behind; 0 within the lock's grace."""
        by_store = self._store.time_ms
        found = 0 if by_store is None else self._world.now_ms() - by_store
        return found if abs(found) > _DIFFERS_MS else 0

    def _ask(self) -> None:
        try:
            self._store.head(PROPERTIES)
        except (CasError, FileNotFoundError):
            return  # what needs the store will say so
        self._asked_s = self._world.monotonic_s()


def clock_difference(ahead_ms: int) -> str:
    """In words: by how much which clock is wrong.

    >>> clock_difference(-8000)
    "this machine's clock is 8.0 s behind the store's"
    """
    side = "ahead of" if ahead_ms > 0 else "behind"
    return f"this machine's clock is {abs(ahead_ms) / 1000:.1f} s {side} the store's"
