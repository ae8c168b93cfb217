"""Staging, preparing and applying a publish; applying may be repeated by anybody."""

from __future__ import annotations

import random
from dataclasses import replace
from unittest import mock

import fsspec
import pytest

from fsspec_cas import AlreadyExists, ObjectNotFound, Store
from fsspec_cas.backends.memory import MemoryBackend
from fsspec_cas.outcome import Write
from fsspec_cas.testing import DeliverLate, DeliverTwice, Faulty, LoseAnswer, ManualClock
from lockprovider import Lock, LockError, Pending
from lockprovider.storage_lock import driver
from lockprovider.storage_lock.driver import apply, prepare
from lockprovider.storage_lock.record import LockRecord, digest


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def backend(clock: ManualClock) -> Faulty:
    return Faulty(MemoryBackend(fsspec.filesystem("memory", skip_instance_cache=True)), {}, world=clock)


@pytest.fixture
def store(backend: Faulty, clock: ManualClock, request: pytest.FixtureRequest) -> Store:
    return Store(backend, f"/publish/{request.node.name}", world=clock)


def staged(store: Store, data: bytes = b"data") -> Pending:
    with mock.patch.object(driver, "_ENCLOSED", 0):
        return enclosed(store, data)


def enclosed(store: Store, data: bytes = b"data") -> Pending:
    return Lock(store, "locks/table.json", world=ManualClock()).stage("state/7", data)


def discard(store: Store, pending: Pending) -> None:
    Lock(store).unstage(pending)


def ample() -> float:
    return 60.0


def test_staging_writes_next_to_the_lock_and_not_at_the_path(store: Store) -> None:
    pending = staged(store)
    assert store.read(pending.staged).data == b"data"
    assert pending.staged.startswith("locks/staged/00000000-")
    with pytest.raises(ObjectNotFound):
        store.read("state/7")


def test_applying_again_changes_nothing(store: Store) -> None:
    pending = staged(store)
    apply(store, pending, None, ample)
    version = store.head("state/7").version
    apply(store, pending, None, ample)
    apply(store, pending, b"data", ample)
    discard(store, pending)
    apply(store, pending, None, ample)
    assert store.head("state/7").version == version
    assert store.read("state/7").data == b"data"


@pytest.mark.parametrize("fault", [LoseAnswer(), DeliverTwice(), DeliverLate(calls=2)], ids=repr)
def test_applying_through_a_bad_network_ends_with_the_object_there_once(
    store: Store, backend: Faulty, clock: ManualClock, fault: LoseAnswer
) -> None:
    pending = staged(store)
    faulty = Faulty(backend.inner, {"put": [fault]}, world=clock)
    apply(Store(faulty, store.root, world=clock), pending, None, ample)
    assert faulty.fired == [("put", fault)]
    assert store.read("state/7").data == b"data"


def test_foreign_object_at_the_path_is_an_error_that_says_so_and_stays(store: Store) -> None:
    pending = staged(store)
    store.put_if_absent("state/7", b"foreign").unwrap()
    with pytest.raises(LockError, match="its path holds an object with digest .*; a program changed it"):
        apply(store, pending, None, ample)
    with pytest.raises(AlreadyExists, match="state/7"):
        prepare(store, pending, None, ample)
    assert store.read("state/7").data == b"foreign"


def test_apply_without_staged_copy_and_object_is_an_error(store: Store) -> None:
    pending = staged(store)
    discard(store, pending)
    with pytest.raises(LockError, match="its bytes are gone"):
        apply(store, pending, None, ample)
    with pytest.raises(LockError, match="no object is staged at .*: stage it again"):
        prepare(store, pending, None, ample)


def test_prepare_returns_the_bytes_also_when_the_object_exists(store: Store) -> None:
    pending = staged(store)
    assert prepare(store, pending, None, ample) == b"data"
    apply(store, pending, None, ample)
    discard(store, pending)
    assert prepare(store, pending, None, ample) == b"data"


def test_staged_bytes_that_are_not_the_promised_ones_are_refused(store: Store) -> None:
    pending = replace(staged(store), digest=digest(b"other"))
    with pytest.raises(LockError, match="do not have the digest"):
        prepare(store, pending, None, ample)


def test_small_bytes_are_enclosed_in_the_record(store: Store) -> None:
    pending = enclosed(store, b"data" * 1000)
    record = LockRecord("me", 5, expired=False, nonce="n", pending=pending)
    read = LockRecord.decode(record.encode())
    assert read == record
    assert read.pending is not None
    apply(store, read.pending, None, ample)
    discard(store, read.pending)
    assert store.read("state/7").data == b"data" * 1000
    assert [entry.path for entry in store.list("")] == ["state/7"]
    assert prepare(store, read.pending, None, ample) == b"data" * 1000


def test_large_bytes_are_not_enclosed_in_the_record(store: Store) -> None:
    assert enclosed(store, random.Random(1).randbytes(10_000)).data is None


def test_enclosed_bytes_that_are_not_the_promised_ones_are_not_written(store: Store) -> None:
    pending = enclosed(store)
    with pytest.raises(LockError, match="enclosed for 'state/7' do not have the digest"):
        apply(store, replace(pending, data=b"other"), None, ample)
    assert store.list("") == []


def pair(data: bytes = b"data") -> Pending:
    return replace(Pending.of_bytes("state/7", data), first=Pending.of_bytes("listing/7", b"listing"))


@pytest.mark.parametrize("data", [b"data", None], ids=["its maker", "the next holder"])
def test_first_part_of_a_publish_is_written_first_by_any_client(
    store: Store, backend: Faulty, data: bytes | None
) -> None:
    put, seen = backend.inner.put, []

    async def watched(write: Write, *args: object, **more: object) -> object:
        seen.append(write.path.rpartition("publish/")[2].partition("/")[2])
        return await put(write, *args, **more)  # type: ignore[arg-type]

    backend.inner.put = watched  # type: ignore[method-assign,assignment]
    apply(store, pair(), data, ample)
    assert seen == ["listing/7", "state/7"]
    apply(store, pair(), None, ample)
    assert seen == ["listing/7", "state/7"], "what is there is there as a whole"
    assert store.read("listing/7").data == b"listing"


def test_failed_first_part_of_a_publish_blocks_the_rest(store: Store) -> None:
    store.put_if_absent("listing/7", b"foreign").unwrap()
    with pytest.raises(LockError, match="its path holds an object with digest"):
        apply(store, pair(), b"data", ample)
    with pytest.raises(ObjectNotFound):
        store.read("state/7")
