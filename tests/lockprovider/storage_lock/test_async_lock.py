"""The lock for tasks: what it shares with the one for threads, and what a cancellation at each point comes to."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import json
import os
import subprocess
import sys
import threading
import uuid
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import patience
import pytest
from noting import record, rewritten
from patience import PATIENCE_S, soon

import lockprovider
from fsspec_cas import Store
from fsspec_cas.backends import Backend
from fsspec_cas.outcome import Write
from lockprovider import (
    HUDI_LOCK_PATH,
    AsyncLease,
    AsyncLock,
    InvalidSettings,
    LeaseLost,
    Lock,
    LockError,
    LockSettings,
    NotAcquired,
)
from lockprovider.storage_lock.async_lock import TaskQueue
from lockprovider.storage_lock.client import Client

LONG = LockSettings(validity=300, renew=30, timeout=20, poll=0.05, check_store=False)
SOON_S = PATIENCE_S


class Gate:
    """A backend that stops the request it is told to stop, before it is sent or before its answer is told."""

    def __init__(self, inner: Backend) -> None:
        self.inner = inner
        self.name, self.capabilities, self.blocking = inner.name, inner.capabilities, inner.blocking
        self.part_rules, self.adapt, self.close, self.delete = inner.part_rules, inner.adapt, inner.close, inner.delete
        self.list_page = inner.list_page
        self.points: list[str] = []
        self.stop_at = -1
        self.reached, self.go = threading.Event(), threading.Event()

    def arm(self, point: int) -> None:
        self.points, self.stop_at = [], point
        self.reached.clear()
        self.go.clear()

    async def put(self, write: Write, *args: Any, **kwargs: Any) -> Any:
        return await self._through("put", self.inner.put(write, *args, **kwargs))

    async def get(self, path: str, *args: Any, **kwargs: Any) -> Any:
        return await self._through("get", self.inner.get(path, *args, **kwargs))

    async def head(self, path: str, *args: Any, **kwargs: Any) -> Any:
        return await self._through("head", self.inner.head(path, *args, **kwargs))

    async def _through(self, what: str, request: Any) -> Any:
        await self._stand(f"before {what}")
        answer = await request
        await self._stand(f"after {what}")
        return answer

    async def _stand(self, point: str) -> None:
        self.points.append(point)
        if len(self.points) - 1 != self.stop_at:
            return
        self.reached.set()
        if self.blocking:
            assert self.go.wait(SOON_S)
        else:
            assert await asyncio.to_thread(self.go.wait, SOON_S)


@pytest.fixture(params=["memory", "seaweedfs"])
def gated(request: pytest.FixtureRequest) -> tuple[Store, Store, Gate]:
    """A store, and another way to it that has a gate."""
    if request.param == "memory":
        store = Store.from_url(f"memory://{uuid.uuid4().hex}")
    else:
        server = request.getfixturevalue("seaweedfs")
        store = Store.from_url(server.new_prefix(), server.storage_options)
    gate = Gate(store.backend)
    return store, Store(gate, store.root), gate


@pytest.fixture
def store() -> Store:
    return Store.from_url(f"memory://{uuid.uuid4().hex}")


@pytest.fixture(autouse=True)
def no_thread_is_left() -> Iterator[None]:
    before = set(threading.enumerate())  # other tests leave leases behind, on purpose
    yield
    until(lambda: not [thread for thread in set(threading.enumerate()) - before if "lease" in thread.name])


def until(condition: Callable[[], object]) -> None:
    """With what nobody refers to any more collected."""
    patience.until(lambda: gc.collect() >= 0 and condition())


def refused(store: Store) -> bool:
    try:
        Lock(store, settings=LONG).acquire(0).release()
    except NotAcquired:
        return True
    return False


async def cancelled(task: asyncio.Task[Any]) -> None:
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


# -- as with threads ---------------------------------------------------------------------------------------------------


async def test_lock_is_held_inside_the_block_and_released_after_it(store: Store) -> None:
    lock = AsyncLock(store, settings=LONG)
    async with lock.acquire() as lease:
        lease.check()
        assert (record(store).owner, record(store).epoch) == (lock.owner, lease.epoch)
        assert refused(store)
        assert await lease.renew()
        await lease.publish("state/1", b"done")
    assert store.read("state/1").data == b"done"
    assert record(store).expired
    with pytest.raises(LeaseLost, match="released"):
        lease.check()
    with pytest.raises(LeaseLost, match="released"):
        await lease.publish("state/2", b"late")
    assert not await lease.renew(), "as with threads"
    await lease.release()


async def test_error_in_the_block_releases_the_lock_and_propagates(store: Store) -> None:
    with pytest.raises(ZeroDivisionError):
        async with AsyncLock(store, settings=LONG).acquire():
            raise ZeroDivisionError
    assert record(store).expired


async def test_async_lock_can_be_awaited_and_released_later(store: Store) -> None:
    lease = await AsyncLock(store, settings=LONG).acquire()
    async with lease:
        assert refused(store)
    assert not refused(store)


async def test_second_task_waits_for_its_turn_and_times_out(store: Store) -> None:
    lock = AsyncLock(store, settings=LONG)
    async with lock.acquire():

        async def other() -> None:
            await lock.acquire(0.02)

        with pytest.raises(NotAcquired, match="another task") as refusal:
            await asyncio.create_task(other())
        assert refusal.value.owner == lock.owner


async def test_tasks_get_the_lock_in_the_order_of_asking(store: Store) -> None:
    lock, order = AsyncLock(store, settings=LONG), []

    async def worker(number: int) -> None:
        async with lock.acquire():
            order.append(number)

    async with lock.acquire():
        tasks = [asyncio.create_task(worker(number)) for number in range(6)]
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        await cancelled(tasks[2])
    await asyncio.gather(*tasks[:2], *tasks[3:])
    assert order == [0, 1, 3, 4, 5]


async def test_many_tasks_of_many_clients_never_overlap(store: Store) -> None:
    inside, most = 0, 0
    locks = [AsyncLock(store, settings=LONG) for _ in range(3)]

    async def worker(lock: AsyncLock) -> None:
        nonlocal inside, most
        async with lock.acquire():
            inside += 1
            most = max(most, inside)
            await asyncio.sleep(0.002)
            inside -= 1

    await asyncio.gather(*(worker(lock) for lock in locks for _ in range(4)))
    assert (inside, most) == (0, 1)


async def test_lock_held_by_a_thread_is_refused_to_a_task_and_vice_versa(store: Store) -> None:
    held = Lock(store, settings=LONG).acquire()
    with pytest.raises(NotAcquired, match=held.owner) as refusal:
        await AsyncLock(store, settings=LONG).acquire(0)
    assert refusal.value.valid_until_ms == record(store).valid_until_ms
    held.release()
    async with AsyncLock(store, settings=LONG).acquire():
        assert refused(store)


async def test_loss_is_reported_on_the_event_loop(store: Store) -> None:
    told: list[tuple[LeaseLost, int]] = []
    lock = AsyncLock(store, settings=LONG, on_lost=lambda why: told.append((why, threading.get_ident())))
    async with lock.acquire() as lease:
        rewritten(store, owner="another", epoch=lease.epoch + 1)
        assert not await lease.renew()
        await asyncio.wait_for(lease.lost.wait(), SOON_S)
        await soon(lambda: told)
        with pytest.raises(LeaseLost, match="taken over"):
            lease.check()
        with pytest.raises(LeaseLost):
            await lease.publish("state/1", b"stale")
        with pytest.raises(LeaseLost):
            await lock.acquire()
    assert [ident for _, ident in told] == [threading.get_ident()]
    assert record(store).owner == "another"
    assert not store.list("state")
    rewritten(store, expired=True)
    async with lock.acquire():
        pass


async def test_staged_publish_works_as_with_threads(store: Store) -> None:
    lock = AsyncLock(store, settings=LONG)
    kept, dropped = await lock.stage("state/1", b"done"), await lock.stage("state/2", b"never")
    await lock.unstage(dropped)
    async with lock.acquire() as lease:
        await lease.publish(kept)
    assert store.read("state/1").data == b"done"
    assert [entry.path for entry in store.list(".hoodie/.locks/")] == [HUDI_LOCK_PATH]


async def test_url_is_enough(tmp_path: Path) -> None:
    async with lockprovider.async_lock(f"file://{tmp_path}?on=a/lock.json&timeout=0") as lease:
        assert json.loads((tmp_path / "a/lock.json").read_bytes())["owner"] == lease.owner
        with pytest.raises(NotAcquired):
            await lockprovider.async_lock(str(tmp_path), on="a/lock.json", timeout=0)
    with pytest.raises(InvalidSettings):
        await lockprovider.async_lock(f"file://{tmp_path}?validity=1")


def test_several_loops_may_use_it_and_exclude_each_other(store: Store) -> None:
    lock = AsyncLock(store, settings=LONG)

    async def use(timeout_s: float) -> None:
        async with lock.acquire(timeout_s):
            assert refused(store)

    asyncio.run(use(0))
    asyncio.run(use(0))

    async def use_while_another_loop_does() -> None:
        async with lock.acquire():
            with pytest.raises(NotAcquired):
                await asyncio.to_thread(asyncio.run, use(0.05))
            later = asyncio.create_task(asyncio.to_thread(asyncio.run, use(SOON_S)))
            await asyncio.sleep(0.02)
        await later

    asyncio.run(use_while_another_loop_does())


async def test_many_clients_of_one_loop_share_polls_and_wait_without_threads(
    gated: tuple[Store, Store, Gate],
) -> None:
    _, way, gate = gated
    holder = await AsyncLock(way, settings=LONG).acquire()
    gate.arm(-1)
    tasks = [asyncio.create_task(AsyncLock(way, settings=LONG).acquire()._take()) for _ in range(20)]
    threads = threading.active_count()
    await asyncio.sleep(0.2)  # long enough for four looks of each
    assert gate.points == []
    assert threading.active_count() <= threads
    await holder.release()
    for task in tasks:
        await (await task).release()
    sent = [point for point in gate.points if point.startswith("before")]
    assert len(sent) == 2 * len(tasks) + 1, "a take and a release each, and the release before"


# -- cancellation ------------------------------------------------------------------------------------------------------


async def points_of(gate: Gate, work: Callable[[], Any]) -> int:
    """How many places there are at which it can be stopped."""
    gate.arm(-1)
    await work()
    return len(gate.points)


async def stopped_and_cancelled(gate: Gate, point: int, work: Callable[[], Any]) -> None:
    """Start it, wait until it stands at this point, and cancel it there; it must end while it still stands."""
    gate.arm(point)
    task = asyncio.create_task(work())
    assert await asyncio.to_thread(gate.reached.wait, SOON_S)
    await cancelled(task)
    gate.go.set()


async def test_acquisition_that_is_cancelled_at_any_request_leaves_no_lock(
    gated: tuple[Store, Store, Gate],
) -> None:
    store, way, gate = gated

    async def take() -> None:
        await (await AsyncLock(way, settings=LONG).acquire()).release()

    assert await points_of(gate, take) == 6, "get, put and release, each before and after"
    for point in range(4):
        store.delete(HUDI_LOCK_PATH)
        lock = AsyncLock(way, settings=LONG)
        await stopped_and_cancelled(gate, point, lambda lock=lock: lock.acquire()._take())
        async with lock.acquire() as again:
            assert record(store).owner == again.owner
        assert not refused(store), f"cancelled {gate.points[point]}, and it is held"


async def test_mutant_that_forgets_cancelled_acquisitions_is_caught(
    gated: tuple[Store, Store, Gate],
) -> None:
    store, way, gate = gated
    forgetful = Lock(way, settings=LONG)
    await stopped_and_cancelled(gate, 3, lambda: asyncio.to_thread(forgetful.acquire))
    await soon(lambda: forgetful._client.lease is not None)
    assert refused(store)
    assert forgetful._client.lease is not None
    forgetful._client.lease.release()


async def test_error_of_a_cancelled_acquisition_is_not_logged_as_never_retrieved(
    gated: tuple[Store, Store, Gate],
) -> None:
    store, way, gate = gated
    reports: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: reports.append(context))
    store.put_if_absent(HUDI_LOCK_PATH, b"not a record").unwrap()
    before = set(threading.enumerate())
    await stopped_and_cancelled(gate, 1, lambda: AsyncLock(way, settings=LONG).acquire()._take())
    await soon(lambda: not [thread for thread in set(threading.enumerate()) - before if "lease" in thread.name])
    gc.collect()
    assert reports == []


@pytest.mark.parametrize("hops", range(8))
async def test_lock_acquired_for_a_cancelled_task_is_released(store: Store, hops: int) -> None:
    """The thread has the lock, the loop has not seen it yet; then the cancellation comes, one step later each time."""
    lock = AsyncLock(store, settings=LONG)
    task = asyncio.create_task(lock.acquire()._take())
    await asyncio.sleep(0)
    until(lambda: lock._sync._client.lease is not None)  # the loop stands still meanwhile
    for _ in range(hops):
        await asyncio.sleep(0)
    if task.done():
        await task.result().release()
        assert hops > 1
    else:
        await cancelled(task)
    until(lambda: not refused(store))
    async with lock.acquire():
        pass


async def test_cancelled_acquisition_ends_at_once_and_never_takes_the_lock(
    gated: tuple[Store, Store, Gate],
) -> None:
    store, way, gate = gated
    slow = LockSettings(timeout=300, poll=200, check_store=False)
    lock, before = AsyncLock(way, settings=slow), set(threading.enumerate())
    with Lock(store, settings=LONG).acquire() as holder:
        gate.arm(-1)
        task = asyncio.create_task(lock.acquire()._take())
        await soon(lambda: len(gate.points) >= 2)
        await cancelled(task)
        until(lambda: not [thread for thread in set(threading.enumerate()) - before if "async" in thread.name])
    assert record(store).expired
    assert record(store).epoch == holder.epoch
    async with lock.acquire(SOON_S):
        pass


async def test_timeout_around_acquire_holds_while_the_request_hangs(gated: tuple[Store, Store, Gate]) -> None:
    store, way, gate = gated
    gate.arm(2)
    with pytest.raises(asyncio.TimeoutError):
        await asyncio.wait_for(AsyncLock(way, settings=LONG).acquire()._take(), 0.2)
    gate.go.set()
    until(lambda: not refused(store))


async def test_release_cancelled_at_any_request_completes_before_the_next_task(
    gated: tuple[Store, Store, Gate],
) -> None:
    store, way, gate = gated
    for point in range(2):
        lock = AsyncLock(way, settings=LONG)
        lease = await lock.acquire()
        gate.arm(point)
        task = asyncio.create_task(lease.release())
        assert await asyncio.to_thread(gate.reached.wait, SOON_S)
        await cancelled(task)
        with pytest.raises(NotAcquired):
            await lock.acquire(0.05)
        gate.go.set()
        async with lock.acquire():
            assert refused(store)
        assert record(store).expired


async def test_renewal_that_a_release_overtakes_leaves_the_next_lease_alone(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    renew, reached, go = Client.renew, threading.Event(), threading.Event()

    def late(client: Client, *args: Any) -> Any:
        reached.set()
        assert go.wait(SOON_S)
        return renew(client, *args)

    monkeypatch.setattr(Client, "renew", late)
    lock = AsyncLock(store, settings=LONG)
    first = await lock.acquire()
    renewing = asyncio.create_task(first.renew())
    assert await asyncio.to_thread(reached.wait, SOON_S)
    await first.release()
    second = await lock.acquire()
    assert (first.deadline_s, first._inner.deadline_s, second.deadline_s > 0) == (0.0, 0.0, True)
    rewritten(store, owner="another")
    go.set()
    assert not await renewing
    assert not await second.renew()
    await soon(second.lost.is_set)
    with pytest.raises(LeaseLost, match="another has held it"):
        second.check()
    assert second.deadline_s == 0.0


async def test_block_that_is_cancelled_is_left_with_the_lock_released(gated: tuple[Store, Store, Gate]) -> None:
    store, way, _ = gated
    inside = asyncio.Event()

    async def work() -> None:
        async with AsyncLock(way, settings=LONG).acquire():
            inside.set()
            await asyncio.Event().wait()

    task = asyncio.create_task(work())
    await asyncio.wait_for(inside.wait(), SOON_S)
    await cancelled(task)
    assert record(store).expired


@pytest.mark.parametrize(("data", "least"), [(b"done", 6), (os.urandom(20_000), 8)], ids=["", "staged"])
async def test_publish_cancelled_at_any_request_is_decided_before_release_returns(
    gated: tuple[Store, Store, Gate], data: bytes, least: int
) -> None:
    store, way, gate = gated
    happened = []
    async with AsyncLock(way, settings=LONG).acquire() as lease:
        points = await points_of(gate, lambda: lease.publish("state/all", data))
    assert points >= least
    for point in range(points):
        path = f"state/{point}"
        lease = await AsyncLock(way, settings=LONG).acquire()
        await stopped_and_cancelled(gate, point, lambda lease=lease, path=path: lease.publish(path, data))
        await lease.release()
        then = [entry.path for entry in store.list(path)]
        assert record(store).expired
        with Lock(store, settings=LONG).acquire(0):
            assert [entry.path for entry in store.list(path)] == then, "it came after the release"
        happened.append(bool(then))
    assert all(happened), "whoever cancels does not stop it"


async def test_task_cancelled_at_its_turn_passes_the_turn_on(store: Store) -> None:
    """The turn has come in the same step of the loop as the cancellation."""
    lock = AsyncLock(store, settings=LONG)
    turn, lease = TaskQueue.of(lock._same), await lock.acquire()
    first = asyncio.create_task(lock.acquire()._take())
    second = asyncio.create_task(lock.acquire()._take())
    await asyncio.sleep(0)
    turn.pass_on()  # as the release will
    await cancelled(first)
    lease._ended = lambda: None
    await lease.release()
    await (await asyncio.wait_for(second, SOON_S)).release()


def test_loop_that_ends_in_the_middle_of_an_acquisition_leaves_no_lock(gated: tuple[Store, Store, Gate]) -> None:
    store, way, gate = gated
    gate.arm(3)

    async def leave() -> None:
        asyncio.create_task(AsyncLock(way, settings=LONG).acquire()._take())  # noqa: RUF006 - that is the point
        assert await asyncio.to_thread(gate.reached.wait, SOON_S)

    asyncio.run(leave())
    gate.go.set()
    until(lambda: not refused(store))


def test_unreferenced_lease_is_not_renewed(store: Store) -> None:
    quick = LockSettings(validity=1.0, renew=0.05, check_store=False)
    told: list[LeaseLost] = []

    async def forget() -> None:
        await AsyncLock(store, settings=quick, on_lost=told.append).acquire()

    async def hold() -> AsyncLease:
        return await AsyncLock(store, settings=replace(quick, validity=600.0)).acquire()  # a collection may be slow

    before = set(threading.enumerate())
    asyncio.run(forget())
    until(lambda: not [thread for thread in set(threading.enumerate()) - before if "heartbeat" in thread.name])
    until(lambda: not refused(store))
    kept = asyncio.run(hold())
    nonce = record(store).nonce
    until(lambda: record(store).nonce != nonce)  # renewed, though its loop is gone
    assert not kept.lost.is_set()
    with contextlib.suppress(LockError):
        kept._inner.release()


EXITS = """
import asyncio, sys, threading, time
from fsspec_cas import Store
from fsspec_cas.backends.local import LocalBackend
from lockprovider import AsyncLock

class Slow(LocalBackend):
    slow_call = ""
    reached = threading.Event()

    async def put(self, *args, **kwargs):
        if self.slow_call == "release":
            self.wait()
        answer = await super().put(*args, **kwargs)
        if self.slow_call == "acquire":
            self.wait()
        return answer

    def wait(self):
        self.slow_call = ""
        self.reached.set()
        time.sleep(0.5)

async def leave(backend, call):
    lock = AsyncLock(Store(backend, sys.argv[1]))
    lease = await lock.acquire()
    if call == "acquire":
        await lease.release()
    backend.slow_call = call
    task = asyncio.ensure_future(lock.acquire() if call == "acquire" else lease.release())
    await asyncio.to_thread(backend.reached.wait)
    task.cancel()

asyncio.run(leave(Slow(), sys.argv[2]))
"""


@pytest.mark.parametrize("call", ["acquire", "release"])
def test_exit_leaves_no_lock_to_a_cancelled_task(tmp_path: Path, call: str) -> None:
    subprocess.run([sys.executable, "-c", EXITS, str(tmp_path), call], check=True, timeout=SOON_S)
    assert record(Store.from_url(str(tmp_path))).expired
