"""A driver with two executors and speculation on: its one slow task is run again while the first attempt still runs."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from pyspark import SparkConf, SparkContext, TaskContext
from pyspark.sql import SparkSession
from table.engines.spark import spark_tables
from table.own_process import tell

from lockprovider.table import Table
from lockprovider.table.engines import spark as engine
from lockprovider.table.engines.java import FAST_START, find_java
from lockprovider.table.engines.spark import jobs

PATIENCE_S = 150.0
SETTINGS = {
    "spark.driver.host": "127.0.0.1",
    "spark.ui.enabled": "false",
    "spark.executor.memory": "512m",
    "spark.executor.extraJavaOptions": FAST_START,
    "spark.executor.cores": "1",
    "spark.scheduler.minRegisteredResourcesRatio": "1.0",
    "spark.speculation": "true",
    "spark.speculation.interval": "50ms",
    "spark.speculation.multiplier": "1.01",
    "spark.speculation.quantile": "0.1",
    "spark.speculation.minTaskRuntime": "50ms",
    # These look at several tasks of a stage together: each must be one of its own.
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.shuffle.partitions": "4",
    "spark.ui.showConsoleProgress": "false",
}


def session(home: Path, settings: dict[str, str] = SETTINGS, memory_mb: int = 1024, heap: str = "1g") -> Any:
    """Spark starts no second attempt on the first one's host: two executors, each on a loopback address of its own.

    `memory_mb` is each worker's, `heap` the driver's.
    """
    os.environ["JAVA_HOME"], os.environ["SPARK_LOCAL_IP"] = str(find_java().home), "127.0.0.1"
    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    SparkContext._ensure_initialized(
        conf=SparkConf().set("spark.driver.extraJavaOptions", FAST_START).set("spark.driver.memory", heap)
    )
    jvm, gateway = SparkContext._jvm, SparkContext._gateway
    conf, deploy = jvm.org.apache.spark.SparkConf(), jvm.org.apache.spark.deploy
    master = deploy.master.Master.startRpcEnvAndEndpoint("127.0.0.1", 0, 0, conf)._1().address().toSparkURL()
    masters = gateway.new_array(jvm.java.lang.String, 1)
    masters[0] = master
    nothing = jvm.scala.Option.empty()
    for number in (1, 2):
        place, folder = (f"127.0.0.{number}", 0, 0, 1, memory_mb), str(home / str(number))
        deploy.worker.Worker.startRpcEnvAndEndpoint(
            *place, masters, folder, jvm.scala.Option.apply(number), conf, nothing
        )
    builder = SparkSession.builder.master(master)
    for key, value in settings.items():
        builder = builder.config(key, value)
    return builder.getOrCreate()


def slowed(folder: Path, count: str) -> Callable[[Iterator[Any]], Iterator[Any]]:
    """After a task has written: each of the first two attempts of one of them waits until the other one has, too.

    It is the one that has rows of partition `a`, as `count` (a column of its statistics) says.
    """

    def run(batches: Iterator[Any]) -> Iterator[Any]:
        held, context = list(batches), TaskContext.get()
        written = [row for batch in held for row in batch.to_pylist()]
        if any(row["partition"] == "a" and row[count] for row in written):
            task, attempt = f"{context.stageId()}-{context.partitionId()}", context.attemptNumber()
            (folder / f"{task}-{attempt}").touch()
            give_up_s = time.monotonic() + PATIENCE_S
            while attempt < 2 and not (folder / f"{task}-{1 - attempt}").exists():
                if time.monotonic() > give_up_s:
                    raise TimeoutError("there was no other attempt")
                time.sleep(0.05)
        yield from held

    return run


def main(url: str, folder: str) -> None:
    spark, attempts = session(Path(folder) / "home"), Path(folder) / "attempts"
    attempts.mkdir()
    collect_stats = jobs.collect_stats

    def slowly(stats: Any, handed: Any, step: str) -> Any:
        count = "num_inserts" if step.startswith("hudi append") else "num_updates"
        return collect_stats(stats.mapInArrow(slowed(attempts, count), stats.schema), handed, step)

    jobs.collect_stats = slowly
    table = Table.open(url)

    def frame(first: int, value: int) -> Any:
        rows = [(n, "abcd"[n % 4], value) for n in range(first, first + 40)]
        return spark_tables.frame(spark, *rows).repartition(8, "part")

    groups = [
        len(engine.append(table, frame(0, 1)).file_groups),
        len(engine.upsert(table, frame(20, 2)).file_groups),
    ]
    seen = {"groups": groups, "attempts": sorted(path.name for path in attempts.iterdir())}
    tell(seen)
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
