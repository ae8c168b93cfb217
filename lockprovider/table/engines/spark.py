"""PySpark: rows are read and written on the executors, the transaction lives in the driver's own Python process.

    def fix(txn):
        rows = engine.read(spark, txn, partitions=["7"])
        engine.write(txn, upserts=rows.where("delay is null").withColumn("delay", lit(0)))
    table.transact(fix, retries=5)

One write is two Spark jobs: the first finds out which partitions the changes are for, the second joins them with the
record keys of those partitions and rewrites the touched file groups, one task a file group. The changes are persisted
in between, so that both jobs see the same rows. Not promised: that a file group larger than an executor's memory can be
rewritten; that changes which are not deterministic survive the loss of an executor.

Source: Hudi's simple index (`HoodieSimpleIndex`) and merge handle (`HoodieMergeHandle`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyspark import TaskContext
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as all of Spark's users write it
from pyspark.sql.pandas.types import from_arrow_schema

from lockprovider.table import schema as hudi_schema
from lockprovider.table.engines.base import GroupWriter, Place, plain_columns
from lockprovider.table.errors import InvalidRecords
from lockprovider.table.files import conform
from lockprovider.table.manager import Table
from lockprovider.table.metadata import WriteStat
from lockprovider.table.transaction import Transaction
from lockprovider.table.view import FileSlice, Snapshot

ROWS_PER_FILE = 500_000  # of a new file group; a later upsert rewrites whole files
_KEY, _PARTITION, _DELETE, _GROUP = "__key", "__partition", "__delete", "__group"
_NEW = "+"  # what the group of a row begins with that no file group has yet
_KEYS = pa.schema([(_KEY, pa.string()), (_PARTITION, pa.string()), (_GROUP, pa.string())])
_STATS = pa.schema(
    [
        ("file_id", pa.string()),
        ("path", pa.string()),
        ("partition", pa.string()),
        ("prev_commit", pa.string()),
        ("prev_base_file", pa.string()),
        ("num_writes", pa.int64()),
        ("num_inserts", pa.int64()),
        ("num_updates", pa.int64()),
        ("num_deletes", pa.int64()),
        ("file_size", pa.int64()),
    ]
)

Batches = Iterator[pa.RecordBatch]


def read(
    spark: SparkSession,
    source: Table | Transaction,
    columns: Sequence[str] | None = None,
    partitions: Iterable[str] | None = None,
) -> DataFrame:
    """The rows of the latest snapshot, or of a transaction's own; without Hudi's meta columns unless named.

    The files are fixed now: the same DataFrame never sees later commits.
    """
    table = source.table if isinstance(source, Transaction) else source
    snapshot = source.snapshot if isinstance(source, Transaction) else source.snapshot()
    schema = table.schema(snapshot.timeline)
    wanted = plain_columns(schema, None if columns is None else list(columns))
    return _over(spark, snapshot.within(partitions), _reader(Place.of(table), wanted), wanted)


def write(txn: Transaction, upserts: DataFrame | None = None, deletes: DataFrame | None = None) -> None:
    """Write changes into `txn`: rows to insert or replace by key, and keys (with partition columns) to delete.

    A key that is in both is deleted. Once per transaction.

    Raises:
        InvalidRecords: a key is null, or a column does not fit the table.
    """
    changes = [frame for frame in (upserts, deletes) if frame is not None]
    if not changes:
        raise InvalidRecords("nothing to write: give upserts, deletes, or both")
    txn.operation = "DELETE" if upserts is None else "UPSERT"
    writer = GroupWriter.of(txn, txn.table.schema(txn.timeline))
    keyed = _keyed(writer, upserts, deletes).persist()
    try:
        counts = {row[_PARTITION]: row["count"] for row in keyed.groupBy(_PARTITION).count().collect()}
        rewritten = _grouped(keyed, txn.snapshot, counts, writer).collect()
    finally:
        keyed.unpersist()
    txn.add(WriteStat(**row.asDict()) for row in rewritten)


def insert(txn: Transaction, rows: DataFrame) -> None:
    """Write rows as new ones, without looking whether their keys are there: one Spark job, no lookup.

    NOT checked: that the keys are new. Readers see both rows of a key that was there.
    """
    txn.operation = "INSERT"
    writer = GroupWriter.of(txn, txn.table.schema(txn.timeline))
    stats = rows.mapInArrow(_inserter(writer), from_arrow_schema(_STATS)).collect()
    txn.add(WriteStat(**row.asDict()) for row in stats)


def _keyed(writer: GroupWriter, upserts: DataFrame | None, deletes: DataFrame | None) -> DataFrame:
    """All changes with the table's columns, their key and partition, and whether they are deletes."""
    kind = from_arrow_schema(_change_schema(writer.schema))
    parts = [
        frame.mapInArrow(_keyer(writer, delete=delete), kind)
        for frame, delete in ((upserts, False), (deletes, True))
        if frame is not None
    ]
    return parts[0] if len(parts) == 1 else parts[0].unionByName(parts[1])


def _grouped(keyed: DataFrame, snapshot: Snapshot, counts: dict[str, int], writer: GroupWriter) -> DataFrame:
    """Write statistics, one row a file, of changes grouped by the file group that they are for."""
    slices = snapshot.within(counts)
    buckets = 1 + max(counts.values(), default=0) // ROWS_PER_FILE
    fresh = F.concat(F.lit(_NEW), F.pmod(F.xxhash64(_KEY), F.lit(buckets)).cast("string"))
    if slices:
        spark = keyed.sparkSession
        index = _over(spark, slices, _indexer(writer.place), _KEYS)
        tagged = keyed.join(index, [_KEY, _PARTITION], "left").withColumn(_GROUP, F.coalesce(F.col(_GROUP), fresh))
    else:
        tagged = keyed.withColumn(_GROUP, fresh)
    old = {(s.partition, s.file_id): s for s in slices}
    return tagged.groupBy(_PARTITION, _GROUP).applyInArrow(_rewriter(writer, old), from_arrow_schema(_STATS))


def _over(
    spark: SparkSession, slices: Sequence[FileSlice], each: Callable[[FileSlice], pa.Table], schema: pa.Schema
) -> DataFrame:
    """A DataFrame of what `each` makes of every file slice, one Spark partition a slice."""
    count = len(slices)

    def run(batches: Batches) -> Batches:
        for batch in batches:
            for number in batch.column(0).to_pylist():
                yield from conform(each(slices[number]), schema).to_batches()

    return spark.range(0, count, 1, max(1, count)).mapInArrow(run, from_arrow_schema(schema))


# -- what runs on the executors: functions that carry all they need ----------------------------------------------------


def _reader(place: Place, schema: pa.Schema) -> Callable[[FileSlice], pa.Table]:
    def rows(file_slice: FileSlice) -> pa.Table:
        return place.read(file_slice.path, schema.names)

    return rows


def _indexer(place: Place) -> Callable[[FileSlice], pa.Table]:
    """Of each file slice: the record keys in it, and whose they are."""

    def keys(file_slice: FileSlice) -> pa.Table:
        found = place.read(file_slice.path, [hudi_schema.RECORD_KEY]).column(0)
        partition = pa.repeat(pa.scalar(file_slice.partition), len(found))
        group = pa.repeat(pa.scalar(file_slice.file_id), len(found))
        return pa.table([found, partition, group], schema=_KEYS)

    return keys


def _keyer(writer: GroupWriter, *, delete: bool) -> Callable[[Batches], Batches]:
    def run(batches: Batches) -> Batches:
        for batch in batches:
            rows, keys, partitions = writer.keyed(pa.Table.from_batches([batch]))
            deletes = pa.repeat(pa.scalar(delete), len(keys))
            columns = [*rows.columns, keys, partitions, deletes]
            yield from pa.table(columns, schema=_change_schema(writer.schema)).to_batches()

    return run


def _inserter(writer: GroupWriter) -> Callable[[Batches], Batches]:
    def run(batches: Batches) -> Batches:
        if not (collected := list(batches)):
            return
        rows, keys, partitions = writer.keyed(pa.Table.from_batches(collected))
        for partition in pc.unique(partitions).to_pylist():
            mine = pc.equal(partitions, partition)
            stat = writer.insert(partition, rows.filter(mine), keys.filter(mine), _write_token())
            yield from _stats_table(stat).to_batches()

    return run


def _rewriter(
    writer: GroupWriter, old: dict[tuple[str, str], FileSlice]
) -> Callable[[tuple[Any, ...], pa.Table], pa.Table]:
    """One call a file group: its next slice, or a new group."""

    def run(key: tuple[Any, ...], changes: pa.Table) -> pa.Table:
        partition, group = key[0].as_py(), key[1].as_py()
        upserts = changes.filter(pc.invert(changes[_DELETE]))
        deleted = changes.filter(changes[_DELETE])[_KEY].combine_chunks()
        keys = upserts[_KEY].combine_chunks()
        rows = conform(upserts.select(writer.schema.names), writer.schema)
        if (partition, group) in old:
            return _stats_table(writer.rewrite(old[partition, group], rows, keys, deleted, _write_token()))
        kept = pc.invert(pc.is_in(keys, value_set=deleted))
        if not pc.any(kept).as_py():
            return _stats_table(None)  # deletes of rows that are not there
        return _stats_table(writer.insert(partition, rows.filter(kept), keys.filter(kept), _write_token()))

    return run


def _change_schema(schema: pa.Schema) -> pa.Schema:
    return pa.schema([*schema, (_KEY, pa.string()), (_PARTITION, pa.string()), (_DELETE, pa.bool_())])


def _stats_table(stat: WriteStat | None) -> pa.Table:
    rows = [] if stat is None else [{name: getattr(stat, name) for name in _STATS.names}]
    return pa.Table.from_pylist(rows, schema=_STATS)


def _write_token() -> str:
    """Names the task attempt, so that two attempts of one task never write the same file."""
    context = TaskContext.get()
    if context is None:
        raise RuntimeError("base files are written in Spark tasks only")
    return f"{context.partitionId()}-{context.stageId()}-{context.taskAttemptId()}"
