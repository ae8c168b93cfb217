"""PySpark: rows are read and written on the executors, the transaction lives in the driver's own Python process.

    upsert(table, rows, retries=5)                              # also append, merge, delete: each one transaction
    read(spark, table, columns=["id"], filter="fare > 3")

Or as parts of one transaction, which reads what it changes:

    def fix(txn):
        rows = engine.read(spark, txn, partitions=["7"])
        engine.write(txn, upserts=rows.where("delay is null").withColumn("delay", lit(0)))
    table.transact(fix, retries=5)

Each is a few Spark jobs: keys are looked up by a join with the record keys of the partitions that the changes are for,
and only the touched file groups are rewritten, one task a file group; nothing but write statistics comes to the driver.
Good from several threads at once, each with its own transaction. Errors that tasks raise come out with their own type.

Not promised: that a file group larger than an executor's memory can be rewritten; that changes which are different each
time they are computed survive the loss of an executor.

Source: Hudi's simple index (`HoodieSimpleIndex`) and merge handle (`HoodieMergeHandle`); `HoodieSparkCompactor`,
`MultipleSparkJobExecutionStrategy`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from operator import methodcaller

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as all of Spark's users write it

from fsspec_cas import InvalidInput
from lockprovider.table.engines.scan import Scan, planned, seen_by
from lockprovider.table.engines.spark import jobs, tasks
from lockprovider.table.engines.spark.errors import typed_errors
from lockprovider.table.engines.spark.native_reads import AUTO, NativeReads, folder_for_spark, read_scan
from lockprovider.table.engines.writer import WritePlan, plan_for_tasks, start_for_tasks
from lockprovider.table.errors import InvalidRecords
from lockprovider.table.files.group_writer import GroupWriter
from lockprovider.table.format import schema as hudi_schema
from lockprovider.table.format.metadata import WriteStat
from lockprovider.table.read import consistent
from lockprovider.table.read.changes import changes_since
from lockprovider.table.read.consistent import PointInTime
from lockprovider.table.read.scan import Where
from lockprovider.table.rewrite.clustering import ClusteringResult, cluster_table, run_clustering
from lockprovider.table.rewrite.compaction import CompactionResult, compact_table, run_compaction
from lockprovider.table.rewrite.executor import RewriteTask, Runner
from lockprovider.table.state.context import TableContext
from lockprovider.table.timeline.rewrite_plan import TARGET_FILE_BYTES, ClusteringRule
from lockprovider.table.timeline.versions import Order
from lockprovider.table.timeline.view import given_partitions
from lockprovider.table.transaction.retry import WHOLE_RETRIES, transact
from lockprovider.table.transaction.transaction import AnyTransaction, CommitResult, Transaction, inside


@dataclass(frozen=True)
class Feed:
    """The changes of some commits, deletes included: a consumer applies them, and keeps the checkpoint with that.

    Attributes:
        rows: the operation (`insert`, `update` or `delete`) as `_operation`, then the columns.
        checkpoint: the `after` of the next call.
        commits: begin times of the commits whose changes these are.
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
    """What the commits in (after, until] changed, as a whole; see `Table.changes` for all but the session.

    The files are fixed now: a DataFrame that is computed again shows the same changes. One task holds the touched files
    of one partition, before and after.

    Raises:
        HistoryGone: files were cleaned or commits archived since `after`, or the table was restored.
    """
    found = changes_since(table, after, until, order=order, columns=columns, partitions=partitions)
    rows = jobs.run_over(spark, found.parts, methodcaller("read", table.place), found.schema)
    return Feed(rows, found.checkpoint, tuple(commit.begin for commit in found.commits))


# -- one call, one transaction -----------------------------------------------------------------------------------------


def append(
    table: TableContext,
    rows: DataFrame,
    *,
    retries: int = WHOLE_RETRIES,
    extra: Mapping[str, str] | None = None,
    check_keys: bool | None = None,
) -> CommitResult:
    """Add rows, without looking whether their keys are there, but with `check_keys`: see `insert` and `Table.append`.

    `extra` goes into the commit's extra metadata, as in the others.

    Raises:
        InvalidRecords: a key is null or comes twice in a Spark partition (if checked: in `rows`, or is in the table),
            or a column does not fit (`DoesNotFit`).
        Aborted: others took this writer for dead.
    """
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
    """Insert rows or replace them by key, and delete the keys in `deletes`: see `write`, and `Table.upsert`.

    Raises:
        WriteConflict: others changed the same file groups first, at each of `retries` + 1 tries.
        InvalidRecords: a key is null, or a column does not fit (`DoesNotFit`).
    """
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
    """Delete the rows for which `where` (Spark SQL over the table's columns) is true: see `delete_where`.

    Raises:
        WriteConflict: others changed the same file groups first, at each of `retries` + 1 tries.
    """
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
    """Replace all rows of these partitions (None: of those that the rows are for) by the rows: see `overwrite`.

    Raises:
        WriteConflict: others changed these partitions first, at each of `retries` + 1 tries.
        InvalidInput: `partitions` is one text.
        InvalidRecords: a row is for another partition, a key is null, or a column does not fit (`DoesNotFit`).
    """
    within = given_partitions(partitions)
    return transact(table, lambda txn: overwrite(txn, rows, within), retries=retries, extra=extra)


# -- inside a transaction ----------------------------------------------------------------------------------------------


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
    """The rows of the latest snapshot, of a moment before it, or of a transaction's own.

    Only the columns that are asked for are read from the files, and of files and row groups only those that may have
    such rows. The files are fixed now: the same DataFrame never sees later commits. The rows are the same whether
    Python reads a file or Spark's own Parquet reader.

    Args:
        spark: the session.
        source: a table, or a transaction, which reads its own snapshot.
        columns: all without Hudi's own, or these (which may be Hudi's).
        partitions: paths of partitions, as folders are named.
        filter: Spark SQL, or what pyarrow takes: an expression, a list of tuples.
        as_of: a version, see `Table.scan`; not for a transaction.
        read_optimized: base files only; see `Table.scan`.
        native_reads: whether Spark's own reader reads the slices without log files (but not those that it would read
            otherwise, see `native_reads`), with jars and credentials of its own. "auto": if the table is in a
            local folder, and not through Spark Connect. True: at the table's URL. Another URL: there. Not with a filter
            that is no SQL text.

    Raises:
        InvalidInput: a column or time that does not exist, a filter that does not fit.
        HistoryGone: that moment cannot be read (any more).
    """
    spark, (table, snapshot) = jobs.session(spark), seen_by(source, as_of)
    schema = table.schema(snapshot.timeline)
    names = schema.names if columns is None else columns
    sql, where, needed = None, filter, [*names] or schema.names[:1]  # Arrow hands Spark no rows without columns
    if isinstance(filter, str):
        seen = jobs.mentioned(filter, hudi_schema.with_meta(schema))
        sql, where, needed = filter, jobs.pushable(filter, seen), list(dict.fromkeys((*needed, *seen.names)))
    scan = consistent.plan(table, snapshot, needed, where, partitions, read_optimized=read_optimized)
    folder = folder_for_spark(spark, table.place, native_reads) if filter is None or sql is not None else None
    rows = read_scan(spark, table.place, scan, folder)
    if sql is not None:
        rows = rows.where(sql)
    return rows if sql is None and names else rows.select(*names)


def write(txn: AnyTransaction, upserts: DataFrame | None = None, deletes: DataFrame | None = None) -> None:
    """Write changes into `txn`: rows to insert or replace by key, and keys (with partition columns) to delete.

    A key that is in both is deleted. Rows have all columns of the table: a missing one would erase what is there. Once
    per transaction. The changes are computed once, and kept by Spark while they are written.

    Raises:
        InvalidRecords: a key is null, a column is missing, or one does not fit (`DoesNotFit`).
    """
    txn = inside(txn)
    if upserts is None and deletes is None:
        raise InvalidRecords("nothing to write: give upserts, deletes, or both")
    txn.operation = "DELETE" if upserts is None else "UPSERT"
    is_blind = txn.may_be_blind and (deletes is None or txn.config.ordering_field in deletes.columns)
    plan = plan_for_tasks(txn, lambda planner: jobs.keyed(planner, upserts, deletes, valued=is_blind))
    _change(txn, plan, blindly=is_blind)


def _change(txn: Transaction, plan: WritePlan[DataFrame], *, blindly: bool) -> None:
    """Find the file group of each change, and write it."""
    steps = jobs.Steps(txn, txn.operation.lower(), 3 if txn.config.bucket_index is None else 2)
    with jobs.computed_once(plan.changes) as keyed:
        counts = jobs.counts(keyed, steps)
        writer = start_for_tasks(txn, plan.planner.schema, counts if blindly else None)
        numbered = tasks.Numbered.of(txn.remaining(counts), counts, writer.config.bucket_index)
        grouped = jobs.with_groups(keyed, numbered, writer, steps)
        txn.add(jobs.put(steps, writer, grouped, numbered, valued=blindly))


def insert(txn: AnyTransaction, rows: DataFrame) -> None:
    """Write rows as new ones, without looking whether their keys are there: one Spark job, no lookup.

    One file for each Spark partition and table partition in it: repartition first, if these are many. A missing column
    is null. NOT checked, but with `check_keys`: that the keys are new, and that none comes in two Spark partitions;
    readers see both rows then. `rows.repartition(*keys)` first brings the rows of a key into one.

    In a table with a bucket index they go into the file groups of their buckets, as with `write`: a row whose key is
    there is replaced, and of rows with one key one is kept.

    Raises:
        InvalidRecords: a key is null or comes twice in a Spark partition, or a column does not fit (`DoesNotFit`).
    """
    txn = inside(txn)
    txn.operation = "INSERT"
    is_blind, plan = txn.may_be_blind, _plan_insert(txn, rows)
    if txn.config.bucket_index is not None:
        _change(txn, plan, blindly=is_blind)
        return
    writer = start_for_tasks(txn, plan.planner.schema)
    txn.add(jobs.put_new(jobs.Steps(txn, "append", 1), writer, rows))


def _plan_insert(txn: Transaction, rows: DataFrame) -> WritePlan[DataFrame]:
    """The rows, or in a table with a bucket index the changes."""

    def split(planner: GroupWriter) -> DataFrame:
        if planner.config.bucket_index is not None:
            return jobs.keyed(planner, rows, None, whole=False)
        jobs.refuse_unfit(planner, rows, "new")
        return rows

    return plan_for_tasks(txn, split)


def overwrite(txn: AnyTransaction, rows: DataFrame, partitions: Iterable[str] | None = None) -> None:
    """End all file groups that these partitions have in the snapshot, and write the rows as new ones.

    The partitions are paths, as folders are named; None takes those that the rows are for, by one more Spark job. First
    in a transaction. Keys are not looked up, as with `insert`.

    Raises:
        InvalidRecords: a row is for another partition, or something was written already.
    """
    _overwrite(inside(txn), rows, given_partitions(partitions), "INSERT_OVERWRITE")


def overwrite_all(txn: AnyTransaction, rows: DataFrame) -> None:
    """End all file groups that the snapshot has, and write the rows as new ones; see `overwrite`."""
    txn = inside(txn)
    _overwrite(txn, rows, sorted(txn.snapshot.partitions), "INSERT_OVERWRITE_TABLE")


def _overwrite(txn: Transaction, rows: DataFrame, ended: Sequence[str] | None, operation: str) -> None:
    plan, has_buckets = _plan_insert(txn, rows), txn.config.bucket_index is not None
    is_whole = operation == "INSERT_OVERWRITE_TABLE"
    if ended is not None and not has_buckets:
        txn.end_partitions(ended, operation)
        writer = start_for_tasks(txn, plan.planner.schema)
        within = None if is_whole else frozenset(ended)
        txn.add(jobs.put_new(jobs.Steps(txn, "overwrite", 1), writer, plan.changes, within))
        return
    steps = jobs.Steps(txn, "overwrite", 2)
    with jobs.computed_once(plan.changes) as held:
        counts = jobs.counts(held, steps) if has_buckets else {}
        found = [*counts] if has_buckets else jobs.partitions_of(held, plan.planner, steps)
        ended = sorted(found) if ended is None else ended
        if not is_whole:
            tasks.check_within(found, ended)
        txn.end_partitions(ended, operation)
        writer = start_for_tasks(txn, plan.planner.schema)
        if has_buckets:
            numbered = tasks.Numbered.of((), counts, writer.config.bucket_index)
            txn.add(jobs.put(steps, writer, jobs.with_groups(held, numbered, writer, steps), numbered))
        else:
            txn.add(jobs.put_new(steps, writer, held, frozenset(ended)))


def delete_where(
    spark: SparkSession, txn: AnyTransaction, where: str, partitions: Iterable[str] | None = None, *, alias: str = "t"
) -> None:
    """Delete the rows for which `where` is true (not those for which it is null): one Spark job.

    `alias` is what the condition may call the table.

    Raises:
        InvalidRecords: the write was refused; pyspark's own errors for a condition that is no SQL.
    """
    txn = inside(txn)
    spark, txn.operation = jobs.session(spark), "DELETE"
    if not isinstance(where, str):
        raise InvalidInput(f"where={where!r} must be a condition in Spark SQL")
    plan = plan_for_tasks(txn, lambda planner: jobs.mentioned(where, planner.schema))
    schema, seen = plan.planner.schema, plan.changes
    _, scan = planned(Scan(txn, filter=jobs.pushable(where, schema), partitions=partitions))
    numbered = tasks.Numbered.of(scan.slices, {}, txn.config.bucket_index)  # without those that cannot have such rows
    locate = tasks.locator(plan.planner, seen)
    located = jobs.run_over(spark, list(numbered.old.items()), locate, tasks.grouped_schema(seen))
    gone = located.alias(alias).where(where).select(*tasks.KEYS.names, F.lit(True).alias(tasks.DELETE))
    txn.add(jobs.put(jobs.Steps(txn, "delete", 1), start_for_tasks(txn, schema), gone, numbered))


# -- services ----------------------------------------------------------------------------------------------------------


def compact(spark: SparkSession, table: TableContext, instant: str | None = None) -> tuple[CompactionResult, ...]:
    """Merge log files into new base files, as `Table.compact`; with `instant` run that scheduled compaction only.

    One task a file slice that is merged. Only write statistics come to the driver, which has the table lock, the
    heartbeat and the completion. What is scheduled here is run by others, and the other way round. Killed at any step,
    the next call goes on.

    Raises:
        UnsupportedTable, HistoryGone, Aborted, NotAcquired: as `Table.compact` and `Table.run_compaction`.
    """
    run = on_executors(jobs.session(spark))
    return compact_table(table, run) if instant is None else (run_compaction(table, instant, run),)


def cluster(
    spark: SparkSession,
    table: TableContext,
    sort_by: Sequence[str] = (),
    target_file_bytes: int = TARGET_FILE_BYTES,
    small_file_bytes: int | None = None,
    *,
    instant: str | None = None,
) -> tuple[ClusteringResult, ...]:
    """Join small files, as `Table.cluster`; with `instant` run that scheduled clustering only, as its plan says.

    One task a group of slices that is joined. A task holds what one of the new files does, and sorts in its own memory:
    an executor needs a few times `target_file_bytes`.

    Raises:
        InvalidInput, UnsupportedTable, WriteConflict, HistoryGone, Aborted, NotAcquired: as `Table.cluster` and
            `Table.run_clustering`.
    """
    rule, run = ClusteringRule.of(sort_by, target_file_bytes, small_file_bytes), on_executors(jobs.session(spark))
    return cluster_table(table, rule, run) if instant is None else (run_clustering(table, instant, run),)


def on_executors(spark: SparkSession) -> Runner:
    """Where a plan's files are written: in one Spark job, one task each."""

    def run(work: Sequence[RewriteTask]) -> Iterator[WriteStat]:
        if not work:
            return iter(())
        with typed_errors(), jobs.described(spark, f"hudi: rewrite {len(work)} file slices"):
            found = jobs.run_over(spark, list(work), _written, tasks.STATS).collect()
        return (WriteStat(**row.asDict()) for row in found)

    return run


def _written(task: RewriteTask) -> pa.Table:
    return tasks.stats_table(task.write())
