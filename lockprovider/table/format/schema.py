"""Column types: Arrow on this side, Avro in the table's metadata.

Source: Avro 1.11 specification, "Logical Types"; Hudi `AvroConversionUtils`, Spark `SchemaConverters` for the names
of nested records and the sizes of decimals.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
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
# A sixth, of Flink's change logs: rows whose value there is `D` or `-U` are gone, though they are in the file.
FLINK_OPERATION = "_hoodie_operation"

_UTC_US = pa.timestamp("us", "UTC")
_LOCAL_US = pa.timestamp("us")


def with_meta(schema: pa.Schema) -> pa.Schema:
    """The schema of a base file: Hudi's five columns first."""
    return pa.schema([*(pa.field(name, pa.string()) for name in META_COLUMNS), *without_meta(schema)])


def without_meta(schema: pa.Schema) -> pa.Schema:
    """The schema of the user's columns."""
    return pa.schema([column for column in schema if column.name not in META_COLUMNS])


def present(names: Iterable[str], among: Collection[str]) -> list[str]:
    """Those names that are among the others, in their order.

    `name in schema.names` makes the list of all names anew, each time: a loop of it is quadratic in the columns.
    """
    there = frozenset(among)
    return [name for name in names if name in there]


def absent(names: Iterable[str], among: Collection[str]) -> list[str]:
    """Those names that are not among the others, in their order."""
    there = frozenset(among)
    return [name for name in names if name not in there]


def refuse_timestamp_partitions(table: str, schema: pa.Schema, fields: Sequence[str]) -> None:
    """Refuse a timestamp as a partition column: JVM Hudi reads its values as NULL, and an update there erases them.

    Raises:
        UnsupportedSchema: naming the column, and what to use in its place.
    """
    for name in present(fields, schema.names):
        if types.is_timestamp(schema.field(name).type):
            raise UnsupportedSchema(
                f"table {table!r} is partitioned by {name!r}, a {schema.field(name).type}: JVM Hudi reads the column "
                "as NULL, finds nothing by it, and its updates erase it; partition by a date or a text made of it"
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
    raise UnsupportedSchema(f"column {name!r} has type {kind}, which cannot be stored")


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


def stated_columns(text: str) -> pa.Schema:
    """The columns that a commit states, without Hudi's own, which JVM Hudi names where it has schema-on-read.

    Raises:
        Corrupt, UnsupportedSchema: as of `from_avro`.
    """
    return without_meta(from_avro(text))


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
