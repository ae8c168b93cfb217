"""Histories of many writers, checked as Elle checks lists: every commit appends its own id to each list it touches.

Each list is one row in a partition, and so a file group, of its own. A commit that missed an earlier one, was counted
twice, or took effect without being committed shows in the lists. Writers are threads with a table object each; some
give up halfway, and some vanish as a killed process would.
"""

from __future__ import annotations

import contextlib
import random
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hudi import HudiTableBuilder

from lockprovider import LockSettings
from lockprovider.table import CommitResult, HeartbeatSettings, Scan, Table, TableSettings, TableSpec
from lockprovider.table.engines import arrow as engine
from lockprovider.table.transaction import decision
from lockprovider.table.transaction.transaction import Transaction, transact

SCHEMA = pa.schema([("name", pa.string()), ("part", pa.string()), ("entries", pa.string())])
SPEC = TableSpec("lists", SCHEMA, record_keys=("name",), partition_by=("part",))
SETTINGS = TableSettings(lock=LockSettings(timeout=120), heartbeat=HeartbeatSettings(interval_s=60))
LISTS = tuple("abcd")
THINKS_S = 0.06


class GaveUp(Exception):
    """The writer changed its mind."""


@dataclass
class History:
    """What the writers say that they did: by id, what was read, and the result where there is one."""

    read: dict[str, dict[str, list[str]]] = field(default_factory=dict)
    done: dict[str, CommitResult] = field(default_factory=dict)
    failed: list[BaseException] = field(default_factory=list)

    def problems(self, final: dict[str, list[str]]) -> Iterator[str]:
        """Everything about the lists that no serial order of the commits explains."""
        for name, entries in final.items():
            expected = sorted(
                (entry for entry in self.done if name in self.read[entry]),
                key=lambda entry: self.done[entry].completion,
            )
            if entries != expected:
                yield f"list {name!r} is {entries}, and the commits in their order were {expected}"
            for position, entry in enumerate(entries):
                if entry in self.read and self.read[entry].get(name) != entries[:position]:
                    yield f"{entry} read {self.read[entry].get(name)} of {name!r}, before it stood {entries[:position]}"


def rows(lists: dict[str, list[str]]) -> pa.Table:
    names = sorted(lists)
    return pa.table({"name": names, "part": names, "entries": [",".join(lists[name]) for name in names]}, schema=SCHEMA)


def lists(found: pa.Table) -> dict[str, list[str]]:
    return {row["name"]: [e for e in row["entries"].split(",") if e] for row in found.to_pylist()}


class Writer(threading.Thread):
    """Appends its ids to random lists, several at a time."""

    def __init__(
        self,
        url: str,
        name: str,
        history: History,
        *,
        commits: int,
        seed: int,
        choice: tuple[str, ...],
        storage_options: dict[str, Any] | None = None,
    ):
        super().__init__(name=name)
        self.table = Table.open(url, settings=SETTINGS, storage_options=storage_options)
        self.rng = random.Random(f"{seed}{name}")
        self.history, self.commits, self.choice = history, commits, choice

    def run(self) -> None:
        try:
            for number in range(self.commits):
                self.append(f"{self.name}.{number}")
        except BaseException as error:  # noqa: BLE001 - told by the test's own thread
            self.history.failed.append(error)

    def append(self, entry: str) -> None:
        chosen = self.rng.sample(self.choice, self.rng.randint(1, min(2, len(self.choice))))
        mood = self.rng.random()

        def work(txn: Any) -> None:
            before = lists(Scan(txn, partitions=chosen).to_arrow())
            self.history.read[entry] = before
            time.sleep(self.rng.random() * THINKS_S)  # what others commit meanwhile, this one has not seen
            engine.write(txn, upserts=rows({name: [*before[name], entry] for name in chosen}))
            if mood < 0.1:
                raise GaveUp

        if mood > 0.93:
            self.vanish(work)
            return
        with contextlib.suppress(GaveUp):
            self.history.done[entry] = transact(self.table, work, retries=10_000)

    def vanish(self, work: Any) -> None:
        """Write, and be gone before the commit; others find the heartbeat missing."""
        txn = Transaction(self.table)
        work(txn)
        txn.heartbeat.stop()


def play(
    url: str, writers: int, commits: int, seed: int, choices: list[tuple[str, ...]] | None = None
) -> tuple[list[str], int]:
    """Run the writers; what is wrong, and how many conflicts there were."""
    table = Table.create(url, SPEC, settings=SETTINGS)
    names = LISTS if choices is None else tuple(name for choice in choices for name in choice)
    transact(table, lambda txn: engine.write(txn, upserts=rows({name: [] for name in names})))
    history = History()
    threads = [
        Writer(url, f"w{n}", history, commits=commits, seed=seed, choice=LISTS if choices is None else choices[n])
        for n in range(writers)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert history.failed == []
    final = lists(table.to_arrow())
    if "://" not in url:
        batches = HudiTableBuilder.from_base_uri(url).build().read()
        assert lists(pa.Table.from_batches(batches).select(SCHEMA.names)) == final, "hudi-rs sees other lists"
    return list(history.problems(final)), sum(result.conflicts for result in history.done.values())


@pytest.fixture(params=["memory", "local"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return f"memory://histories/{tmp_path.name}" if request.param == "memory" else str(tmp_path / "table")


@pytest.mark.usefixtures("brisk")
def test_overlapping_writers_are_serializable(url: str, seed: int) -> None:
    problems, conflicts = play(url, writers=4, commits=8, seed=seed)
    assert problems == []
    assert conflicts > 0, "nothing was tested"


def test_disjoint_writers_lose_no_commit_and_never_conflict(tmp_path: Path, seed: int) -> None:
    choices = [(f"l{n}",) for n in range(16)]
    assert play(str(tmp_path / "t"), writers=16, commits=5, seed=seed, choices=choices) == ([], 0)


@pytest.mark.soak
def test_sixteen_disjoint_writers_commit_fifty_times_each(tmp_path: Path, seed: int) -> None:
    assert play(str(tmp_path / "t"), 16, 50, seed, [(f"l{n}",) for n in range(16)]) == ([], 0)


@pytest.mark.soak
@pytest.mark.parametrize("round_", range(20))
def test_overlapping_writers_again_and_again(url: str, seed: int, round_: int) -> None:
    problems, conflicts = play(url, writers=8, commits=25, seed=seed + round_)
    assert problems == []
    assert conflicts > 0


@pytest.mark.usefixtures("brisk")
def test_without_the_conflict_check_the_histories_are_wrong(
    tmp_path: Path, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(decision, "decide", lambda *_: None)
    problems, _ = play(str(tmp_path / "t"), writers=4, commits=8, seed=seed)
    assert any("and the commits in their order" in problem for problem in problems), "a lost update was not seen"


def test_missing_acknowledged_commit_is_detected() -> None:
    history = History({"w0.0": {"a": []}}, {"w0.0": CommitResult("1", "2", 0, 1, 0, (), 1, 0, 0.0)})
    assert list(history.problems({"a": []})) == ["list 'a' is [], and the commits in their order were ['w0.0']"]
