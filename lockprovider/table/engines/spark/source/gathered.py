"""Writes whose rows come together in the committing process: upsert, delete, overwriting the rows' own partitions.

A data source cannot shuffle rows, and those of one file group may be in every task. So tasks hand theirs to the driver
with their commit message, as Spark's `collect` would, and one process writes them. Bounded by its memory, and by
`spark.driver.maxResultSize`: for larger ones there are the functions of the engine, which write on the executors.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import pyarrow as pa

from lockprovider.table.engines import arrow
from lockprovider.table.engines.spark.source.hudi_write import WriteOperation
from lockprovider.table.engines.writer import planner_of
from lockprovider.table.state.context import TableContext
from lockprovider.table.transaction.exactly_once import BatchId
from lockprovider.table.transaction.retry import WHOLE_RETRIES, transact
from lockprovider.table.transaction.transaction import CommitResult, Transaction

_PACKED = pa.ipc.IpcWriteOptions(compression="lz4")


def packed(batches: Iterator[pa.RecordBatch]) -> bytes:
    """The rows of a task; empty if it has none."""
    first = next(batches, None)
    if first is None:
        return b""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, first.schema, options=_PACKED) as stream:
        stream.write_batch(first)
        for batch in batches:
            stream.write_batch(batch)
    return bytes(sink.getvalue())


def commit_gathered(
    table: TableContext,
    operation: WriteOperation,
    parts: Iterable[bytes],
    nothing: pa.Table,
    batch_id: BatchId | None = None,
) -> CommitResult:
    """Write the rows of all tasks in one transaction, again after a conflict; `nothing` has their columns.

    Raises:
        WriteConflict, InvalidRecords, UnsupportedSchema, Aborted: as of `Table.upsert`.
        AlreadyCommitted: this batch was committed before.
    """
    found = [pa.ipc.open_stream(part).read_all() for part in parts if part]
    rows = pa.concat_tables(found) if found else nothing

    def run(txn: Transaction) -> None:
        if batch_id is not None:
            txn.exactly_once(batch_id)
        match operation:
            case WriteOperation.UPSERT:
                arrow.write(txn, upserts=rows)
            case WriteOperation.DELETE:
                arrow.write(txn, deletes=rows)
            case _:
                _overwrite(txn, rows)

    return transact(table, run, retries=WHOLE_RETRIES)


def _overwrite(txn: Transaction, rows: pa.Table) -> None:
    """Replace all rows of the partitions that these are for."""
    planner = planner_of(txn)
    txn.end_partitions({*planner.keyed(rows)[2].unique().to_pylist()})
    arrow.insert(txn, rows)
    txn.operation = "INSERT_OVERWRITE"
