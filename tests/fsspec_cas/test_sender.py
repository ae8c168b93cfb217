"""What a call does with its time, how long it waits, and that it does not wait for long without a word."""

from __future__ import annotations

import asyncio
import logging

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fsspec_cas.sender import BASE_S, CEILING_S, WARN_AFTER_S, RetryBudget, delay_s, least_try_s


class Simulated:
    """A clock that sleeping moves, and the longest pause at each draw."""

    def __init__(self):
        self.now_s = 100.0

    def monotonic_s(self):
        return self.now_s

    def random(self):
        return 0.999

    async def sleep(self, seconds):
        self.pass_s(seconds)

    def pass_s(self, seconds):
        self.now_s += seconds


def in_vain(timeout_s, caplog):
    """The warnings of a call that nobody answers, with the time at which each came."""
    world, found, failures = Simulated(), [], 0

    async def call():
        nonlocal failures
        tries = RetryBudget(world, world, "folder/object", timeout_s)
        while True:
            before_s, known = world.now_s, len(caplog.records)
            left = await tries.pause(failures, None, "503 SlowDown")
            found.extend((before_s - 100.0, record.getMessage()) for record in caplog.records[known:])
            if not left:
                return
            failures += 1

    with caplog.at_level(logging.WARNING, "fsspec_cas"):
        asyncio.run(call())
    assert failures > 2
    return found


def test_call_without_success_for_five_seconds_logs_a_warning_once(caplog: pytest.LogCaptureFixture) -> None:
    ((at_s, words),) = in_vain(60.0, caplog)
    assert 0 < at_s <= WARN_AFTER_S
    assert words.startswith("'folder/object': 503 SlowDown; retrying, for up to 5")


def test_call_that_fails_within_five_seconds_logs_no_warning(caplog: pytest.LogCaptureFixture) -> None:
    assert in_vain(4.0, caplog) == []


def never_answered(timeout_s, caplog, *, small=True, paused_s=0.0):
    """Return the warnings of one request without an answer, whose call has run for 4.99 s while its loop goes on.

    The process is paused for `paused_s` after the request was sent.
    """
    world = Simulated()

    async def call():
        tries = RetryBudget(world, world, "folder/object", timeout_s)
        world.now_s += WARN_AFTER_S - 0.01
        answer = asyncio.get_running_loop().create_future()
        spent = asyncio.ensure_future(tries.spend(wait_for(answer), small=small))
        asyncio.get_running_loop().call_soon(world.pass_s, paused_s)
        asyncio.get_running_loop().call_later(0.05, answer.set_result, "late")
        assert await spent == "late"

    async def wait_for(answer):
        return await answer

    with caplog.at_level(logging.WARNING, "fsspec_cas"):
        asyncio.run(call())
    return [record.getMessage() for record in caplog.records]


def test_unanswered_request_logs_a_warning_after_five_seconds(caplog: pytest.LogCaptureFixture) -> None:
    assert never_answered(60.0, caplog) == ["'folder/object': no answer yet; still waiting, for up to 55 s"]


def test_warning_after_a_pause_beyond_the_deadline_names_no_negative_time(caplog: pytest.LogCaptureFixture) -> None:
    said = never_answered(60.0, caplog, paused_s=90.0)
    assert said == ["'folder/object': no answer yet; still waiting, for up to 0 s"]


def test_request_that_ends_early_or_moves_much_data_logs_no_warning(caplog: pytest.LogCaptureFixture) -> None:
    assert never_answered(5.0, caplog) == []
    assert never_answered(60.0, caplog, small=False) == []


def test_call_without_an_event_loop_logs_no_warning() -> None:
    world = Simulated()

    async def answer():
        return "at once"

    spent = RetryBudget(world, world, "folder/object", 60.0).spend(answer())
    with pytest.raises(StopIteration, match="at once"):
        spent.send(None)


draws = st.floats(0, 1, exclude_max=True)


@given(st.integers(0, 10**9), draws)
def test_wait_lies_between_zero_and_the_ceiling(failures: int, draw: float) -> None:
    assert 0 <= delay_s(failures, draw) < CEILING_S


@given(st.integers(0, 10**9), draws, st.floats(0, 1000))
def test_retry_after_is_a_floor_that_grows_with_the_failures(failures: int, draw: float, retry_after_s: float) -> None:
    floor_s = min(retry_after_s, 0.5 * 2 ** min(max(failures - 1, 0), 20), CEILING_S)
    assert floor_s <= delay_s(failures, draw, retry_after_s) <= max(1.25 * floor_s, CEILING_S)


def test_clients_with_the_same_retry_after_do_not_return_together() -> None:
    assert len({delay_s(1, draw / 10, 2.0) for draw in range(10)}) == 10


def test_ceiling_doubles_from_the_base_until_it_is_reached() -> None:
    almost_one = 1 - 2**-53
    ceilings = [round(delay_s(n, almost_one), 6) for n in range(9)]
    assert ceilings == [BASE_S * 2**n for n in range(7)] + [CEILING_S] * 2


def test_full_jitter_of_zero_waits_not_at_all() -> None:
    assert [delay_s(n, 0.0) for n in (1, 5, 50)] == [0.0] * 3


def test_next_attempt_gets_twice_the_slowest_time_and_never_a_tiny_rest() -> None:
    assert [least_try_s(slowest_s) for slowest_s in (0.0, 0.01, 0.1, 2.0)] == [0.05, 0.05, 0.2, 4.0]
