"""What a waiting client does after a look at the record: take the lock, join the line, or look again, and when. Pure.

    in the line       sleep until the turns before one's own should have ended
    not in the line   sleep for most of a round of the line; then take what is free, or join
    later than that   look, more and more seldom: after half the time that one has waited in vain
    free, but the turn of others   a patience for each of them, then take it

Nobody has to be in the line (`LockRecord.line`), and nothing breaks when a JVM writer drops it. Whatever the record
says, nobody sleeps for longer than `LONGEST_S` (or `poll_s`, if that is longer), and a lock that lay free for so long
is anyone's: so many as have given up or died in the line cost no more, together.

Not promised: an order. Only that nobody who waits is passed over for long by those who play along.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from fsspec_cas import Version
from lockprovider.storage_lock.machine import may_take
from lockprovider.storage_lock.record import LONGEST_S, LockRecord, ahead_of, lies_free_s, rests_s, without

FIRST_S = 0.15  # the first pause of one that is not in the line; what one is late by whose turn it is

_SHARE = 0.5  # of the time waited in vain is the next pause
_LOOKS = 6  # in the length of a turn, of those in the line whose turn should be there
_WAYS = 3  # to the store, that one looks earlier than its turn is expected, and may be later
_UNKNOWN_TURN_S = 0.2  # each that joins makes the holder write anew: were all to join in its turn, it would not end
_JOIN_BURST = 4  # attempts in a row: beside short turns one in three or four succeeds


@dataclass(frozen=True, slots=True)
class Observation:
    """What a waiting client saw at a look."""

    record: LockRecord
    version: Version
    now_ms: int
    monotonic_s: float
    took_s: float  # 0 if no request was needed: the record is the own released one
    understood: bool = True  # the record, to the last byte
    owner: str = ""  # who looks, as it would stand in the record
    lost_race: bool = False  # somebody took it since: a turn has just begun, and the rest is what was there before

    @property
    def mine(self) -> bool:
        """Whether it is an older take of one's own, that landed late."""
        return self.record.owner == self.owner and not self.record.given

    @property
    def free(self) -> bool:
        """Whether it may be taken."""
        return not self.lost_race and may_take(self.record, self.owner, self.now_ms)


@dataclass(frozen=True, slots=True)
class Waiter:
    """What a waiting client remembers between two looks."""

    name: str
    poll_s: float
    began_s: float
    way_s: float = 0.0  # the slowest of the looks of late
    version: Version | None = None
    free_since_s: float | None = None  # at that version
    refused: int = 0  # attempts to join that others were faster than
    round_s: float | None = None  # of the line at the last look, if one was not in it


@dataclass(frozen=True, slots=True)
class TakeTurn:
    """Take the lock as it was seen; this line waits for it from then on."""

    line: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Pause:
    """Look again after this."""

    seconds: float


@dataclass(frozen=True, slots=True)
class Join:
    """Write yourself into the line, under the version that was seen; then look again after a pause."""


def looked(waiter: Waiter, seen: Observation, draw: float) -> tuple[Waiter, TakeTurn | Join | Pause]:
    """What to do after a look; `draw` is in [0, 1)."""
    outside = seen.record.line and waiter.name not in seen.record.line
    known = replace(_noted(waiter, seen), round_s=_round_s(seen) if outside else None)
    take = None if known.free_since_s is None else _take(waiter, seen)
    if take is not None or _should_join(known, seen):
        return known, take or Join()
    return known, _pause(known, seen, draw)


def at_last(waiter: Waiter, seen: Observation) -> TakeTurn | None:
    """What one does that cannot wait: it takes what is free, lets nobody go first, and leaves it to nobody."""
    if not seen.free:
        return None
    return TakeTurn(() if _was_left(seen) else without(seen.record.line, waiter.name))


def next_look(waiter: Waiter, seen: Observation, draw: float) -> tuple[Waiter, Pause]:
    """When to look again, of one that has just joined, or whose take was refused (`Observation.lost_race`)."""
    known = _noted(waiter, seen)
    return known, _pause(known, seen, draw)


def join_failed(waiter: Waiter, seen: Observation, draw: float) -> tuple[Waiter, Pause]:
    """After an attempt to join that was refused: somebody else wrote at the same time."""
    after = replace(waiter, refused=waiter.refused + 1)
    return after, Pause(0.0 if after.refused % _JOIN_BURST else _slowing_s(waiter, seen, draw))


def _take(waiter: Waiter, seen: Observation) -> TakeTurn | None:
    """One's own turn; or those had it whose turn it was, and did not come: they leave the line.

    One that was not in the line at its last look, and has waited for a round of it, goes before all in it, once.
    """
    line, name = seen.record.line, waiter.name
    ahead = ahead_of(name, line)
    if seen.mine or _was_left(seen):
        return at_last(waiter, seen)
    if ahead <= _no_shows(waiter, seen):
        return TakeTurn(without(line[ahead:], name))
    waited_s = seen.monotonic_s - seen.took_s - waiter.began_s
    return TakeTurn(without(line, name)) if waiter.round_s is not None and waited_s > waiter.round_s else None


def _was_left(seen: Observation) -> bool:
    """Nobody can be waiting in the line of a lock that was there for the taking for so long."""
    return not seen.mine and lies_free_s(seen.record, seen.now_ms) > LONGEST_S


def _no_shows(waiter: Waiter, seen: Observation) -> int:
    """How many at the head of the line have had their turn since the lock was seen as it is, until this look."""
    if waiter.free_since_s is None or waiter.version != seen.version:
        return 0
    free_s = seen.monotonic_s - seen.took_s - waiter.free_since_s
    return max(0, int(free_s / _patience_s(waiter, seen)))


def comes_again(gap_s: float, waited_s: float) -> bool:
    """Whether one that asked so soon after its last release will be back before its turn, at the end of the line.

    A guess: `waited_s` is how long it waited for its turn of late.
    """
    return gap_s < max(FIRST_S, waited_s)


def _noted(waiter: Waiter, seen: Observation) -> Waiter:
    free = seen.free and not rests_s(seen.record, seen.now_ms)  # else it is left to those who know nothing of the line
    since_s = waiter.free_since_s if waiter.version == seen.version else None
    since_s = seen.monotonic_s if since_s is None else since_s
    way_s = max(seen.took_s, waiter.way_s / 2)
    return replace(waiter, way_s=way_s, version=seen.version, free_since_s=since_s if free else None)


def _should_join(waiter: Waiter, seen: Observation) -> bool:
    """After a round without luck; a line begins where a turn lasts long enough to join beside it."""
    record = seen.record
    if not seen.understood or not waiter.name or waiter.name in record.line or seen.lost_race:
        return False
    waited_s = seen.monotonic_s - waiter.began_s
    if not record.line and not record.turn_ms:
        return min(waited_s, _lasts_s(seen)) > _UNKNOWN_TURN_S
    return waited_s > _round_s(seen)


def _pause(waiter: Waiter, seen: Observation, draw: float) -> Pause:
    if rest_s := rests_s(seen.record, seen.now_ms):
        return Pause(rest_s * (1 + draw / 10))
    pause_s = max(_expected_s(waiter, seen, draw), _slowing_s(waiter, seen, draw))
    return Pause(max(0.0, min(pause_s, _until_there_s(waiter, seen, draw), max(LONGEST_S, waiter.poll_s))))


def _expected_s(waiter: Waiter, seen: Observation, draw: float) -> float:
    """Until it should be this one's turn; who is not in the line is one of many who have seen the same."""
    line, turn_s = seen.record.line, _turn_s(seen)
    if waiter.name in line:
        left_s = 0.0 if seen.free else min(turn_s, max(0.0, turn_s - _lasts_s(seen)))
        return ahead_of(waiter.name, line) * turn_s + left_s - _WAYS * waiter.way_s
    return 0.0 if seen.lost_race else len(line) * turn_s * (1 + draw) / 2


def _slowing_s(waiter: Waiter, seen: Observation, draw: float) -> float:
    """Between two looks of one whose turn should be there."""
    if waiter.name in seen.record.line:
        least_s, in_vain_s = _turn_s(seen) / _LOOKS, _lasts_s(seen) - _turn_s(seen)
    else:
        least_s, in_vain_s = FIRST_S, seen.monotonic_s - waiter.began_s
    return min(waiter.poll_s, max(least_s, in_vain_s * _SHARE)) * (1 + draw) / 2


def _until_there_s(waiter: Waiter, seen: Observation, draw: float) -> float:
    """Until the lock lapses, or is there for this one, or for anyone; a little later, for others wait for it too."""
    if waiter.free_since_s is None:
        there_s = (seen.record.lapses_ms - seen.now_ms) / 1000
    else:
        patience_s = ahead_of(waiter.name, seen.record.line) * _patience_s(waiter, seen)
        passed_s = waiter.free_since_s + patience_s - seen.monotonic_s
        there_s = min(passed_s, LONGEST_S - lies_free_s(seen.record, seen.now_ms))
    return max(0.0, there_s) + draw * FIRST_S


def _round_s(seen: Observation) -> float:
    """Of all in the line, and the one that looks."""
    return (len(seen.record.line) + 1) * _turn_s(seen)


def _turn_s(seen: Observation) -> float:
    return min(LONGEST_S, seen.record.turn_ms / 1000 or max(_UNKNOWN_TURN_S, _lasts_s(seen)))


def _lasts_s(seen: Observation) -> float:
    """How long the turn lasts by now; clocks may differ."""
    holder = seen.record.holder
    if holder is None or seen.free or seen.lost_race:
        return 0.0
    return (seen.now_ms - holder.since_ms) / 1000


def _patience_s(waiter: Waiter, seen: Observation) -> float:
    """How long the first in the line may take to come."""
    return FIRST_S + _turn_s(seen) / _LOOKS + _WAYS * waiter.way_s
