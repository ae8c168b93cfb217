"""The lease machine, row by row of its table."""

from __future__ import annotations

from dataclasses import replace

import pytest

from fsspec_cas import ABSENT, Version
from lockprovider import Holder, LockRecord, LockSettings, Log, Pending
from lockprovider.settings import GRACE_MS, HAND_OVER_S
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
    Look,
    Lost,
    LostRace,
    PutFailed,
    PutRecord,
    PutWon,
    ReadRecord,
    RecordSeen,
    Release,
    Renew,
    Rolling,
    TakeLock,
    Tick,
    Writing,
    belief,
    settle_commit,
    step,
)
from lockprovider.storage_lock.polling import with_waiter, yield_left_s
from lockprovider.storage_lock.record import Me, Moment

SETTINGS = LockSettings(validity=100, renew=10)  # so the margin is 10 s
ME = Me("me", SETTINGS, "host", 7)
NOW_MS, NOW_S = 1_000_000, 50.0
V1, V2, V3 = (Version("test", str(n)) for n in (1, 2, 3))
PENDING = Pending("state/7", "staged/1", "d1")
OTHERS = LockRecord("other", NOW_MS + 60_000, expired=False, epoch=41, nonce="x")


def at(nonce: str = "n1", *, ms: int = 0, s: float = 0.0) -> Moment:
    return Moment(NOW_MS + ms, NOW_S + s, nonce)


def held(pending: Pending | None = None) -> Held:
    (_, put), won = step(ME, Idle(), TakeLock(RecordSeen(None, None, at()))), None
    del won
    record = replace(put.record, pending=pending)
    return Held(record, V1, NOW_S + 90, NOW_MS - round(NOW_S * 1000))


def taking(seen: LockRecord | None, moment: Moment | None = None) -> tuple[object, object]:
    version = None if seen is None else V1
    return step(ME, Idle(), TakeLock(RecordSeen(seen, version, moment or at())))


# -- taking ------------------------------------------------------------------------------------------------------------


def test_client_acquires_by_a_write_at_the_version_it_read() -> None:
    released = replace(held().record, expired=True, pending=PENDING)
    for state in (Idle(), Idle((released, V2)), Lost("why")):
        writing, put = step(ME, state, TakeLock(RecordSeen(released, V2, at("n2", ms=-5)), ("a", "b")))
        assert isinstance(writing, Writing)
        assert put.condition == V2
        assert put.record.epoch == released.epoch + 1
        assert put.record.pending == PENDING, "what is pending is copied"
        assert put.record.waiters == ("a", "b"), "who waits from then on is said by whoever takes it"


def test_absent_record_is_created() -> None:
    state, put = taking(None)
    assert isinstance(state, Writing)
    assert put.condition == ABSENT
    assert put.record == LockRecord(
        "me", NOW_MS + 100_000, expired=False, epoch=NOW_MS, nonce="n1", pending=None, holder=put.record.holder
    )
    assert (put.record.holder.host, put.record.holder.pid, put.record.holder.since_ms) == ("host", 7, NOW_MS)


@pytest.mark.parametrize(
    ("after_ms", "taken"), [(0, False), (GRACE_MS, False), (GRACE_MS + 1, True)], ids=["valid", "grace", "lapsed"]
)
def test_record_of_another_is_taken_over_only_after_lapse_and_grace(after_ms: int, taken: bool) -> None:
    state, effect = taking(replace(OTHERS, valid_until_ms=NOW_MS - after_ms))
    assert isinstance(state, Writing) == taken
    if taken:
        assert effect.condition == V1
    else:
        assert (state, effect) == (Idle(), Busy("other", NOW_MS - after_ms, None))


def test_released_record_is_taken_whatever_its_validity() -> None:
    state, put = taking(replace(OTHERS, expired=True, pending=PENDING))
    assert isinstance(state, Writing)
    assert put.record.pending == PENDING


def test_own_valid_record_is_taken_again_with_a_higher_epoch() -> None:
    state, put = taking(replace(OTHERS, owner="me", epoch=NOW_MS + 9))
    assert isinstance(state, Writing)
    assert put.record.epoch == NOW_MS + 10


@pytest.mark.parametrize(("seen", "epoch"), [(0, NOW_MS), (41, NOW_MS), (NOW_MS, NOW_MS + 1), (NOW_MS + 7, NOW_MS + 8)])
def test_epoch_exceeds_the_one_read_and_is_not_below_the_clock(seen: int, epoch: int) -> None:
    _, put = taking(replace(OTHERS, expired=True, epoch=seen))
    assert put.record.epoch == epoch


def test_epoch_exceeds_all_seen_ones_also_after_a_jvm_writer_dropped_it() -> None:
    jvm = LockRecord("jvm", NOW_MS, expired=True)
    for seen in (RecordSeen(jvm, V1, at()), RecordSeen(None, None, at())):
        assert step(ME, Idle(), TakeLock(seen, epoch=NOW_MS + 5000))[1].record.epoch == NOW_MS + 5001
    assert taking(jvm)[1].record.epoch == NOW_MS, "of another client it knows nothing"


# -- what became of a write --------------------------------------------------------------------------------------------


def test_acquired_lease_ends_at_validity_less_margin_after_sending() -> None:
    state, put = taking(None)
    after, done = step(ME, state, PutWon(V1))
    assert done == Done("acquired")
    assert after == Held(put.record, V1, NOW_S + 90, NOW_MS - 50_000)


def test_acquisition_applies_a_pending_publish_first() -> None:
    state, _ = taking(replace(OTHERS, expired=True, pending=PENDING))
    rolling, effect = step(ME, state, PutWon(V2))
    assert effect == Apply(PENDING)
    after, done = step(ME, rolling, AppliedPending())
    assert done == Done("acquired")
    assert isinstance(after, Held)


@pytest.mark.parametrize("event", [Renew, Release, lambda moment: Commit(PENDING, moment)])
def test_refused_or_unanswered_write_is_read_back(event: object) -> None:
    writing, _ = step(ME, held(), event(at("n2")))
    checking, effect = step(ME, writing, PutFailed())
    assert effect == ReadRecord()
    assert isinstance(checking, Checking)
    assert step(ME, checking, Look()) == (checking, ReadRecord())


@pytest.mark.parametrize(
    ("event", "what"), [(Renew(at("n2", s=10)), "renewed"), (Commit(PENDING, at("n2", s=10)), "committed")], ids=str
)
def test_own_nonce_in_the_record_means_that_the_write_landed(event: object, what: str) -> None:
    writing, put = step(ME, held(), event)
    checking, _ = step(ME, writing, PutFailed())
    state, effect = step(ME, checking, RecordSeen(put.record, V2, at("n3", s=70)))
    if isinstance(state, Rolling):
        assert effect == Apply(PENDING)
        state, effect = step(ME, state, AppliedPending())
    assert effect == Done(what)
    assert (state.version, state.deadline_s) == (V2, NOW_S + 100), "10 s later than before, not 70"


def test_own_older_record_means_not_written_and_prolongs_nothing() -> None:
    before = held()
    writing, _ = step(ME, before, Renew(at("n2", s=10)))
    checking, _ = step(ME, writing, PutFailed())
    assert step(ME, checking, RecordSeen(before.record, V1, at("n3", s=20))) == (before, Done("not_written"))


@pytest.mark.parametrize("landed", [False, True], ids=["the renewal is not there", "the renewal is there"])
def test_publish_applied_during_a_doubtful_renewal_is_not_applied_again(*, landed: bool) -> None:
    writing, put = step(ME, Rolling(held(PENDING), "acquired"), Renew(at("n2", s=10)))
    checking, _ = step(ME, writing, PutFailed())
    checking, nothing = step(ME, checking, AppliedPending())
    assert nothing is None
    seen = put.record if landed else writing.before.record
    state, _ = step(ME, checking, RecordSeen(seen, V2, at("n3")))
    assert isinstance(state, Held)


def test_older_copy_of_a_publish_that_landed_late_is_the_publish() -> None:
    mine = Held(replace(WAITED_FOR, log=Log("old")), V1, NOW_S + 80, 0)
    writing, first = step(ME, mine, Commit(PENDING, at("n2")))
    checking, _ = step(ME, writing, PutFailed())
    again, done = step(ME, checking, RecordSeen(mine.record, V1, at("n3")))
    assert done == Done("not_written")
    writing, _ = step(ME, again, Commit(PENDING, at("n4")))
    checking, _ = step(ME, writing, PutFailed())
    state, effect = step(ME, checking, RecordSeen(first.record, V2, at("n5")))
    assert effect == Apply(PENDING)
    assert first.record.log == Log("old").plus(PENDING)
    assert state.held.record == first.record


def test_logged_publish_is_not_logged_again() -> None:
    """As when it is published again, because nobody could tell what had become of it."""
    log = Log("old").plus(PENDING)
    mine = Held(replace(WAITED_FOR, log=log, pending=PENDING), V1, NOW_S + 80, 0)
    _, put = step(ME, mine, Commit(replace(PENDING, staged="staged/again"), at("n2")))
    assert put.record.log == log


def test_own_older_commit_that_landed_late_is_finished_first() -> None:
    before = held()
    late = replace(before.record, nonce="late", pending=PENDING)
    writing, _ = step(ME, before, Renew(at("n2")))
    checking, _ = step(ME, writing, PutFailed())
    rolling, done = step(ME, checking, RecordSeen(late, V2, at("n3")))
    assert done == Done("not_written")
    assert isinstance(rolling, Rolling)
    with pytest.raises(ValueError, match="Commit does not belong to Rolling"):
        step(ME, rolling, Commit(PENDING, at("n4")))
    after, _ = step(ME, rolling, AppliedPending())
    assert (after.version, after.deadline_s) == (V2, before.deadline_s)


@pytest.mark.parametrize(
    "seen",
    [None, OTHERS, replace(OTHERS, owner="me", epoch=NOW_MS + 1), replace(held().record, expired=True)],
    ids=["gone", "anothers", "mine, another epoch", "broken"],
)
@pytest.mark.parametrize("event", [Renew(at("n2")), Commit(PENDING, at("n2"))], ids=["renew", "commit"])
def test_any_other_record_means_that_the_lease_is_lost(event: object, seen: LockRecord | None) -> None:
    writing, _ = step(ME, held(), event)
    checking, _ = step(ME, writing, PutFailed())
    state, effect = step(ME, checking, RecordSeen(seen, None if seen is None else V3, at("n3")))
    assert isinstance(state, Lost)
    assert isinstance(effect, Ended)


def test_only_an_acquisition_that_surely_lost_ends_without_a_read() -> None:
    writing, _ = taking(None)
    assert step(ME, writing, LostRace()) == (Idle(), Busy())
    renewing, _ = step(ME, held(), Renew(at("n2")))
    with pytest.raises(ValueError, match="LostRace does not belong to Writing"):
        step(ME, renewing, LostRace())


@pytest.mark.parametrize("seen", [OTHERS, replace(OTHERS, expired=True), replace(OTHERS, owner="me"), None])
def test_doubtful_acquisition_missing_from_the_record_is_over(seen: LockRecord | None) -> None:
    writing, _ = taking(None)
    checking, _ = step(ME, writing, PutFailed())
    said = Busy() if seen is None else Busy(seen.owner, seen.valid_until_ms, None)
    assert step(ME, checking, RecordSeen(seen, None if seen is None else V2, at("n2"))) == (Idle(), said)


@pytest.mark.parametrize("seen", [None, OTHERS], ids=["gone", "anothers"])
def test_release_that_finds_record_of_another_is_done(seen: LockRecord | None) -> None:
    writing, _ = step(ME, held(), Release(at("n2")))
    checking, _ = step(ME, writing, PutFailed())
    assert step(ME, checking, RecordSeen(seen, None if seen is None else V2, at("n3"))) == (Idle(), Done("released"))


# -- holding -----------------------------------------------------------------------------------------------------------


def test_release_is_a_tombstone_that_keeps_the_epoch() -> None:
    writing, put = step(ME, held(), Release(at("n2")))
    assert put.condition == V1
    assert (put.record.expired, put.record.epoch, put.record.pending) == (True, NOW_MS, None)
    state, done = step(ME, writing, PutWon(V2))
    assert (state, done) == (Idle((put.record, V2)), Done("released"))


@pytest.mark.parametrize("event", [Renew(at("n2")), Release(at("n2"))], ids=["renew", "release"])
def test_record_keeps_unapplied_publishes_and_drops_applied_ones(event: object) -> None:
    mine = held(PENDING)
    assert step(ME, Rolling(mine, "committed"), event)[1].record.pending == PENDING
    assert step(ME, mine, event)[1].record.pending is None


@pytest.mark.parametrize("answered", [True, False])
@pytest.mark.parametrize("then", ["acquired", "committed"])
def test_renewal_while_something_is_applied_is_only_a_renewal(then: str, answered: bool) -> None:
    writing, put = step(ME, Rolling(held(PENDING), then), Renew(at("n2", s=10)))
    if answered:
        state, done = step(ME, writing, PutWon(V2))
    else:
        state, done = step(ME, step(ME, writing, PutFailed())[0], RecordSeen(put.record, V2, at("n3")))
    assert done == Done("renewed")
    assert state.held.deadline_s == NOW_S + 100
    after, done = step(ME, state, AppliedPending())
    assert (after, done) == (state.held, Done(then))


def test_no_commit_is_sent_while_a_publish_is_unapplied() -> None:
    with pytest.raises(ValueError, match="Commit does not belong to Rolling"):
        step(ME, Rolling(held(PENDING), "acquired"), Commit(PENDING, at("n2")))


def test_backward_clock_step_does_not_shorten_the_published_validity() -> None:
    _, put = step(ME, held(), Renew(at("n2", ms=10_000 - 3_600_000, s=10)))
    assert put.record.valid_until_ms == NOW_MS + 10_000 + 100_000


def test_forward_clock_step_does_not_move_the_own_deadline() -> None:
    writing, put = step(ME, held(), Renew(at("n2", ms=3_600_000, s=10)))
    assert put.record.valid_until_ms == NOW_MS + 3_600_000 + 100_000
    assert step(ME, writing, PutWon(V2))[0].deadline_s == NOW_S + 10 + 90
    _, again = step(ME, step(ME, writing, PutWon(V2))[0], Renew(at("n3", ms=20_000, s=20)))
    assert again.record.valid_until_ms == NOW_MS + 20_000 + 100_000, "back to what the monotonic clock says"


@pytest.mark.parametrize(("now_s", "lost"), [(NOW_S + 89.9, False), (NOW_S + 90, True)])
@pytest.mark.parametrize("rolling", [False, True])
def test_lease_is_lost_at_its_deadline_without_a_successor(now_s: float, lost: bool, rolling: bool) -> None:
    before = Rolling(held(PENDING), "acquired") if rolling else held()
    state, effect = step(ME, before, Tick(now_s))
    assert isinstance(state, Lost) == isinstance(effect, Ended) == lost
    assert lost or state == before


def test_write_in_flight_at_the_deadline_is_followed_and_loss_is_reported() -> None:
    writing, _ = step(ME, held(), Renew(at("n2")))
    for state in (writing, Checking(writing)):
        after, effect = step(ME, state, Tick(NOW_S + 90))
        assert after == state
        assert isinstance(effect, Ended)


def test_lease_stays_valid_during_a_renewal_and_not_during_a_release() -> None:
    mine = held()
    for event, believed in ((Renew(at("n2")), mine), (Commit(PENDING, at("n2")), mine), (Release(at("n2")), None)):
        writing, _ = step(ME, mine, event)
        assert belief(writing) == belief(Checking(writing)) == believed
    assert belief(Idle()) is belief(Lost("")) is None
    assert belief(mine) == belief(Rolling(mine, "acquired")) == mine


@pytest.mark.parametrize(
    ("state", "event"),
    [
        (Idle(), Renew(at())),
        (Idle(), PutWon(V1)),
        (Lost(""), Commit(PENDING, at())),
        (Idle(), PutFailed()),
        (held(), TakeLock(RecordSeen(None, None, at()))),
        (held(), RecordSeen(None, None, at())),
        (step(ME, held(), Renew(at()))[0], Renew(at())),
        (Checking(step(ME, held(), Renew(at()))[0]), PutWon(V1)),
    ],
    ids=lambda thing: type(thing).__name__,
)
def test_event_invalid_in_a_state_raises(state: object, event: object) -> None:
    with pytest.raises(ValueError, match=f"{type(event).__name__} does not belong to {type(state).__name__}"):
        step(ME, state, event)


# -- a commit in doubt -------------------------------------------------------------------------------------------------

MINE = LockRecord("me", NOW_MS, expired=False, epoch=9, nonce="a")


@pytest.mark.parametrize(
    ("seen", "there", "verdict"),
    [
        (OTHERS, "d1", "committed"),
        (None, "d1", "committed"),
        (replace(OTHERS, pending=PENDING), None, "apply"),
        (replace(MINE, pending=PENDING), None, "apply"),
        (replace(MINE, pending=PENDING, expired=True), None, "apply"),
        (OTHERS, None, "not_committed"),
        (replace(OTHERS, pending=Pending("state/8", "s", "d1")), None, "not_committed"),
        (OTHERS, "d2", "not_committed"),
        (None, None, "not_committed"),
        (replace(MINE, expired=True), None, "not_committed"),
        (replace(MINE, epoch=10), None, "not_committed"),
        (MINE, None, "unknown"),
    ],
)
def test_commit_in_doubt_is_settled_by_the_record_and_the_object(
    seen: LockRecord | None, there: str | None, verdict: str
) -> None:
    assert settle_commit(PENDING, "me", 9, seen, there) == verdict


def test_write_is_only_ever_sent_under_a_condition() -> None:
    effects = [taking(None)[1], taking(replace(OTHERS, expired=True))[1]]
    effects += [step(ME, held(), event)[1] for event in (Renew(at()), Release(at()), Commit(PENDING, at()))]
    assert all(isinstance(put, PutRecord) for put in effects)
    assert [put.condition for put in effects] == [ABSENT, V1, V1, V1, V1]


# -- the line ----------------------------------------------------------------------------------------------------------

FREED = LockRecord("other", NOW_MS, expired=True, epoch=41, nonce="x", waiters=("a", "b", "p", "c"), freed_ms=NOW_MS)


def test_client_that_releases_and_returns_is_last_of_the_waiters() -> None:
    holds = replace(held(), record=replace(held().record, waiters=("a",)))
    for again, line in ((True, ("a", "p")), (False, ("a",))):
        _, put = step(replace(ME, waiter_name="p"), holds, Release(at("n2"), again))
        assert (put.record.waiters, put.record.freed_ms) == (line, NOW_MS)
    _, put = step(ME, held(), Release(at("n2")))
    assert (put.record.waiters, put.record.freed_ms) == ((), 0)


def test_holder_finds_its_lease_at_the_version_of_a_joining_waiter() -> None:
    holds = held()
    there = with_waiter(holds.record, "b")
    assert there.without_waiters() == holds.record
    writing, _ = step(ME, holds, Renew(at("n2")))
    checking, _ = step(ME, writing, PutFailed())
    after, done = step(ME, checking, RecordSeen(there, V2, at()))
    assert done == Done("not_written")
    assert after == replace(holds, record=there, version=V2)
    _, put = step(ME, after, Release(at("n3")))
    assert (put.condition, put.record.waiters) == (V2, ("b",))


def test_write_with_lost_answer_keeps_waiters_that_joined_since() -> None:
    writing, put = step(ME, held(), Renew(at("n2")))
    checking, _ = step(ME, writing, PutFailed())
    after, done = step(ME, checking, RecordSeen(with_waiter(put.record, "b"), V2, at()))
    assert done == Done("renewed")
    assert (after.record.waiters, after.version) == (("b",), V2)


def test_waiter_is_added_once() -> None:
    assert with_waiter(FREED, "b") is FREED


def took_turn(record: LockRecord) -> PutRecord:
    _, put = taking(record)
    assert isinstance(put, PutRecord)
    return put


def test_turn_length_is_a_running_mean_over_awaited_turns() -> None:
    took = replace(FREED, waiters=("p", "a"), holder=Holder("h", 1, NOW_MS - 80))
    assert took_turn(took).record.turn_ms == 80
    assert took_turn(replace(took, turn_ms=48)).record.turn_ms == 50
    assert took_turn(replace(took, turn_ms=16)).record.turn_ms == 17, "no outlier counts whole"
    assert took_turn(replace(took, waiters=(), turn_ms=16)).record.turn_ms == 0
    lay_there = replace(took, freed_ms=NOW_MS - 60, holder=Holder("h", 1, NOW_MS - 9060))
    assert took_turn(lay_there).record.turn_ms == 4560, "a long one counts only so far"
    lay_there = replace(took, freed_ms=NOW_MS - 9000, holder=Holder("h", 1, NOW_MS - 9060))
    assert took_turn(lay_there).record.turn_ms == 160, "for how long nobody came is not part of it"
    ahead_of_us = replace(took, turn_ms=16, holder=Holder("h", 1, NOW_MS + 10**9))
    assert took_turn(ahead_of_us).record.turn_ms >= 1


# -- handing over ------------------------------------------------------------------------------------------------------

WAITED_FOR = replace(OTHERS, owner="me", epoch=NOW_MS, waiters=("next",))


def handing_over() -> PutRecord:
    """A release of one that could not apply what is pending."""
    mine = Held(replace(WAITED_FOR, pending=PENDING), V1, NOW_S + 80, NOW_MS - round(NOW_S * 1000))
    _, put = step(ME, Rolling(mine, "acquired"), Release(at("n2")))
    assert isinstance(put, PutRecord)
    return put


def test_foreign_client_sees_a_lease_until_the_publish_is_surely_applied() -> None:
    put = handing_over()
    assert not put.record.expired
    assert put.record.valid_until_ms == NOW_MS + 1000 * HAND_OVER_S


def test_lock_released_with_pending_publishes_is_taken_and_applied_first() -> None:
    put = handing_over()
    them = Me("them", SETTINGS, waiter_name="next")
    state, take = step(them, Idle(), TakeLock(RecordSeen(put.record, V2, at("n3"))))
    assert isinstance(take, PutRecord)
    assert (take.record.owner, take.record.pending, take.record.released_pending) == ("them", PENDING, False)
    assert step(them, state, PutWon(V3))[1] == Apply(PENDING)


def test_late_time_of_a_handed_over_lock_is_kept_for_every_allowed_clock() -> None:
    put = handing_over()
    until_ms = put.record.valid_until_ms
    _, take = step(Me("them", SETTINGS), Idle(), TakeLock(RecordSeen(put.record, V2, at("n3"))))
    assert isinstance(take, PutRecord)
    assert take.record.pending_until_ms == until_ms
    freed = replace(take.record, expired=True, pending=None)
    for ms, pending_until_ms in ((60_000, until_ms), (60_001, 0)):
        later = at("n4", ms=until_ms - NOW_MS + ms)
        _, again = step(Me("more", SETTINGS), Idle(), TakeLock(RecordSeen(freed, V3, later)))
        assert isinstance(again, PutRecord)
        assert again.record.pending_until_ms == pending_until_ms


def test_renewal_that_finds_the_lock_released_ends_the_lease() -> None:
    put = handing_over()
    renewing, _ = step(ME, Held(WAITED_FOR, V1, NOW_S + 80, NOW_MS - round(NOW_S * 1000)), Renew(at("n6")))
    checking, _ = step(ME, renewing, PutFailed())
    _, done = step(ME, checking, RecordSeen(put.record, V2, at("n7")))
    assert isinstance(done, Ended)
    assert "with pending publishes" in done.why


# -- the log -----------------------------------------------------------------------------------------------------------


def taken(seen: LockRecord | None, *, keeps_log: bool) -> LockRecord:
    _, put = step(ME, Idle(), TakeLock(RecordSeen(seen, None if seen is None else V1, at("n8")), keeps_log=keeps_log))
    assert isinstance(put, PutRecord)
    return put.record


def test_log_keeping_client_continues_or_begins_the_log_and_others_drop_it() -> None:
    log = Log("old").plus(PENDING)
    freed = replace(OTHERS, expired=True, log=log)
    assert taken(freed, keeps_log=True).log == log
    assert taken(freed, keeps_log=False).log is None
    assert taken(replace(freed, log=None), keeps_log=True).log == Log("n8")
    assert taken(None, keeps_log=True).log == Log("n8")


def test_decided_publish_is_in_the_log_from_that_write_on() -> None:
    mine = Held(replace(WAITED_FOR, log=Log("old")), V1, NOW_S + 80, 0)
    _, put = step(ME, mine, Commit(PENDING, at("n2")))
    assert isinstance(put, PutRecord)
    assert put.record.log == Log("old").plus(PENDING)


def test_logged_commit_was_decided_and_applied() -> None:
    later = replace(OTHERS, log=Log("old").plus(PENDING))
    assert settle_commit(PENDING, "me", 40, later, None) == "committed"
    assert settle_commit(replace(PENDING, path="state/8"), "me", 40, later, None) == "not_committed"


def test_new_log_begins_with_publishes_that_are_being_applied() -> None:
    """Else one that looks before it is applied would not be told."""
    left = replace(OTHERS, expired=True, pending=PENDING)
    assert taken(left, keeps_log=True).log == Log("n8").plus(PENDING)


# -- what several have decided ----------------------------------------------------------------------------------------


def small(name: str) -> Pending:
    return Pending(name, "", f"d {name}", name.encode(), unshared=True)


FIRST, SECOND, MINE = small("first"), small("second"), small("mine")
GIVEN = replace(
    WAITED_FOR,
    owner="them",
    expired=True,
    waiters=(),
    pending=SECOND,
    pending_before=(FIRST,),
    log=Log("a").plus(FIRST).plus(SECOND),
)


def test_acquisition_applies_all_pending_publishes() -> None:
    state, put = taking(GIVEN)
    assert put.record.all_pending == (FIRST, SECOND)
    assert step(ME, state, PutWon(V2))[1] == Apply(SECOND, (FIRST,))


# -- rests for those who know nothing of the line ----------------------------------------------------------------------

BY_JVM = LockRecord("jvm", NOW_MS, expired=True)
REST_MS, REST_EVERY_MS = 1200, 15_000


def released(record: LockRecord, ms: int) -> LockRecord:
    """By its holder, so much later."""
    mine = Held(replace(record, owner="me", expired=False), V1, NOW_S + 9e9, NOW_MS - round(NOW_S * 1000))
    _, put = step(ME, mine, Release(at("n2", ms=ms)))
    assert isinstance(put, PutRecord)
    return put.record


def after_a_jvm_writer() -> LockRecord:
    _, take = taking(BY_JVM)
    assert isinstance(take, PutRecord)
    return replace(take.record, waiters=("next",))


def test_jvm_writer_that_was_seen_is_remembered_for_an_hour() -> None:
    taken = after_a_jvm_writer()
    assert taken.foreign_seen_ms == NOW_MS
    freed = replace(taken, expired=True, waiters=())
    for ms, kept in ((3_600_000, NOW_MS), (3_600_001, 0)):
        _, again = taking(freed, at("n2", ms=ms))
        assert isinstance(again, PutRecord)
        assert again.record.foreign_seen_ms == kept


@pytest.mark.parametrize(
    ("record", "ms", "rests"),
    [
        (after_a_jvm_writer(), REST_EVERY_MS, False),
        (after_a_jvm_writer(), REST_EVERY_MS + 1, True),
        (replace(after_a_jvm_writer(), yield_until_ms=NOW_MS + 100), REST_EVERY_MS + 100, False),
        (replace(after_a_jvm_writer(), waiters=()), REST_EVERY_MS + 1, False),
        (replace(after_a_jvm_writer(), foreign_seen_ms=0), REST_EVERY_MS + 1, False),
    ],
    ids=["just seen", "due", "rested a moment ago", "nobody waits", "none was seen"],
)
def test_released_lock_is_periodically_left_to_a_jvm_writer(record: LockRecord, ms: int, rests: bool) -> None:
    freed = released(record, ms)
    assert (freed.yield_until_ms == NOW_MS + ms + REST_MS) == rests
    assert (yield_left_s(freed, NOW_MS + ms) > 0) == rests


def test_yield_window_far_in_the_future_is_a_clock_error() -> None:
    assert yield_left_s(replace(OTHERS, expired=True, yield_until_ms=NOW_MS + REST_MS + 1), NOW_MS) == 0
