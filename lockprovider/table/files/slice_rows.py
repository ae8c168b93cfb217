"""The rows of a file slice with logs: those of its base file, batch by batch, merged with what its logs say.

Where the logs are large their keys are taken in parts, by hash: each part reads the logs, and the base file, once more.
"""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from lockprovider.table.convert import read_as
from lockprovider.table.files.base_file import ROW_GROUP_BYTES, ROW_GROUP_ROWS, in_batches
from lockprovider.table.files.key_match import KeyMatch, TextMatch, number_match, text_match
from lockprovider.table.files.log_file import KeyPart, columns_to_merge, read_logs
from lockprovider.table.files.merge_log import LogMerge, MergeRule
from lockprovider.table.files.place import TablePlace
from lockprovider.table.format.schema import RECORD_KEY, present, with_meta
from lockprovider.table.timeline.view import FileSlice

_BATCH_ROWS = ROW_GROUP_ROWS
_PART_BYTES = 128 << 20  # of log files, as they are stored, whose rows are in memory together


def merged_rows(
    place: TablePlace, one: FileSlice, columns: pa.Schema, rule: MergeRule, *, in_place: bool = False
) -> Iterator[pa.Table]:
    """The rows of a slice, in parts; `columns` have all that `columns_to_merge` names.

    They come in the same order each time; `in_place`: those of the logs where those of the base file were that they
    replace, for files that are written, which then stay as sorted as they were. Else they come last, which costs less.

    Memory: the rows of the logs, and one batch of the base file: of 131,072 rows, or with many in the logs of 262,144
    or as many. Of logs with more than 128 MB a part of their rows, and one file.

    Raises:
        HistoryGone: a file was cleaned.
        Corrupt, UnsupportedTable: a file cannot be understood; the message names it.
    """
    if not one.logs:
        yield from _base_rows(place.open(one.path, one.size), columns, _BATCH_ROWS)
        return
    parts = -(-log_bytes(one) // _PART_BYTES) or 1
    for part in (KeyPart(number, parts) for number in range(parts)):
        side = read_logs(place, [log.path for log in one.logs], columns, rule, part)
        if not one.path:
            yield LogMerge(side, rule, TextMatch(side.keys)).rest()
            continue
        opened = place.open(one.path, one.size)
        match, needed, at_once = _matched(side.keys, opened.schema_arrow, columns, rule if parts == 1 else MergeRule())
        merge = LogMerge(side, rule, match, in_place=in_place)
        for batch in _base_rows(opened, needed, at_once):
            yield merge.merged(part.of(batch))
        yield merge.rest()


def _matched(keys: pa.Array, stored: pa.Schema, columns: pa.Schema, rule: MergeRule) -> tuple[KeyMatch, pa.Schema, int]:
    """How rows of the base file are found by these keys, the columns of it that are read, and how many rows at once."""
    by_number = number_match(keys, rule.key, columns, stored)
    if by_number is not None:
        return by_number, columns, _BATCH_ROWS
    by_text = text_match(keys, rule.key, columns, stored)
    needed = columns if by_text.column in columns.names else columns.append(pa.field(RECORD_KEY, pa.string()))
    return by_text, needed, _at_once(len(keys))


def _at_once(keys: int) -> int:
    """How many rows of the base file: each batch makes a hash table of the logs' keys."""
    return max(_BATCH_ROWS, keys, min(4 * keys, 2 * _BATCH_ROWS))


def log_bytes(one: FileSlice) -> int:
    """How many bytes the logs of a slice have, as they are stored."""
    return sum(log.size for log in one.logs)


def held_bytes(one: FileSlice) -> int:
    """How many of them have their rows in memory while it is merged."""
    return min(log_bytes(one), _PART_BYTES)


def _base_rows(opened: pq.ParquetFile, columns: pa.Schema, at_once: int) -> Iterator[pa.Table]:
    there = present(columns.names, opened.schema_arrow.names)
    at_most = ROW_GROUP_BYTES * max(1, at_once // _BATCH_ROWS)
    for batch in in_batches(opened, there, at_once, at_most):
        yield read_as(batch, columns)


def rows_of_keys(place: TablePlace, one: FileSlice, schema: pa.Schema, rule: MergeRule, keys: pa.Array) -> pa.Table:
    """Of the rows of a slice those with these keys: the key, and the columns that order them.

    `schema` has the table's columns. Raises as `merged_rows` does.
    """
    full = with_meta(schema)
    wanted = dict.fromkeys([RECORD_KEY, *columns_to_merge(full, rule)])
    columns = pa.schema([full.field(name) for name in wanted])
    found = (
        rows.filter(pc.is_in(rows.column(RECORD_KEY), value_set=keys))
        for rows in merged_rows(place, one, columns, rule)
    )
    return pa.concat_tables([columns.empty_table(), *found]).combine_chunks()
