"""The log in the lock record: the last publishes, in their order, for as long as all who hold the lock keep it.

Whoever has seen the protected data at one place of a log, and finds the same log later, knows all that has happened
since from the record alone: a holder that does not keep the log (a JVM writer, or one of ours whose work is more than
its publishes) drops it, and the next one that keeps one begins a new log under a new name.

It is small: old entries are dropped from its front, and what does not compress well is named without its bytes.
"""

from __future__ import annotations

import hashlib
import json
import zlib
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any

from lockprovider.bounded import Undecodable, as_text, as_whole, inflate, parse_json, undecodable_as
from lockprovider.errors import MalformedRecord


@dataclass(frozen=True, slots=True)
class Pending:
    """A publish that has been decided and may not have been applied yet: create `path` from `staged`.

    Or, where `staged` is empty, with `data`. `sole`: its maker promises that nobody ever writes anything else to the
    path, so that whatever is there is this. `first`: what the same decision puts there before it; `sole`, with its
    bytes, and with nothing before itself.

    >>> pending = lockprovider.lock("memory://docs/lock").stage("state/7", b"seven")
    >>> pending.path, pending.sole
    ('state/7', False)
    """

    path: str
    staged: str
    digest: str
    data: bytes | None = None
    sole: bool = False
    first: Pending | None = None

    @classmethod
    def of_bytes(cls, path: str, data: bytes) -> Pending:
        """A `sole` publish of these bytes.

        >>> lockprovider.Pending.of_bytes("state/7", b"seven").digest == pending.digest
        True
        """
        return cls(path, "", digest(data), data, sole=True)

    @property
    def parts(self) -> tuple[Pending, ...]:
        """All that it puts there, in this order: who sees the last one sees all."""
        last = replace(self, first=None)
        return (last,) if self.first is None else (self.first, last)


def digest(data: bytes) -> str:
    """The identity of a published object's bytes."""
    return hashlib.blake2b(data, digest_size=16).hexdigest()


_LEVEL = 3  # entries are much alike: a tenth more bytes than by 6, in half the time
_PACKED = 16384  # bytes; everybody who waits for the lock reads them
MOST_ENTRIES = 128
_FIRSTS = 16  # the last entries may not be there yet: what is put there before them is kept for these
LARGEST = 32768  # bytes of one entry
REMOVE = "if no writer is alive, remove the object by hand"
_LONGEST_NAMES = 1 << 20  # bytes of the line that names the entries
_INFLATED = _LONGEST_NAMES + 2 * MOST_ENTRIES * LARGEST
MOST_PACKED = 1 << 20  # a log of one entry may be larger than `_PACKED`
_NEVER_LARGER = 64  # bytes, by which zlib makes a few KiB larger
_ADLER = 65521


@dataclass(frozen=True, slots=True)
class Entry:
    """One publish. `data` is None where it was too large to be kept here.

    `first`: what is put there before it, with its bytes; None, too, of one that is there for long.

    >>> entry = lockprovider.LogEntry("state/7", "digest", b"seven")
    """

    path: str
    digest: str
    data: bytes | None
    first: Entry | None = None

    @classmethod
    def of(cls, pending: Pending) -> Entry:
        """It, with its bytes.

        >>> lockprovider.LogEntry.of(lockprovider.Pending.of_bytes("state/7", b"seven")).data
        b'seven'
        """
        return cls(pending.path, pending.digest, pending.data, None if pending.first is None else cls.of(pending.first))

    @property
    def pending(self) -> Pending:
        """The publish again, as one that is `sole`."""
        first = None if self.first is None else self.first.pending
        return Pending(self.path, "", self.digest, self.data, sole=True, first=first)


@dataclass(frozen=True, slots=True)
class Log:
    """The entries `first` to `next - 1` of the log `name`; `packed` are their bytes.

    >>> log = lockprovider.Log("trips").plus(lockprovider.Pending.of_bytes("state/7", b"seven"))
    """

    name: str
    first: int = 0
    next: int = 0
    packed: bytes = b""
    where: str = field(default="", compare=False, repr=False)  # the record in which it is, for errors

    def plus(self, *pendings: Pending) -> Log:
        """The same log with these publishes, too, and as many of the others as there is room for.

        >>> log.plus(lockprovider.Pending.of_bytes("state/8", b"eight")).next - log.next
        1
        """
        return _plus(self, pendings) if pendings else self

    def judged_with(self, pending: Pending) -> Log:
        """The same log with one more publish, to judge by and not to be written: it is not packed, nothing is dropped.

        >>> log.judged_with(lockprovider.Pending.of_bytes("state/8", b"eight")).entries[-1].path
        'state/8'
        """
        known = _Packed(self.packed + pending.digest.encode())  # to tell it from others
        known.entries = (*self.entries, Entry.of(pending))
        return replace(self, next=self.next + 1, packed=known)

    def since(self, place: int) -> tuple[Entry, ...] | None:
        """What was published from `place` on; None if the log does not go back so far.

        >>> [entry.path for entry in log.since(log.first)]
        ['state/7']
        """
        if not self.first <= place <= self.next:
            return None
        return () if place == self.next else self.entries[place - self.first :]

    @property
    def entries(self) -> tuple[Entry, ...]:
        """All that it goes back to.

        Raises:
            MalformedRecord: the bytes are not those of this log.
        """
        try:
            return self._unpacked()
        except Undecodable as error:
            where = f" {self.where!r}" if self.where else ""
            raise MalformedRecord(f"the log in the lock record{where} is damaged: {error}; {REMOVE}") from error

    def _unpacked(self) -> tuple[Entry, ...]:
        entries = unpack(self.packed)
        if len(entries) != self.next - self.first:
            raise Undecodable(f"it has {len(entries)} entries from {self.first} to {self.next}")
        return entries

    def has(self, pending: Pending) -> bool:
        """Whether that publish is one of these.

        >>> log.has(lockprovider.Pending.of_bytes("state/7", b"seven"))
        True
        """
        return any((entry.path, entry.digest) == (pending.path, pending.digest) for entry in self.entries)

    def told(self, pending: Pending) -> Entry | None:
        """The last publish, if it is that one.

        >>> log.told(lockprovider.Pending.of_bytes("state/7", b"seven")).data
        b'seven'
        """
        last = self.entries[-1:]
        return next((e for e in last if (e.path, e.digest) == (pending.path, pending.digest)), None)

    def ends_with(self, pendings: tuple[Pending, ...]) -> bool:
        """Whether the last publishes are those, bytes and all.

        >>> log.ends_with((lockprovider.Pending.of_bytes("state/7", b"seven"),))
        True
        """
        last = self.entries[-len(pendings) :] if pendings else ()
        return last == tuple(map(Entry.of, pendings)) and all(p.data is not None for p in pendings)


def tells(pending: Pending) -> bool:
    """Whether a log keeps the bytes of this publish: there are few enough of them."""
    if any(part.data is None or len(part.data) > LARGEST for part in pending.parts):
        return False
    entry = Entry.of(pending)
    plain = _head((entry,)) + _bodies((entry,))
    return len(plain) <= _PACKED // 2 - _NEVER_LARGER or len(zlib.compress(plain, _LEVEL)) <= _PACKED // 2


def pack(entries: tuple[Entry, ...], before: bytes = b"") -> bytes:
    """The entries as bytes: a line that names them, then what they published, deflated one after the other.

    Where they go on after those of `before`, which was packed here, only what is new is deflated.
    """
    if not entries:
        return b""
    done, deflated = 0, _Deflated.nothing()
    if isinstance(before, _Packed) and before.deflated and before.entries == entries[: len(before.entries)]:
        done, deflated = len(before.entries), before.deflated
    deflated = deflated.plus(_bodies(entries[done:]))
    head, first = _head(entries), zlib.compressobj(_LEVEL)
    # Flushed fully, so that what follows does not refer to it: it is another line each time.
    start = first.compress(head) + first.flush(zlib.Z_FULL_FLUSH)
    packed = _Packed(start + deflated.end() + deflated.sum_after(zlib.adler32(head)).to_bytes(4, "big"))
    packed.entries, packed.deflated = entries, deflated
    return packed


def _head(entries: tuple[Entry, ...]) -> bytes:
    return json.dumps([_named(entry) for entry in entries], separators=(",", ":")).encode() + b"\n"


def _bodies(entries: tuple[Entry, ...]) -> bytes:
    return b"".join(part.data or b"" for entry in entries for part in (entry.first, entry) if part is not None)


def _named(entry: Entry) -> list[Any]:
    said: list[Any] = [entry.path, entry.digest, -1 if entry.data is None else len(entry.data)]
    return said if entry.first is None else [*said, _named(entry.first)]


@dataclass(frozen=True, slots=True)
class _Deflated:
    """Bytes that are deflated, how many and of what Adler-32 sum, and what it takes to go on after the last."""

    deflating: Any  # it has none of the bytes of `done` any more
    done: bytes = b""
    size: int = 0
    sum: int = zlib.adler32(b"")

    @classmethod
    def nothing(cls) -> _Deflated:
        """To go on from."""
        return cls(zlib.compressobj(_LEVEL, zlib.DEFLATED, -zlib.MAX_WBITS))  # raw: with neither head nor sum

    def plus(self, data: bytes) -> _Deflated:
        """These bytes, and then those."""
        deflating = self.deflating.copy()
        done = self.done + deflating.compress(data)
        return _Deflated(deflating, done, self.size + len(data), zlib.adler32(data, self.sum))

    def end(self) -> bytes:
        """All that is deflated, as the end of a stream."""
        end: bytes = self.deflating.copy().flush()
        return self.done + end

    def sum_after(self, before: int) -> int:
        """The sum of all, where bytes of that sum come before: as of zlib's `adler32_combine`."""
        (high, low), (before_high, before_low) = divmod(self.sum, 1 << 16), divmod(before, 1 << 16)
        low_of_all = (before_low + low - 1) % _ADLER
        high_of_all = (before_high + high + self.size * (before_low - 1)) % _ADLER
        return high_of_all << 16 | low_of_all


class _Packed(bytes):
    """The bytes of these entries, which need not be unpacked here."""

    entries: tuple[Entry, ...] = ()
    deflated: _Deflated | None = None  # what they published

    def __reduce__(self) -> tuple[Any, ...]:
        return bytes, (bytes(self),)


@lru_cache(maxsize=8)  # who chooses what is decided has made the log that is then written
def _plus(log: Log, pendings: tuple[Pending, ...]) -> Log:
    newest = (Entry.of(one) if tells(one) else Entry(one.path, one.digest, None) for one in pendings)
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
    """The entries again.

    Raises:
        Undecodable: the bytes are not those of a log.
    """
    return packed.entries if isinstance(packed, _Packed) else _unpack(packed)


@lru_cache(maxsize=32)
def _unpack(packed: bytes) -> tuple[Entry, ...]:
    if not packed:
        return ()
    with undecodable_as(Undecodable, "it cannot be unpacked"):
        head, _, rest = inflate(packed, most=_INFLATED).partition(b"\n")
        entries, at = [], 0
        for said in parse_json(head, most=_LONGEST_NAMES):
            entry, at = _entry(rest, at, said)
            entries.append(entry)
        if at != len(rest) or len(entries) > MOST_ENTRIES:
            raise Undecodable(f"its {len(entries)} entries do not fill its {len(rest)} bytes")
        return tuple(entries)


def _entry(rest: bytes, at: int, said: list[Any], *, is_first: bool = False) -> tuple[Entry, int]:
    """The entry whose bytes begin there, and where they end."""
    path, digest, size, *before = said
    if len(before) > (not is_first):
        raise Undecodable("an entry has more fields than a writer gives it")
    first, at = _entry(rest, at, before[0], is_first=True) if before else (None, at)
    as_whole(size, "size", least=-1)
    data = rest[at : at + size] if size >= 0 else None
    return Entry(as_text(path, "path"), as_text(digest, "digest"), data, first), at + max(0, size)
