"""S3 servers that others run in earnest: what they keep, and what is refused on those that do not."""

from __future__ import annotations

import pytest
from servers.over_obstore import OverObstore

import lockprovider
from conformance.suite import AmongProcesses, Conformance, ManyObjects, OverTheNetwork, Target
from fsspec_cas import NotSupported, Store, Unknown, require_safe_for_locks
from fsspec_cas.probe.checks import THOROUGH
from fsspec_cas.probe.probe import probe
from fsspec_cas.probe.proof import _PROVED

pytestmark = pytest.mark.stores

NO_DELETE = "the condition of a DELETE is ignored, so there is none"
WHOSE = "204 to a DELETE of nothing: who removed an object cannot be told"
DELETES = (
    *("test_delete_at_the_right_version_wins", "test_conditional_delete_loses_when_no_object_exists"),
    "test_delete_at_a_stale_version_loses_and_removes_nothing",
)


def target_of(server):
    options = server.storage_options
    wrong = {
        "credentials": (server.new_prefix(), {**options, "secret": "wrong-wrong"}),
        "bucket": ("s3://no-such-bucket-here/x", options),
        "endpoint": (server.new_prefix(), server.options_for("http://127.0.0.1:1")),
    }
    return Target(server.new_prefix(), options, wrong)


class TestMinio(Conformance, ManyObjects, AmongProcesses, OverTheNetwork):
    contenders = 8
    holes = {
        **dict.fromkeys(DELETES, NO_DELETE),
        "test_backend_refuses_a_delete_at_a_stale_version": NO_DELETE,
        "test_exactly_one_of_concurrent_delete_and_replace_wins": NO_DELETE,
        "test_missing_bucket_is_bucket_not_found[head]": "a HEAD has no body that could name the bucket",
    }

    @pytest.fixture
    def target(self, minio):
        return target_of(minio)


class TestVersity(Conformance, ManyObjects, AmongProcesses, OverTheNetwork):
    contenders = 8
    holes = {
        "test_delete_at_the_right_version_wins": WHOSE,
        "test_missing_bucket_is_bucket_not_found[head]": "a HEAD has no body that could name the bucket",
    }
    chance_holes = {
        "test_exactly_one_of_concurrent_delete_and_replace_wins": WHOSE,
        "test_read_returns_bytes_and_version_of_the_same_write": "bytes may be newer than the version",
    }

    @pytest.fixture
    def target(self, versity):
        return target_of(versity)


KNOWN = {
    "minio": ({"delete refused": "no", "delete nothing": "skipped"}, True),
    "versity": ({}, True),
}


@pytest.mark.parametrize("name", KNOWN)
def test_probe_reports_known_behavior_of_server(name, request):
    server = request.getfixturevalue(name)
    report = probe(server.new_prefix(), server.storage_options, checks=THOROUGH)
    wrong, locks = KNOWN[name]
    assert {one.name: one.state for one in report.findings if one.state not in ("yes", "known")} == wrong
    assert report.verdict.locks == locks


def test_minio_is_safe_for_locks_and_unsafe_for_terraform_lock_files(minio):
    url, options = minio.new_prefix(), minio.storage_options
    with lockprovider.lock(url, storage_options=options) as lease:
        lease.check()
    store = Store.from_url(url, options)
    version = store.put_if_absent("a", b"mine").unwrap()
    store.put_if_match("a", b"theirs", version).unwrap()
    with pytest.raises(NotSupported, match="tombstone"):
        store.delete_if_match("a", version)
    assert store.read("a").data == b"theirs"
    with pytest.raises(NotSupported, match="ignores the condition"):
        lockprovider.state.TfLock.open(f"{url}/network.tfstate", storage_options=options).acquire()
    assert minio.raw_head(f"{url}/network.tfstate.tflock").status == 404


def test_concurrent_deletes_on_versity_never_report_a_win(versity):
    store = Store.from_url(versity.new_prefix(), versity.storage_options)
    version = store.put_if_absent("a", b"mine").unwrap()
    assert isinstance(store.delete_if_match("a", version), Unknown)
    lock = lockprovider.state.TfLock(store, "network.tfstate")
    assert lock.unlock(lock.acquire())


@pytest.mark.parametrize("client", [None, OverObstore])
def test_s3proxy_on_local_files_is_refused_because_two_writers_win(s3proxy, client):
    """Seen in 60 of 60 tries."""
    server = client(s3proxy) if client else s3proxy
    for _ in range(3):
        _PROVED.clear()
        with pytest.raises(NotSupported, match="at once"):
            require_safe_for_locks(Store.from_url(server.new_prefix(), server.storage_options))
