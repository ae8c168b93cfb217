"""`Batcher`: many callers, one write at a time.

Promised: each operation is in one write at most, and gets that write's own result or error for it. An operation that
is cancelled before a write has taken it is dropped; after that it goes on, and its caller does not learn how it ended.
A bad operation does not spoil the others: `write` says for each what it came to. At the end of the interpreter what
waits is written, for 5 s at most. A forked child starts with nobody waiting.

An interrupt of a caller stops nobody else. A caller only appends to a deque, starts the writing thread if none writes,
and waits for its own `Later`: there is no lock that it could leave taken. All else belongs to the writing thread,
which is of this library, so that no signal handler and no exception of another's runs on it.

Not promised: an order among callers, beyond that of arrival.
"""

from __future__ import annotations

import atexit
import contextlib
import threading
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import CancelledError
from concurrent.futures import TimeoutError as NotYet
from typing import Any, Generic, TypeVar

from fsspec_cas import World
from fsspec_cas.bridge.background import Later
from fsspec_cas.waiting import SLICE_S, Signal, Worker
from lockprovider.recipes.errors import CoordinationError, Overloaded
from lockprovider.recipes.line import Line, pace_at
from lockprovider.recipes.place import OfThisProcess

Op = TypeVar("Op")
T = TypeVar("T")
Waiting = tuple[Op, "Later[T]"]

DRAIN_S = 5.0  # at the end of the interpreter
_END: Any = object()  # in the line: all before it are written


class Batcher(OfThisProcess, Generic[Op, T]):
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
        self._begin()
        _ALL.add(self)

    def _be_new(self) -> None:
        self._arrived: deque[Waiting[Op, T]] = deque()  # since the writer looked; they are at the end of the line
        self._line: Line[Waiting[Op, T]] = Line()  # the writer's
        self._crowded = Signal()  # as many wait as the writer waits for
        self._writing = threading.Lock()  # whoever has it writes
        self._writer: threading.Thread | None = None

    def throttled(self) -> None:
        """The store asked for patience (429, 503): for a minute it gets a second between two writes."""
        self._throttled_s = self._world.monotonic_s()

    @property
    def waiting(self) -> int:
        """How many wait for a write to take them."""
        return len(self._line.waiting) + len(self._arrived)

    @property
    def is_writer(self) -> bool:
        """Whether the calling thread is the one that writes: it would wait for itself."""
        return self._writer is threading.current_thread()

    def submit(self, operation: Op, *, kept: bool = False) -> Later[T]:
        """Put it into the line, and go on.

        `kept`: it cannot be cancelled. Dropped, it would be a hole below the numbers that come after it.

        Raises:
            Overloaded: too many wait already; it was not taken.
            CoordinationError: it was closed.
        """
        answer: Later[T] = Later()
        if kept:
            answer.set_running_or_notify_cancel()
        self._take(operation, answer)
        return answer

    def do(self, operation: Op, answer: Later[T] | None = None) -> T:
        """Put it into the line and wait for its result. After a Ctrl-C it is dropped, or goes on if a write has it."""
        answer = answer or Later()
        try:
            self._take(operation, answer)
            return self.wait(answer)
        finally:
            answer.cancel()  # of one that is done: nothing

    def wait(self, answer: Later[T]) -> T:
        """The result of an operation in the line; see `do` for a Ctrl-C."""
        return self.wait_all([answer])[0]

    def wait_all(self, answers: Sequence[Later[T]]) -> list[T]:
        """The results of operations in the line, in their order. The first error is raised once all of them ended."""
        try:
            self.await_end(answers)
            return [answer.result() for answer in answers]
        finally:
            for answer in answers:
                answer.cancel()  # of one that is done: nothing

    def await_end(self, answers: Iterable[Later[T]]) -> None:
        """Return once each operation has a result or an error. An interrupt of this wait cancels none of them."""
        for answer in answers:
            while not self.came(answer):
                pass

    def came(self, answer: Later[T]) -> bool:
        """Whether there is a result within a second; if not, it is seen to it that a thread writes."""
        with contextlib.suppress(NotYet, CancelledError):
            answer.exception(SLICE_S)
            return True
        if not answer.done():
            self._have_written()
        return answer.done()

    def close(self, timeout_s: float | None = None) -> None:
        """Take nothing more, and return when all that waits is written, or after so many seconds."""
        self._closed = True
        writer = self._writer
        if self.is_writer or not (self.waiting or self._writing.locked()):
            return
        end: Later[T] = Later()
        self._arrived.append((_END, end))
        self._have_written()
        with contextlib.suppress(NotYet):
            end.exception(timeout_s)
            if writer is not None and writer.ident is not None:
                writer.join(timeout_s)  # it has nothing left to do

    def _take(self, operation: Op, answer: Later[T]) -> None:
        if self._closed:
            raise CoordinationError("it was closed, and takes nothing more: open another")
        if self.waiting >= self._max_waiting:
            raise Overloaded(f"{self._max_waiting} operations wait already: come later, or with fewer at once")
        self._arrived.append((operation, answer))
        if self.waiting >= self._line.crowd and not self._crowded.is_set():  # the writer waits for no fewer
            self._crowded.set()
        self._have_written()

    def _have_written(self) -> None:
        """Start the thread, unless one writes: that looks whether more has come after it has let go of `_writing`."""
        if self._writing.locked():
            return
        try:
            Worker(self._run, "batcher").start()
        except RuntimeError:  # the interpreter is ending and starts no threads
            self._run()

    def _run(self) -> None:
        while self.waiting and self._writing.acquire(blocking=False):
            try:
                self._writer = threading.current_thread()
                while batch := self._next():
                    self._send(batch)
            finally:
                self._writer = None
                self._writing.release()

    def _send(self, batch: tuple[Waiting[Op, T], ...]) -> None:
        began_s = self._world.monotonic_s()
        taken = [one for one in batch if one[1].running() or one[1].set_running_or_notify_cancel()]
        wanted = [one for one in taken if one[0] is not _END]
        try:
            results = self._write([operation for operation, _ in wanted]) if wanted else []
            answers = zip(wanted, results, strict=True)
            given = [(answer, result) for (_, answer), result in answers]
        except BaseException as error:  # noqa: BLE001 - it is raised where it is waited for
            given = [(answer, error) for _, answer in wanted]  # type: ignore[misc]
        self._line = self._line.answered(began_s, self._world.monotonic_s())
        for answer, result in given:
            if isinstance(result, BaseException):
                answer.set_exception(result)
            else:
                answer.set_result(result)
        for operation, answer in taken:
            if operation is _END:
                answer.set_exception(None)

    def _next(self) -> tuple[Waiting[Op, T], ...]:
        """What goes with the next write; nothing: there was nobody for a while, and the thread ends."""
        self._line_up()
        if (patience_s := self._line.patience_s(self._world.monotonic_s())) and not self._closed:
            self._crowded.clear()
            if self.waiting < self._line.crowd:
                self._crowded.wait(patience_s)
            self._line_up()
        if not self._line.waiting:
            return ()
        now_s = self._world.monotonic_s()
        if rest_s := self._line.rest_s(now_s, pace_at(self._pace_s, self._throttled_s, now_s)):
            self._world.sleep(rest_s)
        self._line_up()
        self._line, batch = self._line.took(self._most)
        return batch

    def _line_up(self) -> None:
        """The line has all who have come."""
        arrived = [self._arrived.popleft() for _ in range(len(self._arrived))]
        self._line = self._line.came(*arrived)


_ALL: weakref.WeakSet[Batcher[Any, Any]] = weakref.WeakSet()


def _at_exit() -> None:
    for one in list(_ALL):
        with contextlib.suppress(RuntimeError):
            one.close(DRAIN_S)


atexit.register(_at_exit)
