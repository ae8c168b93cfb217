"""What footers say of columns is true of every row, whoever wrote the file; what is not for sure is not said."""

from __future__ import annotations

import io
import json
from datetime import date, datetime, timezone
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st
from table.jvm_written import base_files, contents

from lockprovider.table.files.base_file import LEGACY_KEY, SPARK_KEY
from lockprovider.table.files.place import FooterNote, Range, Ranges, guarantee, ranges_of
from lockprovider.table.format.schema import META_COLUMNS

UTC = timezone.utc
KINDS: dict[str, tuple[pa.DataType, st.SearchStrategy[Any]]] = {
    "small": (pa.int32(), st.integers(-(2**31), 2**31 - 1)),
    "large": (pa.int64(), st.integers(-(2**63), 2**63 - 1)),
    "day": (pa.date32(), st.dates()),
    "at": (pa.timestamp("us", "UTC"), st.datetimes(timezones=st.just(UTC))),
    "local": (pa.timestamp("us"), st.datetimes()),
    "milli": (pa.timestamp("ms"), st.integers(-(2**45), 2**45)),
    "text": (pa.string(), st.text(st.sampled_from("a~\x00é퟿\U0001f600"), max_size=3) | st.just("a" * 70)),
}
SCHEMA = pa.schema([(name, kind) for name, (kind, _) in KINDS.items()])
ROWS = st.lists(st.fixed_dictionaries({name: st.none() | values for name, (_, values) in KINDS.items()}), max_size=6)


def footer(rows: pa.Table, size: int = 1000, marks: tuple[str, ...] = ()) -> pq.FileMetaData:
    out = io.BytesIO()
    with pq.ParquetWriter(out, rows.schema, store_schema=False) as writer:
        writer.write_table(rows, size)
        writer.add_key_value_metadata(dict.fromkeys(marks, ""))
    return pq.read_metadata(pa.BufferReader(out.getvalue()))


def said(rows: pa.Table, size: int = 1000) -> Ranges:
    """By way of the bytes beside the lock."""
    note = FooterNote(None, None, ranges_of(footer(rows, size)))
    return FooterNote.parse(json.loads(note.text)).ranges


@given(ROWS, st.integers(1, 4))
def test_ranges_are_true_of_every_row(rows: list[dict[str, Any]], size: int) -> None:
    table = pa.Table.from_pylist(rows, SCHEMA)
    found = said(table, size)
    for column in SCHEMA:
        assert table.filter(guarantee(found, [column])).num_rows == table.num_rows, column
    assert table.filter(guarantee(found, SCHEMA)).num_rows == table.num_rows
    assert {*found} >= {name for name in SCHEMA.names[:-1] if rows}, "only long texts have no range"


@pytest.mark.parametrize(("table", "path"), base_files())
def test_ranges_of_jvm_files_are_true(table: str, path: str) -> None:
    data = contents(table)[path]
    rows = pq.read_table(pa.BufferReader(data))
    found = ranges_of(pq.read_metadata(pa.BufferReader(data)))
    assert found.keys().isdisjoint(META_COLUMNS)
    assert found
    assert rows.filter(guarantee(found, rows.schema)).num_rows == rows.num_rows


def test_ranges_are_those_of_the_values() -> None:
    rows = pa.table(
        {
            "n": pa.array([3, None, -7], pa.int32()),
            "day": [date(1970, 1, 3), date(1969, 12, 31), None],
            "at": pa.array([datetime(1970, 1, 1, 0, 0, 1, tzinfo=UTC)] * 3, pa.timestamp("us", "UTC")),
            "text": ["b", "é", "a"],
            "none": pa.nulls(3, pa.int64()),
        }
    )
    for size in (1, 2, 1000):
        assert said(rows, size) == {
            "n": Range("int32", -7, 3, has_nulls=True),
            "day": Range("date32[day]", -1, 2, has_nulls=True),
            "at": Range("timestamp[us, tz=UTC]", 10**6, 10**6, has_nulls=False),
            "text": Range("string", "a", "é", has_nulls=False),
            "none": Range("int64", None, None, has_nulls=True),
        }


def test_some_columns_have_no_ranges() -> None:
    rows = pa.table(
        {
            "_hoodie_commit_time": ["x"],
            "float": [1.0],
            "flag": [True],
            "list": [[1]],
            "struct": [{"n": 1}],
            "decimal": pa.array([1], pa.int64()).cast(pa.decimal128(25, 2)),
            "unsigned": pa.array([2**32 - 1], pa.uint32()),
            "bytes": [b"x"],
            "long": ["a" * 65],
            "n": [1],
        }
    )
    assert said(rows).keys() == {"n"}
    assert said(rows[:0]) == {}
    many = pa.table({f"c{number}": [1] for number in range(100)})
    assert [*said(many)] == many.column_names[:32]


def test_row_group_without_statistics_has_no_ranges() -> None:
    out = io.BytesIO()
    pq.write_table(pa.table({"n": [1, 2], "m": [1, 2]}), out, write_statistics=["m"])
    assert ranges_of(pq.read_metadata(pa.BufferReader(out.getvalue()))).keys() == {"m"}


def test_dates_that_may_be_of_the_old_calendar_have_no_ranges() -> None:
    rows = pa.table({"day": [date(2020, 1, 1)], "at": [datetime(2020, 1, 1, tzinfo=UTC)], "n": [1]})
    assert ranges_of(footer(rows, marks=(SPARK_KEY,))).keys() == {"day", "at", "n"}
    assert ranges_of(footer(rows, marks=(SPARK_KEY, LEGACY_KEY))).keys() == {"n"}


@pytest.mark.parametrize(
    ("kind", "now", "least", "is_said"),
    [
        ("int32", pa.int64(), 5, True),
        ("int64", pa.int32(), 5, True),
        ("int64", pa.int32(), 2**40, False),
        ("int64", pa.string(), 5, False),
        ("int64", pa.float64(), 5, False),
        ("string", pa.int64(), "5", False),
        ("timestamp[ms]", pa.timestamp("us"), 5, False),
        ("timestamp[us, tz=UTC]", pa.timestamp("us"), 5, False),
        ("timestamp[us]", pa.timestamp("us"), 5, True),
        ("date32[day]", pa.date32(), 5, True),
        ("string", pa.string(), "5", True),
        ("string", pa.string(), 5, False),
        ("date32[day]", pa.date32(), "5", False),
    ],
)
def test_range_applies_to_the_current_type_of_a_column(
    kind: str, now: pa.DataType, least: Any, *, is_said: bool
) -> None:
    found = {"c": Range(kind, least, least, has_nulls=False)}
    assert ("==" in str(guarantee(found, [pa.field("c", now)]))) == is_said
    assert "==" not in str(guarantee(found, [pa.field("other", now)]))
