"""Answers of a store to one request, results of reads, and what a kind of store can do. No I/O."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field

from fsspec_cas.outcome import Version, Write


@dataclass(frozen=True, slots=True)
class Applied:
    """The store performed the write or delete."""

    version: Version | None


@dataclass(frozen=True, slots=True)
class ConditionFailed:
    """The condition is false; it was sent in the form `dialect`."""

    dialect: str = ""


@dataclass(frozen=True, slots=True)
class NotApplied:
    """The request was certainly not applied."""

    why: str
    retry_after_s: float | None = None


@dataclass(frozen=True, slots=True)
class NoAnswer:
    """The request may have been applied. `stranger`: the endpoint never proved to be a store."""

    why: str
    retry_after_s: float | None = None
    stranger: bool = False


@dataclass(frozen=True, slots=True)
class UploadGone:
    """The upload does not exist: an earlier send completed it, or it was dropped."""

    why: str


@dataclass(frozen=True, slots=True)
class ObjectState:
    """Object, as one response showed it; `data` is None for a `head`. Times are the store's, in epoch ms."""

    version: Version
    size: int
    modified_ms: int | None
    write_id: str | None
    data: bytes | None = None
    answered_ms: int | None = None
    content_type: str | None = None
    metadata: Mapping[str, str] | None = field(default=None, hash=False)


@dataclass(frozen=True, slots=True)
class Missing:
    """No object is at the path."""


@dataclass(frozen=True, slots=True)
class Unchanged:
    """The object is still at the reader's version."""


@dataclass(frozen=True, slots=True)
class Content:
    """Bytes of an object and their version, from one response.

    >>> Content(b"1", Version("s3", '"etag"')).version.token
    '"etag"'
    """

    data: bytes
    version: Version


@dataclass(frozen=True, slots=True)
class Info:
    """Metadata of an object; a field is None if the store does not report it.

    `path` includes the store's root. Times are the store's clock, in epoch ms (over HTTP whole seconds). `metadata`
    leaves out the write's identity.

    >>> store = Store.from_url("memory://docs/store")
    >>> version = store.put_if_absent("a", b"1", content_type="text/plain").unwrap()
    >>> info = store.head("a")
    >>> info.size, info.content_type
    (1, 'text/plain')
    """

    path: str
    version: Version
    size: int
    modified_ms: int | None
    write_id: str | None
    answered_ms: int | None = None
    content_type: str | None = None
    metadata: Mapping[str, str] | None = field(default=None, hash=False)


@dataclass(frozen=True, slots=True)
class Entry:
    """One object in a listing; `modified_ms` is the store's clock, epoch ms. `version` is None if the listing has none.

    >>> store = Store.from_url("memory://docs/store")
    >>> version = store.put_if_absent("days/mon", b"rows").unwrap()
    >>> [(entry.path, entry.size) for entry in store.list("days/")]
    [('days/mon', 4)]
    """

    path: str
    size: int
    modified_ms: int | None
    version: Version | None = None


@dataclass(frozen=True, slots=True)
class Page:
    """One page of a listing, ordered by path; `token` requests the next."""

    entries: tuple[Entry, ...]
    token: str | None = None


@dataclass(frozen=True, slots=True)
class Upload:
    """Upload in parts, invisible until completed; `tags` name its parts in the store."""

    write: Write
    token: str
    tags: tuple[str, ...] = ()
    sent: int = 0


ListAnswer = Page | NotApplied | NoAnswer
WriteAnswer = Applied | ConditionFailed | NotApplied | NoAnswer
FinishAnswer = WriteAnswer | UploadGone
UploadAnswer = Upload | ConditionFailed | NotApplied | NoAnswer
ReadAnswer = ObjectState | Missing | Unchanged | NotApplied | NoAnswer


@dataclass(frozen=True, slots=True)
class Capabilities:
    """Documented capabilities of a kind of store; `fsspec-cas probe` tests one endpoint.

    Attributes:
        create: `put_if_absent` is atomic.
        match: `put_if_match` is atomic.
        delete_match: `delete_if_match` is atomic.
        read_changed: a conditional GET of an unchanged object sends no body.
        unique_versions: a version never recurs, even after equal bytes.
        keeps_write_id: an object keeps its write's identity, which settles lost answers.
        own_clock: `head` returns the store's clock at the last write and at the answer.
        writes_per_s: documented limit of one object's overwrites per second, or None.

    >>> can = Store.from_url("memory://docs/store").capabilities
    >>> can.create, can.unique_versions
    (True, True)
    """

    create: bool
    match: bool
    delete_match: bool
    read_changed: bool
    unique_versions: bool
    keeps_write_id: bool
    own_clock: bool = False
    writes_per_s: float | None = None

    def to_json(self) -> dict[str, object]:
        """JSON-able mapping.

        >>> can.to_json()["delete_match"]
        True
        """
        return asdict(self)
