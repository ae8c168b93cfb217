"""Putting there what was decided, in the order of the log, on a thread of its own: the next decision need not wait.

Not promised: that it is done. What is left undone stands in the record, and whoever writes that next does it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection

from fsspec_cas import Store, Unavailable, World
from lockprovider.publish import steps
from lockprovider.record.pending import Pending


class Applying:
    """Of one committer. `told` is called after each that is there, from the thread that applies.

    Attributes:
        there: the last publish that is known to be applied, and all before it.
        busy: something is being applied.
        failed: why the last run ended before its end; what it left is to be applied again.
    """

    def __init__(self, store: Store, world: World, told: Callable[[], None]) -> None:
        self.there: Pending | None = None
        self.busy = False
        self.failed: Exception | None = None
        self._store = store
        self._world = world
        self._told = told
        self._guard = threading.Lock()
        self._todo: tuple[Pending, ...] = ()
        self._new: Collection[Pending] = ()
        self._until_s = 0.0

    def apply(self, unapplied: tuple[Pending, ...], new: Collection[Pending], until_s: float) -> None:
        """All of this, in this order, until that time by the monotonic clock; of `new` nothing can be there yet.

        What was begun goes on, until the later of the two times.
        """
        with self._guard:
            self._todo, self._new, self._until_s = unapplied, {*self._new, *new} & {*unapplied}, until_s
            begins = bool(unapplied) and not self.busy
            if begins:
                self.busy, self.failed = True, None
        if begins:
            self._store.in_background(self._run)

    def finds(self, pending: Pending) -> bool:
        """Whether another has applied it by now, and so all before it; one's own, so its bytes are looked at.

        Raises:
            CasError: the store failed.
        """
        if steps.digest_at(self._store, pending.path) != pending.digest:
            return False
        with self._guard:
            self.there = pending
        return True

    def _run(self) -> None:
        try:
            while (pending := self._next()) is not None:
                self._put(pending)
                self._told()
        except Exception as error:  # noqa: BLE001 - for whoever waits for it
            with self._guard:
                self.busy, self.failed = False, error
        else:
            self._told()

    def _put(self, pending: Pending) -> None:
        steps.apply(self._store, pending, pending.data if pending in self._new else None, self._left_s)
        if self._left_s() <= 0:  # as by a process that was stopped in the moment of sending
            # One that knows nothing of it (a JVM writer) may have had the lock before: the record has to say.
            raise Unavailable(f"{pending.path!r} was written after its time", path=pending.path)
        with self._guard:
            self.there = pending

    def _next(self) -> Pending | None:
        with self._guard:
            at = self._todo.index(self.there) + 1 if self.there in self._todo else 0
            self.busy = at < len(self._todo)
            return self._todo[at] if self.busy else None

    def _left_s(self) -> float:
        return self._until_s - self._world.monotonic_s()
