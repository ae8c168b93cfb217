"""Column types: Arrow on this side, Avro in the table's metadata.

Promised: what `canonical` returns can be stored and is read back with the same types here, by hudi-rs and by the JVM;
but hudi-rs 0.5 cannot open a table that has timestamps without a time zone. NOT promised: unsigned 64-bit integers,
times of day, durations, decimals of more than 38 digits; they are refused.

Source: Avro 1.11 specification, "Logical Types"; Hudi `AvroConversionUtils`, Spark `SchemaConverters` for the names
of nested records and the sizes of decimals.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

import pyarrow as pa
from pyarrow import types

from lockprovider.table.errors import Corrupt, UnsupportedSchema

META_COLUMNS = (
    "_hoodie_commit_time",
    "_hoodie_commit_seqno",
    "_hoodie_record_key",
    "_hoodie_partition_path",
    "_hoodie_file_name",
)
COMMIT_TIME, COMMIT_SEQNO, RECORD_KEY, PARTITION_PATH, FILE_NAME = META_COLUMNS

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*", re.ASCII)
_MAX_DIGITS = 38
_UTC_US = pa.timestamp("us", "UTC")
_LOCAL_US = pa.timestamp("us")


def with_meta(schema: pa.Schema) -> pa.Schema:
    """The schema of a base file: Hudi's five columns first."""
    return pa.schema([*(pa.field(name, pa.string()) for name in META_COLUMNS), *without_meta(schema)])


def without_meta(schema: pa.Schema) -> pa.Schema:
    """The schema of the user's columns."""
    return pa.schema([column for column in schema if column.name not in META_COLUMNS])


# --- what can be stored ---------------------------------------------------------------------------------------------


def refuse_timestamp_partitions(table: str, schema: pa.Schema, fields: Sequence[str]) -> None:
    """Refuse a timestamp as a partition column: JVM Hudi reads its values as NULL, and an update there erases them.

    Raises:
        UnsupportedSchema: naming the column, and what to use in its place.
    """
    for name in fields:
        if name in schema.names and types.is_timestamp(schema.field(name).type):
            raise UnsupportedSchema(
                f"table {table!r} is partitioned by {name!r}, a {schema.field(name).type}: JVM Hudi reads the column "
                "as NULL, finds nothing by it, and its updates erase it; partition by a date or a text made of it"
            )


def canonical(schema: pa.Schema, known: pa.Schema | None = None) -> pa.Schema:
    """The schema as it will be stored: all columns nullable, each type widened to one of those in use.

    A column of nothing but nulls has no type of its own and takes that of `known`, the table's schema.

    Raises:
        UnsupportedSchema: naming the column, its type and what to cast to.
    """
    _check_names(schema.names)
    return pa.schema([pa.field(column.name, _column_type(column, known)) for column in schema])


def _check_names(names: list[str]) -> None:
    seen: dict[str, str] = {}
    for name in names:
        if name in META_COLUMNS or not _NAME.fullmatch(name):
            raise UnsupportedSchema(f"column name {name!r} cannot be used; rename it to letters, digits and _")
        if name.lower() in seen:
            raise UnsupportedSchema(f"columns {seen[name.lower()]!r} and {name!r} are one to SQL engines; rename one")
        seen[name.lower()] = name


def _column_type(column: pa.Field, known: pa.Schema | None) -> pa.DataType:
    if types.is_null(column.type) and known is not None and column.name in known.names:
        return known.field(column.name).type
    return _stored(column.type, column.name)


_WIDENED = {
    pa.int8(): pa.int32(), pa.int16(): pa.int32(), pa.uint8(): pa.int32(), pa.uint16(): pa.int32(),
    pa.uint32(): pa.int64(), pa.float16(): pa.float32(), pa.date64(): pa.date32(),
    pa.large_string(): pa.string(), pa.string_view(): pa.string(),
    pa.large_binary(): pa.binary(), pa.binary_view(): pa.binary(),
    **{same: same for same in (pa.bool_(), pa.int32(), pa.int64(), pa.float32(), pa.float64(), pa.string())},
    pa.binary(): pa.binary(), pa.date32(): pa.date32(),
}  # fmt: skip


def _stored(kind: pa.DataType, path: str) -> pa.DataType:
    if kind in _WIDENED:
        return _WIDENED[kind]
    if types.is_timestamp(kind):
        return _UTC_US if kind.tz else _LOCAL_US
    if types.is_decimal(kind) and kind.precision <= _MAX_DIGITS and 0 <= kind.scale <= kind.precision:
        return pa.decimal128(kind.precision, kind.scale)
    if types.is_dictionary(kind) or types.is_run_end_encoded(kind):
        return _stored(kind.value_type, path)
    if types.is_fixed_size_binary(kind):
        return pa.binary()
    return _stored_nested(kind, path)


def _stored_nested(kind: pa.DataType, path: str) -> pa.DataType:
    if types.is_map(kind) and _WIDENED.get(kind.key_type) == pa.string():
        return pa.map_(pa.string(), _stored(kind.item_type, f"{path}.value"))
    if _is_list(kind):
        return pa.list_(pa.field("element", _stored(kind.value_type, f"{path}.element")))
    if types.is_struct(kind) and kind.num_fields:
        inner = [kind.field(index) for index in range(kind.num_fields)]
        _check_names([child.name for child in inner])
        return pa.struct([pa.field(child.name, _stored(child.type, f"{path}.{child.name}")) for child in inner])
    raise UnsupportedSchema(f"column {path!r} has type {kind}, which cannot be stored; {_advice(kind)}")


def _is_list(kind: pa.DataType) -> bool:
    return bool(
        types.is_list(kind)
        or types.is_large_list(kind)
        or types.is_fixed_size_list(kind)
        or types.is_list_view(kind)
        or types.is_large_list_view(kind)
    )


def _advice(kind: pa.DataType) -> str:
    if types.is_null(kind):
        return "cast it to the type it is going to have"
    if types.is_uint64(kind):
        return "cast it to int64 or decimal128(20, 0)"
    if types.is_decimal(kind):
        return "cast it to a decimal128 of at most 38 digits and a scale within them"
    if types.is_duration(kind) or types.is_time(kind):
        return "cast it to int64 (and say the unit in the name)"
    if types.is_map(kind):
        return "cast its keys to string"
    return "cast it to string or binary"


def evolve(old: pa.Schema, new: pa.Schema) -> pa.Schema:
    """The table's schema after rows of schema `new` (both canonical): columns of `old`, then those added.

    A narrower number is welcome in a wider column (int32 in int64, float in double): the column keeps its type.

    Raises:
        UnsupportedSchema: a column of the table is missing or has another type.
    """
    for column in old:
        if column.name not in new.names:
            raise UnsupportedSchema(f"column {column.name!r} of the table is missing; add it, with nulls if need be")
        found = new.field(column.name).type
        if found != column.type and (found, column.type) not in _FITS:
            raise UnsupportedSchema(f"column {column.name!r} is {column.type} in the table, not {found}; cast it")
    return pa.schema([*old, *(column for column in new if column.name not in old.names)])


def with_columns(old: pa.Schema, added: pa.Schema) -> pa.Schema:
    """The table's schema with these columns, as they will be stored, after its own; those that are there stay.

    Raises:
        UnsupportedSchema: a column is there with another type, or its type or name cannot be stored.
    """
    new = canonical(added)
    kept = [column for column in old if column.name not in new.names]
    evolved = evolve(old, pa.schema([*kept, *new]))
    _check_names(evolved.names)
    return evolved


def outline(schema: pa.Schema) -> tuple[tuple[str, Any], ...]:
    """Names and types, by which it is seen that columns were added; another engine may see nulls inside differently."""
    return tuple((column.name, column.type.id if types.is_nested(column.type) else column.type) for column in schema)


_FITS = frozenset(
    {(pa.int32(), pa.int64()), (pa.float32(), pa.float64()), (pa.int32(), pa.float64())},
)


# --- Avro -----------------------------------------------------------------------------------------------------------

_PLAIN: Mapping[Any, Any] = {
    pa.bool_(): "boolean", pa.int32(): "int", pa.int64(): "long", pa.float32(): "float", pa.float64(): "double",
    pa.string(): "string", pa.binary(): "bytes",
    pa.date32(): {"type": "int", "logicalType": "date"},
    _UTC_US: {"type": "long", "logicalType": "timestamp-micros"},
    _LOCAL_US: {"type": "long", "logicalType": "local-timestamp-micros"},
}  # fmt: skip


@lru_cache(maxsize=64)
def to_avro(schema: pa.Schema, name: str) -> str:
    """The Avro schema, as JSON, of a canonical schema; `name` is the table's.

    Nullable columns are unions with null first and by default; decimals are `fixed`, as Spark and Hudi write them.

    Raises:
        UnsupportedSchema: the schema is not canonical.
    """
    safe = re.sub(r"[^A-Za-z0-9_]", "_", name)
    record = _record(list(schema), f"{safe}_record", f"hoodie.{safe}")
    return json.dumps(record, separators=(",", ":"))


def _record(columns: list[pa.Field], name: str, namespace: str) -> dict[str, Any]:
    inside = f"{namespace}.{name}"
    return {
        "type": "record",
        "name": name,
        "namespace": namespace,
        "fields": [_avro_field(column, inside) for column in columns],
    }


def _avro_field(column: pa.Field, namespace: str) -> dict[str, Any]:
    kind = _avro_type(column.type, column.name, namespace)
    if column.nullable:
        return {"name": column.name, "type": ["null", kind], "default": None}
    return {"name": column.name, "type": kind}


def _avro_type(kind: pa.DataType, name: str, namespace: str) -> Any:
    if kind in _PLAIN:
        return _PLAIN[kind]
    if types.is_decimal128(kind):
        return _avro_decimal(kind, f"{namespace}.{name}")
    if types.is_struct(kind):
        return _record([kind.field(index) for index in range(kind.num_fields)], name, namespace)
    if types.is_map(kind):
        return {"type": "map", "values": _optional(kind.item_field, name, namespace)}
    if types.is_list(kind):
        return {"type": "array", "items": _optional(kind.value_field, name, namespace)}
    raise UnsupportedSchema(f"column {name!r} has type {kind}, which cannot be stored; {_advice(kind)}")


def _optional(inner: pa.Field, name: str, namespace: str) -> Any:
    kind = _avro_type(inner.type, name, namespace)
    return ["null", kind] if inner.nullable else kind


def _avro_decimal(kind: pa.DataType, namespace: str) -> dict[str, Any]:
    return {
        "type": "fixed",
        "name": "fixed",
        "namespace": namespace,
        "size": ((10**kind.precision - 1).bit_length() + 8) // 8,  # one bit more for the sign
        "logicalType": "decimal",
        "precision": kind.precision,
        "scale": kind.scale,
    }


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
    """The Arrow schema of a table's Avro schema (JSON).

    Raises:
        Corrupt: the text is no Avro record schema.
        UnsupportedSchema: a column has a type that is not supported.
    """
    try:
        record = json.loads(text)
        fields = record["fields"]
        kind = record["type"]
    except (ValueError, KeyError, TypeError) as error:
        raise Corrupt(f"the table schema is no Avro record ({error!r}): {text[:80]!r}") from error
    if kind != "record":
        raise Corrupt(f"the table schema is an Avro {kind}, not a record: {text[:80]!r}")
    named: dict[str, Any] = {}
    return pa.schema([_arrow_field(one["name"], one["type"], one["name"], named) for one in fields])


def _arrow_field(name: str, avro: Any, path: str, named: dict[str, Any]) -> pa.Field:
    if not isinstance(avro, list):
        return pa.field(name, _arrow_type(avro, path, named), nullable=False)
    options = [option for option in avro if option != "null"]
    if len(options) != 1:
        raise UnsupportedSchema(
            f"column {path!r} is a union of {len(options)} types; only null and one type can be read"
        )
    return pa.field(name, _arrow_type(options[0], path, named), nullable=len(options) < len(avro))


def _arrow_type(avro: Any, path: str, named: dict[str, Any]) -> pa.DataType:
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
    match avro["type"]:
        case "record":
            return pa.struct(
                [_arrow_field(one["name"], one["type"], f"{path}.{one['name']}", named) for one in avro["fields"]]
            )
        case "array":
            return pa.list_(_arrow_field("element", avro["items"], f"{path}.element", named))
        case "map":
            value = _arrow_field("value", avro["values"], f"{path}.value", named)
            return pa.map_(pa.string(), value)
        case other:
            raise UnsupportedSchema(f"column {path!r} has Avro type {other!r}, which cannot be read")
