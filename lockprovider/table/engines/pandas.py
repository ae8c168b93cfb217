"""pandas: DataFrames in, DataFrames out.

    engine.append(table, frame)
    frame = engine.read(table, filter=pc.field("city") == "ulm")

Rows come in as `convert.rows` says: the index is dropped, NaN is null. They go out with pandas'
nullable types for integers and booleans, so that no integer turns into a float where one is missing, and with Arrow's
own types for lists, structs and maps, so that an upsert of what was read changes nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import pandas as pd
import pyarrow as pa
from pyarrow import types

from lockprovider.table.engines import arrow
from lockprovider.table.engines.arrow import append, delete, upsert
from lockprovider.table.read import scan
from lockprovider.table.state.context import TableContext
from lockprovider.table.transaction.handle import AnyTransaction

_NULLABLE = {
    pa.bool_(): pd.BooleanDtype(),
    pa.int32(): pd.Int32Dtype(),
    pa.int64(): pd.Int64Dtype(),
}


def read(
    source: TableContext | AnyTransaction,
    columns: Sequence[str] | None = None,
    partitions: Iterable[str] | None = None,
    filter: scan.Where = None,  # noqa: A002 - as pyarrow calls it
) -> pd.DataFrame:
    """The rows of the latest snapshot, or of a transaction's own; see `Table.scan`."""
    return to_frame(arrow.read(source, columns, partitions, filter))


def to_frame(rows: pa.Table, *, plain: bool = True) -> Any:
    """A DataFrame of rows, as `read` makes it.

    `plain`: dates, decimals and bytes are Python objects. Dask makes texts of objects, so there they are Arrow's, too.
    """

    def mapper(kind: pa.DataType) -> Any:
        keeps = types.is_nested(kind) or (
            not plain and (types.is_date(kind) or types.is_decimal(kind) or types.is_binary(kind))
        )
        return pd.ArrowDtype(kind) if keeps else _NULLABLE.get(kind)

    return rows.to_pandas(types_mapper=mapper)


__all__ = ["append", "delete", "read", "to_frame", "upsert"]
