"""Codec of the log files of merge-on-read tables: a sequence of blocks with rows or deletes.

    "#HUDI#" | int64 size of what follows | int32 1 | int32 kind | header | int64 length, content | footer | int64 size
    rows      int32 3, int32 count, then for each row an int32 length and its Avro datum
    deletes   int32 3, int32 length, and one Avro datum: a list of keys with ordering values

All numbers are big-endian. The last number counts from the magic, and reveals a torn block.

Source: Hudi `HoodieLogFormatWriter`, `HoodieLogFileReader`, `BaseHoodieLogRecordReader`, `HoodieAvroDataBlock`,
`HoodieDeleteBlock`, `HoodieAvroUtils.wrapValueIntoAvro`; Avro 1.11 specification, "Binary Encoding".
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Context, Decimal
from enum import IntEnum
from functools import lru_cache
from io import BytesIO
from typing import Any

import fastavro
import pyarrow as pa
from pyarrow import types

from lockprovider.table.errors import Corrupt, InvalidRecords, UnsupportedSchema, UnsupportedTable, undamaged
from lockprovider.table.format.metadata import avro_schema, checked_schema
from lockprovider.table.format.schema import from_avro

MAGIC = b"#HUDI#"
_VERSION = 1
_SIZE = struct.Struct(">q")
_TWO = struct.Struct(">ii")
_COUNT = struct.Struct(">i")
_NO_FOOTER = _COUNT.pack(0)
_MOST_BYTES = (1 << 31) - 1  # The JVM reads an int.
_ROLLBACK = "0"


class BlockKind(IntEnum):
    """Kind of a log block."""

    COMMAND = 0
    DELETE = 1
    CORRUPT = 2
    AVRO = 3
    HFILE = 4
    PARQUET = 5
    CDC = 6


class Header(IntEnum):
    """Keys of a block's header."""

    INSTANT_TIME = 0
    TARGET_INSTANT_TIME = 1
    SCHEMA = 2
    COMMAND_BLOCK_TYPE = 3
    COMPACTED_BLOCK_TIMES = 4
    IS_PARTIAL = 7


@dataclass(frozen=True, slots=True)
class LogBlock:
    """`header` keeps its order and unknown entries."""

    kind: BlockKind
    header: Mapping[int, str]
    content: bytes = b""
    path: str = field(default="", compare=False)

    @property
    def instant(self) -> str:
        return self.header.get(Header.INSTANT_TIME, "")


def encode_blocks(blocks: Iterable[LogBlock]) -> bytes:
    return b"".join(map(_encode, blocks))


def _encode(block: LogBlock) -> bytes:
    """Block's bytes from its magic to its final size; raises `InvalidRecords` above 2^31 - 1 bytes."""
    parts = [_TWO.pack(_VERSION, block.kind), _COUNT.pack(len(block.header))]
    for key, text in block.header.items():
        value = text.encode()
        parts += (_TWO.pack(key, len(value)), value)
    parts += (_SIZE.pack(len(block.content)), block.content, _NO_FOOTER)
    body = b"".join(parts)
    size = len(body) + _SIZE.size
    _refuse_too_large(size)
    return b"".join((MAGIC, _SIZE.pack(size), body, _SIZE.pack(size + len(MAGIC))))


def _refuse_too_large(size: int) -> None:
    if size > _MOST_BYTES:
        raise InvalidRecords(
            f"a row or key takes {size} bytes in a log file, where {_MOST_BYTES} are the most that the JVM can read; "
            "store large values outside the table"
        )


def decode_blocks(data: bytes, file_name: str) -> tuple[LogBlock, ...]:
    """Decode the whole blocks of a log file, in order; skip torn blocks.

    Changed bytes in whole blocks are not detected. Raises `Corrupt` for a wrong beginning or malformed block,
    `UnsupportedTable` for an unknown one.
    """
    blocks: list[LogBlock] = []
    at, view = 0, memoryview(data)
    if data and not data.startswith(MAGIC[: len(data)]):
        raise Corrupt(f"log file {file_name!r} does not begin with {MAGIC!r}; restore the file")
    while at >= 0:
        end = _end_of(data, at)
        if end is None:
            at = data.find(MAGIC, at + 1)  # torn block
            continue
        blocks.append(_decode(view[at + len(MAGIC) + _SIZE.size : end - _SIZE.size], file_name))
        at = end if data.startswith(MAGIC, end) else data.find(MAGIC, end)
    return tuple(blocks)


def _end_of(data: bytes, at: int) -> int | None:
    """End of the block at `at`; None if torn: cut, or its two sizes differ."""
    start = at + len(MAGIC) + _SIZE.size
    if start > len(data):
        return None
    (size,) = _SIZE.unpack_from(data, at + len(MAGIC))
    end = start + int(size)
    if size < _SIZE.size or end > len(data):
        return None
    (again,) = _SIZE.unpack_from(data, end - _SIZE.size)
    return end if again == size + len(MAGIC) else None


def _decode(body: memoryview, file_name: str) -> LogBlock:
    """Decode the bytes between a block's sizes; raise `Corrupt` if malformed.

    `UnsupportedTable`: an unknown kind or version.
    """
    with undamaged(f"log file {file_name!r} has a block that cannot be understood"):
        version, kind = _TWO.unpack_from(body, 0)
        if version != _VERSION or kind not in BlockKind.__members__.values():
            raise UnsupportedTable(
                f"log file {file_name!r} has a block of kind {kind} and version {version}, which cannot be read here; "
                "compact the table with the engine that wrote it"
            )
        header, at = _header(body, _TWO.size)
        (length,) = _SIZE.unpack_from(body, at)
        at += _SIZE.size
        if length < 0 or at + length > len(body):
            raise ValueError("its length is wrong")
        return LogBlock(BlockKind(kind), header, bytes(body[at : at + length]), file_name)


def _header(body: memoryview, at: int) -> tuple[dict[int, str], int]:
    """Texts of the header at `at` by key, and its end offset; raises `struct.error` if cut."""
    (count,) = _COUNT.unpack_from(body, at)
    at += _COUNT.size
    header: dict[int, str] = {}
    for _ in range(count):
        key, length = _TWO.unpack_from(body, at)
        at += _TWO.size
        if not 0 <= length <= len(body) - at:
            raise struct.error(f"a header of {length} bytes")
        header[key] = str(body[at : at + length], "utf-8")
        at += length
    return header, at


def effective(blocks: Iterable[LogBlock]) -> tuple[LogBlock, ...]:
    """Valid blocks with rows or deletes, each instant's together; pass blocks in merge order.

    A rollback removes its target instant's earlier blocks; other commands raise `UnsupportedTable`. Log compactions
    replace their sources.
    """
    by_instant: dict[str, list[LogBlock]] = {}
    for block in blocks:
        if block.kind is BlockKind.COMMAND:
            if block.header.get(Header.COMMAND_BLOCK_TYPE) != _ROLLBACK:
                raise UnsupportedTable(f"a log file has the command {dict(block.header)}; compact it with its engine")
            by_instant.pop(block.header.get(Header.TARGET_INSTANT_TIME, ""), None)
        elif block.kind in (BlockKind.AVRO, BlockKind.PARQUET, BlockKind.HFILE, BlockKind.DELETE):
            by_instant.setdefault(block.instant, []).append(block)
    return _log_compacted(by_instant)


def _log_compacted(by_instant: Mapping[str, Sequence[LogBlock]]) -> tuple[LogBlock, ...]:
    """All instants' blocks in merge order.

    Log compactions replace their source instants, at the newest source's position.
    """
    order = list(by_instant)
    made_of: dict[str, str] = {}  # compaction by source instant
    for instant in reversed(order):
        times = by_instant[instant][0].header.get(Header.COMPACTED_BLOCK_TIMES, "")
        for source in filter(None, (part.strip() for part in times.split(","))):
            made_of[source] = made_of.get(instant, instant)
    newest = {into: source for source in order if (into := made_of.get(source)) is not None}
    result_at = {source: into for into, source in newest.items()}
    blocks: list[LogBlock] = []
    for instant in order:
        if instant in result_at:
            blocks += by_instant[result_at[instant]]
        elif instant not in made_of and instant not in newest:
            blocks += by_instant[instant]
    return tuple(blocks)


_CONTENT_VERSION = 3
_RECORDS = "HoodieDeleteRecordList"
_PACKAGE = "org.apache.hudi.avro.model."
_ARRAY = "ArrayWrapper"
_DECIMAL = "DecimalWrapper"
_DECIMAL_DIGITS, _DECIMAL_SCALE = 30, 15  # Hudi's for every column
_EXACT = Context(prec=2 * _DECIMAL_DIGITS)
_NO_VALUE: tuple[str, Any] = ("IntWrapper", 0)


def encode_avro(rows: pa.Table, schema_json: str) -> bytes:
    """Encode rows as an Avro block's content; columns have the names of the schema's fields.

    Raises `InvalidRecords` for a row of 2 GiB.
    """
    parsed, out = _parsed(schema_json), [_TWO.pack(_CONTENT_VERSION, rows.num_rows)]
    columns = [_plain(column) for column in rows.columns]
    names = rows.column_names
    for values in zip(*columns, strict=True):
        datum = BytesIO()
        fastavro.schemaless_writer(datum, parsed, dict(zip(names, values, strict=True)))
        _refuse_too_large(datum.tell())
        out += (_COUNT.pack(datum.tell()), datum.getvalue())
    return b"".join(out)


def decode_avro(content: bytes, schema_json: str, file_name: str) -> pa.Table:
    with undamaged(f"log file {file_name!r} has rows that do not fit their schema"):
        columns = from_avro(schema_json)
        rows = _data(content, _parsed(schema_json), file_name)
        return pa.table([pa.array([row[one.name] for row in rows], one.type) for one in columns], schema=columns)


def _data(content: bytes, parsed: Any, file_name: str) -> list[Mapping[str, Any]]:
    """Decode an Avro block's rows, by column; `parsed` is the schema.

    Raises `UnsupportedTable` for an unknown version, `ValueError` for a row of a wrong length.
    """
    version, count = _TWO.unpack_from(content, 0)
    if not 1 <= version <= _CONTENT_VERSION:
        raise UnsupportedTable(
            f"log file {file_name!r} has an Avro block of version {version}, only 1 to {_CONTENT_VERSION} are known; "
            "compact the table with the engine that wrote it"
        )
    rows: list[Any] = []
    at, source = _TWO.size, BytesIO(content)
    for _ in range(count):
        (length,) = _COUNT.unpack_from(content, at)
        at += _COUNT.size
        source.seek(at)
        rows.append(fastavro.schemaless_reader(source, parsed, None))
        at += length
        if source.tell() != at:
            raise ValueError(f"a row of {length} bytes is of another size")
    return rows


@lru_cache(maxsize=256)
def _parsed(schema_json: str) -> Any:
    return fastavro.parse_schema(_as_stored(checked_schema(schema_json)))


def _as_stored(avro: Any) -> Any:
    """Copy an Avro schema without logical types, at any depth, except decimals."""
    if isinstance(avro, list):
        return [_as_stored(part) for part in avro]
    if not isinstance(avro, dict):
        return avro
    kept = {key: value for key, value in avro.items() if key != "logicalType" or value == "decimal"}
    inner = {key: _as_stored(kept[key]) for key in ("type", "items", "values", "fields") if key in kept}
    return {**kept, **inner}


def _plain(column: pa.ChunkedArray) -> list[Any]:
    stored = column.cast(stored_kind(column.type))
    give, values = _giver(stored.type), stored.to_pylist()
    return values if give is None else [None if v is None else give(v) for v in values]


def _giver(kind: pa.DataType) -> Callable[[Any], Any] | None:
    """Function that turns a column's Python value, not None, into its Avro value; None: stored as is."""
    if types.is_timestamp(kind) or types.is_date(kind):
        return lambda value: pa.scalar(value, kind).cast(stored_kind(kind)).as_py()
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


@dataclass(frozen=True, slots=True)
class LogDelete:
    """Deletion of one key; without ordering `values` it wins over all earlier rows.

    These are stored values of the types `wrappers`: dates in days, timestamps in the column's unit, decimals as bytes.
    """

    key: str
    partition: str
    values: tuple[Any, ...] = ()
    wrappers: tuple[str, ...] = ()


def wrapper_of(kind: pa.DataType) -> str:
    """Avro wrapper that all readers accept for an ordering value of this type in a delete.

    Raises `UnsupportedSchema` without one.
    """
    for fits, name in _WRAPPERS:
        if fits(kind):
            return name
    raise UnsupportedSchema(
        f"an ordering column of type {kind} cannot order deletes in log files; use a number or text, of decimals one "
        f"of {_DECIMAL_DIGITS - _DECIMAL_SCALE} digits at most on either side of the point"
    )


_WRAPPERS = (
    (lambda kind: types.is_int32(kind) or types.is_date32(kind), "IntWrapper"),
    (lambda kind: types.is_int64(kind) or types.is_timestamp(kind), "LongWrapper"),
    (types.is_float32, "FloatWrapper"),
    (types.is_float64, "DoubleWrapper"),
    (types.is_string, "StringWrapper"),
    (types.is_boolean, "BooleanWrapper"),
    (lambda kind: types.is_decimal(kind) and kind.scale <= _DECIMAL_SCALE >= kind.precision - kind.scale, _DECIMAL),
)
_READ_AS = {  # alike in hudi-rs, or widened
    **{name: {name} for _, name in _WRAPPERS},
    "IntWrapper": {"IntWrapper", "DateWrapper", "LocalDateWrapper"},
    "LongWrapper": {"LongWrapper", "TimestampMicrosWrapper", "IntWrapper"},
    "DoubleWrapper": {"DoubleWrapper", "FloatWrapper", "IntWrapper"},
}


def encode_deletes(keys: Sequence[str], partition: str, values: Sequence[Any] | None, wrapper: str = "") -> bytes:
    """Encode a delete block's content: `keys` with ordering `values`, in Avro's type `wrapper`.

    Without `values` they win over all earlier rows. Raises `InvalidRecords` from 2 GiB on.
    """
    name, ordering_values = (wrapper, values) if values is not None else (_NO_VALUE[0], [_NO_VALUE[1]] * len(keys))
    wrapped = _PACKAGE + name
    if name == _DECIMAL:
        ordering_values = [_decimal_bytes(value) for value in ordering_values]
    records = [
        {"recordKey": key, "partitionPath": partition, "orderingVal": (wrapped, {"value": value})}
        for key, value in zip(keys, ordering_values, strict=True)
    ]
    datum = BytesIO()
    fastavro.schemaless_writer(datum, avro_schema(_RECORDS), {"deleteRecordList": records})
    _refuse_too_large(datum.tell())
    return _TWO.pack(_CONTENT_VERSION, datum.tell()) + datum.getvalue()


def _decimal_bytes(value: Decimal) -> bytes:
    unscaled = int(value.scaleb(_DECIMAL_SCALE, _EXACT))
    return unscaled.to_bytes((unscaled if unscaled >= 0 else ~unscaled).bit_length() // 8 + 1, "big", signed=True)


def decode_deletes(content: bytes, file_name: str) -> tuple[LogDelete, ...]:
    """Decode a delete block, in order; raise `Corrupt` if damaged, `UnsupportedTable` if of an unknown version."""
    with undamaged(f"log file {file_name!r} has a delete block that cannot be read"):
        version, length = _TWO.unpack_from(content, 0)
        if version != _CONTENT_VERSION:
            raise UnsupportedTable(
                f"log file {file_name!r} has a delete block of version {version}, only {_CONTENT_VERSION} is known; "
                "compact the table with the engine that wrote it"
            )
        datum = BytesIO(content[_TWO.size : _TWO.size + length])
        record: Any = fastavro.schemaless_reader(datum, avro_schema(_RECORDS), None, return_record_name=True)
        return tuple(_delete(entry) for entry in record["deleteRecordList"])


def _delete(record: Any) -> LogDelete:
    """Convert a decoded Avro delete; without an ordering value, or with int 0 in all columns, it has no values."""
    name, ordering = record["orderingVal"] or ("", None)
    name = name.removeprefix(_PACKAGE)
    pairs = [_NO_VALUE if ordering is None else (name, ordering["value"])] if name != _ARRAY else _unwrapped(ordering)
    if all((kind, value) == _NO_VALUE for kind, value in pairs):
        return LogDelete(record["recordKey"], record["partitionPath"] or "")
    kinds, values = (tuple(part) for part in zip(*pairs, strict=True))
    return LogDelete(record["recordKey"], record["partitionPath"] or "", values, kinds)


def _unwrapped(array: Any) -> list[tuple[str, Any]]:
    return [
        ("", None) if wrapped is None else (wrapped[0].removeprefix(_PACKAGE), wrapped[1]["value"])
        for wrapped in array["wrappedValues"] or ()
    ]


def ordering_values(deletes: Iterable[LogDelete], columns: Sequence[pa.Field], file_name: str) -> list[pa.Array]:
    """Array of ordering values for each column, only of deletes with values.

    Raises `Corrupt` for a value of another type, `UnsupportedSchema` for a column that cannot order deletes.
    """
    valued = [delete for delete in deletes if delete.values]
    expected = [wrapper_of(column.type) for column in columns] if valued else []
    ordered_by = ", ".join(f"{column.name} of type {column.type}" for column in columns)
    for delete in valued:
        pairs = zip(delete.wrappers, expected, strict=False)
        if len(expected) != len(delete.wrappers) or not all(stored in _READ_AS[wanted] for stored, wanted in pairs):
            raise Corrupt(
                f"log file {file_name!r} deletes key {delete.key!r} with an ordering value of type "
                f"{', '.join(delete.wrappers)}, and the table is ordered by {ordered_by or 'nothing'}; "
                "no reader can compare them: take the file from a backup, or roll its commit back"
            )
    values = ([delete.values[number] for delete in valued] for number in range(len(columns)))
    return [_column(stored, column.type) for stored, column in zip(values, columns, strict=True)]


def _column(values: Sequence[Any], kind: pa.DataType) -> pa.Array:
    if types.is_decimal(kind):
        numbers = (Decimal(int.from_bytes(data, "big", signed=True)) for data in values)
        scaled = [number.scaleb(-_DECIMAL_SCALE, _EXACT) for number in numbers]
        return pa.array(scaled, pa.decimal128(38, _DECIMAL_SCALE)).cast(kind)
    return pa.array(values, stored_kind(kind)).cast(kind)


def stored_kind(kind: pa.DataType) -> pa.DataType:
    if types.is_timestamp(kind):
        return pa.int64()
    return pa.int32() if types.is_date32(kind) else kind
