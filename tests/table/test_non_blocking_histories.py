"""Random histories of writers that do not block each other, with all services beside them, one step after the other.

Writers begin and commit in any order; compactions are planned, run and taken back; clean, archival and restore come
between. After each step a fresh reader, one that has been open all the time, hudi-rs and a consumer of the change feed
have the same rows, and without deletes those are the greatest ordering values of what is completed.
"""

from __future__ import annotations

import contextlib
from pathlib import Path
from random import Random
from typing import Any

import pytest
from table.mor_tables import COLUMNS, Row, by_hudi_rs, content, rows
from table.test_non_blocking import BLIND, SPEC, another, begun, gone

from lockprovider.table import Aborted, HistoryGone, KeepActive, KeepCommits, Table, WriteConflict
from lockprovider.table.files.merge_log import MergeRule

STEPS = ["begin", "commit", "upsert"] * 2 + ["plan", "run", "unplan", "clean", "archive", "restore"]


class History:
    """One table; `deletes` are made if they are allowed, each with a value as rows have."""

    def __init__(self, table: Table, random: Random, *, deletes: bool) -> None:
        self.table, self.random, self.deletes = table, random, deletes
        self.held = another(table)
        self.values = random.sample(range(1, 1000), 999)
        self.begun: list[tuple[Any, list[Row]]] = []
        self.plan: str | None = None
        self.moments: list[tuple[str, str, dict[int, Row], list[Row]]] = []  # begin, completion, greatest, content
        self.greatest: dict[int, Row] = {}
        self.checkpoint: str | None = None
        self.mirror: dict[int, Row] = {}
        self.restored = False
        self.done(self.held.upsert(rows(first := (0, "a", "first", 0))), [first])

    def drawn(self) -> list[Row]:
        who = f"{len(self.values)}"
        return [(key, "a", who, self.values.pop()) for key in self.random.sample(range(4), self.random.randint(1, 3))]

    def done(self, result: Any, given: list[Row]) -> None:
        for one in given:
            if one[0] not in self.greatest or self.greatest[one[0]][3] < one[3]:
                self.greatest[one[0]] = one
        self.moments.append((result.instant, result.completion, dict(self.greatest), content(another(self.table))))

    def step(self, what: str) -> None:
        getattr(self, f"_{what}")()
        self.look()

    def _begin(self) -> None:
        given, fresh = self.drawn(), another(self.table)
        if self.deletes and self.random.random() < 0.3:
            self.begun.append((begun(fresh, deletes=gone(*((key, part, ts) for key, part, _, ts in given))), []))
        else:
            self.begun.append((begun(fresh, *given), given))

    def _commit(self) -> None:
        if self.begun:
            txn, given = self.begun.pop(self.random.randrange(len(self.begun)))
            try:
                self.done(txn.commit(), given)
            except (Aborted, WriteConflict):
                assert self.restored, "nothing else ends such a write"

    def _upsert(self) -> None:
        self.done(self.held.upsert(rows(*(given := self.drawn()))), given)

    def _plan(self) -> None:
        self.plan = self.plan or another(self.table).schedule_compaction()

    def _run(self) -> None:
        if self.plan:
            another(self.table).run_compaction(self.plan)
            self.plan = None

    def _unplan(self) -> None:
        if self.plan:
            another(self.table).unschedule_compaction(self.plan)
            self.plan = None

    def _clean(self) -> None:
        another(self.table).clean(KeepCommits(2))

    def _archive(self) -> None:
        another(self.table).archive(KeepActive(2, 3))

    def _restore(self) -> None:
        place = self.random.randrange(len(self.moments))
        begin, _, greatest, there = self.moments[place]
        try:
            another(self.table).restore(begin)
        except HistoryGone:
            return
        assert content(another(self.table)) == there
        del self.moments[place + 1 :]
        self.greatest, self.plan, self.restored = dict(greatest), None, True
        self.checkpoint, self.mirror = None, {}

    def look(self) -> None:
        now = content(another(self.table))
        assert content(self.held) == now
        assert by_hudi_rs(self.table) == now
        if not self.deletes:
            assert now == sorted(self.greatest.values())
        self.follow()
        assert sorted(self.mirror.values()) == now
        for _, completion, _, there in self.moments:
            with contextlib.suppress(HistoryGone):
                assert content(another(self.table), as_of=completion) == there

    def follow(self) -> None:
        try:
            feed = another(self.table).changes(after=self.checkpoint)
            found = feed.to_arrow().to_pylist()
        except HistoryGone:  # the consumer begins again
            self.mirror = {one[0]: one for one in content(another(self.table))}
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

    def end(self) -> None:
        for txn, _ in self.begun:
            txn.leave()


def history(folder: Path, seed: int) -> None:
    table, random = Table.create(str(folder), SPEC, settings=BLIND), Random(seed)
    story = History(table, random, deletes=bool(seed % 2))
    told: list[str] = []
    for _ in range(random.randint(5, 10)):
        told.append(random.choice(STEPS))
        try:
            story.step(told[-1])
        except Exception as error:
            raise AssertionError(f"seed {seed}: {told}") from error
    story.end()


def histories(folder: Path, seeds: range) -> None:
    for seed in seeds:
        history(folder / str(seed), seed)


@pytest.mark.parametrize("number", range(4))
def test_all_readers_have_the_same_rows_after_each_step(tmp_path: Path, seed: int, number: int) -> None:
    history(tmp_path / "t", seed + number)


@pytest.mark.soak
@pytest.mark.parametrize("number", range(4, 200))
def test_all_readers_have_the_same_rows_after_each_step_often(tmp_path: Path, seed: int, number: int) -> None:
    history(tmp_path / "t", seed + number)


def test_a_twin_that_merges_by_commit_time_is_caught(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(MergeRule, "of", classmethod(lambda cls, config: cls()))
    with pytest.raises(AssertionError, match="seed"):
        histories(tmp_path, range(0, 40, 2))
