"""`pytest -m soak tests/soak/test_merge_on_read_soak.py --soak MINUTES`: RFC-91's high-frequency test on log files.

Many writers change the same keys while compaction, clustering (where there are no buckets), cleaning and archival run
beside them, and some writers die. Each version of a row has an ordering value of its own, so what has to be there is
known at every moment: of each key the greatest value that was acknowledged, or a later one.
"""

from __future__ import annotations

import json
import time
from dataclasses import replace
from itertools import count
from random import Random
from typing import TYPE_CHECKING, Any

import pytest
from patience import PATIENCE_S, last_for
from table.mor_tables import COLUMNS, Row, content, rows

from lockprovider import LockSettings
from lockprovider.demo.proof import reader_options
from lockprovider.table import (
    HeartbeatSettings,
    KeepActive,
    KeepCommits,
    Mode,
    Table,
    TableSettings,
    TableSpec,
    WriteConflict,
)
from lockprovider.table.doctor.rules import diagnose
from lockprovider.table.engines import arrow as engine
from lockprovider.table.transaction.transaction import inside
from soak.living import Soak, living

if TYPE_CHECKING:
    from servers.seaweedfs import SeaweedFS

pytestmark = pytest.mark.soak
WRITERS, KEYS, AT_ONCE = 6, 60, 8
RETRIES = 1000
ORDINARY = TableSettings(
    lock=LockSettings(timeout=PATIENCE_S),
    heartbeat=HeartbeatSettings(interval_s=4, misses=10),
    retention=KeepCommits(20),
)
BLIND = replace(ORDINARY, mode=Mode.NON_BLOCKING)
SPEC = TableSpec("t", COLUMNS, ("id",), ("part",), ordering="ts", table_type="merge_on_read")
KINDS = {"ordinary": (SPEC, ORDINARY), "non-blocking": (replace(SPEC, buckets=4), BLIND)}


class Busy(Soak):
    """One table, and what its writers were told."""

    def __init__(self, server: SeaweedFS, kind: str, seed: int) -> None:
        super().__init__(seed, KEYS, AT_ONCE)
        self.spec, self.settings = KINDS[kind]
        self.server, self.url = server, server.new_prefix()
        Table.create(self.url, self.spec, settings=self.settings, storage_options=server.storage_options)
        self.dead_values: set[int] = set()
        first = self.first()
        self.opened().append(rows(*first))  # where there are no buckets, two that make one key would not be told
        self.acknowledge(first)

    def opened(self) -> Table:
        return Table.open(self.url, settings=self.settings, storage_options=self.server.storage_options)


def write(busy: Busy, number: int) -> None:
    table, random = busy.opened(), Random(busy.seed + number)
    while not busy.over.is_set():
        given = busy.drawn(random, f"writer {number}")
        done = table.upsert(rows(*given), retries=RETRIES)
        busy.acknowledge(given)
        busy.happened["commits"] += 1
        busy.happened["conflicts"] += done.conflicts


def die(busy: Busy, number: int) -> None:
    """Writers that are gone before they commit; others clean up after them."""
    table, random = busy.opened(), Random(busy.seed - 1)
    while not busy.over.wait(5):
        given = busy.drawn(random, "dead")
        txn = inside(table.transaction(pinned=False))
        engine.write(txn, rows(*given))
        txn.leave()
        busy.dead_values.update(one[3] for one in given)
        busy.happened["deaths"] += 1


def read(busy: Busy, number: int) -> None:
    table = busy.opened()
    while not busy.over.is_set():
        least = busy.expected()
        found = {one[0]: one for one in content(table)}
        behind = [one for one in least if one[0] not in found or found[one[0]][3] < one[3]]
        assert behind == [], "acknowledged, and not there"
        busy.happened["reads"] += 1


def serve(busy: Busy, number: int) -> None:
    """Compaction, and what keeps the table small."""
    table = busy.opened()
    while not busy.over.wait(1):
        busy.happened["compactions"] += len(table.compact())
        busy.happened["cleans"] += len(table.clean())
        busy.happened["archived"] += len(table.archive(KeepActive(30, 40)).instants)


def cluster(busy: Busy, number: int) -> None:
    table = busy.opened()
    while not busy.over.wait(4):
        try:
            busy.happened["clusterings"] += len(table.cluster(("ts",)))
        except WriteConflict:
            busy.happened["clusterings that gave way"] += 1


def add(busy: Busy, number: int) -> None:
    """New keys, which make new small files where there are no buckets."""
    table = busy.opened()
    for key in count(KEYS):
        if busy.over.wait(1):
            return
        given = [(key, "ab"[key % 2], "added", next(busy.values))]
        table.append(rows(*given), retries=RETRIES)
        busy.acknowledge(given)
        busy.happened["added"] += 1


def by_hudi_rs(busy: Busy) -> list[Row]:
    from hudi import HudiTableBuilder

    options: Any = dict(reader_options(busy.url, busy.server.storage_options, {}))
    batches = HudiTableBuilder.from_base_uri(busy.url).with_options(options).build().read()
    return sorted(tuple(row[name] for name in COLUMNS.names) for batch in batches for row in batch.to_pylist())  # type: ignore[misc]


@pytest.mark.parametrize("kind", list(KINDS))
def test_high_frequency_commits_into_log_files_survive_running_services(
    seaweedfs: SeaweedFS, kind: str, capsys: pytest.CaptureFixture[str], request: pytest.FixtureRequest
) -> None:
    seconds = float(request.config.getoption("--soak")) * 60
    busy = Busy(seaweedfs, kind, request.config.getoption("--seed") or int(time.time()))
    is_plain = busy.spec.buckets is None
    work = [*[write] * WRITERS, die, read, serve, add, *([cluster] if is_plain else [])]
    began_s = time.monotonic()
    threads = [living(busy, each, number) for number, each in enumerate(work)]
    wanted = ["commits", "reads", "compactions", "cleans", "added", *(["clusterings"] if is_plain else [])]
    last_for(busy.over, seconds, lambda: all(busy.happened[what] for what in wanted))
    for thread in threads:
        thread.join()
    took_s = time.monotonic() - began_s
    report = {"kind": kind, "seed": busy.seed, "seconds": round(took_s), **dict(busy.happened.most_common())}
    report["commits/s"] = round((busy.happened["commits"] + busy.happened["added"]) / took_s, 2)
    with capsys.disabled():
        print(f"\n{json.dumps(report)}")  # noqa: T201
    assert busy.failures == []
    table = busy.opened()
    assert content(table) == by_hudi_rs(busy) == busy.expected()
    table.sweep()
    table.compact()
    assert content(table) == content(table, read_optimized=True) == by_hudi_rs(busy) == busy.expected()
    assert busy.dead_values.isdisjoint(one[3] for one in content(table))
    wrong = [one for _, _, found in diagnose(table) for one in found if one.state == "wrong" and "dead" not in one.what]
    assert wrong == []
    assert [what for what in wanted if not busy.happened[what]] == [], "what did not happen has tested nothing"
    assert is_plain or busy.happened["conflicts"] == 0
