"""Who opens a table by a checkpoint beside the lock sees what a listing shows, whatever happened in between."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import budgets
import pytest
from noting import record
from table.asked_for import counted
from table.mor_tables import a_table as merge_on_read
from table.mor_tables import rows as mor_rows
from table.state.test_cache import SELDOM, commit_without_the_lock, taken_by_jvm
from table.tables import SPEC, by_hudi_rs, content, rows, upsert

from fsspec_cas import Store
from fsspec_cas.testing import ManualClock
from lockprovider import Log
from lockprovider.table import KeepVersions, Table
from lockprovider.table.engines import arrow as engine
from lockprovider.table.read import consistent
from lockprovider.table.state import checkpoint
from lockprovider.table.state.checkpoint import Checkpoint
from lockprovider.table.timeline.view import Snapshot
from lockprovider.table.transaction import lifecycle
from lockprovider.table.transaction.transaction import Transaction

LISTED = {"list_page files", "list_page timeline"}


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that few commits make a checkpoint."""
    monkeypatch.setattr(checkpoint, "EVERY", 4)


@pytest.fixture
def table(tmp_path: Path) -> Table:
    return Table.create(str(tmp_path / "t"), SPEC, settings=SELDOM)


def grown(table: Table, commits: int = 10) -> Table:
    for number in range(commits):
        upsert(table, (number % 3, "ab"[number % 2], number))
    return table


def checkpoints(table: Table) -> list[str]:
    return sorted(path.name for path in Path(table.url, checkpoint.CHECKPOINTS).glob("*/*"))


def listed(table: Table) -> Snapshot:
    return consistent.snapshot_by(table, table.timeline(), None)


def another(table: Table) -> Table:
    return Table.open(table.url, settings=table.settings)


def test_open_takes_five_requests_whatever_the_age_of_the_table(table: Table) -> None:
    grown(table)
    fresh, asked = counted(table, SELDOM)
    fresh.config()
    found = fresh.snapshot()
    assert asked.names == budgets.OPEN
    assert found.slices == listed(table).slices
    assert found.timeline.writes == listed(table).timeline.writes
    assert fresh.schema() == table.schema()
    assert content(fresh) == by_hudi_rs(table.url)


def test_fresh_writer_uses_the_checkpoint(table: Table) -> None:
    grown(table)
    fresh, asked = counted(table, SELDOM)
    txn = Transaction(fresh)
    engine.write(txn, upserts=rows((1, "b", 100)))
    assert "list_page files" not in asked.names
    txn.commit()
    assert content(fresh) == content(another(table)) == by_hudi_rs(table.url)


def test_one_writer_writes_the_checkpoint_and_the_last_two_stay(table: Table) -> None:
    other = another(table)
    wrote: list[str] = []
    for number in range(20):
        upsert((table, other)[number % 2], (number, "a", number))
        wrote.extend(name for name in checkpoints(table) if name not in wrote)
    assert wrote == ["1", "2", "3", "4", "5"]
    assert checkpoints(table) == ["4", "5"]


def test_appends_make_a_checkpoint_that_lists_the_files_once(table: Table) -> None:
    writer, asked = counted(table, SELDOM)
    counts = []
    for number in range(30):
        writer.append(rows((number, "a", number)))
        counts.append(asked.names.count("list_page files"))
    assert len(checkpoints(table)) == 2
    assert counts[6] == counts[-1]
    assert another(table).snapshot().slices == listed(table).slices


def test_commit_without_the_lock_is_seen_after_a_minute(
    table: Table,
) -> None:
    """Even where a commit of ours came after it; `doctor` names it."""
    grown(table)
    clock = ManualClock()
    mine = Table(Store.from_url(table.url), table.url, settings=SELDOM, world=clock)
    assert (0, "b", 9) in content(mine)
    assert not [one for one in table.doctor() if "without the lock" in one.what]
    commit_without_the_lock(table, (50, "a", 50))
    stranger = table.listed_timeline().writes[-1].file_name
    other = another(table)
    other.knowledge.late_checked_s = math.inf  # it looked just now
    upsert(other, (51, "b", 51))
    clock.advance(61)
    fresh, asked = counted(table, SELDOM)
    for reader in (mine, fresh, another(table)):
        assert {(50, "a", 50), (51, "b", 51)} <= content(reader)
    assert content(fresh) == by_hudi_rs(table.url)
    assert "get files" in asked.names  # the checkpoint
    (found,) = [one for one in table.doctor() if "without the lock" in one.what]
    assert stranger in found.what
    upsert(table, (52, "a", 52))
    assert content(table) == content(mine) == by_hudi_rs(table.url)


def by_clean(table: Table) -> None:
    assert table.clean(KeepVersions(1))


def by_rollback(table: Table) -> None:
    txn = Transaction(table)
    engine.write(txn, upserts=rows((77, "z", 7)))
    txn.leave()
    table.roll_back(txn.begin, force=True)


def by_archive(table: Table) -> None:
    assert table.archive().instants


def by_restore(table: Table) -> None:
    table.restore(table.timeline().writes[-3].begin)


def by_share(table: Table) -> None:
    with table.lock.acquire():
        pass


@pytest.mark.parametrize("ends", [by_clean, by_rollback, by_archive, by_restore, by_share, taken_by_jvm])
def test_checkpoint_ends_with_its_log(table: Table, ends: Callable[[Table], None]) -> None:
    grown(table, 40 if ends is by_archive else 10)
    assert checkpoints(table)
    ends(table)
    upsert(table, (5, "c", 5))
    upsert(table, (6, "c", 6))
    fresh, asked = counted(table, SELDOM)
    found = fresh.snapshot()
    assert "get files" not in asked.names, "no log of that name, no checkpoint"
    assert found.slices == listed(table).slices
    assert content(fresh) == by_hudi_rs(table.url)


def test_checkpoints_of_ended_logs_are_removed(table: Table) -> None:
    grown(table)
    taken_by_jvm(table)
    grown(table, 5)
    live = record(table.store).log
    assert live is not None
    assert len(checkpoints(table)) == 3
    table.sweep()
    assert [path.name for path in Path(table.url, checkpoint.CHECKPOINTS).glob(f"{live.name}/*")] == ["1"]
    assert checkpoints(table) == ["1"]


@pytest.mark.parametrize("data", [b"", b"x", b"x\x9c\x03\x00\x00\x00\x00\x01"])
def test_unreadable_checkpoint_is_ignored(table: Table, data: bytes) -> None:
    grown(table)
    for path in Path(table.url, checkpoint.CHECKPOINTS).glob("*/*"):
        path.write_bytes(data)
    assert another(table).snapshot().slices == listed(table).slices


def test_checkpoint_older_than_the_log_is_ignored(table: Table) -> None:
    grown(table)
    log = record(table.store).log
    assert log is not None
    assert checkpoint.find(table.store, log) is not None
    short = Log(log.name, log.next, log.next)
    assert checkpoint.find(table.store, short) is None
    assert checkpoint.find(table.store, replace(log, name="another")) is None


def test_no_checkpoint_is_made_when_files_vanish_during_its_listing(
    table: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(2):
        table.append(rows((number, "a", number)))
    upsert(another(table), (0, "a", 10))
    look = Table.snapshot_of

    def cleaned(self: Table, *args: Any) -> Snapshot:
        found = look(self, *args)
        monkeypatch.setattr(Table, "snapshot_of", look)
        assert another(table).clean(KeepVersions(1))
        return found

    monkeypatch.setattr(Table, "snapshot_of", cleaned)
    table.append(rows((4, "a", 4)))
    assert Table.snapshot_of is look
    assert checkpoints(table) == []


@pytest.mark.parametrize("is_wrong", [False, True], ids=["as it is", "a wrong twin"])
@pytest.mark.parametrize("seed", range(3))
def test_checkpoint_equals_a_listing_in_random_histories(
    table: Table, monkeypatch: pytest.MonkeyPatch, seed: int, *, is_wrong: bool
) -> None:
    """The twin goes by the checkpoint of any log."""
    monkeypatch.setattr(checkpoint, "EVERY", 2)
    draw = random.Random(seed)
    writers = [table, another(table)]
    others = [by_clean, by_rollback, by_restore, by_share, taken_by_jvm]
    by_checkpoint, differs = 0, 0
    for number in range(40):
        writer = draw.choice(writers)
        try:
            if draw.random() < 0.1 and len(writer.timeline().writes) > 3:
                draw.choice(others)(writer)
            elif draw.random() < 0.2:
                writer.delete(rows((draw.randrange(6), "a", 0)).select(["id", "part"]))
            else:
                upsert(writer, (draw.randrange(6), draw.choice("ab"), number), retries=5)
        except AssertionError:
            continue  # nothing to clean
        fresh, asked = counted(table, SELDOM)
        fresh.knowledge.late_checked_s = math.inf  # else that look would show what the twin does wrong
        with monkeypatch.context() as twin:
            if is_wrong:
                twin.setattr(checkpoint, "find", any_log)
            differs += fresh.snapshot().slices != listed(table).slices
        by_checkpoint += not set(asked.names) >= LISTED
    assert is_wrong or by_checkpoint > 5
    assert bool(differs) == is_wrong


def any_log(store: Store, log: Log) -> Checkpoint | None:
    paths = sorted(entry.path for entry in store.list(checkpoint.CHECKPOINTS))
    found = Checkpoint.decode(store.read(paths[-1]).data) if paths else None
    return None if found is None else replace(found, log=log.name, position=log.first)


def test_slices_with_log_files_survive_a_checkpoint(tmp_path: Path) -> None:
    table = merge_on_read(tmp_path / "t", "by commit")
    table.append(mor_rows((1, "a", "x", 1), (2, "b", "x", 1)))
    for number in range(3):
        table.upsert(mor_rows((1, "a", str(number), 2), (3, "c", "y", 1)))
    seen = table.snapshot()
    assert any(len(one.logs) > 1 for one in seen.slices)
    found = Checkpoint.decode(Checkpoint("log", 3, seen.timeline, seen.slices).encode())
    assert found is not None
    assert [(one, one.path, one.size, one.logs) for one in found.slices] == [
        (one, one.path, one.size, one.logs) for one in seen.slices
    ]
    assert found.timeline.writes == seen.timeline.writes
    assert found.timeline.unfinished == seen.timeline.unfinished
    assert (found.timeline.first_active, found.timeline.latest_time) == (
        seen.timeline.first_active,
        seen.timeline.latest_time,
    )


def test_checkpoint_is_stored_every_given_number_of_positions(table: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    positions: list[int] = []
    monkeypatch.setattr(lifecycle, "store_checkpoint", lambda _, position: positions.append(position))
    grown(table, 13)
    assert positions == [4, 8, 12]
