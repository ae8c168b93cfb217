"""What the tests of both writers have in common: a table on the object store, and how theirs is told to write."""

from __future__ import annotations

from typing import TYPE_CHECKING

from patience import PATIENCE_S
from table.tables import SCHEMA, SPEC, upsert

from jvm.spark import SHARED, HudiSpark
from lockprovider import LockSettings
from lockprovider.table import HeartbeatSettings, Table, TableSettings, TableSpec

if TYPE_CHECKING:
    from servers.seaweedfs import SeaweedFS

Triple = tuple[int, str, int]
DDL = "id bigint, part string, value bigint"
# Theirs and ours agree on when a writer is dead.
BEAT_S, MISSES = 2, 3
SETTINGS = TableSettings(
    lock=LockSettings(timeout=PATIENCE_S), heartbeat=HeartbeatSettings(interval_s=BEAT_S, misses=MISSES)
)
OPTIONS = {
    **SHARED,
    "hoodie.table.name": SPEC.name,
    "hoodie.datasource.write.operation": "upsert",
    "hoodie.client.heartbeat.interval_in_ms": str(BEAT_S * 1000),
    "hoodie.client.heartbeat.tolerable.misses": str(MISSES),
    "hoodie.upsert.shuffle.parallelism": "2",
}


def new_table(server: SeaweedFS, spec: TableSpec = SPEC, settings: TableSettings = SETTINGS) -> Table:
    """Ours, with a row in each of two partitions."""
    table = Table.create(server.new_prefix(), spec, settings=settings, storage_options=server.storage_options)
    upsert(table, (1, "a", 1), (2, "b", 2))
    return table


def theirs(hudi: HudiSpark, table: Table) -> set[Triple]:
    found = hudi.read(table.url, SCHEMA.names)
    assert len(found) == len(set(found))
    return {(int(key), str(part), int(value)) for key, part, value in found}
