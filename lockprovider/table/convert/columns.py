"""Column types, schemas of new and widened tables, and conversion rules.

`WRITE` is for a user's rows (SPECIFICATION.md has its table), `READ` for files older than a column's widening.

Source: Hudi's `HoodieAvroUtils.rewriteRecordWithNewSchema` for `READ`.
"""

from __future__ import annotations

import inspect
import re
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import pyarrow as pa
from pyarrow import types

from fsspec_cas import InvalidInput
from lockprovider.table.errors import UnsupportedSchema
from lockprovider.table.format.schema import FLINK_OPERATION, META_COLUMNS, without_meta

COLUMN_TYPES = (
    "bool", "int32", "int64", "float32", "float64", "decimal", "string", "binary", "date", "timestamp", "timestamp UTC",
)  # fmt: skip

# CHECKED: refuses values that would change. DIGITS: likewise, unless the column has the digits. ROUNDED: as JVM Hudi.
LOSSLESS, CHECKED, DIGITS, ROUNDED, REFUSED = "L", "V", "D", "R", "-"


@dataclass(frozen=True)
class Rules:
    """Conversion rules: `cells` maps a family to a rule for each of `COLUMN_TYPES`. Pickled as `name`."""

    name: str
    cells: Mapping[str, str]

    @classmethod
    def of(cls, name: str, text: str) -> Rules:
        lines = [line.split("|") for line in text.strip().splitlines()]
        rules = {family: "".join(cells.split()) for families, cells in lines for family in families.split(",")}
        return cls(name, {family.strip(): cells for family, cells in rules.items()})

    def __reduce__(self) -> str:
        return self.name

    def rule(self, value_type: pa.DataType, column: pa.DataType) -> str:
        at, cells = family(column), self.cells.get(family(value_type))
        return REFUSED if cells is None or at not in COLUMN_TYPES else cells[COLUMN_TYPES.index(at)]


_FAMILIES: Mapping[pa.DataType, str] = {
    pa.null(): "null", pa.bool_(): "bool",
    pa.int8(): "int8", pa.int16(): "int16", pa.uint8(): "uint8", pa.uint16(): "uint16",
    pa.int32(): "int32", pa.uint32(): "uint32", pa.int64(): "int64", pa.uint64(): "uint64",
    pa.float16(): "float16", pa.float32(): "float32", pa.float64(): "float64",
    pa.string(): "string", pa.large_string(): "string", pa.string_view(): "string",
    pa.binary(): "binary", pa.large_binary(): "binary", pa.binary_view(): "binary",
    pa.date32(): "date", pa.date64(): "date64",
}  # fmt: skip
_EXTENSIONS: Mapping[str, str] = {"arrow.uuid": "uuid", "arrow.json": "string", "arrow.bool8": "bool8"}
OTHER = "time, duration, interval, union, other"


def family(kind: pa.DataType) -> str:
    """Name of a type's row in the rules, such as `int32`; `OTHER` if no plain column holds it."""
    if kind in _FAMILIES:
        return _FAMILIES[kind]
    if isinstance(kind, pa.BaseExtensionType):
        return _EXTENSIONS.get(kind.extension_name, OTHER)
    if types.is_timestamp(kind):
        return "timestamp UTC" if kind.tz else "timestamp"
    if types.is_decimal(kind):
        return "decimal"
    return "binary" if types.is_fixed_size_binary(kind) else OTHER


_NEW_COLUMN: Mapping[str, pa.DataType] = {
    "bool": pa.bool_(), "bool8": pa.bool_(),
    "int8": pa.int32(), "int16": pa.int32(), "uint8": pa.int32(), "uint16": pa.int32(), "int32": pa.int32(),
    "uint32": pa.int64(), "int64": pa.int64(),
    "float16": pa.float32(), "float32": pa.float32(), "float64": pa.float64(),
    "string": pa.string(), "binary": pa.binary(), "uuid": pa.string(), "date": pa.date32(), "date64": pa.date32(),
    "timestamp": pa.timestamp("us"), "timestamp UTC": pa.timestamp("us", "UTC"),
}  # fmt: skip
MOST_DIGITS = 38  # of a column's decimals


def new_column(kind: pa.DataType) -> pa.DataType | None:
    if types.is_decimal(kind) and kind.precision <= MOST_DIGITS and 0 <= kind.scale <= kind.precision:
        return pa.decimal128(kind.precision, kind.scale)
    return _NEW_COLUMN.get(family(kind))


_LISTS = (types.is_list, types.is_large_list, types.is_fixed_size_list, types.is_list_view, types.is_large_list_view)


def is_list(kind: pa.DataType) -> bool:
    return any(is_kind(kind) for is_kind in _LISTS)


def advice(kind: pa.DataType, column: pa.DataType | None = None) -> str:
    if types.is_timestamp(kind) and column is not None and types.is_timestamp(column):
        return _NAIVE if kind.tz is None else "remove its time zone"
    if types.is_map(kind) and column is None:
        return "cast its keys to string"
    advised = next((text for applies, text in _ADVICE if applies(kind)), "")
    return advised or ("cast it first" if column is not None else "cast it to string or binary")


_NAIVE = "give it a time zone, as none is assumed"
_ADVICE: Sequence[tuple[Callable[[pa.DataType], bool], str]] = (
    (types.is_null, "cast it to the type that the column will have"),
    (types.is_uint64, "cast it to int64 or decimal128(20, 0)"),
    (types.is_decimal, "cast it to a decimal128 of at most 38 digits and a scale within them"),
    (types.is_duration, "cast it to int64 (and put the unit into the column's name)"),
    (types.is_time, "cast it to int64 (and put the unit into the column's name)"),
)


# - float64 into float32 must be exact: a filter `f = 0.1` would no longer find 0.1.
# - A date into a timestamp is refused: engines differ in whose midnight it is.
# - -0.0 fits integers and decimals, and loses its sign.
# - float64 refuses int64 beyond 2**53: casting back saturates on some processors.
# - Two equal keys in a map are refused: log files and JVM rewrites would keep one.
# - A write widens no column; JVM Hudi does (int to bigint).
WRITE = Rules.of(
    "WRITE",
    # in the order of COLUMN_TYPES
    """
    null                       | L L L L L L L L L L L
    bool, bool8                | L - - - - - - - - - -
    int8, int16, uint8, uint16 | - L L L L D - - - - -
    int32                      | - L L V L D - - - - -
    uint32                     | - V L V L D - - - - -
    int64                      | - V L V V D - - - - -
    uint64                     | - V V V V D - - - - -
    float16, float32           | - V V L L V - - - - -
    float64                    | - V V V L V - - - - -
    decimal                    | - V V V V D - - - - -
    string                     | - - - - - - L - - - -
    binary                     | - - - - - - - L - - -
    uuid                       | - - - - - - L L - - -
    date                       | - - - - - - - - L - -
    date64                     | - - - - - - - - V - -
    timestamp                  | - - - - - - - - V V -
    timestamp UTC              | - - - - - - - - - - V
    """,
)

READ = Rules.of(
    "READ",
    """
    null                       | L L L L L L L L L L L
    bool, bool8                | L - - - - - - - - - -
    int8, int16, uint8, uint16 | - L L L L D L - - - -
    int32                      | - L L R L D L - - - -
    uint32                     | - V L R L D L - - - -
    int64                      | - V L R R D L - - - -
    uint64                     | - V V R R D L - - - -
    float16, float32           | - - - L R V R - - - -
    float64                    | - - - V L V R - - - -
    decimal                    | - - - - - D L - - - -
    string                     | - - - - - - L L - - -
    binary                     | - - - - - - V L - - -
    uuid                       | - - - - - - L L - - -
    date                       | - - - - - - L - L - -
    date64                     | - - - - - - - - V - -
    timestamp, timestamp UTC   | - - - - - - - - - V V
    """,
)


_RESERVED = frozenset({*META_COLUMNS, FLINK_OPERATION})
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*", re.ASCII)


def without_meta_columns(schema: pa.Schema) -> list[pa.Field]:
    """All fields but Hudi's meta columns; warns of these."""
    own = [name for name in schema.names if name in META_COLUMNS]
    if own:
        message = f"columns {own} are Hudi's meta columns and are left out: the table writes its own"
        warnings.warn(message, stacklevel=_caller_level())
    return list(without_meta(schema))


def _caller_level() -> int:
    frame, level = inspect.currentframe(), 0
    while frame is not None and frame.f_globals.get("__name__", "").partition(".")[0] in _INSIDE:
        frame, level = frame.f_back, level + 1
    return level


_INSIDE = {"lockprovider", "functools", "contextlib"}


def new_table_schema(schema: pa.Schema) -> pa.Schema:
    """New table's stored schema: nullable, without Hudi's meta columns. May raise UnsupportedSchema."""
    return pa.schema(_stored_fields(without_meta_columns(schema), ""))


def _stored_fields(fields: Sequence[pa.Field], path: str) -> list[pa.Field]:
    _check_names([column.name for column in fields], path)
    return [
        pa.field(column.name, stored_type(column.type, f"{path}.{column.name}" if path else column.name))
        for column in fields
    ]


def _check_names(names: Sequence[str], path: str) -> None:
    """Raise `UnsupportedSchema` for an invalid, reserved or (in any letter case) repeated name in the struct `path`."""
    spellings: dict[str, str] = {}
    owner = f" in {path!r}" if path else ""
    for name in names:
        if not _NAME.fullmatch(name):
            raise UnsupportedSchema(
                f"column name {name!r}{owner} cannot be used: rename it, with letters, digits and _ only, "
                "and no digit first"
            )
        if name.lower() in _RESERVED:
            raise UnsupportedSchema(f"column name {name!r}{owner} is one of Hudi's meta columns: rename it")
        if name.lower() in spellings:
            raise UnsupportedSchema(
                f"columns {spellings[name.lower()]!r} and {name!r}{owner} are one to SQL engines: rename one"
            )
        spellings[name.lower()] = name


def stored_type(kind: pa.DataType, path: str) -> pa.DataType:
    """Table's stored type for `kind`, such as int32 for int8: decoded, nested fields nullable.

    Raises `UnsupportedSchema` for other types, empty structs, bad names, map keys other than text; `path`: the
    column's.
    """
    if types.is_dictionary(kind) or types.is_run_end_encoded(kind):
        return stored_type(kind.value_type, path)
    if (plain := new_column(kind)) is not None:
        return plain
    if types.is_map(kind) and family(kind.key_type) == "string":
        return pa.map_(pa.string(), stored_type(kind.item_type, f"{path}.value"))
    if is_list(kind):
        return pa.list_(pa.field("element", stored_type(kind.value_type, f"{path}.element")))
    if types.is_struct(kind) and kind.num_fields:
        return pa.struct(_stored_fields(_inside(kind), path))
    raise UnsupportedSchema(f"column {path!r} has type {kind}, which cannot be stored; {advice(kind)}")


def _inside(kind: pa.DataType) -> list[pa.Field]:
    return [kind.field(number) for number in range(kind.num_fields)]


def with_columns(table: pa.Schema, added: pa.Schema) -> pa.Schema:
    """Table's schema with the columns of `added`, nullable and last.

    A name may be a path, as in `Table.add_columns`. Raises UnsupportedSchema; InvalidInput for an unknown path.
    """
    evolved = list(table)
    for column in without_meta_columns(added):
        addition = _placed(column, evolved) if "." in column.name else column
        evolved = _merged(evolved, _stored_fields([addition], ""), "")
    return pa.schema(evolved)


def _placed(column: pa.Field, fields: Sequence[pa.Field]) -> pa.Field:
    name, _, rest = column.name.partition(".")
    owner = next((field for field in fields if field.name == name), None)
    if owner is None:
        raise InvalidInput(f"there is no {name!r} to add {rest!r} to: use one of {[field.name for field in fields]}")
    return pa.field(name, _around(owner.type, rest, column.type, name))


def _around(owner: pa.DataType, rest: str, kind: pa.DataType, path: str) -> pa.DataType:
    """Type like the nested `owner`, with only a new field of type `kind`, at the path `rest` inside it.

    Raises InvalidInput, with the owner's `path`, if `rest` leads into no struct.
    """
    name, _, deeper = rest.partition(".")
    if types.is_struct(owner):
        inner = pa.field(name, kind) if not deeper else _placed(pa.field(rest, kind), _inside(owner))
        return pa.struct([inner])
    if deeper and types.is_list(owner) and name == "element":
        return pa.list_(_around(owner.value_type, deeper, kind, f"{path}.element"))
    if deeper and types.is_map(owner) and name == "value":
        return pa.map_(pa.string(), _around(owner.item_type, deeper, kind, f"{path}.value"))
    raise InvalidInput(
        f"{path} is {owner} and has no {name!r} to add to: name a struct, `.element` of a list or `.value` of a map"
    )


def _merged(old: Sequence[pa.Field], new: Sequence[pa.Field], path: str) -> list[pa.Field]:
    """`old` with the new fields of `new` last, nested ones too; common fields keep their type.

    Raises `UnsupportedSchema`, with the struct's `path`, for names alike, or types that do not fit.
    """
    fields, by_name = list(old), {field.name: number for number, field in enumerate(old)}
    for field in new:
        number = by_name.get(field.name)
        if number is None:
            fields.append(field)
            continue
        inner = _merged_type(fields[number].type, field.type, f"{path}.{field.name}" if path else field.name)
        fields[number] = fields[number].with_type(inner)
    _check_names([field.name for field in fields], path)
    return fields


def _merged_type(old: pa.DataType, new: pa.DataType, path: str) -> pa.DataType:
    """`old` plus nested fields of `new`; raises `UnsupportedSchema` unless other types fit it without loss."""
    if types.is_struct(old) and types.is_struct(new):
        return pa.struct(_merged(_inside(old), _inside(new), path))
    if types.is_map(old) and types.is_map(new):
        return pa.map_(
            pa.string(), old.item_field.with_type(_merged_type(old.item_type, new.item_type, f"{path}.value"))
        )
    if types.is_list(old) and types.is_list(new):
        inner = _merged_type(old.value_type, new.value_type, f"{path}.element")
        return pa.list_(old.value_field.with_type(inner))
    if new != old and WRITE.rule(new, old) != LOSSLESS:
        raise UnsupportedSchema(f"column {path!r} is {old} in the table, not {new}: cast it")
    return old


def new_fields(table: pa.Schema, source: pa.Schema) -> pa.Schema:
    columns = [field for field in source if field.name not in META_COLUMNS]
    return pa.schema(list(_new(pa.struct(list(table)), pa.struct(columns), "")))


def _new(table: pa.DataType, source: pa.DataType, path: str) -> Iterator[pa.Field]:
    """Yield the fields, at any depth, of `source` that `table` lacks, named by path.

    Types of different kinds give none.
    """
    (kind, known), (source_kind, fields) = _parts(table), _parts(source)
    for name, inner in fields.items() if kind == source_kind else ():
        inner_path = f"{path}.{name}" if path else name
        if name in known:
            yield from _new(known[name], inner, inner_path)
        else:
            yield pa.field(inner_path, inner)


def _parts(kind: pa.DataType) -> tuple[str, dict[str, pa.DataType]]:
    if types.is_struct(kind):
        return "struct", {field.name: field.type for field in _inside(kind)}
    if types.is_map(kind):
        return "map", {"value": kind.item_type}
    return ("list", {"element": kind.value_type}) if is_list(kind) else ("", {})


def leaf_types(schema: pa.Schema) -> tuple[tuple[str, pa.DataType], ...]:
    """Path and type of each leaf column, without map keys."""
    return tuple(leaf for column in schema for leaf in _leaves(column.name, column.type))


def _leaves(path: str, kind: pa.DataType) -> Iterator[tuple[str, pa.DataType]]:
    nested, parts = _parts(kind)
    if not nested:
        yield path, kind
    for name, inner in parts.items():
        yield from _leaves(f"{path}.{name}", inner)
