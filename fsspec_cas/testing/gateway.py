"""A gateway between a client and a store, and raw HTTP answers of proxies and portals."""

from __future__ import annotations

import contextlib
import json
import socket
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from types import MappingProxyType
from typing import BinaryIO, Literal

from fsspec_cas.waiting import Worker

_HTML = b"<html><head><title>Sign in</title></head><body><h1>Welcome</h1></body></html>"
_XHTML = b'<?xml version="1.0"?><html xmlns="http://www.w3.org/1999/xhtml"><body><p>Welcome</p></body></html>'
_INTERNAL = b'<?xml version="1.0"?><Error><Code>InternalError</Code><Message>try again</Message></Error>'
_NGINX = b"<html>\r\n<head><title>404 Not Found</title></head>\r\n<body><center>nginx</center></body></html>"
_DATE = "Sat, 21 Nov 2026 04:00:00 GMT"
_ETAG = '"900150983cd24fb0d6963f7d28e17f72"'
_PHRASES = {200: "OK", 302: "Found", 404: "Not Found", 503: "Service Unavailable"}


def http(status: int, body: bytes = b"", *, version: str = "1.1", length: bool = True, **headers: object) -> bytes:
    """Return an answer as bytes; `_` in a header's name stands for `-`, and a tuple repeats the header."""
    lines = [f"HTTP/{version} {status} {_PHRASES.get(status, 'Answer')}"]
    if length and status != 204:
        lines.append(f"Content-Length: {len(body)}")
    for name, value in headers.items():
        each = value if isinstance(value, tuple) else (value,)
        lines += [f"{name.replace('_', '-')}: {text}" for text in each]
    return "\r\n".join([*lines, "Connection: close", "", ""]).encode() + body


def _text(status: int, text: str = "", kind: str = "text/plain") -> bytes:
    return http(status, text.encode(), Content_Type=kind)


def _page(status: int) -> bytes:
    return http(status, b"<html><body>%d</body></html>" % status, Content_Type="text/html")


def _json(status: int, value: object) -> bytes:
    return http(status, json.dumps(value).encode(), Content_Type="application/json")


def _xml(status: int, body: bytes) -> bytes:
    return http(status, body, Content_Type="application/xml")


def _interim(status: int, rest: bytes) -> bytes:
    return f"HTTP/1.1 {status} Interim\r\n\r\n".encode() + rest


_FAULT = b"<fault><faultstring>no route</faultstring></fault>"
_QUEUE = b"<ErrorResponse><Error><Code>AWS.SimpleQueueService.NonExistentQueue</Code></Error></ErrorResponse>"
_WHOLE = b'<ListBucketResult xmlns="http://s3.amazonaws.com/doc/2006-03-01/">'
_NOT_FOUND = {
    "404 text": _text(404, "404 page not found\n"),
    "404 nginx": http(404, _NGINX, Content_Type="text/html", Server="nginx"),
    "404 empty": _text(404),
    "404 json message": _json(404, {"message": "no Route matched with those values"}),
    "404 json detail": _json(404, {"detail": "Not Found"}),
    "404 json error": _json(404, {"error": "not found"}),
    "404 json role": _json(404, {"Code": "AssumeRoleUnauthorizedAccess", "Message": "role not found"}),
    "404 fault": _xml(404, _FAULT),
    "404 other service": _xml(404, _QUEUE),
    "404 after 100": _interim(100, _text(404, "404 page not found\n")),
    "404 after 103": _interim(103, _text(404, "404 page not found\n")),
    "404 two equal lengths": http(404, b"gone", length=False, Content_Length=(4, 4)),
    "410 page": _page(410),
}
_SUCCESS = {
    "200 html": http(200, _HTML, Content_Type="text/html"),
    "200 html etag": http(200, _HTML, Content_Type="text/html", ETag='"5f3c-1a"', Last_Modified=_DATE),
    "200 html weak etag": http(200, _HTML, Content_Type="text/html", ETag='W/"5f3c-1a"', Last_Modified=_DATE),
    "200 empty": _text(200),
    "200 empty etag": http(200, ETag=_ETAG),
    "200 two etags": http(200, ETag=(_ETAG, '"other"')),
    "200 json": _json(200, {}),
    "200 json status": _json(200, {"status": "ok"}),
    "200 error": _xml(200, _INTERNAL),
    "200 xhtml": _xml(200, _XHTML),
    "200 without length": http(200, _HTML, version="1.0", length=False, Content_Type="text/html"),
    "200 cut": http(200, _HTML, Content_Type="text/html").replace(b"Length: 7", b"Length: 9"),
    "200 cached": http(200, _HTML, Content_Type="text/html", ETag=_ETAG, Last_Modified=_DATE, Age=55),
    "200 other listing": _xml(
        200, _WHOLE + b"<Prefix>elsewhere</Prefix><IsTruncated>false</IsTruncated></ListBucketResult>"
    ),
    "200 listing without end": _xml(200, _WHOLE + b"</ListBucketResult>"),
    "202": _text(202),
    "204": http(204),
    "206 html": http(206, _HTML, Content_Type="text/html", Content_Range=f"bytes 0-{len(_HTML) - 1}/{len(_HTML)}"),
}
_REDIRECTS = {f"{status} redirect": http(status, Location="{portal}") for status in (301, 302, 303, 307, 308)}
_REDIRECTS |= {"304": http(304), "304 etag": http(304, ETag='"other"')}
_REFUSALS = {
    f"{status} page": _page(status)
    for status in (400, 401, 403, 405, 407, 408, 409, 411, 412, 413, 421, 425, 431, 451, 499, 501)
}
_REFUSALS |= {
    "401 challenge": http(401, WWW_Authenticate='Bearer authorization_uri="http://127.0.0.1:1/tenant"'),
    "403 empty": _text(403),
    "412 empty": _text(412),
}
_FAILURES = {f"{status} page": _page(status) for status in (429, 500, 502, 503, 504, 505, 520)}
_FAILURES |= {"no http": b"SSH-2.0-OpenSSH_9.2\r\n", "nothing": b""}

WRONG_ANSWERS: Mapping[str, bytes] = MappingProxyType(_NOT_FOUND | _SUCCESS | _REDIRECTS | _REFUSALS | _FAILURES)
"""Name -> raw bytes of an answer that no store gave.

>>> len(WRONG_ANSWERS) > 60
True
"""


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
    """The gateway's answer to some requests, and a count of its uses.

    Attributes:
        answer: raw bytes; `{portal}` becomes an address that answers every request as a store would.
        mode: "instead": the store gets no request; "after": it does, and its answer is replaced.
        times: number of requests to answer; None: all.
        skip: number of matching requests that pass first.
        match: selects requests, by method and target.
    """

    answer: bytes
    mode: Literal["instead", "after"] = "instead"
    times: int | None = 1
    skip: int = 0
    match: Callable[[str, str], bool] = field(default=lambda _method, _target: True)
    fired: int = 0

    def takes(self, method: str, target: str) -> bool:
        """Decide whether the rule answers this request, and count it."""
        if not self.match(method, target) or (self.times is not None and self.fired >= self.times):
            return False
        if self.skip:
            self.skip -= 1
            return False
        self.fired += 1
        return True


class Gateway:
    """An HTTP proxy without TLS on a free port of 127.0.0.1, in front of the server at `host` and `port`.

    It forwards requests without a rule unchanged, so that signatures stay valid, and closes each connection after one
    answer, as a kept one would hide cases. `choose` returns a rule for a request that none of `rules` takes.

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
        """Answer one request, by a rule or by the server."""
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
        here, target = self.endpoint.encode(), "http://{}:{}".format(*self._target).encode()
        head = answer.head.replace(b"\r\nLocation: " + target, b"\r\nLocation: " + here)
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
    """Read a message's raw body."""
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
