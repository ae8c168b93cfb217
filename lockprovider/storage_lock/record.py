"""The lock record: one small JSON object, in the layout of Hudi's storage-based lock provider.

JVM Hudi knows `owner`, `validUntil` and `expired`; it ignores other fields when it reads, and drops them when it
writes. The file also has the rules of the waiters: turns and yield windows.

Source: Hudi RFC-91 and `StorageLockFile` (Hudi 1.0.2 and later).
"""

from __future__ import annotations

import base64
import json
import zlib
from dataclasses import dataclass, replace
from typing import Any

from lockprovider.bounded import (
    Undecodable,
    as_flag,
    as_text,
    as_whole,
    inflate,
    parse_object,
    text_in,
    unbase64,
    undecodable_as,
    whole_in,
)
from lockprovider.errors import Holder, MalformedRecord
from lockprovider.settings import GRACE_MS
from lockprovider.storage_lock.commit_log import MOST_ENTRIES, MOST_PACKED, REMOVE, Log, Pending

HUDI_LOCK_PATH = ".hoodie/.locks/table_lock.json"
LARGEST_ENCLOSED = 256 << 10
"""Most bytes of a publish in the record; a larger one is staged, however well it deflates."""
_LARGEST = 4 << 20  # bytes; a record has about 50 KB
_LARGEST_LONG = (1 << 63) - 1  # the JVM's largest `long`
_OPTIONAL = {"waiters": "waiters", "turnMs": "turn_ms", "freedMs": "freed_ms", "foreignSeenMs": "foreign_seen_ms"}
_OPTIONAL |= {"yieldUntilMs": "yield_until_ms", "combinerMs": "combiner_ms", "releasedPending": "released_pending"}
_OPTIONAL |= {"pendingUntil": "pending_until_ms"}  # written only with a value, in this order
_TIMES = {name: field for name, field in _OPTIONAL.items() if field.endswith("_ms")}
_MOST_PENDING_BEFORE = 64  # four times `MOST_PENDING` of `combine`


def lapsed(valid_until_ms: int, now_ms: int) -> bool:
    """Return whether, with the grace, a lease promised until then is over at `now_ms`."""
    return now_ms > valid_until_ms + GRACE_MS


@dataclass(frozen=True, slots=True)
class LockRecord:
    """One state of the lock. Times are epoch ms UTC; 0 means none, unknown or long past.

    Attributes:
        owner: UUID of the last holder, or of the last writer of a group commit.
        valid_until_ms: when the lease lapses.
        expired: the holder released the lock.
        epoch: the fencing token. It rises strictly, except over a JVM writer, which drops it (0). The next epoch is
            above all that its client has seen, and not below its clock. So it falls only if another client's clock was
            ahead by more than the time in between.
        nonce: unique name of the write; a client that joins the waiters keeps it.
        pending: a decided publish that the next holder must apply first.
        pending_before: earlier ones, in order.
        holder: the holding process, for people.
        waiters: in the order of their turns. Safety never depends on it.
        turn_ms: recent length of a turn, from take to take.
        freed_ms: when the lock was released to the waiters.
        foreign_seen_ms: when a foreign client (a JVM writer) was last found to have written.
        combiner_ms: a hint for how long the writer leads the batch.
        yield_until_ms: end of the last yield window, in which waiters leave the lock to a foreign client.
        released_pending: released with pending publishes. A foreign client, which ignores them, must wait until
            `valid_until_ms`.
        pending_until_ms: until when an earlier `released_pending` record's publishes may be applied.
        log: recent publishes of holders that keep the log; None after any other holder.

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
        """All publishes that are decided and may not be applied yet, in order."""
        return () if self.pending is None else (*self.pending_before, self.pending)

    @property
    def log_has_pending(self) -> bool:
        """Whether the log has the bytes of all pending publishes, if any."""
        return self.pending is None or (self.log is not None and self.log.ends_with(self.all_pending))

    def lapsed_at(self, now_ms: int) -> bool:
        """Return whether validity and grace have passed; then other clients may take over.

        >>> record.lapsed_at(record.valid_until_ms), record.lapsed_at(record.valid_until_ms + 60_000)
        (False, True)
        """
        return lapsed(self.valid_until_ms, now_ms)

    @property
    def lapses_ms(self) -> int:
        """First time, epoch ms, at which the record is lapsed."""
        return self.valid_until_ms + GRACE_MS + 1

    def without_waiters(self) -> LockRecord:
        """Return the record without the waiters, which waiting clients may change.

        >>> record.without_waiters().waiters
        ()
        """
        return replace(self, waiters=())

    @property
    def is_free(self) -> bool:
        """Whether its holder has released it; a client of this library may take it at once."""
        return self.expired or self.released_pending

    def encode(self) -> bytes:
        """Encode the record as UTF-8 JSON, Hudi's fields first.

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
        """Decode a record of this library or of JVM Hudi; may raise `MalformedRecord`, which names `path`.

        >>> lockprovider.LockRecord.decode(record.encode()) == record
        True
        """
        named = f"{path!r} is not a lock record" if path else "not a lock record"
        with undecodable_as(MalformedRecord, named, REMOVE, shown=data):
            fields = parse_object(data, most=_LARGEST)
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


def _log(value: Any, path: str) -> Log | None:
    """Decode the log (None: no log); raise `Undecodable` if it is out of bounds.

    Its packed entries are checked on first use.
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
    """Return the JSON fields of a publish; its bytes only if `enclosed`."""
    fields: dict[str, Any] = {"path": pending.path, "staged": pending.staged, "digest": pending.digest}
    if pending.data is not None and enclosed:
        fields["enclosed"] = base64.b64encode(zlib.compress(pending.data)).decode("ascii")
    if pending.unshared:
        fields["unshared"] = True
    if pending.first is not None and enclosed:
        fields["first"] = fields_of(pending.first, enclosed=True)
    return fields


def _pending_before(value: Any, log: Log | None) -> tuple[Pending, ...]:
    """Decode earlier pending publishes from a list, or by number from the log's entries before its last.

    Raises `Undecodable` for missing or too many.
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
    """Decode a pending publish (None: nothing pending).

    Omitted bytes come from the log's last entry, if it is the same publish, else stay None.
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


# -- the waiters: their order, the length of a turn, and the yield window ----------------------------------------------
#
# A foreign client (a JVM writer) would hardly find the lock free, so the waiters regularly yield a released one to it.

# Longest expected turn; a free lock is left to its waiters for that long.
LONGEST_S = 4.5
_WAITERS_FIRST_S = 0.25


def ahead_of(name: str, waiters: tuple[str, ...]) -> int:
    """Count the waiters ahead of `name`; all, if it is not one."""
    return waiters.index(name) if name in waiters else len(waiters)


def without_waiter(waiters: tuple[str, ...], name: str) -> tuple[str, ...]:
    """Return the waiters without that name."""
    return tuple(other for other in waiters if other != name)


def with_waiter(record: LockRecord, name: str) -> LockRecord:
    """Return the record with this name among the waiters."""
    return record if name in record.waiters else replace(record, waiters=(*record.waiters, name))


def free_for_s(record: LockRecord, now_ms: int) -> float:
    """Return how many seconds a free lock has been available; clocks may differ."""
    return (now_ms - max(record.yield_until_ms, record.freed_ms or record.valid_until_ms)) / 1000


def others_wait(record: LockRecord, name: str) -> bool:
    """Return whether a waiter other than `name` is in the record."""
    return any(other != name for other in record.waiters)


def waiters_first_s(record: LockRecord) -> float:
    """Return for how many seconds a client that only publishes leaves a free lock to the waiters."""
    return min(LONGEST_S, max(_WAITERS_FIRST_S, 2 * record.turn_ms / 1000))


def yield_left_s(record: LockRecord, now_ms: int) -> float:
    """Return the seconds left of the yield window for foreign clients."""
    left_ms = record.yield_until_ms - now_ms if record.expired else 0
    return left_ms / 1000 if 0 < left_ms <= _YIELD_MS else 0.0


def due_yield_until_ms(record: LockRecord, now_ms: int) -> int:
    """Return the end of the yield window of a lock released now; 0 if none is due.

    A foreign client may wait unseen: windows never stop.
    """
    every_ms = _YIELD_EVERY_MS if record.foreign_seen_ms else _YIELD_UNSEEN_MS
    return now_ms + _YIELD_MS if now_ms > max(record.foreign_seen_ms, record.yield_until_ms) + every_ms else 0


def last_yield_until_ms(record: LockRecord, now_ms: int, *, lies_free: bool) -> int:
    """Return the end of the last yield window for a write of now.

    `lies_free`: the lock stays free, which counts as a window.
    """
    return now_ms - _YIELD_MS if lies_free or not record.yield_until_ms else record.yield_until_ms


_YIELD_EVERY_MS = 15_000
_YIELD_UNSEEN_MS = 50_000  # a JVM writer tries for a minute
_YIELD_MS = 1200  # JVM Hudi tries once in a second


def foreign_seen_ms(record: LockRecord, now_ms: int) -> int:
    """Return when a foreign client last wrote the record; 0 if long past."""
    if not record.nonce:
        return now_ms
    return record.foreign_seen_ms if now_ms <= record.foreign_seen_ms + LONG_PAST_MS else 0


def turn_ms(record: LockRecord, now_ms: int) -> int:
    """Return the mean length of turns with waiters, without outliers, after the turn that ends at `now_ms`.

    0 without waiters. A hint.
    """
    if not record.waiters or record.holder is None:
        return 0
    last_ms, mean_ms = _last_turn_ms(record, record.holder.since_ms, now_ms), record.turn_ms
    if not mean_ms:
        return last_ms
    if mean_ms > 2 * max(last_ms, _HANDOVER_MS):  # long turns while waiters gathered
        return (mean_ms + last_ms) // 2
    return (15 * mean_ms + min(last_ms, 2 * mean_ms) + 8) // 16


def _last_turn_ms(record: LockRecord, since_ms: int, now_ms: int) -> int:
    """Return the last turn's length; free time counts up to the held time."""
    if not record.freed_ms:
        return max(1, min(now_ms - since_ms, _LONGEST_TURN_MS))
    held_ms = min(record.freed_ms - since_ms, _LONGEST_TURN_MS)
    return max(1, held_ms + min(now_ms - record.freed_ms, max(held_ms, _HANDOVER_MS)))


_LONGEST_TURN_MS = round(LONGEST_S * 1000)
_HANDOVER_MS = 100
LONG_PAST_MS = 3_600_000
