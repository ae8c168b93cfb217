"""Interpretation of Azure Blob Storage's replies. The proof is `x-ms-request-id`, documented for every answer."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from types import MappingProxyType
from urllib.parse import unquote
from xml.etree import ElementTree as ET

from fsspec_cas.answer import Entry, Page, Upload
from fsspec_cas.backends.reply import (
    Confirm,
    Dialect,
    HttpReply,
    ReplyMeaning,
    StatementKind,
    StoreRequest,
    StoreStatement,
    Verb,
    http_date_ms,
    one,
    seen_in,
)
from fsspec_cas.outcome import Version

_ID = "x-ms-request-id"
_CODE = "x-ms-error-code"
_META = "x-ms-meta-"
BLOB_ID_KEY = "cas_id"  # Azure's metadata names are C# identifiers
_FOLDER_MARK = "hdi_isfolder"

AZURE_STATUSES = MappingProxyType(
    {
        **dict.fromkeys((Verb.CREATE, Verb.MATCH, Verb.PART, Verb.FINISH), 201),
        **dict.fromkeys((Verb.HEAD, Verb.GET, Verb.LIST), 200),
        **dict.fromkeys((Verb.DELETE, Verb.DELETE_MATCH), 202),
    }
)
AZURE_CODES = MappingProxyType(
    {
        "BlobNotFound": StatementKind.ABSENT,
        "ContainerNotFound": StatementKind.NO_BUCKET,
        "BlobAlreadyExists": StatementKind.FALSE,
        "ConditionNotMet": StatementKind.FALSE,
        "TargetConditionNotMet": StatementKind.FALSE,
        "InvalidBlockList": StatementKind.GONE,
        **dict.fromkeys(("ServerBusy", "OperationTimedOut", "InternalError"), StatementKind.BUSY),
        **dict.fromkeys(("ContainerBeingDeleted", "ContainerBeingCreated"), StatementKind.BUSY),
    }
)
_KINDS = {
    **dict.fromkeys((401, 403), StatementKind.FORBIDDEN),
    **dict.fromkeys((408, 429), StatementKind.BUSY),
    501: StatementKind.UNSUPPORTED,
}
_UNDONE = ("ContainerBeingDeleted", "ContainerBeingCreated")
_ADVICE = MappingProxyType(
    {
        "BlobArchived": "the blob is archived: restore it first",
        "InvalidBlobOrBlock": "another program has an unfinished upload of this blob, whose blocks stop this: let it "
        "finish, or write and delete the blob once to drop it; Azure drops it after a week",
    }
)


class AzureDialect(Dialect):
    vendor = "Azure"
    request_ids = (_ID,)

    def _interpret(
        self, request: StoreRequest, reply: HttpReply, statement: StoreStatement, *, gives_request_ids: bool | None
    ) -> ReplyMeaning:
        if not statement.has_request_id:
            return reply.unproven("no x-ms-request-id")
        succeeded = reply._status == AZURE_STATUSES.get(request.verb)
        return (_success if succeeded else _refusal)(request, reply, statement)

    def challenges(self, reply: HttpReply) -> bool:
        return reply._status == 401 and _ID in reply._headers and "www-authenticate" in reply._headers


def _success(request: StoreRequest, reply: HttpReply, statement: StoreStatement) -> ReplyMeaning:
    """Return a success's statement, with its page, block, version or object.

    Without a required ETag, return `Unproven`.
    """
    headers = reply._headers
    upload = request.upload
    if request.verb is Verb.LIST:
        return _listed(request, reply, statement)
    if request.verb in (Verb.DELETE, Verb.DELETE_MATCH):
        return statement
    if request.verb is Verb.PART and upload is not None:
        tag = block_id(upload)
        return replace(
            statement, document=replace(upload, tags=(*upload.tags, tag), sent=upload.sent + len(request.data))
        )
    etag = one(headers, "etag")
    if not etag:
        return reply.unproven("no ETag")
    version = Version("azure", etag)
    if request.verb.writes:
        return replace(statement, version=version)
    body = reply._body if request.verb is Verb.GET else None
    return replace(statement, document=seen_in(headers, body, version, _META, BLOB_ID_KEY))


def _refusal(request: StoreRequest, reply: HttpReply, statement: StoreStatement) -> ReplyMeaning:
    """Return what a status other than success proves, by Azure's error code, else by status.

    Below 500 without a code, a head needs a get, other requests are `Unproven`. So is an unexpected success.
    """
    status, headers = reply._status, reply._headers
    code = one(headers, _CODE) or ""
    why = f"{status} {code}".strip()
    if status == 304 and request.verb is Verb.GET and request.version is not None and code:
        return replace(statement, kind=StatementKind.UNCHANGED, code=code, why=why)
    if not code and request.verb is Verb.HEAD and 300 <= status < 500:
        return Confirm("get", reply.brief())
    if status < 300 or (not code and status < 500):
        return reply.unproven("neither the success of this request nor an x-ms-error-code")
    kind = AZURE_CODES.get(code)
    if kind is None:
        kind = _KINDS.get(status, StatementKind.BUSY if status >= 500 else StatementKind.OTHER)
    not_applied = status == 429 or code in _UNDONE
    advice = _ADVICE.get(code, "check account, key and roles" if kind is StatementKind.FORBIDDEN else "")
    return replace(statement, kind=kind, code=code or str(status), why=why, not_applied=not_applied, advice=advice)


def _listed(request: StoreRequest, reply: HttpReply, statement: StoreStatement) -> ReplyMeaning:
    """Return a success's `statement` with its page, cut to paths after `start_after`.

    An empty NextMarker ends the listing; without one, or for other XML, returns `Unproven`.
    """
    container = request.path.partition("/")[0]
    after = (request.start_after or "").partition("/")[2]
    root = ET.fromstring(reply._body.lstrip(b"\xef\xbb\xbf"))  # noqa: S314 - expat limits expansion
    marker = root.find("NextMarker")
    if root.tag != "EnumerationResults" or marker is None:
        return reply.unproven("no EnumerationResults with a NextMarker")
    entries = tuple(entry for entry in _entries(container, root) if entry.path.partition("/")[2] > after)
    return replace(statement, document=Page(entries, marker.text or None))


def _entries(container: str, root: ET.Element) -> Iterator[Entry]:
    """Yield a listing's blobs as `container/name`, in its order, without folder markers."""
    for blob in root.iterfind("Blobs/Blob"):
        if (blob.findtext(f"Metadata/{_FOLDER_MARK}") or "").lower() == "true":
            continue
        named = blob.find("Name")
        name = (named.text or "") if named is not None else ""
        name = unquote(name) if named is not None and named.get("Encoded") == "true" else name
        etag = (blob.findtext("Properties/Etag") or "").strip('"')
        version = Version("azure", f'"{etag}"') if etag else None
        size = int(blob.findtext("Properties/Content-Length") or 0)
        yield Entry(f"{container}/{name}", size, http_date_ms(blob.findtext("Properties/Last-Modified")), version)


def block_id(upload: Upload) -> str:
    """Next block's id, as long as all others."""
    return f"{upload.write.write_id}-{len(upload.tags):05d}"
