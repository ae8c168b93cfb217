"""What goes out with the next write, and when. Pure: no store, no clock, no thread.

1. One write is under way at a time. What arrives meanwhile goes with the next, in the order of arrival.
2. There is no timer: a write goes out as soon as the one before is answered. But whoever was just answered is about
   to come again, so it waits until as many are there as the last one had, at most 15 % of the time that one took.
   Without that a crowd splits in two that take turns.
3. A pace is kept from the answer of the last write, not from its start: a store that takes one write a second counts
   from when it is done.
4. An answer is for the operations that were in that write, and for no other.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Generic, TypeVar

T = TypeVar("T")

PATIENCE = 0.15  # of the time that the last write took
LEARNED_S = 60.0  # how long a store that asked for patience is given it
THROTTLED_PACE_S = 1.0


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
