"""Interpretation of an S3 server's replies. "Whose answer it is" in SPECIFICATION.md lists the proofs."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Literal
from urllib.parse import unquote_plus
from xml.etree import ElementTree as ET

from fsspec_cas.answer import Entry, Page, Upload
from fsspec_cas.backends.reply import (
    Confirm,
    Dialect,
    HttpReply,
    Refusals,
    ReplyMeaning,
    StatementKind,
    StoreRequest,
    StoreStatement,
    Unproven,
    Verb,
    iso_ms,
    one,
    seen_in,
)
from fsspec_cas.outcome import Version

_IDENTITY = "x-amz-meta-cas-id"
_META = "x-amz-meta-"
_MARKER = "x-amz-delete-marker"
_ETAG = re.compile(r'"?[0-9a-f]{32}(-\d+)?"?')

S3_CODES = MappingProxyType(
    {
        "NoSuchKey": StatementKind.ABSENT,
        "NoSuchBucket": StatementKind.NO_BUCKET,
        "NoSuchUpload": StatementKind.GONE,
        "PreconditionFailed": StatementKind.FALSE,
        "OperationAborted": StatementKind.CONFLICT,
        "ConditionalRequestConflict": StatementKind.CONFLICT,
        "ConcurrentModification": StatementKind.CONFLICT,
        **dict.fromkeys(
            {"SlowDown", "ServiceUnavailable", "InternalError", "RequestTimeout", "Throttling", "ThrottlingException"}
            | {"KMS.ThrottlingException", "RequestLimitExceeded", "BandwidthLimitExceeded", "TooManyRequests"}
            | {"TemporaryRedirect", "Busy"},
            StatementKind.BUSY,
        ),
        **dict.fromkeys(
            {"AccessDenied", "ExpiredToken", "ExpiredTokenException", "InvalidToken", "TokenRefreshRequired"}
            | {"InvalidAccessKeyId", "SignatureDoesNotMatch", "RequestTimeTooSkewed", "AllAccessDisabled"}
            | {"AccountProblem"},
            StatementKind.FORBIDDEN,
        ),
        "NotImplemented": StatementKind.UNSUPPORTED,
    }
)
# Newer SDKs send checksums that some servers reject.
_NO_CHECKSUM = (
    "if it is the checksum of the body, s3fs leaves it out with "
    "config_kwargs={'request_checksum_calculation': 'when_required'}"
)
_ADVICE = MappingProxyType(
    {
        "AccessDenied": "check key, secret and policy; or the object is missing, and s3:ListBucket is not granted; "
        "or the bucket is requester-pays: give requester_pays=True",
        "InvalidObjectState": "the object is archived: restore it first",
        "PermanentRedirect": "the bucket is in another region: give region_name in client_kwargs, or its endpoint",
        "AuthorizationHeaderMalformed": "the bucket is in another region: give region_name in client_kwargs",
    }
)


@dataclass(frozen=True, slots=True)
class Form:
    """Form of a success; `root` is its document's."""

    statuses: tuple[int, ...]
    root: str = ""
    empty: bool = False


FORMS = MappingProxyType(
    {
        Verb.CREATE: Form((200,), empty=True),
        Verb.MATCH: Form((200,), empty=True),
        Verb.HEAD: Form((200,)),
        Verb.GET: Form((200,)),
        Verb.DELETE: Form((204,), empty=True),
        Verb.DELETE_MATCH: Form((204,), empty=True),
        Verb.DELETE_MANY: Form((200,), root="DeleteResult"),
        Verb.LIST: Form((200,), root="ListBucketResult"),
        Verb.BEGIN: Form((200,), root="InitiateMultipartUploadResult"),
        Verb.PART: Form((200,), empty=True),
        Verb.FINISH: Form((200,), root="CompleteMultipartUploadResult"),
    }
)


class S3Dialect(Dialect):
    vendor = "S3"
    request_ids = ("x-amz-request-id", "x-amz-id-2")

    def _interpret(
        self, request: StoreRequest, reply: HttpReply, statement: StoreStatement, *, gives_request_ids: bool | None
    ) -> ReplyMeaning:
        return _S3Reply(request, reply, statement, gives_request_ids).meaning()

    def region_of(self, reply: HttpReply) -> str | None:
        """Return the region that a proven refusal (301, 307, 400) names as the bucket's, else None."""
        if reply._status not in (301, 307, 400):
            return None
        root = _document(reply._body)
        is_error = root is not None and _name(root) == "Error" and bool(_text(root, "Code"))
        if not is_error and not any(reply._headers.get(name) for name in self.request_ids):
            return None
        named = reply._headers.get("x-amz-bucket-region", [""])[0]
        return named or (_text(root, "Region") if root is not None else "") or None


def version_of(etag: str | None) -> Version | None:
    """ETag's version, with the quotes that some gateways strip."""
    return Version("s3", etag if etag.startswith('"') else f'"{etag}"') if etag else None


@dataclass(frozen=True, slots=True)
class _S3Reply:
    request: StoreRequest
    reply: HttpReply
    statement: StoreStatement
    gives_request_ids: bool | None

    def meaning(self) -> ReplyMeaning:
        """Return what the reply proves: by an error document, a success's document, or status and headers."""
        form, verb = FORMS[self.request.verb], self.request.verb
        succeeded = self.reply._status in form.statuses
        # A successful read's body is the object, even if it looks like an error.
        root = None if verb is Verb.GET and succeeded else _document(self.reply._body)
        if root is not None and _name(root) == "Error" and (code := _text(root, "Code")):
            return self._error(code, root)
        if not succeeded:
            return self._bodiless()
        if form.root:
            if root is None or _name(root) != form.root:
                return self.reply.unproven(f"no {form.root}")
            return _with_document(self.request, root, replace(self.statement, shows_request_ids=True))
        return self._success()

    def _error(self, code: str, root: ET.Element) -> StoreStatement:
        """Return what an error document proves, by its code, or for an unknown code by its status.

        With a success status every code, known or not, means busy.
        """
        status, kind = self.reply._status, S3_CODES.get(code)
        if kind is None:
            kind = {412: StatementKind.FALSE, 501: StatementKind.UNSUPPORTED}.get(status, StatementKind.OTHER)
            kind = StatementKind.BUSY if status in (429, 500, 502, 503, 504) else kind
            kind = StatementKind.FORBIDDEN if status in (401, 403) else kind
        if status < 300:
            kind = StatementKind.BUSY  # it does not show whether the request was applied
        why = f"{status} {code}"
        advice = _ADVICE.get(code, "")
        if kind is StatementKind.UNSUPPORTED:
            named = _text(root, "Header") or _text(root, "Message")
            why += f": {named}" if named else ""
            advice = _NO_CHECKSUM if "checksum" in named.lower() or "header" in named.lower() else advice
        if kind is StatementKind.OTHER and (message := _text(root, "Message")):
            why += f": {message}"
        not_applied = status == 429 or kind is StatementKind.CONFLICT
        return replace(
            self.statement,
            kind=kind,
            code=code,
            why=why,
            not_applied=not_applied,
            shows_request_ids=True,
            advice=advice,
        )

    def _success(self) -> ReplyMeaning:
        """Return what a success without a document proves, else `Unproven` or `Confirm`.

        Writes and parts need a strong ETag, and request id or data's MD5; deletes a request id. Reads are as `_read`,
        but OTHER for weak ETags with request or write id.
        """
        request, reply, statement, verb = self.request, self.reply, self.statement, self.request.verb
        if FORMS[verb].empty and reply._body:
            return reply.unproven("a body although S3 sends none")
        why, etag = f"{reply.brief()} without the store's request id", one(reply._headers, "etag")
        if verb in (Verb.DELETE, Verb.DELETE_MATCH):
            if statement.has_request_id:
                return statement
            return self._confirmed_by("get" if verb is Verb.DELETE else None, why)
        if etag is None:
            return reply.unproven("no ETag")
        if etag.startswith("W/"):
            weak = "its ETag is weak, so a proxy changes bodies: switch off the proxy's compression"
            proven_store = verb in (Verb.GET, Verb.HEAD) and (statement.has_request_id or _IDENTITY in reply._headers)
            refused = replace(statement, kind=StatementKind.OTHER, code="weak ETag", advice=weak)
            return refused if proven_store else reply.unproven("a weak ETag")
        if verb in (Verb.GET, Verb.HEAD):
            return self._read(etag, why)
        hashed = hashlib.md5(request.data, usedforsecurity=False).hexdigest()
        if not statement.has_request_id and etag.strip('"') != hashed:
            return self._confirmed_by("head" if verb.writes else None, why)
        upload = request.upload if verb is Verb.PART else None
        part = upload and replace(upload, tags=(*upload.tags, etag), sent=upload.sent + len(request.data))
        return self._proven(replace(statement, version=version_of(etag), document=part))

    def _confirmed_by(self, verb: Literal["get", "head"] | None, why: str) -> ReplyMeaning:
        if self.gives_request_ids is None:
            return Confirm("sign", why)
        return Unproven(why) if self.gives_request_ids or verb is None else Confirm(verb, why)

    def _proven(self, statement: StoreStatement) -> StoreStatement:
        return replace(statement, shows_request_ids=statement.has_request_id or self.gives_request_ids is None)

    def _read(self, etag: str, why: str) -> ReplyMeaning:
        """Return the object of a head or get with a request id; where the store may give none, our write id suffices.

        For a store without ids S3's headers suffice. Else `Confirm` or `Unproven`.
        """
        headers, given = self.reply._headers, self.gives_request_ids
        alike = _ETAG.fullmatch(etag) is not None and one(headers, "last-modified") is not None
        by_identity = given is not True and one(headers, _IDENTITY)
        if not (self.statement.has_request_id or by_identity or (given is False and alike)):
            return Confirm("sign", why) if given is None and alike else Unproven(why)
        body = self.reply._body if self.request.verb is Verb.GET else None
        document = seen_in(headers, body, Version("s3", etag if etag.startswith('"') else f'"{etag}"'), _META, "cas-id")
        return self._proven(replace(self.statement, document=document))

    def _bodiless(self) -> ReplyMeaning:
        """Return what a failure status without a document proves: absent, forbidden, unchanged, or condition false.

        Else the get to confirm it, or `Unproven`.
        """
        request, status, headers = self.request, self.reply._status, self.reply._headers
        why, has_request_id = self.reply.brief(), self.statement.has_request_id
        statement = replace(self.statement, kind=StatementKind.OTHER, why=why)
        if request.verb is Verb.HEAD and status in (404, 403, 401, 400, 301, 307):
            if status == 404 and (has_request_id or headers.get(_MARKER)):
                return replace(statement, kind=StatementKind.ABSENT)
            if has_request_id and status in (401, 403):
                return replace(statement, kind=StatementKind.FORBIDDEN, advice=_ADVICE["AccessDenied"])
            return Confirm("get", why)
        if status == 304 and request.verb is Verb.GET and request.version is not None:
            etag = one(headers, "etag")
            same = etag is not None and version_of(etag) == request.version
            if (has_request_id and (same or etag is None)) or (self.gives_request_ids is False and same):
                return replace(statement, kind=StatementKind.UNCHANGED)
            return Confirm("get", why)
        if status == 304 and request.verb.conditional and has_request_id:
            return replace(statement, kind=StatementKind.FALSE)  # old MinIO answers so
        return self.reply.unproven()


def _with_document(request: StoreRequest, root: ET.Element, statement: StoreStatement) -> ReplyMeaning:
    """Return `statement` with a success's listing (as `_listed`), refusals, begun upload, or version.

    `Unproven` without the upload's id or the ETag.
    """
    if request.verb is Verb.LIST:
        return _listed(request, root, statement)
    if request.verb is Verb.DELETE_MANY:
        failed = {_text(error, "Key"): _text(error, "Code") for error in root.iterfind(f"{_space(root)}Error")}
        return replace(statement, document=Refusals(failed))
    if request.verb is Verb.BEGIN:
        token = _text(root, "UploadId")
        begun = Upload(request.the_write(), token)
        return replace(statement, document=begun) if token else Unproven(f"{statement.code}: no UploadId")
    version = version_of(_text(root, "ETag"))
    return replace(statement, version=version) if version else Unproven(f"{statement.code}: no ETag")


def _listed(request: StoreRequest, root: ET.Element, statement: StoreStatement) -> ReplyMeaning:
    """Return a listing's page; `Unproven` unless it repeats the prefix and gives IsTruncated.

    Truncation without a token makes a statement of kind OTHER.
    """
    bucket, _, prefix = request.path.partition("/")
    encoded = _text(root, "EncodingType") == "url"
    listed_prefix = _text(root, "Prefix")
    if (unquote_plus(listed_prefix) if encoded else listed_prefix) != prefix:
        return Unproven(f"a listing of {listed_prefix!r}, and {prefix!r} was asked for")
    cut, token = _text(root, "IsTruncated"), _text(root, "NextContinuationToken") or None
    if cut not in ("true", "false"):
        return Unproven("a listing that does not say whether it is whole (IsTruncated)")
    if cut == "true" and token is None:
        advice = "this server has no ListObjectsV2: it truncates a listing and returns no continuation token"
        return replace(statement, kind=StatementKind.OTHER, code="IsTruncated", advice=advice)
    entries = tuple(_entries(bucket, root, encoded=encoded))
    return replace(statement, document=Page(entries, token if cut == "true" else None))


def _document(body: bytes) -> ET.Element | None:
    """Body's XML root; None if not XML."""
    text = body.lstrip()
    if text[:1] != b"<":
        return None
    try:
        return ET.fromstring(text)  # noqa: S314 - as botocore does; expat limits expansion
    except (ET.ParseError, ValueError):
        return None


def _name(root: ET.Element) -> str:
    return root.tag.rpartition("}")[2]


def _space(root: ET.Element) -> str:
    return root.tag.removesuffix(_name(root))


def _text(root: ET.Element, name: str) -> str:
    return root.findtext(f"{_space(root)}{name}") or ""


def _entries(bucket: str, root: ET.Element, *, encoded: bool) -> Iterator[Entry]:
    """Yield the objects of a listing as `bucket/key`, in its order; `encoded`: its keys are URL-encoded.

    A missing field, except ETag, raises KeyError.
    """
    space = _space(root)
    names = {f"{space}{name}": name for name in ("Key", "Size", "LastModified", "ETag")}
    for item in root.iterfind(f"{space}Contents"):
        fields = {names[child.tag]: child.text or "" for child in item if child.tag in names}
        key = unquote_plus(fields["Key"]) if encoded else fields["Key"]
        yield Entry(
            f"{bucket}/{key}", int(fields["Size"]), iso_ms(fields["LastModified"]), version_of(fields.get("ETag"))
        )
