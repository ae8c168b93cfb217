"""JVM Hudi 1.2 and our clustering: it reads what we joined, each runs the other's plans, neither writes past them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from table.mor_tables import COLUMNS, Row, content, rows
from table.tables import executing
from table.test_clustering import KINDS, insert, write_one

from jvm.spark import SHARED, HudiError
from lockprovider import LockSettings
from lockprovider.table import HeartbeatSettings, Table, TableSettings, TableSpec, WriteConflict
from lockprovider.table.doctor.rules import diagnose
from lockprovider.table.format.layout import Action
from lockprovider.table.rewrite import clustering, executor

if TYPE_CHECKING:
    from servers.seaweedfs import SeaweedFS

    from jvm.spark import HudiSpark

pytestmark = pytest.mark.jvm

DDL = "id bigint, part string, value string, ts bigint"
OPTIONS = {
    **SHARED,
    "hoodie.table.name": "t",
    "hoodie.datasource.write.operation": "upsert",
    "hoodie.upsert.shuffle.parallelism": "2",
    "hoodie.parquet.small.file.limit": "0",
}
SETTINGS = TableSettings(lock=LockSettings(timeout=240), heartbeat=HeartbeatSettings(interval_s=300))
START: list[Row] = [(1, "a", "y", 60), *((n, "ab"[n % 2 == 0], "x", 50) for n in range(2, 7))]


@pytest.fixture(params=KINDS)
def table(request: pytest.FixtureRequest, seaweedfs: SeaweedFS) -> Table:
    """Three small files in each of two partitions, and an update."""
    kind = {} if request.param == "copy on write" else {"table_type": "merge_on_read"}
    ordering = None if request.param == "by commit" else "ts"
    spec = TableSpec("t", COLUMNS, ("id",), ("part",), ordering=ordering, **kind)
    options = seaweedfs.storage_options
    made = Table.create(seaweedfs.new_prefix(), spec, storage_options=options, settings=SETTINGS)
    for number in range(3):
        insert(made, (2 * number + 1, "a", "x", 50), (2 * number + 2, "b", "x", 50))
    made.upsert(rows((1, "a", "y", 60)))
    return made


def same(hudi: HudiSpark, table: Table) -> list[Row]:
    """The rows, on which both agree; and doctor has nothing to say."""
    found = content(table)
    theirs = sorted(tuple(row) for row in hudi.read(table.url, COLUMNS.names))
    assert theirs == found
    wrong = [one.what for _, _, found_ in diagnose(table) for one in found_ if one.state == "wrong"]
    assert wrong == []
    return found


def files(table: Table) -> int:
    return len(table.snapshot().slices)


def call(hudi: HudiSpark, table: Table, given: str) -> None:
    options = ",".join(f"{key}={value}" for key, value in SHARED.items())
    hudi.sql(f"call run_clustering(path => '{table.url}', {given}, options => '{options}')")


def test_jvm_reads_and_writes_after_python_clustering(hudi: HudiSpark, table: Table) -> None:
    table.cluster(sort_by=["ts", "id"])
    assert (same(hudi, table), files(table)) == (START, 2)
    hudi.write(table.url, DDL, [(2, "b", "theirs", 70), (8, "a", "theirs", 70)], OPTIONS)
    table.upsert(rows((1, "a", "ours", 80), (2, "b", "ours", 80)))
    expected = [(1, "a", "ours", 80), (2, "b", "ours", 80), *START[2:], (8, "a", "theirs", 70)]
    assert same(hudi, table) == expected
    table.cluster()
    assert same(hudi, table) == expected


def test_jvm_runs_python_clustering_plan_and_writes_nothing_past_it(hudi: HudiSpark, table: Table) -> None:
    begin = table.schedule_clustering(sort_by=["id"])
    assert begin is not None
    with pytest.raises(HudiError, match="Clustering"):
        hudi.write(table.url, DDL, [(1, "a", "theirs", 99)], OPTIONS)
    hudi.write(table.url, DDL, [(9, "a", "theirs", 1)], OPTIONS | {"hoodie.datasource.write.operation": "insert"})
    expected = [*START, (9, "a", "theirs", 1)]
    assert same(hudi, table) == expected
    call(hudi, table, f"op => 'execute', instants => '{begin}'")
    assert table.timeline().pending(Action.CLUSTERING) == ()
    assert table.timeline().written_at(begin) is not None
    assert (same(hudi, table), files(table)) == (expected, 3)


def test_python_runs_jvm_clustering_plan_and_writes_nothing_past_it(hudi: HudiSpark, table: Table) -> None:
    call(hudi, table, "op => 'schedule', order => 'id'")
    (begin,) = table.timeline().pending(Action.CLUSTERING)
    txn = write_one(table)
    with pytest.raises(WriteConflict, match=f"{begin}.clustering.requested"):
        txn.commit()
    txn.rollback()
    assert table.run_clustering(begin).instant == begin
    assert (same(hudi, table), files(table)) == (START, 2)


def test_jvm_finishes_half_done_python_clustering(hudi: HudiSpark, table: Table) -> None:
    begin = table.schedule_clustering(sort_by=["id"])
    assert begin is not None
    with executing(table, begin) as mine:
        assert len(clustering._execute(table, begin, mine, executor.run_in_threads)) == 2
    call(hudi, table, f"op => 'execute', instants => '{begin}'")
    assert (same(hudi, table), files(table)) == (START, 2)
    assert table.timeline().written_at(begin) is not None
