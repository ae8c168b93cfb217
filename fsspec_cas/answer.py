"""What a store can do, and what one request to it came to, in one vocabulary for every store.

A backend sends a request once and says which of these came back. What it means is decided in `resolve`.
A failure that no second send mends (no such bucket, access denied) is not an answer but a raised `StoreError`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field

from fsspec_cas.outcome import Version, Write


@dataclass(frozen=True, slots=True)
class Applied:
    """The store says that it did it. `version` is None where its answer did not carry one."""

    version: Version | None


@dataclass(frozen=True, slots=True)
class Denied:
    """The store says that the condition is false: 412, 409 "exists", 404 on a match.

    `dialect` is how the condition was written, where a store may want it in another form.
    """

    dialect: str = ""


@dataclass(frozen=True, slots=True)
class NotNow:
    """Certainly not applied, and may be sent again: 409 "conflict", 429, no connection."""

    why: str
    retry_after_s: float | None = None


@dataclass(frozen=True, slots=True)
class NoAnswer:
    """Nobody knows: a timeout, a reset, an answer that nothing shows to be the store's.

    `stranger`: such an answer, and what answers here has never shown that it is a store.
    """

    why: str
    retry_after_s: float | None = None
    stranger: bool = False


def throttled(answer: object) -> bool:
    """Whether the store asked for patience: 429, or 503 as in S3's SlowDown; `why` begins with the HTTP status."""
    return isinstance(answer, (NotNow, NoAnswer)) and (answer.why[:3] in ("429", "503") or "SlowDown" in answer.why)


@dataclass(frozen=True, slots=True)
class Gone:
    """What was to be finished is not there: an upload that an earlier send has finished, or that was dropped."""

    why: str


@dataclass(frozen=True, slots=True)
class Seen:
    """An object, as one response showed it. `data` is None when only its head was asked for.

    `answered_ms` is the store's clock at the answer to a head, where it says so.
    """

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
    """There is no object."""


@dataclass(frozen=True, slots=True)
class Unchanged:
    """The object still is at the version that the reader has: 304, no body was moved."""


@dataclass(frozen=True, slots=True)
class Content:
    """The bytes of an object and their version, out of one response.

    >>> Content(b"1", Version("s3", '"etag"')).version.token
    '"etag"'
    """

    data: bytes
    version: Version


@dataclass(frozen=True, slots=True)
class Info:
    """What a look at an object shows.

    `modified_ms` and `answered_ms` are the store's own clock, epoch ms: when the object was written, and when this was
    said (over HTTP cut down to a whole second). `metadata` is what the object's writer gave, without the identity of
    the write. None where the store does not say.

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
    """One object in a listing. `modified_ms` is the store's clock, epoch ms; `version` is None where none is listed.

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
    """Some entries of a listing, in the order of their paths; `token` asks for the rest, None at the end."""

    entries: tuple[Entry, ...]
    token: str | None = None


@dataclass(frozen=True, slots=True)
class Upload:
    """An object on its way in parts; nobody sees it before it is finished.

    `write` is the create that the parts come to, `token` the store's name for the upload, `tags` what the store called
    the parts so far, `sent` their bytes.
    """

    write: Write
    token: str
    tags: tuple[str, ...] = ()
    sent: int = 0


ListAnswer = Page | NotNow | NoAnswer
WriteAnswer = Applied | Denied | NotNow | NoAnswer
FinishAnswer = WriteAnswer | Gone
UploadAnswer = Upload | Denied | NotNow | NoAnswer
ReadAnswer = Seen | Missing | Unchanged | NotNow | NoAnswer


@dataclass(frozen=True, slots=True)
class Capabilities:
    """What a kind of store is documented to do; `fsspec-cas probe` shows what one endpoint really does.

    Attributes:
        create: `put_if_absent` is atomic.
        match: `put_if_match` is atomic.
        delete_match: `delete_if_match` is atomic.
        read_changed: a conditional GET moves no body when nothing changed.
        unique_versions: a version never comes back, also not when equal bytes are written again.
        keeps_write_id: the identity of a write is stored with the object, so a lost answer can be settled.
        own_clock: a look (`head`) says when the object was written and when it was asked, by the store's own clock.
        writes_per_s: how often one object may be overwritten, or None where no limit is documented.

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
        """The capabilities as a JSON-able mapping.

        >>> can.to_json()["delete_match"]
        True
        """
        return asdict(self)
