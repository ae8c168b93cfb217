"""Decision table of a conditional write: what a refusal or a missing answer means, given what was read back.

One logical write may be sent several times, with the same condition and identity. A read (a HEAD, here "look") may come
between two sends. `doubt` is true from the first send whose answer was lost: a copy of the write may have been applied,
or may still arrive.

    after               answer                     next
    ------------------  -------------------------  -----------------------------------------------
    send                applied, with a version    won
    send                applied, without one       look
    send                condition false            look  (a proxy may have sent this write twice)
    send                certainly not applied      look, after a pause: a rival may have written since
    send                none                       doubt; look
    send                gone (an upload)           doubt, spent; look: an earlier copy may have finished it
    look                this write's identity      won
    look, refused       still as expected          adapt the condition's dialect, send; after several of
                                                   these the store is at fault. In doubt unknown: the
                                                   refusal may be true of a second copy
    look, refused       anything else              lost
    look, not refused   still as expected          send again: a first copy may still arrive; the second
                                                   send is guarded, so at most one is applied
    look, doubt         another's, create-once     lost: this write was never applied
    look, doubt         anything else              unknown: this write may have been applied and replaced
    look, spent         still as expected          unknown: nothing is left to send
    look                none                       look again; at the deadline unknown, never lost

A delete leaves no identity behind, so it begins with a look and has three more rows:

    look, nothing sent  anything else              lost: no object at this version was left to remove
    look, refused       anything else              unknown: a proxy may have repeated an applied delete,
                                                   and the refusal may be that of the second copy
    send                applied, not certain       unknown: this store also reports success without an object,
                                                   and another delete may have come after the look
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from fsspec_cas.answer import (
    Applied,
    Denied,
    FinishAnswer,
    Gone,
    Missing,
    NoAnswer,
    NotNow,
    ReadAnswer,
    Seen,
    Unchanged,
)
from fsspec_cas.outcome import ABSENT, Absent, Condition, Lost, Version, Won, Write

_CONTRADICTIONS = 4  # more than the number of dialects, and than races in a row are likely to cause


@dataclass(frozen=True, slots=True)
class WriteProgress:
    """Progress of one logical write.

    Attributes:
        doubt: an answer was lost, so a copy may have been applied or may still arrive.
        refused: the newest send was answered "condition false".
        failures: sends and looks in a row without a result; they set the pace.
        spent: the write cannot be re-sent; only looks are left.
        resent: two copies may have been applied, or may still be: each was applied, or its answer was lost.
        contradictions: refusals of a condition that the look showed to be true.
        dialect: form of the condition in the newest refusal.
        why: the newest failure, for people.
    """

    write: Write
    doubt: bool = False
    refused: bool = False
    spent: bool = False
    resent: bool = False
    failures: int = 0
    contradictions: int = 0
    dialect: str = ""
    why: str = ""

    @property
    def unsure(self) -> bool:
        """Whether the write may have been applied, as far as its answers show."""
        return self.doubt or (self.refused and self.write.removes)


@dataclass(frozen=True, slots=True)
class Send:
    """Next step: send the write with the same condition and identity, after a pause drawn for `after_failures`."""

    after_failures: int = 0
    retry_after_s: float | None = None


@dataclass(frozen=True, slots=True)
class ReadHead:
    """Next step: read the head of the object, after a pause drawn for `after_failures`."""

    after_failures: int = 0
    retry_after_s: float | None = None


@dataclass(frozen=True, slots=True)
class Adapt:
    """Next step: try the store's other dialect of conditions, and send again.

    The store refused a condition that the look showed to be true. A racing write that came and went looks the same, so
    it takes several refusals to blame the store. `refused` is the refused dialect: another write may have changed it
    since.
    """

    after_failures: int
    refused: str = ""


@dataclass(frozen=True, slots=True)
class Contradicts:
    """Final step: the store keeps refusing a true condition, so it does not implement conditional writes as documented.

    Not used in doubt, since the look may then be wrong.
    """

    why: str


@dataclass(frozen=True, slots=True)
class Inconclusive:
    """Final step: no further look can settle the outcome, as the write may have been applied and then replaced."""

    why: str


Next = Send | ReadHead | Adapt | Contradicts | Won | Lost | Inconclusive


def first_step(write: Write) -> Next:
    """Return the first step of a write: a look for a delete, a send otherwise."""
    return ReadHead() if write.removes else Send()


def on_write_answer(progress: WriteProgress, answer: FinishAnswer) -> tuple[WriteProgress, Next]:
    """Return the progress and the next step after the answer to a send."""
    if progress.doubt and isinstance(answer, (Applied, NoAnswer)):
        progress = replace(progress, resent=True)
    match answer:
        case Applied(version) if version is not None:
            return progress, _done(progress, version)
        case Applied():
            # The write was applied and only its version is in doubt, so "lost" would be wrong whatever the look shows.
            return replace(progress, doubt=True, refused=False, why="the answer carried no version"), ReadHead()
        case Denied(dialect):
            return replace(progress, refused=True, dialect=dialect), ReadHead()
        case NotNow(why, retry_after_s):
            failures = progress.failures + 1
            after = replace(progress, doubt=progress.unsure, refused=False, failures=failures, why=why)
            return after, ReadHead(failures, retry_after_s)
        case NoAnswer(why, retry_after_s):
            failures = progress.failures + 1
            after = replace(progress, doubt=True, refused=False, failures=failures, why=why)
            return after, ReadHead(0, retry_after_s)
        case Gone(why):
            return replace(progress, doubt=True, refused=False, spent=True, why=why), ReadHead()


def _done(progress: WriteProgress, version: Version) -> Next:
    if progress.write.certain:
        return Won(version, resent=progress.resent)
    same = "the store reports success, but it also does so for a missing object"
    return Inconclusive(f"{same}: this call or another one removed it")


def on_look_answer(progress: WriteProgress, answer: ReadAnswer) -> tuple[WriteProgress, Next]:
    """Return the progress and the next step after a look at the object."""
    match answer:
        case NotNow(why, retry_after_s) | NoAnswer(why, retry_after_s):
            failures = progress.failures + 1
            return replace(progress, failures=failures, why=why), ReadHead(failures, retry_after_s)
        case Seen(version=version, write_id=write_id) if write_id == progress.write.write_id:
            return progress, Won(version, resent=progress.resent)
        case Seen(version=version, write_id=write_id):
            return _settle(progress, version, write_id)
        case Missing() | Unchanged():
            return _settle(progress, ABSENT, None)


def _settle(progress: WriteProgress, current: Condition, write_id: str | None) -> tuple[WriteProgress, Next]:
    if current == progress.write.condition:
        return _as_expected(progress)
    if progress.unsure:
        return progress, _replaced_or_not(progress, current, write_id)
    # The write was refused, or it is a delete that was not sent yet.
    return progress, Lost(progress.write.path, progress.write.condition, current)


def _as_expected(progress: WriteProgress) -> tuple[WriteProgress, Next]:
    """Return the next step if the object is still as expected; the condition makes another send safe."""
    if progress.spent:
        return progress, Inconclusive(
            f"{progress.why}; now the object is as before, and this write cannot be sent again"
        )
    if not progress.refused:
        return progress, Send(max(1, progress.failures) if progress.doubt else 0)
    contradictions = progress.contradictions + 1
    if contradictions > _CONTRADICTIONS:
        refusals = f"the store refused a true condition {contradictions} times"
        return progress, Inconclusive(f"{progress.why}; then {refusals}") if progress.doubt else Contradicts(refusals)
    return replace(progress, contradictions=contradictions), Adapt(contradictions - 1, progress.dialect)


def _replaced_or_not(progress: WriteProgress, current: Condition, write_id: str | None) -> Next:
    """Return the outcome in doubt, if the object is not as expected."""
    write = progress.write
    if write.create_once and isinstance(write.condition, Absent) and write_id is not None:
        return Lost(write.path, write.condition, current)
    if write.removes:
        now = "no object exists" if isinstance(current, Absent) else f"the object has another version ({current})"
        before = "it was refused" if progress.refused else progress.why
        return Inconclusive(f"{before}, and now {now}: this call or another one removed or replaced it")
    return Inconclusive(
        f"{progress.why}; the object now has another version ({current}); this write may have been applied before"
    )
