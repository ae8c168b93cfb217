"""Lock for tasks."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import weakref
from collections import deque
from collections.abc import Callable, Coroutine, Generator, Hashable
from types import TracebackType
from typing import Any, NoReturn, overload

from fsspec_cas import CasError, Machine, Store, World
from fsspec_cas.bridge.threads import ForTasks, on_thread, threaded
from lockprovider.errors import LeaseLost, LockError, LossReason, NotAcquired, NotPicklable
from lockprovider.settings import LockSettings, check_functions
from lockprovider.storage_lock.acquire import ProcessQueue
from lockprovider.storage_lock.audit_log import AuditLog
from lockprovider.storage_lock.client import add_details
from lockprovider.storage_lock.lease import Lease, OnLost
from lockprovider.storage_lock.lock import Lock, wait_s
from lockprovider.storage_lock.metrics import OnMetric
from lockprovider.storage_lock.record import HUDI_LOCK_PATH, LockRecord, Pending


class TaskQueue:
    """Queue of one loop's tasks for one lock."""

    def __init__(self) -> None:
        self.lease: Lease | None = None
        self._taken = False
        self._waiting: deque[asyncio.Future[None]] = deque()

    @classmethod
    def of(cls, lock: Hashable) -> TaskQueue:
        with _GUARD:
            return _QUEUES.setdefault((asyncio.get_running_loop(), lock), cls())

    async def wait(self, timeout_s: float) -> bool:
        """Wait in order for this task's turn; False after the timeout.

        The turn lasts until `pass_on`; a cancelled wait passes it on.
        """
        if not self._taken:
            self._taken = True
            return True
        called: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append(called)
        try:
            await asyncio.wait([called], timeout=timeout_s)
        except asyncio.CancelledError:
            if called.done():
                self.pass_on()
            raise
        finally:
            with contextlib.suppress(ValueError):
                self._waiting.remove(called)
        return called.done()

    def pass_on(self) -> None:
        self.lease = None
        if self._waiting:
            self._waiting.popleft().set_result(None)
        else:
            self._taken = False


_QUEUES: weakref.WeakValueDictionary[tuple[asyncio.AbstractEventLoop, Hashable], TaskQueue]
_QUEUES = weakref.WeakValueDictionary()
_GUARD = threading.Lock()


def on_loop(loop: asyncio.AbstractEventLoop, call: OnLost) -> OnLost:
    def notify(lost: LeaseLost) -> None:
        with contextlib.suppress(RuntimeError):
            loop.call_soon_threadsafe(call, lost)

    return notify


class _OfTasks(threading.Thread):
    def is_alive(self) -> bool:
        return True


_TASKS = _OfTasks(name="a task")


class TaskLock(Lock):
    """Lock whose leases no thread owns."""

    def _acquiring_thread(self) -> threading.Thread:
        return _TASKS


class AsyncLock(ForTasks[Lock]):
    """One client of one lock, for tasks. Tasks of a loop wait in one queue; the holding task may acquire again.

    Promises and errors as `Lock`. `on_lost` is called on the loop, `on_metric` in any thread.

        async with AsyncLock(store).acquire(timeout=30) as lease:
            await lease.publish("state/7", data)

    A cancelled acquisition ends at once; a thread releases what it acquired. A cancelled `release` or `publish` goes
    on; the publish ends before the lease is released.

    Not promised: that a lease ends with its task. Before Python 3.12, `asyncio.wait_for` makes another task the owner:
    give `timeout`.

    >>> lock = lockprovider.AsyncLock(Store.from_url("memory://docs/lock"))
    """

    def __init__(
        self,
        store: Store,
        path: str = HUDI_LOCK_PATH,
        settings: LockSettings | None = None,
        *,
        world: World | None = None,
        on_lost: OnLost | None = None,
        on_metric: OnMetric | None = None,
        audit: AuditLog | None = None,
    ) -> None:
        check_functions(on_lost=on_lost)
        self._world = world or Machine()
        super().__init__(TaskLock(store, path, settings, world=self._world, on_metric=on_metric, audit=audit))
        self.path = self._sync.path
        self._on_lost = on_lost
        self._same = ProcessQueue.key(store, self.path, self._world)
        self._lease: AsyncLease | None = None

    def __getstate__(self) -> NoReturn:
        raise NotPicklable(
            "an AsyncLock belongs to its event loop and cannot be pickled: send the URL and make a new lock there"
        )

    def __repr__(self) -> str:
        return f"<AsyncLock of {self._sync!r}>"

    @property
    def owner(self) -> str:
        """See `Lock.owner`."""
        return self._sync.owner

    def acquire(self, timeout: float | None = None) -> Acquiring:
        """Wait for the lock for at most `timeout` seconds (default: the settings'), when awaited or entered.

        Raises (when awaited):
            NotAcquired: another client or task held the lock until the timeout.
            LeaseLost: this task holds the lock, and its lease is lost.

        >>> async with lock.acquire(timeout=10) as lease:
        ...     lease.check()
        >>> lease = await lock.acquire()
        >>> await lease.release()
        """
        return Acquiring(lambda: self._take(timeout))

    status = threaded(Lock.status)
    locked = threaded(Lock.locked)
    unstage = threaded(Lock.unstage, runs_to_end=True)

    async def stage(self, path: str, data: bytes) -> Pending:
        """Prepare a later publish; see `Lock.stage`. After a cancellation the staged bytes are removed.

        >>> pending = await lock.stage("state/7", b"seven")
        >>> async with lock.acquire() as lease:
        ...     await lease.publish(pending)
        """
        return await on_thread(lambda: self._sync.stage(path, data), undo=self._sync.unstage)

    async def _take(self, timeout: float | None) -> AsyncLease:
        """Acquire the lock on a thread after the loop's other tasks; a holding task counts its lease again.

        Raises `NotAcquired` after `timeout` seconds (None: the settings'), or `LeaseLost`. A failure passes the turn
        on.
        """
        held, task = self._lease, asyncio.current_task()
        if held is not None and held.task is task and not held.released:
            return held.again()
        loop = asyncio.get_running_loop()
        deadline = loop.time() + wait_s(timeout, self._sync.settings.timeout)
        queue = TaskQueue.of(self._same)
        if not await queue.wait(max(0.0, deadline - loop.time())):
            error = NotAcquired("another task of this process holds the lock")
            add_details(error, self._sync.url, _record_of(queue.lease), self._world.now_ms())
            raise error
        try:
            left_s = max(0.0, deadline - loop.time())
            queue.lease = inner = await on_thread(lambda: self._sync.acquire(left_s), undo=Lease.end)
            self._lease = AsyncLease(inner, queue.pass_on, self._on_lost)
        except BaseException:
            queue.pass_on()
            raise
        return self._lease


def _record_of(lease: Lease | None) -> LockRecord | None:
    with contextlib.suppress(LeaseLost):
        return None if lease is None else lease.record
    return None


class Acquiring:
    """Acquisition that begins when awaited or entered."""

    def __init__(self, take: Callable[[], Coroutine[Any, Any, AsyncLease]]) -> None:
        self._take = take
        self._lease: AsyncLease | None = None

    def __await__(self) -> Generator[Any, Any, AsyncLease]:
        return self._take().__await__()

    async def __aenter__(self) -> AsyncLease:
        self._lease = await self._take()
        return self._lease

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._lease is not None:
            await self._lease.__aexit__(kind, error, trace)


class AsyncLease:
    """Held lock, given back by `await release()` or at the end of `async with`.

    Attributes:
        epoch: fencing token; see `LockRecord.epoch`.
        task: the task that acquired it, until its release.
        lost: set on the loop once lost.

    >>> lock = lockprovider.AsyncLock(Store.from_url("memory://docs/lock"))
    >>> lease = await lock.acquire()
    """

    def __init__(self, inner: Lease, ended: Callable[[], None], on_lost: OnLost | None) -> None:
        self.epoch = inner.epoch
        self.owner = inner.owner
        self.task: asyncio.Task[Any] | None = asyncio.current_task()
        self.lost = asyncio.Event()
        self._inner = inner
        self._ended = ended
        self._depth = 1
        self._guard = threading.Lock()  # a release waits for a publish and its staging
        self._loop = asyncio.get_running_loop()
        lost = self.lost  # the heartbeat must not keep this object alive
        inner.when_lost(on_loop(self._loop, lambda _: lost.set()))
        if on_lost is not None:
            inner.when_lost(on_loop(self._loop, on_lost))

    def __getstate__(self) -> NoReturn:
        raise NotPicklable(
            "an AsyncLease belongs to its event loop and cannot be pickled: acquire the lock where it is needed"
        )

    def __repr__(self) -> str:
        return f"<AsyncLease of {self._inner!r}>"

    @property
    def deadline_s(self) -> float:
        """See `Lease.deadline_s`."""
        return 0.0 if self.released else self._inner.deadline_s

    @property
    def released(self) -> bool:
        """See `Lease.released`."""
        return self._depth < 1 or self._inner.released

    def check(self) -> None:
        """See `Lease.check`.

        >>> lease.check()
        """
        self._inner.check()
        if self._depth < 1:
            message = f"the lease of epoch {self.epoch} is lost: it was released"
            raise LeaseLost(f"{message}; {LeaseLost.next_step}", reason=LossReason.RELEASED, why="it was released")

    @overload
    async def publish(self, path: str, data: bytes, *, new: bool = False) -> None: ...
    @overload
    async def publish(self, path: Pending, data: bytes | None = None, *, new: bool = False) -> None: ...
    async def publish(self, path: str | Pending, data: bytes | None = None, *, new: bool = False) -> None:
        """Create `path` with `data`; see `Lease.publish`.

        >>> await lease.publish("state/7", b"seven")
        """
        if self.released:
            self.check()
        await on_thread(lambda: self._publish(path, data, new=new), runs_to_end=True)

    async def renew(self) -> bool:
        """Prolong the lease now; see `Lease.renew`.

        >>> await lease.renew()
        True
        """
        return not self.released and await on_thread(self._inner.renew, runs_to_end=True)

    async def release(self) -> None:
        """Release the lock, even if cancelled; an inner release only counts down, a repeated one does nothing.

        Raises:
            CasError: the store failed; the lease lapses by itself.

        >>> await lease.release()
        >>> lease.released
        True
        """
        if self.released:
            return
        self._depth -= 1
        if self._depth > 0:
            return
        self.task = None
        await on_thread(self._give_back, runs_to_end=True)

    def again(self) -> AsyncLease:
        """Count and return this lease, for an inner `acquire`; may raise `LeaseLost`.

        >>> inner = lease.again()
        >>> await inner.release()  # counts down
        >>> lease.released
        False
        """
        self.check()
        self._depth += 1
        return self

    async def __aenter__(self) -> AsyncLease:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            return await self.release()
        with contextlib.suppress(CasError, LockError):
            await self.release()
        return None

    def _publish(self, *args: Any, **kwargs: Any) -> None:
        with self._guard:
            self._inner.publish(*args, **kwargs)

    def _give_back(self) -> None:
        try:
            with self._guard:
                self._inner.release()
        finally:
            with contextlib.suppress(RuntimeError):
                self._loop.call_soon_threadsafe(self._ended)
