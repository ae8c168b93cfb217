"""Random histories of writers with all services beside them, one step after the other.

Writers begin and commit in any order; compactions and clusterings are planned, run and taken back; clean, archival and
restore come between. After each step a fresh reader, one that has been open all the time, hudi-rs and a consumer of the
change feed have the same rows, every moment of the past has those that it had, and the rows are what they have to be:
of writers that do not block each other the greatest ordering values, of others what came last.
"""

from __future__ import annotations

import contextlib
from pathlib import Path
from random import Random
from typing import Any

import pyarrow as pa
import pytest
from table.mor_tables import COLUMNS, SETTINGS, Row, by_hudi_rs, content, rows
from table.test_non_blocking import BLIND, SPEC, another, begun, gone

from lockprovider.table import (
    Aborted,
    HistoryGone,
    KeepActive,
    KeepCommits,
    Table,
    TableSettings,
    TableSpec,
    WriteConflict,
)
from lockprovider.table.files.merge_log import MergeRule
from lockprovider.table.format.layout import Action

WRITES = ["begin", "commit", "upsert"] * 2
SERVICES = ["plan", "run", "unplan", "clean", "archive", "restore"]
CLUSTERING = ["plan_clustering", "run_clustering"] * 2 + ["unplan_clustering"]
KINDS: dict[str, dict[str, Any]] = {
    "copy on write": {},
    "by commit": {"table_type": "merge_on_read"},
    "by event": {"table_type": "merge_on_read", "ordering": "ts"},
}


class History:
    """A table of writers that do not block each other; with `deletes` some are made, with values as rows have."""

    settings: TableSettings = BLIND
    steps = [*WRITES, *SERVICES]

    def __init__(self, table: Table, random: Random, *, deletes: bool) -> None:
        self.table, self.random, self.deletes = table, random, deletes
        self.held = self.fresh()
        self.values = random.sample(range(1, 1000), 999)
        self.begun: list[tuple[Any, list[Row]]] = []
        self.expected: dict[int, Row] = {}
        self.moments: list[tuple[str, str, dict[int, Row], list[Row]]] = []  # begin, completion, expected, content
        self.checkpoint: str | None = None
        self.mirror: dict[int, Row] = {}
        self.restored = False
        first: list[Row] = [(key, self.part(key), "first", 0) for key in range(4)]
        self.done(self.held.upsert(rows(*first)), first)

    def part(self, key: int) -> str:
        """The partition that a key is in."""
        return "a"

    def rows(self, *given: Row) -> pa.Table:
        return rows(*given)

    def seen(self, table: Table, **options: Any) -> list[Row]:
        return content(table, **options)

    def fresh(self) -> Table:
        return another(self.table, self.settings)

    def planned(self, action: Action) -> str | None:
        return next(iter(self.table.timeline().pending(action)), None)

    def drawn(self) -> list[Row]:
        who = f"{len(self.values)}"
        return [(key, "a", who, self.values.pop()) for key in self.random.sample(range(4), self.random.randint(1, 3))]

    def merged(self, one: Row) -> Row:
        return max(one, self.expected.get(one[0], one), key=lambda row: row[3])

    def done(self, result: Any, given: list[Row]) -> None:
        self.expected |= {one[0]: self.merged(one) for one in given}
        self.moments.append((result.instant, result.completion, dict(self.expected), self.seen(self.fresh())))

    def step(self, what: str) -> None:
        getattr(self, what)()
        self.look()

    def begin(self) -> None:
        given = self.drawn()
        if self.deletes and self.random.random() < 0.3:
            ends = gone(*((key, part, value) for key, part, _, value in given))
            self.begun.append((begun(self.fresh(), deletes=ends), []))
        else:
            self.begun.append((begun(self.fresh(), *given), given))

    def commit(self) -> None:
        if self.begun:
            txn, given = self.begun.pop(self.random.randrange(len(self.begun)))
            try:
                self.done(txn.commit(), given)
            except (Aborted, WriteConflict):
                assert self.may_lose
                with contextlib.suppress(Aborted):
                    txn.rollback()

    @property
    def may_lose(self) -> bool:
        return self.restored

    def upsert(self) -> None:
        given = self.drawn()
        try:
            self.done(self.held.upsert(self.rows(*given), retries=0), given)
        except WriteConflict:
            assert self.may_lose

    def plan(self) -> None:
        if self.table.config().is_merge_on_read:
            self.fresh().schedule_compaction()

    def run(self) -> None:
        if begin := self.planned(Action.COMPACTION):
            self.fresh().run_compaction(begin)

    def unplan(self) -> None:
        if begin := self.planned(Action.COMPACTION):
            self.fresh().unschedule_compaction(begin)

    def clean(self) -> None:
        self.fresh().clean(KeepCommits(2))

    def archive(self) -> None:
        self.fresh().archive(KeepActive(2, 3))

    def restore(self) -> None:
        place = self.random.randrange(len(self.moments))
        begin, _, expected, there = self.moments[place]
        try:
            self.fresh().restore(begin)
        except HistoryGone:
            return
        assert self.seen(self.fresh()) == there
        del self.moments[place + 1 :]
        self.expected, self.restored = dict(expected), True
        self.checkpoint, self.mirror = None, {}

    def look(self) -> None:
        now = self.seen(self.fresh())
        assert self.seen(self.held) == by_hudi_rs(self.table) == now
        if not self.deletes:
            assert now == sorted(self.expected.values())
        self.follow()
        assert sorted(self.mirror.values()) == now
        for _, completion, _, there in self.moments:
            with contextlib.suppress(HistoryGone):
                assert self.seen(self.fresh(), as_of=completion) == there

    def follow(self) -> None:
        try:
            feed = self.fresh().changes(after=self.checkpoint)
            found = feed.to_arrow().to_pylist()
        except HistoryGone:  # the consumer begins again
            self.mirror = {one[0]: one for one in self.seen(self.fresh())}
            self.checkpoint = self.moments[-1][1]
            return
        for row in found:
            operation, key = row.pop("_operation"), row["id"]
            assert (key in self.mirror) == (operation != "insert")
            if operation == "delete":
                del self.mirror[key]
            else:
                self.mirror[key] = tuple(row[name] for name in COLUMNS.names)  # type: ignore[assignment]
        self.checkpoint = feed.checkpoint


class Ordinary(History):
    """A table of writers that give way to each other; values rise in the order in which they are drawn."""

    settings = SETTINGS
    steps = [*WRITES, *SERVICES, *CLUSTERING, "append"]

    @property
    def may_lose(self) -> bool:
        return True

    def drawn(self) -> list[Row]:
        self.values.pop()
        value = 1000 - len(self.values)
        drawn = self.random.sample(range(4), self.random.randint(1, 2))
        return [(key, self.part(key), f"{value}", value) for key in drawn]

    def merged(self, one: Row) -> Row:
        return super().merged(one) if self.table.config().ordering_fields else one

    def append(self) -> None:
        key = 1000 - len(self.values) + 100
        given: list[Row] = [(key, self.part(key), "new", 1)]
        self.values.pop()
        self.done(self.held.append(self.rows(*given)), given)

    def plan_clustering(self) -> None:
        self.fresh().schedule_clustering(["ts"])

    def run_clustering(self) -> None:
        if begin := self.planned(Action.CLUSTERING):
            with contextlib.suppress(WriteConflict):
                self.fresh().run_clustering(begin)

    def unplan_clustering(self) -> None:
        if begin := self.planned(Action.CLUSTERING):
            self.fresh().unschedule_clustering(begin)


def history(folder: Path, kind: str, seed: int) -> None:
    random = Random(seed)
    how, spec = History, SPEC
    if kind in KINDS:
        how, spec = Ordinary, TableSpec("t", COLUMNS, ("id",), ("part",), **KINDS[kind])
    table = Table.create(str(folder), spec, settings=how.settings)
    play(how(table, random, deletes=how is History and bool(seed % 2)), random.randint(5, 12), seed)


def play(story: History, many: int, seed: int) -> None:
    told: list[str] = []
    for _ in range(many):
        told.append(story.random.choice(story.steps))
        try:
            story.step(told[-1])
        except Exception as error:
            raise AssertionError(f"seed {seed}: {told}") from error
    for txn, _ in story.begun:
        txn.leave()


def histories(folder: Path, kind: str, seeds: range) -> None:
    for seed in seeds:
        history(folder / str(seed), kind, seed)


@pytest.mark.parametrize("kind", ["non-blocking", *KINDS])
@pytest.mark.parametrize("number", range(2))
def test_all_readers_have_the_same_rows_after_each_step(tmp_path: Path, seed: int, number: int, kind: str) -> None:
    history(tmp_path / "t", kind, seed + number)


@pytest.mark.soak
@pytest.mark.parametrize("kind", ["non-blocking", *KINDS])
@pytest.mark.parametrize("number", range(2, 60))
def test_all_readers_have_the_same_rows_after_each_step_often(
    tmp_path: Path, seed: int, number: int, kind: str
) -> None:
    history(tmp_path / "t", kind, seed + number)


def test_mutant_that_merges_by_commit_time_is_caught(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(MergeRule, "of", classmethod(lambda cls, config: cls()))
    with pytest.raises(AssertionError, match="seed"):
        histories(tmp_path, "non-blocking", range(0, 40, 2))
