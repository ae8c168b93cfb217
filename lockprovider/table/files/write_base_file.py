"""Writer of base files: Parquet with Hudi's meta columns and footer, from rows in parts.

Memory: the rows of one row group, and the bytes of the file.

Source: Hudi `HoodieAvroParquetWriter`, `HoodieBloomFilterWriteSupport`, `HoodieRowParquetWriteSupport`; Spark's
`DataSourceUtils.datetimeRebaseSpec`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from io import BytesIO
from itertools import chain
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyarrow import types

from lockprovider.table.files import base_file as files
from lockprovider.table.format import bloom, schema
from lockprovider.table.format.layout import BaseFile, LogFile

if TYPE_CHECKING:
    from numpy.typing import NDArray

BATCH_ROWS = 1 << 15  # Memory of small batches is reused.
BATCH_BYTES = 16 << 20
COMPRESSION = "zstd"
_PROBED_ROWS = 1000
_PAGE_BYTES = 1 << 20
_NOT_COMPARED = (schema.COMMIT_SEQNO, schema.PARTITION_PATH, schema.FILE_NAME)
# For so few rows zstd saves nothing, and its buffers cost much.
_FEW_ROWS = 1000
PAGES = {"store_schema": False, "write_page_checksum": True}  # settings of all files
CALENDAR = "3.5.0"  # From 3.0 on Spark reads dates in today's calendar.
_TEXTS = pa.dictionary(pa.int32(), pa.string())
_ORDERS_DIFFER_FROM = 0xEE  # first byte of U+E000 in UTF-8


# JVM Hudi compares record keys by UTF-16 units; Arrow, Parquet and HFiles by UTF-8 bytes. A character beyond U+FFFF
# begins with a surrogate, so Java orders it before U+E000 to U+FFFF. Source: `HoodieBloomFilterWriteSupport.addKey`,
# `HoodieBloomIndex`.
def java_order(key: str) -> bytes:
    """Return a sort key with the order of Java's `String.compareTo`."""
    return key.encode("utf-16-be")


def ends(keys: pa.Array) -> tuple[str, str] | None:
    """Return the least and greatest key in Java's order, or None without keys; `keys` must have no nulls."""
    if not len(keys):
        return None
    bounds = pc.min_max(keys)
    least, greatest = bounds["min"].as_py(), bounds["max"].as_py()
    if orders_agree(least, greatest):
        return least, greatest
    texts = keys.to_pylist()
    return min(texts, key=java_order), max(texts, key=java_order)


def orders_agree(least: str, greatest: str) -> bool:
    """Return whether the ends by UTF-8 order are certainly the ends in Java's order."""
    data = np.frombuffer((least + greatest).encode(), dtype=np.uint8)
    return not bool((data >= _ORDERS_DIFFER_FROM).any())


class WrittenFile(NamedTuple):
    """Encoded base file: its bytes, footer, and record keys."""

    data: bytes
    footer: pq.FileMetaData
    keys: pa.Array


def write_base_file(
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
    """Encode a base file from parts of `fresh` rows with `columns` of canonical types.

    Without `keys`, all rows' keys in order, the parts must contain them. `known`, a base file with the first keys, and
    `key_filter`, their bloom filter, save work. NOT checked: that keys are unique and not empty, and that `known` and
    `key_filter` belong to them.
    """
    met: list[pa.Array] = []
    groups, out = _row_groups(parts, keys, met, partition, base_file), BytesIO()
    first = next(groups)
    compression = "snappy" if first.num_rows <= _FEW_ROWS else COMPRESSION
    settings = {"compression": compression, "use_dictionary": repetitive(first), **PAGES}
    settings["write_statistics"] = _compared(first)
    # Parquet checks the page size only after so many rows.
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
    columns = [constant(file.begin, len(places)), numbers, *rows.columns]
    return pa.table(columns, schema=pa.schema([*own, *rows.schema]))


def all_fresh(rows: pa.Table, base_file: BaseFile, start: int = 0) -> Iterator[pa.Table]:
    """Yield `fresh` rows in at least one part; the first is at position `start`."""
    for first in range(0, max(1, rows.num_rows), BATCH_ROWS):
        part = rows[first : first + BATCH_ROWS]
        yield fresh(part, base_file, np.arange(part.num_rows) + first + start)


def _row_groups(
    parts: Iterable[pa.Table], keys: pa.Array | None, met: list[pa.Array], partition: str, base_file: BaseFile
) -> Iterator[pa.Table]:
    """Yield row groups with Hudi's meta columns, and append their keys (without `keys`, from the rows) to `met`."""
    done = 0
    for rows in _regrouped(parts):
        count = rows.num_rows
        if keys is None:
            met.append(files.array_of(rows.column(schema.RECORD_KEY)))
            rows = rows.drop([schema.RECORD_KEY])  # noqa: PLW2901
        else:
            met.append(keys[done : done + count])
        commit_times, seqnos, *data = rows.unify_dictionaries().columns
        own = (
            commit_times,
            seqnos,
            met[-1],
            constant(partition, count),
            constant(base_file.name, count),
        )
        fields = (pa.field(name, column.type) for name, column in zip(schema.META_COLUMNS, own, strict=True))
        yield pa.table([*own, *data], schema=pa.schema([*fields, *schema.without_meta(rows.schema)]))
        done += count


def _regrouped(parts: Iterable[pa.Table]) -> Iterator[pa.Table]:
    """Join and split parts (at least one) to row groups; yield each before it would pass the limit of rows or bytes."""
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


def _pieces(part: pa.Table, limit: int) -> Iterator[pa.Table]:
    """Halve a part until each piece has at most `limit` bytes or one row; yield pieces in order."""
    waiting = [part]
    while waiting:
        first = waiting.pop()
        if first.num_rows > 1 and _bytes_of(first) > limit:
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


def constant(text: str, count: int) -> pa.Array:
    """Return a dictionary-encoded column that repeats one text."""
    return pa.DictionaryArray.from_arrays(pa.array(np.zeros(count, dtype=np.int32)), [text])


def repetitive(full: pa.Table) -> bool | list[str]:
    """Return the columns to encode as dictionaries; True (all) if some are nested."""
    if any(types.is_nested(column.type) for column in full.schema):
        return True  # Parts of nested columns have own names.
    return [name for name in full.column_names if _repeats(full.column(name)[:_PROBED_ROWS])]


def _compared(full: pa.Table) -> bool | list[str]:
    if any(types.is_nested(column.type) for column in full.schema):
        return True
    return [name for name in full.column_names if name not in _NOT_COMPARED]


def _repeats(values: pa.ChunkedArray) -> bool:
    if types.is_dictionary(values.type):
        return True
    probed = values[: max(2, _PAGE_BYTES * len(values) // (values.nbytes or 1))]
    return len(probed.unique()) < len(probed)


def _footer(
    full: pa.Schema, keys: pa.Array, table_name: str, known: pq.ParquetFile | None, key_filter: str | None
) -> dict[str, str]:
    """Return a base file's footer entries.

    Without `key_filter`, hashes `keys` into the filter of the older file `known`; takes the key bounds from `keys` and
    `known`.
    """
    if key_filter is None:
        key_filter = bloom.encode_filter(keys, None if known is None else files.known_filter(known.metadata))
    return {
        files.AVRO_KEY: schema.to_avro(full, table_name),
        files.SPARK_KEY: CALENDAR,
        files.BLOOM_TYPE_KEY: bloom.TYPE_CODE,
        files.BLOOM_KEY: key_filter,
        **_bounds(keys, known),
    }


def _bounds(keys: pa.Array, known: pq.ParquetFile | None) -> dict[str, str]:
    stored = None if known is None else files.key_range(known.metadata)
    if known is not None and stored is not None:
        keys = pa.concat_arrays([pa.array(stored), keys[known.metadata.num_rows :]])
    bounds = ends(keys)
    return {} if bounds is None else {files.MIN_KEY: bounds[0], files.MAX_KEY: bounds[1]}
