"""A request, its HTTP reply, what its headers say, and what a dialect makes of it. Pure.

A transport builds an `HttpReply`, and only a dialect opens it. So no other code can take an answer for the store's
because of its status. The status alone proves nothing: gateways, captive portals, caches and credential services answer
too, so a backend believes an answer only with a proof that the store wrote it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timezone
from email.utils import parsedate_to_datetime
from enum import Enum
from typing import Literal, Protocol, TypeVar, final

from fsspec_cas.answer import Page, Seen, Upload
from fsspec_cas.outcome import Condition, Version, Write

D = TypeVar("D")

_BRIEF_CHARACTERS = 80


class Verb(Enum):
    """The kinds of requests; the value is the name that messages and tables use."""

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
        """Whether the request stores an object's bytes."""
        return self in (Verb.CREATE, Verb.MATCH, Verb.FINISH)


@dataclass(frozen=True, slots=True)
class StoreRequest:
    """One request, in the words of no vendor. `path` is `bucket/key`; for a list it is the prefix.

    `condition` is the version of a match, of a delete at a version, and of a read of what has changed. `write` is that
    of a create, a match, or the begin of an upload. `dialect` is how the condition is written, where a store may want
    it in another form.
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
        """The version that the request names."""
        return self.condition if isinstance(self.condition, Version) else None

    def the_write(self) -> Write:
        """The write of a request that makes an object."""
        if self.write is None:
            raise ValueError(f"a {self.verb.value} of {self.path!r} names no write")
        return self.write

    def the_upload(self) -> Upload:
        """The upload of a part, a completion or an abort."""
        if self.upload is None:
            raise ValueError(f"a {self.verb.value} of {self.path!r} names no upload")
        return self.upload

    def as_read(self) -> StoreRequest:
        """The plain read of the same object."""
        return StoreRequest(Verb.GET, self.path)

    def as_head(self) -> StoreRequest:
        """The look at the same object."""
        return StoreRequest(Verb.HEAD, self.path)

    def as_short_list(self) -> StoreRequest:
        """A list of at most one object of the same bucket."""
        return StoreRequest(Verb.LIST, f"{self.path.partition('/')[0]}/", limit=1)


class HttpReply:
    """What came back over HTTP. It has no public status: only a dialect opens it.

    >>> HttpReply(404, [("Content-Type", "text/plain")], b"404 page not found").brief()
    "404 text/plain '404 page not found'"
    """

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
        """What a reply comes to that nobody can be held to; `why` is what a proof lacks."""
        status, later = self._status, self._headers.get("retry-after", [""])[0]
        proxy = "the proxy on the way wants credentials: put them into its URL" if status == 407 else ""
        text = f"{self.brief()}: {why}" if why else self.brief()
        return Unproven(text, status == 429, float(later) if later.isdigit() else None, proxy)

    def brief(self) -> str:
        """Status, content type and the beginning of the body, for messages. The body of a 2xx may be an object's."""
        kind = self._headers.get("content-type", [""])[0].partition(";")[0]
        text = self._body[:_BRIEF_CHARACTERS].decode("utf-8", "replace") if not 200 <= self._status < 300 else ""
        return " ".join(filter(None, (str(self._status), kind, repr(text) if text else "")))


class Says(Enum):
    """What a store says, in one vocabulary."""

    DONE = "done"
    ABSENT = "no such object"
    UNCHANGED = "not modified"
    FALSE = "condition false"
    EXISTS = "exists"
    CONFLICT = "conflict"
    BUSY = "busy"
    GONE = "no such upload"
    NO_BUCKET = "no such bucket"
    FORBIDDEN = "forbidden"
    UNSUPPORTED = "not implemented"
    OTHER = "another error"


@dataclass(frozen=True, slots=True)
class Refusals:
    """The keys that a request for many objects did not remove, with the store's code for each."""

    codes: Mapping[str, str] = field(hash=False)


Carried = Seen | Page | Upload | Refusals


@final
@dataclass(frozen=True, slots=True)
class Spoken:
    """What the store said, proven. Only a dialect's `hear` builds one.

    Attributes:
        says: the store's words, in one vocabulary.
        code: the store's own code, or its status where it has none.
        why: for messages; it begins with the HTTP status.
        document: what the reply carried: an object, a page, an upload.
        version: of the object that was written.
        retry_after_s: how long the store asks to wait.
        undone: the request was certainly not applied.
        signed: the reply carried the store's request id.
        telling: the reply shows whether this store gives request ids at all.
        date: the store's `Date`, as text.
        advice: what the user may do about a refusal.
    """

    says: Says
    code: str = ""
    why: str = ""
    document: Carried | None = None
    version: Version | None = None
    retry_after_s: float | None = None
    undone: bool = False
    signed: bool = False
    telling: bool = False
    date: str | None = None
    advice: str = ""


@final
@dataclass(frozen=True, slots=True)
class Unproven:
    """Nothing shows that the store said it.

    Attributes:
        why: for messages; it begins with the HTTP status.
        throttled: it is a 429, which everybody means alike.
        retry_after_s: how long to wait, if it says so.
        next_step: what only the user can mend.
    """

    why: str
    throttled: bool = False
    retry_after_s: float | None = None
    next_step: str = ""


@final
@dataclass(frozen=True, slots=True)
class Confirm:
    """The reply proves nothing by itself; another request decides.

    `by`: a plain read, a look, or a list that shows whether this store gives request ids.
    """

    by: Literal["get", "head", "sign"]
    why: str


Heard = Spoken | Unproven | Confirm


class Dialect(Protocol):
    """How one vendor's replies are heard. Pure."""

    @property
    def vendor(self) -> str:
        """The name that messages use."""

    def hear(self, asked: StoreRequest, reply: HttpReply, *, signs: bool | None) -> Heard:
        """What the store said. `signs`: whether it gives request ids; None before anything is known."""


Headers = Mapping[str, Sequence[str]]  # names in lower case
_SINGLE = ("etag", "content-length", "x-goog-generation")


def one(headers: Headers, name: str) -> str | None:
    """The first value of a header."""
    values = headers.get(name)
    return values[0] if values else None


def header_flaw(headers: Headers, *, reading: bool) -> str | None:
    """Why no store can have sent these headers, or None.

    `reading`: the reply brings an object or its head, so its length must be known.
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


def seen_in(headers: Headers, body: bytes | None, version: Version, prefix: str, identity: str) -> Seen:
    """An object as the headers of its read (with its `body`), or of its head, show it.

    Headers that begin with `prefix` are its metadata, in which `identity` is the name of the write's.
    """
    metadata = {name.removeprefix(prefix): values[0] for name, values in headers.items() if name.startswith(prefix)}
    return Seen(
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
    """Seconds of `Retry-After`; None for none, and for a date."""
    text = one(headers, "retry-after")
    return float(text) if text and text.isdigit() else None


def epoch_ms(moment: datetime) -> int:
    """Epoch ms of a time with a zone."""
    return int(moment.timestamp() * 1000)


def http_date_ms(text: str | None) -> int | None:
    """Epoch milliseconds of a `Date` header; None if it is missing or no date."""
    try:
        return epoch_ms(parsedate_to_datetime(text)) if text else None
    except ValueError:
        return None


def iso_ms(text: str) -> int:
    """Epoch ms of an RFC 3339 time; Python 3.10 reads three or six digits of a second only.

    Raises:
        ValueError: it is none.
    """
    try:
        return round(datetime.fromisoformat(text.replace("Z", "+00:00")).timestamp() * 1000)
    except ValueError:
        if text[19:20] != ".":
            raise
        whole = datetime.fromisoformat(text[:19]).replace(tzinfo=timezone.utc)
        return epoch_ms(whole) + int(text[20:].rstrip("Z")[:3].ljust(3, "0"))
