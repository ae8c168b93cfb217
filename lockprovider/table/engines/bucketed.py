"""Writes into a table with a bucket index: a row goes to the file group of its key's bucket, and nothing is looked up.

A bucket has one file group. A row with a new key goes into it, too: its file is rewritten, or is the bucket's first.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lockprovider.table.files.base_file import bucket_groups, index_of, of_keys
from lockprovider.table.files.group_writer import GroupWriter, group_id
from lockprovider.table.format import bucket as buckets
from lockprovider.table.format.layout import BaseFile, LogFile
from lockprovider.table.format.metadata import WriteStat
from lockprovider.table.timeline.view import FileSlice


@dataclass(frozen=True, slots=True)
class PartitionChanges:
    """Rows to upsert with their keys, and keys to delete, all of one partition.

    `values` are the ordering values of the deletes of a blind write, which does not look for them.
    """

    rows: pa.Table
    keys: pa.Array
    deletes: pa.Array
    values: pa.Array | None = None


def new_group(begin: str, bucket: int, *task: object) -> str:
    """The file id of a bucket's first file group, the same in every attempt of one task."""
    return buckets.file_id(bucket, group_id(begin, *task, bucket))


def rewrites(
    writer: GroupWriter,
    slices: Iterable[FileSlice],
    partition: str,
    changes: tuple[pa.Table, pa.Array, pa.Array],
    token: str,
    *,
    values: pa.Array | None = None,
) -> Iterator[Callable[[], WriteStat | None]]:
    """What there is to do for changes (rows, their keys, deleted keys) of one partition, a call a bucket.

    `values` are the ordering values of the deletes, where they were given.
    Each writes the bucket's next file; None if nothing in it changes.
    """
    rows, keys, deletes = changes
    old = bucket_groups(slices, index_of(writer.config))
    kept = pc.invert(pc.is_in(keys, value_set=deletes))
    rows, keys = rows.filter(kept), keys.filter(kept)
    theirs, gone = _Split(of_keys(writer.config, keys)), _Split(of_keys(writer.config, deletes))
    rows, keys, deletes = rows.take(theirs.order), keys.take(theirs.order), deletes.take(gone.order)
    values = None if values is None else values.take(gone.order)
    for bucket in sorted(theirs.parts.keys() | gone.parts.keys()):
        part, end = theirs.parts.get(bucket, slice(0, 0)), gone.parts.get(bucket, slice(0, 0))
        ended, valued = deletes[end], None if values is None else values[end]
        there = old.get((partition, bucket))
        if there is not None:
            yield partial(writer.rewrite, there, rows[part], keys[part], ended, token, delete_values=valued)
        elif part.stop > part.start:
            file_id = new_group(writer.begin, bucket, partition)
            yield partial(writer.insert, partition, rows[part], keys[part], token, file_id)


def announce(
    writer: GroupWriter, slices: Iterable[FileSlice], changes: Mapping[str, PartitionChanges], token: str
) -> None:
    """Announce all that `rewrites` makes of these changes by partition at once, where it is known beforehand.

    So in a merge-on-read table, without deletes that are looked for.
    """
    index = writer.config.bucket_index
    looked_for = any(len(one.deletes) and one.values is None for one in changes.values())
    if index is None or not writer.config.is_merge_on_read or looked_for:
        return
    old = bucket_groups(slices, index)
    found: list[tuple[str, BaseFile | LogFile]] = []
    for partition, one in changes.items():
        for bucket in pc.unique(of_keys(writer.config, pa.concat_arrays([one.keys, one.deletes]))).to_pylist():
            if there := old.get((partition, bucket)):
                found.append((partition, LogFile(there.file_id, writer.begin, 1, token)))
            else:
                found.append((partition, BaseFile(new_group(writer.begin, bucket, partition), token, writer.begin)))
    writer.announce(found)


class _Split:
    """The order in which rows of one bucket are together, their own order kept, and where each bucket's are."""

    def __init__(self, numbers: pa.Array) -> None:
        found = numbers.to_numpy(zero_copy_only=False)
        order = np.argsort(found, kind="stable")
        there, starts, counts = np.unique(found[order], return_index=True, return_counts=True)
        self.order = pa.array(order)
        ends = starts + counts
        self.parts = dict(zip(there.tolist(), map(slice, starts.tolist(), ends.tolist()), strict=True))
