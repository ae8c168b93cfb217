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
    result = compare(found, EXPECTED)
    assert result.equal
    assert (result.found_rows, result.expected_rows) == (3, 3)


@pytest.mark.parametrize(
    ("found", "surplus", "missing"),
    [
        (having(n=[1, None, 4]), ("c", 4, None), ("c", 3, None)),
        (having(n=[None, None, 3]), ("a", None, "x"), ("a", 1, "x")),
        (having(n=[1, 2, 3]), ("b", 2, "y"), ("b", None, "y")),
        (having(s=["x", "y", "z"]), ("c", 3, "z"), ("c", 3, None)),
    ],
)
def test_differing_row_is_shown_as_found_and_as_expected(found, surplus, missing):
    result = compare(found, EXPECTED)
    assert not result.equal
    assert (result.surplus, result.missing) == ((surplus,), (missing,))


def test_lost_row_a_surplus_row_and_a_repeated_row_are_found():
    row = ("a", 1, "x")
    lost = compare(having().slice(1), EXPECTED)
    assert (lost.missing, lost.surplus, lost.equal) == ((row,), (), False)
    surplus = compare(having(), EXPECTED.slice(1))
    assert (surplus.missing, surplus.surplus, surplus.equal) == ((), (row,), False)
    twice = compare(pa.concat_tables([having(), having().slice(0, 1)]), EXPECTED)
    assert (twice.surplus, twice.equal) == ((row,), False)


def test_missing_column_is_an_error_and_not_a_difference():
    with pytest.raises(KeyError):
        compare(having().drop_columns(["s"]), EXPECTED)


def test_two_empty_tables_are_equal():
    assert compare(EXPECTED.slice(0, 0), EXPECTED.slice(0, 0)).equal
