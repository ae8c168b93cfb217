"""Rows as other libraries have them; each library is imported when it is asked for."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from importlib import import_module
from typing import Any

import pyarrow as pa
from pyarrow import types

from fsspec_cas import NotSupported


def to_pandas(rows: pa.Table, *, plain: bool = True) -> Any:
    """A pandas DataFrame, of which an upsert changes nothing.

    Integers and booleans have pandas' nullable types, so that no integer turns into a float where one is missing.
    Lists, structs and maps have Arrow's own types.

    `plain`: dates, decimals and bytes are Python objects. Dask makes texts of objects, so there they are Arrow's, too.

    Raises:
        NotSupported: pandas is not installed.
    """
    with importing("pandas"):
        pandas = import_module("pandas")
    nullable = {pa.bool_(): pandas.BooleanDtype(), pa.int32(): pandas.Int32Dtype(), pa.int64(): pandas.Int64Dtype()}

    def mapper(kind: pa.DataType) -> Any:
        keeps = types.is_nested(kind) or (
            not plain and (types.is_date(kind) or types.is_decimal(kind) or types.is_binary(kind))
        )
        return pandas.ArrowDtype(kind) if keeps else nullable.get(kind)

    return rows.to_pandas(types_mapper=mapper)


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
