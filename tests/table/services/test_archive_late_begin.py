"""A writer that begins below what was archived meanwhile, and has not found that out yet, makes nothing come or go."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from table.tables import SETTINGS, SPEC, by_hudi_rs, content, rows, upsert

from fsspec_cas import Machine, Store
from fsspec_cas.backends.local import LocalBackend
from fsspec_cas.outcome import Write
from lockprovider import HUDI_LOCK_PATH
from lockprovider.table import KeepActive, KeepCommits, Table, TableSettings
from lockprovider.table.engines import arrow

FEW = TableSettings(
    lock=SETTINGS.lock, heartbeat=SETTINGS.heartbeat, retention=KeepCommits(1), archival=KeepActive(1, 2)
)
ALL = {(n, f"p{n}", n) for n in range(8)}


@dataclass(frozen=True, slots=True)
class Clock(Machine):
    """Its wall clock is behind, and both can be set forward."""

    behind_ms: int = 0
    paused_s: list[float] = field(default_factory=list)

    def now_ms(self) -> int:
        return Machine.now_ms(self) - self.behind_ms + round(sum(self.paused_s) * 1000)

    def monotonic_s(self) -> float:
        return Machine.monotonic_s(self) + sum(self.paused_s)


class Held(LocalBackend):
    """Others go on before, and after, the next request for such a path is carried out."""

    def __init__(self, part: str) -> None:
        self.part, self.asked = part, dict[str, float]()
        self.before: Callable[[], None] | None = None
        self.after: Callable[[], None] | None = None

    async def put(self, write: Write, *args: Any, **kwargs: Any) -> Any:
        self.asked[write.path] = kwargs["timeout_s"]
        before, after = (self.before, self.after) if self.part in write.path else (None, None)
        if before is not None:
            self.before = None
            before()
        answer = await super().put(write, *args, **kwargs)
        if after is not None:
            self.after = None
            after()
        return answer


@pytest.fixture
def table(tmp_path: Path) -> Table:
    made = Table.create(str(tmp_path / "t"), SPEC, settings=FEW)
    upsert(made, (0, "p0", 0))
    return made


def commit_and_archive(table: Table) -> None:
    for number in range(1, 8):
        upsert(table, (number, f"p{number}", number))
    assert table.archive().instants


def read_and_clean(table: Table) -> None:
    other = Table.open(table.url, settings=FEW)
    assert other.timeline().instants[0].begin in other.timeline().pending_writes, "it begins before all others"
    assert content(other) == ALL
    other.clean()


@pytest.mark.parametrize("why", ["its clock is behind", "its request was held up"])
def test_early_beginning_writer_hides_and_cleans_nothing_archived(table: Table, why: str) -> None:
    backend, is_behind = Held(".requested"), why == "its clock is behind"
    late = Table(Store(backend, table.url), table.url, settings=FEW, world=Clock(20_000 if is_behind else 0))
    txn = late.transaction()
    backend.after = lambda: read_and_clean(table)
    if is_behind:
        commit_and_archive(table)
    else:
        backend.before = lambda: commit_and_archive(table)
    arrow.write(txn, upserts=rows((100, "q", 1)))
    assert backend.after is None
    txn.rollback()
    assert content(Table.open(table.url, settings=FEW)) == by_hudi_rs(table.url) == ALL


def test_paused_writer_does_not_begin_at_a_time_long_past(table: Table) -> None:
    backend, clock = Held(".heartbeat/"), Clock()
    late = Table(Store(backend, table.url), table.url, settings=FEW, world=clock)
    txn = late.transaction()
    backend.before = lambda: clock.paused_s.append(11)
    arrow.write(txn, upserts=rows((100, "q", 1)))
    first = next(path for path in backend.asked if ".heartbeat/" in path).rpartition("/")[2]
    assert first < txn.begin
    requested_s = {path: timeout_s for path, timeout_s in backend.asked.items() if path.endswith(".requested")}
    assert [path.rpartition("/")[2][:17] for path in requested_s] == [txn.begin]
    assert max(requested_s.values()) <= 10, "nor does its request"
    txn.commit()
    assert content(table) == by_hudi_rs(table.url) == {(0, "p0", 0), (100, "q", 1)}


def created_by_another_engine(folder: Path) -> Table:
    """Without a commit, and nobody has had the lock."""
    Table.create(str(folder), SPEC, settings=FEW)
    for path in (folder / ".hoodie" / "timeline").glob("2*"):
        path.unlink()
    (folder / HUDI_LOCK_PATH).unlink(missing_ok=True)
    return Table.open(str(folder), settings=FEW)


def test_files_of_the_first_pending_write_are_invisible(tmp_path: Path) -> None:
    table = created_by_another_engine(tmp_path / "t")
    txn = Table.open(table.url, settings=FEW).transaction()
    arrow.write(txn, upserts=rows((100, "q", 1)))
    upsert(table, (0, "p0", 0))
    assert table.timeline().instants[0].begin == txn.begin
    assert content(table) == content(Table.open(table.url, settings=FEW)) == {(0, "p0", 0)}
    txn.commit()
    assert content(table) == by_hudi_rs(table.url) == {(0, "p0", 0), (100, "q", 1)}
