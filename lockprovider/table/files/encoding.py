"""Encoders of base files and log files.

Source: Hudi `HoodieAvroParquetWriter`, `HoodieBloomFilterWriteSupport`, `HoodieRowParquetWriteSupport`,
`HoodieAppendHandle`; Spark's `DataSourceUtils.datetimeRebaseSpec`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from io import BytesIO
from itertools import chain
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from numpy.typing import NDArray
from pyarrow import types

from lockprovider.table.errors import InvalidRecords
from lockprovider.table.files import base_file as files
from lockprovider.table.files.merge_log import MergeRule
from lockprovider.table.format import bloom, log_block, schema
from lockprovider.table.format.layout import BaseFile, LogFile, join, parse_log_file
from lockprovider.table.format.log_block import BlockKind, Header, LogBlock, encode_deletes, wrapper_of
from lockprovider.table.format.metadata import WriteStat
from lockprovider.table.format.properties import TableConfig

BATCH_ROWS = 1 << 15
BATCH_BYTES = 16 << 20
_COMPRESSION = "zstd"
_PROBED_ROWS = 1000
_PAGE_BYTES = 1 << 20
_NOT_COMPARED = (schema.COMMIT_SEQNO, schema.PARTITION_PATH, schema.FILE_NAME)
# For these zstd only costs.
_FEW_ROWS = 1000
_PAGES = {"store_schema": False, "write_page_checksum": True}
_CALENDAR = "3.5.0"  # Spark from 3.0 on uses today's.
_TEXTS = pa.dictionary(pa.int32(), pa.string())
_ORDERS_DIFFER_FROM = 0xEE  # first byte of U+E000 in UTF-8


# By UTF-16 units, unlike by UTF-8 bytes, what lies beyond U+FFFF comes before U+E000.
def java_order(key: str) -> bytes:
    return key.encode("utf-16-be")


def ends(keys: pa.Array) -> tuple[str, str] | None:
    """Least and greatest key in Java's order, by UTF-16 units; None without keys."""
    if not len(keys):
        return None
    bounds = pc.min_max(keys)
    least, greatest = bounds["min"].as_py(), bounds["max"].as_py()
    if not (np.frombuffer((least + greatest).encode(), np.uint8) >= _ORDERS_DIFFER_FROM).any():
        return least, greatest
    texts = keys.to_pylist()
    return min(texts, key=java_order), max(texts, key=java_order)


class WrittenFile(NamedTuple):
    """Encoded base file."""

    data: bytes
    footer: pq.FileMetaData
    keys: pa.Array


def encode_base_file(
    parts: Iterable[pa.Table],
    columns: pa.Schema,
    *,
    keys: pa.Array | None = None,
    partition: str,
    base_file: BaseFile,
    table_name: str,
    known: pq.ParquetFile | None = None,
    key_filter: str | None = None,
) -> WrittenFile:
    """Encode a base file in memory, with meta columns, key range and bloom filter.

    `parts`, at least one, are `fresh` rows, with a `_hoodie_record_key` column unless `keys` has all keys in order.
    `columns`: all except meta columns. `known`, a base file with the first keys, and `key_filter`, `encode_filter` of
    all, save work. NOT checked: that keys are unique and not empty, and `known` and `key_filter` theirs. Raises
    `UnsupportedSchema` unless types are canonical.
    """
    met: list[pa.Array] = []
    groups, out = _row_groups(parts, keys, met, partition, base_file), BytesIO()
    first = next(groups)
    compression = "snappy" if first.num_rows <= _FEW_ROWS else _COMPRESSION
    settings = {"compression": compression, "use_dictionary": _repetitive(first), **_PAGES}
    is_flat = not any(types.is_nested(column.type) for column in first.schema)
    settings["write_statistics"] = not is_flat or [name for name in first.column_names if name not in _NOT_COMPARED]
    # Parquet then checks the page size.
    settings["write_batch_size"] = max(1, min(1024, _PAGE_BYTES * first.num_rows // (_bytes_of(first) or 1)))
    with pq.ParquetWriter(out, first.schema, **settings) as writer:
        for group in chain([first], groups):
            writer.write_table(group)
        keys = pa.concat_arrays(met) if keys is None else keys
        writer.add_key_value_metadata(_footer(schema.with_meta(columns), keys, table_name, known, key_filter))
    return WrittenFile(out.getvalue(), writer.writer.metadata, keys)


def fresh(rows: pa.Table, file: BaseFile | LogFile, places: NDArray[np.int64]) -> pa.Table:
    """Add commit time and sequence number to rows; `places` are their positions in the file."""
    task = file.write_token.split("-", 1)[0]
    numbers = pc.binary_join_element_wise(f"{file.begin}_{task}_", pa.array(places).cast(pa.string()), "")
    own = [pa.field(schema.COMMIT_TIME, _TEXTS), pa.field(schema.COMMIT_SEQNO, pa.string())]
    columns = [_constant(file.begin, len(places)), numbers, *rows.columns]
    return pa.table(columns, schema=pa.schema([*own, *rows.schema]))


def all_fresh(rows: pa.Table, base_file: BaseFile, start: int = 0) -> Iterator[pa.Table]:
    """Yield `fresh` rows in at least one part, from position `start` on."""
    for first in range(0, max(1, rows.num_rows), BATCH_ROWS):
        part = rows[first : first + BATCH_ROWS]
        yield fresh(part, base_file, np.arange(part.num_rows) + first + start)


def _row_groups(
    parts: Iterable[pa.Table], keys: pa.Array | None, met: list[pa.Array], partition: str, base_file: BaseFile
) -> Iterator[pa.Table]:
    """Yield regrouped `parts` with Hudi's meta columns; append each group's keys to `met`.

    These come from `keys`, of all rows in order, or, if None, from the parts.
    """
    done = 0
    for rows in _regrouped(parts):
        count = rows.num_rows
        if keys is None:
            met.append(files.array_of(rows.column(schema.RECORD_KEY)))
            rows = rows.drop([schema.RECORD_KEY])  # noqa: PLW2901
        else:
            met.append(keys[done : done + count])
        yield _with_meta_columns(rows.unify_dictionaries(), met[-1], partition, base_file.name)
        done += count


def _with_meta_columns(rows: pa.Table, keys: pa.Array, partition: str, file_name: str) -> pa.Table:
    commit_times, seqnos, *data = rows.columns
    own = [commit_times, seqnos, keys, _constant(partition, rows.num_rows), _constant(file_name, rows.num_rows)]
    fields = (pa.field(name, column.type) for name, column in zip(schema.META_COLUMNS, own, strict=True))
    return pa.table([*own, *data], schema=pa.schema([*fields, *schema.without_meta(rows.schema)]))


def _regrouped(parts: Iterable[pa.Table]) -> Iterator[pa.Table]:
    """Join and split parts (at least one) to row groups of at most 131,072 rows and about 128 MiB."""
    size, held, count, held_bytes = files.ROW_GROUP_ROWS, list[pa.Table](), 0, 0
    for piece in (piece for part in parts for piece in _pieces(part, files.ROW_GROUP_BYTES // 4)):
        rest, more = piece, _bytes_of(piece)
        if count and held_bytes + more > files.ROW_GROUP_BYTES:
            yield pa.concat_tables(held)
            held, count, held_bytes = [], 0, 0
        while count + rest.num_rows > size:
            yield pa.concat_tables([*held, rest[: size - count]])
            rest, held, count, held_bytes = rest[size - count :], [], 0, 0
        held.append(rest)
        count, held_bytes = count + rest.num_rows, held_bytes + (more if rest is piece else _bytes_of(rest))
    yield pa.concat_tables(held)


def _pieces(part: pa.Table, limit: int, added: int = 0) -> Iterator[pa.Table]:
    """Halve a part until each piece has one row, or at most `limit` bytes with `added` a row; yield them in order."""
    waiting = [part]
    while waiting:
        first = waiting.pop()
        if first.num_rows > 1 and _bytes_of(first) + added * first.num_rows > limit:
            half = first.num_rows // 2
            waiting += [first[half:], first[:half]]
        else:
            yield first


def _bytes_of(rows: pa.Table) -> int:
    return sum(
        chunk.indices.nbytes if types.is_dictionary(chunk.type) else chunk.nbytes
        for column in rows.columns
        for chunk in column.chunks
    )


def _constant(text: str, count: int) -> pa.Array:
    return pa.DictionaryArray.from_arrays(pa.array(np.zeros(count, dtype=np.int32)), [text])


def _repetitive(full: pa.Table) -> bool | list[str]:
    if any(types.is_nested(column.type) for column in full.schema):
        return True  # Nested parts have own names.
    return [name for name in full.column_names if _repeats(full.column(name)[:_PROBED_ROWS])]


def _repeats(values: pa.ChunkedArray) -> bool:
    if types.is_dictionary(values.type):
        return True
    probed = values[: max(2, _PAGE_BYTES * len(values) // (values.nbytes or 1))]
    return len(probed.unique()) < len(probed)


def _footer(
    full: pa.Schema, keys: pa.Array, table_name: str, known: pq.ParquetFile | None, key_filter: str | None
) -> dict[str, str]:
    """Footer's entries: Avro schema, bloom filter, key range.

    Without `key_filter`, hashes only the keys that follow those of base file `known`.
    """
    if key_filter is None:
        key_filter = bloom.encode_filter(keys, None if known is None else files.known_filter(known.metadata))
    stored = None if known is None else files.key_range(known.metadata)
    if known is not None and stored is not None:
        keys = pa.concat_arrays([pa.array(stored), keys[known.metadata.num_rows :]])
    bounds = ends(keys)
    return {
        files.AVRO_KEY: schema.to_avro(full, table_name),
        files.SPARK_KEY: _CALENDAR,
        files.BLOOM_TYPE_KEY: bloom.TYPE_CODE,
        files.BLOOM_KEY: key_filter,
        **({} if bounds is None else {files.MIN_KEY: bounds[0], files.MAX_KEY: bounds[1]}),
    }


PARQUET_ROWS = 1000  # From here on Parquet is smaller and quicker.
_BLOCK_BYTES = 256 << 20  # as in JVM writers
_DELETE_BYTES = 64  # besides key, partition and value


def encode_log(
    config: TableConfig,
    file: LogFile,
    partition: str,
    changes: tuple[pa.Table, pa.Array, pa.Table],
) -> tuple[WriteStat, bytes]:
    """Log file's statistics and bytes: of rows, their unique keys, and deletes as from `rows_of_keys`.

    Raises `InvalidRecords` for a row's null ordering value, one too large for the JVM, or a file name that it rejects;
    for deletes as `wrapper_of`.
    """
    rows, keys, deletes = changes
    refuse_unordered(config, rows)
    if parse_log_file(file.name) != file:
        raise InvalidRecords(f"{file.name!r} is no name of a log file to the JVM: write tokens are of digits")
    text = schema.to_avro(schema.with_meta(rows.schema), config.name)
    header: dict[int, str] = {Header.SCHEMA: text, Header.INSTANT_TIME: file.begin}
    full = _with_meta_columns(fresh(rows, file, np.arange(rows.num_rows)), keys, partition, file.file_id)
    blocks = [LogBlock(kind, header, content) for kind, content in _contents(full, text)]
    blocks += [LogBlock(BlockKind.DELETE, header, content) for content in _deletes(config, deletes, partition)]
    data = log_block.encode_blocks(blocks)
    stat = WriteStat(
        file.file_id,
        join(partition, file.name),
        partition,
        prev_commit=file.begin,
        num_writes=rows.num_rows,
        num_updates=rows.num_rows,
        num_deletes=deletes.num_rows,
        file_size=len(data),
    )
    return stat, data


def refuse_unordered(config: TableConfig, rows: pa.Table) -> None:
    """Raise `InvalidRecords` for a null ordering value in a merge-on-read table."""
    for name in MergeRule.of(config).ordering if config.is_merge_on_read else ():
        if count := rows.column(name).null_count:
            raise InvalidRecords(
                f"ordering column {name!r} is null in {count} rows: in a merge-on-read table readers of the JVM's fail "
                "at such a row as soon as there is another version of it; give each row a value"
            )


def values_of_deletes(config: TableConfig, deletes: pa.Table) -> pa.Array:
    """Deletes' ordering values; raises `InvalidRecords` for null in a merge-on-read table.

    Also, in every table, for an int 0 or the day 1970-01-01, which count as none.
    """
    refuse_unordered(config, deletes)
    values = files.array_of(deletes.column(config.ordering_field))
    if wrapper_of(values.type) == "IntWrapper" and pc.any(pc.equal(values.cast(pa.int32()), 0)).as_py():
        raise InvalidRecords(
            f"a delete, or an upsert of its key, has 0 in the ordering column {config.ordering_field!r}, which Hudi "
            "takes for no value: it would win over every row, and a row after it could bring back what was deleted; "
            "give it another value"
        )
    return values


def _contents(full: pa.Table, text: str) -> Iterator[tuple[BlockKind, bytes]]:
    """Yield kind and bytes of blocks of these rows, each of at most 256 MiB uncompressed or of one row.

    Fewer than 1,000 rows in all, without nested times or dates, are Avro, others Parquet; `text`: their Avro schema.
    """
    is_avro = full.num_rows < PARQUET_ROWS and not any(_has_times_inside(column.type) for column in full.schema)
    for part in _pieces(full, _BLOCK_BYTES) if full.num_rows else ():
        if is_avro:
            yield BlockKind.AVRO, log_block.encode_avro(part, text)
        else:
            yield BlockKind.PARQUET, _parquet(part, text)


def _has_times_inside(kind: pa.DataType) -> bool:
    inner = [kind.field(number).type for number in range(kind.num_fields)]
    return any(types.is_temporal(inner_type) or _has_times_inside(inner_type) for inner_type in inner)


def _parquet(rows: pa.Table, text: str) -> bytes:
    """Encode a Parquet block without statistics, with the Avro schema `text` in its footer."""
    out = BytesIO()
    settings = {"compression": _COMPRESSION, "use_dictionary": _repetitive(rows), **_PAGES}
    settings["write_statistics"] = False
    with pq.ParquetWriter(out, rows.schema, **settings) as writer:
        writer.write_table(rows)
        writer.add_key_value_metadata({files.AVRO_KEY: text, files.SPARK_KEY: _CALENDAR})
    return out.getvalue()


def _deletes(config: TableConfig, rows: pa.Table, partition: str) -> Iterator[bytes]:
    """Yield contents of delete blocks of at most 256 MiB or one delete; those with ordering values are first.

    Readers fail at a mixed block.
    """
    name = config.ordering_field if MergeRule.of(config).ordering else None
    columns = rows.select([schema.RECORD_KEY, *filter(None, [name])])
    typed = pa.nulls(rows.num_rows).is_valid() if name is None else columns.column(name).is_valid()
    size = len(partition.encode()) + _DELETE_BYTES
    valued, others = columns.filter(typed), columns.filter(pc.invert(typed)).select([0])
    for part in (part for group in (valued, others) if group.num_rows for part in _pieces(group, _BLOCK_BYTES, size)):
        keys, *stored = part.columns
        values, wrapper = None, ""
        if stored:
            kind = stored[0].type
            values, wrapper = stored[0].cast(log_block.stored_kind(kind)).to_pylist(), wrapper_of(kind)
        yield encode_deletes(keys.to_pylist(), partition, values, wrapper)
