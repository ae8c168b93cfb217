"""A gateway between a client and a store, and raw HTTP answers of proxies and portals."""

from __future__ import annotations

import contextlib
import json
import socket
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from http.client import HTTPConnection, HTTPException
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import MappingProxyType
from typing import Any, Literal

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

    It forwards requests without a rule with all headers but `Expect` and `Transfer-Encoding`, so that signatures stay
    valid, and closes each connection after one answer, as a kept one would hide cases. `choose` returns a rule for a
    request that none of `rules` takes; `requests` records method and target of each, except the portal's. `with` serves
    them on a thread.

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
        self._server = _Server(("127.0.0.1", 0), partial(_Peer, self))
        self.endpoint = f"http://127.0.0.1:{self._server.server_port}"
        self._thread = Worker(self._server.serve_forever, "gateway")

    def __repr__(self) -> str:
        host, port = self._target
        return f"<Gateway {self.endpoint} in front of {host}:{port}, {len(self.rules)} rules>"

    def __enter__(self) -> Gateway:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def _answer(self, request: _Peer) -> bytes:
        """Return the raw answer to a request, by a rule or by the server."""
        method, target = request.command, request.path
        if target.startswith(_PORTAL):
            return _PORTAL_ANSWER
        rule = self._rule(method, target)
        if rule is None:
            return self._forwarded(request)
        if rule.mode == "after":
            self._forwarded(request)
        return rule.answer.replace(b"{portal}", f"{self.endpoint}{_PORTAL}".encode())

    def _rule(self, method: str, target: str) -> Rule | None:
        with self._lock:
            self.requests.append((method, target))
            for rule in self.rules:
                if rule.takes(method, target):
                    return rule
            return self._choose(method, target) if self._choose is not None else None

    def _forwarded(self, request: _Peer) -> bytes:
        """Send the request to the server, with its headers as they are; return the raw answer."""
        with contextlib.closing(HTTPConnection(*self._target)) as server:
            server.putrequest(request.command, request.path, skip_host=True, skip_accept_encoding=True)
            for name, value in request.headers.items():
                if name.lower() not in ("expect", "transfer-encoding"):
                    server.putheader(name, value)
            body = request.body()
            if "content-length" not in request.headers and body:
                server.putheader("Content-Length", str(len(body)))
            server.endheaders(body)
            answer = server.getresponse()
            data = answer.read()
        lines = [f"HTTP/1.1 {answer.status} {answer.reason}", "Connection: close"]
        here, target = self.endpoint, "http://{}:{}".format(*self._target)
        for name, value in answer.getheaders():
            if name.lower() not in ("connection", "transfer-encoding"):
                lines.append(f"{name}: {value.replace(target, here) if name.lower() == 'location' else value}")
        if answer.chunked:
            lines.append(f"Content-Length: {len(data)}")
        return "\r\n".join([*lines, "", ""]).encode("latin-1") + data


class _Server(ThreadingHTTPServer):
    request_queue_size = 128


class _Peer(BaseHTTPRequestHandler):
    """One connection to the gateway, closed after its answer."""

    protocol_version = "HTTP/1.1"

    def __init__(self, gateway: Gateway, *args: Any) -> None:
        self._gateway = gateway
        super().__init__(*args)

    def handle(self) -> None:
        """Read one request, send its answer, shut down the sending side, and wait until the client closes.

        Connection and parse errors are ignored.
        """
        with contextlib.suppress(OSError, ValueError, HTTPException):
            self.raw_requestline = self.rfile.readline()
            if self.raw_requestline and self.parse_request():
                self.connection.sendall(self._gateway._answer(self))  # noqa: SLF001 - same file
                self.connection.shutdown(socket.SHUT_WR)
                while self.connection.recv(_READ_BYTES):
                    pass

    def body(self) -> bytes:
        """Read the request's body, out of its chunks."""
        if "chunked" not in self.headers.get("transfer-encoding", "").lower():
            return self.rfile.read(int(self.headers.get("content-length", 0)))
        read = bytearray()
        while size := int(self.rfile.readline().split(b";")[0], 16):
            read += self.rfile.read(size)
            self.rfile.readline()
        while self.rfile.readline().strip():
            pass
        return bytes(read)
