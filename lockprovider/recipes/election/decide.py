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

from dataclasses import dataclass, replace

from fsspec_cas import Version
from lockprovider.recipes.election.record import ElectionRecord

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
