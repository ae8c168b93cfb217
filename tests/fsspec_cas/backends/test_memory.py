"""What is particular to memory; the rest is the conformance suite."""

from __future__ import annotations

import fsspec
import pytest

from fsspec_cas import ABSENT, Lost, Store, StoreError, Won
from fsspec_cas.backends.memory import MemoryBackend
from fsspec_cas.bridge.drive import Inline
from fsspec_cas.machine import Machine
from fsspec_cas.outcome import Write


@pytest.fixture
def root(request):
    return f"/unit-memory/{request.node.name}"


@pytest.fixture
def fs():
    return fsspec.filesystem("memory")


@pytest.fixture
def store(fs, root):
    return Store.from_filesystem(fs, root)


def test_plain_fsspec_code_and_store_see_each_others_writes(store, fs, root):
    store.put_if_absent("a", b"by cas")
    assert fs.cat_file(f"{root}/a") == b"by cas"
    fs.pipe_file(f"{root}/b", b"by fsspec")
    assert store.read("b").data == b"by fsspec"


def test_plain_write_of_equal_bytes_makes_a_new_version(store, fs, root):
    version = store.put_if_absent("a", b"same").unwrap()
    fs.pipe_file(f"{root}/a", b"same")
    assert isinstance(store.put_if_match("a", b"mine", version), Lost)


def test_plain_append_makes_a_new_version(store, fs, root):
    version = store.put_if_absent("a", b"one").unwrap()
    with fs.open(f"{root}/a", "ab") as file:
        file.write(b" two")
    assert store.read("a").data == b"one two"
    assert isinstance(store.put_if_match("a", b"mine", version), Lost)


def test_plain_write_carries_no_identity(store, fs, root):
    fs.pipe_file(f"{root}/a", b"")
    assert store.head("a").write_id is None
    outcome = store.put_if_match("a", b"", store.head("a").version)
    assert isinstance(outcome, Won)
    assert store.head("a").write_id is not None


def test_two_backends_of_one_process_share_objects_and_versions(store, fs, root):
    version = store.put_if_absent("a", b"1").unwrap()
    other = Store(MemoryBackend(fs), root)
    assert other.head("a").version == version
    assert isinstance(other.put_if_match("a", b"2", version), Won)


def test_versions_are_not_reused_after_a_removal(store):
    first = store.put_if_absent("a", b"same").unwrap()
    store.delete("a")
    assert store.put_if_absent("a", b"same").unwrap() != first


def test_part_of_a_finished_upload_is_a_store_error(fs, root):
    backend, run = MemoryBackend(fs), Inline(Machine()).run
    upload = run(backend.begin(Write(f"{root}/a", ABSENT, "id"), timeout_s=1))
    run(backend.finish(upload, b"1", timeout_s=1))
    with pytest.raises(StoreError, match="gone; write it again"):
        run(backend.add(upload, b"2", timeout_s=1))
