"""Writes to a table whose metadata table JVM Hudi made: it lists them, whatever became of their writers."""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest
from patience import until
from table.metadata_written import ROOT, with_files_alone
from table.state.test_metadata_table import listed, sizes_there
from table.tables import SETTINGS
from table.test_crash_at_every_step import AT_EACH_REQUEST, Died, DiesAtStep, deaths, end_of, is_at_rest, let_time_pass

from fsspec_cas import CasError, Store, Unavailable
from lockprovider import HUDI_LOCK_PATH, InvalidSettings, Lease, LockError, Pending, PublishUnknown
from lockprovider.storage_lock import driver
from lockprovider.table import (
    Aborted,
    HistoryGone,
    KeepActive,
    KeepCommits,
    KeepVersions,
    Table,
    TableSettings,
    UnsupportedTable,
    WriteConflict,
)
from lockprovider.table.doctor.rules import diagnose
from lockprovider.table.engines import arrow as engine
from lockprovider.table.format.layout import Action
from lockprovider.table.format.service_metadata import RestorePlan, Victim, encode_restore_plan
from lockprovider.table.services import plans
from lockprovider.table.services.rollback import finish_restore
from lockprovider.table.transaction.transaction import Transaction

NAME = "mdt_v9_default"
KEEPS = replace(SETTINGS, write_metadata=True)
SCHEMA = pa.schema([("id", pa.int64()), ("part", pa.string()), ("v", pa.string()), ("ts", pa.int64())])
Row = tuple[int, str, str | None, int]
BEFORE: set[Row] = {(1, "a", "x2", 2), (3, "b", None, 2)}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return with_files_alone(NAME, tmp_path / "table")


def rows(*given: Row) -> pa.Table:
    return pa.Table.from_pylist([dict(zip(SCHEMA.names, row, strict=True)) for row in given], schema=SCHEMA)


def open_(folder: Path) -> Table:
    return Table.open(str(folder), settings=KEEPS)


def content(folder: Path) -> set[Row]:
    """The rows, by listing the folders and by the metadata table, on which no two readers differ."""
    found: list[set[Row]] = []
    for by_metadata in (False, True):
        table = Table.open(str(folder), settings=replace(SETTINGS, read_from_metadata=by_metadata))
        found.append({(r["id"], r["part"], r["v"], r["ts"]) for r in table.to_arrow().to_pylist()})
    assert found[0] == found[1]
    return found[0]


def all_is_listed(folder: Path) -> None:
    """What is there and what is listed are one, and nothing pending is left behind."""
    assert listed(folder) == sizes_there(folder)
    said = {rule: findings for rule, _, findings in diagnose(Table.open(str(folder)))}
    assert said["metadata"] == ()
    own = [path.name for path in (folder / ROOT / ".hoodie" / "timeline").iterdir()]
    completed = {name.partition("_")[0] for name in own if "_" in name}
    assert {name.partition(".")[0] for name in own if "_" not in name and name != "history"} <= completed


def test_written_files_are_listed(folder: Path) -> None:
    table = open_(folder)
    table.upsert(rows((1, "a", "mine", 5), (7, "c", "new", 1)))
    assert content(folder) == {(1, "a", "mine", 5), (3, "b", None, 2), (7, "c", "new", 1)}
    all_is_listed(folder)
    table.delete(rows((3, "b", None, 9)).select(["id", "part"]))
    table.append(rows((8, "b", "more", 1)))
    all_is_listed(folder)
    table.overwrite(rows((9, "c", "over", 1)))
    all_is_listed(folder)
    assert content(folder) == {(9, "c", "over", 1)}


def test_listing_completes_before_the_commit_and_after_all_instants(folder: Path) -> None:
    done = open_(folder).upsert(rows((1, "a", "mine", 5)))
    own = [path.name for path in (folder / ROOT / ".hoodie" / "timeline").glob("*_*")]
    (mine,) = (name for name in own if name.startswith(f"{done.instant}_"))
    completion = mine.partition("_")[2].partition(".")[0]
    assert max(own) == mine
    assert done.instant < completion < done.completion
    assert all(name.partition("_")[2] < f"{completion}." for name in own if name != mine)


def test_write_is_refused_without_the_setting(folder: Path) -> None:
    table = Table.open(str(folder), settings=SETTINGS)
    with pytest.raises(UnsupportedTable, match=r"TableSettings\(write_metadata=True\) keeps its listing"):
        table.append(rows((8, "b", "more", 1)))


def test_table_property_replaces_the_setting(folder: Path) -> None:
    assert {one.key: one.wanted for one in open_(folder).share()}["hoodie.metadata.enable"] == "true"
    table = Table.open(str(folder), settings=SETTINGS)
    table.append(rows((8, "b", "more", 1)))
    assert table.share() == ()
    all_is_listed(folder)
    assert content(folder) == BEFORE | {(8, "b", "more", 1)}
    not_kept = Table.open(str(folder), settings=TableSettings.from_hudi(HUDI | {"hoodie.metadata.enable": "false"}))
    with pytest.raises(UnsupportedTable, match="would hide these commits"):
        not_kept.append(rows((9, "b", "more", 1)))


HUDI = {"hoodie.write.concurrency.mode": "optimistic_concurrency_control"}


def test_key_of_hudi_keeps_the_listing(folder: Path) -> None:
    settings = TableSettings.from_hudi(HUDI | {"hoodie.metadata.enable": "true"})
    Table.open(str(folder), settings=settings).append(rows((8, "b", "more", 1)))
    all_is_listed(folder)
    with pytest.raises(InvalidSettings, match=r"hoodie\.metadata\.enable=yes must be true or false"):
        TableSettings.from_hudi(HUDI | {"hoodie.metadata.enable": "yes"})


def test_clustered_files_are_listed(folder: Path) -> None:
    table = open_(folder)
    for turn in range(3):
        table.append(rows((10 + turn, "a", "small", 1)))
    before = content(folder)
    (done,) = table.cluster()
    assert len(done.file_groups) > len(done.new_file_groups) >= 1
    all_is_listed(folder)
    assert content(folder) == before
    table.clean(KeepVersions(1))
    all_is_listed(folder)
    assert content(folder) == before


@pytest.mark.soak
@pytest.mark.parametrize("applied", [False, True], ids=["not sent", "answer lost"])
def test_listing_is_complete_after_clustering_dies_at_any_request(tmp_path: Path, applied: bool) -> None:
    made = with_files_alone(NAME, tmp_path / "made")
    open_(made).append(rows((10, "a", "small", 1)))
    before = content(made)
    for step in range(1, 100):
        folder = tmp_path / str(step)
        shutil.copytree(made, folder)
        backend = DiesAtStep(step, applied=applied)
        table = Table(Store(backend, str(folder)), str(folder), settings=KEEPS)
        try:
            table.cluster()
            break
        except (Died, CasError, LockError):
            assert backend.dead
        end_of(table)
        assert content(folder) == before
        let_time_pass(folder)
        other = open_(folder)
        with contextlib.suppress(HistoryGone):  # of one that was decided, and is there by now
            if step % 2:
                other.cluster()
            else:
                other.unschedule_clustering(hours=1e-9)
        if not step % 2:
            other.append(rows(NEXT))
        after = before | (set() if step % 2 else {NEXT})
        assert content(folder) == after, backend.asked[-3:]
        all_is_listed(folder)
    else:
        pytest.fail("the clustering never ended")


def test_commit_with_a_savepoint_is_restored_and_the_listing_ends(folder: Path) -> None:
    table = open_(folder)
    kept = table.savepoint()
    table.upsert(rows((1, "a", "mine", 5)))
    pending = Transaction(table)
    engine.write(pending, upserts=rows((1, "a", "late", 9)))
    with pytest.raises(Aborted, match=f"write {pending.begin} is pending"):
        table.restore(kept)
    pending.rollback()
    all_is_listed(folder)
    table.restore(kept)
    assert content(folder) == BEFORE
    assert table.config().named_metadata == ()
    assert not (folder / ROOT / "files").exists() or not list((folder / ROOT / "files").iterdir())
    table.append(rows(NEXT))
    assert content(folder) == BEFORE | {NEXT}


def test_abandoned_restore_ends_the_listing(folder: Path) -> None:
    table = open_(folder)
    target = table.timeline().writes[-1].begin
    done = table.upsert(rows((1, "a", "mine", 5)))
    plan = encode_restore_plan(RestorePlan(target, (Victim(done.instant, "commit"),)))
    (folder / ".hoodie" / "timeline" / "20991122040000000.restore.requested").write_bytes(plan)
    finish_restore(table, "20991122040000000")
    assert content(folder) == BEFORE
    assert table.config().named_metadata == ()


def test_instants_not_compacted_into_the_metadata_table_are_not_archived(folder: Path) -> None:
    table = Table.open(str(folder), settings=replace(KEEPS, retention=KeepCommits(1)))
    for turn in range(3):
        table.append(rows((10 + turn, "a", "small", 1)))
    held = table.archive(KeepActive(1, 2))
    assert (held.instants, "the metadata table was never compacted" in held.held) == ((), True)


def test_cleaned_files_are_no_longer_listed(folder: Path) -> None:
    table = open_(folder)
    for turn in range(3):
        table.upsert(rows((1, "a", f"v{turn}", 5 + turn)))
    before = content(folder)
    (done,) = table.clean(KeepCommits(1))
    assert len(done.files["part=a"]) >= 2
    all_is_listed(folder)
    assert content(folder) == before
    table.upsert(rows((1, "a", "after", 9)))
    all_is_listed(folder)


@AT_EACH_REQUEST
def test_clean_killed_at_any_request_is_finished_by_the_next(tmp_path: Path, applied: bool) -> None:
    made = with_files_alone(NAME, tmp_path / "made")
    for turn in range(2):
        open_(made).upsert(rows((1, "a", f"v{turn}", 5 + turn)))
    before = content(made)
    listings = 0
    for step in deaths(applied=applied):
        folder = tmp_path / str(step)
        shutil.copytree(made, folder)
        backend = DiesAtStep(step, applied=applied)
        table = Table(Store(backend, str(folder)), str(folder), settings=KEEPS)
        try:
            table.clean(KeepCommits(1))
            break
        except (Died, CasError, LockError):
            assert backend.dead
        end_of(table)
        listings += ROOT in backend.asked[-1]
        assert content(folder) == before
        for _ in range(2):  # a plan that was decided, and is not there yet, is there after the first
            let_time_pass(folder)
            for plan in (folder / ".hoodie" / "timeline").glob("*.clean.requested"):
                os.utime(plan, (1, 1))
            open_(folder).clean(KeepCommits(1))
        all_is_listed(folder)
        assert content(folder) == before
        assert Table.open(str(folder)).timeline().pending(Action.CLEAN) == (), backend.asked[-3:]
    else:
        pytest.fail("the clean never ended")
    assert listings >= 1


def test_refused_write_leaves_nothing_in_it(folder: Path) -> None:
    one, other = open_(folder), open_(folder)
    txn = Transaction(one)
    engine.write(txn, upserts=rows((1, "a", "late", 9)))
    other.upsert(rows((1, "a", "first", 8)))
    with pytest.raises(WriteConflict):
        txn.commit()
    txn.rollback()
    all_is_listed(folder)
    assert content(folder) == {(1, "a", "first", 8), (3, "b", None, 2)}


def test_index_added_to_the_properties_ends_a_running_write(folder: Path) -> None:
    """D8: a JVM writer that began with older settings brings an index back at any commit."""
    table = open_(folder)
    txn = Transaction(table)
    engine.write(txn, upserts=rows((1, "a", "late", 9)))
    properties = folder / ".hoodie" / "hoodie.properties"
    properties.write_text(properties.read_text().replace("partitions=files", "partitions=files,record_index"))
    with pytest.raises((UnsupportedTable, Aborted), match="DROP INDEX record_index"):
        txn.commit()
    txn.rollback()
    all_is_listed(folder)


def attempt(folder: Path, backend: DiesAtStep) -> bool:
    """One write; False if its process died."""
    table = Table(Store(backend, str(folder)), str(folder), settings=KEEPS)
    txn = None
    try:
        txn = Transaction(table)
        engine.write(txn, upserts=rows((1, "a", "mine", 5), (7, "c", "new", 1)))
        txn.commit()
    except (Died, Unavailable, PublishUnknown):
        assert backend.dead
        if txn is not None and txn.heartbeat is not None:
            txn.heartbeat._stop.set()
        end_of(table)
        return False
    until(lambda: backend.dead or is_at_rest(folder))
    end_of(table)
    return not backend.dead


def first_of_the_commit(tmp_path: Path) -> int:
    """The request before those of the commit; what is before that is no other than in other tables."""
    backend = DiesAtStep(1000, applied=True)
    assert attempt(with_files_alone(NAME, tmp_path / "whole"), backend)
    return next(at for at, what in enumerate(backend.asked) if what.startswith("put") and HUDI_LOCK_PATH in what)


def unlisted(folder: Path) -> set[str]:
    """The commits that are visible in the table and not completed in its metadata table."""
    timelines = [(root / ".hoodie" / "timeline").glob("*_*") for root in (folder, folder / ROOT)]
    here, there = ({path.name.partition("_")[0] for path in timeline} for timeline in timelines)
    return here - there


AFTER: set[Row] = {(1, "a", "mine", 5), (3, "b", None, 2), (7, "c", "new", 1)}
NEXT: Row = (8, "c", "next", 1)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
@AT_EACH_REQUEST
def test_listing_is_complete_after_a_death_at_any_request(tmp_path: Path, applied: bool) -> None:
    seen = {"old": 0, "new": 0}
    unlisted_before = unlisted(with_files_alone(NAME, tmp_path / "before"))
    listings = 0
    for step in range(first_of_the_commit(tmp_path), 200):
        folder = with_files_alone(NAME, tmp_path / str(step))
        backend = DiesAtStep(step, applied=applied)
        if attempt(folder, backend):
            break
        assert unlisted(folder) == unlisted_before, f"visible and not listed after {backend.asked[-1]}"
        now = content(folder)
        assert now in (BEFORE, AFTER), f"torn after {backend.asked[-1]}"
        listings += ROOT in backend.asked[-1]
        let_time_pass(folder)
        open_(folder).append(rows(NEXT), retries=3)
        later = content(folder)
        assert later in (BEFORE | {NEXT}, AFTER | {NEXT}), f"not whole after {backend.asked[-1]} and the next writer"
        assert now == BEFORE or later == AFTER | {NEXT}, f"a visible commit went away after {backend.asked[-1]}"
        open_(folder).sweep()
        all_is_listed(folder)
        assert Table.open(str(folder)).timeline().pending_writes == ()
        seen["new" if later >= AFTER else "old"] += 1
    else:
        pytest.fail("the write never ended")
    assert seen["old"] >= 6, seen
    assert seen["new"] >= 2, seen
    assert listings >= 5, "requests below the metadata table's folder"


def _last_part_first(store: Store, pending: Pending, data: bytes | None, left_s: driver.Left) -> None:
    for part in reversed(pending.parts):
        APPLY(store, part, None if data is None else part.data, left_s)


def _rolled_forward_in_part(store: Store, pending: Pending, data: bytes | None, left_s: driver.Left) -> None:
    APPLY(store, replace(pending, first=None) if data is None else pending, data, left_s)


APPLY = driver.apply


@pytest.mark.parametrize("twin", [_last_part_first, _rolled_forward_in_part])
def test_mutant_that_applies_listing_and_commit_apart_is_caught(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, twin: Callable[..., None]
) -> None:
    """Wrong twins: the table's file is visible before its files are listed, or those never are."""
    monkeypatch.setattr(driver, "apply", twin)
    with pytest.raises(AssertionError):
        test_listing_is_complete_after_a_death_at_any_request(tmp_path, applied=False)


def test_mutant_rollback_that_ignores_the_listing_is_caught(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The wrong twin of D4: what is completed in the metadata table alone counts, and names files that are gone."""
    monkeypatch.setattr(plans, "unlist", lambda *_: None)
    with pytest.raises(AssertionError):
        test_listing_is_complete_after_a_death_at_any_request(tmp_path, applied=True)


@pytest.mark.parametrize("fenced", [True, False], ids=["ours", "the wrong twin"])
def test_writer_waking_after_its_rollback_completes_nothing_in_the_listing(
    folder: Path, monkeypatch: pytest.MonkeyPatch, fenced: bool
) -> None:
    """D4: what is completed in the metadata table alone is listed, and its files are gone."""
    (folder.parent / "elsewhere").symlink_to(folder)  # another process, as far as the lock's queue is concerned
    table, publish = open_(folder), Lease.publish
    txn = Transaction(table)
    engine.write(txn, upserts=rows((1, "a", "late", 9)))

    def wakes_late(lease: Lease, pending: Pending, data: bytes, *, new: bool) -> None:
        monkeypatch.setattr(Lease, "publish", publish)
        let_time_pass(folder)
        other = open_(folder.parent / "elsewhere")
        other.sweep()
        other.append(rows(NEXT))
        if not fenced:
            assert pending.first is not None and pending.first.data is not None  # noqa: PT018
            (folder / pending.first.path).write_bytes(pending.first.data)
        publish(lease, pending, data, new=new)

    monkeypatch.setattr(Lease, "publish", wakes_late)
    if not fenced:
        monkeypatch.setattr(plans, "unlist", lambda *_: None)
    with pytest.raises(Aborted):
        txn.commit()
    txn.rollback()
    if fenced:
        all_is_listed(folder)
        assert content(folder) == BEFORE | {NEXT}
    else:
        assert listed(folder) != sizes_there(folder)


def test_listing_adds_the_documented_requests_to_a_commit(folder: Path) -> None:
    backend = DiesAtStep(1000, applied=True)
    table = Table(Store(backend, str(folder)), str(folder), settings=KEEPS)
    for looks in (3, 0):  # at its timeline, its files and the schema of one, once for as long as the lock's log goes on
        backend.asked.clear()
        done = table.upsert(rows((1, "a", "mine", 5)))
        there = [what.rpartition("/")[2] for what in backend.asked if ROOT in what]
        names = [name.replace(done.instant, "B").partition("_2")[0] for name in there]
        requested, *at_once, completed = names[looks:]
        assert [name.rpartition(".")[2] for name in names[:looks]] == ["", "", "hfile"][:looks]
        assert (requested, completed) == ("B.deltacommit.requested", "B")
        assert sorted(at_once) == [".files-0000-0_B.log.1_0-0-0", "B.deltacommit.inflight"]
        until(lambda: sum(HUDI_LOCK_PATH in what for what in backend.asked if what.startswith("put ")) == 3)
        size = sum(path.stat().st_size for path in (folder / ROOT).rglob(f"*{done.instant}*"))
        assert size < 28_500
