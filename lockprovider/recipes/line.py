"""What goes out with the next write, when, and what waits for a failed number. Pure: no store, no clock, no thread.

1. One write is under way at a time. What arrives meanwhile goes with the next, in the order of arrival.
2. There is no timer: a write goes out as soon as the one before is answered. But whoever was just answered is about
   to come again, so it waits until as many are there as the last one had, at most 15 % of the time that one took.
   Without that a crowd splits in two that take turns.
3. A pace is kept from the answer of the last write, not from its start: a store that takes one write a second counts
   from when it is done.
4. An answer is for the operations that were in that write, and for no other.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Generic, TypeVar

from lockprovider.recipes.errors import SequenceGap

T = TypeVar("T")

PATIENCE = 0.15  # of the time that the last write took
LEARNED_S = 60.0  # how long a store that asked for patience is given it
THROTTLED_PACE_S = 1.0
NumberOf = tuple[Hashable, int]  # who, and the number


@dataclass(frozen=True, slots=True)
class Line(Generic[T]):
    """Who waits, and what is known of the last write.

    Attributes:
        waiting: in the order of arrival.
        under_way: what the write under way carries.
        crowd: how many the last write carried.
        answered_s, took_s: when the last answer came, and after how long.
    """

    waiting: tuple[T, ...] = ()
    under_way: tuple[T, ...] = ()
    crowd: int = 0
    answered_s: float = float("-inf")
    took_s: float = 0.0

    def came(self, *operations: T) -> Line[T]:
        """These wait, too."""
        return replace(self, waiting=(*self.waiting, *operations))

    def rest_s(self, now_s: float, pace_s: float) -> float:
        """How long the store is left alone yet."""
        return max(0.0, self.answered_s + pace_s - now_s)

    def patience_s(self, now_s: float) -> float:
        """How long to wait for the others; 0: do not."""
        if len(self.waiting) >= self.crowd:
            return 0.0
        return max(0.0, self.answered_s + PATIENCE * self.took_s - now_s)

    def took(self, most: int) -> tuple[Line[T], tuple[T, ...]]:
        """A write begins, unless one is under way: with the first who wait, at most so many."""
        if self.under_way:
            return self, ()
        batch = self.waiting[:most]
        return replace(self, waiting=self.waiting[most:], under_way=batch), batch

    def answered(self, began_s: float, now_s: float) -> Line[T]:
        """The write under way is over, however it ended."""
        return replace(self, under_way=(), crowd=len(self.under_way), answered_s=now_s, took_s=now_s - began_s)


def pace_at(base_s: float, throttled_s: float | None, now_s: float) -> float:
    """Seconds from an answer to the next write; `throttled_s` is when the store last asked for patience."""
    learned = throttled_s is not None and now_s - throttled_s < LEARNED_S
    return max(base_s, THROTTLED_PACE_S) if learned else base_s


# The numbers of producers keep their order also where some come to nothing.
#
# Of a producer only the last number is remembered, and what is below it is a repeat. So a number that came to nothing
# holds up those after it until it comes again: passed by, its repeat would be taken for one that is there.
@dataclass(slots=True)
class Numbers:
    """Which number of whom came to nothing; for one who gives batches one after the other."""

    failed: dict[Hashable, int] = field(default_factory=dict)

    def held_up(self, batch: Sequence[NumberOf | None]) -> dict[int, SequenceGap]:
        """The places of those that have to wait, and what they are told; None is for what has no number."""
        gaps: dict[int, SequenceGap] = {}
        again: set[Hashable] = set()
        for place, one in enumerate(batch):
            failed = None if one is None or one[0] in again else self.failed.get(one[0])
            if one is None or failed is None:
                continue
            if one[1] <= failed:
                again.add(one[0])
            else:
                gaps[place] = SequenceGap(f"{failed} came to nothing: give that again before {one[1]}")
        return gaps

    def carried_out(
        self, given: Sequence[T], named: Sequence[NumberOf | None], carry_out: Callable[[list[T]], Sequence[Any]]
    ) -> list[Any]:
        """What each of a batch comes to, in their order; `carry_out` is given those that need not wait.

        Notes what became of each number. What `carry_out` raises is noted for all, and raised.
        """
        gaps = self.held_up(named)
        taken = [one for place, one in enumerate(given) if place not in gaps]
        try:
            done = iter(carry_out(taken) if taken else ())
        except BaseException as error:
            for number in named:
                self.note(number, error)
            raise
        results = [gaps[place] if place in gaps else next(done) for place in range(len(given))]
        for number, result in zip(named, results, strict=True):
            self.note(number, result)
        return results

    def note(self, one: NumberOf | None, result: object) -> None:
        """What it came to."""
        if one is None:
            return
        who, number = one
        if isinstance(result, BaseException) and not isinstance(result, SequenceGap):
            self.failed[who] = min(number, self.failed.get(who, number))
        elif self.failed.get(who) == number and not isinstance(result, BaseException):
            del self.failed[who]

    def forget(self, who: Hashable) -> None:
        """Nothing more comes from it."""
        self.failed.pop(who, None)
