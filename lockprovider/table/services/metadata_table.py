"""Retire a metadata table: a listing of the files that only JVM Hudi keeps, and that hides every commit not in it.

Under the table lock the properties stop naming it, and tell Spark's writers to make none, with one conditional write;
from then on readers list the folders. Then it is removed. JVM writers that do not look there (HoodieStreamer, Flink,
the Java client) build it anew, with all commits in it: set `hoodie.metadata.enable=false` on them first.

Source: Hudi `HoodieTableMetadataUtil.deleteMetadataTable`, `HoodieTableConfig`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from lockprovider.table.format.layout import METADATA_TABLE
from lockprovider.table.format.writer_settings import without_metadata_table
from lockprovider.table.services import plans

if TYPE_CHECKING:
    from lockprovider import Lease
    from lockprovider.table.state.context import TableContext


def retire_metadata_table(table: TableContext) -> int:
    """Stop using the metadata table, and remove it: how many of its files there were. Safe to repeat.

    Readers that had opened the table before may fail once, and then see it right.

    Raises:
        TableNotFound: there is no `hoodie.properties`.
        Aborted: a write is pending, whose writer may be building the metadata table; nothing was changed.
        VersionMismatch: a writer that does not take the lock changed the properties at the same moment; try again.
        NotAcquired, CasError: the lock or the store; may be repeated.
    """
    with table.lock.acquire() as lease:
        if table.config().named_metadata or table.store.list(f"{METADATA_TABLE}/"):
            plans.check_no_write(table)
        return retire(table, lease)


def retire(table: TableContext, lease: Lease) -> int:
    """The same, under a lock that is held, by one that knows that no pending write can be completed."""
    plans.change_properties(table, lease, without_metadata_table)
    entries = table.store.list(f"{METADATA_TABLE}/")
    for entry in entries:
        table.store.delete(entry.path)
    return len(entries)
