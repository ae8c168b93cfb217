"""What readers take of a table whose commits appear in any order; and wrong twins that must break a promise."""

from __future__ import annotations

from dataclasses import replace

import pytest

from lockprovider.table.format.layout import after
from lockprovider.table.timeline.timeline import Decisions, Timeline, visible_part
from model.appearance import Appearance, Rules
from model.search import explore

OURS, SHORT = Appearance(), Appearance(short=True)
WORLDS = {
    "three writers of ours": OURS,
    "a short log": SHORT,
    "a JVM writer that takes the lock": Appearance("abj"),
    "a JVM writer that takes no lock": Appearance("abk"),
}


def _all_that_is_listed(listed: Timeline, before: Decisions, now: Decisions | None = None) -> Timeline:
    del before, now
    return listed


def _all_but_what_is_known_to_be_unapplied(listed: Timeline, before: Decisions, now: Decisions | None) -> Timeline:
    """What was decided after the record was read is taken."""
    del now
    names = [instant.file_name in listed.names for instant in before.unapplied]
    at = names.index(False) if False in names else len(names)
    return listed.without(before.unapplied[at:])


def _nothing_that_is_not_in_the_log(listed: Timeline, before: Decisions, now: Decisions | None) -> Timeline | None:
    found = visible_part(listed, before, now)
    return listed.completed_before(after(before.last)) if found is None and before.last else found


def _without_a_log_all(listed: Timeline, before: Decisions, now: Decisions | None) -> Timeline | None:
    return visible_part(listed, before, now) if before.log else listed


def _forgets_what_left_the_log(listed: Timeline, before: Decisions, now: Decisions | None) -> Timeline | None:
    """What the log has got since is what it has now."""
    if now is not None and now.log == before.log and now.since(before) is None:
        now = replace(now, next=before.next + len(now.entries))
    return visible_part(listed, before, now)


TWINS = {
    "any order without the rule": ("prefix", OURS, Rules(take=_all_that_is_listed)),
    "it lists before it reads the record": ("prefix", OURS, Rules(lists_first=True)),
    "it takes what was decided later": ("prefix", OURS, Rules(take=_all_but_what_is_known_to_be_unapplied)),
    "its checkpoint is beyond a missing one": ("miss", OURS, Rules(checkpoint=lambda found, listed: listed)),
    "no second look": ("seen", WORLDS["a JVM writer that takes no lock"], Rules(take=_nothing_that_is_not_in_the_log)),
    "a log that begins meanwhile": ("prefix", OURS, Rules(take=_without_a_log_all)),
    "what left the front of the log": ("prefix", SHORT, Rules(take=_forgets_what_left_the_log)),
}


@pytest.mark.parametrize("world", WORLDS)
def test_readers_take_commits_in_order_and_miss_none(world: str) -> None:
    model = replace(WORLDS[world], reached=set())
    found = explore(model.initial(), model.steps, ended=model.ended)
    print(found)
    assert not found.story, str(found)
    assert found.states > 300
    assert {"a second look", "left out", "begins again"} <= model.reached
    assert ("dropped" in model.reached) == ("j" in model.names)


@pytest.mark.parametrize("twin", TWINS)
def test_mutant_is_caught(twin: str) -> None:
    promise, world, rules = TWINS[twin]
    model = replace(world, rules=rules, watch=frozenset({promise}), reached=set())
    found = explore(model.initial(), model.steps)
    print(found)
    assert found.why.startswith(promise), f"{twin}: {found}"
