"""`pytest -m "jvm and soak" tests/jvm/test_spark_defaults_soak.py --soak MINUTES`: two Spark drivers, two of ours.

The table is one that the JVM made with all its defaults, metadata table and all, but for what lets writers share it
(optimistic concurrency control, the storage lock, lazy cleaning); `share` has been called once. All count, in the same
file groups. Now and then all of them are stopped, and every reader, with the metadata table and without, has to see
the same rows, also through filters, and those that were acknowledged.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from random import Random
from typing import TYPE_CHECKING, Any

import pytest
from soak.living import Soak, living
from table.own_process import told_by

from jvm.agreement import all_see, readers_of
from jvm.counting_child import PARTITIONS, own_key
from jvm.shared_table import DDL
from jvm.spark import HudiError, HudiSpark
from jvm.test_spark_without_settings import MADE, PLAIN
from lockprovider.table import Table
from lockprovider.table.doctor.rules import diagnose
from lockprovider.table.format.compatibility import FAILED_KEYS, LOCK_KEY, MODE_KEY, SHARED
from lockprovider.table.state.metadata_table import compacted_at, own_timeline

if TYPE_CHECKING:
    from pathlib import Path

    from servers.seaweedfs import SeaweedFS

pytestmark = [pytest.mark.jvm, pytest.mark.soak]

WRITERS = 2  # of each
DEFAULTS = MADE | {key: SHARED[key] for key in (MODE_KEY, LOCK_KEY, *FAILED_KEYS)}
BETWEEN_STOPS_S = 45


def their_key(number: int, at: int) -> int:
    return 100 * (number + 1) + at


class Counting(Soak):
    """One table, its four writers, and what the JVM's were told; ours write that into files."""

    def __init__(self, table: Table, drivers: list[HudiSpark], folder: Path, seed: int) -> None:
        super().__init__(seed, 0, 0)
        self.table, self.drivers, self.folder = table, drivers, folder
        self.counts = [[0] * len(PARTITIONS) for _ in drivers]  # of the JVM's, acknowledged
        self.stopping = threading.Event()
        self.between_writes = threading.Barrier(len(drivers) + 1)
        self.children: list[dict[str, Any]] = []
        (folder / "turns").write_text("0")

    def note_turn(self) -> None:
        """One more write of the JVM was tried; ours go by that."""
        with self.known:
            self.happened["their tries"] += 1
            (self.folder / "new turns").write_text(str(self.happened["their tries"]))
            (self.folder / "new turns").replace(self.folder / "turns")

    def told(self, number: int) -> Path:
        return self.folder / f"told {number}"

    def least(self) -> dict[int, int]:
        """What was acknowledged, by counter."""
        found: dict[int, int] = {}
        for number, counts in enumerate(self.counts):
            there = self.told(number)
            told = json.loads(there.read_text()) if there.exists() else [0] * len(PARTITIONS)
            found |= {their_key(number, at): value for at, value in enumerate(counts)}
            found |= {own_key(number, at): value for at, value in enumerate(told)}
        return found

    def stop_here_if_asked(self) -> None:
        if self.stopping.is_set():
            self.between_writes.wait()
            self.between_writes.wait()

    def stop_and_compare(self) -> None:
        """What all readers see while nobody writes: the drivers are between two writes, ours wait for the lock."""
        self.stopping.set()
        self.between_writes.wait()
        with self.table.lock.acquire():
            self.stopping.clear()
            found = all_see(readers_of(self.table, self.drivers[0]))
            check(self, {one[0]: one[2] for one in found})
            assert said_of_the_listing(self.table) == ()
        self.between_writes.wait()
        self.happened["stops at which all readers agreed"] += 1


def they(all_: Counting, number: int) -> None:
    hudi, random = all_.drivers[number], Random(all_.seed - number)
    try:
        while not all_.over.is_set():
            all_.stop_here_if_asked()
            at = random.randrange(len(PARTITIONS))
            given = (their_key(number, at), PARTITIONS[at], all_.counts[number][at] + 1)
            all_.note_turn()
            try:
                hudi.write(all_.table.url, DDL, [given], DEFAULTS)
            except HudiError as error:
                if "HoodieWriteConflictException" not in str(error):
                    raise
                all_.happened["their conflicts"] += 1
                continue
            all_.counts[number][at] += 1
            all_.happened["their commits"] += 1
    except threading.BrokenBarrierError:
        assert all_.over.is_set()
    finally:
        all_.between_writes.abort()


def we(all_: Counting, number: int) -> None:
    given = {"url": all_.table.url, "options": dict(all_.table.storage_options or {}), "seed": all_.seed}
    given |= {"number": number, "told": str(all_.told(number))}
    given |= {name: str(all_.folder / name) for name in ("over", "turns")}
    all_.children.append(told_by("jvm.counting_child", json.dumps(given), timeout_s=24 * 3600))


def look(all_: Counting, number: int) -> None:
    """Readers that stop nobody."""
    readers = readers_of(all_.table, None)
    while not all_.over.wait(1):
        for name, read in readers.items():
            least = all_.least()
            found = {one[0]: one[2] for one in read(None, None)}
            behind = {key: value for key, value in least.items() if found.get(key, -1) < value}
            assert behind == {}, f"acknowledged, and not there for {name}"
            check_sums(found)
            all_.happened[f"reads by {name}"] += 1


def theirs() -> list[tuple[int, int, int]]:
    """The counters of the JVM's drivers: key, driver, partition."""
    return [(their_key(number, at), number, at) for number in range(WRITERS) for at in range(len(PARTITIONS))]


def check(all_: Counting, found: dict[int, int]) -> None:
    least = all_.least()
    for key, value in least.items():
        # One of ours may have been decided, and its process not know yet.
        assert found[key] - value in ((0, 1) if key >= own_key(0, 0) else (0,)), (key, found[key], value)
    check_sums(found)


def check_sums(found: dict[int, int]) -> None:
    """Each commit of ours counts twice."""
    for at in range(len(PARTITIONS)):
        assert found[at] == sum(found[own_key(number, at)] for number in range(WRITERS)), PARTITIONS[at]


def said_of_the_listing(table: Table) -> tuple[object, ...]:
    return {rule: tuple(found) for rule, _, found in diagnose(table)}["metadata"]


def test_jvm_and_python_writers_lose_no_increment_for_minutes(
    start_hudi: Callable[..., HudiSpark],
    seaweedfs: SeaweedFS,
    request: pytest.FixtureRequest,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    url, drivers = seaweedfs.new_prefix(), [start_hudi() for _ in range(WRITERS)]
    zeros = [(key, PARTITIONS[at], 0) for key, _, at in theirs()]
    zeros += [(own_key(number, at), PARTITIONS[at], 0) for number in range(WRITERS) for at in range(len(PARTITIONS))]
    zeros += [(at, part, 0) for at, part in enumerate(PARTITIONS)]
    drivers[0].write(url, DDL, zeros, DEFAULTS)
    table = Table.open(url, storage_options=seaweedfs.storage_options, settings=replace(PLAIN, write_metadata=True))
    assert sorted(table.config().named_metadata) == ["column_stats", "files", "partition_stats"]
    table.share()
    all_ = Counting(table, drivers, tmp_path, request.config.getoption("--seed") or int(time.time()))
    assert all_see(readers_of(table, drivers[1])) == set(zeros)
    end_s = time.monotonic() + float(request.config.getoption("--soak")) * 60
    threads = [living(all_, work, n) for work, n in ((they, 0), (they, 1), (we, 0), (we, 1), (look, 0))]
    try:
        while not all_.over.wait(min(BETWEEN_STOPS_S, max(end_s - time.monotonic(), 0))) and time.monotonic() < end_s:
            all_.stop_and_compare()
    finally:
        all_.over.set()
        all_.between_writes.abort()
        (tmp_path / "over").touch()
        for thread in threads:
            thread.join()
    report = {"seed": all_.seed, **dict(all_.happened.most_common())}
    report |= {"our commits": sum(sum(one["counts"]) for one in all_.children)}
    report |= {"our conflicts": sum(one["conflicts"] for one in all_.children)}
    with capsys.disabled():
        print(f"\n{json.dumps(report)}")  # noqa: T201
    assert all_.failures == []
    found = {key: value for key, _, value in all_see(readers_of(table, drivers[0]))}
    assert {key: found[key] for key in all_.least()} == all_.least()
    check_sums(found)
    assert said_of_the_listing(table) == ()
    assert table.config().named_metadata == ("files",)
    assert compacted_at(own_timeline(table.store)), "the metadata table was never compacted"
    happened = ["their commits", "our commits", "stops at which all readers agreed", "reads by hudi-rs"]
    assert [what for what in happened if not report.get(what)] == []
