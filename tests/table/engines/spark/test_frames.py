"""Frames of the caller stay as they are, and are computed once; Spark's planner is not told that ours are small."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import functions as F  # noqa: N812 - as all of Spark's users write it
from table.engines.spark.spark_tables import filled, frame
from table.tables import SETTINGS, SPEC, by_hudi_rs, content

from fsspec_cas import InvalidInput
from lockprovider.table import Table, TableSpec
from lockprovider.table.engines import spark as engine


@pytest.fixture
def table(tmp_path: Path) -> Table:
    return filled(tmp_path / "t", SPEC)


def drawn(spark: Any) -> Any:
    """Rows that are others each time they are computed, their partitions too."""
    part = F.concat(F.lit("p"), F.floor(F.rand() * 1_000_000).cast("string"))
    return spark.range(20, numPartitions=2).select("id", part.alias("part"), F.lit(1).cast("long").alias("value"))


def is_cached(frame: Any) -> bool:
    return bool(frame.storageLevel.useMemory)


@pytest.mark.parametrize(
    "verb", ["insert_overwrite", *(pytest.param(v, marks=pytest.mark.soak) for v in ("upsert", "sql"))]
)
def test_write_leaves_the_callers_cache_alone(spark: Any, table: Table, verb: str) -> None:
    rows = drawn(spark).cache()
    try:
        if verb == "sql":
            engine.register(spark, table, "held_by_caller")
            rows.createOrReplaceTempView("drawn")
            engine.sql(spark, "insert overwrite held_by_caller select * from drawn")
        else:
            getattr(engine, verb)(table, rows)
        assert is_cached(rows)
        written = {row for row in content(table) if row[1].startswith("p")}
        assert written == {tuple(row) for row in rows.collect()}
    finally:
        rows.unpersist()


@pytest.mark.parametrize("verb", ["insert_overwrite", "upsert"])
def test_write_computes_a_frame_that_is_not_deterministic_once(spark: Any, table: Table, verb: str) -> None:
    rows = drawn(spark)
    assert getattr(engine, verb)(table, rows).inserted == 20
    assert not is_cached(rows)
    assert len(content(table)) == len(by_hudi_rs(table.url)) == 24


def test_planner_does_not_take_python_reads_for_small(spark: Any, table: Table) -> None:
    many = spark.range(1 << 40)
    for found in (engine.read(spark, table, native_reads=False), engine.changes(spark, table).rows):
        plan = many.join(found, "id")._jdf.queryExecution().executedPlan().toString()
        assert "SortMergeJoin" in plan
        assert "Broadcast" not in plan


def test_wrong_arguments_get_one_typed_error(spark: Any, table: Table) -> None:
    rows, update = frame(spark, (1, "a", 1)), engine.MatchedUpdate()
    given: Any = table  # of the wrong kind, where it stands
    calls: list[Callable[[], Any]] = [
        lambda: engine.append(table, given.to_pandas()),
        lambda: engine.append(given.url, rows),
        lambda: engine.upsert(table, rows, given),
        lambda: engine.insert_overwrite(table, given),
        lambda: engine.insert_overwrite(table, rows.limit(0), "ab"),  # its letters are partitions of the table
        lambda: engine.delete(spark, table, "id = 1", partitions="ab"),
        lambda: table.transact(lambda txn: engine.overwrite(txn, rows, "ab")),
        lambda: engine.merge(table, given, update),
        lambda: engine.merge(table, rows, given),
        lambda: engine.delete(spark, table, given),
        lambda: engine.delete(given, table, "id = 1"),
        lambda: engine.read(given, spark),
        lambda: engine.compact(given, table),
    ]
    for call in calls:
        with pytest.raises(InvalidInput, match="must be|is no clause"):
            call()
    assert len(table.history()) == 2


def test_steps_of_a_write_have_names_in_sparks_ui(spark: Any, table: Table) -> None:
    context, group = spark.sparkContext, "a write of the test"
    context.setJobGroup(group, "mine")
    try:
        engine.upsert(table, frame(spark, (1, "a", 10)))
        assert context.getLocalProperty("spark.job.description") == "mine"
        told = context._jsc.sc().statusStore()
        steps = {told.job(number).description().get() for number in context.statusTracker().getJobIdsForGroup(group)}
    finally:
        context.setLocalProperty("spark.jobGroup.id", None)
        context.setLocalProperty("spark.job.description", None)
    said = ["1 of 3, count changes", "2 of 3, gather the keys of changes"]
    said.append("3 of 3, look up and merge 1 changes into 1 file groups")
    assert {f"hudi upsert counters: {one}" for one in said} <= steps


@pytest.mark.parametrize("natively", [True, False])
def test_read_of_no_columns_has_rows(spark: Any, table: Table, natively: bool) -> None:
    found = engine.read(spark, table, columns=[], native_reads=natively)
    assert (found.columns, found.count()) == ([], 4)
    assert engine.read(spark, table, columns=[], filter="value > 1", native_reads=natively).count() == 3


def test_columns_may_have_any_name(spark: Any, tmp_path: Path) -> None:
    names = ["__key", "__partition", "__delete", "__group", "__clause", "__most"]
    schema = pa.schema([("id", pa.int64()), *((name, pa.string()) for name in names)])
    table = Table.create(str(tmp_path / "t"), TableSpec("t", schema, "id", "__partition"), settings=SETTINGS)
    rows = spark.createDataFrame(
        [(n, *("abcdef")) for n in (1, 2)], f"id long, {', '.join(f'{n} string' for n in names)}"
    )
    engine.append(table, rows)
    engine.upsert(table, rows.where("id = 1").withColumn("__group", F.lit("new")))
    engine.merge(table, rows.where("id = 2"), engine.MatchedUpdate({"__key": "upper(t.__key)", "__most": "s.__clause"}))
    engine.delete(spark, table, "id = 1 and __group = 'new'")
    assert table.to_arrow().to_pylist() == [dict(zip(schema.names, (2, "A", *"bcdee"), strict=True))]
