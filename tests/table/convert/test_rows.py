"""Rows of pandas with maps: what a map may be is converted, and everything else is refused with its column's name."""

from __future__ import annotations

from datetime import date, datetime, timedelta, timezone
from decimal import Decimal
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

from lockprovider.table.convert.rows import as_table
from lockprovider.table.errors import UnsupportedSchema

MAP = pa.map_(pa.string(), pa.int64())
COLUMNS = pa.schema(
    [
        ("m", MAP),
        ("l", pa.list_(MAP)),
        ("st", pa.struct([("m", MAP), ("x", pa.int64())])),
        ("deep", pa.map_(pa.string(), MAP)),
    ]
)


def converted(column: str, *values: Any) -> list[Any]:
    series = pd.Series([None] * len(values), dtype=object)
    for row, value in enumerate(values):
        series.iat[row] = value  # noqa: PD009 - `iloc` would spread a dict
    found: list[Any] = as_table(pd.DataFrame({column: series}), lambda: COLUMNS)[column].to_pylist()
    return found


NANS = [float("nan"), np.float64("nan"), np.float32("nan"), np.float16("nan"), np.longdouble("nan")]
NULLS = [None, pd.NaT, pd.NA, *NANS, Decimal("NaN"), np.datetime64("NaT"), np.timedelta64("NaT", "s")]


@pytest.mark.parametrize("null", NULLS, ids=repr)
@pytest.mark.parametrize(
    ("column", "value", "stored"),
    [
        ("m", {"a": 1}, [("a", 1)]),
        ("m", (("a", 1), ["b", None]), [("a", 1), ("b", None)]),
        ("m", {}, []),
        ("l", [{"a": 1}, {}, None], [[("a", 1)], [], None]),
        ("st", {"m": {"a": 1}, "x": 2}, {"m": [("a", 1)], "x": 2}),
        ("deep", {"k": {"a": 1}}, [("k", [("a", 1)])]),
    ],
)
def test_map_of_pandas_is_stored_beside_a_null(column: str, value: Any, stored: Any, null: Any) -> None:
    assert converted(column, value, null, value) == [stored, None, stored]


@pytest.mark.parametrize("nan", NANS, ids=repr)
def test_nan_in_object_column_becomes_null_at_any_depth(nan: Any) -> None:
    assert converted("x", 1.5, nan) == [1.5, None]
    assert converted("x", [1.5, nan]) == converted("x", np.array([1.5, nan], object)) == [[1.5, None]]
    assert converted("x", {"k": [{"n": nan}, {"n": 1.5}]}) == [{"k": [{"n": None}, {"n": 1.5}]}]


def test_maps_in_lists_that_pandas_read_from_arrow_are_stored_again() -> None:
    rows = pa.table({"l": pa.array([[{"a": 1}, None], [], None], COLUMNS.field("l").type)})
    frame = rows.to_pandas()
    assert isinstance(frame["l"][0], np.ndarray)
    assert as_table(frame, lambda: COLUMNS)["l"].to_pylist() == rows["l"].to_pylist()


@pytest.mark.parametrize(
    "value",
    [["a"], ["ab"], [["a"]], [["a", 1, 2]], [{"a": 1}], [{0: "a", 1: 5}], [{0: "a"}], [1], [None], [()], ({"a": 1},)],
    ids=repr,
)
def test_value_that_is_no_map_is_refused_with_its_column(value: Any) -> None:
    for column, inner in (("m", value), ("l", [value]), ("st", {"m": value}), ("deep", {"k": value})):
        with pytest.raises(
            UnsupportedSchema, match=rf"column '{column}' of dtype object cannot be stored: .* is no map"
        ):
            converted(column, {"a": 1} if column == "m" else inner, inner)


NOON, EAST = datetime(2026, 1, 2, 12), datetime(2026, 1, 2, 12, tzinfo=timezone(timedelta(hours=5)))  # noqa: DTZ001
MIXED = "days, times with a zone and times without one are mixed"


@pytest.mark.parametrize(
    ("values", "why"),
    [
        ((date(2026, 1, 2), NOON), MIXED),
        ((date(2026, 1, 2), pd.Timestamp(NOON)), MIXED),
        ((NOON, EAST), MIXED),
        ((EAST, NOON), MIXED),
        ((NOON, pd.Timestamp(1, unit="ns")), "nanoseconds would be lost"),
    ],
)
def test_python_times_that_pyarrow_would_cut_or_shift_are_refused(values: tuple[Any, ...], why: str) -> None:
    """apache/arrow #41896: pyarrow takes the first value's type, and drops what others have more."""
    places: tuple[tuple[str, tuple[Any, ...]], ...] = (
        ("t", values),
        ("t", tuple([value] for value in values)),
        ("t", tuple({"x": {"y": 1, "z": value}} for value in values)),
        ("st", tuple({"m": {"a": 1}, "x": value} for value in values)),
        ("m", tuple({"a": value} for value in values)),
    )
    for column, given in places:
        with pytest.raises(UnsupportedSchema, match=rf"column '{column}' of dtype object cannot be stored: {why}"):
            converted(column, None, *given)
    if why == MIXED:
        with pytest.raises(UnsupportedSchema, match=f"column 't' of dtype category cannot be stored: {why}"):
            as_table(pd.DataFrame({"t": pd.Categorical(pd.Series(values, dtype=object))}))


def test_python_times_of_one_kind_are_stored() -> None:
    west = EAST.astimezone(timezone(-timedelta(hours=8)))
    assert converted("t", EAST, pd.NaT, pd.Timestamp(west)) == [EAST, None, EAST]
    assert converted("t", {"day": date(2026, 1, 2), "at": NOON}, None) == [{"day": date(2026, 1, 2), "at": NOON}, None]
