"""Interpretation of Cloud Storage's replies. "Whose answer it is" in SPECIFICATION.md lists the proofs."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any
from urllib.parse import urlsplit

from fsspec_cas.answer import Entry, ObjectState, Page, Upload
from fsspec_cas.backends.reply import (
    Confirm,
    Dialect,
    Headers,
    HttpReply,
    ReplyMeaning,
    StatementKind,
    StoreRequest,
    StoreStatement,
    Verb,
    http_date_ms,
    iso_ms,
    one,
)
from fsspec_cas.outcome import Version

_META = "x-goog-meta-"
_IDENTITY = "cas-id"
# Old projects get a throttle as 403.
_THROTTLE_REASONS = ("rateLimitExceeded", "userRateLimitExceeded")
_NO_BUCKET = "bucket does not exist"
_PACE_S = 0.5  # half of one object's write interval; GCS sends no Retry-After

GCS_STATUSES = MappingProxyType(
    {
        **dict.fromkeys((401, 403), StatementKind.FORBIDDEN),
        404: StatementKind.ABSENT,
        409: StatementKind.CONFLICT,
        410: StatementKind.GONE,
        412: StatementKind.FALSE,
        501: StatementKind.UNSUPPORTED,
        **dict.fromkeys((408, 429, 500, 502, 503, 504), StatementKind.BUSY),
    }
)
KINDS = MappingProxyType(
    {
        Verb.CREATE: "storage#object",
        Verb.MATCH: "storage#object",
        Verb.HEAD: "storage#object",
        Verb.LIST: "storage#objects",
        Verb.PART: "storage#object",
        Verb.FINISH: "storage#object",
    }
)


@dataclass(frozen=True, slots=True)
class GcsDialect(Dialect):
    """`host` serves the JSON API's upload sessions."""

    vendor = "GCS"
    request_ids = ("x-guploader-uploadid",)
    host: str = ""

    def _interpret(
        self, request: StoreRequest, reply: HttpReply, statement: StoreStatement, *, gives_request_ids: bool | None
    ) -> ReplyMeaning:
        """Return what the reply proves, by status and verb; without proof `Unproven`, or the request to confirm it."""
        status, verb, has_request_id = reply._status, request.verb, statement.has_request_id
        if verb is Verb.GET and status == 200:
            return _media(reply, statement)
        if status in (200, 201) and verb in KINDS:
            return _resource(request, reply, statement)
        if verb in (Verb.DELETE, Verb.DELETE_MATCH) and status in (200, 204):
            if has_request_id and reply._body.strip() in (b"", b"null"):
                return statement
            return Confirm("head", reply.brief()) if verb is Verb.DELETE else reply.unproven("no upload id")
        if verb is Verb.BEGIN and status == 200:
            return self._begun(request, reply, statement)
        if verb in (Verb.PART, Verb.FINISH) and status == 308:
            return _kept(request, reply, statement)
        if verb is Verb.GET and status == 304 and request.version is not None:
            same = one(reply._headers, "x-goog-generation") in (None, request.version.token)
            unchanged = replace(statement, kind=StatementKind.UNCHANGED)
            return unchanged if has_request_id and same else Confirm("get", reply.brief())
        return _refusal(request, reply, statement)

    def _begun(self, request: StoreRequest, reply: HttpReply, statement: StoreStatement) -> ReplyMeaning:
        session_url = one(reply._headers, "location") or ""
        parts = urlsplit(session_url)
        if "upload_id=" not in parts.query or not (statement.has_request_id or parts.netloc == self.host):
            return reply.unproven("no session of an upload")
        return replace(statement, document=Upload(request.the_write(), session_url))


def _media(reply: HttpReply, statement: StoreStatement) -> ReplyMeaning:
    """Object of a read's reply; `Unproven` without a generation or all bytes.

    Content type and metadata are left out.
    """
    headers, body = reply._headers, reply._body
    generation = one(headers, "x-goog-generation")
    if not (generation or "").isdigit() or generation is None:
        return reply.unproven("no generation")
    stored = one(headers, "x-goog-stored-content-length")
    if stored is not None and stored.isdigit() and len(body) < int(stored):
        return reply.unproven(f"{len(body)} of {stored} bytes")
    identity = one(headers, f"{_META}{_IDENTITY}")
    modified = http_date_ms(one(headers, "last-modified"))
    return replace(statement, document=ObjectState(Version("gcs", generation), len(body), modified, identity, body))


def _resource(request: StoreRequest, reply: HttpReply, statement: StoreStatement) -> ReplyMeaning:
    """Return what a success's JSON proves: a page, a head's object, or a write's version.

    Other content is `Unproven`.
    """
    resource = _json(reply._body)
    if resource.get("kind") != KINDS[request.verb]:
        return reply.unproven(f"no {KINDS[request.verb]}")
    if request.verb is Verb.LIST:
        return replace(statement, document=_page(request, resource))
    version = Version("gcs", str(int(resource["generation"])))
    if request.verb is not Verb.HEAD:
        return replace(statement, version=version)
    return replace(statement, document=_seen(version, resource, reply._headers))


def _page(request: StoreRequest, listing: dict[str, Any]) -> Page:
    bucket = request.path.partition("/")[0]
    after = (request.start_after or "").partition("/")[2]
    items = [item for item in listing.get("items", ()) if item["name"] != after]
    return Page(tuple(_entry(bucket, item) for item in items), listing.get("nextPageToken") or None)


def _entry(bucket: str, item: dict[str, Any]) -> Entry:
    version = Version("gcs", str(item["generation"])) if item.get("generation") else None
    updated = item.get("updated")
    return Entry(f"{bucket}/{item['name']}", int(item.get("size", 0)), iso_ms(updated) if updated else None, version)


def _seen(version: Version, resource: dict[str, Any], headers: Headers) -> ObjectState:
    """Object's state from its JSON resource, with the answer's time from `headers`."""
    metadata = dict(resource.get("metadata") or {})
    updated = resource.get("updated")
    identity = metadata.pop(_IDENTITY, None)
    return ObjectState(
        version,
        int(resource.get("size", 0)),
        iso_ms(updated) if updated else None,
        identity,
        answered_ms=http_date_ms(one(headers, "date")),
        content_type=resource.get("contentType"),
        metadata=metadata,
    )


def _kept(request: StoreRequest, reply: HttpReply, statement: StoreStatement) -> ReplyMeaning:
    """Return what a 308 of an upload session says: done if all bytes of a part are kept, else busy and not applied.

    With neither request id nor range, `Unproven`.
    """
    upload = request.upload
    last = (one(reply._headers, "range") or "").rpartition("-")[2]
    if upload is None or not (statement.has_request_id or last.isdigit()):
        return reply.unproven("neither an id nor a range")
    stored, end = int(last) + 1 if last.isdigit() else 0, upload.sent + len(request.data)
    if request.verb is Verb.PART and stored >= end:
        return replace(statement, document=replace(upload, tags=(*upload.tags, ""), sent=end))
    return replace(statement, kind=StatementKind.BUSY, why=f"308: {stored} of {end} bytes were kept", not_applied=True)


def _refusal(request: StoreRequest, reply: HttpReply, statement: StoreStatement) -> ReplyMeaning:
    """Return what a failure proves, by status and reason, if it has a request id or an error document, else `Unproven`.

    A throttle (429, some 403) is busy. A get's 404 that may not mean a missing object names the head to confirm it.
    """
    status, has_request_id = reply._status, statement.has_request_id
    error = _json(reply._body).get("error")
    error = error if isinstance(error, dict) else {}
    reasons = [item.get("reason") for item in error.get("errors") or () if isinstance(item, dict)]
    proven = error.get("code") == status and any(reasons)
    if status == 429 and not (has_request_id or proven):
        return replace(reply.unproven(), retry_after_s=statement.retry_after_s or _PACE_S)
    if status < 300 or not (has_request_id or proven):
        lost = status == 404 and request.verb is Verb.GET
        return Confirm("head", reply.brief()) if lost else reply.unproven()
    message = str(error.get("message") or "")
    kind = GCS_STATUSES.get(status, StatementKind.BUSY if status >= 500 else StatementKind.OTHER)
    why = f"{status} {message}".strip()
    if status == 404 and _NO_BUCKET in message:
        kind = StatementKind.NO_BUCKET
    elif request.upload is not None and status == 404:
        kind = StatementKind.GONE
    elif status == 404 and request.verb is Verb.GET and not proven and b"No such object" not in reply._body:
        return Confirm("head", reply.brief())
    elif status == 404 and request.verb not in (Verb.HEAD, Verb.GET, Verb.MATCH, Verb.DELETE, Verb.DELETE_MATCH):
        kind = StatementKind.NO_BUCKET
    slow = status == 429 or (status == 403 and any(reason in _THROTTLE_REASONS for reason in reasons))
    kind = StatementKind.BUSY if slow else kind
    later = statement.retry_after_s or (_PACE_S if status == 429 else None)
    code = str(next(filter(None, reasons), status))
    return replace(
        statement,
        kind=kind,
        code=code,
        why=why,
        retry_after_s=later,
        not_applied=slow or kind is StatementKind.CONFLICT,
    )


def _json(body: bytes) -> dict[str, Any]:
    try:
        value = json.loads(body)
    except ValueError:
        return {}
    return value if isinstance(value, dict) else {}
