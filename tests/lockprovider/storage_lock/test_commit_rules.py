"""What one write decides, what became of an intent, and what is to be done next: pure."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace

import pytest
from deciding import ANEW, DEAD, ELSEWHERE, FAILS, NOT_HERE, Met, Rules

from lockprovider import Intent, LockRecord, Log, LogEntry, Pending
from lockprovider.settings import GRACE_MS, HAND_OVER_S
from lockprovider.storage_lock import commit_rules
from lockprovider.storage_lock.commit_rules import (
    MOST_PENDING,
    AwaitOthers,
    Combine,
    Decided,
    Free,
    Hold,
    PollAgain,
    Post,
    Refused,
    Rest,
    Situation,
    StepDown,
    Undecided,
    Void,
    Wait,
    Waiting,
    WriteRecord,
    after_listing,
    choose,
    latest_first_poll_s,
    may_write,
    next_act,
    next_step,
    verdict,
)
from lockprovider.storage_lock.polling import LONGEST_S
from lockprovider.storage_lock.record import Moment

NOW_MS = 1_700_000_000_000
RULES = Rules()
TOO_LARGE = bytes(range(256)) * 200  # 50 KB


def intent(name: str, place: int = 0, body: bytes = b"-", log: str = "log") -> Intent:
    return Intent(log, place, f"{name}.", body)


def published(*names: str) -> tuple[Pending, ...]:
    return tuple(Pending.of_bytes(f"{name}.{place}", b"-") for place, name in enumerate(names))


def log_of(*names: str) -> Log:
    log = Log("log")
    for pending in published(*names):
        log = log.plus(pending)
    return log


def names(batch: Sequence[Pending]) -> list[str]:
    return [pending.path for pending in batch]


def record_of(*names: str, unapplied: int = 0) -> LockRecord:
    """Given back, but that the last of these are not known to be there."""
    left = published(*names)[len(names) - unapplied :]
    return LockRecord(
        "other",
        NOW_MS + 10_000,
        expired=not left,
        epoch=7,
        nonce="n7",
        log=log_of(*names),
        released_pending=bool(left),
        pending=left[-1] if left else None,
        pending_before=left[:-1],
        freed_ms=NOW_MS - 1000,
    )


def combined(
    seen: LockRecord, *intents: Intent, last_applied: Pending | None = None, combiner_ms: int = 0
) -> LockRecord:
    assert seen.log is not None
    batch = choose(seen.log, seen.all_pending, intents, RULES, NOW_MS)
    return commit_rules.combine(
        DEAD, seen, batch, Moment(NOW_MS, 5.0, "n8"), last_applied=last_applied, combiner_ms=combiner_ms
    )


# -- what one write decides --------------------------------------------------------------------------------------------


def test_waiting_intents_are_decided_in_the_order_of_their_stems() -> None:
    assert names(choose(log_of("a"), (), [intent("d"), intent("b"), intent("c")], RULES, 0)) == ["b.1", "c.2", "d.3"]


def test_first_of_two_conflicting_intents_is_decided() -> None:
    chosen = choose(log_of("a"), (), [intent("c", 1, b"b"), intent("b", 1, b"c"), intent("d", 1)], RULES, 0)
    assert names(chosen) == ["b.1", "d.2"]


def test_intent_conflicts_only_with_entries_after_its_log_position() -> None:
    assert choose(log_of("a", "b"), (), [intent("c", 1, b"b")], RULES, 0) == ()
    assert names(choose(log_of("a", "b"), (), [intent("c", 2, b"b")], RULES, 0)) == ["c.2"]


@pytest.mark.parametrize(
    "left",
    [
        intent("a"),
        intent("c", 3),
        intent("c", log="another"),
        Intent("log", 2, "c.", b""),
        intent("c", 1, ANEW),
        intent("c", 2, NOT_HERE),
        intent("c", 2, TOO_LARGE),
        intent("c", 2, ELSEWHERE),
        intent("c", 2, FAILS),
    ],
    ids=[
        *("decided before", "of a place to come", "of another log", "withdrawn", "anew", "not from here", "too large"),
        *("under another name", "that nobody can decide"),
    ],
)
def test_undecidable_intent_is_skipped_and_blocks_no_other(left: Intent) -> None:
    assert names(choose(log_of("a", "b"), (), [left, intent("d", 2), intent("e", 2)], RULES, 0)) == ["d.2", "e.3"]


def test_intent_at_a_dropped_log_position_is_void() -> None:
    log = log_of(*(f"n{number}" for number in range(200)))
    assert log.first > 0
    assert choose(log, (), [intent("x", log.first - 1)], RULES, 0) == ()
    assert len(choose(log, (), [intent("x", log.first)], RULES, 0)) == 1


def test_intent_posted_again_for_a_later_position_is_decided_once() -> None:
    assert names(choose(log_of("a", "b"), (), [intent("c", 1), intent("c", 2)], RULES, 0)) == ["c.2"]


def test_number_of_decided_intents_is_bounded_by_the_time_to_apply() -> None:
    many = [intent(f"n{number:03}", 2) for number in range(100)]
    assert len(choose(log_of("a", "b"), (), many, RULES, 0)) == MOST_PENDING
    assert len(choose(log_of("a", "b"), published("a", "b"), many, RULES, 0)) == MOST_PENDING - 2


def test_unapplied_entries_stay_in_the_log() -> None:
    wanted = [Intent("log", 1, f"n{number}.", random.Random(number).randbytes(3000)) for number in range(10)]
    batch = choose(log_of("a"), published("a"), wanted, RULES, 0)
    assert 0 < len(batch) < 10
    log = log_of("a")
    for pending in batch:
        log = log.plus(pending)
    assert log.ends_with((*published("a"), *batch))


# -- the record --------------------------------------------------------------------------------------------------------


def test_record_holds_decided_publishes_and_keeps_foreign_clients_away() -> None:
    seen = record_of("a", "b", unapplied=1)
    record = combined(seen, intent("c", 2), intent("d", 2), combiner_ms=90)
    assert names(record.all_pending) == ["b.1", "c.2", "d.3"]
    assert record.log is not None
    assert [entry.path for entry in record.log.entries] == ["a.0", "b.1", "c.2", "d.3"]
    assert (record.released_pending, record.expired, record.is_free) == (True, False, True)
    assert record.valid_until_ms == NOW_MS + HAND_OVER_S * 1000
    assert (record.epoch, record.nonce, record.owner, record.combiner_ms) == (NOW_MS, "n8", "dead", 90)
    assert LockRecord.decode(record.encode()) == record


def test_record_drops_applied_publishes_and_all_earlier_ones() -> None:
    seen = record_of("a", "b", "c", unapplied=3)
    assert names(combined(seen, intent("d", 3), last_applied=seen.all_pending[1]).all_pending) == ["c.2", "d.3"]
    free = combined(seen, last_applied=seen.all_pending[2])
    assert (free.expired, free.released_pending, free.all_pending) == (True, False, ())
    assert free.log == seen.log


def test_epoch_rises_whatever_the_local_clock_says() -> None:
    seen = replace(record_of("a"), epoch=NOW_MS + 5)
    assert combined(seen).epoch == NOW_MS + 6


def test_record_tells_removers_until_when_late_publishes_may_come() -> None:
    seen = record_of("a", "b", unapplied=1)
    assert combined(seen, last_applied=seen.all_pending[-1]).pending_until_ms == seen.valid_until_ms


@pytest.mark.parametrize(
    ("may", "fields"),
    [
        (True, {}),
        (False, {"expired": False}),
        (False, {"log": None}),
        (False, {"pending": Pending("state", "staged", "digest")}),
        (False, {"pending": Pending("state", "", "digest", b"not in the log", unshared=True)}),
    ],
    ids=["free", "held", "no log", "staged", "not told by the log"],
)
def test_record_decides_whether_a_write_without_the_lock_may_decide(may: bool, fields: dict[str, object]) -> None:
    assert may_write(replace(record_of("a"), **fields)) == may  # type: ignore[arg-type]
    assert may_write(record_of("a", "b", unapplied=2))


# -- what became of one ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("mine", "came"),
    [
        (intent("a", 0), Decided("a.0")),
        (intent("b", 2), Decided("b.1")),
        (intent("c", 1), Undecided()),
        (intent("c", 2), Undecided()),
        (intent("c", 1, ANEW), Void()),
        (intent("c", 2, ANEW), Undecided()),
        (intent("c", 3), Void()),
        (intent("c", 1, log="another"), Void()),
    ],
)
def test_log_reports_the_outcome_of_an_intent(mine: Intent, came: object) -> None:
    assert verdict(log_of("a", "b"), mine, RULES) == came


def test_nothing_can_be_decided_without_a_log() -> None:
    assert verdict(None, intent("c"), RULES) == Void()


def test_conflicting_intent_is_refused_with_the_error_for_its_writer() -> None:
    came = verdict(log_of("a", "b"), intent("c", 1, b"b"), RULES)
    assert isinstance(came, Refused)
    assert isinstance(came.error, Met)
    assert verdict(log_of("a", "b", "c"), intent("c", 1, b"b"), RULES) == Decided("c.2"), "decided is decided"


def test_refusal_check_gets_only_entries_after_the_intent_position() -> None:
    asked: list[LogEntry] = []

    class Asked(Rules):
        def refuse(self, intent: Intent, since: Sequence[LogEntry]) -> None:
            asked.extend(since)

    verdict(log_of("a", "b", "c"), intent("d", 1), Asked())
    assert [entry.path for entry in asked] == ["b.1", "c.2"]


# -- what to do next ---------------------------------------------------------------------------------------------------

FREE = record_of("a")
ON_DUTY = replace(record_of("a"), combiner_ms=600, freed_ms=NOW_MS)
WAITED_FOR = replace(FREE, waiters=("somebody",), freed_ms=NOW_MS)
HELD = replace(FREE, expired=False, valid_until_ms=NOW_MS + 60_000)


@pytest.mark.parametrize(
    ("record", "mine", "act"),
    [
        (FREE, Waiting(), WriteRecord()),
        (FREE, Waiting(refused=1), WriteRecord(leads=True)),
        (FREE, Waiting(posted=True), WriteRecord(leads=True)),
        (ON_DUTY, Waiting(age_s=0.59), Post()),
        (ON_DUTY, Waiting(posted=True, age_s=0.3), PollAgain(pytest.approx(0.2))),
        (ON_DUTY, Waiting(posted=True, age_s=0.3, writes=2), PollAgain(pytest.approx(0.301))),
        (ON_DUTY, Waiting(posted=True, writes=2), PollAgain(pytest.approx(0.4))),
        (replace(ON_DUTY, freed_ms=NOW_MS - 50), Waiting(posted=True), PollAgain(pytest.approx(0.15))),
        (replace(ON_DUTY, freed_ms=NOW_MS - 9999), Waiting(posted=True), PollAgain(pytest.approx(0.1))),
        (replace(ON_DUTY, freed_ms=NOW_MS + 9999), Waiting(posted=True), PollAgain(pytest.approx(0.2))),
        (ON_DUTY, Waiting(posted=True, waits_s=4.0), PollAgain(pytest.approx(0.5))),
        (ON_DUTY, Waiting(posted=True, waits_s=40.0), PollAgain(pytest.approx(0.601))),
        (ON_DUTY, Waiting(posted=True, age_s=0.58), PollAgain(pytest.approx(0.021))),
        (ON_DUTY, Waiting(posted=True, age_s=0.6), WriteRecord(leads=True)),
        (ON_DUTY, Waiting(age_s=0.6), WriteRecord()),
        (replace(FREE, log=None), Waiting(), Hold()),
        (replace(FREE, pending=Pending("a", "staged", "digest")), Waiting(), Hold()),
        (replace(HELD, valid_until_ms=NOW_MS - GRACE_MS - 1), Waiting(), Hold()),
        (replace(FREE, yield_until_ms=NOW_MS + 1000), Waiting(), PollAgain(1.0)),
        (replace(ON_DUTY, yield_until_ms=NOW_MS + 1000), Waiting(age_s=0.1), PollAgain(1.0)),
    ],
)
def test_next_act_of_a_client_follows_from_record_and_intents(record: LockRecord, mine: Waiting, act: object) -> None:
    assert next_step(record, mine, NOW_MS, 1.0) == act


LEFT = record_of("a", "b", unapplied=2)  # handed over, with both pending


@pytest.mark.parametrize(
    ("record", "mine", "act"),
    [
        (FREE, Situation(leads=True), Combine()),
        (HELD, Situation(leads=True), StepDown()),
        (FREE, Situation(leads=True, is_waited_for=True), StepDown()),
        (FREE, Situation(leads=True, fails=True), Combine()),
        (LEFT, Situation(LEFT.all_pending, leads=True, fails=True), StepDown()),
        (LEFT, Situation(wrote=True), Free()),
        (LEFT, Situation(wrote=True, applies=True), Wait()),
        (LEFT, Situation(wrote=True, is_waited_for=True), Rest()),
        (LEFT, Situation(LEFT.all_pending, wrote=True), Rest()),
        (LEFT, Situation(), Rest()),
        (FREE, Situation(wrote=True), Rest()),
        (LEFT, Situation(waiting=Waiting(), applies=True), Wait()),
        (LEFT, Situation(waiting=Waiting(), others_apply=True), AwaitOthers()),
        (LEFT, Situation(waiting=Waiting(), undecided=True, applies=True), WriteRecord()),
        (LEFT, Situation(waiting=Waiting(), undecided=True, is_stuck=True), Hold()),
    ],
)
def test_next_act_of_a_client_depends_on_what_it_knows(record: LockRecord, mine: Situation, act: object) -> None:
    assert next_act(record, mine, NOW_MS, 1.0) == act


@pytest.mark.parametrize(
    ("mine", "batch", "given", "act"),
    [
        (Situation(LEFT.all_pending), LEFT.all_pending, {}, WriteRecord(leads=True)),
        (Situation(LEFT.all_pending), (), {}, Wait()),
        (Situation(LEFT.all_pending), (), {"is_due": True, "empty_rounds": 9}, WriteRecord(leads=True)),
        (Situation(), (), {}, WriteRecord(leads=True)),
        (Situation(LEFT.all_pending), (), {"yields": True}, Wait()),
        (Situation(), (), {"yields": True}, StepDown(frees=True)),
    ],
)
def test_batch_leader_writes_new_or_due_intents(
    mine: Situation, batch: tuple[Pending, ...], given: dict[str, int], act: object
) -> None:
    assert after_listing(LEFT, mine, batch, **{"yields": False, "is_due": False, "empty_rounds": 0, **given}) == act


def test_batch_leader_steps_down_after_two_rounds_without_work() -> None:
    for empty_rounds, act in ((0, WriteRecord(leads=True)), (1, StepDown(frees=True))):
        came = after_listing(FREE, Situation(), (), yields=False, is_due=True, empty_rounds=empty_rounds)
        assert came == act
    waited_for = Situation(is_waited_for=True)
    assert after_listing(FREE, waited_for, (), yields=False, is_due=True, empty_rounds=1) == StepDown()


def test_first_poll_is_after_a_few_rounds_when_one_write_decides_all() -> None:
    assert latest_first_poll_s(ON_DUTY) == pytest.approx(0.8)
    assert latest_first_poll_s(replace(ON_DUTY, combiner_ms=60_000)) == latest_first_poll_s(full()) == 4.0


def full() -> LockRecord:
    """As many wait to be applied as may."""
    unapplied = tuple(Pending.of_bytes(f"{n}.", b"-") for n in range(MOST_PENDING))
    return replace(ON_DUTY, pending=unapplied[-1], pending_before=unapplied[:-1])


def test_held_lock_is_polled_with_growing_pauses_and_at_its_lapse() -> None:
    def pause_s(waits_s: float, record: LockRecord = HELD) -> float:
        act = next_step(record, Waiting(waits_s=waits_s), NOW_MS, 1.0)
        assert isinstance(act, PollAgain)
        return act.seconds

    assert [pause_s(waits_s) for waits_s in (0.0, 0.4, 2.0, 4.0, 100.0)] == [0.05, 0.1, 0.5, 1.0, 1.0]
    soon = replace(HELD, valid_until_ms=NOW_MS - GRACE_MS + 200)
    assert pause_s(100.0, soon) == pytest.approx(0.2, abs=0.002)
    assert pause_s(100.0, replace(soon, valid_until_ms=NOW_MS - GRACE_MS)) > 0


def test_client_waiting_to_hold_the_lock_goes_before_group_commits() -> None:
    assert isinstance(next_step(WAITED_FOR, Waiting(), NOW_MS, 1.0), PollAgain)
    assert next_step(WAITED_FOR, Waiting(name="somebody"), NOW_MS, 1.0) == WriteRecord(), "that is this process"
    for turn_ms, waited_for_s in ((0, 0.25), (1000, 2.0), (1_000_000, LONGEST_S)):
        seen = replace(WAITED_FOR, turn_ms=turn_ms)
        just, past = (replace(seen, freed_ms=NOW_MS - round(waited_for_s * 1000) - more) for more in (0, 1))
        assert isinstance(next_step(just, Waiting(), NOW_MS, 1.0), PollAgain)
        assert next_step(past, Waiting(), NOW_MS, 1.0) == WriteRecord()
        assert (combined(past).waiters, combined(just).waiters) == ((), ("somebody",))
    assert next_step(WAITED_FOR, Waiting(waits_s=LONGEST_S + 0.1), NOW_MS, 1.0) == WriteRecord()
