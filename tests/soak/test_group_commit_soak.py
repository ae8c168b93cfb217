"""`pytest -m soak tests/soak/test_group_commit_soak.py --soak MINUTES`: processes that commit for each other, and die.

Each kind of table has half of the time. Every acknowledged commit is there once, none that was refused, no completion
time twice, and each look of each reader has all that was acknowledged before.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from lockprovider.table.format.properties import UNORDERED
from soak.lists import Crowd, follow, read_by_hudi_rs, read_ours, serve

if TYPE_CHECKING:
    from servers.seaweedfs import SeaweedFS

pytestmark = pytest.mark.soak
PROCESSES = 12
LOOKS = {None: (read_ours, read_by_hudi_rs, follow, serve), UNORDERED: (read_ours, serve)}


@pytest.mark.parametrize("visibility", LOOKS, ids=["ordered", "unordered"])
def test_dying_and_frozen_processes_lose_and_double_no_group_commit(
    seaweedfs: SeaweedFS,
    visibility: str | None,
    seed: int,
    request: pytest.FixtureRequest,
    capsys: pytest.CaptureFixture[str],
) -> None:
    crowd = Crowd(seaweedfs, seed, visibility)
    wrong = crowd.live(PROCESSES, LOOKS[visibility], float(request.config.getoption("--soak")) * 60 / 2)
    with capsys.disabled():
        print(crowd.report)  # noqa: T201
    assert wrong == {}
