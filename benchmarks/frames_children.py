"""One client of `benchmarks.frames`, in a process of its own: it does what it is told, and says what that took.

Told as `benchmarks.table_bulk_children` is. The peers' processes have another PySpark on their path: whichever this
project needs is imported where it is used.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from benchmarks.table_bulk_children import (
    FILES,
    SPEC,
    SparkTable,
    Work,
    arrow_rows,
    main,
    measured,
)
from lockprovider.table import Table

OPERATIONS = ("append", "upsert", "merge", "read", "filter")
ROWS_OF = {"append": "append", "upsert": "all over", "merge": "recent"}  # as `Work` calls them
WARM_ROWS = 1000
ADDED = "t.`count` + s.`count`"  # what a MERGE makes of a row that is there


@dataclass(frozen=True)
class Frames(Work):
    """How many rows. The upsert replaces rows; the MERGE adds to those that are there, and inserts the others."""

    @property
    def expected(self) -> tuple[int, int]:
        """In the end: how many rows, and the sum of `count`."""
        counts = np.zeros(self.rows + 2 * self.new, dtype=np.int64)
        for version, operation in enumerate(("append", "all over", "recent")):
            for ids in map(np.array, self.ranges(operation)):
                given = ids % 97 + version
                counts[ids] = counts[ids] + given if operation == "recent" else given
        return len(counts), int(counts.sum())


@dataclass
class Spark(SparkTable):
    """What all clients with Spark have; each has a place for its table."""

    def do(self, operation: str, place: str, rows: Any) -> None:
        """One commit, or one read."""
        if operation == "read":
            self.frame(place).write.format("noop").mode("overwrite").save()
        elif operation == "filter":
            self.frame(place).where(f"id < {self.work.rows // 100}").selectExpr("sum(`count`)").collect()
        else:
            getattr(self, operation)(place, rows)

    def look(self, place: str) -> tuple[int, int]:
        """As `Frames.expected`."""
        found = self.frame(place).selectExpr("count(*)", "sum(`count`)").first()
        assert found is not None
        return found[0], found[1]

    def rows(self, operation: str) -> Any:
        """Made by each job that reads them."""
        return super().rows(ROWS_OF[operation]) if operation in ROWS_OF else None

    def frame(self, place: str) -> Any:
        """All rows of the table."""
        raise NotImplementedError

    def merge_sql(self, target: str, rows: Any) -> None:
        """By a statement of Spark SQL."""
        rows.createOrReplaceTempView("source")
        self.spark.sql(
            f"merge into {target} t using source s on t.id = s.id "
            f"when matched then update set `count` = {ADDED} when not matched then insert *"
        ).collect()


class Ours(Spark):
    """This project's Spark engine."""

    def append(self, place: str, rows: Any) -> None:
        from lockprovider.table.engines import spark as engine

        engine.append(Table.create(place, SPEC), rows)

    def upsert(self, place: str, rows: Any) -> None:
        from lockprovider.table.engines import spark as engine

        engine.upsert(Table.open(place), rows)

    def merge(self, place: str, rows: Any) -> None:
        from lockprovider.table.engines import spark as engine

        clauses = (engine.MatchedUpdate({"count": "t.count + s.count"}), engine.NotMatchedInsert())
        engine.merge(Table.open(place), rows, *clauses)

    def frame(self, place: str) -> Any:
        from lockprovider.table.engines import spark as engine

        return engine.read(self.spark, Table.open(place))


class SparkParquet(Spark):
    """Without a table format: all files are written again, each time into a folder of its own."""

    def append(self, place: str, rows: Any) -> None:
        rows.write.parquet(f"{place}/0")

    def upsert(self, place: str, rows: Any) -> None:
        old = self.spark.read.parquet(f"{place}/0")
        old.join(rows, "id", "left_anti").unionByName(rows).write.parquet(f"{place}/1")

    def merge(self, place: str, rows: Any) -> None:
        old = self.spark.read.parquet(f"{place}/1")
        joined = old.alias("t").join(rows.alias("s"), "id", "full_outer")
        names = [name for name in rows.columns if name not in {"id", "count"}]
        kept = [f"coalesce(t.`{name}`, s.`{name}`) as `{name}`" for name in names]
        counted = f"coalesce({ADDED}, t.`count`, s.`count`) as `count`"
        joined.selectExpr("id", *kept, counted).write.parquet(f"{place}/2")

    def frame(self, place: str) -> Any:
        return self.spark.read.parquet(f"{place}/2")


class Delta(Spark):
    """Delta Lake, as it comes."""

    def append(self, place: str, rows: Any) -> None:
        rows.write.format("delta").save(place)

    def upsert(self, place: str, rows: Any) -> None:
        rows.createOrReplaceTempView("source")
        self.spark.sql(
            f"merge into delta.`{place}` t using source s on t.id = s.id "
            "when matched then update set * when not matched then insert *"
        ).collect()

    def merge(self, place: str, rows: Any) -> None:
        self.merge_sql(f"delta.`{place}`", rows)

    def frame(self, place: str) -> Any:
        return self.spark.read.format("delta").load(place)


class Hudi(Spark):
    """JVM Hudi, as it comes; the append is its `bulk_insert`."""

    def append(self, place: str, rows: Any) -> None:
        self._save(place, rows, "bulk_insert", "overwrite")

    def upsert(self, place: str, rows: Any) -> None:
        self._save(place, rows, "upsert", "append")

    def merge(self, place: str, rows: Any) -> None:
        name = Path(place).name.replace("-", "_")
        self.spark.sql(f"create table if not exists {name} using hudi location '{place}'").collect()
        self.merge_sql(name, rows)

    def frame(self, place: str) -> Any:
        return self.spark.read.format("hudi").load(place)

    @staticmethod
    def _save(place: str, rows: Any, operation: str, mode: str) -> None:
        options = {
            "hoodie.table.name": Path(place).name.replace("-", "_"),
            "hoodie.datasource.write.recordkey.field": "id",
            "hoodie.datasource.write.operation": operation,
        }
        rows.write.format("hudi").options(**options).mode(mode).save(place)


# -- Dask --------------------------------------------------------------------------------------------------------------


@dataclass
class OursInDask:
    """This project's Dask engine, with Dask's threads."""

    work: Work
    options: dict[str, Any] | None = None

    def rows(self, operation: str) -> Any:
        """Make an operation's rows as a Dask frame, in memory; None for an operation without rows."""
        import pandas as pd
        from dask import dataframe as dd

        if operation not in ROWS_OF:
            return None
        made = arrow_rows(self.work, ROWS_OF[operation]).to_pandas(types_mapper=pd.ArrowDtype)
        return dd.from_pandas(made, npartitions=FILES)

    def do(self, operation: str, place: str, rows: Any) -> None:
        """One commit, or one read."""
        if operation == "read":
            self.frame(place).map_partitions(_length).compute()
        elif operation == "filter":
            self.few(place)["count"].sum().compute()
        else:
            getattr(self, operation)(place, rows)

    def append(self, place: str, rows: Any) -> None:
        from lockprovider.table.engines import dask as engine

        engine.append(Table.create(place, SPEC), rows)

    def upsert(self, place: str, rows: Any) -> None:
        from lockprovider.table.engines import dask as engine

        engine.upsert(Table.open(place), rows)

    def merge(self, place: str, rows: Any) -> None:
        from lockprovider.table.engines import dask as engine

        table = Table.open(place)
        engine.upsert(table, added(engine.read(table.scan(["id", "count"])), rows))

    def frame(self, place: str) -> Any:
        """All rows of the table."""
        from lockprovider.table.engines import dask as engine

        return engine.read(Table.open(place))

    def few(self, place: str) -> Any:
        """The rows of few keys."""
        from lockprovider.table.engines import dask as engine

        return engine.read(Table.open(place).scan(["id", "count"], f"id < {self.work.rows // 100}"))

    def look(self, place: str) -> tuple[int, int]:
        """As `Frames.expected`."""
        counts = self.frame(place)["count"]
        return len(counts), int(counts.sum().compute())


class DaskParquet(OursInDask):
    """Without a table format: all files are written again, each time into a folder of its own."""

    def append(self, place: str, rows: Any) -> None:
        rows.to_parquet(f"{place}/0")

    def upsert(self, place: str, rows: Any) -> None:
        self._replaced(f"{place}/0", rows).to_parquet(f"{place}/1")

    def merge(self, place: str, rows: Any) -> None:
        old = f"{place}/1"
        self._replaced(old, added(self._read(old)[["id", "count"]], rows)).to_parquet(f"{place}/2")

    def frame(self, place: str) -> Any:
        return self._read(f"{place}/2")

    def few(self, place: str) -> Any:
        from dask import dataframe as dd

        filters = [("id", "<", self.work.rows // 100)]
        return dd.read_parquet(f"{place}/2", columns=["id", "count"], filters=filters, dtype_backend="pyarrow")

    def _replaced(self, place: str, rows: Any) -> Any:
        from dask import dataframe as dd

        kept = self._read(place).merge(rows[["id"]].assign(is_new=1), on="id", how="left")
        return dd.concat([kept[kept.is_new.isna()].drop(columns="is_new"), rows])

    @staticmethod
    def _read(place: str) -> Any:
        from dask import dataframe as dd

        return dd.read_parquet(place, dtype_backend="pyarrow")


def added(old: Any, rows: Any) -> Any:
    """The rows, with what the table has counted so far."""
    old = old.rename(columns={"count": "so_far"}).astype({"id": rows.dtypes["id"]})
    joined = rows.merge(old, on="id", how="left")
    return joined.assign(count=joined["count"] + joined.so_far.fillna(0)).drop(columns="so_far")[SPEC.schema.names]


def _length(part: Any) -> Any:
    import pandas as pd

    return pd.Series([len(pa.Table.from_pandas(part))])


CLIENTS: dict[str, Callable[[Work, dict[str, Any] | None], Any]] = {
    "lockprovider, Spark": Ours,
    "Parquet, Spark": SparkParquet,
    "Delta, older Spark": Delta,
    "JVM Hudi, older Spark": Hudi,
    "Parquet, older Spark": SparkParquet,
    "lockprovider, Dask": OursInDask,
    "Parquet, Dask": DaskParquet,
}


def session(
    name: str, rows: int, options: dict[str, Any] | None, places: Iterator[str]
) -> Iterator[dict[str, dict[str, float]]]:
    """Yield, for each place, the costs of all operations there, one after the other.

    Before the first place, runs them with few rows, to warm up.
    """
    client = CLIENTS[name](Frames(rows), options)
    for number, place in enumerate(places):
        if number == 0:
            client.work = Frames(WARM_ROWS)
            _round(name, client, f"{place}-warm")
            client.work = Frames(rows)
        yield _round(name, client, place)


def _round(name: str, client: Any, place: str) -> dict[str, dict[str, float]]:
    """Run all operations in one place, check the rows, remove the table, and return the costs by operation.

    SystemExit: wrong rows.
    """
    costs = {}
    for operation in OPERATIONS:
        rows = client.rows(operation)
        costs[operation] = asdict(measured(partial(client.do, operation, place, rows)))
        del rows
    if (found := client.look(place)) != client.work.expected:
        raise SystemExit(f"{name}: rows and sum are {found}, not {client.work.expected}")
    shutil.rmtree(place)
    return costs


if __name__ == "__main__":
    main(session)
