"""Rows as other libraries have them; each is imported when it is asked for."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from importlib import import_module
from typing import Any

import pyarrow as pa

from fsspec_cas import NotSupported


def to_pandas(rows: pa.Table) -> Any:
    """A pandas DataFrame, with pandas' nullable types for integers and booleans.

    Raises:
        NotSupported: pandas is not installed.
    """
    with importing("pandas"):
        from lockprovider.table.engines.pandas import to_frame  # noqa: PLC0415 - see above
    return to_frame(rows)


def to_polars(rows: pa.Table) -> Any:
    """A polars DataFrame.

    Raises:
        NotSupported: polars is not installed.
    """
    with importing("polars"):
        polars = import_module("polars")
    return polars.from_arrow(rows)


def to_duckdb(rows: pa.RecordBatchReader | pa.Table, connection: Any = None) -> Any:
    """A DuckDB relation of the rows.

    Raises:
        NotSupported: duckdb is not installed.
    """
    with importing("duckdb"):
        duckdb = import_module("duckdb")
    return (connection or duckdb).from_arrow(rows)


@contextlib.contextmanager
def importing(name: str) -> Iterator[None]:
    """Around the import of an optional library.

    Raises:
        NotSupported: it is not installed; the message names the extra that brings it.
    """
    try:
        yield
    except ModuleNotFoundError as error:
        raise NotSupported(f"{name} is not installed: pip install 'fsspec-cas[{name}]'") from error
