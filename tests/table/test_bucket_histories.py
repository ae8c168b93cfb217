"""Histories of writers that insert what is not there yet: as if one after the other, by buckets or by checked keys."""

from __future__ import annotations

import random
import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hudi import HudiTableBuilder
from table.test_histories import SCHEMA, SETTINGS, SPEC, THINKS_S, History, lists

from lockprovider.table import Scan, Table, TableSpec
from lockprovider.table.engines import arrow as engine
from lockprovider.table.transaction.transaction import transact

NAMES = tuple("abcdefgh")
WRITERS, COMMITS = 4, 6
PATIENCE_S = 240.0
BUCKETS = replace(SPEC, partition_by=(), buckets=3)
PLAIN = replace(SPEC, partition_by=())


class Writer(threading.Thread):
    """Appends its ids to random lists, which it makes if nobody has; at first all writers make the same one."""

    def __init__(self, table: Table, name: str, history: History, seed: int, start: threading.Barrier) -> None:
        super().__init__(name=name)
        self.table, self.history, self.start_together = table, history, start
        self.rng = random.Random(f"{seed}{name}")

    def run(self) -> None:
        try:
            for number in range(COMMITS):
                self.append(f"{self.name}.{number}")
        except BaseException as error:  # noqa: BLE001 - told by the test's own thread
            self.history.failed.append(error)

    def append(self, entry: str) -> None:
        first = entry.endswith(".0")
        chosen = [NAMES[0]] if first else self.rng.sample(NAMES, self.rng.randint(1, 2))
        waits = [self.start_together] if first else []

        def work(txn: Any) -> None:
            found = lists(Scan(txn, filter=pc.field("name").isin(chosen)).to_arrow())
            self.history.read[entry] = before = {name: found.get(name, []) for name in chosen}
            while waits:
                waits.pop().wait(PATIENCE_S)
            time.sleep(self.rng.random() * THINKS_S)
            texts = [",".join([*before[name], entry]) for name in chosen]
            engine.write(txn, upserts=pa.table([chosen, chosen, texts], schema=SCHEMA))

        self.history.done[entry] = transact(self.table, work, retries=10_000)


def play(url: str, spec: TableSpec, seed: int, *, check_keys: bool) -> tuple[list[str], int]:
    """What is wrong, and how many conflicts there were."""
    settings = replace(SETTINGS, check_keys=check_keys)
    Table.create(url, spec, settings=settings)
    history = History()
    start = threading.Barrier(WRITERS)
    threads = [Writer(Table.open(url, settings=settings), f"w{n}", history, seed, start) for n in range(WRITERS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert history.failed == []
    batches = HudiTableBuilder.from_base_uri(url).build().read()
    rows = pa.Table.from_batches(batches).select(SCHEMA.names)
    problems = list(history.problems(lists(rows)))
    if pc.count_distinct(rows["name"]).as_py() < rows.num_rows:
        problems.append("a list is there twice")
    return problems, sum(result.conflicts for result in history.done.values())


@pytest.mark.usefixtures("brisk")
@pytest.mark.parametrize(("spec", "check_keys"), [(BUCKETS, False), (PLAIN, True)], ids=["buckets", "checked keys"])
def test_writers_that_insert_the_same_keys_are_as_if_one_after_the_other(
    tmp_path: Path, seed: int, spec: TableSpec, check_keys: bool
) -> None:
    problems, conflicts = play(str(tmp_path / "t"), spec, seed, check_keys=check_keys)
    assert problems == []
    assert conflicts > 0, "nothing was tested"


def test_list_is_made_twice_without_buckets_or_key_check(tmp_path: Path, seed: int) -> None:
    problems, _ = play(str(tmp_path / "t"), PLAIN, seed, check_keys=False)
    assert "a list is there twice" in problems
