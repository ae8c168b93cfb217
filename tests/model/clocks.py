"""A world of clients who take, renew and release the lock, each with a clock of its own.

Time goes on in ticks. A client's wall clock differs from the others' by a constant skew, and may be stepped back once; its
monotonic clock is true. A request may be answered at once or any number of ticks after it was sent, its answer may be lost,
and it may land late.

Promises, checked at every step:
    one    at most one client believes that it holds the lock: `belief` says so, and its deadline has not passed
    told   whatever is on its way, whoever asks after the deadline of the lease is told that it is over
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from fsspec_cas import ABSENT, Version
from lockprovider.settings import GRACE_MS, LockSettings
from lockprovider.storage_lock.machine import (
    Checking,
    Done,
    Ended,
    Held,
    Idle,
    Look,
    Lost,
    PutFailed,
    PutRecord,
    PutWon,
    ReadRecord,
    RecordSeen,
    Release,
    Renew,
    TakeLock,
    Tick,
    Writing,
    belief,
    step,
)
from lockprovider.storage_lock.polling import with_waiter
from lockprovider.storage_lock.record import LockRecord, Me, Moment
from model.search import BrokenPromise

TICK_S = 1.0
SETTINGS = LockSettings(validity=5.0, renew=0.5)
# How far two clocks may differ before two clients can believe at once.
ALLOWANCE_S = SETTINGS.margin_s + GRACE_MS / 1000
_START_S = 1000.0

Timed = Callable[[Me, Any, Any, float], tuple[Any, Any]]


def plainly(me: Me, state: Any, event: Any, now_s: float) -> tuple[Any, Any]:
    """No twin: the real machine."""
    del now_s
    return step(me, state, event)


class Client(NamedTuple):
    """One client: what its machine is in, and the request on its way."""

    machine: Any
    op: Any = None
    tries: int = 0
    renewals: int = 0
    skew_s: float = 0.0
    released: bool = False  # it asked to release: whatever becomes of that, it has stopped working


class World(NamedTuple):
    """Everything there is."""

    tick: int
    record: LockRecord | None
    clients: tuple[Client, ...]
    late: tuple[PutRecord, ...] = ()
    lost: int = 0  # answers that may still be lost
    delays: int = 0  # requests that may still be late
    joins: int = 0  # waiters that may still write themselves into the line
    steps_back: int = 0  # clocks that may still be stepped


@dataclass
class Clocks:
    """The steps of the world, for `explore`."""

    skews_s: tuple[float, ...] = (0.0, 0.0)
    ticks: int = 8
    tries: int = 1
    renewals: int = 1
    lost: int = 0
    delays: int = 0
    joins: int = 0
    step_back_s: float = 0.0
    rule: Timed = plainly
    reached: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        self._me = [Me(name, SETTINGS, waiter_name=name) for name in "ABC"[: len(self.skews_s)]]

    def initial(self) -> World:
        clients = tuple(Client(Idle(), None, self.tries, self.renewals, skew_s) for skew_s in self.skews_s)
        return World(0, None, clients, (), self.lost, self.delays, self.joins, 1 if self.step_back_s else 0)

    def steps(self, world: World) -> Iterator[tuple[str, World]]:
        self._at_most_one(world)
        if world.tick < self.ticks:
            yield f"{TICK_S:g} s pass (now {(world.tick + 1) * TICK_S:g})", world._replace(tick=world.tick + 1)
        for put in world.late:
            yield f"{put.record.owner}'s late write lands", _landed(world, put)
        for i in range(len(world.clients)):
            yield from self._join(world, i)
            yield from self._client(world, i)

    def _join(self, world: World, i: int) -> Iterator[tuple[str, World]]:
        name, record = self._me[i].owner, world.record
        if world.joins and record and not record.expired and record.owner != name and name not in record.waiters:
            there = world._replace(record=with_waiter(record, name), joins=world.joins - 1, late=())
            self.reached.add("joined")
            yield f"{name} joins the line in {record.owner}'s record", there

    def _at_most_one(self, world: World) -> None:
        now_s = _START_S + world.tick * TICK_S
        held = [(i, belief(c.machine)) for i, c in enumerate(world.clients) if not c.released]
        sure = ["ABC"[i] for i, h in held if h is not None and now_s < h.deadline_s]
        if len(sure) > 1:
            raise BrokenPromise("now", f"one: {' and '.join(sure)} both believe that they hold the lock")
        for i, client in enumerate(world.clients):
            held = client.machine.before if isinstance(client.machine, Writing) else None
            held = client.machine.write.before if isinstance(client.machine, Checking) else held
            if held is not None and now_s >= held.deadline_s:
                self.reached.add("in doubt past its deadline")
                if not isinstance(self.rule(self._me[i], client.machine, Tick(now_s), now_s)[1], Ended):
                    raise BrokenPromise("now", f"told: {'ABC'[i]} asks, and does not hear that its lease is over")
        owners = {w.record.owner for w in (world,) if w.record}
        self.reached.update(f"{name} holds" for name in sure if name in owners)

    def _client(self, world: World, i: int) -> Iterator[tuple[str, World]]:
        client, name = world.clients[i], self._me[i].owner
        match client.op:
            case ReadRecord():
                seen = world.record
                version = None if seen is None else _version(seen)
                whose = "no record" if seen is None else f"{seen.owner}'s record, valid until {_human(seen)}"
                event: Any = RecordSeen(seen, version, self._at(world, i))
                if isinstance(client.machine, (Idle, Lost)):
                    event = TakeLock(event)
                yield self._feed(f"{name} reads {whose}", world, i, event)
            case PutRecord() as put:
                yield from self._put(world, i, put)
            case _:
                yield from self._own_step(world, i)

    def _own_step(self, world: World, i: int) -> Iterator[tuple[str, World]]:
        client, name, now_s = world.clients[i], self._me[i].owner, _START_S + world.tick * TICK_S
        if world.steps_back and isinstance(client.machine, Held):
            back = client._replace(skew_s=client.skew_s - self.step_back_s)
            label = f"{name}'s wall clock is stepped back by {self.step_back_s:g} s"
            yield label, _with(world, i, back)._replace(steps_back=world.steps_back - 1)
        match client.machine:
            case Idle() | Lost() if client.tries:
                tried = client._replace(tries=client.tries - 1, released=False)
                known, tried_world = client.machine, _with(world, i, tried)
                if isinstance(known, Idle) and known.released is not None:
                    take = TakeLock(RecordSeen(*known.released, self._at(world, i)))
                    yield self._feed(f"{name} tries, without a look", tried_world, i, take)
                else:
                    yield f"{name} wants the lock", _with(tried_world, i, tried._replace(op=ReadRecord()))
            case Held(deadline_s=deadline_s) if now_s >= deadline_s:
                yield self._feed(f"{name} finds its lease lapsed", world, i, Tick(now_s))
            case Held():
                if client.renewals and not client.released:
                    renewed = client._replace(renewals=client.renewals - 1)
                    yield self._feed(f"{name} renews", _with(world, i, renewed), i, Renew(self._at(world, i)))
                released = _with(world, i, client._replace(released=True))
                yield self._feed(f"{name} releases", released, i, Release(self._at(world, i)))
            case Checking():
                yield self._feed(f"{name} looks again", world, i, Look())
            case _:
                return

    def _put(self, world: World, i: int, put: PutRecord) -> Iterator[tuple[str, World]]:
        name = self._me[i].owner
        what = f"{name}'s write, valid until {_human(put.record)},"
        if put.condition != _version(world.record):
            yield self._feed(f"{what} is refused", world, i, PutFailed())
            return
        there = _landed(world, put)
        yield self._feed(f"{what} lands", there, i, PutWon(_version(put.record)))
        if world.lost:
            yield self._feed(f"{what} lands, no answer", there._replace(lost=world.lost - 1), i, PutFailed())
        if world.delays:
            late = world._replace(late=(*world.late, put), delays=world.delays - 1)
            yield self._feed(f"{what} is late, no answer", late, i, PutFailed())

    def _feed(self, label: str, world: World, i: int, event: Any) -> tuple[str, World]:
        client, now_s = world.clients[i], _START_S + world.tick * TICK_S
        machine, effect = self.rule(self._me[i], client.machine, event, now_s)
        op = effect if isinstance(effect, (ReadRecord, PutRecord)) else None
        if effect == Done("acquired"):
            self.reached.add("acquired")
        over = isinstance(machine, Lost) or (isinstance(machine, Idle) and not client.tries)
        return label, _with(world, i, client._replace(machine=Idle() if over else machine, op=op))

    def _at(self, world: World, i: int) -> Moment:
        true_s = _START_S + world.tick * TICK_S
        nonce = f"{self._me[i].owner}{world.clients[i].tries}{world.clients[i].renewals}{world.tick}"
        return Moment(round((true_s + world.clients[i].skew_s) * 1000), true_s, nonce)


def _with(world: World, i: int, client: Client) -> World:
    return world._replace(clients=(*world.clients[:i], client, *world.clients[i + 1 :]))


def _landed(world: World, put: PutRecord) -> World:
    """The other late writes can never land: a version does not come back."""
    return world._replace(record=put.record, late=())


def _version(record: LockRecord | None) -> Any:
    return (
        ABSENT
        if record is None
        else Version("model", record.nonce + record.owner + str(record.expired) + ",".join(record.waiters))
    )


def _human(record: LockRecord) -> str:
    return f"{record.valid_until_ms / 1000 - _START_S:g}"
