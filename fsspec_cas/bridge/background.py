"""Threads of this library that run any number of calls at once, and those calls' futures.

The import registers an exit function that waits for these calls.
"""

from __future__ import annotations

import atexit
import contextlib
import logging
import os
import threading
import weakref
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
_RUNNING, _CANCELLED, _FINISHED = "RUNNING", "CANCELLED_AND_NOTIFIED", "FINISHED"  # as the standard library


class Later(Future[T]):
    """The future of a call, which an interrupt cannot leave locked.

    The standard future keeps its result under a `Condition`, which a Ctrl-C in a waiting caller can leave locked; then
    the thread that sets results blocks. A `Later` uses a `Signal`. `concurrent.futures.wait` and `as_completed` still
    need the `Condition`, which the setting thread tries to lock for one second.
    """

    def __init__(self) -> None:
        super().__init__()
        self._over = Signal()
        self._decided = threading.Lock()  # taken once, by the thread that runs or cancels the call
        self._calls: deque[Callable[[Future[T]], object]] = deque()

    def __repr__(self) -> str:
        return f"<Later, {self._state.lower()}>"

    def cancel(self) -> bool:
        """Cancel the call unless it has begun, and run callbacks; return whether it is cancelled."""
        if self._decided.acquire(blocking=False):
            self._end(_CANCELLED)
        return self.cancelled()

    def cancelled(self) -> bool:
        """Return whether the call was cancelled."""
        return self._state == _CANCELLED

    def running(self) -> bool:
        """Return whether the call has begun and not ended."""
        return self._state == _RUNNING

    def done(self) -> bool:
        """Return whether the call has ended or was cancelled."""
        return self._over.is_set()

    def result(self, timeout: float | None = None) -> T:
        """Wait for the call to end; return its result or raise its error.

        Raises TimeoutError after `timeout` seconds, CancelledError if cancelled.
        """
        error = self.exception(timeout)
        if error is None:
            return self._result  # type: ignore[return-value] # set before the state
        try:
            raise error
        finally:
            del error, self  # the traceback refers to this frame

    def exception(self, timeout: float | None = None) -> BaseException | None:
        """Wait for the call to end; return its error, or None.

        Raises TimeoutError after `timeout` seconds, CancelledError if cancelled.
        """
        if not self._over.wait(timeout):
            raise NotYet
        if self.cancelled():
            raise CancelledError
        return self._exception

    def add_done_callback(self, fn: Callable[[Future[T]], object]) -> None:
        """Call `fn` with this future once it is done, on the setting thread or at once here; log its error."""
        self._calls.append(fn)
        if self._over.is_set():
            self._call_back()

    def set_running_or_notify_cancel(self) -> bool:
        """Mark the call as begun, unless cancelled; return whether it may run."""
        if self._decided.acquire(blocking=False):
            self._state = _RUNNING
            return True
        if not self._over.is_set():  # its cancelling thread was interrupted
            self._end(_CANCELLED)
        return False

    def set_result(self, result: T) -> None:
        """Store the call's result, wake waiting callers, and run the callbacks here."""
        self._result = result
        self._end(_FINISHED)

    def set_exception(self, exception: BaseException | None) -> None:
        """Store the call's error, wake waiting callers, and run the callbacks here."""
        self._exception: BaseException | None = exception
        self._end(_FINISHED)

    def _end(self, state: str) -> None:
        """Set the final state, wake waiting callers, and run callbacks here.

        Another thread reports to `concurrent.futures.wait`.
        """
        self._state = state
        self._over.set()
        self._call_back()
        if self._condition.acquire(timeout=SLICE_S):
            waiters, self._waiters = self._waiters, []
            self._condition.release()
            if waiters:
                Worker(partial(self._report, waiters), "told-later").start()

    def _report(self, waiters: list[Any]) -> None:
        """Report the end to callers of `concurrent.futures.wait` and `as_completed`."""
        for waiter in waiters:
            if self.cancelled():
                waiter.add_cancelled(self)
            elif self._exception is not None:
                waiter.add_exception(self)
            else:
                waiter.add_result(self)

    def _call_back(self) -> None:
        """Run each registered callback once, in this thread; log their errors."""
        while self._calls:
            try:
                call = self._calls.popleft()
            except IndexError:  # another thread took it
                return
            try:
                call(self)
            except Exception:  # noqa: BLE001 - as the standard library does
                _LOG.exception("a callback of %r failed", self)


_KEPT = 32  # starting a thread costs as much CPU time as a small request
_KEPT_S = 2.0
_AT_EXIT_S = 60.0


class Background:
    """Runs each call on its own thread at once; the interpreter's exit waits for calls started by `begin`.

    Its queue and deque are C code, so an interrupt leaves no lock taken, at most one idle thread too many.
    """

    def __init__(self) -> None:
        self._calls: SimpleQueue[Callable[[], object]] = SimpleQueue()
        self._waiting: deque[None] = deque()  # an entry per idle thread without an assigned call
        self._under_way: set[Later[Any]] = set()

    def begin(self, call: Callable[[], T]) -> Later[T]:
        """Start the call on a thread at once; return its future, which cannot be cancelled.

        If no thread can start, the call runs here. The interpreter's exit waits up to 60 s for it.
        """
        answer: Later[T] = Later()
        answer.set_running_or_notify_cancel()
        self._under_way.add(answer)
        self.run(lambda: self._answer(answer, call))
        return answer

    def run(self, call: Callable[[], object]) -> None:
        """Run `call`, which must not raise, on another thread, or here if none can start."""
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
        """Wait for the calls under way, each for at most `timeout_s`."""
        for answer in [*self._under_way]:
            with contextlib.suppress(NotYet):
                answer.exception(timeout_s)

    def _answer(self, answer: Later[T], call: Callable[[], T]) -> None:
        """Run the call, store its result or error in `answer`, and remove it from the calls under way."""
        try:
            answer.set_result(call())
        except BaseException as error:  # noqa: BLE001 - raised where the result is read
            answer.set_exception(error)
        finally:
            self._under_way.discard(answer)

    def _live(self) -> None:
        """Thread body: run queued calls, until none comes in time or enough idle threads wait."""
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
    """Run the call here, and return its future, which may hold an error; an interrupt is raised."""
    answer: Later[T] = Later()
    try:
        answer.set_result(call())
    except Exception as error:  # noqa: BLE001 - raised where the result is read
        answer.set_exception(error)
    return answer


def submit(threads: Executor, call: Callable[[], T]) -> Future[T]:
    """Start the call on an executor, or run it here if the interpreter is ending; return its future."""
    try:
        return threads.submit(call)
    except RuntimeError:
        return run_here(call)


BACKGROUND = Background()  # a forked child starts anew

# Exit functions run in reverse order. The first `finalize` of a process registers the exit function that closes the
# filesystems' sessions; this line makes it older than ours, so that ours runs before it.
weakref.finalize(BACKGROUND, int)
atexit.register(BACKGROUND.wait, _AT_EXIT_S)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=BACKGROUND.__init__)  # type: ignore[misc]
