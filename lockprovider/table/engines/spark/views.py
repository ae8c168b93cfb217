"""Temporary views of tables, for Spark SQL."""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from threading import Lock
from typing import Any
from weakref import WeakKeyDictionary

from pyspark.sql import SparkSession

from fsspec_cas import InvalidInput
from lockprovider.table.engines.spark.functions import AUTO, NativeReads, read
from lockprovider.table.read.consistent import PointInTime
from lockprovider.table.read.scan import Where
from lockprovider.table.state.context import TableContext
from lockprovider.table.transaction.transaction import WHOLE_RETRIES, CommitResult, Transaction, transact


@dataclass(frozen=True)
class RegisteredView:
    """Registered view; `is_whole` if it shows the whole current table."""

    name: str
    table: TableContext
    is_whole: bool
    native_reads: NativeReads

    def show(self, spark: SparkSession, source: TableContext | Transaction) -> None:
        """List files, and make the session's view show a table's latest or a transaction's own snapshot."""
        read(spark, source, native_reads=self.native_reads).createOrReplaceTempView(self.name)


_LOG = logging.getLogger(__name__)
SHOWN = Lock()  # held while a view shows a statement's own transaction
_VIEWS: WeakKeyDictionary[SparkSession, dict[str, RegisteredView]] = WeakKeyDictionary()


def register(
    spark: SparkSession,
    source: TableContext | str | os.PathLike[str],
    name: str,
    columns: Sequence[str] | None = None,
    *,
    filter: str | Where = None,  # noqa: A002 - as pyarrow calls it
    as_of: PointInTime = None,
    storage_options: dict[str, Any] | None = None,
    native_reads: NativeReads = AUTO,
) -> None:
    """Make a temporary view: `register(spark, "s3://bucket/trips", "trips")`, for SELECT and `sql`.

    The view shows the table as of now, or of a moment. It follows commits of `sql` through it; register it again to see
    others. Replaces a view of this name. `storage_options` are for a URL only. Other arguments and errors are as for
    `read`.
    """
    if isinstance(source, TableContext) and storage_options is not None:
        raise InvalidInput(f"{source!r} is open: give storage_options with a URL, or leave them out")
    table = source if isinstance(source, TableContext) else TableContext.open(source, storage_options=storage_options)
    rows = read(spark, table, columns, filter=filter, as_of=as_of, native_reads=native_reads)
    rows.createOrReplaceTempView(name)
    is_whole = columns is None and filter is None and as_of is None
    _VIEWS.setdefault(spark, {})[name.lower()] = RegisteredView(name, table, is_whole, native_reads)


def sql(
    spark: SparkSession, text: str, *, retries: int = WHOLE_RETRIES, extra: Mapping[str, str] | None = None
) -> CommitResult:
    """Run MERGE, UPDATE, DELETE or INSERT [OVERWRITE] on a registered view's table, as one transaction.

        sql(spark, "merge into trips using late on trips.id = late.id when matched then update set *", retries=5)

    The statement reads that view as of the transaction, others as the session does. Afterwards the view shows the
    latest commit (an error of this is only logged) or, after an error, maybe what the statement read. SPARK.md has the
    rules of each statement.

    Raises:
        InvalidInput: the text is no supported statement, or names no registered view of a whole table.
        InvalidRecords: the source of a MERGE has a key twice, or a row or column does not fit.
        ModuleNotFoundError: sqlglot is missing.
    """
    if find_spec("sqlglot") is None:
        raise ModuleNotFoundError(
            "sql needs sqlglot, which is not installed: install the extra 'spark' of fsspec-cas", name="sqlglot"
        )
    from lockprovider.table.engines.spark import statement  # noqa: PLC0415 - executors need no parser

    parsed = statement.parse_statement(text)
    view = _writable_view(spark, parsed.target.name)

    def run(txn: Transaction) -> None:
        statement.StatementRun(spark, txn, view, text).run(parsed)

    result = transact(view.table, run, retries=retries, extra=extra)
    try:
        with SHOWN:
            view.show(spark, view.table)
    except Exception:  # noqa: BLE001 - an error would let the caller repeat the statement
        _LOG.exception("the statement is committed, but the view %r does not show it: register it again", view.name)
    return result


def _writable_view(spark: SparkSession, name: str) -> RegisteredView:
    """Registered view; InvalidInput if none, or not of the whole present table."""
    views = _VIEWS.get(spark, {})
    view = views.get(name.lower())
    if view is None:
        names = sorted(registered.name for registered in views.values())
        raise InvalidInput(
            f"no table is registered as {name!r} in this session, which has {names}: "
            f"call register(spark, url, {name!r}) first"
        )
    if not view.is_whole:
        raise InvalidInput(
            f"view {name!r} is a part of its table, or shows the past: to change the table, "
            "register it without columns, filter and as_of"
        )
    return view
