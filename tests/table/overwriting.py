"""Writes and services for the tests that are more than an upsert."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow.compute as pc
from table.tables import rows

from lockprovider.table import Table
from lockprovider.table.engines.writer import start_for_tasks
from lockprovider.table.transaction.transaction import Transaction, transact


def overwritten(txn: Transaction, partitions: list[str], *triples: tuple[int, str, int]) -> None:
    """Let these rows be all that is in these partitions."""
    txn.end_partitions(partitions, "INSERT_OVERWRITE" if triples else "DELETE_PARTITION")
    writer = start_for_tasks(txn, txn.table.schema(txn.timeline))
    plain, keys, homes = writer.keyed(rows(*triples))
    stats = [
        writer.insert(home, plain.filter(pc.equal(homes, home)), keys.filter(pc.equal(homes, home)), "0-0-0")
        for home in sorted(set(homes.to_pylist()))
    ]
    txn.add(stats)


def overwrite(table: Table, partitions: list[str], *triples: tuple[int, str, int]) -> Any:
    """One transaction that does so."""
    return transact(table, lambda txn: overwritten(txn, partitions, *triples))


def timeline_names(folder: Path) -> set[str]:
    """The file names on the timeline, by the file system itself."""
    return {path.name for path in (folder / ".hoodie" / "timeline").iterdir()}
