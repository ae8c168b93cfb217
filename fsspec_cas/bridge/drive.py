"""Runs coroutines for sync callers, and derives sync methods."""

from __future__ import annotations

import asyncio
import contextlib
import sys
from collections.abc import Callable, Coroutine
from functools import lru_cache, partial, wraps
from typing import Any, Concatenate, Generic, ParamSpec, Protocol, TypeVar

from fsspec_cas.bridge.threads import WorksAtExit, renamed
from fsspec_cas.errors import CasError, NotSupported
from fsspec_cas.machine import Signal, WaitStopped, Worker, World

T = TypeVar("T")

_CANCEL_S = 2.0
P = ParamSpec("P")
A = TypeVar("A")
A_co = TypeVar("A_co", covariant=True)


class Drive(Protocol):
    """Runs coroutines for a sync caller."""

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T: ...

    def start(self, coroutine: Coroutine[Any, Any, None]) -> None:
        """Run a clean-up coroutine without waiting for a network."""

    async def sleep(self, seconds: float) -> None: ...


class Inline:
    """Runs coroutines that never suspend, in this thread; a `remote` backend's clean-ups on a new thread."""

    def __init__(self, world: World, *, remote: bool = False) -> None:
        self._world = world
        self._remote = remote

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        try:
            coroutine.send(None)
        except StopIteration as done:
            return done.value  # type: ignore[no-any-return]
        coroutine.close()
        raise RuntimeError("a blocking backend suspended")

    def start(self, coroutine: Coroutine[Any, Any, None]) -> None:
        if self._remote:
            Worker(partial(self.run, coroutine), "fsspec_cas-cleanup").start(wait=False)
        else:
            self.run(coroutine)

    async def sleep(self, seconds: float) -> None:
        self._world.sleep(seconds)


class OnLoop:
    """Runs coroutines on fsspec's loop thread, where the filesystems' connections live."""

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Run the coroutine on fsspec's loop, and wait for its result or error; an interrupt cancels it.

        Raises CasError on that loop, NotSupported under gevent's threads.
        """
        try:
            refuse_on_fsspecs_loop()
            loop = _fsspecs_loop()
        except CasError:
            coroutine.close()
            raise
        call = _Call(coroutine)
        try:
            loop.call_soon_threadsafe(call.begin, loop)
            call.over.wait()
        except BaseException as stop:
            loop.call_soon_threadsafe(call.cancel)
            if not isinstance(stop, WaitStopped):
                call.over.wait(_CANCEL_S)
            raise stop from (call.error and call.error.__cause__)
        return call.result()

    def start(self, coroutine: Coroutine[Any, Any, None]) -> None:
        """The coroutine's error is lost."""
        asyncio.run_coroutine_threadsafe(coroutine, _fsspecs_loop())

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)


def drive_of(world: World, backend: Any) -> Inline | OnLoop:
    return Inline(world, remote=getattr(backend, "remote", False)) if backend.blocking else OnLoop()


class _Call(Generic[T]):
    def __init__(self, coroutine: Coroutine[Any, Any, T]) -> None:
        self.error: BaseException | None = None  # a future would forget a cancelled call's error
        self._answer: T
        self._coroutine = coroutine
        self._task: asyncio.Task[Any] | None = None
        self._begun = self._cancelled = False
        self.over = Signal()

    def begin(self, loop: asyncio.AbstractEventLoop) -> None:
        self._begun = True
        loop.create_task(self._run())

    def cancel(self) -> None:
        self._cancelled = True
        if self._task is not None:
            self._task.cancel()
        elif not self._begun:  # interrupted before the submission
            self._coroutine.close()
            self.over.set()

    def result(self) -> T:
        if self.error is None:
            return self._answer
        try:
            raise self.error
        finally:
            self.error = None  # its traceback refers to this frame

    async def _run(self) -> None:
        """Await the coroutine in this task; keep its result or error, also a cancellation, and set `over`."""
        self._task = asyncio.current_task()
        if self._task is not None and self._cancelled:
            self._task.cancel()
        try:
            self._answer = await self._coroutine
        except BaseException as error:  # noqa: BLE001 - raised there
            self.error = error
        finally:
            self.over.set()


def _fsspecs_loop() -> asyncio.AbstractEventLoop:
    from fsspec.asyn import get_loop  # noqa: PLC0415 - slow

    return _with_executor(get_loop())


@lru_cache(maxsize=1)
def _with_executor(loop: asyncio.AbstractEventLoop) -> asyncio.AbstractEventLoop:
    """Give the loop an executor that works at exit, for aiohttp's name lookups."""
    if getattr(loop, "_default_executor", None) is None:
        loop.set_default_executor(WorksAtExit(thread_name_prefix="asyncio"))
    return loop


def refuse_on_fsspecs_loop() -> None:
    """Raise CasError on fsspec's own event loop, which a sync call would block; NotSupported under gevent's threads."""
    patched = sys.modules.get("gevent.monkey")
    if patched is not None and patched.is_module_patched("threading"):
        problem = "gevent has patched threads, and this call needs a real event loop"
        lean = "use client='obstore' on S3 (with check_store=False for a lock where the store is not Amazon's)"
        raise NotSupported(f"{problem}: patch with monkey.patch_all(thread=False), or {lean}")
    with contextlib.suppress(RuntimeError):
        if asyncio.get_running_loop() is _fsspecs_loop():
            raise CasError("a sync call was made on fsspec's own event loop; use AsyncStore there")


def close_from_any_thread(loop: asyncio.AbstractEventLoop, resource: Any) -> None:
    if loop.is_running():
        asyncio.run_coroutine_threadsafe(resource.__aexit__(None, None, None), loop)


class SyncForm(Protocol[A_co]):
    """Sync class over an async one."""

    @property
    def _async(self) -> A_co: ...

    @property
    def _drive(self) -> Drive: ...


def sync(method: Callable[Concatenate[A, P], Coroutine[Any, Any, T]]) -> Callable[Concatenate[SyncForm[A], P], T]:
    """Derive a sync method from an async one; `_drive` runs it on `_async`, and its docstring loses `await`."""
    method = renamed(method, method.__qualname__.removeprefix("Async"))

    @wraps(method)
    def call(self: SyncForm[A], /, *args: P.args, **kwargs: P.kwargs) -> T:
        return self._drive.run(method(self._async, *args, **kwargs))

    call.__doc__ = without_await(method.__doc__)
    return call


def without_await(doc: str | None) -> str:
    return "\n".join(
        line.replace("async ", "").replace("await ", "") if line.lstrip().startswith((">>> ", "... ")) else line
        for line in (doc or "").split("\n")
    )
