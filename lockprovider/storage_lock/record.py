"""Lock record, one small JSON object of Hudi's storage-based lock provider; its log; and what its writers share.

Source: Hudi RFC-91 and `StorageLockFile` (Hudi 1.0.2 and later).
"""

from __future__ import annotations

import base64
import hashlib
import json
import zlib
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any, Literal

from fsspec_cas import Version, check_path
from lockprovider.bounded import (
    Undecodable,
    as_flag,
    as_text,
    as_whole,
    inflate,
    parse_json,
    parse_object,
    text_in,
    unbase64,
    undecodable_as,
    whole_in,
)
from lockprovider.errors import Holder, MalformedRecord
from lockprovider.settings import GRACE_MS, HAND_OVER_S, LockSettings

HUDI_LOCK_PATH = ".hoodie/.locks/table_lock.json"
LARGEST_ENCLOSED = 256 << 10
"""Most bytes of a publish in the record; a larger one is staged, however well it deflates."""
_LARGEST_RECORD = 4 << 20  # bytes
_LARGEST_LONG = (1 << 63) - 1  # the JVM's largest `long`
_OPTIONAL = {"waiters": "waiters", "turnMs": "turn_ms", "freedMs": "freed_ms", "foreignSeenMs": "foreign_seen_ms"}
_OPTIONAL |= {"yieldUntilMs": "yield_until_ms", "combinerMs": "combiner_ms", "releasedPending": "released_pending"}
_OPTIONAL |= {"pendingUntil": "pending_until_ms"}  # in this order
_TIMES = {name: field for name, field in _OPTIONAL.items() if field.endswith("_ms")}
_MOST_PENDING_BEFORE = 64  # four times `MOST_PENDING`


def lapsed(valid_until_ms: int, now_ms: int) -> bool:
    return now_ms > valid_until_ms + GRACE_MS


def may_take(record: LockRecord, owner: str, now_ms: int) -> bool:
    return record.is_free or record.lapsed_at(now_ms) or record.owner == owner


@dataclass(frozen=True, slots=True)
class LockRecord:
    """One state of the lock. Times are epoch ms UTC; 0 means none, unknown or long past.

    "The record" in `lockprovider/SPECIFICATION.md` describes the fields.

    >>> with lockprovider.lock("memory://docs/lock") as lease:
    ...     record = lease.record
    >>> record.owner == lease.owner, record.expired
    (True, False)
    """

    owner: str
    valid_until_ms: int
    expired: bool
    epoch: int = 0
    nonce: str = ""
    pending: Pending | None = None
    holder: Holder | None = None
    waiters: tuple[str, ...] = ()
    turn_ms: int = 0
    freed_ms: int = 0
    released_pending: bool = False
    pending_until_ms: int = 0
    log: Log | None = None
    pending_before: tuple[Pending, ...] = ()
    foreign_seen_ms: int = 0
    yield_until_ms: int = 0
    combiner_ms: int = 0

    @property
    def all_pending(self) -> tuple[Pending, ...]:
        """All publishes that may not be applied yet, in order."""
        return () if self.pending is None else (*self.pending_before, self.pending)

    @property
    def log_has_pending(self) -> bool:
        """Whether the log has the bytes of all pending publishes."""
        return self.pending is None or (self.log is not None and self.log.ends_with(self.all_pending))

    def lapsed_at(self, now_ms: int) -> bool:
        """Whether validity and grace have passed.

        >>> record.lapsed_at(record.valid_until_ms), record.lapsed_at(record.valid_until_ms + 60_000)
        (False, True)
        """
        return lapsed(self.valid_until_ms, now_ms)

    @property
    def lapses_ms(self) -> int:
        """First time (epoch ms) when the record is lapsed."""
        return self.valid_until_ms + GRACE_MS + 1

    def without_waiters(self) -> LockRecord:
        """The record without the waiters.

        >>> record.without_waiters().waiters
        ()
        """
        return replace(self, waiters=())

    @property
    def is_free(self) -> bool:
        """Whether its holder has released it."""
        return self.expired or self.released_pending

    def encode(self) -> bytes:
        """Encode the record as UTF-8 JSON, Hudi's fields first, without empty optional fields.

        Pending bytes that its log has are left out.

        >>> b'"expired"' in record.encode()
        True
        """
        fields: dict[str, Any] = {
            "expired": self.expired,
            "validUntil": self.valid_until_ms,
            "owner": self.owner,
            "epoch": self.epoch,
            "nonce": self.nonce,
            "pending": None if self.pending is None else fields_of(self.pending, enclosed=not self.log_has_pending),
            "holder": None if self.holder is None else _holder_fields(self.holder),
        }
        fields |= {name: value for name, field in _OPTIONAL.items() if (value := getattr(self, field))}
        if self.pending_before:
            log_suffices = self.log_has_pending and all(p.unshared and not p.staged for p in self.pending_before)
            fields["pendingBefore"] = (
                len(self.pending_before) if log_suffices else [fields_of(p, enclosed=True) for p in self.pending_before]
            )
        if self.log is not None:
            fields["log"] = {"name": self.log.name, "first": self.log.first, "next": self.log.next}
            fields["log"]["packed"] = base64.b64encode(self.log.packed).decode("ascii")
        return json.dumps(fields, separators=(",", ":")).encode()

    @classmethod
    def decode(cls, data: bytes, path: str = "") -> LockRecord:
        """Decode a record of this library or of JVM Hudi, ignoring unknown fields.

        Raises `MalformedRecord` for other bytes; its message names `path`.

        >>> lockprovider.LockRecord.decode(record.encode()) == record
        True
        """
        named = f"{path!r} is not a lock record" if path else "not a lock record"
        with undecodable_as(MalformedRecord, named, _NO_RECORD, shown=data):
            fields = parse_object(data, most=_LARGEST_RECORD)
            log = _log(fields.get("log"), path)
            pending = _pending(fields.get("pending"), log)
            return cls(
                owner=text_in(fields, "owner"),
                valid_until_ms=whole_in(fields, "validUntil", most=_LARGEST_LONG),
                expired=as_flag(fields["expired"], "expired"),
                epoch=as_whole(fields.get("epoch") or 0, "epoch"),
                nonce=as_text(fields.get("nonce") or "", "nonce"),
                pending=pending,
                holder=_holder(fields.get("holder")),
                waiters=tuple([as_text(name, "waiters") for name in fields.get("waiters") or ()]),
                released_pending=as_flag(fields.get("releasedPending") or False, "releasedPending"),
                log=log,
                pending_before=_pending_before(fields.get("pendingBefore"), log) if pending else (),
                **{_TIMES[n]: as_whole(fields[n] or 0, n, most=_LARGEST_LONG) for n in fields.keys() & _TIMES.keys()},
            )


def pending_after(all_pending: tuple[Pending, ...], last_applied: Pending | None) -> tuple[Pending, ...]:
    return all_pending[all_pending.index(last_applied) + 1 :] if last_applied in all_pending else all_pending


def pending_until_ms(record: LockRecord, now_ms: int, by: str = "") -> int:
    """Until when publishes left by clients other than `by` may still be applied; 0 if long past."""
    pending_until_ms = max(
        record.pending_until_ms, record.valid_until_ms if record.released_pending and record.owner != by else 0
    )
    return pending_until_ms if now_ms <= pending_until_ms + _PAST_MS else 0


_PAST_MS = 60_000


@dataclass(frozen=True, slots=True)
class Me:
    """Constants of a lock client."""

    owner: str
    settings: LockSettings
    host: str = ""
    pid: int = 0
    waiter_name: str = ""  # shared by clients of one process
    user: str = ""
    command: str = ""

    def holds_since(self, now_ms: int) -> Holder:
        return Holder(self.host, self.pid, now_ms, self.user, self.command)


@dataclass(frozen=True, slots=True)
class Moment:
    """Event's time, and a fresh nonce."""

    now_ms: int
    monotonic_s: float
    nonce: str


@dataclass(frozen=True, slots=True)
class Sent:
    """Write of the record over `version`, with an unknown outcome."""

    nonce: str
    version: Version
    until_s: float


Became = Literal["there", "open", "over"]


def became(sent: Sent, record: LockRecord | None, version: Version | None) -> Became:
    """Classify a write by a later read.

    It is stored ("there"), may still land ("open"), or cannot land any more, though it may have landed before ("over").
    """
    if record is not None and record.nonce == sent.nonce:
        return "there"
    return "open" if version == sent.version else "over"


def hand_over_s(settings: LockSettings) -> float:
    return min(settings.validity, HAND_OVER_S)


def _log(value: Any, path: str) -> Log | None:
    """Decode the record's `log` object, None if absent; its entries stay packed.

    Raises `Undecodable` beyond 128 entries or 1 MiB. Errors of later unpacking name `path`.
    """
    if value is None:
        return None
    packed = unbase64(value["packed"], "packed")
    log = Log(text_in(value, "name"), whole_in(value, "first"), whole_in(value, "next"), packed, path)
    if not 0 <= log.next - log.first <= MOST_ENTRIES or len(packed) > MOST_PACKED:
        raise Undecodable(
            f"its log has {len(packed)} bytes and runs from entry {log.first} to {log.next}, which is out of bounds"
        )
    return log


def fields_of(pending: Pending, *, enclosed: bool) -> dict[str, Any]:
    """Return the JSON fields of a publish; its bytes, and the publish before it, only if `enclosed`."""
    fields: dict[str, Any] = {"path": pending.path, "staged": pending.staged, "digest": pending.digest}
    if pending.data is not None and enclosed:
        fields["enclosed"] = base64.b64encode(zlib.compress(pending.data)).decode("ascii")
    if pending.unshared:
        fields["unshared"] = True
    if pending.first is not None and enclosed:
        fields["first"] = fields_of(pending.first, enclosed=True)
    return fields


def _pending_before(value: Any, log: Log | None) -> tuple[Pending, ...]:
    """Decode earlier pending publishes: a list, or how many log entries before the last; () if absent.

    Raises `Undecodable` for more than 64, or if the log lacks them.
    """
    if value is None:
        return ()
    if as_whole(len(value) if isinstance(value, list) else value, "pendingBefore") > _MOST_PENDING_BEFORE:
        raise Undecodable(f"it has more than {_MOST_PENDING_BEFORE} pending publishes")
    if isinstance(value, list):
        return tuple(p for p in (_pending(fields, None) for fields in value) if p is not None)
    entries = () if log is None else (log.since(log.next - 1 - value) or ())[:-1]
    if len(entries) != value:
        raise Undecodable(f"its log does not hold the {value} publishes that are pending")
    return tuple(entry.pending for entry in entries)


def _pending(value: Any, log: Log | None, *, is_first: bool = False) -> Pending | None:
    """Decode a publish's JSON object, None if absent.

    Left-out bytes, and then a left-out `first`, come from the log's last entry, if that is this publish. `is_first`: it
    precedes another; its own `first` raises `Undecodable`.
    """
    if value is None:
        return None
    if is_first and value.get("first") is not None:
        raise Undecodable("a pending publish has a nested `first`, which is allowed only one level deep")
    unshared = as_flag(value.get("unshared") or False, "unshared")
    pending = Pending(text_in(value, "path"), text_in(value, "staged"), text_in(value, "digest"), unshared=unshared)
    enclosed, first = value.get("enclosed"), _pending(value.get("first"), None, is_first=True)
    if enclosed is not None:
        data = inflate(unbase64(enclosed, "enclosed"), most=LARGEST_ENCLOSED)
        return replace(pending, data=data, first=first)
    logged = None if log is None else log.last_entry(pending)
    if logged is None or logged.data is None:
        return replace(pending, first=first)
    return replace(
        logged.pending, staged=pending.staged, unshared=pending.unshared, first=first or logged.pending.first
    )


def _holder(value: Any) -> Holder | None:
    if value is None:
        return None
    user, command = as_text(value.get("user") or "", "user"), as_text(value.get("command") or "", "command")
    since_ms = whole_in(value, "since_ms", most=_LARGEST_LONG)
    return Holder(text_in(value, "host"), whole_in(value, "pid"), since_ms, user, command)


def _holder_fields(holder: Holder) -> dict[str, Any]:
    fields: dict[str, Any] = {"host": holder.host, "pid": holder.pid, "since_ms": holder.since_ms}
    return fields | {n: v for n, v in (("user", holder.user), ("command", holder.command)) if v}


_LEVEL = 3  # 10 % larger than 6, in half the time
_PACKED = 16384  # bytes; each waiting client reads them
MOST_ENTRIES = 128
_FIRSTS = 16  # may be pending
LARGEST_ENTRY = 32768  # bytes
REMOVE = "if no writer is running, remove the object by hand"
_NO_RECORD = f"if another document is there, lock another path (`on=`, `--on`); if it was a lock record: {REMOVE}"
_LONGEST_NAMES = 1 << 20  # bytes
_INFLATED = _LONGEST_NAMES + 2 * MOST_ENTRIES * LARGEST_ENTRY
MOST_PACKED = 1 << 20  # one entry alone may exceed `_PACKED`
_NEVER_LARGER = 64  # bytes that zlib may add
_ADLER = 65521


@dataclass(frozen=True, slots=True)
class Pending:
    """Publish, decided or staged: `path` is created from `staged`, or else from `data`.

    `unshared`: nothing else is ever written there. `first`: an `unshared` publish with its bytes, and no `first`,
    applied before. Raises `InvalidInput` for a path that no store can have.

    >>> pending = lockprovider.lock("memory://docs/lock").stage("state/7", b"seven")
    >>> pending.path, pending.unshared
    ('state/7', False)
    """

    path: str
    staged: str
    digest: str
    data: bytes | None = None
    unshared: bool = False
    first: Pending | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "path", check_path(self.path))
        object.__setattr__(self, "staged", self.staged and check_path(self.staged))

    @classmethod
    def of_bytes(cls, path: str, data: bytes) -> Pending:
        """Make an `unshared` publish of these bytes.

        >>> lockprovider.Pending.of_bytes("state/7", b"seven").digest == pending.digest
        True
        """
        return cls(path, "", digest(data), data, unshared=True)

    @property
    def parts(self) -> tuple[Pending, ...]:
        """All objects that the publish creates, in order."""
        last = replace(self, first=None)
        return (last,) if self.first is None else (self.first, last)


def digest(data: bytes) -> str:
    return hashlib.blake2b(data, digest_size=16).hexdigest()


@dataclass(frozen=True, slots=True)
class Entry:
    """One publish in the log; `data` is None if too large to keep.

    `first`: publish applied before; None also for an old entry.

    >>> entry = lockprovider.LogEntry("state/7", "digest", b"seven")
    """

    path: str
    digest: str
    data: bytes | None
    first: Entry | None = None

    @classmethod
    def of(cls, pending: Pending) -> Entry:
        """Make the entry of a publish, with its bytes.

        >>> lockprovider.LogEntry.of(lockprovider.Pending.of_bytes("state/7", b"seven")).data
        b'seven'
        """
        return cls(pending.path, pending.digest, pending.data, None if pending.first is None else cls.of(pending.first))

    @property
    def pending(self) -> Pending:
        """Entry as an `unshared` publish."""
        first = None if self.first is None else self.first.pending
        return Pending(self.path, "", self.digest, self.data, unshared=True, first=first)


@dataclass(frozen=True, slots=True)
class Log:
    """Entries `first` to `next - 1` of the log `name`, encoded in `packed`.

    >>> log = lockprovider.Log("trips").plus(lockprovider.Pending.of_bytes("state/7", b"seven"))
    """

    name: str
    first: int = 0
    next: int = 0
    packed: bytes = b""
    where: str = field(default="", compare=False, repr=False)

    def plus(self, *pendings: Pending) -> Log:
        """The log with these publishes, without old entries that have no room.

        >>> log.plus(lockprovider.Pending.of_bytes("state/8", b"eight")).next - log.next
        1
        """
        return _plus(self, pendings) if pendings else self

    def with_candidate(self, pending: Pending) -> Log:
        """The log with one more publish, to judge by, never to write.

        >>> log.with_candidate(lockprovider.Pending.of_bytes("state/8", b"eight")).entries[-1].path
        'state/8'
        """
        candidate = _Packed(self.packed + pending.digest.encode())  # differs from other logs
        candidate.entries = (*self.entries, Entry.of(pending))
        return replace(self, next=self.next + 1, packed=candidate)

    def since(self, position: int) -> tuple[Entry, ...] | None:
        """Entries from `position` on; None if the log lacks that position.

        >>> [entry.path for entry in log.since(log.first)]
        ['state/7']
        """
        if not self.first <= position <= self.next:
            return None
        return () if position == self.next else self.entries[position - self.first :]

    @property
    def entries(self) -> tuple[Entry, ...]:
        """All entries, oldest first; raises `MalformedRecord` if they are damaged or not `next - first` many."""
        where = f" {self.where!r}" if self.where else ""
        with undecodable_as(MalformedRecord, f"the log in the lock record{where} is damaged", REMOVE):
            entries = unpack(self.packed)
            if len(entries) != self.next - self.first:
                raise Undecodable(
                    f"it has {len(entries)} entries, but its numbers run from {self.first} to {self.next}"
                )
            return entries

    def has(self, pending: Pending) -> bool:
        """Whether the log contains that publish.

        >>> log.has(lockprovider.Pending.of_bytes("state/7", b"seven"))
        True
        """
        return any((entry.path, entry.digest) == (pending.path, pending.digest) for entry in self.entries)

    def last_entry(self, pending: Pending) -> Entry | None:
        """Last entry if it is that publish.

        >>> log.last_entry(lockprovider.Pending.of_bytes("state/7", b"seven")).data
        b'seven'
        """
        last = self.entries[-1:]
        return next((e for e in last if (e.path, e.digest) == (pending.path, pending.digest)), None)

    def ends_with(self, pendings: tuple[Pending, ...]) -> bool:
        """Whether the last entries are those publishes, with their bytes.

        >>> log.ends_with((lockprovider.Pending.of_bytes("state/7", b"seven"),))
        True
        """
        last = self.entries[-len(pendings) :] if pendings else ()
        return last == tuple(map(Entry.of, pendings)) and all(p.data is not None for p in pendings)


def fits_log(pending: Pending) -> bool:
    if any(part.data is None or len(part.data) > LARGEST_ENTRY for part in pending.parts):
        return False
    entry = Entry.of(pending)
    plain = _head((entry,)) + _bodies((entry,))
    return len(plain) <= _PACKED // 2 - _NEVER_LARGER or len(zlib.compress(plain, _LEVEL)) <= _PACKED // 2


def pack(entries: tuple[Entry, ...], before: bytes = b"") -> bytes:
    """Encode the entries: a line that names them, then their bytes, deflated; without entries, no bytes.

    Deflates only entries beyond `before`, an earlier result, if they extend it.
    """
    if not entries:
        return b""
    done, deflated = 0, _Deflated.nothing()
    if isinstance(before, _Packed) and before.deflated and before.entries == entries[: len(before.entries)]:
        done, deflated = len(before.entries), before.deflated
    deflated = deflated.plus(_bodies(entries[done:]))
    head, first = _head(entries), zlib.compressobj(_LEVEL)
    # After a full flush the bodies do not refer to this changing line.
    start = first.compress(head) + first.flush(zlib.Z_FULL_FLUSH)
    packed = _Packed(start + deflated.end() + deflated.sum_after(zlib.adler32(head)).to_bytes(4, "big"))
    packed.entries, packed.deflated = entries, deflated
    return packed


def _head(entries: tuple[Entry, ...]) -> bytes:
    return json.dumps([_entry_fields(entry) for entry in entries], separators=(",", ":")).encode() + b"\n"


def _bodies(entries: tuple[Entry, ...]) -> bytes:
    return b"".join(part.data or b"" for entry in entries for part in (entry.first, entry) if part is not None)


def _entry_fields(entry: Entry) -> list[Any]:
    fields: list[Any] = [entry.path, entry.digest, -1 if entry.data is None else len(entry.data)]
    return fields if entry.first is None else [*fields, _entry_fields(entry.first)]


@dataclass(frozen=True, slots=True)
class _Deflated:
    deflating: Any
    done: bytes = b""
    size: int = 0
    sum: int = zlib.adler32(b"")

    @classmethod
    def nothing(cls) -> _Deflated:
        return cls(zlib.compressobj(_LEVEL, zlib.DEFLATED, -zlib.MAX_WBITS))

    def plus(self, data: bytes) -> _Deflated:
        deflating = self.deflating.copy()
        done = self.done + deflating.compress(data)
        return _Deflated(deflating, done, self.size + len(data), zlib.adler32(data, self.sum))

    def end(self) -> bytes:
        end: bytes = self.deflating.copy().flush()
        return self.done + end

    def sum_after(self, before: int) -> int:
        (high, low), (before_high, before_low) = divmod(self.sum, 1 << 16), divmod(before, 1 << 16)
        low_of_all = (before_low + low - 1) % _ADLER
        high_of_all = (before_high + high + self.size * (before_low - 1)) % _ADLER
        return high_of_all << 16 | low_of_all


class _Packed(bytes):
    entries: tuple[Entry, ...] = ()
    deflated: _Deflated | None = None

    def __reduce__(self) -> tuple[Any, ...]:
        return bytes, (bytes(self),)


@lru_cache(maxsize=8)  # `choose` and the write make the same log
def _plus(log: Log, pendings: tuple[Pending, ...]) -> Log:
    """Return the log with new entries, dropping the oldest beyond 128, or 16 KiB packed.

    Entries too large to keep have no bytes; those before the newest 16 lose their `first`.
    """
    newest = (
        Entry.of(pending) if fits_log(pending) else Entry(pending.path, pending.digest, None) for pending in pendings
    )
    entries = (*log.entries, *newest)[-MOST_ENTRIES:]
    alone = (entry if entry.first is None else replace(entry, first=None) for entry in entries[:-_FIRSTS])
    entries = (*alone, *entries[-_FIRSTS:])
    packed = pack(entries, log.packed)
    while len(packed) > _PACKED and len(entries) > 1:
        entries = entries[1 + len(entries) // 8 :]
        packed = pack(entries)
    end = log.next + len(pendings)
    return Log(log.name, end - len(entries), end, packed)


def unpack(packed: bytes) -> tuple[Entry, ...]:
    return packed.entries if isinstance(packed, _Packed) else _unpack(packed)


@lru_cache(maxsize=32)
def _unpack(packed: bytes) -> tuple[Entry, ...]:
    """Inflate and decode the entries.

    Raises `Undecodable` for malformed bytes, or entries that do not fill them.
    """
    if not packed:
        return ()
    with undecodable_as(Undecodable, "its entries cannot be unpacked"):
        head, _, rest = inflate(packed, most=_INFLATED).partition(b"\n")
        entries, at = [], 0
        for fields in parse_json(head, most=_LONGEST_NAMES):
            entry, at = _entry(rest, at, fields)
            entries.append(entry)
        if at != len(rest) or len(entries) > MOST_ENTRIES:
            raise Undecodable(f"its {len(entries)} entries do not fill its {len(rest)} bytes")
        return tuple(entries)


def _entry(rest: bytes, at: int, fields: list[Any], *, is_first: bool = False) -> tuple[Entry, int]:
    """Decode one entry, and its bytes in `rest` from offset `at`; returns the offset after it too.

    `fields`: path, digest, size (-1: bytes not kept) and, unless `is_first`, those of its `first`, if any. More raise
    `Undecodable`.
    """
    path, digest, size, *before = fields
    if len(before) > (not is_first):
        raise Undecodable("an entry has more fields than a writer stores")
    first, at = _entry(rest, at, before[0], is_first=True) if before else (None, at)
    as_whole(size, "size", least=-1)
    data = rest[at : at + size] if size >= 0 else None
    return Entry(as_text(path, "path"), as_text(digest, "digest"), data, first), at + max(0, size)
