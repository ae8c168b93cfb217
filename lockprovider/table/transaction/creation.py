"""Creation of a table, and of columns.

Source: Hudi `HoodieTableMetaClient`, `HoodieSparkSqlWriter`.
"""

from __future__ import annotations

import os
from typing import Any, TypeVar

import pyarrow as pa

from fsspec_cas import InvalidInput, Store, check_url
from fsspec_cas.outcome import won_or_lost
from lockprovider import AuditLog
from lockprovider.table.errors import TableExists
from lockprovider.table.format.compatibility import as_non_blocking, shared
from lockprovider.table.format.layout import PROPERTIES
from lockprovider.table.format.properties import TableConfig, encode_properties
from lockprovider.table.settings import Mode, TableSettings, checked_table_settings
from lockprovider.table.spec import TableSpec
from lockprovider.table.state.context import TableContext
from lockprovider.table.state.events import Watcher, ignore_event
from lockprovider.table.transaction.transaction import CommitResult, Transaction, transact

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
    """Check the store, write a table's properties, commit an empty write, return the table.

    Raises `TableExists` if there is one; with `exist_ok` it opens that, unless `_check_same` refuses, and makes its
    first commit if it has none. Raises `InvalidSettings` for settings that do not fit. A failed commit leaves the
    properties.
    """
    url = check_url(url)
    if not isinstance(spec, TableSpec):
        raise InvalidInput(f"spec must be TableSpec(name, schema, ('id',)), not {type(spec).__name__}")
    settings = checked_table_settings(settings)
    config = spec.with_index(settings.index).config()
    config = shared(as_non_blocking(config) if settings.mode is Mode.NON_BLOCKING else config)
    settings.check(config)
    store, data = Store.from_url(url, storage_options), encode_properties(config)
    audit = AuditLog(store)
    table = kind(store, url, storage_options=storage_options, settings=settings, watcher=watcher, audit=audit)
    table.lock.require_safe_store()
    if not won_or_lost(store.put_if_absent(PROPERTIES, data)):
        if not exist_ok:
            raise TableExists(f"there is a table at {url!r} already; open it with Table.open, or pass exist_ok=True")
        table = kind.open(url, storage_options=storage_options, settings=settings, watcher=watcher)
        _check_same(table, config)
        if table.timeline().writes:
            return table  # else its creator may be dead
    # Without a first commit, a failed write's file older than the timeline would be visible.
    transact(table, lambda txn: txn.add(()))
    return table


def _check_same(table: TableContext, config: TableConfig) -> None:
    """Read properties; raise `TableExists` if keys, partitions (or form), ordering, type or index differ."""
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
    """Add columns in a commit of their own."""

    def run(txn: Transaction) -> None:
        txn.add_columns(columns)
        txn.add(())

    return transact(table, run, retries=retries, extra={"added_columns": ",".join(columns.names)})
