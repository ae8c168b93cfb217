"""What does a transaction cost a PySpark pipeline, against Spark writing bare Parquet files?

    python -m benchmarks.table_spark [--rows 2000000] [--repeat 3]

Append: the same rows as `df.write.parquet` writes, plus keys, Hudi's columns, bloom filters and the commit. Upsert: a
tenth of the rows (four fifths of them known) against what one would do without a table format: anti-join, union, and
all files written again. All of it in one run on one session, on local disk, after one warm-up of each: a first job pays
for Python workers and JIT. Seconds are the best of `--repeat`; CPU seconds are those of this process, its JVM and all
Python workers, and say more than seconds on a machine that others use too.
"""

from __future__ import annotations

import argparse
import os
import shutil
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql import functions as F  # noqa: N812

from lockprovider.table import Table, TableSpec
from lockprovider.table.engines import spark as engine
from lockprovider.table.engines.java import spark_session

SCHEMA = pa.schema(
    [
        ("id", pa.int64()),
        ("name", pa.string()),
        ("part", pa.string()),
        ("at", pa.timestamp("us", "UTC")),
        ("count", pa.int32()),
        ("value", pa.float64()),
        ("flag", pa.bool_()),
        ("hash", pa.string()),
    ]
)
FILES = 4


def rows(spark: Any, first: int, count: int, step: int = 1) -> Any:
    """Rows of 8 columns, with the ids first, first + step, ..."""
    numbers = spark.range(first, first + count * step, step, FILES)
    return numbers.select(
        "id",
        F.concat(F.lit("name-"), F.col("id") % 1000).alias("name"),
        (F.col("id") % 8).cast("string").alias("part"),
        F.timestamp_micros(F.lit(1_700_000_000_000_000) + F.col("id") * 1000).alias("at"),
        (F.col("id") % 97).cast("int").alias("count"),
        (F.col("id") / 7).alias("value"),
        (F.col("id") % 2 == 0).alias("flag"),
        F.sha1(F.col("id").cast("string")).alias("hash"),
    )


@dataclass(frozen=True)
class Cost:
    """Of one run: seconds that passed, and CPU seconds of the process tree."""

    wall_s: float
    cpu_s: float


def cpu_s() -> float:
    """CPU seconds so far, of this process and its living descendants (Linux)."""
    stats = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = path.read_text().rpartition(")")[2].split()
        except OSError:
            continue  # gone meanwhile
        stats[int(path.parent.name)] = (int(fields[1]), sum(map(int, fields[11:15])))
    mine = {os.getpid()}
    while more := {pid for pid, (parent, _) in stats.items() if parent in mine} - mine:
        mine |= more
    return sum(stats[pid][1] for pid in mine) / os.sysconf("SC_CLK_TCK")


def best(repeat: int, run: Callable[[Path], object], folder: Path) -> Cost:
    """Each run in a folder of its own, the first one not counted."""
    costs = []
    for number in range(repeat + 1):
        cpu, begin = cpu_s(), time.perf_counter()
        run(folder / str(number))
        costs.append(Cost(time.perf_counter() - begin, cpu_s() - cpu))
    return Cost(min(one.wall_s for one in costs[1:]), min(one.cpu_s for one in costs[1:]))


def main() -> None:
    """Run it."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=2_000_000)
    parser.add_argument("--repeat", type=int, default=3)
    given = parser.parse_args()
    spark = spark_session("benchmark", cores=2, java_options="")
    folder = Path(tempfile.mkdtemp(prefix="table-spark-"))
    try:
        appends(spark, given.rows, given.repeat, folder)
        upserts(spark, given.rows, given.repeat, folder)
    finally:
        spark.stop()
        shutil.rmtree(folder)


def appends(spark: Any, count: int, repeat: int, folder: Path) -> None:
    """All rows into an empty table."""
    bare = best(repeat, lambda place: rows(spark, 0, count).write.parquet(str(place)), folder / "bare")
    ours = best(repeat, lambda place: engine.append(made(place), rows(spark, 0, count)), folder / "ours")
    report(f"append {count} rows", bare, ours)


def made(place: Path) -> Table:
    """An empty table."""
    return Table.create(str(place), TableSpec("bench", SCHEMA, ("id",)))


def upserts(spark: Any, count: int, repeat: int, folder: Path) -> None:
    """A tenth of the rows into a table that has them all."""
    plain = folder / "plain"
    rows(spark, 0, count).write.parquet(str(plain))
    table = made(folder / "table")
    engine.append(table, rows(spark, 0, count))
    tenth = count // 10
    recent = rows(spark, count - tenth * 4 // 5, tenth)
    spread = rows(spark, 0, tenth * 4 // 5, 11).unionByName(rows(spark, count, tenth // 5))

    def rewrite(news: Any) -> Callable[[Path], None]:
        def run(place: Path) -> None:
            old = spark.read.parquet(str(plain))
            old.join(news, "id", "left_anti").unionByName(news).write.parquet(str(place))

        return run

    def upsert(news: Any) -> Callable[[Path], None]:
        def run(place: Path) -> None:
            del place
            txn = table.transaction()  # not committed: each run meets the same table
            engine.write(txn, upserts=news)
            txn.rollback()

        return run

    for name, news in (("recent", recent), ("all over", spread)):
        bare = best(repeat, rewrite(news), folder / f"bare-{name}")
        report(f"upsert {tenth} rows, {name}, into {count}", bare, best(repeat, upsert(news), folder))


def report(what: str, plain: Cost, ours: Cost) -> None:
    """One line."""
    print(
        f"{what}: Spark's Parquet {plain.wall_s:.2f} s, {plain.cpu_s:.2f} CPU s; table {ours.wall_s:.2f} s, "
        f"{ours.cpu_s:.2f} CPU s; ratio {ours.wall_s / plain.wall_s:.2f}, of CPU {ours.cpu_s / plain.cpu_s:.2f}",
        flush=True,
    )


if __name__ == "__main__":
    main()
