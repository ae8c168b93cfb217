"""Test tools: a manual clock, a backend that loses, delays and repeats requests, and a proxy with wrong answers.

Assert on `Faulty.fired`: a fault that did not fire has tested nothing.
"""

from __future__ import annotations

import contextlib
import json
import socket
import threading
from collections import deque
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from http.client import HTTPConnection, HTTPException
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import MappingProxyType
from typing import Any, Literal, get_args

from fsspec_cas.answer import NoAnswer, NotApplied
from fsspec_cas.backends import Backend, Relay
from fsspec_cas.errors import InvalidInput
from fsspec_cas.machine import Worker, World

__all__ = [
    "WRONG_ANSWERS",
    "Delay",
    "DeliverLate",
    "DeliverTwice",
    "Fault",
    "Faulty",
    "Gateway",
    "Interrupt",
    "LoseAnswer",
    "LoseRequest",
    "ManualClock",
    "Operation",
    "Pass",
    "Refuse",
    "Rule",
]

Ask = Callable[[], Coroutine[Any, Any, Any]]
Operation = Literal["put", "head", "get", "delete", "list_page", "begin", "add", "finish"]


@dataclass(slots=True)
class ManualClock:
    """Deterministic `World`: time advances only by `advance()` or `sleep()`; ids count up from 1.

    `sleeps` records the pauses, in seconds.

    >>> clock = ManualClock(now_s=1000.0, draw=0.25)
    """

    now_s: float = 1_700_000_000.0
    draw: float = 0.5
    sleeps: list[float] = field(default_factory=list)
    _ids: int = 0

    def now_ms(self) -> int:
        return int(self.now_s * 1000)

    def monotonic_s(self) -> float:
        return self.now_s

    def new_id(self) -> str:
        self._ids += 1
        return f"00000000-0000-0000-0000-{self._ids:012x}"

    def random(self) -> float:
        return self.draw

    def sleep(self, seconds: float) -> None:
        self.sleeps.append(seconds)
        self.advance(seconds)

    def advance(self, seconds: float) -> None:
        """Advance the clock.

        >>> clock.advance(5)
        >>> clock.now_s
        1005.0
        """
        self.now_s += seconds


@dataclass(frozen=True, slots=True)
class Pass:
    """No fault: the request passes.

    >>> faulty = Faulty(Store.from_url("memory://docs/store").backend, {"put": [Pass(), LoseAnswer()]})
    >>> first = Store(faulty, "/docs").put_if_absent("a", b"1").unwrap()
    >>> faulty.fired
    []
    """


@dataclass(frozen=True, slots=True)
class LoseRequest:
    """The request never arrives, and the caller gets no answer.

    >>> faulty = Faulty(Store.from_url("memory://docs/store").backend, {"put": [LoseRequest()]})
    >>> Store(faulty, "/docs").put_if_absent("a", b"1").resent
    True
    """


@dataclass(frozen=True, slots=True)
class LoseAnswer:
    """The request is performed, its answer lost.

    >>> faulty = Faulty(Store.from_url("memory://docs/store").backend, {"put": [LoseAnswer()]})
    >>> isinstance(Store(faulty, "/docs").put_if_absent("a", b"1"), Won), faulty.calls
    (True, ['put', 'head'])
    """


@dataclass(frozen=True, slots=True)
class Refuse:
    """The store rejects the request, certainly unapplied: 429, 409 "conflict", no connection.

    >>> faulty = Faulty(Store.from_url("memory://docs/store").backend, {"put": [Refuse()]})
    >>> isinstance(Store(faulty, "/docs", world=ManualClock()).put_if_absent("a", b"1"), Won), faulty.calls
    (True, ['put', 'head', 'put'])
    """

    retry_after_s: float | None = None


@dataclass(frozen=True, slots=True)
class Delay:
    """Time passes, then the request is performed.

    >>> backend, clock = Store.from_url("memory://docs/store").backend, ManualClock()
    >>> faulty = Faulty(backend, {"put": [Delay(3)]}, world=clock)
    >>> done = Store(faulty, "/docs", world=clock).put_if_absent("a", b"1")
    >>> clock.sleeps
    [3]
    """

    seconds: float


@dataclass(frozen=True, slots=True)
class DeliverTwice:
    """A proxy sends the request twice and returns the second answer.

    >>> faulty = Faulty(Store.from_url("memory://docs/store").backend, {"put": [DeliverTwice()]})
    >>> isinstance(Store(faulty, "/docs").put_if_absent("a", b"1"), Won)  # the second answer was a refusal
    True
    """


@dataclass(frozen=True, slots=True)
class DeliverLate:
    """The caller gets no answer; the request arrives before the call that comes `calls` later.

    >>> faulty = Faulty(Store.from_url("memory://docs/store").backend, {"put": [DeliverLate(calls=2)]})
    >>> isinstance(Store(faulty, "/docs", world=ManualClock()).put_if_absent("a", b"1"), Won)
    True
    """

    calls: int = 1


@dataclass(frozen=True, slots=True)
class Interrupt:
    """Ctrl-C or the task's cancellation, after the request was performed (before, if not `done`).

    >>> faulty = Faulty(Store.from_url("memory://docs/store").backend, {"put": [Interrupt()]})
    >>> try:
    ...     Store(faulty, "/docs").put_if_absent("a", b"1")
    ... except KeyboardInterrupt as stop:
    ...     print(stop.__cause__)
    the call for '/docs/a' may have been applied: ...
    """

    done: bool = True
    with_error: type[BaseException] = KeyboardInterrupt


Fault = Pass | LoseRequest | LoseAnswer | Refuse | Delay | DeliverTwice | DeliverLate | Interrupt


@dataclass(slots=True)
class _Late:
    calls_left: int
    ask: Ask


class Faulty(Relay):
    """Backend with faults: `plan` lists, for each operation, the faults of its calls in turn; later calls pass.

    Attributes:
        fired: faults that happened, in order, each with its operation.
        calls: operations called, in order.

    Raises:
        InvalidInput: the plan names an unknown operation.

    >>> backend = Store.from_url("memory://docs/store").backend
    >>> faulty = Faulty(backend, {"put": [LoseAnswer()]}, world=ManualClock())
    >>> version = Store(faulty, "/docs").put_if_absent("a", b"1").unwrap()
    >>> faulty.fired, faulty.left
    ([('put', LoseAnswer())], {})
    """

    def __init__(
        self, inner: Backend, plan: Mapping[Operation, Sequence[Fault]], *, world: World | None = None
    ) -> None:
        operations = get_args(Operation)
        if strange := [name for name in plan if name not in operations]:
            raise InvalidInput(
                f"the plan names {strange}, which are no operations: name some of {', '.join(operations)}"
            )
        super().__init__(inner, blocking=inner.blocking)
        self.fired: list[tuple[Operation, Fault]] = []
        self.calls: list[Operation] = []
        self._plan = {operation: deque(faults) for operation, faults in plan.items()}
        self._world = world or ManualClock()
        self._late: list[_Late] = []

    def __repr__(self) -> str:
        return f"<Faulty {self.name}, {len(self.fired)} of its faults fired>"

    @property
    def left(self) -> dict[Operation, list[Fault]]:
        """Planned faults that have not happened."""
        return {operation: list(faults) for operation, faults in self._plan.items() if faults}

    async def close(self) -> None:
        """Close the inner backend; late requests never arrive."""
        self._late.clear()
        await self.inner.close()

    async def deliver_late(self) -> None:
        """Deliver all late requests now.

        >>> late = Faulty(backend, {"put": [DeliverLate(calls=99)]})
        >>> sent_again = Store(late, "/docs").put_if_absent("b", b"1").unwrap()
        >>> Store(backend, "/docs").delete("b")
        >>> await late.deliver_late(), Store(backend, "/docs").read("b").data
        (None, b'1')
        """
        late, self._late = self._late, []
        for late_request in late:
            await late_request.ask()

    async def relay(self, name: str, ask: Ask) -> Any:
        """Deliver late requests now due, record call and planned fault, and send the call with the fault.

        An abort is only sent.
        """
        if name == "abort":
            return await ask()
        operation: Operation = name  # type: ignore[assignment] # no other names exist
        for late_request in list(self._late):
            late_request.calls_left -= 1
            if late_request.calls_left <= 0:
                self._late.remove(late_request)
                await late_request.ask()
        self.calls.append(operation)
        planned = self._plan.get(operation)
        fault = planned.popleft() if planned else Pass()
        if not isinstance(fault, Pass):
            self.fired.append((operation, fault))
        return await self._suffer(fault, ask)

    async def _suffer(self, fault: Fault, ask: Ask) -> Any:
        """Send the request with this fault; return its answer, `NotApplied` if refused, `NoAnswer` if lost or late.

        Queues late requests for `relay`. An interrupt raises, perhaps after sending.
        """
        match fault:
            case Refuse(retry_after_s):
                return NotApplied("refused by plan", retry_after_s)
            case LoseRequest():
                return NoAnswer("the request was lost by plan")
            case LoseAnswer():
                await ask()
                return NoAnswer("the answer was lost by plan")
            case DeliverLate(calls):
                self._late.append(_Late(calls, ask))
                return NoAnswer("the request is late by plan")
            case Interrupt(done, with_error):
                if done:
                    await ask()
                raise with_error
            case Delay(seconds):
                self._world.sleep(seconds)
            case DeliverTwice():
                await ask()
        return await ask()


_HTML = b"<html><head><title>Sign in</title></head><body><h1>Welcome</h1></body></html>"
_XHTML = b'<?xml version="1.0"?><html xmlns="http://www.w3.org/1999/xhtml"><body><p>Welcome</p></body></html>'
_INTERNAL = b'<?xml version="1.0"?><Error><Code>InternalError</Code><Message>try again</Message></Error>'
_NGINX = b"<html>\r\n<head><title>404 Not Found</title></head>\r\n<body><center>nginx</center></body></html>"
_DATE = "Sat, 21 Nov 2026 04:00:00 GMT"
_ETAG = '"900150983cd24fb0d6963f7d28e17f72"'
_PHRASES = {200: "OK", 302: "Found", 404: "Not Found", 503: "Service Unavailable"}


def http(status: int, body: bytes = b"", *, version: str = "1.1", length: bool = True, **headers: object) -> bytes:
    """Return an HTTP response with `Connection: close`; a tuple repeats the header.

    `_` in a name stands for `-`. No Content-Length unless `length`.
    """
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
    ETag=_ETAG,
    Last_Modified=_DATE,
    x_amz_request_id="PORTAL",
    x_guploader_uploadid="PORTAL",
    x_goog_generation=1,
    x_ms_request_id="PORTAL",
)
_READ_BYTES = 1 << 16


@dataclass
class Rule:
    """Gateway's answer to some requests, and a count of its uses.

    Attributes:
        answer: raw bytes; `{portal}` becomes an address that answers every request as a store would.
        mode: "instead": the store gets no request; "after": it does, and its answer is replaced.
        times: requests to answer; None: all.
        skip: matching requests that pass first.
    """

    answer: bytes
    mode: Literal["instead", "after"] = "instead"
    times: int | None = 1
    skip: int = 0
    match: Callable[[str, str], bool] = field(default=lambda _method, _target: True)
    fired: int = 0

    def takes(self, method: str, target: str) -> bool:
        """Return True, and count it in `fired`, if the rule answers this request.

        A match to skip lowers `skip`, and gets False.
        """
        if not self.match(method, target) or (self.times is not None and self.fired >= self.times):
            return False
        if self.skip:
            self.skip -= 1
            return False
        self.fired += 1
        return True


class Gateway:
    """HTTP proxy without TLS on a free port of 127.0.0.1, in front of the server at `host` and `port`.

    It closes each connection after one answer. `choose` returns a rule for a request that none of `rules` takes;
    `requests` has method and target of each.

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
        """Record the request; return a rule's raw answer (mode "after": also forward it), else the server's.

        The portal's address answers unrecorded.
        """
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
        """Send the request to the server; return its raw answer, with the gateway's address in redirects."""
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
    protocol_version = "HTTP/1.1"

    def __init__(self, gateway: Gateway, *args: Any) -> None:
        self._gateway = gateway
        super().__init__(*args)

    def handle(self) -> None:
        """Read one request, send its answer, and wait until the client closes.

        Network and parse errors only end the connection.
        """
        with contextlib.suppress(OSError, ValueError, HTTPException):
            self.raw_requestline = self.rfile.readline()
            if self.raw_requestline and self.parse_request():
                self.connection.sendall(self._gateway._answer(self))  # noqa: SLF001
                self.connection.shutdown(socket.SHUT_WR)
                while self.connection.recv(_READ_BYTES):
                    pass

    def body(self) -> bytes:
        """Read and return the body, decoding chunks."""
        if "chunked" not in self.headers.get("transfer-encoding", "").lower():
            return self.rfile.read(int(self.headers.get("content-length", 0)))
        read = bytearray()
        while size := int(self.rfile.readline().split(b";")[0], 16):
            read += self.rfile.read(size)
            self.rfile.readline()
        while self.rfile.readline().strip():
            pass
        return bytes(read)
