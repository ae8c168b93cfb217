"""`rm(if_match=)`, `cp(if_absent=True)` and the versions in listings, on every store."""

from __future__ import annotations

import uuid

import fsspec
import pytest

from filesystem.places import STORES, place
from fsspec_cas import AlreadyExists, InvalidInput, Store, VersionMismatch


@pytest.fixture(params=STORES)
def at(request):
    return place(request, request.param)


def test_listed_version_of_each_file_works_as_a_condition(at):
    fs, folder = at.cas(), at.folder
    written = {f"{folder}/{name}": str(fs.put_if_absent(f"{folder}/{name}", b"1")) for name in ("a", "b", "c/d")}
    listed = {one["name"]: one.get("version") for one in fs.ls(folder, detail=True) if one["type"] == "file"}
    assert listed == {name: version for name, version in written.items() if not name.endswith("d")}
    found = fs.find(folder, detail=True)
    assert {name: one["version"] for name, one in found.items()} == written
    assert sorted(fs.find(folder)) == sorted(written)
    assert f"{folder}/a" in fs.ls(folder, detail=False)
    newer = fs.put_if_match(f"{folder}/a", b"two", found[f"{folder}/a"]["version"])
    assert fs.find(folder, detail=True)[f"{folder}/a"]["version"] == str(newer)


def test_rm_at_a_version_removes_the_file_once(at):
    fs, path = at.cas(), f"{at.folder}/a"
    first = fs.put_if_absent(path, b"one")
    second = fs.put_if_match(path, b"second", first)
    for call in (fs.rm, fs.rm_file):
        with pytest.raises(VersionMismatch, match="nothing was changed"):
            call(path, if_match=first)
    assert fs.cat_file(path) == b"second"
    with at.deletes():
        fs.rm(f"cas://{path}", if_match=str(second))
    assert not fs.exists(path)
    third = fs.put_if_absent(path, b"three")
    with at.deletes():
        fs.rm_file(path, if_match=third)
    assert not fs.exists(path)


def test_exclusive_copy_keeps_content_type_and_metadata(at):
    fs, path = at.cas(), f"{at.folder}/a"
    kept = fs.cas_backend.attribute_rules.keeps
    given = {"content_type": "text/x-a", "metadata": {"who": "me"}} if kept else {}
    fs.put_if_absent(path, b"one", **given)
    fs.cp(path, f"{at.folder}/b", if_absent=True)
    assert fs.cat_file(f"{at.folder}/b") == b"one"
    seen = Store.from_filesystem(at.plain).head(f"{at.folder}/b")
    if kept:
        assert (seen.content_type, seen.metadata) == (given["content_type"], given["metadata"])
    fs.pipe_file(path, b"another")
    for call in (fs.cp, fs.copy, fs.cp_file):
        with pytest.raises(AlreadyExists):
            call(path, f"{at.folder}/b", if_absent=True)
    assert fs.cat_file(f"{at.folder}/b") == b"one"
    with pytest.raises(FileNotFoundError):
        fs.cp_file(f"{at.folder}/never", f"{at.folder}/c", if_absent=True)


def test_folder_is_copied_file_by_file(at):
    fs, folder = at.cas(), at.folder
    fs.pipe({f"{folder}/from/a": b"1", f"{folder}/from/b/c": b"2"})
    fs.cp(f"{folder}/from/", f"{folder}/to/", recursive=True, if_absent=True)
    assert {name.removeprefix(f"{folder}/"): fs.cat_file(name) for name in fs.find(f"{folder}/to")} == {
        "to/a": b"1",
        "to/b/c": b"2",
    }
    with pytest.raises(AlreadyExists):
        fs.cp(f"{folder}/from/", f"{folder}/to/", recursive=True, if_absent=True)


def test_rm_and_cp_without_a_condition_are_those_of_the_target(at):
    fs, folder = at.cas(), at.folder
    fs.pipe({f"{folder}/a": b"1", f"{folder}/d/b": b"2"})
    fs.cp(f"{folder}/a", f"{folder}/d/b")
    assert fs.cat_file(f"{folder}/d/b") == b"1"
    fs.rm_file(f"{folder}/a")
    fs.rm(f"{folder}/d", recursive=True)
    assert not fs.exists(f"{folder}/d/b")


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda fs, at: fs.rm(f"{at}/a", recursive=True, if_match="memory:1"), "one by one"),
        (lambda fs, at: fs.rm([f"{at}/a"], if_match="memory:1"), "one by one"),
        (lambda fs, at: fs.rm(f"{at}/a", True, if_match="memory:1"), "one by one"),
        (lambda fs, at: fs.cp_file(f"{at}/a", f"{at}/b", if_absent=True, ACL="x"), "ACL"),
    ],
)
def test_condition_on_more_than_one_object_is_refused(call, words):
    fs, at = fsspec.filesystem("cas", target_protocol="memory"), f"/conditions/{uuid.uuid4().hex}"
    fs.pipe_file(f"{at}/a", b"1")
    with pytest.raises(InvalidInput, match=words):
        call(fs, at)
    assert fs.find(at) == [f"{at}/a"]


@pytest.mark.parametrize("name", ["seaweedfs", "azurite"])
async def test_coroutines_take_the_same_conditions(request, name):
    at = place(request, name)
    fs = at.cas_of_this_loop()
    path = f"{at.folder}/a"
    first = await fs._put_if_absent(path, b"one", content_type="text/x-a")
    assert [one["version"] for one in await fs._ls(at.folder, detail=True)] == [str(first)]
    assert (await fs._find(at.folder, detail=True))[path]["version"] == str(first)
    await fs._cp_file(path, f"{at.folder}/b", if_absent=True)
    with pytest.raises(AlreadyExists):
        await fs._cp_file(path, f"{at.folder}/b", if_absent=True)
    second = await fs._put_if_match(path, b"second", first)
    with pytest.raises(VersionMismatch):
        await fs._rm_file(path, if_match=first)
    await fs._rm(path, if_match=second)
    assert not await fs._exists(path)
