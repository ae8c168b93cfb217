"""Threads that run calls at once, the calls' futures, and their forms for tasks.

The interpreter's exit waits up to 60 s for calls of `Background.begin`.
"""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import contextvars
import functools
import logging
import os
import threading
import weakref
from collections import deque
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Iterator
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor
from concurrent.futures import TimeoutError as NotYet
from functools import partial
from itertools import chain, islice
from queue import Empty, SimpleQueue
from types import FunctionType, TracebackType
from typing import Any, Concatenate, Generic, ParamSpec, Protocol, TypeVar

from fsspec_cas.machine import SLICE_S, Machine, Signal, Worker, ends_with

P = ParamSpec("P")
T = TypeVar("T")
U = TypeVar("U")
S = TypeVar("S")
Made = TypeVar("Made", bound="ForTasks[Any]")

_LOG = logging.getLogger("fsspec_cas")
_RUNNING, _CANCELLED, _FINISHED = "RUNNING", "CANCELLED_AND_NOTIFIED", "FINISHED"


class Later(Future[T]):
    """Future of a call, which an interrupt cannot leave locked (see `Signal`)."""

    def __init__(self) -> None:
        super().__init__()
        self._over = Signal()
        self._decided = threading.Lock()  # taken once, by the thread that runs or cancels the call
        self._calls: deque[Callable[[Future[T]], object]] = deque()

    def __repr__(self) -> str:
        return f"<Later, {self._state.lower()}>"

    def cancel(self) -> bool:
        if self._decided.acquire(blocking=False):
            self._end(_CANCELLED)
        return self.cancelled()

    def cancelled(self) -> bool:
        return self._state == _CANCELLED

    def running(self) -> bool:
        return self._state == _RUNNING

    def done(self) -> bool:
        return self._over.is_set()

    def result(self, timeout: float | None = None) -> T:
        """Wait for the call; return its result or raise its error.

        Raises CancelledError if cancelled, TimeoutError after `timeout` seconds.
        """
        error = self.exception(timeout)
        if error is None:
            return self._result  # type: ignore[return-value] # set before the state
        try:
            raise error
        finally:
            del error, self  # the traceback refers to this frame

    def exception(self, timeout: float | None = None) -> BaseException | None:
        if not self._over.wait(timeout):
            raise NotYet
        if self.cancelled():
            raise CancelledError
        return self._exception

    def add_done_callback(self, fn: Callable[[Future[T]], object]) -> None:
        """Call `fn` once the call is done, on its thread or at once here; log its error."""
        self._calls.append(fn)
        if self._over.is_set():
            self._call_back()

    def set_running_or_notify_cancel(self) -> bool:
        if self._decided.acquire(blocking=False):
            self._state = _RUNNING
            return True
        if not self._over.is_set():  # its cancelling thread was interrupted
            self._end(_CANCELLED)
        return False

    def set_result(self, result: T) -> None:
        self._result = result
        self._end(_FINISHED)

    def set_exception(self, exception: BaseException | None) -> None:
        self._exception: BaseException | None = exception
        self._end(_FINISHED)

    def _end(self, state: str) -> None:
        """Set the final state, wake waiting threads, call callbacks; a thread notifies `concurrent.futures.wait`."""
        self._state = state
        self._over.set()
        self._call_back()
        if self._condition.acquire(timeout=SLICE_S):
            waiters = [*self._waiters]
            self._condition.release()
            if waiters:
                BACKGROUND.run(partial(self._report, waiters))

    def _report(self, waiters: list[Any]) -> None:
        """Tell each waiter of `concurrent.futures.wait` whether the call was cancelled, failed or returned."""
        for waiter in waiters:
            if self.cancelled():
                waiter.add_cancelled(self)
            elif self._exception is not None:
                waiter.add_exception(self)
            else:
                waiter.add_result(self)

    def _call_back(self) -> None:
        """Run each registered callback with this future, once; log the errors."""
        while self._calls:
            try:
                call = self._calls.popleft()
            except IndexError:
                return
            try:
                call(self)
            except Exception:  # noqa: BLE001
                _LOG.exception("a callback of %r failed", self)


_KEPT = 32  # a thread's start costs as much as a small request
_KEPT_S = 2.0
_AT_EXIT_S = 60.0


class Background:
    """Runs each call on its own thread at once; its queue and deque are C code, which no interrupt leaves locked."""

    def __init__(self) -> None:
        self._calls: SimpleQueue[Callable[[], object]] = SimpleQueue()
        self._waiting: deque[None] = deque()  # an entry per idle thread without an assigned call
        self._under_way: set[Later[Any]] = set()

    def begin(self, call: Callable[[], T]) -> Later[T]:
        """Start the call on a thread, or run it here if none can start."""
        answer: Later[T] = Later()
        answer.set_running_or_notify_cancel()
        self._under_way.add(answer)
        self.run(lambda: self._answer(answer, call))
        return answer

    def run(self, call: Callable[[], object]) -> None:
        """Start `call`, which must not raise, on an idle or new thread; if none can start, run it here."""
        try:
            self._waiting.pop()
        except IndexError:
            try:
                Worker(self._live, "fsspec_cas").start()
            except RuntimeError:
                call()
                return
        self._calls.put(call)

    def wait(self, timeout_s: float) -> None:
        clock = Machine()
        end_s = clock.monotonic_s() + timeout_s
        for answer in [*self._under_way]:
            with contextlib.suppress(NotYet):
                answer.exception(max(0.0, end_s - clock.monotonic_s()))

    def _answer(self, answer: Later[T], call: Callable[[], T]) -> None:
        try:
            answer.set_result(call())
        except BaseException as error:  # noqa: BLE001 - raised there
            answer.set_exception(error)
        finally:
            self._under_way.discard(answer)

    def _live(self) -> None:
        """Run queued calls on this thread, until none comes for 2 s, or 32 other threads are idle."""
        while True:
            try:
                call = self._calls.get(timeout=_KEPT_S)
            except Empty:
                try:
                    self._waiting.pop()
                except IndexError:  # a queued call is this thread's
                    continue
                return
            call()
            del call
            if len(self._waiting) >= _KEPT:
                return
            self._waiting.append(None)


def run_here(call: Callable[[], T]) -> Later[T]:
    answer: Later[T] = Later()
    try:
        answer.set_result(call())
    except Exception as error:  # noqa: BLE001 - raised there
        answer.set_exception(error)
    return answer


class WorksAtExit(ThreadPoolExecutor):
    """Runs calls on threads; at the interpreter's end in the submitting thread."""

    def submit(self, call: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        try:
            return super().submit(call, *args, **kwargs)
        except RuntimeError:
            return run_here(partial(call, *args, **kwargs))


def in_order(jobs: Iterable[Callable[[], T]], limit: int) -> Iterator[T]:
    """Run the jobs in at most `limit` threads, and yield their results in order.

    A job's error is raised at its turn; then, or if the caller stops, no other job begins, and running ones end first.
    With one job or a limit of 1, this thread runs them.
    """
    jobs = iter(jobs)
    first = list(islice(jobs, 2))
    if limit == 1 or len(first) <= 1:
        yield from (job() for job in chain(first, jobs))
        return
    with WorksAtExit(limit) as threads:
        try:
            running: deque[Future[T]] = deque()
            for job in chain(first, jobs):  # the iterator may be large
                if len(running) == 2 * limit:
                    yield running.popleft().result()
                running.append(threads.submit(job))
            yield from (future.result() for future in running)
        finally:
            threads.shutdown(cancel_futures=True)


BACKGROUND = Background()

# The first `finalize` registers the exit function that closes filesystems' sessions; ours must run before.
weakref.finalize(BACKGROUND, int)
atexit.register(BACKGROUND.wait, _AT_EXIT_S)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=BACKGROUND.__init__)  # type: ignore[misc]


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

    A cancelled task ends at once; `undo` gets a result, if not None, that still comes. Its call runs on with
    `runs_to_end`, else every wait in it raises `WaitStopped`. The interpreter's exit waits for a call that runs on, and
    for `undo`.
    """
    running = _Call(call, undo)
    (BACKGROUND.begin if runs_to_end else BACKGROUND.run)(running.run)
    try:
        return await running.result_future
    except BaseException:
        running.abandon(runs_to_end=runs_to_end)
        raise


class _Call(Generic[T]):
    def __init__(self, call: Callable[[], T], undo: Callable[[T], object] | None) -> None:
        self._loop = asyncio.get_running_loop()
        self.result_future: asyncio.Future[T] = self._loop.create_future()
        self._call = call
        self._undo = undo
        self._stop, self._over = Signal(), Signal()
        self._context = contextvars.copy_context()

    def run(self) -> None:
        try:
            self._run()
        finally:
            self._over.set()

    def _run(self) -> None:
        """Run the call and report to the event loop; if stopped, or the loop is closed, undo the result."""
        result: Any = _NO_RESULT
        error: BaseException | None = None
        try:
            with ends_with(self._stop):
                result = self._context.run(self._call)
        except BaseException as raised:  # noqa: BLE001 - raised there
            error = raised
        if self._stop.is_set():
            return self._undo_result(result)
        try:
            self._loop.call_soon_threadsafe(self._report, result, error)
        except RuntimeError:
            self._undo_result(result)

    def abandon(self, *, runs_to_end: bool) -> None:
        """Stop the call, unless `runs_to_end`; undo its result."""
        if not runs_to_end:
            self._stop.set()
            if self._undo is not None:
                BACKGROUND.begin(self._over.wait)  # so that the interpreter's exit waits
        if self.result_future.done() and not self.result_future.cancelled() and self.result_future.exception() is None:
            BACKGROUND.begin(partial(self._undo_result, self.result_future.result()))

    def _report(self, result: Any, error: BaseException | None) -> None:
        if self.result_future.done():
            BACKGROUND.begin(partial(self._undo_result, result))
        elif error is None:
            self.result_future.set_result(result)
        else:
            self.result_future.set_exception(error)

    def _undo_result(self, result: Any) -> None:
        if self._undo is not None and result is not _NO_RESULT and result is not None:
            with contextlib.suppress(Exception):
                self._undo(result)


class ForTasks(Generic[S]):
    """Base of an async class over the sync object `_sync`."""

    def __init__(self, sync: S) -> None:
        self._sync = sync

    @classmethod
    def _over(cls: type[Made], sync: Any) -> Made:
        task_form = cls.__new__(cls)
        task_form._sync = sync  # noqa: SLF001
        return task_form

    def __repr__(self) -> str:
        return f"<Async{repr(self._sync)[1:]}"


class EnteredByTasks(ForTasks[Entered]):
    """Async context manager over a sync one; its exit runs to the end."""

    async def __aenter__(self: Made) -> Made:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await on_thread(lambda: self._sync.__exit__(kind, error, trace), runs_to_end=True)


def threaded(
    method: Callable[Concatenate[S, P], T], *, runs_to_end: bool = False
) -> Callable[Concatenate[ForTasks[S], P], Coroutine[Any, Any, T]]:
    return converted(method, lambda result: result, runs_to_end=runs_to_end)


def converted(
    method: Callable[Concatenate[S, P], T],
    into: Callable[[T], U],
    *,
    undo: Callable[[T], object] | None = None,
    runs_to_end: bool = False,
) -> Callable[Concatenate[ForTasks[S], P], Coroutine[Any, Any, U]]:
    """Derive the async form of a blocking method; `into` converts its result.

    `undo`, which gets the unconverted result, and `runs_to_end` are those of `on_thread`.
    """
    named = renamed(method, f"Async{method.__qualname__}")

    @functools.wraps(named)
    async def call(self: ForTasks[S], /, *args: P.args, **kwargs: P.kwargs) -> U:
        return into(await on_thread(partial(named, self._sync, *args, **kwargs), undo=undo, runs_to_end=runs_to_end))

    call.__doc__ = _for_tasks(method)
    return call


def awaited(
    method: Callable[Concatenate[S, P], T], begin: Callable[Concatenate[S, P], Future[T]]
) -> Callable[Concatenate[ForTasks[S], P], Coroutine[Any, Any, T]]:
    """Derive the async form of `method` from `begin`, which takes the same arguments and returns a future.

    A cancelled task cancels that future.
    """
    named = renamed(begin, f"Async{method.__qualname__}")

    @functools.wraps(method)
    async def call(self: ForTasks[S], /, *args: P.args, **kwargs: P.kwargs) -> T:
        return await asyncio.wrap_future(named(self._sync, *args, **kwargs))

    call.__doc__ = _for_tasks(method)
    return call


def iterated(
    method: Callable[Concatenate[S, P], Iterator[T]],
) -> Callable[Concatenate[ForTasks[S], P], AsyncIterator[T]]:
    """Derive the async form (`async for`) of a method that returns an iterator; each step runs on a thread."""
    named = renamed(method, f"Async{method.__qualname__}")

    @functools.wraps(named)
    async def call(self: ForTasks[S], /, *args: P.args, **kwargs: P.kwargs) -> AsyncIterator[T]:
        items = await on_thread(partial(named, self._sync, *args, **kwargs))
        while (item := await on_thread(partial(next, items, _NO_RESULT))) is not _NO_RESULT:
            yield item

    call.__doc__ = _for_tasks(method)
    return call


def renamed(method: Callable[P, T], name: str) -> Callable[P, T]:
    """Copy of the function, which Python's errors call `name`."""
    given: Any = method
    copy: Any = FunctionType(given.__code__, given.__globals__, given.__name__, given.__defaults__, given.__closure__)
    functools.update_wrapper(copy, given)
    copy.__kwdefaults__, copy.__qualname__ = given.__kwdefaults__, name
    return copy  # type: ignore[no-any-return]


def _for_tasks(method: Callable[..., Any]) -> str:
    text = (method.__doc__ or "").partition(">>> ")[0].rstrip()
    return f"{text}\n\n        This is `{method.__qualname__}` for tasks.\n        "
