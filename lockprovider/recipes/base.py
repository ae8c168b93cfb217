"""Base classes of the recipes, and `Batcher`."""

from __future__ import annotations

import atexit
import contextlib
import inspect
import os
import socket
import threading
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import CancelledError
from concurrent.futures import TimeoutError as NotYet
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Generic, NoReturn, TypeVar

from fsspec_cas import InvalidInput, Machine, Store, World, check_path, check_url, require_safe_for_locks
from fsspec_cas.arguments import check_seconds
from fsspec_cas.bridge.threads import EnteredByTasks, Later
from fsspec_cas.machine import SLICE_S, Signal, Worker, pause
from fsspec_cas.outcome import won_or_lost
from lockprovider.errors import NotPicklable
from lockprovider.recipes.errors import CoordinationError, Overloaded

Opened = TypeVar("Opened", bound="AtUrl")
OpenedForTasks = TypeVar("OpenedForTasks", bound="RecipeForTasks[Any]")
R = TypeVar("R", bound="Recipe")


class ProcessBound:
    """Base of objects that refuse pickling. After `_init_state`, each forked child calls `_reset`."""

    def _init_state(self) -> None:
        self._reset()
        _RESET_IN_CHILD.add(self)

    def _reset(self) -> None:
        """Become a new client."""

    def __getstate__(self) -> NoReturn:
        raise NotPicklable(
            f"{self!r} belongs to this process, and cannot be pickled or copied: open it where it is needed"
        )


_RESET_IN_CHILD: weakref.WeakSet[ProcessBound] = weakref.WeakSet()


def _reset_in_child() -> None:
    for instance in [*_RESET_IN_CHILD]:
        instance._reset()  # noqa: SLF001 - the class is in this file


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_reset_in_child)


class AtUrl:
    def __init__(self, store: Store, path: str, world: World | None) -> None:
        if not isinstance(store, Store):
            name = type(self).__name__
            raise InvalidInput(f"store={store!r} must be a Store: give Store.from_url(url), or use {name}.open(url)")
        self.path = check_path(path)
        self.world = world or Machine()
        self._store = store

    @classmethod
    def open(cls: type[Opened], url: str, *, storage_options: dict[str, Any] | None = None, **options: Any) -> Opened:
        """Open the object at a URL, without a request. `storage_options` are fsspec's, `options` the class's.

        Raises:
            InvalidUrl, NotSupported: no store has such a URL.
            InvalidInput: the URL names no object, or an option does not fit.

        >>> lockprovider.queue.open("memory://docs/backfill.json")
        <Queue 'memory:///docs/backfill.json'>
        """
        allowed = [name for name in inspect.signature(cls).parameters if name not in ("store", "path")]
        for name, value in options.items():
            if name not in allowed:
                raise InvalidInput(
                    f"{name}={value!r} is not an option: there are {', '.join(allowed)}; "
                    "what the store is opened with goes into storage_options="
                )
        folder, slash, name = check_url(url).rpartition("/")
        if not slash:
            folder = "."
        if name in ("", ".") or folder.endswith((":/", ":")):
            raise InvalidInput(f"{url!r} must name an object, e.g. s3://bucket/folder/name.json")
        return cls(Store.from_url(folder, storage_options), name, **options)

    def __repr__(self) -> str:
        return repr_at(self, self._store, self.path)


class Recipe(AtUrl, ProcessBound):
    def close(self) -> None:
        """Stop taking operations."""

    def __enter__(self: R) -> R:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class RecipeForTasks(EnteredByTasks[R]):
    _of: ClassVar[type[Any]]

    def __init__(self, store: Store, path: str, **options: Any) -> None:
        super().__init__(self._of(store, path, **options))

    @classmethod
    def open(cls: type[OpenedForTasks], url: str, **options: Any) -> OpenedForTasks:
        """Open the object at a URL, without a request.

        >>> lockprovider.queue.AsyncQueue.open("memory://docs/backfill.json")
        <AsyncQueue 'memory:///docs/backfill.json'>
        """
        return cls._over(cls._of.open(url, **options))


class StoreCheck:
    def __init__(self, store: Store, path: str) -> None:
        folder = path.rpartition("/")[0]
        self._root = store
        self.store = store.below(folder) if folder else store
        self._has_passed = False

    def require(self) -> None:
        """Test once, on unknown S3 endpoints by requests, that conditions are honoured; else raise NotSupported."""
        if not self._has_passed:
            require_safe_for_locks(self.store)
            self._has_passed = True

    def create(self, path: str, data: bytes, timeout_s: float) -> bool:
        """Put an object if absent, after `require`; return whether this put created it."""
        self.require()
        return won_or_lost(self._root.put_if_absent(path, data, timeout=timeout_s))


def repr_at(recipe: object, store: Store, path: str, more: str = "") -> str:
    return f"<{type(recipe).__name__} {store.url.rstrip('/') + '/' + path!r}{more}>"


def process_name() -> str:
    return f"{socket.gethostname()}, pid {os.getpid()}"


Op = TypeVar("Op")
T = TypeVar("T")
Waiting = tuple[Op, "Later[T]"]

_MOST_WAITING = 10_000
DRAIN_S = 5.0  # at the interpreter's end
_GCS_PACE_S = 1.0
_CLOCK = Machine()  # threads wait in real time
_STARTS_S = 0.001
# A write waits for as many operations as the last one carried, at most this fraction of its time: else answered callers
# would split into two groups.
PATIENCE = 0.15
LEARNED_S = 60.0  # after throttling
THROTTLED_PACE_S = 1.0


@dataclass(frozen=True, slots=True)
class Backlog(Generic[T]):
    waiting: tuple[T, ...] = ()
    under_way: tuple[T, ...] = ()
    last_count: int = 0
    answered_s: float = float("-inf")
    took_s: float = 0.0

    def with_arrived(self, *operations: T) -> Backlog[T]:
        return replace(self, waiting=(*self.waiting, *operations))

    def pace_left_s(self, now_s: float, pace_s: float) -> float:
        return max(0.0, self.answered_s + pace_s - now_s)

    def gather_s(self, now_s: float) -> float:
        if len(self.waiting) >= self.last_count:
            return 0.0
        return max(0.0, self.answered_s + PATIENCE * self.took_s - now_s)

    def start_write(self) -> tuple[Backlog[T], tuple[T, ...]]:
        if self.under_way:
            return self, ()
        return replace(self, waiting=(), under_way=self.waiting), self.waiting

    def end_write(self, began_s: float, now_s: float) -> Backlog[T]:
        return replace(self, under_way=(), last_count=len(self.under_way), answered_s=now_s, took_s=now_s - began_s)


def pace_at(base_s: float, throttled_s: float | None, now_s: float) -> float:
    learned = throttled_s is not None and now_s - throttled_s < LEARNED_S
    return max(base_s, THROTTLED_PACE_S) if learned else base_s


class Batcher(ProcessBound, Generic[Op, T]):
    """Passes operations to `write` in batches, on a thread that lives while operations wait. Thread-safe.

    Each is in at most one write, in order of arrival. `pace_s`: from an answer to the next write. The interpreter's end
    waits for writes, 5 s at most.
    """

    def __init__(
        self, write: Callable[[Sequence[Op]], Sequence[T | Exception]], *, world: World, pace_s: float = 0.0
    ) -> None:
        self._write = write
        self._world = world
        self._pace_s = pace_s
        self._throttled_s: float | None = None
        self._closed = False
        self._init_state()
        _BATCHERS.add(self)

    def _reset(self) -> None:
        self._arrived: deque[Waiting[Op, T]] = deque()
        self._backlog: Backlog[Waiting[Op, T]] = Backlog()  # the writing thread's
        self._gathered = Signal()
        self._writing = threading.Lock()
        self._writer: threading.Thread | None = None

    def throttled(self) -> None:
        self._throttled_s = self._world.monotonic_s()

    @property
    def waiting(self) -> int:
        return len(self._backlog.waiting) + len(self._arrived)

    def submit(self, operation: Op, *, uncancellable: bool = False, answer: Later[T] | None = None) -> Later[T]:
        """Add an operation to the next write; return its result's future (`answer`, or a new one).

        Starts the writing thread unless it runs. An `uncancellable` future ignores `cancel`. Raises CoordinationError
        once closed, Overloaded beyond 10,000 waiting ones.
        """
        answer = answer or Later()
        if uncancellable:
            answer.set_running_or_notify_cancel()
        if self._closed:
            raise CoordinationError("this handle was closed: open another one")
        if self.waiting >= _MOST_WAITING:
            raise Overloaded(f"{_MOST_WAITING} operations are already waiting: retry later, or send fewer at once")
        self._arrived.append((operation, answer))
        if self.waiting >= self._backlog.last_count and not self._gathered.is_set():
            self._gathered.set()
        self._have_written()
        return answer

    def do(self, operation: Op, answer: Later[T] | None = None) -> T:
        answer = answer or Later()
        try:
            self.submit(operation, answer=answer)
            return self.wait(answer)
        finally:
            answer.cancel()

    def wait(self, answer: Later[T]) -> T:
        return self.wait_all([answer])[0]

    def wait_all(self, answers: Sequence[Later[T]]) -> list[T]:
        """Wait for all operations; raise the first error.

        An interrupt cancels those that no write has taken.
        """
        try:
            self.await_end(answers)
            return [answer.result() for answer in answers]
        finally:
            for answer in answers:
                answer.cancel()

    def await_end(self, answers: Iterable[Later[T]]) -> None:
        for answer in answers:
            while not self.wait_slice(answer):
                pass

    def wait_slice(self, answer: Later[T]) -> bool:
        """Wait up to a second; return whether the operation ended, else start the thread if needed."""
        with contextlib.suppress(NotYet, CancelledError):
            answer.exception(SLICE_S)
            return True
        if not answer.done():
            self._have_written()
        return answer.done()

    def close(self, timeout_s: float | None = None) -> None:
        """Refuse operations; wait at most `timeout_s` (None: no limit) for waiting ones.

        A timeout returns, and stops no write. The writing thread does not wait.
        """
        self._closed = True
        until_s = _CLOCK.monotonic_s() + (float("inf") if timeout_s is None else timeout_s)
        while (self.waiting or self._writing.locked()) and self._writer is not threading.current_thread():
            self._have_written()
            left_s = min(SLICE_S, until_s - _CLOCK.monotonic_s())
            if left_s <= 0:
                return
            if (writer := self._writer) is None:
                pause(_STARTS_S)
            else:
                writer.join(left_s)

    def _have_written(self) -> None:
        if self._writing.locked():
            return
        try:
            Worker(self._run, "batcher").start()
        except RuntimeError:  # an ending interpreter starts no threads
            self._run()

    def _run(self) -> None:
        """Write batches on this thread until no operation waits; return at once if another thread writes."""
        while self.waiting and self._writing.acquire(blocking=False):
            try:
                self._writer = threading.current_thread()
                while batch := self._next():
                    self._send(batch)
            finally:
                self._writer = None
                self._writing.release()

    def _send(self, batch: tuple[Waiting[Op, T], ...]) -> None:
        """Call `write` with a batch's uncancelled operations, record its end, and set each future's outcome.

        If `write` raises, or returns another number of results, all get that error.
        """
        began_s = self._world.monotonic_s()
        taken = [entry for entry in batch if entry[1].running() or entry[1].set_running_or_notify_cancel()]
        try:
            results = self._write([operation for operation, _ in taken]) if taken else []
            answers = zip(taken, results, strict=True)
            outcomes = [(answer, result) for (_, answer), result in answers]
        except BaseException as error:  # noqa: BLE001 - each waiting caller raises it
            outcomes = [(answer, error) for _, answer in taken]  # type: ignore[misc]
        self._backlog = self._backlog.end_write(began_s, self._world.monotonic_s())
        for answer, result in outcomes:
            if isinstance(result, BaseException):
                answer.set_exception(result)
            else:
                answer.set_result(result)

    def _next(self) -> tuple[Waiting[Op, T], ...]:
        """Remove and return all waiting operations, as the batch under way; () if none waits.

        First waits shortly for as many as the last write carried, then for the pace between writes.
        """
        self._take_arrived()
        if (gather_s := self._backlog.gather_s(self._world.monotonic_s())) and not self._closed:
            self._gathered.clear()
            if self.waiting < self._backlog.last_count:
                self._gathered.wait(gather_s)
            self._take_arrived()
        if not self._backlog.waiting:
            return ()
        now_s = self._world.monotonic_s()
        if pause_s := self._backlog.pace_left_s(now_s, pace_at(self._pace_s, self._throttled_s, now_s)):
            self._world.sleep(pause_s)
        self._take_arrived()
        self._backlog, batch = self._backlog.start_write()
        return batch

    def _take_arrived(self) -> None:
        arrived = [self._arrived.popleft() for _ in range(len(self._arrived))]
        self._backlog = self._backlog.with_arrived(*arrived)


class BatchedRecipe(Recipe, Generic[Op, T]):
    _writer: Any

    def __init__(self, store: Store, path: str, world: World | None, pace_s: float | None) -> None:
        super().__init__(store, path, world)
        default_s = _GCS_PACE_S if store.kind == "gcs" else 0.0
        self._batcher: Batcher[Op, T] = Batcher(
            lambda batch: self._writer.commit(batch),  # noqa: PLW0108 - the writer is made later
            world=self.world,
            pace_s=default_s if pace_s is None else check_seconds(pace_s, "pace_s"),
        )
        self._store = store.on_throttled(self._batcher.throttled)

    def close(self, timeout: float | None = None) -> None:
        """Refuse operations, and wait until waiting ones are written, or for `timeout` seconds.

        >>> lockprovider.wal.create("memory://docs/orders").close(timeout=10)
        """
        self._batcher.close(None if timeout is None else check_seconds(timeout))


_BATCHERS: weakref.WeakSet[Batcher[Any, Any]] = weakref.WeakSet()


def _at_exit() -> None:
    until_s = _CLOCK.monotonic_s() + DRAIN_S
    for batcher in list(_BATCHERS):
        with contextlib.suppress(RuntimeError):
            batcher.close(max(0.0, until_s - _CLOCK.monotonic_s()))


atexit.register(_at_exit)
