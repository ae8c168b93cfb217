"""A process with a streaming query from one table to another: `streaming_child.py FOLDER format|foreach [kill]`.

With `kill` it ends itself by SIGKILL as soon as batch 1 is in the table and before Spark knows.
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from typing import Any

from lockprovider.table import Table
from lockprovider.table.engines.java import spark_session
from lockprovider.table.engines.spark.data_source import HudiCas
from lockprovider.table.engines.spark.stream import upserts
from lockprovider.table.engines.spark.writer import StreamWriter

FOLDER, SINK, KILLS = Path(sys.argv[1]), sys.argv[2], sys.argv[3:] == ["kill"]
GROUP = os.getpgrp()  # this process and its JVM


def die_after(batch: int) -> None:
    if KILLS and batch == 1:
        os.killpg(GROUP, signal.SIGKILL)


class Killing(StreamWriter):
    """Dies after the commit."""

    def commit(self, messages: Any, batchId: int) -> None:  # noqa: N803 - Spark's name
        super().commit(messages, batchId)
        die_after(batchId)


class Source(HudiCas):
    """The data source, whose stream writer dies."""

    def streamWriter(self, schema: Any, overwrite: bool) -> Any:  # noqa: N802 - Spark's name
        return Killing(super().streamWriter(schema, overwrite).job)


def upsert_and_die(table: Table) -> Any:
    upsert = upserts(table)

    def each(rows: Any, batch: int) -> None:
        upsert(rows, batch)
        die_after(batch)

    return each


def main() -> None:
    spark = spark_session("streams", cores=2)
    spark.dataSource.register(Source)
    stream = spark.readStream.format("hudi_cas").option("max_commits", "1").load(str(FOLDER / "source"))
    sink = stream.writeStream.option("checkpointLocation", str(FOLDER / "checkpoint")).trigger(availableNow=True)
    if SINK == "format":
        query = sink.format("hudi_cas").outputMode("append").start(str(FOLDER / "sink"))
    else:
        query = sink.foreachBatch(upsert_and_die(Table.open(str(FOLDER / "sink")))).start()
    query.awaitTermination()
    spark.stop()


if __name__ == "__main__":
    main()
