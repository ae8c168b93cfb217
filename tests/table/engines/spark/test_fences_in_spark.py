"""A Spark job of an epoch that another has followed commits nothing: functions, data source, streams, services."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException
from table.engines.spark.spark_tables import filled, frame
from table.tables import SPEC, by_hudi_rs, content, rows

from fsspec_cas import InvalidInput
from lockprovider.recipes.errors import Fenced
from lockprovider.table.engines import spark as engine
from lockprovider.table.engines.spark.data_source import register
from lockprovider.table.engines.spark.errors import typed_errors
from lockprovider.table.engines.spark.functions import cluster
from lockprovider.table.engines.spark.options import SparkOptions
from lockprovider.table.engines.spark.stream import upserts


def test_job_of_an_older_epoch_is_refused_and_the_newest_commits(spark: Any, tmp_path: Path) -> None:
    table = filled(tmp_path / "t", SPEC)
    table.under(("loader", 7)).append(rows((5, "a", 5)))
    late, newest, before = table.under(("loader", 6)), table.under(("loader", 7)), content(table)
    register(spark)
    more = frame(spark, (6, "b", 6))
    with pytest.raises(Fenced):
        engine.upsert(late, more)
    with pytest.raises(Fenced):
        upserts(late, stream_id="s")(more, 0)
    with pytest.raises(Fenced):
        cluster(spark, late)
    for operation in ("insert", "upsert"):
        writer = more.write.format("hudi_cas").option("hoodie.datasource.write.operation", operation).mode("append")
        with pytest.raises((Fenced, PySparkException), match="6 of 'loader' is over, because"), typed_errors():
            writer.option("fence", "loader:6").save(table.url)
    assert content(table) == by_hudi_rs(table.url) == before
    writer.option("fence", "loader:8").save(table.url)
    with pytest.raises(Fenced, match="8 has written since"):
        engine.append(newest, more)
    upserts(table.under(("loader", 9)), stream_id="s")(more, 0)
    assert cluster(spark, table.under(("loader", 9)))
    assert content(table) == by_hudi_rs(table.url) == before | {(6, "b", 6)}


@pytest.mark.parametrize("text", ["", "x", "0", "loader", "loader:-1", "1.5"])
def test_option_that_is_no_epoch_is_refused(text: str) -> None:
    with pytest.raises(InvalidInput, match="fence="):
        SparkOptions.of({"path": "memory://t/able", "fence": text})


def test_option_takes_an_epoch_with_or_without_a_name() -> None:
    found = [SparkOptions.of({"path": "memory://t/able", "fence": text}).fence for text in ("7", "loader:7", "a:b:7")]
    assert [(one.name, one.epoch) for one in found if one] == [("", 7), ("loader", 7), ("a:b", 7)]
