"""Waiting for what will happen. A machine that is busy only takes longer."""

from __future__ import annotations

import asyncio
import contextlib
import subprocess
import threading
import time
from collections.abc import Callable, Sequence
from typing import TypeVar

from fsspec_cas import Unavailable

T = TypeVar("T")

PATIENCE_S = 240.0  # reached by a failure only
_PAUSE_S = 0.01
MORE_S = 900.0


def until(condition: Callable[[], T], what: str = "") -> T:
    """What it comes to when that is true."""
    end_s = time.monotonic() + PATIENCE_S
    while not (found := condition()):
        assert time.monotonic() < end_s, f"not within {PATIENCE_S:g} s: {what or condition}"
        time.sleep(_PAUSE_S)
    return found


def last_for(over: threading.Event, seconds: float, is_complete: Callable[[], object]) -> None:
    """Wait for `seconds`, and on until all that is wanted has happened; set `over` at the end."""
    over.wait(seconds)
    end_s = time.monotonic() + MORE_S
    while not is_complete() and time.monotonic() < end_s and not over.wait(1):
        pass
    over.set()


async def soon(condition: Callable[[], object], what: str = "") -> None:
    """The same on a loop that has other things to do meanwhile."""
    end_s = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < end_s, f"not within {PATIENCE_S:g} s: {what or condition}"
        await asyncio.sleep(_PAUSE_S)


def once_sent(call: Callable[[float], T]) -> T:
    """What `call(timeout_s)` comes to when the machine lets it send anything in that time, which it wants short."""
    for timeout_s in (1.0, 4.0, 16.0, 64.0):
        with contextlib.suppress(Unavailable):
            return call(timeout_s)
    return call(PATIENCE_S)


def said_at_once(children: Sequence[subprocess.Popen[bytes]]) -> list[str]:
    """What each says that began when all had said `ready`, at the end of its input."""
    for child in children:
        assert child.stdout is not None
        assert child.stdout.readline() == b"ready\n"
    for child in children:
        assert child.stdin is not None
        child.stdin.close()
    said = []
    for child in children:
        assert child.stdout is not None
        said.append(child.stdout.read().decode().strip())
        assert child.wait(PATIENCE_S) == 0
    return said
