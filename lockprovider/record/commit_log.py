"""The log in the lock record: the last publishes, in their order, for as long as all who hold the lock keep it.

Whoever has seen the protected data at one place of a log, and finds the same log later, knows all that has happened
since from the record alone: a holder that does not keep the log (a JVM writer, or one of ours whose work is more than
its publishes) drops it, and the next one that keeps one begins a new log under a new name.

It is small: old entries are dropped from its front, and what does not compress well is named without its bytes.
"""

from __future__ import annotations

import json
import zlib
from dataclasses import dataclass
from functools import lru_cache

from lockprovider.record.pending import Pending

_LEVEL = 6  # entries are much alike: the last sixteen of small commits are 2.4 KB
_PACKED = 16384  # bytes; everybody who waits for the lock reads them
_ENTRIES = 128
LARGEST = 32768  # bytes of one entry


@dataclass(frozen=True, slots=True)
class Entry:
    """One publish. `data` is None where it was too large to be kept here."""

    path: str
    digest: str
    data: bytes | None


@dataclass(frozen=True, slots=True)
class Log:
    """The entries `first` to `next - 1` of the log `name`; `packed` are their bytes."""

    name: str
    first: int = 0
    next: int = 0
    packed: bytes = b""

    def plus(self, pending: Pending) -> Log:
        """The same log with one more publish, and as many of the others as there is room for."""
        newest = Entry(pending.path, pending.digest, pending.data if tells(pending) else None)
        entries = (*unpack(self.packed), newest)[-_ENTRIES:]
        packed = pack(entries)
        while len(packed) > _PACKED and len(entries) > 1:
            entries = entries[1 + len(entries) // 8 :]
            packed = pack(entries)
        return Log(self.name, self.next + 1 - len(entries), self.next + 1, packed)

    def since(self, place: int) -> tuple[Entry, ...] | None:
        """What was published from `place` on; None if the log does not go back so far."""
        if not self.first <= place <= self.next:
            return None
        return () if place == self.next else unpack(self.packed)[place - self.first :]

    @property
    def entries(self) -> tuple[Entry, ...]:
        """All that it goes back to."""
        return unpack(self.packed)

    def has(self, pending: Pending) -> bool:
        """Whether that publish is one of these."""
        return any((entry.path, entry.digest) == (pending.path, pending.digest) for entry in unpack(self.packed))

    def data_of(self, pending: Pending) -> bytes | None:
        """The bytes of the last publish, if it is that one and they are here."""
        last = unpack(self.packed)[-1:]
        return next((e.data for e in last if (e.path, e.digest) == (pending.path, pending.digest)), None)

    def ends_with(self, pendings: tuple[Pending, ...]) -> bool:
        """Whether the last publishes are those, bytes and all."""
        last = unpack(self.packed)[-len(pendings) :] if pendings else ()
        wanted = [(p.path, p.digest, p.data) for p in pendings]
        return [(e.path, e.digest, e.data) for e in last] == wanted and all(p.data is not None for p in pendings)


def tells(pending: Pending) -> bool:
    """Whether a log keeps the bytes of this publish: there are few enough of them."""
    data = pending.data
    if data is None or len(data) > LARGEST:
        return False
    return len(pack((Entry(pending.path, pending.digest, data),))) <= _PACKED // 2


def pack(entries: tuple[Entry, ...]) -> bytes:
    """The entries as bytes: a line that names them, then what they published, deflated together."""
    named = [[e.path, e.digest, -1 if e.data is None else len(e.data)] for e in entries]
    head = json.dumps(named, separators=(",", ":")).encode()
    return zlib.compress(head + b"\n" + b"".join(e.data or b"" for e in entries), _LEVEL) if entries else b""


@lru_cache(maxsize=32)
def unpack(packed: bytes) -> tuple[Entry, ...]:
    """The entries again.

    Raises:
        ValueError, zlib.error: the bytes are not those of a log.
    """
    if not packed:
        return ()
    head, _, rest = zlib.decompress(packed).partition(b"\n")
    entries, at = [], 0
    for path, digest, size in json.loads(head):
        entries.append(Entry(path, digest, rest[at : at + size] if size >= 0 else None))
        at += max(0, size)
    return tuple(entries)
