"""Google Cloud Storage through its JSON API, with the credentials and settings of the given gcsfs filesystem.

gcsfs's own calls are wrapped in a retry loop that repeats a conditional upload and then reports the caller's own object
as somebody else's, so the requests are made here: one aiohttp session per event loop, each request sent once, with
gcsfs's endpoint, headers, credentials, requester-pays project, session settings and client certificate.

The version is the generation: it grows with every write and never comes back. A read takes it from the
`x-goog-generation` header of the response that carries the bytes.

Sources: Cloud Storage documentation, "Request preconditions", "JSON API: Objects", "HTTP status and error codes",
"Quotas and limits" (one write per second to the same object name).
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from datetime import datetime, timezone
from email.utils import parsedate_to_datetime
from typing import Any, TypeVar
from urllib.parse import quote, urlencode

import aiohttp
import gcsfs.core
import google.auth.exceptions
from gcsfs.retry import HttpError, NonRetryableError
from yarl import URL

from fsspec_cas.answer import (
    Applied,
    Denied,
    Entry,
    ListAnswer,
    Missing,
    NoAnswer,
    NotNow,
    Page,
    ReadAnswer,
    Seen,
    Unchanged,
    WriteAnswer,
)
from fsspec_cas.attributes import Attributes
from fsspec_cas.backends.attributes import AttributeRules
from fsspec_cas.backends.base import WRITE_ID_KEY
from fsspec_cas.backends.gcs_uploads import GCS_RULES, GcsUploads, Request, Response, resource_of
from fsspec_cas.backends.wire import PerLoop, epoch_ms, http_date_ms, no_refusal, retry_after_s, sends_once
from fsspec_cas.capability import Capabilities
from fsspec_cas.errors import AccessDenied, BucketNotFound, StoreError
from fsspec_cas.version import Absent, Condition, Version

A = TypeVar("A")

_CAPABILITIES = Capabilities(
    create=True,
    match=True,
    delete_match=True,
    read_changed=True,
    unique_versions=True,
    keeps_write_id=True,
    own_clock=True,
    writes_per_s=1.0,
)
_PACE_S = 0.5  # half of what has to lie between two writes of one object; GCS says no Retry-After
_HEAD_FIELDS = "generation,size,updated,metadata,contentType"
_LIST_FIELDS = "items(name,size,updated,generation),nextPageToken"
_META_HEADER = f"x-goog-meta-{WRITE_ID_KEY}"
# Old projects get "slow down" as 403 with one of these reasons.
_THROTTLE_REASONS = ("rateLimitExceeded", "userRateLimitExceeded")
_NO_BUCKET = "bucket does not exist"


class GcsBackend:
    """Conditional writes over the JSON API of Cloud Storage."""

    name = "gcs"
    capabilities = _CAPABILITIES
    attribute_rules: AttributeRules = GCS_RULES
    blocking = False

    def __init__(self, fs: Any) -> None:
        self._given = fs
        self._sessions: PerLoop[aiohttp.ClientSession] = PerLoop()

    def isolated_connections(self) -> GcsBackend:
        """The same store over connections of its own."""
        return GcsBackend(self._given)

    @property
    def uploads(self) -> GcsUploads:
        """Resumable uploads."""
        return GcsUploads(self._ask)

    async def put(
        self,
        path: str,
        data: bytes,
        condition: Condition,
        write_id: str,
        *,
        timeout_s: float,
        attributes: Attributes | None = None,
    ) -> WriteAnswer:
        """A multipart upload with ifGenerationMatch; zero stands for "nothing is there"."""
        bucket, _, key = path.partition("/")
        generation = "0" if isinstance(condition, Absent) else condition.token
        resource, query = resource_of(key, write_id, attributes)
        kind, body = _multipart(resource, data, write_id)
        request = Request(
            "POST",
            f"upload/storage/v1/b/{_quote(bucket)}/o",
            {"uploadType": "multipart", "ifGenerationMatch": generation, "fields": "generation", **query},
            {"Content-Type": kind},
            body,
        )

        def applied(response: Response) -> WriteAnswer:
            made = response.json().get("generation")
            return Applied(Version(self.name, str(made)) if made else None)

        refusal = _create_refusal if isinstance(condition, Absent) else _write_refusal
        return await self._ask(path, request, applied, refusal, timeout_s)

    async def head(self, path: str, *, timeout_s: float) -> ReadAnswer:
        """The object's metadata; the JSON API has no HEAD."""
        request = Request("GET", _object(path), {"fields": _HEAD_FIELDS})
        return await self._ask(path, request, _seen_head, _read_refusal, timeout_s)

    async def get(self, path: str, unless: Version | None, *, timeout_s: float) -> ReadAnswer:
        """The media, with ifGenerationNotMatch for a reader that has a version already."""
        query = {"alt": "media"} if unless is None else {"alt": "media", "ifGenerationNotMatch": unless.token}
        request = Request("GET", _object(path), query)

        def seen(response: Response) -> ReadAnswer:
            if "x-goog-generation" not in response.headers:
                raise StoreError(f"the answer for {path!r} names no generation; its bytes have no version", path=path)
            return _seen_media(response)

        return await self._ask(path, request, seen, _read_refusal, timeout_s)

    async def delete(self, path: str, condition: Version | None, *, timeout_s: float) -> WriteAnswer:
        """Delete, with ifGenerationMatch where there is a condition."""
        query = {} if condition is None else {"ifGenerationMatch": condition.token}
        refusal = _delete_refusal if condition is None else _write_refusal
        return await self._ask(path, Request("DELETE", _object(path), query), _deleted, refusal, timeout_s)

    async def list_page(
        self, prefix: str, start_after: str | None, token: str | None, *, timeout_s: float
    ) -> ListAnswer:
        """Objects: list. `startOffset` is inclusive, so the object named by it is dropped."""
        bucket, _, key_prefix = prefix.partition("/")
        after = start_after.partition("/")[2] if start_after else ""
        query = {"prefix": key_prefix, "startOffset": after, "pageToken": token or "", "fields": _LIST_FIELDS}
        sent = {name: value for name, value in query.items() if value}

        def page(response: Response) -> ListAnswer:
            found = response.json()
            entries = tuple(_entry(bucket, item) for item in found.get("items", ()) if item["name"] != after)
            return Page(entries, found.get("nextPageToken") or None)

        request = Request("GET", f"storage/v1/b/{_quote(bucket)}/o", sent)
        return await self._ask(prefix, request, page, no_refusal, timeout_s)

    def adapt(self, refused: str = "") -> bool:
        """There is one dialect."""
        del refused
        return False

    async def close(self) -> None:
        """Close the session that belongs to the running loop."""
        await self._sessions.close()

    async def _open(self) -> aiohttp.ClientSession:
        """A session as gcsfs would make it, but sending once."""
        given = self._given
        settings = dict(given.session_kwargs)
        if "connector" in settings:
            settings["connector_owner"] = False  # the user's own; closing it is not ours to do
        elif getattr(given, "_use_client_cert", False) and given._location.startswith("https://"):  # noqa: SLF001
            context = await asyncio.to_thread(gcsfs.core._client_cert_ssl_context)  # noqa: SLF001 - mutual TLS
            settings["connector"] = aiohttp.TCPConnector(ssl=context)
        return sends_once(await gcsfs.core.get_client(**settings))  # type: ignore[no-any-return]

    async def _headers(self, request: Request) -> dict[str, str]:
        """With credentials; refreshing them blocks, so that is done in a thread."""
        make = self._given._get_headers  # noqa: SLF001 - how gcsfs signs its own requests
        if self._given.credentials.credentials is None:
            return dict(make(request.headers))
        return dict(await asyncio.to_thread(make, request.headers))

    async def _ask(
        self,
        path: str,
        request: Request,
        success: Callable[[Response], A],
        refusal: Callable[[Response], A | None],
        timeout_s: float,
    ) -> A | NotNow | NoAnswer:
        """Send once; translate whatever comes back."""
        response = await self._exchange(path, request, timeout_s)
        if not isinstance(response, Response):
            return response
        return success(response) if 200 <= response.status < 300 else _translate(response, path, refusal)

    async def _exchange(self, path: str, request: Request, timeout_s: float) -> Response | NotNow | NoAnswer:
        clock = asyncio.get_running_loop().time
        deadline = clock() + timeout_s
        try:
            session, headers = await asyncio.wait_for(self._ready(request, path), timeout_s)
        except (asyncio.TimeoutError, _RefreshFailed) as error:
            return NotNow(f"no fresh credentials: {error or 'no answer in time'}")
        left = max(0.0, deadline - clock())
        try:
            return await asyncio.wait_for(self._send(session, request, headers, left), left)
        except (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError) as error:
            return NotNow(f"could not connect: {error}")
        except asyncio.TimeoutError:
            return NoAnswer(f"no answer within {timeout_s:.3g} s")
        except (aiohttp.ClientError, OSError) as error:
            return NoAnswer(f"{type(error).__name__}: {error}")

    async def _ready(self, request: Request, path: str) -> tuple[aiohttp.ClientSession, dict[str, str]]:
        try:
            return await self._sessions.get(self._open), await self._headers(request)
        except (HttpError, NonRetryableError, google.auth.exceptions.GoogleAuthError, OSError, ValueError) as error:
            cause = error.__cause__ if isinstance(error, HttpError) else error
            if isinstance(cause, google.auth.exceptions.TransportError) or getattr(cause, "retryable", False):
                raise _RefreshFailed(f"{type(cause).__name__}: {cause}") from error
            raise AccessDenied(
                f"no usable Google credentials for {path!r}, nothing was sent: {cause or error}", path=path
            ) from error

    async def _send(
        self, session: aiohttp.ClientSession, request: Request, headers: dict[str, str], left: float
    ) -> Response:
        query = urlencode(self._given._get_params(request.query))  # noqa: SLF001 - adds userProject
        url = URL(request.url or f"{self._given._location}/{request.path}?{query}", encoded=True)  # noqa: SLF001
        async with session.request(
            request.method,
            url,
            headers=headers,
            data=request.body,
            allow_redirects=False,  # a followed redirect is a second send
            # Half for connecting: then a host that does not answer is known not to have got the request.
            timeout=aiohttp.ClientTimeout(total=None, sock_connect=left / 2),
        ) as answer:
            return Response(answer.status, answer.headers, await answer.read())


class _RefreshFailed(Exception):
    """The credentials could not be refreshed now; nothing was sent."""


def _multipart(resource: dict[str, Any], data: bytes, boundary: str) -> tuple[str, bytes]:
    """Content type and body. Lines end in CRLF, as RFC 2046 wants; servers differ in forgiving less."""
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


def _entry(bucket: str, item: dict[str, Any]) -> Entry:
    version = Version("gcs", str(item["generation"])) if item.get("generation") else None
    return Entry(f"{bucket}/{item['name']}", int(item.get("size", 0)), _rfc3339_ms(item.get("updated")), version)


def _seen_head(response: Response) -> Seen | NoAnswer:
    found = response.json()
    if "generation" not in found:
        return NoAnswer(f"{response.status} without an object resource")
    metadata = found.get("metadata") or {}
    return Seen(
        Version("gcs", str(found["generation"])),
        int(found.get("size", 0)),
        _rfc3339_ms(found.get("updated")),
        metadata.get(WRITE_ID_KEY),
        answered_ms=http_date_ms(response.headers.get("Date")),
        content_type=found.get("contentType"),
        metadata={name: value for name, value in metadata.items() if name != WRITE_ID_KEY},
    )


def _seen_media(response: Response) -> Seen:
    modified = response.headers.get("Last-Modified")
    return Seen(
        Version("gcs", response.headers["x-goog-generation"]),
        len(response.body),
        epoch_ms(parsedate_to_datetime(modified)) if modified else None,
        response.headers.get(_META_HEADER),
        response.body,
    )


def _rfc3339_ms(text: str | None) -> int | None:
    """Epoch ms; fractions of a second come with any number of digits, which `fromisoformat` of 3.10 does not read."""
    if not text:
        return None
    whole = datetime.fromisoformat(text[:19]).replace(tzinfo=timezone.utc)
    fraction = text[20:].rstrip("Z") if text[19:20] == "." else ""
    return int(whole.timestamp()) * 1000 + int(fraction[:3].ljust(3, "0") or 0)


def _deleted(response: Response) -> WriteAnswer:
    del response
    return Applied(None)


def _no_object(response: Response) -> bool:
    return response.status == 404 and _NO_BUCKET not in _message(response)


def _create_refusal(response: Response) -> WriteAnswer | None:
    return Denied() if response.status == 412 else None  # 404 speaks of the bucket


def _write_refusal(response: Response) -> WriteAnswer | None:
    return Denied() if response.status == 412 or _no_object(response) else None


def _delete_refusal(response: Response) -> WriteAnswer | None:
    return Applied(None) if _no_object(response) else None


def _read_refusal(response: Response) -> ReadAnswer | None:
    if response.status == 304:
        return Unchanged()
    return Missing() if _no_object(response) else None


def _error(response: Response) -> dict[str, Any]:
    error = response.json().get("error")
    return error if isinstance(error, dict) else {"message": error or response.body[:200].decode("utf-8", "replace")}


def _message(response: Response) -> str:
    return str(_error(response).get("message", ""))


def _throttled(response: Response) -> bool:
    reasons = [item.get("reason") for item in _error(response).get("errors", ()) if isinstance(item, dict)]
    return response.status == 429 or (response.status == 403 and any(r in _THROTTLE_REASONS for r in reasons))


def _translate(response: Response, path: str, refusal: Callable[[Response], A | None]) -> A | NotNow | NoAnswer:
    answer = refusal(response)
    if answer is not None:
        return answer
    why = f"{response.status} {_message(response)}".strip()
    later_s = retry_after_s(response.headers.get("Retry-After"))
    if _throttled(response) or response.status == 409:  # 409: a conflicting operation is under way, this one is not
        return NotNow(why, later_s or (_PACE_S if response.status == 429 else None))
    if response.status in (401, 403):
        raise AccessDenied(f"GCS refused access to {path!r}: {why}; check token, project and roles", path=path)
    if response.status == 404:
        bucket = path.partition("/")[0]
        raise BucketNotFound(f"there is no bucket {bucket!r}; create it first", path=path)
    if response.status < 500 and response.status != 408:
        raise StoreError(f"GCS refused the request for {path!r}: {why}", path=path)
    return NoAnswer(why, later_s)
