"""Non-blocking writes by Spark's functions, data source and streams: no conflict, and the greatest value wins."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from table.engines.spark.spark_tables import to_its_end
from table.mor_tables import COLUMNS, Row, by_hudi_rs, content, log_files, rows
from table.test_non_blocking import BLIND, SPEC

from lockprovider.table import InvalidRecords, Table, WriteConflict
from lockprovider.table.engines import spark as engine
from lockprovider.table.engines.spark.data_source import register
from lockprovider.table.engines.spark.stream import upserts
from lockprovider.table.format.compatibility import MODE_KEY

KINDS = "id long, part string, value string, ts long"


@pytest.fixture
def table(tmp_path: Path) -> Table:
    return Table.create(str(tmp_path / "t"), SPEC, settings=BLIND)


def another(table: Table) -> Table:
    return Table.open(table.url, settings=BLIND)


def frame(spark: Any, *given: Row) -> Any:
    return spark.createDataFrame(list(given), KINDS)


def gone(spark: Any, *given: tuple[int, str, int | None]) -> Any:
    return spark.createDataFrame(list(given), "id long, part string, ts long")


def test_writers_and_deleters_of_the_same_keys_both_commit(spark: Any, table: Table) -> None:
    early = another(table).transaction()
    engine.write(
        early, frame(spark, (1, "a", "early", 5), (2, "a", "early", 1), (3, "a", "early", 9), (4, "b", "e", 1))
    )
    engine.append(table, frame(spark, (1, "a", "x", 4), (2, "a", "x", 2), (3, "a", "x", 1)))
    done = engine.upsert(table, frame(spark, (5, "b", "x", 1)), gone(spark, (3, "a", 8), (1, "a", 4), (9, "a", 1)))
    assert (done.conflicts, done.deleted) == (0, 3), "they are not looked for"
    table.compact()
    early.commit()
    expected = [(1, "a", "early", 5), (2, "a", "x", 2), (3, "a", "early", 9), (4, "b", "e", 1), (5, "b", "x", 1)]
    assert content(table) == by_hudi_rs(table) == expected
    assert sorted(tuple(row) for row in engine.read(spark, table).collect()) == expected


def test_reads_and_deletes_by_key_are_ordinary_writes_that_may_conflict(spark: Any, table: Table) -> None:
    table.upsert(rows((1, "a", "x", 5)))
    for write in (
        lambda txn: engine.write(txn, None, gone(spark, (1, "a", 7)).drop("ts")),
        lambda txn: engine.delete_where(spark, txn, "id = 1"),
    ):
        txn = another(table).transaction()
        write(txn)
        table.upsert(rows((1, "a", "meanwhile", 6)))
        with pytest.raises(WriteConflict):
            txn.commit()
        txn.rollback()
    assert content(table) == by_hudi_rs(table) == [(1, "a", "meanwhile", 6)]


def test_null_ordering_value_is_refused_before_the_instant_begins(spark: Any, table: Table) -> None:
    before = sorted(Path(table.url).rglob("*"))
    said = "ordering column 'ts' is null in 1 rows"
    with pytest.raises(InvalidRecords, match=said):
        engine.upsert(table, frame(spark, (1, "a", "x", None)))  # type: ignore[arg-type]
    with pytest.raises(InvalidRecords, match=said):
        engine.upsert(table, frame(spark, (1, "a", "x", 1)), gone(spark, (2, "a", None)))
    assert sorted(Path(table.url).rglob("*")) == before


def test_stream_batches_and_data_source_writes_never_conflict(spark: Any, table: Table, tmp_path: Path) -> None:
    register(spark)
    source = Table.create(str(tmp_path / "source"), SPEC, settings=BLIND)
    source.upsert(rows((1, "a", "streamed", 5), (2, "a", "streamed", 1)))
    beside = another(table).transaction(pinned=False)
    beside.upsert(rows((1, "a", "beside", 4), (2, "a", "beside", 2)))

    def each(changed: Any, batch: int) -> None:
        upserts(table, retries=0)(changed.select(*COLUMNS.names), batch)
        assert all(".log." in path for path in log_files(table))

    stream = spark.readStream.format("hudi_cas").load(source.url)
    sunk = stream.writeStream.foreachBatch(each).trigger(availableNow=True)
    assert to_its_end(sunk.option("checkpointLocation", str(tmp_path / "checkpoint")).start)
    hudis = {MODE_KEY: BLIND.mode.value, "hoodie.datasource.write.operation": "upsert"}
    frame(spark, (2, "a", "saved", 3)).write.format("hudi_cas").mode("append").options(**hudis).save(table.url)
    assert beside.commit().conflicts == 0
    assert content(table) == by_hudi_rs(table) == [(1, "a", "streamed", 5), (2, "a", "saved", 3)]
