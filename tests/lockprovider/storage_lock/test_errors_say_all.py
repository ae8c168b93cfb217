"""What an error of a lock tells: which lock, who holds it, since and until when, and what to do."""

from __future__ import annotations

import asyncio
import inspect
import json
import os
import pickle
import pwd
import re
import threading
import uuid
from concurrent.futures import ThreadPoolExecutor

import pyarrow as pa
import pytest
from patience import PATIENCE_S

import lockprovider
from fsspec_cas import Store
from lockprovider import (
    HUDI_LOCK_PATH,
    Holder,
    LeaseLost,
    LockError,
    LockRecord,
    LockSettings,
    LossReason,
    MalformedRecord,
    NotAcquired,
)
from lockprovider.errors import PublishUnknown, Unappliable
from lockprovider.storage_lock import client
from lockprovider.storage_lock.client import add_details
from lockprovider.table import Table, TableSettings, TableSpec

ISO = r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z"
ME = pwd.getpwuid(os.geteuid()).pw_name
HOLDER = Holder("ship", 42, 1_795_311_800_000, "ann", "nightly.py")


@pytest.fixture
def url():
    return f"memory:///locks/{uuid.uuid4().hex}"


def acquire_in_a_thread(url, timeout=0.01):
    with ThreadPoolExecutor(1) as threads:
        return threads.submit(lockprovider.lock(url, timeout=timeout).acquire).result()


def test_acquire_timeout_names_holder_expiry_and_next_step(url):
    with lockprovider.lock(url, validity=60) as held:
        promised_ms = held.record.valid_until_ms
        with pytest.raises(NotAcquired) as caught:
            acquire_in_a_thread(url)
    error, said = caught.value, str(caught.value)
    assert error.url == f"{url}/{HUDI_LOCK_PATH}"
    assert (error.owner, error.holder.pid, error.holder.user) == (held.owner, os.getpid(), ME)
    assert error.holder.command
    assert error.valid_until_ms == promised_ms
    for words in (url, error.holder.host, f"pid {os.getpid()}", f"user {ME}", error.holder.command):
        assert words in said
    assert re.search(rf"since {ISO}", said)
    assert re.search(rf"until {ISO} \(in [\d.]+ s\)", said)
    assert said.endswith(f"wait longer (timeout=), or run `lockprovider status {url}`")


def not_acquired_by_a_thread(url):
    with lockprovider.lock(url, validity=60) as held:
        acquire_in_a_thread(url)
    return held


def test_wait_for_own_lease_is_told_at_once_and_at_the_timeout(url, caplog):
    caplog.set_level("WARNING", "lockprovider")
    with lockprovider.lock(url), pytest.raises(NotAcquired) as caught:
        lockprovider.lock(url, timeout=0.5).acquire()
    for words in ("this thread holds that lease itself", "release it first", "table.under(lease)"):
        assert words in str(caught.value)
        assert [words in record.getMessage() for record in caplog.records] == [True]
    assert "wait longer" not in str(caught.value)
    with pytest.raises(NotAcquired) as caught, lockprovider.lock(url):
        lockprovider.lock(url, timeout=0).acquire()
    assert "this thread holds that lease itself" in str(caught.value)
    again = pickle.loads(pickle.dumps(caught.value))
    assert (str(again), again.next_step) == (str(caught.value), caught.value.next_step)


def test_wait_for_lease_of_another_thread_is_not_told_as_own(url, caplog):
    caplog.set_level("WARNING", "lockprovider")
    with lockprovider.lock(url), pytest.raises(NotAcquired) as caught:
        acquire_in_a_thread(url, timeout=0.5)
    assert "itself" not in str(caught.value)
    assert caplog.records == []


def test_wait_for_own_lease_ends_once_another_thread_releases_it(url):
    lease = lockprovider.lock(url).acquire()
    timer = threading.Timer(0.3, lease.release)
    timer.start()
    with lockprovider.lock(url, timeout=PATIENCE_S):
        assert lease.released
    timer.join()


@pytest.mark.parametrize("keeps_log", [False, True])
def test_table_write_under_its_own_lock_names_how_to_take_turns(url, caplog, keeps_log):
    rows = pa.table({"id": [1]})
    settings = TableSettings(lock=LockSettings(timeout=0.5))
    table = Table.create(url, TableSpec("t", rows, "id"), settings=settings)
    table.upsert(rows)
    caplog.set_level("WARNING", "lockprovider")
    with lockprovider.lock(url).acquire(keeps_log=keeps_log), pytest.raises(NotAcquired) as caught:
        table.upsert(rows)
    assert "table.under(lease)" in caplog.text
    if not keeps_log:
        assert "table.under(lease)" in str(caught.value)
    with lockprovider.lock(url, on="jobs.json") as lease:
        assert table.under(lease).upsert(rows).updated == 1


async def not_acquired_by_a_task(url):
    async with lockprovider.async_lock(url, validity=60):
        await lockprovider.async_lock(url, timeout=0.01)


async def not_acquired_by_a_task_from_a_thread(url):
    with lockprovider.lock(url, validity=60):
        await lockprovider.async_lock(url, timeout=0.01)


def broken(url):
    def ended(old):
        record = LockRecord.decode(old)
        return LockRecord("x", 1, expired=True, epoch=record.epoch, nonce="n", holder=HOLDER).encode()

    Store.from_url(url).update(HUDI_LOCK_PATH, ended)


def lost_by_a_thread(url):
    lease = lockprovider.lock(url).acquire()
    broken(url)
    with lockprovider.lock(url, validity=60):
        lease.publish("state/1", b"1")


async def lost_by_a_task(url):
    lease = await lockprovider.async_lock(url)
    broken(url)
    with lockprovider.lock(url, validity=60):
        await lease.publish("state/1", b"1")


@pytest.mark.parametrize(
    ("kind", "call"),
    [
        (NotAcquired, not_acquired_by_a_thread),
        (NotAcquired, not_acquired_by_a_task),
        (NotAcquired, not_acquired_by_a_task_from_a_thread),
        (LeaseLost, lost_by_a_thread),
        (LeaseLost, lost_by_a_task),
    ],
)
def test_lock_and_async_lock_raise_equal_messages(url, kind, call):
    with pytest.raises(kind) as caught:
        asyncio.run(call(url)) if inspect.iscoroutinefunction(call) else call(url)
    error, said = caught.value, str(caught.value)
    assert error.url == f"{url}/{HUDI_LOCK_PATH}"
    assert error.owner
    assert (error.holder.pid, error.holder.user) == (os.getpid(), ME)
    assert error.holder.since_ms < error.valid_until_ms
    assert error.valid_until_ms - error.holder.since_ms >= 60_000
    assert re.search(rf"held by {error.owner} .*since {ISO}\) until {ISO} \(in [\d.]+ s\)", said)
    assert said.endswith(kind.next_step.format(url=url))


def test_error_of_a_broken_lease_names_the_new_holder(url):
    first, second = lockprovider.lock(url), lockprovider.lock(url)
    lease = first.acquire()
    store = Store.from_url(url)
    record = LockRecord.decode(store.read(HUDI_LOCK_PATH).data)
    store.update(HUDI_LOCK_PATH, lambda _: LockRecord("x", 1, expired=True, epoch=record.epoch, nonce="n").encode())
    with second, pytest.raises(LeaseLost) as caught:
        lease.publish("state/1", b"1")
    error = caught.value
    assert error.reason in {LossReason.TAKEN_OVER, LossReason.BROKEN}
    assert error.url == f"{url}/{HUDI_LOCK_PATH}"
    assert str(error).endswith("stop the work and acquire the lock again; what was not published will never appear")
    assert error.holder is not None
    assert f"held by {second.owner}" in str(error)


def test_error_of_a_released_lease_says_that_it_was_released(url):
    with lockprovider.lock(url) as lease:
        pass
    with pytest.raises(LeaseLost, match="acquire the lock again") as caught:
        lease.check()
    assert (caught.value.reason, caught.value.url) == (LossReason.RELEASED, f"{url}/{HUDI_LOCK_PATH}")


def test_invalid_record_is_named_by_its_url(url):
    Store.from_url(url).put_if_absent(HUDI_LOCK_PATH, b"{}").unwrap()
    lock = lockprovider.lock(url)
    for call in (lock.acquire, lock.status):
        with pytest.raises(MalformedRecord, match="remove the object by hand") as caught:
            call()
        assert caught.value.url == f"{url}/{HUDI_LOCK_PATH}"
        assert url in str(caught.value)


@pytest.mark.parametrize("kind", [NotAcquired, LeaseLost, PublishUnknown, Unappliable])
def test_every_lock_error_names_lock_holder_times_and_next_step(kind):
    record = LockRecord("o-1", 1_795_311_856_909, expired=False, epoch=7, nonce="n", holder=HOLDER)
    error = kind("it came to nothing")
    add_details(error, "s3://b/t.json", record, 1_795_311_814_909)
    assert (error.url, error.holder, error.owner, error.valid_until_ms) == (
        "s3://b/t.json",
        HOLDER,
        "o-1",
        1795311856909,
    )
    assert str(error) == (
        "it came to nothing; the lock is s3://b/t.json, held by o-1 (ship, pid 42, user ann, nightly.py, "
        "since 2026-11-22T01:43:20.000Z) until 2026-11-22T01:44:16.909Z (in 42.0 s); "
        + kind.next_step.format(url="s3://b --on t.json")
    )
    again = pickle.loads(pickle.dumps(error))
    assert (type(again), str(again), again.url, again.holder) == (kind, str(error), error.url, HOLDER)


def test_lock_that_was_given_back_names_no_holder():
    error = LockError("no")
    add_details(error, "s3://b/t.json", LockRecord("o-1", 1, expired=True, holder=HOLDER), 2)
    assert (str(error), error.holder) == ("no; the lock is s3://b/t.json", None)


def test_record_has_user_and_command_in_a_field_that_hudi_drops():
    record = LockRecord("o-1", 5, expired=False, epoch=7, nonce="n", holder=HOLDER)
    fields = json.loads(record.encode())
    assert [fields.pop(name) for name in ("expired", "validUntil", "owner")] == [False, 5, "o-1"]
    assert fields["holder"] == {
        "host": "ship",
        "pid": 42,
        "since_ms": HOLDER.since_ms,
        "user": "ann",
        "command": "nightly.py",
    }
    assert LockRecord.decode(record.encode()) == record
    plain = Holder("ship", 42, 1)  # as 0.1 wrote it
    assert LockRecord.decode(LockRecord("o", 5, expired=False, holder=plain).encode()).holder == plain


@pytest.mark.parametrize(
    ("argv", "named"),
    [
        (["/opt/jobs/nightly.py", "--password=hush"], "nightly.py"),
        (["-c"], "python"),
        ([""], "python"),
        (["/usr/lib/lockprovider/__main__.py", "run"], "python -m lockprovider"),
        (["x" * 100], "x" * 60),
    ],
)
def test_command_is_a_name_without_its_arguments(monkeypatch, argv, named):
    monkeypatch.setattr("sys.argv", argv)
    assert client.command() == named


def test_user_without_a_name_is_a_number(monkeypatch):
    monkeypatch.setattr(os, "geteuid", lambda: 2**31 - 7)
    assert client.user() == str(2**31 - 7)
