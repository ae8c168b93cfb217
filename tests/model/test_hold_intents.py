"""Two waiting policies that the library does not have, over simulated time: the lock is handed over by its releaser."""

from __future__ import annotations

import sys
from collections.abc import Generator
from dataclasses import replace
from pathlib import Path
from statistics import mean

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from benchmarks import contention, contention_score, hold_intents
from benchmarks.contention import Case, Process, Result, Simulation

SEEDS = range(3)
LOOP = Case(8, 1, rounds=0, lasts_s=30.0, policy="intents")
LONG = Case(16, 1, first_s=20.0, hold_s=0.02, lasts_s=900.0, policy="intents")
POLICIES = ("handed", "intents")


def runs(case: Case) -> list[Result]:
    return [Simulation(case, seed).run() for seed in SEEDS]


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("work_s", [0.0, 0.5])
def test_one_that_is_alone_writes_twice_and_hardly_ever_lists(policy: str, work_s: float) -> None:
    for run in runs(replace(LOOP, processes=1, policy=policy, work_s=work_s)):
        assert run.requests <= 3.1 if work_s else run.requests <= 2.2
        assert run.hand_over_ms == pytest.approx(60 + 1000 * work_s, abs=25)


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("processes", [2, 8, 32])
def test_a_hand_over_is_faster_than_a_take_and_costs_about_as_much(policy: str, processes: int) -> None:
    line = runs(replace(LOOP, processes=processes, policy="line"))
    found = runs(replace(LOOP, processes=processes, policy=policy))
    assert mean(run.hand_over_ms for run in found) < 0.75 * mean(run.hand_over_ms for run in line)
    assert mean(run.requests for run in found) <= 1.1 * mean(run.requests for run in line)
    assert max(run.unserved for run in found) == 0


@pytest.mark.parametrize("processes", [8, 32, 128])
def test_those_who_ask_once_and_all_at_once_are_served_by_intents_for_a_few_requests(processes: int) -> None:
    for run in runs(replace(LOOP, processes=processes, rounds=1, lasts_s=1e9)):
        assert run.acquisitions == processes
        assert run.requests <= 12
        assert run.unfairness <= 3


@pytest.mark.parametrize("policy", POLICIES)
def test_one_that_is_given_the_lock_and_is_dead_does_not_keep_it_for_a_lease(policy: str) -> None:
    for run in runs(replace(LOOP, policy=policy, hold_s=0.03, die=4, die_by_s=10.0)):
        assert run.idle_max_s < 2
        assert run.wait_max_s < 5


@pytest.mark.parametrize("leave", [{"die": 8, "die_by_s": 20.0}, {"give_up": 8}, {"give_up": 14, "late_s": 21.0}])
def test_no_lock_lies_idle_for_long_after_those_who_leave_while_they_wait(leave: dict[str, float]) -> None:
    for run in runs(replace(LONG, **leave)):  # type: ignore[arg-type]
        assert run.idle_max_s <= 5
        assert run.unserved <= max(leave.get("die", 0), leave.get("give_up", 0))


@pytest.mark.parametrize("policy", POLICIES)
def test_a_jvm_client_gets_a_lock_that_is_never_free_within_its_minute(policy: str) -> None:
    for run in runs(replace(LOOP, lasts_s=120.0, guests=1, policy=policy)):
        assert run.guest_wait_s < 60


def test_a_store_that_takes_one_write_a_second_has_a_turn_for_each() -> None:
    paced = replace(LOOP, lasts_s=100.0, get_s=0.05, put_s=0.08, writes_per_s=1.0)
    line = runs(replace(paced, policy="line"))
    assert mean(run.per_s for run in runs(paced)) > 1.6 * mean(run.per_s for run in line)


@pytest.mark.parametrize("policy", POLICIES)
def test_clocks_that_differ_by_seconds_never_make_two_holders(policy: str, monkeypatch: pytest.MonkeyPatch) -> None:
    case = Case(8, 1, rounds=0, lasts_s=60.0, long_s=1.0, die=3, die_by_s=40.0, policy=policy)
    assert most_at_once(case, monkeypatch) == 1


def test_a_lease_that_is_believed_in_for_longer_than_it_was_given_for_is_caught(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """So the test can tell: it begins at the look that shows it, not at the one before."""
    real = hold_intents.HandedLine._accept

    def careless(self: hold_intents.HandedLine, process: Process, look: object) -> Generator:
        self._own[process.name].before_s = self._sim.now_s + 1.0
        return (yield from real(self, process, look))  # type: ignore[arg-type]

    monkeypatch.setattr(hold_intents.HandedLine, "_accept", careless)
    case = Case(8, 1, rounds=0, lasts_s=60.0, long_s=1.0, die=3, die_by_s=40.0, policy="intents")
    assert most_at_once(case, monkeypatch) > 1


def most_at_once(case: Case, monkeypatch: pytest.MonkeyPatch) -> int:
    """How many had the lock at one moment, with clocks that are wrong by up to three seconds."""
    holders: set[str] = set()
    most = 0
    real = hold_intents.HandedLine.hold

    def watched(self: hold_intents.HandedLine, process: Process, seconds: float) -> Generator:
        nonlocal most
        holders.add(process.name)
        most = max(most, len(holders))
        yield from real(self, process, seconds)
        holders.discard(process.name)

    monkeypatch.setattr(hold_intents.HandedLine, "hold", watched)
    monkeypatch.setattr(contention, "_SKEW_S", 3.0)
    for seed in SEEDS:
        holders.clear()
        Simulation(case, seed).run()
    return most


def test_the_same_seed_gives_the_same_figures() -> None:
    assert Simulation(LOOP, 1).run() == Simulation(LOOP, 1).run()
    assert Simulation(LOOP, 1).run() != Simulation(LOOP, 2).run()


def test_the_score_measures_a_policy_that_it_is_asked_for() -> None:
    name, case = list(contention_score.cases())[4]
    found = {policy: contention_score.measured((name, replace(case, policy=policy), 1))[1] for policy in POLICIES}
    assert all(set(contention_score.FIGURES) <= set(figures) for figures in found.values())
    assert found["handed"] != found["intents"]
