"""Functions of the PySpark engine. Those with a `txn` leave its commit to the caller. Errors as for `Table`.

    upsert(table, rows, retries=5)                              # one transaction
    table.transact(lambda txn: engine.write(txn, upserts=rows.where("fare > 3")))

Several threads may call at once, each with its own transaction. Not promised: that changes which differ at each
computation survive an executor's loss.

Source: Hudi's `HoodieSimpleIndex`, `HoodieMergeHandle`; Spark's `ParquetFileFormat`,
`DataSourceUtils.datetimeRebaseSpec`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from operator import methodcaller

import pyarrow as pa
from pyarrow import types
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import from_arrow_schema

from fsspec_cas import InvalidInput
from lockprovider.table.engines.changes import check_within
from lockprovider.table.engines.scan import Scan, resolve_scan, source_snapshot
from lockprovider.table.engines.spark import jobs, tasks
from lockprovider.table.engines.spark.errors import typed_errors
from lockprovider.table.engines.writer import WritePlan, cluster_by, compact_by, plan_for_tasks, start_for_tasks
from lockprovider.table.errors import Corrupt, HistoryGone, InvalidRecords, UnsupportedTable
from lockprovider.table.files.base_file import LEGACY_KEY, SPARK_KEY
from lockprovider.table.files.group_writer import GroupWriter
from lockprovider.table.files.place import TablePlace
from lockprovider.table.format import schema as hudi_schema
from lockprovider.table.format.metadata import WriteStat
from lockprovider.table.read import consistent
from lockprovider.table.read.consistent import PointInTime, changes_since
from lockprovider.table.read.filters import has_floats
from lockprovider.table.read.scan import ScanPlan, Where, read_slice
from lockprovider.table.rewrite.clustering import ClusteringResult
from lockprovider.table.rewrite.compaction import CompactionResult
from lockprovider.table.rewrite.executor import RewriteTask, Runner
from lockprovider.table.state.as_of import columns_at
from lockprovider.table.state.context import TableContext
from lockprovider.table.timeline.rewrite_plan import TARGET_FILE_BYTES, ClusteringRule
from lockprovider.table.timeline.versions import Order
from lockprovider.table.timeline.view import FileSlice, given_partitions
from lockprovider.table.transaction.transaction import (
    WHOLE_RETRIES,
    AnyTransaction,
    CommitResult,
    Transaction,
    inside,
    transact,
)

NativeReads = bool | str
AUTO = "auto"

_PLAIN = re.compile(r"[ -~]*", re.ASCII)  # a JVM maps other characters by its locale
_GLOB = re.compile(r"[][{}*?\\]")
_HIDDEN = ("_", ".")
_ROW_INDEX = "_tmp_metadata_row_index"  # Spark reads the row's position instead
_THIS_CALENDAR = b"3.0.0"  # Spark compares texts
_OPTIONS = {
    "ignoreMissingFiles": "false",
    "ignoreCorruptFiles": "false",
    "datetimeRebaseMode": "CORRECTED",
}


@dataclass(frozen=True)
class Feed:
    """Some commits' net changes; a consumer applies them and stores the checkpoint with them.

    Attributes:
        rows: `_operation` (`insert`, `update` or `delete`), then the columns.
        checkpoint: `after` of the next call.
        commits: their begin times.
    """

    rows: DataFrame
    checkpoint: str
    commits: tuple[str, ...]


def changes(
    spark: SparkSession,
    table: TableContext,
    after: str | datetime | None = None,
    until: str | datetime | None = None,
    *,
    order: Order | str = Order.COMPLETION,
    columns: Sequence[str] | None = None,
    partitions: Iterable[str] | None = None,
) -> Feed:
    """Like `Table.changes`.

    This call fixes the files. One task holds one partition's touched files, before and after.
    """
    changed = changes_since(table, after, until, order=order, columns=columns, partitions=partitions)
    rows = jobs.run_per_piece(spark, changed.parts, methodcaller("read", table.place), changed.schema)
    return Feed(rows, changed.checkpoint, tuple(commit.begin for commit in changed.commits))


def append(
    table: TableContext,
    rows: DataFrame,
    *,
    retries: int = WHOLE_RETRIES,
    extra: Mapping[str, str] | None = None,
    check_keys: bool | None = None,
) -> CommitResult:
    """`insert` in one transaction, like `Table.append`."""
    return transact(table, lambda txn: insert(txn, rows), retries=retries, extra=extra, check_keys=check_keys)


def upsert(
    table: TableContext,
    rows: DataFrame,
    deletes: DataFrame | None = None,
    *,
    retries: int = WHOLE_RETRIES,
    extra: Mapping[str, str] | None = None,
    check_keys: bool | None = None,
) -> CommitResult:
    """`write` in one transaction, like `Table.upsert`."""
    return transact(table, lambda txn: write(txn, rows, deletes), retries=retries, extra=extra, check_keys=check_keys)


def delete(
    spark: SparkSession,
    table: TableContext,
    where: str,
    *,
    partitions: Iterable[str] | None = None,
    retries: int = WHOLE_RETRIES,
    extra: Mapping[str, str] | None = None,
) -> CommitResult:
    """`delete_where` in one transaction."""
    within = given_partitions(partitions)
    return transact(table, lambda txn: delete_where(spark, txn, where, within), retries=retries, extra=extra)


def insert_overwrite(
    table: TableContext,
    rows: DataFrame,
    partitions: Iterable[str] | None = None,
    *,
    retries: int = WHOLE_RETRIES,
    extra: Mapping[str, str] | None = None,
) -> CommitResult:
    """`overwrite` in one transaction."""
    within = given_partitions(partitions)
    return transact(table, lambda txn: overwrite(txn, rows, within), retries=retries, extra=extra)


def read(
    spark: SparkSession,
    source: TableContext | AnyTransaction,
    columns: Sequence[str] | None = None,
    partitions: Iterable[str] | None = None,
    *,
    filter: str | Where = None,  # noqa: A002 - as pyarrow calls it
    as_of: PointInTime = None,
    read_optimized: bool = False,
    native_reads: NativeReads = AUTO,
) -> DataFrame:
    """Describe a table's rows as of now, or a transaction's snapshot, as a DataFrame; see `Table.scan`.

    `filter` is Spark SQL, or a pyarrow expression or list of tuples. `as_of` is not for a transaction. `native_reads`:
    whether Spark's own reader reads slices without log files, with its jars and credentials; see SPARK.md.
    """
    spark, (table, snapshot) = jobs.session(spark), source_snapshot(source, as_of)
    schema = columns_at(table, snapshot.timeline)
    names = schema.names if columns is None else columns
    sql, where, needed = None, filter, [*names] or schema.names[:1]  # Arrow passes no rows to Spark without columns
    if isinstance(filter, str):
        used = jobs.mentioned_columns(filter, hudi_schema.with_meta(schema))
        sql, where, needed = filter, jobs.pushable_filter(filter, used), list(dict.fromkeys((*needed, *used.names)))
    scan = consistent.plan(table, snapshot, needed, where, partitions, read_optimized=read_optimized)
    folder = folder_for_spark(spark, table.place, native_reads) if filter is None or sql is not None else None
    rows = read_scan(spark, table.place, scan, folder)
    if sql is not None:
        rows = rows.where(sql)
    return rows if sql is None and names else rows.select(*names)


def write(txn: AnyTransaction, upserts: DataFrame | None = None, deletes: DataFrame | None = None) -> None:
    """Upsert rows and delete keys in `txn`, a key in both is deleted; see `Table.upsert`.

    InvalidRecords: both are None, or `txn` has written already. Spark caches the changes meanwhile.
    """
    txn = inside(txn)
    if upserts is None and deletes is None:
        raise InvalidRecords("nothing to write: give upserts, deletes, or both")
    txn.operation = "DELETE" if upserts is None else "UPSERT"
    is_blind = txn.may_be_blind and (deletes is None or txn.config.ordering_field in deletes.columns)
    plan = plan_for_tasks(txn, lambda planner: jobs.keyed_changes(planner, upserts, deletes, valued=is_blind))
    _change(txn, plan, blindly=is_blind)


def _change(txn: Transaction, plan: WritePlan[DataFrame], *, blindly: bool) -> None:
    """Run the jobs that count, assign and write changes; begin `txn` after the count, and add the files.

    `blindly`: without reading stored rows.
    """
    steps = jobs.Steps(txn, txn.operation.lower(), 3 if txn.config.bucket_index is None else 2)
    with jobs.computed_once(plan.changes) as keyed:
        counts = jobs.count_changes(keyed, steps)
        writer = start_for_tasks(txn, plan.planner.schema, counts if blindly else None)
        numbered = tasks.Numbered.of(txn.remaining(counts), counts, writer.config.bucket_index)
        grouped = jobs.with_groups(keyed, numbered, writer, steps)
        txn.add(jobs.write_changes(steps, writer, grouped, numbered, valued=blindly))


def insert(txn: AnyTransaction, rows: DataFrame) -> None:
    """Insert rows into `txn`: one Spark job.

    Writes one file for each Spark partition and table partition in it; a key twice in a file raises InvalidRecords. NOT
    checked without `check_keys`: that keys are new, and that no two Spark partitions share a key
    (`rows.repartition(*keys)` ensures this).

    With a bucket index, two Spark jobs upsert the rows by bucket.
    """
    txn = inside(txn)
    txn.operation = "INSERT"
    is_blind, plan = txn.may_be_blind, _plan_insert(txn, rows)
    if txn.config.bucket_index is not None:
        _change(txn, plan, blindly=is_blind)
        return
    writer = start_for_tasks(txn, plan.planner.schema)
    txn.add(jobs.write_new_groups(jobs.Steps(txn, "append", 1), writer, rows))


def _plan_insert(txn: Transaction, rows: DataFrame) -> WritePlan[DataFrame]:
    """Check columns without a job; plan `rows` or, with a bucket index, keyed changes.

    Missing columns become null; misfits raise DoesNotFit.
    """

    def split(planner: GroupWriter) -> DataFrame:
        if planner.config.bucket_index is not None:
            return jobs.keyed_changes(planner, rows, None, whole=False)
        jobs.check_frame(planner, rows, "new")
        return rows

    return plan_for_tasks(txn, split)


def overwrite(txn: AnyTransaction, rows: DataFrame, partitions: Iterable[str] | None = None) -> None:
    """Replace the snapshot's file groups in `partitions` by `rows` in `txn`.

    None means the partitions of `rows`, and costs one more Spark job.

    Raises:
        InvalidRecords: the transaction has other writes, or a row is elsewhere.
    """
    _overwrite(inside(txn), rows, given_partitions(partitions), "INSERT_OVERWRITE")


def overwrite_all(txn: AnyTransaction, rows: DataFrame) -> None:
    """Replace all file groups of the snapshot by `rows`."""
    txn = inside(txn)
    _overwrite(txn, rows, sorted(txn.snapshot.partitions), "INSERT_OVERWRITE_TABLE")


def _overwrite(txn: Transaction, rows: DataFrame, ended: Sequence[str] | None, operation: str) -> None:
    """End the file groups of partitions `ended` (None: the rows'); begin `txn`; write `rows` to new ones.

    With a bucket index a repeated key's rows are merged. InvalidRecords: else a key twice in a Spark partition; a row
    elsewhere, unless `operation` is `INSERT_OVERWRITE_TABLE`.
    """
    plan, has_buckets = _plan_insert(txn, rows), txn.config.bucket_index is not None
    is_whole = operation == "INSERT_OVERWRITE_TABLE"
    if ended is not None and not has_buckets:
        txn.end_partitions(ended, operation)
        writer = start_for_tasks(txn, plan.planner.schema)
        within = None if is_whole else frozenset(ended)
        txn.add(jobs.write_new_groups(jobs.Steps(txn, "overwrite", 1), writer, plan.changes, within))
        return
    steps = jobs.Steps(txn, "overwrite", 2)
    with jobs.computed_once(plan.changes) as cached:
        counts = jobs.count_changes(cached, steps) if has_buckets else {}
        row_partitions = [*counts] if has_buckets else jobs.partitions_of(cached, plan.planner, steps)
        ended = sorted(row_partitions) if ended is None else ended
        if not is_whole:
            check_within(row_partitions, ended)
        txn.end_partitions(ended, operation)
        writer = start_for_tasks(txn, plan.planner.schema)
        if has_buckets:
            numbered = tasks.Numbered.of((), counts, writer.config.bucket_index)
            txn.add(jobs.write_changes(steps, writer, jobs.with_groups(cached, numbered, writer, steps), numbered))
        else:
            txn.add(jobs.write_new_groups(steps, writer, cached, frozenset(ended)))


def delete_where(
    spark: SparkSession, txn: AnyTransaction, where: str, partitions: Iterable[str] | None = None, *, alias: str = "t"
) -> None:
    """Delete in `txn` the rows of `partitions` (None: all) for which `where` is true: one Spark job.

    `alias` names the table in the condition.

    Raises:
        InvalidRecords: `txn` has written already.
    """
    txn = inside(txn)
    spark, txn.operation = jobs.session(spark), "DELETE"
    if not isinstance(where, str):
        raise InvalidInput(f"where={where!r} must be a condition in Spark SQL")
    plan = plan_for_tasks(txn, lambda planner: jobs.mentioned_columns(where, planner.schema))
    schema, used = plan.planner.schema, plan.changes
    _, scan = resolve_scan(Scan(txn, filter=jobs.pushable_filter(where, schema), partitions=partitions))
    numbered = tasks.Numbered.of(scan.slices, {}, txn.config.bucket_index)
    locate = tasks.locator(plan.planner, used)
    located = jobs.run_per_piece(spark, list(numbered.old.items()), locate, pa.schema([*used, *tasks.KEYS]))
    deletes = located.alias(alias).where(where).select(*tasks.KEYS.names, F.lit(True).alias(tasks.DELETE))
    txn.add(jobs.write_changes(jobs.Steps(txn, "delete", 1), start_for_tasks(txn, schema), deletes, numbered))


def compact(spark: SparkSession, table: TableContext, instant: str | None = None) -> tuple[CompactionResult, ...]:
    """Like `Table.compact`: one task per file slice."""
    return compact_by(table, on_executors(jobs.session(spark)), instant)


def cluster(
    spark: SparkSession,
    table: TableContext,
    sort_by: Sequence[str] = (),
    target_file_bytes: int = TARGET_FILE_BYTES,
    small_file_bytes: int | None = None,
    *,
    instant: str | None = None,
) -> tuple[ClusteringResult, ...]:
    """Like `Table.cluster`: one task per group of slices sorts one new file's rows in memory."""
    rule = ClusteringRule.of(sort_by, target_file_bytes, small_file_bytes)
    return cluster_by(table, on_executors(jobs.session(spark)), rule, instant)


def on_executors(spark: SparkSession) -> Runner:
    """Make a runner that writes a plan's tasks in one Spark job, and returns their statistics."""

    def run(work: Sequence[RewriteTask]) -> Iterator[WriteStat]:
        if not work:
            return iter(())
        with typed_errors(), jobs.describe_jobs(spark, f"hudi: rewrite {len(work)} file slices"):
            written = jobs.run_per_piece(spark, list(work), lambda task: tasks.stats_table(task.write()), tasks.STATS)
            rows = written.collect()
        return (WriteStat(**row.asDict()) for row in rows)

    return run


def folder_for_spark(spark: SparkSession, place: TablePlace, native_reads: NativeReads) -> str | None:
    """Table's folder as Spark's URL; None if Python reads all files.

    `native_reads`: True (the table's own URL), False, `auto` (True if local without Connect), or Spark's URL;
    InvalidInput for other text.
    """
    local = f"file://{place.store.root}" if place.is_local else None
    if native_reads == AUTO:
        return local if hasattr(spark, "_jsparkSession") else None  # a server may run on another machine
    if isinstance(native_reads, str):
        if "://" not in native_reads:
            raise InvalidInput(
                f"native_reads={native_reads!r} is not a URL: pass True, False, 'auto', or the table's URL for Spark"
            )
        return native_reads.rstrip("/")
    return (local or place.url.rstrip("/")) if native_reads else None


def read_scan(spark: SparkSession, place: TablePlace, scan: ScanPlan, folder: str | None) -> DataFrame:
    """Describe a scan as a DataFrame: Spark reads slices in `folder` that it reads alike, unfiltered.

    Python reads the others, filtered. With `folder`, may request footers.
    """
    by_spark: list[FileSlice] = []
    by_python: list[FileSlice] = []
    folder = None if any(map(_is_read_otherwise, scan.read)) else folder
    for file_slice in scan.slices:
        is_alike = folder is not None and is_read_alike(place, file_slice, scan.read, folder)
        (by_spark if is_alike else by_python).append(file_slice)
    read_by_python = partial(jobs.run_per_piece, spark, by_python, partial(read_slice, place, scan), scan.schema)
    if not by_spark:
        return read_by_python()
    with typed_errors():
        reader = spark.read.schema(from_arrow_schema(scan.schema)).options(**_OPTIONS)
        rows = reader.parquet(*(f"{folder}/{file_slice.path}" for file_slice in by_spark))
    rows = rows.selectExpr(*map(_by_row, scan.schema))  # a `Column` takes several calls of the JVM
    return rows.union(read_by_python()) if by_python else rows


def _is_read_otherwise(column: pa.Field) -> bool:
    return column.name.lower() == _ROW_INDEX or (types.is_nested(column.type) and has_floats(column.type))


def _by_row(column: pa.Field) -> str:
    """Filter floats by rows, as statistics cannot express NaN and -0."""
    name = f"`{column.name}`"
    return f"nanvl({name}, {name}) as {name}" if types.is_floating(column.type) else name


def is_read_alike(place: TablePlace, file_slice: FileSlice, columns: pa.Schema, folder: str) -> bool:
    """Whether Spark reads a slice as Python does; may request its footer. `folder`: the table's URL for Spark.

    False: log files, an unusual path, old calendar's dates, other types than `columns`, a damaged, missing or
    unsupported footer.
    """
    path = f"{folder}/{file_slice.path}"
    if (
        file_slice.logs
        or not _PLAIN.fullmatch(path)
        or _GLOB.search(path)
        or path.rpartition("/")[2].startswith(_HIDDEN)
    ):
        return False
    try:
        footer = place.footer(file_slice.path)
    except (Corrupt, HistoryGone, UnsupportedTable):
        return False
    metadata = footer.metadata or {}
    if LEGACY_KEY.encode() in metadata or metadata.get(SPARK_KEY.encode(), _THIS_CALENDAR) < _THIS_CALENDAR:
        return False
    return has_alike(footer.schema.to_arrow_schema(), columns)


def has_alike(stored: pa.Schema, columns: pa.Schema) -> bool:
    """Whether each column is missing or has this type and spelling in the file, once; Spark ignores case."""
    stored_fields: dict[str, list[tuple[str, pa.DataType]]] = {}
    for field in stored:
        stored_fields.setdefault(field.name.lower(), []).append((field.name, field.type))
    return all(
        stored_fields.get(column.name.lower(), [(column.name, column.type)]) == [(column.name, column.type)]
        for column in columns
    )
