"""Filters written as SQL keep the rows that SQL would keep; what cannot be understood is refused."""

from __future__ import annotations

from datetime import date, datetime, timezone
from typing import Any

import pyarrow as pa
import pytest

from fsspec_cas import InvalidInput
from lockprovider.table.read.sql_where import parse_where

NOON = datetime(2026, 1, 2, 12, tzinfo=timezone.utc)
TABLE = pa.table(
    {
        "n": pa.array([1, 2, 3, None], pa.int64()),
        "city": ["ulm", "bonn", "o'hare", None],
        "fare": [0.5, 1.5, 2.5, None],
        "day": pa.array([date(2026, 1, 1), date(2026, 1, 2), None, None], pa.date32()),
        "at": pa.array([NOON, None, None, None], pa.timestamp("us", "UTC")),
        "paid": [True, False, None, None],
    }
)


@pytest.mark.parametrize(
    ("text", "kept"),
    [
        ("n = 2", [2]),
        ("n != 2", [1, 3]),
        ("n <> 2 AND fare < 2", [1]),
        ("city = 'o''hare'", [3]),
        ("`city` in ('ulm', 'bonn')", [1, 2]),
        ("city not in ('ulm')", [2, 3]),
        ("not city in ('ulm')", [2, 3]),
        ("n between 2 and 3 and not (n = 3)", [2]),
        ("n not between 2 and 9", [1]),
        ("city is null", [None]),
        ("city is not null and (n < 2 or fare >= 2.5)", [1, 3]),
        ("n = 1 or n = 2 and fare > 9", [1]),
        ("day = '2026-01-02'", [2]),
        ("at >= '2026-01-02T12:00:00'", [1]),
        ("at > '2026-01-02T12:00:00Z'", []),
        ("at <= '2026-01-02T13:00:00+01:00'", [1]),
        ("paid = true or paid = FALSE", [1, 2]),
        ("n > -1", [1, 2, 3]),
    ],
)
def test_the_rows_kept_are_those_of_sql(text: str, kept: list[Any]) -> None:
    assert TABLE.filter(parse_where(text, TABLE.schema))["n"].to_pylist() == kept


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "no column"),
        ("colour = 1", "'colour', at character 1, is no column"),
        ("n = ", "expected a literal"),
        ("n = city", "expected a literal"),
        ("n like 'x'", "expected 'in'"),
        ("n = 1 n = 2", "expected and, or, or the end"),
        ("(n = 1", r"expected '\)'"),
        ("n = 'one'", "no int64"),
        ("n = 1.5", "no int64"),
        ("city = 1", "no string"),
        ("day = 'soon'", "no date32"),
        ("n = 1; drop table t", "cannot be understood"),
    ],
)
def test_what_is_not_understood_is_refused(text: str, why: str) -> None:
    with pytest.raises(InvalidInput, match=why):
        parse_where(text, TABLE.schema)
