"""Cloud Storage's resumable uploads, with ifGenerationMatch=0.

Chunks go to a session; the store says how far it has got, ignores bytes that it has already, and looks at the
precondition when the object is made (it may also refuse to open the session).

Sources: Cloud Storage documentation, "Performing resumable uploads", "Resumable uploads".
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, Protocol, TypeVar
from urllib.parse import quote

from fsspec_cas.answer import Applied, Denied, FinishAnswer, Gone, NoAnswer, NotNow, Upload, UploadAnswer
from fsspec_cas.attributes import Attributes
from fsspec_cas.backends.attributes import AttributeRules
from fsspec_cas.backends.base import WRITE_ID_KEY, PartRules
from fsspec_cas.errors import StoreError
from fsspec_cas.version import Version

A = TypeVar("A")

_RULES = PartRules(least_bytes=256 * 1024, multiple_bytes=256 * 1024)
_IN_THE_QUERY = ("kmsKeyName", "predefinedAcl")
GCS_RULES = AttributeRules(
    own=frozenset(
        {"cacheControl", "contentDisposition", "contentEncoding", "contentLanguage", "customTime", "storageClass"}
        | {"eventBasedHold", "temporaryHold", *_IN_THE_QUERY}
    ),
    same={"contentType": "content_type"},
)
_ABORTED = 499  # "client closed request": what a cancelled session answers


@dataclass(frozen=True, slots=True)
class Request:
    """One HTTP request. `path` begins after the endpoint and is quoted; `url`, if given, stands for all of it."""

    method: str
    path: str
    query: dict[str, str]
    headers: dict[str, str] = field(default_factory=dict)
    body: bytes | None = None
    url: str = ""


@dataclass(frozen=True, slots=True)
class Response:
    """What came back."""

    status: int
    headers: Any
    body: bytes

    def json(self) -> dict[str, Any]:
        """The body as a JSON object; empty if it is none."""
        try:
            found = json.loads(self.body)
        except ValueError:
            return {}
        return found if isinstance(found, dict) else {}


class Ask(Protocol):
    """Sends once and translates what comes back."""

    async def __call__(
        self,
        path: str,
        request: Request,
        success: Callable[[Response], A],
        refusal: Callable[[Response], A | None],
        timeout_s: float,
    ) -> A | NotNow | NoAnswer:
        """See `GcsBackend`."""


@dataclass(frozen=True, slots=True)
class GcsUploads:
    """Uploads over the JSON API."""

    ask: Ask
    rules: PartRules = _RULES

    async def begin(
        self, path: str, write_id: str, *, timeout_s: float, attributes: Attributes | None = None
    ) -> UploadAnswer:
        """Open a session."""
        bucket, _, key = path.partition("/")
        resource, query = resource_of(key, write_id, attributes)
        request = Request(
            "POST",
            f"upload/storage/v1/b/{quote(bucket, safe='')}/o",
            {"uploadType": "resumable", "ifGenerationMatch": "0", "name": key, **query},
            {"Content-Type": "application/json", "X-Upload-Content-Type": resource["contentType"]},
            json.dumps(resource).encode(),
        )

        def begun(response: Response) -> UploadAnswer:
            if "Location" not in response.headers:
                raise StoreError(f"the store named no session for the upload of {path!r}", path=path)
            return Upload(path, write_id, response.headers["Location"])

        return await self.ask(path, request, begun, _begin_refusal, timeout_s)

    async def add(self, upload: Upload, data: bytes, *, timeout_s: float) -> UploadAnswer:
        """A chunk that is not the last."""
        end = upload.sent + len(data)

        def kept(response: Response) -> UploadAnswer | None:
            if response.status in (404, 410):
                raise StoreError(
                    f"the session of the upload of {upload.path!r} is gone; write it again", path=upload.path
                )
            if response.status != 308:
                return None
            if _kept_bytes(response) < end:
                return NotNow(f"{_kept_bytes(response)} of {end} bytes were kept")
            return replace(upload, tags=(*upload.tags, ""), sent=end)

        def too_early(_: Response) -> UploadAnswer:
            raise StoreError(f"the store ended the upload of {upload.path!r} before its last byte", path=upload.path)

        return await self.ask(upload.path, _chunk(upload, data, "*"), too_early, kept, timeout_s)

    async def finish(self, upload: Upload, tail: bytes, *, timeout_s: float) -> FinishAnswer:
        """The last chunk, which makes the object."""

        def made(response: Response) -> FinishAnswer:
            generation = response.json().get("generation")
            return Applied(Version("gcs", str(generation)) if generation else None)

        request = _chunk(upload, tail, str(upload.sent + len(tail)))
        return await self.ask(upload.path, request, made, _finish_refusal, timeout_s)

    async def abort(self, upload: Upload, *, timeout_s: float) -> None:
        """Cancel the session."""

        def cancelled(response: Response) -> bool | None:
            return response.status in (404, 410, _ABORTED) or None

        request = Request("DELETE", "", {}, {"Content-Length": "0"}, url=upload.token)
        await self.ask(upload.path, request, lambda _: True, cancelled, timeout_s)


def resource_of(key: str, write_id: str, attributes: Attributes | None) -> tuple[dict[str, Any], dict[str, str]]:
    """The resource of an object that is to be made, and what goes into the query with it."""
    more = attributes or Attributes()
    query = {name: str(more.own[name]) for name in _IN_THE_QUERY if name in more.own}
    own = {name: value for name, value in more.own.items() if name not in query}
    kind = more.content_type or "application/octet-stream"
    return {**own, "name": key, "contentType": kind, "metadata": {**more.metadata, WRITE_ID_KEY: write_id}}, query


def _chunk(upload: Upload, data: bytes, total: str) -> Request:
    span = f"{upload.sent}-{upload.sent + len(data) - 1}" if data else "*"
    return Request("PUT", "", {}, {"Content-Range": f"bytes {span}/{total}"}, data, upload.token)


def _kept_bytes(response: Response) -> int:
    last = response.headers.get("Range", "").rpartition("-")[2]
    return int(last) + 1 if last.isdigit() else 0


def _begin_refusal(response: Response) -> UploadAnswer | None:
    return Denied() if response.status == 412 else None


def _finish_refusal(response: Response) -> FinishAnswer | None:
    if response.status in (404, 410):
        return Gone(f"{response.status}: the upload was finished or dropped")
    if response.status == 308:
        return NotNow(f"only {_kept_bytes(response)} bytes were kept")
    return Denied() if response.status == 412 else None
