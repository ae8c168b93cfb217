"""Arguments, modes and settings: passed on, or refused; never left out without a word."""

from __future__ import annotations

import pickle
import uuid

import fsspec
import pytest

from filesystem.places import place
from fsspec_cas import AlreadyExists, InvalidInput, Lost, NotSupported, ObjectNotFound, Store, StoreError, Unknown, Won
from fsspec_cas.backends.memory import MemoryBackend
from fsspec_cas.testing import Faulty, LoseAnswer, LoseRequest, ManualClock

MIB = 1 << 20
KEY = {"SSECustomerAlgorithm": "AES256", "SSECustomerKey": "0" * 32}


@pytest.fixture(params=["memory", "ministack", "fake_gcs", "azurite"])
def at(request):
    return place(request, request.param)


# Of each kind of store: what an exclusive write takes besides its bytes, and what no such write is given.
TAKEN = {
    "memory": {"content_type": "text/x-a", "metadata": {"who": "me"}},
    "ministack": {"ContentType": "text/x-a", "Metadata": {"who": "me"}, "CacheControl": "no-store"},
    "fake_gcs": {"contentType": "text/x-a", "metadata": {"who": "me"}, "cacheControl": "no-store"},
    "azurite": {"content_type": "text/x-a", "metadata": {"who": "me"}, "tags": {"a": "b"}},
}


def exclusive_writes(at, tmp_path, more):
    fs, path = at.cas(), f"{at.folder}/a"
    (tmp_path / "a").write_bytes(b"mine")
    return fs, {
        "pipe_file": lambda: fs.pipe_file(f"{path}1", b"mine", mode="create", **more),
        "pipe": lambda: fs.pipe({f"{path}2": b"mine"}, mode="create", **more),
        "put_file": lambda: fs.put_file(str(tmp_path / "a"), f"{path}3", mode="create", **more),
        "put": lambda: fs.put(str(tmp_path / "a"), f"{path}4", mode="create", **more),
        "xb": lambda: fs.open(f"{path}5", "xb", **more).close(),
        "x": lambda: fs.open(f"{path}6", "x", **more).close(),
        "put_if_absent": lambda: fs.put_if_absent(f"{path}7", b"mine", **more),
    }


def test_exclusive_write_keeps_its_arguments(request, at, tmp_path):
    fs, calls = exclusive_writes(at, tmp_path, TAKEN[request.node.callspec.params["at"]])
    for number, call in enumerate(calls.values(), 1):
        call()
        seen = fs.store.head(f"{at.folder}/a{number}")
        assert (seen.content_type, seen.metadata) == ("text/x-a", {"who": "me"})
        assert seen.write_id is not None


@pytest.mark.parametrize("argument", ["contentType_", "ACl", "taging", "SSECustomerKeys", "chunksize"])
def test_exclusive_write_refuses_an_argument_that_it_cannot_pass_on(at, argument, tmp_path):
    fs, calls = exclusive_writes(at, tmp_path, {argument: "x"})
    for call in calls.values():
        with pytest.raises(InvalidInput, match=argument):
            call()
    assert fs.find(at.folder) == []


async def test_async_exclusive_write_refuses_an_argument_that_it_cannot_pass_on():
    fs = fsspec.filesystem("cas", target_protocol="s3", target_options={"anon": True}, asynchronous=True)
    with pytest.raises(InvalidInput, match="did you mean ACL"):
        await fs._pipe_file("b/a", b"mine", mode="create", acl="private")


@pytest.mark.parametrize(
    ("more", "error", "words"),
    [
        ({"content_type": "text"}, InvalidInput, "content_type='text'"),
        ({"content_type": 5}, InvalidInput, "content_type=5"),
        ({"content_type": "a/b", "ContentType": "a/b"}, InvalidInput, "say the same"),
        ({"metadata": "x"}, InvalidInput, "metadata='x'"),
        ({"metadata": {"Who": "me"}}, InvalidInput, "'Who'"),
        ({"metadata": {"who": "mé"}}, InvalidInput, "printable ASCII"),
        ({"metadata": {"who": 5}}, InvalidInput, "metadata\\['who'\\]=5"),
        ({"metadata": {"cas-id": "x"}}, InvalidInput, "identity"),
        ({"SSECustomerKey": "k"}, NotSupported, "s3_additional_kwargs"),
    ],
)
def test_invalid_attributes_are_refused_before_any_request(more, error, words):
    store = Store.from_url("s3://bucket/a", {"key": "k", "secret": "s", "endpoint_url": "http://127.0.0.1:1"})
    for call in (store.put_if_absent, lambda path, data, **how: store.put_if_match(path, data, 's3:"e"', **how)):
        with pytest.raises(error, match=words):
            call("a", b"", **more)
    with pytest.raises(error, match=words):
        store.open_exclusive("a", **more)


def test_resolved_write_is_sent_with_the_same_attributes():
    clock = ManualClock()
    fs = fsspec.filesystem("memory")
    backend = Faulty(MemoryBackend(fs), {"put": [LoseRequest()], "head": [LoseAnswer()] * 9}, world=clock)
    store = Store(backend, f"/again/{uuid.uuid4().hex}", world=clock)
    unknown = store.put_if_absent("a", b"1", content_type="text/x-a", metadata={"who": "me"}, timeout=0.5)
    assert isinstance(unknown, Unknown)
    again = pickle.loads(pickle.dumps(unknown))
    assert isinstance(store.resolve(again), Won)
    assert (store.head("a").content_type, store.head("a").metadata) == ("text/x-a", {"who": "me"})


@pytest.mark.parametrize("mode", ["x+b", "xbz", "x+", "rxb", "xx", "xbt", "wx", "xb+"])
def test_invalid_mode_is_refused(mode):
    fs = fsspec.filesystem("cas", target_protocol="memory")
    path = f"/modes/{uuid.uuid4().hex}"
    with pytest.raises(InvalidInput, match="'xb'"):
        fs.open(path, mode)
    with pytest.raises(InvalidInput, match="'xb'"):
        fs._open(path, mode)
    assert not fs.exists(path)


@pytest.mark.parametrize("mode", ["x", "xt", "tx", "xb", "bx"])
def test_valid_modes_are_accepted(mode):
    fs = fsspec.filesystem("cas", target_protocol="memory")
    path = f"/modes/{uuid.uuid4().hex}"
    with fs.open(path, mode) as file:
        file.write(b"1" if "b" in mode else "1")
    assert fs.cat_file(path) == b"1"


def test_binary_file_refuses_an_encoding():
    with pytest.raises(InvalidInput, match="encoding"):
        fsspec.filesystem("cas", target_protocol="memory").open("/modes/encoded", "xb", encoding="utf-8")


def test_info_returns_current_version_and_not_that_of_a_cached_listing(at):
    fs, path = at.cas(), f"{at.folder}/a"
    first = fs.put_if_absent(path, b"one")
    fs.ls(at.folder, detail=True)  # a target keeps this
    elsewhere = Store.from_filesystem(at.plain)
    second = elsewhere.put_if_match(path, b"longer", first).unwrap()
    shown = fs.info(path)
    assert (shown["version"], shown["size"]) == (str(second), 6)
    assert fs.read_with_version(path).version == second


@pytest.fixture(params=["ministack", "seaweedfs"])
def s3(request):
    return request.getfixturevalue(request.param)


def test_bulk_delete_by_full_paths_deletes_in_each_bucket(s3):
    fs, other = fsspec.filesystem("s3", **s3.storage_options), f"other-{uuid.uuid4().hex[:8]}"
    s3.raw("PUT", other)
    store = Store.from_filesystem(fs)  # its root is above the buckets
    paths = [f"{bucket}/bulk/{name}" for name in "abcd" for bucket in (s3.bucket, other)]
    for path in paths:
        store.put_if_absent(path, b"").unwrap()
    store.delete_all([path for path in paths if path[-1] in ("a" if path.startswith(other) else "bc")])
    left = [entry.path for bucket in (s3.bucket, other) for entry in store.list(f"{bucket}/bulk/")]
    store.delete_all(left)
    assert left == [f"{s3.bucket}/bulk/{name}" for name in "ad"] + [f"{other}/bulk/{name}" for name in "bcd"]


def test_object_with_customer_provided_key_is_written_and_read(s3):
    url = s3.new_prefix()
    store = Store.from_url(url, {**s3.storage_options, "s3_additional_kwargs": KEY})
    first = store.put_if_absent("a", b"1").unwrap()
    assert isinstance(store.put_if_absent("a", b"2"), Lost)
    assert store.head("a").write_id is not None
    assert isinstance(store.put_if_match("a", b"3", first), Won)
    assert store.read("a").data == b"3"
    with store.open_exclusive("parts", part_size=5 * MIB) as writer:
        writer.write(bytes(6 * MIB))
    assert len(store.read("parts").data) == 6 * MIB
    with pytest.raises(StoreError, match="400"):  # it does need the key
        Store.from_url(url, s3.storage_options).read("a")
    store.delete_all(["a", "parts"])
    with pytest.raises(ObjectNotFound):
        store.head("a")


def test_metadata_and_content_type_are_kept_next_to_the_identity(s3):
    more = {"Metadata": {"who": "me"}, "ContentType": "text/x-a"}
    url = s3.new_prefix()
    store = Store.from_url(url, {**s3.storage_options, "s3_additional_kwargs": more})
    store.put_if_absent("a", b"1").unwrap()
    with store.open_exclusive("parts", part_size=5 * MIB) as writer:
        writer.write(bytes(6 * MIB))
    plain = fsspec.filesystem("s3", **s3.storage_options)
    for name in ("a", "parts"):
        bucket, _, key = f"{store.root}/{name}".partition("/")
        seen = plain.call_s3("head_object", Bucket=bucket, Key=key)
        assert (seen["Metadata"]["who"], seen["ContentType"]) == ("me", "text/x-a")
        assert store.head(name).write_id is not None


@pytest.mark.parametrize(
    ("more", "named"), [({"IfMatch": "x"}, "IfMatch"), ({"Key": "k"}, "Key"), ({"Metadata": "x"}, "Metadata")]
)
def test_settings_that_a_call_sets_itself_are_refused_at_once(more, named):
    with pytest.raises(InvalidInput, match=named):
        Store.from_url("s3://bucket/a", {"key": "k", "secret": "s", "s3_additional_kwargs": more})


def test_misspelt_setting_is_refused_by_the_first_write(ministack):
    url, more = ministack.new_prefix(), {"ContentTyp": "x"}
    store = Store.from_url(url, {**ministack.storage_options, "s3_additional_kwargs": more})
    with pytest.raises(InvalidInput, match="ContentTyp"):
        store.put_if_absent("a", b"")


def test_path_below_an_object_in_memory_is_no_lost_race():
    store = Store.from_url(f"memory://below/{uuid.uuid4().hex}")
    store.put_if_absent("a", b"").unwrap()
    store.put_if_absent("folder/x", b"").unwrap()
    for call in (
        lambda: store.put_if_absent("a/b", b""),
        lambda: store.update("a/b", lambda _: b""),
        lambda: store.open_exclusive("a/b").close(),
    ):
        with pytest.raises(StoreError, match="not a folder") as caught:
            call()
        assert not isinstance(caught.value, FileExistsError)


def test_description_of_store_shows_no_secret_and_identifies_the_store():
    def service_key(**options):
        return Store.from_url("s3://bucket/a", {"key": "AKIAKEY", "secret": "hush-hush", **options}).identity

    assert "AKIAKEY" not in str(service_key())
    assert "hush-hush" not in repr(service_key())
    assert service_key() == service_key()
    assert service_key() != service_key(secret="another")  # noqa: S106
    assert hash(service_key()) == hash(service_key())


@pytest.mark.parametrize("form", ["by name", "target_options", "chained", "chained by protocol"])
def test_cas_passes_every_option_to_its_target(form):
    endpoint = {"endpoint_url": "http://127.0.0.1:1", "key": "k", "secret": "s"}
    fs = {
        "by name": lambda: fsspec.filesystem("cas", target_protocol="s3", **endpoint),
        "target_options": lambda: fsspec.filesystem("cas", target_protocol="s3", target_options=endpoint),
        "chained": lambda: fsspec.url_to_fs("cas::s3://bucket/a", **endpoint)[0],
        "chained by protocol": lambda: fsspec.url_to_fs("cas::s3://bucket/a", s3=endpoint)[0],
    }[form]()
    for one in (fs, pickle.loads(pickle.dumps(fs)), fsspec.AbstractFileSystem.from_json(fs.to_json())):
        assert (one.fs.endpoint_url, one.fs.key) == ("http://127.0.0.1:1", "k")


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"target_protocol": "s3", "endpont_url": "x"}, "did you mean endpoint_url"),
        ({"target_protocol": "s3", "target_options": {"endpont_url": "x"}}, "did you mean endpoint_url"),
        ({"target_protocol": "gs", "tokn": "x"}, "did you mean token"),
        ({"target_protocol": "memory", "endpoint_url": "x"}, "endpoint_url.*MemoryFileSystem"),
        ({"target_protocol": "s3", "key": "a", "target_options": {"key": "b"}}, "'key' differs"),
        ({"fs": fsspec.filesystem("memory"), "endpoint_url": "x"}, "endpoint_url given with fs="),
        ({"fs": fsspec.filesystem("memory"), "target_protocol": "s3"}, "target_protocol given with fs="),
    ],
)
def test_cas_refuses_an_option_that_its_target_does_not_take(options, words):
    with pytest.raises(InvalidInput, match=words):
        fsspec.filesystem("cas", **options)


@pytest.mark.parametrize("protocol", ["memory", "file"])
async def test_cas_has_coroutines_over_a_target_without_coroutines(protocol, tmp_path):
    folder = f"/cas-{uuid.uuid4().hex}" if protocol == "memory" else f"{tmp_path}/f"
    options = {"auto_mkdir": True} if protocol == "file" else {}
    fs, path = fsspec.url_to_fs(f"cas::{protocol}://{folder}/a", asynchronous=True, **{protocol: options})
    assert (fs.async_impl, fs.asynchronous) == (True, True)
    version = await fs._put_if_absent(path, b"1")
    assert (await fs._info(path))["version"] == str(version)
    await fs._pipe_file(f"{folder}/b", b"2")
    assert await fs._cat_file(f"{folder}/b") == b"2"
    assert sorted(await fs._find(folder)) == [path, f"{folder}/b"]
    with pytest.raises(AlreadyExists):
        await fs._pipe_file(path, b"3", mode="create")
    await fs._rm(path, if_match=version)
    assert await fs._find(folder) == [f"{folder}/b"]
