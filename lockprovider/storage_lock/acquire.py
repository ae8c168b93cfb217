"""Acquire a lock, in the order of this process's queue."""

from __future__ import annotations

import logging
import os
import threading
import weakref
from collections.abc import Callable, Hashable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Protocol

from fsspec_cas import Machine, Store, World
from fsspec_cas.machine import SLICE_S, Signal
from lockprovider.errors import NotAcquired, held_by
from lockprovider.storage_lock.driver import KnownRecord
from lockprovider.storage_lock.machine import Held, Idle
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
    next_action,
    next_poll,
    with_waiter,
)

if TYPE_CHECKING:
    from lockprovider.storage_lock.client import Client
    from lockprovider.storage_lock.record import LockRecord

_LOG = logging.getLogger("lockprovider")


class Fifo:
    """Mutex that serves threads in the order of asking."""

    def __init__(self) -> None:
        self._guard = threading.Lock()
        self._turns: list[weakref.ref[FifoTurn]] = []

    @property
    def taken(self) -> bool:
        return self.first() is not None

    def first(self) -> FifoTurn | None:
        """Return the oldest turn, which has the mutex, or None; removes garbage-collected turns before it."""
        with self._guard:
            while self._turns:
                turn = self._turns[0]()
                if turn is not None:
                    return turn
                del self._turns[0]
            return None

    def ask(self, turn: FifoTurn) -> None:
        with self._guard:
            self._turns.append(weakref.ref(turn))

    def forget(self, turn: FifoTurn) -> None:
        with self._guard:
            self._turns = [reference for reference in self._turns if reference() not in (None, turn)]


class FifoTurn:
    """Turn in a `Fifo`, from its creation until `leave`, or unreferenced."""

    def __init__(self, fifo: Fifo) -> None:
        self._fifo = fifo
        self.called = Signal()
        fifo.ask(self)

    def wait(self, timeout: float) -> bool:
        while self._fifo.first() is not self:
            if timeout <= 0:
                return False
            self.called.wait(min(timeout, SLICE_S))
            timeout -= SLICE_S
        return True

    def leave(self) -> None:
        self._fifo.forget(self)
        first = self._fifo.first()
        if first is not None:
            first.called.set()


_NAME_LENGTH = 12  # a collision costs only fairness


class ProcessQueue:
    """Clients of one lock in one process: one polls, all share what it reads. The record names them once: `name`."""

    def __init__(self, name: str, world: World) -> None:
        self.name = name
        self.fifo = Fifo()
        self._world = world
        self._guard = threading.Lock()
        self._idle = Idle()
        self._known: KnownRecord | None = None
        self._holds: Callable[[], Held | None] | None = None
        self._freed = Signal()
        self._released_s: float | None = None
        self._waited_s = 0.0
        self._gap_s: float | None = None

    @staticmethod
    def key(store: Store, path: str, world: World) -> Hashable:
        clock = "machine" if isinstance(world, Machine) else id(world)
        return os.getpid(), store.identity, path, clock

    @classmethod
    def of(cls, store: Store, path: str, world: World) -> ProcessQueue:
        return _QUEUES.get(cls.key(store, path, world), world)

    def comes_again(self) -> bool:
        return self.fifo.taken or (self._gap_s is not None and comes_again(self._gap_s, self._waited_s))

    @property
    def holder(self) -> Held | None:
        holds = self._holds
        return holds() if holds is not None else None

    def note_request(self) -> None:
        if self._released_s is not None and not self.fifo.taken:
            self._gap_s = self._world.monotonic_s() - self._released_s

    def take_news(self) -> tuple[Idle, KnownRecord | None]:
        with self._guard:
            idle, self._idle = self._idle, Idle()
            return idle, self._known

    def note_current(self, known: KnownRecord | None) -> None:
        with self._guard:
            self._known = known
            released = self._idle.released
            if released is not None and (known is None or known.version != released[1]):
                self._idle = Idle()

    def note_unchanged(self, known: KnownRecord | None) -> None:
        with self._guard:
            self._known = known

    def note_held(self, holds: Callable[[], Held | None], known: KnownRecord | None, waited_s: float) -> None:
        with self._guard:
            self._waited_s = waited_s
            self._freed = Signal()
            self._holds, self._known, self._idle = holds, known, Idle()

    def note_freed(self, holds: Callable[[], Held | None], idle: Idle, known: KnownRecord | None) -> None:
        with self._guard:
            if self._holds != holds:
                return
            self._holds, self._known, self._idle = None, known, idle
            self._released_s = self._world.monotonic_s()
            self._freed.set()

    def end_of_hold(self) -> Signal | None:
        with self._guard:
            return self._freed if self._holds is not None else None

    def wait(self, seconds: float, until: Signal | None) -> None:
        if until is not None and isinstance(self._world, Machine):
            until.wait(seconds)
        elif seconds > 0:
            self._world.sleep(seconds)

    def record_of_holder(self) -> LockRecord | None:
        held, known = self.holder, self._known
        if held is not None:
            return held.record
        return None if known is None or known.record.is_free else known.record


class _Queues:
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


_QUEUES = _Queues()


class HeldLease(Protocol):
    """Lease of this process; its `thread` acquired it."""

    owner: str
    thread: threading.Thread
    lost: Signal

    @property
    def released(self) -> bool: ...


_LEASES: weakref.WeakValueDictionary[str, HeldLease] = weakref.WeakValueDictionary()  # by owner
_HOLDS_ITSELF = "this thread holds that lease itself"
_INSTEAD = (
    "release it first, or acquire with the Lock object that holds it; to write a table in turns, lock another object "
    "(on=) and write with table.under(lease)"
)


def note_lease(lease: HeldLease) -> None:
    """Remember the lease, while it is referenced, for `waits_for_itself`."""
    _LEASES[lease.owner] = lease


def waits_for_itself(owner: str) -> bool:
    """Whether the current thread acquired the present lease of `owner`; another thread may still release it."""
    lease = _LEASES.get(owner)
    return (
        lease is not None
        and lease.thread is threading.current_thread()
        and not lease.released
        and not lease.lost.is_set()
    )


def warn_if_waiting_for_itself(where: str, owner: str) -> None:
    if waits_for_itself(owner):
        _LOG.warning("waiting for the lock %r, but %s: %s", where, _HOLDS_ITSELF, _INSTEAD)


@dataclass(frozen=True, slots=True)
class Wish:
    """What a client wants of a lock."""

    keeps_log: bool
    deadline_s: float


def acquire(client: Client, wish: Wish) -> None:
    """Wait in this process's queue, then read and write the record until `client` holds the lock.

    Returns once pending publishes are applied too. Logs a warning if this thread holds the lock. Raises `NotAcquired`
    after the wish's deadline; other errors pass.
    """
    queue, world = client.queue, client.world
    queue.note_request()
    record = queue.record_of_holder()
    if record is not None and wish.deadline_s > world.monotonic_s():
        warn_if_waiting_for_itself(client.where, record.owner)
    turn = FifoTurn(queue.fifo)
    try:
        if not turn.wait(max(0.0, wish.deadline_s - world.monotonic_s())):
            raise _not_acquired(client, queue.record_of_holder())
        began_s = world.monotonic_s()
        _Acquisition(client, wish).until_held()
        queue.note_held(client.driver.held, client.known, world.monotonic_s() - began_s)
    finally:
        turn.leave()


class _Acquisition:
    def __init__(self, client: Client, wish: Wish) -> None:
        self._client = client
        self._queue = client.queue
        self._world = client.world
        self._wish = wish
        self._last_tries = 0

    def until_held(self) -> None:
        """Read the lock record repeatedly: take the lock if allowed, else join the waiters or pause.

        Raises `NotAcquired` if a read after the deadline shows another holder, or after three more takes have failed.
        """
        waiter = Waiter(self._queue.name, self._client.settings.poll, self._world.monotonic_s())
        while True:
            end_of_hold = self._hear_from_queue()
            began_s = self._world.monotonic_s()
            known, was_requested = self._client.look(self._wish)
            if known is None:
                if self._left_s() <= 0 and not self._may_try_again():
                    where = self._client.where
                    raise NotAcquired(
                        f"{where!r} has no lock record, and no write of one was confirmed before the timeout"
                    )
                if self._client.take(None, (), self._wish):
                    return
                continue
            waiter, action = self._next(waiter, self._observed(known, began_s, requested=was_requested))
            if isinstance(action, TakeTurn):
                if self._client.take(known, action.waiters, self._wish):
                    return
                lost = replace(self._observed(known, began_s, requested=was_requested), lost_race=True)
                waiter, action = next_poll(waiter, lost, self._world.random())
            pause_s = max(0.0, min(action.seconds, self._left_s()))
            self._queue.wait(pause_s, end_of_hold)

    def _left_s(self) -> float:
        return self._wish.deadline_s - self._world.monotonic_s()

    def _may_try_again(self) -> bool:
        """Count a try after the deadline; False from the fourth on."""
        self._last_tries += 1
        return self._last_tries <= _LAST_TRIES

    def _hear_from_queue(self) -> Signal | None:
        """Wait briefly while a client of this process holds the lock; adopt the record that it knew or released.

        Returns the signal of its lease's end; None if it has released, or none holds.
        """
        left_s = self._left_s()
        end_of_hold = self._queue.end_of_hold()
        if left_s > 0 and end_of_hold is not None:
            paced_s = self._client.settings.poll * (1 + self._world.random()) / 2
            self._queue.wait(min(FIRST_S if self._queue.holder is None else paced_s, left_s), end_of_hold)
        idle, known = self._queue.take_news()
        self._client.adopt(idle, known)
        return None if idle.released is not None else end_of_hold

    def _observed(self, known: KnownRecord, began_s: float, *, requested: bool) -> Observation:
        record, now_ms, now_s = known.record, self._world.now_ms(), self._world.monotonic_s()
        self._queue.note_unchanged(known)
        took_s = now_s - began_s if requested else 0.0
        return Observation(record, known.version, now_ms, now_s, took_s, known.understood, self._client.owner)

    def _next(self, waiter: Waiter, observation: Observation) -> tuple[Waiter, TakeTurn | Pause]:
        """Choose, after a read, to take the lock or pause; returns the waiter's new memory too.

        Joining the waiters writes the record first. After the deadline, take a free lock up to three times, else raise
        `NotAcquired`.
        """
        if self._left_s() <= 0:
            take = at_last(waiter, observation) if self._may_try_again() else None
            if take is None:
                raise _not_acquired(self._client, observation.record)
            return waiter, take
        waiter, action = next_action(waiter, observation, self._world.random())
        if not isinstance(action, Join):
            return waiter, action
        record = with_waiter(observation.record, self._queue.name)
        if not self._client.join(record, observation.version, self._wish):
            return join_failed(waiter, observation, self._world.random())
        self._queue.note_unchanged(self._client.known)
        return next_poll(waiter, replace(observation, record=record), self._world.random())


_LAST_TRIES = 3


def _not_acquired(client: Client, record: LockRecord | None) -> NotAcquired:
    """Build the timeout's error: it names `record`'s holder, if held.

    Free `record`: the error names no owner, and says that no write that takes the lock was confirmed. None: it names
    this client as acquiring.
    """
    where = client.where
    if record is None:
        return NotAcquired(f"{client.owner}, a client of this process, is acquiring {where!r}", owner=client.owner)
    if record.is_free:
        return NotAcquired(f"{where!r} is free, but no write that takes it was confirmed before the timeout")
    owner, holder, until_ms = record.owner, record.holder, record.valid_until_ms
    held = held_by(owner, holder, until_ms, client.world.now_ms())
    is_own = waits_for_itself(owner)
    why = _HOLDS_ITSELF if is_own else "its holder may renew it"
    error = NotAcquired(f"{where!r} is {held}, and {why}", owner=owner, holder=holder, valid_until_ms=until_ms)
    if is_own:
        error.next_step = _INSTEAD
    return error
