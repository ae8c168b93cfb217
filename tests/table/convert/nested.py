"""Random nested types: what is given, what the column is, and what each value becomes, by the oracle."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from typing import Any, Union

import numpy as np
import pyarrow as pa
from table.convert.oracle import REFUSED, SOURCES, TARGETS, array, expected

LISTS = (pa.list_, pa.large_list, pa.list_view, pa.large_list_view)


@dataclass(frozen=True)
class Leaf:
    """Values of one plain type for a column of another, perhaps in a dictionary or in runs."""

    given: pa.DataType
    values: list[Any]
    column: pa.DataType
    encoding: str

    def pick(self, random: Random) -> Any:
        return None if random.random() < 0.2 else random.choice(self.values)

    def array(self, values: list[Any]) -> pa.Array:
        found = array(values, self.given)
        if self.encoding == "dictionary":
            return dictionary(found, values)
        if self.encoding == "runs":
            return pa.RunEndEncodedArray.from_arrays(pa.array(np.arange(1, len(found) + 1), pa.int32()), found)
        return found

    def stored(self, value: Any) -> Any:
        return expected(value, self.given, self.column)


@dataclass(frozen=True)
class Struct:
    """A struct, whose column has one more field and another order."""

    fields: dict[str, Tree]

    @property
    def column(self) -> pa.DataType:
        return pa.struct([("more", pa.int32()), *((name, tree.column) for name, tree in reversed(self.fields.items()))])

    def pick(self, random: Random) -> Any:
        return None if random.random() < 0.2 else {name: tree.pick(random) for name, tree in self.fields.items()}

    def array(self, values: list[Any]) -> pa.Array:
        garbage = Random(len(values))  # below a null there is something
        below = {name: one.pick(garbage) for name, one in self.fields.items()}
        full = [below if value is None else value for value in values]
        parts = [one.array([value[name] for value in full]) for name, one in self.fields.items()]
        return pa.StructArray.from_arrays(parts, list(self.fields), mask=nulls(values))

    def stored(self, value: Any) -> Any:
        if value is None:
            return None
        inner = {name: tree.stored(value[name]) for name, tree in reversed(self.fields.items())}
        return REFUSED if REFUSED in inner.values() else {"more": None, **inner}


@dataclass(frozen=True)
class Many:
    """A list of any kind, or a map."""

    inner: Tree
    kind: Callable[[pa.DataType], pa.DataType] | None

    @property
    def column(self) -> pa.DataType:
        return (
            pa.map_(pa.string(), self.inner.column)
            if self.kind is None
            else pa.list_(pa.field("element", self.inner.column))
        )

    def pick(self, random: Random) -> Any:
        if random.random() < 0.2:
            return None
        values = [self.inner.pick(random) for _ in range(random.choice([0, 1, 1, 2, 5]))]
        return values if self.kind is not None else [(f"k{place}", value) for place, value in enumerate(values)]

    def array(self, values: list[Any]) -> pa.Array:
        flat = [one for value in values for one in value or ()]
        ends = np.cumsum([0, *(len(value or ()) for value in values)])
        mask = nulls(values)
        if self.kind is None:
            keys = pa.array([key for key, _ in flat], pa.large_string())
            inner = self.inner.array([one for _, one in flat])
            return pa.MapArray.from_arrays(pa.array(ends, pa.int32()), keys, inner, mask=mask)
        inner = self.inner.array(flat)
        kind = self.kind(inner.type)
        if pa.types.is_list(kind):
            return pa.ListArray.from_arrays(pa.array(ends, pa.int32()), inner, mask=mask)
        if pa.types.is_large_list(kind):
            return pa.LargeListArray.from_arrays(pa.array(ends, pa.int64()), inner, mask=mask)
        small = pa.types.is_list_view(kind)
        offsets, sizes = (pa.array(one, pa.int32() if small else pa.int64()) for one in (ends[:-1], np.diff(ends)))
        return (pa.ListViewArray if small else pa.LargeListViewArray).from_arrays(offsets, sizes, inner, mask=mask)

    def stored(self, value: Any) -> Any:
        if value is None:
            return None
        inner = [self.inner.stored(one if self.kind is not None else one[1]) for one in value]
        if REFUSED in inner:
            return REFUSED
        return inner if self.kind is not None else [(key, one) for (key, _), one in zip(value, inner, strict=True)]


Tree = Union[Leaf, Struct, Many]  # noqa: UP007 - Python 3.10


def nulls(values: list[Any]) -> pa.Array:
    """The mask of the values that are null."""
    return pa.array([value is None for value in values], pa.bool_())


def dictionary(found: pa.Array, values: list[Any]) -> pa.Array:
    """A dictionary that has the values backwards."""
    kind = found.type
    places = pa.array(
        [None if value is None else len(values) - 1 - place for place, value in enumerate(values)], pa.int32()
    )
    return pa.DictionaryArray.from_arrays(places, array(values[::-1], kind))


def tree(random: Random, depth: int) -> Tree:
    """A random type, with the values that it takes."""
    if depth and random.random() < 0.6:
        if random.random() < 0.4:
            return Struct(
                {name: tree(random, depth - 1) for name in random.sample(["a", "b", "c"], random.choice([1, 2]))}
            )
        return Many(tree(random, depth - 1), random.choice([None, *LISTS]))
    while True:
        given, values = SOURCES[random.choice(list(SOURCES))]
        column = TARGETS[random.choice(list(TARGETS))]
        fitting = [value for value in values if expected(value, given, column) is not REFUSED]
        if fitting:
            plain = random.random() < 0.6 or pa.types.is_null(given) or isinstance(given, pa.BaseExtensionType)
            encoding = "" if plain else random.choice(["dictionary", "runs"])
            return Leaf(given, values if random.random() < 0.15 else fitting, column, encoding)
