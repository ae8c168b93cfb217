"""`AsyncState`: the same state for tasks of an event loop.

It is the very `State` of the threads: an update waits for its write without a thread, a read has one while it lasts. So
every promise is the same. A cancelled update is dropped, if no write has taken it yet; else it goes on.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from typing import Any, Generic, TypeVar

from fsspec_cas import OutcomeUnknown, Store
from lockprovider.aio import AsyncLock
from lockprovider.recipes.state.changes import NotChanged, StateChange
from lockprovider.recipes.state.difference import Difference
from lockprovider.recipes.state.document import Document
from lockprovider.recipes.state.revision import Edit, Editor, Revision
from lockprovider.recipes.state.state import State
from lockprovider.renamed import renamed

V = TypeVar("V")


class AsyncState(Generic[V]):
    """A state file, for tasks; the arguments are those of `State`.

    >>> state = lockprovider.state.AsyncState.open("memory://docs/orders.json", default=dict)
    >>> first = await state.put({"day": "mon"})
    """

    def __init__(self, store: Store, path: str, **options: Any) -> None:
        self._state: State[V] = State(store, path, **options)

    @classmethod
    def open(cls, url: str, *, storage_options: dict[str, Any] | None = None, **options: Any) -> AsyncState[V]:
        """See `State.open`; nothing is asked of the store yet.

        >>> revision = await lockprovider.state.AsyncState.open("memory://docs/orders.json").read()
        >>> revision.value
        {'day': 'mon'}
        """
        opened: State[V] = State.open(url, storage_options=storage_options, **options)
        found = cls.__new__(cls)
        found._state = opened  # noqa: SLF001 - its own
        return found

    async def read(self, *, max_age_s: float = 0.0) -> Revision[V]:
        """See `State.read`.

        >>> revision = await state.read(max_age_s=60)
        >>> revision.serial
        1
        """
        return await asyncio.to_thread(self._state.read, max_age_s=max_age_s)

    async def update(self, fn: Callable[[V], V | NotChanged], *, fence: Any = None, reason: str = "") -> Revision[V]:
        """See `State.update`; `fn` is a plain function, called on another thread.

        >>> revision = await state.update(lambda old: {**old, "schema": 12})
        >>> revision.value
        {'day': 'mon', 'schema': 12}
        """
        return await self._do(self._state._updating(fn, fence, reason))  # noqa: SLF001 - its twin

    async def put(self, value: V, *, expected: int | None = None, fence: Any = None, reason: str = "") -> Revision[V]:
        """See `State.put`.

        >>> revision = await state.put({}, expected=1)
        >>> revision.serial
        2
        """
        return await self._do(self._state._putting(value, expected, fence, reason))  # noqa: SLF001

    @renamed(timeout_s="timeout")
    @contextlib.asynccontextmanager
    async def edit(self, *, reason: str = "", timeout: float | None = None) -> AsyncIterator[Edit[V]]:
        """See `State.edit`.

        >>> async with state.edit(reason="migration 12") as doc:
        ...     doc["schema"] = 12
        """
        state = self._state
        lock = AsyncLock(state.store, state.lock_path, state.lock_settings, world=state.world)
        async with lock.acquire(timeout) as lease:
            edit = Edit(lease, await self._do(state._beginning(lease.epoch, reason)))  # noqa: SLF001
            yield edit
            lease.check()
            edit.revision = await self._do(state._ending(edit, reason))  # noqa: SLF001

    async def history(self, limit: int = 20) -> list[Revision[V]]:
        """See `State.history`.

        >>> [revision.serial for revision in await state.history()]
        [1]
        """
        return await asyncio.to_thread(self._state.history, limit)

    async def at(self, serial: int) -> Revision[V]:
        """See `State.at`.

        >>> await state.at(1) == first
        True
        """
        return await asyncio.to_thread(self._state.at, serial)

    async def diff(self, before: int, after: int) -> list[Difference]:
        """See `State.diff`.

        >>> await state.diff(1, 1)
        []
        """
        return await asyncio.to_thread(self._state.diff, before, after)

    async def rollback(self, serial: int, *, fence: Any = None, reason: str = "") -> Revision[V]:
        """See `State.rollback`.

        >>> revision = await state.rollback(1)
        >>> revision.reason
        'rollback to 1'
        """
        then = await self.at(serial)
        return await self.put(then.value, fence=fence, reason=reason or f"rollback to {serial}")

    async def who(self) -> Editor:
        """See `State.who`.

        >>> editor = await state.who()
        >>> editor.state
        'absent'
        """
        return await asyncio.to_thread(self._state.who)

    async def unlock(self, shown: Editor) -> None:
        """See `State.unlock`.

        >>> await state.unlock(await state.who())
        """
        await asyncio.to_thread(self._state.unlock, shown)

    async def settle(self, error: OutcomeUnknown) -> Revision[V] | None:
        """See `State.settle`.

        >>> try:
        ...     revision = await state.put({})
        ... except OutcomeUnknown as error:
        ...     revision = await state.settle(error)
        """
        return await asyncio.to_thread(self._state.settle, error)

    @renamed(timeout_s="timeout")
    async def close(self, timeout: float | None = None) -> None:
        """See `State.close`.

        >>> await state.close()
        """
        await asyncio.to_thread(self._state.close, timeout)

    def __repr__(self) -> str:
        return f"<Async{repr(self._state)[1:]}"

    async def __aenter__(self) -> AsyncState[V]:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def _do(self, change: StateChange) -> Revision[V]:
        document: Document | None = await asyncio.wrap_future(self._state._batcher.submit(change))  # noqa: SLF001
        return self._state._revision(document)  # noqa: SLF001
