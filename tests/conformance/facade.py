"""`Store` and `AsyncStore` in one shape, so that one test speaks to both."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from fsspec_cas import AsyncStore, Capabilities, Store


class Facade:
    """Awaitable methods of a store; `together` runs calls at the same moment."""

    def __init__(self, store: Store | AsyncStore) -> None:
        self.store = store

    def __getattr__(self, name: str) -> Callable[..., Awaitable[Any]]:
        method = getattr(self.store, name)

        async def call(*args: Any, **kwargs: Any) -> Any:
            answer = method(*args, **kwargs)
            return await answer if asyncio.iscoroutine(answer) else answer

        return call

    @property
    def capabilities(self) -> Capabilities:
        return self.store.capabilities

    async def together(self, name: str, calls: Sequence[tuple[Any, ...]]) -> list[Any]:
        """All calls of one method; threads that start at a barrier, or tasks."""
        method = getattr(self.store, name)
        if isinstance(self.store, AsyncStore):
            return await asyncio.gather(*(method(*call) for call in calls))
        barrier = threading.Barrier(len(calls))

        def run(call: tuple[Any, ...]) -> Any:
            barrier.wait()
            return method(*call)

        with ThreadPoolExecutor(len(calls)) as pool:
            return list(pool.map(run, calls))
