"""When a waiting client looks at the lock record again, and how it lets others go first.

While several wait, the record names them in a line (`LockRecord.line`). Whoever is first looks often, the others sleep
for most of the turns before theirs. Whoever releases stands at the end, if it comes again. One that does not come is
passed over after a moment, and out of the line. Nobody has to be in the line, and nothing breaks when a JVM writer
drops it: then everybody looks at a jittered pace.

Whatever the line and the turns before say, nobody sleeps for longer than `LONGEST_S` (or `poll_s`, if that is longer),
and a lock that lay free for so long is anyone's: so many as have given up or died in the line cost no more, together.

Not promised: an order. Only that nobody who waits is passed over for long by those who play along.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from fsspec_cas import Version
from lockprovider.lease.states import Busy, Passing
from lockprovider.record.line import LONGEST_S, ahead_of, lies_free_s, rests_s
from lockprovider.record.record import LockRecord

FIRST_S = 0.05

_ALL = 1 << 20
_DOUBLINGS = 10
_GROWTH = 1.5  # of a pause, each time that another got the lock, or that a burst of joins was refused
_LOOKS = 6  # of the first in the line, in the length of a turn, once that should have ended
_SLOWER = 4  # its next look in a turn that lasts long: after this share of how much longer it lasts
_EARLY = 0.9  # of the time until the own turn is slept through: turns are not equally long
_WAYS = 1.5  # to the store, that a look is earlier still: it shall be there in time
_GUEST_ROUND = 0.7  # of a round of the line is slept through by those who are not in it
_GUEST_S = 0.1  # their first pause, while nobody else is known to want the lock
_LOST_RACE_WAY_S = 0.02
_LOST_RACE_WAYS = 2  # to the store, until whoever was faster may have ended
_CROWD_S = 0.15  # the first pause in a crowd without a line
_CROWD_WAYS = 3  # to the store, if that is longer
_CROWD_POLLS = 0.55  # of the pace, at most: where many wait, a long pause costs the last of them most
_CROWD_EVEN = 0.3  # of the pause is the same for all
_SLACK_S = 0.1  # what the first in the line may be late by, besides its pace and its way to the store
_SOONEST_S = 0.001
_JOIN_BURST = 4  # attempts in a row: against turns that are short, one in three or four succeeds
_WATCHES = 12  # looks for a fresh record between two bursts, at most
_FRESH_WAYS = 2.5  # to the store, that two looks may be apart
_LONG_WAYS = 15  # in shorter turns, a record that is not fresh is written before an attempt gets there
_UNKNOWN_TURN_S = 0.2  # each that joins makes the holder write anew: were all to join in its turn, it would not end
_QUIET_S = 0.15  # a turn that lasts for so long, and for several ways to the store, leaves room to join
_QUIET_WAYS = 5
_PACED_S = 0.5


@dataclass(frozen=True, slots=True)
class Observation:
    """What a waiting client saw at a look."""

    record: LockRecord
    version: Version
    busy: Busy
    now_ms: int
    monotonic_s: float
    took_s: float | None  # the look itself; None if no request was needed: the record is the own released one
    joinable: bool = True  # the record is one that we understand to the last byte


@dataclass(frozen=True, slots=True)
class Waiter:
    """What a waiting client remembers between two looks."""

    name: str
    poll_s: float
    looks: int = 0
    way_s: float = 0.0  # the slowest of the looks of late
    version: Version | None = None
    free_since_s: float | None = None
    began_s: float | None = None
    looked_s: float = 0.0
    fresh: bool = False  # whether the record was written between the last two looks, which were close to each other
    refused: int = 0  # attempts to join the line that others were faster than
    watched: int = 0  # looks for a fresh record, since the last burst of such attempts
    rivals: int = 0  # times that somebody else got the lock meanwhile, as far as was seen


@dataclass(frozen=True, slots=True)
class Pause:
    """Look again after this."""

    seconds: float


@dataclass(frozen=True, slots=True)
class Join:
    """Write yourself into the line, under the version that was seen; then look again after a pause."""


def looked(waiter: Waiter, seen: Observation, draw: float) -> tuple[Waiter, Pause | Join]:
    """What to do after a look in vain; `draw` is in [0, 1)."""
    known = _noted(waiter, seen)
    if rest_s := rests_s(seen.record, seen.now_ms):
        return known, Pause(rest_s * (1 + draw / 10))
    if _should_join(known, seen):
        if known.fresh or not known.refused or seen.took_s is None or _turn_s(seen) > _LONG_WAYS * known.way_s:
            return known, Join()
        if known.watched < _WATCHES:
            return replace(known, watched=known.watched + 1), Pause(0.0)
    pause_s = min(_pause_s(known, seen, draw), _at_most_s(known, seen, draw))
    return known, Pause(max(0.0, min(pause_s, max(LONGEST_S, waiter.poll_s))))


def join_failed(waiter: Waiter, draw: float, took_s: float) -> tuple[Waiter, Pause]:
    """After an attempt to join that was refused: somebody else wrote at the same time. `took_s` is how long it took.

    Where writes are slow because the store paces them (GCS), attempts would take away what the holder needs.
    """
    after = replace(waiter, refused=waiter.refused + (1 if took_s < _PACED_S else _JOIN_BURST))
    failed = after.refused % _JOIN_BURST
    if failed and took_s < _PACED_S:
        return after, Pause(0.0)
    return replace(after, watched=0), Pause(_slowing_s(after.refused, waiter.poll_s) * draw + waiter.way_s)


def passing(waiter: Waiter, seen: Observation, monotonic_s: float) -> Passing:
    """Whom the next look may pass over.

    Those whose turn it was, if the lock is still free as it was, and all if it was for long. And all, for one that is
    not in the line and has waited for longer than a round of it; where there is no line, there is nobody to pass.
    """
    line = seen.record.line
    if line and waiter.name not in line and _waited_s(waiter, monotonic_s) > (len(line) + 1) * _turn_s(seen):
        return Passing(_ALL)
    if waiter.free_since_s is None:
        return Passing()
    free_s = monotonic_s - waiter.free_since_s
    return Passing(_ALL if free_s > LONGEST_S else int(free_s / _patience_s(waiter, seen)), waiter.version)


def comes_again(gap_s: float, waited_s: float) -> bool:
    """Whether one that asked so soon after its last release will be back before its turn, at the end of the line.

    A guess: `waited_s` is how long it waited for its turn of late.
    """
    return gap_s < max(2 * FIRST_S, waited_s)


def _noted(waiter: Waiter, seen: Observation) -> Waiter:
    same = waiter.version == seen.version
    since_s = waiter.free_since_s if same and waiter.free_since_s is not None else seen.monotonic_s
    began_s = seen.monotonic_s if waiter.began_s is None else waiter.began_s
    way_s = max(seen.took_s or 0.0, waiter.way_s / 2)
    ago_s = seen.monotonic_s - waiter.looked_s
    return replace(
        waiter,
        looks=waiter.looks + 1,
        way_s=way_s,
        looked_s=seen.monotonic_s,
        fresh=waiter.version not in (None, seen.version) and ago_s < _FRESH_WAYS * way_s,
        version=seen.version,
        began_s=began_s,
        free_since_s=since_s if seen.busy.free else None,
        rivals=waiter.rivals + _another_got_it(waiter, seen),
    )


def _another_got_it(waiter: Waiter, seen: Observation) -> bool:
    return seen.busy.lost_race or (waiter.version not in (None, seen.version) and not seen.busy.free)


def _should_join(waiter: Waiter, seen: Observation) -> bool:
    """Whoever has just released stands at the end at once; a newcomer tries to get in by itself for a round first.

    To join is to write, against the holder and against all others who join: with many, that is what costs most.
    """
    line = seen.record.line
    # Else the lock is free between, for whoever looks, and its record is never left alone for long enough.
    turns_are_taken = line or seen.record.turn_ms or _lasts_s(seen) > max(_QUIET_S, _QUIET_WAYS * waiter.way_s)
    if not seen.joinable or not turns_are_taken or waiter.name == "" or waiter.name in line or seen.busy.lost_race:
        return False
    if seen.took_s is None and not waiter.refused:
        return True
    rounds = _GROWTH ** min(waiter.refused // _JOIN_BURST, _DOUBLINGS)
    turn_s = min(LONGEST_S, seen.record.turn_ms / 1000 or _UNKNOWN_TURN_S)
    return _waited_s(waiter, seen.monotonic_s) > rounds * (len(line) + 1) * turn_s


def _waited_s(waiter: Waiter, monotonic_s: float) -> float:
    return 0.0 if waiter.began_s is None else monotonic_s - waiter.began_s


def _pause_s(waiter: Waiter, seen: Observation, draw: float) -> float:
    line, turn_s = seen.record.line, _turn_s(seen)
    if waiter.name not in line:
        return _guests_pause_s(waiter, seen, draw)
    ahead = ahead_of(waiter.name, line)
    own_in_s = (ahead * turn_s + _left_s(seen) - _WAYS * waiter.way_s) * _EARLY
    if ahead == 0:
        return max(own_in_s, _pace_s(waiter, seen) * (1 - draw / 2))
    return max(own_in_s, _pace_s(waiter, seen)) * (1 - draw / 10)


def _guests_pause_s(waiter: Waiter, seen: Observation, draw: float) -> float:
    line = seen.record.line
    if waiter.rivals and not line:
        return _crowd_pause_s(waiter, draw)
    slowing_s, round_s = _slowing_s(waiter.looks - 1, waiter.poll_s), len(line) * _turn_s(seen)
    if seen.busy.lost_race:  # by one of the line, who comes on time; the last newcomer of all is soon tried again
        soon_s = _LOST_RACE_WAYS * max(waiter.way_s, _LOST_RACE_WAY_S)
        later_s = min(slowing_s, round_s) if seen.record.turn_ms else slowing_s
        return min(waiter.poll_s, max(soon_s, later_s / 4) * (1 + draw))
    return max(slowing_s, _GUEST_ROUND * round_s) * (1 + draw) / 2


def _crowd_pause_s(waiter: Waiter, draw: float) -> float:
    """Who sees others get the lock again and again looks more and more seldom: nobody knows how many they are."""
    first_s = max(_CROWD_S, _CROWD_WAYS * waiter.way_s)
    growth = _GROWTH ** min(waiter.rivals - 1, _DOUBLINGS)
    return min(_CROWD_POLLS * waiter.poll_s, first_s * growth) * (_CROWD_EVEN + 2 * (1 - _CROWD_EVEN) * draw)


def _at_most_s(waiter: Waiter, seen: Observation, draw: float) -> float:
    """Until the lock is there for the taking; a little later, for others wait for that too."""
    if waiter.free_since_s is not None:
        free_s = seen.monotonic_s - waiter.free_since_s
        over_s = seen.busy.ahead * _patience_s(waiter, seen) - free_s
        left_s = LONGEST_S - max(free_s, lies_free_s(seen.record, seen.now_ms))
        return max(_SOONEST_S, min(over_s * (1 + draw / 10), left_s + draw * _SLACK_S))
    lapses_in_s = (seen.record.lapses_ms - seen.now_ms) / 1000
    return max(0.0, lapses_in_s) + draw * waiter.poll_s / 10


def _slowing_s(times: int, poll_s: float) -> float:
    return min(poll_s, _GUEST_S * (1 << min(times, _DOUBLINGS)))


def _turn_s(seen: Observation) -> float:
    return min(LONGEST_S, seen.record.turn_ms / 1000 or max(FIRST_S, _lasts_s(seen)))


def _left_s(seen: Observation) -> float:
    """Of this turn."""
    turn_s = _turn_s(seen)
    return 0.0 if seen.busy.free else min(turn_s, max(0.0, turn_s - _lasts_s(seen)))


def _lasts_s(seen: Observation) -> float:
    """How long the turn lasts by now; clocks may differ."""
    holder = seen.record.holder
    if holder is None or seen.busy.free or seen.busy.lost_race:
        return 0.0
    return (seen.now_ms - holder.since_ms) / 1000


def _pace_s(waiter: Waiter, seen: Observation) -> float:
    """How often the first in the line looks: when the turn lasts longer than others did, more and more seldom."""
    holder = seen.record.holder
    lasts_s = 0.0 if holder is None else (seen.now_ms - holder.since_ms) / 1000
    return min(waiter.poll_s, max(_turn_s(seen) / _LOOKS, (lasts_s - _turn_s(seen)) / _SLOWER))


def _patience_s(waiter: Waiter, seen: Observation) -> float:
    """How long the first in the line may take to come."""
    return _pace_s(waiter, seen) + max(_SLACK_S, 4 * waiter.way_s)
