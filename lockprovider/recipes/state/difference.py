"""What is different between two values. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any


class _Absent:
    def __repr__(self) -> str:
        return "absent"


NOT_THERE = _Absent()
"""What stands for one side of a difference where there is nothing."""


@dataclass(frozen=True, slots=True)
class Difference:
    """At `where` (`/a/0/b`; "" is all of it) there was `before`, and is `after`.

    >>> state = lockprovider.state.open("memory://docs/orders.json")
    >>> first, second = state.put({"a": [1]}), state.put({"a": [2]})
    >>> state.diff(1, 2)
    [Difference(where='/a/0', before=1, after=2)]
    """

    where: str
    before: Any
    after: Any


def difference(before: Any, after: Any, where: str = "") -> Iterator[Difference]:
    """The innermost places at which two JSON values differ, in order."""
    if isinstance(before, dict) and isinstance(after, dict):
        for key in sorted({*before, *after}):
            yield from difference(before.get(key, NOT_THERE), after.get(key, NOT_THERE), f"{where}/{key}")
    elif isinstance(before, list) and isinstance(after, list):
        for place in range(max(len(before), len(after))):
            old = before[place] if place < len(before) else NOT_THERE
            new = after[place] if place < len(after) else NOT_THERE
            yield from difference(old, new, f"{where}/{place}")
    elif before != after or isinstance(before, bool) is not isinstance(after, bool):
        yield Difference(where, before, after)
