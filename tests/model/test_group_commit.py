"""Group commit in every order of requests, faults and others who take the lock; and wrong twins that must break a promise."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from model.group_commit import Budget, GroupCommit
from model.group_twins import TWINS
from model.search import explore

WORLDS: dict[str, dict[str, Any]] = {
    "two writers": {},
    "two writers that do not know of each other": {"meets": False, "budget": Budget(crashes=1, lost=1)},
    "two that meet, a crash, a withdrawal": {"bodies": "xx", "budget": Budget(crashes=1, withdrawals=1, lost=1)},
    "a crash, a doubled post, a withdrawal": {"budget": Budget(crashes=1, doubled=1, withdrawals=1)},
    "one on duty has died": {"abandoned": True, "budget": Budget(lost=1, crashes=1)},
    "a holder, and threads that look": {"budget": Budget(holders=1, looks=1)},
    "a JVM writer, a crash, a withdrawal": {"budget": Budget(guests=1, crashes=1, withdrawals=1)},
    "three, of which two meet": {"bodies": "xxy"},
    "a write is sent twice, a withdrawal": {"budget": Budget(twice=1, withdrawals=1)},
}


@pytest.mark.parametrize("name", WORLDS)
def test_acknowledged_commits_exist_once_in_order_and_all_clients_end(name: str) -> None:
    every_promise_holds(GroupCommit(**WORLDS[name]))


def every_promise_holds(model: GroupCommit) -> None:
    found = explore(model.initial(), model.steps, ended=model.ended)
    print(found)
    assert not found.story, str(found)
    assert found.states > 300
    budget, reached = model.budget, model.reached
    assert {"listed", "posted"} <= reached
    assert ("a late post" in reached) == (budget.late + budget.doubled > 0)
    assert ("a late write" in reached) == (budget.late > 0)
    assert ("twice" in reached) == (budget.twice > 0)
    assert ("withdrawn" in reached) >= (budget.withdrawals > 0)
    assert ("judged anew" in reached) == (budget.ends + budget.guests > 0 or model.short)
    assert ("a log is begun" in reached) == (budget.ends + budget.guests > 0)
    assert ("dropped" in reached) == (budget.guests > 0)


@pytest.mark.parametrize("twin", TWINS)
def test_mutant_is_caught(twin: str) -> None:
    promise, world, rules = TWINS[twin]
    model = replace(world, rules=rules, watch=frozenset({promise}), reached=set())
    found = explore(model.initial(), model.steps)
    print(found)
    assert found.why.startswith(promise), f"{twin}: {found}"


def test_stuck_client_is_found() -> None:
    """So the search does see who is stuck."""
    model = GroupCommit(budget=Budget(crashes=1))
    found = explore(model.initial(), model.steps, ended=lambda world: world.writers[1].ended == "acknowledged")
    assert found.why.startswith("finish")
