"""Overwrites and table services, each read back by the independent reader after each step."""

from __future__ import annotations

import contextlib
import shutil
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from table.overwriting import overwrite, timeline_names
from table.tables import SETTINGS, SPEC, by_hudi_rs, content, data_files, let_beat_age, orphans, rows, upsert
from table.test_crash_at_every_step import AT_EACH_REQUEST, Died, DiesAtStep, deaths, let_the_lease_lapse, let_time_pass

from fsspec_cas import Machine, ObjectNotFound, Store
from fsspec_cas.backends.local import LocalBackend
from lockprovider import InvalidSettings, LeaseLost
from lockprovider.table import (
    Aborted,
    Corrupt,
    HistoryGone,
    InvalidRecords,
    Mode,
    Scan,
    Table,
    TableSettings,
    UnsupportedTable,
    WriteConflict,
)
from lockprovider.table.engines import arrow as engine
from lockprovider.table.format.layout import Action, after
from lockprovider.table.format.metadata import decode_commit, decoded, one_record
from lockprovider.table.services import rollback
from lockprovider.table.timeline.conflict import prefer_writer
from lockprovider.table.timeline.retention import KeepCommits, KeepHours, KeepVersions
from lockprovider.table.transaction.transaction import Transaction, transact


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "t"


@pytest.fixture
def table(folder: Path) -> Table:
    return Table.create(str(folder), SPEC, settings=SETTINGS)


def same(table: Table) -> set[tuple[int, str, int]]:
    """The rows, on which both readers agree."""
    found = content(table)
    assert by_hudi_rs(table.url) == found
    return found


# --- overwrites -----------------------------------------------------------------------------------------------------


def test_overwrite_replaces_the_rows_of_its_partitions_and_no_others(table: Table, folder: Path) -> None:
    upsert(table, (1, "a", 1), (2, "a", 2), (3, "b", 3))
    result = overwrite(table, ["a"], (9, "a", 9))
    assert same(table) == {(9, "a", 9), (3, "b", 3)}
    assert f"{result.instant}_{result.completion}.replacecommit" in timeline_names(folder)
    assert {f"{result.instant}.replacecommit.{state}" for state in ("requested", "inflight")} <= timeline_names(folder)
    upsert(table, (9, "a", 10), (1, "a", 1))
    assert same(table) == {(9, "a", 10), (1, "a", 1), (3, "b", 3)}


def test_overwrite_without_rows_empties_its_partitions(table: Table) -> None:
    upsert(table, (1, "a", 1), (3, "b", 3))
    overwrite(table, ["a", "none such"])
    assert same(table) == {(3, "b", 3)}
    assert table.history()[-1].operation == "DELETE_PARTITION"


def test_overwrite_lists_what_it_replaced_as_hudi_does(table: Table, folder: Path) -> None:
    old = upsert(table, (1, "a", 1)).file_groups
    result = overwrite(table, ["a"], (2, "a", 2))
    name = f"{result.instant}_{result.completion}.replacecommit"
    metadata = decode_commit((folder / ".hoodie" / "timeline" / name).read_bytes(), name)
    assert {(p, f) for p, ids in metadata.replaced.items() for f in ids} == set(old)
    assert metadata.operation == "INSERT_OVERWRITE"
    assert set(old) < set(result.file_groups)


def test_overwrite_and_update_of_one_partition_conflict_in_both_orders(table: Table) -> None:
    upsert(table, (1, "a", 1), (3, "b", 3))
    late = Transaction(table)
    engine.write(late, upserts=rows((1, "a", 100)))
    overwrite(table, ["a"], (2, "a", 2))
    with pytest.raises(WriteConflict, match="replacecommit"):
        late.commit()
    late.rollback()
    late = Transaction(table)
    late.end_partitions(["a"])
    upsert(table, (2, "a", 20))
    late.add(())
    with pytest.raises(WriteConflict):
        late.commit()
    late.rollback()
    assert same(table) == {(2, "a", 20), (3, "b", 3)}
    assert table.timeline().pending_writes == ()


def test_rows_inserted_during_an_overwrite_survive_it(table: Table) -> None:
    """As the later of two serial writes: by file group, an insert never conflicts."""
    upsert(table, (1, "a", 1))
    slow = Transaction(table)
    slow.end_partitions(["a"])
    slow.add(())
    upsert(table, (5, "a", 5))
    slow.commit()
    assert same(table) == {(5, "a", 5)}


def test_overwrite_replaces_file_groups_before_inserting(table: Table) -> None:
    upsert(table, (1, "a", 1))
    txn = Transaction(table)
    txn.start()
    with pytest.raises(InvalidRecords, match="first"):
        txn.end_partitions(["a"])
    txn.rollback()
    txn = Transaction(table)
    txn.end_partitions(["a"])
    with pytest.raises(InvalidRecords, match="are overwritten"):
        engine.write(txn, upserts=rows((1, "a", 2)))
    txn.rollback()
    txn = Transaction(table)
    with pytest.raises(InvalidRecords, match="UPSERT"):
        txn.end_partitions(["a"], "UPSERT")
    assert same(table) == {(1, "a", 1)}


def test_dead_overwrite_is_rolled_back_as_one(table: Table, folder: Path) -> None:
    upsert(table, (1, "a", 1))
    dead = Transaction(table)
    dead.end_partitions(["a"])
    dead.start()
    dead.heartbeat.stop()
    upsert(Table.open(table.url, settings=SETTINGS), (2, "b", 2))  # its first looks for dead ones
    assert table.timeline().pending_writes == ()
    assert not list((folder / ".hoodie" / "timeline").glob(f"{dead.begin}.*"))
    assert same(table) == {(1, "a", 1), (2, "b", 2)}
    dead.add(())
    with pytest.raises(Aborted):
        dead.commit()


def test_rolled_back_writer_removes_files_that_it_wrote_later(table: Table, folder: Path) -> None:
    upsert(table, (1, "a", 1))
    slow = Transaction(table)
    slow.start()
    slow.heartbeat.stop()
    upsert(Table.open(table.url, settings=SETTINGS), (2, "b", 2))
    assert table.timeline().pending_writes == ()
    engine.write(slow, upserts=rows((3, "c", 3)))
    assert orphans(folder)
    slow.rollback()
    assert orphans(folder) == set()
    assert same(table) == {(1, "a", 1), (2, "b", 2)}


# --- clusterings of JVM writers -------------------------------------------------------------------------------------


def plan_clustering(folder: Path, begin: str, *groups: tuple[str, str]) -> None:
    """What a JVM writer puts on the timeline when it schedules a clustering of these file groups."""
    slices = [{"fileId": file_id, "partitionPath": partition} for partition, file_id in groups]
    plan: dict[str, Any] = {"clusteringPlan": {"inputGroups": [{"slices": slices}]}, "operationType": "CLUSTER"}
    timeline = folder / ".hoodie" / "timeline"
    (timeline / f"{begin}.clustering.requested").write_bytes(one_record("HoodieRequestedReplaceMetadata", plan))
    (timeline / f"{begin}.clustering.inflight").touch()


def test_planned_clustering_wins_over_an_update_of_its_file_groups(table: Table, folder: Path) -> None:
    groups = upsert(table, (1, "a", 1), (2, "b", 2)).file_groups
    late = Transaction(table)
    engine.write(late, upserts=rows((1, "a", 100)))
    begin = table.timeline().next_time(0)
    with table.lock.acquire():
        plan_clustering(folder, begin, *(group for group in groups if group[0] == "a"))
    with pytest.raises(WriteConflict, match=f"lost to {begin}.clustering.requested"):
        late.commit()
    late.rollback()
    other = Transaction(table)
    engine.write(other, upserts=rows((2, "b", 20)))
    other.commit()
    assert same(table) == {(1, "a", 1), (2, "b", 20)}


def test_writers_may_be_preferred_over_a_planned_clustering(table: Table, folder: Path) -> None:
    groups = upsert(table, (1, "a", 1)).file_groups
    plan_clustering(folder, table.timeline().next_time(0), *groups)
    preferred = Table.open(table.url, settings=replace(SETTINGS, resolution=prefer_writer))
    upsert(preferred, (1, "a", 2))
    assert same(table) == {(1, "a", 2)}


# --- modes ----------------------------------------------------------------------------------------------------------


def test_eager_writer_rolls_back_all_pending_and_lazy_one_spares_live(table: Table) -> None:
    upsert(table, (1, "a", 1))
    living = Transaction(table)
    engine.write(living, upserts=rows((2, "b", 2)))
    upsert(table, (3, "c", 3))
    assert table.timeline().pending_writes == (living.begin,)
    alone = Table.open(table.url, settings=TableSettings(mode=Mode.SINGLE_WRITER))
    upsert(alone, (4, "d", 4))
    assert table.timeline().pending_writes == ()
    with pytest.raises(Aborted, match="rolled back"):
        living.commit()
    assert same(table) == {(1, "a", 1), (3, "c", 3), (4, "d", 4)}


def test_two_single_writers_by_mistake_lose_no_commit(table: Table) -> None:
    upsert(table, (1, "a", 1))
    alone = TableSettings(mode=Mode.SINGLE_WRITER)
    first, second = Table.open(table.url, settings=alone), Table.open(table.url, settings=alone)
    mine = Transaction(first)
    upsert(second, (1, "a", 10))
    engine.write(mine, upserts=rows((1, "a", 100)))
    with pytest.raises(WriteConflict):
        mine.commit()
    mine.rollback()
    assert same(table) == {(1, "a", 10)}


class OfAnotherProcess:
    """The machine again: clients of one process and world wait for each other, these two must not."""

    def __getattr__(self, name: str) -> Any:
        return getattr(Machine(), name)


def test_cleaner_with_lapsed_lease_rolls_back_no_resumed_writer(
    table: Table, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It had found the writer dead, and then it was paused itself; meanwhile the writer committed."""
    upsert(table, (1, "a", 1))
    slow = Transaction(table)
    engine.write(slow, upserts=rows((2, "b", 2)))
    Transaction(table).start()  # its fresh heartbeat shows how late it is
    heartbeat = folder / ".hoodie" / ".heartbeat" / slow.begin
    heartbeat.rename(folder / "aside")  # as after a long silence
    look, paused = rollback.files_of, []

    def pause(*asked: Any) -> tuple[str, ...]:
        if not paused:
            paused.append(asked)
            (folder / "aside").rename(heartbeat)
            let_the_lease_lapse(folder)
            slow.commit()
        return look(*asked)

    monkeypatch.setattr(rollback, "files_of", pause)
    cleaner = Table(Store.from_url(table.url), table.url, settings=SETTINGS, world=OfAnotherProcess())
    with pytest.raises(LeaseLost):
        rollback.roll_back(cleaner, slow.begin, only_if_dead=True)
    assert paused
    assert same(table) == {(1, "a", 1), (2, "b", 2)}
    assert table.timeline().pending_rollbacks == ()


# --- clean ----------------------------------------------------------------------------------------------------------


def old_and_new(table: Table, versions: int = 4) -> list[str]:
    """The begin times of commits that each rewrite partition a; b is written once."""
    first = upsert(table, (1, "a", 0), (2, "b", 0)).instant
    return [first, *(upsert(table, (1, "a", number)).instant for number in range(1, versions))]


def test_clean_removes_unneeded_files_and_records_it_as_hudi_does(table: Table, folder: Path) -> None:
    begins = old_and_new(table)
    before = same(table)
    (done,) = table.clean(KeepVersions(1))
    assert {name.rpartition("_")[2].removesuffix(".parquet") for name in done.files["a"]} == set(begins[:-1])
    assert same(table) == before == {(1, "a", 3), (2, "b", 0)}
    assert len(data_files(folder)) == 2
    names = timeline_names(folder)
    assert {
        f"{done.instant}.clean.requested",
        f"{done.instant}.clean.inflight",
        f"{done.instant}_{done.completion}.clean",
    } <= names
    timeline = folder / ".hoodie" / "timeline"
    plan = decoded((timeline / f"{done.instant}.clean.requested").read_bytes(), "plan", "a record", dict)
    assert [info["filePath"] for info in plan["filePathsToBeDeletedPerPartition"]["a"]] == [
        f"{folder}/a/{name}" for name in done.files["a"]
    ]
    metadata = decoded((timeline / f"{done.instant}_{done.completion}.clean").read_bytes(), "clean", "a record", dict)
    assert metadata["totalFilesDeleted"] == 3
    assert metadata["partitionMetadata"]["a"]["policy"] == "KEEP_LATEST_FILE_VERSIONS"
    assert not list((folder / ".hoodie" / ".heartbeat").iterdir())


def test_clean_with_nothing_to_do_leaves_nothing(table: Table, folder: Path) -> None:
    old_and_new(table)
    names = timeline_names(folder)
    assert table.clean(KeepCommits(50)) == ()
    assert timeline_names(folder) == names
    assert not list((folder / ".hoodie" / ".heartbeat").iterdir())
    assert table.clean(KeepVersions(1), dry_run=True)
    assert timeline_names(folder) == names


def test_policy_that_keeps_nothing_is_refused(table: Table, folder: Path) -> None:
    old_and_new(table)
    before = data_files(folder)
    for policy in (KeepCommits(0), KeepVersions(0)):
        with pytest.raises(InvalidSettings, match="keep nothing"):
            table.clean(policy)
    assert data_files(folder) == before


def test_table_can_be_read_as_of_each_retained_commit(table: Table) -> None:
    old_and_new(table, versions=5)
    table.clean(KeepCommits(2))
    for commit, value in zip(table.history()[-2:], (3, 4), strict=True):
        assert (1, "a", value) in {tuple(row.values()) for row in table.to_arrow(as_of=commit.completion).to_pylist()}
    with pytest.raises(HistoryGone):
        table.to_arrow(as_of=table.history()[1].completion)


def test_clean_takes_the_files_of_overwritten_partitions(table: Table, folder: Path) -> None:
    upsert(table, (1, "a", 1), (2, "b", 2))
    overwrite(table, ["a"], (3, "a", 3))
    assert len(data_files(folder)) == 3
    table.clean(KeepCommits(1))
    assert len(data_files(folder)) == 3  # the overwrite is the last commit: the one before it can still be read
    upsert(table, (4, "c", 4))
    table.clean(KeepCommits(1))
    assert len(data_files(folder)) == 3
    assert same(table) == {(2, "b", 2), (3, "a", 3), (4, "c", 4)}


def test_clean_removes_files_written_after_a_rollback(table: Table, folder: Path) -> None:
    upsert(table, (1, "a", 1))
    late = Transaction(table)
    engine.write(late, upserts=rows((2, "b", 2)))
    (path,) = {path for path in data_files(folder) if late.begin in path}
    data = (folder / path).read_bytes()
    late.rollback()
    (folder / path).write_bytes(data)
    assert orphans(folder) == {path}
    table.clean(KeepCommits(10))
    assert orphans(folder) == set()
    assert same(table) == {(1, "a", 1)}


def test_clean_spares_files_that_a_running_writer_has_read(table: Table) -> None:
    upsert(table, (1, "a", 1))
    slow = Transaction(table)
    slow.start()
    for value in range(2, 5):
        upsert(table, (1, "a", value))
    table.clean(KeepVersions(1))
    engine.write(slow, upserts=rows((1, "a", 100)))  # reads the slice of its snapshot
    with pytest.raises(WriteConflict):
        slow.commit()
    slow.rollback()
    assert same(table) == {(1, "a", 4)}


def test_sweep_removes_leftovers_of_writers_that_died_at_begin_or_end(table: Table, folder: Path) -> None:
    done = upsert(table, (1, "a", 1)).instant
    beats, marker = folder / ".hoodie" / ".heartbeat", folder / ".hoodie" / ".temp" / done / "a" / "f.marker.CREATE"
    marker.parent.mkdir(parents=True, exist_ok=True)
    marker.touch()
    for begin in ("20200101000000000", done):
        (beats / begin).touch()
        let_beat_age(beats / begin)
    alive = Transaction(table)
    alive.start()
    about_to_begin = after(alive.begin)
    (beats / about_to_begin).touch()
    assert rollback.sweep(table) == ()
    assert {path.name for path in beats.iterdir()} == {alive.begin, about_to_begin}
    assert not marker.exists()
    assert table.timeline().pending_writes == (alive.begin,)
    assert same(table) == {(1, "a", 1)}
    alive.rollback()


def test_sweep_keeps_traces_of_a_dead_writer_not_yet_rolled_back(
    table: Table, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    dead = Transaction(table)
    engine.write(dead, upserts=rows((1, "a", 1)))
    dead.leave()
    heartbeat, markers = folder / ".hoodie" / ".heartbeat" / dead.begin, folder / ".hoodie" / ".temp" / dead.begin
    let_beat_age(heartbeat)
    with monkeypatch.context() as patched:
        patched.setattr(rollback, "_recover", lambda *_, **__: ())  # as where another is at it
        rollback.sweep(table)
    assert heartbeat.exists()
    assert [path for path in markers.rglob("*") if path.is_file()]
    assert rollback.sweep(table) == (dead.begin,)
    assert not heartbeat.exists()
    assert orphans(folder) == set()


def planned_by_a_dead_cleaner(table: Table, monkeypatch: pytest.MonkeyPatch) -> str:
    """The begin time of a clean whose executor died before it deleted a file."""
    old_and_new(table)
    dead = Table.open(table.url, settings=SETTINGS)
    monkeypatch.setattr(dead.store, "delete_all", _fails)
    with pytest.raises(OSError, match="pulled"):
        dead.clean(KeepVersions(1))
    (planned,) = table.timeline().pending(Action.CLEAN)
    return planned


def test_sweep_rolls_dead_writers_back_beside_an_unreadable_clean_plan(
    table: Table, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    planned = planned_by_a_dead_cleaner(table, monkeypatch)
    (folder / ".hoodie" / "timeline" / f"{planned}.clean.requested").write_bytes(b"")
    dead = Transaction(table)
    engine.write(dead, upserts=rows((9, "c", 9)))
    dead.leave()
    for begin in (planned, dead.begin):
        let_beat_age(folder / ".hoodie" / ".heartbeat" / begin)
    with pytest.raises(Corrupt):
        table.sweep()
    assert not table.timeline().pending_writes


def test_clean_plan_is_finished_by_another_cleaner_once_its_owner_is_dead(
    table: Table, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    planned = planned_by_a_dead_cleaner(table, monkeypatch)
    heartbeat = folder / ".hoodie" / ".heartbeat" / planned
    heartbeat.touch()  # as if it lived
    assert table.clean(KeepVersions(1)) == ()
    let_beat_age(heartbeat)
    (done,) = table.clean(KeepVersions(1))
    assert done.instant == planned
    assert table.timeline().pending(Action.CLEAN) == ()
    assert len(data_files(folder)) == 2
    assert not list((folder / ".hoodie" / ".heartbeat").iterdir())
    assert same(table) == {(1, "a", 3), (2, "b", 0)}


def _fails(*_: object, **__: object) -> None:
    raise OSError("the plug was pulled")


def test_writer_whose_files_were_cleaned_writes_no_key_twice(table: Table) -> None:
    upsert(table, (1, "a", 1))
    slow = Transaction(table)
    upsert(table, (1, "a", 2))
    table.clean(KeepVersions(1))
    engine.write(slow, upserts=rows((1, "a", 100)))  # finds no slice of its snapshot, and takes the key for new
    with pytest.raises(WriteConflict):
        slow.commit()
    slow.rollback()
    assert same(table) == {(1, "a", 2)}


class Meanwhile(LocalBackend):
    """Lets another act after the timeline was listed, and before the files are."""

    def __init__(self, act: Callable[[], object]) -> None:
        super().__init__()
        self.acts, self.listed = [act], False

    async def list_page(self, prefix: str, *args: Any, **kwargs: Any) -> Any:
        if "timeline" not in prefix and self.listed and self.acts:
            self.acts.pop()()
        self.listed = self.listed or "timeline" in prefix
        return await super().list_page(prefix, *args, **kwargs)


def test_reader_whose_files_are_cleaned_while_it_lists_them_reads_again(table: Table, folder: Path) -> None:
    upsert(table, (1, "a", 1), (2, "b", 2))

    def overtake() -> None:
        upsert(table, (1, "a", 2))
        overwrite(table, ["b"])
        upsert(table, (3, "c", 3))
        table.clean(KeepVersions(1))

    slow = Table(Store(Meanwhile(overtake), str(folder)), str(folder), settings=SETTINGS)
    assert content(slow) == {(1, "a", 2), (3, "c", 3)} == same(table)


def test_reader_repeats_when_its_commits_are_restored_away(table: Table, folder: Path) -> None:
    begins = old_and_new(table)
    slow = Table(Store(Meanwhile(lambda: table.restore(begins[1])), str(folder)), str(folder), settings=SETTINGS)
    assert content(slow) == {(1, "a", 1), (2, "b", 0)} == same(table)


class Tomorrow(OfAnotherProcess):
    """A machine whose clock is a day ahead."""

    def now_ms(self) -> int:
        return Machine().now_ms() + 86_400_000


def test_clock_ahead_does_not_shorten_the_retention_hours(table: Table, folder: Path) -> None:
    old_and_new(table)
    before = data_files(folder)
    ahead = Table(Store.from_url(table.url), table.url, settings=SETTINGS, world=Tomorrow())
    assert ahead.clean(KeepHours(1)) == ()
    assert data_files(folder) == before
    assert table.clean(KeepHours(0))
    assert same(table) == {(1, "a", 3), (2, "b", 0)}


# --- savepoints -----------------------------------------------------------------------------------------------------


def test_savepoint_keeps_its_commit_readable_until_it_is_deleted(table: Table, folder: Path) -> None:
    begins = old_and_new(table)
    assert table.savepoint(begins[1], user="me", comment="before the move") == begins[1]
    table.clean(KeepVersions(1))
    kept = {commit.instant: commit.completion for commit in table.history()}[begins[1]]
    assert (1, "a", 1) in {tuple(row.values()) for row in table.to_arrow(as_of=kept).to_pylist()}
    (made,) = table.savepoints().values()
    assert (made.user, made.comment) == ("me", "before the move")
    assert f"{begins[1]}.savepoint.inflight" in timeline_names(folder)
    assert same(table) == {(1, "a", 3), (2, "b", 0)}
    assert table.delete_savepoint(begins[1])
    assert not table.delete_savepoint(begins[1])
    assert not [name for name in timeline_names(folder) if "savepoint" in name]
    table.clean(KeepVersions(1))
    assert len(data_files(folder)) == 2
    assert same(table) == {(1, "a", 3), (2, "b", 0)}


def test_savepoint_of_a_cleaned_or_unknown_commit_is_refused(table: Table, folder: Path) -> None:
    begins = old_and_new(table)
    table.clean(KeepVersions(1))
    before = timeline_names(folder)
    with pytest.raises(HistoryGone, match="a clean removed"):
        table.savepoint(begins[1])
    with pytest.raises(HistoryGone, match="no commit began or completed at 2020"):
        table.savepoint("20200101000000000")
    assert timeline_names(folder) == before
    assert table.savepoint() == begins[-1]
    assert table.savepoint() == begins[-1]
    assert len(table.savepoints()) == 1


def test_savepoint_that_needs_files_of_a_planned_clean_is_refused(
    table: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    begins = old_and_new(table)
    dead = Table.open(table.url, settings=SETTINGS)
    monkeypatch.setattr(dead.store, "delete_all", _fails)
    with pytest.raises(OSError, match="pulled"):
        dead.clean(KeepVersions(1))
    with pytest.raises(HistoryGone, match="about to remove"):
        table.savepoint(begins[1])
    with pytest.raises(HistoryGone, match="about to remove"):
        table.restore(begins[1])
    assert same(table) == {(1, "a", 3), (2, "b", 0)}


# --- restore --------------------------------------------------------------------------------------------------------


def test_restore_undoes_later_commits_and_the_table_goes_on(table: Table, folder: Path) -> None:
    begins = old_and_new(table)
    overwrite(table, ["b"], (7, "b", 7))
    table.savepoint(begins[1])
    table.clean(KeepVersions(1))
    result = table.restore(begins[1])
    assert len(result.taken_back) == 3
    assert same(table) == {(1, "a", 1), (2, "b", 0)}
    assert orphans(folder) == set()
    assert not [name for name in timeline_names(folder) if name.startswith(result.taken_back)]
    assert not list((folder / ".hoodie" / ".heartbeat").iterdir())
    (done,) = (folder / ".hoodie" / "timeline").glob(f"{result.instant}_*.restore")
    metadata = decoded(done.read_bytes(), done.name, "a record", dict)
    assert metadata["instantsToRollback"] == list(result.taken_back)
    assert {info["action"] for info in metadata["restoreInstantInfo"]} == {"commit", "replacecommit"}
    upsert(table, (1, "a", 50))
    assert same(table) == {(1, "a", 50), (2, "b", 0)}
    assert table.restore(table.history()[-1].instant).taken_back == ()


def test_clean_leaves_the_files_that_an_unfinished_restore_brings_back(
    table: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    upsert(table, (1, "a", 1))
    version = table.version
    overwrite(table, ["a"], (2, "a", 2))
    with monkeypatch.context() as patched:
        patched.setattr(rollback, "_undo", _fails)
        with pytest.raises(OSError, match="pulled"):
            table.restore(version)
    assert table.clean(KeepVersions(1), dry_run=True) == table.clean(KeepVersions(1)) == ()
    table.restore(version)
    assert same(table) == {(1, "a", 1)}


def test_writer_that_read_restored_away_commits_gives_way(table: Table) -> None:
    begins = old_and_new(table)
    reader = Transaction(table)
    table.restore(begins[0])
    engine.write(reader, upserts=rows((9, "c", 9)))
    with pytest.raises(WriteConflict, match="undid commits that it had read"):
        reader.commit()
    reader.rollback()
    assert same(table) == {(1, "a", 0), (2, "b", 0)}


def test_writer_that_was_pending_is_rolled_back_with_the_rest(table: Table, folder: Path) -> None:
    begins = old_and_new(table)
    writer = Transaction(table)
    engine.write(writer, upserts=rows((9, "c", 9)))
    table.restore(begins[0])
    with pytest.raises(Aborted, match="rolled back"):
        writer.commit()
    writer.rollback()
    assert same(table) == {(1, "a", 0), (2, "b", 0)}
    assert orphans(folder) == set()


def test_restore_that_cannot_be_had_changes_nothing(table: Table, folder: Path) -> None:
    begins = old_and_new(table)
    table.savepoint(begins[2])
    with pytest.raises(HistoryGone, match="savepoints; delete these savepoints"):
        table.restore(begins[1])
    table.clean(KeepVersions(1))
    names, files = timeline_names(folder), data_files(folder)
    with pytest.raises(HistoryGone):
        table.restore("20200101000000000")
    table.delete_savepoint(begins[2])
    with pytest.raises(HistoryGone, match="a clean removed"):
        table.restore(begins[1])
    assert data_files(folder) == files
    assert timeline_names(folder) == {name for name in names if "savepoint" not in name}


# --- the metadata table of JVM writers --------------------------------------------------------------------------------


def test_clean_and_archive_of_an_unwritable_table_are_refused_also_as_dry_runs(table: Table, folder: Path) -> None:
    upsert(table, (1, "a", 1))
    upsert(table, (1, "a", 2))
    with (folder / ".hoodie" / "hoodie.properties").open("a") as file:
        file.write("hoodie.table.cdc.enabled=true\n")
    for dry_run in (True, False):
        with pytest.raises(UnsupportedTable, match="CDC"):
            table.clean(KeepVersions(1), dry_run=dry_run)
        with pytest.raises(UnsupportedTable, match="CDC"):
            table.archive(dry_run=dry_run)


def test_metadata_table_is_refused_until_it_is_retired(table: Table, folder: Path) -> None:
    upsert(table, (1, "a", 1))
    kept = {"hoodie.parquet.setting=of theirs\n", "hoodie.table.metadata.partitions=files\n"}
    properties = folder / ".hoodie" / "hoodie.properties"
    with properties.open("a") as file:
        file.writelines(kept)
    listing = folder / ".hoodie" / "metadata" / "files" / "files-0000-0_0-0-0_00000000000000000.hfile"
    listing.parent.mkdir(parents=True)
    listing.write_bytes(b"a listing that knows no commit of ours")
    (folder / ".hoodie" / ".hoodie.properties.crc").write_bytes(b"Hadoop's")
    with pytest.raises(UnsupportedTable, match="retire_metadata_table"):
        upsert(table, (1, "a", 2))
    assert table.retire_metadata_table() == 1
    assert table.retire_metadata_table() == 0
    assert "of theirs" in properties.read_text()
    assert not [path for path in (folder / ".hoodie").rglob("*") if path.is_file() and "metadata" in path.parts]
    assert not (folder / ".hoodie" / ".hoodie.properties.crc").exists()
    upsert(table, (1, "a", 2))
    assert same(table) == {(1, "a", 2)}


# --- all at once ------------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("brisk")
def test_concurrent_writers_cleaner_and_savepoints_lose_nothing(table: Table, folder: Path) -> None:
    """The harshest policy: no slice stays but the latest."""
    keys, rounds, over, seen = range(4), 6, threading.Event(), []
    upsert(table, *((key, "ab"[key % 2], 0) for key in keys))

    def bump(txn: Transaction) -> None:
        old = Scan(txn, partitions=["a"]).to_arrow().to_pylist()
        engine.write(txn, upserts=rows(*((row["id"], row["part"], row["value"] + 1) for row in old)))

    def write() -> None:
        mine = Table.open(table.url, settings=SETTINGS)
        for _ in range(rounds):
            transact(mine, bump, retries=100)

    def serve() -> None:
        mine = Table.open(table.url, settings=SETTINGS)
        while not over.is_set():
            mine.clean(KeepVersions(1))
            mine.delete_savepoint(mine.savepoint())
            with contextlib.suppress(ObjectNotFound):  # cleaned between the listing and the read
                seen.append(content(mine))

    service, writers = threading.Thread(target=serve), [threading.Thread(target=write) for _ in range(2)]
    for thread in (service, *writers):
        thread.start()
    for thread in writers:
        thread.join()
    over.set()
    service.join()
    assert same(table) == {(key, "ab"[key % 2], 2 * rounds if key % 2 == 0 else 0) for key in keys}
    for found in seen:
        assert {row[0] for row in found} == set(keys)
        assert len(found) == len(keys)
        assert len({row[2] for row in found if row[1] == "a"}) == 1, "a commit was seen in part"
    table.clean(KeepVersions(1))
    assert orphans(folder) == set()
    assert len(data_files(folder)) == 2
    assert table.timeline().pending(Action.CLEAN) == table.timeline().pending_writes == ()


# --- a service that dies at any step --------------------------------------------------------------------------------

STATES = [{(1, "a", number), (2, "b", 0)} for number in range(4)]


def serve(kind: str, table: Table, target: str) -> None:
    if kind == "clean":
        table.clean(KeepVersions(1))
    elif kind == "savepoint":
        table.savepoint(target)
    elif kind == "delete":
        table.delete_savepoint(target)
    else:
        table.restore(target)


@AT_EACH_REQUEST
@pytest.mark.parametrize("kind", ["clean", "savepoint", "delete", "restore"])
def test_service_killed_at_any_request_is_finished_by_the_next(tmp_path: Path, kind: str, applied: bool) -> None:
    template = tmp_path / "template"
    begins = old_and_new(Table.create(str(template), SPEC, settings=SETTINGS))
    if kind == "delete":
        Table.open(str(template)).savepoint(begins[1])
    died = 0
    every = 2 if kind == "delete" else 3  # also between the decision and its file; a delete has six requests
    for step in deaths(applied=applied, every=every):
        folder = tmp_path / str(step)
        shutil.copytree(template, folder)
        backend = DiesAtStep(step, applied=applied)
        try:
            serve(kind, Table(Store(backend, str(folder)), str(folder), settings=SETTINGS), begins[1])
        except Died:
            died += 1
        else:
            break
        after = backend.asked[-1]
        now = by_hudi_rs(str(folder))
        assert now in (STATES[1:] if kind == "restore" else STATES[3:]), f"a torn table after {after}"
        let_time_pass(folder)
        table = Table.open(str(folder), settings=SETTINGS)
        upsert(table, (9, "c", 9), retries=3)
        later = by_hudi_rs(str(folder))
        assert later == content(table) == now | {(9, "c", 9)} or kind == "restore", f"rows were lost after {after}"
        assert now == STATES[3] or (later - {(9, "c", 9)}) == STATES[1], f"a restore was not finished after {after}"
        table.clean(KeepCommits(10))
        if kind == "clean":
            table.clean(KeepVersions(1))
            assert len(data_files(folder)) == 3, f"not cleaned after {after}"
        if kind in ("savepoint", "delete"):
            serve(kind, table, begins[1])
            assert (begins[1] in table.savepoints()) == (kind == "savepoint"), after
        assert table.timeline().pending(Action.CLEAN, Action.RESTORE, Action.ROLLBACK) == (), after
        assert table.timeline().pending_writes == (), after
        assert orphans(folder) == set(), f"orphans after {after}"
        assert by_hudi_rs(str(folder)) == later
    else:
        pytest.fail("the service never ended")
    assert died > 2
