"""pyarrow: rows in this process, for pandas, polars, DuckDB and plain Python.

    table.transact(lambda txn: engine.write(txn, upserts=pa.Table.from_pandas(frame, preserve_index=False)))

Not promised: a bound on memory; `write` holds the changes and one file group at a time, `read` all that it returns.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from lockprovider.table import reading
from lockprovider.table import schema as hudi_schema
from lockprovider.table.engines.base import GroupWriter, Place
from lockprovider.table.errors import InvalidRecords
from lockprovider.table.manager import Table
from lockprovider.table.metadata import WriteStat
from lockprovider.table.transaction import Transaction
from lockprovider.table.view import FileSlice

_TASK = "0-0-0"  # one task, one stage, one attempt


@dataclass(frozen=True, slots=True)
class _Changes:
    """Rows to upsert with their keys, and keys to delete, all of one partition."""

    rows: pa.Table
    keys: pa.Array
    deletes: pa.Array


def read(
    source: Table | Transaction,
    columns: Sequence[str] | None = None,
    partitions: Iterable[str] | None = None,
    filter: reading.Where = None,  # noqa: A002 - as pyarrow calls it
) -> pa.Table:
    """The rows of the latest snapshot, or of a transaction's own; see `Table.to_arrow`."""
    if isinstance(source, Table):
        return source.to_arrow(columns, filter, partitions)
    table = source.table
    schema = table.schema(source.timeline)
    scan = reading.plan(source.snapshot, schema, source.config, columns=columns, where=filter, partitions=partitions)
    return reading.to_table(table, scan)


def write(txn: Transaction, upserts: pa.Table | None = None, deletes: pa.Table | None = None) -> None:
    """Write changes into `txn`: rows to insert or replace by key, and keys (with partition columns) to delete.

    A key that is in both is deleted. Once per transaction.

    Raises:
        InvalidRecords: a key is null, or a column does not fit the table.
    """
    if upserts is None and deletes is None:
        raise InvalidRecords("nothing to write: give upserts, deletes, or both")
    txn.operation = "DELETE" if upserts is None else "UPSERT"
    writer = GroupWriter.of(txn, txn.table.schema(txn.timeline))
    stats: list[WriteStat] = []
    for partition, changes in _by_partition(writer, upserts, deletes):
        stats += _write_partition(txn, writer, partition, changes)
    txn.add(stats)


def _by_partition(
    writer: GroupWriter, upserts: pa.Table | None, deletes: pa.Table | None
) -> Iterator[tuple[str, _Changes]]:
    nothing = writer.schema.empty_table()
    rows, keys, homes = writer.keyed(nothing if upserts is None else upserts)
    _, gone, gone_from = writer.keyed(nothing if deletes is None else deletes)
    for partition in sorted({*pc.unique(homes).to_pylist(), *pc.unique(gone_from).to_pylist()}):
        here, deleted = pc.equal(homes, partition), gone.filter(pc.equal(gone_from, partition))
        kept = pc.and_(here, pc.invert(pc.is_in(keys, value_set=deleted)))
        yield partition, _Changes(rows.filter(kept), keys.filter(kept), deleted)


def _write_partition(txn: Transaction, writer: GroupWriter, partition: str, changes: _Changes) -> Iterator[WriteStat]:
    fresh = pa.repeat(pa.scalar(True), len(changes.keys))
    for old in txn.snapshot.within([partition]):
        there = _keys_of(writer.place, old)
        mine = pc.is_in(changes.keys, value_set=there)
        gone = changes.deletes.filter(pc.is_in(changes.deletes, value_set=there))
        fresh = pc.and_(fresh, pc.invert(mine))
        if len(gone) or pc.any(mine).as_py():
            stat = writer.rewrite(old, changes.rows.filter(mine), changes.keys.filter(mine), gone, _TASK)
            if stat is not None:
                yield stat
    if pc.any(fresh).as_py():
        yield writer.insert(partition, changes.rows.filter(fresh), changes.keys.filter(fresh), _TASK)


def _keys_of(place: Place, old: FileSlice) -> pa.Array:
    return place.read(old.path, [hudi_schema.RECORD_KEY]).column(0).combine_chunks()
