"""What is obstore's own among the backends: its options, its words, what it cannot do.

What it promises is tested by `conformance/test_obstore.py`, that it sends once by `test_sends_once.py`.
"""

from __future__ import annotations

import asyncio
import math
import os
import pickle
import socket
import time
from http.client import HTTPConnection

import fsspec
import pytest
from botocore.credentials import RefreshableCredentials
from botocore.session import Session
from obstore.fsspec import FsspecStore
from patience import PATIENCE_S
from servers.small_s3 import SmallS3
from servers.wire import Wire, http

from fsspec_cas import ABSENT, AccessDenied, AsyncStore, InvalidInput, NotSupported, Store, Unavailable, Won
from fsspec_cas.answer import NoAnswer
from fsspec_cas.backends import backend_for
from fsspec_cas.backends.obstore.client import LeanS3Backend
from fsspec_cas.backends.obstore.connections import Connections, Times
from fsspec_cas.outcome import Write

OPTIONS = {"client": "obstore", "access_key_id": "k", "secret_access_key": "s", "client_options": {"allow_http": True}}
DATE = "Sat, 21 Nov 2026 04:00:00 GMT"
GOOD = http(200, b"data", ETag='"1"', Last_Modified=DATE, x_amz_request_id=1)


def opened(endpoint: str = "http://127.0.0.1:1", **more: object) -> Store:
    return Store.from_url("s3://bucket/x", {**OPTIONS, "endpoint": endpoint, **more})


def test_another_client_or_another_protocol_is_refused():
    with pytest.raises(InvalidInput, match="client='obstor'"):
        Store.from_url("s3://bucket/x", {"client": "obstor"})
    for url in ("gs://bucket/x", "az://container/x", "memory://x", "/tmp/x"):  # noqa: S108
        with pytest.raises(NotSupported, match="leave client='obstore' out"):
            Store.from_url(url, {"client": "obstore"})
    with pytest.raises(NotSupported, match="gs://"):
        Store.from_filesystem(FsspecStore("gs"))


@pytest.mark.parametrize(
    ("options", "named"),
    [({"key": "k"}, "'key'"), ({"region": 3}, "int"), ({"client_options": {"alow_http": True}}, "alow_http")],
)
def test_unknown_obstore_option_is_named_before_any_request(options, named):
    with Wire(GOOD) as wire, pytest.raises(InvalidInput, match=named):
        opened(wire.endpoint, **options).read("a")
    assert wire.requests == []


def test_http_url_without_allow_http_is_refused_with_the_option():
    with pytest.raises(InvalidInput, match="allow_http"):
        opened(client_options={}).read("a")


def test_unused_obstore_option_is_refused():
    for more in ({"checksum_algorithm": "sha256"}, {"client_options": {"allow_http": True, "http2_only": True}}):
        with pytest.raises(NotSupported, match="leave it out"):
            opened(**more).read("a")


def test_s3_attributes_are_sent_by_their_s3_names(over_obstore):
    url = over_obstore.new_prefix()
    store = Store.from_url(url, over_obstore.storage_options)
    store.put_if_absent("a", b"1", CacheControl="no-cache", ContentLanguage="en", StorageClass="STANDARD").unwrap()
    seen = {name.lower(): value for name, value in over_obstore.raw_head(f"{url}/a").headers.items()}
    assert (seen["cache-control"], seen["content-language"]) == ("no-cache", "en")
    assert store.head("a").metadata == {}


def test_filesystem_of_the_caller_is_accepted():
    with Wire(GOOD) as wire:
        given = {name: value for name, value in OPTIONS.items() if name != "client"}
        fs = FsspecStore("s3", config={"endpoint": wire.endpoint}, retry_config={"max_retries": 5}, **given)
        store = Store.from_filesystem(fs, "bucket/x")
        assert store.read("a").data == b"data"
        assert pickle.loads(pickle.dumps(store)).read("a").data == b"data"


def test_listed_version_is_accepted_by_put_if_match(over_obstore):
    folder = over_obstore.new_prefix().removeprefix("s3://")
    given = {name: value for name, value in over_obstore.storage_options.items() if name != "client"}
    fs = fsspec.filesystem("cas", fs=FsspecStore("s3", **given))
    version = str(fs.put_if_absent(f"{folder}/a", b"1"))
    assert (
        [entry["version"] for entry in fs.ls(folder, detail=True)] == [fs.info(f"{folder}/a")["version"]] == [version]
    )
    assert str(fs.put_if_match(f"{folder}/a", b"2", version)) != version


def test_endless_timeout_is_accepted():
    with Wire(GOOD) as wire:
        assert opened(wire.endpoint).read("a", timeout=math.inf).data == b"data"


def test_missing_credentials_are_not_taken_for_an_answer_of_the_store(monkeypatch):
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_EC2_METADATA_DISABLED"):
        monkeypatch.delenv(name, raising=False)
    asked = {"client": "obstore", "client_options": {"allow_http": True}}
    with Wire(http(404)) as wire, Wire(GOOD) as store:
        where = {"endpoint": store.endpoint, "metadata_endpoint": wire.endpoint}
        with pytest.raises(AccessDenied, match="nothing was sent"):
            Store.from_url("s3://bucket/x", {**asked, **where}).put_if_absent("a", b"")
        assert store.requests == []
        assert wire.requests != []


def test_superfluous_connection_is_closed():
    made: list[HTTPConnection] = []

    class Watched(Connections):
        def _made(self, times: Times) -> HTTPConnection:
            made.append(super()._made(times))
            return made[-1]

    with SmallS3() as server:
        Watched(server.endpoint, most=0).exchange("GET", "/bucket/a", {}, None, Times(9, 9, 9))
    assert made[0].sock is None


def test_credential_provider_is_called_and_its_error_is_reported():
    def fails() -> dict[str, str]:
        raise RuntimeError("no ticket")

    def gives() -> dict[str, str]:
        return {"access_key_id": "mine", "secret_access_key": "s", "token": "t"}

    def gives_text() -> dict[str, str]:
        return {**gives(), "expires_at": "9"}

    with Wire(GOOD) as wire:
        asked = {"client": "obstore", "client_options": {"allow_http": True}, "endpoint": wire.endpoint}
        with pytest.raises(AccessDenied, match="no ticket"):
            Store.from_url("s3://bucket/x", {**asked, "credential_provider": fails}).read("a")
        with pytest.raises(AccessDenied, match="expires_at='9' is not a datetime"):
            Store.from_url("s3://bucket/x", {**asked, "credential_provider": gives_text}).read("a")
        assert wire.requests == []
        assert Store.from_url("s3://bucket/x", {**asked, "credential_provider": gives}).read("a").data == b"data"
        assert "mine/" in wire.heads[0]["authorization"]
        assert wire.heads[0]["x-amz-security-token"] == "t"


def test_refreshed_credentials_that_are_expired_are_unavailable(monkeypatch):
    """Botocore then raises RuntimeError."""

    def refreshed(_: object) -> object:
        raise RuntimeError("Credentials were refreshed, but the refreshed credentials are still expired.")

    monkeypatch.setattr(RefreshableCredentials, "get_frozen_credentials", refreshed)
    credentials = RefreshableCredentials("k", "s", "t", None, dict, "role")
    monkeypatch.setattr(Session, "get_credentials", lambda _: credentials)
    options = {"client": "obstore", "client_options": {"allow_http": True}, "endpoint": "http://127.0.0.1:1"}
    with pytest.raises(Unavailable, match="nothing was sent.*still expired"):
        Store.from_url("s3://bucket/x", options).read("a", timeout=0.2)


async def test_request_ends_within_the_timeout_of_its_caller():
    with socket.create_server(("127.0.0.1", 0)) as silent:
        backend = opened(f"http://127.0.0.1:{silent.getsockname()[1]}").backend
        for timeout_s in (0.1, 0.7):
            began_s = time.monotonic()
            answer = await backend.put(Write("bucket/key", ABSENT, "id"), b"", timeout_s=timeout_s)
            assert isinstance(answer, NoAnswer)
            assert time.monotonic() - began_s >= 0.75 * timeout_s


async def test_many_tasks_wait_concurrently():
    """Each in a thread of its own: asyncio's own threads are few."""
    with socket.create_server(("127.0.0.1", 0), backlog=64) as silent:
        store = AsyncStore.from_url(
            "s3://bucket/x", {**OPTIONS, "endpoint": f"http://127.0.0.1:{silent.getsockname()[1]}"}
        )
        assert not store.backend.blocking
        tasks = [asyncio.create_task(store.read(str(n), timeout=PATIENCE_S)) for n in range(32)]
        came = [await asyncio.to_thread(silent.accept) for _ in tasks]
        for connection, _ in came:
            connection.close()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def test_forked_child_has_connections_of_its_own(seaweedfs, over_obstore):
    store = Store.from_url(over_obstore.new_prefix(), over_obstore.storage_options)
    assert isinstance(store.put_if_absent("a", b"1"), Won)
    child = os.fork()
    if child == 0:
        os._exit(0 if store.read("a").data == b"1" else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert store.read("a").data == b"1"


@pytest.mark.parametrize(("options", "target"), [({}, "/bucket/x/a"), ({"virtual_hosted_style_request": True}, "/x/a")])
def test_custom_virtual_host_already_contains_the_bucket(options, target):
    with Wire(GOOD) as wire:
        assert opened(wire.endpoint, **options).read("a").data == b"data"
    assert wire.targets == [target]


def test_credentials_of_a_proxy_are_sent_without_tls():
    with Wire(GOOD) as wire:
        proxy = wire.endpoint.replace("http://", "http://me:a%20word@")
        client = {"allow_http": True, "proxy_url": proxy}
        assert opened("http://store.invalid", client_options=client).read("a").data == b"data"
    assert wire.targets == ["http://store.invalid/bucket/x/a"]
    assert wire.heads[0]["proxy-authorization"] == "basic bwu6ysb3b3jk"  # the wire's are lower case


def test_listing_may_start_after_a_name_that_obstore_rejects(over_obstore):
    store = Store.from_url(over_obstore.new_prefix(), over_obstore.storage_options)
    for name in ("d/1", "d/2", "e"):
        store.put_if_absent(name, b"")
    for after in ("d/1\t", "d/1//2", "d/."):
        found = [entry.path for entry in store.list("", start_after=after)]
        assert found == [name for name in ("d/1", "d/2", "e") if name > after]


def test_destination_of_requests_is_known_before_the_first_request(monkeypatch):
    for name in ("AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT"):
        monkeypatch.delenv(name, raising=False)

    def where(**options: object) -> str:
        asked = LeanS3Backend(backend_for(FsspecStore("s3", **options))._given).endpoint()
        with pytest.raises(StopIteration) as done:
            asked.send(None)
        return done.value.value

    assert where() == "https://s3.us-east-1.amazonaws.com"
    assert where(region="cn-north-1") == "https://s3.cn-north-1.amazonaws.com.cn"
    assert where(endpoint="http://a") == where(config={"endpoint": "http://a"}) == "http://a"
    assert where(endpoint="http://a", aws_endpoint_url_s3="http://b") == "http://b"
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://c")
    assert where() == "http://c"
