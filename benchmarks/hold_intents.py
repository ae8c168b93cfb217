"""Two policies of `benchmarks.contention` that the library does not have: the lock is handed over, not only released.

    wants it   look; take what is free; if that failed, ask for a place in the order, and look when it is one's turn
    releases   give the lock to the first of the order in the same write, for a short time
    has it     use it without a write; a turn that lasts is prolonged
    is late    the next one takes it after that time, a patience later for each who should have come before

No clocks are compared: that time counts from the last look that did not show it yet for its new holder, and for others
from the first that did. JVM writers are kept away for ten seconds.

`HandedLine`: one asks by a write of the record, as today. `HoldIntents`: by an object of its own, an intent, for which
nobody contends; who holds the lock lists them once a round and writes their order into the record. Nobody lists where
nobody had to wait, but for one that takes the lock again and again, or has it for long.

Not in `LockRecord` by now: the fields of `Ordered`. A JVM writer drops them, as it drops the line; intents outlive it.
"""

from __future__ import annotations

import math
from collections.abc import Generator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from fsspec_cas import ABSENT
from lockprovider.acquire.polling import FIRST_S
from lockprovider.lease.states import Held, Idle
from lockprovider.record.line import LONGEST_S, guest_ms, rest_due_ms, rests_s
from lockprovider.record.record import LockRecord
from lockprovider.settings import HAND_OVER_S

if TYPE_CHECKING:
    from benchmarks.contention import Contender, Process, Simulation

Task = Generator[Any, Any, Any]
_LEASE_S = 300.0
_LIST_HERE = ""  # in the order: whoever has the lock when this is first lists the intents
_LIST_EVERY = 4  # turns at least
_LISTS_AFTER_S = 0.2  # of a turn without an order
_LISTS_ALONE_S = 0.5  # apart, one that takes it again and again
_JOINS_AFTER_S = 0.2  # without an order, by a write of the record
_JOIN_BURST = 4
_LOOKS = 6  # in the length of a turn
_WAYS = 2  # to the store, that one looks before its turn is expected
_EARLY = 0.85  # of the time until its turn: the lock idles for one that comes late
_SHARE = 0.5  # of the time waited in vain is the next pause
_HANDED_S, _HANDED_TURNS, _HANDED_WRITES = 0.3, 1.5, 3  # it is given for the longest of these
_HANDED_LONGEST_S = 1.0  # for the sake of turns
_MARGIN = 0.1  # of that time, within which its new holder does not trust it any more
_SHORT_TURN_S, _UNKNOWN_TURN_S = 0.1, 0.2


@dataclass(frozen=True, slots=True)
class Ordered(LockRecord):
    """`line` is the order in which it is handed over."""

    listed: frozenset[str] = frozenset()  # these have had their place in the order
    listed_epoch: int = 0
    write_ms: int = 0  # how long a write took of late
    handed_ms: int = 0  # for how long it is handed over; 0: it is held, or free

    def before(self, name: str) -> int:
        """How many in the order go first; all, if it is not in it."""
        upto = self.line.index(name) if name in self.line else len(self.line)
        return sum(one != _LIST_HERE for one in self.line[:upto])

    @property
    def turn_s(self) -> float:
        """As far as it is known."""
        return min(LONGEST_S, self.turn_ms / 1000 or _UNKNOWN_TURN_S)

    def free_s(self, now_ms: int, known_s: float) -> float:
        """For how long it is there for the taking; below zero: when it may be. `known_s`: since it was seen first."""
        if self.handed_ms:
            return known_s - self.handed_ms / 1000
        since_ms = max(self.rest_ms, self.freed_ms) if self.given else self.lapses_ms
        return (now_ms - since_ms) / 1000


@dataclass
class _Own:
    """What a process remembers."""

    version: Any = None
    since_s: float = 0.0  # it knows the record at that version
    way_s: float = 0.0  # the slowest of its looks of late
    has_it_s: float = 0.0  # since then
    waited: bool = False  # for the lock that it has
    write_s: float = 0.0  # its slowest write of late
    before_s: float = -math.inf  # then it was not handed over to this one yet
    posted: str = ""
    listed: frozenset[str] | None = None  # before its turn
    alone_since_s: float | None = None
    refused: int = 0


@dataclass(frozen=True, slots=True)
class _Look:
    """What one saw that has to wait."""

    record: Ordered
    version: Any
    now_ms: int
    waits_s: float
    known_s: float  # for how long this one knows the record as it is
    way_s: float
    lost: bool = False  # it tried to take the lock, and others were faster

    @property
    def free_s(self) -> float:
        """For how long it is there for the taking; below zero: when it may be."""
        return LONGEST_S if self.version is ABSENT else self.record.free_s(self.now_ms, self.known_s)

    @property
    def patience_s(self) -> float:
        """For each who should have come before."""
        return FIRST_S + self.record.turn_s / _LOOKS + 3 * self.way_s

    def is_mine(self, name: str) -> bool:
        """Whether it was handed over to that one."""
        return self.record.owner == name and not self.record.given

    def leaves_alone_s(self, name: str) -> float:
        """For how long that one leaves it to those before it."""
        return min(LONGEST_S, self.record.before(name) * self.patience_s)


class HandedLine:
    """The order in the record, joined by a write of the record."""

    def __init__(self, simulation: Simulation) -> None:
        self._sim = simulation
        self._own: dict[str, _Own] = {}

    # -- waiting -------------------------------------------------------------------------------------------------------

    def acquire(self, process: Process, me: Contender) -> Task:
        """Return with the lock, or without it when the wish has ended."""
        sim, name, began_s = self._sim, process.name, self._sim.now_s
        own = self._own.setdefault(name, _Own())
        own.waited = False
        while True:
            if process.dead:
                yield 1e9, None
            last = sim.now_s >= me.until_s
            look = yield from self._look(process, began_s)
            if look.is_mine(name):
                if (yield from self._accept(process, look)):
                    break
                continue
            if look.free_s >= (0 if last else look.leaves_alone_s(name)):
                if (yield from self._take(process, me, look)):
                    break
                look = replace(look, lost=True)
            if last:
                return self._remove(name)
            own.waited = True
            if not (yield from self._ask(process, look)):
                yield max(0.0, min(self._pause_s(look, name), me.until_s - sim.now_s)), None
        process.waited_s = sim.now_s - began_s

    def _look(self, process: Process, began_s: float) -> Task:
        """At the store, or at what this process has just written."""
        sim, own, sent_s = self._sim, self._own[process.name], self._sim.now_s
        known, process.machine = process.machine.released, Idle()
        if known and not (known[0].given or sent_s - own.before_s < known[0].turn_s):
            known = None  # it was handed over, and that is long ago
        seen, version = known or (yield from sim.get()) or (None, ABSENT)
        own.way_s = max(sim.now_s - sent_s, own.way_s / 2)
        if version != own.version:
            own.version, own.since_s = version, sim.now_s
        now_ms, waits_s = sim.moment(process).now_ms, sim.now_s - began_s
        look = _Look(_ordered(seen, own.way_s), version, now_ms, waits_s, sim.now_s - own.since_s, own.way_s)
        if not known and not look.is_mine(process.name):
            own.before_s = sent_s
        return look

    def _ask(self, process: Process, look: _Look) -> Task:
        """For a place in the order, if it is time to; whether to look again at once."""
        record, own = look.record, self._own[process.name]
        round_s = (len(record.line) + 1) * record.turn_s if record.line else _JOINS_AFTER_S
        if process.name in record.line or record.given or look.lost or not record.nonce or look.waits_s < round_s:
            return False
        if (yield from self._sim.put(replace(record, line=(*record.line, process.name)), look.version)) is not None:
            return True
        own.refused += 1
        return own.refused % _JOIN_BURST != 0

    def _pause_s(self, look: _Look, name: str) -> float:
        record, draw = look.record, self._sim.random.random()
        if rest_s := rests_s(record, look.now_ms):
            return rest_s * (1 + draw / 10)
        turn_s, ahead = record.turn_s, record.before(name)
        lasts_s = 0.0 if record.holder is None else (look.now_ms - record.holder.since_ms) / 1000
        left_s = min(turn_s, max(0.0, turn_s - lasts_s))
        if name in record.line:
            expected_s = ahead * turn_s * _EARLY + left_s - _WAYS * look.way_s
            least_s, in_vain_s = turn_s / _LOOKS, lasts_s - turn_s
        else:
            expected_s = (record.before(_LIST_HERE) + 1) * turn_s + left_s if record.line else 0.0
            least_s, in_vain_s = FIRST_S, self._in_vain_s(look, lasts_s)
        slowing_s = min(self._sim.case.poll_s, max(least_s, in_vain_s * _SHARE)) * (1 + draw) / 2
        pause_s = min(LONGEST_S, max(expected_s, slowing_s))
        if look.lost:
            return pause_s
        there_s = ahead * look.patience_s - look.free_s
        return min(pause_s, max(0.0, there_s) + draw * FIRST_S)

    def _in_vain_s(self, look: _Look, lasts_s: float) -> float:  # noqa: ARG002 - a base
        """For how long one that is not in the order has waited."""
        return look.waits_s

    def _accept(self, process: Process, look: _Look) -> Task:
        """It was handed over to this one: no write, unless that time may be almost over, by its own clock alone."""
        record, now_s = look.record, self._sim.now_s
        deadline_s = self._own[process.name].before_s + (1 - _MARGIN) * record.handed_ms / 1000
        process.machine = Held(record, look.version, deadline_s, 0)
        if deadline_s - now_s < 2 * self._sim.case.put_s:
            yield from self._prolong(process)
        if not isinstance(process.machine, Held):
            return False
        self._sim.note_taken()
        self._has_it(process.name)
        return True

    def _take(self, process: Process, me: Contender, look: _Look) -> Task:
        """What is free, over those who should have come first."""
        at, name, seen = self._sim.moment(process), process.name, look.record
        place = seen.line.index(name) if name in seen.line else -1
        over = {one for one in seen.line[: max(0, place)] if one != _LIST_HERE} | ({seen.owner} if seen.line else set())
        record = replace(
            seen,
            owner=name,
            valid_until_ms=at.now_ms + round(1000 * _LEASE_S),
            expired=False,
            nonce=at.nonce,
            epoch=seen.epoch + 1,
            holder=me.me.holds_since(at.now_ms),
            freed_ms=0,
            handed_ms=0,
            line=self._kept(seen.line[place + 1 :]),
            guest_ms=0 if look.version is ABSENT else guest_ms(seen, at.now_ms),
        )
        version = yield from self._put(name, record, look.version)
        if version is None:
            return False
        process.machine = Held(record, version, self._sim.now_s + _LEASE_S, 0)
        self._has_it(name)
        self._remove(*over - {name})
        return True

    def _kept(self, line: tuple[str, ...]) -> tuple[str, ...]:
        return line

    def _has_it(self, name: str) -> None:
        self._own[name].has_it_s = self._sim.now_s
        self._remove(name)

    # -- holding -------------------------------------------------------------------------------------------------------

    def hold(self, process: Process, seconds: float) -> Task:
        """A turn; one that lasts prolongs what was given for a short time."""
        half_s = (process.machine.deadline_s - self._sim.now_s) / 2
        if seconds < half_s:
            yield seconds, None
            return
        ends_s = self._sim.now_s + seconds
        yield half_s, None
        yield from self._prolong(process)
        yield max(0.0, ends_s - self._sim.now_s), None

    def _prolong(self, process: Process) -> Task:
        until_ms = self._sim.moment(process).now_ms + round(1000 * _LEASE_S)
        record = yield from self._write(process, lambda held: replace(held, valid_until_ms=until_ms, handed_ms=0))
        if record is not None:
            process.machine = Held(*record, self._sim.now_s + _LEASE_S, 0)

    def release(self, process: Process, me: Contender, *, again: bool) -> Task:
        """To the first of the order, if there is one."""
        if not isinstance(process.machine, Held):
            return
        listed = yield from self._listed(process)
        released = yield from self._write(process, lambda held: self._given(process, me, listed(held), again=again))
        if released is None:
            return
        process.machine = Idle(released)
        if not released[0].given:
            self._sim.note_handed()
        elif again:
            self._list_alone(process.name)

    def _listed(self, process: Process) -> Task:  # noqa: ARG002 - a base
        """What the order becomes before the lock is given."""
        yield from ()
        return _same

    def _list_alone(self, name: str) -> None:
        """It releases, comes again, and knows of nobody who waits."""

    def _given(self, process: Process, me: Contender, record: Ordered, *, again: bool) -> Ordered:
        at, name, own = self._sim.moment(process), process.name, self._own[process.name]
        line = (*record.line, name) if again else record.line
        heir = next((one for one in line if one not in (name, _LIST_HERE)), None)
        own.before_s = at.monotonic_s
        record = replace(record, nonce=at.nonce, rest_ms=record.rest_ms or at.now_ms, handed_ms=0)
        if heir is None:
            return replace(record, expired=True, line=(), freed_ms=at.now_ms)
        write_ms = max(round(1000 * own.write_s), record.write_ms // 2)
        way_s = write_ms / 1000 + self._sim.case.get_s
        turn_ms = _turn_ms(record.turn_ms, self._sim.now_s - own.has_it_s, way_s)
        record = replace(record, write_ms=write_ms, turn_ms=turn_ms, line=line)
        if rest_ms := rest_due_ms(record, at.now_ms):
            return replace(record, expired=True, freed_ms=at.now_ms, rest_ms=rest_ms)
        return replace(
            record,
            owner=heir,
            epoch=record.epoch + 1,
            valid_until_ms=at.now_ms + round(1000 * HAND_OVER_S),
            handed_ms=round(1000 * _handed_s(record, self._sim.now_s - own.has_it_s)),
            holder=me.me.holds_since(at.now_ms),
            line=tuple(one for one in line if one != heir),
        )

    def _write(self, process: Process, of: Any) -> Task:
        """By the holder; again, if somebody has joined meanwhile. None: it has lost the lock."""
        while True:
            held = process.machine
            record = of(held.record)
            version = yield from self._put(process.name, record, held.version)
            if version is not None:
                return record, version
            process.machine = Idle()
            there, version = yield from self._sim.get()
            if (there.owner, there.epoch) != (held.record.owner, held.record.epoch):
                return None
            process.machine = Held(replace(held.record, line=there.line), version, held.deadline_s, 0)

    def _put(self, name: str, record: Ordered, condition: Any) -> Task:
        sent_s = self._sim.now_s
        version = yield from self._sim.put(record, condition)
        self._own[name].write_s = max(self._sim.now_s - sent_s, self._own[name].write_s / 2)
        return version

    def _remove(self, *names: str) -> None:
        """What they have asked by."""


class HoldIntents(HandedLine):
    """The order in the record, asked for by intents."""

    def __init__(self, simulation: Simulation) -> None:
        super().__init__(simulation)
        self._there: dict[str, None] = {}
        self._posts = 0

    def _ask(self, process: Process, look: _Look) -> Task:
        name, record, own = process.name, look.record, self._own[process.name]
        if name in record.line:
            if record.before(name) == 0 and own.listed is None and _lists_next(record, name):
                own.listed = yield from self._list()
            return False
        if own.posted and own.posted not in record.listed:
            return False
        self._posts += 1  # the first, or it was passed over
        own.posted = intent = f"{self._posts:06}.{name}"
        yield from self._sim.request(self._sim.case.put_s, lambda: self._there.update({intent: None}))
        return look.lost

    def _in_vain_s(self, look: _Look, lasts_s: float) -> float:
        """Whoever has posted may be given the lock at the end of any turn."""
        return 0.0 if look.record.given else min(look.waits_s, max(0.0, lasts_s))

    def _kept(self, line: tuple[str, ...]) -> tuple[str, ...]:
        return line if not line or _LIST_HERE in line else (_LIST_HERE, *line)

    def _listed(self, process: Process) -> Task:
        own, record = self._own[process.name], process.machine.record
        line = record.line
        if line:
            due = line[0] == _LIST_HERE and record.epoch >= record.listed_epoch + _LIST_EVERY
        else:
            due = own.waited or bool(own.listed) or self._sim.now_s - own.has_it_s > _LISTS_AFTER_S
        listed, own.listed = own.listed, None
        if not due:
            kept = (*line[1:], _LIST_HERE) if line[:1] == (_LIST_HERE,) else line
            return lambda held: replace(held, line=kept)
        if listed is None:
            listed = yield from self._list()
        new = dict.fromkeys(intent.partition(".")[2] for intent in sorted(listed - record.listed))
        rest = [one for one in line if one != _LIST_HERE]
        order = (*rest, *(one for one in new if one not in rest and one != process.name), _LIST_HERE)
        return lambda held: replace(held, line=order, listed=listed, listed_epoch=held.epoch)

    def _list_alone(self, name: str) -> None:
        own, now_s = self._own[name], self._sim.now_s
        if own.alone_since_s is None or own.waited:
            own.alone_since_s = now_s
        if now_s - own.alone_since_s > _LISTS_ALONE_S:
            own.alone_since_s = now_s
            self._sim.go_on(self._list_beside(own), None)

    def _list_beside(self, own: _Own) -> Task:
        own.listed = yield from self._list()

    def _list(self) -> Task:
        return (yield from self._sim.request(self._sim.case.list_s, lambda: frozenset(self._there)))

    def _remove(self, *names: str) -> None:
        """Beside everything else: by who got the lock, who gives up, or who took it over one that is late."""
        for own in [self._own[name] for name in names if name in self._own]:
            if intent := own.posted:
                own.posted = ""
                gone = self._sim.request(self._sim.case.put_s, lambda intent=intent: self._there.pop(intent, None))
                self._sim.go_on(gone, None)


def _handed_s(record: Ordered, held_s: float) -> float:
    """For how long its next holder need not write anything; one that saw a long turn looks seldom."""
    least_s = max(_HANDED_S, min(_HANDED_LONGEST_S, max(held_s * _SHARE, _HANDED_TURNS * record.turn_s)))
    return min(LONGEST_S, max(least_s, _HANDED_WRITES * record.write_ms / 1000))


def _same(record: Ordered) -> Ordered:
    return record


def _ordered(record: LockRecord | None, way_s: float) -> Ordered:
    """The record; without a guess in it, turns take as long as the way to the store lets them."""
    if record is None:
        return Ordered("", 0, expired=True)
    if not isinstance(record, Ordered):
        return Ordered(record.owner, record.valid_until_ms, record.expired)
    return replace(record, turn_ms=record.turn_ms or max(1, round(4000 * way_s))) if record.line else record


def _lists_next(record: Ordered, name: str) -> bool:
    """Whether it will be this one's turn to list."""
    after = record.line.index(name) + 1
    due = record.epoch + 1 >= record.listed_epoch + _LIST_EVERY
    return due and record.line[after : after + 1] == (_LIST_HERE,)


def _turn_ms(mean_ms: int, held_s: float, way_s: float) -> int:
    """A running mean, without outliers, of what its holder has measured by one clock, and the way to the next one."""
    last_ms, way_ms = 1000 * (held_s + way_s), 1000 * way_s
    if not mean_ms:
        return round(min(last_ms, max(1000 * _UNKNOWN_TURN_S, 4 * way_ms)))
    if mean_ms > 2 * max(last_ms, 1000 * _SHORT_TURN_S):
        return round((mean_ms + last_ms) / 2)
    return round(mean_ms + (min(last_ms, 2 * max(mean_ms, way_ms)) - mean_ms) / 16)
