"""JVM Hudi goes on where we archived, and we where it did; and each reads what is in the archive of the other."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from table.overwriting import overwrite
from table.tables import content, rows, upsert

from jvm.shared_table import DDL, OPTIONS, SETTINGS, new_table, theirs
from jvm.spark import HudiSpark
from lockprovider.table import KeepActive, KeepCommits, KeepVersions, Table
from lockprovider.table.doctor.rules import diagnose
from lockprovider.table.engines import arrow
from lockprovider.table.errors import AlreadyCommitted
from lockprovider.table.format.lsm import parse_file
from lockprovider.table.state import archive_index
from lockprovider.table.timeline.conflict import BatchId
from lockprovider.table.transaction.transaction import Transaction, transact

if TYPE_CHECKING:
    from servers.seaweedfs import SeaweedFS

pytestmark = pytest.mark.jvm

FEW = replace(SETTINGS, retention=KeepCommits(1), archival=KeepActive(2, 3))
SHORT = OPTIONS | {
    "hoodie.clean.commits.retained": "1",
    "hoodie.keep.min.commits": "2",
    "hoodie.keep.max.commits": "3",
    "hoodie.timeline.compaction.batch.size": "3",
}


def opened(server: SeaweedFS) -> Table:
    return Table.open(new_table(server).url, storage_options=server.storage_options, settings=FEW)


def completed(table: Table) -> dict[str, bytes]:
    """The contents of the completed writes, cleans and rollbacks on the timeline, by name."""
    names = [i.file_name for i in table.timeline().instants if i.is_completed]
    return {name: table.store.read(f".hoodie/timeline/{name}").data for name in names}


def levels(table: Table) -> set[int]:
    return {
        span.level
        for name in archive_index.read_history(table.knowledge).files
        if (span := parse_file(name)) is not None
    }


def healthy(table: Table) -> None:
    wrong = [one.what for _, _, found in diagnose(table) for one in found if one.state == "wrong"]
    assert wrong == []


def batch(table: Table, number: int) -> None:
    def run(txn: object) -> None:
        txn.exactly_once(BatchId("orders", number))  # type: ignore[attr-defined]
        arrow.write(txn, upserts=rows((50, "o", number)))  # type: ignore[arg-type]

    transact(table, run)


def test_jvm_reads_writes_and_archives_after_python_archived(hudi: HudiSpark, seaweedfs: SeaweedFS) -> None:
    table, everything = opened(seaweedfs), dict[str, bytes]()
    batch(table, 7)
    for turn in range(2):
        overwrite(table, ["b"], (2, "b", turn))
        failed = Transaction(table)
        arrow.write(failed, upserts=rows((9, "z", 9)))
        failed.leave()
        table.roll_back(failed.begin, force=True)
        for number in range(3):
            upsert(table, (1, "a", 10 * turn + number))
        assert table.clean(KeepVersions(1))
        everything |= completed(table)
        assert table.archive().instants
    ours = hudi.archived(table.url)
    assert {name.rpartition(".")[2] for name in ours} == {"commit", "replacecommit", "clean", "rollback"}
    assert ours.items() <= everything.items()
    assert ours.keys() == everything.keys() - completed(table).keys()
    assert content(table) == theirs(hudi, table) == {(1, "a", 12), (2, "b", 1), (50, "o", 7)}
    for turn in range(4):
        hudi.write(table.url, DDL, [(1, "a", 100 + turn)], SHORT)
        everything |= completed(table)
    assert levels(table) >= {1}, "they have merged our files with theirs"
    now = hudi.archived(table.url)
    assert len(now) > len(ours)
    assert {name: now[name] for name in ours} == ours
    assert content(table) == theirs(hudi, table) == {(1, "a", 103), (2, "b", 1), (50, "o", 7)}
    with pytest.raises(AlreadyCommitted, match="batch 7 of stream orders"):
        batch(Table.open(table.url, storage_options=seaweedfs.storage_options, settings=FEW), 7)
    healthy(table)


def test_python_reads_writes_and_archives_after_jvm_archived(hudi: HudiSpark, seaweedfs: SeaweedFS) -> None:
    table = opened(seaweedfs)
    for turn in range(4):
        hudi.write(table.url, DDL, [(1, "a", turn)], SHORT | {"hoodie.timeline.compaction.batch.size": "10"})
    theirs_ones = hudi.archived(table.url)
    assert theirs_ones
    for number in range(5):
        upsert(table, (2, "b", number))
    table.clean()
    before = completed(table)
    taken = table.archive().instants
    assert taken
    assert {name: before[name] for name in taken} | theirs_ones == hudi.archived(table.url)
    assert content(table) == theirs(hudi, table) == {(1, "a", 3), (2, "b", 4)}
    hudi.write(table.url, DDL, [(3, "c", 3)], SHORT)
    upsert(table, (2, "b", 5))
    table.archive()
    assert content(table) == theirs(hudi, table) == {(1, "a", 3), (2, "b", 5), (3, "c", 3)}
    healthy(table)


def test_long_unarchived_table_reads_equal_in_all_readers(hudi: HudiSpark, seaweedfs: SeaweedFS) -> None:
    table = opened(seaweedfs)
    for number in range(25):
        upsert(table, (number % 5, "ab"[number % 2], number))
    before = content(table)
    assert len(table.archive().instants) > 20
    assert theirs(hudi, table) == content(table) == before
    assert len(hudi.archived(table.url)) == len(archive_index.instants_since(table.knowledge, "0"))


@pytest.mark.parametrize("step", ["_point_version", "remove_archived"])
def test_archival_that_died_halfway_is_finished_by_jvm_and_by_python(
    hudi: HudiSpark, seaweedfs: SeaweedFS, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    """Once its manifest is decided and nothing points to it yet, and once nothing is removed yet."""

    def die(*_: object) -> None:
        raise RuntimeError("died")

    table = opened(seaweedfs)
    for number in range(6):
        upsert(table, (1, "a", number))
    everything = completed(table)
    monkeypatch.setattr(f"lockprovider.table.services.archive_files.{step}", die)
    with pytest.raises(RuntimeError, match="died"):
        table.archive()
    monkeypatch.undo()
    for number in range(2):
        hudi.write(table.url, DDL, [(2, "b", number)], SHORT)
        everything |= completed(table)
    upsert(table, (1, "a", 6))
    everything |= completed(table)
    table.archive()
    told = hudi.archived(table.url)
    assert told.keys() | completed(table).keys() == everything.keys()
    assert not told.keys() & completed(table).keys()
    assert content(table) == theirs(hudi, table) == {(1, "a", 6), (2, "b", 1)}
    healthy(table)
