"""A client of Spark Connect, with a server of its own: writes one table by all functions, and prints what it saw."""

from __future__ import annotations

import os
import sys
from functools import partial
from typing import Any

from table.engines.spark import spark_tables
from table.own_process import tell
from table.tables import SETTINGS, SPEC

from lockprovider.table import InvalidRecords, Scan, Table, WriteConflict
from lockprovider.table.engines import arrow
from lockprovider.table.engines import spark as engine
from lockprovider.table.engines.java import FAST_START, find_java

CHANGED = 7


def session() -> Any:
    """It listens on loopback, at a port that is free."""
    os.environ["JAVA_HOME"] = str(find_java().home)
    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
    os.environ["SPARK_TESTING"] = "1"
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.remote("local[2]").config("spark.connect.grpc.binding.address", "127.0.0.1")
    builder = builder.config("spark.driver.extraJavaOptions", FAST_START).config("spark.ui.enabled", "false")
    builder = builder.config("spark.ui.showConsoleProgress", "false")
    return builder.config("spark.sql.shuffle.partitions", "2").getOrCreate()


def natively(spark: Any, table: Table, said: Any) -> tuple[int, list[Any]]:
    """How many files Spark's own reader read, and all rows."""
    found = engine.read(spark, table, native_reads=said)
    return len(found.inputFiles()), sorted(tuple(row) for row in found.collect())


def main(url: str) -> None:
    spark = session()
    table, frame = Table.create(url, SPEC, settings=SETTINGS), partial(spark_tables.frame, spark)

    engine.append(table, frame((1, "a", 1), (2, "a", 2), (3, "b", 3)))
    after = table.history()[-1].completion
    engine.upsert(table, frame((2, "a", 20), (4, "c", 4)), frame((3, "b", 0)).drop("value"))
    feed = engine.changes(spark, table, after=after)
    clauses = engine.MatchedUpdate({"value": "t.value + s.value"}), engine.NotMatchedInsert()
    engine.merge(table, frame((1, "a", 5), (9, "d", 9)), *clauses)
    engine.delete(spark, table, "value = 20")
    engine.insert_overwrite(table, frame((CHANGED, "c", 0)))
    seen = {
        "session": type(spark).__module__,
        "rows": sorted(tuple(row) for row in engine.read(spark, table, filter="value > 0 or id = 7").collect()),
        "natively": [natively(spark, table, said) for said in ("auto", True)],
        "changes": sorted(tuple(row) for row in feed.rows.collect()),
        "raised": [],
    }
    try:
        engine.upsert(table, frame((None, "a", 1)))
    except InvalidRecords as error:
        seen["raised"].append(str(error))
    late = table.transaction()
    engine.write(late, upserts=frame((CHANGED, "c", 1)))
    table.transact(lambda txn: arrow.write(txn, upserts=Scan(txn, partitions=["c"]).to_arrow()))
    try:
        late.commit()
    except WriteConflict as error:
        seen["raised"].append(type(error).__name__)
        late.rollback()
    tell(seen)
    spark.stop()


if __name__ == "__main__":
    main(sys.argv[1])
