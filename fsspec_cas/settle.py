"""Decision table of a conditional write: what follows each answer. No I/O.

All sends carry the same condition and identity. `doubt`: a copy may have been applied, or still arrive.

    after               answer                     next
    ------------------  -------------------------  --------------------------------------------------
    send                applied, with a version    won
    send                applied, without one       doubt; HEAD
    send                condition false            HEAD: a proxy may have sent this write twice
    send                certainly not applied      HEAD, after a pause: a rival may have written
    send                none                       doubt; HEAD
    send                gone (an upload)           doubt, spent; HEAD: an earlier copy may have completed it
    HEAD                this write's identity      won
    HEAD, refused       still as expected          adapt the dialect, send; after several the store is at
                                                   fault, or in doubt unknown
    HEAD, not refused   still as expected          send again: the condition lets one copy apply
    HEAD, no doubt      anything else              lost
    HEAD, doubt         another's, create-once     lost
    HEAD, doubt         anything else              unknown: perhaps applied and replaced
    HEAD, spent         still as expected          unknown: nothing is left to send
    HEAD                none                       HEAD again; at the deadline unknown, if in doubt or refused,
                                                   else Unavailable; never lost

A delete leaves no identity, so it begins with a HEAD:

    HEAD, nothing sent  anything else              lost
    HEAD, refused       anything else              unknown: the refusal may be of a proxy's second copy
    send                applied, but no proof      unknown: success is also reported without an object
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from fsspec_cas.answer import (
    Applied,
    ConditionFailed,
    FinishAnswer,
    Missing,
    NoAnswer,
    NotApplied,
    ObjectState,
    ReadAnswer,
    Unchanged,
    UploadGone,
)
from fsspec_cas.outcome import ABSENT, Absent, Condition, Lost, Won, Write

_CONTRADICTIONS = 4


@dataclass(frozen=True, slots=True)
class WriteProgress:
    """Progress of one logical write; the table explains `doubt` and `spent`.

    Attributes:
        refused: the newest send was answered "condition false".
        failures: sends and HEADs without a result so far.
        resent: two copies may be applied.
        contradictions: refusals of a condition that a HEAD showed to be true.
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
        return self.doubt or (self.refused and self.write.removes)


@dataclass(frozen=True, slots=True)
class Send:
    """Send the write, after a pause drawn for `after_failures`."""

    after_failures: int = 0
    retry_after_s: float | None = None


@dataclass(frozen=True, slots=True)
class ReadHead:
    after_failures: int = 0
    retry_after_s: float | None = None


@dataclass(frozen=True, slots=True)
class Adapt:
    """Switch from the dialect `refused` to the other, and send again."""

    after_failures: int
    refused: str = ""


@dataclass(frozen=True, slots=True)
class Contradicts:
    """The store keeps refusing a true condition."""

    why: str


@dataclass(frozen=True, slots=True)
class Inconclusive:
    """No further read can settle whether the write was applied."""

    why: str


Next = Send | ReadHead | Adapt | Contradicts | Won | Lost | Inconclusive


def first_step(write: Write) -> Next:
    return ReadHead() if write.removes else Send()


def on_write_answer(progress: WriteProgress, answer: FinishAnswer) -> tuple[WriteProgress, Next]:
    """Return the progress after an answer to a send, and the next step.

    Success with a version is `Won`, or `Inconclusive` for an unprovable delete. Any other answer needs a head; none, a
    gone upload, or success without a version, sets `doubt`.
    """
    if progress.doubt and isinstance(answer, (Applied, NoAnswer)):
        progress = replace(progress, resent=True)
    match answer:
        case Applied(version) if version is not None and progress.write.success_is_proof:
            return progress, Won(version, resent=progress.resent)
        case Applied(version) if version is not None:
            same = "the store reports success, but it also does so for a missing object"
            return progress, Inconclusive(f"{same}: this call or another one removed it")
        case Applied():
            # The write was applied: "lost" would be wrong whatever the HEAD shows.
            return replace(progress, doubt=True, refused=False, why="the answer carried no version"), ReadHead()
        case ConditionFailed(dialect):
            return replace(progress, refused=True, dialect=dialect), ReadHead()
        case NotApplied(why, retry_after_s) | NoAnswer(why, retry_after_s):
            is_certain, failures = isinstance(answer, NotApplied), progress.failures + 1
            doubt = progress.unsure if is_certain else True
            after = replace(progress, doubt=doubt, refused=False, failures=failures, why=why)
            return after, ReadHead(failures if is_certain else 0, retry_after_s)
        case UploadGone(why):
            return replace(progress, doubt=True, refused=False, spent=True, why=why), ReadHead()


def on_head_answer(progress: WriteProgress, answer: ReadAnswer) -> tuple[WriteProgress, Next]:
    """Return the progress after a head, and the next step: `Won` for this write's id, another head without an answer.

    While the condition holds, send again; else `Lost`, or in doubt mostly `Inconclusive`.
    """
    match answer:
        case NotApplied(why, retry_after_s) | NoAnswer(why, retry_after_s):
            failures = progress.failures + 1
            return replace(progress, failures=failures, why=why), ReadHead(failures, retry_after_s)
        case ObjectState(version=version, write_id=write_id) if write_id == progress.write.write_id:
            return progress, Won(version, resent=progress.resent)
        case ObjectState(version=version, write_id=write_id):
            return _settle(progress, version, write_id)
        case Missing() | Unchanged():
            return _settle(progress, ABSENT, None)


def _settle(progress: WriteProgress, current: Condition, write_id: str | None) -> tuple[WriteProgress, Next]:
    if current == progress.write.condition:
        return _as_expected(progress)
    if progress.unsure:
        return progress, _replaced_or_not(progress, current, write_id)
    return progress, Lost(progress.write.path, progress.write.condition, current)


def _as_expected(progress: WriteProgress) -> tuple[WriteProgress, Next]:
    """Choose the next step when a head shows the condition still true: send again, in another dialect after a refusal.

    A spent write is `Inconclusive`; a fifth refusal is `Contradicts`, in doubt `Inconclusive`.
    """
    if progress.spent:
        return progress, Inconclusive(
            f"{progress.why}; now the object is as before, and this write cannot be sent again"
        )
    if not progress.refused:
        return progress, Send(max(1, progress.failures) if progress.doubt else 0)
    contradictions = progress.contradictions + 1
    if contradictions > _CONTRADICTIONS:
        refusals = f"the store refused a true condition {contradictions} times"
        if progress.doubt:
            return progress, Inconclusive(f"{progress.why}; then {refusals}")
        return progress, Contradicts(refusals)
    return replace(progress, contradictions=contradictions), Adapt(contradictions - 1, progress.dialect)


def _replaced_or_not(progress: WriteProgress, current: Condition, write_id: str | None) -> Next:
    """Settle a write in doubt: Lost if a create-once object has another write's id, else Inconclusive."""
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
