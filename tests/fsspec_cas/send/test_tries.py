"""What a call does with its time, and that it does not wait for long without a word."""

from __future__ import annotations

import asyncio
import logging

import pytest

from fsspec_cas.send.tries import SILENT_S, Tries


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
