"""Every promise of the lease and of fenced publish, in every order of events; and wrong twins that must break one."""

from __future__ import annotations

from dataclasses import replace

import pytest

from model.clocks import ALLOWANCE_S, TICK_S, Clocks
from model.publishing import Budget, Publishing
from model.search import explore
from model.twins import CLOCKS, PUBLISHING

WORLDS = {
    "two clients, two lapses": (2, 1, Budget(lapses=2)),
    "two clients, a lost answer and a late write": (2, 1, Budget(lapses=1, lost=1, late=1)),
    "two clients, a crash": (2, 1, Budget(lapses=1, lost=1, crashes=1)),
    "two clients, renewals and a failed request": (2, 1, Budget(lapses=1, failed=1, renewals=1)),
    "two clients, two transactions each": (2, 2, Budget(lapses=1)),
    "three clients": (3, 1, Budget(lapses=1)),
    "two clients, one joins the line": (2, 1, Budget(lapses=1, lost=1, joins=1)),
    "two clients, one joins, with renewals": (2, 1, Budget(lapses=1, failed=1, renewals=1, joins=1)),
    "three clients, one joins": (3, 1, Budget(lapses=1, joins=1)),
    "two clients keep the log": (2, 2, Budget(lapses=1), "AB"),
    "one of two keeps the log": (2, 2, Budget(lapses=1), "A"),
    "two clients, one removes what it has published": (2, 1, Budget(renewals=2, joins=1, removals=1)),
    "two clients, one removes and is taken over": (2, 1, Budget(lapses=1, removals=1)),
    "two clients, a break": (2, 1, Budget(lapses=1, lost=1, breaks=1)),
    "two clients, a break and a JVM writer": (2, 1, Budget(breaks=1, guests=1)),
    "two clients that keep the log, and a JVM writer": (2, 2, Budget(guests=1), "AB"),
    "two clients, writes are sent twice": (2, 1, Budget(lapses=1, twice=1)),
    "one holds, one combines": (2, 2, Budget(lapses=1, lost=1), "AB", "B"),
    "one holds, one combines, a late write": (2, 2, Budget(lost=1, late=1), "AB", "B"),
    "one holds, one combines, a failed request": (2, 2, Budget(lapses=1, failed=1), "AB", "B"),
    "one holds, one combines, a crash": (2, 2, Budget(lapses=1, lost=1, crashes=1), "AB", "B"),
    "one holds and renews, one combines, one joins": (2, 2, Budget(lapses=1, renewals=1, joins=1), "AB", "B"),
    "one holds, one combines, one drops the log": (3, 1, Budget(lapses=1, lost=1), "A", "B"),
    "one holds and removes, one combines": (2, 2, Budget(lapses=1, removals=1), "AB", "B"),
    "one holds, one combines, and a JVM writer": (2, 2, Budget(guests=1, lost=1), "AB", "B"),
    "one holds, one combines, a write is sent twice": (2, 2, Budget(twice=1), "AB", "B"),
    "one holds, two combine": (3, 1, Budget(lapses=1, lost=1, late=1), "ABC", "BC"),
    "two publish pairs, a crash": (2, 1, Budget(lapses=1, lost=1, crashes=1), "A", "", True),
    "two publish pairs, one combines": (2, 2, Budget(lapses=1), "AB", "B", True),
}


LARGE = {"three clients, one joins"}


@pytest.mark.parametrize(
    "world", [pytest.param(name, marks=pytest.mark.soak if name in LARGE else ()) for name in WORLDS]
)
def test_every_promise_of_publish_holds_without_clock_assumptions(world: str) -> None:
    *what, keepers, combiners, pairs = (*WORLDS[world], *("", "", False)[len(WORLDS[world]) - 3 :])
    model = Publishing(*what, keepers=keepers, combiners=combiners, pairs=pairs)
    found = explore(model.initial(), model.steps)
    assert not found.story, str(found)
    assert found.states > 500
    assert ("joined" in model.reached) == (model.budget.joins > 0)
    assert ("first" in model.reached) == pairs
    assert ("decided without a lock" in model.reached) == (combiners != "")
    assert ("applied late" in model.reached) == (combiners != "")
    assert ("freed" in model.reached) == (combiners != "")
    assert ("goes by the log" in model.reached) == (keepers != "" and model.transactions > 1)
    assert ("decided before what was decided earlier was there" in model.reached) == (
        combiners != "" and (len(combiners) > 1 or model.transactions > 1)
    )
    assert ("removed while the record names it" in model.reached) == (model.budget.removals > 0)
    assert ("broken" in model.reached) == (model.budget.breaks > 0)
    assert ("a JVM writer had it" in model.reached) == (model.budget.guests > 0)
    assert ("twice" in model.reached) == (model.budget.twice > 0)
    assert ("renewed while applying" in model.reached) == (model.budget.renewals > 0)


@pytest.mark.parametrize("twin", PUBLISHING)
def test_wrong_publish_is_caught(twin: str) -> None:
    promise, world, rules = PUBLISHING[twin]
    model = replace(world, rules=rules, watch=frozenset({promise}), reached=set())
    found = explore(model.initial(), model.steps)
    assert found.story, f"{twin}: not caught"
    print(found)


@pytest.mark.parametrize(
    "model",
    [
        Clocks((0.0, 0.0)),
        Clocks((0.0, ALLOWANCE_S)),
        Clocks((ALLOWANCE_S, 0.0)),
        pytest.param(Clocks((0.0, ALLOWANCE_S), lost=1), marks=pytest.mark.soak),
        pytest.param(Clocks((0.0, ALLOWANCE_S), joins=1), marks=pytest.mark.soak),
    ],
    ids=["equal clocks", "the second ahead", "the first ahead", "a lost answer", "a waiter joins the line"],
)
def test_at_most_one_client_believes_within_the_clock_allowance(model: Clocks) -> None:
    found = explore(model.initial(), model.steps)
    assert not found.story, str(found)


def test_two_clients_can_believe_at_once_beyond_the_clock_allowance() -> None:
    """So the allowance is not larger than it has to be, and the search does look."""
    model = Clocks((0.0, ALLOWANCE_S + TICK_S))
    found = explore(model.initial(), model.steps)
    assert found.story


@pytest.mark.parametrize("twin", CLOCKS)
def test_wrong_deadline_is_caught(twin: str) -> None:
    promise, world, rule = CLOCKS[twin]
    model = replace(world, rule=rule, reached=set())
    found = explore(model.initial(), model.steps)
    assert found.why.startswith(promise), f"{twin}: {found}"
    print(found)
