"""A writer of a long timeline looks for dead ones by its end, and by heartbeats, and is told what a listing tells."""

from __future__ import annotations

from pathlib import Path

import pytest
from table.asked_for import counted
from table.state.test_cache import SELDOM, commit_without_the_lock
from table.state.test_checkpoint import another, grown
from table.tables import SPEC, by_hudi_rs, content, let_beat_age, rows, upsert

from lockprovider.table import Table
from lockprovider.table.engines import arrow as engine
from lockprovider.table.state import checkpoint, current
from lockprovider.table.timeline.timeline import Timeline
from lockprovider.table.transaction.transaction import Transaction


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that few commits make a checkpoint, and a long timeline."""
    monkeypatch.setattr(checkpoint, "EVERY", 4)
    monkeypatch.setattr(current, "_RECENT", 3)


@pytest.fixture
def table(tmp_path: Path) -> Table:
    return Table.create(str(tmp_path / "t"), SPEC, settings=SELDOM)


def left(table: Table) -> Transaction:
    """A write whose process died."""
    txn = Transaction(table)
    engine.write(txn, upserts=rows((77, "z", 7)))
    txn.leave()
    return txn


def silence(table: Table, *dead: Transaction) -> None:
    """As if hours had gone by since they beat."""
    for txn in dead:
        let_beat_age(Path(table.url, ".hoodie", ".heartbeat", txn.begin))


def never(self: current.CurrentState) -> Timeline:
    raise AssertionError("all of the timeline is listed")


def test_first_commit_of_a_handle_lists_neither_timeline_nor_files(
    table: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    grown(table)
    fresh, asked = counted(table, SELDOM)
    monkeypatch.setattr(current.CurrentState, "listed", never)
    fresh.upsert(rows((1, "b", 100)))
    assert "list_page files" not in asked.names
    assert asked.names.count("list_page timeline") == 1
    monkeypatch.undo()
    assert content(another(table)) == by_hudi_rs(table.url) >= {(1, "b", 100)}


def test_old_dead_writer_is_found_by_its_heartbeat(table: Table) -> None:
    grown(table, 3)
    dead = left(another(table))
    grown(table)
    silence(table, dead)
    upsert(another(table), (5, "b", 5))
    assert dead.begin not in table.listed_timeline().pending_writes


@pytest.mark.parametrize("is_old", [False, True])
def test_dead_writer_without_heartbeat_is_found_among_the_last_commits(table: Table, *, is_old: bool) -> None:
    grown(table)
    dead = left(another(table))
    Path(table.url, ".hoodie", ".heartbeat", dead.begin).unlink()
    table.begin_dead_check_if_due = lambda: False  # type: ignore[method-assign]
    if is_old:
        grown(table, 5)
    upsert(another(table), (5, "b", 5))
    assert (dead.begin in table.listed_timeline().pending_writes) is is_old
    table.sweep()
    assert dead.begin not in table.listed_timeline().pending_writes


def test_live_writer_that_began_before_the_last_commits_goes_on(table: Table) -> None:
    grown(table, 3)
    slow = Transaction(another(table))
    engine.write(slow, upserts=rows((77, "z", 7)))
    grown(table)
    upsert(another(table), (5, "b", 5))
    slow.commit()
    assert content(another(table)) == by_hudi_rs(table.url) >= {(77, "z", 7), (5, "b", 5)}


def test_commit_without_the_lock_is_seen_by_the_first_commit_of_a_handle(table: Table) -> None:
    upsert(table, (8, "c", 0), (9, "c", 0))
    grown(table)
    commit_without_the_lock(table, (8, "c", 8))
    another(table).upsert(rows((9, "c", 9)))
    assert by_hudi_rs(table.url) >= {(8, "c", 8), (9, "c", 9)}


def test_many_old_heartbeats_cause_a_full_listing(table: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    grown(table, 3)
    dead = [left(another(table)) for _ in range(3)]
    grown(table)
    silence(table, *dead)
    monkeypatch.setattr(current, "_OLD", 2)
    upsert(another(table), (5, "b", 5))
    assert not {txn.begin for txn in dead} & {*table.listed_timeline().pending_writes}
