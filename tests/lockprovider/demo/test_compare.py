"""The comparison finds every kind of difference; a proof that cannot fail proves nothing."""

from __future__ import annotations

import pyarrow as pa
import pytest

from lockprovider.demo.proof import compare

EXPECTED = pa.table({"k": ["a", "b", "c"], "n": pa.array([1, None, 3], pa.int32()), "s": ["x", "y", None]})


def having(**columns: list[object]) -> pa.Table:
    return pa.table({"k": ["a", "b", "c"], "n": [1, None, 3], "s": ["x", "y", None]} | columns)


def test_equal_rows_in_another_order_with_more_columns_are_equal():
    found = having(extra=[1, 2, 3]).take([2, 0, 1]).select(["extra", "s", "n", "k"])
    result = compare(found, EXPECTED, ["k"])
    assert result.equal
    assert (result.found_rows, result.expected_rows) == (3, 3)


@pytest.mark.parametrize(
    ("found", "column", "values"),
    [
        (having(n=[1, None, 4]), "n", ("4", "3")),
        (having(n=[None, None, 3]), "n", ("None", "1")),
        (having(n=[1, 2, 3]), "n", ("2", "None")),
        (having(s=["x", "y", "z"]), "s", ("z", "None")),
    ],
)
def test_a_value_that_differs_is_named_with_its_key_and_both_values(found, column, values):
    result = compare(found, EXPECTED, ["k"])
    assert not result.equal
    assert result.changed == {column: 1}
    [difference] = result.first
    assert (difference.column, difference.found, difference.expected) == (column, *values)


def test_a_lost_row_a_surplus_row_and_a_repeated_row_are_found():
    lost = compare(having().slice(1), EXPECTED, ["k"])
    assert (lost.missing, lost.surplus, lost.equal) == (1, 0, False)
    surplus = compare(having(), EXPECTED.slice(1), ["k"])
    assert (surplus.missing, surplus.surplus, surplus.equal) == (0, 1, False)
    twice = compare(pa.concat_tables([having(), having().slice(0, 1)]), EXPECTED, ["k"])
    assert (twice.repeated, twice.equal) == (1, False)


def test_a_missing_column_is_an_error_and_not_a_difference():
    with pytest.raises(KeyError):
        compare(having().drop_columns(["s"]), EXPECTED, ["k"])


def test_two_empty_tables_are_equal():
    assert compare(EXPECTED.slice(0, 0), EXPECTED.slice(0, 0), ["k"]).equal
