"""What a call does with its time, and that it does not wait for long without a word."""

from __future__ import annotations

import asyncio
import logging

import pytest

from fsspec_cas.send.sender import SILENT_S, Tries


class Simulated:
    """A clock that sleeping moves, and the longest pause at each draw."""

    def __init__(self):
        self.now_s = 100.0

    def monotonic_s(self):
        return self.now_s

    def random(self):
        return 0.999

    async def sleep(self, seconds):
        self.now_s += seconds


def in_vain(timeout_s, caplog):
    """The warnings of a call that nobody answers, with the time at which each came."""
    world, found, failures = Simulated(), [], 0

    async def call():
        nonlocal failures
        tries = Tries(world, world, "folder/object", timeout_s)
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


def test_before_a_call_was_in_vain_for_five_seconds_it_says_so_once(caplog: pytest.LogCaptureFixture) -> None:
    ((at_s, words),) = in_vain(60.0, caplog)
    assert 0 < at_s <= SILENT_S
    assert words.startswith("'folder/object': 503 SlowDown; trying on, for up to 5")


def test_one_that_ends_before_says_it_by_its_error_alone(caplog: pytest.LogCaptureFixture) -> None:
    assert in_vain(4.0, caplog) == []


def never_answered(timeout_s, caplog, *, small=True):
    """The warnings of one try that nobody answers, while its loop goes on; 4.99 s of the call are over."""
    world = Simulated()

    async def call():
        tries = Tries(world, world, "folder/object", timeout_s)
        world.now_s += SILENT_S - 0.01
        answer = asyncio.get_running_loop().create_future()
        spent = asyncio.ensure_future(tries.spend(wait_for(answer), small=small))
        asyncio.get_running_loop().call_later(0.05, answer.set_result, "late")
        assert await spent == "late"

    async def wait_for(answer):
        return await answer

    with caplog.at_level(logging.WARNING, "fsspec_cas"):
        asyncio.run(call())
    return [record.getMessage() for record in caplog.records]


def test_a_request_that_is_never_answered_says_so_after_five_seconds_too(caplog: pytest.LogCaptureFixture) -> None:
    assert never_answered(60.0, caplog) == ["'folder/object': no answer yet; waiting on, for up to 55 s"]


def test_a_request_that_ends_before_or_moves_much_does_not(caplog: pytest.LogCaptureFixture) -> None:
    assert never_answered(5.0, caplog) == []
    assert never_answered(60.0, caplog, small=False) == []


def test_without_an_event_loop_nothing_can_go_off() -> None:
    world = Simulated()

    async def answer():
        return "at once"

    spent = Tries(world, world, "folder/object", 60.0).spend(answer())
    with pytest.raises(StopIteration, match="at once"):
        spent.send(None)
