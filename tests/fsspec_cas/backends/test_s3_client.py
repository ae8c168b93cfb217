"""What the client of S3 leaves out of its requests, and what it must not: seen by a server that keeps the headers."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator

import fsspec
import pytest
from botocore.loaders import JSONFileLoader

from fsspec_cas import Store, Version, Won

SMALL, LARGE = 64 * 1024, 64 * 1024 + 1
ETAG = '"1"'


class Listener:
    """Answers 200 to every request, and keeps the headers; counts how often a client asked before it sent the body."""

    def __init__(self) -> None:
        self.heads: list[dict[str, str]] = []
        self.asked_first = 0
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.endpoint = f"http://127.0.0.1:{self._listening.getsockname()[1]}"
        self._thread = threading.Thread(target=self._serve)
        self._thread.start()

    def close(self) -> None:
        self._listening.shutdown(socket.SHUT_RDWR)
        self._listening.close()
        self._thread.join()

    def _serve(self) -> None:
        while True:
            try:
                connection, _ = self._listening.accept()
            except OSError:
                return
            with connection, connection.makefile("rb") as stream:
                self._one(connection, stream)

    def _one(self, connection: socket.socket, stream) -> None:
        if not stream.readline():
            return
        lines = iter(stream.readline, b"\r\n")
        head = dict(line.decode().rstrip("\r\n").lower().split(": ", 1) for line in lines)
        if "expect" in head:
            self.asked_first += 1
            connection.sendall(b"HTTP/1.1 100 Continue\r\n\r\n")
        stream.read(int(head.get("content-length", 0)))
        self.heads.append(head)
        connection.sendall(
            f"HTTP/1.1 200 OK\r\nETag: {ETAG}\r\nContent-Length: 0\r\nConnection: close\r\n\r\n".encode()
        )


@pytest.fixture
def listener() -> Iterator[Listener]:
    listener = Listener()
    yield listener
    listener.close()


def store(listener: Listener, **config: object) -> Store:
    options = {"key": "k", "secret": "s", "endpoint_url": listener.endpoint, "config_kwargs": config}
    return Store.from_filesystem(fsspec.filesystem("s3", skip_instance_cache=True, **options), "bucket")


@pytest.mark.parametrize("size", [0, 1, SMALL])
def test_a_small_object_is_sent_along_with_its_headers(listener, size):
    assert store(listener).put_if_absent("a", bytes(size)) == Won(Version("s3", ETAG))
    assert listener.asked_first == 0
    assert listener.heads[0]["content-length"] == str(size)


def test_before_a_large_object_the_server_is_asked(listener):
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


def test_the_user_agent_is_the_sdks_own_and_the_same_in_every_request(listener):
    here = store(listener, user_agent_appid="my-app", user_agent_extra="more/1")
    here.put_if_absent("a", b"1")  # botocore notes the checksum of a write there, if it writes it anew
    here.read("a")
    write, read = (head["user-agent"] for head in listener.heads)
    assert write == read
    assert write.startswith("aiobotocore/")
    assert "app/my-app" in write
    assert "more/1" in write


def test_a_user_agent_of_the_users_own_is_kept(listener):
    store(listener, user_agent="mine/1").put_if_absent("a", b"1")
    assert listener.heads[0]["user-agent"].startswith("mine/1 ")


def test_a_second_store_reads_none_of_botocores_files_again(listener, monkeypatch):
    store(listener).put_if_absent("a", b"")
    read, load = [], JSONFileLoader.load_file
    monkeypatch.setattr(JSONFileLoader, "load_file", lambda self, path: read.append(path) or load(self, path))
    assert store(listener).put_if_absent("b", b"") == Won(Version("s3", ETAG))
    assert read == []
