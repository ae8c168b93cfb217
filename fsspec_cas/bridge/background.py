"""Calls on threads: submitted to a pool, or begun at once; made in place, where no thread can be started any more."""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from threading import Semaphore
from typing import Any, TypeVar

T = TypeVar("T")
_KEPT = 4  # threads; to start one takes as much CPU time as a small request


class Background:
    """Begins each call at once, however many are under way. A few threads stay for the next calls, while this is there.

    A copy of it, by pickle, too, has threads of its own; so it has in a forked child.
    """

    def __init__(self) -> None:
        self._pid = os.getpid()
        self._pool = ThreadPoolExecutor(_KEPT, "in_background")
        self._free = Semaphore(_KEPT)

    def __reduce__(self) -> tuple[Any, ...]:
        return Background, ()

    def begin(self, call: Callable[[], T]) -> Future[T]:
        """The answer of the call, which is under way; nobody need wait for it."""
        if self._pid != os.getpid():
            self.__init__()  # type: ignore[misc] # those threads are not there
        if self._free.acquire(blocking=False):  # so it never waits in the pool for another call, that may wait for it
            return submit(self._pool, lambda: self._freed_after(call, self._free))
        pool = ThreadPoolExecutor(1, "in_background")
        try:
            return submit(pool, call)
        finally:
            pool.shutdown(wait=False)

    @staticmethod
    def _freed_after(call: Callable[[], T], free: Semaphore) -> T:
        try:
            return call()
        finally:
            free.release()


def submit(threads: Executor, call: Callable[[], T]) -> Future[T]:
    """The answer of the call, which is under way, or over if the interpreter is ending and starts no threads."""
    try:
        return threads.submit(call)
    except RuntimeError:
        return done(call)


def done(call: Callable[[], T]) -> Future[T]:
    """The answer of the call, which is over; what it raised is for whoever asks for the answer."""
    answer: Future[T] = Future()
    try:
        answer.set_result(call())
    except Exception as error:  # noqa: BLE001 - see above
        answer.set_exception(error)
    return answer
