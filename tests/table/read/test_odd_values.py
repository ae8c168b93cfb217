"""Every value that a caller can give a read: it selects rows, or one typed error names it before a file is read."""

from __future__ import annotations

import enum
from collections.abc import Callable
from datetime import date, datetime, time, timedelta, timezone
from decimal import Decimal
from fractions import Fraction
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from fsspec_cas import InvalidInput
from lockprovider.table import AsOf, Table, TableSpec
from lockprovider.table.errors import HistoryGone
from lockprovider.table.read.filters import Filter, check_kind, of_tuples
from lockprovider.table.read.sql_where import parse_where

EAST = timezone(timedelta(hours=5))
ROWS = pa.table(
    {
        "i": pa.array([1, None, -2, 3], pa.int64()),
        "f": pa.array([1.5, None, float("nan"), float("inf")], pa.float32()),
        "d": pa.array([Decimal("1.5"), None, Decimal(-2), Decimal(0)], pa.decimal128(10, 2)),
        "s": ["ulm", None, "", "\x00"],
        "b": [b"ulm", None, b"", b"\xff"],
        "t": [True, None, False, False],
        "day": pa.array([20455, None, -(2**31), 2**31 - 1], pa.date32()),
        "ts": pa.array([1, None, -(2**63), 2**63 - 1], pa.timestamp("us")),
        "tz": pa.array([1, None, -(2**63), 2**63 - 1], pa.timestamp("us", "UTC")),
        "l": pa.array([[1], None, [], [2]], pa.list_(pa.int32())),
        "st": pa.array([{"a": 1}, None, {"a": 2}, {"a": None}]),
    }
)


class City(str, enum.Enum):
    ULM = "ulm"


class Number(enum.IntEnum):
    ONE = 1


class Mute:
    """An object that cannot be printed, compared or hashed."""

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        raise RuntimeError("repr")

    def __eq__(self, other: object) -> bool:
        raise RuntimeError("eq")


NULLS = (None, pd.NaT, pd.NA, np.datetime64("NaT"), pa.scalar(None), pa.scalar(None, pa.timestamp("us")))
ODD: tuple[Any, ...] = (
    *NULLS, float("nan"), float("inf"), -0.0, 10**400, 10**5000, 2**63, 2**64, True, 1.5, 1 + 2j,
    np.int8(1), np.uint64(2**64 - 1), np.float16(1.5), np.float32("nan"), np.bool_(True), np.str_("ulm"),
    np.bytes_(b"ulm"), np.datetime64("2026-01-02"), np.datetime64("2026-01-02T03:04:05.123456789"),
    np.timedelta64(1, "ns"), np.longdouble(1), np.array([1, 2]), np.array(1), np.array(["ulm"]),
    pd.Timestamp("2026-01-02"), pd.Timestamp("2026-01-02", tz="UTC"), pd.Timestamp.max, pd.Timedelta("1s"),
    pd.Period("2026"), pd.Series([1, None]), pd.Series(["ulm"]), pd.Categorical(["ulm"]), pd.DataFrame({"a": [1]}),
    City.ULM, Number.ONE, Number, b"ulm", bytearray(b"ulm"), memoryview(b"ulm"), "ulm", "", "\ud800", "a" * 10_000,
    "2026-01-02", "0000-01-01", "9999-12-31T23:59:59-18:00", "0001-01-01T00:00:00+18:00", "2026-01-02 00:00:00.5",
    date.min, date.max, datetime.min.replace(tzinfo=EAST), datetime.max.replace(tzinfo=timezone(-timedelta(hours=5))),
    datetime(2026, 1, 2), time(1), timedelta(1), Decimal("sNaN"), Decimal("NaN"), Decimal("-Infinity"),  # noqa: DTZ001
    Decimal("1e999999"), Decimal("1e-999999"), Fraction(1, 3), [], [1], [[1]], [None], (1,), {1}, {"a": 1}, range(3),
    iter([1]), object(), len, Mute(), Ellipsis, pa.scalar(1), pa.scalar([1]), pa.scalar({"a": 1}),
    pa.scalar(2**62, pa.timestamp("s")), pa.scalar(2**62, pa.timestamp("ns", "Europe/Berlin")),
    pa.scalar(2**31 - 1, pa.date32()), pa.scalar(86_400_000, pa.date64()), pa.scalar(2**62, pa.duration("s")),
    pa.scalar(Decimal(10) ** 60, pa.decimal256(70, 2)), pa.scalar("a", pa.dictionary(pa.int8(), pa.string())),
    pa.array([1, None]), pa.array(["ulm"]), pa.array([2**62], pa.timestamp("s")), pa.array([2**31 - 1], pa.date32()),
    pa.chunked_array([[1]]), pa.table({"a": [1]}), pc.field("i"), pc.scalar(1),
)  # fmt: skip


def name(value: Any) -> str:
    return type(value).__name__


def kept(row_filter: Filter) -> list[Any]:
    row_filter.bound()
    values: list[Any] = row_filter.kept(ROWS)["i"].to_pylist()
    return values


def rows_or_refused(read: Callable[[], Any], *refusals: type[Exception]) -> None:
    refusal = ""
    try:
        read()
    except (InvalidInput, *refusals) as error:
        refusal = str(error)
    assert len(refusal) < 2000


@pytest.mark.parametrize("value", ODD, ids=name)
def test_filter_with_an_odd_value_selects_rows_or_is_refused(value: Any) -> None:
    for column in ROWS.column_names:
        for sign in ("=", "!=", "<", ">="):
            rows_or_refused(lambda: kept(of_tuples([(column, sign, value)], ROWS.schema)))  # noqa: B023
        for sign in ("in", "not in"):
            rows_or_refused(lambda: kept(of_tuples([(column, sign, value)], ROWS.schema)))  # noqa: B023
            rows_or_refused(lambda: kept(of_tuples([(column, sign, [value, value])], ROWS.schema)))  # noqa: B023


@pytest.mark.parametrize("value", ODD, ids=name)
def test_filter_of_an_odd_shape_is_refused_before_any_request(value: Any) -> None:
    for shape in ([("i", value, 1)], [[(value, "=", 1)]], [value], [[value]], [("i", "=", 1), value]):
        if isinstance(value, str):
            rows_or_refused(lambda: of_tuples(shape, ROWS.schema))  # noqa: B023
        else:
            with pytest.raises(InvalidInput):
                check_kind(shape)


@pytest.fixture(scope="module")
def table() -> Table:
    rows = ROWS.slice(0, 1)
    table = Table.create("memory://odd-values/t", TableSpec("t", rows, "i"))
    table.append(rows)
    return table


@pytest.mark.parametrize("value", ODD, ids=name)
def test_odd_names_and_versions_read_rows_or_are_refused(table: Table, value: Any) -> None:
    refused = (HistoryGone,)
    for argument in ("columns", "partitions"):
        for given in (value, [value]):
            rows_or_refused(lambda: table.scan(**{argument: given}).to_arrow())  # noqa: B023
            rows_or_refused(lambda: table.changes(**{argument: given}).to_arrow())  # noqa: B023
    rows_or_refused(lambda: table.scan(as_of=value).to_arrow(), *refused)
    for argument in ("after", "until", "order"):
        rows_or_refused(lambda: table.changes(**{argument: value}).to_arrow(), *refused)  # noqa: B023
    if value is not None:
        rows_or_refused(lambda: table.delete_savepoint(value), *refused)


@pytest.mark.parametrize("null", NULLS, ids=name)
def test_null_of_any_library_finds_nulls_in_a_list_and_is_refused_alone(null: Any) -> None:
    for column in ROWS.column_names:
        assert kept(of_tuples([(column, "in", [null])], ROWS.schema)) == [None]
        assert kept(of_tuples([(column, "not in", [null])], ROWS.schema)) == [1, -2, 3]
        with pytest.raises(InvalidInput, match="is never true; to find nulls use"):
            of_tuples([(column, "=", null)], ROWS.schema)


@pytest.mark.parametrize(
    ("column", "sign", "value", "rows"),
    [
        ("day", "=", pa.scalar(2**31 - 1, pa.date32()), [3]),
        ("day", "<=", pa.scalar(-(2**31), pa.date32()), [-2]),
        ("day", "<", pa.scalar(2**62, pa.timestamp("s")), [1, -2, 3]),
        ("day", ">=", pa.scalar(-(2**62), pa.timestamp("s")), [1, -2, 3]),
        ("day", "=", pa.scalar(20455 * 86_400_000, pa.date64()), [1]),
        ("day", "in", pa.array([2**31 - 1, None], pa.date32()), [None, 3]),
        ("ts", ">=", date.max, [3]),
        ("ts", "=", pa.scalar(2**63 - 1, pa.timestamp("us")), [3]),
        ("ts", "<=", pa.scalar(-(2**63), pa.timestamp("us")), [-2]),
        ("ts", ">", datetime(1, 1, 1), [1, 3]),  # noqa: DTZ001
        ("tz", "<", datetime.min.replace(tzinfo=EAST), [-2]),
        ("tz", ">", datetime.max.replace(tzinfo=timezone(-timedelta(hours=5))), [3]),
        ("tz", "<=", datetime(1970, 1, 1, 5, 0, 0, 1, tzinfo=EAST), [1, -2]),
        ("i", "<=", Decimal("1e-999999"), [-2]),
        ("i", "=", Number.ONE, [1]),
        ("s", "in", pd.Categorical(["ulm"]), [1]),
        ("s", "=", City.ULM, [1]),
        ("b", "=", np.bytes_(b"\xff"), [3]),
        ("l", "not in", [], [1, None, -2, 3]),
    ],
)  # fmt: skip
def test_filter_with_an_extreme_value_finds_exactly_its_rows(
    column: str, sign: str, value: Any, rows: list[int | None]
) -> None:
    assert kept(of_tuples([(column, sign, value)], ROWS.schema)) == rows


def test_duration_of_nanoseconds_is_no_number() -> None:
    with pytest.raises(InvalidInput, match="is no number"):
        of_tuples([("i", "=", np.timedelta64(1, "ns"))], ROWS.schema)


@pytest.mark.parametrize("where", ["s = '\ud800'", "s like '\ud800%'", "s in ('\ud800')", '"\ud800" = 1'])
def test_sql_with_a_lone_surrogate_is_refused_with_its_position(where: str) -> None:
    with pytest.raises(InvalidInput, match="lone surrogate at character"):
        parse_where(where, ROWS.schema)


def test_sql_null_in_a_list_is_unknown_for_a_column_that_cannot_be_compared() -> None:
    assert kept(parse_where("l in (null)", ROWS.schema)) == []
    assert kept(parse_where("not l in (null)", ROWS.schema)) == []


def test_as_of_of_an_unknown_order_is_refused() -> None:
    with pytest.raises(InvalidInput, match="by='end' is unknown: use completion or begin"):
        AsOf("20261122083000000", "end")  # type: ignore[arg-type]
