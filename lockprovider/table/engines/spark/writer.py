"""Writer of the Spark data source: executors write the files, then one commit makes all visible, or none.

Spark makes and pickles the writer in a planning process, which takes the instant (of a stream when pickling, as Spark
also makes writers just to commit), and calls `commit` in another process.

Source: Spark's `DataSourceWriter`; Hudi `HoodieStreamingSink`.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage

from fsspec_cas import InvalidInput, Machine
from lockprovider.table.convert.columns import new_fields
from lockprovider.table.engines.spark.errors import without_traceback
from lockprovider.table.engines.spark.options import KEY_OPTION, HudiWrite, SparkOptions, WriteOperation
from lockprovider.table.engines.spark.staged import Stage, StagedFile, commit_staged, remove_staged
from lockprovider.table.engines.spark.tasks import insert_all
from lockprovider.table.engines.writer import start_for_tasks
from lockprovider.table.errors import AlreadyCommitted, TableExists, TableNotFound
from lockprovider.table.files.group_writer import GroupWriter
from lockprovider.table.format.metadata import WriteStat
from lockprovider.table.rewrite import inline
from lockprovider.table.services import rollback
from lockprovider.table.state.context import TableContext
from lockprovider.table.state.heartbeat import WriterHeartbeat
from lockprovider.table.timeline.conflict import BatchId
from lockprovider.table.transaction.creation import add_columns, create_table
from lockprovider.table.transaction.transaction import CommitResult, Transaction

_QUERY = "sql.streaming.queryId"
# Then a stream's planning process stops its heartbeat: Spark reports no abandoned batch.
_PLANNED_S = 600.0
_RETRIES = 5


def open_target(options: SparkOptions, hudi_write: HudiWrite, rows: pa.Schema) -> TableContext | None:
    """Open or (by `_make`) create the table, and add columns with `merge_schema`.

    None if `if_exists=ignore` leaves it alone; TableExists by `if_exists=error`. TableNotFound: it is missing without
    record keys. InvalidInput: contradicting options, no name, or new columns without `merge_schema`.
    """
    try:
        table = options.open()
    except TableNotFound:
        return _make(options, hudi_write, rows)
    if options.if_exists == "ignore":
        return None
    if options.if_exists == "error":
        raise TableExists(
            f"a table exists at {options.url!r}, and if_exists=error forbids to write to it: set if_exists=append"
        )
    hudi_write.check(table.config())
    table_columns = table.schema()
    new_columns = new_fields(table_columns, rows)
    if new_columns.names and options.merge_schema:
        add_columns(table, new_columns, retries=_RETRIES)
    elif new_columns.names:
        raise InvalidInput(
            f"columns {new_columns.names} are not in the table, which has {table_columns.names}: drop them, or "
            "set mergeSchema=true to add them"
        )
    return table


def _make(options: SparkOptions, hudi_write: HudiWrite, rows: pa.Schema) -> TableContext | None:
    """Create the table; if another writer was faster, open it by `if_exists=append`, return None by `ignore`.

    TableNotFound without record keys, InvalidInput without a table name. TableExists by `error`, or by `append` if the
    other's table has another spec.
    """
    if "record_keys" not in hudi_write.given:
        raise TableNotFound(
            f"there is no table at {options.url!r}: set {KEY_OPTION} to the columns of its record key, so that this "
            "write creates it, or call Table.create first"
        ) from None
    try:
        return create_table(
            TableContext,
            options.url,
            hudi_write.spec(rows),
            storage_options=options.storage_options,
            settings=options.settings,
            exist_ok=options.if_exists == "append",
        )
    except TableExists:
        if options.if_exists == "ignore":
            return None
        raise


@dataclass
class TaskResult(WriterCommitMessage):
    """Result of one task."""

    begin: str
    stats: list[WriteStat]
    stream: str | None
    staged: list[StagedFile] = field(default_factory=list)


@dataclass
class WriteJob:
    """Write of the data source, which Spark pickles for its tasks.

    `group` writes files of the job's instant, `stage` stages rows that `commit` gathers.
    """

    options: SparkOptions
    hudi_write: HudiWrite
    rows: pa.Schema
    group: GroupWriter | None = None
    stage: Stage | None = None
    is_ignored: bool = False

    def check(self) -> TableContext | None:
        """Open or create the table, check the rows' columns, and set `stage` for a gathering write.

        None, with `is_ignored` set, by `if_exists=ignore`. InvalidInput: an insert or full overwrite with a bucket
        index.
        """
        table = open_target(self.options, self.hudi_write, self.rows)
        self.is_ignored = table is None
        if table is None:
            return None
        config, operation = table.config(), self.hudi_write.operation
        if config.bucket_index is not None and not self.hudi_write.gathers:
            raise InvalidInput(
                "this table has a bucket index, and a data source cannot insert rows by bucket: use append, upsert or "
                "insert_overwrite of lockprovider.table.engines.spark (in foreachBatch for a stream)"
            )
        planner = GroupWriter(table.place, "", config, table.schema())
        valued = self.hudi_write.gathers and Transaction(table).may_be_blind
        if operation is WriteOperation.DELETE:
            valued = valued and config.ordering_field in self.rows.names
            planner.deletes(self.rows.empty_table(), valued=valued)
        else:
            planner.plan(self.rows, "refuse" if operation is WriteOperation.UPSERT else "null")
        if self.hudi_write.gathers and self.stage is None:
            self.stage = Stage(planner, operation, valued)
        return table

    def begin(self) -> Transaction | None:
        """Run `check`, start a transaction with heartbeat, for `overwrite` end all partitions; set `group`.

        None at once, without an effect, if `group` or `is_ignored` is set. None after `check` alone, with its effects,
        if that ignores the write, or all rows are gathered. If the start fails, rolls back.
        """
        if self.group is not None or self.is_ignored:
            return None
        table = self.check()
        if table is None or self.hudi_write.gathers:
            return None
        txn = Transaction(table)
        schema = table.schema(txn.timeline)
        if self.overwrite:
            txn.end_partitions(txn.snapshot.partitions, "INSERT_OVERWRITE_TABLE")
        try:
            self.group = start_for_tasks(txn, schema)
        except BaseException:
            txn.rollback()
            raise
        return txn

    @property
    def overwrite(self) -> bool:
        return self.hudi_write.operation is WriteOperation.INSERT_OVERWRITE_TABLE

    def write(self, batches: Iterator[pa.RecordBatch]) -> TaskResult:
        """Write a task's rows into new files, with a heartbeat, or stage them; drop ignored rows."""
        group, context = self.group, TaskContext.get()
        if context is not None and (self.is_ignored or self.hudi_write.gathers):
            staged = [] if self.stage is None or self.is_ignored else self.stage.write(batches)
            return TaskResult("", [], context.getLocalProperty(_QUERY), staged)
        if group is None or context is None:
            raise RuntimeError("a data source's rows are written in Spark tasks only")
        heartbeat = WriterHeartbeat(group.place.store, group.begin, self.options.settings.heartbeat, Machine())
        heartbeat.accompany()
        try:
            return TaskResult(group.begin, insert_all(group, batches), context.getLocalProperty(_QUERY))
        finally:
            heartbeat.leave()

    def commit(self, written: list[TaskResult], batch_id: BatchId | None = None) -> None:
        """Unless ignored, make the write visible, then run due services.

        Reports a stream's empty or already committed batch as `left_out`.
        """
        if self.is_ignored:
            return
        table, why = self.options.open(), "it has no rows"
        try:
            done = self._commit(table, written, batch_id)
        except AlreadyCommitted as error:  # by a run that Spark did not record
            done, why = None, str(error)
        if done is None and batch_id is not None:
            table.report("left_out", "", batch=str(batch_id), why=why)
        inline.run_due(table)

    def _commit(self, table: TableContext, written: list[TaskResult], batch_id: BatchId | None) -> CommitResult | None:
        """Commit the tasks' files or staged rows; return None for a stream's empty batch.

        An empty batch or error rolls back. Removes the tasks' staged files. AlreadyCommitted: the table has the batch.
        """
        if self.hudi_write.gathers:
            files = [file for result in written for file in result.staged]
            if self.stage is None or (batch_id is not None and not files):
                return None
            try:
                return commit_staged(table, self.stage, files, batch_id)
            finally:
                remove_staged(table.place, {file.folder for file in files} or {self.stage.folder})
        begin = written[0].begin if self.group is None else self.group.begin
        stats = [stat for result in written for stat in result.stats]
        txn = Transaction.resume(table, begin)
        try:
            txn.operation = "INSERT_OVERWRITE_TABLE" if self.overwrite else "INSERT"
            if batch_id is not None:
                txn.exactly_once(batch_id)
            txn.add(stats)
            if batch_id is not None and txn.changes_nothing:
                txn.rollback()
                return None
            return txn.commit()
        except BaseException:
            txn.rollback()
            raise

    def abort(self, written: Sequence[TaskResult]) -> None:
        """Remove staged files and roll the write's instants back, except committed ones."""
        if self.stage is not None:
            folders = {file.folder for result in written for file in result.staged}  # of a stream's planning process
            remove_staged(self.stage.writer.place, folders or {self.stage.folder})
        begun = {result.begin for result in written} | {"" if self.group is None else self.group.begin}
        for begin in begun - {""}:
            rollback.roll_back(self.options.open(), begin)


class _JobWriter:
    def __init__(self, job: WriteJob) -> None:
        self.job = job

    @without_traceback()
    def write(self, iterator: Iterator[pa.RecordBatch]) -> TaskResult:
        return self.job.write(iterator)


class BatchWriter(_JobWriter, DataSourceArrowWriter):
    """Writer of a batch as one commit."""

    @without_traceback()
    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        self.job.commit(_written(messages))

    @without_traceback()
    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """Roll back; running tasks remove their own files."""
        self.job.abort(_written(messages))


class StreamWriter(_JobWriter, DataSourceStreamArrowWriter):
    """Writer of a stream: one commit per batch."""

    @without_traceback()
    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """Commit a batch once, unless no task has a result; InvalidInput without `stream_id` or a query id."""
        written = _written(messages)
        if not written:
            return
        named, query = self.job.options.stream_id, written[0].stream
        if named is None and query is None:
            raise InvalidInput(
                "Spark did not pass the id of this query: set the option stream_id, to another name for each query"
            )
        self.job.commit(written, BatchId.of(named or query, batchId, "" if named is None else query or ""))

    @without_traceback()
    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """Roll back; if no task finished, the next writer cleans up."""
        del batchId
        self.job.abort(_written(messages))

    def __getstate__(self) -> WriteJob:
        """Call the job's `begin`; its transaction's heartbeat stops after `_PLANNED_S`."""
        txn = self.job.begin()
        if txn is not None:
            give_up = threading.Timer(_PLANNED_S, txn.leave)
            give_up.daemon = True
            give_up.start()
        return self.job

    def __setstate__(self, state: WriteJob) -> None:
        self.job = state


def _written(messages: list[WriterCommitMessage | None]) -> list[TaskResult]:
    return [message for message in messages if isinstance(message, TaskResult)]
