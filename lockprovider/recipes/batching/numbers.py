"""The numbers of producers keep their order also where some come to nothing. Pure.

Of a producer only the last number is remembered, and what is below it is a repeat. So a number that came to nothing
holds up those after it until it comes again: passed by, its repeat would be taken for one that is there.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field

from lockprovider.recipes.errors import SequenceGap

NumberOf = tuple[Hashable, int]  # who, and the number


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
