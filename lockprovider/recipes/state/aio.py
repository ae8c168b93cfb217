"""`AsyncState`: the same state for tasks of an event loop.

It is the very `State` of the threads: an update waits for its write without a thread, any other call has one while it
lasts. So every promise is the same. A cancelled update is dropped, if no write has taken it yet; else it goes on.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from typing import Any, Generic, TypeVar

from fsspec_cas import Store
from fsspec_cas.bridge.tasks import ForTasks, threaded
from fsspec_cas.waiting import SLICE_S
from lockprovider.recipes.state.changes import NotChanged, StateChange
from lockprovider.recipes.state.revision import Edit, Revision
from lockprovider.recipes.state.state import State
from lockprovider.storage_lock.async_lock import AsyncLock

V = TypeVar("V")


class AsyncState(ForTasks[State[V]], Generic[V]):
    """A state file, for tasks; the arguments are those of `State`.

    >>> state = lockprovider.state.AsyncState.open("memory://docs/orders.json", default=dict)
    >>> first = await state.put({"day": "mon"})
    >>> (await state.read()).value, await state.diff(1, 1)
    ({'day': 'mon'}, [])
    """

    def __init__(self, store: Store, path: str, **options: Any) -> None:
        super().__init__(State(store, path, **options))

    @classmethod
    def open(cls, url: str, *, storage_options: dict[str, Any] | None = None, **options: Any) -> AsyncState[V]:
        """See `State.open`; nothing is asked of the store yet.

        >>> revision = await lockprovider.state.AsyncState.open("memory://docs/orders.json").read()
        >>> revision.value
        {'day': 'mon'}
        """
        return cls._over(State.open(url, storage_options=storage_options, **options))

    read = threaded(State.read)
    history = threaded(State.history)
    at = threaded(State.at)
    diff = threaded(State.diff)
    rollback = threaded(State.rollback)
    who = threaded(State.who)
    unlock = threaded(State.unlock)
    settle = threaded(State.settle)
    close = threaded(State.close)

    async def update(self, fn: Callable[[V], V | NotChanged], *, fence: Any = None, reason: str = "") -> Revision[V]:
        """See `State.update`; `fn` is a plain function, called on another thread.

        >>> revision = await state.update(lambda old: {**old, "schema": 12})
        >>> revision.value
        {'day': 'mon', 'schema': 12}
        """
        return await self._do(self._sync._updating(fn, fence, reason))  # noqa: SLF001 - its twin

    async def put(self, value: V, *, expected: int | None = None, fence: Any = None, reason: str = "") -> Revision[V]:
        """See `State.put`.

        >>> revision = await state.put({}, expected=1)
        >>> revision.serial
        2
        """
        return await self._do(self._sync._putting(value, expected, fence, reason))  # noqa: SLF001

    @contextlib.asynccontextmanager
    async def edit(self, *, reason: str = "", timeout: float | None = None) -> AsyncIterator[Edit[V]]:
        """See `State.edit`.

        >>> async with state.edit(reason="migration 12") as doc:
        ...     doc["schema"] = 12
        """
        state = self._sync
        lock = AsyncLock(state.store, state.lock_path, state.lock_settings, world=state.world)
        async with lock.acquire(timeout) as lease:
            edit = Edit(lease, await self._do(state._beginning(lease.epoch, reason)))  # noqa: SLF001
            yield edit
            lease.check()
            edit.revision = await self._do(state._ending(edit, reason))  # noqa: SLF001

    async def __aenter__(self) -> AsyncState[V]:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def _do(self, change: StateChange) -> Revision[V]:
        state = self._sync
        answer = state._submit(change)  # noqa: SLF001
        coming = asyncio.wrap_future(answer)
        try:
            while not coming.done():
                await asyncio.wait([coming], timeout=SLICE_S)
                state._must_come(answer)  # noqa: SLF001
            return state._revision(coming.result())  # noqa: SLF001
        finally:
            coming.cancel()  # of one that is done: nothing
