"""Each type of value in each type of column, at each depth: stored as given, or refused, as the rules say."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from table.convert.oracle import REFUSED, SOURCES, TARGETS, array, expected, same

from lockprovider.table.convert import WRITE, compile_plan
from lockprovider.table.convert.columns import REFUSED as REFUSED_RULE
from lockprovider.table.errors import DoesNotFit


def _offsets(count: int) -> pa.Array:
    return pa.array(np.arange(count + 1), pa.int32())


def _keys(count: int) -> pa.Array:
    return pa.array(["k"] * count, pa.string())


# How an array of values is put into a deeper one, its type, and what one value is then.
Depth = tuple[Callable[[pa.Array], pa.Array], Callable[[pa.DataType], pa.DataType], Callable[[Any], Any], str]
DEPTHS: dict[str, Depth] = {
    "top": (lambda a: a, lambda kind: kind, lambda value: value, ""),
    "struct": (
        lambda a: pa.StructArray.from_arrays([a], ["x"]), lambda kind: pa.struct([("x", kind)]),
        lambda value: {"x": value}, ".x",
    ),
    "list": (
        lambda a: pa.ListArray.from_arrays(_offsets(len(a)), a), lambda kind: pa.list_(pa.field("element", kind)),
        lambda value: [value], ".element",
    ),
    "map": (
        lambda a: pa.MapArray.from_arrays(_offsets(len(a)), _keys(len(a)), a), lambda kind: pa.map_(pa.string(), kind),
        lambda value: [("k", value)], ".value",
    ),
    "key": (
        lambda a: pa.MapArray.from_arrays(_offsets(len(a)), a, _keys(len(a))),
        lambda _: pa.map_(pa.string(), pa.string()),
        lambda value: [(value, "k")], ".key",
    ),
}  # fmt: skip


def convert(values: pa.Array, column: pa.DataType) -> list[Any]:
    rows = pa.table({"c": values})
    found = compile_plan(rows.schema, pa.schema([("c", column)]))(rows)
    found.validate(full=True)
    assert found.schema.field("c").type.equals(column, check_metadata=True)
    return found["c"].to_pylist()  # type: ignore[no-any-return]


@pytest.mark.parametrize("depth", DEPTHS)
@pytest.mark.parametrize("source", SOURCES)
def test_value_is_stored_as_given_or_refused_by_its_path(source: str, depth: str) -> None:
    given, values = SOURCES[source]
    around, kind_of, value_of, path = DEPTHS[depth]
    targets = TARGETS if depth != "key" else {"string": pa.string()}
    for name, target in targets.items():
        wanted = {place: expected(value, given, target) for place, value in enumerate(values)}
        fitting = [
            place for place, value in wanted.items() if value is not REFUSED and not (depth == "key" and value is None)
        ]
        if WRITE.rule(given, target) == REFUSED_RULE:
            assert not fitting, (name, "the rules refuse what would lose nothing")
        if fitting:
            found = convert(around(array([values[place] for place in fitting], given)), kind_of(target))
            assert same(found, [value_of(wanted[place]) for place in fitting]), name
        for place, value in wanted.items():
            if value is not REFUSED:
                continue
            row = 2 if WRITE.rule(given, target) != REFUSED_RULE and fitting else 0
            mixed = [values[one] for one in fitting[:1]] * row + [values[place]]
            with pytest.raises(DoesNotFit) as caught:
                convert(around(array(mixed, given)), kind_of(target))
            assert caught.value.path == f"c{path}", name
            if caught.value.row is not None:
                assert caught.value.row == row, name
