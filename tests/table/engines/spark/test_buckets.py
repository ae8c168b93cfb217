"""Spark's functions on a table with a bucket index: hashing on the executors, one file group a bucket."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from table.bucket_tables import SPEC, groups, in_their_buckets
from table.engines.spark import spark_tables
from table.engines.spark.spark_tables import filled
from table.tables import SETTINGS, by_hudi_rs, content, rows

from lockprovider.table import InvalidRecords, Table, TableSpec, WriteConflict
from lockprovider.table.engines import spark as engine
from lockprovider.table.engines.spark.data_source import register
from lockprovider.table.engines.spark.merge_into import MatchedDelete, MatchedUpdate, NotMatchedInsert, merge


@pytest.fixture
def table(tmp_path: Path) -> Table:
    return filled(tmp_path / "t", SPEC)


def frame(spark: Any, *triples: tuple[int, str, int]) -> Any:
    return spark_tables.frame(spark, *triples).repartition(3)


def test_upsert_goes_on_in_the_file_groups_that_are_there(spark: Any, table: Table) -> None:
    before = groups(table)
    changes = [(key, "a" if key % 2 else "b", -key) for key in range(50)]
    result = engine.upsert(table, frame(spark, *changes), frame(spark, (2, "a", 0), (77, "a", 0)))
    assert (result.inserted, result.updated, result.deleted) == (49, 1, 1)
    assert content(table) == by_hudi_rs(table.url) == {*changes, (3, "b", 3), (4, "c", 4)}
    assert before.items() <= groups(table).items()
    in_their_buckets(table)


def test_append_goes_into_the_buckets_too_and_a_missing_column_is_null(spark: Any, table: Table) -> None:
    before = groups(table)
    engine.append(table, frame(spark, (1, "a", 10), (5, "a", 5)).drop("value"))
    assert content(table) == {(1, "a", None), (5, "a", None), (2, "a", 2), (3, "b", 3), (4, "c", 4)}
    assert before.items() <= groups(table).items()
    assert table.history()[-1].operation == "INSERT"
    in_their_buckets(table)


def test_merge_and_a_delete_keep_to_the_buckets(spark: Any, table: Table) -> None:
    before = groups(table)
    source = spark.createDataFrame(
        [(1, "a", 10, False), (2, "a", 0, True), (9, "b", 90, False)], "id long, part string, more int, gone boolean"
    )
    clauses = (
        MatchedDelete("s.gone"),
        MatchedUpdate({"value": "t.value + s.more"}),
        NotMatchedInsert({"value": "s.more"}),
    )
    result = merge(table, source, *clauses)
    assert (result.inserted, result.updated, result.deleted) == (1, 1, 1)
    assert engine.delete(spark, table, "value = 4").deleted == 1
    assert content(table) == by_hudi_rs(table.url) == {(1, "a", 11), (3, "b", 3), (9, "b", 90)}
    assert before.items() <= groups(table).items()
    in_their_buckets(table)


def test_overwrite_starts_new_file_groups_of_the_same_buckets(spark: Any, table: Table) -> None:
    before = groups(table)
    engine.insert_overwrite(table, frame(spark, (1, "a", 7), (8, "z", 8)))
    assert content(table) == by_hudi_rs(table.url) == {(1, "a", 7), (8, "z", 8), (3, "b", 3), (4, "c", 4)}
    assert groups(table).keys() <= before.keys() | {("z", bucket) for bucket in range(4)}
    assert not {file_id for (part, _), file_id in groups(table).items() if part == "a"} & set(before.values())
    with pytest.raises(InvalidRecords, match=r"partitions \['z'\], but only .* are overwritten"):
        engine.insert_overwrite(table, frame(spark, (9, "z", 9)), partitions=["a"])
    engine.insert_overwrite(table, frame(spark, (9, "b", 9)), partitions=["a", "b"])
    engine.upsert(table, frame(spark, (10, "a", 10), (9, "b", 90)))
    assert content(table) == by_hudi_rs(table.url) == {(9, "b", 90), (10, "a", 10), (8, "z", 8), (4, "c", 4)}
    in_their_buckets(table)


def test_spark_and_arrow_that_insert_the_same_new_key_conflict(spark: Any, table: Table) -> None:
    mine = table.transaction()
    engine.write(mine, frame(spark, (100, "n", 1)))
    table.append(rows((100, "n", 2)))
    with pytest.raises(WriteConflict, match="both wrote n/0000000"):
        mine.commit()
    mine.rollback()
    result = engine.upsert(table, frame(spark, (100, "n", 3)), retries=3)
    assert (result.inserted, result.updated) == (0, 1)


def test_data_source_refuses_writes_to_tables_with_buckets(spark: Any, table: Table) -> None:
    register(spark)
    before = content(table)
    with pytest.raises(Exception, match="cannot insert rows by bucket"):
        frame(spark, (5, "a", 5)).write.format("hudi_cas").mode("append").save(table.url)
    assert content(table) == before
    assert table.timeline().pending_writes == ()


def test_composite_keys_of_any_characters_are_hashed_alike_by_both_engines(spark: Any, tmp_path: Path) -> None:
    schema = rows().schema
    spec = TableSpec("p", schema, ("id", "part"), buckets=16, bucket_by=("part",))
    table = Table.create(str(tmp_path / "t"), spec, settings=SETTINGS)
    texts = ["", "a:b", "x,y", "x,y:z", "東京", "😀", None, "é"]
    triples = [(key, text, 0) for key in range(4) for text in texts]
    table.append(rows(*triples))
    before = {one.file_id for one in table.snapshot().slices}
    result = engine.upsert(table, spark_tables.frame(spark, *((key, text, 1) for key, text, _ in triples)))
    assert (result.inserted, result.updated) == (0, len(triples))
    assert {one.file_id for one in table.snapshot().slices} == before
    assert content(table) == {(key, text, 1) for key, text, _ in triples}
