"""A driver of 1 GB with two executors that writes many rows; prints what it saw, and how much memory it took."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
from table.engines.spark import speculation_child
from table.own_process import tell

from lockprovider.table import Table, TableSpec
from lockprovider.table.engines import spark as engine
from lockprovider.table.engines.spark.data_source import register

PARTS = 8
SETTINGS = {
    "spark.driver.memory": "1g",
    "spark.executor.memory": "1g",
    "spark.speculation": "false",
    "spark.sql.adaptive.enabled": "true",
    # Smaller than any side of a join here, also in a short soak: Spark must not broadcast one that it has measured.
    "spark.sql.adaptive.autoBroadcastJoinThreshold": "1m",
    "spark.sql.shuffle.partitions": "16",
}
SCHEMA = pa.schema([("id", pa.int64()), ("part", pa.string()), ("value", pa.int64()), ("text", pa.string())])


def peak_mb(process: str = "self") -> int:
    """The most memory that a process had."""
    lines = Path(f"/proc/{process}/status").read_text().splitlines()
    return next(int(line.split()[1]) // 1024 for line in lines if line.startswith("VmHWM"))


def main(url: str, home: str, count: int) -> None:
    spark = speculation_child.session(Path(home), speculation_child.SETTINGS | SETTINGS, memory_mb=1024, heap="1g")
    jvm: Any = spark._jvm
    runtime = jvm.java.lang.management.ManagementFactory.getRuntimeMXBean()
    table = Table.create(url, TableSpec("large", SCHEMA, "id", "part"))

    def rows(first: int, end: int, step: int = 1) -> Any:
        made = spark.range(first, end, step, 8)
        return made.selectExpr("id", f"cast(id % {PARTS} as string) part", "id as value", "uuid() as text")

    seen: dict[str, Any] = {"heap_mb": jvm.java.lang.Runtime.getRuntime().maxMemory() >> 20}
    seen["appended"] = engine.append(table, rows(0, count).repartition(PARTS, "part")).inserted
    done = engine.upsert(table, rows(0, count + count // 10, 2))
    seen["upserted"] = [done.updated, done.inserted]
    done = engine.merge(
        table, rows(1, count, 2), engine.MatchedUpdate({"value": "t.value + s.value"}), engine.NotMatchedInsert()
    )
    seen["merged"] = [done.updated, done.inserted]
    seen["deleted"] = engine.delete(spark, table, "id % 10 = 3").deleted
    register(spark)
    source = rows(0, count, 5).write.format("hudi_cas").mode("append")
    source.option("hoodie.datasource.write.operation", "upsert").save(url)
    seen["staged"] = table.history()[-1].operation
    seen["count"] = engine.read(spark, table).count()
    seen["clustered"] = sum(len(done.new_file_groups) for done in engine.cluster(spark, table, ("value",)))
    seen["after"] = engine.read(spark, table).count()
    logged = Table.create(f"{url}_logged", TableSpec("logged", SCHEMA, "id", "part", table_type="merge_on_read"))
    engine.append(logged, rows(0, count).repartition(PARTS, "part"))
    seen["logged"] = engine.upsert(logged, rows(0, count, 10)).updated
    seen["compacted"] = sum(done.log_files for done in engine.compact(spark, logged))
    seen["read"] = engine.read(spark, logged).count()
    store = spark._jsparkSession.sharedState().statusStore()
    plans = [store.execution(number).get().physicalPlanDescription() for number in range(store.executionsCount())]
    seen |= {"plans": len(plans), "broadcasts": [plan for plan in plans if "BroadcastHashJoin" in plan]}
    seen["peak_mb"] = {"python": peak_mb(), "jvm": peak_mb(runtime.getName().partition("@")[0])}
    tell(seen)
    spark.stop()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]))
