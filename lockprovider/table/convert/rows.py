"""Input of rows: pandas or polars frames, and pyarrow Tables, RecordBatches and readers.

Columns keep their library's Arrow types. Arrow's NaN stays.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import date, datetime
from decimal import Decimal
from itertools import chain
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import types

from fsspec_cas.arguments import shown
from lockprovider.table.convert.kernels import TooLong, ends_of
from lockprovider.table.errors import InvalidRecords, UnsupportedSchema
from lockprovider.words import is_storable

Rows = Any  # needs neither pandas nor polars

_NO_COLUMN = {  # polars dtypes that Arrow lacks or changes
    "Object": "polars passes Python objects to Arrow as pointers; cast it to another type",
    "Int128": "cast to Decimal(38, 0)",
    "UInt128": "cast to Decimal(38, 0)",
}


def as_table(rows: Rows, columns: Callable[[], pa.Schema] | None = None) -> pa.Table:
    stream = as_stream(rows, columns)
    return stream.read_all() if isinstance(stream, pa.RecordBatchReader) else stream


def as_stream(rows: Rows, columns: Callable[[], pa.Schema] | None = None) -> pa.Table | pa.RecordBatchReader:
    """Return a RecordBatchReader unchanged, and other rows as a table in memory.

    `columns` returns the table's columns, called only for pandas objects that may be maps or structs. Raises
    InvalidRecords for other objects or bad names, UnsupportedSchema for what Arrow cannot hold.
    """
    match rows:
        case pa.Table() | pa.RecordBatchReader():
            stream = rows
        case pa.RecordBatch():
            stream = pa.Table.from_batches([rows])
        case _ if is_of("pandas", rows) and hasattr(rows, "columns"):
            stream = _of_pandas(rows, columns)
        case _ if is_of("polars", rows) and hasattr(rows, "collect"):
            stream = _of_arrow(rows.collect())
        case _ if hasattr(rows, "__arrow_c_stream__"):
            stream = _of_arrow(rows)
        case _:
            raise InvalidRecords(
                f"{type(rows).__name__} has no rows: give a pandas or polars DataFrame, or a pyarrow Table or reader; "
                "for Dask use lockprovider.table.engines.dask"
            )
    _check_names(stream.schema.names)
    return stream


def is_of(library: str, value: object) -> bool:
    return type(value).__module__.partition(".")[0] == library


def _check_names(names: list[Any]) -> None:
    counts = Counter(names)
    bad = [name for name in names if not isinstance(name, str) or counts[name] > 1 or not is_storable(name)]
    if bad:
        raise InvalidRecords(f"columns {bad} need names that are texts of UTF-8, each used once: rename them")


def _of_arrow(frame: Any) -> pa.Table:
    """Read a polars frame or Arrow stream into memory.

    Raises UnsupportedSchema for polars' Object and 128-bit integers, and for what pyarrow refuses; other types that
    tables lack pass.
    """
    for name, dtype in frame.schema.items() if is_of("polars", frame) else ():
        for inner in _dtypes(dtype):
            if (why := _NO_COLUMN.get(str(inner))) is not None:
                raise UnsupportedSchema(f"column {name!r} has polars' type {dtype}, which cannot be stored: {why}")
    try:
        return pa.table(frame)
    except pa.ArrowException as error:
        raise UnsupportedSchema(f"the columns of this {type(frame).__name__} cannot be stored: {error}") from error


def _dtypes(dtype: Any) -> Iterator[Any]:
    yield dtype
    for inner in (getattr(dtype, "inner", None), *(field.dtype for field in getattr(dtype, "fields", ()))):
        if inner is not None:
            yield from _dtypes(inner)


def _of_pandas(frame: Any, columns: Callable[[], pa.Schema] | None) -> pa.Table:
    """Convert a pandas DataFrame without its index, NaN to null.

    `columns` returns the table's, which tell maps from structs; called at most once. Raises InvalidRecords for bad
    names, else as `_of_series`.
    """
    names = list(frame.columns)
    _check_names(names)
    table_columns: pa.Schema | None = None
    arrays = []
    for name in names:
        series, column_type = frame[name], None
        if columns is not None and series.dtype == object and _may_be_maps(series):
            table_columns = columns() if table_columns is None else table_columns
            column_type = table_columns.field(name).type if table_columns.get_field_index(name) >= 0 else None
        arrays.append(_of_series(name, series, column_type))
    return pa.table(arrays, names=names)


def _may_be_maps(series: Any) -> bool:
    return isinstance(next((value for value in series if not _is_null(value)), None), (dict, *_LISTS))


def _is_null(value: Any) -> bool:
    match value:
        case float() | np.floating() | np.datetime64() | np.timedelta64():
            return bool(value != value)  # noqa: PLR0124 - NaN and NaT
        case Decimal():
            return value.is_nan()
    return value is None or type(value).__name__ in _NULLS


_NULLS = ("NAType", "NaTType")
_LISTS = (list, tuple, np.ndarray)


def _of_series(name: str, series: Any, column_type: pa.DataType | None) -> Any:
    """Convert a pandas Series to an array, NaN to null, dicts to maps where `column_type` has maps.

    Raises UnsupportedSchema, with the column's `name`, for mixed or unsupported types, and too long values.
    """
    try:
        if column_type is not None and _has(column_type, types.is_map):
            return _of_objects(list(series), column_type)
        values = getattr(series.dtype, "categories", series)
        return _inferred(series) if values.dtype == object else pa.array(series, from_pandas=True)
    except (pa.ArrowException, TypeError, ValueError, OverflowError, TooLong) as error:
        raise UnsupportedSchema(
            f"column {name!r} of dtype {series.dtype} cannot be stored: {error}; convert its values to one type"
        ) from error


def _has(kind: pa.DataType, is_kind: Callable[[pa.DataType], bool]) -> bool:
    return is_kind(kind) or any(_has(kind.field(index).type, is_kind) for index in range(kind.num_fields))


def _of_objects(values: Sequence[Any], column_type: pa.DataType) -> pa.Array:
    """Convert Python objects by their own types, NaN to null; `column_type` only tells maps from structs.

    Raises ValueError, TooLong and errors of pyarrow.
    """
    values = [None if _is_null(value) else value for value in values]
    present = [value for value in values if value is not None]
    mask = pa.array([value is None for value in values], pa.bool_())
    if types.is_map(column_type):
        maps = [_pairs(value) for value in values]
        keys, items = ([pair[index] for pair in chain.from_iterable(maps)] for index in (0, 1))
        inner = _of_objects(keys, pa.null()), _of_objects(items, column_type.item_type)
        return pa.MapArray.from_arrays(ends_of(list(map(len, maps))), *inner, mask=mask)
    if types.is_struct(column_type) and present and all(isinstance(value, dict) for value in present):
        names = list(dict.fromkeys(chain.from_iterable(present)))
        field_types = {field.name: field.type for field in map(column_type.field, range(column_type.num_fields))}
        parts = [
            _of_objects([(value or {}).get(name) for value in values], field_types.get(name, pa.null()))
            for name in names
        ]
        return pa.StructArray.from_arrays(parts, names, mask=mask)
    if types.is_list(column_type) and all(isinstance(value, _LISTS) for value in present):
        lists = [() if value is None else value for value in values]
        inside = _of_objects(list(chain.from_iterable(lists)), column_type.value_type)
        return pa.ListArray.from_arrays(ends_of(list(map(len, lists))), inside, mask=mask)
    return _inferred(values)


def _inferred(values: Any) -> Any:
    array = pa.array(values, from_pandas=True)
    if _has_nan(array):  # pyarrow takes NumPy's scalars of other widths than Python's float for values
        array = pa.array(map(_with_nulls, values), array.type, from_pandas=True)
    _check_times(values, array.type.value_type if types.is_dictionary(array.type) else array.type)
    return array


def _has_nan(array: Any) -> bool:
    kind = array.type
    if types.is_struct(kind):
        return any(_has_nan(pc.struct_field(array, index)) for index in range(kind.num_fields))
    if types.is_list(kind):
        return _has_nan(pc.list_flatten(array))
    return types.is_floating(kind) and bool(pc.any(pc.is_nan(array)).as_py())


def _with_nulls(value: Any) -> Any:
    """Replace what `_is_null`, at any depth of lists and dicts, by None."""
    if isinstance(value, dict):
        return {name: _with_nulls(inner) for name, inner in value.items()}
    if isinstance(value, _LISTS):
        return list(map(_with_nulls, value))
    return None if _is_null(value) else value


def _check_times(values: Iterable[Any], kind: pa.DataType) -> None:
    """Raise ValueError for Python times of mixed kinds, or with nanoseconds, which pyarrow would change."""
    if not _has(kind, types.is_temporal):
        return
    present = [value for value in values if not _is_null(value)]
    if types.is_struct(kind):
        for field in kind:
            _check_times([value.get(field.name) for value in present], field.type)
    elif types.is_list(kind):
        _check_times(chain.from_iterable(present), kind.value_type)
    else:
        are_days = {isinstance(time, date) and not isinstance(time, datetime) for time in present}
        are_zoned = {getattr(time, "tzinfo", None) is not None for time in present}
        if len(are_days) > 1 or len(are_zoned) > 1:
            raise ValueError("days, times with a zone and times without one are mixed")
        if any(getattr(time, "nanosecond", 0) for time in present):
            raise ValueError("nanoseconds would be lost")


def _pairs(value: Any) -> list[Any]:
    pairs = [] if value is None else list(value.items() if isinstance(value, dict) else value)
    if not all(isinstance(pair, (list, tuple)) and len(pair) == 2 for pair in pairs):  # noqa: PLR2004 - key and value
        raise ValueError(f"{shown(value)} is no map: give a dict, or a list of pairs (key, value)")
    return pairs
