"""Hudi's released lock provider and ours on one lock file of a real S3 server: each honours the other's records."""

from __future__ import annotations

import contextlib
import json
import random
import threading
import time
import uuid
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import pytest
from patience import PATIENCE_S, until

from fsspec_cas import Store
from jvm.clients import JvmError, JvmLocks, Provider
from lockprovider import (
    HUDI_LOCK_PATH,
    Holder,
    LeaseLost,
    Lock,
    LockRecord,
    LockSettings,
    MalformedRecord,
    NotAcquired,
    Pending,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from servers.seaweedfs import SeaweedFS

pytestmark = pytest.mark.jvm

GRACE_MS = 500
SETTINGS = LockSettings(validity=60, renew=5, timeout=PATIENCE_S, poll=0.2)


@dataclass
class Table:
    """The lock file of one table, and the server's own word on what is in it."""

    server: SeaweedFS
    url: str

    @property
    def lock_file(self) -> str:
        return f"{self.url}/{HUDI_LOCK_PATH}"

    def ours(self, settings: LockSettings = SETTINGS) -> Lock:
        return Lock(Store.from_url(self.url, self.server.storage_options), settings=settings)

    def bytes(self) -> bytes:
        answer = self.server.raw_get(self.lock_file)
        assert answer.ok, answer
        return answer.body

    def write(self, data: bytes) -> None:
        assert self.server.raw_put(self.lock_file, data).ok

    def lapse(self) -> None:
        """As if its holder had not been heard of for long."""
        self.write(json.dumps(json.loads(self.bytes()) | {"validUntil": 1}).encode())


@pytest.fixture
def table(seaweedfs: SeaweedFS) -> Table:
    return Table(seaweedfs, seaweedfs.new_prefix())


@pytest.fixture
def theirs(jvm: JvmLocks, table: Table) -> Provider:
    return jvm.open(table.url)


def test_python_record_starts_with_the_jvm_record_and_each_reads_the_other(jvm: JvmLocks) -> None:
    owner = str(uuid.uuid4())
    pending, holder = Pending("a/b", "staged/b", "digest"), Holder("host", 7, 8)
    for expired in (False, True):
        written = jvm.ask("encode", str(expired).lower(), 1_790_000_000_123, owner)
        plain = LockRecord(owner, 1_790_000_000_123, expired)
        full = LockRecord(owner, 1_790_000_000_123, expired, epoch=9, nonce="n", pending=pending, holder=holder)
        for record in (plain, full):
            ours = record.encode().decode()
            assert ours.startswith(written.removesuffix("}") + ",")
            assert jvm.ask("decode", ours) == f"{str(expired).lower()} 1790000000123 {owner}"
        assert LockRecord.decode(written.encode()) == plain


def test_python_waits_for_lock_held_by_jvm_and_takes_released_one(table: Table, theirs: Provider) -> None:
    assert theirs.try_lock()
    written = table.bytes()
    assert set(json.loads(written)) == {"expired", "validUntil", "owner"}
    expired, valid_until, owner = theirs.held().split()
    assert json.loads(written) == {"expired": expired == "true", "validUntil": int(valid_until), "owner": owner}
    with pytest.raises(NotAcquired, match=owner) as refusal:
        table.ours().acquire(0)
    assert refusal.value.valid_until_ms == int(valid_until)
    assert table.bytes() == written, "a try in vain writes nothing"
    theirs.unlock()
    assert json.loads(table.bytes())["expired"] is True
    with table.ours().acquire(0) as lease:
        lease.check()


def test_jvm_waits_for_lock_held_by_python_and_takes_released_one(table: Table, theirs: Provider) -> None:
    with table.ours().acquire(0):
        written = table.bytes()
        assert not theirs.try_lock()
        assert theirs.held() == "none"
        assert table.bytes() == written
    assert theirs.try_lock()
    theirs.unlock()


def test_waiting_python_client_does_not_change_the_jvm_record(jvm: JvmLocks, table: Table) -> None:
    """Were a waiter to write itself into their record, their next renewal would find another version and give up."""
    theirs = jvm.open(table.url, 10, 1)
    assert theirs.try_lock()
    first = LockRecord.decode(table.bytes())
    acquired: list[int] = []
    waiters = [threading.Thread(target=lambda: acquired.append(_once(table))) for _ in range(3)]
    for waiter in waiters:
        waiter.start()
    # Long beyond its first validity it is still theirs.
    until(lambda: _valid_until(table) > first.valid_until_ms + 2_000, "the lease is prolonged")
    assert theirs.held().split()[2] == first.owner == LockRecord.decode(table.bytes()).owner
    assert acquired == []
    theirs.unlock()
    for waiter in waiters:
        waiter.join(PATIENCE_S)
    assert len(set(acquired)) == 3


def _once(table: Table) -> int:
    with table.ours().acquire() as lease:
        return lease.epoch


def _valid_until(table: Table) -> int:
    return LockRecord.decode(table.bytes()).valid_until_ms


def test_epoch_rises_over_jvm_acquisitions_that_drop_it(table: Table, theirs: Provider) -> None:
    epochs = []
    for _ in range(3):
        with table.ours().acquire() as lease:
            epochs.append(lease.epoch)
        assert theirs.try_lock(PATIENCE_S)
        assert b"epoch" not in table.bytes()
        theirs.unlock()
    assert epochs == sorted(set(epochs))


def test_jvm_takes_over_lapsed_python_lock_after_the_clock_grace(table: Table, theirs: Provider) -> None:
    lapses_ms = int(time.time() * 1000) + 1_500
    table.write(LockRecord("dead", lapses_ms, expired=False, epoch=5, holder=Holder("gone", 1, 2)).encode())
    until(theirs.try_lock, "they take it over")
    assert int(time.time() * 1000) > lapses_ms + GRACE_MS
    theirs.unlock()


def test_killed_jvm_holds_the_lock_exactly_until_it_lapses(start_jvm: Callable[[], JvmLocks], table: Table) -> None:
    jvm = start_jvm()
    assert jvm.open(table.url, 10, 1).try_lock()
    jvm.kill9()
    lapses_ms = _valid_until(table)
    with table.ours().acquire() as lease:
        assert int(time.time() * 1000) > lapses_ms + GRACE_MS
        lease.publish("state/1", b"after the dead")
    assert table.server.raw_get(f"{table.url}/state/1").body == b"after the dead"


def test_python_holder_learns_of_jvm_takeover_and_cannot_publish(table: Table, theirs: Provider) -> None:
    stale = table.ours().acquire(0)
    table.lapse()
    assert theirs.try_lock()
    with pytest.raises(LeaseLost):
        stale.publish("state/1", b"late")
    assert stale.lost.is_set()
    assert table.server.raw_get(f"{table.url}/state/1").status == 404
    assert LockRecord.decode(table.bytes()).owner == theirs.held().split()[2]
    theirs.unlock()


def test_jvm_paused_past_its_lease_learns_it_and_spares_python_record(
    start_jvm: Callable[[], JvmLocks], table: Table
) -> None:
    jvm = start_jvm()
    theirs = jvm.open(table.url, 10, 1)
    assert theirs.try_lock()
    jvm.pause()
    with table.ours().acquire() as lease:
        written = table.bytes()
        jvm.go_on()
        until(theirs.told_lost, "their holder is told")
        assert not theirs.try_lock()
        with contextlib.suppress(JvmError):
            theirs.unlock()
        lease.check()
        assert table.bytes() == written
    assert theirs.try_lock(PATIENCE_S), "and it may have it again later"
    theirs.unlock()


MALFORMED = (
    b"",
    b"{}",
    b"null",
    b"not json",
    b'{"expired":false',
    b'{"expired":null,"validUntil":1,"owner":"x"}',
    b'{"expired":false,"validUntil":null,"owner":"x"}',
    b'{"expired":false,"validUntil":"soon","owner":"x"}',
    b'{"expired":"maybe","validUntil":1,"owner":"x"}',
    b"[]",
)


@pytest.mark.parametrize("data", MALFORMED)
def test_jvm_and_python_refuse_invalid_record_and_leave_it_unchanged(
    table: Table, theirs: Provider, data: bytes
) -> None:
    table.write(data)
    with pytest.raises(JvmError):
        theirs.try_lock()
    with pytest.raises(MalformedRecord):
        table.ours().acquire(0)
    assert table.bytes() == data


def test_counter_protected_by_the_lock_loses_no_increment(jvm: JvmLocks, table: Table) -> None:
    for _ in range(5):  # on a busy machine one of them may be done before another begins
        counted, looks = contend(table, [jvm.open(table.url)], ours=2, times=30)
        assert counted == 90
        if looks[0] > 30:
            print(f"3 clients, 30 times each; theirs looked {looks} times")  # noqa: T201 (shown with -s)
            return
    pytest.fail("they never met")


def test_counter_under_two_locks_loses_increments(jvm: JvmLocks, table: Table) -> None:
    """Or the test above could not fail."""
    other = jvm.open(f"{table.url}/other")
    for _ in range(5):
        counted, _ = contend(table, [other], ours=1, times=10)
        if counted < 20:
            return
    pytest.fail("two clients that did not exclude each other never met")


@pytest.mark.soak
def test_hundreds_of_acquisitions_by_jvm_and_python_clients_lose_nothing(
    start_jvm: Callable[[], JvmLocks], table: Table
) -> None:
    jvms = [start_jvm(), start_jvm()]
    counted, looks = contend(table, [jvm.open(table.url) for jvm in jvms], ours=2, times=300)
    assert counted == 1200
    print(f"4 clients, 300 times each; theirs looked {looks} times")  # noqa: T201 (shown with -s)


def contend(table: Table, theirs: list[Provider], *, ours: int, times: int) -> tuple[int, list[int]]:
    """Everybody adds one to a counter so many times; its value then, and how often each of theirs looked."""
    counter = f"{table.url}/counter"
    assert table.server.raw_put(counter, b"0").ok
    looks: list[int] = []
    failed: list[BaseException] = []
    start = threading.Barrier(len(theirs) + ours)

    def guarded(work: Callable[[], object]) -> None:
        try:
            start.wait(PATIENCE_S)
            work()
        except BaseException as error:  # noqa: BLE001 (told below)
            failed.append(error)

    jobs = [partial(_count_theirs, each, counter, times, looks) for each in theirs]
    jobs += [partial(count, table, _warm(table), counter, times) for _ in range(ours)]
    threads = [threading.Thread(target=guarded, args=(job,)) for job in jobs]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failed == []
    return int(table.server.raw_get(counter).body), looks


def _warm(table: Table) -> Lock:
    """A client whose first connection is made, so that all run at the same time."""
    lock = table.ours()
    with lock.acquire():
        return lock


def _count_theirs(theirs: Provider, counter: str, times: int, looks: list[int]) -> None:
    looks.append(theirs.count(counter, times))


def count(table: Table, lock: Lock, counter: str, times: int) -> None:
    """As theirs do it: a read and a plain write, with nothing but the lock around them."""
    for _ in range(times):
        with lock.acquire():
            value = int(table.server.raw_get(counter).body)
            time.sleep(random.uniform(0.001, 0.010))
            assert table.server.raw_put(counter, b"%d" % (value + 1)).ok
        time.sleep(random.uniform(0.001, 0.030))
