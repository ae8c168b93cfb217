"""`Scan`: lazy reads."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from importlib import import_module
from typing import Any, Concatenate, ParamSpec, TypeVar, get_type_hints

import pyarrow as pa
from pyarrow import types

from fsspec_cas import InvalidInput, NotSupported
from fsspec_cas.arguments import check_flag
from lockprovider.table.files.place import TablePlace
from lockprovider.table.read import consistent
from lockprovider.table.read.consistent import PointInTime
from lockprovider.table.read.filters import check_kind
from lockprovider.table.read.scan import ScanPlan, Where, checked_columns, to_reader, to_table
from lockprovider.table.state.context import TableContext
from lockprovider.table.timeline.versions import check_version
from lockprovider.table.timeline.view import FileSlice, Snapshot, given_partitions
from lockprovider.table.transaction.transaction import AnyTransaction, inside

_Of = TypeVar("_Of")
_Asked = ParamSpec("_Asked")
_Rows = TypeVar("_Rows")


@dataclass(frozen=True, slots=True, eq=False)
class Scan:
    """Description of a read of table rows, made by `Table.scan`, which lists attributes and errors.

    Immutable and thread-safe. Only its methods read: each as of its call or, with `as_of` or in a transaction, always
    the same rows.

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
        object.__setattr__(self, "columns", checked_columns(self.columns))
        object.__setattr__(self, "partitions", given_partitions(self.partitions))
        if self.filter is not None:
            check_kind(self.filter)
        if self.as_of is not None:
            check_version(self.as_of)
        check_flag(self.read_optimized, "read_optimized")

    def to_arrow(self) -> pa.Table:
        """Read the rows as a pyarrow Table.

        >>> scan.to_arrow().to_pylist()
        [{'id': 2}]
        """
        if not isinstance(self.source, TableContext):
            return to_table(*resolve_scan(self))
        arguments = self.columns, self.filter, self.partitions, self.as_of
        return consistent.rows(self.source, *arguments, read_optimized=self.read_optimized)

    def to_reader(self) -> pa.RecordBatchReader:
        """Read the rows batch by batch.

        Memory holds one file's row group, and the log rows of one file group.

        Raises:
            HistoryGone: a file was cleaned during the read.

        >>> sum(batch.num_rows for batch in scan.to_reader())
        1
        """
        return to_reader(*resolve_scan(self))

    def to_pandas(self) -> Any:
        """Read the rows as a pandas DataFrame.

        Integers and booleans have nullable types; lists, structs and maps are `ArrowDtype`.

        >>> scan.to_pandas()["id"].tolist()
        [2]
        """
        return to_pandas(self.to_arrow())

    def to_polars(self) -> Any:
        """Read the rows as a polars DataFrame.

        >>> frame = scan.to_polars()  # with the extra `polars`
        """
        with optional_import("polars"):
            polars = import_module("polars")
        return polars.from_arrow(self.to_arrow())

    def to_duckdb(self, connection: Any = None) -> Any:
        """Read the rows into memory as a DuckDB relation on `connection` (None: DuckDB's default).

        Name columns and filters in the scan: DuckDB does not push them down.

        >>> relation = scan.to_duckdb()  # with the extra `duckdb`
        """
        with optional_import("duckdb"):
            duckdb = import_module("duckdb")
        return (connection or duckdb).from_arrow(self.to_arrow())

    def to_dask(self) -> Any:
        """Describe the rows as a Dask DataFrame; see `engines.dask.read`.

        >>> frame = scan.to_dask()  # with the extra `dask`
        """
        with optional_import("dask"):
            from lockprovider.table.engines import dask  # noqa: PLC0415 - imported when it is asked for
        return dask.read(self)

    def count(self) -> int:
        """Count the rows. Reads one of Hudi's own columns.

        >>> scan.count()
        1
        """
        return int(replace(self, columns=()).to_arrow().num_rows)

    def plan(self) -> tuple[FileSlice, ...]:
        """List the files that a read would open now.

        >>> [one.partition for one in table.scan(filter="city = 'ulm'").plan()]
        ['ulm']
        """
        return resolve_scan(self)[1].slices


def resolve_scan(scan: Scan) -> tuple[TablePlace, ScanPlan]:
    """Plan a scan, which fixes its files; lists files, for a transaction only once."""
    table, snapshot = source_snapshot(scan.source, scan.as_of)
    arguments = scan.columns, scan.filter, scan.partitions
    config = None if isinstance(scan.source, TableContext) else inside(scan.source).config
    plan = consistent.plan(table, snapshot, *arguments, read_optimized=scan.read_optimized, config=config)
    return table.place, plan


def source_snapshot(source: TableContext | AnyTransaction, as_of: PointInTime) -> tuple[TableContext, Snapshot]:
    """Table and its snapshot, cached or listed; `as_of` for a transaction raises InvalidInput."""
    if isinstance(source, TableContext):
        return source, consistent.snapshot(source, as_of)
    if as_of is not None:
        raise InvalidInput("a transaction reads its own snapshot: read the past from the table")
    txn = inside(source)
    return txn.table, txn.snapshot


def short_for(
    scan: Callable[Concatenate[_Of, _Asked], Scan], read: Callable[[Scan], _Rows]
) -> Callable[Concatenate[_Of, _Asked], _Rows]:
    """Make a method, named like `read`, that passes its arguments to `scan`, and returns `read` of the result."""

    def method(self: _Of, /, *args: _Asked.args, **kwargs: _Asked.kwargs) -> _Rows:
        return read(scan(self, *args, **kwargs))

    # Resolved here: the new method's module may not know the type.
    name, returned = read.__name__, get_type_hints(read)["return"]
    method.__name__, method.__qualname__ = name, f"{scan.__qualname__.rpartition('.')[0]}.{name}"
    method.__module__, method.__doc__ = scan.__module__, f"Short for `scan(...).{name}()`."
    method.__signature__ = inspect.signature(scan).replace(return_annotation=returned)  # type: ignore[attr-defined]
    return method


def to_pandas(rows: pa.Table, *, plain: bool = True) -> Any:
    """Convert rows to pandas; an upsert writes them back unchanged, but NaN as null. NotSupported without pandas.

    Integers and booleans are nullable, nested columns `ArrowDtype`; dates, decimals, bytes are Python objects or,
    without `plain`, `ArrowDtype`.
    """
    with optional_import("pandas"):
        pandas = import_module("pandas")
    nullable = {pa.bool_(): pandas.BooleanDtype(), pa.int32(): pandas.Int32Dtype(), pa.int64(): pandas.Int64Dtype()}

    def mapper(kind: pa.DataType) -> Any:
        keeps = types.is_nested(kind) or (
            not plain and (types.is_date(kind) or types.is_decimal(kind) or types.is_binary(kind))
        )
        return pandas.ArrowDtype(kind) if keeps else nullable.get(kind)

    return rows.to_pandas(types_mapper=mapper)


@contextmanager
def optional_import(name: str) -> Iterator[None]:
    """A missing library raises NotSupported with its extra."""
    try:
        yield
    except ModuleNotFoundError as error:
        raise NotSupported(f"{name} is not installed: install the extra {name!r} of fsspec-cas") from error
