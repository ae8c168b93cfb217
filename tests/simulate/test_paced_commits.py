"""Writers of one table on a store that takes one write a second of an object (GCS), in simulated time."""

import pytest

from benchmarks.simulated_commits import ORDERED, STORES, UNORDERED, run

GCS_LIKE = next(name for name in STORES if name.startswith("GCS"))


@pytest.mark.parametrize("visibility", [ORDERED, UNORDERED])
def test_throttled_writer_finds_a_batch_leader_that_decides_for_all(visibility: str) -> None:
    came = run(GCS_LIKE, visibility, 8, 1, seconds=8, cpu_ms=12)
    assert came.per_s > 6  # 8, were all in each write
    assert came.p99_ms < 4000  # not one that tries on while others write
    assert came.throttled < 0.2
