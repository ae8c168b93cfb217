"""Google Cloud Storage through its JSON API, with a gcsfs filesystem's settings.

gcsfs's own calls repeat conditional uploads.
"""

from __future__ import annotations

import asyncio
import gzip
import json
import zlib
from dataclasses import dataclass, field, replace
from typing import Any
from urllib.parse import quote, urlencode, urlsplit

import aiohttp
import gcsfs.core
import google.auth.exceptions
from gcsfs.retry import HttpError, NonRetryableError
from yarl import URL

from fsspec_cas.answer import NotApplied
from fsspec_cas.backends.base import WRITE_ID_KEY, AttributeRules, PartRules
from fsspec_cas.backends.gcs.answers import GcsDialect
from fsspec_cas.backends.http import ALL_CAPABILITIES
from fsspec_cas.backends.reply import HttpReply, StoreRequest, Verb
from fsspec_cas.backends.wire import AioBackend, Trip, sends_once, within
from fsspec_cas.errors import AccessDenied
from fsspec_cas.outcome import Absent, Write

_IN_THE_QUERY = ("kmsKeyName", "predefinedAcl")
_HEAD_FIELDS = "kind,generation,size,updated,metadata,contentType"
_LIST_FIELDS = "kind,items(name,size,updated,generation),nextPageToken"
_MADE_FIELDS = "kind,generation"
_NOT_READY = (HttpError, NonRetryableError, google.auth.exceptions.GoogleAuthError)


class GcsBackend(AioBackend):
    name = "gcs"
    capabilities = replace(ALL_CAPABILITIES, writes_per_s=1.0)
    attribute_rules = AttributeRules(
        own=frozenset(
            {"cacheControl", "contentDisposition", "contentEncoding", "contentLanguage", "customTime", "storageClass"}
            | {"eventBasedHold", "temporaryHold", *_IN_THE_QUERY}
        ),
        same={"contentType": "content_type"},
    )
    part_rules = PartRules(least_bytes=256 * 1024, multiple_bytes=256 * 1024)

    failures = (*_NOT_READY, aiohttp.ClientError, OSError, EOFError, zlib.error)

    def __init__(self, fs: Any) -> None:
        super().__init__(fs, GcsDialect(urlsplit(fs._location).netloc))  # noqa: SLF001

    async def _open(self) -> aiohttp.ClientSession:
        """Open a session that sends once and keeps bodies compressed; a user's connector stays open."""
        gcsfs_filesystem = self._given
        settings = {**gcsfs_filesystem.session_kwargs, "auto_decompress": False}
        if "connector" in settings:
            settings["connector_owner"] = False
        elif getattr(gcsfs_filesystem, "_use_client_cert", False) and gcsfs_filesystem._location.startswith("https://"):  # noqa: SLF001
            context = await asyncio.to_thread(gcsfs.core._client_cert_ssl_context)  # noqa: SLF001
            settings["connector"] = aiohttp.TCPConnector(ssl=context)
        return sends_once(await gcsfs.core.get_client(**settings))  # type: ignore[no-any-return]

    async def _headers(self, request: GcsRequest) -> dict[str, str]:
        make = self._given._get_headers  # noqa: SLF001
        if self._given.credentials.credentials is None:
            return dict(make(request.headers))
        return dict(await asyncio.to_thread(make, request.headers))

    def _preparation_failed(self, error: Exception, path: str) -> NotApplied:
        """Return NotApplied if credentials may come later, else raise AccessDenied."""
        cause = error.__cause__ if isinstance(error, HttpError) else error
        if isinstance(error, asyncio.TimeoutError):
            return NotApplied("the credentials could not be refreshed: no answer in time")
        if isinstance(cause, google.auth.exceptions.TransportError) or getattr(cause, "retryable", False):
            return NotApplied(f"the credentials could not be refreshed: {type(cause).__name__}: {cause}")
        summary = f"no usable Google credentials for {path!r}, nothing was sent: {cause or error}"
        raise AccessDenied(summary, path=path) from error

    async def _send(self, client: aiohttp.ClientSession, request: StoreRequest) -> None:
        """Send the request once, without redirects; this task's `Trip` gets the reply, unzipped if `packed`.

        May refresh credentials; raises TimeoutError.
        """
        http_request = _request(request)
        headers = await self._headers(http_request)
        query = urlencode(self._given._get_params(http_request.query))  # noqa: SLF001
        url = URL(http_request.url or f"{self._given._location}/{http_request.path}?{query}", encoded=True)  # noqa: SLF001
        trip = Trip.leave()
        asking = client.request(
            http_request.method,
            url,
            headers=headers,
            data=http_request.body,
            allow_redirects=False,
            # Half is for connecting: a silent host then certainly got no request.
            timeout=aiohttp.ClientTimeout(total=None, sock_connect=trip.patience_s / 2),
        )
        async with within(trip.patience_s):
            answer = await asking
        async with answer:
            body = await answer.read()
        if http_request.packed and answer.headers.get("Content-Encoding") == "gzip":
            body = gzip.decompress(body)
        trip.reply = HttpReply(answer.status, answer.headers.items(), body)


@dataclass(frozen=True, slots=True)
class GcsRequest:
    """One HTTP request; `url` replaces `path`, `packed` allows a compressed reply."""

    method: str
    path: str
    query: dict[str, str]
    headers: dict[str, str] = field(default_factory=dict)
    body: bytes | None = None
    url: str = ""
    packed: bool = False


def _request(request: StoreRequest) -> GcsRequest:
    """HTTP form of the request, with its condition.

    Parts, completions and aborts go to the upload's URL.
    """
    plain = {"Accept-Encoding": "identity"}
    match request.verb:
        case Verb.CREATE | Verb.MATCH:
            return _write(request)
        case Verb.HEAD:  # the JSON API has no HEAD
            return GcsRequest("GET", _object(request.path), {"fields": _HEAD_FIELDS}, plain)
        case Verb.GET:
            query = {"alt": "media"}
            if request.version is not None:
                query["ifGenerationNotMatch"] = request.version.token
            # gzip returns the stored bytes; no-cache bypasses caches of public objects.
            headers = {"Accept-Encoding": "gzip", "Cache-Control": "no-cache"}
            return GcsRequest("GET", _object(request.path), query, headers)
        case Verb.DELETE | Verb.DELETE_MATCH:
            matching = {} if request.version is None else {"ifGenerationMatch": request.version.token}
            return GcsRequest("DELETE", _object(request.path), matching, plain)
        case Verb.LIST:
            return _list(request)
        case Verb.BEGIN:
            return _begin(request)
    upload = request.the_upload()
    if request.verb is Verb.ABORT:
        return GcsRequest("DELETE", "", {}, {"Content-Length": "0"}, url=upload.token)
    end = upload.sent + len(request.data)
    span = f"{upload.sent}-{end - 1}" if request.data else "*"
    headers = {"Content-Range": f"bytes {span}/{'*' if request.verb is Verb.PART else end}", **plain}
    return GcsRequest("PUT", "", {}, headers, request.data, upload.token)


def _write(request: StoreRequest) -> GcsRequest:
    """Request that writes a whole object, with its attributes and condition."""
    bucket, _, key = request.path.partition("/")
    condition = request.condition
    generation = "0" if condition is None or isinstance(condition, Absent) else condition.token
    write = request.the_write()
    resource, query = _resource(key, write)
    kind, body = _multipart(resource, request.data, write.write_id)
    return GcsRequest(
        "POST",
        f"upload/storage/v1/b/{_quote(bucket)}/o",
        {"uploadType": "multipart", "ifGenerationMatch": generation, "fields": _MADE_FIELDS, **query},
        {"Content-Type": kind, "Accept-Encoding": "identity"},
        body,
    )


def _list(request: StoreRequest) -> GcsRequest:
    bucket, _, prefix = request.path.partition("/")
    after = (request.start_after or "").partition("/")[2]
    query = {"prefix": prefix, "startOffset": after, "pageToken": request.token or "", "fields": _LIST_FIELDS}
    sent = {name: value for name, value in query.items() if value}
    return GcsRequest("GET", f"storage/v1/b/{_quote(bucket)}/o", sent, {"Accept-Encoding": "gzip"}, packed=True)


def _begin(request: StoreRequest) -> GcsRequest:
    """Request that opens an object's upload session, with its attributes, if the path is empty."""
    bucket, _, key = request.path.partition("/")
    resource, query = _resource(key, request.the_write())
    return GcsRequest(
        "POST",
        f"upload/storage/v1/b/{_quote(bucket)}/o",
        {"uploadType": "resumable", "ifGenerationMatch": "0", "name": key, **query},
        {"Content-Type": "application/json", "X-Upload-Content-Type": resource["contentType"]},
        json.dumps(resource).encode(),
    )


def _resource(key: str, write: Write) -> tuple[dict[str, Any], dict[str, str]]:
    more = write.attributes
    query = {name: str(more.own[name]) for name in _IN_THE_QUERY if name in more.own}
    own = {name: value for name, value in more.own.items() if name not in query}
    kind = more.content_type or "application/octet-stream"
    return {**own, "name": key, "contentType": kind, "metadata": {**more.metadata, WRITE_ID_KEY: write.write_id}}, query


def _multipart(resource: dict[str, Any], data: bytes, boundary: str) -> tuple[str, bytes]:
    """Return content type and body: JSON and data, with CRLF line ends."""
    mark = f"cas-{boundary}"
    while mark.encode() in data:
        mark += "-"
    head = (
        f"--{mark}\r\nContent-Type: application/json; charset=UTF-8\r\n\r\n{json.dumps(resource)}\r\n"
        f"--{mark}\r\nContent-Type: {resource['contentType']}\r\n\r\n"
    )
    return f'multipart/related; boundary="{mark}"', b"".join((head.encode(), data, f"\r\n--{mark}--\r\n".encode()))


def _quote(name: str) -> str:
    return quote(name, safe="")


def _object(path: str) -> str:
    bucket, _, key = path.partition("/")
    return f"storage/v1/b/{_quote(bucket)}/o/{_quote(key)}"
