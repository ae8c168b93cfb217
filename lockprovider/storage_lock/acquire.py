"""Acquiring a lock: first the queue of this process, then the store, at the pace of `polling`.

queue     the clients of one lock in one process: they wait for each other, and only the first of them asks the store
polling   what to do after each look: take the lock, look again, and when, or join the line
Acquirer  one client, whose own machine takes the lock only if that is safe
"""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Callable, Hashable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Protocol

from fsspec_cas import Machine, Store, World
from fsspec_cas.waiting import SLICE_S, Signal
from lockprovider.errors import NotAcquired, held_by
from lockprovider.storage_lock.driver import Known
from lockprovider.storage_lock.polling import (
    FIRST_S,
    Join,
    Observation,
    Pause,
    TakeTurn,
    Waiter,
    at_last,
    comes_again,
    join_failed,
    looked,
    next_look,
)
from lockprovider.storage_lock.record import joined
from lockprovider.storage_lock.states import Busy, Held, Idle

if TYPE_CHECKING:
    from fsspec_cas import Version
    from lockprovider.settings import LockSettings
    from lockprovider.storage_lock.record import LockRecord


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
    """Those who wait together: whoever has the `fifo` looks for all, and all know what one has seen or released.

    So a process looks at a lock at the pace of one client, however many threads and `Lock` objects want it; what one of
    them has released, the next one takes without a look, and what one has seen is not sent again. In the line of the
    record they stand as one.
    """

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


@dataclass(frozen=True, slots=True)
class LookedAt:
    """A look: what is known of the record, None if there is none; and whether the store was asked for it."""

    known: Known | None
    asked: bool


@dataclass(frozen=True, slots=True)
class Wish:
    """What one who asks for the lock promises, and until when it waits, on the monotonic clock."""

    keeps_log: bool
    deadline_s: float


class Acquirer(Protocol):
    """A client that wants the lock."""

    path: str
    where: str
    settings: LockSettings

    @property
    def known(self) -> Known | None:
        """What it knows of the record."""

    @property
    def owner(self) -> str:
        """As it stands in the record."""

    def held(self) -> Held | None:
        """What it believes that it holds."""

    def look(self, wish: Wish) -> LookedAt:
        """The record now."""

    def take(self, seen: Known | None, line: tuple[str, ...], wish: Wish) -> bool:
        """Take the lock as it was seen, with this line; False if somebody was faster."""

    def adopt(self, idle: Idle, known: Known | None) -> None:
        """Another of the queue has released this, and knows that."""

    def joined(self, there: LockRecord, version: Version, wish: Wish) -> bool:
        """Write the record with the line that it is in now, if nobody else has written it."""


def acquire(client: Acquirer, queue: ProcessQueue, world: World, wish: Wish) -> None:
    """Return once the client has the lock.

    Raises:
        NotAcquired: it was held by others until the deadline; says by whom.
    """
    queue.asks()
    turn = FifoTurn(queue.fifo)
    try:
        if not turn.wait(max(0.0, wish.deadline_s - world.monotonic_s())):
            raise _not_acquired(client.where, queue.refusal(client.owner), world)
        began_s = world.monotonic_s()
        _Acquisition(client, queue, world, wish).until_it_is_there()
        queue.took(client.held, client.known, world.monotonic_s() - began_s)
    finally:
        turn.leave()


class _Acquisition:
    """It is this client's turn in its queue."""

    def __init__(self, client: Acquirer, queue: ProcessQueue, world: World, wish: Wish) -> None:
        self._client = client
        self._queue = queue
        self._world = world
        self._wish = wish
        self._last_tries = 0

    def until_it_is_there(self) -> None:
        waiter = Waiter(self._queue.name, self._client.settings.poll, self._world.monotonic_s())
        while True:
            end_of_hold = self._hear_from_queue()
            began_s = self._world.monotonic_s()
            look = self._client.look(self._wish)
            if look.known is None:
                if self._client.take(None, (), self._wish):
                    return
                continue
            waiter, what = self._next(waiter, self._observed(look.known, began_s, asked=look.asked))
            if isinstance(what, TakeTurn):
                if self._client.take(look.known, what.line, self._wish):
                    return
                lost = replace(self._observed(look.known, began_s, asked=look.asked), lost_race=True)
                waiter, what = next_look(waiter, lost, self._world.random())
            pause_s = max(0.0, min(what.seconds, self._left_s()))  # the last look is at the deadline
            self._queue.wait(pause_s, end_of_hold)

    def _left_s(self) -> float:
        return self._wish.deadline_s - self._world.monotonic_s()

    def _hear_from_queue(self) -> Signal | None:
        """While one of us holds it, a look at the store is only for what the holder itself cannot know."""
        left_s = self._left_s()
        end_of_hold = self._queue.end_of_hold()
        if left_s > 0 and end_of_hold is not None:
            paced_s = self._client.settings.poll * (1 + self._world.random()) / 2
            # One that believes in nothing any more is about to say so: it is releasing, unless it has lost the lock.
            self._queue.wait(min(FIRST_S if self._queue.holder is None else paced_s, left_s), end_of_hold)
        idle, known = self._queue.news()
        self._client.adopt(idle, known)
        return None if idle.released is not None else end_of_hold

    def _observed(self, known: Known, began_s: float, *, asked: bool) -> Observation:
        record, now_ms, now_s = known.record, self._world.now_ms(), self._world.monotonic_s()
        self._queue.knows(known)
        self._queue.busy = _holds(record)
        took_s = now_s - began_s if asked else 0.0
        return Observation(record, known.version, now_ms, now_s, took_s, known.understood, self._client.owner)

    def _next(self, waiter: Waiter, seen: Observation) -> tuple[Waiter, TakeTurn | Pause]:
        if self._left_s() <= 0:
            take = at_last(waiter, seen) if self._last_tries < _LAST_TRIES else None
            self._last_tries += 1
            if take is None:
                raise _not_acquired(self._client.where, _holds(seen.record), self._world)
            return waiter, take
        waiter, what = looked(waiter, seen, self._world.random())
        if not isinstance(what, Join):
            return waiter, what
        there = joined(seen.record, self._queue.name)
        if not self._client.joined(there, seen.version, self._wish):
            return join_failed(waiter, seen, self._world.random())
        self._queue.knows(self._client.known)
        return next_look(waiter, replace(seen, record=there), self._world.random())


_LAST_TRIES = 3  # after the deadline, each refused though the lock was seen free


def _holds(record: LockRecord) -> Busy:
    return Busy(record.owner, record.valid_until_ms, record.holder)


def _not_acquired(where: str, busy: Busy, world: World) -> NotAcquired:
    if not busy.valid_until_ms:
        return NotAcquired(f"{where!r} is about to be taken by {busy.owner}, of this process", owner=busy.owner)
    owner, holder, until_ms = busy.owner, busy.holder, busy.valid_until_ms
    held = held_by(owner, holder, until_ms, world.now_ms())
    return NotAcquired(f"{where!r} is {held} unless it is renewed", owner=owner, holder=holder, valid_until_ms=until_ms)
