"""Rules of a waiting client and of the record's waiters, pure; see "Waiting" in `lockprovider/SPECIFICATION.md`."""

from __future__ import annotations

from dataclasses import dataclass, replace

from fsspec_cas import Version
from lockprovider.storage_lock.record import LockRecord, may_take

# Longest expected turn; a free lock is left to its waiters for that long.
LONGEST_S = 4.5
FIRST_S = 0.15  # first pause outside the waiters; a waiter's allowed delay

_SHARE = 0.5  # of the time waited in vain
_POLLS = 6
_LATENCIES = 3  # a waiter polls that early, and may be that late
# A join makes the holder write again: if all joined, no turn would end.
_UNKNOWN_TURN_S = 0.2
_JOIN_BURST = 4  # one join in three or four succeeds


@dataclass(frozen=True, slots=True)
class Observation:
    """One read of the record."""

    record: LockRecord
    version: Version
    now_ms: int
    monotonic_s: float
    took_s: float  # 0 without a request
    understood: bool = True
    owner: str = ""
    lost_race: bool = False  # taken after this read

    @property
    def mine(self) -> bool:
        return self.record.owner == self.owner and not self.record.is_free

    @property
    def free(self) -> bool:
        return not self.lost_race and may_take(self.record, self.owner, self.now_ms)


@dataclass(frozen=True, slots=True)
class Waiter:
    """Waiting client's memory between polls."""

    name: str
    poll_s: float
    began_s: float
    latency_s: float = 0.0
    version: Version | None = None
    free_since_s: float | None = None  # free at `version` since
    refused: int = 0
    round_s: float | None = None  # at the last poll, outside the waiters


@dataclass(frozen=True, slots=True)
class TakeTurn:
    """Take the lock, leaving these `waiters`."""

    waiters: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Pause:
    """Poll again later."""

    seconds: float


@dataclass(frozen=True, slots=True)
class Join:
    """Join the waiters, then poll."""


def next_action(waiter: Waiter, observation: Observation, jitter: float) -> tuple[Waiter, TakeTurn | Join | Pause]:
    """Action after a read, and the waiter's new memory; `jitter` is in [0, 1)."""
    outside = observation.record.waiters and waiter.name not in observation.record.waiters
    noted = replace(_noted(waiter, observation), round_s=_round_s(observation) if outside else None)
    take = None if noted.free_since_s is None else _take(waiter, observation)
    if take is not None or _should_join(noted, observation):
        return noted, take or Join()
    return noted, _pause(noted, observation, jitter)


def at_last(waiter: Waiter, observation: Observation) -> TakeTurn | None:
    if not observation.free:
        return None
    return TakeTurn(() if _was_left(observation) else without_waiter(observation.record.waiters, waiter.name))


def next_poll(waiter: Waiter, observation: Observation, jitter: float) -> tuple[Waiter, Pause]:
    noted = _noted(waiter, observation)
    return noted, _pause(noted, observation, jitter)


def join_failed(waiter: Waiter, observation: Observation, jitter: float) -> tuple[Waiter, Pause]:
    after = replace(waiter, refused=waiter.refused + 1)
    return after, Pause(0.0 if after.refused % _JOIN_BURST else _slowing_s(waiter, observation, jitter))


def _take(waiter: Waiter, observation: Observation) -> TakeTurn | None:
    """Return the take of a free lock; None while waiters ahead of this client may still come.

    It passes those that are late, and all after 4.5 s free or, from outside the waiters, after a round. Its own lock is
    taken at once.
    """
    waiters, name = observation.record.waiters, waiter.name
    ahead = ahead_of(name, waiters)
    if observation.mine or _was_left(observation):
        return at_last(waiter, observation)
    if ahead <= _skipped_waiters(waiter, observation):
        return TakeTurn(without_waiter(waiters[ahead:], name))
    waited_s = observation.monotonic_s - observation.took_s - waiter.began_s
    return TakeTurn(without_waiter(waiters, name)) if waiter.round_s is not None and waited_s > waiter.round_s else None


def _was_left(observation: Observation) -> bool:
    return not observation.mine and free_for_s(observation.record, observation.now_ms) > LONGEST_S


def _skipped_waiters(waiter: Waiter, observation: Observation) -> int:
    if waiter.free_since_s is None or waiter.version != observation.version:
        return 0
    free_s = observation.monotonic_s - observation.took_s - waiter.free_since_s
    return max(0, int(free_s / _patience_s(waiter, observation)))


def comes_again(gap_s: float, waited_s: float) -> bool:
    return gap_s < max(FIRST_S, waited_s)


def _noted(waiter: Waiter, observation: Observation) -> Waiter:
    # The yield window belongs to foreign clients.
    free = observation.free and not yield_left_s(observation.record, observation.now_ms)
    since_s = waiter.free_since_s if waiter.version == observation.version else None
    since_s = observation.monotonic_s if since_s is None else since_s
    latency_s = max(observation.took_s, waiter.latency_s / 2)
    return replace(waiter, latency_s=latency_s, version=observation.version, free_since_s=since_s if free else None)


def _should_join(waiter: Waiter, observation: Observation) -> bool:
    """Return whether to join the waiters: once this client's wait exceeds a round.

    If none wait and `turn_ms` is 0: once wait and holder's turn each exceed 0.2 s. Never after a lost race or with
    unknown fields.
    """
    record = observation.record
    if not observation.understood or not waiter.name or waiter.name in record.waiters or observation.lost_race:
        return False
    waited_s = observation.monotonic_s - waiter.began_s
    if not record.waiters and not record.turn_ms:
        return min(waited_s, _lasts_s(observation)) > _UNKNOWN_TURN_S
    return waited_s > _round_s(observation)


def _pause(waiter: Waiter, observation: Observation, jitter: float) -> Pause:
    if yield_s := yield_left_s(observation.record, observation.now_ms):
        return Pause(yield_s * (1 + jitter / 10))
    pause_s = max(_expected_s(waiter, observation, jitter), _slowing_s(waiter, observation, jitter))
    return Pause(max(0.0, min(pause_s, _until_takeable_s(waiter, observation, jitter), max(LONGEST_S, waiter.poll_s))))


def _expected_s(waiter: Waiter, observation: Observation, jitter: float) -> float:
    waiters, turn_s = observation.record.waiters, _turn_s(observation)
    if waiter.name in waiters:
        left_s = 0.0 if observation.free else min(turn_s, max(0.0, turn_s - _lasts_s(observation)))
        return ahead_of(waiter.name, waiters) * turn_s + left_s - _LATENCIES * waiter.latency_s
    return 0.0 if observation.lost_race else len(waiters) * turn_s * (1 + jitter) / 2


def _slowing_s(waiter: Waiter, observation: Observation, jitter: float) -> float:
    if waiter.name in observation.record.waiters:
        least_s, in_vain_s = _turn_s(observation) / _POLLS, _lasts_s(observation) - _turn_s(observation)
    else:
        least_s, in_vain_s = FIRST_S, observation.monotonic_s - waiter.began_s
    return min(waiter.poll_s, max(least_s, in_vain_s * _SHARE)) * (1 + jitter) / 2


def _until_takeable_s(waiter: Waiter, observation: Observation, jitter: float) -> float:
    """Return the seconds until a held lock lapses, or until waiters ahead have let a free one pass.

    `jitter`, in [0, 1), adds up to 0.15 s.
    """
    if waiter.free_since_s is None:
        takeable_s = (observation.record.lapses_ms - observation.now_ms) / 1000
    else:
        patience_s = ahead_of(waiter.name, observation.record.waiters) * _patience_s(waiter, observation)
        passed_s = waiter.free_since_s + patience_s - observation.monotonic_s
        takeable_s = min(passed_s, LONGEST_S - free_for_s(observation.record, observation.now_ms))
    return max(0.0, takeable_s) + jitter * FIRST_S


def _round_s(observation: Observation) -> float:
    return (len(observation.record.waiters) + 1) * _turn_s(observation)


def _turn_s(observation: Observation) -> float:
    return min(LONGEST_S, observation.record.turn_ms / 1000 or max(_UNKNOWN_TURN_S, _lasts_s(observation)))


def _lasts_s(observation: Observation) -> float:
    holder = observation.record.holder
    if holder is None or observation.free or observation.lost_race:
        return 0.0
    return (observation.now_ms - holder.since_ms) / 1000


def _patience_s(waiter: Waiter, observation: Observation) -> float:
    return FIRST_S + _turn_s(observation) / _POLLS + _LATENCIES * waiter.latency_s


_WAITERS_FIRST_S = 0.25


def ahead_of(name: str, waiters: tuple[str, ...]) -> int:
    return waiters.index(name) if name in waiters else len(waiters)


def without_waiter(waiters: tuple[str, ...], name: str) -> tuple[str, ...]:
    return tuple(other for other in waiters if other != name)


def with_waiter(record: LockRecord, name: str) -> LockRecord:
    return record if name in record.waiters else replace(record, waiters=(*record.waiters, name))


def free_for_s(record: LockRecord, now_ms: int) -> float:
    return (now_ms - max(record.yield_until_ms, record.freed_ms or record.valid_until_ms)) / 1000


def others_wait(record: LockRecord, name: str) -> bool:
    return any(other != name for other in record.waiters)


def waiters_first_s(record: LockRecord) -> float:
    return min(LONGEST_S, max(_WAITERS_FIRST_S, 2 * record.turn_ms / 1000))


def yield_left_s(record: LockRecord, now_ms: int) -> float:
    left_ms = record.yield_until_ms - now_ms if record.expired else 0
    return left_ms / 1000 if 0 < left_ms <= _YIELD_MS else 0.0


def due_yield_until_ms(record: LockRecord, now_ms: int) -> int:
    every_ms = _YIELD_EVERY_MS if record.foreign_seen_ms else _YIELD_UNSEEN_MS
    return now_ms + _YIELD_MS if now_ms > max(record.foreign_seen_ms, record.yield_until_ms) + every_ms else 0


def last_yield_until_ms(record: LockRecord, now_ms: int, *, lies_free: bool) -> int:
    return now_ms - _YIELD_MS if lies_free or not record.yield_until_ms else record.yield_until_ms


_YIELD_EVERY_MS = 15_000
_YIELD_UNSEEN_MS = 50_000  # a JVM writer tries for a minute
_YIELD_MS = 1200  # JVM Hudi tries once in a second


def foreign_seen_ms(record: LockRecord, now_ms: int) -> int:
    if not record.nonce:
        return now_ms
    return record.foreign_seen_ms if now_ms <= record.foreign_seen_ms + LONG_PAST_MS else 0


def turn_ms(record: LockRecord, now_ms: int) -> int:
    """Return the running mean of turns' lengths, with the turn that ends at `now_ms`.

    A long one counts at most double; a very short one weighs half. 0 without waiters, or without holder.
    """
    if not record.waiters or record.holder is None:
        return 0
    last_ms, mean_ms = _last_turn_ms(record, record.holder.since_ms, now_ms), record.turn_ms
    if not mean_ms:
        return last_ms
    if mean_ms > 2 * max(last_ms, _HANDOVER_MS):
        return (mean_ms + last_ms) // 2
    return (15 * mean_ms + min(last_ms, 2 * mean_ms) + 8) // 16


def _last_turn_ms(record: LockRecord, since_ms: int, now_ms: int) -> int:
    if not record.freed_ms:
        return max(1, min(now_ms - since_ms, _LONGEST_TURN_MS))
    held_ms = min(record.freed_ms - since_ms, _LONGEST_TURN_MS)
    return max(1, held_ms + min(now_ms - record.freed_ms, max(held_ms, _HANDOVER_MS)))


_LONGEST_TURN_MS = round(LONGEST_S * 1000)
_HANDOVER_MS = 100
LONG_PAST_MS = 3_600_000
