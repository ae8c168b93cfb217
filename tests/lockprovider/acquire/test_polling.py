"""When a waiting client looks again, whom it lets go first, and when it joins the line."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fsspec_cas import Version
from lockprovider import Holder, LockRecord
from lockprovider.acquire.polling import FIRST_S, Join, Observation, Pause, Waiter, join_failed, looked, passing
from lockprovider.lease.states import Busy, Passing
from lockprovider.record.line import LONGEST_S, ahead_of
from lockprovider.settings import GRACE_MS

draws = st.floats(min_value=0, max_value=1, exclude_max=True)
paces = st.floats(min_value=0.05, max_value=50)
NOW_MS = 1_000_000
HELD = LockRecord("other", NOW_MS + 60_000, expired=False, epoch=1, nonce="n", holder=Holder("h", 1, NOW_MS - 10))
V1, V2 = Version("test", "1"), Version("test", "2")


def observed(
    record: LockRecord, *, s: float = 0.0, version: Version = V1, free: bool = False, took_s: float | None = 0.01
) -> Observation:
    busy = Busy(record.owner, record.valid_until_ms, record.holder, ahead_of("p", record.line), free)
    return Observation(record, version, busy, NOW_MS + round(s * 1000), s, took_s)


def pause_s(waiter: Waiter, seen: Observation, draw: float = 0.5) -> float:
    _, what = looked(waiter, seen, draw)
    assert isinstance(what, Pause)
    return what.seconds


def in_line(ahead: int, **fields: object) -> LockRecord:
    return replace(HELD, line=(*"abcdefghijklmno"[:ahead], "p"), **fields)


# -- without a line ----------------------------------------------------------------------------------------------------


@given(st.integers(min_value=0, max_value=10**6), draws, st.integers(min_value=-(10**9), max_value=10**9), paces)
def test_a_look_is_never_later_than_the_pace_nor_much_later_than_the_lapse(n, draw, lapses_ms, poll_s) -> None:
    record = replace(HELD, valid_until_ms=NOW_MS + lapses_ms)
    pause = pause_s(Waiter("p", poll_s, looks=n), observed(record), draw)
    assert 0 <= pause <= poll_s
    assert pause <= max(0.0, (lapses_ms + GRACE_MS + 1) / 1000) + poll_s / 10


@given(draws, paces)
def test_the_first_look_comes_soon_and_later_ones_slow_down_to_the_pace(draw, poll_s) -> None:
    pauses = [pause_s(Waiter("p", poll_s, looks=n), observed(HELD), draw) for n in range(20)]
    assert pauses[0] <= 2 * FIRST_S
    assert pauses == sorted(pauses)
    assert pauses[-1] == poll_s * (1 + draw) / 2


@given(draws, st.integers(min_value=1, max_value=1200))
def test_while_the_lock_is_left_to_a_jvm_writer_nobody_looks(draw, left_ms) -> None:
    for line in ((), ("p",), ("a", "p")):
        record = replace(HELD, expired=True, line=line, turn_ms=50, rest_ms=NOW_MS + left_ms)
        assert left_ms / 1000 <= pause_s(Waiter("p", 1.0), observed(record), draw)


@pytest.mark.parametrize("waiter", [Waiter("p", 1.0, looks=9), Waiter("p", 1.0, looks=9, rivals=3)])
def test_waiters_do_not_look_all_at_once(waiter) -> None:
    lapsing = replace(HELD, valid_until_ms=NOW_MS - GRACE_MS)
    for record in (HELD, lapsing):
        assert len({pause_s(waiter, observed(record), n / 100) for n in range(100)}) == 100


@given(draws, paces)
def test_whoever_sees_others_get_it_looks_more_seldom_each_time_but_not_slower_than_the_pace(draw, poll_s) -> None:
    waiter, pauses = Waiter("p", poll_s), []
    for n in range(20):
        seen = observed(HELD, s=n * 0.2, version=Version("test", str(n)))
        waiter, what = looked(waiter, replace(seen, now_ms=NOW_MS), draw)  # each has it for as long when it is seen
        assert isinstance(what, Pause)
        pauses.append(what.seconds)
    assert waiter.rivals == 19, "the first that it saw may be the only other"
    assert pauses[1:] == sorted(pauses[1:])
    assert pauses[1] <= max(0.3, 2 * poll_s)
    assert pauses[-1] <= poll_s


def test_one_holder_that_holds_on_is_no_crowd_and_a_free_lock_is_none() -> None:
    waiter = Waiter("p", 1.0)
    for n in range(5):
        waiter, _ = looked(waiter, observed(HELD, s=n), 0.5)
    assert waiter.rivals == 0
    waiter, _ = looked(waiter, observed(replace(in_line(2), expired=True), version=V2, free=True), 0.5)
    assert waiter.rivals == 0


def test_one_with_slow_ways_to_the_store_looks_more_seldom_in_a_crowd() -> None:
    near, far = (Waiter("p", 5.0, rivals=1, version=V1, way_s=way_s) for way_s in (0.01, 0.2))
    assert pause_s(far, observed(HELD)) > 1.5 * pause_s(near, observed(HELD))


# -- in the line -------------------------------------------------------------------------------------------------------


@given(draws, st.integers(min_value=1, max_value=15), st.integers(min_value=1, max_value=4500))
def test_whoever_is_in_the_line_sleeps_through_most_of_the_turns_before_and_never_through_its_own(
    draw, ahead, turn_ms
) -> None:
    lasts_ms = turn_ms // 2
    record = in_line(ahead, turn_ms=turn_ms, holder=Holder("h", 1, NOW_MS - lasts_ms))
    pause = pause_s(Waiter("p", 1.0), observed(record), draw)
    own_in_s = (ahead * turn_ms + turn_ms - lasts_ms) / 1000
    assert pause <= max(own_in_s, 0.25)
    lapses_in_s = (record.valid_until_ms - NOW_MS) / 1000  # the holder may be gone by then
    assert pause >= min((own_in_s - 1.5 * 0.01) * 0.8, lapses_in_s, LONGEST_S)


@given(draws, st.integers(min_value=100, max_value=4500))
def test_the_first_in_the_line_sleeps_until_the_turn_before_should_end(draw, turn_ms) -> None:
    for lasts_ms in (0, turn_ms // 2, turn_ms - 50):
        record = in_line(0, turn_ms=turn_ms, holder=Holder("h", 1, NOW_MS - lasts_ms))
        pause = pause_s(Waiter("p", 1.0), observed(record), draw)
        assert pause <= max((turn_ms - lasts_ms) / 1000, turn_ms / 6000) * 1.001
        assert pause >= (turn_ms - lasts_ms - 15) / 1000 * 0.89


@given(draws, st.integers(min_value=1, max_value=10**6))
def test_the_first_in_the_line_looks_the_more_seldom_the_longer_the_turn_lasts(draw, lasts_ms) -> None:
    record = in_line(0, holder=Holder("h", 1, NOW_MS - lasts_ms), turn_ms=1)
    pause = pause_s(Waiter("p", 1.0), observed(record), draw)
    longer_s = (lasts_ms - 1) / 1000
    least_s = max(longer_s / 4, 0.001 / 6)
    assert least_s / 2.001 <= pause <= least_s * 1.001 or 0.5 <= pause <= 1.0


@given(
    draws,
    st.integers(min_value=0, max_value=15),
    st.sampled_from([0, 1, 50, 4500, 60_000, 2**31]),
    st.integers(min_value=0, max_value=10**8),
    st.floats(min_value=0, max_value=100),
)
def test_nobody_sleeps_for_longer_than_that_whatever_the_record_says(draw, ahead, turn_ms, lasts_ms, s) -> None:
    free = lasts_ms % 2 == 0
    record = in_line(ahead, turn_ms=turn_ms, expired=free, holder=Holder("h", 1, NOW_MS - lasts_ms))
    for name, way_s in itertools.product(("p", "another"), (0.0, 10.0)):
        waiter = Waiter(name, 1.0, looks=9, way_s=way_s, began_s=0.0, refused=1, watched=99)
        _, what = looked(waiter, observed(record, s=s, free=free), draw)
        assert what == Join() or (isinstance(what, Pause) and what.seconds <= LONGEST_S)


@given(st.integers(min_value=1, max_value=15), st.integers(min_value=0, max_value=10**6))
def test_a_lock_that_lies_free_for_long_is_anyone_s_however_many_did_not_come(ahead, turn_ms) -> None:
    seen = observed(replace(in_line(ahead), expired=True, turn_ms=turn_ms), free=True)
    waiter, _ = looked(Waiter("p", 1.0, way_s=2.0), seen, 0.5)
    assert passing(waiter, seen, LONGEST_S + 0.001).over > 15


@given(draws, st.integers(min_value=0, max_value=round(1000 * LONGEST_S)))
def test_who_finds_it_lying_free_is_there_when_it_has_lain_there_for_long(draw, lay_ms) -> None:
    record = replace(in_line(15), expired=True, freed_ms=NOW_MS - lay_ms, turn_ms=4500)
    pause = pause_s(Waiter("p", 1.0), observed(record, free=True), draw)
    assert pause <= LONGEST_S - lay_ms / 1000 + 0.101


def test_a_lock_that_stays_free_is_there_for_the_next_after_a_moment_for_each_before() -> None:
    record = replace(in_line(2), expired=True)
    waiter, what = looked(Waiter("p", 1.0), observed(record, free=True), 0.0)
    assert isinstance(what, Pause)
    over_s = 0.1 * 2
    assert passing(waiter, observed(record, free=True), 0.0) == Passing(0, V1)
    assert passing(waiter, observed(record, free=True), 100.0).over >= 2
    seen, waited_s = observed(record, free=True), 0.0
    while passing(waiter, seen, waited_s).over < 2:
        waited_s += pause_s(waiter, seen)
        seen = observed(record, s=waited_s, free=True)
        waiter, _ = looked(waiter, seen, 0.5)
        assert waited_s < 5 * over_s


def test_the_patience_begins_anew_with_every_record() -> None:
    record = replace(in_line(2), expired=True)
    waiter, _ = looked(Waiter("p", 1.0), observed(record, free=True), 0.0)
    waiter, _ = looked(waiter, observed(record, s=50.0, version=V2, free=True), 0.0)
    assert passing(waiter, observed(record, s=50.0, version=V2, free=True), 50.0) == Passing(0, V2)
    waiter, _ = looked(waiter, observed(in_line(2), s=60.0), 0.0)
    assert passing(waiter, observed(in_line(2), s=60.0), 99.0) == Passing()


# -- into the line -----------------------------------------------------------------------------------------------------


def first_join(record: LockRecord, *, joinable: bool = True, looks: int = 50, step_s: float = 0.05) -> int | None:
    waiter = Waiter("p", 1.0)
    for n in range(looks):
        seen = replace(observed(record, s=n * step_s), joinable=joinable, now_ms=NOW_MS)  # the holders come and go
        waiter, what = looked(waiter, seen, 0.5)
        if isinstance(what, Join):
            return n
    return None


def test_a_newcomer_joins_a_line_after_a_round_of_it() -> None:
    assert first_join(replace(HELD, line=("a",), turn_ms=100)) == 5
    assert first_join(replace(HELD, line=("a", "b"), turn_ms=100)) == 7
    assert first_join(replace(HELD, turn_ms=100)) == 3, "the only one in the line holds it now"


def test_nobody_joins_where_there_is_no_line_or_where_the_record_is_not_understood() -> None:
    assert first_join(HELD) is None
    assert first_join(replace(HELD, line=("a",)), joinable=False) is None
    assert first_join(in_line(3)) is None


def test_a_line_begins_where_a_turn_lasts_long_enough_to_join_beside_it() -> None:
    lasting = replace(HELD, holder=Holder("h", 1, NOW_MS - 200))
    assert first_join(lasting) == 5
    waiter = Waiter("p", 1.0, looks=3, way_s=1.0, began_s=-9.0)
    assert isinstance(looked(waiter, observed(lasting), 0.5)[1], Pause), "not if the store is slower than that"


def test_while_nobody_knows_how_long_a_turn_is_newcomers_do_not_all_join_during_the_first() -> None:
    """Each that joins makes the holder write anew: were all to do it at once, the holder would not get to its end."""
    lasting = replace(HELD, holder=Holder("h", 1, NOW_MS - 400))
    waits = [first_join(replace(lasting, line=tuple("abcdef"[:n]))) for n in range(6)]
    assert waits == sorted(set(waits)), "the more have, the later the next"
    assert waits[5] * 0.05 > 1.0


# -- lost races --------------------------------------------------------------------------------------------------------


@given(draws, st.integers(min_value=0, max_value=30))
def test_one_that_lost_the_race_comes_back_when_the_faster_one_may_have_ended(draw, looks) -> None:
    free = replace(HELD, expired=True)
    seen = replace(observed(free), busy=Busy("", 0, None, lost_race=True))
    pause = pause_s(Waiter("p", 1.0, looks=looks), seen, draw)
    assert 0.04 <= pause <= 0.3, "the first time, however long it has waited"
    assert pause <= pause_s(Waiter("p", 1.0, looks=looks, rivals=4), seen, draw) <= 1.0


def test_one_in_the_line_that_lost_the_race_lets_a_turn_go_by() -> None:
    seen = replace(observed(replace(in_line(0, turn_ms=100), expired=True)), busy=Busy("", 0, None, lost_race=True))
    assert 0.07 <= pause_s(Waiter("p", 1.0), seen) <= 0.1
    assert passing(Waiter("p", 1.0), seen, 100.0) == Passing()


# -- the line's own rules ----------------------------------------------------------------------------------------------


def test_whoever_has_just_released_joins_at_once() -> None:
    free = replace(HELD, expired=True, line=("a",))
    assert looked(Waiter("p", 1.0), observed(free, free=True, took_s=None), 0.5)[1] == Join()
    assert isinstance(looked(Waiter("p", 1.0), observed(free, free=True), 0.5)[1], Pause)


def test_attempts_to_join_come_in_bursts_that_are_further_and_further_apart() -> None:
    waiter, pauses = Waiter("p", 1.0, way_s=0.01), []
    for _ in range(40):
        waiter, pause = join_failed(waiter, 0.5, 0.02)
        pauses.append(pause.seconds)
    assert pauses[:3] == [0.0] * 3, "it looks at once whether the record is fresh"
    long = [n for n, seconds in enumerate(pauses) if seconds > 0.05]
    assert long == [3, 7, 11, 15, 19, 23, 27, 31, 35, 39]
    assert [pauses[n] for n in long] == sorted(pauses[n] for n in long)


def test_where_turns_are_short_one_that_was_refused_joins_only_under_a_record_that_it_saw_being_written() -> None:
    """An attempt takes as long as a record lives there: it has to begin with that."""
    record = replace(HELD, line=("a",), turn_ms=100)
    waiter = Waiter("p", 1.0, looks=5, way_s=0.02, began_s=-9.0, refused=1)
    waits = []
    for n in range(14):
        waiter, what = looked(waiter, observed(record, s=n * 0.02, took_s=0.02), 0.5)
        assert isinstance(what, Pause)
        waits.append(what.seconds)
    assert waits[:12] == [0.0] * 12
    assert min(waits[12:]) > 0.0, "not for ever"
    written = observed(record, s=0.28, version=V2, took_s=0.02)
    assert looked(waiter, written, 0.5)[1] == Join()
    late = replace(written, monotonic_s=written.monotonic_s + 0.1)
    assert isinstance(looked(waiter, late, 0.5)[1], Pause), "nobody knows when it was written"
    once = replace(record, turn_ms=1000)
    assert looked(waiter, observed(once, s=1.0, took_s=0.02), 0.5)[1] == Join(), "a long turn leaves room in any case"


def test_a_guest_that_has_waited_for_a_round_of_the_line_passes_all() -> None:
    seen = observed(replace(HELD, line=("a", "b"), turn_ms=100))
    waiter, _ = looked(Waiter("p", 1.0), seen, 0.5)
    assert passing(waiter, seen, 0.2) == Passing()
    assert passing(waiter, seen, 0.4).over > len(seen.record.line)
    nobody = observed(replace(HELD, turn_ms=100))
    assert passing(looked(Waiter("p", 1.0), nobody, 0.5)[0], nobody, 9.0) == Passing(), "nobody is there to be passed"


def test_where_the_store_paces_writes_attempts_to_join_do_not_come_in_bursts() -> None:
    waiter, pause = join_failed(Waiter("p", 1.0, way_s=0.05), 0.5, 1.2)
    assert pause.seconds > 0.25
    record = replace(HELD, line=("a",), turn_ms=1000)
    waiter = replace(waiter, began_s=0.0)
    assert isinstance(looked(waiter, observed(record, s=2.9), 0.5)[1], Pause)
    assert looked(waiter, observed(record, s=3.1), 0.5)[1] == Join()
