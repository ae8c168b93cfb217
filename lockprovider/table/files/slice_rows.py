"""The rows of a file slice with logs: those of its base file, batch by batch, merged with what its logs say."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa
import pyarrow.compute as pc

from lockprovider.table.files.base_file import conform, in_batches
from lockprovider.table.files.log_file import columns_to_merge, read_logs
from lockprovider.table.files.merge_log import LogMerge, MergeRule
from lockprovider.table.files.place import TablePlace
from lockprovider.table.format.schema import RECORD_KEY, with_meta
from lockprovider.table.timeline.view import FileSlice

_BATCH_ROWS = 1 << 16


def merged_rows(place: TablePlace, one: FileSlice, columns: pa.Schema, rule: MergeRule) -> Iterator[pa.Table]:
    """The rows of a slice, in parts; `columns` have all that `columns_to_merge` names.

    Memory: the rows of the logs, and one batch of the base file.

    Raises:
        HistoryGone: a file was cleaned.
        Corrupt, UnsupportedTable: a file cannot be understood; the message names it.
    """
    if not one.logs:
        yield from _base_rows(place, one, columns)
        return
    merge = LogMerge(read_logs(place, [log.path for log in one.logs], columns, rule), rule)
    for batch in _base_rows(place, one, columns) if one.path else ():
        yield merge.merged(batch)
    yield merge.rest()


def _base_rows(place: TablePlace, one: FileSlice, columns: pa.Schema) -> Iterator[pa.Table]:
    opened = place.open(one.path, one.size)
    there = [name for name in columns.names if name in opened.schema_arrow.names]
    for batch in in_batches(opened, there, _BATCH_ROWS):
        yield conform(batch, columns)


def rows_of_keys(place: TablePlace, one: FileSlice, schema: pa.Schema, rule: MergeRule, keys: pa.Array) -> pa.Table:
    """Of the rows of a slice those with these keys: the key, and the columns that order them.

    `schema` has the table's columns. Raises as `merged_rows` does.
    """
    full = with_meta(schema)
    columns = pa.schema([full.field(name) for name in columns_to_merge(full, rule)])
    found = (
        rows.filter(pc.is_in(rows.column(RECORD_KEY), value_set=keys))
        for rows in merged_rows(place, one, columns, rule)
    )
    return pa.concat_tables([columns.empty_table(), *found]).combine_chunks()
