"""A world of clients that append to a log under the lock, with NO assumption on clocks.

Every client runs transactions: take the lock, read which entries there are, publish an entry that names them all, release.
The client's decisions are `step`, `publish_next` and `settle_commit` of `lockprovider.storage_lock.machine`, the real ones; what `Lock` does
around them is followed here step by step. Those who combine hold no lock: they decide by `lockprovider.storage_lock.commit_rules` on the same record,
what they want themselves and nothing else (`group_commit` has the rest). One step of the world is one request, or one event of one client, so all others may
act between any two of them: that is what a pause is.

What may happen, each within a budget: a lease counts as lapsed for another client at any moment; a holder finds that its
own lease has lapsed at any moment; the answer to a request is lost; a write is late, and lands at any later moment at which
its condition is true (a second copy of a write that landed never finds its condition true again, so "twice" is a late
write that has lost); a request fails and was not done; a client stops for ever, with its write still on the way; one that
waits writes itself into the line, that is into the record of the holder. What is decided without a lock is applied at any
later moment by the one who did, after what was decided before. Those who keep the log go by it, instead of reading the entries, whenever they can. All take as rudely as they can: the line is
politeness, and nothing may depend on it. The holder removes what was published; an operator breaks a lease; something on
the way delivers a write twice, and what is answered is the refusal of the second copy; a JVM writer takes what is released,
commits, and drops all fields that it does not know.

Promises, checked at every step:
    fence     an entry that is decided names all entries that were decided before it
    keep      what was decided is in the store before the record forgets it
    order     no entry is in the store before all that were decided before it
    epoch     every acquisition has a higher epoch than all before it
    truth     a publish that returns is in the store; one that ended in LeaseLost never is
    gone      what the holder has removed does not come back: not by itself while its lease lives, and by nobody if the
              record did not name it any more
    once      the log names a publish once
    pair      an entry is in the store only after what its decision puts there first; that of one that never is, is not
    free      alone in the world, a newcomer gets a lock that was released or has lapsed, and what was decided is there
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, fields, is_dataclass, replace
from typing import Any, NamedTuple

from fsspec_cas import ABSENT, Version
from lockprovider.settings import LockSettings
from lockprovider.storage_lock import commit_rules as group
from lockprovider.storage_lock import machine as real
from lockprovider.storage_lock.commit_rules import Intent
from lockprovider.storage_lock.machine import (
    AppliedPending,
    Apply,
    Busy,
    Checking,
    Commit,
    Done,
    Ended,
    Held,
    Idle,
    Look,
    Lost,
    LostRace,
    PutFailed,
    PutRecord,
    PutWon,
    ReadRecord,
    RecordSeen,
    Release,
    Renew,
    Rolling,
    TakeLock,
    Tick,
    Writing,
)
from lockprovider.storage_lock.record import LockRecord, Me, Moment, Pending, pending_after
from model.search import BrokenPromise

_WRITING = ("take", "known", "seen", "renew", "commit", "release")
ANY = object()  # a condition that is always true: what a plain put has
PROMISES = frozenset({"fence", "keep", "order", "epoch", "truth", "free", "gone", "once", "pair"})
_MEMORY = 3
_LONG_AGO_MS = -(10**9)
_NAMES = "ABCZ"
_PLAIN = {"failed": PutFailed(), "lost race": LostRace(), "applied": AppliedPending(), "look": Look()}
_GUEST, _GUESTS = "j", 1000


class Budget(NamedTuple):
    """How many faults of each kind the world may still have."""

    lapses: int = 0
    lost: int = 0
    late: int = 0
    failed: int = 0
    crashes: int = 0
    renewals: int = 0
    joins: int = 0
    removals: int = 0
    breaks: int = 0
    twice: int = 0
    guests: int = 0


@dataclass(frozen=True)
class Rules:
    """The protocol. A wrong twin replaces one of its parts."""

    step: Callable[[Me, Any, Any], tuple[Any, Any]] = real.step
    publish_next: Callable[..., str] = real.publish_next
    settle: Callable[..., str] = real.settle_commit
    condition: Callable[[PutRecord], Any] = lambda put: put.condition
    stored: Callable[[LockRecord], LockRecord | None] = lambda record: record
    with_waiter: Callable[[LockRecord, str], LockRecord] = real.with_waiter
    deletes: bool = False
    combine: Callable[..., LockRecord] = group.combine
    verdict: Callable[..., group._Verdict] = group.verdict
    looks: bool = True  # False: who combines takes a refusal for never
    moves_on: bool = True  # False: what is not in the log never will be, also while its write may be on the way
    in_order: bool = True  # False: one that has decided without holding the lock applies its own and nothing else
    applies_first: bool = True  # False: it frees the lock for those who know nothing of what is pending, before that
    refused: Callable[..., Any] = real.refused
    cleans: bool = True  # False: what is removed may stand in the record still, as decided
    parts: Callable[[Pending], tuple[Pending, ...]] = lambda pending: pending.parts
    early: bool = False  # True: what goes first is there before the decision
    frees_unapplied: bool = False  # True: a break releases a lock whose pending publish is not there


@dataclass(frozen=True)
class Looked:
    """The record as one that combines has seen it."""

    record: LockRecord
    version: Version


class Alone:
    """What one that combines wants may follow nothing that it has not seen."""

    @staticmethod
    def refuse(intent: Intent, since: Any) -> None:
        if since:
            raise LookupError(intent.stem)


class Client(NamedTuple):
    """One client; `machine`, `op`, `seen` are interned."""

    machine: int
    op: int = 0
    phase: str = "out"
    entry: int = 0  # how many transactions it began
    base: str = ""
    tried: bool = False
    epoch: int = 0
    seen: int = 0
    applying: int = 0  # the apply that goes on while `op` is the heartbeat's
    memory: int = 0  # a log, a place in it, and the entries there were then
    before: int = 0  # what is to be applied before the own entry, when that was decided without a lock
    there: int = 0  # a publish that is known to be there, with all before it


class World(NamedTuple):
    """Everything there is."""

    record: int
    clients: tuple[Client, ...]
    objects: frozenset[str] = frozenset()
    decided: tuple[str, ...] = ()
    denied: frozenset[str] = frozenset()
    ghosts: frozenset[int] = frozenset()  # late writes
    newest_epoch: int = 0
    budget: Budget = Budget()
    firsts: frozenset[str] = frozenset()  # what is there before an entry
    removed: frozenset[tuple[str, int]] = frozenset()  # and under which epoch, if the record still named it


@dataclass
class Publishing:
    """The steps of the world, for `explore`."""

    clients: int = 2
    transactions: int = 1
    budget: Budget = field(default_factory=Budget)
    rules: Rules = field(default_factory=Rules)
    keepers: str = ""  # who keeps the log
    combiners: str = ""  # who decides without holding the lock
    pairs: bool = False  # each entry comes with something that is put there before it
    watch: frozenset[str] = PROMISES
    reached: set[str] = field(default_factory=set)  # so that a test can see that the search went where it matters

    def __post_init__(self) -> None:
        self._ids: dict[Any, int] = {None: 0}
        self._all: list[Any] = [None]
        self._nonces: list[frozenset[int]] = [frozenset()]
        self._fed: dict[Any, tuple[int, int]] = {}
        self._free: set[Any] = set()
        self._me = [Me(name, LockSettings(), waiter_name=name) for name in _NAMES]

    def initial(self) -> World:
        return World(0, tuple(Client(self._id(Idle())) for _ in range(self.clients)), budget=self.budget)

    def steps(self, world: World) -> Iterator[tuple[str, World]]:
        self._must_be_free(world)
        for ghost in world.ghosts:
            put = self._all[ghost]
            if self._true(world, put):
                label = f"the late write of {put.record.owner} ({_what(put.record)}) lands"
                self.reached.add("joined" if self._is_join(world, put) else "late")
                yield label, self._land(label, world, put)
        for i in range(len(world.clients)):
            yield from self._join(world, i)
            yield from self._client(world, i)
            yield from self._remove(world, i)
        yield from self._break(world)
        yield from self._guest(world)

    # -- others -------------------------------------------------------------------------------------------------------

    def _remove(self, world: World, i: int) -> Iterator[tuple[str, World]]:
        """The holder removes what was published, when nobody else is about to apply it (`wait_for_late`)."""
        budget, machine = world.budget, self._all[world.clients[i].machine]
        if not (budget.removals and isinstance(machine, Held) and self._is_the_holder(world, machine)):
            return
        gone = {path for path, _ in world.removed}
        for path in sorted(world.objects - gone):
            if path[0] == _GUEST or any(self._may_apply(j, path, world) for j in range(len(world.clients)) if j != i):
                continue
            named = any(pending.path == path for pending in self._all[world.record].all_pending)
            mark = (path, machine.record.epoch if named and self.rules.cleans else 0)
            self.reached.add("removed while the record names it" if named else "removed")
            after = world._replace(removed=world.removed | {mark}, budget=budget._replace(removals=budget.removals - 1))
            yield f"{_NAMES[i]} removes {path}", after

    def _is_the_holder(self, world: World, held: Held) -> bool:
        record = self._all[world.record]
        return (record.owner, record.epoch, record.is_free) == (held.record.owner, held.record.epoch, False)

    def _may_apply(self, i: int, path: str, world: World) -> bool:
        client = world.clients[i]
        machine, before = self._all[client.machine], self._all[client.before] or ()
        held = real.belief(machine)
        rolling = () if held is None or isinstance(machine, Held) else held.record.all_pending
        applies = [self._all[op] for op in (client.op, client.applying) if isinstance(self._all[op], Apply)]
        late = [self._entry(i, client)] if client.phase in ("late", "publish", "asking") else []
        named = {p.path for p in (*before, *rolling, *(q for a in applies for q in (*a.earlier, a.pending)))}
        return path in named or path in late

    def _break(self, world: World) -> Iterator[tuple[str, World]]:
        """An operator marks the record as released, if nothing is pending (else it takes the lock, as after a lapse)."""
        record, budget = self._all[world.record], world.budget
        if not budget.breaks or record is None or record.is_free or not record.nonce:
            return
        if record.all_pending and not self.rules.frees_unapplied:
            return
        self.reached.add("broken")
        broken = replace(record, expired=True, nonce=str(self._fresh_nonce(world)))
        put = PutRecord(broken, self._version(world.record))
        after = world._replace(budget=budget._replace(breaks=budget.breaks - 1))
        yield f"an operator breaks {record.owner}'s lease", after._replace(ghosts=world.ghosts | {self._id(put)})

    def _guest(self, world: World) -> Iterator[tuple[str, World]]:
        """A JVM writer takes what is released, commits, and releases; it knows and keeps three fields.

        One that takes what has lapsed relies on clocks, and is not here.
        """
        record, budget = self._all[world.record], world.budget
        if record is not None and record.owner == _GUEST and not record.expired:
            entry = f"{_GUEST}{budget.guests}"
            free = self._id(replace(record, expired=True))
            done = world._replace(objects=world.objects | {entry}, decided=(*world.decided, entry), record=free)
            yield f"a JVM writer commits {entry} and releases", self._pruned(done)
        elif budget.guests and (record is None or record.expired):
            self.reached.add("a JVM writer had it")
            missing = [entry for entry in world.decided if entry not in world.objects]
            label = "a JVM writer takes the lock"
            if missing:
                self._broken("keep", label, f"{missing} were decided, and are not there")
            taken = self._id(LockRecord(_GUEST, budget.guests, expired=False))
            left = budget._replace(guests=budget.guests - 1)
            yield label, self._pruned(world._replace(record=taken, budget=left, newest_epoch=0))

    # -- one client ----------------------------------------------------------------------------------------------------

    def _client(self, world: World, i: int) -> Iterator[tuple[str, World]]:
        client = world.clients[i]
        if client.phase == "dead":
            return
        if client.op:
            yield from self._request(world, i)
            if isinstance(self._all[client.op], Apply) and client.phase == "publish":
                aside = client._replace(op=0, applying=client.op)
                yield from self._renewed(_with(world, i, aside), i, self._all[client.machine])
            return
        if world.budget.crashes and client.phase != "out":
            yield self._crash(world, i)
        for label, after in self._own_step(world, i):
            # What leads to a request touches nobody else, so it is one step with the request.
            if after.clients[i].op:
                yield from ((f"{label}: {more}", then) for more, then in self._request(after, i))
            else:
                yield label, after

    def _request(self, world: World, i: int) -> Iterator[tuple[str, World]]:
        if world.budget.crashes:
            yield self._crash(world, i)
        match self._all[world.clients[i].op]:
            case ReadRecord():
                yield from self._read(world, i)
            case PutRecord() as put:
                yield from self._put(world, i, put)
            case Apply() as apply:
                yield from self._apply(world, i, apply)

    def _own_step(self, world: World, i: int) -> Iterator[tuple[str, World]]:
        client = world.clients[i]
        machine = self._all[client.machine]
        if client.phase in ("settling", "looking"):
            yield from self._settle(world, i)
            return
        if client.phase == "out":
            # They are alike until they begin: A is whoever begins first.
            begins = client.entry > 0 or i == 0 or world.clients[i - 1].entry > 0
            if begins and client.entry < self.transactions:
                yield self._begin(world, i, machine)
            return
        yield from self._beside(world, i, machine)
        match client.phase, machine:
            case "fresh", _:
                yield self._learn(world, i, machine)
            case "late", _:
                yield from self._apply_late(world, i)
            case ("asking", _) | ("publish" | "free", Looked()):
                yield self._unheld(world, i, machine)
            case "publish", _:
                yield self._publish(world, i, machine)
            case "release", _:
                yield self._release(world, i, machine)
            case _:
                raise AssertionError(f"{client.phase}, {machine}")

    def _release(self, world: World, i: int, machine: Any) -> tuple[str, World]:
        client, name = world.clients[i], _NAMES[i]
        if isinstance(machine, Checking):
            return self._feed(f"{name} looks again", world, i, client, "look")
        if isinstance(machine, (Held, Rolling)):
            return self._feed(f"{name} releases", world, i, client, "release")
        return f"{name} has nothing to release", self._over(world, i, client, "out")

    def _begin(self, world: World, i: int, machine: Any) -> tuple[str, World]:
        client, name = world.clients[i], _NAMES[i]
        ready = self._id(machine if isinstance(machine, (Idle, Lost)) else Idle())
        fresh = Client(ready, entry=client.entry + 1, memory=client.memory, there=client.there)
        if name in self.combiners:
            looks = fresh._replace(phase="look", op=self._id(ReadRecord()))
            return f"{name} wants to decide", _with(world, i, looks)
        known = self._all[ready]
        if isinstance(known, Idle) and known.released is not None:
            return self._feed(f"{name} tries to take the lock that it has released", world, i, fresh, "known")
        return f"{name} wants the lock", _with(world, i, fresh._replace(op=self._id(ReadRecord())))

    def _publish(self, world: World, i: int, machine: Any) -> tuple[str, World]:
        """The next step of a holder's publish, as `publish_next` says it."""
        client, name = world.clients[i], _NAMES[i]
        match self._next(client):
            case "send":
                entry = self._entry(i, client)
                begun = world._replace(firsts=world.firsts | {_first(entry)}) if self.rules.early else world
                label = f"{name} sends the commit of {entry} [{client.base}]"
                return self._feed(label, begun, i, client._replace(tried=True), "commit")
            case "look":
                return self._feed(f"{name} looks again", world, i, client, "look")
            case "roll_forward":
                apply = Apply(machine.held.record.pending, machine.held.record.pending_before)
                label = f"{name} takes the roll-forward up again"
                return label, _with(world, i, client._replace(op=self._id(apply)))
            case _:
                label = f"{name} finds its lease ended"
                return label, self._ended(label, world, i, client)

    def _next(self, client: Client, *, ended: bool = False) -> str:
        machine, seen = self._all[client.machine], client.phase == "looking"
        return self.rules.publish_next(machine, tried=client.tried, ended=ended, record_is_seen=seen)

    def _unheld(self, world: World, i: int, machine: Any) -> tuple[str, World]:
        """The next step of one that combines."""
        client, name = world.clients[i], _NAMES[i]
        if client.phase == "asking":
            return f"{name} looks again", _with(world, i, client._replace(op=self._id(ReadRecord())))
        if client.phase == "free":
            return f"{name} frees the lock", self._combines(world, i, client, machine.record, ())
        self.reached.add("decided without a lock")
        asks, batch = client._replace(phase="asking"), (self._pending(i, client),)
        label = f"{name} decides {self._entry(i, client)} [{client.base}]"
        return label, self._combines(world, i, asks, machine.record, batch)

    def _combines(self, world: World, i: int, client: Client, seen: LockRecord, batch: tuple[Pending, ...]) -> World:
        """Write what `combine` says over what was seen."""
        there = self._all[client.there]
        if pending_after(seen.all_pending, there) and batch:
            self.reached.add("decided before what was decided earlier was there")
        at = _at(str(self._fresh_nonce(world)))
        record = self.rules.combine(self._me[i], seen, batch, at, last_applied=there)
        put = PutRecord(record, self._all[client.machine].version)
        return _with(world, i, client._replace(op=self._id(put)))

    def _learn(self, world: World, i: int, machine: Any) -> tuple[str, World]:
        """Find out which entries there are."""
        client = world.clients[i]
        base = self._by_log(client, machine)
        how = "reads the entries" if base is None else "goes by the log"
        unapplied = (p.path for p in machine.record.all_pending) if isinstance(machine, Looked) else ()
        base = ",".join(sorted({*world.objects, *unapplied})) if base is None else base
        self.reached.add(how)
        after = self._remembering(client._replace(phase="publish", base=base), machine)
        return f"{_NAMES[i]} {how}: [{base}]", _with(world, i, after)

    def _by_log(self, client: Client, machine: Any) -> str | None:
        """The entries, as one that has seen the log before knows them without a look; None if it has to look."""
        log, memory = _log(machine), self._all[client.memory]
        since = None if log is None or memory is None or memory[0] != log.name else log.since(memory[1])
        return (
            None if since is None else ",".join(sorted({*filter(None, memory[2].split(",")), *(e.path for e in since)}))
        )

    def _remembering(self, client: Client, machine: Any) -> Client:
        log = _log(machine)
        return client if log is None else client._replace(memory=self._id((log.name, log.next, client.base)))

    def _apply_late(self, world: World, i: int) -> Iterator[tuple[str, World]]:
        """What was decided without a lock, whoever may have that now."""
        client, entry = world.clients[i], self._entry(i, world.clients[i])
        before = self._all[client.before] or ()
        begins = before[0] if before and self.rules.in_order else self._pending(i, client)
        if first := self._first_due(world, begins):
            yield f"{_NAMES[i]} puts {first} there", world._replace(firsts=world.firsts | {first})
            yield f"{_NAMES[i]} does not get to {begins.path}", self._over(world, i, client, "out")
            return
        if before and self.rules.in_order:
            label = f"{_NAMES[i]} sees to it that {before[0].path} is there, before its own"
            rest = client._replace(before=self._id(before[1:]))
            yield label, _with(self._there(label, world, before[0].path, i), i, rest)
            yield f"{_NAMES[i]} does not get to that", self._over(world, i, client, "out")
            return
        self.reached.add("applied late")
        applied = client._replace(there=self._id(self._pending(i, client)))
        label = f"{_NAMES[i]} applies {entry}, which it has decided"
        there = self._there(label, world, entry, i)
        yield label, self._published(label, there, i, applied)
        yield f"{_NAMES[i]} does not get to applying {entry}", self._over(world, i, client, "out")
        if isinstance(self._all[client.machine], Looked):
            label = f"{_NAMES[i]} {'applies ' + entry if self.rules.applies_first else 'forgets'}, and frees the lock"
            self.reached.add("freed")
            freeing = applied._replace(phase="free", before=0, seen=0, epoch=0, base="")
            yield label, _with(there if self.rules.applies_first else world, i, freeing)

    def _asked(self, world: World, i: int) -> Iterator[tuple[str, World]]:
        """What became of the write of one that combines: it looks, and sees to it that its write cannot come late."""
        client, name, record = world.clients[i], _NAMES[i], self._all[world.record]
        looked, pending = self._all[client.machine], self._pending(i, client)
        log, place, _ = self._all[client.memory]
        seen = None if record is None else record.log
        came = self.rules.verdict(seen, Intent(log, place, pending.path, b"it"), Alone())
        unapplied = () if record is None else pending_after(record.all_pending, self._all[client.there])
        waits = self._id(None)
        match came:
            case group.Decided() if pending in unapplied:
                before = unapplied[: unapplied.index(pending)]
                late = client._replace(phase="late", op=0, machine=waits, before=self._id(before))
                yield f"{name} sees that it is decided", _with(world, i, late)
            case group.Decided():
                label = f"{name} sees that it is decided, and there"
                yield label, self._published(label, world, i, client._replace(op=0, phase="late"))
            case group.Undecided() if self._version(world.record) == looked.version and self.rules.moves_on:
                yield f"{name} gives up, not knowing", self._over(world, i, client._replace(op=0), "out")
                label = f"{name} sees the record as it was, and moves it on"
                yield label, self._combines(world, i, client, looked.record, ())
            case group.Void() if pending in unapplied:
                yield f"{name} leaves it to the holder", self._over(world, i, client._replace(op=0), "out")
            case group.Void() if pending.path in world.objects:
                label = f"{name} finds that it is there"
                yield label, self._published(label, world, i, client._replace(op=0, phase="late"))
            case _:
                label = f"{name} sees that it never was decided"
                yield label, self._denied(label, world, i, client._replace(op=0), "out")

    def _there(self, label: str, world: World, path: str, i: int) -> World:
        for gone, epoch in world.removed:
            if gone == path and epoch in (0, self._epoch(world, i)):
                self._broken("gone", label, f"{path} was removed, and is there again")
        missing = [entry for entry in world.decided[: world.decided.index(path)] if entry not in world.objects]
        if missing:
            self._broken("order", label, f"{missing} were decided before, and are not there")
        if self.pairs and _first(path) not in world.firsts:
            self._broken("pair", label, f"{path} is there, and not what is put there first")
        return world._replace(objects=world.objects | {path})

    def _whole(self, label: str, world: World, pending: Pending, i: int) -> World:
        """It, with what goes first."""
        firsts = {part.path for part in self.rules.parts(pending)} - {pending.path}
        return self._there(label, world._replace(firsts=world.firsts | firsts), pending.path, i)

    def _first_due(self, world: World, pending: Pending) -> str:
        """What is to be put there next, if that goes before it."""
        path = self.rules.parts(pending)[0].path
        return "" if path == pending.path or path in world.firsts else path

    def _epoch(self, world: World, i: int) -> int:
        held = real.belief(self._all[world.clients[i].machine])
        return -1 if held is None else held.record.epoch

    def _beside(self, world: World, i: int, machine: Any) -> Iterator[tuple[str, World]]:
        """What the heartbeat and the clock may do at any time."""
        client, name, budget = world.clients[i], _NAMES[i], world.budget
        yield from self._renewed(world, i, machine)
        if budget.renewals and isinstance(machine, Rolling):
            after = world._replace(budget=budget._replace(renewals=budget.renewals - 1))
            label = f"{name}'s heartbeat applies {machine.held.record.pending.path}"
            for pending in machine.held.record.all_pending:
                after = self._whole(label, after, pending, i)
            yield self._feed(label, after, i, client, "applied")
        if budget.lapses and isinstance(machine, (Held, Rolling)):
            after = world._replace(budget=budget._replace(lapses=budget.lapses - 1))
            yield self._feed(f"{name}'s own deadline passes", after, i, client, "tick")

    def _renewed(self, world: World, i: int, machine: Any) -> Iterator[tuple[str, World]]:
        client, name, budget = world.clients[i], _NAMES[i], world.budget
        if budget.renewals and isinstance(machine, (Held, Rolling, Checking)):
            after = world._replace(budget=budget._replace(renewals=budget.renewals - 1))
            event = "look" if isinstance(machine, Checking) else "renew"
            while_ = " while it applies" if client.applying else ""
            if client.applying:
                self.reached.add("renewed while applying")
            yield self._feed(f"{name}'s heartbeat: {event}{while_}", after, i, client, event)

    def _join(self, world: World, i: int) -> Iterator[tuple[str, World]]:
        name, record, budget = _NAMES[i], self._all[world.record], world.budget
        joinable = record is not None and (
            not record.is_free or self.combiners != ""
        )  # whoever goes last writes it, too
        waits = world.clients[i].phase == "out" and joinable
        if budget.joins and waits and record.nonce and name != record.owner and name not in record.waiters:
            put = PutRecord(self.rules.with_waiter(record, name), self._version(world.record))
            after = world._replace(budget=budget._replace(joins=budget.joins - 1))
            label = f"{name} reads {record.owner}'s record ({_what(record)}) and asks to join the line"
            yield label, after._replace(ghosts=world.ghosts | {self._id(put)})

    def _is_join(self, world: World, put: PutRecord) -> bool:
        record = self._all[world.record]
        return record is not None and record.nonce == put.record.nonce

    def _crash(self, world: World, i: int) -> tuple[str, World]:
        client = world.clients[i]
        op = self._all[client.op]
        ghosts = world.ghosts | {client.op} if isinstance(op, PutRecord) else world.ghosts
        budget = world.budget._replace(crashes=world.budget.crashes - 1)
        dead = Client(self._id(Idle()), phase="dead", entry=client.entry)
        on_its_way = ", its write on the way" if isinstance(op, PutRecord) else ""
        return f"{_NAMES[i]} dies{on_its_way}", self._pruned(
            _with(world, i, dead)._replace(ghosts=ghosts, budget=budget)
        )

    # -- its requests --------------------------------------------------------------------------------------------------

    def _read(self, world: World, i: int) -> Iterator[tuple[str, World]]:
        client, name, budget = world.clients[i], _NAMES[i], world.budget
        record = self._all[world.record]
        if client.phase == "asking":
            yield from self._asked(world, i)
            return
        if client.phase == "look":
            may = record is not None and group.may_write(record)
            looked = Looked(record, self._version(world.record)) if may else None
            known = client._replace(op=0, phase="fresh", machine=self._id(looked))
            label = f"{name} reads the record"
            yield label, _with(world, i, known) if may else self._over(world, i, client._replace(op=0), "out")
            return
        there = "no record" if record is None else f"{record.owner}'s record ({_what(record)})"
        then = "take" if isinstance(self._all[client.machine], (Idle, Lost)) else "seen"
        yield self._feed(f"{name} reads {there}", world, i, client, then, world.record)
        if budget.lapses and record is not None and record.owner not in (name, _GUEST) and not record.is_free:
            after = world._replace(budget=budget._replace(lapses=budget.lapses - 1))
            old = self._id(replace(record, valid_until_ms=_LONG_AGO_MS))
            yield self._feed(f"{name} reads {there}, lapsed by its clock", after, i, client, then, old)
        if budget.failed:
            label = f"{name}'s read fails"
            after = world._replace(budget=budget._replace(failed=budget.failed - 1))
            yield label, self._raised(after, i)

    def _put(self, world: World, i: int, put: PutRecord) -> Iterator[tuple[str, World]]:
        client, name, budget = world.clients[i], _NAMES[i], world.budget
        what = f"{name}'s write ({_what(put.record)})"
        if name in self.combiners:
            yield from self._put_unheld(world, i, put, what)
            return
        refusal = self.rules.refused(self._all[client.machine])
        refused = "lost race" if isinstance(refusal, LostRace) else "failed"
        if not self._true(world, put):
            yield self._feed(f"{what} is refused", world, i, client, refused)
            return
        label = f"{what} lands"
        landed = self._land(label, world, put)
        yield self._feed(label, landed, i, client, "won", self._id(put.record))
        if budget.lost:
            after = landed._replace(budget=budget._replace(lost=budget.lost - 1))
            yield self._feed(f"{what} lands, its answer is lost", after, i, client, "failed")
        if budget.twice:
            self.reached.add("twice")
            after = landed._replace(budget=budget._replace(twice=budget.twice - 1))
            yield self._feed(f"{what} lands twice, the second copy is refused", after, i, client, refused)
        if budget.late:
            late = world._replace(ghosts=world.ghosts | {client.op}, budget=budget._replace(late=budget.late - 1))
            yield self._feed(f"{what} is late and not answered", late, i, client, "failed")
        if budget.failed:
            label = f"{what} fails and was not done"
            failed = world._replace(budget=budget._replace(failed=budget.failed - 1))
            _, failed = self._feed(label, failed, i, client, "failed")
            yield label, self._raised(failed, i)

    def _put_unheld(self, world: World, i: int, put: PutRecord, what: str) -> Iterator[tuple[str, World]]:
        """By one that combines: unless it has won, it looks."""
        client, budget = world.clients[i], world.budget
        frees = client.phase == "free"
        after = self._over(world, i, client._replace(op=0), "out") if frees else _with(world, i, client._replace(op=0))
        if not self._true(world, put):
            label = f"{what} is refused"
            yield label, after if frees else self._refused(label, after, i)
            return
        label = f"{what} lands"
        landed = self._land(label, after, put)
        pending = self._pending(i, client)
        if frees or pending not in put.record.all_pending:
            yield label, landed
        else:
            before = put.record.all_pending[: put.record.all_pending.index(pending)]
            won = Looked(put.record, self._version(landed.record))
            known = client._replace(op=0, phase="late", machine=self._id(won), before=self._id(before))
            yield label, _with(landed, i, known)
        if budget.lost:
            yield f"{label}, its answer is lost", landed._replace(budget=budget._replace(lost=budget.lost - 1))
        if budget.twice:
            self.reached.add("twice")
            twice = landed._replace(budget=budget._replace(twice=budget.twice - 1))
            label = f"{what} lands twice, the second copy is refused"
            yield label, twice if frees else self._refused(label, twice, i)
        if budget.late:
            late = after._replace(ghosts=world.ghosts | {client.op}, budget=budget._replace(late=budget.late - 1))
            yield f"{what} is late and not answered", late
        if budget.failed:
            yield f"{what} fails and was not done", after._replace(budget=budget._replace(failed=budget.failed - 1))

    def _refused(self, label: str, world: World, i: int) -> World:
        return world if self.rules.looks else self._denied(label, world, i, world.clients[i], "out")

    def _apply(self, world: World, i: int, apply: Apply) -> Iterator[tuple[str, World]]:
        client, name, budget = world.clients[i], _NAMES[i], world.budget
        pending = apply.pending
        if first := self._first_due(world, (*apply.earlier, pending)[0]):
            self.reached.add("first")
            there = world._replace(firsts=world.firsts | {first})
            yield f"{name} puts {first} there", there
            if not isinstance(self._all[client.machine], (Rolling, Checking)):
                yield f"{first} is not sent by {name}, whose lease has ended", self._raised(world, i)
            return
        if apply.earlier:
            self.reached.add("several rolled forward")
            label = f"{name} applies {apply.earlier[0].path}"
            rest = client._replace(op=self._id(Apply(pending, apply.earlier[1:])))
            yield label, _with(self._there(label, world, apply.earlier[0].path, i), i, rest)
            return
        self.reached.add("applied" if pending.path[0] == name.lower() else "rolled forward")
        label = f"{name} applies {pending.path}"
        there = self._there(label, world, pending.path, i)
        machine = self._all[client.machine]
        if isinstance(machine, Rolling) and machine.held.record.pending == pending:
            yield self._feed(label, there, i, client, "applied")
        elif pending.path == self._entry(i, client):  # the lease ended meanwhile, or a renewal is in doubt
            yield f"{label}: published", self._published(label, there, i, client._replace(op=0))
        else:
            yield label, _with(there, i, client._replace(op=0))
        if not isinstance(machine, (Rolling, Checking)):
            yield f"{label}: not sent, its lease has ended", self._raised(world, i)
        elif budget.failed:
            for done, after in (("done, but not answered", there), ("not done", world)):
                failed = after._replace(budget=budget._replace(failed=budget.failed - 1))
                yield f"{label}: {done}", self._raised(failed, i)

    def _raised(self, world: World, i: int) -> World:
        """The shell raises: taking is given up, a publish is unknown, a release is given up, a beat is left to the next."""
        client = world.clients[i]._replace(op=0)
        if client.applying:
            return _with(world, i, client._replace(op=client.applying, applying=0))
        match client.phase:
            case "out":
                return _with(world, i, client)
            case "publish":
                return self._over(world, i, client, "release")
            case "release":
                return self._over(world, i, client, "out")
            case _:
                return _with(world, i, client)

    def _settle(self, world: World, i: int) -> Iterator[tuple[str, World]]:
        """The record, then the path, then the verdict; or as `publish_next` says it."""
        client, name = world.clients[i], _NAMES[i]
        entry = self._entry(i, client)
        match client.phase, self._next(client, ended=True):
            case "settling", "read_record":
                yield f"{name} reads the record to settle {entry}", self._noted(world, i, client)
                return
            case "settling", _:  # the twin looks at the path first
                seen = client._replace(phase="looking", epoch=-client.epoch if entry in world.objects else client.epoch)
                yield f"{name} looks for {entry}", _with(world, i, seen)
                return
            case _, "read_path":
                record, there = self._all[client.seen], entry in world.objects
            case _:
                record, there = self._all[world.record], client.epoch < 0
        pending = self._pending(i, client)
        verdict = self.rules.settle(pending, name, abs(client.epoch), record, pending.digest if there else None)
        self.reached.add(f"settled: {verdict}")
        label = f"{name} settles {entry}: {verdict}"
        match verdict:
            case "committed":
                yield label, self._published(label, world, i, client)
            case "not_committed":
                yield label, self._denied(label, world, i, client)
            case _:
                yield label, self._over(world, i, client, "release")

    def _noted(self, world: World, i: int, client: Client) -> World:
        record = self._all[world.record]
        seen = None if record is None else replace(record, nonce="", valid_until_ms=0, holder=None)
        return _with(world, i, client._replace(phase="looking", seen=self._id(seen)))

    # -- what the client is told ---------------------------------------------------------------------------------------

    def _feed(self, label: str, world: World, i: int, client: Client, kind: str, arg: int = 0) -> tuple[str, World]:
        """Feed one event to the real machine."""
        nonce = self._fresh_nonce(world) if kind in _WRITING else 0
        published = (client.base, client.entry) if kind == "commit" else None
        key = (i, client.machine, kind, arg, nonce, published)
        if key not in self._fed:
            event = self._event(i, client, kind, arg, nonce)
            state, effect = self.rules.step(self._me[i], self._all[client.machine], event)
            self._fed[key] = self._id(state), self._id(effect)
        machine, effect_id = self._fed[key]
        told = client._replace(machine=machine, op=0)
        return label, self._told(label, world, i, told, effect_id, client.machine)

    def _told(self, label: str, world: World, i: int, client: Client, effect_id: int, before: int) -> World:
        match self._all[effect_id]:
            case None:
                return self._pruned(_with(world, i, client))
            case ReadRecord() | PutRecord() | Apply():
                return self._pruned(_with(world, i, client._replace(op=effect_id)))
            case Busy() if client.phase == "out" and isinstance(self._all[before], (Writing, Checking)):
                return self._pruned(_with(world, i, client._replace(op=self._id(ReadRecord()))))  # it looks again
            case Busy() if client.phase == "out" and not client.applying:
                return self._pruned(self._over(world, i, client, "out"))
            case _ if client.applying:  # the heartbeat's own: the one who applies goes on
                return self._pruned(_with(world, i, client._replace(op=client.applying, applying=0)))
            case Done("acquired"):
                epoch = self._all[client.machine].record.epoch
                return self._pruned(_with(world, i, client._replace(phase="fresh", epoch=epoch)))
            case Done("committed") if client.phase == "publish":
                return self._pruned(self._published(label, world, i, client))
            case Done("released"):
                return self._pruned(self._over(world, i, client, "out"))
            case Done():
                return self._pruned(_with(world, i, client))
            case Ended():
                return self._pruned(self._ended(label, world, i, client))
            case other:
                raise AssertionError(other)

    def _ended(self, label: str, world: World, i: int, client: Client) -> World:
        if client.phase != "publish":
            return _with(world, i, client)
        if self._next(client, ended=True) == "never":
            return self._denied(label, world, i, client)
        return _with(world, i, client._replace(phase="settling"))

    def _published(self, label: str, world: World, i: int, client: Client) -> World:
        entry = self._entry(i, client)
        if entry not in world.objects or entry not in world.decided:
            self._broken("truth", label, f"{_NAMES[i]} reports {entry} as published, and it is not there")
        return self._over(world, i, client, "out" if client.phase == "late" else "release")

    def _denied(self, label: str, world: World, i: int, client: Client, phase: str = "release") -> World:
        entry = self._entry(i, client)
        if entry in world.decided or entry in world.objects:
            self._broken("truth", label, f"{_NAMES[i]} reports {entry} as never written, and it was decided")
        if _first(entry) in world.firsts:
            self._broken("pair", label, f"{entry} never will be there, and what goes first is")
        return self._over(world, i, client, phase)._replace(denied=world.denied | {entry})

    def _over(self, world: World, i: int, client: Client, phase: str) -> World:
        """On to `phase`, without what is not needed any more: fewer states that differ in nothing."""
        retired = phase == "out" and client.entry >= self.transactions
        unheld = isinstance(self._all[client.machine], Looked)
        machine = self._id(Idle()) if retired or unheld else client.machine
        known = {} if retired else {"memory": client.memory, "there": client.there}
        return self._pruned(_with(world, i, Client(machine, client.op, phase, client.entry, **known)))

    # -- the store -----------------------------------------------------------------------------------------------------

    def _true(self, world: World, put: PutRecord) -> bool:
        condition = self.rules.condition(put)
        return condition is ANY or condition == self._version(world.record)

    def _version(self, record_id: int) -> Any:
        record = self._all[record_id]
        if record is None:
            return ABSENT
        unique = record.nonce or str(_GUESTS + 2 * record.valid_until_ms + record.expired)
        return Version("model", unique + "+" * len(record.waiters))

    def _land(self, label: str, world: World, put: PutRecord) -> World:
        old, new = self._all[world.record], put.record
        decided, pending = world.decided, new.pending
        if pending is not None and pending.path not in decided:
            if pending.path in world.denied:
                self._broken("truth", label, f"{pending.path} was reported as never written, and is decided now")
            if pending.digest != ",".join(sorted(decided)):
                self._broken("fence", label, f"{pending.path} [{pending.digest}] misses some of {list(decided)}")
            decided = (*decided, pending.path)
        named = () if new.log is None or pending is None else [e.path for e in new.log.since(new.log.first) or ()]
        if len(named) != len(set(named)):
            self._broken("once", label, f"the log names {named}")
        for gone in set() if old is None else {*old.all_pending} - {*new.all_pending}:
            if gone.path not in world.objects:
                self._broken("keep", label, f"{gone.path} was decided, and is forgotten before it is there")
        newest = world.newest_epoch
        if old is None or new.epoch != old.epoch:
            if new.epoch <= newest:
                self._broken("epoch", label, f"{new.epoch} after {newest}")
            newest = new.epoch
        stored = self._id(self.rules.stored(new))
        return self._pruned(world._replace(record=stored, decided=decided, newest_epoch=newest))

    def _pruned(self, world: World) -> World:
        """Without late writes that never can land: a version does not come back."""
        if not world.ghosts:
            return world
        alive = frozenset(g for g in world.ghosts if self._true(world, self._all[g]) or self._may_be_true(g))
        return world if alive == world.ghosts else world._replace(ghosts=alive)

    def _may_be_true(self, ghost: int) -> bool:
        return self.rules.deletes and self._all[ghost].condition is ABSENT

    def _must_be_free(self, world: World) -> None:
        key = (world.record, world.objects)
        if key in self._free:
            return
        self._free.add(key)
        newcomer, record = len(_NAMES) - 1, self._all[world.record]
        if record is not None and not record.is_free:
            record = replace(record, valid_until_ms=_LONG_AGO_MS)
        seen = RecordSeen(record, None if record is None else self._version(world.record), _at("new"))
        state, effect = self.rules.step(self._me[newcomer], Idle(), TakeLock(seen))
        objects = set(world.objects)
        for _ in range(4):
            match effect:
                case PutRecord():
                    event: Any = PutWon(Version("model", "new"))
                case Apply(pending, earlier):
                    objects |= {pending.path, *(p.path for p in earlier)}
                    event = AppliedPending()
                case _:
                    break
            state, effect = self.rules.step(self._me[newcomer], state, event)
        if effect != Done("acquired"):
            now = "absent" if record is None else _what(record)
            self._broken(
                "free", "a newcomer, alone, tries", f"it cannot take the lock ({now}): {type(effect).__name__}"
            )
        if not objects.issuperset(world.decided):
            self._broken("keep", "a newcomer, alone, takes the lock", "what was decided is not there")

    def _broken(self, promise: str, label: str, why: str) -> None:
        if promise in self.watch:
            raise BrokenPromise(label, f"{promise}: {why}")

    # -- names for things ----------------------------------------------------------------------------------------------

    def _event(self, i: int, client: Client, kind: str, arg: int, nonce: int) -> Any:
        at = _at(str(nonce))
        if kind in _PLAIN:
            return _PLAIN[kind]
        match kind:
            case "known":
                return TakeLock(
                    RecordSeen(*self._all[client.machine].released, at), keeps_log=_NAMES[i] in self.keepers
                )
            case "take" | "seen":
                record = self._all[arg]
                seen = RecordSeen(record, None if record is None else self._version(arg), at)
                return TakeLock(seen, keeps_log=_NAMES[i] in self.keepers) if kind == "take" else seen
            case "won":
                return PutWon(self._version(arg))
            case "renew":
                return Renew(at)
            case "commit":
                return Commit(self._pending(i, client), at)
            case "release":
                return Release(at)
            case _:
                return Tick(float("inf"))

    def _entry(self, i: int, client: Client) -> str:
        return f"{_NAMES[i].lower()}{client.entry}"

    def _pending(self, i: int, client: Client) -> Pending:
        entry = self._entry(i, client)
        first = Pending.of_bytes(_first(entry), b"") if self.pairs else None
        return Pending(entry, "", client.base, b"", unshared=True, first=first)

    def _id(self, thing: Any) -> int:
        found = self._ids.get(thing)
        if found is None:
            found = self._ids[thing] = len(self._all)
            self._all.append(thing)
            self._nonces.append(frozenset(_nonces(thing)))
        return found

    def _fresh_nonce(self, world: World) -> int:
        """The smallest that occurs nowhere: a nonce that nobody remembers may come again."""
        live = set(self._nonces[world.record])
        for client in world.clients:
            live |= self._nonces[client.machine] | self._nonces[client.op] | self._nonces[client.memory]
        for ghost in world.ghosts:
            live |= self._nonces[ghost]
        return next(n for n in range(1, 100) if n not in live)


def _first(entry: str) -> str:
    return f"{entry}.first"


def _with(world: World, i: int, client: Client) -> World:
    return world._replace(clients=(*world.clients[:i], client, *world.clients[i + 1 :]))


def _at(nonce: str) -> Moment:
    return Moment(0, 0.0, nonce)


def _log(machine: Any) -> Any:
    held = machine if isinstance(machine, Looked) else real.belief(machine)
    return None if held is None else held.record.log


def _what(record: LockRecord) -> str:
    what = f"epoch {record.epoch}"
    if record.expired:
        what += ", released"
    if record.released_pending:
        what += ", handed over"
    return f"{what}, pending {', '.join(p.path for p in record.all_pending)}" if record.all_pending else what


def _nonces(thing: Any) -> Iterator[int]:
    if isinstance(thing, Version):
        yield int(thing.token.rstrip("+"))
    elif isinstance(thing, LockRecord):
        if thing.nonce:
            yield int(thing.nonce)
        if thing.log is not None:
            yield int(thing.log.name)
    elif isinstance(thing, tuple) and len(thing) == _MEMORY and isinstance(thing[0], str):
        yield int(thing[0])
    elif isinstance(thing, tuple):
        for part in thing:
            yield from _nonces(part)
    elif is_dataclass(thing) and not isinstance(thing, type):
        for one in fields(thing):
            yield from _nonces(getattr(thing, one.name))
