"""Functions that run on Spark's executors: each carries all its data, and writes files under predictable names.

Names have no task attempt: a second attempt finds the first one's file, and adds none. A task that outlives its
transaction removes its files; if it is killed before, a later clean of the table does.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import cached_property
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark import TaskContext

from lockprovider.table.convert import OnMissing, read_as
from lockprovider.table.engines.changes import ROWS_PER_FILE, bucket_id, check_unique
from lockprovider.table.errors import InvalidRecords
from lockprovider.table.files.base_file import bucket_groups
from lockprovider.table.files.group_writer import GroupWriter, group_id
from lockprovider.table.files.merge_log import MergeRule
from lockprovider.table.files.slice_rows import columns_to_merge, merged_rows
from lockprovider.table.files.write_log import refuse_unordered, values_of_deletes
from lockprovider.table.format import schema as hudi_schema
from lockprovider.table.format.bloom import hashes
from lockprovider.table.format.bucket import BucketIndex
from lockprovider.table.format.metadata import WriteStat
from lockprovider.table.timeline.view import FileSlice

if TYPE_CHECKING:
    from numpy.typing import NDArray

ROWS_PER_BATCH = 1 << 16  # rows that Spark receives at once
# no table has such column names
KEY, PARTITION, DELETE, GROUP = "hudi key", "hudi partition", "hudi delete", "hudi group"
CLAUSE = "hudi clause"
NEW = "+"  # prefix of the group of a row whose file group is new; other groups are numbers
MOST_TASKS = 200
KEYS = pa.schema([(KEY, pa.string()), (PARTITION, pa.string()), (GROUP, pa.string())])
PARTITIONS = pa.schema([(PARTITION, pa.string())])
HASHES = pa.schema([("hashes", pa.binary())])
STATS = pa.schema([(one.name, pa.int64() if one.type == "int" else pa.string()) for one in fields(WriteStat)])

Batches = Iterator[pa.RecordBatch]
T = TypeVar("T")
_BITS_PER_KEY = 32
_LEAST_BITS = 16
_MOST_BITS = 1 << 31


@dataclass(frozen=True)
class Sketch:
    """Compact set of key hashes: misses no key, passes about one in thirty others. Picklable."""

    packed: bytes

    @classmethod
    def of(cls, parts: Iterable[bytes]) -> Sketch:
        """Build the sketch of keys from the bytes of their `hashes`."""
        hashed = np.frombuffer(b"".join(parts), dtype=np.uint32)
        size = 1 << max(_LEAST_BITS, (len(hashed) * _BITS_PER_KEY - 1).bit_length())
        bits: NDArray[np.bool_] = np.zeros(min(size, _MOST_BITS), dtype=np.bool_)
        bits[hashed % np.uint32(len(bits))] = True
        return cls(zlib.compress(np.packbits(bits, bitorder="little").tobytes(), level=1))

    @cached_property
    def _bytes(self) -> NDArray[np.uint8]:
        return np.frombuffer(zlib.decompress(self.packed), dtype=np.uint8)

    def __getstate__(self) -> dict[str, Any]:
        return {"packed": self.packed}

    def may_have(self, keys: Any) -> pa.Array:
        """Return a mask of the keys that may be in the set."""
        at = hashes(keys) % np.uint32(8 * len(self._bytes))
        return pa.array((self._bytes[at >> 3] >> (at & 7).astype(np.uint8) & 1).astype(np.bool_))


def change_schema(schema: pa.Schema) -> pa.Schema:
    """Return the schema of a change: the table's columns (null in a delete), key, partition, delete flag."""
    columns = [column.with_nullable(True) for column in schema]
    return pa.schema([*columns, (KEY, pa.string()), (PARTITION, pa.string()), (DELETE, pa.bool_())])


def grouped_schema(schema: pa.Schema) -> pa.Schema:
    """Return a schema with key, partition and file group added."""
    return pa.schema([*schema, *KEYS])


# -- reading -----------------------------------------------------------------------------------------------------------


def map_over(work: Sequence[T], each: Callable[[T], pa.Table], schema: pa.Schema) -> Callable[[Batches], Batches]:
    """Make a function that yields the results of `each`, as `schema`, for pieces of `work` whose numbers come in."""

    def run(batches: Batches) -> Batches:
        for batch in batches:
            for number in batch.column(0).to_pylist():
                yield from read_as(each(work[number]), schema).to_batches(max_chunksize=ROWS_PER_BATCH)

    return run


def locator(
    writer: GroupWriter, schema: pa.Schema, sketch: Sketch | None = None
) -> Callable[[tuple[str, FileSlice]], pa.Table]:
    """Make a function that reads a numbered file slice's rows with key, partition and group (`grouped_schema`).

    An empty `schema` reads only keys; a sketch drops rows not in it.
    """

    def rows(numbered: tuple[str, FileSlice]) -> pa.Table:
        number, file_slice = numbered
        table = _rows(writer, file_slice, _with_key(schema))
        if sketch is not None:
            table = table.filter(sketch.may_have(table.column(0)))
        partition, group = (pa.repeat(pa.scalar(text), table.num_rows) for text in (file_slice.partition, number))
        return pa.table([*table.columns[1:], table.column(0), partition, group], schema=grouped_schema(schema))

    return rows


def _rows(writer: GroupWriter, file_slice: FileSlice, columns: pa.Schema) -> pa.Table:
    """Read the rows of a file slice, with its log files merged, as these columns."""
    if not file_slice.logs:
        return read_as(writer.place.read(file_slice.path, columns.names), columns)
    rule, full = MergeRule.of(writer.config), hudi_schema.with_meta(writer.schema)
    merge_columns = [full.field(name) for name in hudi_schema.absent(columns_to_merge(full, rule), columns.names)]
    merged = merged_rows(writer.place, file_slice, pa.schema([*columns, *merge_columns]), rule)
    return pa.concat_tables(list(merged)).select(columns.names)


def _with_key(schema: pa.Schema) -> pa.Schema:
    return pa.schema([(hudi_schema.RECORD_KEY, pa.string()), *schema])


# -- keys --------------------------------------------------------------------------------------------------------------


def keyer(
    writer: GroupWriter, *, delete: bool, missing: OnMissing = "null", valued: bool = False
) -> Callable[[Batches], Batches]:
    """Make a function that turns rows into changes; for `missing` see `GroupWriter.keyed`.

    `valued`: deletes have ordering values, which are checked.
    """

    def run(batches: Batches) -> Batches:
        """Yield the changes of each batch."""
        for batch in batches:
            table = pa.Table.from_batches([batch])
            if delete:
                rows, keys, partitions = writer.keyed_deletes(table, valued=valued)
                if valued:
                    values_of_deletes(writer.config, rows)
            else:
                rows, keys, partitions = writer.keyed(table, missing)
                refuse_unordered(writer.config, rows)
            yield from _changes(writer.schema, rows, (keys, partitions), pa.repeat(pa.scalar(delete), len(keys)))

    return run


def _changes(schema: pa.Schema, rows: pa.Table, tags: Sequence[Any], deletes: Any) -> Iterator[pa.RecordBatch]:
    by_name = dict(zip(rows.column_names, rows.columns, strict=True))
    columns = [
        by_name[column.name] if column.name in by_name else pa.nulls(len(deletes), column.type) for column in schema
    ]
    yield from pa.table([*columns, *tags, deletes], schema=change_schema(schema)).to_batches()


def merger(writer: GroupWriter, values: Sequence[str | None]) -> Callable[[Batches], Batches]:
    """Make a function that turns rows with a MERGE clause's number (`CLAUSE`) into changes.

    `values` names each clause's column of values; None is a delete.
    """

    def run(batches: Batches) -> Batches:
        """Yield the changes of each batch and clause."""
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
                for change in _changes(
                    writer.schema, rows, tags, pa.repeat(pa.scalar(name is None), selected.num_rows)
                ):
                    yield change.append_column(GROUP, selected.column(GROUP))

    return run


def hasher(batches: Batches) -> Batches:
    """Yield the hashes of each batch's keys (its first column) as one binary value, for `Sketch.of`."""
    for batch in batches:
        yield pa.record_batch([pa.array([hashes(batch.column(0)).tobytes()], pa.binary())], schema=HASHES)


def tagger(writer: GroupWriter) -> Callable[[Batches], Batches]:
    """Make a function that adds the columns `KEY` and `PARTITION` to rows; null keys raise InvalidRecords."""

    def run(batches: Batches) -> Batches:
        for batch in batches:
            rows = pa.Table.from_batches([batch])
            _, keys, partitions = writer.keyed_deletes(rows)
            yield from rows.append_column(KEY, keys).append_column(PARTITION, partitions).to_batches()

    return run


def partitioner(writer: GroupWriter) -> Callable[[Batches], Batches]:
    """Make a function that yields the distinct partition paths of each batch of rows, so some repeatedly."""

    def run(batches: Batches) -> Batches:
        for batch in batches:
            partitions = pc.unique(writer.keyed_deletes(pa.Table.from_batches([batch]))[2])
            yield from pa.table([partitions], schema=PARTITIONS).to_batches()

    return run


# -- writing -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Numbered:
    """The file groups of one write, numbered by the driver, the same in every attempt.

    `old` are those that may change. `new` is the first number of each partition's `buckets` new groups. `changes`
    counts the rows.
    """

    old: Mapping[str, FileSlice]
    new: Mapping[str, int]
    buckets: int
    changes: int

    @classmethod
    def of(cls, slices: Sequence[FileSlice], counts: Mapping[str, int], index: BucketIndex | None = None) -> Numbered:
        """Number `slices`, then the new groups of the partitions in `counts`.

        With `index`, two slices of one bucket, or a slice of no bucket, raise Corrupt.
        """
        buckets = 1 + max(counts.values(), default=0) // ROWS_PER_FILE if index is None else index.buckets
        if index is not None:
            bucket_groups(slices, index)  # raises before anything is written
        new = {partition: len(slices) + position * buckets for position, partition in enumerate(sorted(counts))}
        old = {str(number): file_slice for number, file_slice in enumerate(slices)}
        return cls(old, new, buckets, sum(counts.values()))

    @property
    def tasks(self) -> int:
        """The number of writing tasks: two per group, as groups may share a hash."""
        return max(1, min(MOST_TASKS, 2 * (len(self.old) + len(self.new) * self.buckets)))


def inserter(writer: GroupWriter, within: frozenset[str] | None = None) -> Callable[[Batches], Batches]:
    """Make a function that writes rows with `insert_all`, and yields the files' statistics (`STATS`)."""

    def run(batches: Batches) -> Batches:
        yield from stats_table(insert_all(writer, batches, within)).to_batches()

    return run


def insert_all(writer: GroupWriter, batches: Batches, within: frozenset[str] | None = None) -> list[WriteStat]:
    """Write all rows of this task, held in memory, as one new file group per table partition; return the statistics.

    Not split further: a split by the rows' order would differ between attempts. Raises InvalidRecords for rows outside
    of `within` (None: any), or a repeated key; RuntimeError outside of a Spark task.
    """
    if not (collected := list(batches)):
        return []
    task = _task_number()
    rows, keys, partitions = writer.keyed(pa.Table.from_batches(collected))
    names: list[str] = sorted(pc.unique(partitions).to_pylist())
    if within is not None:
        check_within(names, within)
    masks = {partition: pc.equal(partitions, partition) for partition in names if len(names) > 1}

    def of(partition: str, values: Any) -> Any:
        return values.filter(masks[partition]) if masks else values

    for partition in names:
        check_unique(pa.chunked_array([of(partition, keys)]), partition)
    stats: list[WriteStat] = []
    for partition in names:
        file_id = group_id(writer.begin, "insert", partition, task)
        stats.append(writer.insert(partition, of(partition, rows), of(partition, keys), _token(task), file_id))
    return stats


def check_within(partitions: Iterable[str], within: Iterable[str]) -> None:
    """Raise InvalidRecords if rows are for partitions that are not overwritten."""
    if strange := sorted({*partitions} - {*within}):
        raise InvalidRecords(
            f"rows are for the partitions {strange}, but only {sorted(within)} are overwritten: "
            "name these partitions, too, or drop the rows"
        )


def rewriter(
    writer: GroupWriter, numbered: Numbered, *, valued: bool = False
) -> Callable[[tuple[Any, ...], pa.Table], pa.Table]:
    """Make a function that writes one group's changes and returns statistics (`STATS`).

    Its `key` is partition and group: a number in `numbered.old`, or `NEW` and a bucket. `valued`: deletes have ordering
    values.
    """

    def stored(changes: pa.Table) -> pa.Table:
        """Convert rows that came back from Spark with other nested names and zones."""
        if not changes.num_rows:
            return writer.schema.empty_table()  # deletes by a condition have no columns
        columns = changes.select(writer.schema.names)
        return writer.plan(columns.schema)(columns)

    def ordered(changes: pa.Table) -> pa.Table:
        return writer.deletes(changes, valued=True)

    def run(key: tuple[Any, ...], changes: pa.Table) -> pa.Table:
        """Write one group's next file, and return its statistics as a table, empty if nothing changed."""
        partition, group = key[0].as_py(), key[1].as_py()
        deletes, keys = changes[DELETE].combine_chunks(), changes[KEY].combine_chunks()
        upserts, deleted = pc.invert(deletes), keys.filter(deletes)
        rows, keys = stored(changes.filter(upserts)), keys.filter(upserts)
        file_slice = numbered.old.get(group)
        if file_slice is not None:
            values = None
            if valued:
                values = values_of_deletes(writer.config, ordered(changes.filter(deletes)))
            stat = writer.rewrite(file_slice, rows, keys, deleted, _token(int(group)), delete_values=values)
        else:
            is_kept = pc.invert(pc.is_in(keys, value_set=deleted))
            bucket = int(group.removeprefix(NEW))
            token = _token(numbered.new[partition] + bucket)
            stat = _new_group(writer, (partition, bucket), rows.filter(is_kept), keys.filter(is_kept), token)
        return stats_table([stat] if stat is not None else [])

    return run


def _new_group(
    writer: GroupWriter, partition_bucket: tuple[str, int], rows: pa.Table, keys: pa.Array, token: str
) -> WriteStat | None:
    """Write a new group's first file, with the same name in every attempt; return None without rows.

    Deletes of unknown keys have none.
    """
    if not len(keys):
        return None
    partition, bucket = partition_bucket
    bucketed = writer.config.bucket_index is not None
    file_id = (
        bucket_id(writer.begin, bucket, partition) if bucketed else group_id(writer.begin, "group", *partition_bucket)
    )
    return writer.insert(partition, rows, keys, token, file_id)


def stats_table(stats: Sequence[WriteStat]) -> pa.Table:
    """Return write statistics as rows."""
    rows = [{name: getattr(stat, name) for name in STATS.names} for stat in stats]
    return pa.Table.from_pylist(rows, schema=STATS)


def _task_number() -> int:
    """Return the number of this task's part of the rows, the same in each attempt; RuntimeError outside of a task."""
    context = TaskContext.get()
    if context is None:
        raise RuntimeError("base files are written in Spark tasks only")
    return context.partitionId()


def _token(number: int) -> str:
    """Return Hudi's write token `<task>-<stage>-<attempt>`, the same in every attempt."""
    return f"{number}-0-0"
