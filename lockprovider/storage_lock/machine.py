"""Lease machine, pure: `step` decides a holder's requests, `publish_next` the steps of a publish."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from fsspec_cas import ABSENT, Condition, Version
from lockprovider.errors import Holder, LossReason
from lockprovider.storage_lock.polling import LONG_PAST_MS, due_yield_until_ms, foreign_seen_ms, turn_ms, with_waiter
from lockprovider.storage_lock.record import (
    LockRecord,
    Log,
    Me,
    Moment,
    Pending,
    hand_over_s,
    may_take,
    pending_until_ms,
)

Purpose = Literal["take", "renew", "commit", "release"]
What = Literal["acquired", "renewed", "committed", "released", "not_written"]
Verdict = Literal["committed", "apply", "not_committed", "unknown"]


@dataclass(frozen=True, slots=True)
class RecordSeen:
    """The record was read (None: absent)."""

    record: LockRecord | None
    version: Version | None
    at: Moment


@dataclass(frozen=True, slots=True)
class TakeLock:
    """Take the lock as read, if allowed, leaving these `waiters`. `epoch`: highest seen."""

    seen: RecordSeen
    waiters: tuple[str, ...] = ()
    keeps_log: bool = False
    epoch: int = 0


@dataclass(frozen=True, slots=True)
class PutWon:
    """It is stored at this version."""

    version: Version


@dataclass(frozen=True, slots=True)
class PutFailed:
    """The write was refused, or is unknown."""


@dataclass(frozen=True, slots=True)
class LostRace:
    """The take was refused."""


@dataclass(frozen=True, slots=True)
class AppliedPending:
    """All pending is applied or `set_aside`."""

    set_aside: bool = False


@dataclass(frozen=True, slots=True)
class Renew:
    """Prolong the lease."""

    at: Moment


@dataclass(frozen=True, slots=True)
class Commit:
    """Pass a publish's commit point."""

    pending: Pending
    at: Moment


@dataclass(frozen=True, slots=True)
class Release:
    """Release the lock; `again` adds this client to its waiters."""

    at: Moment
    again: bool = False


@dataclass(frozen=True, slots=True)
class Look:
    """Read the record to settle a write."""


@dataclass(frozen=True, slots=True)
class Tick:
    """Time has passed."""

    monotonic_s: float


Event = TakeLock | RecordSeen | PutWon | PutFailed | LostRace | AppliedPending | Renew | Commit | Release | Look | Tick


@dataclass(frozen=True, slots=True)
class ReadRecord:
    """Read the lock record."""


@dataclass(frozen=True, slots=True)
class PutRecord:
    """Write the lock record."""

    record: LockRecord
    condition: Condition


@dataclass(frozen=True, slots=True)
class Apply:
    """Create the pending object, after `earlier` ones."""

    pending: Pending
    earlier: tuple[Pending, ...] = ()


@dataclass(frozen=True, slots=True)
class Busy:
    """Another client has the lock."""

    owner: str = ""
    valid_until_ms: int = 0
    holder: Holder | None = None


@dataclass(frozen=True, slots=True)
class Done:
    """One step's result."""

    what: What


@dataclass(frozen=True, slots=True)
class Ended:
    """The lease is lost."""

    why: str
    reason: LossReason = LossReason.TAKEN_OVER


Effect = ReadRecord | PutRecord | Apply | Busy | Done | Ended


@dataclass(frozen=True, slots=True)
class Idle:
    """Not the holder. `released`: what it released, until another write is known."""

    released: tuple[LockRecord, Version] | None = None


@dataclass(frozen=True, slots=True)
class Held:
    """Holder, until `deadline_s`. `clocks_ms`: wall clock minus monotonic clock."""

    record: LockRecord
    version: Version
    deadline_s: float
    clocks_ms: int


@dataclass(frozen=True, slots=True)
class Writing:
    """A write is under way. `before`: lease when sent."""

    purpose: Purpose
    record: LockRecord
    sent_s: float
    clocks_ms: int
    before: Held | None
    then: What = "not_written"  # completed by the roll-forward
    applied: tuple[Pending, ...] = ()  # of `before`


@dataclass(frozen=True, slots=True)
class Checking:
    """`write` was refused or unanswered."""

    write: Writing


@dataclass(frozen=True, slots=True)
class Rolling:
    """Holder; must first apply a decided publish."""

    held: Held
    then: What


@dataclass(frozen=True, slots=True)
class Lost:
    """Not the holder, without a release."""

    why: str


State = Idle | Held | Writing | Checking | Rolling | Lost
Step = tuple[State, Effect | None]


def step(me: Me, state: State, event: Event) -> Step:
    """Return the state after `event`, and at most one effect: a request or an answer.

    Raises `ValueError` for an event misplaced in this state.
    """
    if isinstance(event, Tick):
        return _tick(state, event.monotonic_s)
    match state:
        case Idle() | Lost():
            if not isinstance(event, TakeLock):
                raise _misplaced(state, event)
            return _take(me, event)
        case Held() | Rolling():
            return _inside(me, state, event)
        case Writing() | Checking():
            return _in_flight(me, state, event)


def _inside(me: Me, state: Held | Rolling, event: Event) -> Step:
    """Return a holder's step: a write to renew, release or commit, a lapse, or the end of a roll-forward.

    One that set publishes aside drops the log.
    """
    held = state.held if isinstance(state, Rolling) else state
    # Rolled forward: stays in the record until applied.
    record = held.record if isinstance(state, Rolling) else replace(held.record, pending=None, pending_before=())
    match state, event:
        case Rolling(then=then), AppliedPending(set_aside):
            # Readers of the log would take it for published.
            return replace(held, record=replace(held.record, log=None)) if set_aside else held, Done(then)
        case _, Renew(at) if at.monotonic_s >= held.deadline_s:
            return _tick(state, at.monotonic_s)
        case _, Renew(at):
            return _write("renew", state, _prolonged(me, replace(held, record=record), at), at)
        case _, Release(at, again):
            waiters = with_waiter(record, me.waiter_name).waiters if again else record.waiters
            released = replace(record, nonce=at.nonce, waiters=waiters, freed_ms=at.now_ms if waiters else 0)
            return _write("release", state, _given_back(me, released, held, at), at)
        case Held(), Commit(pending, at):
            return _write("commit", state, decided(_prolonged(me, held, at), pending), at)
        case _:
            raise _misplaced(state, event)


def _given_back(me: Me, record: LockRecord, held: Held, at: Moment) -> LockRecord:
    if record.all_pending:
        until_ms = _not_back_ms(held, at) + round(hand_over_s(me.settings) * 1000)
        return replace(record, released_pending=True, valid_until_ms=until_ms)
    yield_until_ms = due_yield_until_ms(record, at.now_ms) if record.waiters and record.foreign_seen_ms else 0
    return replace(record, expired=True, yield_until_ms=yield_until_ms or record.yield_until_ms)


def _in_flight(me: Me, state: Writing | Checking, event: Event) -> Step:
    """Return the step while a write is unanswered, or being checked by a read.

    A failed or refused write is checked, but a lost take ends as busy.
    """
    match state, event:
        case Writing() as write, PutWon(version):
            return _written(me, write, version)
        case Writing() as write, PutFailed():
            return Checking(write), ReadRecord()
        case Writing(purpose="take"), LostRace():
            return Idle(), Busy()
        case Checking(), Look():
            return state, ReadRecord()
        case Checking(Writing(before=Held(record)) as write), AppliedPending():
            return Checking(replace(write, applied=record.all_pending)), None
        case Checking(write), RecordSeen() as seen:
            return _checked(me, write, seen)
        case _:
            raise _misplaced(state, event)


def _misplaced(state: State, event: Event) -> ValueError:
    return ValueError(f"{type(event).__name__} does not belong to {type(state).__name__}")


def _take(me: Me, take: TakeLock) -> Step:
    record, version, at = take.seen.record, take.seen.version, take.seen.at
    if record is not None and not may_take(record, me.owner, at.now_ms):
        return Idle(), _busy(record)
    taken = _taken(me, record, at, take)
    write = Writing("take", taken, at.monotonic_s, at.now_ms - round(at.monotonic_s * 1000), None)
    return write, PutRecord(taken, ABSENT if version is None else version)


def _busy(record: LockRecord | None) -> Busy:
    return Busy() if record is None else Busy(record.owner, record.valid_until_ms, record.holder)


def refused(write: State) -> PutFailed | LostRace:
    """A refusal's event: a take lost; another write may be stored, as a proxy may send it twice."""
    return LostRace() if isinstance(write, Writing) and write.purpose == "take" else PutFailed()


def _taken(me: Me, record: LockRecord | None, at: Moment, take: TakeLock) -> LockRecord:
    """Build the record of a take: new owner, validity, higher epoch, and what is still pending.

    With `take.keeps_log`, it has the log, or a new one; else none.
    """
    return LockRecord(
        owner=me.owner,
        valid_until_ms=at.now_ms + _validity_ms(me),
        expired=False,
        epoch=max((record.epoch if record else 0) + 1, take.epoch + 1, at.now_ms),
        nonce=at.nonce,
        pending=record.pending if record else None,
        holder=me.holds_since(at.now_ms),
        waiters=take.waiters,
        turn_ms=turn_ms(record, at.now_ms) if record else 0,
        pending_until_ms=pending_until_ms(record, at.now_ms) if record else 0,
        log=_log(record, at) if take.keeps_log else None,
        pending_before=record.pending_before if record else (),
        foreign_seen_ms=foreign_seen_ms(record, at.now_ms) if record else 0,
        yield_until_ms=record.yield_until_ms if record else 0,
    )


def _log(record: LockRecord | None, at: Moment) -> Log:
    if record is not None and record.log is not None:
        return record.log
    return Log(at.nonce).plus(*(() if record is None else record.all_pending))


def _write(purpose: Purpose, state: Held | Rolling, record: LockRecord, at: Moment) -> Step:
    held = state.held if isinstance(state, Rolling) else state
    write = Writing(purpose, record, at.monotonic_s, held.clocks_ms, held)
    rolling = replace(write, then=state.then) if isinstance(state, Rolling) else None
    return rolling or replace(write, applied=held.record.all_pending), PutRecord(record, held.version)


def _prolonged(me: Me, held: Held, at: Moment) -> LockRecord:
    return replace(held.record, valid_until_ms=_not_back_ms(held, at) + _validity_ms(me), nonce=at.nonce)


def _not_back_ms(held: Held, at: Moment) -> int:
    # A clock that steps back must not make a lease look lapsed.
    return max(at.now_ms, round(at.monotonic_s * 1000) + held.clocks_ms)


def decided(record: LockRecord, pending: Pending) -> LockRecord:
    log = record.log if record.log is None or record.log.has(pending) else record.log.plus(pending)
    return replace(record, pending=pending, pending_before=(), log=log)


def _validity_ms(me: Me) -> int:
    return round(me.settings.validity * 1000)


def _written(me: Me, write: Writing, version: Version) -> Step:
    """Return the step after a write was stored at `version`: idle after a release, else held until a new deadline.

    Unapplied publishes make it `Rolling`, with an `Apply` except after a renewal.
    """
    deadline_s = write.sent_s + me.settings.validity - me.settings.margin_s
    held = Held(write.record, version, deadline_s, write.clocks_ms)
    pending = write.record.pending
    match write.purpose:
        case "release":
            return Idle((write.record, version)), Done("released")
        case "renew":
            return _still(held, write), Done("renewed")
        case "take":
            apply = None if pending is None else Apply(pending, write.record.pending_before)
            return (held, Done("acquired")) if apply is None else (Rolling(held, "acquired"), apply)
        case "commit":
            return (held, Done("committed")) if pending is None else (Rolling(held, "committed"), Apply(pending))


def _still(held: Held, write: Writing) -> Held | Rolling:
    """`Held`, or `Rolling` if publishes are left that this lease has not applied."""
    return held if {*held.record.all_pending} <= {*write.applied} else Rolling(held, write.then)


def _checked(me: Me, write: Writing, seen: RecordSeen) -> Step:
    """Return the step after a read settles a write.

    The lease is still held; else busy after a take, released after a release, or lost.
    """
    still_held = _still_mine(me, write, seen)
    if still_held is not None:
        return still_held
    if write.purpose == "take":
        return Idle(), _busy(seen.record)
    if write.purpose == "release":
        return Idle(), Done("released")
    is_broken = seen.record is None or (seen.record.owner == me.owner and seen.record.expired)
    why = f"the lock was released or taken over: {_why_lost(me, seen.record)}"
    return Lost(why), Ended(why, LossReason.BROKEN if is_broken else LossReason.TAKEN_OVER)


def _still_mine(me: Me, write: Writing, seen: RecordSeen) -> Step | None:
    """Return the step if the record read has this write, or still the lease without it; None if the lease is over."""
    record, version = seen.record, seen.version
    if record is None or version is None or record.owner != me.owner:
        return None
    if record.nonce == write.record.nonce:
        return _written(me, replace(write, record=record), version)
    same = record.epoch == write.record.epoch
    if same and write.purpose == "commit" and not record.released_pending and record.pending == write.record.pending:
        return _written(me, replace(write, record=record), version)
    if same and write.before is not None and not record.is_free:
        # The record before, or an older late write. A dropped log stays dropped.
        log = None if write.before.record.log is None else record.log
        before = replace(write.before, record=replace(record, log=log), version=version)
        return _still(before, write), Done("not_written")
    return None


def _why_lost(me: Me, record: LockRecord | None) -> str:
    """Describe, by the record read (None: absent), how the lease ended: removed, broken or taken over."""
    if record is None:
        return "its record was removed"
    if record.released_pending:
        return f"{record.owner} acquired it in epoch {record.epoch} and released it with pending publishes"
    if record.expired:
        who = "an operator broke it" if record.owner == me.owner else f"{record.owner} acquired and released it"
        return f"{who} in epoch {record.epoch}"
    return f"{record.owner} has held it since epoch {record.epoch}"


def only_ours_since(record: LockRecord | None, since_ms: int) -> bool:
    if record is None or not record.nonce:
        return False
    since_ms -= _CLOCKS_DIFFER_MS
    return record.foreign_seen_ms < since_ms and record.epoch < since_ms + LONG_PAST_MS


_CLOCKS_DIFFER_MS = 60_000


def _tick(state: State, monotonic_s: float) -> Step:
    """Return the step at this time: past its deadline a lease is lost, else nothing changes.

    While a write is under way it is only reported as unreachable.
    """
    why = "the lease was not renewed in time"
    match state:
        case (Held() as held) | Rolling(held) if monotonic_s >= held.deadline_s:
            return Lost(why), Ended(why, LossReason.LAPSED)
        case Writing(before=Held() as held) | Checking(Writing(before=Held() as held)) if (
            monotonic_s >= held.deadline_s
        ):
            # The write under way still decides.
            return state, Ended(why, LossReason.UNREACHABLE)
        case _:
            return state, None


def belief(state: State) -> Held | None:
    """Lease that the client believes to hold, even with a renewal or commit unanswered.

    It may be past its deadline. None during a take, and once its release is sent.
    """
    match state:
        case Held():
            return state
        case Rolling(held):
            return held
        case Writing(purpose="release") | Checking(Writing(purpose="release")):
            return None
        case Writing(before=before) | Checking(Writing(before=before)):
            return before
        case Idle() | Lost():
            return None


PublishStep = Literal["send", "look", "roll_forward", "read_record", "read_path", "never"]


def publish_next(state: State, *, tried: bool, ended: bool, record_is_seen: bool) -> PublishStep:
    """Choose the next step of a publish not known to be done; "never": it was not sent, and will not be.

    `tried`: its commit was sent. `ended`: the lease is known to be over. `record_is_seen`: the record was read since.
    """
    if not ended:
        match state:
            case Held():
                return "send"
            case Checking():
                return "look"
            case Rolling():
                return "roll_forward"
            case Idle() | Lost() | Writing():
                pass
    if not tried:
        return "never"
    # The record first: it drops `pending` only once the object exists.
    return "read_path" if record_is_seen else "read_record"


def settle_commit(
    pending: Pending, owner: str, epoch: int, record: LockRecord | None, stored_digest: str | None
) -> Verdict:
    """Decide, after the lease's end, whether an unanswered commit took effect.

    "apply": the next holder applies it. `record` was read after all tries, and `stored_digest` after `record`. While
    the record is that lease's (`owner`, `epoch`), a copy may be under way: "unknown".
    """
    if stored_digest == pending.digest:
        return "committed"
    if record is None:
        return "not_committed"
    if pending in record.all_pending:
        return "apply"
    if record.log is not None and record.log.has(pending):
        return "committed"
    still = (record.owner, record.epoch) == (owner, epoch) and not record.is_free
    return "unknown" if still else "not_committed"
