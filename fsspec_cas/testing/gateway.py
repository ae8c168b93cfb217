"""A gateway between a client and a store, which answers in the store's place when it is told to."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import BinaryIO, Literal

from fsspec_cas.testing.wrong_answers import http
from fsspec_cas.waiting import Worker

_PORTAL = "/portal-of-the-gateway"
_PORTAL_ANSWER = http(
    200,
    b"<html>the portal</html>",
    ETag='"900150983cd24fb0d6963f7d28e17f72"',
    Last_Modified="Sat, 21 Nov 2026 04:00:00 GMT",
    x_amz_request_id="PORTAL",
    x_guploader_uploadid="PORTAL",
    x_goog_generation=1,
    x_ms_request_id="PORTAL",
)
_READ_BYTES = 1 << 16


@dataclass
class Rule:
    """What the gateway answers to some requests, and how often it has.

    Attributes:
        answer: raw bytes; `{portal}` is filled in.
        mode: "instead": the store never sees the request; "after": it does, and its answer is replaced.
        times: to how many requests; None: to all.
        skip: how many requests that match pass first.
        match: which requests, by method and target.
        fired: to how many requests it has answered.
    """

    answer: bytes
    mode: Literal["instead", "after"] = "instead"
    times: int | None = 1
    skip: int = 0
    match: Callable[[str, str], bool] = field(default=lambda _method, _target: True)
    fired: int = 0

    def takes(self, method: str, target: str) -> bool:
        """Whether it answers this request; counts."""
        if not self.match(method, target) or (self.times is not None and self.fired >= self.times):
            return False
        if self.skip:
            self.skip -= 1
            return False
        self.fired += 1
        return True


class Gateway:
    """Stands in front of the server at `host` and `port`, on a free port of 127.0.0.1; speaks HTTP without TLS.

    It forwards what no rule takes, byte for byte, so that signatures stay valid, and closes each connection after one
    answer: a connection that is kept would hide half the cases. A rule is drawn before anything is forwarded.

    `choose` is asked for a rule where no rule in `rules` takes a request: for answers at random.

    >>> with Gateway("127.0.0.1", 9) as gateway:
    ...     gateway.rules.append(Rule(WRONG_ANSWERS["404 text"]))
    ...     gateway.endpoint.startswith("http://127.0.0.1:")
    True
    """

    def __init__(self, host: str, port: int, choose: Callable[[str, str], Rule | None] | None = None) -> None:
        self.rules: list[Rule] = []
        self.requests: list[tuple[str, str]] = []
        self._target = (host, port)
        self._choose = choose
        self._lock = threading.Lock()
        self._listening = socket.create_server(("127.0.0.1", 0), backlog=128)
        self.endpoint = f"http://127.0.0.1:{self._listening.getsockname()[1]}"
        self._thread = Worker(self._serve, "gateway")

    def __repr__(self) -> str:
        host, port = self._target
        return f"<Gateway {self.endpoint} in front of {host}:{port}, {len(self.rules)} rules>"

    def __enter__(self) -> Gateway:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        with contextlib.suppress(OSError):
            self._listening.shutdown(socket.SHUT_RDWR)
        self._listening.close()
        self._thread.join()

    def _serve(self) -> None:
        while True:
            try:
                connection, _ = self._listening.accept()
            except OSError:
                return
            Worker(partial(self._one, connection), "gateway-peer").start()

    def _one(self, connection: socket.socket) -> None:
        with connection, contextlib.suppress(OSError, ValueError):
            request = _Message.of_request(connection)
            if request is None:
                return
            method, target = request.words[0], request.words[1]
            if target.startswith(_PORTAL):
                connection.sendall(_PORTAL_ANSWER)
                return
            rule = self._rule(method, target)
            if rule is not None and rule.mode == "instead":
                answer = rule.answer
            else:
                answer = self._forwarded(request, method)
                answer = answer if rule is None else rule.answer
            connection.sendall(answer.replace(b"{portal}", f"{self.endpoint}{_PORTAL}".encode()))
            connection.shutdown(socket.SHUT_WR)
            while connection.recv(_READ_BYTES):
                pass

    def _rule(self, method: str, target: str) -> Rule | None:
        with self._lock:
            self.requests.append((method, target))
            for rule in self.rules:
                if rule.takes(method, target):
                    return rule
            return self._choose(method, target) if self._choose is not None else None

    def _forwarded(self, request: _Message, method: str) -> bytes:
        with socket.create_connection(self._target) as server:
            server.sendall(request.head + request.body)
            answer = _Message.of_answer(server, method)
        here, there = self.endpoint.encode(), "http://{}:{}".format(*self._target).encode()
        head = answer.head.replace(b"\r\nLocation: " + there, b"\r\nLocation: " + here)
        first, _, rest = head.partition(b"\r\n")
        return first + b"\r\nConnection: close\r\n" + rest + answer.body


@dataclass
class _Message:
    head: bytes
    words: list[str]
    body: bytes

    @classmethod
    def of_request(cls, connection: socket.socket) -> _Message | None:
        stream = connection.makefile("rb")
        head, words, headers = _head(stream)
        if len(words) < 2:
            return None
        if headers.get("expect", "").lower() == "100-continue":
            connection.sendall(b"HTTP/1.1 100 Continue\r\n\r\n")
            head = b"\r\n".join(line for line in head.split(b"\r\n") if not line.lower().startswith(b"expect:"))
        return cls(head, words, _body(stream, headers, closes=False))

    @classmethod
    def of_answer(cls, server: socket.socket, method: str) -> _Message:
        stream = server.makefile("rb")
        while True:
            head, words, headers = _head(stream)
            if len(words) < 2 or not words[1].startswith("1"):
                break
        empty = method == "HEAD" or words[1:2] in (["204"], ["304"])
        return cls(head, words, b"" if empty else _body(stream, headers, closes=True))


def _head(stream: BinaryIO) -> tuple[bytes, list[str], dict[str, str]]:
    lines: list[bytes] = []
    while line := stream.readline():
        lines.append(line)
        if line == b"\r\n":
            break
    words = lines[0].decode("latin-1").split() if lines else []
    pairs = (line.decode("latin-1").partition(":") for line in lines[1:-1])
    return b"".join(lines), words, {name.lower(): value.strip() for name, _, value in pairs}


def _body(stream: BinaryIO, headers: dict[str, str], *, closes: bool) -> bytes:
    if "chunked" in headers.get("transfer-encoding", "").lower():
        read = bytearray()
        while True:
            line = stream.readline()
            read += line
            size = int(line.split(b";")[0] or b"0", 16)
            read += stream.read(size + 2)
            if not size:
                return bytes(read)
    if "content-length" in headers:
        return bytes(stream.read(int(headers["content-length"])))
    return bytes(stream.read()) if closes else b""
