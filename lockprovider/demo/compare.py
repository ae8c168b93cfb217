"""Are two tables the same set of rows? Pure, and independent of how either was made."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

if TYPE_CHECKING:
    from collections.abc import Sequence

Key = tuple[object, ...]

SHOWN = 5


@dataclass(frozen=True, slots=True)
class Difference:
    """One value that is not what it should be. `column` is "row" when a whole row is missing or surplus."""

    key: Key
    column: str
    found: str
    expected: str


@dataclass(frozen=True, slots=True)
class Comparison:
    """What came out of comparing a table with what it should be."""

    found_rows: int
    expected_rows: int
    missing: int
    surplus: int
    repeated: int
    changed: dict[str, int]
    first: tuple[Difference, ...]

    @property
    def equal(self) -> bool:
        """True if every row and every value is there, once, and nothing else."""
        return not (self.missing or self.surplus or self.repeated or self.changed)


def compare(found: pa.Table, expected: pa.Table, keys: Sequence[str]) -> Comparison:
    """Compare row for row by key; null equals null; the order of rows and columns does not matter.

    Columns that only `found` has are not looked at; one that only `expected` has is an error.

    Raises: KeyError if `found` lacks a column.
    """
    found = found.select(expected.column_names).cast(expected.schema).combine_chunks()
    have, want = _keys(found, keys), _keys(expected, keys)
    place = {key: index for index, key in enumerate(have)}
    wanted = set(want)
    missing = [key for key in want if key not in place]
    surplus = [key for key in place if key not in wanted]
    repeated = [key for key, times in Counter(have).items() if times > 1] if len(place) < len(have) else []
    both = [(index, place[key]) for index, key in enumerate(want) if key in place]
    changed, values = _changes(found, expected, both, want)
    first = (
        *(Difference(key, "row", "missing", "present") for key in missing[:SHOWN]),
        *(Difference(key, "row", "present", "absent") for key in surplus[:SHOWN]),
        *(Difference(key, "row", "more than once", "once") for key in repeated[:SHOWN]),
        *values,
    )
    return Comparison(
        found_rows=len(have),
        expected_rows=len(want),
        missing=len(missing),
        surplus=len(surplus),
        repeated=len(repeated),
        changed=changed,
        first=first,
    )


def _keys(table: pa.Table, keys: Sequence[str]) -> list[Key]:
    return list(zip(*(table[key].to_pylist() for key in keys), strict=True))


def _changes(
    found: pa.Table, expected: pa.Table, both: list[tuple[int, int]], want: list[Key]
) -> tuple[dict[str, int], list[Difference]]:
    left = expected.take(pa.array([index for index, _ in both], pa.int64()))
    right = found.take(pa.array([index for _, index in both], pa.int64()))
    counts: dict[str, int] = {}
    shown: list[Difference] = []
    for column in expected.column_names:
        where = _unequal(left[column], right[column])
        if where:
            counts[column] = len(where)
        shown += [
            Difference(want[both[i][0]], column, str(right[column][i].as_py()), str(left[column][i].as_py()))
            for i in where[:SHOWN]
        ]
    return counts, shown


def _unequal(left: pa.ChunkedArray, right: pa.ChunkedArray) -> list[int]:
    same = pc.if_else(pc.or_(pc.is_null(left), pc.is_null(right)), False, pc.equal(left, right))
    both_null = pc.and_(pc.is_null(left), pc.is_null(right))
    mask = pc.invert(pc.or_(same, both_null)).combine_chunks()
    found: list[int] = pc.indices_nonzero(mask).to_pylist()
    return found
