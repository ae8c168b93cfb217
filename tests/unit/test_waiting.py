"""When a waiting client looks again."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from lockprovider.waiting import FIRST_S, next_look_s

draws = st.floats(min_value=0, max_value=1, exclude_max=True)
looks = st.integers(min_value=0, max_value=10**6)
paces = st.floats(min_value=0.05, max_value=50)
lapses = st.floats(min_value=-(10**6), max_value=10**6)


@given(looks, draws, lapses, paces)
def test_a_look_is_never_later_than_the_pace_nor_much_later_than_the_lapse(n, draw, lapses_in_s, poll_s) -> None:
    pause = next_look_s(n, draw, lapses_in_s=lapses_in_s, poll_s=poll_s)
    assert 0 <= pause <= poll_s
    assert pause <= max(0.0, lapses_in_s) + poll_s / 10


@given(draws, paces)
def test_the_first_look_comes_soon_and_later_ones_slow_down_to_the_pace(draw, poll_s) -> None:
    pauses = [next_look_s(n, draw, lapses_in_s=1000.0, poll_s=poll_s) for n in range(20)]
    assert pauses[0] <= FIRST_S
    assert pauses == sorted(pauses)
    assert pauses[-1] == poll_s * draw


def test_waiters_who_see_the_same_lapse_do_not_all_look_at_once() -> None:
    pauses = {next_look_s(9, n / 100, lapses_in_s=0.0, poll_s=1.0) for n in range(100)}
    assert len(pauses) == 100
