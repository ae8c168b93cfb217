"""Every order of looks, candidacies, renewals, resignations, pauses, crashes, lost and late requests around one election.

The clients make the product's own decisions (`decide.py`). Time goes on in half seconds, for all alike; a request may
arrive, and be answered, any time after it was sent, or never. The store cuts its stamps to whole seconds. Nobody has to
do anything in time: a client that does nothing for long is one that is frozen.

Promises, at every step:
    one     at most one client believes that it leads
    rising  the epoch of each new term is above all before it, so none is given twice
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import pytest

from fsspec_cas import Version
from lockprovider.recipes.election import decide
from lockprovider.recipes.election.decide import (
    CandidateId,
    ElectionRecord,
    Leading,
    Observed,
    candidate_record,
    may_stand,
    observe,
    term_after,
)
from model.search import BrokenPromise, explore

TICK_S = 0.5
ABSENT = -1
VALIDITY_MS = 1000


@dataclass(frozen=True)
class Request:
    """A write on its way, conditional on a version or absence; `landed` as which, once it has arrived (0: refused)."""

    what: str
    record: ElectionRecord | None
    base: int
    sent_s: float
    landed: int | None = None


@dataclass(frozen=True)
class Client:
    me: CandidateId
    lives: int = 0
    leading: Leading | None = None
    observed: Observed | None = None
    highest: int = 0
    request: Request | None = None
    doubt: Request | None = None  # its answer says nothing: a look will tell
    writes: int = 0
    skew_s: float = 0.0


@dataclass(frozen=True)
class World:
    clients: tuple[Client, ...]
    ticks: int
    tick: int = 0
    record: ElectionRecord | None = None
    version: int = 0
    written: int = 0  # the tick
    late: frozenset[Request] = frozenset()
    highest: int = 0  # epoch that ever was
    stands: int = 3
    lost: int = 0
    delays: int = 0
    renewals: int = 0
    resigns: int = 0
    crashes: int = 0

    @property
    def now_s(self) -> float:
        return self.tick * TICK_S


@dataclass(frozen=True)
class Rules:
    """What a twin does otherwise."""

    by_answer: bool = False  # the deadline counts from the answer
    by_wall: bool = False  # the age is what two wall clocks make of it
    deletes: bool = False  # a resignation removes the object
    unconditional: bool = False  # whoever stands replaces what is there
    hopeful: bool = False  # no answer is a yes
    any_of_mine: bool = False  # an earlier write of the term prolongs it as the newest would
    own_validity: bool = False  # the onlooker's validity counts, not the leader's


def version_of(world: World) -> Version:
    return Version("m", str(world.version))


def age_s(world: World, client: Client, rules: Rules) -> float:
    """As the store says it: by two stamps, both cut."""
    if rules.by_wall:
        wrote = next(one.skew_s for one in world.clients if world.record and one.me.name == world.record.name)
        return world.now_s + client.skew_s - (world.written * TICK_S + wrote) + decide.STAMPS_S
    return float(int(world.now_s) - int(world.written * TICK_S))


def looked(world: World, client: Client, rules: Rules) -> Client:
    if world.record is None:
        return replace(client, observed=decide.observe_missing(client.observed))
    record = world.record
    if rules.own_validity:
        record = replace(record, validity_ms=client.me.validity_ms)
    age = age_s(world, client, rules) if client.observed is None or rules.by_wall else 0.0
    now = observe(client.observed, record, version_of(world), world.now_s, age)
    return replace(client, observed=now, highest=max(client.highest, record.epoch))


def applied(world: World, request: Request, doing: str) -> World:
    """The request arrives: what is there from now on, and whether it may be."""
    if request.base != (ABSENT if world.record is None else world.version):
        return world
    record = request.record
    if record is not None and request.what == "stand":
        if record.epoch <= world.highest:
            raise BrokenPromise(doing, f"the epoch {record.epoch} is given to {record.owner}, after {world.highest}")
        world = replace(world, highest=record.epoch)
    return replace(world, record=record, version=world.version + 1, written=world.tick)


def believers(world: World) -> list[str]:
    return [one.me.owner for one in world.clients if one.leading is not None and world.now_s < one.leading.deadline_s]


def steps(rules: Rules = Rules()) -> Callable[[World], Iterator[tuple[str, World]]]:  # noqa: PLR0915 - all that can happen
    def step(world: World) -> Iterator[tuple[str, World]]:
        for label, after in all_of(world):
            if len(who := believers(after)) > 1:
                raise BrokenPromise(label, f"{who} believe at {after.now_s:g} s that they lead")
            yield label, after

    def all_of(world: World) -> Iterator[tuple[str, World]]:
        if world.tick < world.ticks:
            yield "half a second passes", replace(world, tick=world.tick + 1)
        for late in world.late:
            left = replace(world, late=world.late - {late})
            yield f"a late {late.what} arrives", applied(left, late, f"a late {late.what} arrives")
        for n, client in enumerate(world.clients):
            yield from one(world, n, client)

    def one(world: World, n: int, client: Client) -> Iterator[tuple[str, World]]:
        def then(client: Client, on: World | None = None, **more: Any) -> World:
            on = on or world
            return replace(on, clients=(*on.clients[:n], client, *on.clients[n + 1 :]), **more)

        name = client.me.name
        if world.crashes and client.lives and (client.leading or client.request):
            born = Client(
                replace(client.me, owner=f"{name}{client.lives}"), client.lives - 1, skew_s=client.skew_s, writes=90
            )
            late = world.late | ({client.request} if client.request and client.request.landed is None else set())
            yield f"{name} dies and is started again", then(born, crashes=world.crashes - 1, late=late)
        if client.request is not None:
            yield from on_its_way(world, client, client.request, then)
        elif client.doubt is not None:
            yield f"{name} looks what became of it", then(told_by_a_look(looked(world, client, rules), client.doubt))
        elif client.leading is not None:
            if world.now_s >= client.leading.deadline_s:
                yield f"{name} knows that its term is over", then(replace(client, leading=None))
                return
            if world.renewals:
                record = replace(client.leading.record, write=f"{client.me.owner}.{client.writes}")
                sends = sending(world, client, "renew", record, int(client.leading.version.token))
                yield f"{name} renews", then(sends, renewals=world.renewals - 1)
            if world.resigns:
                written = client.leading.record.resign(f"{client.me.owner}.{client.writes}", "")
                sends = sending(
                    world, client, "resign", None if rules.deletes else written, int(client.leading.version.token)
                )
                yield f"{name} resigns", then(replace(sends, leading=None), resigns=world.resigns - 1)
        else:
            seen = looked(world, client, rules)
            if seen != client:  # what it knows already, it need not look at
                yield f"{name} looks", then(seen)
            if (
                world.stands
                and may_stand(client.me, client.observed, world.now_s)
                and (client.observed or world.record is None)
            ):
                write = f"{client.me.owner}.{client.writes}"
                record = candidate_record(client.me, client.observed, client.highest, write=write, now_ms=1)
                there = client.observed
                base = ABSENT if there is None or there.is_removed else int(there.version.token)
                if rules.unconditional:
                    base = ABSENT if world.record is None else world.version
                yield (
                    f"{name} stands, in term {record.epoch}",
                    then(sending(world, client, "stand", record, base), stands=world.stands - 1),
                )

    def sending(world: World, client: Client, what: str, record: ElectionRecord | None, base: int) -> Client:
        request = Request(what, record, base, world.now_s)
        return replace(client, request=request, writes=client.writes + 1)

    def on_its_way(
        world: World, client: Client, request: Request, then: Callable[..., World]
    ) -> Iterator[tuple[str, World]]:
        name, what = client.me.name, request.what
        if request.landed is None:
            label = f"{name}'s {what} arrives"
            on = applied(world, request, label)
            yield label, then(replace(client, request=replace(request, landed=0 if on is world else on.version)), on)
            if world.delays:
                doubts = not_told(client, request, world.now_s)
                yield f"{name} hears nothing", then(doubts, late=world.late | {request}, delays=world.delays - 1)
        elif request.landed:
            yield f"{name} is told that its {what} was done", then(won(client, request, world.now_s))
            if world.lost:
                yield f"{name} is not told", then(not_told(client, request, world.now_s), lost=world.lost - 1)
        else:
            yield f"{name}'s {what} is refused", then(replace(client, request=None, doubt=request))

    def won(client: Client, request: Request, now_s: float) -> Client:
        if request.what == "resign" or request.record is None:
            return replace(client, request=None)
        sent_s = now_s if rules.by_answer else request.sent_s
        at = Version("m", str(request.landed or request.base + 1))
        return replace(client, request=None, leading=term_after(client.me, request.record, at, sent_s))

    def not_told(client: Client, request: Request, now_s: float) -> Client:
        if rules.hopeful:
            return won(client, request, now_s)
        return replace(client, request=None, doubt=request)

    def told_by_a_look(client: Client, request: Request) -> Client:
        done = replace(client, doubt=None)
        there = client.observed
        if request.what == "resign" or request.record is None:
            return done
        if request.what == "stand":
            return replace(done, leading=decide.elected(client.me, request.record, request.sent_s, there))
        if client.leading is None:
            return done
        now = decide.renewed(client.me, client.leading, request.record, request.sent_s, there)
        if rules.any_of_mine and now is not None:
            now = term_after(client.me, now.record, now.version, request.sent_s)
        return replace(done, leading=now)

    return step


def candidate(
    name: str, *, validity_ms: int = VALIDITY_MS, owner: str = "", skew_s: float = 0.0, lives: int = 0
) -> Client:
    return Client(CandidateId(owner or f"{name}'", name, validity_ms, 0.0), lives, skew_s=skew_s)


WORLDS: dict[str, World] = {
    "two, renewals": World((candidate("v"), candidate("w")), 3, stands=2, lost=1, delays=1, renewals=1),
    "two, resignations": World((candidate("v"), candidate("w")), 0, lost=1, delays=1, resigns=2),
    "two that die": World((candidate("v", lives=1), candidate("w", lives=1)), 3, stands=2, delays=1, crashes=1),
    "three": World((candidate("v"), candidate("w"), candidate("u")), 3, stands=2),
    "of unlike validity": World(
        (candidate("v", validity_ms=1500), candidate("w", validity_ms=500)), 3, stands=2, lost=1, renewals=1
    ),
    "wrong clocks": World((candidate("v", skew_s=-3600.0), candidate("w", skew_s=3600.0)), 4, stands=2, renewals=1),
    "one after the other": World((candidate("v"), candidate("w", lives=1)), 5, stands=2, renewals=1),
}


@pytest.mark.parametrize("name", WORLDS)
def test_one_leads_and_epochs_rise(name: str) -> None:
    found = explore(WORLDS[name], steps())
    print(found)
    assert not found.story, str(found)
    assert found.states > 1000


TWINS: dict[str, tuple[str, Rules]] = {
    "the deadline counts from the answer": ("two, renewals", Rules(by_answer=True)),
    "the age by wall clocks": ("wrong clocks", Rules(by_wall=True)),
    "a resignation deletes": ("two, resignations", Rules(deletes=True)),
    "whoever stands replaces what is there": ("two, renewals", Rules(unconditional=True)),
    "no answer is a yes": ("two, renewals", Rules(hopeful=True)),
    "an earlier write prolongs": ("two, renewals", Rules(any_of_mine=True)),
    "the onlooker's own validity": ("of unlike validity", Rules(own_validity=True)),
}


@pytest.mark.parametrize("name", TWINS)
def test_mutant_is_caught(name: str) -> None:
    where, rules = TWINS[name]
    found = explore(WORLDS[where], steps(rules))
    print(found)
    assert found.story


def test_stamps_that_are_cut_need_a_second_more(monkeypatch) -> None:
    monkeypatch.setattr(decide, "STAMPS_S", 0.0)
    found = explore(WORLDS["one after the other"], steps())
    print(found)
    assert found.story


def test_forked_child_that_stands_as_its_parent_is_caught() -> None:
    """Its parent's write would be an older one of its own, and nobody's."""
    forked = candidate("v"), candidate("w", owner="v'")
    found = explore(World(forked, 6), steps())
    print(found)
    assert found.story
