"""Putting there what was decided, on threads of its own: the next decision need not wait.

In the order of the log, one after the other; or at once, where its readers leave what comes after a gap (`at_once`).

Not promised: that it is done. What is left undone stands in the record, and whoever writes that next does it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Sequence

from fsspec_cas import Store, Unavailable, World
from lockprovider.storage_lock import steps
from lockprovider.storage_lock.pending import Pending


class Applying:
    """Of one committer. `told` is called after each that is there, from the thread that applies.

    Attributes:
        there: the last publish that is known to be applied, and all before it.
        at_once: what is decided may appear in any order.
        failed: why the last run ended before its end; what it left is to be applied again.
    """

    def __init__(self, store: Store, world: World, told: Callable[[], None]) -> None:
        self.there: Pending | None = None
        self.at_once = False
        self.failed: Exception | None = None
        self._store = store
        self._world = world
        self._told = told
        self._guard = threading.Lock()
        self._todo: tuple[Pending, ...] = ()
        self._new: Collection[Pending] = ()
        self._begun: set[Pending] = set()
        self._done: set[Pending] = set()
        self._threads = 0
        self._until_s = 0.0

    @property
    def busy(self) -> bool:
        """Something is being applied."""
        return self._threads > 0

    def apply(self, unapplied: tuple[Pending, ...], new: Collection[Pending], until_s: float) -> None:
        """All of this, until that time by the monotonic clock; of `new` nothing can be there yet.

        What was begun goes on, until the later of the two times.
        """
        with self._guard:
            self._todo, self._new, self._until_s = unapplied, {*self._new, *new} & {*unapplied}, until_s
            self._done &= {*unapplied}
            if not self._threads:
                self.failed, self._begun = None, set()
            wanted = len(self._open()) if self.at_once else int(bool(unapplied) and not self._threads)
            self._threads += wanted
        for _ in range(wanted):
            self._store.in_background(self._run)

    def finds(self, pending: Pending, before: Sequence[Pending] = ()) -> bool:
        """Whether another has applied it by now, and all `before` it.

        One's own, so its bytes are looked at; unless there is something before it, when all are looked for by name.

        Raises:
            CasError: the store failed.
        """
        found = (
            steps.are_there(self._store, [one.path for one in (*before, pending)])
            if before
            else steps.digest_at(self._store, pending.path) == pending.digest
        )
        if found:
            with self._guard:
                self.there = pending
        return found

    def _run(self) -> None:
        try:
            while (pending := self._next()) is not None:
                self._put(pending)
                self._told()
        except Exception as error:  # noqa: BLE001 - for whoever waits for it
            with self._guard:
                self._threads, self.failed = self._threads - 1, error
        else:
            self._told()

    def _put(self, pending: Pending) -> None:
        steps.apply(self._store, pending, pending.data if pending in self._new else None, self._left_s)
        if self._left_s() <= 0:  # as by a process that was stopped in the moment of sending
            # One that knows nothing of it (a JVM writer) may have had the lock before: the record has to say.
            raise Unavailable(f"{pending.path!r} was written after its time", path=pending.path)
        with self._guard:
            self._done.add(pending)
            for one in self._left():
                if one not in self._done:
                    break
                self.there = one

    def _next(self) -> Pending | None:
        with self._guard:
            found = next(iter(self._open()), None)
            if found is None:
                self._threads -= 1
            else:
                self._begun.add(found)
            return found

    def _open(self) -> list[Pending]:
        return [one for one in self._left() if one not in self._begun and one not in self._done]

    def _left(self) -> tuple[Pending, ...]:
        return self._todo[self._todo.index(self.there) + 1 :] if self.there in self._todo else self._todo

    def _left_s(self) -> float:
        return self._until_s - self._world.monotonic_s()
