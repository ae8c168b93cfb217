"""One client of `benchmarks.table_bulk`, in a process of its own: it does what it is told, and says what that took.

Told by lines of JSON on standard input: first the task, then one operation a line; one line of answer each.
"""

from __future__ import annotations

import gc
import json
import os
import shutil
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyarrow import fs as arrow_fs

from lockprovider.table import Table, TableSpec

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
SPEC = TableSpec("bench", SCHEMA, ("id",))
OPERATIONS = ("append", "all over", "recent")
FILES = 4  # Spark's partitions
EPOCH_US = 1_700_000_000_000_000
WARM_ROWS = 1000


@dataclass(frozen=True)
class Cost:
    """Of one operation: seconds, CPU seconds of the process tree, and the most memory that it had, in MB."""

    wall_s: float
    cpu_s: float
    peak_mb: float


@dataclass(frozen=True)
class Work:
    """How many rows: an upsert is of a tenth as many, and a fifth of these are new.

    The first upsert's known keys are all over the table, the second one's are the latest.
    """

    rows: int

    @property
    def new(self) -> int:
        """Keys that an upsert adds."""
        return self.rows // 50

    def ranges(self, operation: str) -> tuple[range, ...]:
        """Return the ids of an operation: all, spread old ones with new ones, or the last old ones with new ones."""
        known = self.rows // 10 - self.new
        match operation:
            case "append":
                return (range(self.rows),)
            case "all over":
                step = self.rows // known
                return (range(0, known * step, step), range(self.rows, self.rows + self.new))
            case _:
                end = self.rows + 2 * self.new
                return (range(end - self.new - known, end),)

    @property
    def expected(self) -> tuple[int, int]:
        """In the end: how many rows, and the sum of `count`."""
        counts = np.zeros(self.rows + 2 * self.new, dtype=np.int64)
        for version, operation in enumerate(OPERATIONS):
            for ids in map(np.array, self.ranges(operation)):
                counts[ids] = ids % 97 + version
        return len(counts), int(counts.sum())


# -- measuring (Linux) -------------------------------------------------------------------------------------------------


def tree() -> dict[int, float]:
    """Return the CPU seconds of this process and each descendant, with those of ended children, by process id."""
    found = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = path.read_text().rpartition(")")[2].split()
        except OSError:
            continue  # gone meanwhile
        found[int(path.parent.name)] = (int(fields[1]), sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK"))
    mine = {os.getpid()}
    while more := {pid for pid, (parent, _) in found.items() if parent in mine} - mine:
        mine |= more
    return {pid: found[pid][1] for pid in mine}


def forget_peaks() -> None:
    """From now on the peak is that of what follows."""
    for pid in tree():
        Path(f"/proc/{pid}/clear_refs").write_text("5")


def peak_mb() -> float:
    """Resident memory of all at their peaks."""
    lines = (line for pid in tree() for line in Path(f"/proc/{pid}/status").read_text().splitlines())
    return sum(int(line.split()[1]) for line in lines if line.startswith("VmHWM")) / 1024


def measured(run: Callable[[], object]) -> Cost:
    """Run it once."""
    gc.collect()
    forget_peaks()
    cpu_s, begin_s = sum(tree().values()), time.perf_counter()
    run()
    return Cost(time.perf_counter() - begin_s, sum(tree().values()) - cpu_s, peak_mb())


# -- rows in this process ----------------------------------------------------------------------------------------------


def arrow_rows(work: Work, operation: str) -> pa.Table:
    """Make the rows of an operation, the same each time; those of an upsert are shuffled."""
    rng = np.random.default_rng(1)
    ids = np.concatenate([np.array(one) for one in work.ranges(operation)])
    if operation != "append":
        rng.shuffle(ids)
    text = rng.bytes(20 * len(ids)).hex().encode()
    offsets = np.arange(0, len(text) + 1, 40, dtype=np.int32)
    columns = [
        pa.array(ids),
        pc.binary_join_element_wise("name", pa.array(ids % 1000).cast(pa.string()), "-"),
        pa.array(ids % 8).cast(pa.string()),
        pa.array(EPOCH_US + ids * 1000).cast(SCHEMA.field("at").type),
        pa.array((ids % 97 + OPERATIONS.index(operation)).astype(np.int32)),
        pa.array(ids / 7),
        pa.array(ids % 2 == 0),
        pa.StringArray.from_buffers(len(ids), pa.py_buffer(offsets), pa.py_buffer(text)),
    ]
    return pa.table(columns, schema=SCHEMA)


@dataclass
class Lockprovider:
    """This project's pyarrow engine."""

    work: Work
    options: dict[str, Any] | None

    def rows(self, operation: str) -> pa.Table:
        """Made before the clock starts."""
        return arrow_rows(self.work, operation)

    def do(self, operation: str, place: str, rows: pa.Table) -> None:
        """One commit."""
        if operation == "append":
            Table.create(place, SPEC, storage_options=self.options).append(rows)
        else:
            Table.open(place, storage_options=self.options).upsert(rows)

    def look(self, place: str) -> tuple[int, int]:
        """As `Work.expected`."""
        return sums(Table.open(place, storage_options=self.options).to_arrow(["count"]))


@dataclass
class Deltalake(Lockprovider):
    """delta-rs."""

    @cached_property
    def storage(self) -> dict[str, str] | None:
        """Deltalake's names of the storage options; None: local."""
        if self.options is None:
            return None
        return {
            "AWS_ENDPOINT_URL": self.options["endpoint_url"],
            "AWS_ACCESS_KEY_ID": self.options["key"],
            "AWS_SECRET_ACCESS_KEY": self.options["secret"],
            "AWS_REGION": self.options["client_kwargs"]["region_name"],
            "AWS_ALLOW_HTTP": "true",
            "aws_conditional_put": "etag",
        }

    def do(self, operation: str, place: str, rows: pa.Table) -> None:
        """Commit the rows: append, or merge by id."""
        import deltalake

        if operation == "append":
            deltalake.write_deltalake(place, rows, storage_options=self.storage)
            return
        table = deltalake.DeltaTable(place, storage_options=self.storage)
        merge = table.merge(rows, "t.id = s.id", source_alias="s", target_alias="t")
        merge.when_matched_update_all().when_not_matched_insert_all().execute()

    def look(self, place: str) -> tuple[int, int]:
        """As `Work.expected`."""
        import deltalake

        return sums(deltalake.DeltaTable(place, storage_options=self.storage).to_pyarrow_table(columns=["count"]))


@dataclass
class Pyarrow(Lockprovider):
    """One Parquet file, and for an upsert the next one: nothing else can read meanwhile, and nobody else write."""

    @cached_property
    def fs(self) -> Any:
        """Arrow's own file system for the storage options."""
        if self.options is None:
            return arrow_fs.LocalFileSystem()
        return arrow_fs.S3FileSystem(
            access_key=self.options["key"],
            secret_key=self.options["secret"],
            region=self.options["client_kwargs"]["region_name"],
            endpoint_override=self.options["endpoint_url"],
            scheme="http",
        )

    def path(self, place: str, operation: str) -> str:
        """Of the file that an operation makes."""
        folder = place.rpartition("://")[2]
        self.fs.create_dir(folder)
        return f"{folder}/{operation}.parquet"

    def do(self, operation: str, place: str, rows: pa.Table) -> None:
        """One file."""
        if operation != "append":
            before = self.path(place, OPERATIONS[OPERATIONS.index(operation) - 1])
            old = pq.read_table(before, filesystem=self.fs)
            kept = pc.invert(pc.is_in(old["id"], value_set=rows["id"]))
            rows = pa.concat_tables([old.filter(kept), rows])
        pq.write_table(rows, self.path(place, operation), filesystem=self.fs)

    def look(self, place: str) -> tuple[int, int]:
        """As `Work.expected`."""
        return sums(pq.read_table(self.path(place, OPERATIONS[-1]), columns=["count"], filesystem=self.fs))


def sums(rows: pa.Table) -> tuple[int, int]:
    """How many, and the sum of `count`."""
    return rows.num_rows, pc.sum(rows["count"]).as_py()


# -- rows in Spark -----------------------------------------------------------------------------------------------------


@dataclass
class SparkTable:
    """This project's Spark engine."""

    work: Work
    options: dict[str, Any] | None

    @cached_property
    def spark(self) -> Any:
        """The session."""
        from lockprovider.table.engines.java import spark_session

        return spark_session("benchmark", cores=2, java_options="")

    def rows(self, operation: str) -> Any:
        """Return a Spark frame of an operation's rows, computed anew by each job that reads it."""
        from pyspark.sql import functions as F  # noqa: N812

        parts = [
            self.spark.range(ids.start, ids.stop, ids.step, FILES if n == 0 else 1)
            for n, ids in enumerate(self.work.ranges(operation))
        ]
        ids = parts[0] if len(parts) == 1 else parts[0].unionByName(parts[1])
        return ids.select(
            "id",
            F.concat(F.lit("name-"), F.col("id") % 1000).alias("name"),
            (F.col("id") % 8).cast("string").alias("part"),
            F.timestamp_micros(F.lit(EPOCH_US) + F.col("id") * 1000).alias("at"),
            (F.col("id") % 97 + OPERATIONS.index(operation)).cast("int").alias("count"),
            (F.col("id") / 7).alias("value"),
            (F.col("id") % 2 == 0).alias("flag"),
            F.sha1(F.col("id").cast("string")).alias("hash"),
        )

    def do(self, operation: str, place: str, rows: Any) -> None:
        """One commit."""
        from lockprovider.table.engines import spark as engine

        if operation == "append":
            engine.append(Table.create(place, SPEC, storage_options=self.options), rows)
        else:
            engine.upsert(Table.open(place, storage_options=self.options), rows)

    def look(self, place: str) -> tuple[int, int]:
        """As `Work.expected`."""
        return sums(Table.open(place, storage_options=self.options).to_arrow(["count"]))


@dataclass
class SparkParquet(SparkTable):
    """What one would do without a table format: an upsert is an anti-join, a union, and all files written again."""

    def do(self, operation: str, place: str, rows: Any) -> None:
        """One folder."""
        if operation != "append":
            old = self.spark.read.parquet(f"{place}/{OPERATIONS[OPERATIONS.index(operation) - 1]}")
            rows = old.join(rows, "id", "left_anti").unionByName(rows)
        rows.write.parquet(f"{place}/{operation}")

    def look(self, place: str) -> tuple[int, int]:
        """As `Work.expected`."""
        return sums(pq.read_table(f"{place}/{OPERATIONS[-1]}", columns=["count"]))


CLIENTS: dict[str, Any] = {
    "lockprovider": Lockprovider,
    "deltalake": Deltalake,
    "pyarrow, one file": Pyarrow,
    "lockprovider in Spark": SparkTable,
    "Spark's Parquet": SparkParquet,
}


# -- the process -------------------------------------------------------------------------------------------------------


def session(name: str, work: Work, options: dict[str, Any] | None, places: Iterator[str]) -> Iterator[dict[str, Any]]:
    """Yield the costs of all operations in each place, after few rows to warm up; remove each table.

    SystemExit: the table has other rows than expected.
    """
    client, small = CLIENTS[name](work, options), CLIENTS[name](Work(WARM_ROWS), options)
    for number, place in enumerate(places):
        if number == 0:
            for operation in OPERATIONS:
                small.do(operation, f"{place}-warm", small.rows(operation))
            remove(f"{place}-warm", options)
        costs = {}
        for operation in OPERATIONS:
            rows = client.rows(operation)
            costs[operation] = asdict(measured(partial(client.do, operation, place, rows)))
            del rows
        found = client.look(place)
        if found != work.expected:
            raise SystemExit(f"{name}: rows and sum are {found}, not {work.expected}")
        remove(place, options)
        yield costs


def remove(place: str, options: dict[str, Any] | None) -> None:
    """All of it."""
    if options is None:
        shutil.rmtree(place)
    else:
        fs, path = fsspec.core.url_to_fs(place, **options)
        fs.rm(path, recursive=True)


Session = Callable[[str, int, dict[str, Any] | None, Iterator[str]], Iterator[dict[str, Any]]]


def main(run: Session = lambda name, rows, options, places: session(name, Work(rows), options, places)) -> None:
    """Answer until there is nothing more to do."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what libraries print is no answer
    task = json.loads(sys.stdin.readline())
    places = (line.strip() for line in sys.stdin)
    for costs in run(task["client"], task["rows"], task["options"], places):
        print(json.dumps(costs), file=answers, flush=True)


if __name__ == "__main__":
    main()
