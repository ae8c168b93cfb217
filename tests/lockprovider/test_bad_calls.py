"""Bad calls of conditional writes and of the lock: one typed error that names the value, before anything is made."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import fsspec
import pytest

import lockprovider
from fsspec_cas import AlreadyExists, AsyncStore, CasError, InvalidInput, InvalidUrl, InvalidVersion, Store, Version
from fsspec_cas.filesystem import CasFileSystem
from lockprovider import InvalidSettings, Lock, LockProvider, LockSettings

Call = Callable[[Path], object]


def store(folder: Path) -> Store:
    return Store.from_url(str(folder))


def tasks(folder: Path) -> AsyncStore:
    return AsyncStore.from_url(str(folder))


def fs(_: Path) -> CasFileSystem:
    return CasFileSystem(fs=fsspec.filesystem("file"))


V = Version("local", "1")
OLD = "local:1"
WRITES: list[tuple[str, Call, type[CasError], list[str]]] = [
    ("read timeout text", lambda p: store(p).read("a", timeout="5"), InvalidInput, ["timeout='5'", "seconds"]),
    ("read timeout none", lambda p: store(p).read("a", timeout=None), InvalidInput, ["timeout=None", "timeout=30"]),
    ("read timeout negative", lambda p: store(p).read("a", timeout=-1), InvalidInput, ["timeout=-1", "0 or more"]),
    ("read timeout nan", lambda p: store(p).read("a", timeout=float("nan")), InvalidInput, ["timeout=nan"]),
    ("read timeout true", lambda p: store(p).read("a", timeout=True), InvalidInput, ["timeout=True"]),
    ("head timeout", lambda p: store(p).head("a", timeout="x"), InvalidInput, ["timeout='x'"]),
    ("list timeout", lambda p: store(p).list("", timeout=-2), InvalidInput, ["timeout=-2"]),
    ("create timeout", lambda p: store(p).put_if_absent("a", b"", timeout="5"), InvalidInput, ["timeout='5'"]),
    ("match timeout", lambda p: store(p).put_if_match("a", b"", V, timeout=None), InvalidInput, ["timeout=None"]),
    ("delete timeout", lambda p: store(p).delete("a", timeout=[]), InvalidInput, ["timeout=[]"]),
    ("delete_all timeout", lambda p: store(p).delete_all(["a", "b"], timeout="5"), InvalidInput, ["timeout='5'"]),
    ("delete_all of one path", lambda p: store(p).delete_all("abc"), InvalidInput, ["paths='abc'", "a list"]),
    ("delete_all of none", lambda p: store(p).delete_all(None), InvalidInput, ["paths=None", "a list"]),
    ("resolve a text", lambda p: store(p).resolve("x"), InvalidInput, ["'x'", "`Unknown`"]),
    ("exclusive part", lambda p: store(p).open_exclusive("a", part_size="x"), InvalidInput, ["part_size='x'"]),
    ("exclusive no part", lambda p: store(p).open_exclusive("a", part_size=None), InvalidInput, ["part_size=None"]),
    ("delete_if_match timeout", lambda p: store(p).delete_if_match("a", V, timeout=-1), InvalidInput, ["timeout=-1"]),
    ("changed timeout", lambda p: store(p).read_if_changed("a", V, timeout="5"), InvalidInput, ["timeout='5'"]),
    ("update timeout", lambda p: store(p).update("a", lambda _: b"", timeout="5"), InvalidInput, ["timeout='5'"]),
    ("exclusive timeout", lambda p: store(p).open_exclusive("a", timeout="5"), InvalidInput, ["timeout='5'"]),
    ("update with no function", lambda p: store(p).update("a", 5), InvalidInput, ["fn=5", "function"]),
    ("match no version", lambda p: store(p).put_if_match("a", b"", None), InvalidVersion, ["None", "not a version"]),
    ("match wrong text", lambda p: store(p).put_if_match("a", b"", "1"), InvalidVersion, ["'1'", "backend:token"]),
    ("match other store", lambda p: store(p).put_if_match("a", b"", "s3:1"), InvalidVersion, ["s3:1", "local"]),
    ("delete no version", lambda p: store(p).delete_if_match("a", 7), InvalidVersion, ["7", "not a version"]),
    ("changed no version", lambda p: store(p).read_if_changed("a", b"x"), InvalidVersion, ["b'x'", "not a version"]),
    ("task: timeout", lambda p: asyncio.run(tasks(p).read("a", timeout="5")), InvalidInput, ["timeout='5'"]),
    (
        "task: create timeout",
        lambda p: asyncio.run(tasks(p).put_if_absent("a", b"", timeout=-1)),
        InvalidInput,
        ["timeout=-1"],
    ),
    (
        "task: version",
        lambda p: asyncio.run(tasks(p).put_if_match("a", b"", 5)),
        InvalidVersion,
        ["5", "not a version"],
    ),
    ("task: path", lambda p: asyncio.run(tasks(p).read(None)), InvalidInput, ["None", "not text"]),
    ("path none", lambda p: store(p).read(None), InvalidInput, ["None", "pathlib.Path"]),
    ("path bytes", lambda p: store(p).put_if_absent(b"a", b""), InvalidInput, ["b'a'", "pathlib.Path"]),
    ("below none", lambda p: store(p).below(None), InvalidInput, ["None", "not text"]),
    ("url none", lambda _: Store.from_url(None), InvalidUrl, ["None", "URL"]),
    ("url number", lambda _: AsyncStore.from_url(5), InvalidUrl, ["5", "URL"]),
    ("options text", lambda p: Store.from_url(str(p), "anon"), InvalidInput, ["must be a dict"]),
    ("local option", lambda p: Store.from_url(str(p), {"auto_mkdr": True}), InvalidInput, ["auto_mkdr", "auto_mkdir"]),
    ("cas: timeout", lambda p: fs(p).put_if_absent(f"{p}/a", b"", timeout="5"), InvalidInput, ["timeout='5'"]),
    ("cas: version", lambda p: fs(p).put_if_match(f"{p}/a", b"", 5), InvalidVersion, ["5", "not a version"]),
    ("cas: read", lambda p: fs(p).read_if_changed(f"{p}/a", None), InvalidVersion, ["None", "not a version"]),
    ("cas: delete", lambda p: fs(p).delete_if_match(f"{p}/a", "x"), InvalidVersion, ["'x'", "backend:token"]),
    ("cas: update", lambda p: fs(p).update(f"{p}/a", "fn"), InvalidInput, ["fn='fn'", "function"]),
    ("cas: no target", lambda _: CasFileSystem(), InvalidInput, ["target_protocol"]),
]


@pytest.mark.parametrize(("call", "kind", "parts"), [one[1:] for one in WRITES], ids=[one[0] for one in WRITES])
def test_bad_call_of_a_store_is_one_typed_error(
    tmp_path: Path, call: Call, kind: type[CasError], parts: list[str]
) -> None:
    with pytest.raises(kind) as refused:
        call(tmp_path)
    assert isinstance(refused.value, ValueError)
    assert [part for part in parts if part not in str(refused.value)] == []
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("options", "parts"),
    [
        ({"endpoint_url": "127.0.0.1:9000"}, ["'127.0.0.1:9000'", "scheme", "https://127.0.0.1:9000"]),
        ({"client_kwargs": {"endpoint_url": "minio"}}, ["'minio'", "scheme"]),
        ({"endpont_url": "https://x"}, ["'endpont_url'", "endpoint_url"]),
        ({"secrt": "hidden"}, ["'secrt'", "did you mean secret"]),
    ],
)
def test_unknown_s3_options_are_refused_when_the_store_is_opened(options: dict[str, Any], parts: list[str]) -> None:
    pytest.importorskip("s3fs")
    with pytest.raises(InvalidInput) as refused:
        Store.from_url("s3://bucket/folder", options)
    assert [part for part in parts if part not in str(refused.value)] == []
    assert "hidden" not in str(refused.value)


def test_unusual_but_valid_arguments_are_accepted(tmp_path: Path) -> None:
    here = Store.from_url(tmp_path)
    version = here.put_if_absent(Path("a") / "b", b"1").unwrap()
    assert here.below(Path("a")).read(Path("b")).data == b"1"
    second = here.put_if_match("a/b", b"2", str(version)).unwrap()
    assert here.read_if_changed("a/b", str(second)) is None
    assert here.delete_if_match("a/b", fs(tmp_path).info(tmp_path / "a" / "b")["version"]).unwrap() == second
    assert here.put_if_absent("c", b"", timeout=float("inf")).unwrap()
    files = fs(tmp_path)
    files.cp(tmp_path / "c", tmp_path / "d", if_absent=True)
    with pytest.raises(AlreadyExists):
        files.cp(tmp_path / "c", tmp_path / "d", if_absent=True)
    files.rm(tmp_path / "d", if_match=files.info(tmp_path / "d")["version"])
    assert not files.exists(tmp_path / "d")


def provider(folder: Path) -> LockProvider:
    return LockProvider.from_url(str(folder))


def holding(folder: Path, call: Callable[[lockprovider.Lease], object]) -> object:
    with lockprovider.lock("memory://bad-calls/" + folder.name) as lease:
        return call(lease)


def new(path: str) -> lockprovider.Pending:
    return lockprovider.Pending.of_bytes(path, b"")


BASE = "hoodie.base.path"
Bad = InvalidSettings
LOCKS: list[tuple[str, Call, type[Exception], list[str]]] = [
    ("lock: url", lambda _: lockprovider.lock(None), InvalidUrl, ["None", "URL"]),
    ("lock: empty url", lambda _: lockprovider.lock(""), InvalidUrl, ["''"]),
    ("lock: on", lambda p: lockprovider.lock(str(p), on=5), Bad, ["on=5", "jobs/nightly.json"]),
    ("lock: empty on", lambda p: lockprovider.lock(str(p), on=""), Bad, ["on=''"]),
    ("lock: timeout text", lambda p: lockprovider.lock(str(p), timeout="x"), Bad, ["timeout='x'", "seconds"]),
    ("lock: timeout below", lambda p: lockprovider.lock(str(p), timeout=-1), Bad, ["timeout=-1", "0 or more"]),
    ("lock: timeout nan", lambda p: lockprovider.lock(str(p), timeout=float("nan")), Bad, ["timeout=nan"]),
    ("lock: on_lost", lambda p: lockprovider.lock(str(p), on_lost="x"), Bad, ["on_lost='x'", "function"]),
    ("lock: on_metric", lambda p: lockprovider.lock(str(p), on_metric=5), Bad, ["on_metric=5", "function"]),
    ("lock: settings", lambda p: lockprovider.lock(str(p), settings={"renew": 1}), Bad, ["renew", "LockSettings"]),
    ("lock: option", lambda p: lockprovider.lock(f"file://{p}?timout=1"), Bad, ["timout", "timeout"]),
    ("lock: storage option", lambda p: lockprovider.lock(str(p), storage_options={"x": 1}), InvalidInput, ["'x'"]),
    ("open: on_lost", lambda p: lockprovider.lock(str(p), on_lost="x"), Bad, ["on_lost='x'"]),
    ("acquire: timeout", lambda p: lockprovider.lock(str(p)).acquire("5"), Bad, ["timeout='5'"]),
    ("task: timeout", lambda p: asyncio.run(taken(str(p), timeout=-1)), Bad, ["timeout=-1"]),
    ("task: on_lost", lambda p: asyncio.run(taken(str(p), on_lost="x")), Bad, ["on_lost='x'"]),
    ("task: url", lambda _: asyncio.run(taken(None)), InvalidUrl, ["None"]),
    ("Lock: url for a store", lambda p: Lock(str(p)), Bad, ["Store.from_url"]),
    ("Lock: path", lambda p: Lock(store(p), None), InvalidInput, ["None"]),
    ("Lock: settings", lambda p: Lock(store(p), settings=60), Bad, ["settings=60", "LockSettings"]),
    ("Lock: stage", lambda p: Lock(store(p)).stage(None, b""), InvalidInput, ["None"]),
    ("Lock: stage: once", lambda p: Lock(store(p)).stage("a", b"", unshared="no"), InvalidInput, ["unshared='no'"]),
    ("Lock: stage: dots", lambda p: Lock(store(p)).stage("../a", b""), InvalidInput, ["'../a'"]),
    ("lease: publish", lambda p: holding(p, lambda lease: lease.publish(5, b"")), InvalidInput, ["5", "not text"]),
    (
        "lease: surrogate",
        lambda p: holding(p, lambda it: it.publish(new("a\ud800"), new=True)),
        InvalidInput,
        ["surro"],
    ),
    ("lease: two names", lambda p: holding(p, lambda it: it.publish(new("a//b"), new=True)), InvalidInput, ["'a/b'"]),
    ("settings: text", lambda _: LockSettings(validity="60"), Bad, ["validity='60'", "numbers"]),
    ("settings: none", lambda _: LockSettings(timeout=None), Bad, ["timeout=None"]),
    ("settings: true", lambda _: LockSettings(renew=True), Bad, ["renew=True"]),
    ("settings: below", lambda _: LockSettings(timeout=-1), Bad, ["timeout=-1"]),
    ("settings: nan", lambda _: LockSettings(poll=float("nan")), Bad, ["poll=nan", "finite"]),
    ("settings: check", lambda _: LockSettings(check_store="no"), Bad, ["check_store='no'", "True or False"]),
    ("provider: lock", lambda p: LockProvider(str(p)), Bad, ["LockProvider.from_url"]),
    ("provider: url", lambda _: LockProvider.from_url(7), InvalidUrl, ["7"]),
    ("provider: config", lambda _: LockProvider.from_config(None), Bad, ["config=None", "mapping"]),
    ("provider: key", lambda p: LockProvider.from_config({BASE: str(p), 5: 6}), Bad, ["5", "no key"]),
    ("provider: timeout", lambda p: provider(p).try_lock(-1), Bad, ["timeout=-1"]),
    ("provider: timeout text", lambda p: provider(p).try_lock("5"), Bad, ["timeout='5'"]),
]


async def taken(url: object, **how: object) -> None:
    async with lockprovider.async_lock(url, **how):  # type: ignore[arg-type] # that is the point
        pass


@pytest.mark.parametrize(("call", "kind", "parts"), [one[1:] for one in LOCKS], ids=[one[0] for one in LOCKS])
def test_bad_call_of_a_lock_is_one_typed_error(
    tmp_path: Path, call: Call, kind: type[Exception], parts: list[str]
) -> None:
    with pytest.raises(kind) as refused:
        call(tmp_path)
    assert isinstance(refused.value, ValueError)
    assert [part for part in parts if part not in str(refused.value)] == []
    assert list(tmp_path.iterdir()) == []


def test_lock_takes_path_objects(tmp_path: Path) -> None:
    with lockprovider.lock(tmp_path, on=Path("jobs") / "a.json") as lease:
        lease.publish(Path("state") / "1", b"1")
    assert (tmp_path / "jobs" / "a.json").exists()
    assert (tmp_path / "state" / "1").read_bytes() == b"1"
