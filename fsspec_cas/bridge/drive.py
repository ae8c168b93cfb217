"""The bridge between sync callers and async code.

`Inline` runs a coroutine that never suspends in the calling thread: local files and memory need no event loop.
`OnLoop` runs it on fsspec's own loop thread, where the filesystem's connections live. Unlike `fsspec.asyn.sync`, a
Ctrl-C cancels what is running and a cancelled call never looks like a finished one.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Coroutine
from functools import wraps
from typing import Any, Concatenate, Generic, ParamSpec, Protocol, TypeVar

from fsspec_cas.clock import World
from fsspec_cas.errors import CasError, NotSupported
from fsspec_cas.waiting import Signal, WaitStopped

T = TypeVar("T")

_CANCEL_S = 2.0  # for a cancelled call to unwind; it has nothing left to wait for
P = ParamSpec("P")
A = TypeVar("A")
A_co = TypeVar("A_co", covariant=True)


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
        loop = _fsspecs_loop()
        try:
            refuse_on_fsspecs_loop()
        except CasError:
            coroutine.close()
            raise
        call = _Call(coroutine)
        try:  # from before the call is submitted: a Ctrl-C may come at any time
            loop.call_soon_threadsafe(call.begin, loop)
            call.over.wait()
        except BaseException as stop:  # in this thread: do not let the call go on unseen
            loop.call_soon_threadsafe(call.cancel)
            if not isinstance(stop, WaitStopped):
                call.over.wait(_CANCEL_S)
            raise stop from (call.error and call.error.__cause__)
        return call.result()

    def start(self, coroutine: Coroutine[Any, Any, None]) -> None:
        """Submit."""
        asyncio.run_coroutine_threadsafe(coroutine, _fsspecs_loop())

    async def sleep(self, seconds: float) -> None:
        """Suspend."""
        await asyncio.sleep(seconds)


def drive_of(world: World, *, blocking: bool) -> Inline | OnLoop:
    """What runs the calls of a backend for callers that have no event loop."""
    return Inline(world) if blocking else OnLoop()


class _Call(Generic[T]):
    """One coroutine on the loop, and the thread that waits for it: one wake-up each way, and no futures between."""

    def __init__(self, coroutine: Coroutine[Any, Any, T]) -> None:
        self.error: BaseException | None = None  # what it ended with; a future would forget that of a cancelled one
        self._answer: T
        self._coroutine = coroutine
        self._task: asyncio.Task[Any] | None = None
        self._begun = self._cancelled = False
        self.over = Signal()

    def begin(self, loop: asyncio.AbstractEventLoop) -> None:
        """On the loop."""
        self._begun = True
        loop.create_task(self._run())

    def cancel(self) -> None:
        """On the loop: end the coroutine, or do not begin it."""
        self._cancelled = True
        if self._task is not None:
            self._task.cancel()
        elif not self._begun:  # the caller was interrupted before it was submitted
            self._coroutine.close()
            self.over.set()

    def result(self) -> T:
        """What it came to; once."""
        if self.error is None:
            return self._answer
        try:
            raise self.error
        finally:
            self.error = None  # its traceback leads back here

    async def _run(self) -> None:
        self._task = asyncio.current_task()
        if self._task is not None and self._cancelled:
            self._task.cancel()  # at its first suspension, as if it had come then
        try:
            self._answer = await self._coroutine
        except BaseException as error:  # noqa: BLE001 - it is raised where it is waited for
            self.error = error
        finally:
            self.over.set()


def _fsspecs_loop() -> asyncio.AbstractEventLoop:
    from fsspec.asyn import get_loop  # noqa: PLC0415 - whoever has a filesystem has imported it

    loop: asyncio.AbstractEventLoop = get_loop()
    return loop


def refuse_on_fsspecs_loop() -> None:
    """Raise, where a thread would wait for a loop that it runs itself."""
    patched = sys.modules.get("gevent.monkey")
    if patched is not None and patched.is_module_patched("threading"):
        what = "gevent has patched threads, and this call needs a real event loop"
        lean = "use client='obstore' on S3 (with check_store=False for a lock where the store is not Amazon's)"
        raise NotSupported(f"{what}: patch with monkey.patch_all(thread=False), or {lean}")
    if _running() is _fsspecs_loop():
        raise CasError("a sync call was made on fsspec's own event loop; use AsyncStore there")


def _running() -> asyncio.AbstractEventLoop | None:
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None


def close_from_any_thread(loop: asyncio.AbstractEventLoop, resource: Any) -> None:
    """Leave an async context on the loop it belongs to; garbage may be collected in any thread."""
    if loop.is_running():
        asyncio.run_coroutine_threadsafe(resource.__aexit__(None, None, None), loop)


class Twin(Protocol[A_co]):
    """A sync class over an async one, whose methods are written once: `read = sync(AsyncStore.read)`."""

    @property
    def _async(self) -> A_co: ...

    @property
    def _drive(self) -> Drive: ...


def sync(method: Callable[Concatenate[A, P], Coroutine[Any, Any, T]]) -> Callable[Concatenate[Twin[A], P], T]:
    """The same method, driven to its end: with its arguments, errors and docstring, whose example awaits nothing."""

    @wraps(method)
    def call(self: Twin[A], /, *args: P.args, **kwargs: P.kwargs) -> T:
        return self._drive.run(method(self._async, *args, **kwargs))

    call.__doc__ = without_await(method.__doc__)
    return call


def without_await(doc: str | None) -> str:
    """The docstring of an async method for its sync twin, whose example awaits nothing."""
    return "\n".join(
        line.replace("async ", "").replace("await ", "") if line.lstrip().startswith((">>> ", "... ")) else line
        for line in (doc or "").split("\n")
    )
