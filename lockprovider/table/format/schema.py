"""Schemas: Hudi's meta columns, and column types in Arrow and Avro.

Source: Avro 1.11 specification, "Logical Types"; Hudi `AvroConversionUtils`, Spark `SchemaConverters` for nested
records and decimals.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Any

import pyarrow as pa
from pyarrow import types

from lockprovider.bounded import DEEPEST_SCHEMA, LARGEST_OBJECT, parse_object
from lockprovider.table.errors import UnsupportedSchema, undamaged

META_COLUMNS = (
    "_hoodie_commit_time",
    "_hoodie_commit_seqno",
    "_hoodie_record_key",
    "_hoodie_partition_path",
    "_hoodie_file_name",
)
COMMIT_TIME, COMMIT_SEQNO, RECORD_KEY, PARTITION_PATH, FILE_NAME = META_COLUMNS
# of Flink's change logs; `D` and `-U` mark deleted rows
FLINK_OPERATION = "_hoodie_operation"
IS_DELETED = "_hoodie_is_deleted"  # of the user's; true in a deleted row

_UTC_US = pa.timestamp("us", "UTC")
_LOCAL_US = pa.timestamp("us")


def with_meta(schema: pa.Schema) -> pa.Schema:
    return pa.schema([*(pa.field(name, pa.string()) for name in META_COLUMNS), *without_meta(schema)])


def without_meta(schema: pa.Schema) -> pa.Schema:
    return pa.schema([column for column in schema if column.name not in META_COLUMNS])


def has_deletes(columns: pa.Schema) -> bool:
    return IS_DELETED in columns.names and bool(types.is_boolean(columns.field(IS_DELETED).type))


def present(names: Iterable[str], among: Collection[str]) -> list[str]:
    available = frozenset(among)
    return [name for name in names if name in available]


def absent(names: Iterable[str], among: Collection[str]) -> list[str]:
    available = frozenset(among)
    return [name for name in names if name not in available]


def refuse_timestamp_partitions(table: str, schema: pa.Schema, fields: Sequence[str]) -> None:
    for name in present(fields, schema.names):
        if types.is_timestamp(schema.field(name).type):
            raise UnsupportedSchema(
                f"table {table!r} is partitioned by {name!r}, a {schema.field(name).type}: JVM Hudi reads the column "
                "as NULL, finds nothing by it, and its updates erase it; partition by a date or a text made of it"
            )


def refuse_nested_ordering(field: str, kind: pa.DataType) -> None:
    if types.is_nested(kind):
        raise UnsupportedSchema(f"ordering column {field!r} of type {kind} cannot be compared; choose another")


def refuse_keys_without_text(table: str, schema: pa.Schema, fields: Sequence[str]) -> None:
    """Raise `UnsupportedSchema` if one of `fields`, unless absent, is a float, bytes or nested."""
    for name in present(fields, schema.names):
        kind = schema.field(name).type
        if not has_key_text(kind):
            raise UnsupportedSchema(
                f"table {table!r}: column {name!r} of type {kind} cannot be a key or partition; cast it to an integer "
                "or a string"
            )


def has_key_text(kind: pa.DataType) -> bool:
    """Whether this type can be a key or partition.

    Hudi's engines write floats, bytes and nested values as different texts.
    """
    return not (
        types.is_floating(kind) or types.is_nested(kind) or types.is_binary(kind) or types.is_large_binary(kind)
    )


_PLAIN: Mapping[Any, Any] = {
    pa.bool_(): "boolean", pa.int32(): "int", pa.int64(): "long", pa.float32(): "float", pa.float64(): "double",
    pa.string(): "string", pa.binary(): "bytes",
    pa.date32(): {"type": "int", "logicalType": "date"},
    _UTC_US: {"type": "long", "logicalType": "timestamp-micros"},
    _LOCAL_US: {"type": "long", "logicalType": "local-timestamp-micros"},
}  # fmt: skip


@lru_cache(maxsize=64)
def to_avro(schema: pa.Schema, name: str) -> str:
    """Raise `UnsupportedSchema` if the schema is not canonical."""
    safe = re.sub(r"[^A-Za-z0-9_]", "_", name)
    record = _record(list(schema), f"{safe}_record", f"hoodie.{safe}")
    return json.dumps(record, separators=(",", ":"))


def _record(columns: list[pa.Field], name: str, namespace: str) -> dict[str, Any]:
    """Avro record of these columns as JSON data, its nested types in or below namespace `namespace.name`.

    Raises `UnsupportedSchema` for a type that is not canonical.
    """
    inside = f"{namespace}.{name}"
    return {
        "type": "record",
        "name": name,
        "namespace": namespace,
        "fields": [_avro_field(column, inside) for column in columns],
    }


def _avro_field(column: pa.Field, namespace: str) -> dict[str, Any]:
    default = {"default": None} if column.nullable else {}
    return {"name": column.name, "type": _optional(column, column.name, namespace), **default}


def _avro_type(kind: pa.DataType, name: str, namespace: str) -> Any:
    """Avro type of column `name`'s non-null values as JSON data, named types below `namespace`.

    Raises `UnsupportedSchema` for a type that is not canonical.
    """
    if kind in _PLAIN:
        return _PLAIN[kind]
    if types.is_decimal128(kind):
        return {
            "type": "fixed",
            "name": "fixed",
            "namespace": f"{namespace}.{name}",
            "size": ((10**kind.precision - 1).bit_length() + 8) // 8,  # one bit for the sign
            "logicalType": "decimal",
            "precision": kind.precision,
            "scale": kind.scale,
        }
    if types.is_struct(kind):
        return _record([kind.field(index) for index in range(kind.num_fields)], name, namespace)
    if types.is_map(kind):
        return {"type": "map", "values": _optional(kind.item_field, name, namespace)}
    if types.is_list(kind):
        return {"type": "array", "items": _optional(kind.value_field, name, namespace)}
    raise UnsupportedSchema(f"column {name!r} has type {kind}, which cannot be stored")


def _optional(inner: pa.Field, name: str, namespace: str) -> Any:
    kind = _avro_type(inner.type, name, namespace)
    return ["null", kind] if inner.nullable else kind


_PRIMITIVES: Mapping[str, pa.DataType] = {
    "boolean": pa.bool_(), "int": pa.int32(), "long": pa.int64(), "float": pa.float32(), "double": pa.float64(),
    "string": pa.string(), "bytes": pa.binary(), "enum": pa.string(), "fixed": pa.binary(),
}  # fmt: skip
_LOGICAL: Mapping[tuple[str, str], pa.DataType] = {
    ("int", "date"): pa.date32(),
    ("long", "timestamp-micros"): _UTC_US,
    ("long", "timestamp-millis"): pa.timestamp("ms", "UTC"),
    ("long", "local-timestamp-micros"): _LOCAL_US,
    ("long", "local-timestamp-millis"): pa.timestamp("ms"),
}


@lru_cache(maxsize=64)
def from_avro(text: str) -> pa.Schema:
    """Convert an Avro record in JSON to an Arrow schema.

    Raises `Corrupt` if damaged, `UnsupportedSchema` for an unreadable type.
    """
    with undamaged(f"the table schema is no Avro record: {text[:80]!r}"):
        record, named = parsed(text.encode()), dict[str, Any]()
        if record["type"] != "record":
            raise ValueError(f"it is an Avro {record['type']}")
        return pa.schema(
            [_arrow_field(field["name"], field["type"], field["name"], named) for field in record["fields"]]
        )


def stated_columns(text: str) -> pa.Schema:
    return without_meta(from_avro(text))


def _arrow_field(name: str, avro: Any, path: str, named: dict[str, Any]) -> pa.Field:
    """Convert an Avro field of type `avro`, nullable by a union, and add its named types to `named`.

    Raises `UnsupportedSchema`, with `path`, for an unreadable type or union of several types.
    """
    if not isinstance(avro, list):
        return pa.field(name, _arrow_type(avro, path, named), nullable=False)
    options = [option for option in avro if option != "null"]
    if len(options) != 1:
        raise UnsupportedSchema(
            f"column {path!r} is a union of {len(options)} types; only null and one type can be read"
        )
    return pa.field(name, _arrow_type(options[0], path, named), nullable=len(options) < len(avro))


def _arrow_type(avro: Any, path: str, named: dict[str, Any]) -> pa.DataType:
    """Return an Avro type's Arrow type and add its definitions to `named`, which resolves names.

    Raises `UnsupportedSchema`, with `path`, for others.
    """
    if isinstance(avro, str):
        avro = named.get(avro, {"type": avro})
    if isinstance(avro["type"], dict):
        return _arrow_type(avro["type"], path, named)
    if "name" in avro:
        named[avro["name"]] = named[f"{avro.get('namespace', '')}.{avro['name']}"] = avro
    kind, logical = avro["type"], avro.get("logicalType", "")
    if logical == "decimal":
        return pa.decimal128(avro["precision"], avro.get("scale", 0))
    if logical.startswith("time-"):
        raise UnsupportedSchema(f"column {path!r} has Avro type {logical}, which cannot be read")
    return _LOGICAL.get((kind, logical)) or _PRIMITIVES.get(kind) or _arrow_nested(avro, path, named)


def _arrow_nested(avro: Mapping[str, Any], path: str, named: dict[str, Any]) -> pa.DataType:
    """Convert an Avro record, array or map, and add named types inside to `named`.

    Raises `UnsupportedSchema`, with `path`, for other types.
    """
    match avro["type"]:
        case "record":
            return pa.struct(
                [
                    _arrow_field(field["name"], field["type"], f"{path}.{field['name']}", named)
                    for field in avro["fields"]
                ]
            )
        case "array":
            return pa.list_(_arrow_field("element", avro["items"], f"{path}.element", named))
        case "map":
            value = _arrow_field("value", avro["values"], f"{path}.value", named)
            return pa.map_(pa.string(), value)
        case other:
            raise UnsupportedSchema(f"column {path!r} has Avro type {other!r}, which cannot be read")


def parsed(data: bytes) -> dict[str, Any]:
    return parse_object(data, most=LARGEST_OBJECT, deepest=DEEPEST_SCHEMA)
