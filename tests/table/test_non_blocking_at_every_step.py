"""A non-blocking writer that dies before or after any of its requests: each of its rows is there once, or none is."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from patience import until
from table.mor_tables import Row, by_hudi_rs, content, log_files, rows
from table.tables import data_files
from table.test_compaction import begin_of
from table.test_crash_at_every_step import (
    AT_EACH_REQUEST,
    Died,
    DiesAtStep,
    deaths,
    end_of,
    is_at_rest,
    let_time_pass,
)
from table.test_non_blocking import BLIND, SPEC, gone

from fsspec_cas import CasError, Store
from lockprovider import NotAcquired, PublishUnknown
from lockprovider.table import Table
from lockprovider.table.engines import arrow as engine
from lockprovider.table.transaction.transaction import inside

BEFORE: list[Row] = [(n, "a", "old", 1) for n in range(6)]
UPSERTED: list[Row] = [*((n, "a", "dying", 5) for n in range(1, 5)), *((n, "b", "dying", 5) for n in range(4))]
AFTER = sorted([*BEFORE[5:], *UPSERTED])  # key 0 is deleted
MEANWHILE: Row = (1, "a", "meanwhile", 3)  # by another, while the one that dies is at work
NEXT: list[Row] = [(2, "a", "next", 7), (9, "c", "next", 1)]


def with_rows(found: list[Row], *more: Row) -> list[Row]:
    """What is there when these are upserted too: of each key the row with the greatest value."""
    best = {(one[0], one[1]): one for one in sorted([*found, *more], key=lambda one: one[3])}
    return sorted(best.values())


class Dying:
    """A process of one non-blocking writer, and what became of it."""

    def __init__(self, folder: Path, backend: DiesAtStep) -> None:
        self.table = Table(Store(backend, str(folder)), str(folder), settings=BLIND)
        self.backend, self.folder, self.has_seen_another = backend, folder, False

    def runs(self, upserts: pa.Table, deletes: pa.Table, other: Table) -> bool:
        """Whether it lived through one write, beside which another committed."""
        txn: Any = None
        try:
            txn = inside(self.table.transaction(pinned=False))
            engine.write(txn, upserts, deletes)
            other.upsert(rows(MEANWHILE))
            self.has_seen_another = True
            txn.commit()
        except (Died, CasError, NotAcquired, PublishUnknown):  # the last three where another of its threads died
            assert self.backend.dead
            if txn is not None and txn.heartbeat is not None:
                txn.heartbeat._stop.set()
            end_of(self.table)
            return False
        until(lambda: self.backend.dead or is_at_rest(self.folder))
        end_of(self.table)
        return not self.backend.dead


def strays(table: Table) -> list[str]:
    """Files of no instant."""
    begins = {instant.begin for instant in table.timeline().instants}
    return [path for path in (*data_files(Path(table.url)), *log_files(table)) if begin_of(path) not in begins]


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
@AT_EACH_REQUEST
def test_rows_exist_once_or_not_at_all_after_a_death_at_any_request(tmp_path: Path, applied: bool) -> None:
    """Its logs are announced by one object; a partition is new, so that the anchors are among what dies."""
    template = Table.create(str(tmp_path / "template"), SPEC, settings=BLIND)
    template.upsert(rows(*BEFORE))
    came_to = {"old": 0, "new": 0, "beside another": 0}
    for step in deaths(applied=applied, every=4):
        folder = tmp_path / str(step)
        shutil.copytree(template.url, folder)
        backend = DiesAtStep(step, applied=applied)
        process = Dying(folder, backend)
        if process.runs(rows(*UPSERTED), gone((0, "a", 5)), Table.open(str(folder), settings=BLIND)):
            break
        table, last = Table.open(str(folder), settings=BLIND), backend.asked[-1]
        more = [MEANWHILE] if process.has_seen_another else []
        now = by_hudi_rs(table)
        assert now in [with_rows(found, *more) for found in (BEFORE, AFTER)], f"torn after {last}"
        let_time_pass(folder)
        table.upsert(rows(*NEXT), retries=3)
        later = content(table)
        possible = [with_rows(found, *NEXT, *more) for found in (BEFORE, AFTER)]
        has_seen = "dying" in {one[2] for one in now}
        assert later in (possible[1:] if has_seen else possible), f"not whole after {last} and the next writer"
        if step % 3 == 1:
            table.compact()
            table.sweep()
            assert not [path for path in (folder / ".hoodie/.temp").rglob("*") if path.is_file()], last
        assert by_hudi_rs(table) == later, last
        assert table.timeline().unfinished == (), last
        assert strays(table) == [], f"left after {last}"
        came_to["new" if "dying" in {one[2] for one in later} else "old"] += 1
        came_to["beside another"] += bool(more)
    else:
        pytest.fail("the write never ended")
    assert came_to["old"] > 5, came_to
    assert came_to["new"] >= 1, "no death after the commit point was tried"
    assert came_to["beside another"] >= 3, came_to
