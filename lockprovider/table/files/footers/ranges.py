"""What the values of a file's columns are between, by the statistics of its footer; and what that rules out.

    known = ranges_of(footer)                             # {"day": Range("date32[day]", 19723, 19753, has_nulls=False)}
    guarantee(known, [pa.field("day", pa.date32())])      # an expression that is true of all rows of the file

Promised: a guarantee is true of every row as it is read with these columns, a null included. NOT promised: a range of
each column: there are none of floats (statistics know no NaN), decimals, booleans, binary and nested columns, of texts
longer than 64 characters, of more than 32 columns of a file, of a column that the file does not have; and of dates and
timestamps where Spark may have written them by the Julian calendar (see `base_file.check_footer`).

Source: the Parquet specification, "Statistics"; Arrow `ParquetFileFragment::EvaluateStatisticsAsExpression`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache, reduce
from operator import and_
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyarrow import types

from lockprovider.table.files.base_file import LEGACY_KEY
from lockprovider.table.format.schema import META_COLUMNS

_MOST_COLUMNS = 32
_LONGEST = 64  # characters of a text
_INTEGERS = {str(kind) for kind in (pa.int8(), pa.int16(), pa.int32(), pa.int64())}
_STORED_AS = {"INT32", "INT64", "BYTE_ARRAY"}  # not INT96, whose statistics have no order


class Range(NamedTuple):
    """What all values of a column are between; without ends all of them are null.

    `kind` is Arrow's name of the type that is stored, the ends are as stored: text, a number, days, or units of time.
    """

    kind: str
    least: int | str | None
    greatest: int | str | None
    has_nulls: bool  # or may have


Ranges = Mapping[str, Range]


def may_have_range(kind: pa.DataType) -> bool:
    """Whether ranges are kept of columns of this type."""
    return bool(_name_of(kind))


def ranges_of(footer: pq.FileMetaData) -> Ranges:
    """By its footer."""
    fields, found, at = footer.schema.to_arrow_schema(), dict[str, Range](), 0
    is_legacy = LEGACY_KEY.encode() in (footer.metadata or {})
    groups = [footer.row_group(number) for number in range(footer.num_row_groups)]
    for name, kind in zip(fields.names, fields.types, strict=True):
        said = "" if name in META_COLUMNS or (is_legacy and _is_time(kind)) else _name_of(kind)
        if said and fields.get_field_index(name) >= 0:  # once
            one = _range(said, name, [group.column(at) for group in groups])
            if one is not None:
                found[name] = one
        at += _parts_of(kind)
        if len(found) == _MOST_COLUMNS:
            break
    return found


def guarantee(ranges: Ranges, columns: Iterable[pa.Field]) -> Any:
    """What is true of these columns, as they are now, in all rows."""
    sure = pc.scalar(True)
    for column in columns:
        one = ranges.get(column.name)
        if one is not None and _tells_of(one.kind, column.type):
            sure = sure & _between(pc.field(column.name), one, column.type)
    return sure


def encode_ranges(ranges: Ranges) -> Mapping[str, Sequence[Any]]:
    """For JSON."""
    return {name: list(one) for name, one in ranges.items()}


def decode_ranges(said: Mapping[str, Sequence[Any]]) -> Ranges:
    """From JSON.

    Raises:
        ValueError, TypeError, AttributeError: it is not what `encode_ranges` makes.
    """
    return {name: _checked(*one) for name, one in said.items()}


def _checked(kind: str, least: int | str | None, greatest: int | str | None, has_nulls: bool) -> Range:  # noqa: FBT001
    kinds = {type(least), type(greatest)}
    if kinds not in ({int}, {str}, {type(None)}) or not isinstance(has_nulls, bool):
        raise ValueError("no range")
    return Range(kind, least, greatest, has_nulls)


def _range(kind: str, name: str, chunks: Iterable[pq.ColumnChunkMetaData]) -> Range | None:
    """That of a column's parts in the row groups; None if one of them does not tell for sure."""
    lows, highs, has_nulls = list[Any](), list[Any](), False
    for chunk in chunks:
        if chunk.path_in_schema != name or chunk.physical_type not in _STORED_AS:
            return None
        if not (count := chunk.num_values):
            continue
        if (said := chunk.statistics) is None:
            return None
        nulls = said.null_count if said.has_null_count else None
        has_nulls = has_nulls or nulls != 0
        if said.has_min_max:
            lows.append(_value(said.min_raw))
            highs.append(_value(said.max_raw))
        elif nulls is None or nulls < count:
            return None
    if None in lows or None in highs or not (lows or has_nulls):
        return None
    return Range(kind, min(lows, default=None), max(highs, default=None), has_nulls)


def _value(raw: int | bytes) -> int | str | None:
    if isinstance(raw, int):
        return raw
    try:
        text = raw.decode()
    except UnicodeDecodeError:
        return None
    return text if len(text) <= _LONGEST else None


@lru_cache(1024)
def _name_of(kind: pa.DataType) -> str:
    """Arrow's name of a type that ranges are kept of; empty for others."""
    return str(kind) if types.is_signed_integer(kind) or types.is_string(kind) or _is_time(kind) else ""


@lru_cache(1024)
def _parts_of(kind: pa.DataType) -> int:
    """How many columns of the file a column of this type is."""
    return sum(_parts_of(kind.field(number).type) for number in range(kind.num_fields)) or 1


def _is_time(kind: pa.DataType) -> bool:
    return bool(types.is_date32(kind) or types.is_timestamp(kind))


def _tells_of(stored: str, now: pa.DataType) -> bool:
    return stored == str(now) or (stored in _INTEGERS and str(now) in _INTEGERS)


def _between(value: Any, one: Range, kind: pa.DataType) -> Any:
    """As Arrow says it of a row group."""
    if one.least is None or one.greatest is None:
        return value.is_null()
    try:
        least, greatest = pa.scalar(one.least, kind), pa.scalar(one.greatest, kind)
    except (pa.ArrowException, TypeError, ValueError, OverflowError):
        return pc.scalar(True)  # narrower now, or no such values
    ends = [value == least] if one.least == one.greatest else [value >= least, value <= greatest]
    if one.has_nulls:  # each by itself: else Arrow cannot go by it
        ends = [end | value.is_null() for end in ends]
    return reduce(and_, ends)
