"""Functions for Spark's executors: each has all its data; base and log files get predictable names.

A task that outlives its transaction removes its files; if killed, a later clean does.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark import TaskContext

from lockprovider.table.convert import OnMissing, read_as
from lockprovider.table.engines.changes import (
    ROWS_PER_FILE,
    bucket_id,
    changes_by_partition,
    check_unique,
    check_within,
)
from lockprovider.table.files.base_file import bucket_groups
from lockprovider.table.files.encoding import refuse_unordered, values_of_deletes
from lockprovider.table.files.group_writer import GroupWriter, group_id
from lockprovider.table.files.merge import without
from lockprovider.table.files.merge_log import MergeRule
from lockprovider.table.files.slice_rows import columns_to_merge, merged_rows
from lockprovider.table.format import schema as hudi_schema
from lockprovider.table.format.bloom import hashes
from lockprovider.table.format.bucket import BucketIndex, bucket_of
from lockprovider.table.format.metadata import WriteStat
from lockprovider.table.timeline.view import FileSlice

if TYPE_CHECKING:
    from numpy.typing import NDArray

ROWS_PER_BATCH = 1 << 16
KEY, PARTITION, DELETE, GROUP = "hudi key", "hudi partition", "hudi delete", "hudi group"
CLAUSE = "hudi clause"
MOST_TASKS = 200
_BITS = 32
_LOW = (1 << _BITS) - 1
KEYS = pa.schema([(KEY, pa.string()), (PARTITION, pa.string()), (GROUP, pa.int64())])
PARTITIONS = pa.schema([(PARTITION, pa.string())])
HASHES = pa.schema([("hashes", pa.binary())])
STATS = pa.schema([(one.name, pa.int64() if one.type == "int" else pa.string()) for one in fields(WriteStat)])

Batches = Iterator[pa.RecordBatch]
T = TypeVar("T")


def change_schema(schema: pa.Schema) -> pa.Schema:
    """Schema of a change: the table's columns (null in a delete), key, partition, delete flag."""
    columns = [column.with_nullable(True) for column in schema]
    return pa.schema([*columns, (KEY, pa.string()), (PARTITION, pa.string()), (DELETE, pa.bool_())])


def per_batch(change: Callable[[pa.Table], pa.Table]) -> Callable[[Batches], Batches]:
    def run(batches: Batches) -> Batches:
        for batch in batches:
            yield from change(pa.Table.from_batches([batch])).to_batches()

    return run


def map_over(work: Sequence[T], each: Callable[[T], pa.Table], schema: pa.Schema) -> Callable[[Batches], Batches]:
    def run(batches: Batches) -> Batches:
        for batch in batches:
            for number in batch.column(0).to_pylist():
                yield from read_as(each(work[number]), schema).to_batches(max_chunksize=ROWS_PER_BATCH)

    return run


def locator(
    writer: GroupWriter, schema: pa.Schema, wanted: NDArray[np.uint32] | None = None
) -> Callable[[tuple[int, FileSlice]], pa.Table]:
    """Make a function that reads columns `schema`, then `KEYS`, of a numbered file slice.

    `wanted`: only rows of these ascending key hashes.
    """

    def rows(numbered: tuple[int, FileSlice]) -> pa.Table:
        number, file_slice = numbered
        table = _rows(writer, file_slice, pa.schema([(hudi_schema.RECORD_KEY, pa.string()), *schema]))
        if wanted is not None:
            table = table.filter(may_be_in(wanted, table.column(0)))
        partition, group = (pa.repeat(pa.scalar(value), table.num_rows) for value in (file_slice.partition, number))
        return pa.table([*table.columns[1:], table.column(0), partition, group], schema=pa.schema([*schema, *KEYS]))

    return rows


def may_be_in(wanted: NDArray[np.uint32], keys: Any) -> pa.Array:
    """Mask of the keys whose hash is in the ascending `wanted`."""
    hashed = hashes(keys)
    order = np.argsort(hashed)  # searching ascending hashes is ten times as fast
    ascending, found = hashed[order], np.empty(len(hashed), dtype=np.bool_)
    found[order] = np.searchsorted(wanted, ascending) < np.searchsorted(wanted, ascending, side="right")
    return pa.array(found)


def _rows(writer: GroupWriter, file_slice: FileSlice, columns: pa.Schema) -> pa.Table:
    if not file_slice.logs:
        return read_as(writer.place.read(file_slice.path, columns.names), columns)
    rule, full = MergeRule.of(writer.config), hudi_schema.with_meta(writer.schema)
    merge_columns = [full.field(name) for name in hudi_schema.absent(columns_to_merge(full, rule), columns.names)]
    merged = merged_rows(writer.place, file_slice, pa.schema([*columns, *merge_columns]), rule)
    return pa.concat_tables(list(merged)).select(columns.names)


def keyer(
    writer: GroupWriter, *, delete: bool, missing: OnMissing = "null", valued: bool = False
) -> Callable[[Batches], Batches]:
    """Make a function that turns batches into changes, upserts (see `GroupWriter.keyed`) or, with `delete`, deletes.

    `valued`: deletes have ordering values, which are checked.
    """

    def changed(table: pa.Table) -> pa.Table:
        """Convert rows to changes; InvalidRecords for null keys or unusable ordering values."""
        if delete:
            rows, keys, partitions = writer.keyed_deletes(table, valued=valued)
            if valued:
                values_of_deletes(writer.config, rows)
        else:
            rows, keys, partitions = writer.keyed(table, missing)
            refuse_unordered(writer.config, rows)
        return _changes(writer.schema, rows, (keys, partitions), is_delete=delete)

    return per_batch(changed)


def _changes(schema: pa.Schema, rows: pa.Table, tags: Sequence[Any], *, is_delete: bool) -> pa.Table:
    count, names = len(tags[0]), {*rows.column_names}
    columns = [rows[column.name] if column.name in names else pa.nulls(count, column.type) for column in schema]
    return pa.table([*columns, *tags, pa.repeat(pa.scalar(is_delete), count)], schema=change_schema(schema))


def merger(writer: GroupWriter, values: Sequence[str | None]) -> Callable[[Batches], Batches]:
    """Make a function that yields each row's change; `values[clause]` names the column of new values, None deletes."""

    def run(batches: Batches) -> Batches:
        """Yield each batch's changes, clause by clause; rows without one yield none."""
        for batch in batches:
            for number, name in enumerate(values):
                selected = batch.filter(pc.equal(batch.column(CLAUSE), number))
                if not selected.num_rows:
                    continue
                tags = [selected.column(tag) for tag in (KEY, PARTITION)]
                rows = pa.table({})
                if name is not None:
                    table = pa.Table.from_struct_array(selected.column(name))
                    rows = writer.plan(table.schema)(table)
                changes = _changes(writer.schema, rows, tags, is_delete=name is None)
                yield from changes.append_column(GROUP, selected.column(GROUP)).to_batches()

    return run


def hasher(batches: Batches) -> Batches:
    """Yield each batch's key hashes as one value."""
    for batch in batches:
        yield pa.record_batch([pa.array([hashes(batch.column(0)).tobytes()], pa.binary())], schema=HASHES)


def tagger(writer: GroupWriter) -> Callable[[Batches], Batches]:
    def tagged(rows: pa.Table) -> pa.Table:
        _, keys, partitions = writer.keyed_deletes(rows)
        return rows.append_column(KEY, keys).append_column(PARTITION, partitions)

    return per_batch(tagged)


def partitioner(writer: GroupWriter) -> Callable[[Batches], Batches]:
    return per_batch(lambda rows: pa.table([pc.unique(writer.keyed_deletes(rows)[2])], schema=PARTITIONS))


@dataclass(frozen=True)
class Numbered:
    """File groups of one write, numbered by the driver.

    `old`: groups that may change. A partition's new group of bucket `b` is `-1 - b`; `new` is the first task number of
    its `buckets` new groups.
    """

    old: Mapping[int, FileSlice]
    new: Mapping[str, int]
    buckets: int
    changes: int

    @classmethod
    def of(cls, slices: Sequence[FileSlice], counts: Mapping[str, int], index: BucketIndex | None = None) -> Numbered:
        buckets = 1 + max(counts.values(), default=0) // ROWS_PER_FILE if index is None else index.buckets
        if index is not None:
            bucket_groups(slices, index)
        new = {partition: len(slices) + position * buckets for position, partition in enumerate(sorted(counts))}
        return cls(dict(enumerate(slices)), new, buckets, sum(counts.values()))

    @property
    def tasks(self) -> int:
        """Two Spark tasks per group, as groups may share a hash."""
        return max(1, min(MOST_TASKS, 2 * (len(self.old) + len(self.new) * self.buckets)))

    def by_bucket(self, partitions: pa.DictionaryArray, row_buckets: NDArray[np.integer[Any]]) -> NDArray[np.int64]:
        groups = {(old.partition, bucket_of(old.file_id)): number for number, old in self.old.items()}
        paths = partitions.dictionary.to_pylist()
        pairs = partitions.indices.to_numpy().astype(np.int64) << _BITS | row_buckets
        codes, places = np.unique(pairs, return_inverse=True)
        distinct = [(paths[code >> _BITS], code & _LOW) for code in codes.tolist()]
        return np.array([groups.get(pair, -1 - pair[1]) for pair in distinct], dtype=np.int64)[places]


def inserter(writer: GroupWriter, within: frozenset[str] | None = None) -> Callable[[Batches], Batches]:
    def run(batches: Batches) -> Batches:
        yield from stats_table(insert_all(writer, batches, within)).to_batches()

    return run


def insert_all(writer: GroupWriter, batches: Batches, within: frozenset[str] | None = None) -> list[WriteStat]:
    """Write all rows of this task, held in memory, as one new file group per table partition.

    Empty without rows. InvalidRecords, before any write: rows outside of `within`, or a repeated key.
    """
    if not (collected := list(batches)):
        return []
    context = TaskContext.get()
    if context is None:
        raise RuntimeError("base files are written in Spark tasks only")
    task = context.partitionId()
    by_partition = changes_by_partition(writer, pa.Table.from_batches(collected), None)
    if within is not None:
        check_within(by_partition, within)
    for partition, changes in by_partition.items():
        check_unique(pa.chunked_array([changes.keys]), partition)
    return [
        writer.insert(
            partition, changes.rows, changes.keys, _token(task), group_id(writer.begin, "insert", partition, task)
        )
        for partition, changes in by_partition.items()
    ]


def rewriter(
    writer: GroupWriter, numbered: Numbered, *, valued: bool = False
) -> Callable[[tuple[Any, ...], pa.Table], pa.Table]:
    """Make a function that writes one group's changes (by partition and number, as scalars) and returns statistics.

    `valued`: deletes have ordering values.
    """

    def run(key: tuple[Any, ...], changes: pa.Table) -> pa.Table:
        """Write the next or first file of group `key` (partition, number); return statistics, if any."""
        partition, group = key[0].as_py(), key[1].as_py()
        deletes, keys = changes[DELETE].combine_chunks(), changes[KEY].combine_chunks()
        upserts, deleted = pc.invert(deletes), keys.filter(deletes)
        rows, keys = writer.schema.empty_table(), keys.filter(upserts)
        if len(keys):  # else perhaps no columns, as of deletes by a condition
            columns = changes.filter(upserts).select(writer.schema.names)
            rows = writer.plan(columns.schema)(columns)  # Spark has changed nested names and zones
        file_slice = numbered.old.get(group)
        if file_slice is not None:
            values = None
            if valued:
                values = values_of_deletes(writer.config, writer.deletes(changes.filter(deletes), valued=True))
            stat = writer.rewrite(file_slice, rows, keys, deleted, _token(group), delete_values=values)
        else:
            rows, keys = without(rows, keys, deleted)
            bucket, stat = -1 - group, None
            if len(keys):
                of_bucket = bucket_id(writer.begin, bucket, partition)
                of_hash = group_id(writer.begin, "group", partition, bucket)
                file_id = of_hash if writer.config.bucket_index is None else of_bucket
                stat = writer.insert(partition, rows, keys, _token(numbered.new[partition] + bucket), file_id)
        return stats_table([stat] if stat is not None else [])

    return run


def stats_table(stats: Sequence[WriteStat]) -> pa.Table:
    rows = [{name: getattr(stat, name) for name in STATS.names} for stat in stats]
    return pa.Table.from_pylist(rows, schema=STATS)


def _token(number: int) -> str:
    return f"{number}-0-0"
