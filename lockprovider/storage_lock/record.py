"""The lock record: one small JSON object, the layout of Hudi's storage-based lock provider.

`owner`, `validUntil` and `expired` are Hudi's. `epoch`, `nonce`, `pending`, `holder`; while several clients wait,
`waiters`, `turnMs`, `freedMs`, `foreignSeenMs`, `yieldUntilMs`, `combinerMs`, `releasedPending`, `pendingUntil` and
`pendingBefore`; and, for clients that keep one, `log`, are ours: JVM Hudi ignores them when it reads and drops them
when it writes.

Source: Hudi RFC-91 and `StorageLockFile` (Hudi 1.0.2 and later).
"""

from __future__ import annotations

import base64
import json
import zlib
from collections.abc import Iterator
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
"""Bytes that a publish may have to stand in the record; a larger one is staged, however well it can be deflated."""
_LARGEST = 4 << 20  # bytes of a record; one of ours has 50 KB, and 40 more for each client that waits
_LARGEST_LONG = (1 << 63) - 1  # the JVM's
_TIMES = {"turnMs": "turn_ms", "freedMs": "freed_ms", "pendingUntil": "late_ms"}
_TIMES |= {"foreignSeenMs": "guest_ms", "yieldUntilMs": "rest_ms", "combinerMs": "duty_ms"}
_MOST_EARLIER = 64  # four times what a writer of ours lets pend


def lapsed(valid_until_ms: int, now_ms: int) -> bool:
    """Whether a lease that was promised until then counts as over, by a clock that says `now_ms`."""
    return now_ms > valid_until_ms + GRACE_MS


@dataclass(frozen=True, slots=True)
class LockRecord:
    """One state of the lock.

    Attributes:
        owner: UUID of the lock client that wrote it.
        valid_until_ms: when the lease lapses, epoch ms UTC.
        expired: the holder released it.
        epoch: the fencing token, strictly rising over all acquisitions between which no JVM writer had the lock; one
            drops it (0). Across it, it is above all that the client has seen, and not below its clock: it falls where
            the one before was of another client, whose clock is ahead by more than the time in between.
        nonce: makes the bytes of every write unique, and names the write.
        pending: a decided publish that the next holder must finish.
        earlier: those that were decided right before it and may not be there yet either, in their order.
        holder: for people.
        line: who may take the lock next, in this order. Politeness, not safety: a take never depends on it.
        turn_ms: how long a turn took of late, from take to take; 0 if not known.
        freed_ms: when it was released to those in the line, epoch ms by the releaser's clock; else 0.
        guest_ms: when it was found to be written by one that knows nothing of the line (a JVM writer), epoch ms; 0 if
            that is long past.
        duty_ms: for how long after this write its writer looks at the intents again; 0 if it does not. A hint.
        rest_ms: until when those in the line leave a released lock to such a one, epoch ms; or until when they did.
        handed: nobody holds it, and something may not be there yet. Any of ours may take it; who knows nothing of
            `pending` (a JVM writer) has to wait until `valid_until_ms`.
        late_ms: `valid_until_ms` of the last that was `handed`, by which something may be put there yet; 0 if that is
            long past.
        log: the publishes of late, of holders that keep one; None as soon as anybody has held it who does not.

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
    line: tuple[str, ...] = ()
    turn_ms: int = 0
    freed_ms: int = 0
    handed: bool = False
    late_ms: int = 0
    log: Log | None = None
    earlier: tuple[Pending, ...] = ()
    guest_ms: int = 0
    rest_ms: int = 0
    duty_ms: int = 0

    @property
    def unapplied(self) -> tuple[Pending, ...]:
        """All that is decided and may not be there yet, in the order of the decisions."""
        return () if self.pending is None else (*self.earlier, self.pending)

    @property
    def tells_all(self) -> bool:
        """Whether what is pending, which may not be there yet, stands in the log with its bytes; or nothing is."""
        return self.pending is None or (self.log is not None and self.log.ends_with(self.unapplied))

    def lapsed_at(self, now_ms: int) -> bool:
        """Whether others may take it over by now: it is not valid any more, and the grace has passed.

        >>> record.lapsed_at(record.valid_until_ms), record.lapsed_at(record.valid_until_ms + 60_000)
        (False, True)
        """
        return lapsed(self.valid_until_ms, now_ms)

    @property
    def lapses_ms(self) -> int:
        """From when on that is so."""
        return self.valid_until_ms + GRACE_MS + 1

    def apart_from_line(self) -> LockRecord:
        """The same without what those who wait may change.

        >>> record.apart_from_line().line
        ()
        """
        return replace(self, line=())

    @property
    def given(self) -> bool:
        """Whether its holder has given the lock back, for those who know what is pending."""
        return self.expired or self.handed

    def encode(self) -> bytes:
        """The record as UTF-8 JSON, Hudi's fields first.

        >>> b'"expired"' in record.encode()
        True
        """
        fields: dict[str, Any] = {
            "expired": self.expired,
            "validUntil": self.valid_until_ms,
            "owner": self.owner,
            "epoch": self.epoch,
            "nonce": self.nonce,
            "pending": None if self.pending is None else fields_of(self.pending, enclosed=not self.tells_all),
            "holder": None if self.holder is None else _holder_fields(self.holder),
        }
        fields |= {name: value for name, value in self._only_if_said() if value}
        if self.earlier:
            told = self.tells_all and all(p.sole and not p.staged for p in self.earlier)
            fields["pendingBefore"] = len(self.earlier) if told else [fields_of(p, enclosed=True) for p in self.earlier]
        if self.log is not None:
            fields["log"] = {"name": self.log.name, "first": self.log.first, "next": self.log.next}
            fields["log"]["packed"] = base64.b64encode(self.log.packed).decode("ascii")
        return json.dumps(fields, separators=(",", ":")).encode()

    def _only_if_said(self) -> Iterator[tuple[str, Any]]:
        """What is left out where it says nothing."""
        yield "waiters", list(self.line)
        yield "turnMs", self.turn_ms
        yield "freedMs", self.freed_ms
        yield "foreignSeenMs", self.guest_ms
        yield "yieldUntilMs", self.rest_ms
        yield "combinerMs", self.duty_ms
        yield "releasedPending", self.handed
        yield "pendingUntil", self.late_ms

    @classmethod
    def decode(cls, data: bytes, path: str = "") -> LockRecord:
        """Read a record, ours or JVM Hudi's; unknown fields are ignored. `path`: for the error, where it is.

        Raises:
            MalformedRecord: it is not one.

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
                line=tuple([as_text(name, "waiters") for name in fields.get("waiters") or ()]),
                handed=as_flag(fields.get("releasedPending") or False, "releasedPending"),
                log=log,
                earlier=_earlier(fields.get("pendingBefore"), log) if pending else (),
                **{_TIMES[n]: as_whole(fields[n] or 0, n, most=_LARGEST_LONG) for n in fields.keys() & _TIMES.keys()},
            )


def _log(value: Any, path: str) -> Log | None:
    """The log, whose entries are unpacked, and checked, by those who want them."""
    if value is None:
        return None
    packed = unbase64(value["packed"], "packed")
    log = Log(text_in(value, "name"), whole_in(value, "first"), whole_in(value, "next"), packed, path)
    if not 0 <= log.next - log.first <= MOST_ENTRIES or len(packed) > MOST_PACKED:
        raise Undecodable(f"its log has {len(packed)} bytes from {log.first} to {log.next}")
    return log


def fields_of(pending: Pending, *, enclosed: bool) -> dict[str, Any]:
    """A publish as it stands in the record; its bytes only if `enclosed`."""
    fields: dict[str, Any] = {"path": pending.path, "staged": pending.staged, "digest": pending.digest}
    if pending.data is not None and enclosed:
        fields["enclosed"] = base64.b64encode(zlib.compress(pending.data)).decode("ascii")
    if pending.sole:
        fields["unshared"] = True
    if pending.first is not None and enclosed:
        fields["first"] = fields_of(pending.first, enclosed=True)
    return fields


def _earlier(value: Any, log: Log | None) -> tuple[Pending, ...]:
    """A number says that they are in the log, before the last."""
    if value is None:
        return ()
    if as_whole(len(value) if isinstance(value, list) else value, "pendingBefore") > _MOST_EARLIER:
        raise Undecodable(f"more than {_MOST_EARLIER} publishes are pending")
    if isinstance(value, list):
        return tuple(p for p in (_pending(one, None) for one in value) if p is not None)
    found = () if log is None else (log.since(log.next - 1 - value) or ())[:-1]
    if len(found) != value:
        raise Undecodable(f"the log does not have the {value} publishes that are pending")
    return tuple(entry.pending for entry in found)


def _pending(value: Any, log: Log | None, *, is_first: bool = False) -> Pending | None:
    if value is None:
        return None
    if is_first and value.get("first") is not None:
        raise Undecodable("what a publish puts there first puts something there first, too")
    sole = as_flag(value.get("unshared") or False, "unshared")
    pending = Pending(text_in(value, "path"), text_in(value, "staged"), text_in(value, "digest"), sole=sole)
    enclosed, first = value.get("enclosed"), _pending(value.get("first"), None, is_first=True)
    if enclosed is not None:
        data = inflate(unbase64(enclosed, "enclosed"), most=LARGEST_ENCLOSED)
        return replace(pending, data=data, first=first)
    told = None if log is None else log.told(pending)
    if told is None or told.data is None:
        return replace(pending, first=first)
    return replace(told.pending, staged=pending.staged, sole=pending.sole, first=first or told.pending.first)


def _holder(value: Any) -> Holder | None:
    if value is None:
        return None
    user, command = as_text(value.get("user") or "", "user"), as_text(value.get("command") or "", "command")
    since_ms = whole_in(value, "since_ms", most=_LARGEST_LONG)
    return Holder(text_in(value, "host"), whole_in(value, "pid"), since_ms, user, command)


def _holder_fields(holder: Holder) -> dict[str, Any]:
    fields: dict[str, Any] = {"host": holder.host, "pid": holder.pid, "since_ms": holder.since_ms}
    return fields | {n: v for n, v in (("user", holder.user), ("command", holder.command)) if v}


# -- the line: who waits, in which order, how long a turn takes, and when the lock is left to others -------------------
#
# Politeness, not safety: nothing depends on it but how soon somebody gets the lock. One that knows nothing of `line` (a
# JVM writer) hardly finds the lock free where many wait. So if one was seen of late (`guest_ms`), those in the line
# leave the lock alone for as long as it takes to be found, every so often (`rest_ms`).

# No turn counts for longer in what others wait for, and nobody's turn is waited for longer at a lock that lies free.
LONGEST_S = 4.5
# So long, or two turns, one waits at a lock that lies free for those in the line who need not hold it oneself.
_GOES_FIRST_S = 0.25


def ahead_of(name: str, line: tuple[str, ...]) -> int:
    """How many in the line go before this one; all, if it is not in it."""
    return line.index(name) if name in line else len(line)


def without(line: tuple[str, ...], name: str) -> tuple[str, ...]:
    """The line without that name."""
    return tuple(other for other in line if other != name)


def joined(record: LockRecord, name: str) -> LockRecord:
    """The same record with this name at the end of the line; nothing else may differ."""
    return record if name in record.line else replace(record, line=(*record.line, name))


def lies_free_s(record: LockRecord, now_ms: int) -> float:
    """For how long a lock that is free was there for the taking, as far as the record says; clocks may differ."""
    return (now_ms - max(record.rest_ms, record.freed_ms or record.valid_until_ms)) / 1000


def others_wait(record: LockRecord, name: str) -> bool:
    """Whether somebody else than that one stands in the line."""
    return any(other != name for other in record.line)


def goes_first_s(record: LockRecord) -> float:
    """For how long a lock that lies free is left to those in the line by one that need not hold it, in seconds."""
    return min(LONGEST_S, max(_GOES_FIRST_S, 2 * record.turn_ms / 1000))


def rests_s(record: LockRecord, now_ms: int) -> float:
    """For how long those in the line leave a released lock to one that knows nothing of it, in seconds."""
    left_ms = record.rest_ms - now_ms if record.expired else 0
    return left_ms / 1000 if 0 < left_ms <= _REST_MS else 0.0


def rest_due_ms(record: LockRecord, now_ms: int) -> int:
    """Until when a lock that is released now is left to one that knows nothing of ours; 0 if that is not due.

    One may be there that was never seen: so it is due now and then if nobody is known, too.
    """
    every_ms = _REST_EVERY_MS if record.guest_ms else _REST_UNASKED_MS
    return now_ms + _REST_MS if now_ms > max(record.guest_ms, record.rest_ms) + every_ms else 0


def left_alone_ms(record: LockRecord, now_ms: int, *, lies_free: bool) -> int:
    """Until when it was left to such a one, by a write of now; `lies_free`: it is, but nobody need wait for that."""
    return now_ms - _REST_MS if lies_free or not record.rest_ms else record.rest_ms


_REST_EVERY_MS = 15_000
_REST_UNASKED_MS = 50_000  # a JVM writer asks for a minute
_REST_MS = 1200  # JVM Hudi looks once in a second


def guest_ms(seen: LockRecord, now_ms: int) -> int:
    """When one was seen that knows nothing of ours; 0 if that is long past."""
    if not seen.nonce:
        return now_ms
    return seen.guest_ms if now_ms <= seen.guest_ms + LONG_PAST_MS else 0


def turn_ms(seen: LockRecord, now_ms: int) -> int:
    """How long a turn takes, as a running mean of those that somebody waited for, without outliers: a hint."""
    if not seen.line or seen.holder is None:
        return 0
    last_ms, mean_ms = _last_turn_ms(seen, seen.holder.since_ms, now_ms), seen.turn_ms
    if not mean_ms:
        return last_ms
    if mean_ms > 2 * max(last_ms, _HANDOVER_MS):  # they were long while the line was formed
        return (mean_ms + last_ms) // 2
    return (15 * mean_ms + min(last_ms, 2 * mean_ms) + 8) // 16


def _last_turn_ms(seen: LockRecord, since_ms: int, now_ms: int) -> int:
    """From take to take; for how long it lay there counts only up to the time for which it was held."""
    if not seen.freed_ms:
        return max(1, min(now_ms - since_ms, _LONGEST_TURN_MS))
    held_ms = min(seen.freed_ms - since_ms, _LONGEST_TURN_MS)
    return max(1, held_ms + min(now_ms - seen.freed_ms, max(held_ms, _HANDOVER_MS)))


_LONGEST_TURN_MS = round(LONGEST_S * 1000)
_HANDOVER_MS = 100
LONG_PAST_MS = 3_600_000
