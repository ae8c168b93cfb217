"""Work that a task has done by a thread, where a cancellation of the task must lose nothing."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from fsspec_cas import CasError
from fsspec_cas.waiting import Signal, WaitStopped, ends_with
from lockprovider.client.lease import Lease, OnLost
from lockprovider.client.lock import Lock
from lockprovider.errors import LeaseLost, LockError

T = TypeVar("T")


async def finish(thread: ThreadPoolExecutor, work: Callable[..., T], *args: Any) -> T:
    """Do it in the thread. A cancellation ends the wait, never the work; what that comes to then is nobody's news."""
    done = asyncio.wrap_future(thread.submit(work, *args))
    done.add_done_callback(_retrieved)
    return await asyncio.shield(done)


def _retrieved(done: asyncio.Future[Any]) -> None:
    """So that asyncio does not report an error that nobody waits for any more."""
    if not done.cancelled():
        done.exception()


def on_loop(loop: asyncio.AbstractEventLoop, call: OnLost) -> OnLost:
    """The same call, but made on the loop; nobody is there to hear it once that is closed."""

    def told(loss: LeaseLost) -> None:
        with contextlib.suppress(RuntimeError):
            loop.call_soon_threadsafe(call, loss)

    return told


class Attempt:
    """One acquisition in a thread of its own. Of the lease and the cancellation, the later one gives the lock back."""

    def __init__(self, lock: Lock, timeout_s: float) -> None:
        self.thread = ThreadPoolExecutor(1, thread_name_prefix="async-lease")
        self._lock = lock
        self._timeout_s = timeout_s
        self._cancelled = Signal()
        self._meeting = threading.Lock()
        self._lease: Lease | None = None

    def run(self) -> Lease:
        """Acquire, in the thread."""
        try:
            with ends_with(self._cancelled):
                lease = self._lock.acquire(self._timeout_s)
        except BaseException:
            self.thread.shutdown(wait=False)
            raise
        with self._meeting:
            if not self._cancelled.is_set():
                self._lease = lease
                return lease
        self._drop(lease)
        raise WaitStopped

    def abandon(self) -> None:
        """Nobody waits for it any more."""
        with self._meeting:
            self._cancelled.set()
            lease = self._lease
        if lease is not None:  # it was on its way to the task
            self.thread.submit(self._drop, lease)

    def _drop(self, lease: Lease) -> None:
        with contextlib.suppress(CasError, LockError):  # then it lapses: its thread is dead
            lease.release()
        self.thread.shutdown(wait=False)
