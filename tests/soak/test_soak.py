"""`pytest -m soak --soak MINUTES`: the lock on real servers with random faults, and fresh random histories.

Each server and the histories get a quarter of the time. What happened is printed at the end.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

import pytest
from simulate.histories import History
from simulate.scheduler import Crew

from soak.leaks import Footprint
from soak.town import ACTIONS, Town

if TYPE_CHECKING:
    from faults.proxy import FaultProxy
    from servers.base import Server

pytestmark = pytest.mark.soak
QUARTER = 0.25
WARM_S = 20.0
MANY = 150  # faults; in so many each kind should have been


@pytest.fixture
def seconds(request: pytest.FixtureRequest) -> float:
    return float(request.config.getoption("--soak")) * 60 * QUARTER


@pytest.mark.parametrize("name", ["seaweedfs", "fake_gcs", "azurite"])
def test_random_faults_cause_no_loss_overlap_or_leak(  # noqa: PLR0917 - fixtures
    request: pytest.FixtureRequest,
    fault_proxy: Callable[[Server], FaultProxy],
    capsys: pytest.CaptureFixture[str],
    name: str,
    seed: int,
    seconds: float,
) -> None:
    server = request.getfixturevalue(name)
    proxy = fault_proxy(server)
    Town(server, proxy, seed).live(max(WARM_S, seconds / 4))  # what is opened, and loaded, once is there now
    town = Town(server, proxy, seed + 1)
    before = Footprint.settled()
    town.live(seconds)
    wrong = town.audit()
    after = Footprint.at_rest(before)
    with capsys.disabled():
        print(report(name, seconds, town, before, after))  # noqa: T201 - it is a report
    assert {promise: found for promise, found in wrong.items() if found} == {}
    assert after.above(before) == []
    assert town.happened["published"] > 0
    rare = [fault for fault in ACTIONS if not town.fired[fault]]
    assert sum(town.fired.values()) > 0
    assert rare == [] or sum(town.fired.values()) < MANY, "a fault that did not happen has tested nothing"


def test_fresh_random_histories_keep_every_promise(capsys: pytest.CaptureFixture[str], seconds: float) -> None:
    crew, first, n = Crew(), random.randrange(10**6, 10**12), 0
    until_s = time.monotonic() + seconds
    while time.monotonic() < until_s:
        History(first + n, crew).run()  # a failure shows its story; run it again with --seed
        n += 1
    crew.dismiss()
    with capsys.disabled():
        print(f"\nsoak: {n} histories, --seed {first} and after it")  # noqa: T201 - it is a report


def report(name: str, seconds: float, town: Town, before: Footprint, after: Footprint) -> str:
    return "\n".join(
        [
            f"\nsoak of {name}, {seconds:.0f} s:",
            f"  happened      {dict(town.happened.most_common())}, longest wait {town.longest_wait_s:.1f} s",
            f"  faults        {dict(town.fired.most_common())}, {sum(town.fired.values())} in all",
            f"  before        {before}",
            f"  after         {after}",
        ]
    )
