"""The metadata table's listing of files, which JVM Hudi's writer made and ours keeps."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from table.tables import SCHEMA, by_hudi_rs, content, rows, upsert

from jvm.shared_table import BEAT_S, DDL, MISSES, SETTINGS, Triple, theirs
from jvm.spark import HudiSpark
from jvm.test_spark_races import KEEPING, race
from jvm.test_spark_without_settings import MADE, NOTHING
from lockprovider import Lease, Pending
from lockprovider.demo.proof import reader_options
from lockprovider.table import KeepActive, KeepCommits, Table
from lockprovider.table.doctor.rules import diagnose
from lockprovider.table.engines import arrow as engine
from lockprovider.table.format.layout import METADATA_TABLE
from lockprovider.table.services import metadata_table
from lockprovider.table.services.metadata_table import MOST_LOGS
from lockprovider.table.state.metadata_table import compacted_at, own_timeline
from lockprovider.table.transaction.transaction import Transaction

if TYPE_CHECKING:
    from servers.seaweedfs import SeaweedFS

pytestmark = pytest.mark.jvm

KEEPS = replace(SETTINGS, write_metadata=True)
BEATS = {
    "hoodie.client.heartbeat.interval_in_ms": str(BEAT_S * 1000),
    "hoodie.client.heartbeat.tolerable.misses": str(MISSES),
}
COMPACTS = {"hoodie.metadata.compact.max.delta.commits": "3"}
SOON = COMPACTS | {"hoodie.clean.commits.retained": "2"} | BEATS


@pytest.fixture
def table(hudi: HudiSpark, seaweedfs: SeaweedFS) -> Table:
    """Theirs, by their defaults, and shared after that."""
    url = seaweedfs.new_prefix()
    hudi.write(url, DDL, [(1, "a", 1), (2, "b", 2)], MADE)
    found = Table.open(url, storage_options=seaweedfs.storage_options, settings=KEEPS)
    assert found.config().version == 9
    assert sorted(found.config().named_metadata) == ["column_stats", "files", "partition_stats"]
    assert found.share()
    assert found.config().named_metadata == ("files",)
    return found


def same(hudi: HudiSpark, table: Table) -> set[Triple]:
    """The rows, on which all agree who list the folders, and all who go by the listing; it is what is there."""
    found = content(table)
    listed = Table.open(
        table.url, storage_options=table.storage_options, settings=replace(SETTINGS, read_from_metadata=True)
    )
    assert content(listed) == found
    assert by_hudi_rs(table.url, reader_options(table.url, table.storage_options, {})) == found
    assert set(hudi.read(table.url, SCHEMA.names, **{"hoodie.metadata.enable": "true"})) == theirs(hudi, table) == found
    said = {rule: findings for rule, _, findings in diagnose(table)}
    assert said["metadata"] == ()
    return found


def test_jvm_reads_and_writes_after_python_without_a_setting(hudi: HudiSpark, table: Table) -> None:
    looks = hudi.looks_at_lock(table.url)
    upsert(table, (1, "a", 10), (3, "c", 3))
    assert same(hudi, table) == {(1, "a", 10), (2, "b", 2), (3, "c", 3)}
    hudi.write(table.url, DDL, [(3, "c", 30), (4, "a", 4)], NOTHING)
    assert hudi.looks_at_lock(table.url) > looks
    assert same(hudi, table) == {(1, "a", 10), (2, "b", 2), (3, "c", 30), (4, "a", 4)}
    for turn in range(4):
        upsert(table, (4, "a", turn))
    table.delete(rows((1, "a", 0)).drop(["value"]))
    hudi.write(table.url, DDL, [(2, "b", 20)], SOON)  # cleans, and compacts the metadata table
    assert same(hudi, table) == {(2, "b", 20), (3, "c", 30), (4, "a", 3)}
    table.overwrite(rows((5, "b", 5)), partitions=["b"])
    hudi.write(table.url, DDL, [(6, "b", 6)], SOON)
    assert same(hudi, table) == {(3, "c", 30), (4, "a", 3), (5, "b", 5), (6, "b", 6)}
    assert table.config().named_metadata == ("files",)
    assert [e for e in table.store.list(f"{METADATA_TABLE}/files/") if e.path.endswith(".hfile")][1:], "none compacted"


def test_jvm_writes_after_python_compacted_the_listing_or_died_at_it(
    hudi: HudiSpark, table: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    for turn in range(3 * MOST_LOGS + 1):  # three times, so that the oldest of its files are removed
        upsert(table, (1, "a", turn), (3 + turn % 2, "c", turn))
    files = [entry.path for entry in table.store.list(f"{METADATA_TABLE}/files/")]
    assert not [path for path in files if f"_{'0' * 17}." in path]
    assert not [i for i in own_timeline(table.store).instants if i.begin == "0" * 17], "so are its oldest instants"
    compacted = compacted_at(own_timeline(table.store))
    assert compacted
    found = {(1, "a", 30), (2, "b", 2), (3, "c", 30), (4, "c", 29)}
    assert same(hudi, table) == found
    hudi.write(table.url, DDL, [(2, "b", 20)], NOTHING)
    found = found - {(2, "b", 2)} | {(2, "b", 20)}
    assert same(hudi, table) == found
    publish = Lease.publish

    def dies(lease: Lease, path: str, data: bytes) -> None:
        if path.endswith(".commit"):
            raise Died
        publish(lease, path, data)

    monkeypatch.setattr(Lease, "publish", dies)
    with table.lock.acquire() as lease, pytest.raises(Died):
        metadata_table.compact(table, lease, own_timeline(table.store))
    monkeypatch.undo()
    assert same(hudi, table) == found
    for turn in range(4):
        hudi.write(table.url, DDL, [(1, "a", 100 + turn)], SOON)
    assert compacted_at(own_timeline(table.store)) > compacted
    found = found - {(1, "a", 30)} | {(1, "a", 103)}
    assert same(hudi, table) == found
    upsert(table, (5, "b", 5))
    assert same(hudi, table) == found | {(5, "b", 5)}


def test_listing_of_merge_on_read_table_is_kept(
    hudi: HudiSpark, seaweedfs: SeaweedFS, monkeypatch: pytest.MonkeyPatch
) -> None:
    url, has_logs = seaweedfs.new_prefix(), {"hoodie.datasource.write.table.type": "MERGE_ON_READ"}
    hudi.write(url, DDL, [(1, "a", 1), (2, "b", 2)], MADE | has_logs)
    table = Table.open(url, storage_options=seaweedfs.storage_options, settings=KEEPS)
    table.share()
    upsert(table, (1, "a", 10), (3, "c", 3))
    table.delete(rows((2, "b", 0)).drop(["value"]))
    assert same(hudi, table) == {(1, "a", 10), (3, "c", 3)}
    hudi.write(url, DDL, [(1, "a", 11), (4, "b", 4)], NOTHING)
    assert same(hudi, table) == {(1, "a", 11), (3, "c", 3), (4, "b", 4)}
    assert table.compact()
    upsert(table, (3, "c", 30))
    assert same(hudi, table) == {(1, "a", 11), (3, "c", 30), (4, "b", 4)}
    died_at_the_decision(table, monkeypatch, done=True)
    for turn in range(4):
        hudi.write(url, DDL, [(4, "b", turn)], SOON)
    assert same(hudi, table) == {(1, "a", 11), (3, "c", 30), (4, "b", 3)}
    table.sweep()
    upsert(table, (3, "c", 31))
    assert table.compact()
    table.clean(KeepCommits(1))
    assert same(hudi, table) == {(1, "a", 11), (3, "c", 31), (4, "b", 3)}
    for turn in range(MOST_LOGS + 1):
        upsert(table, (8, "a", turn))
    assert table.cluster()
    hudi.write(url, DDL, [(8, "a", 80)], SOON)
    assert same(hudi, table) == {(1, "a", 11), (3, "c", 31), (4, "b", 3), (8, "a", 80)}


class Died(BaseException):
    """The process is gone."""


def died_at_the_decision(table: Table, monkeypatch: pytest.MonkeyPatch, *, done: bool) -> str:
    """A writer died right before it; or halfway through its end, which a JVM writer that takes the lock forgets."""
    dead = Table.open(table.url, storage_options=table.storage_options, settings=KEEPS)

    def dies(lease: Lease, pending: Pending, data: bytes, *, new: bool) -> None:
        del lease, data, new
        if done:
            assert pending.first is not None
            dead.store.put_if_absent(pending.first.path, pending.first.data or b"").unwrap()
        raise Died

    monkeypatch.setattr(Lease, "publish", dies)
    txn = Transaction(dead)
    engine.write(txn, upserts=rows((1, "a", 666), (7, "c", 666)))
    with pytest.raises(Died):
        txn.commit()
    monkeypatch.undo()
    txn.leave()
    return txn.begin


def test_jvm_writes_after_python_cleans(hudi: HudiSpark, table: Table) -> None:
    for turn in range(3):
        upsert(table, (1, "a", turn))
    (done,) = table.clean(KeepCommits(1))
    assert len(done.files["a"]) >= 2
    assert same(hudi, table) == {(1, "a", 2), (2, "b", 2)}
    for turn in range(4):
        hudi.write(table.url, DDL, [(1, "a", 10 + turn)], SOON)
    assert same(hudi, table) == {(1, "a", 13), (2, "b", 2)}
    upsert(table, (2, "b", 20))
    table.clean(KeepCommits(1))
    assert same(hudi, table) == {(1, "a", 13), (2, "b", 20)}
    hudi.write(table.url, DDL, [(1, "a", 100)], SOON)
    assert same(hudi, table) == {(1, "a", 100), (2, "b", 20)}


def test_jvm_writes_after_python_clustering_archival_and_restore(hudi: HudiSpark, table: Table) -> None:
    """What `share` wrote tells our writers, too."""
    ours = Table.open(
        table.url, storage_options=table.storage_options, settings=replace(SETTINGS, retention=KeepCommits(1))
    )
    for number in range(3):
        ours.append(rows((10 + number, "a", number)))
    all_rows = {(1, "a", 1), (2, "b", 2), (10, "a", 0), (11, "a", 1), (12, "a", 2)}
    assert ours.cluster()
    assert same(hudi, ours) == all_rows
    assert "never compacted" in ours.archive(KeepActive(1, 2)).held
    for turn in range(4):
        hudi.write(table.url, DDL, [(2, "b", turn)], SOON)
    kept = ours.savepoint()
    all_rows = all_rows - {(2, "b", 2)} | {(2, "b", 3)}
    assert same(hudi, ours) == all_rows
    ours.delete_savepoint(kept)
    assert ours.archive(KeepActive(1, 2)).instants, "there was no compaction"
    assert same(hudi, ours) == all_rows
    hudi.write(table.url, DDL, [(2, "b", 4)], SOON)
    assert same(hudi, ours) == all_rows - {(2, "b", 3)} | {(2, "b", 4)}
    before = ours.timeline().writes[-1].begin
    upsert(ours, (2, "b", 5))
    ours.restore(before)
    assert ours.config().named_metadata == ()
    hudi.write(table.url, DDL, [(1, "a", 7)], NOTHING)
    assert content(ours) == theirs(hudi, ours) == all_rows - {(2, "b", 3), (1, "a", 1)} | {(2, "b", 4), (1, "a", 7)}


@pytest.mark.parametrize("done", [0, 1], ids=["pending there", "completed there, pending here"])
def test_jvm_writes_after_a_python_writer_died(
    hudi: HudiSpark, table: Table, monkeypatch: pytest.MonkeyPatch, done: int
) -> None:
    begin = died_at_the_decision(table, monkeypatch, done=bool(done))
    prefix = f"{METADATA_TABLE}/.hoodie/timeline/"
    left_there = [e.path for e in table.store.list(prefix + begin)]
    assert len(left_there) == 2 + done
    assert same(hudi, table) == {(1, "a", 1), (2, "b", 2)}
    for turn in range(4):
        hudi.write(table.url, DDL, [(2, "b", turn)], SOON)
        assert same(hudi, table) == {(1, "a", 1), (2, "b", turn)}
    table.sweep()
    upsert(table, (7, "c", 7))
    assert same(hudi, table) == {(1, "a", 1), (2, "b", 3), (7, "c", 7)}
    assert not [e.path for e in table.data_files() if begin in e.path]
    assert not [e.path for e in table.store.list(prefix + begin) if e.path.endswith("flight")]


def test_no_update_is_lost_in_a_race(hudi: HudiSpark, table: Table) -> None:
    upsert(table, (1, "a", 1))  # as many commits come before as in a table of ours
    race(hudi, table, turns=3, options=KEEPING | COMPACTS | {"hoodie.metadata.enable": "true"})
    same(hudi, table)
