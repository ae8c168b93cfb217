"""What may be archived, against what every reader takes for committed then."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lockprovider.table.format.layout import Action, Instant, InstantState, format_ms
from lockprovider.table.timeline.retention import ArchivalFacts, KeepActive, archival_plan
from lockprovider.table.timeline.timeline import Timeline

ALL = 1000
KEEP = KeepActive(2, 3)


def at(number: int) -> str:
    return format_ms(1_000_000 * number)


def commit(number: int, action: str = "commit") -> list[str]:
    middle = f"{at(number)}.inflight" if action == "commit" else f"{at(number)}.{action}.inflight"
    return [f"{at(number)}.{action}.requested", middle, f"{at(number)}_{at(number + 1)}.{action}"]


COMMITS = [name for number in range(10, 100, 10) for name in commit(number)]


def archived(names: list[str], facts: ArchivalFacts | None = None, keep: KeepActive = KEEP) -> list[str]:
    """The begin times of what is archived."""
    facts = facts or ArchivalFacts(Timeline())
    now = Timeline.of(names)
    found = archival_plan(
        ArchivalFacts(now, facts.paths, facts.replaced, facts.victims, facts.earliest), keep, at_most=ALL
    )
    return [one.done.begin for one in found.actions]


def begins(*numbers: int) -> list[str]:
    return [at(number) for number in numbers]


def test_archival_starts_above_the_maximum_and_keeps_the_minimum() -> None:
    assert archived(COMMITS[:9]) == []
    assert archived(COMMITS[:12]) == begins(10, 20)
    assert archived(COMMITS) == begins(10, 20, 30, 40, 50, 60, 70)
    assert archived([]) == []


def test_instants_of_the_retention_and_one_more_stay() -> None:
    assert archived(COMMITS, ArchivalFacts(Timeline(), earliest=at(50))) == begins(10, 20, 30)
    assert archived(COMMITS, ArchivalFacts(Timeline(), earliest=at(90))) == begins(10, 20, 30, 40, 50, 60, 70)


def test_instants_after_the_last_metadata_compaction_stay() -> None:
    for listed, taken in (("", []), (at(30), begins(10, 20)), (at(95), begins(10, 20, 30, 40, 50, 60, 70))):
        found = archival_plan(ArchivalFacts(Timeline.of(COMMITS), listed=listed), KEEP, at_most=ALL)
        assert [one.done.begin for one in found.actions] == taken
        assert ("compacted" in found.held) == (len(taken) < 7)


def test_all_states_go_except_late_or_unfinished_cleans_and_rollbacks() -> None:
    more = [*commit(15, "clean"), *commit(66, "rollback"), *commit(71, "clean"), f"{at(17)}.clean.requested"]
    found = archival_plan(ArchivalFacts(Timeline.of([*COMMITS, *more])), KEEP, at_most=ALL)
    assert [one.done.begin for one in found.actions] == begins(10, 15, 20, 30, 40, 50, 60, 66, 70)
    assert all(len(one.pending) == 2 for one in found.actions)


BARRIERS: dict[str, tuple[list[str], ArchivalFacts, list[int], str]] = {
    "savepoint": ([f"{at(40)}_{at(45)}.savepoint"], ArchivalFacts(Timeline()), [10, 20, 30], "has a savepoint"),
    "savepoint being made": (
        [f"{at(40)}.savepoint.inflight"],
        ArchivalFacts(Timeline()),
        [10, 20, 30],
        "has a savepoint",
    ),
    "pending": ([f"{at(45)}.commit.requested"], ArchivalFacts(Timeline()), [10, 20, 30], "is pending"),
    "pending first": ([f"{at(5)}.commit.requested"], ArchivalFacts(Timeline()), [], "is pending"),
    "clustering": ([f"{at(45)}.clustering.requested"], ArchivalFacts(Timeline()), [10, 20, 30], "is pending"),
    "compaction": ([f"{at(45)}.compaction.inflight"], ArchivalFacts(Timeline()), [10, 20, 30], "is pending"),
    "log compaction": ([f"{at(45)}.logcompaction.requested"], ArchivalFacts(Timeline()), [10, 20, 30], "is pending"),
    "rollback": ([], ArchivalFacts(Timeline(), victims=frozenset({at(45)})), [10, 20, 30], "is not finished"),
    "restore": ([f"{at(95)}.restore.requested"], ArchivalFacts(Timeline()), [], "the restore"),
    "orphan": (
        [],
        ArchivalFacts(Timeline(), frozenset({f"p/f_0-0-0_{at(45)}.parquet"})),
        [10, 20, 30],
        "of no instant",
    ),
    "orphan behind a savepoint": (
        [f"{at(30)}_{at(45)}.savepoint", f"{at(40)}_{at(45)}.savepoint"],
        ArchivalFacts(Timeline(), frozenset({f"p/f_0-0-0_{at(45)}.parquet"})),
        [10],
        "of no instant",
    ),
}


@pytest.mark.parametrize("kind", BARRIERS)
def test_archival_reports_where_it_stops_and_why(kind: str) -> None:
    more, facts, expected, why = BARRIERS[kind]
    assert archived([*COMMITS, *more], facts) == begins(*expected)
    now = Timeline.of([*COMMITS, *more])
    found = archival_plan(ArchivalFacts(now, facts.paths, facts.replaced, facts.victims), KEEP, at_most=ALL)
    assert why in found.held


def test_replacecommit_stays_while_a_replaced_file_exists() -> None:
    names = [*COMMITS, *commit(45, "replacecommit")]
    replaced = {at(45): frozenset({("p", "f")})}
    for paths, expected in (({f"p/f_0-0-0_{at(20)}.parquet"}, 4), ({f"q/f_0-0-0_{at(20)}.parquet"}, 8)):
        assert len(archived(names, ArchivalFacts(Timeline(), frozenset(paths), replaced))) == expected


def test_instants_of_one_begin_time_stay_or_go_together() -> None:
    twin = f"{at(80)}_{at(82)}.commit"
    assert archived([*COMMITS, twin], keep=KeepActive(1, 2)) == begins(10, 20, 30, 40, 50, 60, 70, 80)
    assert archived([*COMMITS, twin], keep=KeepActive(2, 3)) == begins(10, 20, 30, 40, 50, 60, 70)


KINDS = st.sampled_from([Action.COMMIT, Action.REPLACECOMMIT, Action.CLEAN, Action.ROLLBACK, Action.RESTORE])
INSTANTS = st.lists(st.tuples(st.integers(0, 40), KINDS, st.booleans()), max_size=30, unique_by=lambda one: one[0])


@given(INSTANTS, st.sets(st.integers(0, 40), max_size=3), st.sets(st.integers(0, 40), max_size=4), st.integers(1, 4))
def test_no_file_of_an_incomplete_write_becomes_visible(
    made: list[tuple[int, Action, bool]], saved: set[int], orphans: set[int], least: int
) -> None:
    """By the rule of all readers: what began before the first write that stays counts as committed."""
    instants = [
        Instant(at(n), kind, InstantState.COMPLETED, at(n)) if done else Instant(at(n), kind, InstantState.INFLIGHT)
        for n, kind, done in made
    ]
    writes = {int(n) for n, kind, done in made if done and kind in (Action.COMMIT, Action.REPLACECOMMIT)}
    saves = [Instant(at(n), Action.SAVEPOINT, InstantState.COMPLETED, at(n)) for n in saved & writes]
    now = Timeline.of(i.file_name for i in [*instants, *saves])
    lost = orphans - {n for n, kind, _ in made if kind in (Action.COMMIT, Action.REPLACECOMMIT)}
    hidden = [at(n) for n in lost if now.first_active and at(n) >= now.first_active]
    begun = [i.begin for i in now.instants if i.changes_rows and not i.is_completed]
    hidden += [begin for begin in begun if begin >= now.first_active]  # others began late, at a time that was archived
    paths = frozenset(f"p/f_0-0-0_{at(n)}.parquet" for n in orphans)
    found = archival_plan(ArchivalFacts(now, paths), KeepActive(least, least + 1), at_most=ALL)
    gone = {i.file_name for one in found.actions for i in (*one.completed, *one.pending)}
    after = Timeline(tuple(i for i in now.instants if i.file_name not in gone))
    assert all(begin >= after.first_active for begin in hidden)
    assert len(after.writes) >= min(least, len(now.writes))
    assert {i.begin for i in after.instants if i.action is Action.SAVEPOINT} <= {i.begin for i in after.writes}
    if found.actions:
        assert after.first_active or saved
        assert not now.pending(Action.RESTORE)
