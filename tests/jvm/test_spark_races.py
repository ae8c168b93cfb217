"""JVM Hudi's Spark writer and ours write the same file group of one table at the same time, again and again."""

from __future__ import annotations

import random
import threading
import time
from typing import TYPE_CHECKING

import pytest
from table.tables import content, rows, upsert

from jvm.shared_table import DDL, OPTIONS, new_table, theirs
from jvm.spark import HudiError, HudiSpark
from lockprovider.table import Table
from lockprovider.table.engines import arrow as engine
from lockprovider.table.transaction.transaction import transact

if TYPE_CHECKING:
    from collections.abc import Callable

    from servers.seaweedfs import SeaweedFS

pytestmark = pytest.mark.jvm

# So that every moment can still be read at the end.
KEEPING = OPTIONS | {
    "hoodie.clean.commits.retained": "1000",
    "hoodie.keep.min.commits": "1001",
    "hoodie.keep.max.commits": "1100",
}
THEIR_KEYS, OUR_KEYS = (11, 12, 13), (21, 22, 23)


def test_no_update_is_lost_when_both_write_the_same_file_group(hudi: HudiSpark, seaweedfs: SeaweedFS) -> None:
    race(hudi, new_table(seaweedfs), turns=5)


@pytest.mark.soak
def test_no_update_is_lost_in_a_long_race(hudi: HudiSpark, seaweedfs: SeaweedFS) -> None:
    theirs_lost, ours_lost = race(hudi, new_table(seaweedfs), turns=30)
    assert theirs_lost > 0
    assert ours_lost > 0


def race(hudi: HudiSpark, table: Table, turns: int, options: dict[str, str] = KEEPING) -> tuple[int, int]:
    """How many conflicts they had, and we."""
    upsert(table, *((key, "a", 0) for key in THEIR_KEYS + OUR_KEYS))
    lost = {"theirs": 0, "ours": 0}
    failed: list[BaseException] = []

    def guarded(work: Callable[[], None]) -> None:
        try:
            work()
        except BaseException as error:  # noqa: BLE001 (told below)
            failed.append(error)

    def they() -> None:
        for turn in range(1, turns + 1):
            lost["theirs"] += write_until_it_succeeds(hudi, table, turn, options)

    def we() -> None:
        mine = Table.open(table.url, storage_options=table.storage_options, settings=table.settings)
        for turn in range(1, turns + 1):
            lost["ours"] += slowly(mine, turn)
            time.sleep(random.uniform(0, 6))  # their write takes seconds: they would never get a turn

    threads = [threading.Thread(target=guarded, args=(work,)) for work in (they, we)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failed == []
    print(f"{turns} turns each; conflicts: {lost}")  # noqa: T201 (shown with -s)
    expected = {(1, "a", 1), (2, "b", 2)} | {(key, "a", turns) for key in THEIR_KEYS + OUR_KEYS}
    assert content(table) == theirs(hudi, table) == expected
    check_history(table, turns)
    return lost["theirs"], lost["ours"]


def write_until_it_succeeds(hudi: HudiSpark, table: Table, turn: int, options: dict[str, str]) -> int:
    conflicts = 0
    while True:
        try:
            hudi.write(table.url, DDL, [(key, "a", turn) for key in THEIR_KEYS], options)
        except HudiError as error:
            if "HoodieWriteConflictException" not in str(error):
                raise
            print(error)  # noqa: T201 (shown with a failure)
            conflicts += 1
        else:
            return conflicts


def slowly(table: Table, turn: int) -> int:
    """One update of ours, which takes its time between its files and its commit, as a large one would."""

    def work(txn: engine.Transaction) -> None:
        engine.write(txn, upserts=rows(*((key, "a", turn) for key in OUR_KEYS)))
        time.sleep(random.uniform(0, 5))

    return transact(table, work, retries=100).conflicts


def check_history(table: Table, turns: int) -> None:
    """Each commit is one turn of one side, or the same again, and leaves the other side's as it was."""
    before = (0, 0)
    for commit in table.history()[3:]:
        seen = {row["id"]: row["value"] for row in table.to_arrow(as_of=commit.completion).to_pylist()}
        now = tuple({seen[key] for key in keys} for keys in (THEIR_KEYS, OUR_KEYS))
        assert [len(values) for values in now] == [1, 1], "a commit is seen as a whole"
        after = (now[0].pop(), now[1].pop())
        assert sum(after) - sum(before) in (0, 1), (before, after, commit)
        assert after >= before
        before = after
    assert before == (turns, turns)
