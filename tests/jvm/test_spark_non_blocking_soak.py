"""`pytest -m "jvm and soak" tests/jvm/test_spark_non_blocking_soak.py --soak MINUTES`: writers of both.

JVM Hudi and ours upsert the same keys, both compact (and either runs what the other has scheduled), and three readers
look on: JVM Hudi, hudi-rs, ours. Each version of a row has an ordering value of its own, so at every moment each reader
has to see of each key the greatest that was acknowledged before it began to read, or a later one.
"""

from __future__ import annotations

import json
import time
from collections import Counter
from itertools import count
from random import Random
from typing import TYPE_CHECKING

import pytest
from patience import last_for
from soak.living import Soak, living
from table.mor_tables import Row, content, rows

from jvm.spark import HudiError
from jvm.test_spark_non_blocking import BLIND, DDL, SPEC, THEIRS, another, by_hudi_rs, theirs
from jvm.test_spark_races import KEEPING
from lockprovider.table import Aborted, HistoryGone, Table
from lockprovider.table.doctor.rules import diagnose
from lockprovider.table.format.layout import Action

if TYPE_CHECKING:
    from collections.abc import Callable

    from servers.seaweedfs import SeaweedFS

    from jvm.spark import HudiSpark

pytestmark = [pytest.mark.jvm, pytest.mark.soak]
WRITERS, KEYS, AT_ONCE = 3, 40, 8
# A JVM that compacts beside somebody who runs the same plan, or has run it, is told so, by us as by another JVM.
GAVE_WAY = ("Requested compaction instant", "due to heartbeat by concurrent writer")
INLINE = {"hoodie.compact.inline": "true", "hoodie.compact.inline.max.delta.commits": "1"}


class Beside(Soak):
    """One table, and what its writers were told."""

    def __init__(self, table: Table, hudi: HudiSpark, seed: int) -> None:
        super().__init__(seed, KEYS, AT_ONCE)
        self.table, self.hudi = table, hudi

    def look(self, reader: str, read: Callable[[], list[Row]]) -> None:
        least = self.expected()
        found = {one[0]: one for one in read()}
        behind = [one for one in least if one[0] not in found or found[one[0]][3] < one[3]]
        assert behind == [], f"acknowledged, and not there for {reader}"
        self.happened[f"reads by {reader}"] += 1


def they(all_: Beside, number: int) -> None:
    """One driver: it writes, compacts with each third write, and reads."""
    random = Random(all_.seed - 1)
    for turn in count(1):
        if all_.over.is_set():
            return
        given = all_.drawn(random, "theirs")
        options = THEIRS | KEEPING_ALL | (INLINE if turn % 3 == 0 else {})
        try:
            all_.hudi.write(all_.table.url, DDL, [tuple(one) for one in given], options)
        except HudiError as error:
            if not any(words in str(error) for words in GAVE_WAY):
                raise
            # Ours was faster. Their commit is made before they compact: the rows at the end tell whether it was.
            all_.happened["their compactions that gave way"] += 1
        all_.acknowledge(given)
        all_.happened["their commits"] += 1
        if turn % 2 == 0:
            all_.look("JVM Hudi", lambda: theirs(all_.hudi, all_.table))


def we(all_: Beside, number: int) -> None:
    table, random = another(all_.table), Random(all_.seed + number)
    while not all_.over.is_set():
        given = all_.drawn(random, f"ours {number}")
        all_.happened["our conflicts"] += table.upsert(rows(*given), retries=100).conflicts
        all_.acknowledge(given)
        all_.happened["our commits"] += 1


def compact(all_: Beside, number: int) -> None:
    """Now and then only a plan, for whoever comes next."""
    table = another(all_.table)
    for turn in count(1):
        if all_.over.wait(4):
            return
        if turn % 3 == 0:
            all_.happened["our plans, left"] += table.schedule_compaction() is not None
            all_.over.wait(8)
            continue
        try:
            table.compact()
        except (Aborted, HistoryGone):  # theirs was at it
            all_.happened["our compactions that gave way"] += 1


def read(all_: Beside, number: int) -> None:
    table = another(all_.table)
    while not all_.over.is_set():
        all_.look("ours", lambda: content(table))
        all_.look("hudi-rs", lambda: by_hudi_rs(table))


KEEPING_ALL = {key: value for key, value in KEEPING.items() if "retained" in key or "keep" in key}


COMPACTORS = ("ours", "theirs")


def compacted_by(table: Table) -> Counter[str]:
    """Completed compactions, by who wrote their files: ours are of one token."""
    found: Counter[str] = Counter()
    for instant in table.timeline().writes:
        said = table.metadata_of(instant)
        if said.operation == "COMPACT":
            found["ours" if all("_0-0-0_" in stat.path for stat in said.all_stats) else "theirs"] += 1
    return found


def test_jvm_and_python_write_and_compact_for_minutes(
    hudi: HudiSpark, seaweedfs: SeaweedFS, request: pytest.FixtureRequest, capsys: pytest.CaptureFixture[str]
) -> None:
    table = Table.create(seaweedfs.new_prefix(), SPEC, settings=BLIND, storage_options=seaweedfs.storage_options)
    all_ = Beside(table, hudi, request.config.getoption("--seed") or int(time.time()))
    first = all_.first()
    table.upsert(rows(*first))
    all_.acknowledge(first)
    their_first = all_.drawn(Random(all_.seed), "theirs")  # the first one of a JVM takes a minute and more
    hudi.write(table.url, DDL, [tuple(one) for one in their_first], THEIRS | KEEPING_ALL)
    all_.acknowledge(their_first)
    assert theirs(hudi, table) == all_.expected()
    began_s = time.monotonic()
    threads = [living(all_, work, n) for n, work in enumerate((they, *[we] * WRITERS, compact, read))]
    wanted = ["their commits", "our commits", "reads by JVM Hudi", "reads by hudi-rs", "reads by ours"]
    last_for(
        all_.over,
        float(request.config.getoption("--soak")) * 60,
        lambda: all(all_.happened[what] for what in wanted) and len(compacted_by(another(table))) == len(COMPACTORS),
    )
    for thread in threads:
        thread.join()
    by = compacted_by(another(table))
    report = {"seed": all_.seed, "seconds": round(time.monotonic() - began_s), **dict(all_.happened.most_common())}
    report |= {f"compactions, {who}": number for who, number in by.items()}
    with capsys.disabled():
        print(f"\n{json.dumps(report)}")  # noqa: T201
    assert all_.failures == []
    for _ in range(2):  # as it is, and compacted
        found = another(table)
        assert content(found) == by_hudi_rs(found) == theirs(hudi, found) == all_.expected()
        found.compact()
    assert found.timeline().pending(Action.COMPACTION) == ()
    assert content(found, read_optimized=True) == all_.expected()
    wrong = [one for _, _, told in diagnose(found) for one in told if one.state == "wrong" and "dead" not in one.what]
    assert wrong == []
    assert all_.happened["our conflicts"] == 0
    assert [what for what in wanted if not all_.happened[what]] == []
    assert [who for who in COMPACTORS if not by[who]] == [], "what did not happen has tested nothing"
