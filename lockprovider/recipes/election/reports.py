"""What those are told who ask for the leader."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from lockprovider.recipes.election.decide import Observed
from lockprovider.recipes.values import json_copy


@dataclass(frozen=True, slots=True)
class Leader:
    """Who leads: the candidate's name, what it tells of itself, its term. `since_ms` is by its own wall clock.

    >>> election = lockprovider.election.open("memory://docs/scheduler.json", name="a", value={"port": 80})
    >>> with election.lead() as term:
    ...     leader = election.leader()
    >>> leader.name, leader.value, leader.epoch == term.epoch
    ('a', {'port': 80}, True)
    """

    name: str
    value: Any = field(hash=False)
    epoch: int
    since_ms: int


@dataclass(frozen=True, slots=True)
class Elected:
    """This one leads, from now on or already; or tells something else of itself.

    >>> election = lockprovider.election.open("memory://docs/scheduler.json", name="a")
    >>> with election.lead():
    ...     change = next(election.watch())
    >>> type(change).__name__, change.leader.name
    ('Elected', 'a')
    """

    leader: Leader


@dataclass(frozen=True, slots=True)
class Resigned:
    """This one has led, and nobody does.

    >>> election = lockprovider.election.open("memory://docs/scheduler.json", name="a", poll=0.01)
    >>> term, changes = election.lead(), election.watch()
    >>> first = next(changes)
    >>> term.resign()
    >>> type(next(changes)).__name__
    'Resigned'
    """

    leader: Leader


@dataclass(frozen=True, slots=True)
class Lapsed:
    """This one has led, and has not renewed its term in time; or its object is gone.

    >>> election = lockprovider.election.open("memory://docs/scheduler.json", name="a", poll=0.01)
    >>> term, changes = election.lead(), election.watch()
    >>> first = next(changes)
    >>> Store.from_url("memory://docs").delete("scheduler.json")
    >>> type(next(changes)).__name__
    'Lapsed'
    """

    leader: Leader


LeaderChange = Elected | Resigned | Lapsed


def leader_of(observed: Observed | None) -> Leader | None:
    """As the record names it, whether it still leads or not."""
    if observed is None:
        return None
    there = observed.record
    return Leader(there.name, json_copy(there.value, "value"), there.epoch, there.since_ms)


def leads(observed: Observed | None, now_s: float) -> Leader | None:
    """Who leads as far as an onlooker can know."""
    if observed is None or observed.gone or observed.record.resigned or now_s >= observed.until_s:
        return None
    return leader_of(observed)


def change_since(before: Leader | None, observed: Observed | None, now_s: float) -> LeaderChange | None:
    """What happened to the leader that was seen; what came and went between two looks is not seen."""
    now = leads(observed, now_s)
    if now is not None:
        return None if now == before else Elected(now)
    if before is None:
        return None
    resigned = observed is not None and observed.record.resigned and not observed.gone
    return Resigned(before) if resigned else Lapsed(before)
