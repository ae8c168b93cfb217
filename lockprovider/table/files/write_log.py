"""Writer of log files: encode one instant's changes of one file group, first rows, then deletes.

Source: Hudi `HoodieAppendHandle`.
"""

from __future__ import annotations

from collections.abc import Iterator
from io import BytesIO

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyarrow import types

from lockprovider.table.errors import InvalidRecords
from lockprovider.table.files.base_file import AVRO_KEY, SPARK_KEY, array_of
from lockprovider.table.files.merge_log import MergeRule
from lockprovider.table.files.write_base_file import CALENDAR, COMPRESSION, PAGES, constant, fresh, repetitive
from lockprovider.table.format.layout import LogFile, join, parse_log_file
from lockprovider.table.format.log_block import (
    BlockKind,
    Header,
    LogBlock,
    encode_avro,
    encode_blocks,
    encode_deletes,
    stored_kind,
    wrapper_of,
)
from lockprovider.table.format.metadata import WriteStat
from lockprovider.table.format.properties import TableConfig
from lockprovider.table.format.schema import META_COLUMNS, RECORD_KEY, to_avro, with_meta

PARQUET_ROWS = 1000  # From here on Parquet is smaller and quicker than Avro.
_BLOCK_BYTES = 256 << 20  # as in JVM writers; a block may not have 2 GiB


def encode_log(
    config: TableConfig,
    file: LogFile,
    partition: str,
    changes: tuple[pa.Table, pa.Array, pa.Table],
) -> tuple[WriteStat, bytes]:
    """Encode a log file and return its statistics and bytes.

    `changes`: rows, their unique keys, and deletes in the form that `rows_of_keys` returns. A delete carries its row's
    ordering value, lest a late row restore the base row. Raises `InvalidRecords` as `refuse_unordered`, or for a file
    name that the JVM does not accept.
    """
    rows, keys, deletes = changes
    refuse_unordered(config, rows)
    if parse_log_file(file.name) != file:
        raise InvalidRecords(f"{file.name!r} is no name of a log file to the JVM: write tokens are of digits")
    text = to_avro(with_meta(rows.schema), config.name)
    header: dict[int, str] = {Header.SCHEMA: text, Header.INSTANT_TIME: file.begin}
    full = _with_own(rows, keys, partition, file)
    blocks = [LogBlock(kind, header, content) for kind, content in _contents(full, text)]
    blocks += [LogBlock(BlockKind.DELETE, header, content) for content in _deletes(config, deletes, partition)]
    data = encode_blocks(blocks)
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
    """Raise `InvalidRecords` for a null ordering value in a merge-on-read table: JVM readers fail at it."""
    for name in MergeRule.of(config).ordering if config.is_merge_on_read else ():
        if count := rows.column(name).null_count:
            raise InvalidRecords(
                f"ordering column {name!r} is null in {count} rows: in a merge-on-read table readers of the JVM's fail "
                "at such a row as soon as there is another version of it; give each row a value"
            )


def values_of_deletes(config: TableConfig, deletes: pa.Table) -> pa.Array:
    """Return the deletes' ordering values; raise `InvalidRecords` for null or an int 0, which count as none.

    The table must have an ordering field.
    """
    refuse_unordered(config, deletes)
    values = array_of(deletes.column(config.ordering_field))
    if wrapper_of(values.type) == "IntWrapper" and pc.any(pc.equal(values.cast(pa.int32()), 0)).as_py():
        raise InvalidRecords(
            f"a delete has 0 in the ordering column {config.ordering_field!r}, which Hudi takes for no value: it would "
            "win over every row, and a row after it could bring back what was deleted; give it another value"
        )
    return values


def _with_own(rows: pa.Table, keys: pa.Array, partition: str, file: LogFile) -> pa.Table:
    """Add Hudi's meta columns; a log has the file group's id as the file name."""
    count = rows.num_rows
    begin, numbers, *columns = fresh(rows, file, np.arange(count)).columns
    own = [begin, numbers, keys, constant(partition, count), constant(file.file_id, count)]
    fields = [pa.field(name, column.type) for name, column in zip(META_COLUMNS, own, strict=True)]
    return pa.table([*own, *columns], schema=pa.schema([*fields, *rows.schema]))


def _contents(full: pa.Table, text: str) -> Iterator[tuple[BlockKind, bytes]]:
    """Yield kind and bytes of blocks of rows: Avro for few rows without nested timestamps, else Parquet.

    No rows: yields nothing.
    """
    size = -(-full.num_rows // max(1, -(-full.nbytes // _BLOCK_BYTES)))
    for start in range(0, full.num_rows, max(1, size)):
        part = full[start : start + size]
        if full.num_rows < PARQUET_ROWS and not any(_has_times_inside(column.type) for column in full.schema):
            yield BlockKind.AVRO, encode_avro(part, text)
        else:
            yield BlockKind.PARQUET, _parquet(part, text)


def _has_times_inside(kind: pa.DataType) -> bool:
    """Return whether timestamps are nested, which hudi-rs 0.5 cannot read from Avro blocks."""
    inner = [kind.field(number).type for number in range(kind.num_fields)]
    return any(types.is_timestamp(inner_type) or _has_times_inside(inner_type) for inner_type in inner)


def _parquet(rows: pa.Table, text: str) -> bytes:
    """Encode rows as Parquet without statistics; the footer has the Avro schema `text`."""
    out = BytesIO()
    settings = {"compression": COMPRESSION, "use_dictionary": repetitive(rows), **PAGES}
    settings["write_statistics"] = False  # Readers read whole blocks.
    with pq.ParquetWriter(out, rows.schema, **settings) as writer:
        writer.write_table(rows)
        writer.add_key_value_metadata({AVRO_KEY: text, SPARK_KEY: CALENDAR})
    return out.getvalue()


def _deletes(config: TableConfig, rows: pa.Table, partition: str) -> Iterator[bytes]:
    """Yield deletes with and without ordering values as two blocks; readers fail at a mixed block."""
    keys = array_of(rows.column(RECORD_KEY))
    name = config.ordering_field if MergeRule.of(config).ordering else None
    values = pa.nulls(len(keys)) if name is None else array_of(rows.column(name))
    typed = pc.is_valid(values)
    for part, stored in ((keys.filter(typed), values.filter(typed)), (keys.filter(pc.invert(typed)), None)):
        if len(part):
            ordering_values = None if stored is None else stored.cast(stored_kind(stored.type)).to_pylist()
            yield encode_deletes(
                part.to_pylist(), partition, ordering_values, "" if stored is None else wrapper_of(values.type)
            )
