from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from fsspec_cas.send.retry import BASE_S, CEILING_S, delay_s, enough_s

draws = st.floats(0, 1, exclude_max=True)


@given(st.integers(0, 10**9), draws)
def test_a_wait_lies_between_zero_and_the_ceiling(failures: int, draw: float) -> None:
    assert 0 <= delay_s(failures, draw) < CEILING_S


@given(st.integers(0, 10**9), draws, st.floats(0, 1000))
def test_retry_after_is_a_floor_that_grows_with_the_failures(failures: int, draw: float, retry_after_s: float) -> None:
    floor_s = min(retry_after_s, 0.5 * 2 ** min(max(failures - 1, 0), 20), CEILING_S)
    assert floor_s <= delay_s(failures, draw, retry_after_s) <= max(1.25 * floor_s, CEILING_S)


def test_those_who_were_told_the_same_do_not_come_back_together() -> None:
    assert len({delay_s(1, draw / 10, 2.0) for draw in range(10)}) == 10


def test_the_ceiling_doubles_from_the_base_until_it_is_reached() -> None:
    almost_one = 1 - 2**-53
    ceilings = [round(delay_s(n, almost_one), 6) for n in range(9)]
    assert ceilings == [BASE_S * 2**n for n in range(7)] + [CEILING_S] * 2


def test_the_jitter_is_full_so_a_draw_of_zero_waits_not_at_all() -> None:
    assert [delay_s(n, 0.0) for n in (1, 5, 50)] == [0.0] * 3


def test_another_try_is_given_twice_what_the_slowest_took_and_never_a_splinter() -> None:
    assert [enough_s(slowest_s) for slowest_s in (0.0, 0.01, 0.1, 2.0)] == [0.05, 0.05, 0.2, 4.0]
