"""`pytest -m soak tests/soak/test_table_soak.py --soak MINUTES`: RFC-91's own test plan, on one table of each kind.

High-frequency commits by Spark, pandas and Arrow while services run and writers die, reads of all kinds at once, and
streams that are killed and started again. At the end nothing is lost, doubled, left over or leaked, and the figures
that the plan names are printed, and written to `market.json`.

Source: Hudi RFC-91, "Test Plan".
"""

from __future__ import annotations

import json
import threading
import time
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from soak import readers
from soak import trades as do
from soak.leaks import Footprint
from soak.market import BUCKETS, SPEC, Market
from soak.market_audit import audit
from soak.metrics import Metrics
from soak.streams import Streams

if TYPE_CHECKING:
    from pathlib import Path

    from servers.seaweedfs import SeaweedFS

pytestmark = pytest.mark.soak
WARM_S = 30.0
ALONE = 1 / 3  # of the time
WEIGHED = 10  # times

WRITERS = (
    *(do.append_to_lists, do.append_to_lists, do.append_to_lists_by_spark, do.rate, do.rate_by_spark),
    *(do.log, do.come_and_go, do.overwrite, do.vanish),
)
JOINERS = (do.cluster,)  # with buckets there is nothing to join
FOUNDERS = (do.found_lists, do.found_lists)  # without buckets, two that make one list would not be told
EXPECTED = (
    "list appends",
    "list appends by Spark",
    "ratings by pandas",
    "ratings by Spark",
    "went",
    "overwrites",
    "cleans",
    "read",
)
FOUNDED = ("lists founded", "founded lists appended to")


@pytest.fixture(params=[SPEC, BUCKETS], ids=["plain", "buckets"])
def market(seaweedfs: SeaweedFS, spark: Any, request: pytest.FixtureRequest) -> Market:
    seed = request.config.getoption("--seed") or int(time.time())
    return Market(seaweedfs, spark, Metrics(), seed, request.param)


def test_test_plan_of_rfc_91_passes_on_each_kind_of_table(
    seaweedfs: SeaweedFS,
    market: Market,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    request: pytest.FixtureRequest,
) -> None:
    seconds = float(request.config.getoption("--soak")) * 60
    plain = market.spec.buckets is None
    joined = (WRITERS + JOINERS, (*EXPECTED, "clusterings"))
    writers, expected = joined if plain else (WRITERS + FOUNDERS, EXPECTED + FOUNDED)
    everybody = [*writers, do.serve, readers.Reader(), readers.read_by_sql, readers.read_by_hudi_rs]
    market.live(min(WARM_S, seconds / 4), everybody)  # what is opened, and loaded, once is there now
    began_s = time.monotonic()
    market.live(seconds * ALONE, everybody)  # nobody follows: what is replaced is cleaned soon
    assert market.failures == [], "\n".join(market.failures)
    streams, before = Streams(seaweedfs, market, tmp_path), Footprint.settled()
    market.followers_ms = streams.seen_until_ms
    following = threading.Thread(target=streams.live_until, args=(market.over,))
    market.over.clear()
    following.start()
    resident_mb: list[int] = []
    weighing = threading.Thread(target=weigh, args=(market.over, seconds * (1 - ALONE) / WEIGHED, resident_mb))
    weighing.start()
    market.live(
        seconds * (1 - ALONE),
        everybody,
        lambda: streams.kills > 0 and all(market.happened[what] for what in expected),
    )
    following.join()
    weighing.join()
    took_s, after = time.monotonic() - began_s, Footprint.at_rest(before)
    caught_up_s = -time.monotonic()
    streams.finish()
    caught_up_s += time.monotonic()
    wrong = {promise: found for promise, found in audit(market, streams).items() if found}
    report = {
        "seed": market.seed,
        "seconds": round(took_s),
        "commits": len(market.table.timeline().writes),
        "streams_killed": streams.kills,
        "streams_caught_up_s": round(caught_up_s),
        "happened": dict(market.happened.most_common()),
        **market.metrics.report(took_s),
        "footprint": {"before": str(before), "after": str(after)},
        "resident_mb": resident_mb,
        "wrong": wrong,
    }
    (tmp_path / "market.json").write_text(json.dumps(report, indent=2))
    with capsys.disabled():
        print(f"\nsoak of a table, also in {tmp_path / 'market.json'}:\n{json.dumps(report, indent=2)}")  # noqa: T201
    assert wrong == {}
    assert after.above(replace(before, resident_mb=max([before.resident_mb, *resident_mb[:2]]))) == []
    assert [what for what in expected if not market.happened[what]] == [], "what did not happen has tested nothing"
    assert streams.kills > 0


def weigh(over: threading.Event, every_s: float, resident_mb: list[int]) -> None:
    """How the process grows."""
    while not over.wait(every_s):
        resident_mb.append(round(Footprint.now().resident_mb))
