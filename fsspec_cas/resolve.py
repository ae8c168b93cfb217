"""What a refusal or a silence meant, given what was read back.

One logical write may be sent several times, always with the same condition and the same identity. Between
sends one look (a HEAD) may be taken. `doubt` is true from the first send whose answer was lost on: from then
on some copy of the write may have been applied, or may still be on its way.

    after               what it says               next
    ------------------  -------------------------  -----------------------------------------------
    send                applied, with a version    won
    send                applied, without one       look
    send                condition false            look  (a middlebox may have sent mine twice)
    send                certainly not applied      look, after a pause: another's may have been applied meanwhile
    send                nothing                    doubt; look
    send                gone (an upload)           doubt, spent; look: an earlier copy may have finished it
    look                my id                      won
    look, refused       still as I expected it     the store's dialect may be at fault: adapt, send; after
                                                   some of these the store is at fault; in doubt unknown,
                                                   as what it says of my condition may be true of a copy
    look, refused       anything else              lost
    look, not refused   still as I expected it     send again: a negative look is not final, a first
                                                   copy may land later; the second send is guarded,
                                                   so at most one of them is applied
    look, doubt         another's, create-once     lost: mine never was
    look, doubt         anything else              unknown: mine may have been applied and replaced
    look, spent         still as I expected it     unknown: nothing is left to send
    look                nothing                    look again; at the deadline unknown, never lost

A delete leaves no identity behind, so it begins with a look, and two rows are its own:

    look, nothing sent  anything else              lost: there was nothing to remove at this version
    look, refused       anything else              unknown: the refusal may be that of a second copy, made by something
                                                   on the way, of a delete that was done
    send                applied, not certain       unknown: this store says the same where no object is, so another
                                                   delete may have come between the look and this one
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

_CONTRADICTIONS = 4  # more than the dialects there are, and than races are likely to make in a row


@dataclass(frozen=True, slots=True)
class WriteProgress:
    """How far one logical write has come.

    Attributes:
        doubt: an answer was lost, so a copy may have been applied or may still arrive.
        refused: the newest send was answered "condition false".
        failures: sends and looks in a row that brought nothing; they set the pace.
        spent: the write cannot be sent again; only looks are left.
        resent: two copies may have been applied, or may still be: each was applied, or its answer was lost.
        contradictions: refusals of a condition that the look showed to be true.
        dialect: in which the newest refusal was.
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
        """Whether it may have been done, for all that the answers to it say."""
        return self.doubt or (self.refused and self.write.removes)


@dataclass(frozen=True, slots=True)
class Send:
    """Send the write (again), same condition, same identity, after a pause drawn for `after_failures`."""

    after_failures: int = 0
    retry_after_s: float | None = None


@dataclass(frozen=True, slots=True)
class ReadHead:
    """Read the head of the object, after a pause drawn for `after_failures`."""

    after_failures: int = 0
    retry_after_s: float | None = None


@dataclass(frozen=True, slots=True)
class Adapt:
    """The store refused a condition that the look showed to be true: try its other dialect, send again.

    A racing writer that came and went looks the same, so it takes several before the store is blamed. `refused` is the
    dialect that did not do: another write may have changed it since.
    """

    after_failures: int
    refused: str = ""


@dataclass(frozen=True, slots=True)
class Contradicts:
    """The store keeps refusing a condition that is true: it does not do conditional writes as documented.

    Never said in doubt: then the look may be the one that is wrong.
    """

    why: str


@dataclass(frozen=True, slots=True)
class Inconclusive:
    """No further look can tell: mine may have been applied and then replaced."""

    why: str


Next = Send | ReadHead | Adapt | Contradicts | Won | Lost | Inconclusive


def first_step(write: Write) -> Next:
    """What a call begins with."""
    return ReadHead() if write.removes else Send()


def on_write_answer(progress: WriteProgress, answer: FinishAnswer) -> tuple[WriteProgress, Next]:
    """What to do after a send."""
    if progress.doubt and isinstance(answer, (Applied, NoAnswer)):
        progress = replace(progress, resent=True)
    match answer:
        case Applied(version) if version is not None:
            return progress, _done(progress, version)
        case Applied():
            # It was applied, so only its version is in doubt: whatever the look shows, "lost" is wrong.
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
    same = "the store says that it is done, and says so where no object is, too"
    return Inconclusive(f"{same}: it was removed, by this call or by another")


def on_look_answer(progress: WriteProgress, answer: ReadAnswer) -> tuple[WriteProgress, Next]:
    """What to do after a look at the object."""
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
    # Refused, or, of a delete, not sent yet.
    return progress, Lost(progress.write.path, progress.write.condition, current)


def _as_expected(progress: WriteProgress) -> tuple[WriteProgress, Next]:
    """Mine is not there now; the guard makes another send safe."""
    if progress.spent:
        return progress, Inconclusive(f"{progress.why}; now it is as it was before, and mine cannot be sent again")
    if not progress.refused:
        return progress, Send(max(1, progress.failures) if progress.doubt else 0)
    contradictions = progress.contradictions + 1
    if contradictions > _CONTRADICTIONS:
        refusals = f"it refused {contradictions} times a condition that was true"
        return progress, Inconclusive(f"{progress.why}; then {refusals}") if progress.doubt else Contradicts(refusals)
    return replace(progress, contradictions=contradictions), Adapt(contradictions - 1, progress.dialect)


def _replaced_or_not(progress: WriteProgress, current: Condition, write_id: str | None) -> Next:
    write = progress.write
    if write.create_once and isinstance(write.condition, Absent) and write_id is not None:
        return Lost(write.path, write.condition, current)
    if write.removes:
        now = "nothing is there" if isinstance(current, Absent) else f"another write is there ({current})"
        before = "it was refused" if progress.refused else progress.why
        return Inconclusive(f"{before}, and now {now}: it was removed or replaced, by this call or by another")
    return Inconclusive(
        f"{progress.why}; now another write is there ({current}), and mine may have been applied before it"
    )
