"""`Cached` on a real server: what many callers at once cost, counted on the wire."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
from patience import soon, until

from faults.actions import Action, Hop, Outcome
from faults.proxy import FaultProxy
from fsspec_cas import AsyncCached, AsyncStore, Cached, Content, Store

CALLERS = 32


class Held:
    """The next GET: the server has answered, and the client waits for it."""

    def __init__(self, proxy: FaultProxy) -> None:
        self.reached = threading.Event()
        self._open = threading.Event()
        proxy.rule(action=self._action(), match=lambda request: request.method == "GET")

    def open(self) -> None:
        self._open.set()

    def _action(self) -> Action:
        async def act(hop: Hop) -> Outcome:
            answer = await hop.deliver()
            self.reached.set()
            await asyncio.to_thread(self._open.wait, 240)
            return answer

        return act


@pytest.fixture
def proxy(fault_proxy, ministack) -> Iterator[FaultProxy]:
    return fault_proxy(ministack)


def statuses(proxy: FaultProxy) -> list[int]:
    """Of the GETs that reached the server since the last time."""
    found = [status for method, _, status in proxy.delivered if method == "GET"]
    proxy.delivered.clear()
    return found


def test_concurrent_threads_share_two_requests_and_one_body_per_change(proxy, ministack) -> None:
    url = ministack.new_prefix()
    other = Store.from_url(url, ministack.storage_options)
    cached = Cached(Store.from_url(url, ministack.options_for(proxy.endpoint)), "flags")
    one = Content(b"1", other.put_if_absent("flags", b"1").unwrap())
    assert [cached.get(), cached.get()] == [one, one]
    assert statuses(proxy) == [200, 304]

    def all_at_once(change: bytes | None) -> set[Content | None]:
        held = Held(proxy)
        with ThreadPoolExecutor(CALLERS) as pool:
            first = pool.submit(cached.get)
            until(held.reached.is_set)
            if change is not None:
                other.update("flags", lambda _: change)
            rest = [pool.submit(cached.get) for _ in range(CALLERS - 1)]
            until(lambda: cached._state.waiting == CALLERS)
            held.open()
            first.result()
            return {one.result() for one in rest}

    assert all_at_once(None) == {one}
    assert statuses(proxy) == [304, 304]
    assert all_at_once(b"2") == {other.read("flags")}
    assert statuses(proxy) == [304, 200]
    version = cached.update(lambda _: b"3")
    assert statuses(proxy) == [200]  # the update's own
    assert all_at_once(None) == {Content(b"3", version)}
    assert statuses(proxy) == [304, 304]
    other.delete("flags")
    assert cached.get() is None


def test_concurrent_tasks_share_two_requests_also_when_first_is_cancelled(proxy, ministack) -> None:
    url = ministack.new_prefix()
    one = Content(b"1", Store.from_url(url, ministack.storage_options).put_if_absent("flags", b"1").unwrap())

    async def run() -> None:
        async with AsyncStore.from_url(url, ministack.options_for(proxy.endpoint)) as store:
            cached = AsyncCached(store, "flags")
            held = Held(proxy)
            tasks = [asyncio.create_task(cached.get()) for _ in range(CALLERS)]
            await soon(held.reached.is_set)
            tasks[0].cancel()
            assert await asyncio.gather(*tasks[1:]) == [one] * (CALLERS - 1)
            assert tasks[0].cancelled()
            held.open()
            assert await cached.get() == one

    asyncio.run(run())
    assert statuses(proxy) == [200, 200, 304]
