"""The data source `hudi_cas`: reads, appends, overwrites and SQL through temporary views, with hudi-rs as the judge."""

from __future__ import annotations

import json
import re
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql.functions import udf
from servers.over_obstore import OverObstore
from table.engines.spark.spark_tables import TRIPLE
from table.tables import SCHEMA, SETTINGS, SPEC, by_hudi_rs, content, orphans, rows, upsert

from fsspec_cas import InvalidInput
from lockprovider.demo.proof import read as by_hudi_rs_on_s3
from lockprovider.table import Table
from lockprovider.table.engines import arrow
from lockprovider.table.engines import spark as engine
from lockprovider.table.engines.spark.data_source import activate, register
from lockprovider.table.engines.spark.errors import typed_errors
from lockprovider.table.engines.spark.functions import changes
from lockprovider.table.errors import InvalidRecords, TableNotFound

ROWS = {(1, "a", 1), (2, "a", 2), (3, "b", 3)}


@pytest.fixture
def table(spark: Any, tmp_path: Path) -> Table:
    register(spark)
    made = Table.create(str(tmp_path / "t"), SPEC, settings=SETTINGS)
    upsert(made, *ROWS)
    return made


def load(spark: Any, table: Table, **options: str) -> set[tuple[Any, ...]]:
    return {tuple(row) for row in spark.read.format("hudi_cas").options(**options).load(table.url).collect()}


def test_dataframe_is_appended_in_one_commit(spark: Any, table: Table) -> None:
    frame = spark.createDataFrame([(n, "ab"[n % 2], n) for n in range(10, 20)], TRIPLE).repartition(3)
    before = len(table.history())
    frame.write.format("hudi_cas").mode("append").save(table.url)
    expected = ROWS | {(n, "ab"[n % 2], n) for n in range(10, 20)}
    assert load(spark, table) == content(table) == by_hudi_rs(table.url) == expected
    assert [commit.operation for commit in table.history()[before:]] == ["INSERT"]
    assert table.timeline().pending_writes == ()


def test_thread_can_write_once_the_session_is_made_its_own(spark: Any, table: Table) -> None:
    frame = spark.createDataFrame([(8, "x", 8)], TRIPLE)

    def write() -> None:
        activate(spark)
        frame.write.format("hudi_cas").mode("append").save(table.url)

    with ThreadPoolExecutor(1) as threads:
        threads.submit(write).result()
    assert content(table) == by_hudi_rs(table.url) == ROWS | {(8, "x", 8)}


def test_options_narrow_a_read(spark: Any, table: Table) -> None:
    assert load(spark, table, columns="value, id", filter="part = 'a' and value >= 2") == {(2, 2)}
    assert load(spark, table, partitions="b") == {(3, "b", 3)}
    with pytest.raises(Exception, match="at character 1: 'colour' is not a column"):
        load(spark, table, filter="colour = 1")
    with pytest.raises(Exception, match="fliter"):
        load(spark, table, fliter="id = 1")


def test_past_versions_and_changes_can_be_read(spark: Any, table: Table) -> None:
    loaded = spark.read.format("hudi_cas").load(table.url)
    first = table.history()[-1].completion
    second = upsert(table, (2, "a", 20), (4, "c", 4)).completion
    upsert(table, (5, "c", 5))
    assert {tuple(row) for row in loaded.collect()} == ROWS, "a DataFrame is the table as of its loading"
    assert load(spark, table, as_of=first) == ROWS
    assert load(spark, table, begin=first, end=second) == {(2, "a", 20), (4, "c", 4)}
    assert load(spark, table, begin=first) == {(2, "a", 20), (4, "c", 4), (5, "c", 5)}
    assert load(spark, table, begin=second, columns="id") == {(5,)}
    assert load(spark, table, begin="20990101000000000") == set()


def test_changes_are_read_with_their_kind(spark: Any, table: Table) -> None:
    first = str(table.history()[-1].completion)
    upsert(table, (2, "a", 20), (4, "c", 4))
    table.transact(lambda txn: arrow.write(txn, deletes=rows((3, "b", 0))))
    expected = {("update", 2, "a", 20), ("insert", 4, "c", 4), ("delete", 3, "b", 3)}
    assert load(spark, table, changes="true", begin=first) == expected
    feed = changes(spark, table, after=first)
    assert {tuple(row) for row in feed.rows.collect()} == expected
    assert (feed.checkpoint, len(feed.commits)) == (table.history()[-1].completion, 2)
    assert changes(spark, table, after=feed.checkpoint).rows.count() == 0


def test_sql_reads_and_writes_through_a_view(spark: Any, table: Table) -> None:
    spark.sql(f"create or replace temporary view numbers using hudi_cas options (path '{table.url}')")
    assert spark.sql("select sum(value) from numbers where part = 'a'").first()[0] == 3
    spark.sql("insert into numbers values (7, 'd', 7)")
    assert content(table) == by_hudi_rs(table.url) == ROWS | {(7, "d", 7)}
    spark.sql("insert overwrite numbers select id, part, value * 10 from numbers where id = 1")
    assert content(table) == by_hudi_rs(table.url) == {(1, "a", 10)}
    assert table.history()[-1].operation == "INSERT_OVERWRITE_TABLE"


def test_write_that_fails_leaves_nothing(spark: Any, table: Table) -> None:
    frame = spark.createDataFrame([(9, "a", 9), (None, "b", 1)], TRIPLE).repartition(2)
    with pytest.raises(Exception, match="null or empty"):
        frame.write.format("hudi_cas").mode("append").save(table.url)
    with pytest.raises(Exception, match="value 'b:c' of partition column 'part' has ':'"):
        spark.createDataFrame([(9, "b:c", 9)], TRIPLE).write.format("hudi_cas").mode("append").save(table.url)
    with pytest.raises(Exception, match="are not in the table"):
        frame.withColumnRenamed("value", "other").write.format("hudi_cas").mode("append").save(table.url)
    assert table.timeline().pending_writes == ()
    assert orphans(Path(table.url)) == set()
    assert content(table) == by_hudi_rs(table.url) == ROWS


def test_write_that_is_refused_says_so_in_one_sentence_with_its_type(spark: Any, table: Table, tmp_path: Path) -> None:
    good, bad = (spark.createDataFrame([(key, "b", 1)], TRIPLE) for key in (9, None))
    nowhere = str(tmp_path / "nowhere")
    refused = [
        (
            good,
            nowhere,
            TableNotFound,
            f"there is no table at {nowhere!r}: set hoodie.datasource.write.recordkey.field",
        ),
        (
            good.withColumnRenamed("value", "more"),
            table.url,
            InvalidInput,
            "columns ['more'] are not in the table, which has",
        ),
        (bad, table.url, InvalidRecords, "record key ['id'] is null or empty"),
    ]
    for frame, url, kind, sentence in refused:
        with pytest.raises(PySparkException) as by_spark:
            frame.write.format("hudi_cas").mode("append").save(url)
        words = str(by_spark.value)
        assert f": {kind.__module__}.{kind.__name__}: {sentence}" in words.replace("\n", " ")
        assert "Traceback" not in words
        with pytest.raises(kind, match=re.escape(sentence)), typed_errors():
            frame.write.format("hudi_cas").mode("append").save(url)
    with pytest.raises(TableNotFound, match=re.escape(nowhere)), typed_errors():
        spark.read.format("hudi_cas").load(nowhere)
    with pytest.raises(PySparkException, match="Traceback"), typed_errors():  # another's error keeps all it has
        spark.range(1).select(udf(lambda _: 1 // 0)("id")).collect()
    assert table.timeline().pending_writes == ()
    assert content(table) == ROWS


@pytest.mark.parametrize("by", ["s3fs", pytest.param("obstore", marks=pytest.mark.soak)])
def test_on_an_object_store_the_credentials_go_with_the_tasks(spark: Any, seaweedfs: Any, by: str) -> None:
    register(spark)
    url, plain = f"{seaweedfs.new_prefix()}/t", seaweedfs.storage_options
    options = plain if by == "s3fs" else OverObstore(seaweedfs).options_for(seaweedfs.endpoint)
    table = Table.create(url, SPEC, storage_options=options, settings=SETTINGS)
    engine.append(table, spark.createDataFrame([(1, "a", 1), (2, "b", 2)], TRIPLE))
    found = spark.read.format("hudi_cas").option("storage_options", json.dumps(options)).load(url)
    more = found.where("id = 1").selectExpr("id + 10 as id", "part", "value")
    more.write.format("hudi_cas").option("storage_options", json.dumps(options)).mode("append").save(url)
    expected = {(1, "a", 1), (2, "b", 2), (11, "a", 1)}
    assert {tuple(row) for row in engine.read(spark, table).collect()} == content(table) == expected
    assert {tuple(row[name] for name in SCHEMA.names) for row in by_hudi_rs_on_s3(url, plain).to_pylist()} == expected
