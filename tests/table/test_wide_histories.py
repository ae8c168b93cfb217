"""Random histories as in `test_service_histories`, with more that happens to a table.

Columns are added, rows go by a condition, partitions are overwritten and dropped, savepoints come and go and are
restored to, writers die, prefer rows to services, compact and cluster by themselves, and the properties change.
"""

from __future__ import annotations

import contextlib
from dataclasses import replace
from pathlib import Path
from random import Random

import pyarrow as pa
import pytest
from table.mor_tables import COLUMNS, SETTINGS, Row, content
from table.mor_tables import rows as plain
from table.test_service_histories import KINDS, Ordinary, play

from lockprovider.table import (
    ClusterEvery,
    CompactEvery,
    KeepCommits,
    KeepHours,
    KeepVersions,
    Table,
    TableSpec,
    WriteConflict,
)
from lockprovider.table.engines import arrow as engine
from lockprovider.table.format.layout import heartbeat_path
from lockprovider.table.timeline.conflict import prefer_writer
from lockprovider.table.transaction.transaction import Transaction

MORE = [
    *("add_column", "delete_where", "overwrite_partition", "drop_partition", "savepoint", "end_savepoint"),
    *("restore_to_savepoint", "die", "prefer", "by_itself", "change_properties", "clean"),
]
NOTE = pa.schema([("note", pa.int64())])


class Wide(Ordinary):
    """Keys are in two partitions. Of writers that are pending none inserts: two that do so at once are not told."""

    steps = [*Ordinary.steps, *MORE]
    saved: tuple[str, ...] = ()

    def part(self, key: int) -> str:
        return "ab"[key % 2]

    def rows(self, *given: Row) -> pa.Table:
        found = plain(*given)
        known = "note" in self.fresh().schema().names
        return found.append_column("note", found["ts"]) if known else found

    def seen(self, table: Table, **options: object) -> list[Row]:
        return content(table, columns=COLUMNS.names, **options)

    def look(self) -> None:
        super().look()
        if "note" in self.fresh().schema().names:
            assert all(row["note"] in {None, row["ts"]} for row in self.fresh().to_arrow().to_pylist())

    def begin(self) -> None:
        given = [one for one in self.drawn() if one[0] in self.expected]
        if given:
            txn = Transaction(self.fresh(), pinned=False)
            engine.write(txn, self.rows(*given))
            self.begun.append((txn, given))

    def add_column(self) -> None:
        self.held.add_columns(NOTE)

    def goes(self, among: set[int], more: list[Row], change: object) -> None:
        """These keys go, and those rows come; not while others are pending that have seen them."""
        if self.begun:
            return
        with contextlib.suppress(WriteConflict):
            result = change()  # type: ignore[operator]
            self.expected = {key: row for key, row in self.expected.items() if key not in among}
            self.done(result, more)

    def delete_where(self) -> None:
        least = self.random.choice([0, *(row[3] for row in self.expected.values())])
        gone = {key for key, row in self.expected.items() if row[3] >= least}
        if gone:
            self.goes(gone, [], lambda: self.held.delete(f"ts >= {least}"))

    def overwrite_partition(self) -> None:
        part = self.random.choice("ab")
        more = [one for one in self.drawn() if one[1] == part]
        if more:
            self.goes(self.among(part), more, lambda: self.held.overwrite(self.rows(*more), [part]))

    def drop_partition(self) -> None:
        part = self.random.choice("ab")
        if self.among(part):
            self.goes(self.among(part), [], lambda: self.held.overwrite(self.rows(), [part]))

    def among(self, part: str) -> set[int]:
        return {key for key, row in self.expected.items() if row[1] == part}

    def savepoint(self) -> None:
        self.saved = (*self.saved, self.fresh().savepoint(self.moments[-1][0]))

    def end_savepoint(self) -> None:
        if self.saved:
            assert self.fresh().delete_savepoint(self.saved[-1])
            self.saved = tuple(one for one in self.saved[:-1] if one != self.saved[-1])

    def restore_to_savepoint(self) -> None:
        """It cannot be gone."""
        latest = max(self.saved, key=[one[0] for one in self.moments].index, default=None)
        if latest is not None:
            place = [one[0] for one in self.moments].index(latest)
            self.fresh().restore(latest)
            assert self.seen(self.fresh()) == self.moments[place][3]
            self.expected, self.restored = dict(self.moments[place][2]), True
            del self.moments[place + 1 :]
            self.checkpoint, self.mirror = None, {}

    def die(self) -> None:
        if self.begun:
            txn, _ = self.begun.pop()
            txn.leave()
            self.table.store.delete(heartbeat_path(txn.begin))
            self.fresh().sweep()
            assert txn.begin not in self.table.timeline().pending_writes

    def prefer(self) -> None:
        self.settings = replace(self.settings, resolution=prefer_writer)
        self.held = self.fresh()

    def by_itself(self) -> None:
        many = self.random.randint(1, 3)
        self.settings = replace(self.settings, compaction=CompactEvery(many), clustering=ClusterEvery(many, ["ts"]))
        self.held = self.fresh()

    def change_properties(self) -> None:
        self.fresh().set_visibility(self.random.choice(["ordered", "unordered"]))

    def clean(self) -> None:
        self.fresh().clean(self.random.choice([KeepCommits(1), KeepCommits(3), KeepVersions(1), KeepHours(0)]))


def history(folder: Path, kind: str, seed: int) -> None:
    random = Random(seed)
    spec = TableSpec("t", COLUMNS, ("id",), ("part",), **KINDS[kind])
    table = Table.create(str(folder), spec, settings=SETTINGS)
    play(Wide(table, random, deletes=False), random.randint(8, 20), seed)


@pytest.mark.parametrize("kind", KINDS)
def test_all_readers_have_the_same_rows_after_each_step(tmp_path: Path, seed: int, kind: str) -> None:
    history(tmp_path / "t", kind, seed)


@pytest.mark.soak
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("number", range(1, 60))
def test_all_readers_have_the_same_rows_after_each_step_often(
    tmp_path: Path, seed: int, number: int, kind: str
) -> None:
    history(tmp_path / "t", kind, seed + number)
