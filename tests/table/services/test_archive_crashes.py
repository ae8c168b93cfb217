"""An archiver that dies before or after any of its requests leaves a table that all go on with, and the next one ends.

Merging and removing old files of the archive is part of it.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from table.tables import SETTINGS, SPEC, by_hudi_rs, content, upsert
from table.test_crash_at_every_step import AT_EACH_REQUEST, Died, DiesAtStep, deaths, let_time_pass

from fsspec_cas import Store, Unavailable
from lockprovider import Lease, LeaseLost
from lockprovider.table import HistoryGone, KeepActive, KeepCommits, Table, TableSettings
from lockprovider.table.doctor.rules import diagnose
from lockprovider.table.format.layout import TIMELINE, parse_instant
from lockprovider.table.services import archive_files
from lockprovider.table.state import archive_index
from lockprovider.table.timeline.retention import Archivable

KEEP = KeepActive(2, 3)
FEW = TableSettings(lock=SETTINGS.lock, heartbeat=SETTINGS.heartbeat, retention=KeepCommits(1), archival=KEEP)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A table that has been archived three times, with enough on its timeline for a fourth time."""
    folder = tmp_path_factory.mktemp("made") / "t"
    table = Table.create(str(folder), SPEC, settings=FEW)
    for turn in range(3):
        for number in range(3):
            upsert(table, (number, "ab"[turn % 2], turn))
        table.archive()
    table.clean()
    for number in range(3):
        upsert(table, (number, "a", 10 + number))
    assert len(archive_index.read_history(table.knowledge).files) == 3
    return folder


def attempt(url: str, backend: DiesAtStep) -> bool:
    """False if its process died."""
    try:
        Table(Store(backend, url), url, settings=FEW).archive()
    except (Died, Unavailable):
        assert backend.dead
        return False
    return True


def names_in_archive(folder: Path, table: Table) -> set[str]:
    history = folder / ".hoodie" / "timeline" / "history"
    rows = [
        row
        for name in archive_index.read_history(table.knowledge).files
        for row in pq.read_table(history / name).to_pylist()
    ]
    return {f"{row['instantTime']}_{row['completionTime']}.{row['action']}" for row in rows}


def completed(folder: Path) -> set[str]:
    names = {path.name for path in (folder / ".hoodie" / "timeline").iterdir()}
    return {name for name in names if (one := parse_instant(name)) is not None and one.is_completed}


def look_at(folder: Path, rows: Any, everything: set[str], after: str) -> None:
    """What must hold at every moment."""
    assert by_hudi_rs(str(folder)) == rows, f"torn after {after}"
    opened = Table.open(str(folder), settings=FEW)
    assert content(opened) == rows, f"torn after {after}"
    assert names_in_archive(folder, opened) | completed(folder) >= everything, f"an instant was lost after {after}"
    states: dict[str, set[bool]] = {}
    for path in (folder / ".hoodie" / "timeline").iterdir():
        instant = parse_instant(path.name)
        if instant is not None:
            states.setdefault(instant.begin, set()).add(instant.is_completed)
    assert all(True in found for found in states.values()), f"a completed instant looks pending after {after}"


def die_at_every_step(tmp_path: Path, made: Path, *, applied: bool) -> int:
    """How many requests an archival has; at each of them one died."""
    rows, before = by_hudi_rs(str(made)), Table.open(str(made), settings=FEW)
    everything = names_in_archive(made, before) | completed(made)
    for step in deaths(applied=applied, every=5):  # each instant is three removals
        folder = tmp_path / "t"
        shutil.copytree(made, folder)
        backend = DiesAtStep(step, applied=applied)
        if attempt(str(folder), backend):
            return step
        last = backend.asked[-1]
        look_at(folder, rows, everything, last)
        let_time_pass(folder)
        if step % 2 == 0:  # others go on first
            other = Table.open(str(folder), settings=FEW)
            with pytest.raises(HistoryGone):
                other.restore(min(everything)[:17])
            upsert(other, (9, "z", 9))
        now = by_hudi_rs(str(folder))
        assert now - {(9, "z", 9)} == rows
        table = Table.open(str(folder), settings=FEW)
        table.archive(KeepActive(1, 2))
        look_at(folder, now, everything, f"{last} and the next archival")
        assert not completed(folder) & names_in_archive(folder, table)
        assert [one.what for _, _, found in diagnose(table) for one in found if one.state == "wrong"] == []
        shutil.rmtree(folder)
    pytest.fail("the archival never ended")


@AT_EACH_REQUEST
def test_archival_killed_at_any_request_is_finished_by_the_next(
    tmp_path: Path, made: Path, monkeypatch: pytest.MonkeyPatch, applied: bool
) -> None:
    monkeypatch.setattr("lockprovider.table.services.archive_files._MERGED", 3)
    assert die_at_every_step(tmp_path, made, applied=applied) > 30


def test_archiver_that_removes_completed_files_first_is_caught(
    tmp_path: Path, made: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def remove(table: Table, _lease: Lease, actions: Iterable[Archivable]) -> None:
        for action in actions:
            for instant in (*action.completed, *action.pending):
                table.store.delete(f"{TIMELINE}/{instant.file_name}")

    monkeypatch.setattr("lockprovider.table.services.archive_files.remove_archived", remove)
    with pytest.raises(AssertionError, match="looks pending after"):
        die_at_every_step(tmp_path, made, applied=False)


def test_decided_archival_is_finished_by_a_restore(tmp_path: Path, made: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What it was going to archive is archived then, and no restore can take it back."""
    folder = tmp_path / "t"
    shutil.copytree(made, folder)
    table = Table.open(str(folder), settings=FEW)

    def die(*_: object) -> None:
        raise Died

    monkeypatch.setattr("lockprovider.table.services.archive_files._point_version", die)
    with pytest.raises(Died):
        table.archive()
    monkeypatch.undo()
    writes = table.timeline().writes
    assert len(writes) > KEEP.least
    other = Table.open(str(folder), settings=FEW)
    with pytest.raises(HistoryGone, match="are archived"):
        other.restore(writes[0].begin)
    assert len(other.timeline().writes) == KEEP.least
    assert by_hudi_rs(str(folder)) == content(other) == by_hudi_rs(str(made))


def test_archiver_paused_before_its_decision_does_nothing_more(
    tmp_path: Path, made: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "t"
    shutil.copytree(made, folder)
    paused, other = (Table.open(str(folder), settings=FEW) for _ in range(2))
    plain, target = archive_files._decide, paused.timeline().writes[1]

    def pause(table: Table, *more: Any) -> None:
        if table is paused:
            let_time_pass(folder)
            other.restore(target.begin)
            upsert(other, (50, "b", 5))
        plain(table, *more)

    monkeypatch.setattr(archive_files, "_decide", pause)
    with pytest.raises(LeaseLost):
        paused.archive()
    seen = Table.open(str(folder), settings=FEW)
    assert content(seen) == by_hudi_rs(str(folder))
    taken_back = {name for name in completed(made) if name > target.file_name and name.endswith(".commit")}
    assert taken_back
    assert not taken_back & names_in_archive(folder, seen)


def test_archiver_paused_after_its_decision_finds_that_others_went_on(
    tmp_path: Path, made: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "t"
    shutil.copytree(made, folder)
    paused, other = (Table.open(str(folder), settings=FEW) for _ in range(2))
    plain = archive_files._point_version

    def pause(table: Table, *more: Any) -> None:
        if table is paused:
            let_time_pass(folder)
            for number in range(4):
                upsert(other, (number, "b", 5))
            other.archive()
        plain(table, *more)

    monkeypatch.setattr(archive_files, "_point_version", pause)
    with pytest.raises(Exception, match="_version_"):
        paused.archive()
    seen = Table.open(str(folder), settings=FEW)
    assert archive_index.read_history(seen.knowledge).number == 5
    assert content(seen) == by_hudi_rs(str(folder))
    assert not completed(folder) & names_in_archive(folder, seen)
