"""Retire a metadata table: a listing of the files that only JVM Hudi keeps, and that hides every commit not in it.

Under the table lock the properties stop naming it, with one conditional write; from then on readers list the folders.
Then it is removed. A JVM writer that may have one builds it anew, with all commits in it: set
`hoodie.metadata.enable=false` on all of them first.

Source: Hudi `HoodieTableMetadataUtil.deleteMetadataTable`, `HoodieTableConfig`.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from lockprovider.table.format.layout import METADATA_TABLE
from lockprovider.table.services import plans

if TYPE_CHECKING:
    from lockprovider.table.state.context import TableContext

_HADOOP_CHECKSUM = ".hoodie/.hoodie.properties.crc"  # on local disks only; JVM readers would find it wrong


def retire_metadata_table(table: TableContext) -> int:
    """Stop using the metadata table, and remove it: how many of its files there were. Safe to repeat.

    Readers that had opened the table before may fail once, and then see it right.

    Raises:
        TableNotFound: there is no `hoodie.properties`.
        VersionMismatch: a writer that does not take the lock changed the properties at the same moment; try again.
        NotAcquired, CasError: the lock or the store; may be repeated.
    """
    with table.lock.acquire() as lease:
        plans.change_properties(table, lease, lambda config: replace(config, metadata_partitions=()))
        table.store.delete(_HADOOP_CHECKSUM)
        entries = table.store.list(f"{METADATA_TABLE}/")
        for entry in entries:
            table.store.delete(entry.path)
    return len(entries)
