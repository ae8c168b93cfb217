"""Run a function in transactions until one commits or the retries are used up; create tables, and add columns.

Each attempt has a fresh snapshot, so the function must read through its transaction.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import pyarrow as pa

from fsspec_cas import InvalidInput, Store, Won, check_url
from fsspec_cas.arguments import check_whole
from fsspec_cas.sender import delay_s
from lockprovider import AuditLog
from lockprovider.table.errors import InvalidRecords, PropertiesChanged, TableExists
from lockprovider.table.format.compatibility import as_non_blocking, shared
from lockprovider.table.format.layout import PROPERTIES
from lockprovider.table.format.properties import TableConfig, encode_properties
from lockprovider.table.settings import Mode, TableSettings, checked_table_settings
from lockprovider.table.spec import TableSpec
from lockprovider.table.state.context import TableContext
from lockprovider.table.state.events import Watcher, ignore_event
from lockprovider.table.transaction.transaction import CommitResult, Face, Transaction

WHOLE_RETRIES = 3  # if all rows are given; a function runs once by default
_RESTARTS = 10


def transact(
    table: TableContext,
    fn: Callable[[Any], object],
    *,
    retries: int = 0,
    extra: Mapping[str, str] | None = None,
    check_keys: bool | None = None,
    pinned: bool = True,
    face: Face | None = None,
) -> CommitResult:
    """Call `fn` with a transaction, commit it, and return the result; repeat in a new one after a conflict.

    A removed file counts as a conflict. After each conflict it rolls back; up to `retries` times it reports, pauses and
    repeats. If the properties changed before the begin, it repeats up to `_RESTARTS` times more, but with `face` and no
    retries it raises. Other errors roll back and are raised. `face` wraps the transaction that `fn` gets.
    """
    _check_call(table, fn, extra)
    retries, conflicts, restarts = check_whole(retries, "retries"), 0, 0
    while True:
        txn = Transaction(table, pinned=pinned)
        handle = txn if face is None else face(txn)
        txn.extra.update(extra or {})
        txn.check_keys = txn.check_keys if check_keys is None else check_keys
        try:
            fn(handle)
            result = handle.commit(conflicts=conflicts)
        except PropertiesChanged:
            txn.rollback()  # it has not begun: this is no conflict
            restarts += 1
            if restarts > _RESTARTS or (face is not None and not retries):  # the function may have used up its input
                raise
            table.world.sleep(delay_s(restarts, table.world.random()))
        except Exception as error:
            conflicts += 1
            txn.rollback()
            if conflicts > retries or not txn.lost_to_others(error):
                raise
            table.report("retry", txn.begin, conflicts=conflicts)
            table.world.sleep(delay_s(conflicts, table.world.random()))
        except BaseException:
            txn.rollback()
            raise
        else:
            return result


def _check_call(table: object, fn: object, extra: object) -> None:
    """Raise `InvalidInput` if `table` is no `TableContext`, `fn` not callable, or `extra` no mapping of texts."""
    if not isinstance(table, TableContext):
        raise InvalidInput(f"table is a {type(table).__name__}, and must be a Table: Table.open(url)")
    if not callable(fn):
        raise InvalidInput(f"fn={fn!r} must be a function of a transaction")
    if extra is not None and not _is_text(extra):
        raise InvalidInput(f"extra={extra!r} must be names and texts: it goes into the commit's metadata as JSON text")


def _is_text(extra: object) -> bool:
    return isinstance(extra, Mapping) and all(isinstance(text, str) for pair in extra.items() for text in pair)


# Source of creation and new columns: Hudi `HoodieTableMetaClient`, `HoodieSparkSqlWriter`.
_Table = TypeVar("_Table", bound=TableContext)


def create_table(
    kind: type[_Table],
    url: str | os.PathLike[str],
    spec: TableSpec,
    *,
    storage_options: dict[str, Any] | None = None,
    settings: TableSettings | None = None,
    watcher: Watcher = ignore_event,
    exist_ok: bool = False,
) -> _Table:
    """Store the properties of a new table, commit an empty write, and return the table as a `kind`.

    Raises `TableExists` if `url` has a table; with `exist_ok` it opens that, unless keys, fields, names of folders,
    type or buckets differ.
    """
    url = check_url(url)
    if not isinstance(spec, TableSpec):
        raise InvalidRecords(f"spec must be TableSpec(name, schema, ('id',)), not {type(spec).__name__}")
    settings = checked_table_settings(settings)
    config = spec.with_index(settings.index).config()
    config = shared(as_non_blocking(config) if settings.mode is Mode.NON_BLOCKING else config)
    settings.check(config)
    store, data = Store.from_url(url, storage_options), encode_properties(config)
    audit = AuditLog(store)
    table = kind(store, url, storage_options=storage_options, settings=settings, watcher=watcher, audit=audit)
    table.lock.require_safe_store()
    if not isinstance(store.put_if_absent(PROPERTIES, data), Won):
        if not exist_ok:
            raise TableExists(f"there is a table at {url!r} already; open it with Table.open, or pass exist_ok=True")
        existing = kind.open(url, storage_options=storage_options, settings=settings, watcher=watcher)
        _check_same(existing, config)
        return existing
    # A failed write's file older than the whole timeline would be visible: a first commit prevents that.
    transact(table, lambda txn: txn.add(()))
    return table


def _check_same(table: TableContext, config: TableConfig) -> None:
    """Read the table's properties; raise `TableExists` if keys, fields, folders, type or buckets are not `config`'s."""
    existing = table.config()
    names = ["record_keys", "partition_fields", "ordering_fields", "table_type", "bucket_index"]
    names += ["hive_style", "url_encode"] if config.partition_fields else []
    for name in names:
        if getattr(existing, name) != getattr(config, name):
            raise TableExists(
                f"there is another table at {table.url!r}: its {name} are {getattr(existing, name)}, not "
                f"{getattr(config, name)}; open it with Table.open, or create this one elsewhere"
            )


def add_columns(table: TableContext, columns: pa.Schema, *, retries: int) -> CommitResult:
    """Add columns in a commit of their own, as `Table.add_columns` does."""

    def run(txn: Transaction) -> None:
        txn.add_columns(columns)
        txn.add(())

    return transact(table, run, retries=retries, extra={"added_columns": ",".join(columns.names)})
