"""The lease machine: every decision about the lock, without I/O, clock or randomness.

What is NOT promised first: holding a lease does not mean that nobody else acts. A holder can be paused for longer than
its lease lives. Only `Commit` is safe against that: a conditional write on the very record whose version says that it
still is the holder. Everything else (renewal, the local deadline) only makes overlap unlikely, while clocks differ by
less than the grace plus the margin.

Which event leads from which state to which, and to which effect, is data that a test compares `step` with
(`tests/lockprovider/storage_lock/transitions.py`).

What is applied may be large and the store slow. So the lease is renewed meanwhile: the one who applies does not keep
the machine, and a renewal changes nothing about what is being rolled forward.

The deadline counts from BEFORE the request was sent, on the monotonic clock: counted from the answer, two holders
appear. A lapsed lease is `Lost` for its holder even if nobody took it yet. A renewal follows the wall clock forward but
never back: `validUntil` stays as far ahead as the monotonic clock says since the acquisition, so a step back of the
holder's own clock does not make its lease look lapsed to others while it believes in it.

Whoever has nothing to do under the lock but a publish need not hold it: that the record still is at the version at
which it was seen free is all that a commit point asks for; see `combine`. What was decided so and is not
applied yet stays in the record: whoever takes the lock applies all that first.

A holder that keeps the `log` of the record changes what the lock protects by what it publishes, and by nothing else.
One that does not keep it drops it with its take.

`line` in the record says who waits, in which order; whose turn it is, `polling` decides, not the
machine. Waiters write the line too: while the lock is held, one adds itself under the version it has read and changes
nothing else (`joined`). The holder's next write is refused once, and finds its own lease at a new version.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

from fsspec_cas import ABSENT, Version
from lockprovider.errors import LossReason
from lockprovider.settings import HAND_OVER_S, LockSettings
from lockprovider.storage_lock.commit_log import Log, Pending
from lockprovider.storage_lock.record import (
    LONG_PAST_MS,
    LockRecord,
    guest_ms,
    joined,
    rest_due_ms,
    turn_ms,
)
from lockprovider.storage_lock.states import (
    AppliedPending,
    Apply,
    Became,
    Busy,
    Checking,
    Commit,
    Done,
    Ended,
    Event,
    Held,
    Idle,
    Look,
    Lost,
    LostRace,
    Me,
    Moment,
    Purpose,
    PutFailed,
    PutRecord,
    PutWon,
    ReadRecord,
    RecordSeen,
    Release,
    Renew,
    Rolling,
    Sent,
    State,
    Step,
    TakeLock,
    Tick,
    Verdict,
    Writing,
)

# -- the machine -------------------------------------------------------------------------------------------------------


def step(me: Me, state: State, event: Event) -> Step:
    """What `event` does to `state`: the next state, and what the shell must do now, if anything.

    Raises:
        ValueError: the event does not belong to this state; a defect in the shell.
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
    held = state.held if isinstance(state, Rolling) else state
    # What is being rolled forward stays in the record until it is applied.
    kept = held.record if isinstance(state, Rolling) else settled(held.record)
    match state, event:
        case Rolling(then=then), AppliedPending(set_aside):
            # Who goes by the log would take what was set aside for published.
            return replace(held, record=replace(held.record, log=None)) if set_aside else held, Done(then)
        case _, Renew(at) if at.monotonic_s >= held.deadline_s:
            return _tick(state, at.monotonic_s)
        case _, Renew(at):
            return _write("renew", state, _prolonged(me, replace(held, record=kept), at), at)
        case _, Release(at, again):
            line = joined(kept, me.line_name).line if again else kept.line
            released = replace(kept, nonce=at.nonce, line=line, freed_ms=at.now_ms if line else 0)
            return _write("release", state, _given_back(me, released, held, at), at)
        case Held(), Commit(pending, at):
            return _write("commit", state, decided(_prolonged(me, held, at), pending), at)
        case _:
            raise _misplaced(state, event)


def _given_back(me: Me, record: LockRecord, held: Held, at: Moment) -> LockRecord:
    """Where something is to be rolled forward still, those who know nothing of that are kept away for a while."""
    if record.unapplied:
        return replace(record, handed=True, valid_until_ms=_handed_until_ms(me, _not_back_ms(held, at)))
    rest_ms = rest_due_ms(record, at.now_ms) if record.line and record.guest_ms else 0
    return replace(record, expired=True, rest_ms=rest_ms or record.rest_ms)


def _in_flight(me: Me, state: Writing | Checking, event: Event) -> Step:
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
            return Checking(replace(write, there=record.unapplied)), None
        case Checking(write), RecordSeen() as seen:
            return _checked(me, write, seen)
        case _:
            raise _misplaced(state, event)


def _misplaced(state: State, event: Event) -> ValueError:
    return ValueError(f"{type(event).__name__} does not belong to {type(state).__name__}")


def may_take(record: LockRecord, owner: str, now_ms: int) -> bool:
    """Whether that client may take the lock: nobody has it, or only an older write of its own that landed late."""
    return record.given or record.lapsed_at(now_ms) or record.owner == owner


def _take(me: Me, take: TakeLock) -> Step:
    record, version, at = take.seen.record, take.seen.version, take.seen.at
    if record is not None and not may_take(record, me.owner, at.now_ms):
        return Idle(), _busy(record)
    taken = _taken(me, record, at, take)
    write = Writing("take", taken, at.monotonic_s, _clocks_ms(at), None)
    return write, PutRecord(taken, ABSENT if version is None else version)


def _busy(record: LockRecord | None) -> Busy:
    return Busy() if record is None else Busy(record.owner, record.valid_until_ms, record.holder)


def refused(write: State) -> PutFailed | LostRace:
    """What a refusal tells: of a take that somebody was faster, else nothing before a look.

    Something on the way may have sent the write twice, and then it is there. A take that is there is done again; but of
    a publish it must not be said that it never was.
    """
    return LostRace() if isinstance(write, Writing) and write.purpose == "take" else PutFailed()


def _taken(me: Me, seen: LockRecord | None, at: Moment, take: TakeLock) -> LockRecord:
    return LockRecord(
        owner=me.owner,
        valid_until_ms=at.now_ms + _validity_ms(me),
        expired=False,
        epoch=max((seen.epoch if seen else 0) + 1, take.epoch + 1, at.now_ms),
        nonce=at.nonce,
        pending=seen.pending if seen else None,
        holder=me.holds_since(at.now_ms),
        line=take.line,
        turn_ms=turn_ms(seen, at.now_ms) if seen else 0,
        late_ms=late_ms(seen, at.now_ms) if seen else 0,
        log=_log(seen, at) if take.keeps_log else None,
        earlier=seen.earlier if seen else (),
        guest_ms=guest_ms(seen, at.now_ms) if seen else 0,
        rest_ms=seen.rest_ms if seen else 0,
    )


def not_there(record: LockRecord, there: Pending | None) -> tuple[Pending, ...]:
    """What was decided and may not be there yet, for one that knows of `there` and so of all before it."""
    unapplied = record.unapplied
    return unapplied[unapplied.index(there) + 1 :] if there in unapplied else unapplied


def settled(record: LockRecord) -> LockRecord:
    """The same once all that was decided is there."""
    return replace(record, pending=None, earlier=())


def _log(seen: LockRecord | None, at: Moment) -> Log:
    """The one that is there, or a new one; what is applied only now happens in it."""
    if seen is not None and seen.log is not None:
        return seen.log
    return Log(at.nonce).plus(*(() if seen is None else seen.unapplied))


def late_ms(seen: LockRecord, now_ms: int, by: str = "") -> int:
    """When the lock was handed over last; forgotten when that is past for all clocks that a lease allows, and more.

    Not if its next writer (`by`) did so: nobody else applies what that record names, and what is still to be applied
    stands in the next one.
    """
    late_ms = max(seen.late_ms, seen.valid_until_ms if seen.handed and seen.owner != by else 0)
    return late_ms if now_ms <= late_ms + _PAST_MS else 0


_PAST_MS = 60_000


def _write(purpose: Purpose, state: Held | Rolling, record: LockRecord, at: Moment) -> Step:
    held = state.held if isinstance(state, Rolling) else state
    write = Writing(purpose, record, at.monotonic_s, held.clocks_ms, held)
    rolling = replace(write, then=state.then) if isinstance(state, Rolling) else None
    return rolling or replace(write, there=held.record.unapplied), PutRecord(record, held.version)


def _prolonged(me: Me, held: Held, at: Moment) -> LockRecord:
    return replace(held.record, valid_until_ms=_not_back_ms(held, at) + _validity_ms(me), nonce=at.nonce)


def _not_back_ms(held: Held, at: Moment) -> int:
    return max(at.now_ms, round(at.monotonic_s * 1000) + held.clocks_ms)


def decided(record: LockRecord, pending: Pending) -> LockRecord:
    """The record that decides this, after all that it has decided before."""
    log = record.log if record.log is None or record.log.has(pending) else record.log.plus(pending)
    return replace(record, pending=pending, earlier=(), log=log)


def _handed_until_ms(me: Me, now_ms: int) -> int:
    return now_ms + round(hand_over_s(me.settings) * 1000)


def hand_over_s(settings: LockSettings) -> float:
    """How long those who know nothing of `pending` are kept away by a lock that was handed over, in seconds."""
    return min(settings.validity, HAND_OVER_S)


def _clocks_ms(at: Moment) -> int:
    return at.now_ms - round(at.monotonic_s * 1000)


def _validity_ms(me: Me) -> int:
    return round(me.settings.validity * 1000)


def _written(me: Me, write: Writing, version: Version) -> Step:
    """My record is in the store at `version`."""
    deadline_s = write.sent_s + me.settings.validity - me.settings.margin_s
    held = Held(write.record, version, deadline_s, write.clocks_ms)
    pending = write.record.pending
    match write.purpose:
        case "release":
            return Idle((write.record, version)), Done("released")
        case "renew":
            return _still(held, write), Done("renewed")
        case "take":
            apply = None if pending is None else Apply(pending, write.record.earlier)
            return (held, Done("acquired")) if apply is None else (Rolling(held, "acquired"), apply)
        case "commit":
            return (held, Done("committed")) if pending is None else (Rolling(held, "committed"), Apply(pending))


def _still(held: Held, write: Writing) -> Held | Rolling:
    """The holder as before `write`, with what its record says is still to be applied.

    What was applied is not applied again: it may have been removed since, under this very lease.
    """
    return held if {*held.record.unapplied} <= {*write.there} else Rolling(held, write.then)


def _checked(me: Me, write: Writing, seen: RecordSeen) -> Step:
    """A write of mine was refused or its answer lost, and this is what is there now."""
    mine = _still_mine(me, write, seen)
    if mine is not None:
        return mine
    if write.purpose == "take":
        return Idle(), _busy(seen.record)
    if write.purpose == "release":
        return Idle(), Done("released")
    why = f"the lock was released or taken over: {_said(me, seen.record)}"
    return Lost(why), Ended(why, _reason(me, seen.record))


def _still_mine(me: Me, write: Writing, seen: RecordSeen) -> Step | None:
    record, version = seen.record, seen.version
    if record is None or version is None or record.owner != me.owner:
        return None
    if record.nonce == write.record.nonce:
        return _written(me, replace(write, record=record), version)  # somebody may have joined the line
    same = record.epoch == write.record.epoch
    if same and write.purpose == "commit" and not record.handed and record.pending == write.record.pending:
        return _written(me, replace(write, record=record), version)  # an older copy of the same
    if same and write.before is not None and not record.given:
        # The record from before, or an older write of mine that landed late: still the holder, not written yet.
        log = None if write.before.record.log is None else record.log  # it was dropped, and that is not written yet
        before = replace(write.before, record=replace(record, log=log), version=version)
        return _still(before, write), Done("not_written")
    return None


def _reason(me: Me, record: LockRecord | None) -> LossReason:
    broken = record is None or (record.owner == me.owner and record.expired)
    return LossReason.BROKEN if broken else LossReason.TAKEN_OVER


def _said(me: Me, record: LockRecord | None) -> str:
    if record is None:
        return "its record is gone"
    if record.handed:
        return f"{record.owner} had it and handed it over, epoch {record.epoch}"
    if record.expired:
        who = "somebody broke it" if record.owner == me.owner else f"{record.owner} had it and gave it back"
        return f"{who}, epoch {record.epoch}"
    return f"{record.owner} holds it since epoch {record.epoch}"


def only_ours_since(record: LockRecord | None, since_ms: int) -> bool:
    """Whether none has had the lock since then that knows nothing of what is pending.

    By clocks that differ by less than a minute; and if that is long past, nobody can tell.
    """
    if record is None or not record.nonce:
        return False
    since_ms -= _CLOCKS_DIFFER_MS
    return record.guest_ms < since_ms and record.epoch < since_ms + LONG_PAST_MS


_CLOCKS_DIFFER_MS = 60_000


def _tick(state: State, monotonic_s: float) -> Step:
    why = "the lease was not renewed in time"
    match state:
        case (Held() as held) | Rolling(held) if monotonic_s >= held.deadline_s:
            return Lost(why), Ended(why, LossReason.LAPSED)
        case Writing(before=Held() as held) | Checking(Writing(before=Held() as held)) if (
            monotonic_s >= held.deadline_s
        ):
            # The write on its way still decides what the record says.
            return state, Ended(why, LossReason.UNREACHABLE)
        case _:
            return state, None


def belief(state: State) -> Held | None:
    """What the client holds as far as it knows, whatever is on its way; nothing, once it asked to give it back."""
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


def became(sent: Sent, record: LockRecord | None, version: Version | None) -> Became:
    """Tell what became of a write from a look at the record that was made after the write.

    Returns:
        "there": the record is the one that was written; others may have joined its line. "open": the version stands
        over which the write was sent, so it may land yet. "over": it never will, if it has not landed before.
    """
    if record is not None and record.nonce == sent.nonce:
        return "there"
    return "open" if version == sent.version else "over"


PublishStep = Literal["send", "look", "roll_forward", "read_record", "read_path", "never"]


def publish_next(state: State, *, tried: bool, ended: bool, record_is_seen: bool) -> PublishStep:
    """Choose the next step of a publish whose outcome is not known yet.

    Args:
        state: the machine's, under whose lease it is published.
        tried: whether a write of the record that commits this publish was ever sent.
        ended: whether the publisher takes the lease for over. The machine may wait for an answer still.
        record_is_seen: whether the record was read since the last of these writes was sent.

    Returns:
        "send": write the record that commits the publish. "look": find out what became of a write whose answer is
        missing. "roll_forward": apply what an earlier write decided. After the lease: "read_record", then "read_path",
        and decide by `settle_commit`. "never": nothing was sent, so nothing can land.
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
    # The record first: its `pending` is dropped only after the object is there.
    return "read_path" if record_is_seen else "read_record"


def settle_commit(
    pending: Pending, owner: str, epoch: int, seen: LockRecord | None, digest_there: str | None
) -> Verdict:
    """Whether a commit whose answer was lost was decided, once the lease has ended.

    `owner` and `epoch` are of the lease under which it was tried, `seen` is the record after all tries, `digest_there`
    the digest of the object at `pending.path`, looked at after `seen`; None if there is none. Whoever takes a lock over
    copies `pending` and applies it before anything else. So either the object is there, or the record still says so,
    or the record has moved on and the commit never was and never will be. While the record is still that lease's, a
    copy of the commit may be on its way: then nobody knows.
    """
    if digest_there == pending.digest:
        return "committed"
    if seen is None:
        return "not_committed"
    if pending in seen.unapplied:
        return "apply"
    if seen.log is not None and seen.log.has(pending):
        return "committed"
    still = (seen.owner, seen.epoch) == (owner, epoch) and not seen.given
    return "unknown" if still else "not_committed"
