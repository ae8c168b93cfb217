"""A world of writers that decide for each other, and of those who take the lock from them, with NO assumption on the order of anything.

Each writer has one publish. What it decides by are `combine`, `choose`, `verdict`, `next_act` and `after_listing` of
`lockprovider.storage_lock.commit_rules`, the real ones, and `became` of the machine; what `Committer` does around them is followed here step by step. One step of
the world is one request, so all others may act between any two of them. Time is left open: duty may be over at any moment.

What may happen, each within a budget: a writer stops for ever; a post is late, or lands twice; a write of the record is
late, or its answer is lost, or it lands and a second copy is refused; what was decided is not applied by the one who did, or late; a writer withdraws; a holder takes
the lock, applies what is not there, and keeps the log or ends it, and rolls a writer back; one that was refused or has
withdrawn takes itself back at once, without the lock; a JVM writer takes what is
released, or what was handed over 10 s ago, and drops all fields that it does not know: by then no writer applies any more.

Promises, checked at every step:
    once      a publish is decided once
    never     what was refused, withdrawn or rolled back is not decided
    told      what is acknowledged is there
    meet      of two that meet, one is decided
    order     nothing is there before all that was decided before it
    keep      what is decided is there, or the record says so
    time      what a JVM writer has dropped does not appear
    held      nobody but its holder writes over a lock that is held
    finish    from every state, all that live can still come to an end, without another fault
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from fsspec_cas import Version
from lockprovider.settings import LockSettings
from lockprovider.storage_lock import commit_rules as group
from lockprovider.storage_lock import machine
from lockprovider.storage_lock.commit_rules import Intent
from lockprovider.storage_lock.machine import AppliedPending, Held, Idle, RecordSeen, Release, Rolling, TakeLock
from lockprovider.storage_lock.record import (
    Entry,
    LockRecord,
    Log,
    Me,
    Moment,
    Pending,
    Sent,
    became,
    pack,
    pending_after,
)
from model.search import BrokenPromise

PROMISES = frozenset({"once", "never", "told", "meet", "order", "keep", "time", "held", "finish"})
_NAMES = "abc"
_HOLDER, _GUEST = "h", "j"
_LONG_AGO_MS = -(10**9)
_LONG_S = 10.0**6
_DUTY_MS = 1000
_STALE = -1  # a record that is not the one of now any more: which it was matters no more
_OVER = frozenset({(_STALE, _STALE)})  # of writes that cannot land any more, which their writer does not know
_AT_FIRST = LockRecord("", 0, expired=True, nonce="1", log=Log("1"))


class Met(Exception):
    """Two publishes that meet."""


class Meeting:
    """Publishes of the same bytes meet."""

    unordered = False
    sample = b""

    def refresh(self, seen_s: float) -> None:
        pass

    def refuse(self, intent: Intent, since: Iterable[Entry]) -> None:
        if any(entry.data == intent.body and not entry.path.startswith(intent.stem) for entry in since):
            raise Met(intent.stem)

    def pending(self, intent: Intent, log: Log, now_ms: int) -> Pending | None:
        del now_ms
        return Pending.of_bytes(f"{intent.stem}{log.name}.{log.next}", intent.body)


class Budget(NamedTuple):
    """How many faults of each kind the world may still have."""

    crashes: int = 0
    doubled: int = 0  # posts
    late: int = 0  # posts, writes of the record, and what is applied
    lost: int = 0  # answers to writes of the record
    twice: int = 0  # writes of the record land, and a second copy is refused
    slow: int = 0  # what is decided is not applied in time
    withdrawals: int = 0
    holders: int = 0
    ends: int = 0  # of those: they end the log
    guests: int = 0
    looks: int = 0  # of another thread of one that is on duty


@dataclass(frozen=True)
class Rules:
    """The protocol. A wrong twin replaces one of its parts."""

    choose: Callable[..., tuple[Pending, ...]] = group.choose
    combine: Callable[..., LockRecord] = group.combine
    verdict: Callable[..., group._Verdict] = group.verdict
    became: Callable[..., str] = became
    refused_is_never: bool = False
    any_version: bool = False
    any_log: bool = False
    lists_first: bool = False
    parted: bool = False  # the record goes with a version that another thread has read
    withdraws: str = "tombstone"
    moves_on: bool = True
    ended_is_never: bool = False
    looks_for_own: bool = True
    next_act: Callable[..., group.Act] = group.next_act
    told_early: bool = False
    takes_back: tuple[str, ...] = ("denied",)  # what it has written, without the lock: how it ended
    in_time: bool = True
    in_order: bool = True
    holder_applies: bool = True


class Writer(NamedTuple):
    """One writer; what is a number is interned."""

    phase: str = "new"
    intent: int = 0
    known: int = 0  # the record as it knows it; 0: it must look; _STALE: by which it would post
    posted: bool = False
    refused: bool = False
    duty: bool = False
    doubts: frozenset[tuple[int, int]] = frozenset()  # writes that it does not know the outcome of, as `put`
    todo: tuple[str, ...] = ()  # what it applies
    there: str = ""
    put: tuple[int, int] = (0, 0)  # the record that is to be written, and the one that is to be there then
    listed: tuple[int, ...] = ()
    ended: str = ""


class World(NamedTuple):
    """Everything there is."""

    record: int
    writers: tuple[Writer, ...]
    posts: frozenset[tuple[int, bool]] = frozenset()  # False: withdrawn
    objects: frozenset[str] = frozenset()
    decided: tuple[str, ...] = ()
    rolled: frozenset[str] = frozenset()  # back
    ghosts: frozenset[tuple[str, Any, int]] = frozenset()  # what is on its way
    holder: str = ""
    budget: Budget = Budget()


@dataclass
class GroupCommit:
    """The steps of the world, for `explore`. `bodies`: what each writer publishes; equal ones meet."""

    bodies: str = "xy"
    budget: Budget = field(default_factory=Budget)
    rules: Rules = field(default_factory=Rules)
    watch: frozenset[str] = PROMISES
    meets: bool = True  # their writes were refused before, so whoever writes announces duty
    abandoned: bool = False  # somebody has announced duty, and died
    short: bool = False  # the log goes back only as far as it must
    reached: set[str] = field(default_factory=set)  # so that a test can see that the search went where it matters

    def __post_init__(self) -> None:
        self._ids: dict[Any, int] = {None: 0}
        self._all: list[Any] = [None]
        self._logs: list[str] = [""]
        self._verdicts: dict[tuple[int, int], group._Verdict] = {}
        self._chosen: dict[Any, tuple[Pending, ...]] = {}
        self._combined: dict[Any, LockRecord] = {}
        self._decider = Meeting()
        self._phases: dict[str, Callable[[World, int], Iterator[tuple[str, World]]]] = {
            "new": self._judge,
            "judge": self._judge,
            "on": self._on,
            "stale": self._stale,
            "listed": self._going_to_write,
            "lists": self._looks_late,
            "moving": self._moving,
            "moves": self._moving,
            "holding": self._holds,
            "done": self._afterwards,
        }
        self._me = {name: Me(name, LockSettings(), waiter_name=name) for name in (*_NAMES, _HOLDER)}

    def initial(self) -> World:
        record = replace(_AT_FIRST, combiner_ms=_DUTY_MS) if self.abandoned else _AT_FIRST
        return World(self._id(record), tuple(Writer() for _ in self.bodies), budget=self.budget)

    def ended(self, world: World) -> bool:
        """Whether all that live have come to an end."""
        return all(writer.phase in ("done", "dead") for writer in world.writers)

    def steps(self, world: World) -> Iterator[tuple[str, World]]:
        """What may happen next; "(fault)" is what no one can rely on."""
        return ((label, self._lean(after)) for label, after in self._steps(world))

    def _steps(self, world: World) -> Iterator[tuple[str, World]]:
        yield from self._late(world)
        yield from self._guest(world)
        yield from self._hold(world)
        for i in range(len(world.writers)):
            yield from self._writer(world, i)

    # -- others --------------------------------------------------------------------------------------------------------

    def _late(self, world: World) -> Iterator[tuple[str, World]]:
        for ghost in world.ghosts:
            kind, what, base = ghost
            left = world._replace(ghosts=world.ghosts - {ghost})
            if kind == "post":
                intent = self._all[what]
                if not any(there == what for there, _ in world.posts):
                    self.reached.add("a late post")
                    yield (
                        f"(fault) a late copy of {intent.name} lands",
                        left._replace(posts=world.posts | {(what, True)}),
                    )
                continue
            if kind == "apply":
                label = f"(fault) the late {what} lands"
                yield label, self._there(label, left, what)
                continue
            if base == world.record or self.rules.any_version:
                self.reached.add("a late write")
                label = f"(fault) the late write of {self._all[what].owner} ({self._said(what)}) lands"
                yield label, self._land(label, left, what)

    def _guest(self, world: World) -> Iterator[tuple[str, World]]:
        record, budget = self._all[world.record], world.budget
        if record.owner == _GUEST and not record.expired:
            yield "the JVM writer releases", self._recorded(world, self._id(replace(record, expired=True)))
        elif budget.guests and record.is_free and not world.holder:
            label = "(fault) a JVM writer takes the lock"
            left = world._replace(budget=budget._replace(guests=budget.guests - 1))
            if not record.expired:
                label += ", 10 s after it was handed over"
                missing = [path for path in world.decided if path not in world.objects]
                if missing:
                    self.reached.add("dropped")
                stands = tuple(path for path in world.decided if path in world.objects)
                if self.rules.in_time:
                    over = tuple(writer._replace(todo=()) for writer in world.writers)
                    left = left._replace(writers=over, ghosts=frozenset(g for g in world.ghosts if g[0] != "apply"))
                left = left._replace(decided=stands)
            elif any(path not in world.objects for path in world.decided):
                self._broken("keep", label, f"of {world.decided} only {sorted(world.objects)} is there")
            yield label, self._recorded(left, self._id(LockRecord(_GUEST, budget.guests, expired=False)))

    def _hold(self, world: World) -> Iterator[tuple[str, World]]:
        """A clean, a rollback, a user's lock."""
        budget = world.budget
        if world.holder:
            after = world._replace(holder="")
            for label, then in self._holding(world, after, _HOLDER):
                yield label, then
                if then.holder == "" and world.holder == "ends":
                    yield from self._rolls_back(label, then)
            if budget.crashes:
                lapsed = self._id(replace(self._all[world.record], valid_until_ms=_LONG_AGO_MS))
                left = after._replace(budget=budget._replace(crashes=budget.crashes - 1))
                yield "(fault) the holder dies, and its lease lapses", self._recorded(left, lapsed)
            return
        if budget.holders and self._all[world.record].is_free:
            for how in ("keeps", "ends") if budget.ends else ("keeps",):
                ends = budget.ends - (how == "ends")
                left = world._replace(holder=how, budget=budget._replace(holders=budget.holders - 1, ends=ends))
                label = f"(fault) a holder takes the lock, and {how} the log"
                yield label, self._taken(label, left, _HOLDER, keeps_log=how == "keeps")

    def _rolls_back(self, label: str, world: World) -> Iterator[tuple[str, World]]:
        for i, writer in enumerate(world.writers):
            stem = self._stem(i)
            if writer.phase not in ("new", "done") and not any(path.startswith(stem) for path in world.decided):
                yield f"{label}, {_NAMES[i]} is rolled back", world._replace(rolled=world.rolled | {stem})

    def _taken(self, label: str, world: World, owner: str, *, keeps_log: bool) -> World:
        record = self._all[world.record]
        seen = RecordSeen(record, Version("model", record.nonce), self._at(world))
        writing, put = machine.step(self._me[owner], Idle(), TakeLock(seen, keeps_log=keeps_log))
        assert writing != Idle(), put
        return self._land(label, world, self._plain(world, put.record), by=owner)

    def _holding(self, world: World, after: World, owner: str) -> Iterator[tuple[str, World]]:
        """Apply what is not there, in its order; then release."""
        record = self._all[world.record]
        missing = [pending.path for pending in record.all_pending if pending.path not in world.objects]
        if missing and self.rules.holder_applies:
            label = f"{owner}, which holds the lock, applies {missing[0]}"
            yield label, self._there(label, world, missing[0])
            return
        at, version = self._at(world), Version("model", record.nonce)
        held: Any = Held(record, version, 10**9, 0)
        if record.all_pending:
            held, _ = machine.step(self._me[owner], Rolling(held, "acquired"), AppliedPending())
        _, put = machine.step(self._me[owner], held, Release(at))
        label = f"{owner} releases the lock"
        yield label, self._land(label, after, self._plain(world, put.record), by=owner)

    # -- one writer ----------------------------------------------------------------------------------------------------

    def _writer(self, world: World, i: int) -> Iterator[tuple[str, World]]:
        writer, name, budget = world.writers[i], _NAMES[i], world.budget
        if writer.phase == "dead":
            return
        if budget.crashes and (writer.phase not in ("new", "done") or writer.duty or writer.todo):
            left = world._replace(budget=budget._replace(crashes=budget.crashes - 1))
            if writer.phase == "holding":
                lapsed = self._id(replace(self._all[world.record], valid_until_ms=_LONG_AGO_MS))
                left = self._recorded(left, lapsed)
            yield f"(fault) {name} dies", self._with(left, i, Writer("dead"))
        if writer.todo:
            yield from self._applying(world, i)
        if writer.phase == "new" and i and world.writers[i - 1].phase == "new":
            return  # they are alike until they begin
        phase = "stale" if writer.phase == "on" and writer.known <= 0 else writer.phase
        yield from self._phases[phase](world, i)

    def _judge(self, world: World, i: int) -> Iterator[tuple[str, World]]:
        """Look at the table, and at the place of the log at which that is."""
        writer, name, stem = world.writers[i], _NAMES[i], self._stem(i)
        record = self._all[world.record]
        own = next((path for path in world.objects if path.startswith(stem)), None)
        if own is not None and self.rules.looks_for_own:
            yield f"{name} finds {own}", self._acknowledged(f"{name} finds {own}", world, i, own)
        elif stem in world.rolled:
            yield f"{name} finds that it was rolled back", self._denied(world, i)
        elif any(self._body(path) == self.bodies[i] and not path.startswith(stem) for path in world.objects):
            yield f"{name} finds one that it meets", self._denied(world, i)
        elif record.log is None or not record.log_has_pending or (not record.is_free and record.valid_until_ms < 0):
            if record.is_free or record.valid_until_ms < 0:
                self.reached.add("a log is begun")
                label = f"{name} takes the lock, for there is no log to go by"
                left = self._with(world, i, Writer("holding"))
                yield label, self._taken(label, left, name, keeps_log=True)
        else:
            missing = 0
            for entry in reversed(record.log.entries):
                if entry.path in world.objects:
                    break
                missing += 1
            place = record.log.next - missing
            intent = Intent(record.log.name, place, stem, self.bodies[i].encode())
            judged = Writer(
                "on", self._id(intent), world.record, refused=self.meets, todo=writer.todo, there=writer.there
            )
            label = f"{name} judges itself at place {place} of log {record.log.name}"
            yield label, self._with(world, i, judged)

    def _applying(self, world: World, i: int) -> Iterator[tuple[str, World]]:
        """On a thread of its own."""
        writer, name, budget = world.writers[i], _NAMES[i], world.budget
        at = 0 if self.rules.in_order else len(writer.todo) - 1
        path, rest = writer.todo[at], writer.todo[:at] + writer.todo[at + 1 :]
        label = f"{name} applies {path}"
        applied = self._calm(writer._replace(todo=rest, there=path))
        yield label, self._there(label, self._with(world, i, applied), path)
        if path in world.objects:
            return
        stopped = self._with(world, i, self._calm(writer._replace(todo=())))
        if budget.slow:
            yield f"(fault) {label}: not in time", stopped._replace(budget=budget._replace(slow=budget.slow - 1))
        if budget.late:
            late = stopped._replace(ghosts=world.ghosts | {("apply", path, 0)})
            yield f"(fault) {label}: late", late._replace(budget=budget._replace(late=budget.late - 1))

    def _on(self, world: World, i: int) -> Iterator[tuple[str, World]]:
        writer, name = world.writers[i], _NAMES[i]
        known = self._all[writer.known]
        match self._verdict(writer.known, writer.intent):
            case group.Refused():
                yield f"{name} is refused", self._denied(world, i)
            case group.Void():
                self.reached.add("judged anew")
                again = Writer("judge", todo=writer.todo, there=writer.there)
                yield f"{name} finds that its log has ended", self._with(world, i, again)
            case group.Decided(path) if self.rules.told_early or path not in self._not_there(known, writer):
                yield f"{name} is told of {path}", self._acknowledged(f"{name} is told of {path}", world, i, path)
            case came:
                if isinstance(came, group.Undecided) and world.budget.withdrawals:
                    yield self._withdraws(world, i)
                yield from self._waits(world, i, undecided=isinstance(came, group.Undecided))

    def _stale(self, world: World, i: int) -> Iterator[tuple[str, World]]:
        writer = world.writers[i]
        yield self._looks(world, i)
        if world.budget.withdrawals and (writer.posted or writer.doubts):
            yield self._withdraws(world, i)
        if writer.known == _STALE:
            yield from self._posts(world, i)

    def _looks(self, world: World, i: int) -> tuple[str, World]:
        """And draws its conclusions, which touch nobody else."""
        label, after = f"{_NAMES[i]} looks: {self._said(world.record)}", self._with(world, i, self._looked(world, i))
        settled = isinstance(self._verdict(world.record, world.writers[i].intent), group.Undecided)
        if settled or (ends := next(self._on(after, i), None)) is None or not _settles(ends[0]):
            return label, after
        return f"{label}; {ends[0]}", ends[1]

    def _waits(self, world: World, i: int, *, undecided: bool) -> Iterator[tuple[str, World]]:
        """Do what `next_act` says, however much time has passed."""
        writer, name = world.writers[i], _NAMES[i]
        known = self._all[writer.known]
        if writer.duty:
            yield from self._another_looks(world, i)
        for act in self._acts(writer, name, undecided=undecided):
            match act:
                case group.Combine():
                    yield from self._round(world, i)
                case group.StepDown():
                    self.reached.add("stepped down")
                    yield f"{name} is off duty", self._with(world, i, self._calm(writer._replace(duty=False)))
                case group.AwaitOthers():
                    yield from self._finds(world, i)
                case group.Post():
                    yield from self._posts(world, i)
                case group.PollAgain() if self._looked(world, i) != writer:
                    yield self._looks(world, i)
                case group.WriteRecord(duty):
                    batch = self._choice(writer, (writer.intent,))
                    if batch or known.all_pending:
                        yield from self._write(world, i, batch, duty=duty)
                case group.Hold() if writer.posted or writer.doubts:
                    yield self._withdraws(world, i, to="judge")
                case group.Hold():
                    yield f"{name} must hold the lock", self._with(world, i, Writer("judge"))
                case group.Free():
                    yield from self._write(world, i, (), duty=False)

    def _finds(self, world: World, i: int) -> Iterator[tuple[str, World]]:
        known = self._all[world.writers[i].known]
        for path in (pending.path for pending in known.all_pending if pending.path in world.objects):
            if path.startswith(self._stem(i)):
                label = f"{_NAMES[i]} finds {path}, which {known.owner} has applied"
                yield label, self._acknowledged(label, world, i, path)

    def _acts(self, writer: Writer, name: str, *, undecided: bool) -> set[group.Act]:
        """What `next_act` says of that writer: its time, what fails, and who applies are left open."""
        known = self._all[writer.known]
        mine = self._situation(writer, name, undecided=undecided)
        asks = [mine, replace(mine, fails=True)]
        if mine.waiting is not None:
            asks = [replace(mine, waiting=replace(mine.waiting, age_s=age_s)) for age_s in (0.0, _LONG_S)]
            asks += [replace(mine, others_apply=not undecided and known.owner != name)]
        return {self.rules.next_act(known, ask, 0, 1.0) for ask in asks}

    def _situation(self, writer: Writer, name: str, *, undecided: bool) -> group.Situation:
        known = self._all[writer.known]
        wants = not writer.ended and not writer.duty
        standing = group.Waiting(writer.posted or not undecided, int(writer.refused), waits_s=10.0)
        pending_after = self._not_there(known, writer)
        return group.Situation(
            all_pending=tuple(pending for pending in known.all_pending if pending.path in pending_after),
            waiting=standing if wants else None,
            undecided=undecided,
            leads=writer.duty,
            applies=bool(writer.todo),
            wrote=known.owner == name,
        )

    def _write(self, world: World, i: int, batch: tuple[Pending, ...], *, duty: bool) -> Iterator[tuple[str, World]]:
        writer = world.writers[i]
        put = self._put(world, i, writer.known, batch, duty=duty)
        yield from self._send(self._with(world, i, writer._replace(put=(put, writer.known))), i)

    def _posts(self, world: World, i: int) -> Iterator[tuple[str, World]]:
        writer, name, budget = world.writers[i], _NAMES[i], world.budget
        self.reached.add("posted")
        waits, mine = self._with(world, i, writer._replace(posted=True)), (writer.intent, True)
        free = not any(there == writer.intent for there, _ in world.posts)
        landed = waits._replace(posts=world.posts | {mine}) if free else waits
        yield f"{name} posts", landed
        if not free:
            return
        ghosts = world.ghosts | {("post", writer.intent, 0)}
        if budget.doubled:
            left = budget._replace(doubled=budget.doubled - 1)
            yield f"(fault) {name} posts, and a copy is on its way", landed._replace(ghosts=ghosts, budget=left)
        if budget.late:
            left = budget._replace(late=budget.late - 1)
            yield f"(fault) {name} posts, which is late", waits._replace(ghosts=ghosts, budget=left)

    def _round(self, world: World, i: int) -> Iterator[tuple[str, World]]:
        """Of one that is on duty, whether it wants anything itself or not."""
        writer, name = world.writers[i], _NAMES[i]
        known = self._all[writer.known]
        mine, listed = self._situation(writer, name, undecided=False), self._listed(world, known)
        if self.rules.lists_first:
            yield f"{name} lists", self._with(world, i, writer._replace(phase="lists", listed=listed))
            return
        batch = self._choice(writer, tuple(sorted({*listed, *self._wanted(writer)}))) if known.log is not None else ()
        for rests in {False, not mine.all_pending}:
            match group.after_listing(known, mine, batch, yields=rests, is_due=False, empty_rounds=0):
                case group.StepDown():
                    yield from self._write(self._with(world, i, writer._replace(duty=False)), i, (), duty=False)
                case group.WriteRecord():
                    put = self._put(world, i, writer.known, batch, duty=True)
                    chosen = ", ".join(pending.path for pending in batch)
                    self.reached.add("combined" if len(batch) > 1 else "listed")
                    listing = writer._replace(phase="listed", put=(put, writer.known))
                    yield f"{name} lists, and is going to decide [{chosen}]", self._with(world, i, listing)

    def _another_looks(self, world: World, i: int) -> Iterator[tuple[str, World]]:
        """A thread of the one that is on duty, which knows the record then."""
        writer, budget = world.writers[i], world.budget
        if budget.looks and writer.known != world.record:
            left = world._replace(budget=budget._replace(looks=budget.looks - 1))
            label = f"(fault) another thread of {_NAMES[i]} looks: {self._said(world.record)}"
            yield label, self._with(left, i, writer._replace(known=world.record))

    def _holds(self, world: World, i: int) -> Iterator[tuple[str, World]]:
        yield from self._holding(world, self._with(world, i, Writer("judge")), _NAMES[i])

    def _going_to_write(self, world: World, i: int) -> Iterator[tuple[str, World]]:
        yield from self._send(world, i)
        yield from self._another_looks(world, i)

    def _looks_late(self, world: World, i: int) -> Iterator[tuple[str, World]]:
        """The twin that has listed first."""
        writer, name = world.writers[i], _NAMES[i]
        back = writer._replace(phase="done" if writer.ended else "on", listed=())
        if not group.may_write(self._all[world.record]):
            yield f"{name} looks, too late", self._with(world, i, back._replace(duty=False, known=0))
            return
        knows = writer._replace(known=world.record)
        batch = self._choice(knows, tuple(sorted({*writer.listed, *self._wanted(writer)})))
        put = self._put(world, i, world.record, batch, duty=True)
        listed = knows._replace(phase="listed", listed=(), put=(put, world.record))
        yield f"{name} looks, and is going to decide what it has listed", self._with(world, i, listed)

    def _send(self, world: World, i: int) -> Iterator[tuple[str, World]]:
        """A write of the record."""
        writer, name, budget = world.writers[i], _NAMES[i], world.budget
        put, base = writer.put
        if self.rules.parted and writer.phase == "listed":
            base = writer.known  # by the thread beside it
        moves = writer.phase == "moves"
        phase = "moves" if moves else "done" if writer.ended else "on"
        known = base if moves else 0
        back = writer._replace(phase=phase, put=(0, 0), known=known, refused=not moves, duty=False)
        after = self._with(world, i, self._calm(back))
        doubts = back._replace(doubts=writer.doubts if moves else writer.doubts | {(put, base)})
        unsure = self._with(world, i, self._calm(doubts))
        what = f"{name}'s write ({self._said(put)})"
        if base != world.record and not self.rules.any_version:
            yield f"{what} is refused", unsure
            return
        label = f"{what} lands"
        landed = self._land(label, after, put, by=name)
        record = self._all[put]
        todo = tuple(path for path in self._not_there(record, writer))
        known = base if moves else put
        won = back._replace(known=known, refused=False, duty=record.combiner_ms > 0, doubts=frozenset(), todo=todo)
        yield label, self._with(landed, i, self._calm(won))
        if budget.lost:
            lost = self._with(landed, i, unsure.writers[i])._replace(budget=budget._replace(lost=budget.lost - 1))
            yield f"(fault) {label}, its answer is lost", lost
        if budget.twice:
            self.reached.add("twice")
            twice = self._with(landed, i, unsure.writers[i])._replace(budget=budget._replace(twice=budget.twice - 1))
            label = f"(fault) {label} twice, the second copy is refused"
            yield label, self._denied(twice, i) if self.rules.refused_is_never else twice
        if budget.late:
            ghosts = world.ghosts | {("record", put, base)}
            late = unsure._replace(budget=budget._replace(late=budget.late - 1), ghosts=ghosts)
            yield f"(fault) {what} is late and not answered", late

    def _afterwards(self, world: World, i: int) -> Iterator[tuple[str, World]]:
        """It wants nothing any more: it goes on combining for a while, and frees the lock."""
        if world.writers[i].known:
            yield from self._waits(world, i, undecided=False)

    # -- withdrawing ---------------------------------------------------------------------------------------------------

    def _withdraws(self, world: World, i: int, to: str = "") -> tuple[str, World]:
        """For good; or `to` go on otherwise."""
        writer, name, budget = world.writers[i], _NAMES[i], world.budget
        fault = "" if to else "(fault) "
        left = world if to else world._replace(budget=budget._replace(withdrawals=budget.withdrawals - 1))
        if not writer.posted and not writer.doubts:
            return f"{fault}{name} gives up", self._denied(left, i)
        self.reached.add("withdrawn")
        posts = world.posts
        if writer.posted and self.rules.withdraws != "nothing":
            posts -= {(writer.intent, True)}
            posts |= {(writer.intent, False)} if self.rules.withdraws == "tombstone" else frozenset()
        moving = Writer("moving", writer.intent, todo=writer.todo, there=writer.there, ended=to)
        return f"{fault}{name} withdraws", self._with(left, i, moving)._replace(posts=posts)

    def _moving(self, world: World, i: int) -> Iterator[tuple[str, World]]:
        """See to it that what was to be written over the record as it is cannot land any more."""
        writer, name = world.writers[i], _NAMES[i]
        if writer.phase == "moving" and self.rules.moves_on and group.may_write(self._all[world.record]):
            moves = writer._replace(phase="moves", known=world.record)
            yield f"{name} looks: {self._said(world.record)}", self._with(world, i, moves)
            return
        if writer.phase == "moves" and writer.known == world.record:
            put = self._put(world, i, world.record, (), duty=False)
            for label, after in self._send(self._with(world, i, writer._replace(put=(put, writer.known))), i):
                yield f"{label}, to move it on", after
            return
        match self._verdict(world.record, writer.intent):
            case group.Decided(path):
                label = f"{name} sees that {path} was decided"
                yield label, self._end(world, i, "acknowledged" if path in world.objects else "unknown")
            case group.Void() if not self.rules.ended_is_never:
                label = f"{name} sees that its log has ended"
                yield label, self._with(world, i, Writer("judge", todo=writer.todo, there=writer.there))
            case _ if writer.ended == "judge":
                label = f"{name} has withdrawn, to hold the lock"
                yield label, self._with(world, i, Writer("judge", todo=writer.todo, there=writer.there))
            case _:
                yield f"{name} has withdrawn", self._denied(world, i)

    # -- what it knows -------------------------------------------------------------------------------------------------

    def _looked(self, world: World, i: int) -> Writer:
        writer, record = world.writers[i], self._all[world.record]
        came = {sent: self._became(sent, world.record) for sent in writer.doubts}
        lands = "there" in came.values() and record.released_pending
        todo = self._not_there(record, writer) if lands else writer.todo
        doubts = frozenset(sent for sent in came if came[sent] == "open")
        return writer._replace(known=world.record, doubts=doubts, todo=todo)

    def _became(self, sent: tuple[int, int], record: int) -> str:
        """Here the number of a record serves as its nonce and its version."""
        put, base = map(str, sent)
        seen = replace(self._all[record], nonce=str(record))
        return self.rules.became(Sent(put, Version("model", base), 0.0), seen, Version("model", str(record)))

    def _calm(self, writer: Writer) -> Writer:
        """Without what is not needed any more: fewer states that differ in nothing."""
        if writer.phase != "done" or writer.duty:
            return writer
        known = writer.known if writer.todo or (writer.known > 0 and self._all[writer.known].released_pending) else 0
        there = writer.there if known else ""
        return Writer("done", known=known, todo=writer.todo, there=there, ended=writer.ended)

    def _lean(self, world: World) -> World:
        """Without what can matter no more."""
        if self.rules.any_version or world.budget.looks or self.rules.lists_first or self.rules.any_log:
            return world
        record = self._all[world.record]
        log = "" if record.log is None else record.log.name
        named = {pending.path for pending in record.all_pending}
        writers = tuple(self._leaner(world, writer, named) for writer in world.writers)
        posts = frozenset(post for post in world.posts if self._all[post[0]].log == log)
        ghosts = frozenset(g for g in world.ghosts if g[0] != "post" or self._all[g[1]].log == log)
        return world._replace(writers=writers, posts=posts, ghosts=ghosts)

    def _leaner(self, world: World, writer: Writer, named: set[str]) -> Writer:
        todo, there = writer.todo, writer.there
        while todo and todo[0] in world.objects and self.rules.in_order:
            there, todo = todo[0], todo[1:]
        writer = writer._replace(todo=todo, there=there if there in named else "")
        if writer.doubts:
            doubts = frozenset(sent for sent in writer.doubts if world.record in sent)
            writer = writer._replace(doubts=doubts or _OVER)
        stale = writer.known > 0 and writer.known != world.record
        if not stale or writer.phase not in ("on", "listed", "done", "moves"):
            return self._calm(writer)
        if writer.phase == "moves":
            return writer._replace(known=_STALE)
        if writer.ended or writer.duty or writer.put[0]:
            phase = "done" if writer.ended else "on"
            return self._calm(writer._replace(phase=phase, known=0, put=(0, 0), duty=False, refused=True))
        first = group.next_step(self._all[writer.known], group.Waiting(writer.posted), 0, 1.0)
        posts = isinstance(first, group.Post)
        return writer._replace(known=_STALE if posts else 0, refused=writer.refused or not posts)

    def _not_there(self, record: LockRecord, writer: Writer) -> tuple[str, ...]:
        there = next((pending for pending in record.all_pending if pending.path == writer.there), None)
        return tuple(pending.path for pending in pending_after(record.all_pending, there))

    def _wanted(self, writer: Writer) -> tuple[int, ...]:
        return () if writer.ended else (writer.intent,)

    def _listed(self, world: World, known: LockRecord) -> tuple[int, ...]:
        logs = {known.log.name if known.log else ""}
        return tuple(i for i, live in world.posts if live and (self.rules.any_log or self._all[i].log in logs))

    def _verdict(self, record: int, intent: int) -> group._Verdict:
        key = (record, intent)
        if key not in self._verdicts:
            self._verdicts[key] = self.rules.verdict(self._all[record].log, self._all[intent], self._decider)
        return self._verdicts[key]

    def _choice(self, writer: Writer, intents: tuple[int, ...]) -> tuple[Pending, ...]:
        key = (writer.known, writer.there, intents)
        if key not in self._chosen:
            known = self._all[writer.known]
            unapplied = tuple(p for p in known.all_pending if p.path in self._not_there(known, writer))
            wanted = [self._all[intent] for intent in intents]
            self._chosen[key] = self.rules.choose(known.log, unapplied, wanted, self._decider, 0)
        return self._chosen[key]

    def _put(self, world: World, i: int, known: int, batch: tuple[Pending, ...], *, duty: bool) -> int:
        there = world.writers[i].there
        key = (i, known, there, batch, duty)
        if key not in self._combined:
            seen = self._all[known]
            last = next((pending for pending in seen.all_pending if pending.path == there), None)
            me, at = self._me[_NAMES[i]], Moment(0, 0.0, "1")
            self._combined[key] = self.rules.combine(
                me, seen, batch, at, last_applied=last, combiner_ms=_DUTY_MS if duty else 0
            )
        return self._plain(world, self._combined[key])

    def _plain(self, world: World, record: LockRecord) -> int:
        """Without what rises with every write and decides nothing here; another than all that somebody knows."""
        log = record.log
        if log is not None and self.short:
            kept = max(1, len(record.all_pending))
            log = Log(log.name, max(log.first, log.next - kept), log.next, pack(log.entries[-kept:]))
        plain = replace(
            record,
            epoch=1,
            holder=None,
            valid_until_ms=0,
            freed_ms=0,
            yield_until_ms=0,
            foreign_seen_ms=0,
            pending_until_ms=0,
        )
        live = {world.record}
        for writer in world.writers:
            live |= {writer.known, *writer.put, *(one for sent in writer.doubts for one in sent)}
        for kind, what, base in world.ghosts:
            live |= {what, base} if kind == "record" else set()
        named = (self._id(replace(plain, log=log, nonce=str(n))) for n in range(1, 100))
        return next(name for name in named if name not in live)

    # -- the store -----------------------------------------------------------------------------------------------------

    def _land(self, label: str, world: World, put: int, by: str = "") -> World:
        old, new = self._all[world.record], self._all[put]
        if not old.is_free and old.valid_until_ms >= 0 and (by or new.owner) != old.owner:
            self._broken("held", label, f"{old.owner} holds the lock")
        decided = world.decided
        for path in (pending.path for pending in new.all_pending if pending.path not in decided):
            stem = path[:2]
            if any(other.startswith(stem) for other in decided):
                self._broken("once", label, f"{path} is decided, and so is one of {decided}")
            if stem in world.rolled or world.writers[_NAMES.index(path[0])].ended == "denied":
                self._broken("never", label, f"{path} was refused, withdrawn or rolled back, and is decided")
            if any(self._body(other) == self._body(path) and not other.startswith(stem) for other in decided):
                self._broken("meet", label, f"{path} meets one of {decided}")
            decided = (*decided, path)
        named = {pending.path for pending in new.all_pending}
        if missing := [path for path in decided if path not in world.objects and path not in named]:
            self._broken("keep", label, f"{missing} were decided, and are not there")
        return self._recorded(world, put)._replace(decided=decided)

    def _recorded(self, world: World, record: int) -> World:
        """With that record, and without late writes that never can land: a version does not come back."""
        live = (ghost for ghost in world.ghosts if ghost[0] != "record" or ghost[2] == record or self.rules.any_version)
        return world._replace(record=record, ghosts=frozenset(live))

    def _there(self, label: str, world: World, path: str) -> World:
        if path in world.objects:
            return world
        if path not in world.decided:
            self._broken("time", label, f"{path} was dropped by a JVM writer, and appears")
            return world._replace(objects=world.objects | {path})
        before = world.decided[: world.decided.index(path)]
        if missing := [other for other in before if other not in world.objects]:
            self._broken("order", label, f"{missing} were decided before, and are not there")
        return world._replace(objects=world.objects | {path})

    def _acknowledged(self, label: str, world: World, i: int, path: str) -> World:
        if path not in world.objects:
            self._broken("told", label, f"{path} is acknowledged, and is not there")
        writer = world.writers[i]
        posts = frozenset(post for post in world.posts if post[0] != writer.intent)
        return self._end(world, i, "acknowledged")._replace(posts=posts)

    def _denied(self, world: World, i: int) -> World:
        if any(path.startswith(self._stem(i)) for path in world.decided):
            self._broken("never", f"{_NAMES[i]} is told that it never was decided", f"{world.decided} are")
        return self._end(world, i, "denied")

    def _end(self, world: World, i: int, ended: str) -> World:
        if ended in self.rules.takes_back:
            stem = self._stem(i)
            if found := [path for path in world.decided if path.startswith(stem)]:
                self._broken("never", f"{_NAMES[i]} takes back what it has written", f"{found} is decided")
            world = world._replace(rolled=world.rolled | {stem})
        return self._with(world, i, self._calm(world.writers[i]._replace(phase="done", ended=ended)))

    def _broken(self, promise: str, label: str, why: str) -> None:
        if promise in self.watch:
            raise BrokenPromise(label, f"{promise}: {why}")

    # -- names for things ----------------------------------------------------------------------------------------------

    def _with(self, world: World, i: int, writer: Writer) -> World:
        return world._replace(writers=(*world.writers[:i], writer, *world.writers[i + 1 :]))

    def _stem(self, i: int) -> str:
        return f"{_NAMES[i]}."

    def _body(self, path: str) -> str:
        return self.bodies[_NAMES.index(path[0])]

    def _said(self, record: int) -> str:
        said = self._all[record]
        log = "no log" if said.log is None else f"log {said.log.name}, place {said.log.next}"
        duty = ", on duty" if said.combiner_ms else ""
        unapplied = ", ".join(pending.path for pending in said.all_pending)
        how = "released" if said.expired else f"{unapplied or 'nothing'} unapplied" if said.released_pending else "held"
        return f"{said.owner or 'nobody'}'s, {how}, {log}{duty}"

    def _at(self, world: World) -> Moment:
        return Moment(0, 0.0, self._fresh(world))

    def _id(self, thing: Any) -> int:
        found = self._ids.get(thing)
        if found is None:
            found = self._ids[thing] = len(self._all)
            self._all.append(thing)
            log = thing.log if isinstance(thing, Intent) else thing.log.name if thing.log else ""
            self._logs.append(log)
        return found

    def _fresh(self, world: World) -> str:
        """The smallest name of a log that occurs nowhere: what nobody remembers may come again."""
        live = {self._logs[world.record]}
        for writer in world.writers:
            live |= {self._logs[max(0, one)] for one in (writer.intent, writer.known, *writer.put)}
            live |= {self._logs[max(0, one)] for sent in writer.doubts for one in sent}
        live |= {self._logs[post] for post, _ in world.posts}
        live |= {self._logs[max(0, one)] for kind, *both in world.ghosts if kind != "apply" for one in both}
        live |= {path.split(".")[1] for path in (*world.decided, *world.objects)}
        live |= {ghost[1].split(".")[1] for ghost in world.ghosts if ghost[0] == "apply"}
        return next(str(n) for n in range(1, 100) if str(n) not in live)


def _settles(label: str) -> bool:
    return any(said in label for said in ("is refused", "its log has ended", "is told of"))
