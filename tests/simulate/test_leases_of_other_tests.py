"""A lease that an earlier test dropped, which the collector finds in the middle of a simulated story."""

from __future__ import annotations

import gc

import pytest

import lockprovider
from simulate.scheduler import Crew, Process, Scheduler


@pytest.mark.filterwarnings("ignore::ResourceWarning")
def test_lease_collected_during_a_simulation_is_released_by_a_real_thread() -> None:
    scheduler = Scheduler(1, Crew())
    in_story = [lockprovider.lock("memory://collected/story").acquire()]
    between = [lockprovider.lock("memory://collected/between").acquire()]

    def story() -> None:
        in_story.clear()
        gc.collect()

    with scheduler.in_place_of_threads():
        scheduler.spawn(Process("a"), story, "a")
        scheduler.run()
        assert scheduler.end() == []
        between.clear()
        gc.collect()
    assert scheduler.errors == []
    for name in ("story", "between"):
        lockprovider.lock(f"memory://collected/{name}").acquire(timeout=60).release()
