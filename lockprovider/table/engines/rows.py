"""Rows as they come in: a pandas or polars DataFrame or LazyFrame, a pyarrow Table, RecordBatch or RecordBatchReader.

Promised: rows arrive whole or not at all; a column that does not fit is named. A number goes into another kind of
number if no value changes by that (pandas makes floats of integers with gaps), text never becomes a number or the other
way round. NaN of pandas is null, NaN of Arrow stays NaN. An index is no column: it is dropped.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from lockprovider.table.convert import compile_plan
from lockprovider.table.errors import InvalidRecords, UnsupportedSchema

Rows = Any  # what `as_stream` takes; neither pandas nor polars is needed to say so


@dataclass(frozen=True, slots=True)
class PartitionChanges:
    """Rows to upsert with their keys, and keys to delete, all of one partition.

    `values` are the ordering values of the deletes of a blind write, which does not look for them.
    """

    rows: pa.Table
    keys: pa.Array
    deletes: pa.Array
    values: pa.Array | None = None


def as_table(rows: Rows) -> pa.Table:
    """All rows in memory.

    Raises:
        InvalidRecords: this is nothing that has rows, or its columns have no good names.
        UnsupportedSchema: a column of a DataFrame has no Arrow type.
    """
    stream = as_stream(rows)
    return stream.read_all() if isinstance(stream, pa.RecordBatchReader) else stream


def as_stream(rows: Rows) -> pa.Table | pa.RecordBatchReader:
    """The rows, as a table where they are in memory already; the rest as of `as_table`."""
    match rows:
        case pa.Table() | pa.RecordBatchReader():
            found = rows
        case pa.RecordBatch():
            found = pa.Table.from_batches([rows])
        case _ if type(rows).__module__.partition(".")[0] == "pandas" and hasattr(rows, "columns"):
            found = _of_pandas(rows)
        case _ if type(rows).__module__.partition(".")[0] == "polars" and hasattr(rows, "collect"):
            found = pa.table(rows.collect())
        case _ if hasattr(rows, "__arrow_c_stream__"):
            found = pa.table(rows)
        case _:
            raise InvalidRecords(f"{type(rows).__name__} has no rows: give a DataFrame, or a pyarrow Table or reader")
    _check_names(found.schema.names)
    return found


def _of_pandas(frame: Any) -> pa.Table:
    names = list(frame.columns)
    _check_names(names)
    return pa.table([_column(name, frame[name]) for name in names], names=names)


def _check_names(names: list[Any]) -> None:
    counts = Counter(names)
    bad = [name for name in names if not isinstance(name, str) or counts[name] > 1]
    if bad:
        raise InvalidRecords(f"columns {bad} need names of their own, each a string; rename them")


def _column(name: str, series: Any) -> Any:
    try:
        return pa.array(series, from_pandas=True)
    except (pa.ArrowException, TypeError, ValueError) as error:
        raise UnsupportedSchema(
            f"column {name!r} of dtype {series.dtype} cannot be stored: {error}; make its values of one type"
        ) from error


def check_columns(found: pa.Schema, table: pa.Schema, needed: Iterable[str]) -> None:
    """Refuse rows whose columns are not those of the table.

    Raises:
        InvalidRecords: a column is needed and missing, or the table does not have it.
        UnsupportedSchema: a column is of a type that does not fit, or that no table can hold.
    """
    compile_plan(found, table, needed=tuple(needed))
