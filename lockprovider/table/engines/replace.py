"""pyarrow: rows that go because of what they are or where, not by their key."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import pyarrow as pa

from lockprovider.table.convert.rows import Rows, as_table
from lockprovider.table.engines.arrow import changes_by_partition, insert, read, write
from lockprovider.table.errors import InvalidRecords
from lockprovider.table.files.group_writer import GroupWriter
from lockprovider.table.read.scan import Where
from lockprovider.table.state.context import TableContext
from lockprovider.table.timeline.view import given_partitions
from lockprovider.table.transaction.retry import WHOLE_RETRIES, transact
from lockprovider.table.transaction.transaction import CommitResult, Transaction


def delete_all(
    table: TableContext, where: Where, *, retries: int = WHOLE_RETRIES, extra: Mapping[str, str] | None = None
) -> CommitResult:
    """Delete the rows for which a condition is true: see `Table.delete`."""
    return transact(table, lambda txn: delete_where(txn, where), retries=retries, extra=extra)


def overwrite(
    table: TableContext,
    rows: Rows,
    partitions: Iterable[str] | None = None,
    *,
    retries: int = WHOLE_RETRIES,
    extra: Mapping[str, str] | None = None,
) -> CommitResult:
    """Put rows in place of all there are: see `Table.overwrite`."""
    given, within = as_table(rows, table.schema), given_partitions(partitions)
    return transact(table, lambda txn: replace_all(txn, given, within), retries=retries, extra=extra)


def delete_where(txn: Transaction, where: Where) -> None:
    """Delete the rows of the snapshot for which `where` is true. Once per transaction.

    Raises:
        InvalidInput: it does not fit the table.
    """
    write(txn, deletes=read(txn, txn.config.identifying, filter=where))


def replace_all(txn: Transaction, rows: pa.Table, partitions: Sequence[str] | None = None) -> None:
    """End all that the snapshot has, in the whole table or in these partitions, and insert rows. Once per transaction.

    Raises:
        InvalidRecords: a row is for another partition, or as of `insert`.
    """
    operation = "INSERT_OVERWRITE_TABLE" if partitions is None else "INSERT_OVERWRITE"
    if partitions is not None:
        schema = txn.table.schema(txn.timeline)
        planner = GroupWriter(txn.table.place, "", txn.config, schema)
        others = sorted({*changes_by_partition(planner, rows, None)} - {*partitions})
        if others:
            raise InvalidRecords(
                f"rows are for the partitions {others}, which are not overwritten: name them, or drop them"
            )
        if not rows.num_rows:
            operation = "DELETE_PARTITION"
    txn.end_partitions(txn.snapshot.partitions if partitions is None else partitions, operation)
    insert(txn, rows)
    txn.operation = operation
