"""Waiting for what will happen. A machine that is busy only takes longer."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")

PATIENCE_S = 240.0  # reached by a failure only
_PAUSE_S = 0.01


def until(condition: Callable[[], T], what: str = "") -> T:
    """What it comes to when that is true."""
    end_s = time.monotonic() + PATIENCE_S
    while not (found := condition()):
        assert time.monotonic() < end_s, f"not within {PATIENCE_S:g} s: {what or condition}"
        time.sleep(_PAUSE_S)
    return found


async def soon(condition: Callable[[], object], what: str = "") -> None:
    """The same on a loop that has other things to do meanwhile."""
    end_s = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < end_s, f"not within {PATIENCE_S:g} s: {what or condition}"
        await asyncio.sleep(_PAUSE_S)
