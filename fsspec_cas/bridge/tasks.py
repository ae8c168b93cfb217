"""Blocking calls for tasks of an event loop, on threads of this library."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import functools
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from concurrent.futures import Future
from functools import partial
from types import TracebackType
from typing import Any, Concatenate, Generic, ParamSpec, Protocol, TypeVar

from fsspec_cas.bridge.background import BACKGROUND
from fsspec_cas.waiting import Signal, ends_with

P = ParamSpec("P")
T = TypeVar("T")
U = TypeVar("U")
S = TypeVar("S")
Made = TypeVar("Made", bound="ForTasks[Any]")

_NO_RESULT: Any = object()


class Leaves(Protocol):
    """Type of objects with `__exit__`, for `EnteredByTasks`."""

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None, /
    ) -> object: ...


Entered = TypeVar("Entered", bound=Leaves)


async def on_thread(
    call: Callable[[], T], *, undo: Callable[[T], object] | None = None, runs_to_end: bool = False
) -> T:
    """Run `call` on a thread, with the task's context variables; return its result or raise its error.

    A cancelled task ends at once, and every wait in its call raises `WaitStopped`. If the call still returns a result,
    `undo` gets it on a thread. With `runs_to_end` the call runs to its end instead. The interpreter's exit waits for
    that, and for a cancelled call with `undo`.
    """
    running = _Call(call, undo)
    (BACKGROUND.begin if runs_to_end else BACKGROUND.run)(running.run)
    try:
        return await running.result_future
    except BaseException:
        running.abandon(runs_to_end=runs_to_end)
        raise


class _Call(Generic[T]):
    """One call on a thread. The event loop orders its end and its task's cancellation."""

    def __init__(self, call: Callable[[], T], undo: Callable[[T], object] | None) -> None:
        self._loop = asyncio.get_running_loop()
        self.result_future: asyncio.Future[T] = self._loop.create_future()
        self._call = call
        self._undo = undo
        self._stop, self._over = Signal(), Signal()
        self._context = contextvars.copy_context()

    def run(self) -> None:
        """Run the call and report its result to the loop; runs on the thread.

        If the task was cancelled, or the loop is closed, undo the result here.
        """
        try:
            self._run()
        finally:
            self._over.set()

    def _run(self) -> None:
        result: Any = _NO_RESULT
        error: BaseException | None = None
        try:
            with ends_with(self._stop):
                result = self._context.run(self._call)
        except BaseException as raised:  # noqa: BLE001 - raised where the call is awaited
            error = raised
        if self._stop.is_set():  # its loop may stand still
            return self._undo_result(result)
        try:
            self._loop.call_soon_threadsafe(self._report, result, error)
        except RuntimeError:  # the loop is closed
            self._undo_result(result)

    def abandon(self, *, runs_to_end: bool) -> None:
        """Stop a cancelled task's call, unless `runs_to_end`; undo a result that already came. Runs on the loop."""
        if not runs_to_end:
            self._stop.set()
            if self._undo is not None:
                BACKGROUND.begin(self._over.wait)  # so that the interpreter's exit waits
        if self.result_future.done() and not self.result_future.cancelled() and self.result_future.exception() is None:
            # cancelled before it got the result
            BACKGROUND.begin(partial(self._undo_result, self.result_future.result()))

    def _report(self, result: Any, error: BaseException | None) -> None:
        """Set the task's result or error; undo the result on a thread if the task was cancelled. Runs on the loop."""
        if self.result_future.done():  # cancelled
            BACKGROUND.begin(partial(self._undo_result, result))
        elif error is None:
            self.result_future.set_result(result)
        else:
            self.result_future.set_exception(error)

    def _undo_result(self, result: Any) -> None:
        """Call `undo` with a result other than None; its errors are lost."""
        if self._undo is not None and result is not _NO_RESULT and result is not None:
            with contextlib.suppress(Exception):  # no caller is left
                self._undo(result)


class ForTasks(Generic[S]):
    """Base of an async class, whose methods call those of the sync object `_sync`."""

    def __init__(self, sync: S) -> None:
        self._sync = sync

    @classmethod
    def _over(cls: type[Made], sync: Any) -> Made:
        """Return the async form of `sync`, without calling `__init__`."""
        task_form = cls.__new__(cls)
        task_form._sync = sync  # noqa: SLF001 - same class
        return task_form

    def __repr__(self) -> str:
        return f"<Async{repr(self._sync)[1:]}"


class EnteredByTasks(ForTasks[Entered]):
    """Base of an async context manager over a sync one; a cancelled exit runs to its end."""

    async def __aenter__(self: Made) -> Made:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await on_thread(lambda: self._sync.__exit__(kind, error, trace), runs_to_end=True)


def threaded(
    method: Callable[Concatenate[S, P], T], *, runs_to_end: bool = False
) -> Callable[Concatenate[ForTasks[S], P], Coroutine[Any, Any, T]]:
    """Derive the async form of a blocking method (see `on_thread`)."""
    return converted(method, lambda result: result, runs_to_end=runs_to_end)


def converted(
    method: Callable[Concatenate[S, P], T],
    into: Callable[[T], U],
    *,
    undo: Callable[[T], object] | None = None,
    runs_to_end: bool = False,
) -> Callable[Concatenate[ForTasks[S], P], Coroutine[Any, Any, U]]:
    """Derive the async form of a blocking method; `into` converts its result."""

    @functools.wraps(method)
    async def call(self: ForTasks[S], /, *args: P.args, **kwargs: P.kwargs) -> U:
        return into(await on_thread(partial(method, self._sync, *args, **kwargs), undo=undo, runs_to_end=runs_to_end))

    call.__doc__ = _for_tasks(method)
    return call


def awaited(
    method: Callable[Concatenate[S, P], T], begin: Callable[Concatenate[S, P], Future[T]]
) -> Callable[Concatenate[ForTasks[S], P], Coroutine[Any, Any, T]]:
    """Derive the async form of `method`: await the future of `begin`, without a thread; a cancellation cancels it."""

    @functools.wraps(method)
    async def call(self: ForTasks[S], /, *args: P.args, **kwargs: P.kwargs) -> T:
        return await asyncio.wrap_future(begin(self._sync, *args, **kwargs))

    call.__doc__ = _for_tasks(method)
    return call


def iterated(
    method: Callable[Concatenate[S, P], Iterator[T]],
) -> Callable[Concatenate[ForTasks[S], P], AsyncIterator[T]]:
    """Derive the async form (`async for`) of a method that returns an iterator; each step runs on a thread."""

    @functools.wraps(method)
    async def call(self: ForTasks[S], /, *args: P.args, **kwargs: P.kwargs) -> AsyncIterator[T]:
        items = await on_thread(partial(method, self._sync, *args, **kwargs))
        while (item := await on_thread(partial(next, items, _NO_RESULT))) is not _NO_RESULT:
            yield item

    call.__doc__ = _for_tasks(method)
    return call


def _for_tasks(method: Callable[..., Any]) -> str:
    """Return the method's docstring without its examples, with a note that this is its form for tasks."""
    text = (method.__doc__ or "").partition(">>> ")[0].rstrip()
    return f"{text}\n\n        This is `{method.__qualname__}` for tasks.\n        "
