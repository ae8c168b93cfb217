"""Whose turn it is among the tasks of one event loop."""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque

from lockprovider.errors import LockError


class Turn:
    """One task of the loop at a time, first come, first served."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._taken = False
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._loop: asyncio.AbstractEventLoop | None = None

    async def wait(self, timeout_s: float) -> bool:
        """True if it is this task's turn now, False if it was not within the timeout."""
        loop = self._on_this_loop()
        if not self._taken:
            self._taken = True
            return True
        called: asyncio.Future[None] = loop.create_future()
        self._waiting.append(called)
        try:
            await asyncio.wait([called], timeout=timeout_s)
        except asyncio.CancelledError:
            if called.done():
                self.pass_on()
            raise
        finally:
            with contextlib.suppress(ValueError):
                self._waiting.remove(called)
        return called.done()

    def pass_on(self) -> None:
        """The next one's turn."""
        if self._waiting:
            self._waiting.popleft().set_result(None)
        else:
            self._taken = False

    def _on_this_loop(self) -> asyncio.AbstractEventLoop:
        here, before = asyncio.get_running_loop(), self._loop
        if before is not here:
            if before is not None and self._taken and not before.is_closed():
                raise LockError(f"{self._path!r} is in use on another event loop: make an AsyncLock for each loop")
            self._loop, self._taken = here, False
            self._waiting.clear()
        return here
