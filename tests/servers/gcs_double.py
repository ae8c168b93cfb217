"""A wire double of Cloud Storage's JSON API, written from Google's documentation; it is NOT a GCS server.

It exists because no emulator on a package registry enforces preconditions on GET, DELETE and resumable uploads. In
memory, one thread, so every request is atomic. What it speaks:

- buckets: insert; objects: insert (media, multipart, resumable), get (metadata and alt=media), delete, list;
- a generation that grows with every write and never repeats, and a metageneration;
- ifGenerationMatch, ifGenerationNotMatch, ifMetagenerationMatch, ifMetagenerationNotMatch on all of them, where
  generation 0 means "no live object"; a false one is 412, or 304 for a "not match" on a GET;
- errors as the documented JSON; 401 for a token that is not its own, 403 for a bucket named `forbidden`.

Not spoken: XML, versioning, ACLs, holds, rate limits, CRC32C, `fields` (the whole resource is always sent).

Sources: Cloud Storage JSON API reference (Objects, Buckets), "Request preconditions", "HTTP status and error codes",
"Resumable uploads".
"""

from __future__ import annotations

import asyncio
import itertools
import json
import re
import threading
import time
import uuid
from dataclasses import dataclass, field
from datetime import datetime, timezone
from email.utils import format_datetime
from typing import TYPE_CHECKING, Any

from aiohttp import web
from google.oauth2.credentials import Credentials

if TYPE_CHECKING:
    from collections.abc import Mapping

    from typing_extensions import Self

TOKEN = "the-token-of-the-double"  # noqa: S105 (it guards nothing)
NO_BUCKET = "The specified bucket does not exist."


@dataclass
class Stored:
    name: str
    data: bytes
    generation: int
    metadata: dict[str, str]
    content_type: str
    metageneration: int = 1
    updated: datetime = field(default_factory=lambda: datetime.now(timezone.utc))

    def resource(self, bucket: str) -> dict[str, Any]:
        """The object resource; int64 values are strings in JSON."""
        return {
            "kind": "storage#object",
            "bucket": bucket,
            "name": self.name,
            "generation": str(self.generation),
            "metageneration": str(self.metageneration),
            "size": str(len(self.data)),
            "contentType": self.content_type,
            "updated": self.updated.isoformat(timespec="milliseconds").replace("+00:00", "Z"),
            "etag": f"CL{self.generation}",
            **({"metadata": self.metadata} if self.metadata else {}),
        }


@dataclass
class Upload:
    bucket: str
    resource: dict[str, Any]
    query: dict[str, str]
    received: bytearray = field(default_factory=bytearray)


class GcsDouble:
    """Used as `with GcsDouble() as server:`; `url`, `storage_options` and `new_prefix()` as the real servers have."""

    name = "gcs-double"

    def __init__(self) -> None:
        self.bucket = f"cas-{uuid.uuid4().hex[:12]}"
        self.buckets: dict[str, dict[str, Stored]] = {self.bucket: {}, "forbidden": {}}
        self.requests: list[tuple[str, str, int]] = []
        self.port = 0
        self._uploads: dict[str, Upload] = {}
        self._generations = itertools.count(time.time_ns() // 1000)
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="gcs-double", daemon=True)

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def url(self) -> str:
        return f"gs://{self.bucket}/"

    @property
    def storage_options(self) -> dict[str, Any]:
        return self.options_for(self.endpoint)

    def options_for(self, endpoint: str, token: str = TOKEN) -> dict[str, Any]:
        # A plain text would make gcsfs ask Google how long it is valid.
        return {"project": "double", "token": Credentials(token), "endpoint_url": endpoint}  # type: ignore[no-untyped-call]

    def new_prefix(self) -> str:
        return f"{self.url}{uuid.uuid4().hex}"

    def __enter__(self) -> Self:
        self._thread.start()
        self._run(self._serve())
        return self

    def __exit__(self, *_: object) -> None:
        self._run(self._runner.cleanup())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def _run(self, coroutine: Any) -> None:
        asyncio.run_coroutine_threadsafe(coroutine, self._loop).result(10)

    async def _serve(self) -> None:
        app = web.Application(client_max_size=1 << 30, middlewares=[self._guarded])
        app.router.add_post("/storage/v1/b", self._make_bucket)
        app.router.add_get("/storage/v1/b/{bucket}/o", self._list)
        app.router.add_get("/storage/v1/b/{bucket}/o/{name:[^/]+}", self._get)
        app.router.add_get("/download/storage/v1/b/{bucket}/o/{name:[^/]+}", self._get)
        app.router.add_delete("/storage/v1/b/{bucket}/o/{name:[^/]+}", self._delete)
        app.router.add_post("/upload/storage/v1/b/{bucket}/o", self._insert)
        app.router.add_put("/upload/storage/v1/b/{bucket}/o", self._resume)
        app.router.add_delete("/upload/storage/v1/b/{bucket}/o", self._cancel)
        self._runner = web.AppRunner(app, shutdown_timeout=1)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", 0)
        await site.start()
        self.port = self._runner.addresses[0][1]

    @web.middleware
    async def _guarded(self, request: web.Request, handler: Any) -> web.StreamResponse:
        try:
            authorize(request)
            answer: web.StreamResponse = await handler(request)
        except Failed as failed:
            answer = failed.response()
        answer.headers["X-GUploader-UploadID"] = "double"  # on every answer, as captures of Google show it
        self.requests.append((request.method, request.path_qs, answer.status))
        return answer

    async def _make_bucket(self, request: web.Request) -> web.Response:
        name = (await request.json())["name"]
        if name in self.buckets:
            raise Failed(409, "You already own this bucket. Please select another name.", "conflict")
        self.buckets[name] = {}
        return web.json_response({"kind": "storage#bucket", "name": name})

    async def _get(self, request: web.Request) -> web.Response:
        bucket, objects = self._objects(request)
        stored = objects.get(request.match_info["name"])
        check(stored, request.query, reading=True)
        if stored is None:
            raise Failed(404, f"No such object: {bucket}/{request.match_info['name']}", "notFound")
        if request.query.get("alt") != "media":
            return web.json_response(stored.resource(bucket))
        headers = {
            "Content-Type": stored.content_type,
            "x-goog-generation": str(stored.generation),
            "x-goog-metageneration": str(stored.metageneration),
            "Last-Modified": format_datetime(stored.updated, usegmt=True),
        }
        return web.Response(body=stored.data, headers=headers)

    async def _delete(self, request: web.Request) -> web.Response:
        bucket, objects = self._objects(request)
        stored = objects.get(request.match_info["name"])
        if stored is None and "ifGenerationMatch" not in request.query:
            raise Failed(404, f"No such object: {bucket}/{request.match_info['name']}", "notFound")
        check(stored, request.query)
        del objects[request.match_info["name"]]
        return web.Response(status=204)

    async def _list(self, request: web.Request) -> web.Response:
        bucket, objects = self._objects(request)
        start = max(request.query.get("startOffset", ""), request.query.get("pageToken", ""))
        prefix = request.query.get("prefix", "")
        names = sorted((n for n in objects if n.startswith(prefix) and n >= start), key=str.encode)
        size = min(1000, int(request.query.get("maxResults", 1000)))
        found: dict[str, Any] = {"kind": "storage#objects"}
        if names:
            found["items"] = [objects[name].resource(bucket) for name in names[:size]]
        if len(names) > size:
            found["nextPageToken"] = names[size]
        return web.json_response(found)

    async def _insert(self, request: web.Request) -> web.Response:
        bucket, objects = self._objects(request)
        body = await request.read()
        kind = request.query.get("uploadType")
        if kind == "media":
            resource = {"name": request.query["name"], "contentType": request.content_type}
            return self._store(bucket, objects, resource, body, request.query)
        if kind == "multipart":
            resource, data = split_multipart(request.headers["Content-Type"], body)
            return self._store(bucket, objects, {"name": request.query.get("name"), **resource}, data, request.query)
        if kind == "resumable":
            return self._begin(request, bucket, json.loads(body or b"{}"))
        raise Failed(400, "Invalid upload type", "invalid")

    def _begin(self, request: web.Request, bucket: str, resource: dict[str, Any]) -> web.Response:
        upload_id = uuid.uuid4().hex
        named = {"name": request.query.get("name"), **resource}
        self._uploads[upload_id] = Upload(bucket, named, dict(request.query))
        location = f"{self.endpoint}/upload/storage/v1/b/{bucket}/o?uploadType=resumable&upload_id={upload_id}"
        return web.Response(headers={"Location": location, "X-GUploader-UploadID": upload_id})

    async def _resume(self, request: web.Request) -> web.Response:
        upload = self._uploads.get(request.query.get("upload_id", ""))
        if upload is None:
            raise Failed(404, "No such upload", "notFound")
        body = await request.read()
        first, total = parse_range(request.headers.get("Content-Range"), len(body))
        if first is not None:
            if first > len(upload.received):
                raise Failed(400, "Invalid request. A gap in the upload.", "invalid")
            upload.received[first:] = body
        if total is None or len(upload.received) < total:
            return incomplete(upload)
        del self._uploads[request.query["upload_id"]]
        # Preconditions count when the object is made, not when the upload began.
        return self._store(
            upload.bucket, self.buckets[upload.bucket], upload.resource, bytes(upload.received), upload.query
        )

    async def _cancel(self, request: web.Request) -> web.Response:
        if self._uploads.pop(request.query.get("upload_id", ""), None) is None:
            raise Failed(404, "No such upload", "notFound")
        return web.Response(status=499)

    def _store(
        self,
        bucket: str,
        objects: dict[str, Stored],
        resource: dict[str, Any],
        data: bytes,
        query: Mapping[str, str],
    ) -> web.Response:
        name = resource["name"]
        check(objects.get(name), query)
        kind = resource.get("contentType", "application/octet-stream")
        objects[name] = Stored(name, data, next(self._generations), resource.get("metadata", {}), kind)
        return web.json_response(objects[name].resource(bucket))

    def _objects(self, request: web.Request) -> tuple[str, dict[str, Stored]]:
        bucket = request.match_info["bucket"]
        if bucket not in self.buckets:
            raise Failed(404, NO_BUCKET, "notFound")
        return bucket, self.buckets[bucket]


class Failed(Exception):
    def __init__(self, status: int, message: str, reason: str) -> None:
        super().__init__(message)
        self.status, self.message, self.reason = status, message, reason

    def response(self) -> web.Response:
        if self.status == 304:
            return web.Response(status=304)
        one = {"message": self.message, "domain": "global", "reason": self.reason}
        body = {"error": {"code": self.status, "message": self.message, "errors": [one]}}
        return web.json_response(body, status=self.status)


def authorize(request: web.Request) -> None:
    if request.headers.get("Authorization") != f"Bearer {TOKEN}":
        raise Failed(401, "Invalid Credentials", "authError")
    if request.match_info.get("bucket") == "forbidden":
        raise Failed(403, "caller does not have storage.objects access to the object.", "forbidden")


def check(stored: Stored | None, query: Mapping[str, str], *, reading: bool = False) -> None:
    """Raise 412 (or 304) unless all preconditions of the query hold."""
    generation = stored.generation if stored else 0
    metageneration = stored.metageneration if stored else None
    false = Failed(412, "At least one of the pre-conditions you specified did not hold.", "conditionNotMet")
    unchanged = Failed(304, "", "notModified") if reading else false
    if "ifGenerationMatch" in query and int(query["ifGenerationMatch"]) != generation:
        raise false
    if "ifMetagenerationMatch" in query and int(query["ifMetagenerationMatch"]) != metageneration:
        raise false
    if "ifGenerationNotMatch" in query and int(query["ifGenerationNotMatch"]) == generation:
        raise unchanged
    if "ifMetagenerationNotMatch" in query and int(query["ifMetagenerationNotMatch"]) == metageneration:
        raise unchanged


def split_multipart(content_type: str, body: bytes) -> tuple[dict[str, Any], bytes]:
    """The resource and the data of a multipart/related body; strict: lines end in CRLF (RFC 2046)."""
    found = re.search(r'boundary="?([^";]+)"?', content_type)
    if not content_type.startswith("multipart/related") or found is None:
        raise Failed(400, "Not a multipart/related body.", "badContent")
    mark = found[1].encode()
    pieces = (b"\r\n" + body).split(b"\r\n--" + mark)
    if len(pieces) != 4 or pieces[0] or pieces[3].rstrip(b"\r\n") != b"--":
        raise Failed(400, "Malformed multipart body.", "badContent")
    (_, resource), (headers, data) = (piece.split(b"\r\n\r\n", 1) for piece in pieces[1:3])
    parsed = json.loads(resource)
    stated = re.search(rb"(?i)content-type:\s*([^\r\n]+)", headers)
    return {"contentType": stated[1].decode() if stated else "application/octet-stream", **parsed}, data


def parse_range(text: str | None, length: int) -> tuple[int | None, int | None]:
    """First byte and total of `bytes 0-9/10`, `bytes 0-9/*`, `bytes */10`, `bytes */*`; all at once without one."""
    if text is None:
        return 0, length
    found = re.fullmatch(r"bytes (?:(\d+)-(\d+)|\*)/(\d+|\*)", text)
    if found is None:
        raise Failed(400, f"Failed to parse Content-Range header {text}.", "invalid")
    first = int(found[1]) if found[1] is not None else None
    return first, None if found[3] == "*" else int(found[3])


def incomplete(upload: Upload) -> web.Response:
    """308 Resume Incomplete, with what is there already."""
    headers = {"Range": f"bytes=0-{len(upload.received) - 1}"} if upload.received else {}
    return web.Response(status=308, headers=headers)
