"""Streams whose batches are upserts, merges or anything a transaction can do: `foreachBatch` with exactly-once commits.

    query = stream.writeStream.foreachBatch(upserts(table)).option("checkpointLocation", folder).start()

Each batch is one transaction in the driver's own process, and its commit carries the query's id and the batch's. A
batch that Spark runs again after a crash is found in the table and left out. Not promised: this for two queries that
were given one `stream_id`, or for a checkpoint that was thrown away (the query gets another id, and begins anew).

Source: Spark's "Structured Streaming Programming Guide", foreachBatch; Hudi `HoodieStreamingSink`.
"""

from __future__ import annotations

from collections.abc import Callable

from pyspark.sql import DataFrame

from fsspec_cas import InvalidInput
from lockprovider.table.engines.spark import functions
from lockprovider.table.errors import AlreadyCommitted
from lockprovider.table.state.context import TableContext
from lockprovider.table.transaction.exactly_once import BatchId
from lockprovider.table.transaction.handle import TransactionHandle
from lockprovider.table.transaction.retry import transact
from lockprovider.table.transaction.transaction import Transaction

RETRIES = 20
_QUERY = "sql.streaming.queryId"


def upserts(
    table: TableContext, *, stream_id: str | None = None, retries: int = RETRIES
) -> Callable[[DataFrame, int], None]:
    """For `foreachBatch`: upsert each batch by key, once."""
    return batches(table, functions.write, stream_id=stream_id, retries=retries)


def batches(
    table: TableContext,
    change: Callable[[TransactionHandle, DataFrame], object],
    *,
    stream_id: str | None = None,
    retries: int = RETRIES,
) -> Callable[[DataFrame, int], None]:
    """For `foreachBatch`: let `change` write each batch into a transaction, and commit it once.

    `change` is run again after a conflict, up to `retries` times; then the query fails with WriteConflict, and Spark
    begins with that batch when it is started again. `stream_id` is the query's own id unless given.
    """

    def each(rows: DataFrame, batch: int) -> None:
        batch_id = BatchId(stream_id or _query_id(rows), batch)

        def run(txn: Transaction) -> None:
            txn.exactly_once(batch_id)
            change(TransactionHandle(txn), rows)

        try:
            transact(table, run, retries=retries)
        except AlreadyCommitted:
            return  # by the run before, which died before Spark noted it

    return each


def _query_id(rows: DataFrame) -> str:
    found = rows.sparkSession.sparkContext.getLocalProperty(_QUERY)
    if found is None:
        raise InvalidInput("this is no batch of a stream: give a stream_id, one for each query")
    return found
