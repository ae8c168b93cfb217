"""Clients of one process: they wait in order, and one asks the store for all."""

from __future__ import annotations

import asyncio
import gc
import json
import threading
import weakref
from dataclasses import replace
from pathlib import Path
from typing import Any

import budgets
import pytest
from patience import PATIENCE_S, until

from fsspec_cas import Machine, Store
from fsspec_cas.backends.local import LocalBackend
from fsspec_cas.testing import ManualClock
from lockprovider import HUDI_LOCK_PATH, AsyncLock, LeaseLost, Lock, LockRecord, LockSettings, NotAcquired
from lockprovider.storage_lock.acquire import Fifo, FifoTurn, ProcessQueue
from lockprovider.storage_lock.polling import FIRST_S

LAZY = LockSettings(timeout=900, poll=800)  # a look at the store while one of us holds it comes after 400 s
SOON_S = PATIENCE_S


class Counting:
    """A local backend that counts what it is asked."""

    name, capabilities, blocking = LocalBackend.name, LocalBackend.capabilities, True

    def __init__(self) -> None:
        self.inner = LocalBackend()
        self.asked: list[str] = []

    def __getattr__(self, name: str) -> Any:
        request = getattr(self.inner, name)
        if name in ("adapt", "close", "part_rules"):
            return request

        async def send(*args: Any, **kwargs: Any) -> Any:
            self.asked.append(name)
            return await request(*args, **kwargs)

        return send


def waiting(queue: ProcessQueue, count: int) -> bool:
    """So many, besides the one who looks."""
    return len(queue.fifo._turns) == count + 1


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(Counting(), str(tmp_path))


def test_clients_of_one_process_go_in_order_for_two_requests_each(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "lockprovider.storage_lock.acquire.FIRST_S", SOON_S
    )  # a release may take long on a busy machine
    first, order, threads = Lock(store, settings=LAZY), [], []
    queue = ProcessQueue.of(store, HUDI_LOCK_PATH, first._world)

    def take(n: int) -> None:
        with Lock(store, settings=LAZY).acquire():
            order.append(n)

    with first.acquire():
        for n in range(8):
            threads.append(threading.Thread(target=take, args=(n,)))
            threads[-1].start()
            until(lambda n=n: queue.fifo.taken and waiting(queue, n))
    for thread in threads:
        thread.join(SOON_S)
    assert order == list(range(8))
    assert store.backend.asked == budgets.LOCK_COLD + budgets.LOCK_WARM * 8


def test_threads_and_event_loops_hand_the_lock_over_without_a_poll(store: Store) -> None:
    """Each of two loops and a thread waited for a whole `poll` until it found that another had released."""
    turns: list[str] = []

    async def tasks(name: str) -> None:
        for _ in range(5):
            async with AsyncLock(store, settings=LAZY).acquire():
                turns.append(name)
                await asyncio.sleep(0)

    def thread() -> None:
        for _ in range(5):
            with Lock(store, settings=LAZY):
                turns.append("thread")

    crew = [threading.Thread(target=asyncio.run, args=(tasks(name),)) for name in ("one loop", "another")]
    crew.append(threading.Thread(target=thread))
    with Lock(store, settings=LAZY):
        for one in crew:
            one.start()
    for one in crew:
        one.join(SOON_S)
    assert sorted(turns) == ["another"] * 5 + ["one loop"] * 5 + ["thread"] * 5
    assert store.backend.asked == budgets.LOCK_COLD + budgets.LOCK_WARM * 15, "nobody has looked in between"


def test_threads_that_share_a_client_go_in_the_order_of_asking_too(store: Store) -> None:
    lock, order, threads = Lock(store, settings=LAZY), [], []

    def take(n: int) -> None:
        with lock.acquire():
            order.append(n)

    with lock.acquire():
        for n in range(5):
            threads.append(threading.Thread(target=take, args=(n,)))
            threads[-1].start()
            until(lambda n=n: len(lock._client.turn._turns) == n + 2)
    for thread in threads:
        thread.join(SOON_S)
    assert order == list(range(5))


def test_lost_lease_does_not_make_other_clients_wait_for_its_release(store: Store) -> None:
    held = Lock(store, settings=LAZY).acquire()
    content = store.read(HUDI_LOCK_PATH)
    broken = json.dumps(json.loads(content.data) | {"expired": True, "nonce": "operator"}).encode()
    store.put_if_match(HUDI_LOCK_PATH, broken, content.version).unwrap()
    taken: list[int] = []

    def take() -> None:
        with Lock(store, settings=LAZY).acquire() as lease:
            taken.append(lease.epoch)

    waiter = threading.Thread(target=take)
    waiter.start()
    assert not held.renew()
    waiter.join(SOON_S)
    assert taken
    with pytest.raises(LeaseLost):
        held.check()
    held.release()


def test_waiting_clients_of_the_same_process_send_no_requests(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    lock, queue, paused_s = Lock(store, settings=LAZY), ProcessQueue.of(store, HUDI_LOCK_PATH, Machine()), []

    def wait(seconds: float, until: threading.Event | None) -> None:
        paused_s.append(seconds)
        ProcessQueue.wait(queue, seconds, until)

    monkeypatch.setattr(queue, "wait", wait)
    lease = lock.acquire()
    store.backend.asked.clear()
    waiter = threading.Thread(target=lambda: Lock(store, settings=LAZY).acquire().release())
    waiter.start()
    until(lambda: paused_s)
    assert min(paused_s) > FIRST_S
    with pytest.raises(NotAcquired) as refusal:
        Lock(store, settings=LAZY).acquire(0.01)
    assert refusal.value.owner == lock.owner
    assert store.backend.asked == []
    lease.release()
    waiter.join(SOON_S)
    assert store.backend.asked == ["put", "put", "put"], "nor was there a look when it was released"


def test_acquire_without_waiting_reads_for_itself(store: Store) -> None:
    with Lock(store, settings=LAZY).acquire() as lease:
        with pytest.raises(NotAcquired) as refusal:
            Lock(store, settings=LAZY).acquire(0)
        assert refusal.value.owner == lease.owner
    Lock(store, settings=LAZY).acquire(0).release()


def test_release_before_the_pause_begins_ends_the_pause(store: Store) -> None:
    lock = Lock(store, settings=LAZY)
    assert lock._client.queue.end_of_hold() is None
    lease = lock.acquire()
    end_of_hold = lock._client.queue.end_of_hold()
    lease.release()
    assert end_of_hold.is_set()
    lock._client.queue.wait(3600, end_of_hold)


def test_client_that_gives_up_leaves_the_process_queue(store: Store) -> None:
    with Lock(store, settings=LAZY).acquire() as lease:
        looking = threading.Thread(target=lambda: Lock(store, settings=LAZY).acquire().release())
        looking.start()
        queue = lease._client.queue
        until(lambda: queue.fifo.taken)
        with pytest.raises(NotAcquired, match=lease.owner):
            Lock(store, settings=LAZY).acquire(0.01)
        assert waiting(queue, 0)
    looking.join(SOON_S)
    assert LockRecord.decode(store.read(HUDI_LOCK_PATH).data).expired


def test_locks_of_one_path_and_backend_share_a_process_queue(tmp_path: Path) -> None:
    lock = Lock(Store.from_url(str(tmp_path)))
    same = Lock(Store.from_url(f"file://{tmp_path}"))
    assert same._client.queue is lock._client.queue
    assert same.owner != lock.owner
    others = (
        Lock(Store.from_url(str(tmp_path)), "another.json"),
        Lock(Store.from_url(str(tmp_path / "below"))),
        Lock(Store.from_url(str(tmp_path)), world=ManualClock()),
        Lock(Store(Counting(), str(tmp_path))),
    )
    assert len({id(other._client.queue) for other in (lock, *others)}) == 5


def test_equal_endpoints_share_a_queue_across_threads() -> None:
    def place(port: int) -> object:
        options = {"key": "k", "secret": "s", "endpoint_url": f"http://127.0.0.1:{port}"}
        return Store.from_url("s3://bucket/table", options).identity

    found: list[object] = []
    thread = threading.Thread(target=lambda: found.append(place(1)))
    thread.start()
    thread.join()
    assert found == [place(1)]
    assert place(2) != place(1)


def test_process_queue_is_dropped_with_its_clients(tmp_path: Path) -> None:
    name = Lock(Store.from_url(str(tmp_path)))._client.queue.name
    assert Lock(Store.from_url(str(tmp_path)))._client.queue.name != name


# -- across processes: queues that know of each other through the record only -----------------------------------------


def test_process_queue_keeps_no_backend_alive(tmp_path: Path) -> None:
    backend = Counting()
    backend.asked_by = Lock(Store(backend, str(tmp_path)), settings=LAZY)
    with backend.asked_by.acquire():
        pass
    gone = weakref.ref(backend)
    del backend
    gc.collect()
    assert gone() is None


class Elsewhere:
    """The world of another process, as far as queues go."""

    def __getattr__(self, name: str) -> Any:
        return getattr(Machine(), name)


def held_by_another(store: Store, **fields: object) -> bytes:
    """The bytes of a record that another process holds the lock with."""
    record = LockRecord("other", 2**50, expired=False, epoch=7, nonce="n7", turn_ms=100, waiters=("a",))
    data = json.dumps(json.loads(record.encode()) | fields, separators=(",", ":")).encode()
    store.put_if_absent(HUDI_LOCK_PATH, data).unwrap()
    return data


def wait_in_vain(store: Store) -> str:
    """The name of the queue that did."""
    lock = Lock(store, settings=LAZY, world=ManualClock())
    with pytest.raises(NotAcquired, match="other"):
        lock.acquire(30)
    return lock._client.queue.name


def test_waiter_adds_itself_to_the_record_and_changes_nothing_else(store: Store) -> None:
    held_by_another(store)
    before = LockRecord.decode(store.read(HUDI_LOCK_PATH).data)
    name = wait_in_vain(store)
    after = LockRecord.decode(store.read(HUDI_LOCK_PATH).data)
    assert after == replace(before, waiters=("a", name))
    assert store.backend.asked.count("put") == 2, "the record that was there, and one join"


@pytest.mark.parametrize(
    "data",
    [
        b'{"owner":"other","validUntil":1125899906842624,"expired":false}',
        b'{"validUntil":1125899906842624,"expired":false,"owner":"other","waiters":["a"],"turnMs":5}',
    ],
    ids=["as JVM Hudi writes it", "as nobody writes it"],
)
def test_waiter_never_changes_a_foreign_record(store: Store, data: bytes) -> None:
    store.put_if_absent(HUDI_LOCK_PATH, data).unwrap()
    wait_in_vain(store)
    assert store.read(HUDI_LOCK_PATH).data == data


def test_waiter_never_changes_a_record_with_unknown_fields(store: Store) -> None:
    data = held_by_another(store, color="blue")
    wait_in_vain(store)
    assert store.read(HUDI_LOCK_PATH).data == data


def test_looping_client_lets_another_process_acquire(store: Store) -> None:
    stop, turns = threading.Event(), []

    def loop() -> None:
        lock = Lock(store, settings=LockSettings(timeout=60))
        while not stop.is_set():
            with lock.acquire():
                turns.append("loop")

    looper = threading.Thread(target=loop)
    looper.start()
    until(lambda: len(turns) > 5)
    other = Lock(store, settings=LockSettings(timeout=60), world=Elsewhere())
    try:
        for _ in range(5):
            with other.acquire():
                turns.append("other")
    finally:
        stop.set()
        looper.join(60)
    rounds = "".join("o" if turn == "other" else "l" for turn in turns).strip("l").split("o")[1:-1]
    assert len(rounds) == 4
    assert sorted(map(len, rounds))[1] < 100, "in the line it has its turn, unless the machine stood still for it"


# -- the mutex itself --------------------------------------------------------------------------------------------------


def test_fifo_turn_is_passed_on_in_order_whichever_thread_releases_it() -> None:
    fifo, order, threads = Fifo(), [], []
    turns = [FifoTurn(fifo) for _ in range(5)]
    assert turns[0].wait(0)
    assert not turns[1].wait(0)
    for n in range(4):
        threads.append(threading.Thread(target=lambda n=n: (turns[n + 1].wait(SOON_S), order.append(n))))
        threads[-1].start()
    for n, thread in enumerate(threads):
        turns[n].leave()
        thread.join(SOON_S)
        assert order == list(range(n + 1))
    turns[-1].leave()
    assert not fifo.taken


def test_client_that_waited_too_long_is_skipped() -> None:
    fifo = Fifo()
    first, second, third = FifoTurn(fifo), FifoTurn(fifo), FifoTurn(fifo)
    assert not second.wait(0.01)
    second.leave()
    first.leave()
    assert third.wait(0)


def test_unreferenced_turn_is_passed_on() -> None:
    """An interrupt may come in the very `finally` that would have left it."""
    fifo = Fifo()
    first, second = FifoTurn(fifo), FifoTurn(fifo)
    assert first.wait(0)
    del first
    assert second.wait(0)
