"""Random nested values, sliced and in chunks, in every encoding: stored as given, or refused by their row."""

from __future__ import annotations

from random import Random

import pyarrow as pa
import pytest
from table.convert.nested import tree
from table.convert.oracle import REFUSED, same

from lockprovider.table.convert import compile_plan
from lockprovider.table.errors import DoesNotFit

ROUNDS = 40


@pytest.mark.parametrize("group", range(10))
def test_random_nested_values_are_stored_as_given_or_refused(group: int, seed: int) -> None:
    for number in range(ROUNDS):
        random = Random(seed * 1000 + group * ROUNDS + number)
        one = tree(random, 3)
        values = [one.pick(random) for _ in range(random.choice([0, 1, 7, 20]))]
        before, after = random.choice([0, 3]), random.choice([0, 2])
        padded = one.array(
            [*(one.pick(random) for _ in range(before)), *values, *(one.pick(random) for _ in range(after))]
        )
        given = padded.slice(before, len(values))
        half = len(values) // 2
        rows = pa.table({"c": pa.chunked_array([given.slice(0, half), given.slice(half)], given.type)})
        wanted = [one.stored(value) for value in values]
        plan = compile_plan(rows.schema, pa.schema([("c", one.column)]))
        if (bad := next((row for row, value in enumerate(wanted) if value is REFUSED), None)) is not None:
            with pytest.raises(DoesNotFit) as caught:
                plan(rows)
            assert caught.value.row == bad, (number, one)
            continue
        found = plan(rows)
        found.validate(full=True)
        assert found.schema.field("c").type.equals(one.column, check_metadata=True)
        assert same(found["c"].to_pylist(), wanted), (number, one)
