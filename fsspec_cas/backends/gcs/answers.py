"""Interpretation of replies of Cloud Storage's JSON API. No I/O.

Proofs are `x-guploader-uploadid`; a JSON document with the expected `kind` or the status as `error.code`; or
`x-goog-generation` with an object's bytes. Another request confirms an emulator's bare status.

Sources: Cloud Storage documentation, "HTTP status and error codes for JSON", "Performing resumable uploads",
"Transcoding of gzip-compressed files", "Caching".
"""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any
from urllib.parse import urlsplit

from fsspec_cas.answer import Entry, Page, Seen, Upload
from fsspec_cas.backends.reply import (
    Confirm,
    Headers,
    Heard,
    HttpReply,
    Says,
    Spoken,
    StoreRequest,
    Verb,
    header_flaw,
    http_date_ms,
    iso_ms,
    later_s,
    one,
)
from fsspec_cas.outcome import Version

_ID = "x-guploader-uploadid"
_META = "x-goog-meta-"
_IDENTITY = "cas-id"
# Old projects get a throttle as 403.
_THROTTLE_REASONS = ("rateLimitExceeded", "userRateLimitExceeded")
_NO_BUCKET = "bucket does not exist"
_PACE_S = 0.5  # half of one object's write interval; GCS sends no Retry-After

GCS_STATUSES = MappingProxyType(
    {
        401: Says.FORBIDDEN,
        403: Says.FORBIDDEN,
        404: Says.ABSENT,
        408: Says.BUSY,
        409: Says.CONFLICT,
        410: Says.GONE,
        412: Says.FALSE,
        429: Says.BUSY,
        500: Says.BUSY,
        501: Says.UNSUPPORTED,
        502: Says.BUSY,
        503: Says.BUSY,
        504: Says.BUSY,
    }
)
KINDS = MappingProxyType(
    {
        Verb.CREATE: "storage#object",
        Verb.MATCH: "storage#object",
        Verb.HEAD: "storage#object",
        Verb.LIST: "storage#objects",
        Verb.FINISH: "storage#object",
    }
)


@dataclass(frozen=True, slots=True)
class GcsDialect:
    """Interpretation of the JSON API's replies.

    An upload session on a host other than `host` needs the id as proof.
    """

    host: str = ""
    vendor: str = "GCS"

    def hear(self, asked: StoreRequest, reply: HttpReply, *, signs: bool | None) -> Heard:
        """Return the store's proven statement, or the request that would confirm the reply."""
        del signs
        status, headers, body = reply._status, reply._headers, reply._body
        reading = asked.verb is Verb.GET and status == 200
        if wrong := header_flaw(headers, reading=reading):
            return reply.unproven(wrong)
        signed = _ID in headers
        spoken = Spoken(Says.DONE, str(status), str(status), retry_after_s=later_s(headers), signed=signed)
        if reading:
            return _media(reply, spoken)
        if status in (200, 201) and asked.verb in KINDS:
            return _resource(asked, reply, spoken)
        if asked.verb in (Verb.DELETE, Verb.DELETE_MATCH) and status in (200, 204):
            deleted = not body.strip() or body.strip() == b"null"
            if signed and deleted:
                return spoken
            return Confirm("head", reply.brief()) if asked.verb is Verb.DELETE else reply.unproven("no upload id")
        if asked.verb is Verb.BEGIN and status == 200:
            return self._begun(asked, reply, spoken, signed=signed)
        if asked.verb in (Verb.PART, Verb.FINISH) and status == 308:
            return _kept(asked, reply, spoken, signed=signed)
        if asked.verb is Verb.PART and status in (200, 201) and _json(body).get("kind") == "storage#object":
            early = "the store ended the upload before its last byte"
            return replace(spoken, says=Says.OTHER, advice=early)
        if asked.verb is Verb.GET and status == 304 and asked.version is not None:
            same = one(headers, "x-goog-generation") in (None, asked.version.token)
            return replace(spoken, says=Says.UNCHANGED) if signed and same else Confirm("get", reply.brief())
        return _refusal(asked, reply, spoken, signed=signed)

    def _begun(self, asked: StoreRequest, reply: HttpReply, spoken: Spoken, *, signed: bool) -> Heard:
        place = one(reply._headers, "location") or ""
        parts = urlsplit(place)
        if "upload_id=" not in parts.query or not (signed or parts.netloc == self.host):
            return reply.unproven("no session of an upload")
        return replace(spoken, document=Upload(asked.the_write(), place))


def _media(reply: HttpReply, spoken: Spoken) -> Heard:
    """Return a read's object, if generation and length are proven."""
    headers, body = reply._headers, reply._body
    generation = one(headers, "x-goog-generation")
    if not (generation or "").isdigit() or generation is None:
        return reply.unproven("no generation")
    stored = one(headers, "x-goog-stored-content-length")
    if stored is not None and stored.isdigit() and len(body) < int(stored):
        return reply.unproven(f"{len(body)} of {stored} bytes")
    identity = one(headers, f"{_META}{_IDENTITY}")
    modified = http_date_ms(one(headers, "last-modified"))
    return replace(spoken, document=Seen(Version("gcs", generation), len(body), modified, identity, body))


def _resource(asked: StoreRequest, reply: HttpReply, spoken: Spoken) -> Heard:
    """Return the statement of a success with a JSON resource."""
    found = _json(reply._body)
    if found.get("kind") != KINDS[asked.verb]:
        return reply.unproven(f"no {KINDS[asked.verb]}")
    try:
        if asked.verb is Verb.LIST:
            return replace(spoken, document=_page(asked, found))
        version = Version("gcs", str(int(found["generation"])))
        if asked.verb is not Verb.HEAD:
            return replace(spoken, version=version)
        return replace(spoken, document=_seen(version, found, reply._headers))
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        return reply.unproven(f"a {KINDS[asked.verb]} that cannot be read: {type(error).__name__}: {error}")


def _page(asked: StoreRequest, found: dict[str, Any]) -> Page:
    """Return a listing's page without the object at `startOffset`, which is inclusive."""
    bucket = asked.path.partition("/")[0]
    after = (asked.start_after or "").partition("/")[2]
    items = [item for item in found.get("items", ()) if item["name"] != after]
    return Page(tuple(_entry(bucket, item) for item in items), found.get("nextPageToken") or None)


def _entry(bucket: str, item: dict[str, Any]) -> Entry:
    version = Version("gcs", str(item["generation"])) if item.get("generation") else None
    updated = item.get("updated")
    return Entry(f"{bucket}/{item['name']}", int(item.get("size", 0)), iso_ms(updated) if updated else None, version)


def _seen(version: Version, found: dict[str, Any], headers: Headers) -> Seen:
    """Return an object's state from its resource."""
    metadata = dict(found.get("metadata") or {})
    updated = found.get("updated")
    identity = metadata.pop(_IDENTITY, None)
    return Seen(
        version,
        int(found.get("size", 0)),
        iso_ms(updated) if updated else None,
        identity,
        answered_ms=http_date_ms(one(headers, "date")),
        content_type=found.get("contentType"),
        metadata=metadata,
    )


def _kept(asked: StoreRequest, reply: HttpReply, spoken: Spoken, *, signed: bool) -> Heard:
    """Return the statement of a continuing upload session, which names the bytes it has."""
    upload = asked.upload
    last = (one(reply._headers, "range") or "").rpartition("-")[2]
    if upload is None or not (signed or last.isdigit()):
        return reply.unproven("neither an id nor a range")
    kept, end = int(last) + 1 if last.isdigit() else 0, upload.sent + len(asked.data)
    if asked.verb is Verb.PART and kept >= end:
        return replace(spoken, document=replace(upload, tags=(*upload.tags, ""), sent=end))
    return replace(spoken, says=Says.BUSY, why=f"308: {kept} of {end} bytes were kept", undone=True)


def _refusal(asked: StoreRequest, reply: HttpReply, spoken: Spoken, *, signed: bool) -> Heard:
    """Return the statement of a failure status, if proven."""
    status = reply._status
    error = _json(reply._body).get("error")
    error = error if isinstance(error, dict) else {}
    reasons = [item.get("reason") for item in error.get("errors") or () if isinstance(item, dict)]
    proven = error.get("code") == status and any(reasons)
    if status == 429 and not (signed or proven):
        return replace(reply.unproven(), retry_after_s=spoken.retry_after_s or _PACE_S)
    if status < 300 or not (signed or proven):
        lost = status == 404 and asked.verb is Verb.GET
        return Confirm("head", reply.brief()) if lost else reply.unproven()
    message = str(error.get("message") or "")
    says = GCS_STATUSES.get(status, Says.BUSY if status >= 500 else Says.OTHER)
    why = f"{status} {message}".strip()
    if status == 404 and _NO_BUCKET in message:
        says = Says.NO_BUCKET
    elif asked.upload is not None and status == 404:
        says = Says.GONE
    elif status == 404 and asked.verb is Verb.GET and not proven and b"No such object" not in reply._body:
        return Confirm("head", reply.brief())
    elif status == 404 and asked.verb not in (Verb.HEAD, Verb.GET, Verb.MATCH, Verb.DELETE, Verb.DELETE_MATCH):
        says = Says.NO_BUCKET
    slow = status == 429 or (status == 403 and any(reason in _THROTTLE_REASONS for reason in reasons))
    says = Says.BUSY if slow else says
    later = spoken.retry_after_s or (_PACE_S if status == 429 else None)
    code = str(next(filter(None, reasons), status))
    return replace(spoken, says=says, code=code, why=why, retry_after_s=later, undone=slow or says is Says.CONFLICT)


def _json(body: bytes) -> dict[str, Any]:
    try:
        found = json.loads(body)
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}
