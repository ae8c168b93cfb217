"""Where a log ends, found without a listing. Pure but for the looks, which are an argument.

Slots are written one after the other, and each place says which slot it holds. So whether slot s was written can be
asked of its place alone, however many rounds ago, and the answer is the same for all before it: what is there is
found by steps that double, then by halves. What is written meanwhile only moves the end on.
"""

from __future__ import annotations

from collections.abc import Callable

from lockprovider.recipes.wal.slot import NOT_YET


def last_slot(look: Callable[[int], int], known: int, slots: int | None) -> int:
    """The last slot, as it was at some moment of the search; -1 if there is none.

    `look` says which slot is in the place of this one, -1 if none is. `known` is a slot that was written, however long
    ago, or -1; one that is not there any more was removed by somebody, and the result is below it.
    """
    low = known if known == NOT_YET else look(known)
    while True:
        step = 1
        while (there := look(low + step)) >= low + step:
            low, step = there, step * 2 if slots is None else min(step * 2, slots)
        high = low + step
        while high - low > 1:
            middle = (low + high) // 2
            there = look(middle)
            if there >= middle:
                low = there
            else:
                high = middle
        if high - low == 1:
            return low
