"""Run under the PySpark that JVM Hudi supports: reads and writes tables as told on stdin, a line of JSON each.

Nothing of the project is imported here: it is another Python environment.
"""

from __future__ import annotations

import datetime as dt
import decimal
import json
import os
import sys
from typing import Any

from pyspark.sql import SparkSession, functions
from pyspark.sql.types import Row


def main() -> None:
    asked = json.loads(sys.stdin.readline())
    builder = SparkSession.builder.master("local[2]")
    for name, value in asked["conf"].items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    answer({"ok": "ready"})
    for line in sys.stdin:
        call = json.loads(line)
        try:
            answer({"ok": CALLS[call.pop("do")](spark, **call)})
        except Exception as error:  # noqa: BLE001 (told to the test)
            answer(
                {"error": causes(getattr(error, "java_exception", None)) or f"{type(error).__name__}: {error}"[:20_000]}
            )
    os._exit(0)  # closing stdin is killing it: nothing is cleaned up


def answer(told: dict[str, Any]) -> None:
    ANSWERS.write(json.dumps(told) + "\n")
    ANSWERS.flush()


def causes(error: Any) -> str:
    """What a Java exception says, and what it says it comes from."""
    said = []
    while error is not None and len(said) < 10:
        said.append(str(error.toString()))
        error = error.getCause()
    return "\ncaused by ".join(said)


def read(
    spark: SparkSession, url: str, *, columns: list[str], where: str | None, options: dict[str, str]
) -> list[list[Any]]:
    """The columns are SQL: a cast to string is for what Python has no value of."""
    frame = spark.read.format("hudi").options(**options).load(url)
    if where is not None:
        frame = frame.where(where)
    return [[plain(value) for value in row] for row in frame.selectExpr(*columns).collect()]


def write(
    spark: SparkSession,
    url: str,
    *,
    schema: str,
    rows: list[list[Any]],
    options: dict[str, str],
    gate: str | None,
    select: list[str] | None,
) -> str:
    frame = spark.createDataFrame([tuple(row) for row in rows], schema)
    if select is not None:
        frame = frame.selectExpr(*select)
    if gate is not None:
        passed = functions.expr(f"java_method('jvm.Gate', 'pass', '{gate}')")
        frame = frame.where(passed.isNotNull())
    frame.write.format("hudi").options(**options).mode("append").save(url)
    return ""


def save(spark: SparkSession, *, statement: str, url: str, options: dict[str, str]) -> str:
    spark.sql(statement).write.format("hudi").options(**options).mode("append").save(url)
    return ""


def set_zone(spark: SparkSession, *, zone: str) -> str:
    zones = spark._jvm.java.util.TimeZone
    zones.setDefault(zones.getTimeZone(zone))
    return ""


def sql(spark: SparkSession, *, statement: str) -> list[list[Any]]:
    return [[plain(value) for value in row] for row in spark.sql(statement).collect()]


def buckets(spark: SparkSession, *, fields: str, keys: list[str], count: int) -> list[int]:
    """The bucket of each record key, as the bucket index has it."""
    identifier = spark._jvm.org.apache.hudi.index.bucket.BucketIdentifier
    return [identifier.getBucketId(key, fields, count) for key in keys]


def archived(spark: SparkSession, *, url: str) -> list[list[Any]]:
    """What its archived timeline tells: begin, completion, action, and the content of the completed file."""
    conf = spark._jvm.org.apache.hudi.storage.hadoop.HadoopStorageConfiguration(spark._jsc.hadoopConfiguration())
    client = spark._jvm.org.apache.hudi.common.table.HoodieTableMetaClient.builder()
    timeline = client.setConf(conf).setBasePath(url).build().getArchivedTimeline()
    timeline.loadCompletedInstantDetailsInMemory()
    return [
        [
            one.requestedTime(),
            one.getCompletionTime(),
            one.getAction(),
            bytes(timeline.getInstantDetails(one).get()).hex(),
        ]
        for one in timeline.getInstants()
    ]


def plain(value: Any) -> Any:  # noqa: PLR0911 (a table)
    """As JSON has it: numbers with a scale as text, times as ISO, maps as sorted pairs."""
    if isinstance(value, Row):
        return [plain(each) for each in value]
    if isinstance(value, dict):
        return sorted([plain(key), plain(each)] for key, each in value.items())
    if isinstance(value, list):
        return [plain(each) for each in value]
    if isinstance(value, (bytes, bytearray)):
        return value.hex()
    if isinstance(value, decimal.Decimal):
        return str(value)
    if isinstance(value, (dt.date, dt.datetime)):
        return value.isoformat()
    return value


CALLS = {
    "read": read,
    "write": write,
    "save": save,
    "set_zone": set_zone,
    "sql": sql,
    "buckets": buckets,
    "archived": archived,
}
# Whatever a library prints is no answer.
ANSWERS = os.fdopen(os.dup(1), "w")
os.dup2(2, 1)

if __name__ == "__main__":
    main()
