"""The provider in Hudi's shape, the settings in Hudi's words and in a URL's, and the lock on any path."""

from __future__ import annotations

import asyncio
import copy
import json
import os
import pickle
import subprocess
import sys
import threading
import uuid
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from servers.azurite import Azurite

import lockprovider
from fsspec_cas import CasError, InvalidUrl, NotSupported, Store
from fsspec_cas.backends import Backend
from fsspec_cas.backends.s3 import is_amazon
from fsspec_cas.outcome import Write
from lockprovider import (
    HUDI_LOCK_PATH,
    AsyncLock,
    InvalidSettings,
    LeaseLost,
    Lock,
    LockError,
    LockProvider,
    LockSettings,
    MalformedRecord,
    NotAcquired,
    NotPicklable,
)
from lockprovider.settings import from_config
from lockprovider.table import Table, TableSpec
from lockprovider.table.transaction.transaction import transact

VALIDITY = "hoodie.write.lock.storage.validity.timeout.secs"
RENEW = "hoodie.write.lock.storage.renew.interval.secs"
OLDER = "hoodie.write.lock.storage.heartbeat.poll.secs"
WAIT = "hoodie.write.lock.wait_time_ms"
PAUSE = "hoodie.write.lock.wait_time_ms_between_retry"


def settings_of(**config: object) -> LockSettings:
    provider = LockProvider.from_config({"hoodie.base.path": "memory://t/able"} | config)
    return provider._lock.settings


def refusal(config: dict[str, object]) -> str:
    with pytest.raises(InvalidSettings) as refused:
        LockProvider.from_config({"hoodie.base.path": "memory://t/able"} | config)
    return str(refused.value)


# -- Hudi's words ------------------------------------------------------------------------------------------------------


def test_config_with_only_the_base_path_has_the_defaults_of_hudi() -> None:
    settings = settings_of()
    assert (settings.validity, settings.renew, settings.timeout, settings.poll) == (300, 30, 60, 1)


def test_hudis_keys_are_read_as_text_and_as_numbers_in_their_own_units() -> None:
    settings = settings_of(**{VALIDITY: "60", RENEW: 6, WAIT: "2500", PAUSE: 250})
    assert (settings.validity, settings.renew, settings.timeout, settings.poll) == (60, 6, 2.5, 0.25)


def test_unrelated_keys_of_a_writer_config_are_ignored() -> None:
    rest = {
        "hoodie.table.name": "trips",
        "hoodie.write.lock.client.num_retries": "3",
        "hoodie.write.concurrency.mode": "optimistic_concurrency_control",
        "hoodie.write.lock.provider": "org.apache.hudi.client.transaction.lock.StorageBasedLockProvider",
    }
    assert settings_of(**rest) == LockSettings()


@pytest.mark.parametrize("base", [None, "", "  ", 7])
def test_provider_needs_a_base_path(base: object) -> None:
    with pytest.raises(InvalidSettings, match="hoodie.base.path"):
        LockProvider.from_config({} if base is None else {"hoodie.base.path": base})


@pytest.mark.parametrize(
    ("config", "parts"),
    [
        ({VALIDITY: 20, RENEW: 3}, [f"{VALIDITY}=20", f"10 x {RENEW}=3"]),
        ({VALIDITY: 299}, [f"{VALIDITY}=299", f"{RENEW}=30 (the default)"]),
        ({RENEW: 31}, [f"{VALIDITY}=300 (the default)", f"{RENEW}=31"]),
        ({OLDER: 31}, [f"{VALIDITY}=300 (the default)", f"{OLDER}=31"]),
        ({VALIDITY: 20, OLDER: 3}, [f"{VALIDITY}=20", f"{OLDER}=3"]),
        ({RENEW: 6, OLDER: 5}, [f"{RENEW}=6", f"{OLDER}=5", "disagree"]),
        ({VALIDITY: 9, RENEW: 0}, [f"{VALIDITY}=9", "at least 10 seconds"]),
        ({RENEW: 0}, [f"{RENEW}=0", "at least 1 seconds"]),
        ({VALIDITY: "5m"}, [f"{VALIDITY}='5m'", "whole number of seconds"]),
        ({VALIDITY: "300.5"}, [f"{VALIDITY}='300.5'", "whole number of seconds"]),
        ({VALIDITY: "nan"}, [f"{VALIDITY}='nan'"]),
        ({VALIDITY: "inf"}, [f"{VALIDITY}='inf'"]),
        ({VALIDITY: True}, [f"{VALIDITY}=True"]),
        ({VALIDITY: None}, [f"{VALIDITY}=None"]),
        ({WAIT: "soon"}, [f"{WAIT}='soon'", "whole number of milliseconds"]),
        ({WAIT: -1}, [f"{WAIT}=-1", "below zero"]),
        ({PAUSE: 0}, [f"{PAUSE}=0", "above zero"]),
        ({f"{VALIDITY}s": 20}, [f"{VALIDITY}s", "no setting", VALIDITY, RENEW, OLDER]),
        ({"hoodie.write.lock.provider": "a.b.ZookeeperBasedLockProvider"}, ["ZookeeperBased", "StorageBasedLock"]),
    ],
    ids=str,
)
def test_impossible_config_is_refused_naming_settings_and_values(config: dict[str, object], parts: list[str]) -> None:
    said = refusal(config)
    for part in parts:
        assert part in said


def test_both_names_of_the_renewal_may_be_given_if_they_agree() -> None:
    assert settings_of(**{RENEW: 6, OLDER: "6"}).renew == 6
    assert settings_of(**{OLDER: "6"}).renew == 6


def test_hadoop_form_of_a_local_folder_names_that_folder(tmp_path: Path) -> None:
    with LockProvider.from_config({"hoodie.base.path": f"file:{tmp_path}"}) as provider:
        assert provider.try_lock()
        assert (tmp_path / HUDI_LOCK_PATH).exists()


# -- options behind a URL ----------------------------------------------------------------------------------------------


def test_options_may_stand_behind_a_url() -> None:
    lock = lockprovider.lock("memory://t/able?validity=60&renew=2.5&timeout=0&poll=0.5&on=jobs/nightly.json")
    assert lock.settings == LockSettings(validity=60, renew=2.5, timeout=0, poll=0.5)
    assert lock.path == "jobs/nightly.json"
    assert lockprovider.lock("memory://t/able?check_store=false").settings == LockSettings(check_store=False)
    assert lockprovider.lock("memory://t/able?check_store=true").settings == LockSettings()


@pytest.mark.parametrize("query", ["validity=10.6", "validity=10.7&renew=1.07"])
def test_ten_renewals_in_a_validity_are_accepted_whatever_the_rounding(query: str) -> None:
    settings = lockprovider.lock(f"memory://t/able?{query}").settings
    assert settings.renew == pytest.approx(settings.validity / 10)


def test_url_without_options_has_the_defaults() -> None:
    for url in ("memory://t/able", "memory://t/able?"):
        assert (lockprovider.lock(url).settings, lockprovider.lock(url).path) == (LockSettings(), HUDI_LOCK_PATH)


@pytest.mark.parametrize(
    ("query", "parts"),
    [
        ("valid=300", ["'valid'", "validity", "renew", "timeout", "poll", "on"]),
        ("validity=300&validity=300", ["twice"]),
        ("validity=", ["validity=''", "number of seconds"]),
        ("validity", ["validity=''"]),
        ("validity=20&renew=30", ["validity=20", "10 x renew=30"]),
        ("validity=5&renew=0.5", ["validity=5", "at least 10 seconds"]),
        ("renew=0.5", ["renew=0.5", "at least 1 seconds"]),
        ("timeout=-1", ["timeout=-1", "below zero"]),
        ("check_store=maybe", ["check_store='maybe'", "true or false"]),
        ("on=", ["on=''", "jobs/nightly.json"]),
    ],
)
def test_options_that_do_not_fit_are_refused_by_name(query: str, parts: list[str]) -> None:
    with pytest.raises(InvalidSettings) as refused:
        lockprovider.lock(f"memory://t/able?{query}")
    for part in parts:
        assert part in str(refused.value)


@pytest.mark.parametrize(
    ("settings", "renew"), [(None, 90), (LockSettings(600), 90), (LockSettings(600, renew=30), 30)], ids=str
)
def test_new_validity_keeps_an_own_renewal_interval(settings: LockSettings | None, renew: float) -> None:
    assert lockprovider.lock("memory://t/able", settings=settings, validity=900).settings.renew == renew


def test_plain_path_with_apparent_options_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidUrl, match="bare path"):
        lockprovider.lock(str(tmp_path / "table?validity=60"))
    assert list(tmp_path.iterdir()) == []


def test_url_and_the_arguments_may_not_contradict_each_other() -> None:
    with pytest.raises(InvalidSettings, match="contradicts"):
        lockprovider.lock("memory://t/able?validity=60&renew=5", settings=LockSettings())
    with pytest.raises(InvalidSettings, match=r"'b.json'.*'a.json'"):
        lockprovider.lock("memory://t/able?on=a.json", on="b.json")
    agreed = LockSettings(validity=60, renew=5)
    assert lockprovider.lock("memory://t/able?validity=60&renew=5", settings=agreed).settings == agreed


# -- any object path ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("on", ["lock.json", "path/of/lock.json"])
def test_any_path_can_be_the_lock_and_publishes_go_below_the_url(tmp_path: Path, on: str) -> None:
    with lockprovider.lock(str(tmp_path), on=on) as lease:
        assert json.loads((tmp_path / on).read_bytes())["owner"] == lease.owner
        lease.publish("state/1", b"done")
        with pytest.raises(NotAcquired), lockprovider.lock(str(tmp_path), on=on, timeout=0):
            pass
        with lockprovider.lock(str(tmp_path), on="another.json", timeout=0):
            pass
    assert (tmp_path / "state" / "1").read_bytes() == b"done"
    left = {str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*") if path.is_file()}
    assert left == {on, "another.json", "state/1"}


@pytest.mark.parametrize("on", ["", "/lock.json", "a//b.json", "folder/", "../lock.json", "a/./b"])
def test_path_that_is_no_object_below_the_url_is_refused(on: str) -> None:
    with pytest.raises(InvalidSettings, match="below the URL"):
        lockprovider.lock("memory://t/able", on=on)


def test_lock_at_the_root_of_a_bucket_publishes_on_a_real_server(seaweedfs) -> None:
    url, options = seaweedfs.new_prefix(), seaweedfs.storage_options
    with lockprovider.lock(url, on="lock.json", storage_options=options) as lease:
        lease.publish("state/1", b"done")
    assert [e.path for e in Store.from_url(url, options).list("")] == ["lock.json", "state/1"]


# -- the provider ------------------------------------------------------------------------------------------------------


@pytest.fixture
def provider(tmp_path: Path) -> LockProvider:
    return LockProvider.from_url(str(tmp_path))


def other(tmp_path: Path) -> LockProvider:
    """Another client, as another process would be; its heartbeat ends with the tests."""
    return LockProvider.from_url(str(tmp_path))


def test_try_lock_returns_whether_it_acquired_and_unlock_releases(provider: LockProvider, tmp_path: Path) -> None:
    assert provider.get_lock() is None
    assert provider.try_lock(1)
    assert not other(tmp_path).try_lock()
    assert not other(tmp_path).try_lock(0.05)
    provider.unlock()
    assert other(tmp_path).try_lock()


def test_get_lock_is_the_record_in_the_store_while_it_is_held(provider: LockProvider, tmp_path: Path) -> None:
    assert provider.try_lock()
    mine = provider.get_lock()
    assert mine is not None
    there = json.loads((tmp_path / HUDI_LOCK_PATH).read_bytes())
    assert (there["owner"], there["validUntil"], there["expired"]) == (mine.owner, mine.valid_until_ms, False)
    provider.unlock()
    assert provider.get_lock() is None


def test_inner_unlock_does_not_free_the_outer_try_lock(provider: LockProvider, tmp_path: Path) -> None:
    assert provider.try_lock()
    assert provider.try_lock()
    provider.unlock()
    assert not other(tmp_path).try_lock()
    provider.unlock()
    assert other(tmp_path).try_lock()


def test_unlock_without_a_lock_does_nothing(provider: LockProvider) -> None:
    provider.unlock()
    assert provider.try_lock()
    provider.unlock()
    provider.unlock()


def test_only_the_thread_that_took_it_may_unlock_it(provider: LockProvider, tmp_path: Path) -> None:
    assert provider.try_lock()
    said: list[str] = []

    def meddle() -> None:
        with pytest.raises(LockError, match="release it in that thread") as refused:
            provider.unlock()
        said.append(str(refused.value))

    thread = threading.Thread(target=meddle)
    thread.start()
    thread.join()
    assert threading.current_thread().name in said[0]
    assert not other(tmp_path).try_lock()
    provider.close()


def test_unlock_reports_a_lost_lock_and_a_new_one_can_be_acquired(provider: LockProvider, tmp_path: Path) -> None:
    assert provider.try_lock()
    path = tmp_path / HUDI_LOCK_PATH
    Store.from_url(str(tmp_path)).update(HUDI_LOCK_PATH, lambda old: _owned_by_another(old or b""))
    lease = provider.lease
    assert lease is not None
    assert not lease.renew()
    assert provider.get_lock() is None
    with pytest.raises(LeaseLost):
        provider.try_lock()
    with pytest.raises(LeaseLost, match="taken over"):
        provider.unlock()
    assert json.loads(path.read_bytes())["owner"] == "another"
    assert provider.try_lock()
    provider.close()


def _owned_by_another(data: bytes) -> bytes:
    return json.dumps(json.loads(data) | {"owner": "another", "validUntil": 0}).encode()


def test_close_releases_the_lock_and_ends_the_provider(tmp_path: Path) -> None:
    with LockProvider.from_url(str(tmp_path)) as provider:
        assert provider.try_lock()
        assert provider.try_lock()
    assert other(tmp_path).try_lock()
    provider.close()
    provider.unlock()
    with pytest.raises(LockError, match="closed"):
        provider.try_lock()


def test_garbage_at_the_lock_path_is_an_error_and_not_a_held_lock(provider: LockProvider, tmp_path: Path) -> None:
    Store.from_url(str(tmp_path)).put_if_absent(HUDI_LOCK_PATH, b"{}")
    with pytest.raises(MalformedRecord):
        provider.try_lock()


def test_url_that_cannot_be_opened_is_an_error_of_the_store() -> None:
    with pytest.raises(CasError):
        LockProvider.from_url("ftp://a/b")


# -- stores that have to prove themselves ------------------------------------------------------------------------------


class Asked:
    """A backend that notes what it is asked for."""

    blocking = False

    def __init__(self, inner: Backend) -> None:
        self.inner = inner
        self.name, self.capabilities = inner.name, inner.capabilities
        self.asked: list[tuple[str, str]] = []
        self.looked_for: list[str] = []

    async def endpoint(self) -> str:
        self.looked_for.append("endpoint")
        return await self.inner.endpoint()  # type: ignore[attr-defined,no-any-return]

    def __getattr__(self, name: str) -> Any:
        request = getattr(self.inner, name)
        if name not in ("put", "get", "head", "delete"):
            return request

        async def send(path: str | Write, *args: Any, **kwargs: Any) -> Any:
            self.asked.append((name, path.path if isinstance(path, Write) else path))
            return await request(path, *args, **kwargs)

        return send


@pytest.fixture
def bucket(seaweedfs):
    """A bucket that no lock was ever kept in."""
    name = f"fresh-{uuid.uuid4().hex[:8]}"
    assert seaweedfs.raw("PUT", name).ok
    return f"s3://{name}"


def asked_of(url: str, options: dict[str, Any]) -> tuple[Store, Asked]:
    inner = Store.from_url(url, options)
    backend = Asked(inner.backend)
    return Store(backend, inner.root), backend


def test_first_lock_in_a_bucket_runs_the_store_check_once(seaweedfs, bucket: str) -> None:
    store, backend = asked_of(f"{bucket}/one", seaweedfs.storage_options)
    with Lock(store).acquire():
        pass
    proof, lock = backend.asked[:-3], backend.asked[-3:]
    assert Counter(name for name, _ in proof) == {
        "put": 3 + 6 * 8,
        "head": 4,
    }
    assert {path.rpartition("/")[0] for _, path in proof} == {f"{bucket.removeprefix('s3://')}/one/.hoodie/.locks"}
    assert [name for name, _ in lock] == ["get", "put", "put"]
    assert [entry.path for entry in store.list("")] == [HUDI_LOCK_PATH]

    another, backend = asked_of(f"{bucket}/two", seaweedfs.storage_options)
    lock = Lock(another)
    for cycle in range(2):
        with lock.acquire():
            pass
        assert len(backend.asked) <= 3 * (cycle + 1), "the bucket had been proved"
    assert backend.looked_for == ["endpoint"], "a client looks once"


def test_store_that_ignores_conditions_is_refused_before_locking(negative_s3) -> None:
    url, options = negative_s3.new_prefix(), negative_s3.storage_options
    with pytest.raises(NotSupported, match="is not safe for locks: .* not refused"):
        lockprovider.lock(url, storage_options=options).acquire()
    assert negative_s3.raw_head(f"{url}/{HUDI_LOCK_PATH}").status == 404


def test_check_can_be_left_out(negative_s3) -> None:
    url, options = negative_s3.new_prefix(), negative_s3.storage_options
    with lockprovider.lock(f"{url}?check_store=false", storage_options=options):
        assert negative_s3.raw_head(f"{url}/{HUDI_LOCK_PATH}").status == 200


def test_no_table_is_made_in_a_store_that_ignores_conditions(negative_s3) -> None:
    url, options = negative_s3.new_prefix(), negative_s3.storage_options
    spec = TableSpec("t", pa.schema([("id", pa.int64())]), record_keys=("id",))
    with pytest.raises(NotSupported, match="is not safe for locks"):
        Table.create(url, spec, storage_options=options)
    assert negative_s3.raw_head(f"{url}/.hoodie/hoodie.properties").status == 404


def test_table_is_checked_before_its_first_transaction_and_not_again(seaweedfs, bucket: str) -> None:
    schema = pa.schema([("id", pa.int64())])
    options = seaweedfs.storage_options
    Table.create(f"{bucket}/made", TableSpec("t", schema, record_keys=("id",)), storage_options=options)
    store, backend = asked_of(f"{bucket}/made", options)
    table = Table(store, f"{bucket}/made", storage_options=options)
    for _ in range(2):
        transact(table, lambda txn: txn.add(()))
    assert not [path for _, path in backend.asked if "cas-probe" in path]


@pytest.mark.parametrize(
    ("endpoint", "expected"),
    [
        ("https://s3.amazonaws.com", True),
        ("https://s3.eu-central-1.amazonaws.com", True),
        ("https://s3.cn-north-1.amazonaws.com.cn", True),
        ("https://bucket.vpce-1a2b.s3.us-east-1.vpce.amazonaws.com", True),
        ("https://s3.amazonaws.com.example.org", False),
        ("https://notamazonaws.com", False),
        ("http://127.0.0.1:8333", False),
        ("", False),
    ],
)
def test_only_amazons_own_endpoints_need_no_proof(endpoint: str, expected: bool) -> None:
    assert is_amazon(endpoint) is expected


def test_s3_url_without_endpoint_means_amazon_and_is_not_checked() -> None:
    options = {"key": "k", "secret": "s", "client_kwargs": {"region_name": "eu-central-1"}}
    store, backend = asked_of("s3://bucket/table", options)
    Lock(store).require_safe_store()
    assert backend.asked == []


@pytest.mark.parametrize("kind", ["memory", "local"])
def test_memory_and_local_disk_are_not_checked(kind: str, tmp_path: Path) -> None:
    store, backend = asked_of(str(tmp_path) if kind == "local" else f"memory://{uuid.uuid4().hex}", {})
    Lock(store).require_safe_store()
    assert backend.asked == []


# -- other processes ---------------------------------------------------------------------------------------------------


def test_pickled_lock_or_provider_is_another_client_of_the_same_lock(tmp_path: Path) -> None:
    lock = lockprovider.lock(f"file://{tmp_path}?validity=60&renew=5&on=a/lock.json")
    provider = LockProvider.from_config({"hoodie.base.path": str(tmp_path)})
    for _ in range(2):  # fresh, and used and given back
        other, another = pickle.loads(pickle.dumps(lock)), pickle.loads(pickle.dumps(provider))
        assert (other.path, other.settings) == (lock.path, lock.settings)
        assert len({other.owner, lock.owner, copy.copy(lock).owner}) == 3
        with lock.acquire(), pytest.raises(NotAcquired, match=lock.owner):
            other.acquire(0)
        other.acquire(0).release()
        assert provider.try_lock()
        assert not another.try_lock()
        provider.unlock()
        assert another.try_lock()
        another.unlock()


def test_held_lock_cannot_be_pickled_and_the_error_says_what_to_do(tmp_path: Path) -> None:
    lock = lockprovider.lock(str(tmp_path))
    with lock.acquire() as lease:
        for thing in (lease, lock):
            for try_it in (pickle.dumps, copy.copy, copy.deepcopy):
                with pytest.raises(NotPicklable, match="release the lock first|acquire the lock where"):
                    try_it(thing)
        lease.check()
    with LockProvider.from_url(str(tmp_path)) as provider:
        assert provider.try_lock()
        with pytest.raises(TypeError, match="release the lock first"):
            pickle.dumps(provider)
    with pytest.raises(NotPicklable):
        pickle.dumps(lease)


def test_objects_of_an_event_loop_cannot_be_pickled(tmp_path: Path) -> None:
    async def use() -> None:
        lock = AsyncLock(Store.from_url(str(tmp_path)))
        async with lock.acquire() as lease:
            for thing in (lock, lease):
                with pytest.raises(NotPicklable, match="event loop"):
                    pickle.dumps(thing)

    asyncio.run(use())


FORKED = """
import os, sys
import lockprovider
from lockprovider import LeaseLost, LockProvider
provider = LockProvider.from_url(sys.argv[1])
assert provider.try_lock()
lease = provider.lease
lock = lockprovider.lock(sys.argv[1])
owner = lock.owner
child = os.fork()
if child == 0:
    try:
        lease.check()
    except LeaseLost as lost:
        print(lost.reason.name)
    print(provider.get_lock(), provider.try_lock(), lock.owner != owner, flush=True)
    provider.unlock()
    provider.close()
    sys.exit(0)
os.waitpid(child, 0)
provider.lease.check()
print(provider.lease.renew(), provider.get_lock().owner == provider.lease.owner)
provider.unlock()
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
def test_forked_child_of_a_provider_holds_and_frees_nothing(tmp_path: Path) -> None:
    done = subprocess.run([sys.executable, "-c", FORKED, str(tmp_path)], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == ["FORKED", "None False True", "True True"]


def test_azure_keys_of_hudi_give_the_stores_credentials(azurite: Azurite) -> None:
    url = azurite.new_prefix()
    config = {
        "hoodie.base.path": url,
        "hoodie.write.lock.azure.connection.string": azurite.storage_options["connection_string"],
    }
    provider = LockProvider.from_config(config)
    assert provider.try_lock()
    provider.unlock()
    assert config["hoodie.write.lock.azure.connection.string"] not in repr(provider)


def test_azure_keys_of_hudi_are_storage_options() -> None:
    given = {
        "hoodie.base.path": "abfss://box@account.dfs.core.windows.net/t",
        "hoodie.write.lock.azure.client.tenant.id": "tenant",
        "hoodie.write.lock.azure.client.id": "me",
        "hoodie.write.lock.azure.client.secret": "secret",
        "hoodie.write.lock.azure.sas.token": "",
        "hoodie.write.lock.azure.connection.string": None,
    }
    options = from_config(given)
    assert options.storage_options == {"tenant_id": "tenant", "client_id": "me", "client_secret": "secret"}
    assert "secret" not in repr(options)
    assert from_config(given | {"hoodie.base.path": "s3://bucket/t"}).storage_options == {}


def test_azure_keys_of_hudi_are_refused_when_no_store_is_opened() -> None:
    with pytest.raises(InvalidSettings, match="storage_options"):
        LockSettings.from_hudi({"hoodie.write.lock.azure.sas.token": "x"})
