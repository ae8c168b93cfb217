"""Rows as other libraries have them; each is imported when it is asked for."""

from __future__ import annotations

from importlib import import_module
from typing import Any

import pyarrow as pa

from fsspec_cas import NotSupported


def to_pandas(rows: pa.Table) -> Any:
    """A pandas DataFrame, with pandas' nullable types for integers and booleans.

    Raises:
        NotSupported: pandas is not installed.
    """
    _imported("pandas")
    return import_module("lockprovider.table.engines.pandas").to_frame(rows)


def to_polars(rows: pa.Table) -> Any:
    """A polars DataFrame.

    Raises:
        NotSupported: polars is not installed.
    """
    return _imported("polars").from_arrow(rows)


def to_duckdb(rows: pa.RecordBatchReader | pa.Table, connection: Any = None) -> Any:
    """A DuckDB relation of the rows.

    Raises:
        NotSupported: duckdb is not installed.
    """
    duckdb = _imported("duckdb")
    return (connection or duckdb).from_arrow(rows)


def _imported(name: str) -> Any:
    try:
        return import_module(name)
    except ModuleNotFoundError as error:
        raise NotSupported(f"{name} is not installed: pip install 'fsspec-cas[{name}]'") from error
