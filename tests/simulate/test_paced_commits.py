"""Writers of one table on a store that takes one write a second of an object (GCS), in simulated time."""

from concurrent.futures import ThreadPoolExecutor

import pytest

from benchmarks.simulated_commits import ORDERED, STORES, UNORDERED, in_simulated_time, run
from fsspec_cas import store
from fsspec_cas.bridge import threads
from simulate.scheduler import Crew, Scheduler

GCS_LIKE = next(name for name in STORES if name.startswith("GCS"))


@pytest.mark.parametrize("visibility", [ORDERED, UNORDERED])
def test_throttled_writer_finds_a_batch_leader_that_decides_for_all(visibility: str) -> None:
    came = run(GCS_LIKE, visibility, 8, 1, seconds=8, cpu_ms=12)
    assert came.per_s > 6  # 8, were all in each write
    assert came.p99_ms < 4000  # not one that tries on while others write
    assert came.throttled < 0.2


def test_thread_of_an_earlier_test_works_outside_of_a_simulation() -> None:
    def work() -> tuple[object, object]:
        with threads.WorksAtExit(1) as pool:
            return store.BACKGROUND.begin(lambda: 1).result(10), pool.submit(lambda: 2).result(10)

    with ThreadPoolExecutor(1) as earlier:
        earlier.submit(int).result()
        with in_simulated_time(Scheduler(1, Crew())):
            assert earlier.submit(work).result(60) == (1, 2)
