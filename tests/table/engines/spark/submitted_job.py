"""A user's script, for `spark-submit`: it writes a table while its executors are killed, and prints what it saw."""

import json
import os
import signal
import sys
from pathlib import Path

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql import SparkSession

from lockprovider.table import Table, TableSpec
from lockprovider.table.engines import spark as hudi

ROWS = 4_000


def executor():
    """The process id of the JVM that this Python worker is of."""
    process = os.getpid()
    while True:
        process = int(Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[1])
        if b"CoarseGrainedExecutorBackend" in Path(f"/proc/{process}/cmdline").read_bytes():
            return process


def dying(batches):
    """The executor of the first try of a task is killed after it has handed its rows on."""
    yield from batches
    context = TaskContext.get()
    if context.partitionId() == 0 and context.attemptNumber() == 0:
        os.kill(executor(), signal.SIGKILL)


def places(batches):
    from lockprovider import __file__ as place

    for batch in batches:
        yield pa.record_batch({"file": [place] * batch.num_rows, "pid": [executor()] * batch.num_rows})


def main(url):
    spark = SparkSession.builder.appName("trips").getOrCreate()
    seen = {"driver": hudi.__file__}

    def found():
        return spark.range(64, numPartitions=8).mapInArrow(places, "file string, pid long").distinct().collect()

    seen["executors"] = sorted({row.file for row in found()})
    kill = []

    def watch(event):
        if event.kind == "written":
            for row in kill and found():
                os.kill(row.pid, signal.SIGKILL)
                seen["killed"] = seen.get("killed", 0) + 1

    spec = TableSpec(
        "trips", pa.schema([("id", pa.int64()), ("part", pa.string()), ("value", pa.int64())]), "id", "part"
    )
    table = Table.create(url, spec, watcher=watch)
    rows = spark.range(ROWS).selectExpr("id", "concat('p', id % 4) as part", "id as value")
    seen["appended"] = hudi.append(table, rows.repartition(4).mapInArrow(dying, rows.schema)).inserted
    kill.append(True)  # between the last file and the commit
    done = hudi.upsert(table, rows.where("id % 2 = 0").withColumn("value", rows.value + 1))
    kill.clear()
    seen["upserted"] = [done.updated, done.inserted]
    merged = hudi.merge(table, rows.where("id < 10"), hudi.MatchedUpdate({"value": "t.value * 10"}))
    seen["merged"] = merged.updated
    seen["deleted"] = hudi.delete(spark, table, "id >= 3000").deleted
    seen["sum"] = hudi.read(spark, table).selectExpr("sum(value)").collect()[0][0]
    print("seen: " + json.dumps(seen))  # noqa: T201 - for the test
    spark.stop()


if __name__ == "__main__":
    main(sys.argv[1])
