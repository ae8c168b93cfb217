"""What the client of S3 leaves out of its requests, and what it must not: seen by a server that keeps the headers."""

from __future__ import annotations

from collections.abc import Iterator

import fsspec
import pytest
from botocore.loaders import JSONFileLoader
from servers.wire import Wire, http

from fsspec_cas import Store, Version, Won

SMALL, LARGE = 64 * 1024, 64 * 1024 + 1
ETAG = '"1"'


@pytest.fixture
def listener() -> Iterator[Wire]:
    with Wire(http(200, ETag=ETAG, x_amz_request_id=1)) as listener:
        yield listener


def store(listener: Wire, **config: object) -> Store:
    options = {"key": "k", "secret": "s", "endpoint_url": listener.endpoint, "config_kwargs": config}
    return Store.from_filesystem(fsspec.filesystem("s3", skip_instance_cache=True, **options), "bucket")


@pytest.mark.parametrize("size", [0, 1, SMALL])
def test_small_object_is_sent_without_expect_continue(listener, size):
    assert store(listener).put_if_absent("a", bytes(size)) == Won(Version("s3", ETAG))
    assert listener.asked_first == 0
    assert listener.heads[0]["content-length"] == str(size)


def test_large_object_is_sent_after_expect_continue(listener):
    assert store(listener).put_if_absent("a", bytes(LARGE)) == Won(Version("s3", ETAG))
    assert listener.asked_first == 1
    assert listener.heads[0]["content-length"] == str(LARGE)


def test_every_request_carries_its_condition_and_its_identity(listener):
    here = store(listener)
    here.put_if_absent("a", b"1")
    here.put_if_match("a", b"2", Version("s3", ETAG))
    create, match = listener.heads
    assert (create["if-none-match"], match["if-match"]) == ("*", ETAG)
    assert create["x-amz-meta-cas-id"] != match["x-amz-meta-cas-id"]


def test_user_agent_is_the_sdks_own_and_the_same_in_every_request(listener):
    here = store(listener, user_agent_appid="my-app", user_agent_extra="more/1")
    here.put_if_absent("a", b"1")  # botocore notes the checksum of a write there, if it writes it anew
    here.read("a")
    write, read = (head["user-agent"] for head in listener.heads)
    assert write == read
    assert write.startswith("aiobotocore/")
    assert "app/my-app" in write
    assert "more/1" in write


def test_custom_user_agent_is_kept(listener):
    store(listener, user_agent="mine/1").put_if_absent("a", b"1")
    assert listener.heads[0]["user-agent"].startswith("mine/1 ")


def test_second_store_does_not_read_botocore_files_again(listener, monkeypatch):
    store(listener).put_if_absent("a", b"")
    read, load = [], JSONFileLoader.load_file
    monkeypatch.setattr(JSONFileLoader, "load_file", lambda self, path: read.append(path) or load(self, path))
    assert store(listener).put_if_absent("b", b"") == Won(Version("s3", ETAG))
    assert read == []
