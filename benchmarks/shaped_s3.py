"""A small S3 server in memory whose requests take as long as they are told to; nothing is checked but conditions.

    python -m benchmarks.shaped_s3 --get-ms 15 --put-ms 30      # prints its address

A request takes effect after half of its delay. A store of the real kind stalls where many clients write one key
(SeaweedFS for a second); this one does not, so what is measured is the protocol. `GET /` counts what was asked, by verb
and status; `DELETE /` forgets that.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import hashlib
import json
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.s3_clients import Site

ROOT = Path(__file__).resolve().parent.parent
_REASON = {100: "Continue", 200: "OK", 204: "No Content", 304: "Not Modified", 404: "Not Found", 412: "No"}
_CODE = {404: "NoSuchKey", 412: "PreconditionFailed"}


@dataclass(frozen=True, slots=True)
class Object:
    """What is kept."""

    data: bytes
    meta: dict[str, str]

    @property
    def etag(self) -> str:
        """A hash of the content, as S3's."""
        return f'"{hashlib.md5(self.data, usedforsecurity=False).hexdigest()}"'


@dataclass(slots=True)
class Answer:
    """A response."""

    status: int
    headers: dict[str, str] = field(default_factory=dict)
    body: bytes = b""

    def encode(self, verb: str) -> bytes:
        """As HTTP/1.1."""
        body = self.body
        if self.status in _CODE:
            body = f"<Error><Code>{_CODE[self.status]}</Code></Error>".encode()
        head = [f"HTTP/1.1 {self.status} {_REASON[self.status]}", f"Content-Length: {len(body)}"]
        head += [f"{name}: {value}" for name, value in self.headers.items()]
        return "\r\n".join([*head, "", ""]).encode() + (b"" if verb == "HEAD" or self.status == 304 else body)


@dataclass
class Server:
    """The objects, and the delays in seconds."""

    get_s: float = 0.0
    put_s: float = 0.0
    objects: dict[str, Object] = field(default_factory=dict)
    asked: Counter[str] = field(default_factory=Counter)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One connection."""
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            while True:
                await self._one(reader, writer)
        writer.close()

    async def _one(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        lines = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
        verb, target, _ = lines[0].split(" ")
        headers = {
            name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines[1:]) if name
        }
        if "expect" in headers:
            writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        body = await reader.readexactly(int(headers.get("content-length", 0)))
        delay_s = self.get_s if verb in ("GET", "HEAD") else self.put_s
        if target == "/":
            answer = self._statistics(verb)
        else:
            await self._pause(delay_s / 2)
            answer = self._do(verb, target.partition("?")[0], headers, body)
            await self._pause(delay_s / 2)
        writer.write(answer.encode(verb))
        await writer.drain()

    @staticmethod
    async def _pause(seconds: float) -> None:
        if seconds:
            await asyncio.sleep(seconds)

    def _statistics(self, verb: str) -> Answer:
        answer = Answer(200, body=json.dumps(self.asked).encode())
        if verb == "DELETE":
            self.asked.clear()
        return answer

    def _do(self, verb: str, key: str, headers: dict[str, str], body: bytes) -> Answer:
        answer = self._refusal(key, headers) or self._done(verb, key, headers, body)
        self.asked[f"{verb} {answer.status}"] += 1
        return answer

    def _refusal(self, key: str, headers: dict[str, str]) -> Answer | None:
        there = self.objects.get(key)
        match, none_match = headers.get("if-match"), headers.get("if-none-match")
        if match is not None and (there is None or there.etag != match):
            return Answer(404 if there is None else 412)
        if none_match == "*" and there is not None:
            return Answer(412)
        if none_match is not None and there is not None and there.etag == none_match:
            return Answer(304, {"ETag": there.etag})
        return None

    def _done(self, verb: str, key: str, headers: dict[str, str], body: bytes) -> Answer:
        if verb == "PUT":
            meta = {name: value for name, value in headers.items() if name.startswith("x-amz-meta-")}
            self.objects[key] = Object(body, meta)
            return Answer(200, {"ETag": self.objects[key].etag})
        if verb == "DELETE":
            self.objects.pop(key, None)
            return Answer(204)
        there = self.objects.get(key)
        if there is None:
            return Answer(404)
        stamp = {"Last-Modified": "Sat, 21 Nov 2026 00:00:00 GMT", "ETag": there.etag}
        return Answer(200, stamp | there.meta, there.data)


@contextlib.contextmanager
def running(get_ms: float, put_ms: float) -> Iterator[Site]:
    """The server in a process of its own."""
    command = [sys.executable, "-m", "benchmarks.shaped_s3", "--get-ms", str(get_ms), "--put-ms", str(put_ms)]
    child = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT)
    try:
        assert child.stdout is not None
        yield Site(child.stdout.readline().strip(), "key", "secret", "us-east-1", "bucket", "")
    finally:
        child.terminate()
        child.wait()


async def run(get_s: float, put_s: float) -> None:
    """Serve until killed."""
    server = await asyncio.start_server(Server(get_s, put_s).serve, "127.0.0.1", 0, backlog=1000)
    print(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", flush=True)
    await server.serve_forever()


def main() -> None:
    """Serve."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--get-ms", type=float, default=0.0)
    parser.add_argument("--put-ms", type=float, default=0.0)
    arguments = parser.parse_args()
    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(run(arguments.get_ms / 1000, arguments.put_ms / 1000))


if __name__ == "__main__":
    main()
