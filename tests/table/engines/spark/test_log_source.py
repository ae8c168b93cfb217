"""A log as a stream of Spark: into a table exactly once, also where a batch comes again; what is gone is told."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from table.engines.spark.spark_tables import TRIPLE, forget_last_batch, to_its_end
from table.tables import SETTINGS, SPEC, by_hudi_rs, content

from fsspec_cas import InvalidInput
from lockprovider.table import Table
from lockprovider.table.engines.spark import data_source
from lockprovider.table.engines.spark.errors import typed_errors
from lockprovider.table.engines.spark.log_source import LogOptions, LogStreamReader, register_log
from lockprovider.wal import Position, Trimmed, Wal


def append(log: Wal, *triples: tuple[int, str, int]) -> None:
    """Each in a slot of its own."""
    for triple in triples:
        log.append(json.dumps(dict(zip(("id", "part", "value"), triple, strict=True))).encode())


def test_log_is_loaded_into_a_table_exactly_once(spark: Any, tmp_path: Path) -> None:
    from pyspark.sql.functions import from_json

    register_log(spark)
    data_source.register(spark)
    log = Wal.create(str(tmp_path / "orders"), slots=4)
    table = Table.create(str(tmp_path / "table"), SPEC, settings=SETTINGS)
    log.reader("to-hudi")
    append(log, (1, "a", 1), (2, "b", 2), (3, "c", 3))

    def run() -> None:
        source = spark.readStream.format("lockprovider_wal").option("reader", "to-hudi").option("max_slots", "2")
        records = source.load(str(tmp_path / "orders"))
        rows = records.select(from_json(records.record.cast("string"), TRIPLE).alias("row")).select("row.*")
        sunk = rows.writeStream.format("hudi_cas").outputMode("append").trigger(availableNow=True)
        assert to_its_end(partial(sunk.option("checkpointLocation", str(tmp_path / "checkpoint")).start, table.url))

    run()
    assert content(table) == by_hudi_rs(table.url) == {(1, "a", 1), (2, "b", 2), (3, "c", 3)}
    assert log.info().readers["to-hudi"] >= Position(2, 2)
    forget_last_batch(tmp_path / "checkpoint")
    with log.lead() as out:
        out.append(b'{"id": 4, "part": "a", "value": 4}')
    run()
    assert content(table) == by_hudi_rs(table.url) == {(1, "a", 1), (2, "b", 2), (3, "c", 3), (4, "a", 4)}
    assert table.count() == 4
    assert log.trim() > 0  # what Spark has committed


def test_log_source_reads_columns_and_reports_trimmed_records(spark: Any, tmp_path: Path) -> None:
    register_log(spark)
    url = str(tmp_path / "orders")
    log = Wal.create(url, slots=70, retain="slots")
    append(log, *((n, "a", n) for n in range(69)))
    rows = spark.read.format("lockprovider_wal").load(url)
    found = rows.selectExpr("slot", "offset", "get_json_object(string(record), '$.value')", "epoch").collect()
    assert sorted(map(tuple, found)) == [(n, n, str(n), 0) for n in range(69)]
    assert rows.where("at > timestamp '2024-01-01'").count() == 69
    assert spark.read.format("lockprovider_wal").option("starting", "60:60").load(url).count() == 9
    append(log, (70, "a", 70), (71, "a", 71))
    with pytest.raises(Trimmed, match="was trimmed"), typed_errors():
        spark.read.format("lockprovider_wal").option("starting", "0:0").load(url).collect()


@pytest.mark.parametrize(
    "wrong", [{"starting": "x"}, {"max_slots": "0"}, {"storage_options": "x"}, {"slots": "1"}, {"path": ""}]
)
def test_options_that_mean_nothing_are_refused(wrong: dict[str, str]) -> None:
    with pytest.raises(InvalidInput):
        LogOptions.of({"path": "s3://bucket/orders", **wrong})


def test_offsets_are_positions_and_limited_by_slots(tmp_path: Path) -> None:
    from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxFiles

    log = Wal.create(str(tmp_path / "orders"))
    append(log, *((n, "a", n) for n in range(150)))
    stream = LogStreamReader(LogOptions(str(tmp_path / "orders"), reader="r"))
    start = stream.initialOffset()
    assert start == {"slot": 0, "offset": 0}
    assert stream.latestOffset(start, ReadMaxFiles(2)) == {"slot": 2, "offset": 2}
    end = stream.latestOffset(start, ReadAllAvailable())
    assert end == {"slot": 150, "offset": 150}
    parts = stream.partitions(start, end)
    assert [part.value.args[-1].slot for part in parts] == [64, 128, 150]
    assert [row.num_rows for part in parts for row in stream.read(part)] == [1] * 150
    stream.commit(end)
    stream.commit(start)
    assert log.info().readers == {"r": Position(150, 150)}
    assert stream.partitions(end, end) == []
