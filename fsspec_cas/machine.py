"""Clocks, randomness and ids; thread waits and starts that no interrupt leaves stuck."""

from __future__ import annotations

import _thread
import contextlib
import os
import platform
import random
import sys
import threading
import time
import uuid
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Protocol

SLICE_S = 1.0

_HERE = threading.local()


class WaitStopped(BaseException):
    """Raised by waits of a call that its cancelled task has abandoned."""


class Signal:
    """Flag that threads wait for; unlike `threading.Event`, an interrupt cannot leave it locked.

    Single C calls change its deque of locks, and release these.

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
        return self._is_set

    def set(self) -> None:
        """Set the flag, and wake all waiting threads."""
        self._is_set = True
        gates = self._gates
        while gates:
            try:
                gates.popleft().release()
            except (IndexError, RuntimeError):
                continue

    def clear(self) -> None:
        self._is_set = False

    def wait(self, timeout: float | None = None) -> bool:
        """Block until the flag is set, and return True; False if it is still clear after `timeout` seconds.

        Raises WaitStopped once the signal of `ends_with` is set.
        """
        stop: Signal | None = getattr(_HERE, "stop", None)
        if self._is_set and stop is None:
            return True
        gate = threading.Lock()
        gate.acquire()
        self._gates.append(gate)
        if stop is not None:
            stop._gates.append(gate)  # noqa: SLF001
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
    """Daemon thread, started from a separate thread.

    In CPython an exception sent to a thread's creator can kill it before it runs; `Thread.start` then hangs.
    """

    def __init__(self, target: Callable[[], object], name: str) -> None:
        super().__init__(target=target, name=name, daemon=True)

    def start(self, *, wait: bool = True) -> None:
        """Start the thread; return once it runs, with `wait=False` at once, for finalizers.

        Raises:
            RuntimeError: the system or the ending interpreter starts no more threads.
        """
        _STARTER.start(super().start, wait=wait)


class _Starter:
    def __init__(self) -> None:
        self._lives = False
        self._asked: SimpleQueue[tuple[Callable[[], None], _thread.LockType, list[BaseException]]] = SimpleQueue()

    def start(self, call: Callable[[], None], *, wait: bool) -> None:
        """Run `call`, which starts a thread, on this object's (started if needed), even if interrupted here.

        `wait` for its end, and raise its error, which is lost otherwise.
        """
        over, errors = _thread.allocate_lock(), list[BaseException]()
        over.acquire()
        self._begin()
        self._asked.put((call, over, errors))
        while wait and not over.acquire(timeout=SLICE_S):
            self._begin()
            if not self._asked.empty():  # the new thread itself waits, in a finalizer
                _thread.start_new_thread(self._help, ())
        if errors and wait:
            raise errors[0]

    def _begin(self) -> None:
        if sys.is_finalizing():
            raise RuntimeError("the interpreter is ending and starts no threads")
        if not self._lives:
            _thread.start_new_thread(self._live, ())

    def _live(self) -> None:
        self._lives = True
        try:
            while True:
                self._make(*self._asked.get())
        finally:  # an exception sent to this thread
            self._lives = False

    def _help(self) -> None:
        with contextlib.suppress(Empty):
            while True:
                self._make(*self._asked.get_nowait())

    @staticmethod
    def _make(call: Callable[[], None], over: _thread.LockType, errors: list[BaseException]) -> None:
        try:
            call()
        except BaseException as error:  # noqa: BLE001 - raised there
            errors.append(error)
        over.release()


_STARTER = _Starter()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_STARTER.__init__)  # type: ignore[misc]


def pause(seconds: float) -> None:
    """Sleep in the calling thread; may raise WaitStopped (see `ends_with`)."""
    if getattr(_HERE, "stop", None) is None:
        time.sleep(seconds)
    elif seconds > 0:
        Signal().wait(seconds)


@contextlib.contextmanager
def ends_with(stop: Signal) -> Iterator[None]:
    """Make this thread's waits and pauses in the block raise `WaitStopped` once `stop` is set."""
    before = getattr(_HERE, "stop", None)
    _HERE.stop = stop
    try:
        yield
    finally:
        _HERE.stop = before


def _forget(gates: deque[threading.Lock], gate: threading.Lock) -> None:
    with contextlib.suppress(ValueError, IndexError):
        gates.remove(gate)


class World(Protocol):
    """Clock, sleep, randomness and ids for this library's code.

    >>> from fsspec_cas.testing import ManualClock
    >>> clock: World = ManualClock(now_s=0.0)
    """

    def now_ms(self) -> int:
        """Wall clock, epoch ms, UTC. It may jump; use it only for values that other processes read.

        >>> clock.now_ms()
        0
        """

    def monotonic_s(self) -> float:
        """Monotonic clock, in seconds, for differences within this process.

        >>> clock.monotonic_s()
        0.0
        """

    def new_id(self) -> str:
        """Fresh UUID, as text.

        >>> clock.new_id()
        '00000000-0000-0000-0000-000000000001'
        """

    def random(self) -> float:
        """Random number in [0, 1).

        >>> clock.random()
        0.5
        """

    def sleep(self, seconds: float) -> None:
        """Block the calling thread.

        >>> clock.sleep(60)
        >>> clock.monotonic_s()
        60.0
        """


@dataclass(frozen=True, slots=True)
class Machine:
    """Machine's real clocks, randomness and ids.

    >>> machine = Machine()
    """

    def now_ms(self) -> int:
        """Wall clock, epoch ms.

        >>> machine.now_ms() > 1_700_000_000_000
        True
        """
        return time.time_ns() // 1_000_000

    def monotonic_s(self) -> float:
        """CLOCK_MONOTONIC.

        >>> began_s = machine.monotonic_s()
        >>> machine.monotonic_s() >= began_s
        True
        """
        return time.monotonic()

    def boot(self) -> tuple[str, str]:
        """Current boot's id (empty if unknown), and host's name.

        >>> boot_id, host = machine.boot()
        """
        try:
            boot_id = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
        except (OSError, ValueError):
            boot_id = ""
        return boot_id, platform.node()

    def uptime_s(self) -> float:
        """Monotonic clock in seconds, which all processes since this boot share.

        >>> machine.uptime_s() > 0
        True
        """
        return time.monotonic()

    def new_id(self) -> str:
        """Random UUID4.

        >>> len(machine.new_id())
        36
        """
        return str(uuid.uuid4())

    def random(self) -> float:
        """See `World.random`.

        >>> 0 <= machine.random() < 1
        True
        """
        return random.random()

    def sleep(self, seconds: float) -> None:
        """Block the calling thread; under `ends_with` it may raise WaitStopped.

        >>> machine.sleep(0.001)
        """
        pause(seconds)


def time_ns() -> int:
    """Wall clock in ns."""
    return time.time_ns()
