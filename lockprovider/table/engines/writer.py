"""The writer of a transaction's files, in its own process or in an engine's tasks."""

from __future__ import annotations

from collections.abc import Collection
from functools import partial

import pyarrow as pa

from lockprovider.table.errors import InvalidRecords, UnsupportedTable, WriteConflict
from lockprovider.table.files.base_file import look_like_buckets
from lockprovider.table.files.group_writer import GroupWriter
from lockprovider.table.format import schema as hudi_schema
from lockprovider.table.format.properties import BUCKET, BUCKETS, INDEX
from lockprovider.table.transaction.transaction import Transaction


def planner_of(txn: Transaction) -> GroupWriter:
    """What tells keys and partitions of rows, before anything is written; it is of no instant."""
    return GroupWriter(txn.table.place, "", txn.config, txn.table.schema(txn.timeline))


def for_tasks(txn: Transaction, schema: pa.Schema, blindly: Collection[str] | None = None) -> GroupWriter:
    """A writer for the files of `txn`, which this starts; `schema` is canonical. Good for other processes.

    `blindly`: the partitions of a write that may be blind, and is from now on.

    Raises:
        WriteConflict: others have added columns meanwhile.
    """
    _check_marked(txn)
    if blindly is not None:
        txn.columns(partial(_refuse_other, txn, schema), lambda: blindly)
    txn.write_elsewhere()
    return GroupWriter(txn.table.place, txn.start(), txn.config, schema)


def for_here(txn: Transaction, schema: pa.Schema) -> GroupWriter:
    """The same, for this process only: its transaction knows what was written, and need not look for it."""
    txn.write_here()
    here = txn.start_here(partial(_check_marked, txn))
    return GroupWriter(txn.table.place, txn.begin, txn.config, schema, here)


def _refuse_other(txn: Transaction, mine: pa.Schema, found: pa.Schema) -> None:
    if not found.equals(mine):
        raise WriteConflict(txn.begin, txn.timeline.writes[-1].file_name, ())


def _check_marked(txn: Transaction) -> None:
    """Refuse to write where a JVM writer made buckets and did not say so in the properties, as it never does.

    Raises:
        UnsupportedTable: all file groups are called as buckets are.
    """
    if txn.config.bucket_index is not None:
        return
    for instant in reversed(txn.timeline.writes):
        ids = [file_id for _, file_id in txn.table.metadata_of(instant).file_groups]
        if not ids:
            continue
        if look_like_buckets(ids) and look_like_buckets(one.file_id for one in txn.snapshot.slices):
            raise UnsupportedTable(
                f"table {txn.config.name!r} has file groups like {ids[0]}, of a JVM writer with {INDEX}={BUCKET}: "
                f"say so by `lockprovider table adopt-buckets` (Table.adopt_bucket_index), with that writer's {BUCKETS}"
            )
        return


def plain_columns(schema: pa.Schema, columns: list[str] | None) -> pa.Schema:
    """The schema of a read: all columns without Hudi's own, or the named ones.

    Raises:
        InvalidRecords: a column that the table does not have.
    """
    if columns is None:
        return schema
    full = hudi_schema.with_meta(schema)
    missing = hudi_schema.absent(columns, full.names)
    if missing:
        raise InvalidRecords(f"columns {missing} are not in the table, which has {schema.names}")
    return pa.schema([full.field(name) for name in columns])
