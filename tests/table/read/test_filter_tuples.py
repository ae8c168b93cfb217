"""Filters of tuples decide exactly as text does, at any length; what does not fit is refused before a file is read."""

from __future__ import annotations

from datetime import date, datetime, timedelta, timezone
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from fsspec_cas import InvalidInput
from lockprovider.table import Table, TableSpec
from lockprovider.table.read.filters import of_tuples

DAY = date(2026, 1, 2)
NOON = datetime(2026, 1, 2, 12, tzinfo=timezone.utc)
ROWS = pa.table(
    {
        "id": pa.array([1, 2, 3, 4], pa.int64()),
        "d": pa.array([Decimal("1.00"), Decimal("1.50"), Decimal("0.10"), None], pa.decimal128(10, 2)),
        "x": [0.1, 2.5, None, -0.0],
        "s": ["a", "b", None, "c"],
        "day": pa.array([DAY, None, DAY - timedelta(1), None], pa.date32()),
        "at": pa.array([NOON, None, None, None], pa.timestamp("us", "UTC")),
        "paid": [True, False, None, None],
        "raw": [b"a", b"b", None, None],
        "st": [{"x": 1}, {"x": 2}, None, {"x": None}],
    }
)


def kept(given: Any) -> list[int]:
    found: list[int] = of_tuples(given, ROWS.schema).kept(ROWS)["id"].to_pylist()
    return found


@pytest.mark.parametrize(
    ("given", "ids"),
    [
        ([("id", "=", 1)], [1]),
        ([("id", "==", 1.0)], [1]),
        ([["id", "in", {1, 2}], ["d", ">", 1.2]], [2]),
        ([[("id", "=", 1)], [("id", "=", 2), ("s", "=", "b")]], [1, 2]),
        ([[("id", "=", 1)], [("id", "=", 2)], [("id", "in", [3])]], [1, 2, 3]),
        ([("d", "in", [1.004])], []),
        ([("d", "in", [1, 1.5, 0.1, Decimal("7.001")])], [1, 2, 3]),
        ([("d", "=", 1)], [1]),
        ([("d", ">", Decimal("1.499"))], [2]),
        ([("d", "<", float("inf"))], [1, 2, 3]),
        ([("id", "<", 10**20)], [1, 2, 3, 4]),
        ([("id", "in", [10**20, 10**5000, np.int8(2)])], [2]),
        ([("x", "in", [0.1, 0])], [1, 4]),
        ([("day", "=", "2026-01-02")], [1]),
        ([("day", "<", DAY)], [3]),
        ([("day", "<", datetime(2026, 1, 2, 0, 0, 1))], [1, 3]),  # noqa: DTZ001
        ([("at", ">=", NOON)], [1]),
        ([("at", "=", NOON.astimezone(timezone(timedelta(hours=2))))], [1]),
        ([("at", ">", np.datetime64("2026-01-02T11:59:59.999999999"))], None),
        ([("at", "=", pd.Timestamp(NOON) + pd.Timedelta(1, "ns"))], []),
        ([("at", "<", pd.Timestamp(NOON) + pd.Timedelta(1, "ns"))], [1]),
        ([("at", "=", pd.Timestamp(NOON).tz_convert("Asia/Tokyo"))], [1]),
        ([("day", "=", np.datetime64("2026-01-02"))], [1]),
        ([("day", ">=", np.datetime64("2026-01", "M"))], [1, 3]),
        ([("day", "<", np.datetime64("2026-01-02T01", "h"))], [1, 3]),
        ([("at", ">", pa.scalar(NOON, pa.timestamp("ns", "UTC")))], []),
        ([("paid", "=", True)], [1]),
        ([("raw", "in", [b"a"])], [1]),
        # as pyarrow has it: null is in a list or not
        ([("s", "not in", ["a"])], [2, 3, 4]),
        ([("s", "in", ["a", None])], [1, 3]),
        ([("s", "not in", ["a", None])], [2, 4]),
        ([("s", "!=", "a")], [2, 4]),
        ([("s", "in", [])], []),
    ],
)
def test_filter_of_tuples_keeps_exactly_the_rows_it_names(given: Any, ids: list[int] | None) -> None:
    if ids is None:
        with pytest.raises(InvalidInput, match="has no time zone"):
            kept(given)
    else:
        assert kept(given) == ids


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ([], "is no filter: give SQL text"),
        (7, "is no filter: give SQL text"),
        ([("id", "=")], r"is not a tuple \(column, sign, value\)"),
        ([("no", "=", 1)], "'no' is not a column"),
        ([[(("st", "x"), "=", 2)]], r"is not a tuple \(column, sign, value\)"),
        ([("id", "~", 1)], "'~' is none of"),
        ([("s", "like", "a%")], "'like' is none of .*; SQL text also has between, like and is null"),
        ([("id", "=", "1")], "'1' is no number; 'id' is int64"),
        ([("id", "in", ["1"])], "'1' is no number"),
        ([("id", "in", "12")], r"'id': in='12' must be a list of values: give \['12'\]"),
        ([("id", "=", True)], "True is no number"),
        ([("id", "=", date(2026, 1, 1))], ": a time is no number"),
        ([("id", "=", None)], r"never true; to find nulls use \('id', 'in', \[None\]\)"),
        ([("x", "=", float("nan"))], "NaN does not equal any number"),
        ([("st", "=", 1)], "cannot be compared"),
    ],
)
def test_filter_of_tuples_that_does_not_fit_is_refused(given: Any, why: str) -> None:
    with pytest.raises(InvalidInput, match=why):
        kept(given)


def test_filter_of_many_tuples_and_values_is_decided() -> None:
    assert kept([[("id", "=", -number), ("s", "=", "a")] for number in range(2_000)] + [[("id", "=", 2)]]) == [2]
    assert kept([("id", "!=", number) for number in range(2, 20_000)]) == [1]
    assert kept([("id", "in", range(2, 100_000))]) == [2, 3, 4]
    assert kept([("s", "in", [str(number) for number in range(100_000)] + ["b", None])]) == [2, 3]


@pytest.fixture
def table(tmp_path: Path) -> Table:
    table = Table.create(tmp_path / "t", TableSpec("t", ROWS, "id"))
    table.append(ROWS)
    return table


@pytest.mark.parametrize("where", ["d = 1.004", "d in (1.004, 1.005)", "d between 1.001 and 1.499", "id = 1.5"])
def test_delete_by_a_literal_between_two_values_deletes_nothing(table: Table, where: str) -> None:
    assert table.delete(where).deleted == 0
    assert table.count() == 4


def test_reads_and_deletes_take_ten_thousand_values(table: Table) -> None:
    listed = ",".join(map(str, range(2, 10_000)))
    assert table.count(f"id in ({listed})") == 3
    assert table.count(" or ".join(f"id = {number}" for number in range(2, 10_000))) == 3
    assert table.delete(f"id in ({listed})").deleted == 3
    assert table.to_arrow(["id"], pc.field("id").isin(list(range(10_000)))).to_pylist() == [{"id": 1}]
