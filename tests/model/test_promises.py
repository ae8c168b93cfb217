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
    "two clients hand over, a lost answer": (2, 1, Budget(lapses=1, lost=1, hands=2)),
    "two clients, a hand-over may be late, its answer lost": (2, 1, Budget(lapses=1, lost=1, late=1, hands=1)),
    "two clients, a hand-over, renewals, and one joins": (2, 1, Budget(lapses=1, renewals=1, joins=1, hands=1)),
    "two clients, a hand-over and a crash": (2, 1, Budget(lapses=1, lost=1, crashes=1, hands=1)),
    "three clients hand over": (3, 1, Budget(lapses=1, hands=2)),
    "two clients keep the log": (2, 2, Budget(lapses=1, hands=2), "AB"),
    "one of two keeps the log": (2, 2, Budget(lapses=1, hands=2), "A"),
    "two clients leave the lock free": (2, 3, Budget(lost=1), "AB", "AB"),
    "two clients leave the lock free, a late write": (2, 2, Budget(lost=1, late=1), "AB", "AB"),
    "two clients leave the lock free, lapses and a failed request": (2, 2, Budget(lapses=2, failed=1), "AB", "AB"),
    "two clients leave the lock free, a crash": (2, 2, Budget(lapses=1, lost=1, crashes=1), "AB", "AB"),
    "two clients leave the lock free, one joins": (2, 2, Budget(lost=1, joins=1), "AB", "AB"),
    "one of two holds the lock that the other leaves free": (2, 2, Budget(lapses=1, lost=1, hands=1), "AB", "A"),
    "one of two leaves the lock free, the other drops the log": (2, 2, Budget(lapses=1, lost=1), "A", "A"),
    "two clients, one removes what was handed over to it": (2, 1, Budget(renewals=2, joins=1, hands=1, removals=1)),
    "two clients, one removes and is taken over": (2, 1, Budget(lapses=1, removals=1)),
    "two clients, a break": (2, 1, Budget(lapses=1, lost=1, hands=1, breaks=1)),
    "two clients, a break and a JVM writer": (2, 1, Budget(hands=1, breaks=1, guests=1)),
    "two clients that keep the log, and a JVM writer": (2, 2, Budget(guests=1), "AB"),
    "two clients leave the lock free, and a JVM writer": (2, 2, Budget(guests=1), "AB", "AB"),
    "two clients leave the lock free, a write is sent twice": (2, 2, Budget(twice=1), "AB", "AB"),
    "two clients hand over, writes are sent twice": (2, 1, Budget(lapses=1, hands=2, twice=1)),
    "three clients leave the lock free": (3, 1, Budget(lapses=1, lost=1, late=1), "ABC", "ABC"),
}


@pytest.mark.parametrize("world", WORLDS)
def test_with_no_assumption_on_clocks_every_promise_of_publish_holds(world: str) -> None:
    *what, keepers, leavers = (*WORLDS[world], "", "")[:5]
    model = Publishing(*what, keepers=keepers, leavers=leavers)
    found = explore(model.initial(), model.steps)
    assert not found.story, str(found)
    assert found.states > 500
    assert ("joined" in model.reached) == (model.budget.joins > 0)
    assert ("applied late" in model.reached) == (model.budget.hands > 0 or leavers != "")
    assert ("published under a free lock" in model.reached) == (leavers != "")
    assert ("goes by the log" in model.reached) == (keepers != "" and model.transactions > 1)
    assert ("freed" in model.reached) == (leavers != "")
    assert ("published before what was decided earlier was there" in model.reached) == (
        leavers != "" and len(keepers) > 1
    )
    assert ("removed while the record names it" in model.reached) == (model.budget.removals > 0)
    assert ("broken" in model.reached) == (model.budget.breaks > 0)
    assert ("a JVM writer had it" in model.reached) == (model.budget.guests > 0)
    assert ("twice" in model.reached) == (model.budget.twice > 0)
    assert ("renewed while applying" in model.reached) == (model.budget.renewals > 0)


@pytest.mark.parametrize("twin", PUBLISHING)
def test_a_wrong_publish_is_caught(twin: str) -> None:
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
        Clocks((0.0, ALLOWANCE_S), lost=1),
        Clocks((0.0, ALLOWANCE_S), joins=1),
    ],
    ids=["equal clocks", "the second ahead", "the first ahead", "a lost answer", "a waiter joins the line"],
)
def test_while_clocks_differ_by_less_than_the_allowance_at_most_one_believes(model: Clocks) -> None:
    found = explore(model.initial(), model.steps)
    assert not found.story, str(found)


def test_beyond_the_allowance_two_can_believe_at_once() -> None:
    """So the allowance is not larger than it has to be, and the search does look."""
    model = Clocks((0.0, ALLOWANCE_S + TICK_S))
    found = explore(model.initial(), model.steps)
    assert found.story


@pytest.mark.parametrize("twin", CLOCKS)
def test_a_wrong_deadline_is_caught(twin: str) -> None:
    promise, world, rule = CLOCKS[twin]
    model = replace(world, rule=rule, reached=set())
    found = explore(model.initial(), model.steps)
    assert found.why.startswith(promise), f"{twin}: {found}"
    print(found)
