"""What do append, upsert, MERGE and reads cost by Spark and Dask, next to Parquet, Delta and JVM Hudi?

    python -m benchmarks.frames           # --rows, --repeat, --only, --driver-memory, --json; needs Maven for the jars

Append: so many rows of 8 columns into a new table. Upsert: a tenth as many by key, a fifth of them new, all over the
table. MERGE: as many, the latest keys and new ones; what is there is added to. Then all columns of all rows are read,
and the sum of one column of a hundredth of the keys. Dask has no MERGE: it joins, and upserts. Each client's result is
read again and must be right. Local disk, one process a client, which stays; they take turns, and of the rounds the
least seconds count. Memory is the most that driver and Python had: VmHWM of the JVM, of the driver's Python and of its
workers (local mode: the executor is in the driver).

Not to be fooled: Delta and JVM Hudi have no release for this project's Spark. They run in the older one that they
support, and so each client is compared with the Parquet of its own engine. A table has more in its files than bare
Parquet, which nobody else could read while it is replaced. Delta keeps no keys: a key that is there twice is its
user's matter. Nothing of Delta, JVM Hudi or Parquet is synced to the disk; each of our files is.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks.frames_children import CLIENTS, OPERATIONS
from benchmarks.table_bulk import ROOT, Client, turned

TESTS = str(ROOT / "tests")
DELTA = "3.3.2"
DELTA_JARS = (
    f"io.delta:delta-spark_2.12:{DELTA}",
    f"io.delta:delta-storage:{DELTA}",
    "org.antlr:antlr4-runtime:4.9.3",
)
WHAT = {"append": "append", "upsert": "upsert", "merge": "MERGE", "read": "read all", "filter": "read few keys"}
OLDER = "older Spark"


def settings(name: str) -> dict[str, str]:
    """Return Spark's settings for this client, as its documentation says; empty for this library. May fetch jars.

    Raises:
        Missing: its jars cannot be had.
    """
    from jvm import spark as jvm_spark
    from jvm.artifacts import jars, joined

    if name.startswith("Delta"):
        return {
            "spark.driver.extraClassPath": joined(jars(f"delta-spark-{DELTA}", DELTA_JARS)),
            "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
            "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
        }
    if name.startswith("JVM Hudi"):
        return {
            "spark.driver.extraClassPath": joined(jars("hudi-spark-1.2.0", jvm_spark.JARS)),
            "spark.serializer": "org.apache.spark.serializer.KryoSerializer",
            "spark.kryo.registrator": "org.apache.spark.HoodieSparkKryoRegistrar",
            "spark.sql.extensions": "org.apache.spark.sql.hudi.HoodieSparkSessionExtension",
            "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.hudi.catalog.HoodieCatalog",
        }
    return {}


def environment(name: str, memory: str, folder: Path) -> dict[str, str]:
    """Return the variables of this client's process: its Spark's settings, memory and version; empty for Dask.

    Raises:
        Missing: its jars cannot be had.
    """
    if name.endswith("Dask"):
        return {}
    given = settings(name) | {
        "spark.driver.memory": memory,
        "spark.local.dir": str(folder),
        "spark.sql.warehouse.dir": str(folder / name.replace(" ", "_")),
    }
    words = [f"--conf {key}={value}" for key, value in given.items()]
    found = {"PYSPARK_SUBMIT_ARGS": " ".join([f"--driver-memory {memory}", *words, "pyspark-shell"])}
    if name.endswith(OLDER):
        from jvm import spark as jvm_spark

        found["PYTHONPATH"] = os.pathsep.join([str(jvm_spark.pyspark()), os.environ.get("PYTHONPATH", "")])
    return found


def measure(names: list[str], rows: int, repeat: int, memory: str) -> dict[str, list[Any]]:
    """Run each client in each round; return costs by client, a list entry for each round.

    A client without jars is reported and left out. Prints progress on stderr.
    """
    from jvm.artifacts import Missing

    found: dict[str, list[Any]] = {}
    with tempfile.TemporaryDirectory(prefix="frames-") as folder, contextlib.ExitStack() as stack:
        clients = {}
        for name in names:
            try:
                told = environment(name, memory, Path(folder))
            except Missing as error:
                print(f"{name} is left out: {error}", file=sys.stderr)
                continue
            made = Client(name, rows, None, "benchmarks.frames_children", told)
            clients[name] = stack.enter_context(contextlib.closing(made))
        for number in range(repeat):
            for name in turned(tuple(clients), number):
                place = f"{folder}/table{[*CLIENTS].index(name)}_{number}"
                found.setdefault(name, []).append(clients[name].costs(place))
                print(f"round {number + 1}: {name}", file=sys.stderr)
    return found


def lines(found: dict[str, list[Any]]) -> Iterator[str]:
    """Markdown: seconds of each client, with the ratio to the Parquet of its own engine."""
    peers = [name for name in CLIENTS if name in found and not name.startswith("Parquet")]
    yield f"| | {' | '.join(peers)} |"
    yield "|---" * (1 + len(peers)) + "|"
    for operation in OPERATIONS:
        yield f"| {WHAT[operation]} | {' | '.join(_cell(found, name, operation) for name in peers)} |"


def _cell(found: dict[str, list[Any]], name: str, operation: str) -> str:
    """Format the seconds of a client, with the ratio to Parquet if that was measured."""
    bare, figure = f"Parquet, {name.rpartition(', ')[2]}", _least(found[name], operation)
    ratio = f" ({figure / _least(found[bare], operation):.2f}x)" if bare in found else ""
    return f"{figure:.2f}{ratio}"


def _least(rounds: list[Any], operation: str) -> float:
    """Return the least seconds of all rounds."""
    return min(float(one[operation]["wall_s"]) for one in rounds)


def main() -> None:
    """Measure the chosen clients, and print a Markdown table or JSON."""
    sys.path.insert(0, TESTS)
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--only", nargs="*", choices=[*CLIENTS], default=[*CLIENTS])
    parser.add_argument("--driver-memory", default="2g")
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    found = measure(given.only, given.rows, given.repeat, given.driver_memory)
    print(json.dumps(found) if given.json else "\n".join(lines(found)))


if __name__ == "__main__":
    main()
