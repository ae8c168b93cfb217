"""A rollback that a JVM writer executes: planned under the lock, carried out without it, and without a heartbeat."""

from __future__ import annotations

import contextlib
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from table.tables import SETTINGS, SPEC, by_hudi_rs, content, data_files, rows, upsert

from fsspec_cas import Store
from fsspec_cas.backends.local import LocalBackend
from lockprovider.table import Aborted, HeartbeatSettings, KeepActive, KeepCommits, Table
from lockprovider.table.engines import arrow as engine
from lockprovider.table.format.layout import TIMELINE, Action, format_ms, heartbeat_path, to_ms
from lockprovider.table.format.service_metadata import Victim, encode_rollback_plan
from lockprovider.table.services import rollback
from lockprovider.table.transaction.transaction import Transaction


def plan_as_they_do(table: Table, victim: str, *, behind_ms: int = 0) -> str:
    """The begin time of the rollback. `behind_ms`: it is so long before its victim, by a clock that is behind."""
    plan = encode_rollback_plan(Victim(victim, "commit"))
    with table.lock.acquire():
        planned = table.timeline().next_time(table.world.now_ms())
        planned = format_ms(to_ms(victim) - behind_ms) if behind_ms else planned
        table.store.put_if_absent(f"{TIMELINE}/{planned}.rollback.requested", plan).unwrap()
        table.store.put_if_absent(f"{TIMELINE}/{planned}.rollback.inflight", b"").unwrap()
    return planned


def test_rollback_begun_before_its_target_is_completed_not_replanned(tmp_path: Path) -> None:
    table = Table.create(str(tmp_path), SPEC, settings=SETTINGS)
    victim = Transaction(table)
    engine.write(victim, upserts=rows((1, "a", -1)))
    planned = plan_as_they_do(table, victim.begin, behind_ms=1)
    with table.lock.acquire() as lease:
        rollback.execute_rollback(table, lease, table.listed_timeline(), victim.begin, fenced=True)
    done = [instant for instant in table.timeline().instants if instant.action is Action.ROLLBACK]
    assert {instant.begin for instant in done} == {planned}
    assert table.timeline().pending_rollbacks == ()


def test_rollback_planned_by_another_is_finished_only_when_that_is_dead(
    tmp_path: Path,
) -> None:
    table = Table.create(str(tmp_path), SPEC, settings=SETTINGS)
    victim = Transaction(table)
    engine.write(victim, upserts=rows((1, "a", -1)))
    victim.leave()
    table.store.delete(heartbeat_path(victim.begin))  # as a JVM writer does when it has lost a conflict
    planned = plan_as_they_do(table, victim.begin)

    upsert(table, (2, "b", 2))
    assert victim.begin in table.timeline().pending_writes
    assert table.timeline().pending_rollbacks == (planned,)

    claim_with_heartbeat = replace(SETTINGS, heartbeat=HeartbeatSettings(interval_s=0.2, misses=1))
    impatient = Table.open(str(tmp_path), settings=claim_with_heartbeat)
    written = 2
    for turn in range(500):
        if victim.begin not in table.timeline().pending_writes:
            break
        with contextlib.suppress(Aborted):  # of a writer that the machine held up for longer than its own interval
            upsert(impatient, (2, "b", turn))
            written = turn
    assert table.timeline().pending_rollbacks == ()
    assert not [path for path in data_files(tmp_path) if victim.begin in path]
    assert content(table) == by_hudi_rs(str(tmp_path)) == {(2, "b", written)}


def test_sweep_removes_a_dead_rollback_whose_plan_is_lost(tmp_path: Path) -> None:
    table = Table.create(str(tmp_path), SPEC, settings=SETTINGS)
    victim = Transaction(table)
    engine.write(victim, upserts=rows((1, "a", -1)))
    victim.leave()
    planned = plan_as_they_do(table, victim.begin)
    table.store.delete(f"{TIMELINE}/{planned}.rollback.requested")
    impatient = Table.open(
        str(tmp_path), settings=replace(SETTINGS, heartbeat=HeartbeatSettings(interval_s=0.2, misses=1))
    )
    for _ in range(500):
        if not impatient.timeline().pending_rollbacks and not impatient.timeline().pending_writes:
            break
        impatient.sweep()
    assert impatient.timeline().pending_rollbacks == impatient.timeline().pending_writes == ()
    assert content(impatient) == by_hudi_rs(str(tmp_path)) == set()


@pytest.mark.parametrize("archived", [False, True])
def test_sweep_refuses_a_dead_rollback_of_a_completed_commit(tmp_path: Path, *, archived: bool) -> None:
    """As a JVM process plans it for `commit rollback`, which dies before it takes the completed state back."""
    table = Table.create(str(tmp_path), SPEC, settings=SETTINGS)
    for key in range(5):
        upsert(table, (key, "a", key))
    victim = table.timeline().writes[0 if archived else -1].begin
    if archived:
        table.clean(KeepCommits(1))
        Table.open(str(tmp_path), settings=replace(SETTINGS, retention=KeepCommits(1))).archive(KeepActive(1, 2))
        assert table.timeline().written_at(victim) is None
    dead = Transaction(table)
    dead.leave()
    planned = plan_as_they_do(table, victim)
    impatient = Table.open(
        str(tmp_path), settings=replace(SETTINGS, heartbeat=HeartbeatSettings(interval_s=0.2, misses=1))
    )
    refused = ""
    for _ in range(500):
        try:
            impatient.sweep()
        except Aborted as error:
            refused = str(error)
        if refused and not impatient.timeline().pending_writes:
            break
    assert f"rollback {planned} would undo {victim}, which is completed" in refused
    upsert(table, (5, "a", 5))
    assert table.timeline().pending_rollbacks == (planned,)
    assert content(table) == by_hudi_rs(str(tmp_path)) == {(key, "a", key) for key in range(6)}


def test_dead_rollback_of_a_completed_commit_is_refused_without_the_lock(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may stay for long, and each commit meets it."""
    table = Table.create(str(tmp_path), SPEC, settings=SETTINGS)
    upsert(table, (1, "a", 1))
    plan_as_they_do(table, table.timeline().writes[-1].begin)

    def lock(**_: object) -> None:
        raise AssertionError("the lock was acquired")

    impatient = impatient_at(table)
    monkeypatch.setattr(impatient.lock, "acquire", lock)
    with pytest.raises(Aborted, match="which is completed"):
        sweep_until_it_is_dead(impatient)


def sweep_until_it_is_dead(table: Table) -> None:
    for _ in range(500):
        table.sweep()


def impatient_at(table: Table) -> Table:
    heartbeat = HeartbeatSettings(interval_s=0.2, misses=1)
    return Table.open(table.url, settings=replace(SETTINGS, heartbeat=heartbeat, retention=KeepCommits(1)))


def test_dead_rollback_of_a_completed_commit_stops_no_other_service(tmp_path: Path) -> None:
    table = Table.create(str(tmp_path), SPEC, settings=SETTINGS)
    for key in range(6):
        upsert(table, (1, "a", key))
    victim = table.timeline().writes[4].begin
    plan_as_they_do(table, victim)
    impatient = impatient_at(table)
    with pytest.raises(Aborted, match="which is completed"):
        sweep_until_it_is_dead(impatient)
    (cleaned,) = table.clean(KeepCommits(1))
    table.store.delete(f"{TIMELINE}/{cleaned.instant}_{cleaned.completion}.clean")  # as if its cleaner had died
    for _ in range(500):
        with pytest.raises(Aborted, match="which is completed"):
            impatient.sweep()
        if not table.timeline().pending(Action.CLEAN):
            break
    assert not table.timeline().pending(Action.CLEAN)
    archived = impatient.archive(KeepActive(1, 2))
    assert len(archived.instants) > 2
    assert f"the rollback of {victim} is not finished" in archived.held


def test_writer_leaves_its_instant_to_a_running_rollback(tmp_path: Path) -> None:
    table = Table.create(str(tmp_path), SPEC, settings=SETTINGS)
    upsert(table, (1, "a", 1))
    mine = Transaction(table)
    engine.write(mine, upserts=rows((1, "a", -1)))
    planned = plan_as_they_do(table, mine.begin)
    with pytest.raises(Aborted, match="a rollback .* is planned"):
        mine.commit()
    mine.rollback()
    now = table.timeline()
    assert (now.pending_writes, now.pending_rollbacks) == ((mine.begin,), (planned,)), "they fail if these are gone"
    assert not [path for path in data_files(tmp_path) if mine.begin in path]
    assert content(table) == by_hudi_rs(str(tmp_path)) == {(1, "a", 1)}


@pytest.mark.parametrize("later", ["the first commit", "an archived commit"])
def test_writer_removes_its_late_files_before_the_timeline_starts(tmp_path: Path, later: str) -> None:
    """Hudi counts a write before the timeline's first as committed."""
    settings = replace(SETTINGS, retention=KeepCommits(1))
    table = Table.create(str(tmp_path), SPEC, settings=settings)
    if later == "the first commit":  # its creator died after the properties
        table.store.delete_all([entry.path for entry in table.store.list(f"{TIMELINE}/")])
        table = Table.open(str(tmp_path), settings=settings)
    mine = Transaction(table)
    mine.ensure_begun()
    table.roll_back(mine.begin, force=True)
    done = upsert(table, (0, "z", 0))
    for key in range(0 if later == "the first commit" else 5):
        upsert(table, (2, "b", key))
    before = content(table)
    table.clean()
    table.archive(KeepActive(1, 2))
    assert mine.begin < table.timeline().first_active
    engine.write(mine, upserts=rows((1, "a", 1)))
    mine.rollback()
    rollback.roll_back(table, done.instant, own=True)
    assert content(table) == by_hudi_rs(str(tmp_path)) == before


def test_writer_that_gives_up_beats_until_its_instant_is_gone(tmp_path: Path) -> None:
    """A JVM cleaner takes a pending instant without a heartbeat for dead at once, and fails when it vanishes."""
    Table.create(str(tmp_path), SPEC, settings=SETTINGS)
    backend = Recording()
    table = Table(Store(backend, str(tmp_path)), str(tmp_path), settings=SETTINGS)
    mine = Transaction(table)
    engine.write(mine, upserts=rows((1, "a", 1)))
    mine.rollback()
    of_mine = [path.removeprefix(f"{tmp_path}/") for path in backend.deleted if mine.begin in path]
    first_beat_gone = of_mine.index(heartbeat_path(mine.begin))
    assert of_mine.index(f"{TIMELINE}/{mine.begin}.inflight") < first_beat_gone
    assert of_mine.index(f"{TIMELINE}/{mine.begin}.commit.requested") < first_beat_gone
    assert not (tmp_path / heartbeat_path(mine.begin)).exists()


class Recording(LocalBackend):
    """Remembers what is deleted, in order."""

    def __init__(self) -> None:
        super().__init__()
        self.deleted: list[str] = []

    async def delete(self, path: str, *args: Any, **kwargs: Any) -> Any:
        self.deleted.append(path)
        return await super().delete(path, *args, **kwargs)
