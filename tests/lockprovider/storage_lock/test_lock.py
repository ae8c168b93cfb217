"""The lock over memory and local disk: what one client, its threads, and its successors may expect."""

from __future__ import annotations

import json
import pickle
import random
import subprocess
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import budgets
import pytest
from deciding import Rules
from noting import record, rewritten

import lockprovider
from fsspec_cas import Store, Unavailable
from fsspec_cas.backends.local import LocalBackend
from fsspec_cas.outcome import Write
from fsspec_cas.testing import Faulty, LoseRequest, ManualClock
from lockprovider import (
    HUDI_LOCK_PATH,
    Intent,
    Lease,
    LeaseLost,
    Lock,
    LockError,
    LockProvider,
    LockSettings,
    LossReason,
    MalformedRecord,
    NotAcquired,
    Pending,
)
from lockprovider.storage_lock.committer import Committer

SHORT = LockSettings(validity=10, renew=1, timeout=0.3, poll=0.05)
SMALL, LARGE = b"small", random.Random(1).randbytes(10_000)  # fits into the record; does not, and is staged


class Counting:
    """A local backend that counts what it is asked, and can be out of reach."""

    name, capabilities, blocking = LocalBackend.name, LocalBackend.capabilities, True

    def __init__(self) -> None:
        self.inner = LocalBackend()
        self.asked: list[str] = []
        self.down = False

    def __getattr__(self, name: str) -> Any:
        request = getattr(self.inner, name)
        if name in ("adapt", "close"):
            return request

        async def send(*args: Any, **kwargs: Any) -> Any:
            self.asked.append(name)
            if self.down:
                raise Unavailable("the store is down")
            return await request(*args, **kwargs)

        return send


@pytest.fixture
def backend() -> Counting:
    return Counting()


@pytest.fixture
def store(backend: Counting, tmp_path: Path) -> Store:
    return Store(backend, str(tmp_path))


def client(store: Store) -> Lock:
    return Lock(store, settings=SHORT)


def test_held_lock_is_refused_to_others_with_the_name_of_its_holder(store: Store) -> None:
    with client(store).acquire() as lease:
        with pytest.raises(NotAcquired, match=lease.owner) as refusal:
            client(store).acquire(0.1)
        assert refusal.value.owner == lease.owner
        assert refusal.value.valid_until_ms == record(store).valid_until_ms
    with client(store).acquire() as successor:
        assert successor.epoch > lease.epoch


def test_acquire_and_release_take_three_requests_cold_and_two_warm(store: Store, backend: Counting) -> None:
    lock = client(store)
    with lock.acquire():
        pass
    assert backend.asked == budgets.LOCK_COLD
    backend.asked.clear()
    with lock.acquire() as lease:
        assert lease.renew()
    assert backend.asked == budgets.LOCK_WARM + budgets.LOCK_RENEW


@pytest.mark.parametrize(
    ("data", "new", "asked"),
    [
        (SMALL, False, budgets.PUBLISH),
        (SMALL, True, budgets.PUBLISH_NEW),
        (LARGE, False, budgets.PUBLISH_LARGE),
        (LARGE, True, budgets.PUBLISH_LARGE_NEW),
    ],
    ids=["small", "small and new", "large", "large and new"],
)
def test_publish_makes_the_documented_number_of_requests(
    store: Store, backend: Counting, data: bytes, *, new: bool, asked: list[str]
) -> None:
    with client(store).acquire() as lease:
        backend.asked.clear()
        lease.publish("state/1", data, new=new)
        assert backend.asked == asked
    assert store.read("state/1").data == data


@pytest.mark.parametrize("data", [SMALL, LARGE], ids=["small", "large"])
def test_publish_of_staged_bytes_makes_the_documented_number_of_requests(
    store: Store, backend: Counting, data: bytes
) -> None:
    lock = client(store)
    staged = [lock.stage(f"state/{number}", data) for number in range(3)]
    assert backend.asked == (["put"] * 3 if data is LARGE else [])
    with lock.acquire() as lease:
        backend.asked.clear()
        lease.publish(staged[0])
        assert backend.asked == (budgets.PUBLISH_STAGED if data is LARGE else budgets.PUBLISH)
        backend.asked.clear()
        lease.publish(staged[1], data)
        assert backend.asked == (budgets.PUBLISH_STAGED_WITH_DATA if data is LARGE else budgets.PUBLISH)
        backend.asked.clear()
        lease.publish(staged[2], data, new=True)
        assert backend.asked == budgets.PUBLISH_STAGED_NEW
    lock.unstage(staged[2])
    assert [store.read(f"state/{number}").data for number in range(3)] == [data] * 3
    assert not store.list(".hoodie/.locks/staged/")


@pytest.mark.parametrize("new", [False, True])
def test_publish_refuses_a_handle_whose_bytes_have_another_digest(store: Store, *, new: bool) -> None:
    lock = client(store)
    wrong = replace(lock.stage("state/1", SMALL), data=b"other")
    with lock.acquire() as lease, pytest.raises(LockError, match="not have the digest"):
        lease.publish(wrong, new=new)
    assert not store.list("state/")


def test_acquire_after_a_lost_lease_is_refused_until_it_is_released(store: Store) -> None:
    lock = client(store)
    lease = lock.acquire()
    lease._heartbeat.stop()
    lease.abandon("for a test")
    with pytest.raises(LeaseLost):
        lock.acquire(0)
    lease.release()
    lock.acquire(SHORT.validity + SHORT.validity).release()


def test_two_threads_of_one_client_exclude_each_other(store: Store) -> None:
    lock = client(store)
    refused = threading.Event()

    def other() -> None:
        with pytest.raises(NotAcquired, match="another thread"):
            lock.acquire(0.05)
        refused.set()

    with lock.acquire():
        thread = threading.Thread(target=other)
        thread.start()
        thread.join()
    assert refused.is_set()


def test_loss_is_reported_by_event_callback_and_check(store: Store) -> None:
    told: list[LeaseLost] = []
    lock = Lock(store, settings=SHORT, on_lost=told.append)
    lease = lock.acquire()
    lease.check()
    rewritten(store, owner="somebody-else", epoch=lease.epoch + 1)
    assert not lease.renew()
    assert lease.lost.is_set()
    with pytest.raises(LeaseLost, match="taken over") as loss:
        lease.check()
    assert [(one.reason, one.why) for one in told] == [(LossReason.TAKEN_OVER, loss.value.why)]


def test_failing_callback_of_a_loss_hides_neither_the_loss_nor_later_ones(
    store: Store, caplog: pytest.LogCaptureFixture
) -> None:
    told: list[str] = []
    lease = Lock(store, settings=SHORT, on_lost=lambda _: 1 / 0).acquire()
    lease.when_lost(lambda loss: told.append(loss.reason.value))
    rewritten(store, owner="somebody-else", epoch=lease.epoch + 1)
    assert not lease.renew()
    with pytest.raises(LeaseLost, match="taken over"):
        lease.check()
    assert told == [LossReason.TAKEN_OVER.value]
    lease.when_lost(lambda _: 1 / 0)
    assert [record.exc_info[0] for record in caplog.records if record.exc_info] == [ZeroDivisionError] * 2


@pytest.mark.parametrize("timeout", [0, 1, 30])
def test_acquire_ends_after_its_timeout_if_no_record_can_be_created(store: Store, timeout: float) -> None:
    clock = ManualClock(time.time())
    silent = Store(Faulty(store.backend, {"put": [LoseRequest()] * 1000}, world=clock), store.root, world=clock)
    began_s = clock.monotonic_s()
    with pytest.raises(NotAcquired, match="no write of one was confirmed"):
        Lock(silent, settings=replace(SHORT, check_store=False), world=clock).acquire(timeout=timeout)
    assert clock.monotonic_s() - began_s <= timeout + 10


def test_acquire_ends_in_time_if_the_store_is_silent_after_its_slow_check(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = ManualClock(time.time())
    silent = Store(Faulty(store.backend, {"put": [LoseRequest()] * 1000}, world=clock), store.root, world=clock)
    lock = Lock(silent, settings=SHORT, world=clock)
    monkeypatch.setattr(lock, "require_safe_store", lambda timeout: clock.advance(max(5.0, timeout) + 2))
    began_s = clock.monotonic_s()
    with pytest.raises(NotAcquired):
        lock.acquire(timeout=1)
    assert clock.monotonic_s() - began_s <= 11


def test_commit_has_the_time_that_the_store_check_has_left(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    clock, timeouts = ManualClock(time.time()), list[float]()
    lock = Lock(store, settings=SHORT, world=clock)
    monkeypatch.setattr(lock, "require_safe_store", lambda _: clock.advance(4.0))
    monkeypatch.setattr(Committer, "commit", lambda *arguments: timeouts.append(arguments[-1]))
    for timeout in (10.0, 3.0):
        lock.commit(Intent("a", 0, "me", b"-"), Rules(), timeout)
    assert timeouts == pytest.approx([6.0, 0.0])


def test_error_of_takes_that_failed_says_that_the_lock_is_free(store: Store) -> None:
    Lock(store, settings=SHORT).acquire().release()
    clock = ManualClock(time.time())
    silent = Store(Faulty(store.backend, {"put": [LoseRequest()] * 1000}, world=clock), store.root, world=clock)
    with pytest.raises(NotAcquired, match="is free, but no write that takes it was confirmed") as caught:
        Lock(silent, settings=SHORT, world=clock).acquire(timeout=0)
    assert "held by" not in str(caught.value)


@pytest.mark.parametrize("holder", ["lock", "provider"])
def test_error_of_a_block_is_not_replaced_by_one_of_its_release(store: Store, holder: str) -> None:
    lock = Lock(store, settings=SHORT)
    provider = LockProvider(lock)

    def fail() -> None:
        with lock if holder == "lock" else provider:
            assert holder == "lock" or provider.try_lock()
            store.update(HUDI_LOCK_PATH, lambda _: b"not a lock record")
            1 / 0  # noqa: B018

    with pytest.raises(ZeroDivisionError):
        fail()


def test_reason_of_a_lost_lease_survives_pickling() -> None:
    loss = pickle.loads(pickle.dumps(LeaseLost("gone", reason=LossReason.FORKED, why="forked")))
    assert (str(loss), loss.reason, loss.why) == ("gone", LossReason.FORKED, "forked")


def test_released_or_lapsed_lease_says_so(store: Store) -> None:
    clock = ManualClock(time.time())
    lock = Lock(store, settings=SHORT, world=clock)
    lease = lock.acquire()
    lease.release()
    with pytest.raises(LeaseLost) as loss:
        lease.check()
    assert loss.value.reason is LossReason.RELEASED
    lease = lock.acquire()
    clock.advance(SHORT.validity)
    with pytest.raises(LeaseLost) as loss:
        lease.check()
    assert loss.value.reason is LossReason.LAPSED


def test_publish_under_a_released_lease_stages_nothing(store: Store) -> None:
    lease = Lock(store).acquire()
    lease.release()
    before = store.list("")
    with pytest.raises(LeaseLost, match="released"):
        lease.publish("state/8", random.Random(1).randbytes(20_000))
    assert store.list("") == before


def test_publish_that_stages_during_a_release_ends_with_its_lease(
    store: Store, backend: Counting, monkeypatch: pytest.MonkeyPatch
) -> None:
    lock = client(store)
    lease, put, later = lock.acquire(), backend.inner.put, list[Lease]()

    async def slow_put(write: Write, *args: Any, **kwargs: Any) -> Any:
        if "staged/" in write.path:
            lease.release()
            later.append(lock.acquire())
        return await put(write, *args, **kwargs)

    monkeypatch.setattr(backend.inner, "put", slow_put)
    with pytest.raises(LeaseLost, match="released"):
        lease.publish("state/8", LARGE)
    assert not store.list("state/")
    assert not lease.lost.is_set(), "a release is no loss"
    later[0].check()
    later[0].release()


@pytest.mark.filterwarnings("ignore:.*garbage-collected:ResourceWarning")
def test_lease_whose_release_failed_does_not_release_the_next_one(store: Store, backend: Counting) -> None:
    lock = Lock(store)
    failed = lock.acquire()
    backend.down = True
    with pytest.raises(Unavailable):
        failed.release()
    backend.down = False
    lease = lock.acquire()
    failed.end()  # as its finalizer and the interpreter's exit do
    lease.check()
    assert lock.locked()
    lease.release()
    assert not lock.locked()


def test_successor_first_finishes_the_decided_publish(store: Store) -> None:
    """The holder passed the commit point and died before it applied the publish."""
    dead = client(store)
    dead.acquire()
    pending: Pending = dead.stage("log/1", LARGE)
    rewritten(store, validUntil=0, pending={"path": pending.path, "staged": pending.staged, "digest": pending.digest})
    assert not store.list("log/")
    with client(store).acquire():
        assert store.read("log/1").data == LARGE


def test_program_with_an_undecodable_name_leaves_a_readable_record(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "argv", ["/jobs/nightly-\udcff.py"])
    with Lock(store) as lease:
        holder = lease.record.holder
    assert holder is not None
    assert holder.command == r"nightly-\udcff.py"
    with Lock(store):
        pass


def test_undecided_publish_never_appears(store: Store) -> None:
    dead = client(store)
    dead.acquire()
    dead.stage("log/1", LARGE)
    rewritten(store, validUntil=0)
    with client(store).acquire():
        assert not store.list("log/")


def test_jvm_record_is_respected_and_the_epoch_still_rises(store: Store) -> None:
    with client(store).acquire() as before:
        pass
    held = store.read(HUDI_LOCK_PATH)
    jvm = {"expired": False, "validUntil": 99_999_999_999_999, "owner": "11111111-2222-3333-4444-555555555555"}
    held_by_jvm = store.put_if_match(HUDI_LOCK_PATH, json.dumps(jvm).encode(), held.version).unwrap()
    with pytest.raises(NotAcquired, match="11111111"):
        client(store).acquire(0.1)
    store.put_if_match(HUDI_LOCK_PATH, json.dumps(jvm | {"expired": True}).encode(), held_by_jvm).unwrap()
    with client(store).acquire() as after:
        assert after.epoch > before.epoch


@pytest.mark.parametrize("data", [b"", b"{", b"[]", b'{"owner": "x"}', b'{"owner":1,"validUntil":2,"expired":false}'])
def test_invalid_lock_record_is_refused_and_not_overwritten(store: Store, data: bytes) -> None:
    store.put_if_absent(HUDI_LOCK_PATH, data)
    with pytest.raises(MalformedRecord, match="by hand"):
        client(store).acquire()
    assert store.read(HUDI_LOCK_PATH).data == data


def test_acquire_on_unreachable_store_raises_and_succeeds_later(store: Store, backend: Counting) -> None:
    lock = client(store)
    backend.down = True
    with pytest.raises(Unavailable):
        lock.acquire()
    backend.down = False
    with lock.acquire() as lease:
        lease.check()


def test_held_lock_is_released_at_interpreter_exit(tmp_path: Path) -> None:
    code = f"import lockprovider; lease = lockprovider.lock({str(tmp_path)!r}).acquire(); print(lease.epoch)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert int(done.stdout) > 0
    with lockprovider.lock(str(tmp_path), timeout=0) as lease:
        assert lease.epoch > int(done.stdout)


def test_many_processes_increment_a_plain_counter_without_losing_one(tmp_path: Path) -> None:
    code = (
        "import lockprovider, pathlib, sys\n"
        "counter = pathlib.Path(sys.argv[1]) / 'counter'\n"
        "for _ in range(20):\n"
        "    with lockprovider.lock(sys.argv[1]):\n"
        "        counter.write_text(str(int(counter.read_text()) + 1))\n"
    )
    (tmp_path / "counter").write_text("0")
    workers = [subprocess.Popen([sys.executable, "-c", code, str(tmp_path)]) for _ in range(6)]
    assert [worker.wait() for worker in workers] == [0] * 6
    assert (tmp_path / "counter").read_text() == "120"
