"""While our jobs run a number of rows ends a batch, not its bytes; what the session says is as it was after them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
from pyspark.errors import PySparkException
from pyspark.sql.types import LongType, StructType
from table.tables import SPEC, content

from lockprovider.table import InvalidRecords, Table
from lockprovider.table.engines import spark as engine
from lockprovider.table.engines.spark.jobs import MOST_BYTES, MOST_ROWS, ROWS, ended_by_rows

MANY = 2 * ROWS + 500


def with_batch_lengths(spark: Any, columns: str = "id long, part string, value int") -> Any:
    """Rows that say in `value` how many came in their batch."""

    def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            count = batch.num_rows
            part = pa.array(["p"] * count)
            columns = [batch.column(0), part, pa.array([count] * count, pa.int32())]
            yield pa.record_batch(columns, ["id", "part", "value"])

    return spark.range(0, MANY, 1, 1).mapInArrow(run, columns)


def said(spark: Any) -> tuple[str | None, str | None]:
    return spark.conf.get(MOST_BYTES, None), spark.conf.get(MOST_ROWS, None)


def lengths(frame: Any) -> set[int]:
    return {row["value"] for row in frame.select("value").distinct().collect()}


@pytest.fixture
def table(tmp_path: Path) -> Table:
    return Table.create(str(tmp_path / "t"), SPEC)


@pytest.mark.parametrize(
    "write",
    [engine.upsert, *(pytest.param(w, marks=pytest.mark.soak) for w in (engine.append, engine.insert_overwrite))],
)
def test_write_sets_batch_rows_and_restores_the_session(spark: Any, table: Table, write: Any) -> None:
    assert said(spark) == (None, None)
    write(table, with_batch_lengths(spark))
    assert {value for _, _, value in content(table)} == {ROWS, 500}
    assert said(spark) == (None, None)
    assert lengths(with_batch_lengths(spark)) == {MANY}


def test_failed_write_restores_the_session(spark: Any, table: Table) -> None:
    with pytest.raises(InvalidRecords):
        engine.append(table, spark.createDataFrame([(None, "a", 1)], "id long, part string, value int"))
    assert said(spark) == (None, None)


class Forbidding(dict[str, str]):
    """The properties of a session whose server forbids to set one of them."""

    def set(self, key: str, value: str) -> None:
        if key == MOST_ROWS:
            raise PySparkException(f"{key} cannot be set")
        self[key] = value

    def unset(self, key: str) -> None:
        self.pop(key, None)


def test_refused_second_property_leaves_the_first_as_it_was() -> None:
    session = SimpleNamespace(conf=Forbidding())
    with ended_by_rows(session, StructType().add("id", LongType())):  # type: ignore[arg-type]
        pass
    assert session.conf == {}


@pytest.mark.parametrize(
    ("rows", "expected"),
    [("200", {200, 100}), *(pytest.param(n, {ROWS, 500}, marks=pytest.mark.soak) for n in ("2000", "0"))],
)
def test_smaller_batch_size_of_the_session_stays_and_larger_does_not(
    spark: Any, table: Table, rows: str, expected: set[int]
) -> None:
    spark.conf.set(MOST_ROWS, rows)
    try:
        engine.append(table, with_batch_lengths(spark))
        assert said(spark) == (None, rows)
    finally:
        spark.conf.unset(MOST_ROWS)
    assert {value for _, _, value in content(table)} == expected


def test_batch_bytes_of_the_session_stay(spark: Any, table: Table) -> None:
    spark.conf.set(MOST_BYTES, "800")
    try:
        engine.append(table, with_batch_lengths(spark))
        assert said(spark) == ("800", None)
    finally:
        spark.conf.unset(MOST_BYTES)
    assert max(value for _, _, value in content(table)) < ROWS


@pytest.mark.parametrize("columns", ["data binary", "many array<string>", "one struct<text string>"])
def test_batches_of_large_rows_are_bounded_by_bytes(spark: Any, columns: str) -> None:
    with ended_by_rows(spark, spark.createDataFrame([], f"id long, {columns}").schema):
        assert said(spark) == (None, None)


def test_first_of_two_concurrent_writes_sets_and_restores_batch_size(spark: Any) -> None:
    schema = spark.range(1).schema
    first, second = ended_by_rows(spark, schema), ended_by_rows(spark, schema)
    with first:
        with second:
            assert said(spark)[1] == str(ROWS)
        assert said(spark)[1] == str(ROWS)
    assert said(spark) == (None, None)
