"""The clock for times on the timeline: a commit with a future time would hide later commits from readers."""

from __future__ import annotations

import logging

from fsspec_cas import CasError, Store, World
from lockprovider.table.format.layout import PROPERTIES

_LOG = logging.getLogger("lockprovider.table")
_DIFFERS_MS = 1500  # the lock's grace and a second, since HTTP gives the store's clock in seconds
_BELIEVED_S = 60.0
_warned: set[object] = set()


class TimelineClock:
    """The clock for one table's instants: this machine's, or the store's if that is behind. Thread-safe."""

    def __init__(self, store: Store, url: str, world: World) -> None:
        self._store = store
        self._url = url
        self._world = world
        self._asked_s = -_BELIEVED_S

    def now_ms(self) -> int:
        """Return this machine's epoch ms, or the store's if its clock is more than `_DIFFERS_MS` behind.

        While the clocks differ, it logs that once, and asks the store again a minute after its last answer.
        """
        if self.ahead_ms and self._world.monotonic_s() - self._asked_s >= _BELIEVED_S:
            self._ask()  # the machine may have slept since the last answer
        return self._world.now_ms() - max(0, self._warned(self.ahead_ms))

    def store_ms(self) -> int:
        """Ask the store for its clock; return the earlier of it and this machine's."""
        self._ask()
        by_store, own_ms = self._store.time_ms, self._world.now_ms()
        return own_ms if by_store is None else min(own_ms, by_store)

    def asked_ahead_ms(self) -> int:
        """Ask the store for its clock, log a difference, and return `ahead_ms`."""
        self._ask()
        return self._warned(self.ahead_ms)

    def _warned(self, ahead_ms: int) -> int:
        """Log the difference, once per process and store, and return it."""
        if ahead_ms and self._store.identity not in _warned:
            _warned.add(self._store.identity)
            _LOG.warning("%s: %s: set the clock", self._url, clock_difference(ahead_ms))
        return ahead_ms

    @property
    def ahead_ms(self) -> int:
        """How many ms this machine's clock is ahead of the store's, negative if behind; 0 within `_DIFFERS_MS`."""
        by_store = self._store.time_ms
        difference_ms = 0 if by_store is None else self._world.now_ms() - by_store
        return difference_ms if abs(difference_ms) > _DIFFERS_MS else 0

    def _ask(self) -> None:
        """Send one HEAD request to learn the store's clock, and record its time. Store errors are swallowed."""
        try:
            self._store.head(PROPERTIES)
        except (CasError, FileNotFoundError):
            return  # later requests report the failure
        self._asked_s = self._world.monotonic_s()


def clock_difference(ahead_ms: int) -> str:
    """Describe the clocks' difference for a message."""
    side = "ahead of" if ahead_ms > 0 else "behind"
    return f"this machine's clock is {abs(ahead_ms) / 1000:.1f} s {side} the store's"
