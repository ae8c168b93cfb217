"""Who may lead, and for how long it may believe so: every decision of an election. Pure.

1. Who looks on leaves a term alone until its record was not seen to change for the validity that it names, by the
   onlooker's own monotonic clock. Nobody's wall clock is asked.
2. Who sees a record for the first time may take its age from the store, which says when it was written and when it was
   asked by one clock of its own; less a second, as both stamps are cut to whole ones.
3. To stand is to replace the very version that was looked at, by the next epoch. If its leader renewed meanwhile, that
   is refused.
4. A leader believes in its term until the validity after it SENT its last write that was done, less a margin. Counted
   from the answer, two would believe.
5. To resign is to write, not to delete: an epoch is given once.
6. Mine is told by its identity, never by an answer: a write whose answer is lost may be there, or come later.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field, replace
from typing import Any

from fsspec_cas import Version
from lockprovider.bounded import LATEST_MS, as_flag, parse_object, text_in, undecodable_as, whole_in
from lockprovider.recipes.errors import MalformedObject
from lockprovider.recipes.values import check_format, json_copy

# What an election's object holds. Pure.
#
# {"format": 1, "epoch": n, "owner": uuid, "name": text, "validity_ms": n, "resigned": bool, "heir": text,
# "since_ms": n, "value": JSON, "write": uuid}
#
# `epoch` rises with each term, also over resignations: the object is never deleted. `owner` is the candidate, `name`
# what people call it. `validity_ms` is the leader's: so long the others leave it alone after each write. `heir`: who
# shall lead next. `since_ms` is the leader's wall clock when its term began, for people. `write` is of this write
# alone: it tells mine from another's where an answer was lost, and makes the bytes of each write differ. Fields that
# are not known are kept. A format that is not known is refused, and never written over.


_FORMAT = 1
_LARGEST = 4 << 20  # bytes
_HEIRS_SHARE = 3  # of the validity: for so long the place is kept for an heir


@dataclass(frozen=True, slots=True)
class ElectionRecord:
    """Who leads, or led last."""

    epoch: int
    owner: str
    name: str
    validity_ms: int
    write: str
    resigned: bool = False
    heir: str = ""
    since_ms: int = 0
    value: Any = field(default=None, hash=False)
    more: tuple[tuple[str, Any], ...] = field(default=(), hash=False)

    @property
    def stands_s(self) -> float:
        """For how long after it was written nobody else may lead, but the heir of one who resigned; seconds."""
        if not self.resigned:
            return self.validity_ms / 1000
        return self.validity_ms / 1000 / _HEIRS_SHARE if self.heir else 0.0

    def is_of(self, owner: str, epoch: int) -> bool:
        """Whether this term, by this candidate, still goes on."""
        return (self.owner, self.epoch, self.resigned) == (owner, epoch, False)

    def resign(self, write: str, heir: str) -> ElectionRecord:
        """The term is over, the epoch stays."""
        return replace(self, resigned=True, heir=heir, write=write)

    def encode(self) -> bytes:
        """As JSON."""
        fields = {"format": _FORMAT, "epoch": self.epoch, "owner": self.owner, "name": self.name}
        fields |= {"validity_ms": self.validity_ms, "resigned": self.resigned, "heir": self.heir}
        fields |= {"since_ms": self.since_ms, "value": self.value, "write": self.write}
        return json.dumps({**dict(self.more), **fields}, ensure_ascii=False, allow_nan=False).encode()


_KNOWN = {"format", "epoch", "owner", "name", "validity_ms", "write", "resigned", "heir", "since_ms", "value"}


def decode_election(data: bytes, path: str) -> ElectionRecord:
    """Read it.

    Raises:
        MalformedObject: it is none, or of a newer format.
    """
    said = f"the object {path!r} is no election, and was not written over"
    step = "give the election another path, or, if nothing needs it, remove the object"
    with undecodable_as(MalformedObject, said, step):
        found = parse_object(data, most=_LARGEST)
        check_format(found, path, _FORMAT)
        return ElectionRecord(
            epoch=whole_in(found, "epoch"),
            owner=text_in(found, "owner"),
            name=text_in(found, "name"),
            validity_ms=whole_in(found, "validity_ms", most=LATEST_MS),
            write=text_in(found, "write"),
            resigned=as_flag(found["resigned"], "resigned"),
            heir=text_in(found, "heir"),
            since_ms=whole_in(found, "since_ms", most=LATEST_MS),
            value=found["value"],
            more=tuple((name, value) for name, value in found.items() if name not in _KNOWN),
        )


STAMPS_S = 1.0  # over HTTP the store's stamps are cut to whole seconds
_POLL_EVEN = 0.5  # of the pause between two looks is the same for all


@dataclass(frozen=True, slots=True)
class CandidateId:
    """What never changes about one candidate. `margin_s`: how much earlier than others it takes its term for over."""

    owner: str
    name: str
    validity_ms: int
    margin_s: float


@dataclass(frozen=True, slots=True)
class Observed:
    """The record as it was last seen. `until_s`: so long, by the own monotonic clock, it keeps others away."""

    record: ElectionRecord
    version: Version
    until_s: float
    gone: bool = False  # somebody has removed it since


@dataclass(frozen=True, slots=True)
class Leading:
    """A term of one's own, believed in until `deadline_s` (monotonic)."""

    record: ElectionRecord
    version: Version
    deadline_s: float


def observe(
    before: Observed | None, record: ElectionRecord, version: Version, now_s: float, age_s: float = 0.0
) -> Observed:
    """What is known after a look that was answered by `now_s`; `age_s` is what the store says of the record's age."""
    if before is not None and before.version == version:
        return replace(before, gone=False)
    return Observed(record, version, now_s + record.stands_s - max(0.0, age_s - STAMPS_S))


def vanished(before: Observed | None) -> Observed | None:
    """The object is not there, or not any more: then the leader that was seen may believe still."""
    return None if before is None else replace(before, gone=True)


def may_stand(me: CandidateId, observed: Observed | None, now_s: float) -> bool:
    """Whether to try to be elected, on what was observed."""
    if observed is None or now_s >= observed.until_s:
        return True
    there = observed.record
    if there.resigned:
        return there.heir in ("", me.name)
    return there.owner == me.owner  # an older write of mine landed late: I do not lead by it, and nobody else does


def candidacy(
    me: CandidateId, observed: Observed | None, highest: int, *, write: str, now_ms: int, value: object = None
) -> ElectionRecord:
    """The record by which to be elected; `highest` is the highest epoch that was seen here.

    `now_ms` makes the first epoch of an object that was removed and made anew higher than those before, if clocks are
    right to within its whole life.
    """
    there = None if observed is None or observed.gone else observed.record
    epoch = max(highest + 1, now_ms) if there is None else max(highest, there.epoch) + 1
    more = () if there is None else there.more
    return ElectionRecord(epoch, me.owner, me.name, me.validity_ms, write, since_ms=now_ms, value=value, more=more)


def pause_s(observed: Observed | None, now_s: float, poll_s: float, draw: float) -> float:
    """Until the next look; `draw` in [0, 1) keeps those apart who wait for the same moment."""
    pause = poll_s * (_POLL_EVEN + (1 - _POLL_EVEN) * draw)
    if observed is None:
        return pause
    return min(pause, max(0.0, observed.until_s - now_s) + draw * poll_s)


def leads_by(me: CandidateId, record: ElectionRecord, version: Version, sent_s: float) -> Leading:
    """The record was sent at `sent_s`, and is there."""
    return Leading(record, version, sent_s + record.validity_ms / 1000 - me.margin_s)


def elected(me: CandidateId, sent: ElectionRecord, sent_s: float, there: Observed | None) -> Leading | None:
    """What a candidacy came to whose answer says nothing: a look shows what is there."""
    if there is None or there.gone or there.record.write != sent.write:
        return None
    return leads_by(me, sent, there.version, sent_s)


def renewed(
    me: CandidateId, leading: Leading, sent: ElectionRecord, sent_s: float, there: Observed | None
) -> Leading | None:
    """The same of a renewal; None: the term is over.

    An earlier write of the same term may be what is there: that prolongs nothing, but the next one must replace it.
    """
    if not goes_on(me, leading, there):
        return None
    assert there is not None  # noqa: S101 - it goes on
    if there.record.write == sent.write:
        return leads_by(me, sent, there.version, sent_s)
    return Leading(there.record, there.version, leading.deadline_s)


def goes_on(me: CandidateId, leading: Leading, there: Observed | None) -> bool:
    """Whether what is there is of this very term."""
    return there is not None and not there.gone and there.record.is_of(me.owner, leading.record.epoch)


# What those are told who ask for the leader.


@dataclass(frozen=True, slots=True)
class Leader:
    """Who leads: the candidate's name, what it tells of itself, its term. `since_ms` is by its own wall clock.

    >>> election = lockprovider.election.open("memory://docs/scheduler.json", name="a", value={"port": 80})
    >>> with election.lead() as term:
    ...     leader = election.leader()
    >>> leader.name, leader.value, leader.epoch == term.epoch
    ('a', {'port': 80}, True)
    """

    name: str
    value: Any = field(hash=False)
    epoch: int
    since_ms: int


@dataclass(frozen=True, slots=True)
class Elected:
    """This one leads, from now on or already; or tells something else of itself.

    >>> election = lockprovider.election.open("memory://docs/scheduler.json", name="a")
    >>> with election.lead():
    ...     change = next(election.watch())
    >>> type(change).__name__, change.leader.name
    ('Elected', 'a')
    """

    leader: Leader


@dataclass(frozen=True, slots=True)
class Resigned:
    """This one has led, and nobody does.

    >>> election = lockprovider.election.open("memory://docs/scheduler.json", name="a", poll=0.01)
    >>> term, changes = election.lead(), election.watch()
    >>> first = next(changes)
    >>> term.resign()
    >>> type(next(changes)).__name__
    'Resigned'
    """

    leader: Leader


@dataclass(frozen=True, slots=True)
class Lapsed:
    """This one has led, and has not renewed its term in time; or its object is gone.

    >>> election = lockprovider.election.open("memory://docs/scheduler.json", name="a", poll=0.01)
    >>> term, changes = election.lead(), election.watch()
    >>> first = next(changes)
    >>> Store.from_url("memory://docs").delete("scheduler.json")
    >>> type(next(changes)).__name__
    'Lapsed'
    """

    leader: Leader


LeaderChange = Elected | Resigned | Lapsed


def leader_of(observed: Observed | None) -> Leader | None:
    """As the record names it, whether it still leads or not."""
    if observed is None:
        return None
    there = observed.record
    return Leader(there.name, json_copy(there.value, "value"), there.epoch, there.since_ms)


def leads(observed: Observed | None, now_s: float) -> Leader | None:
    """Who leads as far as an onlooker can know."""
    if observed is None or observed.gone or observed.record.resigned or now_s >= observed.until_s:
        return None
    return leader_of(observed)


def change_since(before: Leader | None, observed: Observed | None, now_s: float) -> LeaderChange | None:
    """What happened to the leader that was seen; what came and went between two looks is not seen."""
    now = leads(observed, now_s)
    if now is not None:
        return None if now == before else Elected(now)
    if before is None:
        return None
    resigned = observed is not None and observed.record.resigned and not observed.gone
    return Resigned(before) if resigned else Lapsed(before)
