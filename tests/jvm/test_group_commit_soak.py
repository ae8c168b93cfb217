"""`pytest -m "jvm and soak" tests/jvm/test_group_commit_soak.py --soak MINUTES`: the same beside a JVM lock client.

Each of its turns drops what group commit keeps in the lock record.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from soak.lists import Crowd, follow, read_by_hudi_rs, read_ours, serve

if TYPE_CHECKING:
    from collections.abc import Callable

    from servers.seaweedfs import SeaweedFS

    from jvm.clients import JvmLocks

pytestmark = [pytest.mark.jvm, pytest.mark.soak]
PROCESSES = 12
TRY_S, HOLD_S, PAUSE_S = 20.0, 0.3, 2.0


def test_group_commit_with_a_jvm_lock_client_loses_no_commit(
    seaweedfs: SeaweedFS,
    start_jvm: Callable[[], JvmLocks],
    seed: int,
    request: pytest.FixtureRequest,
    capsys: pytest.CaptureFixture[str],
) -> None:
    crowd = Crowd(seaweedfs, seed, None)
    theirs = start_jvm().open(crowd.table.url)

    def hold(crowd: Crowd) -> None:
        if theirs.try_lock(TRY_S):
            crowd.happened["held by theirs"] += 1
            crowd.over.wait(HOLD_S)
            theirs.unlock()
            crowd.over.wait(PAUSE_S)

    looks = (read_ours, read_by_hudi_rs, follow, serve, hold)
    wrong = crowd.live(PROCESSES, looks, float(request.config.getoption("--soak")) * 60)
    with capsys.disabled():
        print(crowd.report)  # noqa: T201
    assert wrong == {}
    assert crowd.happened["held by theirs"]
