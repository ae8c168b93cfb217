"""Calls on threads of this library: begun at once, however many are under way.

Not on the default executor of asyncio: that has few threads, and names are looked up on them. Not by a
`ThreadPoolExecutor`: its futures and semaphores can stay locked after an interrupt (`fsspec_cas.waiting`), and the
interpreter waits at its end for all calls of all executors.
"""

from __future__ import annotations

import atexit
import contextlib
import os
from collections import deque
from collections.abc import Callable
from concurrent.futures import Executor, Future
from concurrent.futures import TimeoutError as NotYet
from queue import Empty, SimpleQueue
from typing import Any, TypeVar

from fsspec_cas.bridge.later import Later
from fsspec_cas.waiting import Worker

T = TypeVar("T")

_KEPT = 32  # threads without a call; to start one takes as much CPU time as a small request
_KEPT_S = 2.0
_AT_EXIT_S = 60.0


class Threads:
    """Begins each call at once. Threads without a call wait a little for the next one.

    The queue and the deque are C code and have no lock that an interrupt could leave taken. Of a thread that is
    interrupted between two of their calls, a waiting thread is at worst one too many, and ends with its patience.
    """

    def __init__(self) -> None:
        self._calls: SimpleQueue[Callable[[], object]] = SimpleQueue()
        self._waiting: deque[None] = deque()  # one for each thread that waits, and is not meant by a call

    def begin(self, call: Callable[[], object]) -> None:
        """Make the call, which raises nothing, on another thread; here, if no thread can be started any more."""
        try:
            self._waiting.pop()
        except IndexError:
            try:
                Worker(self._live, "fsspec_cas").start()
            except RuntimeError:
                call()
                return
        self._calls.put(call)

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


class Background:
    """Calls that go on while nobody waits for them; the end of the interpreter waits for those under way."""

    def __init__(self) -> None:
        self._threads = Threads()
        self._under_way: set[Later[Any]] = set()

    def begin(self, call: Callable[[], T]) -> Later[T]:
        """The answer of the call, which is under way."""
        answer: Later[T] = Later()
        answer.set_running_or_notify_cancel()
        self._under_way.add(answer)
        self._threads.begin(lambda: self._answer(answer, call))
        return answer

    def run(self, call: Callable[[], object]) -> None:
        """Make the call, which raises nothing; the end of the interpreter does not wait for it."""
        self._threads.begin(call)

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
