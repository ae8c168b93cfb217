"""pyarrow: rows in this process, for pandas, polars, DuckDB and plain Python.

    table.append(frame); table.upsert(frame, retries=5); table.delete(frame[["id", "city"]])
    table.transact(lambda txn: engine.write(txn, upserts=rows, deletes=keys))

Memory: an append of a RecordBatchReader holds the rows of one file (`ROWS_PER_FILE`, `BYTES_PER_FILE`) and all keys;
the others hold the changes, and of as many file groups at a time as there are processors (`AT_ONCE` at most,
`SMALL_AT_ONCE` small ones) the keys, the rows of one row group and the bytes of two files; `read` holds all that it
returns.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import pairwise
from typing import TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from fsspec_cas import InvalidInput
from lockprovider.table.convert import OnMissing
from lockprovider.table.convert.rows import Rows, as_stream, as_table
from lockprovider.table.engines import bucketed, logged
from lockprovider.table.engines.bucketed import PartitionChanges
from lockprovider.table.engines.writer import for_here
from lockprovider.table.errors import InvalidRecords
from lockprovider.table.files import merge
from lockprovider.table.files.base_file import ROW_GROUP_BYTES
from lockprovider.table.files.group_writer import GroupWriter, NewGroup, group_id
from lockprovider.table.files.place import TablePlace
from lockprovider.table.files.write_log import refuse_unordered, values_of_deletes
from lockprovider.table.format.metadata import WriteStat
from lockprovider.table.read import consistent
from lockprovider.table.read.consistent import PointInTime
from lockprovider.table.read.scan import ScanPlan, Where, to_table
from lockprovider.table.state.context import TableContext
from lockprovider.table.state.events import counted
from lockprovider.table.state.parallel import in_order
from lockprovider.table.timeline.view import FileSlice, Snapshot
from lockprovider.table.transaction.retry import WHOLE_RETRIES, transact
from lockprovider.table.transaction.transaction import AnyTransaction, CommitResult, Transaction, inside

ROWS_PER_FILE = 500_000  # of a new file group; a later upsert rewrites whole files
BYTES_PER_FILE = ROW_GROUP_BYTES  # in memory; so that an upsert beside large rows holds few of them
AT_ONCE = min(4, os.cpu_count() or 1)  # file groups that are written at the same time
SMALL_AT_ONCE = 16  # of no more than so many rows each: their writing is mostly waiting for the store
SMALL_ROWS = 1 << 16
_TASK = "0-0-0"  # one task, one stage, one attempt

T = TypeVar("T")
Planned = tuple[TablePlace, ScanPlan]  # where the files are, and which


# -- one call, one transaction -----------------------------------------------------------------------------------------


def append(
    table: TableContext,
    rows: Rows,
    *,
    retries: int | None = None,
    extra: Mapping[str, str] | None = None,
    check_keys: bool | None = None,
) -> CommitResult:
    """Add rows with new keys, without looking whether they are there: see `Table.append`."""
    stream = as_stream(rows, table.schema)
    if retries is None:
        retries = 0 if isinstance(stream, pa.RecordBatchReader) else WHOLE_RETRIES
    if retries and isinstance(stream, pa.RecordBatchReader):
        raise InvalidRecords("a RecordBatchReader can be read only once: give a pyarrow Table to have retries")
    return transact(
        table, lambda txn: insert(txn, stream), retries=retries, extra=extra, check_keys=check_keys, pinned=False
    )


def upsert(
    table: TableContext,
    rows: Rows,
    *,
    deletes: Rows | None = None,
    retries: int = WHOLE_RETRIES,
    extra: Mapping[str, str] | None = None,
    check_keys: bool | None = None,
) -> CommitResult:
    """Insert rows or replace them by key, and delete keys: see `Table.upsert`."""
    changes = as_table(rows, table.schema)
    gone = None if deletes is None else as_table(deletes, table.schema)
    return transact(
        table, lambda txn: write(txn, changes, gone), retries=retries, extra=extra, check_keys=check_keys, pinned=False
    )


def delete(
    table: TableContext, keys: Rows, *, retries: int = WHOLE_RETRIES, extra: Mapping[str, str] | None = None
) -> CommitResult:
    """Delete rows by key: see `Table.delete`."""
    gone = as_table(keys, table.schema)
    return transact(table, lambda txn: write(txn, deletes=gone), retries=retries, extra=extra, pinned=False)


# -- inside a transaction ----------------------------------------------------------------------------------------------


def read(
    source: TableContext | AnyTransaction,
    columns: Iterable[str] | None = None,
    partitions: Iterable[str] | None = None,
    filter: Where = None,  # noqa: A002 - as pyarrow calls it
    as_of: PointInTime = None,
    *,
    read_optimized: bool = False,
) -> pa.Table:
    """The rows of a table, or of a transaction's own snapshot; see `Table.scan`."""
    if isinstance(source, TableContext):
        return consistent.rows(source, columns, filter, partitions, as_of, read_optimized=read_optimized)
    return to_table(*plan_read(source, columns, partitions, filter, as_of, read_optimized=read_optimized))


def plan_read(
    source: TableContext | AnyTransaction,
    columns: Iterable[str] | None = None,
    partitions: Iterable[str] | None = None,
    filter: Where = None,  # noqa: A002 - as pyarrow calls it
    as_of: PointInTime = None,
    *,
    read_optimized: bool = False,
) -> Planned:
    """Which files hold these rows of a table, or of a transaction's own snapshot, and where they are.

    Raises:
        InvalidInput, HistoryGone, UnsupportedTable: as `Table.scan`.
    """
    table, seen = seen_by(source, as_of)
    config = None if isinstance(source, TableContext) else inside(source).config
    found = consistent.plan(table, seen, columns, filter, partitions, read_optimized=read_optimized, config=config)
    return table.place, found


def seen_by(source: TableContext | AnyTransaction, as_of: PointInTime) -> tuple[TableContext, Snapshot]:
    """The table, and what is read of it: its snapshot of now or of a moment, or a transaction's own.

    Raises:
        InvalidInput: a moment is asked for of a transaction.
        HistoryGone: that moment cannot be read (any more).
    """
    if isinstance(source, TableContext):
        return source, consistent.snapshot(source, as_of)
    if as_of is not None:
        raise InvalidInput("a transaction reads its own snapshot: read the past from the table")
    txn = inside(source)
    return txn.table, txn.snapshot


def write(txn: AnyTransaction, upserts: pa.Table | None = None, deletes: pa.Table | None = None) -> None:
    """Write changes into `txn`: rows to insert or replace by key, and keys (with partition columns) to delete.

    A key that is in both is deleted. Rows have all columns of the table: a missing one would erase what is there. Once
    per transaction.

    Raises:
        DoesNotFit: a column is missing or of another type than the table's, or a value does not fit.
        InvalidRecords: a key is null.
    """
    txn = inside(txn)
    if upserts is None and deletes is None:
        raise InvalidRecords("nothing to write: give upserts, deletes, or both")

    def split(planner: GroupWriter) -> dict[str, PartitionChanges]:
        return changes_by_partition(planner, upserts, deletes, "refuse", valued=is_blind and deletes is not None)

    txn.operation = "DELETE" if upserts is None else "UPSERT"
    is_blind = txn.may_be_blind and (deletes is None or txn.config.ordering_field in deletes.column_names)
    writer, found = _split_first(txn, split, blindly=is_blind)
    within = (SMALL_AT_ONCE if is_blind else AT_ONCE) if len(found) == 1 else 1
    _open_new(txn, writer, found)
    bucketed.announce(writer, txn.slices(found), found, _TASK)

    def rewrite(path: str) -> Iterator[WriteStat]:
        return rewrite_partition(writer, txn.slices([path]), path, found[path], _TASK, limit=within)

    told = partial(counted, txn.table, txn.begin)
    if len(found) == 1:
        (path,) = found
        txn.add(told("merge file groups", rewrite(path), len(txn.slices([path]))))
        return
    jobs = [partial(lambda path: list(rewrite(path)), one) for one in found]
    txn.add(stat for stats in told("merge partitions", in_order(jobs, AT_ONCE), len(jobs)) for stat in stats)


def insert(txn: AnyTransaction, rows: pa.Table | pa.RecordBatchReader) -> None:
    """Write rows as new ones, without looking whether their keys are in the table. Once per transaction.

    In a table with a bucket index they go into the file groups of their buckets: all are held in memory, and a row
    whose key is there is replaced, unless its ordering value is higher.

    Raises:
        InvalidRecords: a key is null or comes twice in `rows`, or a column does not fit the table.
    """
    txn = inside(txn)
    txn.operation = "INSERT"
    if txn.config.bucket_index is not None and not isinstance(rows, pa.Table):
        rows = rows.read_all()

    def split(planner: GroupWriter) -> dict[str, PartitionChanges] | None:
        planner.plan(rows.schema)
        return changes_by_partition(planner, rows, None) if isinstance(rows, pa.Table) else None

    writer, found = _split_first(txn, split, blindly=txn.may_be_blind)
    if found is not None and txn.config.bucket_index is not None:
        txn.add(_into_buckets(txn, writer, found))
        return
    stats: list[WriteStat] = []
    seen: dict[str, list[pa.Array]] = {}
    parts = [found] if found is not None else (changes_by_partition(writer, part, None) for part in _in_parts(rows))
    for number, part in enumerate(parts):
        _open(writer, part)
        groups: list[NewGroup] = []
        for partition, changes in part.items():
            seen.setdefault(partition, []).append(changes.keys)
            groups += new_groups(writer, partition, changes.rows, changes.keys, (_TASK, number))
        stats += counted(txn.table, txn.begin, "write files", _written(writer, groups), len(groups))
    for partition, keys in seen.items():
        check_unique(pa.chunked_array(keys), partition)
    txn.add(stats)


def _split_first(txn: Transaction, split: Callable[[GroupWriter], T], *, blindly: bool) -> tuple[GroupWriter, T]:
    """The writer of `txn`, which this starts, and what `split` makes of the rows; what is refused is refused before.

    `blindly`: it makes what the partitions get.
    """
    done: list[tuple[pa.Schema, T]] = []

    def check(schema: pa.Schema) -> None:
        if not done or not done[-1][0].equals(schema):
            done.append((schema, split(GroupWriter(txn.table.place, "", txn.config, schema))))

    def partitions() -> Collection[str]:
        found = done[-1][1]
        return list(found) if isinstance(found, Mapping) else ()

    schema = txn.columns(check, partitions if blindly else None)
    return for_here(txn, schema), done[-1][1]


def _into_buckets(txn: Transaction, writer: GroupWriter, found: Mapping[str, PartitionChanges]) -> Iterator[WriteStat]:
    for partition, changes in found.items():
        check_unique(pa.chunked_array([changes.keys]), partition)
    _open_new(txn, writer, found)
    bucketed.announce(writer, txn.remaining(found), found, _TASK)
    for partition, changes in found.items():
        yield from rewrite_partition(writer, txn.remaining([partition]), partition, changes, _TASK, limit=AT_ONCE)


def _open_new(txn: Transaction, writer: GroupWriter, found: Mapping[str, PartitionChanges]) -> None:
    """Make the partitions that the snapshot does not have, all of them before their files."""
    there = {one.partition for one in txn.slices()}
    _open(writer, [partition for partition, changes in found.items() if len(changes.keys) and partition not in there])


def _open(writer: GroupWriter, partitions: Iterable[str]) -> None:
    writer.open_partitions(partitions, lambda make, names: in_order([partial(make, n) for n in names], SMALL_AT_ONCE))


def insert_partition(
    writer: GroupWriter, partition: str, rows: pa.Table, keys: pa.Array, task: tuple[str, int]
) -> Iterator[WriteStat]:
    """Write new file groups, of about equal size, for rows of one partition; `task` is the write token and a number."""
    return (writer.put(writer.encode(group)) for group in new_groups(writer, partition, rows, keys, task))


def new_groups(
    writer: GroupWriter, partition: str, rows: pa.Table, keys: pa.Array, task: tuple[str, int]
) -> Iterator[NewGroup]:
    """The file groups that `insert_partition` writes."""
    files = max(1, len(keys) // ROWS_PER_FILE, -(-rows.nbytes // BYTES_PER_FILE))
    size = -(-len(keys) // files)
    for start in range(0, len(keys), max(1, size)):
        part, name = slice(start, start + size), group_id(writer.begin, partition, *task, start)
        yield NewGroup(partition, rows[part], keys[part], task[0], name)


def _written(writer: GroupWriter, groups: Sequence[NewGroup]) -> Iterator[WriteStat]:
    """Write new file groups: large ones at the same time, small ones are encoded here: threads would only compete."""
    writer.announce([group.at(writer.begin) for group in groups])
    if all(len(group.keys) <= SMALL_ROWS for group in groups):
        return in_order((partial(writer.put, file) for file in writer.encode_each(groups)), SMALL_AT_ONCE)
    return in_order([partial(lambda group: writer.put(writer.encode(group)), group) for group in groups], AT_ONCE)


def _in_parts(rows: pa.RecordBatchReader) -> Iterator[pa.Table]:
    """Tables of about as many rows as go into one file."""
    batches, count, held_bytes = list[pa.RecordBatch](), 0, 0
    for batch in rows:
        if batches and (count >= ROWS_PER_FILE or held_bytes + batch.nbytes > BYTES_PER_FILE):
            yield pa.Table.from_batches(batches, rows.schema)
            batches, count, held_bytes = [], 0, 0
        batches.append(batch)
        count, held_bytes = count + batch.num_rows, held_bytes + batch.nbytes
    if batches:
        yield pa.Table.from_batches(batches, rows.schema)


def check_unique(keys: pa.ChunkedArray, partition: str) -> None:
    """Refuse a key that comes twice.

    Raises:
        InvalidRecords: naming it.
    """
    if merge.are_unique(keys):
        return
    counts = pc.value_counts(keys)
    twice = counts.filter(pc.greater(counts.field("counts"), 1))[0]["values"].as_py()
    raise InvalidRecords(
        f"record key {twice!r} comes more than once in partition {partition!r}; append takes each key once, "
        "drop the others or use upsert"
    )


def changes_by_partition(
    writer: GroupWriter,
    upserts: pa.Table | None,
    deletes: pa.Table | None,
    missing: OnMissing = "null",
    *,
    valued: bool = False,
) -> dict[str, PartitionChanges]:
    """Changes as the table stores them, apart for each partition; a key that is to be deleted is not upserted.

    `missing` is for columns that upserts do not have, as of `GroupWriter.keyed`. `valued`: the deletes have ordering
    values, which are kept.

    Raises:
        DoesNotFit, InvalidRecords: as of `GroupWriter.keyed`.
    """
    nothing, none = writer.schema.empty_table(), pa.array([], pa.string())
    rows, keys, homes = (nothing, none, none) if upserts is None else writer.keyed(upserts, missing)
    refuse_unordered(writer.config, rows)
    ended, gone, gone_from = (nothing, none, none) if deletes is None else writer.keyed_deletes(deletes, valued=valued)
    values = values_of_deletes(writer.config, ended) if valued else None
    if not writer.config.partition_fields:
        return {"": PartitionChanges(rows, keys, gone, values)} if len(keys) or len(gone) else {}
    here, there = _apart(homes), _apart(gone_from)
    paths = sorted({*here, *there})
    if len(paths) == 1:
        return {paths[0]: PartitionChanges(rows, keys, gone, values)}
    no_rows = pa.array([], pa.int64())
    found: dict[str, PartitionChanges] = {}
    for partition in paths:
        mine, others = here.get(partition, no_rows), there.get(partition, no_rows)
        given = None if values is None else values.take(others)
        found[partition] = PartitionChanges(rows.take(mine), keys.take(mine), gone.take(others), given)
    return found


def _apart(homes: pa.Array) -> dict[str, pa.Array]:
    """The numbers of each partition's rows, in their order."""
    encoded = homes.dictionary_encode()
    if len(encoded.dictionary) == 1:
        return {encoded.dictionary[0].as_py(): pa.array(np.arange(len(homes)))}
    order = pc.sort_indices(encoded.indices)
    ends = np.cumsum(np.bincount(encoded.indices, minlength=len(encoded.dictionary))).tolist()
    spans = pairwise([0, *ends])
    return {path: order[a:b] for path, (a, b) in zip(encoded.dictionary.to_pylist(), spans, strict=True)}


def rewrite_partition(
    writer: GroupWriter,
    slices: Iterable[FileSlice],
    partition: str,
    changes: PartitionChanges,
    task: str,
    *,
    limit: int = 1,
) -> Iterator[WriteStat]:
    """Write the next files of those file groups of a partition that changes are for; new keys make new groups.

    `task` is the write token. A task that is run again with the same changes finds the files of its first attempt. Up
    to `limit` file groups are written at the same time.
    """
    if writer.config.bucket_index is not None:
        given = (changes.rows, changes.keys, changes.deletes)
        jobs = bucketed.rewrites(writer, slices, partition, given, task, values=changes.values)
        yield from (stat for stat in in_order(jobs, limit) if stat is not None)
        return
    rows, keys = _unless_deleted(changes)
    rows, keys = merge.dedupe(rows, keys, writer.config.ordering_field)
    rows = rows.combine_chunks()
    if writer.config.is_merge_on_read:
        logs, new = logged.changes_of(writer, list(slices), (rows, keys, changes.deletes), task, limit)
        yield from (stat for stat in in_order(logs, limit) if stat is not None)
        yield from _insert_new(writer, partition, (rows.take(new), keys.take(new)), task, limit)
        return
    fresh, slices = np.ones(len(keys), dtype=np.bool_), list(slices)
    asked = pa.concat_arrays([keys, changes.deletes])
    others = writer.place.footer_notes.without(writer.place.store, [old.path for old in slices], asked)

    def rewrite(old: FileSlice) -> WriteStat | None:
        opened = writer.place.open_encoded(old.path)
        found = merge.merge_plan(opened, rows, keys, changes.deletes, writer.config.ordering_field)
        if found is None:
            return None
        fresh[found.met] = False  # each key's by one thread, or by two to the same end
        return writer.merge(old, opened, found, rows, task)

    stats = in_order([partial(rewrite, old) for old in slices if old.path not in others], limit)
    yield from (stat for stat in stats if stat is not None)
    new = pa.array(fresh)
    yield from _insert_new(writer, partition, (rows.filter(new), keys.filter(new)), task, limit)


def _insert_new(
    writer: GroupWriter, partition: str, keyed: tuple[pa.Table, pa.Array], task: str, limit: int
) -> Iterator[WriteStat]:
    groups = new_groups(writer, partition, *keyed, (task, 0))
    yield from in_order([partial(writer.insert, *group) for group in groups], limit)


def _unless_deleted(changes: PartitionChanges) -> tuple[pa.Table, pa.Array]:
    if not len(changes.deletes):
        return changes.rows, changes.keys
    kept = pc.invert(pc.is_in(changes.keys, value_set=changes.deletes))
    return changes.rows.filter(kept), changes.keys.filter(kept)
