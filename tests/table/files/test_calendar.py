"""Base files whose old dates are of another calendar, as Spark's LEGACY mode writes them."""

from __future__ import annotations

import datetime as dt
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from table.tables import SETTINGS

from lockprovider.table import Table, TableSpec, UnsupportedTable
from lockprovider.table.files.base_file import LEGACY_KEY, SPARK_KEY

COLUMNS = pa.schema([("id", pa.int64()), ("day", pa.date32()), ("at", pa.timestamp("us", "UTC"))])
UTC = dt.timezone.utc
OLD_DAY, DAY = dt.date(1582, 10, 14), dt.date(1582, 10, 15)
OLD, TIME = dt.datetime(1899, 12, 31, tzinfo=UTC), dt.datetime(1900, 1, 1, tzinfo=UTC)


def written(folder: Path, *mark: str, day: Any = DAY, at: Any = TIME) -> tuple[Table, pa.Table]:
    """A table of one file, with these entries in its footer."""
    table = Table.create(str(folder / "t"), TableSpec("t", COLUMNS, ("id",)), settings=SETTINGS)
    rows = pa.table([[1, 2], [None, day], [at, None]], schema=COLUMNS)
    table.append(rows)
    (path,) = (folder / "t").glob("*.parquet")
    whole = pq.read_table(path, partitioning=None)
    with pq.ParquetWriter(path, whole.schema, store_schema=False) as writer:
        writer.write_table(whole)
        writer.add_key_value_metadata(dict.fromkeys(mark, ""))
    return Table.open(table.url, settings=SETTINGS), rows


@pytest.mark.parametrize(("day", "at", "column"), [(OLD_DAY, TIME, "day"), (DAY, OLD, "at")])
def test_old_dates_of_the_julian_calendar_are_refused(tmp_path: Path, day: Any, at: Any, column: str) -> None:
    table, rows = written(tmp_path, SPARK_KEY, LEGACY_KEY, day=day, at=at)
    for use in (table.to_arrow, lambda: table.upsert(rows), lambda: table.delete(rows)):
        with pytest.raises(UnsupportedTable, match=f"old dates in column '{column}'.*LEGACY"):
            use()


def test_later_dates_are_the_same_in_both_calendars(tmp_path: Path) -> None:
    table, rows = written(tmp_path, SPARK_KEY, LEGACY_KEY)
    assert table.to_arrow() == rows
    table.upsert(rows)
    assert table.to_arrow() == rows


@pytest.mark.parametrize("mark", [(), (SPARK_KEY,)])
def test_old_dates_of_today_s_calendar_are_read(tmp_path: Path, mark: tuple[str, ...]) -> None:
    table, rows = written(tmp_path, *mark, day=OLD_DAY, at=OLD)
    assert table.to_arrow() == rows


@pytest.mark.parametrize("table_type", ["copy_on_write", "merge_on_read"])
def test_rows_of_flinks_change_log_are_refused_by_name(tmp_path: Path, table_type: str) -> None:
    """Flink marks deleted rows in a column of its own; without it they were live rows here (S6)."""
    spec = TableSpec("t", COLUMNS, ("id",), table_type=table_type)
    table = Table.create(str(tmp_path / "t"), spec, settings=SETTINGS)
    rows = pa.table([[1, 2], [DAY, DAY], [TIME, TIME]], schema=COLUMNS)
    table.append(rows)
    (path,) = (tmp_path / "t").glob("*.parquet")
    whole = pq.read_table(path, partitioning=None)
    operations = pa.array(["I", "D"])
    pq.write_table(whole.add_column(5, "_hoodie_operation", operations), path, store_schema=False)
    table = Table.open(table.url, settings=SETTINGS)
    for use in (table.to_arrow, lambda: table.delete(rows), lambda: table.count("id = 2")):
        with pytest.raises(UnsupportedTable, match=r"_hoodie_operation.*Flink"):
            use()
