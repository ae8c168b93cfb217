"""Acquiring a lock: first the queue of this process, then the store, at the pace of `polling`.

queue     who waits together in this process; only the first of them comes here with requests
polling   what to do after each look: take the lock, look again, and when, or join the line
Acquirer  one client, whose own machine takes the lock only if that is safe
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Protocol

from lockprovider.errors import NotAcquired, held_by
from lockprovider.storage_lock.driver import Known
from lockprovider.storage_lock.line import joined
from lockprovider.storage_lock.polling import (
    FIRST_S,
    Join,
    Observation,
    Pause,
    TakeTurn,
    Waiter,
    at_last,
    join_failed,
    looked,
    next_look,
)
from lockprovider.storage_lock.process_queue import FifoTurn, ProcessQueue
from lockprovider.storage_lock.states import Busy, Held, Idle

if TYPE_CHECKING:
    from fsspec_cas import Version, World
    from fsspec_cas.waiting import Signal
    from lockprovider.settings import LockSettings
    from lockprovider.storage_lock.record import LockRecord


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
