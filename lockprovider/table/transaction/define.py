"""A table comes to be, or gets more columns: each in a commit of its own.

Source: Hudi `HoodieTableMetaClient`, `HoodieSparkSqlWriter`.
"""

from __future__ import annotations

import os
from typing import Any, TypeVar

import pyarrow as pa

from fsspec_cas import Store, Won, check_url
from lockprovider import AuditLog
from lockprovider.table.errors import InvalidRecords, TableExists
from lockprovider.table.format.layout import PROPERTIES
from lockprovider.table.format.properties import TableConfig, encode_properties
from lockprovider.table.format.writer_settings import shared, without_blocking
from lockprovider.table.settings import Mode, TableSettings, checked_table_settings
from lockprovider.table.spec import TableSpec
from lockprovider.table.state.context import TableContext
from lockprovider.table.state.events import Watcher, nobody
from lockprovider.table.transaction.retry import transact
from lockprovider.table.transaction.transaction import CommitResult, Transaction

_Table = TypeVar("_Table", bound=TableContext)


def create_table(
    kind: type[_Table],
    url: str | os.PathLike[str],
    spec: TableSpec,
    *,
    storage_options: dict[str, Any] | None = None,
    settings: TableSettings | None = None,
    watcher: Watcher = nobody,
    exist_ok: bool = False,
) -> _Table:
    """See `Table.create`."""
    url = check_url(url)
    if not isinstance(spec, TableSpec):
        raise InvalidRecords(f"spec must be TableSpec(name, schema, ('id',)), not {type(spec).__name__}")
    settings = checked_table_settings(settings)
    config = spec.with_index(settings.index).config()
    config = shared(without_blocking(config) if settings.mode is Mode.NON_BLOCKING else config)
    settings.check(config)
    store, data = Store.from_url(url, storage_options), encode_properties(config)
    audit = AuditLog(store)
    table = kind(store, url, storage_options=storage_options, settings=settings, watcher=watcher, audit=audit)
    table.lock.require_safe_store()
    if not isinstance(store.put_if_absent(PROPERTIES, data), Won):
        if not exist_ok:
            raise TableExists(f"there is a table at {url!r} already; open it with Table.open, or create it exist_ok")
        found = kind.open(url, storage_options=storage_options, settings=settings, watcher=watcher)
        _check_same(found, config)
        return found
    # So that no file of a failed first write can be older than the whole timeline, which would make it visible.
    transact(table, lambda txn: txn.add(()))
    return table


def _check_same(table: TableContext, config: TableConfig) -> None:
    there = table.config()
    for name in ("record_keys", "partition_fields", "ordering_fields", "table_type", "bucket_index"):
        if getattr(there, name) != getattr(config, name):
            raise TableExists(
                f"there is another table at {table.url!r}: its {name} are {getattr(there, name)}, not "
                f"{getattr(config, name)}; open it with Table.open, or create this one elsewhere"
            )


def add_columns(table: TableContext, columns: pa.Schema, *, retries: int) -> CommitResult:
    """See `Table.add_columns`."""

    def run(txn: Transaction) -> None:
        txn.add_columns(columns)
        txn.add(())

    return transact(table, run, retries=retries, extra={"added_columns": ",".join(columns.names)})
