"""The clients of one lock in one process: they wait for each other here, and only the first of them asks the store.

So a process looks at a lock at the pace of one client, however many threads and `Lock` objects want it; what one of
them has released, the next one takes without a look, and what one has seen is not sent again. In the line of the record
they stand as one.
"""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Callable, Hashable

from fsspec_cas import Machine, Store, World
from fsspec_cas.waiting import SLICE_S, Signal
from lockprovider.storage_lock.driver import Known
from lockprovider.storage_lock.polling import comes_again
from lockprovider.storage_lock.states import Busy, Held, Idle


class Fifo:
    """A mutex for threads: first come, first served, which `threading.Lock` does not promise. See `FifoTurn`."""

    def __init__(self) -> None:
        self._guard = threading.Lock()
        self._turns: list[weakref.ref[FifoTurn]] = []  # in the order of asking: the first has it

    @property
    def taken(self) -> bool:
        """Whether somebody has it now."""
        return self.first() is not None

    def first(self) -> FifoTurn | None:
        """Whose turn it is; those that nobody refers to any more have left."""
        with self._guard:
            while self._turns:
                turn = self._turns[0]()
                if turn is not None:
                    return turn
                del self._turns[0]
            return None

    def ask(self, turn: FifoTurn) -> None:
        """Put it at the end."""
        with self._guard:
            self._turns.append(weakref.ref(turn))

    def forget(self, turn: FifoTurn) -> None:
        """Take it out, wherever it is."""
        with self._guard:
            self._turns = [one for one in self._turns if one() not in (None, turn)]


class FifoTurn:
    """A place in the line of a `Fifo`, until `leave`, which any thread may call, or until nobody refers to it any more.

    So an interrupt cannot leave the mutex taken, whenever it comes: the turn is gone with the frame, or the lease, that
    had it, and the next in line finds that within `SLICE_S`.
    """

    def __init__(self, fifo: Fifo) -> None:
        self._fifo = fifo
        self.called = Signal()  # it is the first, perhaps
        fifo.ask(self)

    def wait(self, timeout: float) -> bool:
        """Whether it came within so many seconds."""
        while self._fifo.first() is not self:
            if timeout <= 0:
                return False
            self.called.wait(min(timeout, SLICE_S))
            timeout -= SLICE_S
        return True

    def leave(self) -> None:
        """It is over, or is not waited for any more: the next one's turn."""
        self._fifo.forget(self)
        first = self._fifo.first()
        if first is not None:
            first.called.set()


_NAME_LENGTH = 12  # of a UUID's 32 digits: a mistaken name only costs politeness


class ProcessQueue:
    """Those who wait together: whoever has the `fifo` looks for all, and all know what one has seen or released."""

    def __init__(self, name: str, world: World) -> None:
        self.name = name
        self.fifo = Fifo()
        self.busy: Busy | None = None  # what the one who looks has seen last
        self._world = world  # its identity is part of what makes clients wait together
        self._guard = threading.Lock()
        self._idle = Idle()
        self._known: Known | None = None
        self._holds: Callable[[], Held | None] | None = None
        self._freed = Signal()
        self._released_s: float | None = None
        self._waited_s = 0.0
        self._gap_s: float | None = None  # of late, between a release here and the next wish

    @staticmethod
    def key(store: Store, path: str, world: World) -> Hashable:
        """Equal for those who wait together, on whatever thread or event loop."""
        clock = "machine" if isinstance(world, Machine) else id(world)
        return os.getpid(), store.place, path, clock

    @classmethod
    def of(cls, store: Store, path: str, world: World) -> ProcessQueue:
        """The one of this process for this lock."""
        return _QUEUES.get(cls.key(store, path, world), world)

    def comes_again(self) -> bool:
        """Whether somebody here will want the lock again, as far as can be known."""
        return self.fifo.taken or (self._gap_s is not None and comes_again(self._gap_s, self._waited_s))

    @property
    def holder(self) -> Held | None:
        """What one of us holds, as far as it knows."""
        holds = self._holds
        return holds() if holds is not None else None

    def asks(self) -> None:
        """Somebody wants the lock: note whether that was soon after the last release."""
        if self._released_s is not None and not self.fifo.taken:
            self._gap_s = self._world.monotonic_s() - self._released_s

    def news(self) -> tuple[Idle, Known | None]:
        """What is known here of the record; the released one may be taken without a look, once."""
        with self._guard:
            idle, self._idle = self._idle, Idle()
            return idle, self._known

    def saw(self, known: Known | None) -> None:
        """This is what the record is now; if another has written it, what one of us released is not there any more."""
        with self._guard:
            self._known = known
            released = self._idle.released
            if released is not None and (known is None or known.version != released[1]):
                self._idle = Idle()

    def knows(self, known: Known | None) -> None:
        """One of us has looked in vain: the next look moves no body, if nothing changes."""
        with self._guard:
            self._known = known

    def took(self, holds: Callable[[], Held | None], known: Known | None, waited_s: float) -> None:
        """One of us has the lock, after so long."""
        with self._guard:
            self._waited_s = waited_s
            self._freed = Signal()
            self._holds, self._known, self._idle = holds, known, Idle()

    def freed(self, holds: Callable[[], Held | None], idle: Idle, known: Known | None) -> None:
        """It has it no more."""
        with self._guard:
            if self._holds != holds:
                return
            self._holds, self._known, self._idle = None, known, idle
            self._released_s = self._world.monotonic_s()
            self._freed.set()

    def end_of_hold(self) -> Signal | None:
        """Set once the one of us that holds the lock now has freed it; None if none does."""
        with self._guard:
            return self._freed if self._holds is not None else None

    def wait(self, seconds: float, until: Signal | None) -> None:
        """A pause; ended by `until`, which was asked for before the look that the pause follows: no news is missed."""
        if until is not None and isinstance(self._world, Machine):
            until.wait(seconds)
        elif seconds > 0:
            self._world.sleep(seconds)

    def refusal(self, asked_by: str) -> Busy:
        """Why somebody here does not get the lock: who holds it, as far as is known here."""
        held = self.holder
        if held is not None:
            return Busy(held.record.owner, held.record.valid_until_ms, held.record.holder)
        return self.busy or Busy(asked_by, 0, None)


class _Queues:
    """Who is there. Forgotten in a forked child: its threads are not the parent's."""

    def __init__(self) -> None:
        self._forget()
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(after_in_child=self._forget)

    def _forget(self) -> None:
        self._guard = threading.Lock()
        self._all: weakref.WeakValueDictionary[object, ProcessQueue] = weakref.WeakValueDictionary()

    def get(self, key: object, world: World) -> ProcessQueue:
        with self._guard:
            queue = self._all.get(key)
            if queue is None:
                queue = self._all[key] = ProcessQueue(world.new_id().replace("-", "")[:_NAME_LENGTH], world)
            return queue


# The one table of the process: clients that know nothing of each other have to meet somewhere.
_QUEUES = _Queues()
