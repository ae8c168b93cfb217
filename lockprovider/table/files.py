"""Base files: Parquet with Hudi's five columns and footer, and the copy-on-write merge of one file group.

Nothing here loops over rows in Python.

Source: Hudi `HoodieAvroParquetWriter`, `HoodieMergeHandle`, `HoodieBloomFilterWriteSupport`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from io import BytesIO
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyarrow import types

from lockprovider.table import bloom, schema
from lockprovider.table.errors import Corrupt, InvalidRecords, UnsupportedSchema
from lockprovider.table.layout import EMPTY_KEY, NULL_KEY, BaseFile, PartitionStyle, checked_path

BLOOM_KEY = "org.apache.hudi.bloomfilter"
BLOOM_TYPE_KEY = "hoodie_bloom_filter_type_code"
MIN_KEY = "hoodie_min_record_key"
MAX_KEY = "hoodie_max_record_key"
AVRO_KEY = "parquet.avro.schema"

COMPRESSION = "zstd"
ROW_GROUP_ROWS = 1 << 20
_PROBED_ROWS = 1000


# --- keys and partitions of rows ------------------------------------------------------------------------------------


def record_keys(table: pa.Table, fields: Sequence[str], *, named: bool = False) -> pa.Array:
    """Every row's record key, as `layout.record_key` makes it.

    Raises:
        InvalidRecords: a key column is missing, or a key is null or empty (with several fields: all of them).
    """
    texts = [_texts(table, field) for field in fields]
    filled = [_filled(text) for text in texts]
    blank = filled[0]
    for other in filled[1:]:
        blank = pc.and_(blank, other)
    if (count := pc.sum(blank).as_py() or 0) > 0:
        first = pc.index(blank, value=True).as_py()
        raise InvalidRecords(f"record key {list(fields)} is null or empty in {count} rows, the first is row {first}")
    if len(texts) == 1 and not named:
        return texts[0]
    parts = [
        pc.binary_join_element_wise(field, _placeheld(text), ":") for field, text in zip(fields, texts, strict=True)
    ]
    return pc.binary_join_element_wise(*parts, ",")


def partition_paths(table: pa.Table, style: PartitionStyle) -> pa.Array:
    """Every row's partition path, as `style.path_for` makes it; empty text for an unpartitioned table.

    Raises:
        InvalidRecords: a partition column is missing, or a value would leave the table's folder.
    """
    if not style.fields:
        return pa.repeat(pa.scalar(""), table.num_rows)
    folders = [_folders(table, field, style) for field in style.fields]
    paths = folders[0] if len(folders) == 1 else pc.binary_join_element_wise(*folders, "/")
    for path in pc.unique(paths).to_pylist():
        checked_path(path)
    return paths


def _folders(table: pa.Table, field: str, style: PartitionStyle) -> pa.Array:
    # Only the distinct values pass through Python.
    encoded = _texts(table, field).dictionary_encode(null_encoding="encode")
    names = pa.array([style.folder_for(field, value) for value in encoded.dictionary.to_pylist()], pa.string())
    return names.take(encoded.indices)


def _filled(text: pa.Array) -> pa.Array:
    """Where the text is null or empty."""
    return pc.or_kleene(pc.is_null(text), pc.equal(text, "")).fill_null(True)


def _placeheld(text: pa.Array) -> pa.Array:
    return pc.if_else(pc.is_null(text), NULL_KEY, pc.if_else(pc.equal(text, ""), EMPTY_KEY, text))


def _texts(table: pa.Table, field: str) -> pa.Array:
    """One column as text, as `layout.text_of` makes it."""
    if field not in table.column_names:
        raise InvalidRecords(f"column {field!r} is missing; the rows have {table.column_names}")
    column = table.column(field)
    kind = column.type
    if types.is_dictionary(kind):
        column = column.cast(kind.value_type)
    elif types.is_timestamp(kind):
        column = column.cast(pa.timestamp("us", kind.tz)).cast(pa.int64())
    elif types.is_floating(kind) or types.is_nested(kind) or types.is_binary(kind) or types.is_large_binary(kind):
        raise InvalidRecords(f"column {field!r} of type {kind} cannot be a key or partition; cast it to a string")
    return _array(column.cast(pa.string()))


def _array(column: pa.ChunkedArray) -> pa.Array:
    return pa.concat_arrays(column.chunks) if column.num_chunks else pa.array([], column.type)


# --- writing and reading --------------------------------------------------------------------------------------------


def conform(rows: pa.Table, target: pa.Schema) -> pa.Table:
    """The rows with exactly these columns: cast without loss, and null where a column is missing.

    Raises:
        InvalidRecords: a value does not fit its column.
    """
    return pa.table([_conformed(rows, column) for column in target], schema=target)


def _conformed(rows: pa.Table, column: pa.Field) -> Any:
    if column.name not in rows.column_names:
        return pa.nulls(rows.num_rows, column.type)
    values = rows.column(column.name)
    try:
        return values if values.type == column.type else values.cast(column.type)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        raise InvalidRecords(
            f"column {column.name!r} of type {values.type} does not fit {column.type}: {error}; cast it first"
        ) from error


def write_base_file(
    rows: pa.Table,
    *,
    keys: pa.Array,
    partition: str,
    base_file: BaseFile,
    table_name: str,
    commit_times: pa.Array | None = None,
    seqnos: pa.Array | None = None,
    seqno_start: int = 0,
    known: bloom.Known | None = None,
) -> bytes:
    """The bytes of a base file.

    `rows` are without meta columns and of canonical types. Where `commit_times` and `seqnos` are null, or not given, a
    row is of this instant; elsewhere it keeps what it had. The file name is the new one in all rows. `known` is the
    bloom filter of the first keys, if there is one.

    NOT checked: that keys are unique and filled, and that `known` is of these keys; that is the caller's promise.
    """
    count = rows.num_rows
    meta = (
        _constant(base_file.begin, count) if commit_times is None else pc.coalesce(commit_times, base_file.begin),
        _numbered(seqnos, base_file, seqno_start, count),
        keys,
        _constant(partition, count),
        _constant(base_file.name, count),
    )
    fields = (pa.field(name, column.type) for name, column in zip(schema.META_COLUMNS, meta, strict=True))
    full = pa.table([*meta, *rows.columns], schema=pa.schema([*fields, *rows.schema]))
    out = BytesIO()
    settings = {"compression": COMPRESSION, "use_dictionary": _repetitive(full), "store_schema": False}
    with pq.ParquetWriter(out, full.schema, **settings) as writer:
        writer.write_table(full, row_group_size=ROW_GROUP_ROWS)
        writer.add_key_value_metadata(_footer(schema.with_meta(rows.schema), keys, table_name, known))
    return out.getvalue()


def _constant(text: str, count: int) -> pa.Array:
    """One text in all rows, as what it is in the file: a dictionary of one entry."""
    return pa.DictionaryArray.from_arrays(pa.array(np.zeros(count, dtype=np.int32)), [text])


def _repetitive(full: pa.Table) -> bool | list[str]:
    """The columns worth a dictionary: those that repeat a value near their beginning; all if some are nested."""
    if any(types.is_nested(column.type) for column in full.schema):
        return True  # their parts have names of their own
    return [name for name in full.column_names if _repeats(full.column(name)[:_PROBED_ROWS])]


def _repeats(values: pa.ChunkedArray) -> bool:
    return bool(types.is_dictionary(values.type)) or len(values.unique()) < len(values)


def _numbered(kept: pa.Array | None, base_file: BaseFile, start: int, count: int) -> pa.Array:
    """The sequence numbers of all rows: new ones, by place, where there is none to keep."""
    places = np.arange(count) if kept is None else np.flatnonzero(kept.is_null().to_numpy(zero_copy_only=False))
    task = base_file.write_token.split("-", 1)[0]
    numbers = pa.array(places + start).cast(pa.string())
    fresh = pc.binary_join_element_wise(f"{base_file.begin}_{task}", numbers, "_")
    return fresh if kept is None else pc.replace_with_mask(kept, kept.is_null(), fresh)


def _footer(full: pa.Schema, keys: pa.Array, table_name: str, known: bloom.Known | None) -> dict[str, str]:
    ends = pc.min_max(keys)
    bounds = {MIN_KEY: ends["min"].as_py(), MAX_KEY: ends["max"].as_py()} if len(keys) else {}
    return {
        AVRO_KEY: schema.to_avro(full, table_name),
        BLOOM_TYPE_KEY: bloom.TYPE_CODE,
        BLOOM_KEY: bloom.encode(keys, known),
        **bounds,
    }


def read_base_file(source: Any, columns: Sequence[str] | None = None, filters: Any = None) -> pa.Table:
    """The rows of a base file, meta columns included.

    `source` is bytes, an open file or a local path; `columns` and `filters` are those of `pyarrow.parquet.read_table`.
    Without filters, a column that the file does not have is left out.

    Raises:
        Corrupt: it is not a whole Parquet file.
    """
    wanted = None if columns is None else list(columns)
    if filters is None:
        return read_columns(open_base_file(source), wanted)
    try:
        # Folder names like `city=x` are not columns here: Hudi keeps partition columns in the files.
        return pq.read_table(_source(source), columns=wanted, filters=filters, partitioning=None)
    except pa.ArrowInvalid as error:
        raise Corrupt(f"base file {_name(source)} cannot be read: {error}") from error


def open_base_file(source: Any) -> pq.ParquetFile:
    """A base file whose footer is read, and nothing else; `source` as of `read_base_file`.

    Raises:
        Corrupt: it is not a Parquet file.
    """
    try:
        return pq.ParquetFile(_source(source), pre_buffer=True)
    except pa.ArrowInvalid as error:
        raise Corrupt(f"base file {_name(source)} cannot be read: {error}") from error


def read_columns(file: pq.ParquetFile, columns: Sequence[str] | None = None) -> pa.Table:
    """All rows of an opened base file, with the footer's entries as the schema's metadata.

    Raises:
        Corrupt: a part of it is damaged.
    """
    try:
        return file.read(None if columns is None else list(columns))
    except (pa.ArrowInvalid, OSError) as error:
        raise Corrupt(f"a base file cannot be read: {error}; take it from a backup") from error


def read_old(file: pq.ParquetFile) -> pa.Table:
    """What `merge_rows` needs of a base file: all columns but those that are the same in all rows."""
    constant = (schema.PARTITION_PATH, schema.FILE_NAME)
    return read_columns(file, [name for name in file.schema_arrow.names if name not in constant])


def keys_of(file: pq.ParquetFile) -> pa.Array:
    """The record keys of an opened base file, in file order."""
    return _array(read_columns(file, [schema.RECORD_KEY]).column(0))


def key_range(file: pq.ParquetFile) -> tuple[str, str] | None:
    """The least and the greatest record key of an opened base file; None if its footer does not tell for sure."""
    found = file.metadata.metadata or {}
    least, greatest = found.get(MIN_KEY.encode()), found.get(MAX_KEY.encode())
    if least is None or greatest is None or not least.isascii() or not greatest.isascii():
        return None  # the JVM orders by UTF-16, Arrow by UTF-8: they differ past ASCII
    return least.decode(), greatest.decode()


def known_filter(old: pa.Table) -> bloom.Known | None:
    """The bloom filter of rows that were just read, by the footer that came with them."""
    footer = old.schema.metadata or {}
    text = footer.get(BLOOM_KEY.encode())
    if text is None or footer.get(BLOOM_TYPE_KEY.encode()) != bloom.TYPE_CODE.encode():
        return None
    return bloom.Known(text.decode(), old.num_rows)


def read_keys(source: Any) -> pa.Array:
    """The record keys of a base file, in file order; reads that column only."""
    return keys_of(open_base_file(source))


def _source(source: Any) -> Any:
    return pa.BufferReader(source) if isinstance(source, (bytes, bytearray, memoryview)) else source


def _name(source: Any) -> str:
    return f"of {len(source)} bytes" if isinstance(source, (bytes, bytearray, memoryview)) else repr(source)


# --- merging --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Merged:
    """A file group's next slice.

    `rows` have no meta columns. `commit_times` and `seqnos` are null for rows that this commit inserted or updated;
    `known` is the bloom filter of the first keys: hand all five to `write_base_file`. An upsert that lost to a row with
    a higher ordering value is not counted.
    """

    rows: pa.Table
    keys: pa.Array
    commit_times: pa.Array
    seqnos: pa.Array
    inserts: int
    updates: int
    deletes: int
    known: bloom.Known | None = None

    @property
    def changed(self) -> bool:
        """Whether there is anything to write."""
        return bool(self.inserts or self.updates or self.deletes)


def merge_rows(
    old: pa.Table,
    upserts: pa.Table,
    *,
    upsert_keys: pa.Array,
    delete_keys: pa.Array,
    ordering_field: str | None = None,
) -> Merged:
    """Copy-on-write: old rows (with meta columns) and changes make new rows, with the columns of `upserts`.

    Upserts replace the row of their key in place, or are appended. With an ordering field the higher value wins,
    ties and nulls go to the newcomer. A delete carries no ordering value and always wins, over an upsert of its
    key too. Only to delete, pass an empty table of the table's schema as `upserts`.

    NOT checked: that `upsert_keys` are unique (see `dedupe`).

    Raises:
        UnsupportedSchema: `upserts` has not all columns of the old rows.
        InvalidRecords: an old value does not fit the new column.
    """
    before = _data_of(old, upserts.schema)
    count, old_keys = old.num_rows, _array(old.column(schema.RECORD_KEY))
    match = pc.index_in(old_keys, value_set=upsert_keys)
    deleted = _among(old_keys, delete_keys)
    kept = pc.or_(_old_wins(before, upserts, match, ordering_field), deleted)
    updated = pc.and_(pc.is_valid(match), pc.invert(kept))
    place = pa.array(np.arange(count + len(upsert_keys), dtype=np.int64))
    stays = pc.invert(deleted)
    stay = pc.if_else(updated, pc.add(match.cast(pa.int64()), count), place[:count]).filter(stays)
    fresh = pc.invert(pc.or_(_mentioned(match, len(upsert_keys)), _among(upsert_keys, delete_keys)))
    new = place[count:].filter(fresh)
    nothing = pa.nulls(len(new), pa.string())
    deletes = pc.sum(deleted).as_py() or 0
    return Merged(
        rows=pa.concat_tables([before, upserts]).take(pa.concat_arrays([stay, new])),
        keys=pa.concat_arrays([old_keys.filter(stays) if deletes else old_keys, upsert_keys.filter(fresh)]),
        commit_times=_followed(_unless(updated, old, schema.COMMIT_TIME).filter(stays), nothing),
        seqnos=_followed(_unless(updated, old, schema.COMMIT_SEQNO).filter(stays), nothing),
        inserts=len(new),
        updates=pc.sum(updated).as_py() or 0,
        deletes=deletes,
        known=None if deletes else known_filter(old),
    )


def _among(keys: pa.Array, some: pa.Array) -> pa.Array:
    return pc.is_in(keys, value_set=some) if len(some) else pa.repeat(pa.scalar(False), len(keys))


def _mentioned(indices: pa.Array, count: int) -> pa.Array:
    """Which of `count` places the indices name."""
    found = np.zeros(count, dtype=np.bool_)
    found[indices.drop_null().to_numpy()] = True
    return pa.array(found)


def _unless(null: pa.Array, old: pa.Table, column: str) -> pa.Array:
    return pc.if_else(null, pa.scalar(None, pa.string()), _array(old.column(column)))


def _data_of(old: pa.Table, target: pa.Schema) -> pa.Table:
    missing = [name for name in schema.without_meta(old.schema).names if name not in target.names]
    if missing:
        raise UnsupportedSchema(f"columns {missing} of the table are missing; add them, with nulls if need be")
    return conform(old, target)


def _old_wins(before: pa.Table, upserts: pa.Table, match: pa.Array, ordering_field: str | None) -> pa.Array:
    if ordering_field is None:
        return pa.repeat(pa.scalar(False), before.num_rows)
    theirs = _ordering(upserts, ordering_field).take(match)
    return pc.greater(_ordering(before, ordering_field), theirs).fill_null(False)


def _followed(first: pa.Array, more: pa.Array) -> pa.Array:
    return pa.concat_arrays([first, more]) if len(more) else first


def dedupe(rows: pa.Table, keys: pa.Array, ordering_field: str | None = None) -> tuple[pa.Table, pa.Array]:
    """One row a key: the highest ordering value, of equals (or without an ordering field) the last; order is kept.

    A null ordering value is lower than any other.

    Raises:
        UnsupportedSchema: the ordering column cannot be compared.
        InvalidRecords: there is no such column.
    """
    if are_unique(keys):
        return rows, keys
    columns = {"key": keys, "place": pa.array(np.arange(len(keys)))}
    by = ["key", "place"]
    if ordering_field is not None:
        order = _ordering(rows, ordering_field)
        columns |= {"filled": pc.is_valid(order), "order": order}
        by[1:1] = ["filled", "order"]
    sorting = pc.sort_indices(pa.table(columns), sort_keys=[(name, "ascending") for name in by])
    ranked = keys.take(sorting)
    last = pa.concat_arrays([pc.not_equal(ranked[:-1], ranked[1:]), pa.array([True])])
    kept = pa.array(np.sort(sorting.filter(last).to_numpy()))
    return rows.take(kept), keys.take(kept)


def are_unique(keys: pa.Array | pa.ChunkedArray) -> bool:
    """Whether no key comes twice; quick where each is longer than the one before, or as long and greater."""
    before, after = keys[:-1], keys[1:]
    lengths = pc.binary_length(before), pc.binary_length(after)
    rising = pc.or_(pc.less(*lengths), pc.and_(pc.equal(*lengths), pc.less(before, after)))
    return pc.all(rising).as_py() is not False or len(pc.unique(keys)) == len(keys)


def _ordering(rows: pa.Table, field: str) -> pa.Array:
    if field not in rows.column_names:
        raise InvalidRecords(f"ordering column {field!r} is missing; the rows have {rows.column_names}")
    values = _array(rows.column(field))
    if types.is_nested(values.type):
        raise UnsupportedSchema(f"ordering column {field!r} of type {values.type} cannot be compared; choose another")
    return values
