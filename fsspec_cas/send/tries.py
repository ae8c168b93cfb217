"""The time of one call, spent on tries and on the pauses between them."""

from __future__ import annotations

from collections.abc import Coroutine
from typing import Any, Protocol, TypeVar

from fsspec_cas.clock import World
from fsspec_cas.send.retry import delay_s, enough_s

T = TypeVar("T")


class Sleeps(Protocol):
    """What lets time pass."""

    async def sleep(self, seconds: float) -> None:
        """Wait."""


class Tries:
    """Begins with the call; `timeout_s` is for all of it."""

    def __init__(self, world: World, drive: Sleeps, timeout_s: float) -> None:
        self._world = world
        self._drive = drive
        self._deadline_s = world.monotonic_s() + timeout_s
        self._slowest_s = 0.0

    async def pause(self, failures: int, retry_after_s: float | None = None) -> float:
        """Wait as one does after so many failures in a row; the seconds left for the next try, 0 if it is too late."""
        if not failures and not retry_after_s:
            return max(0.0, self._left_s())
        pause = delay_s(failures, self._world.random(), retry_after_s)
        if self._left_s() - pause < enough_s(self._slowest_s):
            return 0.0
        await self._drive.sleep(pause)
        left = self._left_s()
        return left if left >= enough_s(self._slowest_s) else 0.0

    async def spend(self, ask: Coroutine[Any, Any, T]) -> T:
        """One try; how long it took is what another one is judged by."""
        begun_s = self._world.monotonic_s()
        answer = await ask
        self._slowest_s = max(self._slowest_s, self._world.monotonic_s() - begun_s)
        return answer

    def _left_s(self) -> float:
        return self._deadline_s - self._world.monotonic_s()
