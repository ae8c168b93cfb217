"""A store request, its HTTP reply, and what a vendor's dialect proves from it. No I/O."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timezone
from email.utils import parsedate_to_datetime
from enum import Enum
from typing import ClassVar, Literal, final

from fsspec_cas.answer import ObjectState, Page, Upload
from fsspec_cas.outcome import Condition, Version, Write

_BRIEF_CHARACTERS = 80


class Verb(Enum):
    """Messages use the values."""

    CREATE = "create"
    MATCH = "match"
    HEAD = "head"
    GET = "get"
    DELETE = "delete"
    DELETE_MATCH = "delete at a version"
    DELETE_MANY = "delete many"
    LIST = "list"
    BEGIN = "begin upload"
    PART = "part"
    FINISH = "finish upload"
    ABORT = "abort upload"

    @property
    def writes(self) -> bool:
        return self in (Verb.CREATE, Verb.MATCH, Verb.FINISH)

    @property
    def conditional(self) -> bool:
        return self.writes or self is Verb.DELETE_MATCH


@dataclass(frozen=True, slots=True)
class StoreRequest:
    """One request to any vendor. `path` is `bucket/key`; for a list, the prefix.

    `condition`: that of a write; of a read, the version whose bytes it does not need.
    """

    verb: Verb
    path: str
    data: bytes = b""
    condition: Condition | None = None
    write: Write | None = None
    upload: Upload | None = None
    paths: tuple[str, ...] = ()
    start_after: str | None = None
    token: str | None = None
    limit: int | None = None
    dialect: str = ""

    @property
    def version(self) -> Version | None:
        return self.condition if isinstance(self.condition, Version) else None

    def the_write(self) -> Write:
        if self.write is None:
            raise ValueError(f"a {self.verb.value} of {self.path!r} names no write")
        return self.write

    def the_upload(self) -> Upload:
        if self.upload is None:
            raise ValueError(f"a {self.verb.value} of {self.path!r} names no upload")
        return self.upload


class HttpReply:
    __slots__ = ("_body", "_headers", "_status")

    def __init__(self, status: int, headers: Iterable[tuple[str, str]], body: bytes) -> None:
        self._status = status
        self._headers: dict[str, list[str]] = {}
        for name, value in headers:
            self._headers.setdefault(name.lower(), []).append(value)
        self._body = body

    def __repr__(self) -> str:
        return f"<HttpReply {self.brief()}>"

    def unproven(self, why: str = "") -> Unproven:
        status = self._status
        proxy = "the proxy wants credentials: put them into its URL" if status == 407 else ""
        text = f"{self.brief()}: {why}" if why else self.brief()
        return Unproven(text, status == 429, later_s(self._headers), proxy)

    def brief(self) -> str:
        kind = self._headers.get("content-type", [""])[0].partition(";")[0]
        text = self._body[:_BRIEF_CHARACTERS].decode("utf-8", "replace") if not 200 <= self._status < 300 else ""
        return " ".join(filter(None, (str(self._status), kind, repr(text) if text else "")))


class StatementKind(Enum):
    DONE = "done"
    ABSENT = "no such object"
    UNCHANGED = "not modified"
    FALSE = "condition false"
    CONFLICT = "conflict"
    BUSY = "busy"
    GONE = "no such upload"
    NO_BUCKET = "no such bucket"
    FORBIDDEN = "forbidden"
    UNSUPPORTED = "not implemented"
    OTHER = "another error"


@dataclass(frozen=True, slots=True)
class Refusals:
    """Store's error codes, by the keys that a delete did not remove."""

    codes: Mapping[str, str] = field(hash=False)


Carried = ObjectState | Page | Upload | Refusals


@final
@dataclass(frozen=True, slots=True)
class StoreStatement:
    """What a store's reply proves about one request; only a dialect builds it.

    Attributes:
        why: for messages; begins with the HTTP status.
        shows_request_ids: the reply shows whether this store gives them.
    """

    kind: StatementKind
    code: str = ""
    why: str = ""
    document: Carried | None = None
    version: Version | None = None
    retry_after_s: float | None = None
    not_applied: bool = False
    has_request_id: bool = False
    shows_request_ids: bool = False
    date: str | None = None
    advice: str = ""


@final
@dataclass(frozen=True, slots=True)
class Unproven:
    """Reply that its sender has not proved; `throttled`: it is 429."""

    why: str
    throttled: bool = False
    retry_after_s: float | None = None
    next_step: str = ""


@final
@dataclass(frozen=True, slots=True)
class Confirm:
    """Reply that the request `by` must confirm; `sign`: a listing that shows whether this store gives ids."""

    by: Literal["get", "head", "sign"]
    why: str


ReplyMeaning = StoreStatement | Unproven | Confirm


_DAMAGED = (ArithmeticError, AttributeError, LookupError, RecursionError, SyntaxError, TypeError, ValueError)


class Dialect:
    """Interpretation of one vendor's replies. `request_ids` are headers."""

    vendor: ClassVar[str]
    request_ids: ClassVar[tuple[str, ...]]

    def interpret(self, request: StoreRequest, reply: HttpReply, *, gives_request_ids: bool | None) -> ReplyMeaning:
        """Return the store's proven statement, the request that would confirm the reply, or `Unproven`.

        An unreadable reply is `Unproven`. `gives_request_ids`: None if unknown.
        """
        status, headers = reply._status, reply._headers  # noqa: SLF001 - only dialects read them
        has_request_id = any(headers.get(name) for name in self.request_ids)
        statement = StoreStatement(
            StatementKind.DONE,
            str(status),
            str(status),
            retry_after_s=later_s(headers),
            has_request_id=has_request_id,
            shows_request_ids=has_request_id,
            date=one(headers, "date"),
        )
        reading = request.verb in (Verb.GET, Verb.HEAD) and status == 200
        try:
            if flaw := header_flaw(headers, reading=reading):
                return reply.unproven(flaw)
            return self._interpret(request, reply, statement, gives_request_ids=gives_request_ids)
        except _DAMAGED as error:
            return reply.unproven(f"it cannot be read: {type(error).__name__}: {error}")

    def _interpret(
        self, request: StoreRequest, reply: HttpReply, statement: StoreStatement, *, gives_request_ids: bool | None
    ) -> ReplyMeaning:
        """Interpret a reply with plausible headers; `statement` is a success's."""
        raise NotImplementedError


Headers = Mapping[str, Sequence[str]]  # names in lower case
_SINGLE = ("etag", "content-length", "x-goog-generation")


def one(headers: Headers, name: str) -> str | None:
    values = headers.get(name)
    return values[0] if values else None


def header_flaw(headers: Headers, *, reading: bool) -> str | None:
    """Return why no store can have sent these headers: contradictions, an `Age`, no length when `reading`.

    None: it can.
    """
    for name in _SINGLE:
        values = headers.get(name)
        if values is not None and len(values) > 1 and len(set(values)) > 1:
            return f"two different values of {name}"
    age = one(headers, "age")
    if age is not None and age.strip() not in ("", "0"):
        return f"it comes from a cache (Age: {age})"
    if reading and "content-length" not in headers and "transfer-encoding" not in headers:
        return "no length"
    return None


def seen_in(headers: Headers, body: bytes | None, version: Version, prefix: str, identity: str) -> ObjectState:
    """Return an object's state from the headers of its read or head (`body` None).

    `prefix` marks metadata headers; `identity` is the name of the write id's, without `prefix`.
    """
    metadata = {name.removeprefix(prefix): values[0] for name, values in headers.items() if name.startswith(prefix)}
    return ObjectState(
        version,
        int(one(headers, "content-length") or 0) if body is None else len(body),
        http_date_ms(one(headers, "last-modified")),
        metadata.pop(identity, None),
        body,
        http_date_ms(one(headers, "date")),
        one(headers, "content-type"),
        metadata,
    )


def later_s(headers: Headers) -> float | None:
    """Seconds of `Retry-After`; None for a date."""
    text = one(headers, "retry-after")
    return float(text) if text and text.isascii() and text.isdecimal() else None


def http_date_ms(text: str | None) -> int | None:
    """HTTP date as epoch ms; None if missing or malformed."""
    try:
        if not text:
            return None
        date = parsedate_to_datetime(text)
        return int((date if date.tzinfo else date.replace(tzinfo=timezone.utc)).timestamp() * 1000)
    except (ValueError, OverflowError):
        return None


# Python 3.10's `fromisoformat` reads only fractions of 3 or 6 digits.
_RFC_3339 = re.compile(r"(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d)(?:\.(\d+))?(Z|[+-]\d\d:\d\d)?", re.ASCII)


def iso_ms(text: str) -> int:
    """RFC 3339 time (default: UTC) as epoch ms, its fraction cut. Other text: ValueError."""
    time = _RFC_3339.fullmatch(text.upper())
    if time is None:
        raise ValueError(f"{text!r} is not a time of RFC 3339")
    whole = datetime.fromisoformat(time[1] + (time[3] or "Z").replace("Z", "+00:00"))
    return int(whole.timestamp()) * 1000 + int((time[2] or "0")[:3].ljust(3, "0"))
