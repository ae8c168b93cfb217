"""Calls on threads of this library: begun at once, however many are under way.

Not on the default executor of asyncio: that has few threads, and names are looked up on them. Not by a
`ThreadPoolExecutor`: its futures and semaphores can stay locked after an interrupt (`fsspec_cas.waiting`), and the
interpreter waits at its end for all calls of all executors.

Their results are `Later`, a `concurrent.futures.Future` that an interrupt cannot leave locked. A thread of this library
sets the result of many callers, one after the other. The future of the standard library keeps its result under a
`Condition`: a Ctrl-C in a caller that waits for it can leave that locked, and the thread that sets the result stops
there, with all other callers behind it. A `Later` keeps its result in attributes that one thread writes, behind a
`Signal` (see `fsspec_cas.waiting` for why that cannot stay locked).

`concurrent.futures.wait` and `as_completed` lock the future's `Condition` all the same. The thread that sets the result
tries for a second to lock it, and wakes those callers on a new thread.
"""

from __future__ import annotations

import atexit
import contextlib
import logging
import os
import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import CancelledError, Executor, Future
from concurrent.futures import TimeoutError as NotYet
from functools import partial
from queue import Empty, SimpleQueue
from typing import Any, TypeVar

from fsspec_cas.waiting import SLICE_S, Signal, Worker

T = TypeVar("T")

_LOG = logging.getLogger("fsspec_cas")
_RUNNING, _CANCELLED, _FINISHED = "RUNNING", "CANCELLED_AND_NOTIFIED", "FINISHED"  # those of the standard library


class Later(Future[T]):
    """The result of a call that is made later, or on another thread."""

    def __init__(self) -> None:
        super().__init__()
        self._over = Signal()
        self._decided = threading.Lock()  # taken once, for good: by who makes the call, or by who cancels it
        self._calls: deque[Callable[[Future[T]], object]] = deque()

    def __repr__(self) -> str:
        return f"<Later, {self._state.lower()}>"

    def cancel(self) -> bool:
        """Drop the call, if it is not begun; whether it is dropped."""
        if self._decided.acquire(blocking=False):
            self._end(_CANCELLED)
        return self.cancelled()

    def cancelled(self) -> bool:
        """Whether the call was dropped."""
        return self._state == _CANCELLED

    def running(self) -> bool:
        """Whether the call is begun and not over."""
        return self._state == _RUNNING

    def done(self) -> bool:
        """Whether there is a result, or the call was dropped."""
        return self._over.is_set()

    def result(self, timeout: float | None = None) -> T:
        """The result, once it is there, or what the call raised."""
        error = self.exception(timeout)
        if error is None:
            return self._result  # type: ignore[return-value] # there is one
        try:
            raise error
        finally:
            del error, self  # the traceback leads back here

    def exception(self, timeout: float | None = None) -> BaseException | None:
        """What the call raised, once it is over."""
        if not self._over.wait(timeout):
            raise NotYet
        if self.cancelled():
            raise CancelledError
        return self._exception

    def add_done_callback(self, fn: Callable[[Future[T]], object]) -> None:
        """Call it with this once there is a result: on the thread that sets it, or at once."""
        self._calls.append(fn)
        if self._over.is_set():
            self._call_back()

    def set_running_or_notify_cancel(self) -> bool:
        """Begin the call, unless it was dropped."""
        if self._decided.acquire(blocking=False):
            self._state = _RUNNING
            return True
        if not self._over.is_set():  # whoever cancelled it was interrupted
            self._end(_CANCELLED)
        return False

    def set_result(self, result: T) -> None:
        """The call has returned."""
        self._result = result
        self._end(_FINISHED)

    def set_exception(self, exception: BaseException | None) -> None:
        """The call has raised."""
        self._exception: BaseException | None = exception
        self._end(_FINISHED)

    def _end(self, state: str) -> None:
        self._state = state
        self._over.set()
        self._call_back()
        if self._condition.acquire(timeout=SLICE_S):
            waiters, self._waiters = self._waiters, []
            self._condition.release()
            if waiters:
                Worker(partial(self._tell, waiters), "told-later").start()

    def _tell(self, waiters: list[Any]) -> None:
        for waiter in waiters:
            if self.cancelled():
                waiter.add_cancelled(self)
            elif self._exception is not None:
                waiter.add_exception(self)
            else:
                waiter.add_result(self)

    def _call_back(self) -> None:
        while self._calls:
            try:
                call = self._calls.popleft()
            except IndexError:  # another thread was faster
                return
            try:
                call(self)
            except Exception:  # noqa: BLE001 - as the standard library has it
                _LOG.exception("a callback of %r failed", self)


_KEPT = 32  # threads without a call; to start one takes as much CPU time as a small request
_KEPT_S = 2.0
_AT_EXIT_S = 60.0


class Background:
    """Runs each call on a thread at once. The end of the interpreter waits for calls that were begun by `begin`.

    Threads without a call wait a little for the next one. The queue and the deque are C code and have no lock that an
    interrupt could leave taken. Of a thread that is interrupted between two of their calls, a waiting thread is at
    worst one too many, and ends with its patience.
    """

    def __init__(self) -> None:
        self._calls: SimpleQueue[Callable[[], object]] = SimpleQueue()
        self._waiting: deque[None] = deque()  # one for each thread that waits, and is not meant by a call
        self._under_way: set[Later[Any]] = set()

    def begin(self, call: Callable[[], T]) -> Later[T]:
        """The answer of the call, which is under way."""
        answer: Later[T] = Later()
        answer.set_running_or_notify_cancel()
        self._under_way.add(answer)
        self.run(lambda: self._answer(answer, call))
        return answer

    def run(self, call: Callable[[], object]) -> None:
        """Make the call, which raises nothing, on another thread; here, if no thread can be started any more.

        The end of the interpreter does not wait for it.
        """
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
        """Until the calls are over that are under way, for so long at most for each."""
        for answer in [*self._under_way]:
            with contextlib.suppress(NotYet):
                answer.exception(timeout_s)

    def _answer(self, answer: Later[T], call: Callable[[], T]) -> None:
        try:
            answer.set_result(call())
        except BaseException as error:  # noqa: BLE001 - it is raised where the answer is asked for
            answer.set_exception(error)
        finally:
            self._under_way.discard(answer)

    def _live(self) -> None:
        while True:
            try:
                call = self._calls.get(timeout=_KEPT_S)
            except Empty:
                try:
                    self._waiting.pop()
                except IndexError:  # a call is about to come
                    continue
                return
            call()
            del call
            if len(self._waiting) >= _KEPT:
                return
            self._waiting.append(None)


def done(call: Callable[[], T]) -> Later[T]:
    """The answer of the call, which is over; what it raised is for whoever asks for the answer."""
    answer: Later[T] = Later()
    try:
        answer.set_result(call())
    except Exception as error:  # noqa: BLE001 - see above
        answer.set_exception(error)
    return answer


def submit(threads: Executor, call: Callable[[], T]) -> Future[T]:
    """The answer of the call, which is under way, or over if the interpreter is ending and starts no threads."""
    try:
        return threads.submit(call)
    except RuntimeError:
        return done(call)


BACKGROUND = Background()  # of this process; in a forked child anew, without the parent's threads

atexit.register(BACKGROUND.wait, _AT_EXIT_S)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=BACKGROUND.__init__)  # type: ignore[misc]
