"""Answers of a store to one request, results of reads, and the decision table of a conditional write. No I/O.

All sends carry the same condition and identity. `doubt`: a copy may have been applied, or may still arrive.

    after               answer                     next
    ------------------  -------------------------  --------------------------------------------------
    send                applied, with a version    won
    send                applied, without one       doubt; HEAD
    send                condition false            HEAD: a proxy may have sent this write twice
    send                certainly not applied      HEAD, after a pause: a rival may have written
    send                none                       doubt; HEAD
    send                gone (an upload)           doubt, spent; HEAD: an earlier copy may have completed it
    HEAD                this write's identity      won
    HEAD, refused       still as expected          adapt the dialect, send; after several the store is at
                                                   fault, or in doubt unknown
    HEAD, not refused   still as expected          send again: the condition lets one copy apply
    HEAD, no doubt      anything else              lost
    HEAD, doubt         another's, create-once     lost
    HEAD, doubt         anything else              unknown: perhaps applied and replaced
    HEAD, spent         still as expected          unknown: nothing is left to send
    HEAD                none                       HEAD again; at the deadline unknown, if in doubt or refused,
                                                   else Unavailable; never lost

A delete leaves no identity, so it begins with a HEAD:

    HEAD, nothing sent  anything else              lost
    HEAD, refused       anything else              unknown: the refusal may be of a proxy's second copy
    send                applied, but no proof      unknown: success is also reported without an object
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace

from fsspec_cas.outcome import ABSENT, Absent, Condition, Lost, Version, Won, Write


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


def throttled(answer: object) -> bool:
    return isinstance(answer, (NotApplied, NoAnswer)) and (answer.why[:3] in ("429", "503") or "SlowDown" in answer.why)


@dataclass(frozen=True, slots=True)
class UploadGone:
    """The upload does not exist: an earlier send completed it, or it was dropped."""

    why: str


@dataclass(frozen=True, slots=True)
class ObjectState:
    """An object, as one response showed it; `data` is None for a `head`. Times are the store's, in epoch ms."""

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
    """The bytes of an object and their version, from one response.

    >>> Content(b"1", Version("s3", '"etag"')).version.token
    '"etag"'
    """

    data: bytes
    version: Version


@dataclass(frozen=True, slots=True)
class Info:
    """The metadata of an object; a field is None if the store does not report it.

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
    """An upload in parts, invisible until completed; `tags` name its parts in the store."""

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
    """The documented capabilities of a kind of store; `fsspec-cas probe` tests one endpoint.

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
        """Return a JSON-able mapping.

        >>> can.to_json()["delete_match"]
        True
        """
        return asdict(self)


_CONTRADICTIONS = 4


@dataclass(frozen=True, slots=True)
class WriteProgress:
    """Progress of one logical write; the table explains `doubt` and `spent`.

    Attributes:
        refused: the newest send was answered "condition false".
        failures: sends and HEADs in a row without a result.
        resent: two copies may be applied.
        contradictions: refusals of a condition that a HEAD showed to be true.
    """

    write: Write
    doubt: bool = False
    refused: bool = False
    spent: bool = False
    resent: bool = False
    failures: int = 0
    contradictions: int = 0
    dialect: str = ""
    why: str = ""

    @property
    def unsure(self) -> bool:
        return self.doubt or (self.refused and self.write.removes)


@dataclass(frozen=True, slots=True)
class Send:
    """Send the write, after a pause drawn for `after_failures`."""

    after_failures: int = 0
    retry_after_s: float | None = None


@dataclass(frozen=True, slots=True)
class ReadHead:
    """Read the head, after a pause as `Send`."""

    after_failures: int = 0
    retry_after_s: float | None = None


@dataclass(frozen=True, slots=True)
class Adapt:
    """Switch from the dialect `refused` to the other one, and send again."""

    after_failures: int
    refused: str = ""


@dataclass(frozen=True, slots=True)
class Contradicts:
    """The store keeps refusing a true condition."""

    why: str


@dataclass(frozen=True, slots=True)
class Inconclusive:
    """No further read can settle whether the write was applied."""

    why: str


Next = Send | ReadHead | Adapt | Contradicts | Won | Lost | Inconclusive


def first_step(write: Write) -> Next:
    return ReadHead() if write.removes else Send()


def on_write_answer(progress: WriteProgress, answer: FinishAnswer) -> tuple[WriteProgress, Next]:
    """Return the progress after an answer to a send, and the next step.

    Success with a version is `Won`, or `Inconclusive` for an unprovable delete. Any other answer needs a head; none, or
    success without a version, sets `doubt`.
    """
    if progress.doubt and isinstance(answer, (Applied, NoAnswer)):
        progress = replace(progress, resent=True)
    match answer:
        case Applied(version) if version is not None and progress.write.success_is_proof:
            return progress, Won(version, resent=progress.resent)
        case Applied(version) if version is not None:
            same = "the store reports success, but it also does so for a missing object"
            return progress, Inconclusive(f"{same}: this call or another one removed it")
        case Applied():
            # The write was applied: "lost" would be wrong whatever the HEAD shows.
            return replace(progress, doubt=True, refused=False, why="the answer carried no version"), ReadHead()
        case ConditionFailed(dialect):
            return replace(progress, refused=True, dialect=dialect), ReadHead()
        case NotApplied(why, retry_after_s) | NoAnswer(why, retry_after_s):
            is_certain, failures = isinstance(answer, NotApplied), progress.failures + 1
            doubt = progress.unsure if is_certain else True
            after = replace(progress, doubt=doubt, refused=False, failures=failures, why=why)
            return after, ReadHead(failures if is_certain else 0, retry_after_s)
        case UploadGone(why):
            return replace(progress, doubt=True, refused=False, spent=True, why=why), ReadHead()


def on_head_answer(progress: WriteProgress, answer: ReadAnswer) -> tuple[WriteProgress, Next]:
    """Return the progress after a head, and the next step: `Won` for this write's id, another head without an answer.

    While the condition holds, send again; else `Lost`, or in doubt mostly `Inconclusive`.
    """
    match answer:
        case NotApplied(why, retry_after_s) | NoAnswer(why, retry_after_s):
            failures = progress.failures + 1
            return replace(progress, failures=failures, why=why), ReadHead(failures, retry_after_s)
        case ObjectState(version=version, write_id=write_id) if write_id == progress.write.write_id:
            return progress, Won(version, resent=progress.resent)
        case ObjectState(version=version, write_id=write_id):
            return _settle(progress, version, write_id)
        case Missing() | Unchanged():
            return _settle(progress, ABSENT, None)


def _settle(progress: WriteProgress, current: Condition, write_id: str | None) -> tuple[WriteProgress, Next]:
    if current == progress.write.condition:
        return _as_expected(progress)
    if progress.unsure:
        return progress, _replaced_or_not(progress, current, write_id)
    return progress, Lost(progress.write.path, progress.write.condition, current)


def _as_expected(progress: WriteProgress) -> tuple[WriteProgress, Next]:
    """Choose the next step when a head shows the condition still true: send again, in another dialect after a refusal.

    A spent write is `Inconclusive`; a fifth refusal is `Contradicts`, in doubt `Inconclusive`.
    """
    if progress.spent:
        return progress, Inconclusive(
            f"{progress.why}; now the object is as before, and this write cannot be sent again"
        )
    if not progress.refused:
        return progress, Send(max(1, progress.failures) if progress.doubt else 0)
    contradictions = progress.contradictions + 1
    if contradictions > _CONTRADICTIONS:
        refusals = f"the store refused a true condition {contradictions} times"
        if progress.doubt:
            return progress, Inconclusive(f"{progress.why}; then {refusals}")
        return progress, Contradicts(refusals)
    return replace(progress, contradictions=contradictions), Adapt(contradictions - 1, progress.dialect)


def _replaced_or_not(progress: WriteProgress, current: Condition, write_id: str | None) -> Next:
    """Settle a write in doubt: Lost if a create-once object has another write's id (`write_id`), else Inconclusive."""
    write = progress.write
    if write.create_once and isinstance(write.condition, Absent) and write_id is not None:
        return Lost(write.path, write.condition, current)
    if write.removes:
        now = "no object exists" if isinstance(current, Absent) else f"the object has another version ({current})"
        before = "it was refused" if progress.refused else progress.why
        return Inconclusive(f"{before}, and now {now}: this call or another one removed or replaced it")
    return Inconclusive(
        f"{progress.why}; the object now has another version ({current}); this write may have been applied before"
    )
