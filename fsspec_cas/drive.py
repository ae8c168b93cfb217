"""The bridge between sync callers and async code.

`Inline` runs a coroutine that never suspends in the calling thread: local files and memory need no event loop.
`OnLoop` runs it on fsspec's own loop thread, where the filesystem's connections live. Unlike `fsspec.asyn.sync`, a
Ctrl-C cancels what is running and a cancelled call never looks like a finished one.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import threading
from collections.abc import Coroutine
from typing import Any, Protocol, TypeVar

import fsspec.asyn

from fsspec_cas.clock import World
from fsspec_cas.errors import CasError

T = TypeVar("T")

_CANCEL_S = 2.0  # for a cancelled call to unwind; it has nothing left to wait for


class Drive(Protocol):
    """Runs a coroutine to its end for a sync caller."""

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Its result, or what it raised."""

    def start(self, coroutine: Coroutine[Any, Any, None]) -> None:
        """Run it, but do not wait for what takes time; for cleaning up where nobody listens."""

    async def sleep(self, seconds: float) -> None:
        """Pause inside such a coroutine."""


class Inline:
    """Runs coroutines that never suspend."""

    def __init__(self, world: World) -> None:
        self._world = world

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Step once; it must be done after that."""
        try:
            coroutine.send(None)
        except StopIteration as done:
            return done.value  # type: ignore[no-any-return]
        coroutine.close()
        raise RuntimeError("a blocking backend suspended")

    def start(self, coroutine: Coroutine[Any, Any, None]) -> None:
        """Run it."""
        self.run(coroutine)

    async def sleep(self, seconds: float) -> None:
        """Block the thread; nobody else runs on it."""
        self._world.sleep(seconds)


class OnLoop:
    """Runs coroutines on the loop thread that all sync fsspec filesystems share."""

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Submit and wait."""
        loop = fsspec.asyn.get_loop()
        if _running() is loop:
            coroutine.close()
            raise CasError("a sync call was made on fsspec's own event loop; use AsyncStore there")
        watched = _Watched()
        try:  # from before the call is submitted: a Ctrl-C may come before there is a future to cancel
            return asyncio.run_coroutine_threadsafe(watched.run(coroutine), loop).result()
        except concurrent.futures.CancelledError as error:
            raise asyncio.CancelledError from (watched.error or error).__cause__
        except KeyboardInterrupt as stop:  # in this thread: do not let the call go on unseen
            loop.call_soon_threadsafe(watched.cancel)
            watched.ended.wait(_CANCEL_S)
            raise stop from (watched.error and watched.error.__cause__)

    def start(self, coroutine: Coroutine[Any, Any, None]) -> None:
        """Submit."""
        asyncio.run_coroutine_threadsafe(coroutine, fsspec.asyn.get_loop())

    async def sleep(self, seconds: float) -> None:
        """Suspend."""
        await asyncio.sleep(seconds)


class OwnLoop:
    """For async callers: nothing to bridge, only to pause."""

    async def sleep(self, seconds: float) -> None:
        """Suspend."""
        await asyncio.sleep(seconds)


class _Watched:
    """Keeps what a cancelled coroutine ended with; its future forgets that."""

    def __init__(self) -> None:
        self.error: BaseException | None = None
        self.ended = threading.Event()
        self._task: asyncio.Task[Any] | None = None
        self._cancelled = False

    def cancel(self) -> None:
        """On the loop: end the coroutine, or do not begin it."""
        self._cancelled = True
        if self._task is not None:
            self._task.cancel()

    async def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """The coroutine's own result."""
        self._task = asyncio.current_task()
        if self._task is not None and self._cancelled:
            self._task.cancel()  # at its first suspension, as if it had come then
        try:
            return await coroutine
        except BaseException as error:
            self.error = error
            raise
        finally:
            self.ended.set()


def _running() -> asyncio.AbstractEventLoop | None:
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None


def close_from_any_thread(loop: asyncio.AbstractEventLoop, resource: Any) -> None:
    """Leave an async context on the loop it belongs to; garbage may be collected in any thread."""
    if loop.is_running():
        asyncio.run_coroutine_threadsafe(resource.__aexit__(None, None, None), loop)
