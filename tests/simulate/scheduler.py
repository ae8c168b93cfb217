"""Threads and time of a simulated world: one task runs at a time, and a seed decides the order.

    scheduler = Scheduler(seed=7, crew)
    with scheduler.in_place_of_threads():
        scheduler.spawn(Process("a"), life, "a")
        scheduler.run()

Each task has a thread of the operating system, but passes a baton: it gives it up only where it waits (for time, an
event, a lock). So the same seed gives the same story, whatever the machine does.
"""

from __future__ import annotations

import contextlib
import heapq
import itertools
import random
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

from fsspec_cas.machine import Signal, Worker
from lockprovider.storage_lock import lease as leases

_SIMULATED = "simulated"
ASIDE = 0.1  # how often a task that takes a lock lets others go first


class Crashed(BaseException):
    """Raised in the tasks of a process that was killed; nothing they do after that reaches anybody."""


def inside(fake: Callable[..., Any], real: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function that calls `fake` in this thread and in simulated ones, and `real` in all other threads.

    A thread that an earlier test left running would change the order of the story, or end it.
    """
    entered, here = threading.current_thread(), threading.current_thread

    def call(*args: Any, **kwargs: Any) -> Any:
        return (fake if here() is entered or here().name == _SIMULATED else real)(*args, **kwargs)

    return call


class Process:
    """Tasks that are stopped, and die, together."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.frozen_until_s = 0.0
        self.dead = False


class Crew:
    """Threads of the operating system, used again for one task after another."""

    def __init__(self) -> None:
        self._idle: list[_Worker] = []

    def take(self) -> _Worker:
        return self._idle.pop() if self._idle else _Worker(self._idle)

    def dismiss(self) -> None:
        for worker in self._idle:
            worker.task = None
            worker.baton.release()
            worker.thread.join()


class _Worker:
    def __init__(self, idle: list[_Worker]) -> None:
        self.baton = threading.Lock()
        self.baton.acquire()
        self.task: Task | None = None
        self._idle = idle
        self.thread = threading.Thread(target=self._work, name=_SIMULATED, daemon=True)
        self.thread.start()

    def _work(self) -> None:
        while True:
            self.baton.acquire()
            task, self.task = self.task, None
            if task is None:
                return
            task.live()
            self._idle.append(self)
            task.scheduler.leave()


class Task:
    """A thread as simulated code sees it."""

    def __init__(self, scheduler: Scheduler, target: Callable[[], Any], name: str, process: Process) -> None:
        self.scheduler, self.name, self.process = scheduler, name, process
        self.done = False
        self.ticket = 0
        self.baton: Any = None
        self._target = target
        self._ended = scheduler.event()

    def start(self, *, wait: bool = True) -> None:
        worker = self.scheduler.crew.take()
        worker.task, self.baton = self, worker.baton
        self.scheduler.tasks.append(self)
        self.scheduler.wake(self, self.ticket)

    def live(self) -> None:
        try:
            if not self.process.dead:
                self._target()
        except Crashed:
            pass
        except BaseException as error:  # noqa: BLE001 - shown by whoever runs the story
            self.scheduler.errors.append((self.name, error))
        self.done = True
        self._ended.set()

    def is_alive(self) -> bool:
        return self.baton is not None and not self.done

    def join(self, timeout: float | None = None) -> None:
        self._ended.wait(timeout)


@dataclass(frozen=True, slots=True)
class _Wake:
    """The end of a task's waiting, unless it has waited for something else since."""

    task: Task
    ticket: int

    @property
    def stale(self) -> bool:
        return self.task.done or self.task.ticket != self.ticket


class Scheduler:
    """What happens next, and when."""

    def __init__(self, seed: int, crew: Crew) -> None:
        self.random = random.Random(seed)
        self.crew = crew
        self.now_s = 0.0
        self.tasks: list[Task] = []
        self.errors: list[tuple[str, BaseException]] = []
        self.after_each: Callable[[], object] = lambda: None
        self.stopped = False
        self._queue: list[tuple[float, float, int, Callable[[], Any] | _Wake]] = []
        self._count = itertools.count()
        self._main = threading.Lock()
        self._main.acquire()
        self._current: Task | None = None

    @property
    def current(self) -> Task:
        assert self._current is not None, "outside of the simulation"
        return self._current

    def spawn(self, process: Process, target: Callable[[], Any], name: str) -> Task:
        task = Task(self, target, name, process)
        task.start()
        return task

    def at(self, when_s: float, call: Callable[[], Any] | _Wake) -> None:
        """Run `call`, which must not wait, at that time; among equals a draw decides."""
        heapq.heappush(self._queue, (when_s, self.random.random(), next(self._count), call))

    def run(self) -> None:
        """Until all tasks have ended (or `stopped` is set); if they have, until nothing is left to happen."""
        self.stopped = False
        self._pass_on(self._main)

    def kill(self, process: Process) -> None:
        process.dead = True
        for task in self.tasks:
            if task.process is process and task.is_alive():
                self.wake(task, task.ticket)

    def end(self) -> list[str]:
        """Unwind what still waits; the names of those tasks."""
        self.after_each = lambda: None
        stuck = [task.name for task in self.tasks if task.is_alive()]
        for process in {task.process for task in self.tasks}:
            self.kill(process)
        self.run()
        return stuck

    # -- for tasks -------------------------------------------------------------------------------------------------

    def sleep(self, seconds: float) -> None:
        self.wait(self.now_s + max(0.0, seconds))

    def wait(self, until_s: float | None = None) -> None:
        """Until somebody calls `wake` with the ticket of now, or until that time."""
        task = self.current
        if task.process.dead:
            raise Crashed
        if until_s is not None:
            self.at(until_s, _Wake(task, task.ticket))
        self._pass_on(task.baton)
        task.ticket += 1
        if task.process.dead:
            raise Crashed

    def wake(self, task: Task, ticket: int) -> None:
        self.at(self.now_s, _Wake(task, ticket))

    def leave(self) -> None:
        """The last deed of a task."""
        self.stopped = self.stopped or not any(task.is_alive() for task in self.tasks)
        self._next().release()

    def _resume(self, wake: _Wake) -> Any:
        process = wake.task.process
        if process.frozen_until_s > self.now_s and not process.dead:
            self.at(process.frozen_until_s, wake)
            return None
        self._current = wake.task
        return wake.task.baton

    def _pass_on(self, own: Any) -> None:
        baton = self._next()
        if baton is not own:
            baton.release()
            own.acquire()

    def _next(self) -> Any:
        while self._queue and not self.stopped:
            when_s, _, _, call = heapq.heappop(self._queue)
            if isinstance(call, _Wake) and call.stale:
                continue
            self.now_s = max(self.now_s, when_s)
            baton = self._resume(call) if isinstance(call, _Wake) else _do(call)
            self.after_each()
            if baton is not None:
                return baton
        return self._main

    # -- what replaces the module `threading` ----------------------------------------------------------------------

    def event(self) -> Event:
        return Event(self)

    @contextlib.contextmanager
    def in_place_of_threads(self, package: str = "lockprovider") -> Iterator[None]:
        """All modules of the package that use threads use these; nothing is left for the interpreter's exit.

        Threads that earlier tests have left running, as a heartbeat, go on with real ones: see `inside`.
        """
        here = threading.current_thread
        threads = SimpleNamespace(
            Event=inside(self.event, threading.Event),
            Lock=inside(lambda: Lock(self), threading.Lock),
            RLock=inside(lambda: Lock(self, again=True), threading.RLock),
            current_thread=inside(lambda: self.current, here),
        )
        exits = SimpleNamespace(register=lambda *_: None, unregister=lambda *_: None)
        fakes = {"threading": threads, "atexit": exits, "Signal": inside(self.event, Signal)}
        fakes["Worker"] = inside(lambda target, name: Task(self, target, name, self.current.process), Worker)
        recipes = f"{package}.recipes"  # they know the lock by its public names, and have threads of earlier tests
        named = sys.modules.items()
        mine = [module for name, module in named if name.split(".")[0] == package and not name.startswith(recipes)]
        swapped = [(m, name, getattr(m, name)) for m in mine for name in fakes if hasattr(m, name)]
        assert swapped, f"nothing in {package} uses threads"
        for module, name, _ in swapped:
            setattr(module, name, fakes[name])
        try:
            yield
        finally:
            for module, name, real in swapped:
                setattr(module, name, real)


def _do(call: Callable[[], Any]) -> None:
    call()


class Event:
    """`threading.Event` in simulated time."""

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler
        self._set = False
        self._waiting: list[tuple[Task, int]] = []

    def is_set(self) -> bool:
        return self._set

    def set(self) -> None:
        self._set = True
        waiting, self._waiting = self._waiting, []
        for task, ticket in waiting:
            self._scheduler.wake(task, ticket)

    def clear(self) -> None:
        self._set = False

    def wait(self, timeout: float | None = None) -> bool:
        scheduler = self._scheduler
        until_s = None if timeout is None else scheduler.now_s + timeout
        while not self._set and (until_s is None or scheduler.now_s < until_s):
            self._waiting.append((scheduler.current, scheduler.current.ticket))
            scheduler.wait(until_s)
        return self._set


class Lock:
    """`threading.Lock` and, with `again`, `threading.RLock`, in simulated time."""

    def __init__(self, scheduler: Scheduler, *, again: bool = False) -> None:
        self._scheduler, self._again = scheduler, again
        self._holder: Task | None = None
        self._depth = 0
        self._waiting: list[tuple[Task, int]] = []

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:  # noqa: FBT002 - as the real one
        scheduler, me = self._scheduler, self._scheduler.current
        if self._again and self._holder is me:
            self._depth += 1
            return True
        if blocking and scheduler.random.random() < ASIDE:
            scheduler.sleep(0)
        until_s = None if timeout < 0 else scheduler.now_s + timeout
        while self._holder is not None:
            if not blocking or (until_s is not None and scheduler.now_s >= until_s):
                return False
            self._waiting.append((me, me.ticket))
            scheduler.wait(until_s)
        self._holder, self._depth = me, 1
        return True

    def release(self) -> None:
        self._depth -= 1
        if self._depth == 0:
            self._holder = None
            waiting, self._waiting = self._waiting, []
            for task, ticket in waiting:
                self._scheduler.wake(task, ticket)

    def __enter__(self) -> bool:
        return self.acquire()

    def __exit__(self, *_: object) -> None:
        self.release()


def _ends_with_its_process(lease: leases.Lease, name: str) -> None:
    """Let a killed process of the simulation not give back the lease that it was about to release.

    The collector may find a lease of an earlier test in the middle of a story: a real thread gives that back.
    """
    if isinstance(lease.lost, Event):
        return
    given, leases.Worker = leases.Worker, Worker
    try:
        _GIVE_BACK(lease, name)
    finally:
        leases.Worker = given


_GIVE_BACK = leases.warn_and_give_back
leases.warn_and_give_back = _ends_with_its_process
