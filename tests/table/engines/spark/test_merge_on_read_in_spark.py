"""The same calls on merge-on-read tables: log files by Spark's tasks, merged when they are read; judged by hudi-rs."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from table.engines.spark.spark_tables import TRIPLE, filled, frame
from table.tables import SPEC, by_hudi_rs, content

from fsspec_cas import InvalidInput
from lockprovider.table import InvalidRecords, Table
from lockprovider.table.engines import spark as engine
from lockprovider.table.engines.spark.data_source import register
from lockprovider.table.engines.spark.merge_into import MatchedDelete, MatchedUpdate, NotMatchedInsert, merge
from lockprovider.table.engines.spark.options import SparkOptions

MERGE_ON_READ = replace(SPEC, table_type="merge_on_read")


@pytest.fixture(params=[None, pytest.param(2, marks=pytest.mark.soak)], ids=["keys are looked up", "buckets"])
def table(tmp_path: Path, request: pytest.FixtureRequest) -> Table:
    return filled(tmp_path / "t", replace(MERGE_ON_READ, buckets=request.param))


def read(spark: Any, table: Table) -> set[tuple[int, str, int]]:
    return {(row["id"], row["part"], row["value"]) for row in engine.read(spark, table).collect()}


def test_rows_are_appended_changed_and_deleted_and_read_back(spark: Any, table: Table) -> None:
    engine.append(table, frame(spark, (5, "a", 5)))
    result = engine.upsert(table, frame(spark, (1, "a", 10), (6, "d", 6)))
    assert (result.inserted, result.updated) == (1, 1)
    assert [*Path(table.url).rglob("*.log.*")]
    engine.delete(spark, table, "value = 2 or part = 'c'")
    expected = {(1, "a", 10), (3, "b", 3), (5, "a", 5), (6, "d", 6)}
    assert content(table) == by_hudi_rs(table.url) == read(spark, table) == expected


def test_merge_updates_deletes_and_inserts_in_one_commit(spark: Any, table: Table) -> None:
    source = spark.createDataFrame(
        [(1, "a", 10, False), (2, "a", 0, True), (9, "b", 90, False)], "id long, part string, more int, gone boolean"
    )
    merge(
        table,
        source,
        MatchedDelete("s.gone"),
        MatchedUpdate({"value": "t.value + s.more"}),
        NotMatchedInsert({"value": "s.more"}, where="not s.gone"),
    )
    expected = {(1, "a", 11), (3, "b", 3), (4, "c", 4), (9, "b", 90)}
    assert content(table) == by_hudi_rs(table.url) == read(spark, table) == expected


def test_append_refuses_a_null_ordering_value(spark: Any, tmp_path: Path) -> None:
    table = Table.create(str(tmp_path / "t"), replace(MERGE_ON_READ, ordering="value"))
    with pytest.raises(InvalidRecords, match="ordering column 'value' is null in 1 rows"):
        engine.append(table, spark.createDataFrame([(1, "a", None)], TRIPLE))


def test_overwrite_replaces_partitions_and_no_others(spark: Any, table: Table) -> None:
    table.upsert(table.to_arrow().slice(0, 1))
    engine.insert_overwrite(table, frame(spark, (7, "a", 7)))
    expected = {(7, "a", 7), (3, "b", 3), (4, "c", 4)}
    assert content(table) == by_hudi_rs(table.url) == read(spark, table) == expected


def test_data_source_writes_and_reads_them(spark: Any, tmp_path: Path) -> None:
    table = filled(tmp_path / "t", MERGE_ON_READ)
    table.upsert(table.to_arrow().slice(0, 1))  # so that there is a log file
    frame(spark, (8, "d", 8)).write.format("hudi_cas").mode("append").save(table.url)
    found = {tuple(row) for row in spark.read.format("hudi_cas").load(table.url).collect()}
    expected = {(1, "a", 1), (2, "a", 2), (3, "b", 3), (4, "c", 4), (8, "d", 8)}
    assert found == content(table) == by_hudi_rs(table.url) == expected


@pytest.mark.parametrize("operation", ["upsert", pytest.param("insert", marks=pytest.mark.soak)])
def test_hudi_s_keys_let_the_data_source_compact(spark: Any, tmp_path: Path, operation: str) -> None:
    table = filled(tmp_path / "t", MERGE_ON_READ)
    table.upsert(table.to_arrow().slice(0, 1))
    told = {
        "hoodie.datasource.write.operation": operation,
        "hoodie.compact.inline": "true",
        "hoodie.compact.inline.max.delta.commits": "1",
    }
    frame(spark, (8, "d", 8)).write.format("hudi_cas").mode("append").options(**told).save(table.url)
    assert table.history()[-1].operation == "COMPACT"
    assert all(not one.logs for one in table.snapshot().slices)
    assert content(table) == by_hudi_rs(table.url) >= {(1, "a", 1), (8, "d", 8)}


def test_base_files_alone_are_read_if_asked_for(spark: Any, table: Table) -> None:
    before = content(table)
    engine.upsert(table, frame(spark, (1, "a", 10)))
    register(spark)
    now = {row for row in before if row[0] != 1} | {(1, "a", 10)}
    for options, expected in (
        ({}, now),
        ({"read_optimized": "true"}, before),
        ({"hoodie.datasource.query.type": "read_optimized"}, before),
    ):
        found = spark.read.format("hudi_cas").options(**options).load(table.url)
        assert {(row["id"], row["part"], row["value"]) for row in found.collect()} == expected
    found = engine.read(spark, table, read_optimized=True).collect()
    assert {(row["id"], row["part"], row["value"]) for row in found} == before
    with pytest.raises(InvalidInput, match="base files only"):
        SparkOptions.of({"path": table.url, "read_optimized": "true", "changes": "true"})
    table.compact()
    assert {row["value"] for row in engine.read(spark, table, read_optimized=True).collect()} == {v for _, _, v in now}


def test_source_gives_each_row_once_across_a_clustering(spark: Any, tmp_path: Path) -> None:
    table = filled(tmp_path / "t", MERGE_ON_READ)
    engine.append(table, frame(spark, (5, "a", 5)))
    middle = table.history()[-1].completion
    engine.append(table, frame(spark, (6, "a", 6)))
    table.cluster()
    engine.append(table, frame(spark, (7, "a", 7)))
    register(spark)

    def changed(**options: str) -> set[int]:
        rows = spark.read.format("hudi_cas").options(**options).load(table.url).collect()
        assert len(rows) == len({row["id"] for row in rows})
        return {row["id"] for row in rows}

    assert changed(begin=middle) == {6, 7}
    assert changed(begin=middle, changes="true") == {6, 7}
    assert changed(begin=table.history()[-2].completion) == {7}
    assert content(table) == by_hudi_rs(table.url) == read(spark, table)
