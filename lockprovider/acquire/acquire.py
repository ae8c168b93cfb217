"""Acquiring a lock: first the queue of this process, then the store, at the pace of `polling`.

queue     who waits together in this process; only the first of them comes here with requests
polling   what to do after each look in vain: look again, and when, or join the line
Acquirer  one client, whose own machine decides whether the lock that it sees is there for it
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Protocol

from lockprovider.acquire.polling import FIRST_S, Join, Observation, Pause, Waiter, join_failed, looked, passing
from lockprovider.acquire.process_queue import ProcessQueue
from lockprovider.errors import NotAcquired
from lockprovider.holder import held_by
from lockprovider.lease.record_file import Known
from lockprovider.lease.states import EVERYONE, Busy, Held, Idle, Passing
from lockprovider.record.line import ahead_of, joined

if TYPE_CHECKING:
    import threading

    from fsspec_cas import Version, World
    from lockprovider.record.record import LockRecord
    from lockprovider.settings import LockSettings


@dataclass(frozen=True, slots=True)
class Tried:
    """One try. `busy`: why it was in vain; None: it has the lock. `looked`: whether the store was asked for it."""

    busy: Busy | None
    looked: bool


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

    def try_once(self, over: Passing, wish: Wish, *, patient: bool) -> Tried:
        """Take the lock, if it is there; one that is not `patient` looks once more at who was faster."""

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
    if not queue.fifo.acquire(timeout=max(0.0, wish.deadline_s - world.monotonic_s())):
        raise _not_acquired(client.where, queue.refusal(client.owner), world)
    try:
        began_s = world.monotonic_s()
        _Acquisition(client, queue, world, wish).until_it_is_there()
        queue.took(client.held, client.known, world.monotonic_s() - began_s)
    finally:
        queue.fifo.release()


class _Acquisition:
    """It is this client's turn in its queue."""

    def __init__(self, client: Acquirer, queue: ProcessQueue, world: World, wish: Wish) -> None:
        self._client = client
        self._queue = queue
        self._world = world
        self._wish = wish

    def until_it_is_there(self) -> None:
        over = Passing()
        waiter = Waiter(self._queue.name, self._client.settings.poll_s, self._world.monotonic_s())
        while True:
            end_of_hold = self._hear_from_queue()
            began_s = self._world.monotonic_s()
            last = began_s >= self._wish.deadline_s  # a try that cannot wait lets nobody go first
            tried = self._client.try_once(EVERYONE if last else over, self._wish, patient=not last)
            busy = tried.busy
            if busy is None:
                return
            if tried.looked:
                self._queue.knows(self._client.known)
            if not busy.lost_race:
                self._queue.busy = busy
            left_s = self._left_s()
            if last or (left_s <= 0 and not busy.free and not busy.lost_race):
                raise _not_acquired(self._client.where, busy, self._world)
            seen = self._observed(busy, self._world.monotonic_s() - began_s if tried.looked else 0.0)
            waiter, pause_s = self._look_or_join(waiter, seen)
            self._queue.wait(max(0.0, min(pause_s, left_s)), end_of_hold)  # the last look is at the deadline
            over = passing(waiter, seen, self._world.monotonic_s())

    def _left_s(self) -> float:
        return self._wish.deadline_s - self._world.monotonic_s()

    def _hear_from_queue(self) -> threading.Event | None:
        """While one of us holds it, a look at the store is only for what the holder itself cannot know."""
        left_s = self._left_s()
        end_of_hold = self._queue.end_of_hold()
        if left_s > 0 and end_of_hold is not None:
            paced_s = self._client.settings.poll_s * (1 + self._world.random()) / 2
            # One that believes in nothing any more is about to say so: it is releasing, unless it has lost the lock.
            self._queue.wait(min(FIRST_S if self._queue.holder is None else paced_s, left_s), end_of_hold)
        idle, known = self._queue.news()
        self._client.adopt(idle, known)
        return None if idle.released is not None else end_of_hold

    def _observed(self, busy: Busy, took_s: float) -> Observation:
        known = self._client.known
        assert known is not None  # noqa: S101 - the answer is about a record that was read
        now_ms, now_s = self._world.now_ms(), self._world.monotonic_s()
        return Observation(known.record, known.version, busy, now_ms, now_s, took_s, known.understood)

    def _look_or_join(self, waiter: Waiter, seen: Observation) -> tuple[Waiter, float]:
        waiter, what = looked(waiter, seen, self._world.random())
        if isinstance(what, Join):
            there = joined(seen.record, self._queue.name)
            if not self._client.joined(there, seen.version, self._wish):
                waiter, what = join_failed(waiter, seen, self._world.random())
                return waiter, what.seconds
            self._queue.knows(self._client.known)
            busy = replace(seen.busy, ahead=ahead_of(self._queue.name, there.line))
            waiter, what = looked(waiter, replace(seen, record=there, busy=busy), self._world.random())
        return waiter, what.seconds if isinstance(what, Pause) else 0.0


def _not_acquired(where: str, busy: Busy, world: World) -> NotAcquired:
    if not busy.valid_until_ms:
        return NotAcquired(f"{where!r} is about to be taken by {busy.owner}, of this process", owner=busy.owner)
    owner, holder, until_ms = busy.owner, busy.holder, busy.valid_until_ms
    held = held_by(owner, holder, until_ms, world.now_ms())
    return NotAcquired(f"{where!r} is {held} unless it is renewed", owner=owner, holder=holder, valid_until_ms=until_ms)
