"""Tables written by PySpark: what an upsert touches, what a failed task leaves, and what hudi-rs then reads."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from table.engines.spark.spark_tables import frame
from table.tables import SETTINGS, SPEC, by_hudi_rs, content, data_files, orphans

from lockprovider.table import InvalidRecords, Table, TableSpec, WriteConflict
from lockprovider.table.engines import arrow
from lockprovider.table.engines import spark as engine


@pytest.fixture
def table(tmp_path: Path) -> Table:
    return Table.create(str(tmp_path / "t"), SPEC, settings=SETTINGS)


def upsert(table: Table, rows: Any, deletes: Any = None) -> Any:
    return table.transact(lambda txn: engine.write(txn, upserts=rows, deletes=deletes))


def test_rows_are_inserted_updated_and_deleted_by_key(spark: Any, table: Table) -> None:
    first = upsert(table, frame(spark, (1, "a", 1), (2, "a", 2), (3, "b", 3)))
    second = upsert(
        table, frame(spark, (2, "a", 20), (4, "c", 4)), frame(spark, (3, "b", 0), (99, "b", 0)).drop("value")
    )
    expected = {(1, "a", 1), (2, "a", 20), (4, "c", 4)}
    assert content(table) == by_hudi_rs(table.url) == expected
    assert {tuple(row) for row in engine.read(spark, table).collect()} == expected
    assert (first.inserted, first.updated, first.deleted) == (3, 0, 0)
    assert (second.inserted, second.updated, second.deleted) == (1, 1, 1)


def test_only_the_touched_file_groups_are_rewritten(spark: Any, table: Table) -> None:
    upsert(table, frame(spark, (1, "a", 1), (2, "b", 2), (3, "c", 3)))
    before = data_files(Path(table.url))
    result = upsert(table, frame(spark, (2, "b", 20)))
    added = data_files(Path(table.url)) - before
    assert {path.split("/")[0] for path in added} == {"b"}
    assert len(added) == len(result.file_groups) == 1


def test_read_is_of_one_snapshot_and_can_be_narrowed(spark: Any, table: Table) -> None:
    upsert(table, frame(spark, (1, "a", 1), (2, "b", 2)))
    old = engine.read(spark, table)
    upsert(table, frame(spark, (1, "a", 10)))
    assert {tuple(row) for row in old.collect()} == {(1, "a", 1), (2, "b", 2)}
    narrow = engine.read(spark, table, columns=["value", "_hoodie_record_key"], partitions=["a"]).collect()
    assert [tuple(row) for row in narrow] == [(10, "1")]


def test_empty_table_reads_as_no_rows_with_its_columns(spark: Any, table: Table) -> None:
    assert engine.read(spark, table).columns == ["id", "part", "value"]
    assert engine.read(spark, table).count() == 0


def test_two_pipelines_on_one_file_group_conflict_in_all_engines(spark: Any, table: Table) -> None:
    upsert(table, frame(spark, (1, "a", 1)))
    by_spark, by_arrow = table.transaction(), table.transaction()
    engine.write(by_spark, upserts=frame(spark, (1, "a", 10)))
    arrow.write(by_arrow, upserts=pa.table({"id": [1], "part": ["a"], "value": [100]}))
    by_arrow.commit()
    with pytest.raises(WriteConflict):
        by_spark.commit()
    by_spark.rollback()
    assert content(table) == by_hudi_rs(table.url) == {(1, "a", 100)}
    assert orphans(Path(table.url)) == set()


def test_one_row_per_key_is_kept_and_the_highest_with_an_ordering_field(spark: Any, tmp_path: Path) -> None:
    schema = pa.schema([("id", pa.int64()), ("at", pa.int64())])
    table = Table.create(str(tmp_path / "o"), TableSpec("o", schema, ("id",), ordering="at"), settings=SETTINGS)
    rows = spark.createDataFrame([(1, 5), (1, 9), (1, 7)], "id long, at long")
    upsert(table, rows)
    assert table.to_arrow().to_pylist() == [{"id": 1, "at": 9}]
    upsert(table, spark.createDataFrame([(1, 8)], "id long, at long"))
    assert table.to_arrow().to_pylist() == [{"id": 1, "at": 9}], "a late arrival must not win"


def test_failed_task_fails_the_write_and_leaves_nothing(spark: Any, table: Table) -> None:
    upsert(table, frame(spark, (1, "a", 1)))
    before = data_files(Path(table.url))

    def explode(batches: Any) -> Any:
        for batch in batches:
            if 13 in batch.column("id").to_pylist():
                raise ValueError("thirteen")
            yield batch

    rows = frame(spark, *((n, "ab"[n % 2], n) for n in range(20)))
    with pytest.raises(Exception, match="thirteen"):
        upsert(table, rows.mapInArrow(explode, rows.schema))
    assert data_files(Path(table.url)) == before
    assert table.timeline().pending_writes == ()
    assert content(table) == by_hudi_rs(table.url) == {(1, "a", 1)}


def test_partitions_that_readers_would_lose_are_refused(spark: Any, table: Table) -> None:
    upsert(table, frame(spark, (1, "a", 1)))
    before = data_files(Path(table.url))
    with pytest.raises(InvalidRecords, match="value 'x/' of partition column 'part'"):
        engine.upsert(table, frame(spark, (3, "x/", 3)))
    with pytest.raises(InvalidRecords, match="partition 'a/b' would be inside partition 'a'"):
        engine.append(table, frame(spark, (3, "a/b", 3)))
    assert data_files(Path(table.url)) == before
    assert content(table) == by_hudi_rs(table.url) == {(1, "a", 1)}
