"""Archival: the timeline stays short, and nothing that a reader, a writer or a stream relies on gets lost."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import budgets
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from table.asked_for import counted
from table.overwriting import overwrite
from table.tables import SETTINGS, SPEC, by_hudi_rs, content, rows, upsert

from fsspec_cas import Unavailable
from lockprovider import InvalidSettings
from lockprovider.table import (
    Aborted,
    HistoryGone,
    KeepActive,
    KeepCommits,
    KeepVersions,
    Scan,
    Table,
    TableSettings,
    WriteConflict,
)
from lockprovider.table.doctor.rules import diagnose
from lockprovider.table.engines import arrow
from lockprovider.table.errors import AlreadyCommitted
from lockprovider.table.files.base_file import open_base_file, read_columns
from lockprovider.table.format import lsm
from lockprovider.table.format.layout import Action
from lockprovider.table.format.metadata import decode_commit
from lockprovider.table.services import archive_files
from lockprovider.table.state import archive_index
from lockprovider.table.timeline.conflict import BatchId
from lockprovider.table.transaction.transaction import Transaction, transact

KEEP = KeepActive(3, 4)
FEW = TableSettings(lock=SETTINGS.lock, heartbeat=SETTINGS.heartbeat, retention=KeepCommits(1), archival=KEEP)


@pytest.fixture
def table(tmp_path: Path) -> Table:
    return Table.create(str(tmp_path / "t"), SPEC, settings=FEW)


def history(table: Table) -> Path:
    return Path(table.url) / ".hoodie" / "timeline" / "history"


def names_in_archive(table: Table) -> list[str]:
    """By another road: the files that the manifest names, read one by one."""
    tables = [pq.read_table(history(table) / name) for name in archive_index.read_history(table.knowledge).files]
    rows_ = [row for one in tables for row in one.to_pylist()]
    return sorted(f"{row['instantTime']}_{row['completionTime']}.{row['action']}" for row in rows_)


def healthy(table: Table) -> None:
    wrong = [one.what for _, _, found in diagnose(table) for one in found if one.state == "wrong"]
    assert wrong == []


def test_archived_instants_are_complete_and_readers_see_no_change(table: Table) -> None:
    for number in range(8):
        upsert(table, (number % 3, "ab"[number % 2], number))
    before, old = content(table), table.timeline().writes
    metadata = {i.file_name: table.metadata_of(i) for i in old}
    done = table.archive()
    assert done.instants == tuple(i.file_name for i in old[:-3])
    assert done.held == ""
    assert [i.file_name for i in table.timeline().writes] == [i.file_name for i in old[-3:]]
    assert names_in_archive(table) == [i.file_name for i in old[:-3]]
    (name,) = archive_index.read_history(table.knowledge).files
    for row in read_columns(open_base_file((history(table) / name).read_bytes())).to_pylist():
        file_name = f"{row['instantTime']}_{row['completionTime']}.{row['action']}"
        assert decode_commit(row["metadata"], file_name) == metadata[file_name]
    reopened = Table.open(table.url, settings=FEW)
    assert content(table) == content(reopened) == by_hudi_rs(table.url) == before
    healthy(reopened)
    assert table.archive().instants == ()
    upsert(reopened, (0, "a", 100))
    assert content(table) == by_hudi_rs(table.url)
    healthy(reopened)


def test_archival_removes_all_files_of_archived_instants_and_no_other(table: Table) -> None:
    for number in range(6):
        upsert(table, (1, "a", number))
    gone = {name.partition("_")[0] for name in table.archive().instants}
    left = {path.name[:17] for path in (Path(table.url) / ".hoodie" / "timeline").iterdir() if path.is_file()}
    assert gone
    assert not gone & left
    assert len(left) == 3


def test_cleans_and_rollbacks_are_archived_with_the_writes_around_them(table: Table) -> None:
    for number in range(3):
        upsert(table, (1, "a", number))
    assert table.clean(KeepVersions(1))
    failed = Transaction(table)
    arrow.write(failed, upserts=rows((9, "a", 9)))
    failed.leave()
    table.roll_back(failed.begin, force=True)
    table.restore(upsert(table, (2, "b", 2)).instant)
    upsert(table, (3, "a", 3))
    table.restore(table.timeline().writes[-2].begin)
    for number in range(5):
        upsert(table, (3, "a", number))
    table.archive()
    kinds = {name.rpartition(".")[2] for name in names_in_archive(table)}
    assert kinds == {"commit", "clean", "rollback"}
    plans = {
        r["action"]: r["plan"]
        for f in archive_index.read_history(table.knowledge).files
        for r in pq.read_table(history(table) / f).to_pylist()
    }
    assert plans["clean"]
    assert plans["commit"] is None
    assert {i.action for i in table.timeline().instants} == {Action.COMMIT, Action.RESTORE}
    assert content(Table.open(table.url)) == by_hudi_rs(table.url) == {(1, "a", 2), (2, "b", 2), (3, "a", 4)}
    healthy(table)


def test_archival_stops_at_a_savepoint_until_it_is_deleted(table: Table) -> None:
    done = [upsert(table, (1, "a", number)) for number in range(8)]
    kept = table.savepoint(done[2].instant)
    result = table.archive()
    assert f"{kept} has a savepoint" in result.held
    assert table.timeline().writes[0].begin == kept
    table.restore(kept)
    assert content(table) == by_hudi_rs(table.url) == {(1, "a", 2)}
    table.delete_savepoint(kept)
    for number in range(6):
        upsert(table, (1, "a", number))
    assert table.archive().held == ""
    assert len(table.timeline().writes) == 3


def test_archival_stops_at_a_pending_write_that_may_still_commit(table: Table) -> None:
    for number in range(2):
        upsert(table, (1, "a", number))
    slow = Transaction(table)
    arrow.write(slow, upserts=rows((7, "z", 7)))
    for number in range(8):
        upsert(table, (1, "a", number))
    result = table.archive()
    assert f"write {slow.begin} is pending" in result.held
    assert table.timeline().writes[0].begin < slow.begin
    assert (7, "z", 7) not in by_hudi_rs(table.url) | content(Table.open(table.url))
    slow.commit()
    assert content(table) == by_hudi_rs(table.url) == {(1, "a", 7), (7, "z", 7)}
    upsert(table, (1, "a", 8))
    assert table.archive().instants


def test_archival_rolls_back_a_dead_writer_first(table: Table) -> None:
    upsert(table, (1, "a", 0))
    dead = Transaction(Table.open(table.url, settings=FEW))
    arrow.write(dead, upserts=rows((7, "z", 7)))
    assert dead.heartbeat is not None
    dead.heartbeat._stop.set()
    (Path(table.url) / ".hoodie" / ".heartbeat" / dead.begin).unlink()
    for number in range(8):
        upsert(Table(table.store, table.url, settings=FEW), (1, "a", number)) if number else None
    table.begin_dead_check_if_due = lambda: False  # type: ignore[method-assign]
    assert table.archive().held == ""
    assert content(Table.open(table.url)) == by_hudi_rs(table.url) == {(1, "a", 7)}
    with pytest.raises(Aborted):
        dead.commit()


def test_archival_stops_at_files_of_no_instant_until_they_are_cleaned(table: Table) -> None:
    upsert(table, (1, "a", 0))
    failed = Transaction(table)
    arrow.write(failed, upserts=rows((7, "z", 7)))
    (file,) = (Path(table.url) / "z").glob("*.parquet")
    data = file.read_bytes()
    failed.rollback()
    file.write_bytes(data)  # by a task that nobody could stop
    for number in range(8):
        upsert(table, (1, "a", number))
    result = table.archive()
    assert f"1 files are of no instant, the first of {failed.begin}" in result.held
    assert by_hudi_rs(table.url) == content(table) == {(1, "a", 7)}
    table.clean(KeepCommits(100))
    assert not file.exists()
    assert table.archive().held == ""
    assert by_hudi_rs(table.url) == content(Table.open(table.url)) == {(1, "a", 7)}


def test_archival_stops_at_an_overwrite_whose_old_files_still_exist(table: Table) -> None:
    upsert(table, (1, "a", 0), (2, "b", 2))
    overwrite(table, ["a"], (3, "a", 3))
    for number in range(8):
        upsert(table, (2, "b", number))
    result = table.archive()
    assert "replaced are still there" in result.held
    assert table.timeline().writes[0].action is Action.REPLACECOMMIT
    assert content(Table.open(table.url)) == by_hudi_rs(table.url) == {(3, "a", 3), (2, "b", 7)}
    assert table.clean(KeepCommits(1))
    assert table.archive().held == ""
    assert content(Table.open(table.url)) == by_hudi_rs(table.url) == {(3, "a", 3), (2, "b", 7)}


def test_instants_that_retention_needs_are_not_archived(tmp_path: Path) -> None:
    settings = TableSettings(lock=SETTINGS.lock, heartbeat=SETTINGS.heartbeat, retention=KeepCommits(6))
    table = Table.create(str(tmp_path / "t"), SPEC, settings=settings)
    done = [upsert(table, (1, "a", number)) for number in range(12)]
    table.archive(KEEP)
    assert len(table.timeline().writes) == 7
    oldest = done[-6]
    assert table.to_arrow(as_of=oldest.completion)["value"].to_pylist() == [6]
    with pytest.raises(HistoryGone, match="were archived"):
        table.to_arrow(as_of=done[2].completion)
    with pytest.raises(HistoryGone, match="were archived"):
        table.changes(done[2].completion)
    assert table.changes(oldest.completion).to_arrow().num_rows == 1


@pytest.mark.parametrize("keep", [KeepActive(0, 5), KeepActive(5, 5), KeepActive(6, 5)])
def test_invalid_archival_limits_are_refused(table: Table, keep: KeepActive) -> None:
    with pytest.raises(InvalidSettings, match=f"hoodie.keep.min.commits={keep.least}"):
        table.archive(keep)
    assert not history(table).exists()


def test_restore_and_savepoint_of_an_archived_commit_are_refused(table: Table) -> None:
    done = [upsert(table, (1, "a", number)) for number in range(8)]
    table.archive()
    before = table.timeline()
    for call in (table.restore, table.savepoint):
        with pytest.raises(HistoryGone, match="are archived"):
            call(done[1].instant)
    assert table.timeline() == before
    table.restore(done[-2].instant)
    assert content(table) == by_hudi_rs(table.url) == {(1, "a", 6)}


def test_restore_is_refused_when_a_commit_to_undo_was_archived(table: Table) -> None:
    """By begin times it was before, by completion times after."""
    late = Transaction(table)
    arrow.write(late, upserts=rows((7, "z", 7)))
    done = [upsert(table, (1, "a", number)) for number in range(3)]
    late.commit()
    upsert(table, (1, "a", 3))
    table.archive(KeepActive(3, 4))
    assert late.begin < table.timeline().first_active <= done[-1].instant
    with pytest.raises(HistoryGone, match="was archived, and cannot be undone"):
        table.restore(done[-1].instant)
    assert content(table) == by_hudi_rs(table.url) == {(1, "a", 3), (7, "z", 7)}


def batch(table: Table, stream: str, number: int) -> Any:
    def run(txn: Any) -> None:
        txn.exactly_once(BatchId(stream, number))
        arrow.write(txn, upserts=rows((number, stream, number)))

    return transact(table, run)


def test_repeated_batch_is_not_written_again_after_its_commit_was_archived(table: Table) -> None:
    for number in range(3):
        batch(table, "orders", number)
    batch(table, "payments", 7)
    for number in range(8):
        upsert(table, (1, "a", number))
    table.archive()
    assert all("orders" not in str(commit.extra) for commit in table.history())
    for handle in (table, Table.open(table.url, settings=FEW)):
        for stream, number in (("orders", 2), ("orders", 0), ("payments", 7)):
            with pytest.raises(AlreadyCommitted, match=f"batch {number} of stream {stream} is in 2"):
                batch(handle, stream, number)
    batch(table, "orders", 3)
    batch(table, "new", 0)
    with pytest.raises(AlreadyCommitted):
        batch(table, "orders", 2)


def test_batch_archived_during_its_retry_is_found(table: Table) -> None:
    other = Table.open(table.url, settings=FEW)
    second = Transaction(table)
    second.exactly_once(BatchId("orders", 0))
    batch(other, "orders", 0)
    for number in range(8):
        upsert(other, (1, "a", number))
    arrow.write(second, upserts=rows((0, "orders", 0)))
    assert other.archive().instants
    with pytest.raises((AlreadyCommitted, WriteConflict)):
        second.commit()
    second.rollback()
    with pytest.raises(AlreadyCommitted):
        batch(table, "orders", 0)


def test_writer_that_saw_all_that_was_archived_since_goes_on(table: Table) -> None:
    other = Table.open(table.url, settings=FEW)
    for number in range(8):
        upsert(other, (1, "a", number))
    for handle in (Table.open(table.url, settings=FEW), other):  # by a listing, and by the log
        mine = Transaction(handle)
        arrow.write(mine, upserts=rows((2, "b", 2)))
        upsert(other, (3, "c", 3))
        assert other.archive().instants
        mine.commit()
        for number in range(4):
            upsert(other, (1, "a", number))
    assert content(table) == by_hudi_rs(table.url) == {(1, "a", 3), (2, "b", 2), (3, "c", 3)}


def test_writer_gets_conflict_with_a_commit_archived_since(table: Table) -> None:
    other = Table.open(table.url, settings=FEW)
    for number in range(3):
        upsert(other, (5 + number, "b", 0))
    late = Transaction(other)
    arrow.write(late, upserts=rows((1, "a", 1)))
    mine = Transaction(table)
    assert Scan(mine).to_arrow().num_rows == 3
    late.commit()
    for number in range(8):
        upsert(other, (5, "b", number))
    slow_writers_heartbeat = mine.start  # it begins after all that is archived
    slow_writers_heartbeat()
    assert other.archive().instants
    arrow.write(mine, upserts=rows((1, "a", 100)))
    with pytest.raises(WriteConflict, match="archived"):
        mine.commit()
    mine.rollback()
    assert (1, "a", 1) in content(table)


def test_long_timelines_are_archived_in_rounds_and_files_are_merged(
    table: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lockprovider.table.services.archive._ROUND", 2)
    monkeypatch.setattr("lockprovider.table.services.archive_files._MERGED", 3)
    done = [upsert(table, (1, "a", number)) for number in range(24)]
    batch(table, "orders", 4)
    for number in range(5):
        upsert(table, (1, "a", number))
    taken = table.archive().instants
    assert len(taken) == 28
    files = archive_index.read_history(table.knowledge).files
    assert {name.rpartition("_")[2] for name in files} == {"0.parquet", "1.parquet", "2.parquet"}
    assert len(files) == 4
    assert names_in_archive(table) == sorted(taken)
    on_disk = {path.name for path in history(table).glob("*.parquet")}
    assert set(files) <= on_disk
    assert len(list(history(table).glob("manifest_*"))) <= 5
    assert len(on_disk) < 16
    with pytest.raises(HistoryGone):
        table.changes(done[0].completion)
    with pytest.raises(AlreadyCommitted):
        batch(Table.open(table.url, settings=FEW), "orders", 4)
    assert content(Table.open(table.url)) == by_hudi_rs(table.url)


def test_rows_of_the_archive_are_written_a_few_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lsm, "_GROUP_BYTES", 100)
    rows = lsm.rows_of(lsm.Archived(f"{n:017d}", f"{n:017d}", "commit", bytes(60)) for n in range(9))
    file = pq.ParquetFile(pa.BufferReader(lsm.encode_file(iter(rows), lsm.Digest())))
    assert file.num_row_groups == 5
    assert file.read().to_pylist() == rows


def test_archive_of_another_writer_without_our_footers_is_read(table: Table) -> None:
    batch(table, "orders", 4)
    for number in range(8):
        upsert(table, (1, "a", number))
    last = table.archive().instants[-1]
    (name,) = archive_index.read_history(table.knowledge).files
    path = history(table) / name
    plain = pq.read_table(path).replace_schema_metadata(None)
    pq.write_table(plain, path, compression="gzip")
    manifest = history(table) / "manifest_1"
    manifest.write_text(
        manifest.read_text().replace(
            str(archive_index.read_history(table.knowledge).files[name]), str(path.stat().st_size)
        )
    )
    fresh = Table.open(table.url, settings=FEW)
    assert archive_index.reach(fresh.knowledge).begin == last[:17]
    with pytest.raises(AlreadyCommitted):
        batch(fresh, "orders", 4)
    batch(fresh, "orders", 5)


def test_missing_or_torn_version_file_is_recovered_from_manifests(table: Table) -> None:
    for number in range(8):
        upsert(table, (1, "a", number))
    table.archive()
    version = history(table) / "_version_"
    for number, torn in enumerate((None, b"", b"\xff", b"-1", b"1_0", b"9" * 5000), 1):
        version.unlink()
        if torn is not None:
            version.write_bytes(torn)
        fresh = Table.open(table.url, settings=FEW)
        assert archive_index.read_history(fresh.knowledge).number == number
        for value in range(5):
            upsert(fresh, (1, "a", value))
        assert fresh.archive().instants
        assert version.read_text() == str(number + 1)


def test_archival_removes_nothing_while_a_pending_commit_may_be_applied(
    table: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would be the first on the timeline, and hide all that is archived and younger."""
    for number in range(6):
        upsert(table, (1, "a", number))
    seen: list[int] = []
    monkeypatch.setattr(table.lock, "wait_for_late", lambda: seen.append(len(table.timeline().writes)))
    assert table.archive().instants
    assert seen == [7], "all were there when it waited"


def test_reappeared_commit_is_found_by_doctor_and_removed_by_archival(table: Table) -> None:
    """As a request may that was on its way for as long as others took to archive."""
    for number in range(8):
        upsert(table, (number, "a", number))
    timeline = Path(table.url) / ".hoodie" / "timeline"
    contents = {path.name: path.read_bytes() for path in timeline.glob("*.commit")}
    before, taken = content(table), table.archive().instants
    (timeline / taken[0]).write_bytes(contents[taken[0]])
    wrong = [one.what for _, _, found in diagnose(table) for one in found if one.state == "wrong"]
    assert f"{taken[0]} is archived and on the timeline again: it hides {len(taken) - 1} later commits" in wrong
    assert Table.open(table.url, settings=FEW).archive().instants == ()
    assert content(Table.open(table.url)) == by_hudi_rs(table.url) == before
    healthy(table)


def test_two_archivers_at_once_do_no_harm(table: Table) -> None:
    from concurrent.futures import ThreadPoolExecutor

    for number in range(30):
        upsert(table, (1, "a", number))
    writes = table.timeline().writes
    others = [Table.open(table.url, settings=FEW) for _ in range(3)]
    with ThreadPoolExecutor(4) as pool:
        done = list(pool.map(lambda one: one.archive().instants, others))
    assert sorted(name for names in done for name in names) == [i.file_name for i in writes[:-3]]
    assert names_in_archive(table) == [i.file_name for i in writes[:-3]]
    assert content(Table.open(table.url)) == by_hudi_rs(table.url) == {(1, "a", 29)}


def test_reader_whose_listing_has_a_hole_lists_again(table: Table) -> None:
    for number in range(8):
        upsert(table, (number, "ab"[number % 2], number))
    reader, torn = Table.open(table.url, settings=FEW), table.timeline()
    hole = type(torn)(tuple(i for i in torn.instants if i.begin != torn.writes[3].begin))
    table.archive()
    listings = [hole]
    reader.current.listed = lambda: listings.pop() if listings else table.timeline()  # type: ignore[method-assign]
    assert content(reader) == by_hudi_rs(table.url)
    assert len(content(reader)) == 8
    assert not listings


def test_writer_whose_listing_has_a_hole_gives_way(table: Table) -> None:
    """It would take the rows behind the hole for new ones."""
    for number in range(8):
        upsert(table, (number, "ab"[number % 2], number))
    writer = Table.open(table.url, settings=FEW)
    mine = Transaction(writer)
    whole = mine.timeline
    mine._timeline = type(whole)(tuple(i for i in whole.instants if i.begin != whole.writes[4].begin))
    table.archive()
    arrow.write(mine, upserts=rows((3, "b", 33)))
    with pytest.raises(WriteConflict, match="archived"):
        mine.commit()
    mine.rollback()


def test_archival_makes_no_needless_requests(table: Table) -> None:
    for number in range(8):
        upsert(table, (1, "a", number))
    mine, asked = counted(table, FEW)
    assert mine.archive().instants
    assert len([name for name in asked.names if name.startswith("list")]) <= budgets.ARCHIVE_LISTS
    asked.names.clear()
    assert mine.archive().instants == ()
    assert sorted(asked.names) == budgets.ARCHIVE_NOTHING


def test_archival_settings_are_those_of_hudi() -> None:
    def keep(**given: str) -> KeepActive:
        return TableSettings.from_hudi({f"hoodie.keep.{key}.commits": value for key, value in given.items()}).archival

    assert keep() == KeepActive(20, 30)
    assert keep(min="5", max="7") == KeepActive(5, 7)
    assert keep(min="50") == KeepActive(50, 60)
    assert keep(max="5") == KeepActive(1, 5)
    with pytest.raises(InvalidSettings, match="hoodie.keep.min.commits=x"):
        keep(min="x")
    with pytest.raises(InvalidSettings, match="hoodie.keep.max.commits=5 are not possible"):
        keep(min="6", max="5")


def test_commits_archive_automatically_when_configured(table: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    told = Table.open(table.url, settings=replace(FEW, archive_automatically=True))
    for number in range(12):
        upsert(told, (number % 2, "a", number))
        assert len(told.timeline().writes) <= KEEP.most + 1
    assert len(archive_index.read_history(told.knowledge).files) == 3

    def fail(*_: object) -> None:
        raise Unavailable("the store is gone")

    monkeypatch.setattr("lockprovider.table.services.archive._round", fail)
    for number in range(4):
        upsert(told, (number % 2, "a", 20 + number))
    assert content(told) == by_hudi_rs(table.url) == {(0, "a", 22), (1, "a", 23)}
    assert TableSettings.from_hudi({"hoodie.archive.automatic": "true"}).archive_automatically
    assert not TableSettings.from_hudi({}).archive_automatically


def test_archival_can_be_previewed(table: Table) -> None:
    for number in range(8):
        upsert(table, (1, "a", number))
    planned = table.archive(dry_run=True)
    assert not history(table).exists()
    assert planned == table.archive()
    assert archive_files._MERGED == 10
