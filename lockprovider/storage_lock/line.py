"""The line in the record: who waits, in which order, how long a turn takes, and when the lock is left to others. Pure.

Politeness, not safety: nothing depends on it but how soon somebody gets the lock. One that knows nothing of `line` (a
JVM writer) hardly finds the lock free where many wait. So if one was seen of late (`guest_ms`), those in the line leave
the lock alone for as long as it takes to be found, every so often (`rest_ms`).
"""

from __future__ import annotations

from dataclasses import replace

from lockprovider.storage_lock.record import LockRecord

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
