"""Conversion rules: `WRITE` for a user's rows, `READ` for old files of tables with columns widened since.

SPECIFICATION.md's table of types is generated from `WRITE`. Source: Hudi's `HoodieAvroUtils.rewriteRecordWithNewSchema`
for `READ`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import pyarrow as pa
from pyarrow import types

COLUMN_TYPES = (
    "bool", "int32", "int64", "float32", "float64", "decimal", "string", "binary", "date", "timestamp", "timestamp UTC",
)  # fmt: skip

# LOSSLESS: every value of the type fits. CHECKED: each value is checked; one that would change is refused.
# DIGITS: every value fits if the column has the digits, else as CHECKED.
# ROUNDED: the value becomes what JVM Hudi makes of it.
LOSSLESS, CHECKED, DIGITS, ROUNDED, REFUSED = "L", "V", "D", "R", "-"


@dataclass(frozen=True)
class Rules:
    """Table of conversion rules: `cells` maps a family to a rule for each of `COLUMN_TYPES`.

    Pickled as `name`, which must be its name in this module.
    """

    name: str
    cells: Mapping[str, str]

    @classmethod
    def of(cls, name: str, text: str) -> Rules:
        """Parse rules from lines of families, a `|`, and one rule for each of `COLUMN_TYPES`."""
        lines = [line.split("|") for line in text.strip().splitlines()]
        rules = {family: "".join(cells.split()) for families, cells in lines for family in families.split(",")}
        return cls(name, {family.strip(): cells for family, cells in rules.items()})

    def __reduce__(self) -> str:
        return self.name

    def rule(self, value_type: pa.DataType, column: pa.DataType) -> str:
        """Return the rule for values of one plain type in a column of another."""
        at, cells = family(column), self.cells.get(family(value_type))
        return REFUSED if cells is None or at not in COLUMN_TYPES else cells[COLUMN_TYPES.index(at)]


# -- families ------------------------------------------------------------------------------------------------------

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
    """Return a plain type's family, its row in the rules; `OTHER` if no column holds the type."""
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
    """Return a new column's type for a plain type; None if no column holds it."""
    if types.is_decimal(kind) and kind.precision <= MOST_DIGITS and 0 <= kind.scale <= kind.precision:
        return pa.decimal128(kind.precision, kind.scale)
    return _NEW_COLUMN.get(family(kind))


def is_list(kind: pa.DataType) -> bool:
    """Return whether the type is a list of any kind; a map is not."""
    return bool(
        types.is_list(kind)
        or types.is_large_list(kind)
        or types.is_fixed_size_list(kind)
        or types.is_list_view(kind)
        or types.is_large_list_view(kind)
    )


def advice(kind: pa.DataType, column: pa.DataType | None = None) -> str:
    """Return what to do about a type that does not fit `column`, or any column."""
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


# -- the rules -----------------------------------------------------------------------------------------------------

# Decisions, and their reasons:
# - float64 into float32 must be exact: 0.1 is refused, as it is another number in each, and a filter `f = 0.1` would no
#   longer find the row. A user who means it calls `astype("float32")`.
# - A date into a timestamp is refused: engines differ in whose midnight it is.
# - string into binary is refused, as by Spark's ANSI rules.
# - A float into a decimal, and back, is checked by the float's shortest text: 0.10 fits, 17 digits do not. Large whole
#   numbers are taken exactly: the shortest text of 2**60 is another number.
# - -0.0 fits integers and decimals, and loses its sign, as it equals 0.
# - Nanoseconds with a rest below a microsecond are refused: the column holds microseconds.
# - float64 refuses an int64 beyond 2**53 even if it holds it (2**60): casting back saturates on some processors.
# - Two equal keys in one map are refused in every table. A log file and a JVM rewrite of a base file keep one of them,
#   so in a copy-on-write table another writer would lose the other one later.
# - A write widens no column; JVM Hudi does (int to bigint). Columns that it has widened are read.
WRITE = Rules.of(
    "WRITE",
    # columns: bool int32 int64 float32 float64 decimal string binary date timestamp, timestamp UTC
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

# `READ` is as wide as JVM Hudi's reader, so that a widened column shows old rows as in the JVM. Any other type means a
# damaged table.
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
