"""The compaction of one file slice: its rows, merged, as the base file of the next one.

Source: Hudi `HoodieCompactor`, `FileGroupReaderBasedMergeHandle`.
"""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa

from lockprovider.table.files.base_file import array_of
from lockprovider.table.files.group_writer import Encoded, GroupWriter
from lockprovider.table.files.log_file import columns_to_merge
from lockprovider.table.files.merge_log import MergeRule
from lockprovider.table.files.slice_rows import merged_rows
from lockprovider.table.files.write_base_file import write_base_file
from lockprovider.table.format.layout import BaseFile, MarkerKind, join
from lockprovider.table.format.metadata import WriteStat
from lockprovider.table.format.schema import COMMIT_SEQNO, COMMIT_TIME, RECORD_KEY, with_meta
from lockprovider.table.timeline.view import FileSlice


def write_compacted(writer: GroupWriter, one: FileSlice, token: str) -> WriteStat:
    """Write the base file of the writer's instant with all rows of a slice, which keep what they say of their commit.

    It may have no rows: without it those of the base file before would show again. A task that is run again finds the
    file of its first attempt. Memory: as of `merged_rows`, the keys, the rows of one row group and the file's bytes.
    """
    rule, full = MergeRule.of(writer.config), with_meta(writer.schema)
    stored = [COMMIT_TIME, COMMIT_SEQNO, RECORD_KEY, *writer.schema.names]
    needed = [name for name in columns_to_merge(full, rule) if name not in stored]
    columns = pa.schema([full.field(name) for name in (*stored, *needed)])
    keys: list[pa.Array] = []

    def parts() -> Iterator[pa.Table]:
        for rows in merged_rows(writer.place, one, columns, rule, in_place=True):
            keys.append(array_of(rows.column(RECORD_KEY)))
            yield rows.select(stored)

    base = BaseFile(one.file_id, token, writer.begin)
    written = write_base_file(
        parts(),
        writer.schema,
        partition=one.partition,
        base_file=base,
        table_name=writer.config.name,
    )
    stat = WriteStat(
        one.file_id,
        join(one.partition, base.name),
        one.partition,
        prev_commit=one.base or None,
        prev_base_file=one.path.rpartition("/")[2] or None,
        num_writes=sum(map(len, keys)),
    )
    return writer.put_slice(
        Encoded(stat, written, pa.concat_arrays([pa.array([], pa.string()), *keys])),
        MarkerKind.MERGE if one.path else MarkerKind.CREATE,
    )
