"""Splits row changes by partition, and writes their files; takes no transaction, so tasks can call it."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from fsspec_cas.bridge.threads import in_order
from lockprovider.table.convert import OnMissing
from lockprovider.table.errors import InvalidRecords
from lockprovider.table.files import merge
from lockprovider.table.files.base_file import ROW_GROUP_BYTES, bucket_groups, buckets_of_keys, index_of
from lockprovider.table.files.encoding import refuse_unordered, values_of_deletes
from lockprovider.table.files.group_writer import GroupWriter, NewGroup, group_id
from lockprovider.table.files.keys import KeyFile, number_match
from lockprovider.table.files.merge_log import MergeRule
from lockprovider.table.files.slice_rows import rows_of_keys
from lockprovider.table.format import bucket as buckets
from lockprovider.table.format.layout import BaseFile, LogFile
from lockprovider.table.format.metadata import WriteStat
from lockprovider.table.format.schema import RECORD_KEY
from lockprovider.table.timeline.view import FileSlice

if TYPE_CHECKING:
    from numpy.typing import NDArray

ROWS_PER_FILE = 500_000  # of a new file group; a later upsert rewrites whole files
BYTES_PER_FILE = ROW_GROUP_BYTES  # in memory, so that an upsert holds few large rows
AT_ONCE = min(4, os.cpu_count() or 1)
_NO_GROUP = -1
_NO_ROWS = pa.nulls(0, pa.int64())  # `pa.array` would import pandas


@dataclass(frozen=True, slots=True)
class KeyedChanges:
    """One partition's rows to upsert, with their keys, and keys to delete.

    `values`: deletes' ordering values, for a blind write.
    """

    rows: pa.Table
    keys: pa.Array
    deletes: pa.Array
    values: pa.Array | None = None


def changes_by_partition(
    writer: GroupWriter,
    upserts: pa.Table | None,
    deletes: pa.Table | None,
    missing: OnMissing = "null",
    *,
    valued: bool = False,
) -> dict[str, KeyedChanges]:
    """Convert changes to the table's columns, and split them by ascending partition path, "" if unpartitioned.

    Missing upsert columns become null, or raise DoesNotFit with `missing="refuse"`; rows keep their order, repeated
    keys stay. `valued` keeps the deletes' ordering values. InvalidRecords: a null key or unusable ordering value.
    """
    nothing, none = writer.schema.empty_table(), pa.array([], pa.string())
    rows, keys, homes = (nothing, none, none) if upserts is None else writer.keyed(upserts, missing)
    refuse_unordered(writer.config, rows)
    delete_table, deleted_keys, delete_homes = (
        (nothing, none, none) if deletes is None else writer.keyed_deletes(deletes, valued=valued)
    )
    values = values_of_deletes(writer.config, delete_table) if valued else None
    if not writer.config.partition_fields:
        return {"": KeyedChanges(rows, keys, deleted_keys, values)} if len(keys) or len(deleted_keys) else {}
    upsert_rows, delete_rows = rows_by(homes), rows_by(delete_homes)
    paths = sorted({*upsert_rows, *delete_rows})
    if len(paths) == 1:
        return {paths[0]: KeyedChanges(rows, keys, deleted_keys, values)}
    rows = rows.combine_chunks()  # each `take` copies all chunks of several
    by_partition: dict[str, KeyedChanges] = {}
    for partition in paths:
        upserted, deleted = upsert_rows.get(partition, _NO_ROWS), delete_rows.get(partition, _NO_ROWS)
        delete_values = None if values is None else values.take(deleted)
        by_partition[partition] = KeyedChanges(
            rows.take(upserted), keys.take(upserted), deleted_keys.take(deleted), delete_values
        )
    return by_partition


def rows_by(values: pa.Array) -> dict[Any, pa.Array]:
    """Map each distinct value to its ascending row numbers; no value may be null."""
    encoded = values.dictionary_encode()
    if len(encoded.dictionary) == 1:
        return {encoded.dictionary[0].as_py(): pa.array(np.arange(len(values)))}
    order = pc.sort_indices(encoded.indices)
    ends = np.cumsum(np.bincount(encoded.indices, minlength=len(encoded.dictionary))).tolist()
    spans = pairwise([0, *ends])
    return {value: order[a:b] for value, (a, b) in zip(encoded.dictionary.to_pylist(), spans, strict=True)}


def check_unique(keys: pa.ChunkedArray, partition: str) -> None:
    """Raise InvalidRecords, naming one key and `partition`, if a key comes twice."""
    if merge.are_unique(keys):
        return
    counts = pc.value_counts(keys)
    repeated_key = counts.filter(pc.greater(counts.field("counts"), 1))[0]["values"].as_py()
    raise InvalidRecords(
        f"record key {repeated_key!r} comes more than once in partition {partition!r}; append takes each key once, "
        "drop the others or use upsert"
    )


def check_within(partitions: Iterable[str], within: Iterable[str]) -> None:
    if strange := sorted({*partitions} - {*within}):
        raise InvalidRecords(
            f"rows are for the partitions {strange}, but only {sorted({*within})} are overwritten: "
            "name these partitions, too, or drop the rows"
        )


def new_groups(
    writer: GroupWriter, partition: str, rows: pa.Table, keys: pa.Array, task: tuple[str, int]
) -> Iterator[NewGroup]:
    """Yield new file groups of about equal size; writes nothing.

    `task`, a write token and a number, names them equally in every attempt.
    """
    files = max(1, len(keys) // ROWS_PER_FILE, -(-rows.nbytes // BYTES_PER_FILE))
    size = -(-len(keys) // files)
    for start in range(0, len(keys), max(1, size)):
        part, name = slice(start, start + size), group_id(writer.begin, partition, *task, start)
        yield NewGroup(partition, rows[part], keys[part], task[0], name)


def file_sized_tables(rows: pa.RecordBatchReader) -> Iterator[pa.Table]:
    """Consume a reader; yield tables of whole batches, about one file's rows and bytes.

    No batches, no tables.
    """
    batches, count, held_bytes = list[pa.RecordBatch](), 0, 0
    for batch in rows:
        if batches and (count >= ROWS_PER_FILE or held_bytes + batch.nbytes > BYTES_PER_FILE):
            yield pa.Table.from_batches(batches, rows.schema)
            batches, count, held_bytes = [], 0, 0
        batches.append(batch)
        count, held_bytes = count + batch.num_rows, held_bytes + batch.nbytes
    if batches:
        yield pa.Table.from_batches(batches, rows.schema)


def rewrite_partition(
    writer: GroupWriter,
    slices: Iterable[FileSlice],
    partition: str,
    changes: KeyedChanges,
    task: str,
    *,
    limit: int = 1,
) -> Iterator[WriteStat]:
    """While iterated, write a partition's changes to `slices` and new file groups, `limit` files at once.

    `slices`: all the partition's. Of a key's rows, the stored one too, the highest ordering value wins, else the last;
    deletes win, unless a stored row exceeds their `changes.values` and the key's `changes.rows`. A rerun with equal
    token `task` and changes finds the first files.
    """
    if writer.config.bucket_index is not None:
        yield from _done(_bucket_rewrites(writer, slices, partition, changes, task), limit)
        return
    rows, keys = merge.without(changes.rows, changes.keys, changes.deletes)
    rows, keys = merge.dedupe(rows, keys, writer.config.ordering_field)
    rows, slices = rows.combine_chunks(), list(slices)
    if writer.config.is_merge_on_read:
        logs, new_rows = _logs(writer, slices, (rows, keys, changes.deletes), task, limit)
        yield from _done(logs, limit)
        rows, keys = rows.take(new_rows), keys.take(new_rows)
    else:
        is_new = np.ones(len(keys), dtype=np.bool_)
        changed_keys = pa.concat_arrays([keys, changes.deletes])
        paths = [file_slice.path for file_slice in slices]
        untouched = writer.place.footer_notes.without(writer.place.store, paths, changed_keys)

        def rewrite(file_slice: FileSlice) -> WriteStat | None:
            opened = writer.place.open(file_slice.path)
            plan = merge.merge_plan(opened, rows, keys, changes.deletes, writer.config.ordering_field)
            if plan is None:
                return None
            is_new[plan.met] = False  # One thread sets each key's flag, or two set the same value.
            return writer.merge(file_slice, opened, plan, rows, task)

        jobs = [partial(rewrite, file_slice) for file_slice in slices if file_slice.path not in untouched]
        yield from _done(jobs, limit)
        rows, keys = rows.filter(pa.array(is_new)), keys.filter(pa.array(is_new))
    inserts = new_groups(writer, partition, rows, keys, (task, 0))
    yield from in_order([partial(writer.insert, *group) for group in inserts], limit)


def _done(jobs: Iterable[Callable[[], WriteStat | None]], limit: int) -> Iterator[WriteStat]:
    return (stat for stat in in_order(jobs, limit) if stat is not None)


def _home_of(writer: GroupWriter, slices: Sequence[FileSlice], keys: pa.Array, limit: int) -> pa.Array:
    """Index of the slice that has each of these unique keys, -1 for none.

    Reads base files; logs only of slices without one, and for keys in several slices. Of these the last with a live row
    wins, else the last.
    """
    homes = np.full(len(keys), _NO_GROUP)
    writer.place.footer_notes.look_up(writer.place.store, [file_slice.path for file_slice in slices if file_slice.path])
    several = np.zeros(len(keys), dtype=np.bool_)
    by_number = number_match(keys, writer.config.key_column, writer.schema)

    def has(file_slice: FileSlice) -> NDArray[np.bool_]:
        if not file_slice.path:
            return _mask(pc.is_in(keys, value_set=_rows_in(writer, file_slice, keys)))
        return KeyFile(writer.place, file_slice.path, file_slice.size).has(keys, by_number)

    for number, has_key in enumerate(in_order([partial(has, file_slice) for file_slice in slices], limit)):
        several |= has_key & (homes != _NO_GROUP)
        homes[has_key] = number
    if several.any():
        ambiguous = keys.filter(pa.array(several))
        for number, file_slice in enumerate(slices):
            live = _rows_in(writer, file_slice, ambiguous)
            homes[_mask(pc.is_in(keys, value_set=live))] = number
    return pa.array(homes)


def _logs(
    writer: GroupWriter,
    slices: Sequence[FileSlice],
    changes: tuple[pa.Table, pa.Array, pa.Array],
    token: str,
    limit: int,
) -> tuple[list[Callable[[], WriteStat | None]], pa.Array]:
    """Look up all unique keys; return an unstarted job per file group that has some.

    A job writes the log file or, without effect, returns None. Also returns indices of upserts that no group has.
    `changes`: upserts, their keys, delete keys.
    """
    rows, keys, deletes = changes
    deletes = pc.unique(deletes)
    homes = _home_of(writer, slices, pa.concat_arrays([keys, deletes]), limit)
    upsert_homes, delete_homes = homes[: len(keys)], homes[len(keys) :]
    jobs: list[Callable[[], WriteStat | None]] = []
    for number in pc.unique(homes).to_pylist():
        if number == _NO_GROUP:
            continue
        upserts_here, deletes_here = pc.equal(upsert_homes, number), pc.equal(delete_homes, number)
        part = (rows.filter(upserts_here), keys.filter(upserts_here), deletes.filter(deletes_here))
        jobs.append(partial(writer.log, slices[number], *part, token))
    return jobs, pc.indices_nonzero(pc.equal(upsert_homes, _NO_GROUP))


def _rows_in(writer: GroupWriter, file_slice: FileSlice, keys: pa.Array) -> pa.Array:
    rows = rows_of_keys(writer.place, file_slice, writer.schema, MergeRule.of(writer.config), keys)
    return rows.column(RECORD_KEY).combine_chunks()


def _mask(values: pa.Array) -> NDArray[np.bool_]:
    mask: NDArray[np.bool_] = values.to_numpy(zero_copy_only=False)
    return mask


def bucket_id(begin: str, bucket: int, *task: object) -> str:
    """New bucket's file id, equal in every attempt."""
    return buckets.file_id(bucket, group_id(begin, *task, bucket))


def _bucket_rewrites(
    writer: GroupWriter, slices: Iterable[FileSlice], partition: str, changes: KeyedChanges, token: str
) -> Iterator[Callable[[], WriteStat | None]]:
    """Yield an unstarted job per changed bucket that writes its next or first file.

    A job without effect returns None. Skips deletes in a bucket without files. Corrupt: a slice has no bucket, or two
    share one.
    """
    rows, keys, deletes, values = changes.rows.combine_chunks(), changes.keys, changes.deletes, changes.values
    groups = bucket_groups(slices, index_of(writer.config))
    upsert_rows, delete_rows = (rows_by(buckets_of_keys(writer.config, some)) for some in (keys, deletes))
    for bucket in sorted({*upsert_rows, *delete_rows}):
        upserted, deleted = upsert_rows.get(bucket, _NO_ROWS), delete_rows.get(bucket, _NO_ROWS)
        part, ended = (rows.take(upserted), keys.take(upserted)), deletes.take(deleted)
        valued = None if values is None else values.take(deleted)
        file_slice = groups.get((partition, bucket))
        if file_slice is not None:
            yield partial(writer.rewrite, file_slice, *part, ended, token, delete_values=valued)
        elif len((kept := merge.without(*part, ended))[1]):
            yield partial(writer.insert, partition, *kept, token, bucket_id(writer.begin, bucket, partition))


def announce_buckets(
    writer: GroupWriter, slices: Iterable[FileSlice], changes: Mapping[str, KeyedChanges], token: str
) -> None:
    """Write the markers of all files that `rewrite_partition` may make in one object, unless these are few.

    Does nothing without merge-on-read, without a bucket index, or if deletes lack ordering values.
    """
    index = writer.config.bucket_index
    looked_for = any(len(part.deletes) and part.values is None for part in changes.values())
    if index is None or not writer.config.is_merge_on_read or looked_for:
        return
    groups = bucket_groups(slices, index)
    files: list[tuple[str, BaseFile | LogFile]] = []
    for partition, part in changes.items():
        keys = pa.concat_arrays([part.keys, part.deletes])
        for bucket in pc.unique(buckets_of_keys(writer.config, keys)).to_pylist():
            if file_slice := groups.get((partition, bucket)):
                files.append((partition, LogFile(file_slice.file_id, writer.begin, 1, token)))
            else:
                files.append((partition, BaseFile(bucket_id(writer.begin, bucket, partition), token, writer.begin)))
    writer.announce(files)
