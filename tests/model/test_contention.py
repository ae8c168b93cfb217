"""The waiting policy over simulated time: what many contenders may expect of it, seed by seed."""

from __future__ import annotations

import sys
from pathlib import Path
from statistics import mean, median

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from benchmarks.contention import Case, Simulation

SEEDS = range(6)


def runs(case: Case, seeds: range = SEEDS) -> list:
    return [Simulation(case, seed).run() for seed in seeds]


@pytest.mark.parametrize("threads", [2, 8, 32])
def test_four_looping_processes_take_turns_for_few_requests(threads: int) -> None:
    found = runs(Case(4, threads, rounds=0, lasts_s=40.0))
    assert max(run.requests for run in found) <= 6
    assert median(run.unfairness for run in found) <= 3
    assert max(run.unserved for run in found) == 0


@pytest.mark.parametrize("threads", [2, 8, 32])
def test_four_processes_asking_once_are_served_for_few_requests(threads: int) -> None:
    found = runs(Case(4, threads, lasts_s=1e9))
    assert mean(run.requests for run in found) <= 6
    assert median(run.unfairness for run in found) <= 3
    assert {run.acquisitions for run in found} == {4 * threads}


@pytest.mark.parametrize(("processes", "lasts_s", "unfair"), [(3, 20.0, 5.5), (8, 20.0, 3.5), (32, 60.0, 3.3)])
def test_processes_that_loop_alone_take_turns(processes: int, lasts_s: float, unfair: float) -> None:
    """The longest wait is that of the last to get in, so it differs much between seeds; with three, a wait is short."""
    found = runs(Case(processes, 1, rounds=0, lasts_s=lasts_s), range(200 if processes < 32 else 8))
    assert mean(run.requests for run in found) <= 6
    assert median(run.unfairness for run in found) <= unfair
    assert max(run.unserved for run in found) == 0


def test_many_looping_processes_are_all_served_and_hand_over_fast() -> None:
    """Until all of them stand in the line, that costs more than six requests."""
    found = [Simulation(Case(128, 1, rounds=0, lasts_s=120.0), seed).run() for seed in range(1, 4)]
    assert mean(run.requests for run in found) <= 9
    assert mean(run.unfairness for run in found) <= 3.5
    assert max(run.unserved for run in found) == 0
    assert max(run.hand_over_ms for run in found) < 90


@pytest.mark.parametrize(("processes", "most"), [(8, 6.8), (32, 11), (128, 17.5)])
def test_processes_asking_at_once_are_served_for_bounded_requests(processes: int, most: float) -> None:
    """Nobody knows how many there are, and to tell each other would cost more than to find out."""
    found = runs(Case(processes, 1, lasts_s=1e9))
    assert mean(run.requests for run in found) <= most
    assert median(run.unfairness for run in found) <= 3.5
    assert {run.acquisitions for run in found} == {processes}


@pytest.mark.parametrize("processes", [8, 32])
def test_processes_asking_at_once_hand_over_as_fast_as_plain_polling(processes: int) -> None:
    line = runs(Case(processes, 1, lasts_s=1e9))
    naive = runs(Case(processes, 1, lasts_s=1e9, policy="naive", poll_s=0.1))
    assert mean(run.hand_over_ms for run in line) < 1.4 * mean(run.hand_over_ms for run in naive)


def test_simultaneous_starters_do_not_delay_each_others_turns() -> None:
    """Those who join the line make the holder write anew; that must stay rare while all of them want to."""
    found = runs(Case(64, 1, rounds=0, lasts_s=30.0, work_s=0.25, hold_s=0.005))
    assert mean(run.per_s for run in found) > 11.5
    assert max(run.unserved for run in found) == 0


def test_long_turns_are_waited_for_with_few_polls() -> None:
    found = runs(Case(16, 1, rounds=0, lasts_s=120.0, hold_s=0.5))
    assert mean(run.requests for run in found) <= 7.5
    assert mean(run.hand_over_ms for run in found) < 160


def test_plain_polling_starves_a_client() -> None:
    """So the figures can tell the difference."""
    naive = runs(Case(8, 1, rounds=0, lasts_s=40.0, policy="naive"))
    assert median(run.unfairness for run in naive) > 30


def test_hand_over_takes_about_as_long_as_with_plain_polling() -> None:
    line = runs(Case(4, 8, rounds=0, lasts_s=30.0))
    naive = runs(Case(4, 8, rounds=0, lasts_s=30.0, policy="naive", poll_s=0.1))
    assert mean(run.hand_over_ms for run in line) < 1.35 * mean(run.hand_over_ms for run in naive)


def test_dead_waiter_does_not_stall_the_others() -> None:
    whole = runs(Case(8, 1, rounds=0, lasts_s=40.0))
    for run, other in zip(runs(Case(8, 1, rounds=0, lasts_s=40.0, die=3)), whole, strict=True):
        assert run.per_s > 0.8 * other.per_s
        assert run.wait_max_s < 5


def test_equal_seeds_give_equal_figures() -> None:
    case = Case(4, 2, rounds=0, lasts_s=5.0)
    assert Simulation(case, 1).run() == Simulation(case, 1).run()
    assert Simulation(case, 1).run() != Simulation(case, 2).run()
