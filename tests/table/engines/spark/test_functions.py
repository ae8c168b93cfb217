"""One call, one transaction: append, upsert, merge, delete and read over DataFrames, with hudi-rs as the judge."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from table.engines.spark.spark_tables import filled, frame
from table.tables import SCHEMA, SPEC, by_hudi_rs, content, data_files

from lockprovider.table import InvalidRecords, Table, TableNotFound
from lockprovider.table.engines import spark as engine
from lockprovider.table.engines.spark import jobs
from lockprovider.table.engines.spark.merge_into import MatchedDelete, MatchedUpdate, NotMatchedInsert, merge


@pytest.fixture
def table(tmp_path: Path) -> Table:
    return filled(tmp_path / "t", SPEC)


def test_append_adds_rows_and_returns_its_result(spark: Any, table: Table) -> None:
    result = engine.append(table, frame(spark, (5, "a", 5), (6, "d", 6)), extra={"source": "test"})
    expected = {(1, "a", 1), (2, "a", 2), (3, "b", 3), (4, "c", 4), (5, "a", 5), (6, "d", 6)}
    assert content(table) == by_hudi_rs(table.url) == expected
    assert (result.inserted, result.updated, result.deleted) == (2, 0, 0)
    assert (table.history()[-1].operation, table.history()[-1].extra["source"]) == ("INSERT", "test")


def test_delete_rewrites_only_the_groups_that_have_such_rows(spark: Any, table: Table) -> None:
    before = data_files(Path(table.url))
    result = engine.delete(spark, table, "value = 2 or part = 'c' or value is null")
    assert content(table) == by_hudi_rs(table.url) == {(1, "a", 1), (3, "b", 3)}
    assert result.deleted == 2
    assert {path.split("/")[0] for path in data_files(Path(table.url)) - before} == {"a", "c"}


def test_overwrite_replaces_partitions_and_no_others(spark: Any, table: Table) -> None:
    first = engine.insert_overwrite(table, frame(spark, (7, "a", 7), (8, "z", 8)))
    assert content(table) == by_hudi_rs(table.url) == {(7, "a", 7), (8, "z", 8), (3, "b", 3), (4, "c", 4)}
    assert table.history()[-1].operation == "INSERT_OVERWRITE"
    assert first.inserted == 2
    with pytest.raises(InvalidRecords, match=r"partitions \['z'\], but only .* are overwritten"):
        engine.insert_overwrite(table, frame(spark, (9, "z", 9)), partitions=["a"])
    engine.insert_overwrite(table, frame(spark, (9, "b", 9)), partitions=["a", "b"])
    assert content(table) == by_hudi_rs(table.url) == {(9, "b", 9), (8, "z", 8), (4, "c", 4)}
    assert table.timeline().pending_writes == ()


def test_merge_updates_deletes_and_inserts_in_one_commit(spark: Any, table: Table) -> None:
    before = data_files(Path(table.url))
    source = spark.createDataFrame(
        [(1, "a", 10, False), (2, "a", 0, True), (9, "b", 90, False), (8, "d", 80, True)],
        "id long, part string, more int, gone boolean",
    )
    result = merge(
        table,
        source,
        MatchedDelete("s.gone"),
        MatchedUpdate({"value": "t.value + s.more"}),
        NotMatchedInsert({"value": "s.more"}, where="not s.gone"),
    )
    assert content(table) == by_hudi_rs(table.url) == {(1, "a", 11), (3, "b", 3), (4, "c", 4), (9, "b", 90)}
    assert (result.inserted, result.updated, result.deleted) == (1, 1, 1)
    added = sorted(path.split("/")[0] for path in data_files(Path(table.url)) - before)
    assert added == ["a", "b"], "the group of b that is not matched must not be rewritten: a new group is added"


def test_merge_updates_each_row_of_a_key_in_two_file_groups_by_itself(spark: Any, table: Table) -> None:
    engine.append(table, frame(spark, (1, "a", 100), (2, "a", 200)))
    merge(table, frame(spark, (1, "a", 10), (2, "a", 20)), MatchedUpdate({"value": "t.value + s.value"}))
    expected = [(1, "a", 11), (1, "a", 110), (2, "a", 22), (2, "a", 220), (3, "b", 3), (4, "c", 4)]
    assert sorted(tuple(row) for row in engine.read(spark, table).collect()) == expected


def test_duplicate_key_in_any_partition_is_refused_by_checked_append(spark: Any, table: Table) -> None:
    before, twice = content(table), frame(spark, (7, "z", 5), (7, "z", 6), (8, "z", 7))
    for together in (twice.coalesce(1), twice.repartition(4, "id")):
        with pytest.raises(InvalidRecords, match="record key '7' comes more than once in partition 'z'"):
            engine.append(table, together)
    with pytest.raises(InvalidRecords, match="record key '7' comes more than once"):
        engine.append(table, twice.repartitionByRange(3, "value"), check_keys=True)
    assert content(table) == before
    assert table.timeline().pending_writes == ()


def test_ambiguous_merge_is_refused(spark: Any, table: Table) -> None:
    twice = frame(spark, (1, "a", 5), (1, "a", 6))
    with pytest.raises(InvalidRecords, match="key '1' 2 times"):
        merge(table, twice, MatchedUpdate())
    with pytest.raises(InvalidRecords, match="delete and insert the row"):
        merge(table, twice, MatchedUpdate({"part": "'z'"}))
    with pytest.raises(InvalidRecords, match="'colour'"):
        merge(table, twice, NotMatchedInsert({"colour": "1"}))
    with pytest.raises(InvalidRecords, match="part is missing"):
        merge(table, twice.drop("part"), MatchedUpdate())
    assert table.timeline().pending_writes == ()


def test_read_can_be_narrowed_to_columns_rows_partitions_and_versions(spark: Any, table: Table) -> None:
    then = table.history()[-1].completion
    engine.append(table, frame(spark, (9, "z", 9)))
    found = engine.read(spark, table, columns=["id"], filter="value >= 2 and part <> 'c'")
    assert found.columns == ["id"]
    assert {row.id for row in found.collect()} == {2, 3, 9}
    assert {row.id for row in engine.read(spark, table, filter="lower(part) = 'a' or value % 3 = 0").collect()} == {
        1,
        2,
        3,
        9,
    }
    narrow = engine.read(spark, table, partitions=["a", "b"], filter=[("_hoodie_record_key", "=", "3")])
    assert [tuple(row) for row in narrow.collect()] == [(3, "b", 3)]
    assert {row.id for row in engine.read(spark, table, as_of=then, columns=["id"]).collect()} == {1, 2, 3, 4}


@pytest.mark.parametrize(
    ("where", "pushed"),
    [
        ("part = 'a' and id in (1, 2)", True),
        ("value * 2 > 3", False),
        ("part = 7", False),
        ("part = 'a\\'", False),
        ("upper(part) = 'A'", False),
        ("\"part\" = 'a'", False),
        ("part like 'a%' and id not in (1, null)", True),
        ("id = 9007199254740993e0", False),  # equals 2 ** 53, too, in Spark
        ("id > .5E+3", False),
        ("part = '550e8400'", True),
    ],
)
def test_only_conditions_with_the_same_meaning_in_arrow_are_pushed_down(where: str, pushed: bool) -> None:
    assert (jobs.pushable_filter(where, SCHEMA) is not None) == pushed


def test_error_of_a_task_keeps_its_type(spark: Any, table: Table) -> None:
    with pytest.raises(InvalidRecords, match="null or empty in 1 rows"):
        engine.upsert(table, frame(spark, (None, "a", 1)))
    with pytest.raises(InvalidRecords, match="stranger"):
        engine.append(table, frame(spark, (7, "a", 1)).withColumnRenamed("value", "stranger"))
    with pytest.raises(InvalidRecords, match="value is missing"):
        engine.upsert(table, frame(spark, (1, "a", 1)).drop("value"))
    with pytest.raises(InvalidRecords, match="nothing to write"):
        table.transact(engine.write)
    assert table.timeline().pending_writes == ()
    assert len(content(table)) == 4


def test_threads_write_one_table_and_lose_nothing(spark: Any, table: Table) -> None:
    def add(part: str) -> None:
        source = frame(spark, (1, "a", 0), (100 + ord(part), part, 7))
        merge(table, source, MatchedUpdate({"value": "t.value + 1"}), NotMatchedInsert(), retries=10)

    with ThreadPoolExecutor(2) as threads:
        list(threads.map(add, "xy"))
    found = by_hudi_rs(table.url)
    assert content(table) == found
    assert {(id_, part, value) for id_, part, value in found if id_ == 1} == {(1, "a", 3)}, "an update was lost"
    assert {part for id_, part, _ in found if id_ >= 100} == {"x", "y"}


def test_view_is_registered_by_the_tables_url(spark: Any, table: Table) -> None:
    engine.register(spark, Path(table.url), "trips", ["id", "value"], filter="part = 'a'")
    table.delete("id = 1")
    assert [tuple(row) for row in spark.sql("select sum(value), count(*) from trips").collect()] == [(3, 2)]
    engine.register(spark, table, "trips", ["id", "value"], filter="part = 'a'")
    assert spark.sql("select value from trips where id > 0").collect()[0].value == 2
    with pytest.raises(TableNotFound):
        engine.register(spark, f"{table.url}/none", "trips")
