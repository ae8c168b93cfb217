"""What a local file has besides its bytes, and what is no file: other programs' locks, links, pipes."""

from __future__ import annotations

import contextlib
import fcntl
import os
import stat
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from patience import said_at_once

from fsspec_cas import AsyncStore, Lost, NotSupported, ObjectNotFound, Store, StoreError, Unavailable, Won
from fsspec_cas.backends import local
from fsspec_cas.backends.local import TEMPORARY_PREFIX


@pytest.fixture
def store(tmp_path):
    return Store.from_url(str(tmp_path))


def start(program: str, *arguments: object) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-c", program, *map(str, arguments)]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)


@pytest.mark.parametrize("mode", [0o600, 0o644, 0o664, 0o640, 0o444, 0o755])
def test_file_that_is_replaced_keeps_its_mode(tmp_path, store, mode):
    version = store.put_if_absent("a", b"1").unwrap()
    (tmp_path / "a").chmod(mode)
    assert isinstance(store.put_if_match("a", b"2", version), Won)
    assert stat.S_IMODE((tmp_path / "a").stat().st_mode) == mode


def test_private_file_stays_private_while_it_is_replaced(tmp_path, store, monkeypatch):
    version = store.put_if_absent("a", b"1").unwrap()
    (tmp_path / "a").chmod(0o600)
    seen, real = [], local._sync_file

    def look(descriptor: int, mtime_ns: int) -> None:
        seen.append(stat.S_IMODE(os.fstat(descriptor).st_mode))
        real(descriptor, mtime_ns)

    monkeypatch.setattr(local, "_sync_file", look)
    store.put_if_match("a", b"2", version).unwrap()
    assert seen == [0o600]


def test_replaced_file_keeps_its_extended_attributes(tmp_path, store):
    version = store.put_if_absent("a", b"1").unwrap()
    try:
        os.setxattr(tmp_path / "a", "user.origin", b"here")
    except (OSError, AttributeError) as error:
        pytest.skip(f"no extended attributes here: {error}")
    store.put_if_match("a", b"2", version).unwrap()
    assert os.getxattr(tmp_path / "a", "user.origin") == b"here"


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may give a file away")
def test_replaced_file_keeps_its_owner_and_group(tmp_path, store):
    store.put_if_absent("a", b"1").unwrap()
    os.chown(tmp_path / "a", 12345, 23456)
    store.put_if_match("a", b"2", store.head("a").version).unwrap()
    now = (tmp_path / "a").stat()
    assert (now.st_uid, now.st_gid) == (12345, 23456)


def test_replace_succeeds_when_the_owner_cannot_be_kept(tmp_path, store, monkeypatch):
    def refuse(*_: object) -> None:
        raise PermissionError(1, "Operation not permitted")

    version = store.put_if_absent("a", b"1").unwrap()
    monkeypatch.setattr(local.os, "chown", refuse)
    assert isinstance(store.put_if_match("a", b"2", version), Won)


REPLACE = """
import sys
from fsspec_cas import Store, Version, Won
store, version = Store.from_url(sys.argv[1]), Version.parse(sys.argv[3])
print("ready", flush=True)
sys.stdin.read()
try:
    print(type(store.put_if_match(sys.argv[2], sys.argv[2].encode(), version)).__name__)
except Exception as error:
    print(type(error).__name__)
"""


def race(root: Path, names: list[str], version: object) -> list[str]:
    return said_at_once([start(REPLACE, root, name, version) for name in names])


def test_one_process_wins_when_many_replace_a_file_by_name_and_by_links(tmp_path, store):
    version = store.put_if_absent("real/a", b"start").unwrap()
    (tmp_path / "links").mkdir()
    (tmp_path / "links" / "b").symlink_to(tmp_path / "real" / "a")
    (tmp_path / "chain").symlink_to("links/b")
    (tmp_path / "folder").symlink_to("real", target_is_directory=True)
    said = race(tmp_path, ["real/a", "links/b", "chain", "folder/a"], version)
    assert sorted(said) == ["Lost", "Lost", "Lost", "Won"]
    assert (tmp_path / "links" / "b").is_symlink()
    winner = ["real/a", "links/b", "chain", "folder/a"][said.index("Won")].encode()
    assert store.read("real/a").data == store.read("links/b").data == winner


@pytest.mark.parametrize("target", ["link", "nowhere", "a/below a file", "x" * 300], ids=lambda target: target[:9])
def test_listing_leaves_out_links_that_lead_nowhere(tmp_path, store, target):
    store.put_if_absent("folder/a", b"1").unwrap()
    (tmp_path / "folder" / "link").symlink_to(target)
    assert [entry.path for entry in store.list("folder/")] == ["folder/a"]


def test_two_replaces_both_win_without_following_the_link(tmp_path, store, monkeypatch):
    """The wrong twin."""
    monkeypatch.setattr(local, "resolved", Path)
    version = store.put_if_absent("real/a", b"start").unwrap()
    (tmp_path / "b").symlink_to("real/a")
    assert isinstance(store.put_if_match("b", b"b", version), Won)
    assert isinstance(store.put_if_match("real/a", b"a", version), Won)


def test_file_with_hard_links_is_not_written_at_a_version(tmp_path, store):
    version = store.put_if_absent("a", b"start").unwrap()
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "b").hardlink_to(tmp_path / "a")
    assert race(tmp_path, ["a", "other/b"], version) == ["NotSupported"] * 2
    with pytest.raises(NotSupported, match="hard links"):
        store.delete_if_match("a", version)
    assert store.read("a").data == store.read("other/b").data == b"start"
    (tmp_path / "other" / "b").unlink()
    assert isinstance(store.put_if_match("a", b"mine", version), Won)


def test_leftover_of_killed_create_is_no_hard_link(tmp_path, store):
    version = store.put_if_absent("a", b"start").unwrap()
    (tmp_path / f"{TEMPORARY_PREFIX}left-behind").hardlink_to(tmp_path / "a")
    second = store.put_if_match("a", b"mine", version).unwrap()
    (tmp_path / f"{TEMPORARY_PREFIX}another").hardlink_to(tmp_path / "a")
    assert isinstance(store.delete_if_match("a", second), Won)


def test_create_through_dangling_link_makes_its_target(tmp_path, store):
    (tmp_path / "link").symlink_to("target")
    version = store.put_if_absent("link", b"1").unwrap()
    assert store.read("target").version == version
    assert isinstance(store.put_if_absent("target", b"2"), Lost)
    with store.open_exclusive("other") as writer:
        (tmp_path / "other").symlink_to("parts")
        writer.write(b"parts")
    assert store.read("parts").data == b"parts"


def test_link_is_not_deleted_at_its_targets_version(tmp_path, store):
    version = store.put_if_absent("a", b"1").unwrap()
    (tmp_path / "b").symlink_to("a")
    with pytest.raises(NotSupported, match="symbolic link"):
        store.delete_if_match("b", version)
    store.delete("b")
    assert store.read("a").data == b"1"


HOLD = """
import fcntl, os, sys
folder = os.open(sys.argv[1], os.O_RDONLY)
fcntl.flock(folder, fcntl.LOCK_EX)
print("held", flush=True)
sys.stdin.read()
"""


@contextlib.contextmanager
def locked_by_another_program(folder: Path):
    child = start(HOLD, folder)
    try:
        assert child.stdout is not None
        assert child.stdout.readline() == b"held\n"
        yield
    finally:
        child.kill()
        child.wait()


def test_timeout_holds_while_another_program_has_the_folder_lock(tmp_path, store):
    """It would be a hang otherwise: the other never lets go."""
    version = store.put_if_absent("a", b"1").unwrap()
    with locked_by_another_program(tmp_path):
        for call in (
            lambda: store.put_if_match("a", b"2", version, timeout=0.2),
            lambda: store.delete_if_match("a", version, timeout=0.2),
            lambda: store.update("a", lambda _: b"2", timeout=0.2),
        ):
            with pytest.raises(Unavailable, match="lock"):
                call()
        assert isinstance(store.put_if_absent("b", b"1", timeout=5), Won)  # creates need no lock
        assert store.read("a").data == b"1"
    assert isinstance(store.put_if_match("a", b"2", version), Won)


async def test_async_timeout_holds_while_another_program_has_the_folder_lock(tmp_path):
    store = AsyncStore.from_url(str(tmp_path))
    version = (await store.put_if_absent("a", b"1")).unwrap()
    with locked_by_another_program(tmp_path), pytest.raises(Unavailable, match="lock"):
        await store.put_if_match("a", b"2", version, timeout=0.2)


def test_folder_lock_is_acquired_once_another_program_releases_it(tmp_path, store):
    version = store.put_if_absent("a", b"1").unwrap()
    asked = threading.Event()
    folder = os.open(tmp_path, os.O_RDONLY)
    fcntl.flock(folder, fcntl.LOCK_EX)

    def write() -> object:
        asked.set()
        return store.put_if_match("a", b"2", version, timeout=60)

    with ThreadPoolExecutor(1) as pool:
        outcome = pool.submit(write)
        asked.wait()
        os.close(folder)
        assert isinstance(outcome.result(60), Won)


def test_pipe_is_no_object_and_blocks_no_caller(tmp_path, store):
    os.mkfifo(tmp_path / "pipe")
    version = store.put_if_absent("a", b"1").unwrap()
    for call in (
        lambda: store.read("pipe"),
        lambda: store.head("pipe"),
        lambda: store.read_if_changed("pipe", version),
        lambda: store.put_if_absent("pipe", b""),
        lambda: store.put_if_match("pipe", b"", version),
        lambda: store.delete_if_match("pipe", version),
        lambda: store.open_exclusive("pipe").close(),
    ):
        with pytest.raises(StoreError, match="pipe") as caught:
            call()
        assert not isinstance(caught.value, ObjectNotFound)
    assert [entry.path for entry in store.list("")] == ["a"]
