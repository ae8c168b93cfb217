"""JVM Hudi 1.2 upgrades a table of version 8, as Hudi 1.0 has it, while ours write it: nothing is lost, nothing twice.

Nobody has called `share`, by which the table would tell the JVM not to: its jobs are told how to share, each by itself.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from patience import until
from table.tables import content, rows, upsert

from jvm.agreement import all_see, readers_of
from jvm.shared_table import DDL, SETTINGS, Triple
from jvm.spark import HudiError, HudiSpark
from jvm.test_spark_without_settings import MADE
from lockprovider.table import Aborted, Scan, Table
from lockprovider.table.doctor.rules import diagnose
from lockprovider.table.engines import arrow as engine
from lockprovider.table.errors import PropertiesChanged
from lockprovider.table.format.compatibility import FAILED_KEYS, LOCK_KEY, METADATA_KEY, MODE_KEY, SHARED, ZONE_KEY
from lockprovider.table.format.layout import METADATA_TABLE, PROPERTIES
from lockprovider.table.format.properties import parse_properties
from lockprovider.table.transaction.transaction import Transaction

if TYPE_CHECKING:
    from servers.seaweedfs import SeaweedFS

pytestmark = pytest.mark.jvm

KEEPS = replace(SETTINGS, write_metadata=True)
JOB = MADE | {ZONE_KEY: "UTC"} | {key: SHARED[key] for key in (MODE_KEY, LOCK_KEY, *FAILED_KEYS)}
OLDER = {"hoodie.write.table.version": "8", "hoodie.write.auto.upgrade": "false"}
LISTS = {True: {"hoodie.metadata.index.column.stats.enable": "false"}, False: {METADATA_KEY: "false"}}
GIVES_UP_SOON = {
    "hoodie.write.lock.wait_time_ms": "3000",
    "hoodie.write.lock.client.num_retries": "1",
    "hoodie.write.lock.client.wait_time_ms_between_retry": "100",
}
# Else a job that waits for the lock that it holds itself keeps the driver for an hour.
BOUNDED = GIVES_UP_SOON | {"hoodie.write.lock.wait_time_ms": "20000", "hoodie.write.lock.client.num_retries": "3"}


@pytest.mark.parametrize("listed", [True, False], ids=["with a metadata table", "without"])
def test_upgrade_in_the_middle_loses_nothing(hudi: HudiSpark, seaweedfs: SeaweedFS, listed: bool) -> None:
    url, job = seaweedfs.new_prefix(), JOB | LISTS[listed]
    hudi.write(url, DDL, [(1, "a", 1), (2, "b", 2)], job | OLDER | BOUNDED)

    def opened() -> Table:
        return Table.open(url, storage_options=seaweedfs.storage_options, settings=KEEPS)

    table, other = opened(), opened()
    assert table.config().version == 8
    assert table.config().named_metadata == (("files",) if listed else ())
    upsert(table, (1, "a", 10))

    # Between begin and commit: the JVM begins to roll back whatever is pending, and waits for the lock that it has.
    txn = Transaction(opened())
    engine.write(txn, upserts=rows((2, "b", 666), (3, "d", 666)))
    assert len(paths_of(table, txn.begin)) == 2
    with pytest.raises(HudiError, match="Unable to acquire the lock"):
        hudi.write(url, DDL, [(4, "a", 4)], job | GIVES_UP_SOON)
    with pytest.raises(Aborted, match="a rollback of instant"):
        txn.commit()
    txn.rollback()
    assert paths_of(table, txn.begin) == []
    assert opened().config().version == 8

    def is_rolled_back() -> bool:
        """Write until the JVM's rollback is old enough to be finished here: before, a JVM write would wait for it."""
        upsert(table, (2, "b", 20))
        return not table.timeline().pending_rollbacks and not table.timeline().pending_writes

    until(is_rolled_back)

    # Between two commits of one handle, and between the snapshot of a transaction and its first file.
    early = Transaction(other)
    assert {row["value"] for row in Scan(early).to_arrow().to_pylist()} == {10, 20}
    hudi.write(url, DDL, [(4, "a", 4)], job | BOUNDED)
    assert opened().config().version == 9
    if listed:
        assert parse_properties(table.store.read(f"{METADATA_TABLE}/{PROPERTIES}").data).version == 9
    with pytest.raises(PropertiesChanged):
        engine.write(early, upserts=rows((1, "a", 666)))
    early.rollback()
    upsert(other, (3, "d", 3))
    upsert(table, (2, "b", 21))
    expected: set[Triple] = {(1, "a", 10), (2, "b", 21), (3, "d", 3), (4, "a", 4)}
    assert content(table) == expected
    hudi.write(url, DDL, [(5, "b", 5)], job | BOUNDED)
    upsert(table, (5, "b", 50))
    assert all_see(readers_of(table, hudi)) == expected | {(5, "b", 50)}
    said = {rule: [one.what for one in found if one.state == "wrong"] for rule, _, found in diagnose(table)}
    assert [said[rule] for rule in ("R1", "R5", "R6", "R7", "metadata")] == [[]] * 5, "but that it is not shared"


def paths_of(table: Table, begin: str) -> list[str]:
    return sorted(entry.path for entry in table.data_files() if begin in entry.path)
