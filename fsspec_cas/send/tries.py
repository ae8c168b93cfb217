"""The time of one call, spent on tries and on the pauses between them."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine
from typing import Any, Protocol, TypeVar

from fsspec_cas.clock import World
from fsspec_cas.send.retry import delay_s, enough_s

SILENT_S = 5.0  # so long one waits without a word

_LOG = logging.getLogger("fsspec_cas")

T = TypeVar("T")


class Sleeps(Protocol):
    """What lets time pass."""

    async def sleep(self, seconds: float) -> None:
        """Wait."""


class Tries:
    """Begins with the call; `timeout_s` is for all of it. Once it was in vain for 5 s, a warning says so, once."""

    def __init__(self, world: World, drive: Sleeps, path: str, timeout_s: float) -> None:
        self._world = world
        self._drive = drive
        self._path = path
        self._begun_s = world.monotonic_s()
        self._deadline_s = self._begun_s + timeout_s
        self._told = False
        self._slowest_s = 0.0

    async def pause(self, failures: int, retry_after_s: float | None = None, why: str = "") -> float:
        """Wait as one does after so many failures in a row, the last for `why`; the seconds left for the next try.

        0 if it is too late for one.
        """
        if not failures and not retry_after_s:
            return max(0.0, self._left_s())
        pause = delay_s(failures, self._world.random(), retry_after_s)
        if self._left_s() - pause < enough_s(self._slowest_s):
            return 0.0
        self._tell(pause, why)
        await self._drive.sleep(pause)
        left = self._left_s()
        return left if left >= enough_s(self._slowest_s) else 0.0

    async def spend(self, ask: Coroutine[Any, Any, T], *, small: bool = True) -> T:
        """One try; how long it took is what another one is judged by. What is not `small` may take long, and does."""
        begun_s = self._world.monotonic_s()
        alarm = self._alarm() if small else None
        try:
            answer = await ask
        finally:
            if alarm is not None:
                alarm.cancel()
        self._slowest_s = max(self._slowest_s, self._world.monotonic_s() - begun_s)
        return answer

    def _tell(self, pause: float, why: str) -> None:
        if not self._told and self._world.monotonic_s() + pause - self._begun_s >= SILENT_S:
            self._warn(f"{why or 'no answer'}; trying on")

    def _alarm(self) -> asyncio.TimerHandle | None:
        """Goes off during the try, unless it is too short for that, or keeps its thread from everything else."""
        silent_s = self._begun_s + SILENT_S - self._world.monotonic_s()
        if self._told or silent_s >= self._left_s():
            return None
        try:
            return asyncio.get_running_loop().call_later(max(0.0, silent_s), self._warn, "no answer yet; waiting on")
        except RuntimeError:
            return None  # local files and memory run without a loop

    def _warn(self, what: str) -> None:
        self._told = True
        _LOG.warning("%r: %s, for up to %.0f s", self._path, what, self._left_s())

    def _left_s(self) -> float:
        return self._deadline_s - self._world.monotonic_s()
