"""Which URL names which store."""

from __future__ import annotations

import fsspec
import pytest

from fsspec_cas import InvalidInput, InvalidUrl, NotSupported, Store, check_url
from fsspec_cas.backends import backend_for, split_url

KEY = {"account_key": "a2V5"}
ANON = {"token": "anon"}
S3 = {"key": "k", "secret": "s"}


@pytest.mark.parametrize(
    ("url", "options", "name", "path"),
    [
        ("memory://a/b", {}, "memory", "/a/b"),
        ("/a/b/", {}, "local", "/a/b"),
        ("file:///a/b", {}, "local", "/a/b"),
        ("cas::memory://a/b", {}, "memory", "/a/b"),
        ("s3://bucket/a/b/", S3, "s3", "bucket/a/b"),
        ("s3a://bucket/a", S3, "s3", "bucket/a"),
        ("s3n://bucket/a", S3, "s3", "bucket/a"),
        ("gs://bucket/a", ANON, "gcs", "bucket/a"),
        ("gcs://bucket/a", ANON, "gcs", "bucket/a"),
        ("az://container/a", {"account_name": "n", **KEY}, "azure", "container/a"),
        ("abfs://container/a", {"account_name": "n", **KEY}, "azure", "container/a"),
        ("abfs://container@name.dfs.core.windows.net/a", KEY, "azure", "container/a"),
        ("abfss://container@name.dfs.core.windows.net/a/b", KEY, "azure", "container/a/b"),
        ("wasbs://container@name.blob.core.windows.net/a/b", KEY, "azure", "container/a/b"),
    ],
)
def test_a_url_names_a_backend_and_a_path_in_it(url, options, name, path):
    fs, root = split_url(url, options)
    assert (backend_for(fs).name, root) == (name, path)


def test_an_azure_account_is_taken_from_the_url():
    fs, _ = split_url("abfss://container@name.dfs.core.windows.net/a", KEY)
    assert fs.account_name == "name"


@pytest.mark.parametrize(
    ("url", "extra"),
    [("s3a://b/x", "s3"), ("gs://b/x", "gcs"), ("az://c/x", "azure"), ("wasbs://c@n.blob.core.windows.net/x", "azure")],
)
def test_a_missing_package_is_named_by_its_extra(url, extra, monkeypatch):
    def missing(*_: object, **__: object) -> None:
        raise ImportError("not installed")

    monkeypatch.setattr("fsspec.core.url_to_fs", missing)
    with pytest.raises(NotSupported, match=rf"fsspec-cas\[{extra}\]"):
        split_url(url)


MISTYPED = {
    "": "s3://bucket/folder",
    "  ": "s3://bucket/folder",
    "cas::": "s3://bucket/folder",
    "s3:/bucket/x": "s3://bucket/x",
    "gs:/x": "gs://x",
    "s3:bucket": "s3://bucket",
    "cas::s3:/bucket/x": "s3://bucket/x",
    "C:\\x": "Windows",
    "C:/x": "Windows",
    "file:x": r"\./file:x",
    "file://folder/x": "file:///folder/x",
    "folder?timeout=10": "file:///",
    "/srv/folder?timeout=10": "file:///",
    "../x": r"without '\.\.'",
    "/a/../b": r"without '\.\.'",
    "s3://bucket/../other": r"without '\.\.'",
    "memory://..": r"without '\.\.'",
    "/a/\0": "NUL",
}


@pytest.mark.parametrize(("url", "next_step"), MISTYPED.items())
def test_a_mistyped_url_is_refused_and_makes_no_local_folder(url, next_step, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InvalidUrl, match=next_step) as caught:
        Store.from_url(url)
    assert repr(url.removeprefix("cas::")) in str(caught.value).replace(repr(url), repr(url.removeprefix("cas::")))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("url", [None, 5, b"s3://b/x"])
def test_what_is_no_text_is_no_url(url):
    with pytest.raises(InvalidUrl, match="str"):
        Store.from_url(url)


@pytest.mark.parametrize(
    "url",
    [".", "folder", "./s3:/bucket/x", "/a/b:c", "a/b:c", "~/x", "file:/a", "file:///a?b", "local:///a", "s3://b/a?b"],
)
def test_what_can_be_meant_is_left_alone(url):
    assert check_url(url) == url


def test_a_root_has_no_two_dots_either():
    fs = fsspec.filesystem("memory")
    with pytest.raises(InvalidInput, match="without"):
        Store.from_filesystem(fs, "/unit-urls/../x")
    with pytest.raises(InvalidInput, match="without"):
        Store.from_filesystem(fs, "/unit-urls").below("../x")


NAMELESS = ["", "/", "//", ".", "./."]


@pytest.mark.parametrize("path", [*NAMELESS, "a/", "a\0b", "a/../b", None, b"a"])
@pytest.mark.parametrize("kind", ["memory", "local"])
def test_nothing_is_written_to_what_names_no_object(kind, path, tmp_path):
    store = Store.from_url("memory://unit-urls/names" if kind == "memory" else str(tmp_path / "root"))
    version = store.put_if_absent("a", b"kept").unwrap()
    for call in (
        lambda: store.put_if_absent(path, b""),
        lambda: store.put_if_match(path, b"", version),
        lambda: store.open_exclusive(path),
        lambda: store.update(path, lambda _: b""),
    ):
        with pytest.raises(InvalidInput):
            call()
    assert store.read("a").data == b"kept"
    assert [entry.path for entry in store.list("")] == ["a"]
    store.delete("a")


@pytest.mark.parametrize("path", NAMELESS)
def test_nor_is_it_read_or_deleted(path):
    store = Store.from_url("memory://unit-urls/reads")
    version = store.put_if_absent("a", b"kept").unwrap()
    for call in (
        lambda: store.read(path),
        lambda: store.head(path),
        lambda: store.read_if_changed(path, version),
        lambda: store.delete(path),
        lambda: store.delete_all(["a", path]),
        lambda: store.delete_if_match(path, version),
    ):
        with pytest.raises(InvalidInput):
            call()
    assert store.read("a").data == b"kept"
    store.delete("a")


def test_storage_options_go_by_name_too(tmp_path) -> None:
    assert Store.from_url(tmp_path / "f", auto_mkdir=True).put_if_absent("a/b", b"1").unwrap()
    both = Store.from_url("s3://bucket/f", {"anon": True, "key": "no"}, key="me")
    assert both.place == Store.from_url("s3://bucket/f", {"anon": True, "key": "me"}).place
    assert both.place != Store.from_url("s3://bucket/f", anon=True, key="no").place
    with pytest.raises(InvalidInput, match="did you mean anon"):
        Store.from_url("s3://bucket/f", anonn=True)
