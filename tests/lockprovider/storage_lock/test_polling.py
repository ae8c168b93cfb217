"""When a waiting client looks again, whom it lets go first, and when it joins the line."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fsspec_cas import Version
from lockprovider import Holder, LockRecord
from lockprovider.settings import GRACE_MS
from lockprovider.storage_lock.polling import (
    FIRST_S,
    LONGEST_S,
    Join,
    Observation,
    Pause,
    TakeTurn,
    Waiter,
    at_last,
    join_failed,
    next_action,
    next_poll,
)

draws = st.floats(min_value=0, max_value=1, exclude_max=True)
paces = st.floats(min_value=0.05, max_value=50)
NOW_MS = 1_000_000
HELD = LockRecord("other", NOW_MS + 60_000, expired=False, epoch=1, nonce="n", holder=Holder("h", 1, NOW_MS - 10))
V1, V2 = Version("test", "1"), Version("test", "2")


def observed(record: LockRecord, *, s: float = 0.0, version: Version = V1, took_s: float = 0.01) -> Observation:
    return Observation(record, version, NOW_MS + round(s * 1000), s, took_s)


def a_waiter(name: str = "p", poll_s: float = 1.0, **fields: object) -> Waiter:
    return replace(Waiter(name, poll_s, 0.0), **fields)


def pause_s(waiter: Waiter, seen: Observation, draw: float = 0.5) -> float:
    _, what = next_action(waiter, seen, draw)
    assert isinstance(what, Pause)
    return what.seconds


def in_line(ahead: int, **fields: object) -> LockRecord:
    return replace(HELD, waiters=(*"abcdefghijklmno"[:ahead], "p"), **fields)


# -- without a line ----------------------------------------------------------------------------------------------------


@given(draws, paces, st.floats(min_value=0, max_value=60))
def test_poll_is_never_later_than_the_poll_interval(draw, poll_s, s) -> None:
    assert 0 <= pause_s(a_waiter(poll_s=poll_s), replace(observed(HELD, s=s), understood=False), draw) <= poll_s


@given(draws, st.integers(min_value=1, max_value=10**9))
def test_poll_comes_soon_after_the_lapse(draw, lapses_ms) -> None:
    record = replace(HELD, valid_until_ms=NOW_MS + lapses_ms - GRACE_MS - 1)
    assert pause_s(a_waiter(poll_s=50), replace(observed(record, s=99.0), now_ms=NOW_MS), draw) <= (
        lapses_ms / 1000 + FIRST_S
    )


@given(draws, paces)
def test_first_poll_comes_soon_and_later_ones_slow_down_to_the_interval(draw, poll_s) -> None:
    seen = [replace(observed(HELD, s=n * poll_s), now_ms=NOW_MS, understood=False) for n in range(20)]
    pauses = [pause_s(a_waiter(poll_s=poll_s), one, draw) for one in seen]
    assert pauses[0] <= FIRST_S
    assert pauses == sorted(pauses)
    assert pauses[-1] == poll_s * (1 + draw) / 2


@given(draws, st.integers(min_value=1, max_value=1200))
def test_no_waiter_polls_during_the_yield_window(draw, left_ms) -> None:
    for line in ((), ("p",), ("a", "p")):
        record = replace(HELD, expired=True, waiters=line, turn_ms=50, yield_until_ms=NOW_MS + left_ms)
        assert left_ms / 1000 <= pause_s(a_waiter(), observed(record), draw)


def test_waiters_do_not_poll_all_at_once() -> None:
    for s in (0.0, 9.0):
        seen = replace(observed(HELD, s=s), understood=False)
        assert len({pause_s(a_waiter(), seen, n / 100) for n in range(100)}) == 100


# -- in the line -------------------------------------------------------------------------------------------------------


@given(draws, st.integers(min_value=0, max_value=15), st.integers(min_value=1, max_value=4500))
def test_waiter_sleeps_until_its_expected_turn(draw, ahead, turn_ms) -> None:
    lasts_ms = turn_ms // 2
    record = in_line(ahead, turn_ms=turn_ms, holder=Holder("h", 1, NOW_MS - lasts_ms))
    pause = pause_s(a_waiter(), observed(record), draw)
    own_in_s = (ahead * turn_ms + turn_ms - lasts_ms) / 1000
    assert pause <= max(own_in_s, turn_ms / 6000)
    assert pause >= min(own_in_s - 3 * 0.01, LONGEST_S) - 1e-9


@given(draws, st.integers(min_value=1, max_value=10**6))
def test_waiter_whose_turn_is_due_polls_less_often_for_long_turns(draw, lasts_ms) -> None:
    record = in_line(0, holder=Holder("h", 1, NOW_MS - lasts_ms), turn_ms=1)
    least_s = min(1.0, max((lasts_ms - 1) / 2000, 0.001 / 6))
    assert pause_s(a_waiter(), observed(record), draw) == pytest.approx(least_s * (1 + draw) / 2, abs=1e-9)


@given(draws, st.integers(min_value=-(10**9), max_value=10**9))
def test_clock_differences_do_not_lengthen_the_sleep_until_a_turn(draw, lasts_ms) -> None:
    record = in_line(2, holder=Holder("h", 1, NOW_MS - lasts_ms), turn_ms=100)
    assert pause_s(a_waiter(poll_s=0.2), observed(record), draw) <= 0.3


@given(
    draws,
    st.integers(min_value=0, max_value=15),
    st.sampled_from([0, 1, 50, 4500, 60_000, 2**31]),
    st.integers(min_value=0, max_value=10**8),
    st.floats(min_value=0, max_value=100),
)
def test_sleep_is_bounded_whatever_the_record_says(draw, ahead, turn_ms, lasts_ms, s) -> None:
    free = lasts_ms % 2 == 0
    record = in_line(ahead, turn_ms=turn_ms, expired=free, holder=Holder("h", 1, NOW_MS - lasts_ms))
    for name, latency_s in itertools.product(("p", "another"), (0.0, 10.0)):
        seen, waiter = observed(record, s=s), a_waiter(name, latency_s=latency_s, refused=1)
        _, what = next_action(waiter, seen, draw)
        if isinstance(what, Pause):
            assert 0 <= what.seconds <= LONGEST_S
        _, pause = next_poll(waiter, replace(seen, lost_race=True), draw)
        assert 0 <= pause.seconds <= LONGEST_S


@given(draws, st.integers(min_value=0, max_value=round(1000 * LONGEST_S)))
def test_waiter_polls_soon_when_the_lock_has_long_been_free(draw, lay_ms) -> None:
    record = replace(in_line(15), expired=True, freed_ms=NOW_MS - lay_ms, turn_ms=4500)
    pause = pause_s(a_waiter(), observed(record), draw)
    assert pause <= LONGEST_S - lay_ms / 1000 + FIRST_S


def test_free_lock_goes_to_next_waiter_after_a_pause_for_each_ahead() -> None:
    record = replace(in_line(2), expired=True, turn_ms=60, waiters=("a", "b", "p", "c"))
    patience_s = FIRST_S + 0.06 / 6 + 3 * 0.01
    waiter, what = next_action(a_waiter(), observed(record), 0.0)
    assert isinstance(what, Pause), "it is left to those ahead"
    for passed_s in (1.9 * patience_s, 2.0 * patience_s):  # up to when the look was sent
        _, what = next_action(waiter, observed(record, s=passed_s + 0.011), 0.5)
        assert (what == TakeTurn(("c",))) == (passed_s == 2.0 * patience_s), "those who did not come leave the line"
    waited_s = 0.0
    while not isinstance(what := next_action(waiter, observed(record, s=waited_s), 0.5)[1], TakeTurn):
        waited_s += what.seconds
        assert waited_s < 3 * patience_s


def test_wait_for_waiters_ahead_restarts_with_every_record() -> None:
    record = replace(in_line(2), expired=True, turn_ms=4500)
    waiter, _ = next_action(a_waiter(), observed(record), 0.0)
    patient = replace(record, freed_ms=NOW_MS + 2000)
    assert isinstance(next_action(waiter, observed(patient, s=3.0), 0.0)[1], TakeTurn)
    waiter, what = next_action(waiter, observed(patient, s=3.0, version=V2), 0.0)
    assert isinstance(what, Pause), "that is another record: they may come yet"
    waiter, _ = next_action(waiter, observed(in_line(2), s=4.0, version=V2), 0.0)
    assert isinstance(next_action(waiter, observed(patient, s=5.0, version=V2), 0.0)[1], Pause), "it was held meanwhile"


def test_first_waiter_acquires_and_the_others_keep_their_order() -> None:
    record = replace(HELD, expired=True, waiters=("p", "a", "b"), freed_ms=NOW_MS)
    assert next_action(a_waiter(), observed(record), 0.5)[1] == TakeTurn(("a", "b"))
    assert next_action(a_waiter(), observed(replace(record, waiters=())), 0.5)[1] == TakeTurn(())
    assert isinstance(next_action(a_waiter("another"), observed(record), 0.5)[1], Pause), "who is not in it goes last"


def test_abandoned_waiters_stop_no_client() -> None:
    record = replace(HELD, expired=True, waiters=("a", "p", "b"), freed_ms=NOW_MS)
    assert isinstance(next_action(a_waiter(), observed(record, s=LONGEST_S), 0.5)[1], Pause)
    assert next_action(a_waiter(), observed(record, s=LONGEST_S + 0.001), 0.5)[1] == TakeTurn(())


def test_client_that_cannot_wait_takes_a_free_lock_at_once() -> None:
    record = replace(HELD, expired=True, waiters=("a", "p", "b"), freed_ms=NOW_MS)
    assert at_last(a_waiter(), observed(record)) == TakeTurn(("a", "b"))
    assert at_last(a_waiter(), observed(replace(record, yield_until_ms=NOW_MS + 1000))) == TakeTurn(("a", "b"))
    assert at_last(a_waiter(), observed(HELD)) is None


@pytest.mark.parametrize(("ms", "taken"), [(0, False), (1199, False), (1200, True)])
def test_no_waiter_takes_the_lock_during_the_yield_window(ms: int, taken: bool) -> None:
    record = replace(HELD, expired=True, waiters=("p", "b"), freed_ms=NOW_MS, yield_until_ms=NOW_MS + 1200)
    waiter, _ = next_action(a_waiter(), observed(record), 0.5)
    assert isinstance(next_action(waiter, observed(record, s=ms / 1000), 0.5)[1], TakeTurn) == taken


def test_own_acquisition_that_landed_late_is_taken_again() -> None:
    mine = replace(observed(replace(HELD, waiters=("a", "b"))), owner="other")
    assert next_action(a_waiter(), mine, 0.5)[1] == TakeTurn(("a", "b"))
    assert at_last(a_waiter(), mine) == TakeTurn(("a", "b"))


# -- into the line -----------------------------------------------------------------------------------------------------


def first_join(record: LockRecord, *, understood: bool = True, looks: int = 50, step_s: float = 0.05) -> int | None:
    waiter = a_waiter()
    for n in range(looks):
        seen = replace(observed(record, s=n * step_s), understood=understood, now_ms=NOW_MS)  # the holders come and go
        waiter, what = next_action(waiter, seen, 0.5)
        if isinstance(what, Join):
            return n
    return None


def test_newcomer_joins_the_waiters_after_one_round() -> None:
    assert first_join(replace(HELD, waiters=("a",), turn_ms=100)) == 5
    assert first_join(replace(HELD, waiters=("a", "b"), turn_ms=100)) == 7
    assert first_join(replace(HELD, turn_ms=100)) == 3, "the only one in the line holds it now"


def test_newcomer_sleeps_for_most_of_the_first_round() -> None:
    seen = observed(replace(HELD, waiters=("a", "b", "c"), turn_ms=1000))
    assert len({pause_s(a_waiter(), seen, n / 100) for n in range(100)}) == 100, "many may have seen the same"
    assert (pause_s(a_waiter(), seen, 0.0), pause_s(a_waiter(), seen, 1.0)) == (1.5, 3.0)
    _, lost = next_poll(a_waiter(), replace(seen, lost_race=True), 0.9)
    assert lost.seconds <= FIRST_S, "the lock was there a moment ago: it may soon be again"


def test_client_does_not_join_without_waiters_or_with_unknown_fields() -> None:
    assert first_join(HELD) is None
    assert first_join(replace(HELD, waiters=("a",)), understood=False) is None
    assert first_join(in_line(3)) is None


def test_first_waiter_joins_only_when_turns_last_long_enough() -> None:
    assert first_join(replace(HELD, holder=Holder("h", 1, NOW_MS - 201))) == 5
    assert first_join(replace(HELD, holder=Holder("h", 1, NOW_MS - 200))) is None


def test_newcomers_do_not_all_join_during_the_first_turn() -> None:
    """Each that joins makes the holder write anew: were all to do it at once, the holder would not get to its end."""
    lasting = replace(HELD, holder=Holder("h", 1, NOW_MS - 400))
    waits = [first_join(replace(lasting, waiters=tuple("abcdef"[:n]))) for n in range(6)]
    assert waits == sorted(set(waits)), "the more have, the later the next"
    assert waits[5] * 0.05 > 1.0


def test_attempts_to_join_come_in_bursts_with_longer_and_longer_pauses() -> None:
    waiter, pauses = a_waiter(), []
    for n in range(40):
        waiter, pause = join_failed(waiter, observed(HELD, s=n * 0.2), 0.5)
        pauses.append(pause.seconds)
    long = [n for n, seconds in enumerate(pauses) if seconds]
    assert long == [3, 7, 11, 15, 19, 23, 27, 31, 35, 39]
    assert [pauses[n] for n in long] == sorted(pauses[n] for n in long)


def test_client_that_waited_a_whole_round_goes_before_all_waiters() -> None:
    waiter, _ = next_action(a_waiter(), observed(replace(HELD, waiters=("a", "b"), turn_ms=100), s=0.2), 0.5)
    for line in (("a", "b"), ("a", "b", "p")):  # it may have joined since
        free = replace(HELD, expired=True, waiters=line, turn_ms=100, freed_ms=NOW_MS + 300)
        assert isinstance(next_action(waiter, observed(free, s=0.3), 0.5)[1], Pause)
        outwaited, what = next_action(waiter, observed(free, s=0.32), 0.5)
        assert what == TakeTurn(("a", "b")), "they stay in it"
    assert isinstance(next_action(outwaited, observed(free, s=0.33), 0.5)[1], Pause), "once, if it stands in it"
