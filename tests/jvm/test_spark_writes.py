"""JVM Hudi's Spark writer and ours change one table on an object store at the same time, under the same lock."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import pytest
from patience import PATIENCE_S, until
from table.tables import content, rows, upsert

from jvm.shared_table import BEAT_S, DDL, MISSES, OPTIONS, Triple, new_table, theirs
from jvm.spark import HudiError, HudiSpark
from lockprovider.table import Aborted, Table, WriteConflict
from lockprovider.table.engines import arrow as engine
from lockprovider.table.services import rollback
from lockprovider.table.transaction.transaction import Transaction, transact

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from servers.seaweedfs import SeaweedFS

pytestmark = pytest.mark.jvm


@pytest.fixture
def table(seaweedfs: SeaweedFS) -> Table:
    return new_table(seaweedfs)


@dataclass
class Writing:
    """A write of theirs on its way, in a thread of the test; a gate holds it between its begin and its files."""

    hudi: HudiSpark
    table: Table
    rows: list[Triple]
    gate: Path
    options: dict[str, str] = field(default_factory=lambda: OPTIONS)
    ddl: str = DDL
    error: BaseException | None = None
    instant: str = ""

    def __enter__(self) -> Writing:
        before = set(self.table.timeline().pending_writes)
        self._thread = threading.Thread(target=self._run)
        self._thread.start()
        until(lambda: self._begun(before) or not self._thread.is_alive(), "their instant begins")
        # Only when it reads its rows has it looked which commits there are: what is committed now it has not seen.
        reached = self.gate.with_name(f"{self.gate.name}.reached")
        until(lambda: reached.exists() or not self._thread.is_alive(), "their rows are read")
        return self

    def __exit__(self, *_: object) -> None:
        self.let_go()
        self._thread.join()

    def let_go(self) -> None:
        self.gate.touch()

    def finish(self) -> None:
        """Let it go, and raise what it raises."""
        self.let_go()
        self._thread.join(PATIENCE_S)
        assert not self._thread.is_alive()
        if self.error is not None:
            raise self.error

    def _begun(self, before: set[str]) -> bool:
        began = set(self.table.timeline().pending_writes) - before
        self.instant = max(began, default="")
        return bool(began)

    def _run(self) -> None:
        try:
            self.hudi.write(self.table.url, self.ddl, self.rows, self.options, self.gate)
        except BaseException as error:  # noqa: BLE001 (raised by finish)
            self.error = error


def test_jvm_and_python_change_each_others_rows_and_read_the_same(hudi: HudiSpark, table: Table) -> None:
    properties = table.store.read(".hoodie/hoodie.properties").data
    hudi.write(table.url, DDL, [(1, "a", 10), (3, "c", 3)], OPTIONS)
    assert content(table) == {(1, "a", 10), (2, "b", 2), (3, "c", 3)}
    transact(table, lambda txn: engine.write(txn, upserts=rows((3, "c", 30)), deletes=rows((2, "b", 0))))
    hudi.write(table.url, DDL, [(1, "a", 0)], OPTIONS | {"hoodie.datasource.write.operation": "delete"})
    upsert(table, (1, "a", 100))
    hudi.write(table.url, DDL, [(1, "a", 1000), (4, "b", 4)], OPTIONS)
    expected = {(1, "a", 1000), (3, "c", 30), (4, "b", 4)}
    assert content(table) == theirs(hudi, table) == expected
    assert table.store.read(".hoodie/hoodie.properties").data == properties, "the table is what it was"


def test_jvm_waits_for_the_lock_held_by_python(hudi: HudiSpark, table: Table, tmp_path: Path) -> None:
    with Writing(hudi, table, [(1, "a", 10)], tmp_path / "gate") as write:
        with table.lock.acquire():
            completed, looks = table.timeline().writes, hudi.looks_at_lock(table.url)
            write.let_go()
            until(lambda: hudi.looks_at_lock(table.url) > looks + 2, "they look at the lock again and again")
            assert table.timeline().writes == completed
        write.finish()
    assert (1, "a", 10) in content(table)


def test_jvm_gets_conflict_with_python_commit_and_leaves_nothing_visible(
    hudi: HudiSpark, table: Table, tmp_path: Path
) -> None:
    with Writing(hudi, table, [(1, "a", 10), (2, "b", 20)], tmp_path / "gate") as write:
        upsert(table, (1, "a", 100))
        with pytest.raises(HudiError, match="HoodieWriteConflictException"):
            write.finish()
    expected = {(1, "a", 100), (2, "b", 2)}
    assert content(table) == theirs(hudi, table) == expected


def test_python_gets_conflict_with_jvm_commit_and_leaves_nothing_visible(hudi: HudiSpark, table: Table) -> None:
    mine = Transaction(table)
    engine.write(mine, upserts=rows((1, "a", 100), (2, "b", 200)))
    hudi.write(table.url, DDL, [(1, "a", 10)], OPTIONS)
    with pytest.raises(WriteConflict):
        mine.commit()
    mine.rollback()
    expected = {(1, "a", 10), (2, "b", 2)}
    assert content(table) == theirs(hudi, table) == expected


def test_writes_to_different_file_groups_both_succeed_in_any_order(
    hudi: HudiSpark, table: Table, tmp_path: Path
) -> None:
    with Writing(hudi, table, [(1, "a", 10)], tmp_path / "gate") as write:
        upsert(table, (2, "b", 20))
        write.finish()
    mine = Transaction(table)
    engine.write(mine, upserts=rows((2, "b", 200)))
    hudi.write(table.url, DDL, [(1, "a", 100)], OPTIONS)
    mine.commit()
    expected = {(1, "a", 100), (2, "b", 200)}
    assert content(table) == theirs(hudi, table) == expected


def test_python_rolls_back_leftovers_of_killed_jvm_writer(
    hudi: HudiSpark, start_hudi: Callable[..., HudiSpark], table: Table, tmp_path: Path
) -> None:
    dying = start_hudi()
    with Writing(dying, table, [(1, "a", -1), (9, "z", -1)], tmp_path / "gate") as write:
        victim = write.instant
        with table.lock.acquire():
            write.let_go()
            until(lambda: len(_data_of(table, victim)) == 2, "their files are written")
            dying.kill9()
    assert victim in table.timeline().pending_writes
    turns = _upsert_until_gone(table, victim)
    assert _traces_of(table, victim) == []
    expected = {(1, "a", 1), (2, "b", turns)}
    assert content(table) == theirs(hudi, table) == expected
    hudi.write(table.url, DDL, [(1, "a", 10)], OPTIONS)
    assert content(table) == theirs(hudi, table) == expected - {(1, "a", 1)} | {(1, "a", 10)}


@pytest.mark.parametrize("parts", ["z", "wxyz"], ids=["markers", "markers in one object"])
def test_jvm_rolls_back_leftovers_of_dead_python_writer(hudi: HudiSpark, table: Table, parts: str) -> None:
    dead = Transaction(table)
    if len(parts) == 1:
        engine.write(dead, upserts=rows((1, "a", -1), (9, "z", -1)))
    else:
        engine.insert(dead, rows(*((90 + n, part, -1) for n, part in enumerate(parts))))
    dead.leave()
    assert len(_data_of(table, dead.begin)) == max(2, len(parts))
    assert any(path.endswith("/MARKERS.type") for path in _traces_of(table, dead.begin)) == (len(parts) > 1)
    turns = _write_until_gone(hudi, table, dead.begin)
    assert _traces_of(table, dead.begin) == []
    expected = {(1, "a", 1), (2, "b", turns)}
    assert content(table) == theirs(hudi, table) == expected
    with pytest.raises(Aborted):
        dead.commit()
    upsert(table, (1, "a", 10))
    assert content(table) == theirs(hudi, table) == expected - {(1, "a", 1)} | {(1, "a", 10)}


def test_jvm_finishes_rollback_planned_by_python(hudi: HudiSpark, table: Table) -> None:
    dead = Transaction(table)
    engine.write(dead, upserts=rows((1, "a", -1), (9, "z", -1)))
    dead.leave()
    files = rollback.files_of(table, dead.begin)
    victim = rollback.Victim(dead.begin, "commit")
    with table.lock.acquire():
        planned = rollback.plan_rollback(table, table.timeline(), victim, files, None)
    assert table.timeline().pending_rollbacks == (planned,)
    turns = _write_until_gone(hudi, table, dead.begin)
    assert _traces_of(table, dead.begin) == []
    assert content(table) == theirs(hudi, table) == {(1, "a", 1), (2, "b", turns)}
    upsert(table, (1, "a", 10))
    assert table.timeline().pending_rollbacks == ()


def test_slow_writer_is_not_taken_for_dead_by_the_other_side(hudi: HudiSpark, table: Table, tmp_path: Path) -> None:
    with Writing(hudi, table, [(1, "a", 10)], tmp_path / "gate") as write:
        began, turn = time.monotonic(), 0
        while time.monotonic() < began + 2 * BEAT_S * MISSES:
            turn += 1
            upsert(table, (2, "b", turn))
        assert write.instant in table.timeline().pending_writes
        write.finish()
    mine = Transaction(table)
    engine.write(mine, upserts=rows((3, "c", 3)))
    began, more = time.monotonic(), 0
    while time.monotonic() < began + 2 * BEAT_S * MISSES:
        more += 1
        hudi.write(table.url, DDL, [(1, "a", more)], OPTIONS)
    mine.commit()
    assert content(table) == theirs(hudi, table) == {(1, "a", more), (2, "b", turn), (3, "c", 3)}


def _data_of(table: Table, instant: str) -> list[str]:
    return [entry.path for entry in table.data_files() if f"_{instant}.parquet" in entry.path]


def _traces_of(table: Table, instant: str) -> list[str]:
    """All objects of the table that carry this time in their names."""
    return [entry.path for entry in table.store.list("") if instant in entry.path]


def _upsert_until_gone(table: Table, victim: str) -> int:
    turns = 0
    deadline = time.monotonic() + PATIENCE_S
    while victim in table.timeline().pending_writes:
        assert time.monotonic() < deadline
        turns += 1
        upsert(table, (2, "b", turns))
    return turns


def _write_until_gone(hudi: HudiSpark, table: Table, victim: str) -> int:
    turns = 0
    deadline = time.monotonic() + PATIENCE_S
    while victim in table.timeline().pending_writes:
        assert time.monotonic() < deadline
        turns += 1
        hudi.write(table.url, DDL, [(2, "b", turns)], OPTIONS)
    return turns
