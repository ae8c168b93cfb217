"""Waiting that no interrupt can break, and that the owner of a call can end.

    done = Signal()
    done.set()              # by one thread
    done.wait(timeout=10)   # by others

A Ctrl-C, a signal handler that raises and an asynchronous exception come between two bytecodes of a thread, anywhere.
`threading.Event`, `Condition`, `Semaphore` and `concurrent.futures.Future` take their lock in a method that is written
in Python (`Condition.__enter__`). An exception between the acquire in that method and the block that it opens leaves
the lock taken for good, and every other thread that sets or waits stops there, without a bound.

Why that cannot happen here: a `Signal` has no lock that one thread could keep from another. Each waiting thread makes
a lock of its own, and puts it into a deque. To set the signal is to write a flag, then to take those locks out and to
release them. All of these are single calls of C functions: an interrupt comes before or after, never inside. Where it
comes between them, a waiting thread has not been woken; it looks at the flag again after `SLICE_S`.

`with lock:` around a plain `threading.Lock` or `RLock` is as safe, because its enter and exit are C functions.

A call that is made for a task of an event loop runs on a thread, under `ends_with(stop)`. Once `stop` is set, every
wait in that call raises `WaitStopped`: the same as a Ctrl-C in a thread of the caller's own.
"""

from __future__ import annotations

import _thread
import contextlib
import os
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from queue import Empty, SimpleQueue

SLICE_S = 1.0  # a waiting thread that was not woken looks again after this

_HERE = threading.local()


class WaitStopped(BaseException):
    """The task for which this call was made does not wait for it any more. Not an `Exception`, as a Ctrl-C is none."""


class Signal:
    """A flag that threads wait for: `threading.Event`, which an interrupt cannot leave locked.

    >>> over = Signal()
    >>> over.wait(0.001), over.set(), over.wait(), over.is_set()
    (False, None, True, True)
    """

    def __init__(self) -> None:
        self._is_set = False
        self._gates: deque[threading.Lock] = deque()

    def __repr__(self) -> str:
        return f"<{type(self).__name__}, {'set' if self._is_set else 'not set'}>"

    def is_set(self) -> bool:
        """Whether it is set.

        >>> over.is_set()
        True
        """
        return self._is_set

    def set(self) -> None:
        """Set it, and wake all threads that wait for it.

        >>> over.set()
        """
        self._is_set = True
        gates = self._gates
        while gates:
            try:
                gates.popleft().release()
            except (IndexError, RuntimeError):  # another thread was faster
                continue

    def clear(self) -> None:
        """Unset it.

        >>> over.clear()
        >>> over.is_set()
        False
        """
        self._is_set = False

    def wait(self, timeout: float | None = None) -> bool:
        """Return True once it is set, False if it is not after `timeout` seconds.

        Raises:
            WaitStopped: in a call under `ends_with`, which is to end.

        >>> Signal().wait(timeout=0)
        False
        """
        stop: Signal | None = getattr(_HERE, "stop", None)
        if self._is_set and stop is None:
            return True
        gate = threading.Lock()
        gate.acquire()
        self._gates.append(gate)
        if stop is not None:
            stop._gates.append(gate)  # noqa: SLF001 - its own class
        end_s = float("inf") if timeout is None else time.monotonic() + timeout
        try:
            while not self._is_set:
                if stop is not None and stop.is_set():
                    raise WaitStopped
                left_s = end_s - time.monotonic()
                if left_s <= 0:
                    return False
                gate.acquire(timeout=min(left_s, SLICE_S))
            return True
        finally:
            _forget(self._gates, gate)
            if stop is not None:
                _forget(stop._gates, gate)  # noqa: SLF001


class Worker(threading.Thread):
    """A daemon thread, which another thread of this library starts. All threads of this library are such threads.

    CPython marks a new thread with the number of the thread that creates it, until the new one runs. An exception that
    is sent to the creator (`PyThreadState_SetAsyncExc`) can reach the new thread instead, which then never begins, and
    `Thread.start` waits for it for good. No program sends exceptions to the starting thread.

    >>> over = Signal()
    >>> Worker(over.set, "example").start(), over.wait()
    (None, True)
    """

    def __init__(self, target: Callable[[], object], name: str) -> None:
        super().__init__(target=target, name=name, daemon=True)

    def start(self, *, wait: bool = True) -> None:
        """Start the thread, and return once it runs.

        `wait=False` returns at once. A finalizer must not wait: a garbage collection runs it in any thread, also in one
        that has a lock of `threading`, or that has just been created and that the starting thread waits for.

        Raises:
            RuntimeError: the system or the ending interpreter starts no more threads. With `wait=False` the caller does
                not learn that the system refused the thread.
        """
        _STARTER.start(super().start, wait=wait)


class _Starter:
    """Makes calls that start threads, on a thread of its own, which lives as long as the process."""

    def __init__(self) -> None:
        self._lives = False
        self._asked: SimpleQueue[tuple[Callable[[], None], _thread.LockType, list[BaseException]]] = SimpleQueue()

    def start(self, call: Callable[[], None], *, wait: bool) -> None:
        """Make the call; raise what it raises. A call that is interrupted here is made all the same."""
        over, errors = _thread.allocate_lock(), list[BaseException]()
        over.acquire()
        self._begin()
        self._asked.put((call, over, errors))
        while wait and not over.acquire(timeout=SLICE_S):
            self._begin()
            if not self._asked.empty():  # the thread that is being started waits here itself, in a user's finalizer
                _thread.start_new_thread(self._help, ())
        if errors and wait:
            raise errors[0]

    def _begin(self) -> None:
        """Start the starting thread. The next second finds out if it died of an exception that was sent to this one."""
        if sys.is_finalizing():
            raise RuntimeError("the interpreter is ending and starts no threads")
        if not self._lives:
            _thread.start_new_thread(self._live, ())

    def _live(self) -> None:
        self._lives = True
        while True:
            self._make(*self._asked.get())

    def _help(self) -> None:
        """Make the calls that wait, on a thread that ends with them."""
        with contextlib.suppress(Empty):
            while True:
                self._make(*self._asked.get_nowait())

    @staticmethod
    def _make(call: Callable[[], None], over: _thread.LockType, errors: list[BaseException]) -> None:
        try:
            call()
        except BaseException as error:  # noqa: BLE001 - raised where the thread was asked for
            errors.append(error)
        over.release()


_STARTER = _Starter()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_STARTER.__init__)  # type: ignore[misc]


def pause(seconds: float) -> None:
    """Let the calling thread sleep.

    Raises:
        WaitStopped: in a call under `ends_with`, which is to end.
    """
    if getattr(_HERE, "stop", None) is None:
        time.sleep(seconds)
    elif seconds > 0:
        Signal().wait(seconds)


@contextlib.contextmanager
def ends_with(stop: Signal) -> Iterator[None]:
    """Once `stop` is set, the waits of the calling thread raise `WaitStopped`."""
    before = getattr(_HERE, "stop", None)
    _HERE.stop = stop
    try:
        yield
    finally:
        _HERE.stop = before


def _forget(gates: deque[threading.Lock], gate: threading.Lock) -> None:
    with contextlib.suppress(ValueError, IndexError):  # it was taken out
        gates.remove(gate)
