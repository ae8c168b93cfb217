"""`Later`: a `concurrent.futures.Future` that an interrupt cannot leave locked.

A thread of this library sets the result of many callers, one after the other. The future of the standard library keeps
its result under a `Condition`: a Ctrl-C in a caller that waits for it can leave that locked, and the thread that sets
the result stops there, with all other callers behind it. A `Later` keeps its result in attributes that one thread
writes, behind a `Signal` (see `fsspec_cas.waiting` for why that cannot stay locked).

`concurrent.futures.wait` and `as_completed` take the future's condition all the same. Whoever sets the result gives
them a second, and wakes them on a thread of its own.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import CancelledError, Future
from concurrent.futures import TimeoutError as NotYet
from functools import partial
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
