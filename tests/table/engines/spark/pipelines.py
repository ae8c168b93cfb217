"""What random pipelines are made of: changes and what they do to a dict, each engine's writers and readers, streams."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import dask
import dask.dataframe as dd
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
from table.engines.spark.spark_tables import frame
from table.tables import SCHEMA, by_hudi_rs, rows

from lockprovider import LockSettings
from lockprovider.table import Table, TableEvent, TableSettings, TableSpec
from lockprovider.table.engines import dask as by_dask
from lockprovider.table.engines import spark as engine
from lockprovider.table.engines.spark.stream import batches

Triple = tuple[int, str, int]
Rows = dict[tuple[int, str], int]  # what a table should have: key and partition, value

PARTS, IDS, BASE = "abc", 40, 1000
SPAN = 15  # of the ids that a condition means
SETTINGS = TableSettings(lock=LockSettings(timeout=120))  # longer than the lease of a writer that was killed
KINDS: dict[str, dict[str, Any]] = {
    "copy on write": {},
    "copy on write, ordered": {"ordering": "value"},
    "buckets": {"buckets": 2},
    "merge on read": {"table_type": "merge_on_read", "ordering": "value"},
    "merge on read, buckets": {"table_type": "merge_on_read", "ordering": "value", "buckets": 2},
}
STREAM, OPERATION = "hudi_cas", "hoodie.datasource.write.operation"
MERGED = (
    engine.MatchedDelete("s.value % 5 = 0"),
    engine.MatchedUpdate({"value": "s.value + t.value % 10"}),
    engine.NotMatchedInsert(where="s.id % 2 = 0"),
)


def spec(kind: str, name: str = "pipes", *, keys: tuple[str, ...] = ("id",)) -> TableSpec:
    return TableSpec(name, SCHEMA, keys, ("part",), **KINDS[kind])


# -- changes -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Change:
    """One write: its verb, and what that verb takes. Values grow from change to change, as an ordering field asks."""

    verb: str
    rows: tuple[Triple, ...] = ()
    keys: tuple[tuple[int, str], ...] = ()
    parts: tuple[str, ...] = ()
    least: int = 0

    @property
    def where(self) -> str:
        return f"id >= {self.least} and id < {self.least + SPAN} and part <> '{self.parts[0]}'"

    def _is_meant(self, number: int, part: str) -> bool:
        """By `where`."""
        return self.least <= number < self.least + SPAN and part != self.parts[0]

    def done_to(self, there: Rows) -> Rows:
        """The table's rows after it."""
        new = {(key, part): value for key, part, value in self.rows}
        match self.verb:
            case "merge":
                return merged(there, new)
            case "overwrite":
                return new
            case "overwrite partitions":
                return {key: value for key, value in there.items() if key[1] not in self.parts} | new
            case "delete where":
                return {key: value for key, value in there.items() if not self._is_meant(*key)}
        gone = self.keys if self.verb in {"change", "delete keys"} else ()
        given = {} if self.verb == "delete keys" else new
        return {key: value for key, value in (there | given).items() if key not in gone}


def merged(there: Rows, new: Rows) -> Rows:
    """As `MERGED` has it."""
    found = dict(there)
    for key, value in new.items():
        if key not in there:
            if key[0] % 2 == 0:
                found[key] = value
        elif value % 5 == 0:
            del found[key]
        else:
            found[key] = value + there[key] % 10
    return found


def change(dice: random.Random, verb: str, there: Rows, base: int) -> Change:
    """A random one of this kind."""
    every = [(number, part) for number in range(IDS) for part in PARTS]
    parts = tuple(sorted(dice.sample(PARTS, dice.randint(1, 2))))
    may = [key for key in every if key not in there] if verb == "append" else every
    if verb == "overwrite partitions":
        may = [key for key in every if key[1] in parts]
    some = dice.sample(may, min(len(may), dice.choice((0, 1, 3, 20))))
    given = tuple((number, part, base * BASE + dice.randrange(100)) for number, part in some)
    if verb == "overwrite partitions" and dice.random() < 0.5:  # as the rows say
        parts = tuple(sorted({part for _, part in some})) or parts
    keys = tuple(dice.sample(every, dice.randint(1, 20)))
    return Change(verb, given, keys, parts, dice.randrange(IDS))


# -- writers: by engine, then by verb ----------------------------------------------------------------------------------

Writer = Callable[[Any, Table, Change], object]


def spark_rows(spark: Any, some: Change) -> Any:
    return frame(spark, *some.rows).repartition(1 + len(some.rows) % 3)


def spark_keys(spark: Any, some: Change) -> Any:
    return spark.createDataFrame([*some.keys], "id long, part string")


def frame_of(some: Change) -> pd.DataFrame:
    return rows(*some.rows).to_pandas(types_mapper=pd.ArrowDtype)


def keys_of(some: Change) -> pa.Table:
    return pa.table({"id": [key for key, _ in some.keys], "part": [part for _, part in some.keys]})


def dask_rows(some: Change) -> Any:
    return dd.from_pandas(frame_of(some), npartitions=2)


def dask_keys(some: Change) -> Any:
    return dd.from_pandas(keys_of(some).to_pandas(types_mapper=pd.ArrowDtype), npartitions=2)


def saved(given: Any, table: Table, operation: str, mode: str = "append") -> None:
    given.write.format(STREAM).option(OPERATION, operation).mode(mode).save(table.url)


WRITERS: dict[str, dict[str, Writer]] = {
    "spark": {
        "append": lambda spark, table, some: engine.append(table, spark_rows(spark, some)),
        "upsert": lambda spark, table, some: engine.upsert(table, spark_rows(spark, some)),
        "change": lambda spark, table, some: engine.upsert(table, spark_rows(spark, some), spark_keys(spark, some)),
        "delete where": lambda spark, table, some: engine.delete(spark, table, some.where),
        "overwrite partitions": lambda spark, table, some: engine.insert_overwrite(
            table, spark_rows(spark, some), some.parts
        ),
        "merge": lambda spark, table, some: engine.merge(table, spark_rows(spark, some), *MERGED),
    },
    "data source": {
        "append": lambda spark, table, some: saved(spark_rows(spark, some), table, "insert"),
        "upsert": lambda spark, table, some: saved(spark_rows(spark, some), table, "upsert"),
        "delete keys": lambda spark, table, some: saved(spark_keys(spark, some), table, "delete"),
        "overwrite": lambda spark, table, some: saved(
            spark_rows(spark, some), table, "insert_overwrite_table", "overwrite"
        ),
    },
    "pandas": {
        "append": lambda _, table, some: table.append(frame_of(some)),
        "upsert": lambda _, table, some: table.upsert(frame_of(some)),
        "change": lambda _, table, some: table.upsert(rows(*some.rows), deletes=keys_of(some)),
        "delete keys": lambda _, table, some: table.delete(keys_of(some).to_pandas()),
        "delete where": lambda _, table, some: table.delete(some.where),
        "overwrite partitions": lambda _, table, some: table.overwrite(frame_of(some), some.parts),
        "overwrite": lambda _, table, some: table.overwrite(rows(*some.rows)),
    },
    "dask": {
        "append": lambda _, table, some: by_dask.append(table, dask_rows(some)),
        "upsert": lambda _, table, some: by_dask.upsert(table, dask_rows(some)),
        "change": lambda _, table, some: by_dask.upsert(table, dask_rows(some), deletes=dask_keys(some)),
        "delete keys": lambda _, table, some: by_dask.delete(table, dask_keys(some)),
    },
}
NOT_WITH_BUCKETS = {("data source", "append"), ("data source", "overwrite")}  # rows of a bucket have to come together


# -- readers -----------------------------------------------------------------------------------------------------------


def loaded(spark: Any, table: Table, **options: str) -> Any:
    return spark.read.format(STREAM).options(**options).load(table.url)


def collected(given: Any) -> list[Triple]:
    return [tuple(row) for row in given.select(*SCHEMA.names).collect()]


def listed(given: pa.Table | pd.DataFrame) -> list[Triple]:
    found = given if isinstance(given, pa.Table) else pa.Table.from_pandas(given, preserve_index=False)
    return [tuple(row.values()) for row in found.select(SCHEMA.names).to_pylist()]


READERS: dict[str, Callable[[Any, Table], list[Triple]]] = {
    "spark": lambda spark, table: collected(engine.read(spark, table)),
    "spark by Python": lambda spark, table: collected(engine.read(spark, table, native_reads=False)),
    "data source": lambda spark, table: collected(loaded(spark, table)),
    "pyarrow": lambda _, table: listed(table.to_arrow()),
    "pandas": lambda _, table: listed(table.to_pandas()),
    "dask": lambda _, table: listed(by_dask.read(table).compute()),
    "hudi-rs": lambda _, table: [*by_hudi_rs(table.url)],
}


def filtered(spark: Any, table: Table, where: str, arrow: pc.Expression) -> dict[str, list[Triple]]:
    """What each reader finds by a condition, which is given in SQL and in Arrow's words."""
    return {
        "spark": collected(engine.read(spark, table, filter=where)),
        "spark after": collected(engine.read(spark, table).where(where)),
        "data source": collected(loaded(spark, table, filter=where)),
        "pyarrow": listed(table.to_arrow(filter=arrow)),
        "pyarrow in SQL": listed(table.to_arrow(filter=where)),
        "dask": listed(by_dask.read(table.scan(filter=arrow)).compute()),
    }


def sums(spark: Any, left: Table, right: Table) -> dict[str, dict[str, int]]:
    """The values of both tables' rows with one key, joined and added up by partition."""
    keys, other = ["id", "part"], {"value": "other"}
    found: dict[str, dict[str, int]] = {}
    for name, one in {"spark": engine.read(spark, left), "data source": loaded(spark, left)}.items():
        joined = one.join(engine.read(spark, right).withColumnsRenamed(other), keys)
        totals = joined.selectExpr("part", "value + other as total").groupBy("part").sum("total")
        found[name] = {row[0]: row[1] for row in totals.collect()}
    frames: dict[str, Any] = {
        "dask": by_dask.read(left).merge(by_dask.read(right).rename(columns=other), on=keys),
        "pandas": left.to_pandas().merge(right.to_pandas().rename(columns=other), on=keys),
    }
    for name, frames_joined in frames.items():
        grouped = frames_joined.assign(total=frames_joined.value + frames_joined.other).groupby("part").total.sum()
        (computed,) = dask.compute(grouped)
        found[name] = {str(part): int(total) for part, total in computed.items()}
    return found


# -- streams out of a table --------------------------------------------------------------------------------------------


def counted(txn: Any, given: Any) -> None:
    """How often each key came: a batch that is written twice shows, and so does one that is not."""
    counts = (engine.MatchedUpdate({"value": "t.value + 1"}), engine.NotMatchedInsert({"value": "1"}))
    engine.merge_into(txn, given, *counts)


@dataclass
class Streams:
    """Two queries that follow one table commit by commit: a function with two writes a batch, and the sink."""

    spark: Any
    folder: Path
    between: Callable[[], None] = lambda: None
    settings: TableSettings = SETTINGS
    watcher: Callable[[TableEvent], None] = lambda _: None
    options: dict[str, str] = field(default_factory=dict)

    def source(self) -> Any:
        return self.spark.readStream.format(STREAM).option("max_commits", "1").load(str(self.folder / "source"))

    def tally(self, checkpoint: Path, stream_id: str | None) -> Callable[[], Any]:
        """Starts the query that counts keys, those with even values before those with odd ones."""
        table = Table.open(str(self.folder / "tally"), settings=self.settings, watcher=self.watcher)
        once = batches(table, counted, stream_id=stream_id)

        def each(given: Any, batch: int) -> None:
            once(given.where("value % 2 = 0"), batch)
            self.between()
            once(given.where("value % 2 = 1"), batch)

        return self._started(self.source().writeStream.foreachBatch(each), checkpoint)

    def versions(self, checkpoint: Path) -> Callable[[], Any]:
        """Starts the query that appends every version of each row."""
        sink = self.source().writeStream.format(STREAM).outputMode("append").options(**self.options)
        return self._started(sink.option("path", str(self.folder / "versions")), checkpoint)

    @staticmethod
    def _started(sink: Any, checkpoint: Path) -> Callable[[], Any]:
        start: Callable[[], Any] = sink.option("checkpointLocation", str(checkpoint)).trigger(availableNow=True).start
        return start
