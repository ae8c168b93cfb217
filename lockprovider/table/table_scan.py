"""`Scan`: a question to a table, which is answered as rows of any library, as a number, or as a list of files."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from dataclasses import dataclass, fields, replace
from importlib import import_module
from typing import Any, Concatenate, ParamSpec, TypeVar, get_type_hints

import pyarrow as pa

from fsspec_cas import InvalidInput
from lockprovider.table.engines import arrow, frames
from lockprovider.table.read.consistent import PointInTime
from lockprovider.table.read.filters import check_kind
from lockprovider.table.read.scan import Where, given_columns, to_reader
from lockprovider.table.state.context import TableContext
from lockprovider.table.timeline.versions import check_version
from lockprovider.table.timeline.view import FileSlice, given_partitions
from lockprovider.table.transaction.transaction import AnyTransaction

_Of = TypeVar("_Of")
_Asked = ParamSpec("_Asked")
_Rows = TypeVar("_Rows")


@dataclass(frozen=True, slots=True, eq=False)
class Scan:
    """Rows of a table that are read later, once or several times; made by `Table.scan`. Immutable and thread-safe.

    Nothing is read before one of its methods is called. Each call reads the table anew, as of that time; with `as_of`,
    and in a transaction, all calls read the same rows. The methods raise what `Table.scan` lists.

    Attributes:
        source: the table or the transaction that is read.
        columns, filter, partitions, as_of, read_optimized: see `Table.scan`.

    >>> rows = pa.table({"id": [1, 2], "city": ["ulm", "bonn"], "fare": [3.5, None]})
    >>> table = Table.create("memory://docs/trips", TableSpec("trips", rows, "id", "city"))
    >>> first = table.append(rows)
    >>> scan = table.scan(["id"], "fare is null")
    """

    source: TableContext | AnyTransaction
    columns: Iterable[str] | None = None
    filter: Where = None
    partitions: Iterable[str] | None = None
    as_of: PointInTime = None
    read_optimized: bool = False

    def __post_init__(self) -> None:
        object.__setattr__(self, "columns", given_columns(self.columns))
        object.__setattr__(self, "partitions", given_partitions(self.partitions))
        if self.filter is not None:
            check_kind(self.filter)
        if self.as_of is not None:
            check_version(self.as_of)
        if not isinstance(self.read_optimized, bool):
            raise InvalidInput(f"read_optimized={self.read_optimized!r} must be True or False")

    def to_arrow(self) -> pa.Table:
        """The rows as a pyarrow Table.

        >>> scan.to_arrow().to_pylist()
        [{'id': 2}]
        """
        return arrow.read(**self._asked)

    def to_reader(self) -> pa.RecordBatchReader:
        """The rows batch by batch, however large the table is.

        It holds one row group of one file in memory, and the rows of the log files of one file group.

        Raises:
            HistoryGone: while it reads: a file was cleaned.

        >>> sum(batch.num_rows for batch in scan.to_reader())
        1
        """
        return to_reader(*arrow.plan_read(**self._asked))

    def to_pandas(self) -> Any:
        """The rows as a pandas DataFrame.

        Integers and booleans have pandas' nullable types. Lists, structs and maps are `ArrowDtype`, so that an upsert
        of these rows changes nothing.

        >>> scan.to_pandas()["id"].tolist()
        [2]
        """
        return frames.to_pandas(self.to_arrow())

    def to_polars(self) -> Any:
        """The rows as a polars DataFrame.

        >>> frame = scan.to_polars()  # with the extra `polars`
        """
        with frames.importing("polars"):
            polars = import_module("polars")
        return polars.from_arrow(self.to_arrow())

    def to_duckdb(self, connection: Any = None) -> Any:
        """The rows, in memory, as a DuckDB relation on `connection`, or on DuckDB's default connection.

        DuckDB does not push its columns and filters down: name them in the scan.

        >>> relation = scan.to_duckdb()  # with the extra `duckdb`
        """
        with frames.importing("duckdb"):
            duckdb = import_module("duckdb")
        return (connection or duckdb).from_arrow(self.to_arrow())

    def to_dask(self) -> Any:
        """The rows as a Dask DataFrame, one partition a file; see `engines.dask.read`.

        The files are chosen now, and read when Dask computes: `HistoryGone`, if one was cleaned.

        >>> frame = scan.to_dask()  # with the extra `dask`
        """
        with frames.importing("dask"):
            from lockprovider.table.engines import dask  # noqa: PLC0415 - imported when it is asked for
        return dask.read(**self._asked)

    def count(self) -> int:
        """How many rows there are. It reads one column of the record key, whatever the scan's columns are.

        >>> scan.count()
        1
        """
        return int(replace(self, columns=()).to_arrow().num_rows)

    def plan(self) -> tuple[FileSlice, ...]:
        """The files that a read opens now. It opens none of them, but asks for the table's timeline and files.

        Left out are those of other partitions, and those whose known minima and maxima exclude the filter.

        >>> [one.partition for one in table.scan(filter="city = 'ulm'").plan()]
        ['ulm']
        """
        return arrow.plan_read(**self._asked)[1].slices

    @property
    def _asked(self) -> dict[str, Any]:
        """Its attributes, which are called as the arguments of the engines' functions."""
        return {one.name: getattr(self, one.name) for one in fields(self)}


def short_for(
    scan: Callable[Concatenate[_Of, _Asked], Scan], read: Callable[[Scan], _Rows]
) -> Callable[Concatenate[_Of, _Asked], _Rows]:
    """The method that reads at once, with the arguments of the method `scan`."""

    def method(self: _Of, /, *args: _Asked.args, **kwargs: _Asked.kwargs) -> _Rows:
        return read(scan(self, *args, **kwargs))

    name, returned = read.__name__, get_type_hints(read)["return"]  # resolved here: their module may not know the type
    method.__name__, method.__qualname__ = name, f"{scan.__qualname__.rpartition('.')[0]}.{name}"
    method.__module__, method.__doc__ = scan.__module__, f"Short for `scan(...).{name}()`."
    method.__signature__ = inspect.signature(scan).replace(return_annotation=returned)  # type: ignore[attr-defined]
    return method
