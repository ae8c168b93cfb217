"""What becomes of a lease that nobody has any more: so what keeps it alive refers to it weakly."""

from __future__ import annotations

import contextlib
import warnings
import weakref
from collections.abc import Callable
from typing import Protocol

from fsspec_cas import World
from fsspec_cas.waiting import Worker
from lockprovider.lease.heartbeat import Beating


class Droppable(Beating, Protocol):
    """A lease, as far as it matters here."""

    def end(self) -> None:
        """Give it back, however often it was acquired; failures are not told."""


class Renewed:
    """A lease for its heartbeat, which renews it until it is dropped, or was held for `max_hold` seconds."""

    def __init__(self, lease: Droppable, world: World, max_hold: float | None) -> None:
        self.thread = lease.thread
        self.lost = lease.lost
        self._lease = weakref.ref(lease)
        self._world, self._most_s = world, max_hold
        self._began_s = world.monotonic_s()

    def renew(self) -> bool:
        """Prolong once; False while the answer is not known."""
        lease = self._lease()
        if lease is None:  # it is being given back
            return False
        if self._most_s is not None and self._world.monotonic_s() - self._began_s >= self._most_s:
            lease.abandon(f"it was held for max_hold={self._most_s:g} s, and is not renewed any more")
            return False
        return lease.renew()

    def abandon(self, why: str) -> None:
        """There will be no more beats, and nobody asked for that."""
        lease = self._lease()
        if lease is not None:
            lease.abandon(why)


def warn_and_give_back(lease: Droppable, name: str) -> None:
    """Say that it was dropped while it was held, and give it back.

    In a thread of its own: a collection may come in any, in the middle of anything.
    """
    said = f"{name} was dropped while it was held, and is given back: use `with`, or release()"
    warnings.warn(said, ResourceWarning, stacklevel=3, source=lease)
    with contextlib.suppress(RuntimeError):  # at the end of the interpreter: then it lapses
        Worker(lease.end, "dropped-lease").start(wait=False)


def end_at_exit(lease: Droppable) -> Callable[[], None]:
    """For `atexit`."""
    there = weakref.ref(lease)

    def end() -> None:
        found = there()
        if found is not None:
            found.end()

    return end
