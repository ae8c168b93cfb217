"""Ways in which other fsspec filesystems lose or overwrite data; each by its name, each seen to be closed here."""

from __future__ import annotations

import errno
import os
import threading
from concurrent.futures import ThreadPoolExecutor

import fsspec
import pytest

from filesystem.places import place
from fsspec_cas import AlreadyExists, Store, Unknown, VersionMismatch
from fsspec_cas.backends import local


def at_once(calls):
    """Run all from a barrier; what each gave or raised."""
    barrier = threading.Barrier(len(calls))

    def run(call):
        barrier.wait()
        try:
            return call()
        except AlreadyExists as lost:
            return lost

    with ThreadPoolExecutor(len(calls)) as pool:
        return list(pool.map(run, calls))


def winners(outcomes):
    return [n for n, outcome in enumerate(outcomes) if not isinstance(outcome, AlreadyExists)]


@pytest.mark.parametrize("name", ["seaweedfs", "ministack", "fake_gcs", "azurite", "local", "memory"])
def test_t40_empty_exclusive_file_does_not_truncate_existing_file(request, name):
    """s3fs touches the key, without a condition, when nothing was written."""
    at = place(request, name)
    fs, path = at.cas(), f"{at.folder}/a"
    late = fs.open(path, "xb")
    at.plain.pipe_file(path, b"theirs")
    with pytest.raises(AlreadyExists):
        fs.open(path, "xb")
    with pytest.raises(AlreadyExists):
        late.close()
    assert at.plain.cat_file(path) == b"theirs"
    with fs.open(f"{at.folder}/empty", "xb"):
        pass
    assert at.plain.size(f"{at.folder}/empty") == 0


def test_t41_local_put_file_with_mode_create_does_not_overwrite(tmp_path):
    """The local filesystem of fsspec ignores the mode."""
    source, target = tmp_path / "source", tmp_path / "target"
    source.write_bytes(b"mine")
    target.write_bytes(b"theirs")
    fs = fsspec.filesystem("cas", target_protocol="file")
    with pytest.raises(AlreadyExists):
        fs.put_file(str(source), str(target), mode="create")
    assert target.read_bytes() == b"theirs"


@pytest.mark.parametrize("name", ["local", "memory"])
def test_t42_exactly_one_of_many_concurrent_creates_wins(request, name):
    """The base class of fsspec looks, and then writes."""
    at = place(request, name)
    fs = at.cas()
    for n in range(25):
        path = f"{at.folder}/{n}"
        calls = [lambda who=who, path=path: fs.pipe_file(path, bytes([who]), mode="create") for who in range(16)]
        won = winners(at_once(calls))
        assert len(won) == 1
        assert fs.cat_file(path) == bytes(won)


@pytest.mark.parametrize("name", ["memory", "local"])
def test_t43_exclusive_file_is_not_seen_before_it_is_closed(request, name):
    """The memory filesystem of fsspec shows it while it is written, and its local one, too."""
    at = place(request, name)
    fs, path = at.cas(), f"{at.folder}/a"
    with fs.open(path, "xb") as file:
        file.write(b"half")
        file.flush()
        assert not fs.exists(path)
        assert not at.plain.exists(path)
    assert at.plain.cat_file(path) == b"half"


@pytest.mark.parametrize("name", ["local", "memory", "ministack", "azurite"])
def test_t44_one_of_many_exclusive_files_closed_at_once_wins(request, name):
    """OpenDAL's local service with a folder for atomic writes looks whether the target exists, and then renames."""
    at = place(request, name)
    fs = at.cas()
    for n in range(20 if name in ("local", "memory") else 2):
        path = f"{at.folder}/{n}"
        files = [fs.open(path, "xb") for _ in range(16)]
        for who, file in enumerate(files):
            file.write(bytes([who]))
        won = winners(at_once([file.close for file in files]))
        assert len(won) == 1
        assert at.plain.cat_file(path) == bytes(won)


@pytest.mark.parametrize("write", ["put_if_absent", "put_if_match", "open_exclusive"])
def test_t45_file_in_place_but_not_synced_is_not_reported_as_failed(tmp_path, monkeypatch, write):
    """object_store says that it could not rename, though others see the file already."""
    store = Store.from_url(str(tmp_path))
    first = store.put_if_absent("old", b"old").unwrap()
    real = local._sync_folder

    def broken(folder):
        assert os.path.samestat(os.stat(folder), tmp_path.stat())  # noqa: PTH116 - a path, or an open folder
        raise OSError(errno.EIO, "the disk has gone")

    monkeypatch.setattr(local, "_sync_folder", broken)
    if write == "put_if_absent":
        path, outcome = "new", store.put_if_absent("new", b"mine")
    elif write == "put_if_match":
        path, outcome = "old", store.put_if_match("old", b"mine", first)
    else:
        writer = store.open_exclusive("new", part_size=2)
        writer.write(b"mine")
        path, outcome = "new", writer.close()
    monkeypatch.setattr(local, "_sync_folder", real)
    assert isinstance(outcome, Unknown)
    assert "synced" in outcome.why
    assert (tmp_path / path).read_bytes() == b"mine"
    assert not [path for path in tmp_path.iterdir() if path.name.startswith(local.TEMPORARY_PREFIX)]


@pytest.mark.parametrize("name", ["fake_gcs", "azurite", "ministack"])
def test_t46_failed_match_is_not_reported_as_exists(request, name):
    """In gcsfs a refusal is always "exists": it makes every 412 a FileExistsError."""
    at = place(request, name)
    fs, path = at.cas(), f"{at.folder}/a"
    first = fs.put_if_absent(path, b"1")
    fs.put_if_match(path, b"2", first)
    with pytest.raises(VersionMismatch) as mismatch:
        fs.put_if_match(path, b"3", first)
    assert not isinstance(mismatch.value, FileExistsError)
    with pytest.raises(FileExistsError):
        fs.pipe_file(path, b"4", mode="create")
