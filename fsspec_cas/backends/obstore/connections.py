"""HTTP/1.1 connections to one origin, kept for any threads, that send each request once.

The proxy defaults to the environment's; `last_byte` may hold back a body's end.
"""

from __future__ import annotations

import http.client
import os
import select
import ssl
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from urllib.parse import SplitResult, unquote, urlsplit
from urllib.request import getproxies, proxy_bypass

from fsspec_cas.backends.http import LONGEST_S
from fsspec_cas.backends.last_byte import hold_last_byte_here
from fsspec_cas.backends.reply import HttpReply
from fsspec_cas.machine import Machine

_CLOCK = Machine()
_CHUNK_BYTES = 1 << 20
_PORTS = {"http": 80, "https": 443}


@dataclass(frozen=True, slots=True)
class Times:
    total_s: float
    connect_s: float
    silent_s: float


class NeverSent(Exception):
    """`__cause__` is the reason."""


class Connections:
    def __init__(self, origin: str, *, verify: bool = True, proxy: str | None = None, most: int = 64) -> None:
        self._origin = urlsplit(origin)
        self._context = _context(verify=verify) if self._origin.scheme == "https" else None
        if proxy is None and not proxy_bypass(self._origin.netloc):
            proxy = getproxies().get(self._origin.scheme)
        self._proxy = urlsplit(proxy if "://" in proxy else f"http://{proxy}") if proxy else None
        self._most = most
        self._kept: deque[http.client.HTTPConnection] = deque()
        self._pid = os.getpid()

    def exchange(
        self, method: str, target: str, headers: Mapping[str, str], body: bytes | None, times: Times
    ) -> HttpReply:
        """Send the request once, and read the whole reply; keep the connection, or close a bad or superfluous one.

        NeverSent: nothing was sent. Other errors: perhaps applied.
        """
        deadline_s = _CLOCK.monotonic_s() + times.total_s
        connection = self._connection(times)
        fine = False
        try:
            _let_wait(connection, min(times.total_s, times.silent_s))
            more = {"Content-Length": str(len(body))} if body else {}
            if self._proxy is not None and self._context is None:
                target = f"{self._origin.scheme}://{self._origin.netloc}{target}"
                more |= _proxy_headers(self._proxy)
            connection.request(method, target, hold_last_byte_here(body) if body else body, {**headers, **more})
            answer = connection.getresponse()
            data = self._body(connection, answer, deadline_s)
            fine = answer.status >= 200 and not answer.will_close
            return HttpReply(answer.status, answer.headers.raw_items(), data)  # items() checks each for surrogates
        finally:
            if fine and len(self._kept) < self._most:
                self._kept.append(connection)
            else:
                connection.close()

    def close(self) -> None:
        while self._kept:
            self._kept.pop().close()

    def _connection(self, times: Times) -> http.client.HTTPConnection:
        """Take a usable kept connection, or open one; raise NeverSent if that fails.

        Closes unusable ones; a forked child drops all.
        """
        if self._pid != os.getpid():
            self._kept, self._pid = deque(), os.getpid()
        while self._kept:
            try:
                idle = self._kept.pop()
            except IndexError:
                break
            if not _has_something_to_say(idle):
                return idle
            idle.close()
        connection = self._made(times)
        try:
            connection.connect()
        except Exception as error:
            connection.close()
            raise NeverSent from error
        return connection

    def _made(self, times: Times) -> http.client.HTTPConnection:
        """Return an unopened connection to the origin, or to its proxy; with TLS, through the proxy's tunnel."""
        host, port = self._origin.hostname or "", self._origin.port or _PORTS[self._origin.scheme]
        proxy = self._proxy
        near = (host, port) if proxy is None else (proxy.hostname or "", proxy.port or _PORTS["http"])
        if self._context is None:
            return http.client.HTTPConnection(*near, timeout=times.connect_s)
        connection = http.client.HTTPSConnection(*near, timeout=times.connect_s, context=self._context)
        if proxy is not None:
            connection.set_tunnel(host, port, _proxy_headers(proxy))
        return connection

    @staticmethod
    def _body(connection: http.client.HTTPConnection, answer: http.client.HTTPResponse, deadline_s: float) -> bytes:
        """Read the body, a large one until the deadline (TimeoutError); raise IncompleteRead if it is cut off."""
        if answer.length is not None and answer.length <= _CHUNK_BYTES:
            return answer.read()
        pieces: list[bytes] = []
        while True:
            _let_wait(connection, deadline_s - _CLOCK.monotonic_s())
            piece = answer.read(_CHUNK_BYTES)
            if not piece:
                break
            pieces.append(piece)
        if answer.length:
            raise http.client.IncompleteRead(b"", answer.length)
        return b"".join(pieces)


def _let_wait(connection: http.client.HTTPConnection, seconds: float) -> None:
    if seconds <= 0:
        raise TimeoutError("the timeout has passed")
    if connection.sock is not None:
        connection.sock.settimeout(min(seconds, LONGEST_S))


def _has_something_to_say(connection: http.client.HTTPConnection) -> bool:
    if connection.sock is None:
        return True
    poll = select.poll()
    poll.register(connection.sock, select.POLLIN)
    return bool(poll.poll(0))


def _context(*, verify: bool) -> ssl.SSLContext:
    """Return TLS settings that trust the system's certificates and AWS_CA_BUNDLE's.

    Unless `verify`, any certificate passes.
    """
    context = ssl.create_default_context()
    bundle = os.environ.get("AWS_CA_BUNDLE")
    if bundle:
        context.load_verify_locations(bundle)
    if not verify:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    return context


def _proxy_headers(proxy: SplitResult) -> dict[str, str]:
    if proxy.username is None:
        return {}
    from base64 import b64encode  # noqa: PLC0415

    plain = f"{unquote(proxy.username)}:{unquote(proxy.password or '')}"
    return {"Proxy-Authorization": f"Basic {b64encode(plain.encode()).decode()}"}
