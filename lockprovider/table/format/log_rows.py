"""Rows in a log file's Avro block: int32 3, int32 count, then for each row an int32 length and its datum.

Promised: rows come back as they were given. A datum at a time passes through Python; Parquet blocks, which are files of
their own, do not.

Source: Hudi `HoodieAvroDataBlock`; Avro 1.11 specification, "Binary Encoding".
"""

from __future__ import annotations

import json
import struct
from collections.abc import Callable, Mapping
from functools import lru_cache
from io import BytesIO
from typing import Any

import fastavro
import pyarrow as pa
from pyarrow import types

from lockprovider.table.errors import Corrupt, UnsupportedTable
from lockprovider.table.format import schema

_VERSION = 3
_HEAD = struct.Struct(">ii")
_LENGTH = struct.Struct(">i")
_TIMES = frozenset({"date", "timestamp-micros", "timestamp-millis", "local-timestamp-micros", "local-timestamp-millis"})


def encode_avro(rows: pa.Table, schema_json: str) -> bytes:
    """The content of an Avro block with these rows; their columns are those of the schema, in its order."""
    parsed, out = _parsed(schema_json), [_HEAD.pack(_VERSION, rows.num_rows)]
    columns = [_plain(column) for column in rows.columns]
    names = rows.column_names
    for values in zip(*columns, strict=True):
        datum = BytesIO()
        fastavro.schemaless_writer(datum, parsed, dict(zip(names, values, strict=True)))
        out += (_LENGTH.pack(datum.tell()), datum.getvalue())
    return b"".join(out)


def decode_avro(content: bytes, schema_json: str, file_name: str) -> pa.Table:
    """The rows of an Avro block; their columns are those of the schema, in its order.

    Raises:
        Corrupt: the content does not fit the schema; the message names the file.
        UnsupportedTable: it is of a version that is not known here.
        UnsupportedSchema: a column has a type that is not supported.
    """
    columns = schema.from_avro(schema_json)
    try:
        rows = _data(content, _parsed(schema_json), file_name)
        return pa.table([pa.array([row[one.name] for row in rows], one.type) for one in columns], schema=columns)
    except (struct.error, EOFError, ValueError, IndexError, KeyError, TypeError, pa.ArrowException) as error:
        raise Corrupt(f"log file {file_name!r} has rows that do not fit their schema ({error}); restore it") from error


def _data(content: bytes, parsed: Any, file_name: str) -> list[Mapping[str, Any]]:
    version, count = _HEAD.unpack_from(content, 0)
    if not 1 <= version <= _VERSION:
        raise UnsupportedTable(
            f"log file {file_name!r} has an Avro block of version {version}, only 1 to {_VERSION} are known; "
            "compact the table with the engine that wrote it"
        )
    found: list[Any] = []
    at, source = _HEAD.size, BytesIO(content)
    for _ in range(count):
        (length,) = _LENGTH.unpack_from(content, at)
        at += _LENGTH.size
        source.seek(at)
        found.append(fastavro.schemaless_reader(source, parsed, None))
        at += length
        if source.tell() != at:
            raise Corrupt(f"log file {file_name!r} has a row of {length} bytes that is of another size; restore it")
    return found


@lru_cache(maxsize=256)
def _parsed(schema_json: str) -> Any:
    """The schema with times as plain numbers: as which Arrow takes them, beyond the years that Python knows, too."""
    return fastavro.parse_schema(_without_times(json.loads(schema_json)))


def _without_times(avro: Any) -> Any:
    if isinstance(avro, list):
        return [_without_times(one) for one in avro]
    if not isinstance(avro, dict):
        return avro
    kept = {key: value for key, value in avro.items() if not (key == "logicalType" and value in _TIMES)}
    inner = {key: _without_times(kept[key]) for key in ("type", "items", "values", "fields") if key in kept}
    return {**kept, **inner}


def _plain(column: pa.ChunkedArray) -> list[Any]:
    """A column's values as Avro takes them: times as numbers, maps as dictionaries."""
    give = _giver(column.type)
    values = (column.cast(_number(column.type)) if types.is_temporal(column.type) else column).to_pylist()
    return (
        values if give is None or types.is_temporal(column.type) else [None if v is None else give(v) for v in values]
    )


def _number(kind: pa.DataType) -> pa.DataType:
    return pa.int32() if types.is_date32(kind) else pa.int64()


def _giver(kind: pa.DataType) -> Callable[[Any], Any] | None:
    """What a value that is not null has to pass through; None if it may stay as it is."""
    if types.is_timestamp(kind) or types.is_date(kind):
        return lambda value: pa.scalar(value, kind).cast(_number(kind)).as_py()
    if types.is_map(kind):
        item = _optional(_giver(kind.item_type))
        return lambda pairs: {key: item(value) for key, value in pairs}
    if types.is_list(kind):
        inner = _giver(kind.value_type)
        return None if inner is None else lambda values: [_optional(inner)(value) for value in values]
    if types.is_struct(kind):
        fields = {kind.field(i).name: _optional(_giver(kind.field(i).type)) for i in range(kind.num_fields)}
        return lambda value: {name: give(value[name]) for name, give in fields.items()}
    return None


def _optional(give: Callable[[Any], Any] | None) -> Callable[[Any], Any]:
    return lambda value: value if give is None or value is None else give(value)
