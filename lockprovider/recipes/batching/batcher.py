"""`Batcher`: many callers, one write at a time.

Promised: each operation is in one write at most, and gets that write's own result or error for it. An operation that
is cancelled before a write has taken it is dropped; after that it goes on, and its caller does not learn how it ended.
A bad operation does not spoil the others: `write` says for each what it came to. At the end of the interpreter what
waits is written, for 5 s at most. A forked child starts with nobody waiting.

Not promised: an order among callers, beyond that of arrival.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import threading
import weakref
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from concurrent.futures import TimeoutError as NotYet
from typing import Any, Generic, TypeVar

from fsspec_cas import World
from lockprovider.recipes.batching.line import Line, pace_at
from lockprovider.recipes.errors import CoordinationError, Overloaded

Op = TypeVar("Op")
T = TypeVar("T")
Waiting = tuple[Op, "Future[T]"]

DRAIN_S = 5.0  # at the end of the interpreter
_SLICE_S = 1.0  # a Ctrl-C that comes just before a lock is waited for is seen after that


class Batcher(Generic[Op, T]):
    """Hands operations to `write`, many at once, from a thread that lives while there are some.

    `write` gets operations in the order of arrival and returns, for each, its result or the error that its caller gets.
    What it raises all of them get.

    Args:
        write: called by one thread at a time.
        world: its clock.
        pace_s: seconds from an answer to the next write.
        most: how many one write may carry.
        max_waiting: how many may wait; more are refused with `Overloaded`.
    """

    def __init__(
        self,
        write: Callable[[Sequence[Op]], Sequence[T | Exception]],
        *,
        world: World,
        pace_s: float = 0.0,
        most: int = 10_000,
        max_waiting: int = 10_000,
    ) -> None:
        self._write = write
        self._world = world
        self._pace_s = pace_s
        self._most = most
        self._max_waiting = max_waiting
        self._throttled_s: float | None = None
        self._closed = False
        self._be_new()
        _ALL.add(self)

    def _be_new(self) -> None:
        self._guard = threading.Condition()
        self._line: Line[Waiting[Op, T]] = Line()
        self._arrived: list[Waiting[Op, T]] = []  # since the writer looked; they are at the end of the line
        self._writer: threading.Thread | None = None

    def throttled(self) -> None:
        """The store asked for patience (429, 503): for a minute it gets a second between two writes."""
        self._throttled_s = self._world.monotonic_s()

    @property
    def waiting(self) -> int:
        """How many wait for a write to take them."""
        with self._guard:
            return len(self._line.waiting) + len(self._arrived)

    def submit(self, operation: Op, *, kept: bool = False) -> Future[T]:
        """Put it into the line, and go on.

        `kept`: it cannot be cancelled. Dropped, it would be a hole below the numbers that come after it.

        Raises:
            Overloaded: too many wait already; it was not taken.
            CoordinationError: it was closed.
        """
        answer: Future[T] = Future()
        if kept:
            answer.set_running_or_notify_cancel()
        with self._guard:
            if self._closed:
                raise CoordinationError("it was closed, and takes nothing more: open another")
            before = self.waiting
            if before >= self._max_waiting:
                raise Overloaded(f"{self._max_waiting} operations wait already: come later, or with fewer at once")
            self._arrived.append((operation, answer))
            if before + 1 >= self._line.crowd:  # the writer waits for no fewer
                self._guard.notify()
            if self._writer is not None:
                return answer
            self._writer = threading.Thread(target=self._run, name="batcher", daemon=True)
            with contextlib.suppress(RuntimeError):  # the interpreter is ending and starts no threads
                self._writer.start()  # under the guard: nobody can join it before that
                return answer
        self._run()
        return answer

    def do(self, operation: Op) -> T:
        """Put it into the line and wait for its result. After a Ctrl-C it is dropped, or goes on if a write has it."""
        return self.wait(self.submit(operation))

    @staticmethod
    def wait(answer: Future[T]) -> T:
        """The result of an operation in the line; see `do` for a Ctrl-C."""
        try:
            while not answer.done():
                with contextlib.suppress(NotYet):
                    answer.exception(_SLICE_S)
        finally:
            answer.cancel()  # of one that is done: nothing
        return answer.result()

    def close(self, timeout_s: float | None = None) -> None:
        """Take nothing more, and return when all that waits is written, or after so many seconds."""
        with self._guard:
            self._closed = True
            writer = self._writer
        if writer is not None and writer.ident is not None and writer is not threading.current_thread():
            writer.join(timeout_s)

    def _run(self) -> None:
        while batch := self._next():
            began_s = self._world.monotonic_s()
            taken = [one for one in batch if one[1].running() or one[1].set_running_or_notify_cancel()]
            try:
                results = self._write([operation for operation, _ in taken]) if taken else []
                answers = zip(taken, results, strict=True)
                given = [(future, result) for (_, future), result in answers]
            except BaseException as error:  # noqa: BLE001 - it is raised where it is waited for
                given = [(future, error) for _, future in taken]  # type: ignore[misc]
            with self._guard:
                self._line = self._line.answered(began_s, self._world.monotonic_s())
            for future, result in given:
                if isinstance(result, BaseException):
                    future.set_exception(result)
                else:
                    future.set_result(result)

    def _next(self) -> tuple[Waiting[Op, T], ...]:
        """What goes with the next write; nothing: there was nobody for a while, and the thread ends."""
        with self._guard:
            if patience_s := self._lined_up().patience_s(self._world.monotonic_s()):
                self._guard.wait_for(lambda: self.waiting >= self._line.crowd, patience_s)
            if not self.waiting:
                self._writer = None
                return ()
        now_s = self._world.monotonic_s()
        if rest_s := self._line.rest_s(now_s, pace_at(self._pace_s, self._throttled_s, now_s)):
            self._world.sleep(rest_s)
        with self._guard:
            self._line, batch = self._lined_up().took(self._most)
        return batch

    def _lined_up(self) -> Line[Waiting[Op, T]]:
        """The line with all who have come; under the guard."""
        self._line = self._line.came(*self._arrived)
        self._arrived.clear()
        return self._line


_ALL: weakref.WeakSet[Batcher[Any, Any]] = weakref.WeakSet()


def _in_child() -> None:
    for one in _ALL:
        one._be_new()  # noqa: SLF001 - it is of this file


def _at_exit() -> None:
    for one in list(_ALL):
        with contextlib.suppress(RuntimeError):
            one.close(DRAIN_S)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_in_child)
atexit.register(_at_exit)
