"""A small S3 server in memory whose requests take as long as they are told to; nothing is checked but conditions.

    python -m benchmarks.shaped_s3 --get-ms 15 --put-ms 30 --list-ms 40      # prints its address

A request takes effect after half of its delay. A store of the real kind stalls where many clients write one key
(SeaweedFS for a second); this one does not, so what is measured is the protocol. `GET /` counts what was asked, by verb
and status, `GET /?paths` by path, too; `DELETE /` forgets that. Uploads in parts are for clients that make them of
anything; their completion obeys conditions. With `--pace N` an object takes N writes a second, as on GCS, and those
beyond it are answered with 429. With `--holds FOLDER` the files below it are there from the start, as `bucket/name`.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import hashlib
import json
import re
import subprocess
import sys
import time
from bisect import bisect_left, bisect_right, insort
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import parse_qs, quote, unquote
from xml.sax.saxutils import escape, unescape

from benchmarks.s3_clients import Site

ROOT = Path(__file__).resolve().parent.parent
_REASON = {
    100: "Continue",
    200: "OK",
    204: "No Content",
    206: "Partial Content",
    304: "Not Modified",
    404: "Not Found",
    412: "No",
    416: "No",
    429: "Too Many Requests",
}
_CODE = {404: "NoSuchKey", 412: "PreconditionFailed", 416: "InvalidRange", 429: "SlowDown"}
_PAGE = 1000
_STAMP = "2026-11-21T00:00:00.000Z"
_HTTP_STAMP = "Sat, 21 Nov 2026 00:00:00 GMT"


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
        """Return the response in HTTP/1.1, with an S3 error as body for an error status.

        Without body for HEAD and 304.
        """
        body = self.body
        if self.status in _CODE:
            body = f"<Error><Code>{_CODE[self.status]}</Code></Error>".encode()
        length = self.headers.pop("length", str(len(body)))
        head = [f"HTTP/1.1 {self.status} {_REASON[self.status]}", f"Content-Length: {length}"]
        head += [f"{name}: {value}" for name, value in {"x-amz-request-id": "0", **self.headers}.items()]
        return "\r\n".join([*head, "", ""]).encode() + (b"" if verb == "HEAD" or self.status == 304 else body)


@dataclass
class Server:
    """The objects, the delays in seconds, and how long an object that was written takes no other write."""

    get_s: float = 0.0
    put_s: float = 0.0
    list_s: float = 0.0
    pace_s: float = 0.0
    objects: dict[str, Object] = field(default_factory=dict)
    names: list[str] = field(default_factory=list)  # sorted
    parts: dict[str, dict[int, bytes]] = field(default_factory=dict)
    asked: Counter[str] = field(default_factory=Counter)  # by verb, status and path
    written_s: dict[str, float] = field(default_factory=dict)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One connection."""
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            while True:
                await self._one(reader, writer)
        writer.close()

    async def _one(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Read one request, answer it, half of its delay before its effect and half after.

        "/" answers with statistics at once.
        """
        lines = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
        verb, target, _ = lines[0].split(" ")
        headers = {
            name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines[1:]) if name
        }
        if "expect" in headers:
            writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        if headers.get("transfer-encoding") == "chunked":
            body = await _chunks(reader)
        else:
            body = await reader.readexactly(int(headers.get("content-length", 0)))
        path, _, text = target.partition("?")
        query = {name: values[0] for name, values in parse_qs(text, keep_blank_values=True).items()}
        kind = "LIST" if verb == "GET" and path.count("/") < 2 + path.endswith("/") else verb
        delay_s = {"GET": self.get_s, "HEAD": self.get_s, "LIST": self.list_s}.get(kind, self.put_s)
        if path == "/":
            answer = self._statistics(verb, by_path="paths" in query)
        else:
            await self._pause(delay_s / 2)
            answer = self._do(kind, unquote(path), query, headers, _plain(headers, body))
            await self._pause(delay_s / 2)
        writer.write(answer.encode(verb))
        await writer.drain()

    @staticmethod
    async def _pause(seconds: float) -> None:
        if seconds:
            await asyncio.sleep(seconds)

    def _statistics(self, verb: str, *, by_path: bool) -> Answer:
        """Return counts of requests by verb and status, `by_path` also by path; DELETE resets them."""
        asked: Counter[str] = Counter()
        for what, count in self.asked.items():
            asked[what if by_path else " ".join(what.split(" ", 2)[:2])] += count
        answer = Answer(200, body=json.dumps(asked).encode())
        if verb == "DELETE":
            self.asked.clear()
        return answer

    def _do(self, verb: str, key: str, query: dict[str, str], headers: dict[str, str], body: bytes) -> Answer:
        """Carry out a request, and count it by verb, status and path."""
        if verb == "LIST":
            answer = self._list(key.strip("/"), query)
        elif "delete" in query:
            answer = self._delete_all(key.strip("/"), body)
        elif "uploads" in query or "uploadId" in query:
            answer = self._in_parts(verb, key, query, headers, body)
        else:
            answer = self._refusal(key, headers) or self._done(verb, key, headers, body)
        below = query.get("prefix", "") if verb == "LIST" else ""
        self.asked[f"{verb} {answer.status} {key}{below}"] += 1
        return answer

    def _refusal(self, key: str, headers: dict[str, str]) -> Answer | None:
        """Return 412, 404 or 304 if a condition of the request fails; None: none fails."""
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
        """Carry out a PUT, DELETE, HEAD or GET of one object; 429 for a PUT too soon after the last one."""
        if verb == "PUT":
            now_s = time.monotonic()
            wait_s = self.written_s.get(key, now_s - self.pace_s) + self.pace_s - now_s
            if self.pace_s and key in self.objects and wait_s > 0:
                return Answer(429, {"Retry-After": "1"})
            self.written_s[key] = now_s
            meta = {name: value for name, value in headers.items() if name.startswith("x-amz-meta-")}
            return Answer(200, {"ETag": self._put(key, Object(body, meta))})
        if verb == "DELETE":
            self._delete(key)
            return Answer(204)
        there = self.objects.get(key)
        if there is None:
            return Answer(404)
        stamp = {"Last-Modified": _HTTP_STAMP, "ETag": there.etag, "Accept-Ranges": "bytes"} | there.meta
        if verb == "HEAD":
            return Answer(200, stamp | {"length": str(len(there.data))})
        return _ranged(there.data, headers.get("range", ""), stamp)

    def _put(self, key: str, made: Object) -> str:
        if key not in self.objects:
            insort(self.names, key)
        self.objects[key] = made
        return made.etag

    def _delete(self, key: str) -> None:
        if self.objects.pop(key, None) is not None:
            del self.names[bisect_left(self.names, key)]

    def _delete_all(self, bucket: str, body: bytes) -> Answer:
        names = re.findall(r"<Key>(.*?)</Key>", body.decode(), re.DOTALL)
        for name in names:
            self._delete(f"/{bucket}/{unescape(name, {'&quot;': chr(34), '&apos;': chr(39)})}")
        told = [] if b"<Quiet>true</Quiet>" in body else names
        done = "".join(f"<Deleted><Key>{name}</Key></Deleted>" for name in told)
        return Answer(200, body=f"<DeleteResult>{done}</DeleteResult>".encode())

    def _list(self, bucket: str, query: dict[str, str]) -> Answer:
        """Answer ListObjectsV2, with prefix, delimiter and pages."""
        root = f"/{bucket}/"
        prefix, delimiter = query.get("prefix", ""), query.get("delimiter", "")
        most = min(int(query.get("max-keys", _PAGE)), _PAGE)
        after = query.get("continuation-token") or query.get("start-after", "")
        place = max(bisect_left(self.names, root + prefix), bisect_right(self.names, root + after) if after else 0)
        found: list[str] = []
        folders: dict[str, None] = {}
        last = ""
        while (
            place < len(self.names) and self.names[place].startswith(root + prefix) and len(found) + len(folders) < most
        ):
            last = self.names[place].removeprefix(root)
            head, cut, _ = last[len(prefix) :].partition(delimiter) if delimiter else ("", "", "")
            if cut:
                folders[last := prefix + head + delimiter] = None
                place = bisect_left(self.names, root + last + "\U0010ffff")
                last += "\U0010ffff"
            else:
                found.append(last)
                place += 1
        more = place < len(self.names) and self.names[place].startswith(root + prefix)
        shown = quote if query.get("encoding-type") == "url" else escape
        text = "".join(
            f"<Contents><Key>{shown(name)}</Key><LastModified>{_STAMP}</LastModified>"
            f"<ETag>{escape(self.objects[root + name].etag)}</ETag><Size>{len(self.objects[root + name].data)}</Size>"
            "<StorageClass>STANDARD</StorageClass></Contents>"
            for name in found
        )
        text += "".join(f"<CommonPrefixes><Prefix>{shown(name)}</Prefix></CommonPrefixes>" for name in folders)
        text += f"<NextContinuationToken>{escape(last)}</NextContinuationToken>" if more else ""
        encoding = "<EncodingType>url</EncodingType>" if query.get("encoding-type") == "url" else ""
        count = f"<KeyCount>{len(found) + len(folders)}</KeyCount><MaxKeys>{most}</MaxKeys>"
        whole = f"<Name>{bucket}</Name><Prefix>{shown(prefix)}</Prefix>{encoding}{count}"
        whole += f"<IsTruncated>{'true' if more else 'false'}</IsTruncated>{text}"
        return Answer(
            200, {"Content-Type": "application/xml"}, f"<ListBucketResult>{whole}</ListBucketResult>".encode()
        )

    def _in_parts(self, verb: str, key: str, query: dict[str, str], headers: dict[str, str], body: bytes) -> Answer:
        """Carry out a step of a multipart upload: begin, part, complete (under conditions), or abort.

        404 if unknown.
        """
        if "uploads" in query:
            token = str(len(self.parts))
            self.parts[token] = {}
            return Answer(200, body=f"<R><UploadId>{token}</UploadId></R>".encode())
        parts = self.parts.get(query["uploadId"])
        if parts is None:
            return Answer(404)
        if verb == "PUT":
            parts[int(query["partNumber"])] = body
            return Answer(200, {"ETag": Object(body, {}).etag})
        if verb == "POST":
            refused = self._refusal(key, headers)
            if refused is not None:
                return refused
            tag = self._put(key, Object(b"".join(parts[number] for number in sorted(parts)), {}))
            self.parts.pop(query["uploadId"])
            return Answer(
                200,
                body=f"<CompleteMultipartUploadResult><ETag>{escape(tag)}</ETag></CompleteMultipartUploadResult>".encode(),
            )
        self.parts.pop(query["uploadId"], None)
        return Answer(204)


def _ranged(data: bytes, wanted: str, headers: dict[str, str]) -> Answer:
    """Answer a GET with the wanted range (206), all bytes if it is none, or 416 beyond the end."""
    found = re.fullmatch(r"bytes=(\d*)-(\d*)", wanted)
    if found is None:
        return Answer(200, headers, data)
    first, last = found.groups()
    start = int(first) if first else max(0, len(data) - int(last))
    end = min(len(data), int(last) + 1) if first and last else len(data)
    if start >= len(data):
        return Answer(416)
    return Answer(206, headers | {"Content-Range": f"bytes {start}-{end - 1}/{len(data)}"}, data[start:end])


async def _chunks(reader: asyncio.StreamReader) -> bytes:
    """A body in HTTP's chunks."""
    body = b""
    while size := int((await reader.readuntil(b"\r\n")).partition(b";")[0], 16):
        body += (await reader.readexactly(size + 2))[:-2]
    while await reader.readuntil(b"\r\n") != b"\r\n":
        pass
    return body


def _plain(headers: dict[str, str], body: bytes) -> bytes:
    """Return the body, decoded from AWS's signed chunks if it has them."""
    if not headers.get("x-amz-content-sha256", "").startswith("STREAMING-"):
        return body
    plain = b""
    while True:
        size, _, rest = body.partition(b"\r\n")
        count = int(size.partition(b";")[0], 16)
        if not count:
            return plain
        plain, body = plain + rest[:count], rest[count + 2 :]


@contextlib.contextmanager
def running(
    get_ms: float, put_ms: float, list_ms: float = 0.0, pace: float = 0.0, *, holds: Path | None = None
) -> Iterator[Site]:
    """Run the server as a process.

    Yield its address and credentials, then end it. `holds`: a folder of first objects.
    """
    command = [sys.executable, "-m", "benchmarks.shaped_s3", "--get-ms", str(get_ms), "--put-ms", str(put_ms)]
    command += ["--list-ms", str(list_ms), "--pace", str(pace)]
    command += [] if holds is None else ["--holds", str(holds)]
    child = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT)
    try:
        assert child.stdout is not None
        yield Site(child.stdout.readline().strip(), "key", "secret", "us-east-1", "bucket", "")
    finally:
        child.terminate()
        child.wait()


def files_below(folder: Path) -> dict[str, Object]:
    """As objects."""
    files = (path for path in folder.rglob("*") if path.is_file())
    return {f"/{path.relative_to(folder).as_posix()}": Object(path.read_bytes(), {}) for path in files}


async def run(server_of: Server) -> None:
    """Serve until killed."""
    server = await asyncio.start_server(server_of.serve, "127.0.0.1", 0, backlog=1000)
    print(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", flush=True)
    await server.serve_forever()


def main() -> None:
    """Serve on a free port until Ctrl-C, with the delays of the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--get-ms", type=float, default=0.0)
    parser.add_argument("--put-ms", type=float, default=0.0)
    parser.add_argument("--list-ms", type=float, default=0.0)
    parser.add_argument("--pace", type=float, default=0.0, help="writes a second of one object; 0: any")
    parser.add_argument("--holds", type=Path, help="a folder of objects that are there from the start")
    arguments = parser.parse_args()
    delays_s = arguments.get_ms / 1000, arguments.put_ms / 1000, arguments.list_ms / 1000
    pace_s = 1 / arguments.pace if arguments.pace else 0.0
    held = {} if arguments.holds is None else files_below(arguments.holds)
    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(run(Server(*delays_s, pace_s, held, sorted(held))))


if __name__ == "__main__":
    main()
