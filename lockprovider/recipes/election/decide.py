"""Record and decisions of an election: which candidate may lead, and for how long it may believe so. Pure.

1. A candidate takes a second off the record's age by the store's clock: both times are whole seconds.
2. A leader's belief counts from the SEND of its last successful write. From the answer, two could believe.
3. A leader resigns by a write, not a delete: each epoch is given once.
4. A candidate recognizes its write, which may come late, by its id.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field, replace
from typing import Any

from fsspec_cas import Version
from lockprovider.bounded import LATEST_MS, as_flag, parse_object, text_in, undecodable_as, whole_in
from lockprovider.recipes.errors import MalformedObject
from lockprovider.recipes.values import check_format, copied

# JSON of the fields and "format": 1. `owner` and `write` are ids, `heir` is to lead next.
_FORMAT = 1
_LARGEST = 4 << 20  # bytes
LARGEST_VALUE = 3 << 20  # bytes
_HEIRS_SHARE = 3  # of the validity, to stand


@dataclass(frozen=True, slots=True)
class ElectionRecord:
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
    def protected_s(self) -> float:
        """Seconds after its write in which only a resigned leader's heir may stand."""
        if not self.resigned:
            return self.validity_ms / 1000
        return self.validity_ms / 1000 / _HEIRS_SHARE if self.heir else 0.0

    def is_of(self, owner: str, epoch: int) -> bool:
        return (self.owner, self.epoch, self.resigned) == (owner, epoch, False)

    def resign(self, write: str, heir: str) -> ElectionRecord:
        return replace(self, resigned=True, heir=heir, write=write)

    def encode(self) -> bytes:
        fields = {"format": _FORMAT, "epoch": self.epoch, "owner": self.owner, "name": self.name}
        fields |= {"validity_ms": self.validity_ms, "resigned": self.resigned, "heir": self.heir}
        fields |= {"since_ms": self.since_ms, "value": self.value, "write": self.write}
        return json.dumps({**dict(self.more), **fields}, ensure_ascii=False, allow_nan=False).encode()


_KNOWN = {"format", "epoch", "owner", "name", "validity_ms", "write", "resigned", "heir", "since_ms", "value"}


def decode_election(data: bytes, path: str) -> ElectionRecord:
    """Decode an election's object; other bytes and newer formats raise MalformedObject.

    `more` keeps unknown fields.
    """
    message = f"the object {path!r} is not an election and was not overwritten"
    step = "give the election another path, or remove the object if nothing needs it"
    with undecodable_as(MalformedObject, message, step):
        fields = parse_object(data, most=_LARGEST)
        check_format(fields, path, _FORMAT)
        return ElectionRecord(
            epoch=whole_in(fields, "epoch"),
            owner=text_in(fields, "owner"),
            name=text_in(fields, "name"),
            validity_ms=whole_in(fields, "validity_ms", most=LATEST_MS),
            write=text_in(fields, "write"),
            resigned=as_flag(fields["resigned"], "resigned"),
            heir=text_in(fields, "heir"),
            since_ms=whole_in(fields, "since_ms", most=LATEST_MS),
            value=fields["value"],
            more=tuple((name, value) for name, value in fields.items() if name not in _KNOWN),
        )


STAMPS_S = 1.0
_POLL_EVEN = 0.5


@dataclass(frozen=True, slots=True)
class CandidateId:
    owner: str
    name: str
    validity_ms: int
    margin_s: float


@dataclass(frozen=True, slots=True)
class Observed:
    """The record as last read; other candidates wait until `until_s`."""

    record: ElectionRecord
    version: Version
    until_s: float
    is_removed: bool = False


@dataclass(frozen=True, slots=True)
class Leading:
    """This candidate's term, believed in until `deadline_s` (monotonic)."""

    record: ElectionRecord
    version: Version
    deadline_s: float


def observe(
    before: Observed | None, record: ElectionRecord, version: Version, now_s: float, age_s: float = 0.0
) -> Observed:
    if before is not None and before.version == version:
        return replace(before, is_removed=False)
    return Observed(record, version, now_s + record.protected_s - max(0.0, age_s - STAMPS_S))


def observe_missing(before: Observed | None) -> Observed | None:
    return None if before is None else replace(before, is_removed=True)


def may_stand(me: CandidateId, observed: Observed | None, now_s: float) -> bool:
    if observed is None or now_s >= observed.until_s:
        return True
    record = observed.record
    if record.resigned:
        return record.heir in ("", me.name)
    return record.owner == me.owner  # its older write landed late


def candidate_record(
    me: CandidateId, observed: Observed | None, highest: int, *, write: str, now_ms: int, value: object = None
) -> ElectionRecord:
    record = None if observed is None or observed.is_removed else observed.record
    epoch = max(highest + 1, now_ms) if record is None else max(highest, record.epoch) + 1
    more = () if record is None else record.more
    return ElectionRecord(epoch, me.owner, me.name, me.validity_ms, write, since_ms=now_ms, value=value, more=more)


def pause_s(observed: Observed | None, now_s: float, poll_s: float, draw: float) -> float:
    pause = poll_s * (_POLL_EVEN + (1 - _POLL_EVEN) * draw)
    if observed is None:
        return pause
    return min(pause, max(0.0, observed.until_s - now_s) + draw * poll_s)


def term_after(me: CandidateId, record: ElectionRecord, version: Version, sent_s: float) -> Leading:
    return Leading(record, version, sent_s + record.validity_ms / 1000 - me.margin_s)


def elected(me: CandidateId, sent: ElectionRecord, sent_s: float, observed: Observed | None) -> Leading | None:
    if observed is None or observed.is_removed or observed.record.write != sent.write:
        return None
    return term_after(me, sent, observed.version, sent_s)


def renewed(
    me: CandidateId, leading: Leading, sent: ElectionRecord, sent_s: float, observed: Observed | None
) -> Leading | None:
    if not goes_on(me, leading, observed):
        return None
    assert observed is not None  # noqa: S101 - a term that goes on has a record
    if observed.record.write == sent.write:
        return term_after(me, sent, observed.version, sent_s)
    return Leading(observed.record, observed.version, leading.deadline_s)


def goes_on(me: CandidateId, leading: Leading, observed: Observed | None) -> bool:
    return observed is not None and not observed.is_removed and observed.record.is_of(me.owner, leading.record.epoch)


@dataclass(frozen=True, slots=True)
class Leader:
    """Leader, its proclaimed `value`, its term's begin (`since_ms`, its own wall clock).

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
    """A leader was elected, leads at the first read, or has proclaimed another value.

    >>> election = lockprovider.election.open("memory://docs/scheduler.json", name="a")
    >>> with election.lead():
    ...     change = next(election.watch())
    >>> type(change).__name__, change.leader.name
    ('Elected', 'a')
    """

    leader: Leader


@dataclass(frozen=True, slots=True)
class Resigned:
    """The leader has resigned, and no candidate leads.

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
    """The leader did not renew its term in time, or its object is gone.

    >>> election = lockprovider.election.open("memory://docs/scheduler.json", name="a", poll=0.01)
    >>> term, changes = election.lead(), election.watch()
    >>> first = next(changes)
    >>> Store.from_url("memory://docs").delete("scheduler.json")
    >>> type(next(changes)).__name__
    'Lapsed'
    """

    leader: Leader


LeaderChange = Elected | Resigned | Lapsed


def leads(observed: Observed | None, now_s: float) -> Leader | None:
    if observed is None or observed.is_removed or observed.record.resigned or now_s >= observed.until_s:
        return None
    record = observed.record
    return Leader(record.name, copied(record.value), record.epoch, record.since_ms)


def change_since(before: Leader | None, leader: Leader | None, observed: Observed | None) -> LeaderChange | None:
    """Return what happened since a read when `before` led, now that `observed` has `leader`; None: nothing.

    Elected: another leader, epoch or value. Resigned: the leader did. Lapsed: its time has passed, or the object is
    gone.
    """
    if leader is not None:
        return None if before is not None and _is_same(leader, before) else Elected(leader)
    if before is None:
        return None
    resigned = observed is not None and observed.record.resigned and not observed.is_removed
    return Resigned(before) if resigned else Lapsed(before)


def _is_same(leader: Leader, before: Leader) -> bool:
    """Compare values as JSON: in Python 1 equals True and 1.0."""
    return leader == before and json.dumps(leader.value) == json.dumps(before.value)
