"""Waiting operations of a `Batcher`, the start of its next write, and numbers held up by a failed one. No requests.

Callers that were just answered usually come again. So the next write waits for as many operations as the last carried,
at most `PATIENCE` of that write's time: otherwise callers split into two groups that take turns. The pace counts from
the answer, as a store that takes one write a second does.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Generic, TypeVar

from lockprovider.recipes.errors import SequenceGap

T = TypeVar("T")

PATIENCE = 0.15  # fraction of the time that the last write took
LEARNED_S = 60.0  # pacing after a store has throttled
THROTTLED_PACE_S = 1.0
ProducerNumber = tuple[Hashable, int]  # producer, and its number


@dataclass(frozen=True, slots=True)
class Backlog(Generic[T]):
    """Waiting operations in the order of arrival, and facts about the last write.

    `last_count` operations were in that write.
    """

    waiting: tuple[T, ...] = ()
    under_way: tuple[T, ...] = ()
    last_count: int = 0
    answered_s: float = float("-inf")
    took_s: float = 0.0

    def with_arrived(self, *operations: T) -> Backlog[T]:
        """Return the backlog with operations added at the end."""
        return replace(self, waiting=(*self.waiting, *operations))

    def pace_left_s(self, now_s: float, pace_s: float) -> float:
        """Return the seconds until the pace allows the next write."""
        return max(0.0, self.answered_s + pace_s - now_s)

    def gather_s(self, now_s: float) -> float:
        """Return the seconds to wait for more operations; 0 once as many wait as the last write carried."""
        if len(self.waiting) >= self.last_count:
            return 0.0
        return max(0.0, self.answered_s + PATIENCE * self.took_s - now_s)

    def start_write(self) -> tuple[Backlog[T], tuple[T, ...]]:
        """Return the backlog and the batch of a new write, () while one is under way."""
        if self.under_way:
            return self, ()
        return replace(self, waiting=(), under_way=self.waiting), self.waiting

    def end_write(self, began_s: float, now_s: float) -> Backlog[T]:
        """Return the backlog after the write under way, whatever its outcome."""
        return replace(self, under_way=(), last_count=len(self.under_way), answered_s=now_s, took_s=now_s - began_s)


def pace_at(base_s: float, throttled_s: float | None, now_s: float) -> float:
    """Return the seconds from an answer to the next write, longer for a minute after throttling at `throttled_s`."""
    learned = throttled_s is not None and now_s - throttled_s < LEARNED_S
    return max(base_s, THROTTLED_PACE_S) if learned else base_s


@dataclass(slots=True)
class FailedNumbers:
    """Remembers each producer's lowest failed number (of a message or record); higher ones must wait.

    The store takes lower numbers for repeats. Not thread-safe.
    """

    failed: dict[Hashable, int] = field(default_factory=dict)

    def held_up(self, batch: Sequence[ProducerNumber | None]) -> dict[int, SequenceGap]:
        """Return, by index, a SequenceGap for each number above its producer's failed one. Changes nothing.

        A repeat earlier in `batch` lifts it. None: unnumbered.
        """
        gaps: dict[int, SequenceGap] = {}
        again: set[Hashable] = set()
        for index, number in enumerate(batch):
            failed = None if number is None or number[0] in again else self.failed.get(number[0])
            if number is None or failed is None:
                continue
            if number[1] <= failed:
                again.add(number[0])
            else:
                gaps[index] = SequenceGap(f"{failed} failed: repeat it before {number[1]}")
        return gaps

    def run_allowed(
        self,
        operations: Sequence[T],
        named: Sequence[ProducerNumber | None],
        carry_out: Callable[[list[T]], Sequence[Any]],
    ) -> list[Any]:
        """Call `carry_out` on operations not held up, if any; return all results, SequenceGap for the others.

        Records failed numbers: all, if `carry_out` raises.
        """
        gaps = self.held_up(named)
        taken = [operation for index, operation in enumerate(operations) if index not in gaps]
        try:
            carried = iter(carry_out(taken) if taken else ())
        except BaseException as error:
            for number in named:
                self.note(number, error)
            raise
        results = [gaps[index] if index in gaps else next(carried) for index in range(len(operations))]
        for number, result in zip(named, results, strict=True):
            self.note(number, result)
        return results

    def note(self, numbered: ProducerNumber | None, result: object) -> None:
        """Record a number's error (not SequenceGap) if it is the lowest failed one; its success removes it.

        None: does nothing.
        """
        if numbered is None:
            return
        who, number = numbered
        if isinstance(result, BaseException) and not isinstance(result, SequenceGap):
            self.failed[who] = min(number, self.failed.get(who, number))
        elif self.failed.get(who) == number and not isinstance(result, BaseException):
            del self.failed[who]

    def forget(self, who: Hashable) -> None:
        """Drop the failed number of a producer that is done."""
        self.failed.pop(who, None)
