"""Exactly-once `foreachBatch`: batches are upserts, merges or any other transactions.

    query = stream.writeStream.foreachBatch(upserts(table)).option("checkpointLocation", folder).start()

Each write of a batch is one transaction; an empty or repeated one is skipped (see `batches`) with event `left_out`.

Not promised: exactly-once if a rerun changes the order or choice of its writes, or a query without `stream_id` gets a
new checkpoint.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from pyspark.sql import DataFrame

from fsspec_cas import InvalidInput
from lockprovider.table.engines.spark import functions
from lockprovider.table.errors import AlreadyCommitted, WrongCheckpoint
from lockprovider.table.state.context import TableContext
from lockprovider.table.timeline.conflict import BatchId
from lockprovider.table.transaction.transaction import CommitResult, Transaction, TransactionHandle, transact

RETRIES = 20
_QUERY = "sql.streaming.queryId"
_CONNECT = "connect"
_STREAMS = 10_000
_UNTOLD = (
    "if the query has a new checkpoint, give it a new stream_id. Spark Connect does not report the checkpoint: a query "
    "that crashed before Spark recorded this batch needs a new stream_id, too"
)
_EXECUTION = "spark.sql.execution.id"  # Spark gives each attempt of a batch its own id


def upserts(
    table: TableContext, *, stream_id: str | None = None, retries: int = RETRIES
) -> Callable[[DataFrame, int], CommitResult | None]:
    """Make a function for `foreachBatch` that upserts each batch by key; see `batches`."""
    return batches(table, functions.write, stream_id=stream_id, retries=retries)


def batches(
    table: TableContext,
    change: Callable[[TransactionHandle, DataFrame], object],
    *,
    stream_id: str | None = None,
    retries: int = RETRIES,
) -> Callable[[DataFrame, int], CommitResult | None]:
    """Make a `foreachBatch` function: `change` writes each batch into a transaction, which commits once.

    After a conflict `change` runs again, up to `retries` times; then WriteConflict fails the query. `stream_id`
    defaults to the query's id. The function returns None without a commit.

    Raises:
        InvalidInput: by the function: two writes overlap, or no `stream_id` and no query's id (Spark Connect).
        WrongCheckpoint: by it, with `stream_id`: not the table's checkpoint, or Connect repeats batch 0.
    """
    if stream_id is not None:
        BatchId.of(stream_id, 0)
    return _Batches(table, change, stream_id, retries)


@dataclass(frozen=True)
class _Batches:
    """Picklable: Spark Connect calls it in a server process."""

    table: TableContext
    change: Callable[[TransactionHandle, DataFrame], object]
    stream_id: str | None
    retries: int

    def __call__(self, rows: DataFrame, batch: int) -> CommitResult | None:
        with _numbered(self.table, rows, batch, self.stream_id) as batch_id:

            def run(txn: Transaction) -> None:
                txn.exactly_once(batch_id)
                self.change(TransactionHandle(txn), rows)
                if txn.changes_nothing:
                    raise _Nothing

            try:
                return transact(self.table, run, retries=self.retries)
            except AlreadyCommitted as error:
                if batch_id.run == _CONNECT and batch == 0:
                    raise WrongCheckpoint(f"{error}; {_UNTOLD}") from error
                self.table.report("left_out", "", batch=str(batch_id), why=str(error))
            except _Nothing:
                self.table.report("left_out", "", batch=str(batch_id), why="it has no rows")
            return None


class _Nothing(Exception):
    """Signal that a batch changes nothing."""


@dataclass
class _Try:
    name: object
    writes: int = 0
    is_writing: bool = False


_LOCK = threading.Lock()
_TRIES: dict[tuple[str, str], _Try] = {}  # by table and stream, the last written last


@contextmanager
def _numbered(table: TableContext, rows: DataFrame, batch: int, stream_id: str | None) -> Iterator[BatchId]:
    """Number the batch attempt's next write, yield its id, marked in progress in the block.

    Failed blocks use up numbers. Thread-safe. InvalidInput: the query's attempt has another in progress, or the stream
    no id.
    """
    query, name = _query(rows)
    if (stream := stream_id or query) is None or (stream_id is None and query == _CONNECT):
        raise InvalidInput(
            "Spark does not report the id of this query (the rows are no batch of a stream, or come from Spark "
            "Connect): pass stream_id, another name for each query"
        )
    with _LOCK:
        attempt = _TRIES.pop((table.url, stream), None)
        if attempt is None or name is None or attempt.name != (name, batch):
            attempt = _Try((name, batch))
        _TRIES[table.url, stream] = attempt
        if len(_TRIES) > _STREAMS:
            _TRIES.pop(next(iter(_TRIES)))
        if attempt.is_writing:
            raise InvalidInput(
                f"another write of batch {batch} of stream {stream} is in progress: write one after the other"
            )
        attempt.is_writing, attempt.writes = True, attempt.writes + 1
    try:
        # A stream named after its query has no other runs.
        yield BatchId.of(stream, batch, "" if stream_id is None else query or "", attempt.writes)
    finally:
        attempt.is_writing = False


def _query(rows: DataFrame) -> tuple[str | None, object]:
    if rows.sparkSession.__class__.__module__.startswith("pyspark.sql.connect"):
        return _CONNECT, _CONNECT  # Connect starts a process per query start, without its id
    context = rows.sparkSession.sparkContext
    query = context.getLocalProperty(_QUERY)
    return query, None if query is None else (context.applicationId, context.getLocalProperty(_EXECUTION))
