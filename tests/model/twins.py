"""The protocol with one part done wrong, each as somebody does it somewhere."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from fsspec_cas import ABSENT
from lockprovider.settings import GRACE_MS
from lockprovider.storage_lock import commit_rules as group
from lockprovider.storage_lock import machine as real
from lockprovider.storage_lock.commit_rules import Intent
from lockprovider.storage_lock.machine import (
    AppliedPending,
    Apply,
    Busy,
    Checking,
    Commit,
    Done,
    Ended,
    Held,
    Idle,
    Lost,
    PutFailed,
    PutRecord,
    PutWon,
    RecordSeen,
    Renew,
    Rolling,
    TakeLock,
    Tick,
    Writing,
)
from lockprovider.storage_lock.record import LockRecord, Log, Me, Pending
from model.clocks import ALLOWANCE_S, Clocks, Timed
from model.publishing import ANY, Budget, Publishing, Rules

Step = Callable[[Me, Any, Any], tuple[Any, Any]]


# -- publishing --------------------------------------------------------------------------------------------------------


def _takeover_drops_pending(me: Me, state: Any, event: Any) -> tuple[Any, Any]:
    after, effect = real.step(me, state, event)
    if isinstance(after, Writing) and after.purpose == "take" and isinstance(effect, PutRecord):
        record = replace(after.record, pending=None)
        return replace(after, record=record), replace(effect, record=record)
    return after, effect


def _adopts_without_applying(me: Me, state: Any, event: Any) -> tuple[Any, Any]:
    after, effect = real.step(me, state, event)
    if isinstance(after, Rolling) and isinstance(effect, Apply) and after.then == "acquired":
        return after.held, Done("acquired")
    return after, effect


def _seen(event: Any) -> LockRecord | None:
    """The record that the event tells of."""
    seen = event.seen if isinstance(event, TakeLock) else event
    return seen.record if isinstance(seen, RecordSeen) else None


def _seeing(event: Any, record: LockRecord) -> Any:
    """The same event, had another record been there."""
    return (
        replace(event, seen=_seeing(event.seen, record))
        if isinstance(event, TakeLock)
        else replace(event, record=record)
    )


def _renewal_clears_what_is_not_applied(me: Me, state: Any, event: Any) -> tuple[Any, Any]:
    if isinstance(state, Rolling) and isinstance(event, Renew):
        return real.step(me, replace(state.held, record=replace(state.held.record, pending=None)), event)
    return real.step(me, state, event)


def _owner_is_enough(me: Me, state: Any, event: Any) -> tuple[Any, Any]:
    """After a lost answer: "the record is mine, so my write is there"."""
    commits = isinstance(state, Checking) and state.write.purpose == "commit"
    if commits and isinstance(event, RecordSeen) and event.record and event.record.owner == me.owner:
        return Held(event.record, event.version, 0.0, 0), Done("committed")
    return real.step(me, state, event)


def _no_answer_is_a_loss(me: Me, state: Any, event: Any) -> tuple[Any, Any]:
    """A refused or unanswered commit ends the lease, without a look."""
    if isinstance(state, Writing) and state.purpose == "commit" and isinstance(event, PutFailed):
        return Lost("no answer"), Ended("no answer")
    return real.step(me, state, event)


def _release_is_ignored(me: Me, state: Any, event: Any) -> tuple[Any, Any]:
    seen = _seen(event)
    if seen is not None and seen.expired:
        event = _seeing(event, replace(seen, expired=False))
    return real.step(me, state, event)


def _unapplied_blocks_for_ever(me: Me, state: Any, event: Any) -> tuple[Any, Any]:
    """Take-over refuses a record with a pending publish."""
    after, effect = real.step(me, state, event)
    takes = isinstance(after, Writing) and after.purpose == "take"
    return (Idle(), Busy()) if takes and after.record.pending is not None else (after, effect)


def _plain_put_at_commit(put: PutRecord) -> Any:
    return ANY if put.record.pending is not None and not put.record.expired else put.condition


def _plain_put_at_takeover(put: PutRecord) -> Any:
    return (
        ANY if put.record.holder is not None and put.condition is not ABSENT and put.record.epoch > 1 else put.condition
    )


def _deleted_when_released(record: LockRecord) -> LockRecord | None:
    return None if record.expired else record


def never_settles(state: Any, *, tried: bool, ended: bool, record_is_seen: bool) -> str:
    """A lease that ended while its commit was on the way: "so it was not written"."""
    del tried
    return real.publish_next(state, tried=False, ended=ended, record_is_seen=record_is_seen)


def _looks_at_the_path_first(state: Any, *, tried: bool, ended: bool, record_is_seen: bool) -> str:
    is_second = {"read_record": False, "read_path": True}
    step = real.publish_next(state, tried=tried, ended=ended, record_is_seen=record_is_seen)
    return step if step not in is_second else "read_record" if is_second[step] else "read_path"


def _unsettled_means_never(
    pending: Pending, owner: str, epoch: int, seen: LockRecord | None, stored_digest: str | None
) -> str:
    """ "The object is not there and the record does not say so": forgets that a commit may still be on its way."""
    verdict = real.settle_commit(pending, owner, epoch, seen, stored_digest)
    return "not_committed" if verdict == "unknown" else verdict


def _only_the_object_counts(
    pending: Pending, owner: str, epoch: int, seen: LockRecord | None, stored_digest: str | None
) -> str:
    return real.settle_commit(
        pending, owner, epoch, None if seen is None else replace(seen, pending=None), stored_digest
    )


def _join_is_a_plain_put(put: PutRecord) -> Any:
    return ANY if put.record.waiters else put.condition


def _join_keeps_only_what_jvm_hudi_knows(record: LockRecord, name: str) -> LockRecord:
    after = real.with_waiter(record, name)
    return LockRecord(after.owner, after.valid_until_ms, after.expired, nonce=after.nonce, waiters=after.waiters)


def _join_drops_pending(record: LockRecord, name: str) -> LockRecord:
    return replace(real.with_waiter(record, name), pending=None)


def _a_join_ends_the_lease(me: Me, state: Any, event: Any) -> tuple[Any, Any]:
    """Another version than one's own, so another holder."""
    if isinstance(state, Checking) and isinstance(event, RecordSeen) and event.record and event.record.waiters:
        event = replace(event, record=replace(event.record, owner="?", nonce="0"))
    return real.step(me, state, event)


def _leaves_it_to_whoever_decided(me: Me, state: Any, event: Any) -> tuple[Any, Any]:
    """The next holder begins without what was decided when nobody held the lock: its writer is at it."""
    after, effect = real.step(me, state, event)
    if isinstance(after, Rolling) and isinstance(effect, Apply) and after.then == "acquired":
        held = after.held
        if held.record.pending_until_ms:
            return replace(held, record=replace(held.record, pending=None)), Done("acquired")
    return after, effect


def _what_was_decided_keeps_the_lock_held(me: Me, state: Any, event: Any) -> tuple[Any, Any]:
    seen = _seen(event)
    if seen is not None and seen.released_pending:
        event = _seeing(event, replace(seen, released_pending=False))
    return real.step(me, state, event)


def _does_not_log(me: Me, state: Any, event: Any) -> tuple[Any, Any]:
    after, effect = real.step(me, state, event)
    if isinstance(event, Commit) and isinstance(effect, PutRecord):
        record = replace(effect.record, log=state.record.log)
        return replace(after, record=record), replace(effect, record=record)
    return after, effect


def _one_that_keeps_no_log_leaves_it_there(me: Me, state: Any, event: Any) -> tuple[Any, Any]:
    if me.owner == "A":
        return real.step(me, state, event)
    if isinstance(event, TakeLock):
        event = replace(event, keeps_log=True)
    return _does_not_log(me, state, event)


def _a_new_log_has_the_name_of_the_old(me: Me, state: Any, event: Any) -> tuple[Any, Any]:
    after, effect = real.step(me, state, event)
    if isinstance(effect, PutRecord) and effect.record.log is not None and not effect.record.log.next:
        record = replace(effect.record, log=replace(effect.record.log, name="1"))
        return replace(after, record=record), replace(effect, record=record)
    return after, effect


def _combines_with_a_plain_put(put: PutRecord) -> Any:
    return ANY if put.record.released_pending and put.record.freed_ms == put.record.holder.since_ms else put.condition


def _combines_and_forgets_what_is_not_there(*args: Any, **more: Any) -> LockRecord:
    return replace(group.combine(*args, **more), pending_before=())


def _take_over_sees_the_last_only(me: Me, state: Any, event: Any) -> tuple[Any, Any]:
    after, effect = real.step(me, state, event)
    return after, Apply(effect.pending) if isinstance(effect, Apply) else effect


def _what_others_went_on_from_was_never(log: Log | None, intent: Intent, decider: Any) -> group._Verdict:
    """The answer to a decision is lost, and another has decided since: so it is not looked for in the log."""
    came = group.verdict(log, intent, decider)
    last = log is None or not log.entries or log.entries[-1].path == intent.stem
    return came if last or not isinstance(came, group.Decided) else group.Refused(LookupError(intent.stem))


def _forgets_what_is_there(me: Me, state: Any, event: Any) -> tuple[Any, Any]:
    """Whatever the record names as pending when a renewal was refused is applied, also if it was before."""
    if isinstance(state, Checking):
        state = Checking(replace(state.write, applied=()))
    return real.step(me, state, event)


def _commits_again_what_lands_late(me: Me, state: Any, event: Any) -> tuple[Any, Any]:
    """An older copy of the commit is taken for another's, and logged another time."""
    seen = event.record if isinstance(event, RecordSeen) else None
    if isinstance(state, Checking) and state.write.purpose == "commit" and seen is not None:
        if seen.nonce != state.write.record.nonce:
            state = Checking(replace(state.write, purpose="renew"))
        return real.step(me, state, event)
    after, effect = real.step(me, state, event)
    if isinstance(event, Commit) and isinstance(effect, PutRecord) and state.record.log is not None:
        record = replace(effect.record, log=state.record.log.plus(event.pending))
        return replace(after, record=record), replace(effect, record=record)
    return after, effect


def _rolls_the_last_part_forward_alone(me: Me, state: Any, event: Any) -> tuple[Any, Any]:
    after, effect = real.step(me, state, event)
    if isinstance(after, Writing) and after.purpose == "take" and after.record.pending is not None:
        record = replace(after.record, pending=replace(after.record.pending, first=None))
        return replace(after, record=record), replace(effect, record=record)
    return after, effect


# Worlds in which they stumble, as small as can be.
TAKEN_OVER = Publishing(2, 1, Budget(lapses=1))
TWICE_EACH = Publishing(2, 2, Budget())
ANSWER_LOST = Publishing(2, 1, Budget(lapses=1, lost=1))
RENEWED = Publishing(2, 1, Budget(lapses=1, failed=1, renewals=1))
LATE = Publishing(2, 1, Budget(lapses=1, late=1))
JOINED = Publishing(2, 1, Budget(lapses=1, joins=1))
ONE_COMBINES = Publishing(2, 2, Budget(lapses=1), keepers="AB", combiners="B")
LOGGED = Publishing(2, 2, Budget(), keepers="AB")
ONE_LOGS = Publishing(2, 2, Budget(), keepers="A")
LOGGED_LATE = Publishing(2, 1, Budget(late=1), keepers="A")
COMBINED = Publishing(3, 2, Budget(), keepers="ABC", combiners="BC")
COMBINED_LOST = Publishing(3, 1, Budget(lost=1), keepers="ABC", combiners="BC")
COMBINED_LATE = Publishing(3, 1, Budget(late=1), keepers="ABC", combiners="BC")
REMOVED = Publishing(2, 1, Budget(renewals=2, joins=1, removals=1))
REMOVED_THEN_TAKEN = Publishing(2, 2, Budget(lapses=1, removals=1))
SENT_TWICE = Publishing(2, 2, Budget(twice=1), keepers="AB", combiners="B")
BROKEN = Publishing(2, 1, Budget(breaks=1, guests=1))
PAIRS = Publishing(2, 1, Budget(lapses=1), pairs=True)

PUBLISHING: dict[str, tuple[str, Publishing, Rules]] = {
    "a take-over drops the pending publish": ("fence", TAKEN_OVER, Rules(step=_takeover_drops_pending)),
    "a take-over adopts without rolling forward": ("fence", TAKEN_OVER, Rules(step=_adopts_without_applying)),
    "a renewal clears a publish that is not applied": (
        "keep",
        RENEWED,
        Rules(step=_renewal_clears_what_is_not_applied),
    ),
    "the commit point is a plain put": ("fence", TAKEN_OVER, Rules(condition=_plain_put_at_commit)),
    "a take-over is a plain put": ("fence", TAKEN_OVER, Rules(condition=_plain_put_at_takeover)),
    "the owner in the record is enough": ("truth", ANSWER_LOST, Rules(step=_owner_is_enough)),
    "no answer is taken for a loss": (
        "truth",
        ANSWER_LOST,
        Rules(step=_no_answer_is_a_loss, publish_next=never_settles),
    ),
    "a lease that ended is taken for not written": ("truth", ANSWER_LOST, Rules(publish_next=never_settles)),
    "a late commit is forgotten": ("truth", LATE, Rules(settle=_unsettled_means_never)),
    "the record's pending is not looked at": ("truth", ANSWER_LOST, Rules(settle=_only_the_object_counts)),
    "the path is looked at before the record": ("truth", ANSWER_LOST, Rules(publish_next=_looks_at_the_path_first)),
    "a release deletes the record": ("epoch", TAKEN_OVER, Rules(stored=_deleted_when_released, deletes=True)),
    "a released record counts as held": ("free", TAKEN_OVER, Rules(step=_release_is_ignored)),
    "a waiter joins the line with a plain put": ("fence", JOINED, Rules(condition=_join_is_a_plain_put)),
    "a waiter that joins forgets the epoch": ("epoch", JOINED, Rules(with_waiter=_join_keeps_only_what_jvm_hudi_knows)),
    "a waiter that joins forgets the pending publish": ("fence", JOINED, Rules(with_waiter=_join_drops_pending)),
    "a join ends the lease": ("truth", ANSWER_LOST, Rules(step=_a_join_ends_the_lease, publish_next=never_settles)),
    "the next holder does not wait for what was decided without it": (
        "order",
        ONE_COMBINES,
        Rules(step=_leaves_it_to_whoever_decided),
    ),
    "a lock under which somebody has decided counts as held": (
        "free",
        ONE_COMBINES,
        Rules(step=_what_was_decided_keeps_the_lock_held),
    ),
    "a publish is not written into the log": ("fence", LOGGED, Rules(step=_does_not_log)),
    "one that keeps no log leaves it there": ("fence", TWICE_EACH, Rules(step=_one_that_keeps_no_log_leaves_it_there)),
    "a new log has the name of the old": ("fence", ONE_LOGS, Rules(step=_a_new_log_has_the_name_of_the_old)),
    "who combines writes with a plain put": ("fence", COMBINED, Rules(condition=_combines_with_a_plain_put)),
    "who combines forgets what is not there yet": (
        "keep",
        COMBINED,
        Rules(combine=_combines_and_forgets_what_is_not_there),
    ),
    "what is decided is there before what was decided earlier": ("order", COMBINED, Rules(in_order=False)),
    "a lock is freed before what was decided is there": ("keep", COMBINED, Rules(applies_first=False)),
    "a take-over sees the last of what is pending": ("order", COMBINED, Rules(step=_take_over_sees_the_last_only)),
    "a decision that others went on from never was": (
        "truth",
        COMBINED_LOST,
        Rules(verdict=_what_others_went_on_from_was_never),
    ),
    "a decision that is not there yet never will be": ("truth", COMBINED_LATE, Rules(moves_on=False)),
    "a holder's renewal applies what it has removed": ("gone", REMOVED, Rules(step=_forgets_what_is_there)),
    "what is removed stands in the record still": ("gone", REMOVED_THEN_TAKEN, Rules(cleans=False)),
    "a refused decision never was": ("truth", SENT_TWICE, Rules(looks=False)),
    "a break frees a lock whose publish is not there": ("keep", BROKEN, Rules(frees_unapplied=True)),
    "a commit that lands late is committed again": ("once", LOGGED_LATE, Rules(step=_commits_again_what_lands_late)),
    "what goes first is put there last": (
        "pair",
        PAIRS,
        Rules(parts=lambda pending: (replace(pending, first=None), *filter(None, [pending.first]))),
    ),
    "the next holder puts the last part there alone": ("pair", PAIRS, Rules(step=_rolls_the_last_part_forward_alone)),
    "what goes first is there before the decision": ("pair", PAIRS, Rules(early=True)),
    "a pending publish blocks the next holder": ("free", TAKEN_OVER, Rules(step=_unapplied_blocks_for_ever)),
}


# -- clocks ------------------------------------------------------------------------------------------------------------


def _from_the_answer(me: Me, state: Any, event: Any, now_s: float) -> tuple[Any, Any]:
    after, effect = real.step(me, state, event)
    if isinstance(event, (PutWon, RecordSeen, AppliedPending)) and isinstance(after, Held):
        return replace(after, deadline_s=now_s + me.settings.validity - me.settings.margin_s), effect
    return after, effect


def _slack_for_itself(me: Me, state: Any, event: Any, now_s: float) -> tuple[Any, Any]:
    """The grace that is meant for others is added to the own lease, as Hudi does."""
    del now_s
    after, effect = real.step(me, state, event)
    if isinstance(event, PutWon) and isinstance(after, Held):
        return replace(after, deadline_s=after.deadline_s + me.settings.margin_s + GRACE_MS / 1000), effect
    return after, effect


def _follows_the_clock_back(me: Me, state: Any, event: Any, now_s: float) -> tuple[Any, Any]:
    """A renewal writes the wall clock plus the validity, whatever was promised before."""
    del now_s
    after, effect = real.step(me, state, event)
    if isinstance(event, Renew) and isinstance(effect, PutRecord):
        record = replace(effect.record, valid_until_ms=event.at.now_ms + round(me.settings.validity * 1000))
        return replace(after, record=record), replace(effect, record=record)
    return after, effect


def _renewal_is_believed_before_it_is_known(me: Me, state: Any, event: Any, now_s: float) -> tuple[Any, Any]:
    """A renewal without an answer counts as done."""
    if isinstance(event, PutFailed) and isinstance(state, Writing) and state.purpose == "renew" and state.before:
        deadline_s = now_s + me.settings.validity - me.settings.margin_s
        return replace(state.before, deadline_s=deadline_s), None
    return real.step(me, state, event)


def _what_is_given_back_does_not_lapse(me: Me, state: Any, event: Any, now_s: float) -> tuple[Any, Any]:
    """Nothing is believed in while a release is in doubt, so nothing ends."""
    del now_s
    return (state, None) if isinstance(event, Tick) and real.belief(state) is None else real.step(me, state, event)


EQUAL = Clocks()
AHEAD = Clocks((0.0, ALLOWANCE_S))
STEPPED_BACK = Clocks(step_back_s=3600.0)

CLOCKS: dict[str, tuple[str, Clocks, Timed]] = {
    "the deadline counts from the answer": ("one", EQUAL, _from_the_answer),
    "the own lease gets the grace of others": ("one", AHEAD, _slack_for_itself),
    "a renewal follows the wall clock back": ("one", STEPPED_BACK, _follows_the_clock_back),
    "a lease that may have been given back does not lapse": ("told", EQUAL, _what_is_given_back_does_not_lapse),
    "a renewal counts before it is known": ("one", EQUAL, _renewal_is_believed_before_it_is_known),
}
