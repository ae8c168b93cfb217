"""HTTP/1.1 messages as they are on the wire: parsed far enough to be matched and rewritten, else left alone.

A body keeps its framing: a chunked one stays chunked, an aws-chunked one is opaque bytes.
Source: RFC 9112, sections 2-7 (message format, body length, chunked, connection management).
"""

from __future__ import annotations

import urllib.parse
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable, Iterable

Lines = tuple[tuple[str, str], ...]


def lowered(lines: Lines) -> dict[str, str]:
    return {name.lower(): value for name, value in lines}


def without(lines: Lines, *names: str) -> Lines:
    gone = {name.lower() for name in names}
    return tuple(line for line in lines if line[0].lower() not in gone)


@dataclass(frozen=True)
class Request:
    """What a client asked. `path` has no query; names in `headers` are in lower case."""

    method: str
    target: str
    lines: Lines
    body: bytes = b""

    @property
    def path(self) -> str:
        return self.target.partition("?")[0]

    @property
    def query(self) -> dict[str, str]:
        return dict(urllib.parse.parse_qsl(self.target.partition("?")[2], keep_blank_values=True))

    @property
    def headers(self) -> dict[str, str]:
        return lowered(self.lines)

    def without_headers(self, *names: str) -> Request:
        return replace(self, lines=without(self.lines, *names))

    def without_query(self, *names: str) -> Request:
        path, _, query = self.target.partition("?")
        kept = [pair for pair in query.split("&") if pair.partition("=")[0] not in names]
        return replace(self, target=f"{path}?{'&'.join(kept)}" if query else path)

    def encode(self) -> bytes:
        # Expect was answered by whoever read the body; asked twice it would be waited for twice.
        return _encode(f"{self.method} {self.target} HTTP/1.1", without(self.lines, "expect"), self.body)


@dataclass(frozen=True)
class Answer:
    """What a server said."""

    status: int
    lines: Lines = ()
    body: bytes = b""
    reason: str = "Injected"
    version: str = "HTTP/1.1"
    last: bool = field(default=False)  # the connection does not survive it

    @property
    def headers(self) -> dict[str, str]:
        return lowered(self.lines)

    def encode(self) -> bytes:
        return _encode(f"{self.version} {self.status} {self.reason}", self.lines, self.body)


def _encode(first: str, lines: Lines, body: bytes) -> bytes:
    head = "".join(f"{name}: {value}\r\n" for name, value in lines)
    return f"{first}\r\n{head}\r\n".encode("latin-1") + body


async def read_request(reader: asyncio.StreamReader, go_on: Callable[[], None]) -> Request | None:
    """The next request, or None when the client is done; `go_on` is called where a client waits for 100."""
    head = await _read_head(reader)
    if head is None:
        return None
    (method, target, _version), lines = head
    headers = lowered(lines)
    if headers.get("expect", "").lower() == "100-continue":
        go_on()
    body = b""
    if "chunked" in headers.get("transfer-encoding", "").lower():
        body = await _read_chunked(reader)
    elif length := int(headers.get("content-length", "0")):
        body = await reader.readexactly(length)
    return Request(method, target, lines, body)


async def read_answer(reader: asyncio.StreamReader, method: str) -> Answer:
    """The final answer to a `method` request; interim ones (1xx) are passed over."""
    while True:
        head = await _read_head(reader)
        if head is None:
            raise ConnectionResetError("the server closed the connection without an answer")
        (version, status, reason), lines = head
        if not 100 <= int(status) < 200:
            break
    headers = lowered(lines)
    closing = version == "HTTP/1.0" or "close" in headers.get("connection", "").lower()
    body = b""
    if method == "HEAD" or int(status) in {204, 304}:
        pass
    elif "chunked" in headers.get("transfer-encoding", "").lower():
        body = await _read_chunked(reader)
    elif "content-length" in headers:
        body = await reader.readexactly(int(headers["content-length"]))
    else:
        body, closing = await reader.read(), True
    return Answer(int(status), lines, body, reason, version, closing)


async def _read_head(reader: asyncio.StreamReader) -> tuple[list[str], Lines] | None:
    first = await reader.readline()
    if not first.strip():
        return None
    lines: list[tuple[str, str]] = []
    while line := (await reader.readline()).decode("latin-1").rstrip("\r\n"):
        name, _, value = line.partition(":")
        lines.append((name, value.strip()))
    parts = first.decode("latin-1").rstrip("\r\n").split(" ", 2)
    return [*parts, "", ""][:3], tuple(lines)


async def _read_chunked(reader: asyncio.StreamReader) -> bytes:
    read = bytearray()
    while True:
        size_line = await reader.readuntil(b"\r\n")
        read += size_line
        size = int(size_line.split(b";")[0], 16)
        if size == 0:
            break
        read += await reader.readexactly(size + 2)
    while True:
        trailer = await reader.readuntil(b"\r\n")
        read += trailer
        if trailer == b"\r\n":
            return bytes(read)


def set_headers(lines: Lines, extra: Iterable[tuple[str, str]]) -> Lines:
    added = tuple(extra)
    return without(lines, *(name for name, _ in added)) + added
