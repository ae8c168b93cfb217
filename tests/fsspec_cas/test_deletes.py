"""A delete at a version is offered where the store was seen to keep the condition, and says no more than it knows."""

from __future__ import annotations

import uuid

import fsspec
import pytest

import lockprovider
from fsspec_cas import (
    ABSENT,
    AccessDenied,
    AsyncStore,
    InvalidInput,
    Lost,
    NotSupported,
    OutcomeUnknown,
    Store,
    Unavailable,
    Unknown,
    Version,
    Won,
    require_safe_for_locks,
)
from fsspec_cas.answer import Applied, NoAnswer
from fsspec_cas.backends.memory import MemoryBackend
from fsspec_cas.probe.probe import probe
from fsspec_cas.testing import ManualClock


class Undocumented(MemoryBackend):
    """What speaks S3 and is right; each instance is a store of its own."""

    name = "s3"

    def __init__(self, at="http://127.0.0.1"):
        super().__init__(fsspec.filesystem("memory"))
        self.at, self.asked = f"{at}/{uuid.uuid4().hex}" if "127" in at else at, []

    async def endpoint(self):
        return self.at

    async def put(self, write, data, *, timeout_s):
        self.asked.append(("put", write.path))
        return await super().put(write, data, timeout_s=timeout_s)

    async def delete(self, path, condition, *, timeout_s):
        self.asked.append(("delete", path))
        return await super().delete(path, condition, timeout_s=timeout_s)


class DropsCondition(Undocumented):
    """As MinIO and Ceph do."""

    async def delete(self, path, condition, *, timeout_s):
        return await super().delete(path, None, timeout_s=timeout_s)


class SaysDoneOfNothing(Undocumented):
    """As Versity Gateway and S3 directory buckets do."""

    async def delete(self, path, condition, *, timeout_s):
        answer = await super().delete(path, condition, timeout_s=timeout_s)
        return Applied(None) if self._version(path) is None else answer


class RefusesAllDeletes(Undocumented):
    async def delete(self, path, condition, *, timeout_s):
        if condition is not None:
            raise NotSupported("501 NotImplemented")
        return await super().delete(path, condition, timeout_s=timeout_s)


class SilentOnDeletes(Undocumented):
    async def delete(self, path, condition, *, timeout_s):
        return NoAnswer("503") if condition is not None else await super().delete(path, condition, timeout_s=timeout_s)


def store_of(backend, folder="f"):
    return Store(backend, f"bucket-{uuid.uuid4().hex}/{folder}")


def test_undocumented_store_is_checked_once_for_conditional_deletes():
    backend = Undocumented()
    store = store_of(backend)
    for n in range(3):
        version = store.put_if_absent(f"a{n}", b"1").unwrap()
        assert store.delete_if_match(f"a{n}", version) == Won(version)
    tried = [(verb, path) for verb, path in backend.asked if "cas-probe" in path]
    assert [verb for verb, _ in tried] == ["put", "delete", "delete", "delete"]
    assert store.list("") == []


@pytest.mark.parametrize("kind", [DropsCondition, RefusesAllDeletes])
def test_store_that_ignores_the_condition_has_no_conditional_delete(kind):
    backend = kind()
    store = store_of(backend)
    version = store.put_if_absent("a", b"1").unwrap()
    asked = []
    for _ in range(2):
        with pytest.raises(NotSupported, match=r"/a' cannot be deleted at a version.*tombstone"):
            store.delete_if_match("a", version)
        asked.append(len(backend.asked))
    assert asked[0] == asked[1]
    assert [entry.path for entry in store.list("")] == ["a"]


async def test_async_store_checks_for_conditional_deletes_too():
    store = AsyncStore(DropsCondition(), f"bucket-{uuid.uuid4().hex}")
    version = (await store.put_if_absent("a", b"1")).unwrap()
    with pytest.raises(NotSupported, match="tombstone"):
        await store.delete_if_match("a", version)
    assert (await store.read("a")).data == b"1"


def test_check_for_conditional_deletes_runs_in_the_folder_of_the_object():
    backend = Undocumented()
    store = Store(backend)
    version = store.put_if_absent("bucket/folder/a", b"1").unwrap()
    assert store.delete_if_match("bucket/folder/a", version) == Won(version)
    assert {path.rpartition("/")[0] for _, path in backend.asked} == {"bucket/folder"}


@pytest.mark.parametrize("call", [Store.require_conditional_delete, require_safe_for_locks, probe])
def test_test_of_a_store_without_a_bucket_is_refused(call):
    backend = Undocumented()
    with pytest.raises(InvalidInput, match="no root"):
        call(Store(backend))
    assert backend.asked == []


@pytest.mark.parametrize("call", [Store.require_conditional_delete, require_safe_for_locks])
def test_store_without_a_bucket_that_needs_no_test_is_accepted(call):
    call(Store(MemoryBackend(fsspec.filesystem("memory"))))
    amazon = Undocumented("https://s3.eu-west-1.amazonaws.com")
    call(Store(amazon))
    assert amazon.asked == []


@pytest.mark.parametrize("root", ["bucket-{}/f", "bucket-{}--x-s3/f"])
def test_delete_is_unknown_on_store_that_reports_success_for_missing_object(root):
    """Two deleters of one version were both told that they won."""
    at = "https://s3.amazonaws.com" if "x-s3" in root else "http://127.0.0.1"
    store = Store(SaysDoneOfNothing(at), root.format(uuid.uuid4().hex))
    version = store.put_if_absent("a", b"1").unwrap()
    outcome = store.delete_if_match("a", version)
    assert isinstance(outcome, Unknown)
    assert "this call or another one" in outcome.why
    assert store.read_or_none("a") is None
    assert isinstance(store.resolve(outcome), Unknown)
    with pytest.raises(OutcomeUnknown):
        outcome.unwrap()
    assert isinstance(store.delete_if_match("a", version), Lost)  # it looks first


def test_amazon_is_trusted_without_a_check_for_conditional_deletes():
    backend = Undocumented("https://s3.eu-central-1.amazonaws.com")
    store = store_of(backend)
    version = store.put_if_absent("a", b"1").unwrap()
    assert store.delete_if_match("a", version) == Won(version)
    assert not [path for _, path in backend.asked if "cas-probe" in path]


class SlowDeletes(Undocumented):
    def __init__(self, clock):
        super().__init__()
        self.clock = clock

    async def delete(self, path, condition, *, timeout_s):
        self.clock.advance(min(20, timeout_s))
        answer = NoAnswer("silent")
        return await super().delete(path, condition, timeout_s=timeout_s) if timeout_s > 20 else answer


def test_check_for_conditional_deletes_ends_within_the_timeout():
    clock = ManualClock()
    store = Store(SlowDeletes(clock), f"bucket-{uuid.uuid4().hex}", world=clock)
    version = store.put_if_absent("a", b"1").unwrap()
    begun_s = clock.now_s
    with pytest.raises(Unavailable, match="did not show what it does"):
        store.delete_if_match("a", version, timeout=50)
    assert clock.now_s - begun_s <= 50


class ForbidsDeletes(Undocumented):
    async def delete(self, path, condition, *, timeout_s):
        raise AccessDenied("403 AccessDenied", path=path)


def test_check_for_conditional_deletes_without_permission_is_access_denied():
    store = store_of(ForbidsDeletes())
    version = store.put_if_absent("a", b"1").unwrap()
    with pytest.raises(AccessDenied):
        store.delete_if_match("a", version)
    assert store.read("a").data == b"1"


class RefusesCreates(Undocumented):
    async def put(self, write, data, *, timeout_s):
        if write.condition == ABSENT:
            raise NotSupported("501 NotImplemented: If-None-Match")
        return await super().put(write, data, timeout_s=timeout_s)


def test_store_without_creates_is_not_said_to_ignore_the_condition_of_a_delete():
    backend = RefusesCreates()
    store = store_of(backend)
    for _ in range(2):
        with pytest.raises(NotSupported, match="If-None-Match"):
            store.delete_if_match("a", Version(backend.name, '"1"'))
    assert not [path for verb, path in backend.asked if verb == "delete"]


def test_silent_store_is_checked_again_at_the_next_delete():
    store = store_of(SilentOnDeletes())
    version = store.put_if_absent("a", b"1").unwrap()
    for _ in range(2):
        with pytest.raises(Unavailable, match="did not show"):
            store.delete_if_match("a", version)
    assert store.read("a").data == b"1"


@pytest.mark.parametrize("kind", [Undocumented, DropsCondition])
def test_locks_need_no_conditional_delete(kind):
    backend = kind()
    require_safe_for_locks(store_of(backend))
    assert len(backend.asked) == 2 + 1 + 2 * (8 + 16) + 9  # and four looks


def test_terraform_lock_is_refused_on_store_where_it_could_not_be_released():
    store = store_of(DropsCondition())
    lock = lockprovider.state.TfLock(store, "network.tfstate")
    with pytest.raises(NotSupported, match=r"cannot be deleted at a version"):
        lock.acquire()
    assert store.list("") == []
    store.put_if_absent("network.tfstate.tflock", b'{"ID": "theirs"}').unwrap()
    with pytest.raises(NotSupported, match="tombstone"):
        lock.unlock(lock.shown())
    assert lock.shown().id == "theirs"


def test_terraform_lock_is_released_where_deletes_are_unconfirmed():
    lock = lockprovider.state.TfLock(store_of(SaysDoneOfNothing()), "network.tfstate")
    assert lock.unlock(lock.acquire())
    assert lock.shown() is None


class GivesNoSign(Undocumented):
    """As stores whose 204 could be anybody's: that it is gone is all that can be known."""

    async def delete(self, path, condition, *, timeout_s):
        answer = await super().delete(path, condition, timeout_s=timeout_s)
        return NoAnswer("204 that anybody could have sent") if isinstance(answer, Applied) else answer


def test_delete_with_ambiguous_answer_is_unknown():
    store = store_of(GivesNoSign())
    version = store.put_if_absent("a", b"1").unwrap()
    assert isinstance(store.delete_if_match("a", version), Unknown)
    assert store.read_or_none("a") is None
