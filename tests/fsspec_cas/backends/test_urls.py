"""Which URL names which store."""

from __future__ import annotations

import fsspec
import pytest
from same_places import SAME_PLACE

import lockprovider
from fsspec_cas import AsyncStore, InvalidInput, InvalidUrl, NotSupported, Store, StoreError, check_url
from fsspec_cas.backends import backend_for, split_url
from lockprovider.table import Table

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
def test_url_names_a_backend_and_a_path_in_it(url, options, name, path):
    fs, root = split_url(url, options)
    assert (backend_for(fs).name, root) == (name, path)


def test_azure_account_is_taken_from_the_url():
    fs, _ = split_url("abfss://container@name.dfs.core.windows.net/a", KEY)
    assert fs.account_name == "name"


@pytest.mark.parametrize(
    ("url", "extra"),
    [("s3a://b/x", "s3"), ("gs://b/x", "gcs"), ("az://c/x", "azure"), ("wasbs://c@n.blob.core.windows.net/x", "azure")],
)
def test_missing_package_is_named_by_its_extra(url, extra, monkeypatch):
    def missing(*_: object, **__: object) -> None:
        raise ImportError("not installed")

    monkeypatch.setattr("fsspec.core.get_filesystem_class", missing)
    with pytest.raises(NotSupported, match=f"install the extra '{extra}' of fsspec-cas"):
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
    "/a/../b": "step '..', which no store resolves: write '/b'",
    "s3://bucket/../other": r"without '\.\.'",
    "memory://..": r"without '\.\.'",
    "/a/\0": "NUL",
}


@pytest.mark.parametrize(("url", "next_step"), MISTYPED.items())
def test_mistyped_url_is_refused_and_makes_no_local_folder(url, next_step, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InvalidUrl, match=next_step) as caught:
        Store.from_url(url)
    assert repr(url.removeprefix("cas::")) in str(caught.value).replace(repr(url), repr(url.removeprefix("cas::")))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("url", ["../x", "cas::../x", "y/../../x"])
def test_path_with_a_step_up_is_refused_with_the_path_to_write(url, tmp_path, monkeypatch):
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    with pytest.raises(InvalidUrl) as caught:
        Store.from_url(url)
    advised = str(caught.value).rpartition("write ")[2].strip("'")
    assert advised == str(tmp_path.resolve() / "x")
    assert Store.from_url(advised).url.endswith(advised)


@pytest.mark.parametrize(
    ("url", "advised"),
    [("~/../x", "/homes/x"), ("cas::~/y/../x", "/homes/me/x"), ("file:/a/../b", "/b"), ("local:/a/../b", "/b")],
)
def test_step_up_from_home_is_advised_with_the_path_it_means(url, advised, monkeypatch):
    monkeypatch.setenv("HOME", "/homes/me")
    with pytest.raises(InvalidUrl, match=f"write '{advised}'$"):
        Store.from_url(url)


def test_step_up_from_a_folder_that_is_gone_is_refused_as_others(tmp_path, monkeypatch):
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    (tmp_path / "here").rmdir()
    with pytest.raises(InvalidUrl, match=r"without '\.\.'"):
        Store.from_url("../x")


@pytest.mark.parametrize("url", [None, 5, b"s3://b/x"])
def test_url_that_is_no_text_is_refused(url):
    with pytest.raises(InvalidUrl, match="str"):
        Store.from_url(url)


@pytest.mark.parametrize(
    "url",
    [
        ".",
        "folder",
        "./s3:/bucket/x",
        "/a/b:c",
        "a/b:c",
        "~/x",
        "file:/a",
        "file:///a?b",
        "local:///a",
        "s3://b/a?b",
        "/",
    ],
)
def test_unusual_but_valid_urls_are_accepted(url):
    assert check_url(url) == url


def test_root_with_two_dots_is_refused():
    fs = fsspec.filesystem("memory")
    with pytest.raises(InvalidInput, match="without"):
        Store.from_filesystem(fs, "/unit-urls/../x")
    with pytest.raises(InvalidInput, match="without"):
        Store.from_filesystem(fs, "/unit-urls").below("../x")


@pytest.mark.parametrize(("url", "form"), SAME_PLACE.items())
def test_url_with_needless_slashes_and_dots_names_the_same_place(url, form):
    assert check_url(url) == form
    options = KEY if "abfss" in url else S3 if "s3:" in url else {}
    assert split_url(url, options)[1] == split_url(form, options)[1]
    assert Store.from_url(url, options).identity == Store.from_url(form, options).identity
    lock, same = (lockprovider.lock(one, storage_options=options) for one in (url, form))
    assert repr(lock) == repr(same)


POINT = "arn:aws:s3:eu-west-1:123456789012:accesspoint"
OUTPOST = "arn:aws:s3-outposts:eu-west-1:123456789012:outpost"


@pytest.mark.parametrize(
    ("url", "bucket", "host"),
    [
        (f"s3://{POINT}/mine/a", f"{POINT}:mine", "mine-123456789012.s3-accesspoint.eu-west-1.amazonaws.com"),
        (f"s3://{POINT}:mine/a", f"{POINT}:mine", "mine-123456789012.s3-accesspoint.eu-west-1.amazonaws.com"),
        (
            f"s3://{OUTPOST}/op-1/accesspoint/mine/a",
            f"{OUTPOST}:op-1:accesspoint:mine",
            "mine-123456789012.op-1.s3-outposts.eu-west-1.amazonaws.com",
        ),
    ],
)
async def test_access_point_stands_for_a_bucket(url, bucket, host):
    async with AsyncStore.from_url(url, {**S3, "client_kwargs": {"region_name": "eu-west-1"}}) as store:
        assert store.root == f"{bucket}/a"
        client = await store.backend._client()
        name, _, key = store.root.partition("/")
        signed = await client.generate_presigned_url("get_object", Params={"Bucket": name, "Key": key})
    assert signed.startswith(f"https://{host}/a?")
    with pytest.raises(NotSupported, match="access point"):
        Store.from_url(url, {"client": "obstore"})
    cas = fsspec.filesystem("cas", target_protocol="s3", **S3)
    assert cas._full_path(f"cas::{url}") == f"{bucket}/a"


def test_access_point_of_many_regions_is_no_chain_of_urls():
    url = "s3://arn:aws:s3::123456789012:accesspoint/mine.mrap/a"
    assert Store.from_url(url, S3).root == "arn:aws:s3::123456789012:accesspoint:mine.mrap/a"


def test_account_that_differs_between_url_and_options_is_refused():
    url = "abfss://container@name.dfs.core.windows.net/a"
    assert Store.from_url(url, {"account_name": "name", **KEY})
    with pytest.raises(InvalidInput, match="account_name.*differs between the URL and storage_options"):
        Store.from_url(url, {"account_name": "another", **KEY})


def test_root_with_needless_slashes_is_the_same_root():
    fs = fsspec.filesystem("memory")
    for root in ("/unit-urls/r", "/unit-urls//r/", "/unit-urls/./r", "//unit-urls/r/."):
        assert Store.from_filesystem(fs, root).root == "/unit-urls/r"
    assert Store.from_filesystem(fs, "/").below("a").root == "/a"


ODD = ["/a", "a//b", "./a", "a/./b", "a/.", "//a", " a", "a ", "a\n", "a\u3000", "a\ud800", "\udcff/a", "a//"]


@pytest.mark.parametrize("path", ODD)
@pytest.mark.parametrize("kind", ["memory", "local", "s3", "gs", "az", "obstore"])
def test_object_has_one_name_in_all_stores(kind, path, tmp_path):
    url, options = {
        "memory": ("memory://unit-urls/odd", {}),
        "local": (str(tmp_path), {}),
        "s3": ("s3://b/odd", {**S3, "endpoint_url": "http://127.0.0.1:1"}),
        "gs": ("gs://b/odd", {**ANON, "endpoint_url": "http://127.0.0.1:1"}),
        "az": ("az://c/odd", {"account_name": "n", **KEY}),
        "obstore": ("s3://b/odd", {"client": "obstore", "endpoint": "http://127.0.0.1:1"}),
    }[kind]
    store = Store.from_url(url, options)
    for call in (
        lambda: store.put_if_absent(path, b""),
        lambda: store.update(path, lambda _: b""),
        lambda: store.open_exclusive(path),
        lambda: store.read(path),
        lambda: store.head(path),
        lambda: store.delete(path),
        lambda: store.delete_all(["a", path]),
        lambda: lockprovider.Lock(store, path),
    ):
        with pytest.raises(InvalidInput, match="another store|blanks|surrogate") as caught:
            call()
        assert repr(path) in str(caught.value)


def test_object_name_with_blanks_and_special_characters_is_kept(tmp_path):
    store = Store.from_url(tmp_path)
    names = ["a b", "a/ b", "a /b", "é", "\U0001f600", "a%20b", "a+b", "a:b", "...", "a?b", "a#b", "a\tb"]
    for name in names:
        assert store.put_if_absent(name, name.encode()).unwrap()
    assert {entry.path: store.read(entry.path).data.decode() for entry in store.list("")} == {n: n for n in names}


@pytest.mark.parametrize("url", ["s3://b/t ", " s3://b/t", "/a/b\n", "s3://b/\ud800", "/a/\udcff"])
def test_url_with_outer_blanks_or_lone_surrogate_is_refused(url):
    with pytest.raises(InvalidUrl, match="blanks|surrogate"):
        lockprovider.LockProvider.from_config({"hoodie.base.path": url}, {})


NAMELESS = ["", "/", "//", ".", "./."]


@pytest.mark.parametrize("path", [*NAMELESS, "a/", "a\0b", "a/../b", None, b"a"])
@pytest.mark.parametrize("kind", ["memory", "local"])
def test_path_that_names_no_object_is_refused_for_writing(kind, path, tmp_path):
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
def test_path_that_names_no_object_is_refused_for_reading_and_deleting(path):
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


OPENERS = {
    "Store": lambda url, options: Store.from_url(url, storage_options=options),
    "AsyncStore": lambda url, options: AsyncStore.from_url(url, storage_options=options),
    "lock": lambda url, options: lockprovider.lock(url, storage_options=options),
    "LockProvider": lambda url, options: lockprovider.LockProvider.from_url(url, storage_options=options),
    "Table": lambda url, options: Table.open(url, storage_options=options),
    "Table.exists": lambda url, options: Table.exists(url, storage_options=options),
    "Queue": lambda url, options: lockprovider.queue.open(url, storage_options=options),
    "Wal": lambda url, options: lockprovider.wal.open(url, storage_options=options),
    "State": lambda url, options: lockprovider.state.open(url, storage_options=options),
    "Election": lambda url, options: lockprovider.election.open(url, storage_options=options),
    "TfLock": lambda url, options: lockprovider.state.TfLock.open(url, storage_options=options),
    "cas": lambda url, options: fsspec.open(f"cas::{url}", **options),
}
WRONG = {
    ("s3", "anonn"): "did you mean anon",
    ("s3", "encoding"): "unknown to S3FileSystem",  # fsspec's own functions drop it
    ("s3", "protocol"): "unknown to S3FileSystem",
    ("gs", "tokn"): "did you mean token",
    ("az", "acount_name"): "did you mean account_name",
    ("memory", "anon"): "unknown to MemoryFileSystem",
    ("file", "auto_mkdr"): "did you mean auto_mkdir",
}


@pytest.mark.parametrize("opener", OPENERS)
@pytest.mark.parametrize(("protocol", "name"), WRONG)
def test_unknown_storage_option_is_refused_by_every_way_to_open_a_store(opener, protocol, name):
    if opener == "cas" and name in ("encoding", "protocol"):
        pytest.skip("fsspec.open takes it for an argument of its own")
    with pytest.raises(InvalidInput, match=WRONG[protocol, name]):
        OPENERS[opener](f"{protocol}:///bucket/f" if protocol == "file" else f"{protocol}://bucket/f", {name: "x"})


@pytest.mark.parametrize("options", ["anon", ["anon"], 5])
def test_storage_options_that_are_not_a_mapping_are_refused(options):
    with pytest.raises(InvalidInput, match="must be a dict"):
        Store.from_url("s3://bucket/f", options)


def test_auto_mkdir_decides_whether_folders_are_made(tmp_path):
    for options in (None, {}, {"auto_mkdir": True}):
        folder = tmp_path / repr(options)
        assert Store.from_url(folder, options).put_if_absent("a/b", b"1").unwrap()
    store = Store.from_url(tmp_path / "not there", {"auto_mkdir": False})
    with pytest.raises(StoreError, match=r"the folder '.*not there/a' does not exist.*auto_mkdir=False"):
        store.put_if_absent("a/b", b"1")
    with pytest.raises(StoreError, match="auto_mkdir=False"), store.open_exclusive("a/b", part_size=1) as file:
        file.write(b"more than a part")
    assert not (tmp_path / "not there").exists()
    (tmp_path / "not there").mkdir()
    assert store.put_if_absent("b", b"1").unwrap()
