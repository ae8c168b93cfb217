"""pyarrow engine: writes rows in this process, for pandas, polars, DuckDB and plain Python.

Writes base or log files.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import TypeAlias

import pyarrow as pa

from fsspec_cas.bridge.threads import in_order
from lockprovider.table.engines.changes import (
    AT_ONCE,
    KeyedChanges,
    announce_buckets,
    changes_by_partition,
    check_unique,
    check_within,
    file_sized_tables,
    new_groups,
    rewrite_partition,
)
from lockprovider.table.engines.scan import Scan
from lockprovider.table.engines.writer import Changes, WritePlan, plan_for_tasks
from lockprovider.table.errors import InvalidRecords, TableError
from lockprovider.table.files.group_writer import GroupWriter, NewGroup
from lockprovider.table.format.metadata import WriteStat
from lockprovider.table.read.scan import Where
from lockprovider.table.timeline.view import FileSlice
from lockprovider.table.transaction.transaction import AnyTransaction, Transaction, inside

SMALL_AT_ONCE = 16  # small writes mostly wait for the store
SMALL_ROWS = 1 << 16
_TASK = "0-0-0"

ChangesByPartition: TypeAlias = Mapping[str, KeyedChanges]


def write(txn: AnyTransaction, upserts: pa.Table | None = None, deletes: pa.Table | None = None) -> None:
    """Upsert rows and delete keys in `txn`, a key in both is deleted; see `Table.upsert`.

    InvalidRecords: both are None, or `txn` has written already.
    """
    txn = inside(txn)
    if upserts is None and deletes is None:
        raise InvalidRecords("nothing to write: give upserts, deletes, or both")
    txn.operation = "DELETE" if upserts is None else "UPSERT"
    is_blind = txn.may_be_blind and (deletes is None or txn.config.ordering_field in deletes.column_names)

    def split(planner: GroupWriter) -> ChangesByPartition:
        return changes_by_partition(planner, upserts, deletes, "refuse", valued=is_blind and deletes is not None)

    plan = plan_write(txn, split)
    writer, by_partition = start_here(txn, plan, plan.changes if is_blind else None)
    txn.add(_rewritten(txn, writer, by_partition, txn.slices, SMALL_AT_ONCE if is_blind else AT_ONCE))


def plan_write(txn: Transaction, split: Callable[[GroupWriter], Changes]) -> WritePlan[Changes]:
    """Check and split rows by the table's cached columns; without them or after a TableError, by its current ones."""
    if (cached := txn.expected_schema) is not None:
        planner = txn.planner(cached)
        with suppress(TableError):
            return WritePlan(planner, split, split(planner))
    return plan_for_tasks(txn, split)


def start_here(
    txn: Transaction, plan: WritePlan[Changes], blindly: Collection[str] | None = None
) -> tuple[GroupWriter, Changes]:
    """Begin `txn`; return a `GroupWriter` for this process only, and the changes, split again if the columns are new.

    `blindly`: partitions to write without reading stored rows; may first commit anchors (empty base files) for them. A
    JVM writer's unmarked buckets raise UnsupportedTable.
    """
    txn.write_blindly(blindly)
    schema, changes = txn.begin_to_write(), plan.changes
    if not schema.equals(plan.planner.schema):
        changes = plan.split(txn.planner(schema))
    here = txn.start_here()
    return GroupWriter(txn.table.place, txn.begin, txn.config, schema, here), changes


def insert(txn: AnyTransaction, rows: pa.Table | pa.RecordBatchReader) -> None:
    """Insert rows into `txn`, once per transaction, like `Table.append`.

    Consumes a reader.
    """
    txn = inside(txn)
    txn.operation = "INSERT"
    _insert(txn, _plan_insert(txn, rows))


def delete_where(txn: AnyTransaction, where: Where) -> None:
    """Delete in `txn`, once per transaction, the snapshot's rows where `where` holds; reads their keys into memory."""
    txn = inside(txn)
    txn.operation = "DELETE"  # Refuses a second write before the scan: a commit that has read rows is not blind.
    write(txn, deletes=Scan(txn, txn.config.identifying, where).to_arrow())


def replace_all(txn: Transaction, rows: pa.Table, partitions: Sequence[str] | None = None) -> None:
    """Replace the snapshot's rows, of all partitions or of `partitions`, by `rows` in `txn`; without rows, delete them.

    Call it once per transaction, first. InvalidRecords: a row elsewhere, or a key twice in a partition.
    """
    plan = _plan_insert(txn, rows)
    operation = "INSERT_OVERWRITE_TABLE" if partitions is None else "INSERT_OVERWRITE"
    if partitions is not None:
        check_within((path for part in plan.changes for path in part), partitions)
        if not rows.num_rows:
            operation = "DELETE_PARTITION"
    txn.end_partitions(txn.snapshot.partitions if partitions is None else partitions, operation)
    _insert(txn, plan)


def _plan_insert(txn: Transaction, rows: pa.Table | pa.RecordBatchReader) -> WritePlan[Iterable[ChangesByPartition]]:
    """Check rows and split them by partition; missing columns become null. Writes nothing, and keeps repeated keys.

    Of a reader it checks columns, and the write reads rows in parts; with a bucket index, this call reads all.
    """
    if txn.config.bucket_index is not None and not isinstance(rows, pa.Table):
        rows = rows.read_all()

    def split(planner: GroupWriter) -> Iterable[ChangesByPartition]:
        if isinstance(rows, pa.Table):
            return [changes_by_partition(planner, rows, None)]
        planner.plan(rows.schema)
        return (changes_by_partition(planner, part, None) for part in file_sized_tables(rows))

    return plan_write(txn, split)


def _insert(txn: Transaction, plan: WritePlan[Iterable[ChangesByPartition]]) -> None:
    """Begin `txn`; write rows into new file groups or, with a bucket index, upsert them into the buckets'.

    A key twice in a partition raises InvalidRecords.
    """
    if txn.config.bucket_index is None:
        writer, parts = start_here(txn, plan)
        txn.add(_inserted(txn, writer, parts))
        return
    writer, parts = start_here(txn, plan, [*next(iter(plan.changes))] if txn.may_be_blind else None)
    (by_partition,) = parts
    for partition, changes in by_partition.items():
        check_unique(pa.chunked_array([changes.keys]), partition)
    txn.add(_rewritten(txn, writer, by_partition, txn.remaining, AT_ONCE))


def _inserted(txn: Transaction, writer: GroupWriter, parts: Iterable[ChangesByPartition]) -> Iterable[WriteStat]:
    """Write all parts now, into new file groups, creating missing partitions.

    `txn` records markers and partitions, not stats. InvalidRecords afterwards: a key twice in a partition.
    """
    stats: list[WriteStat] = []
    keys_by_partition: dict[str, list[pa.Array]] = {}
    for number, part in enumerate(parts):
        _open(writer, part)
        groups: list[NewGroup] = []
        for partition, changes in part.items():
            keys_by_partition.setdefault(partition, []).append(changes.keys)
            groups += new_groups(writer, partition, changes.rows, changes.keys, (_TASK, number))
        stats += txn.table.report_each(txn.begin, "write files", _written(writer, groups), len(groups))
    for partition, keys in keys_by_partition.items():
        check_unique(pa.chunked_array(keys), partition)
    return stats


def _rewritten(
    txn: Transaction,
    writer: GroupWriter,
    by_partition: ChangesByPartition,
    slices: Callable[[Iterable[str]], tuple[FileSlice, ...]],
    at_once: int,
) -> Iterable[WriteStat]:
    """Create new partitions and buckets' markers now; write changed files while the returned statistics are iterated.

    `slices` returns the partitions' file slices to change. `at_once`: parallel files, if only one partition changes.
    """
    existing = {file_slice.partition for file_slice in txn.slices()}
    _open(writer, [path for path, changes in by_partition.items() if len(changes.keys) and path not in existing])
    announce_buckets(writer, slices(by_partition), by_partition, _TASK)

    report = partial(txn.table.report_each, txn.begin)

    def rewrite(path: str, limit: int) -> Iterator[WriteStat]:
        return rewrite_partition(writer, slices([path]), path, by_partition[path], _TASK, limit=limit)

    if len(by_partition) == 1:
        (path,) = by_partition
        return report("merge file groups", rewrite(path, at_once), len(slices([path])))
    jobs = [partial(lambda path: list(rewrite(path, 1)), path) for path in by_partition]
    return (stat for stats in report("merge partitions", in_order(jobs, AT_ONCE), len(jobs)) for stat in stats)


def _open(writer: GroupWriter, partitions: Iterable[str]) -> None:
    writer.open_partitions(partitions, lambda make, names: in_order([partial(make, n) for n in names], SMALL_AT_ONCE))


def _written(writer: GroupWriter, groups: Sequence[NewGroup]) -> Iterator[WriteStat]:
    writer.announce([group.at(writer.begin) for group in groups])
    if all(len(group.keys) <= SMALL_ROWS for group in groups):
        return in_order((partial(writer.put, file) for file in writer.encode_each(groups)), SMALL_AT_ONCE)
    return in_order([partial(lambda group: writer.put(writer.encode(group)), group) for group in groups], AT_ONCE)
