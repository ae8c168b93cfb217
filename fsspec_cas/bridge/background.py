"""A call submitted to a pool of threads; made in place, where no thread can be started any more."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Executor, Future
from typing import TypeVar

T = TypeVar("T")


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
