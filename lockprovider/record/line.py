"""The line in the record: who waits, in which order, how long a turn takes, and when the lock is left to others. Pure.

Politeness, not safety: nothing depends on it but how soon somebody gets the lock. One that knows nothing of `line` (a
JVM writer) hardly finds the lock free where many wait. So if one was seen of late (`guest_ms`), those in the line leave
the lock alone for as long as it takes to be found, every so often (`rest_ms`).
"""

from __future__ import annotations

from dataclasses import replace

from lockprovider.record.record import LockRecord

# No turn counts for longer in what others wait for, and nobody's turn is waited for longer at a lock that lies free.
LONGEST_S = 4.5
HAND_OVERS = 8


def ahead_of(name: str, line: tuple[str, ...]) -> int:
    """How many in the line go before this one; all, if it is not in it."""
    return line.index(name) if name in line else len(line)


def joined(record: LockRecord, name: str) -> LockRecord:
    """The same record with this name at the end of the line; nothing else may differ."""
    return record if name in record.line else replace(record, line=(*record.line, name))


def lies_free_s(record: LockRecord, now_ms: int) -> float:
    """For how long a lock that is free was there for the taking, as far as the record says; clocks may differ."""
    return (now_ms - max(record.rest_ms, record.freed_ms or record.valid_until_ms)) / 1000


def may_stay_free(record: LockRecord) -> bool:
    """Whether a publish may take the lock by the way.

    Not one that lapsed: its holder may be at work. Not without a log: a publish would not tell what happened before.
    And one in so many is done under a lock that is taken and released: one that is only ever handed over is never free
    for a client that knows nothing of that.
    """
    log = record.log
    sole = all(pending.sole for pending in record.unapplied)
    return record.given and log is not None and log.next % HAND_OVERS != 0 and sole and record.tells_all


def hands_over(record: LockRecord, now_ms: int) -> bool:
    """Whether its holder hands over rather than releases: others are in the line, and it is not for a JVM's turn.

    Not after a long turn: all who were in the line may have given up, and whoever knows nothing of them would wait for
    nobody.
    """
    lasts_ms = 0 if record.holder is None else now_ms - record.holder.since_ms
    every_so_often = record.log is not None and record.log.next % HAND_OVERS == 0
    return bool(record.line) and lasts_ms <= LONGEST_S * 1000 and not every_so_often


def rests_s(record: LockRecord, now_ms: int) -> float:
    """For how long those in the line leave a released lock to one that knows nothing of it, in seconds."""
    left_ms = record.rest_ms - now_ms if record.expired else 0
    return left_ms / 1000 if 0 < left_ms <= _REST_MS else 0.0


def rest_ms(record: LockRecord, now_ms: int) -> int:
    """Until when a lock that is released now is left to such a one; as it stands in the record if that is not due."""
    last_ms = max(record.guest_ms, record.rest_ms)
    is_due = record.line and record.guest_ms and now_ms > last_ms + _REST_EVERY_MS
    return now_ms + _REST_MS if is_due else record.rest_ms


_REST_EVERY_MS = 15_000
_REST_MS = 1200  # JVM Hudi looks once in a second


def guest_ms(seen: LockRecord, now_ms: int) -> int:
    """When one was seen that knows nothing of the line; 0 if that is long past."""
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
