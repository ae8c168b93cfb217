"""The log in the lock record: the last publishes in order, while all holders keep it.

A reader that knows the data at one position, and finds the same log, knows all later changes. Any other holder drops
the log; the next keeper begins one under a new name.
"""

from __future__ import annotations

import hashlib
import json
import zlib
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any

from fsspec_cas import check_path
from lockprovider.bounded import Undecodable, as_text, as_whole, inflate, parse_json, undecodable_as
from lockprovider.errors import MalformedRecord


@dataclass(frozen=True, slots=True)
class Pending:
    """A publish, decided or staged: `path` is created from `staged`, or else from `data`.

    `unshared`: nothing else is ever written to the path, so any object there is this publish. `first`: an `unshared`
    publish with its bytes, and no `first`, that is applied before it. Raises `InvalidInput` for a path or staged copy
    that no store can have: decided, it would stop all later holders.

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
        """All objects that the publish creates, in order: once the last exists, all do."""
        last = replace(self, first=None)
        return (last,) if self.first is None else (self.first, last)


def digest(data: bytes) -> str:
    """Return the digest that identifies a published object's bytes."""
    return hashlib.blake2b(data, digest_size=16).hexdigest()


_LEVEL = 3  # a tenth more bytes than 6, in half the time
_PACKED = 16384  # bytes; each waiting client reads them
MOST_ENTRIES = 128
_FIRSTS = 16  # the last entries, which may be pending, keep their `first`
LARGEST = 32768  # bytes of one entry
REMOVE = "if no writer is running, remove the object by hand"
_LONGEST_NAMES = 1 << 20  # bytes of the names' line
_INFLATED = _LONGEST_NAMES + 2 * MOST_ENTRIES * LARGEST
MOST_PACKED = 1 << 20  # one entry alone may exceed `_PACKED`
_NEVER_LARGER = 64  # bytes that zlib may add to a few KiB
_ADLER = 65521


@dataclass(frozen=True, slots=True)
class Entry:
    """One publish in the log; `data` is None if too large to keep.

    `first`: the publish applied before it; None also for an old entry.

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
        """The entry as an `unshared` publish."""
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
    where: str = field(default="", compare=False, repr=False)  # for errors

    def plus(self, *pendings: Pending) -> Log:
        """Return the log with these publishes, without old entries that have no room.

        >>> log.plus(lockprovider.Pending.of_bytes("state/8", b"eight")).next - log.next
        1
        """
        return _plus(self, pendings) if pendings else self

    def with_candidate(self, pending: Pending) -> Log:
        """Return the log with one more publish, to judge by, never to write.

        >>> log.with_candidate(lockprovider.Pending.of_bytes("state/8", b"eight")).entries[-1].path
        'state/8'
        """
        candidate = _Packed(self.packed + pending.digest.encode())  # differs from other logs
        candidate.entries = (*self.entries, Entry.of(pending))
        return replace(self, next=self.next + 1, packed=candidate)

    def since(self, position: int) -> tuple[Entry, ...] | None:
        """Return the entries from `position` on; None if the log lacks that position.

        >>> [entry.path for entry in log.since(log.first)]
        ['state/7']
        """
        if not self.first <= position <= self.next:
            return None
        return () if position == self.next else self.entries[position - self.first :]

    @property
    def entries(self) -> tuple[Entry, ...]:
        """All entries, unpacked; raises `MalformedRecord` for other bytes."""
        where = f" {self.where!r}" if self.where else ""
        with undecodable_as(MalformedRecord, f"the log in the lock record{where} is damaged", REMOVE):
            entries = unpack(self.packed)
            if len(entries) != self.next - self.first:
                raise Undecodable(
                    f"it has {len(entries)} entries, but its numbers run from {self.first} to {self.next}"
                )
            return entries

    def has(self, pending: Pending) -> bool:
        """Return whether the log contains that publish.

        >>> log.has(lockprovider.Pending.of_bytes("state/7", b"seven"))
        True
        """
        return any((entry.path, entry.digest) == (pending.path, pending.digest) for entry in self.entries)

    def last_entry(self, pending: Pending) -> Entry | None:
        """Return the last entry if it is that publish, else None.

        >>> log.last_entry(lockprovider.Pending.of_bytes("state/7", b"seven")).data
        b'seven'
        """
        last = self.entries[-1:]
        return next((e for e in last if (e.path, e.digest) == (pending.path, pending.digest)), None)

    def ends_with(self, pendings: tuple[Pending, ...]) -> bool:
        """Return whether the last entries are those publishes, with their bytes.

        >>> log.ends_with((lockprovider.Pending.of_bytes("state/7", b"seven"),))
        True
        """
        last = self.entries[-len(pendings) :] if pendings else ()
        return last == tuple(map(Entry.of, pendings)) and all(p.data is not None for p in pendings)


def fits_log(pending: Pending) -> bool:
    """Return whether a log keeps the bytes of this publish."""
    if any(part.data is None or len(part.data) > LARGEST for part in pending.parts):
        return False
    entry = Entry.of(pending)
    plain = _head((entry,)) + _bodies((entry,))
    return len(plain) <= _PACKED // 2 - _NEVER_LARGER or len(zlib.compress(plain, _LEVEL)) <= _PACKED // 2


def pack(entries: tuple[Entry, ...], before: bytes = b"") -> bytes:
    """Encode the entries: a line that names them, then their bytes, deflated.

    After `before`, a result of `pack`, only new entries are deflated.
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
    """Deflated bytes, with their Adler-32 sum and the compressor to continue with."""

    deflating: Any  # its output so far is in `done`
    done: bytes = b""
    size: int = 0
    sum: int = zlib.adler32(b"")

    @classmethod
    def nothing(cls) -> _Deflated:
        return cls(zlib.compressobj(_LEVEL, zlib.DEFLATED, -zlib.MAX_WBITS))  # raw: no header or checksum

    def plus(self, data: bytes) -> _Deflated:
        deflating = self.deflating.copy()
        done = self.done + deflating.compress(data)
        return _Deflated(deflating, done, self.size + len(data), zlib.adler32(data, self.sum))

    def end(self) -> bytes:
        end: bytes = self.deflating.copy().flush()
        return self.done + end

    def sum_after(self, before: int) -> int:
        """Return the sum of these bytes after others: zlib's `adler32_combine`."""
        (high, low), (before_high, before_low) = divmod(self.sum, 1 << 16), divmod(before, 1 << 16)
        low_of_all = (before_low + low - 1) % _ADLER
        high_of_all = (before_high + high + self.size * (before_low - 1)) % _ADLER
        return high_of_all << 16 | low_of_all


class _Packed(bytes):
    """Packed bytes with their entries, to save unpacking."""

    entries: tuple[Entry, ...] = ()
    deflated: _Deflated | None = None  # bodies

    def __reduce__(self) -> tuple[Any, ...]:
        return bytes, (bytes(self),)


@lru_cache(maxsize=8)  # `choose` and the next write make the same log
def _plus(log: Log, pendings: tuple[Pending, ...]) -> Log:
    """Return the log with these publishes; too large ones without bytes, the oldest entries dropped until all fits.

    The last 8 results are cached.
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
    """Decode the entries; may raise `Undecodable`."""
    return packed.entries if isinstance(packed, _Packed) else _unpack(packed)


@lru_cache(maxsize=32)
def _unpack(packed: bytes) -> tuple[Entry, ...]:
    """Inflate and decode the entries; raise `Undecodable` for other bytes. The last 32 results are cached."""
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
    path, digest, size, *before = fields
    if len(before) > (not is_first):
        raise Undecodable("an entry has more fields than a writer stores")
    first, at = _entry(rest, at, before[0], is_first=True) if before else (None, at)
    as_whole(size, "size", least=-1)
    data = rest[at : at + size] if size >= 0 else None
    return Entry(as_text(path, "path"), as_text(digest, "digest"), data, first), at + max(0, size)
