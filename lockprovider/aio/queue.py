"""Whose turn it is among the tasks of one event loop that want one lock.

They wait here, in the order in which they asked, without a thread and without a request; so a loop looks at a lock at
the pace of one client, however many tasks and `AsyncLock` objects want it.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
import weakref
from collections import deque
from collections.abc import Hashable

from lockprovider.client.lease import Lease


class TaskQueue:
    """One task at a time, first come, first served. `lease` is that of the task whose turn it is, once it has one."""

    def __init__(self) -> None:
        self.lease: Lease | None = None
        self._taken = False
        self._waiting: deque[asyncio.Future[None]] = deque()

    @classmethod
    def of(cls, lock: Hashable) -> TaskQueue:
        """The one of the running loop for this lock."""
        return _QUEUES.get(asyncio.get_running_loop(), lock)

    async def wait(self, timeout_s: float) -> bool:
        """True if it is this task's turn now, False if it was not within the timeout."""
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
        """The next one's turn."""
        self.lease = None
        if self._waiting:
            self._waiting.popleft().set_result(None)
        else:
            self._taken = False


class _Queues:
    """Those that are in use: one for each loop and lock."""

    def __init__(self) -> None:
        self._guard = threading.Lock()
        self._of_loop: weakref.WeakKeyDictionary[
            asyncio.AbstractEventLoop, weakref.WeakValueDictionary[Hashable, TaskQueue]
        ] = weakref.WeakKeyDictionary()

    def get(self, loop: asyncio.AbstractEventLoop, lock: Hashable) -> TaskQueue:
        with self._guard:
            return self._of_loop.setdefault(loop, weakref.WeakValueDictionary()).setdefault(lock, TaskQueue())


# Locks that know nothing of each other have to meet somewhere.
_QUEUES = _Queues()
