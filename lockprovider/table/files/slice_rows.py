"""File slice's rows: its log files merged with its base file, in batches.

Source: Hudi `HoodieMergedLogRecordReader`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray
from pyarrow import types

from lockprovider.table.convert import read_as
from lockprovider.table.errors import Corrupt, UnsupportedSchema, UnsupportedTable
from lockprovider.table.files import base_file
from lockprovider.table.files.base_file import ParquetFile, array_of, read_columns
from lockprovider.table.files.keys import (
    KeyMatch,
    TextMatch,
    is_whole,
    key_column,
    number_match,
    numbers_of,
    text_match,
)
from lockprovider.table.files.merge_log import LogEventKind, LogEvents, LogMerge, LogSide, MergeRule, fold, fold_fields
from lockprovider.table.files.place import TablePlace
from lockprovider.table.format import log_block
from lockprovider.table.format.bloom import hashes
from lockprovider.table.format.log_block import BlockKind, Header, LogBlock
from lockprovider.table.format.schema import IS_DELETED, RECORD_KEY, absent, has_deletes, present, with_meta
from lockprovider.table.timeline.view import FileSlice

_PART_BYTES = 128 << 20  # of stored logs in one pass


def merged_rows(
    place: TablePlace, file_slice: FileSlice, columns: pa.Schema, rule: MergeRule, *, in_place: bool = False
) -> Iterator[pa.Table]:
    """Yield a slice's merged rows, in parts and the same order each time.

    `columns` must include those of `columns_to_merge`. With `in_place` log rows stand where they replace others; else
    they come last, which costs less. Logs above 128 MiB take several passes, each for some keys. Raises `Corrupt`,
    `UnsupportedTable`, or `HistoryGone` for a missing file.
    """
    if not file_slice.logs:
        yield from _base_rows(place.open(file_slice.path, file_slice.size), columns, base_file.ROW_GROUP_ROWS)
        return
    parts = -(-log_bytes(file_slice) // _PART_BYTES) or 1
    for part in (KeyPart(number, parts) for number in range(parts)):
        side = read_logs(place, [log.path for log in file_slice.logs], columns, rule, part)
        if not file_slice.path:
            yield LogMerge(side, rule, TextMatch(side.keys)).rest()
            continue
        opened = place.open(file_slice.path, file_slice.size)
        match, needed, at_once = _matched(side.keys, opened.schema_arrow, columns, rule if parts == 1 else MergeRule())
        merge = LogMerge(side, rule, match, in_place=in_place)
        for batch in _base_rows(opened, needed, at_once):
            yield merge.merged(part.of(batch))
        yield merge.rest()


def _matched(keys: pa.Array, stored: pa.Schema, columns: pa.Schema, rule: MergeRule) -> tuple[KeyMatch, pa.Schema, int]:
    by_number = number_match(keys, rule.key, columns, stored)
    if by_number is not None:
        return by_number, columns, base_file.ROW_GROUP_ROWS
    by_text = text_match(keys, rule.key, columns, stored)
    needed = columns if by_text.column in columns.names else columns.append(pa.field(RECORD_KEY, pa.string()))
    return by_text, needed, max(base_file.ROW_GROUP_ROWS, len(keys), min(4 * len(keys), 2 * base_file.ROW_GROUP_ROWS))


def log_bytes(file_slice: FileSlice) -> int:
    return sum(log.size for log in file_slice.logs)


def held_bytes(file_slice: FileSlice) -> int:
    return min(log_bytes(file_slice), _PART_BYTES)


def _base_rows(opened: ParquetFile, columns: pa.Schema, at_once: int) -> Iterator[pa.Table]:
    stored_names = present(columns.names, opened.schema_arrow.names)
    at_most = base_file.ROW_GROUP_BYTES * max(1, at_once // base_file.ROW_GROUP_ROWS)
    for batch in base_file.in_batches(opened, stored_names, at_once, at_most):
        yield read_as(batch, columns)


def rows_of_keys(
    place: TablePlace, file_slice: FileSlice, schema: pa.Schema, rule: MergeRule, keys: pa.Array
) -> pa.Table:
    """Key and merge columns of a slice's merged rows with one of these keys."""
    columns = _key_columns(schema, rule)
    parts = (
        rows.filter(pc.is_in(rows.column(RECORD_KEY), value_set=keys))
        for rows in merged_rows(place, file_slice, columns, rule)
    )
    return pa.concat_tables([columns.empty_table(), *parts]).combine_chunks()


def merged_keys(place: TablePlace, file_slice: FileSlice, schema: pa.Schema, rule: MergeRule) -> Iterator[pa.Array]:
    """Yield the record keys of `merged_rows`, with its errors."""
    for rows in merged_rows(place, file_slice, _key_columns(schema, rule), rule):
        yield array_of(rows.column(RECORD_KEY))


def _key_columns(schema: pa.Schema, rule: MergeRule) -> pa.Schema:
    full = with_meta(schema)
    return pa.schema([full.field(name) for name in dict.fromkeys([RECORD_KEY, *columns_to_merge(full, rule)])])


@dataclass(frozen=True, slots=True)
class KeyPart:
    """Subset `number` of `parts` of all keys, by hash."""

    number: int = 0
    parts: int = 1

    def among(self, keys: pa.Array) -> pa.Array:
        return pa.array(hashes(keys) % self.parts == self.number)

    def of(self, rows: pa.Table) -> pa.Table:
        return rows if self.parts == 1 else rows.filter(self.among(array_of(rows.column(RECORD_KEY))))


def read_logs(
    place: TablePlace, paths: Sequence[str], columns: pa.Schema, rule: MergeRule, part: KeyPart = KeyPart()
) -> LogSide:
    """Fold log files, in merge order, to one state for each key of a part."""
    if part.parts == 1:
        events = events_of(((path, _read(place, path)) for path in paths), columns, rule)
    else:
        events = _events(_one_by_one(place, paths), columns, rule, part)
    return fold(events, rule) if events.partial is None else fold_fields(events, rule)


def columns_to_merge(full: pa.Schema, rule: MergeRule) -> list[str]:
    if missing := absent(rule.ordering, full.names):
        raise UnsupportedSchema(
            f"ordering columns {missing} are nested or no columns of the table, so that its log files cannot be merged "
            "here; compact it with JVM Hudi, or read it read-optimized"
        )
    return [*dict.fromkeys([key_column(rule.key, full), *rule.ordering]), *([IS_DELETED] if has_deletes(full) else [])]


def _read(place: TablePlace, path: str) -> bytes:
    with base_file.reading(path):
        return place.store.read(path).data


def events_of(files: Iterable[tuple[str, bytes]], columns: pa.Schema, rule: MergeRule) -> LogEvents:
    blocks = log_block.effective(block for path, data in files for block in log_block.decode_blocks(data, path))
    return _events(blocks, columns, rule, KeyPart())


def _one_by_one(place: TablePlace, paths: Sequence[str]) -> Iterator[LogBlock]:
    """Read log files one by one, and again for valid blocks, and yield these in merge order."""
    heads, numbers = [], {}
    for path in paths:
        for number, block in enumerate(log_block.decode_blocks(_read(place, path), path)):
            heads.append(replace(block, content=b""))
            numbers[id(heads[-1])] = number
    opened = ""
    blocks: tuple[LogBlock, ...] = ()
    for head in log_block.effective(heads):
        if head.path != opened:
            opened, blocks = head.path, log_block.decode_blocks(_read(place, head.path), head.path)
        yield blocks[numbers[id(head)]]


def _events(blocks: Iterable[LogBlock], columns: pa.Schema, rule: MergeRule, part: KeyPart) -> LogEvents:
    key = key_column(rule.key, columns) if part.parts == 1 else RECORD_KEY
    collector = _Gathered(columns, key, tuple(columns.field(name) for name in rule.ordering), part)
    for block in blocks:
        collector.add(block)
    return collector.events()


@dataclass(slots=True)
class _Gathered:
    columns: pa.Schema
    key: str
    ordering: tuple[pa.Field, ...]
    part: KeyPart
    keys: list[pa.Array] = field(default_factory=list)
    kinds: list[NDArray[np.int8]] = field(default_factory=list)
    order: list[list[pa.Array]] = field(default_factory=list)
    rows: list[pa.Table] = field(default_factory=list)
    partial: list[frozenset[str] | None] = field(default_factory=list)

    def add(self, block: LogBlock) -> None:
        """Decode a block, and append its events of keys in `self.part`; raise `Corrupt` for a row without a key.

        Rows with a true `_hoodie_is_deleted` are deletes.
        """
        if block.kind is BlockKind.DELETE:
            self._add_deletes(block)
            return
        block_rows = self.part.of(_rows(block, self._needed))
        rows = read_as(block_rows, self.columns)
        kinds = np.full(rows.num_rows, LogEventKind.ROW, dtype=np.int8)
        if has_deletes(block_rows.schema):
            ends = array_of(block_rows.column(IS_DELETED)).fill_null(False).to_numpy(zero_copy_only=False)
            kinds[ends] = LogEventKind.DELETE
            rows = rows.filter(pa.array(~ends)) if ends.any() else rows
        name = self._key(block_rows.schema)
        key = pa.field(name, pa.int64() if is_whole(block_rows.schema, name) else pa.string())
        keys, *order = map(array_of, read_as(block_rows, pa.schema([key, *self.ordering])).columns)
        if keys.null_count:
            raise Corrupt(
                f"log file {block.path!r} has rows without a value in key column {name!r}; take it from a backup"
            )
        self._append(keys, kinds, order)
        self.rows.append(rows)
        is_partial = block.header.get(Header.IS_PARTIAL, "").lower() == "true"
        self.partial.append(frozenset(block_rows.column_names) if is_partial else None)

    def _key(self, stored: pa.Schema) -> str:
        return key_column(self.key, self.columns, stored)

    def _needed(self, stored: pa.Schema) -> list[str]:
        needed = {self._key(stored), IS_DELETED, *self.columns.names}
        return [name for name in stored.names if name in needed]

    def _add_deletes(self, block: LogBlock) -> None:
        """Append a delete block's events of keys in `self.part`; a delete without an ordering value is `GONE`."""
        deletes = log_block.decode_deletes(block.content, block.path)
        if self.part.parts > 1:
            mask = self.part.among(pa.array([delete.key for delete in deletes], pa.string())).to_pylist()
            deletes = tuple(delete for delete, is_mine in zip(deletes, mask, strict=True) if is_mine)
        typed = np.array([bool(delete.values) for delete in deletes], dtype=np.bool_)
        kinds = np.where(typed, LogEventKind.DELETE, LogEventKind.GONE).astype(np.int8)
        values = log_block.ordering_values(deletes, self.ordering, block.path) if self.ordering else []
        numbers = pa.array(np.cumsum(typed) - 1, mask=~typed)
        self._append(
            pa.array([delete.key for delete in deletes], pa.string()),
            kinds,
            [column.take(numbers) for column in values],
        )

    def _append(self, keys: pa.Array, kinds: NDArray[np.int8], order: list[pa.Array]) -> None:
        numbers = numbers_of(keys) if is_whole(self.columns, self.key) else None
        self.keys.append(keys if numbers is None else numbers)
        self.kinds.append(kinds)
        self.order.append(order)

    def events(self) -> LogEvents:
        """Join the collected events, in order. Keys are integers if all blocks have integer keys, else text."""
        rows = pa.concat_tables(self.rows or [self.columns.empty_table()]).combine_chunks()
        order = tuple(
            pa.concat_arrays([pa.array([], one.type), *(part[number] for part in self.order)])
            for number, one in enumerate(self.ordering)
        )
        kind = pa.int64() if self.keys and all(types.is_int64(one.type) for one in self.keys) else pa.string()
        keys = pa.concat_arrays([pa.array([], kind), *(one.cast(kind) for one in self.keys)])
        kinds = np.concatenate([np.zeros(0, dtype=np.int8), *self.kinds])
        if not any(one is not None for one in self.partial):
            return LogEvents(keys, kinds, order, rows)
        everything = frozenset(self.columns.names)
        sets = tuple(everything if one is None else one & everything for one in self.partial)
        counts = [part.num_rows for part in self.rows]
        return LogEvents(keys, kinds, order, rows, np.repeat(np.arange(len(sets)), counts), sets)


def _rows(block: LogBlock, needed: Callable[[pa.Schema], list[str]]) -> pa.Table:
    """Decode a block; of a Parquet block only the columns that `needed` selects.

    Raises `UnsupportedTable` for HFile blocks and Flink's change logs.
    """
    if block.kind is BlockKind.AVRO:
        rows = log_block.decode_avro(block.content, block.header.get(Header.SCHEMA, ""), block.path)
        base_file.check_operation(rows.schema.names, repr(block.path))
        return rows
    if block.kind is BlockKind.HFILE:
        raise UnsupportedTable(
            f"log file {block.path!r} has HFile blocks, which are no rows; compact it with its engine"
        )
    file = base_file.open_base_file(block.content, path=block.path)
    return read_columns(file, needed(file.schema_arrow))
