from __future__ import annotations

from itertools import groupby, pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from table import jvm_written

from lockprovider.table.format.layout import Action, Instant, InstantState, after, format_ms, parse_instant
from lockprovider.table.timeline.conflict import archived_since, completed_since, undone_since
from lockprovider.table.timeline.timeline import Timeline

A, B, C, D = (format_ms(1_000 * number) for number in range(1, 5))


def test_names_that_are_no_instants_are_ignored() -> None:
    assert Timeline.of(["history/manifest_1", "x", f"{A}.commit.requested.crc"]).instants == ()


def test_writes_are_ordered_by_completion_not_by_begin() -> None:
    timeline = Timeline.of([f"{A}_{D}.commit", f"{B}_{C}.commit", f"{C}_{D}.clean", f"{D}.inflight"])
    assert [instant.begin for instant in timeline.writes] == [B, A]


def test_new_time_exceeds_all_of_the_timeline_whatever_the_clock_says() -> None:
    timeline = Timeline.of([f"{A}_{D}.commit", f"{B}.commit.requested"])
    assert timeline.next_time(0) == format_ms(4_001)
    assert timeline.next_time(9_000) == format_ms(9_000)


def test_instant_is_pending_only_while_it_is_inflight_and_not_completed() -> None:
    assert not Timeline.of([f"{A}.commit.requested"]).is_pending(A)
    assert Timeline.of([f"{A}.commit.requested", f"{A}.inflight"]).is_pending(A)
    assert not Timeline.of([f"{A}.commit.requested", f"{A}.inflight", f"{A}_{B}.commit"]).is_pending(A)


def test_pending_writes_and_rollbacks_are_those_without_a_completion() -> None:
    timeline = Timeline.of(
        [
            f"{A}.commit.requested",
            f"{A}.inflight",
            f"{A}_{B}.commit",
            f"{B}.commit.requested",
            f"{C}.rollback.requested",
            f"{C}.rollback.inflight",
            f"{D}.compaction.requested",
        ]
    )
    assert timeline.pending_writes == (B,)
    assert timeline.pending_rollbacks == (C,)
    assert timeline.unfinished == (B, D)


@pytest.mark.parametrize("name", ["merge_on_read/mor_v8_pending_compaction", "services/cow_v8_clustering_completed"])
def test_plan_of_the_jvm_is_unfinished_until_it_is_completed(name: str) -> None:
    now = Timeline.of(jvm_written.timeline(name))
    services = {i.begin for i in now.instants if i.action in (Action.COMPACTION, Action.CLUSTERING)}
    assert len(services) == 1
    planned = Timeline(tuple(i for i in now.instants if not (i.begin in services and i.is_completed)))
    assert {*planned.unfinished} == services == {*planned.pending(Action.COMPACTION, Action.CLUSTERING)}
    assert not any(map(planned.visible, services))
    # as it is once the JVM has archived what began before
    left = Timeline(tuple(i for i in planned.instants if i.begin >= min(services)))
    assert left.first_active > min(services)
    assert not any(map(left.visible, services))
    done = left.plus(Timeline.of([f"{min(services)}_{after(now.latest_time)}.commit"]).instants)
    assert done.unfinished == () == done.pending(Action.COMPACTION) == done.pending(Action.CLUSTERING)
    assert all(map(done.visible, services))


def test_rollback_of_the_same_time_does_not_make_a_write_completed() -> None:
    timeline = Timeline.of(
        [
            f"{A}.commit.requested",
            f"{A}.inflight",
            f"{A}.rollback.requested",
            f"{A}.rollback.inflight",
            f"{A}_{B}.rollback",
        ]
    )
    assert timeline.written_at(A) is None
    assert timeline.is_pending(A)
    assert timeline.pending_writes == (A,)
    assert timeline.pending_rollbacks == ()
    assert timeline.pending_files(A) == (f"{A}.commit.requested", f"{A}.inflight")


def test_write_of_the_same_time_does_not_make_a_rollback_completed() -> None:
    timeline = Timeline.of([f"{A}_{B}.commit", f"{A}.rollback.requested", f"{A}.rollback.inflight"])
    assert timeline.pending_rollbacks == (A,)
    assert not timeline.is_alone(timeline.instants[-1])


def test_inflight_file_comes_last_among_the_pending_ones() -> None:
    assert Timeline.of([f"{A}.inflight", f"{A}.commit.requested"]).pending_files(A) == (
        f"{A}.commit.requested",
        f"{A}.inflight",
    )


@given(st.lists(st.integers(0, 10**13), min_size=1), st.integers(0, 10**13))
def test_next_time_exceeds_all_times(times: list[int], now_ms: int) -> None:
    timeline = Timeline.of(f"{format_ms(ms)}.commit.requested" for ms in times)
    assert timeline.next_time(now_ms) > max(format_ms(ms) for ms in times)
    assert timeline.next_time(now_ms) >= format_ms(now_ms)
    assert parse_instant(f"{timeline.next_time(now_ms)}.inflight") is not None


def test_comparing_two_long_timelines_looks_at_each_instant_a_few_times(monkeypatch: pytest.MonkeyPatch) -> None:
    looks = 0
    plain = Instant.is_completed.fget

    def counted(self: Instant) -> bool:
        nonlocal looks
        looks += 1
        return plain(self)

    monkeypatch.setattr(Instant, "is_completed", property(counted))
    begins = [format_ms(1_700_000_000_000 + 100 * n) for n in range(1000)]
    names = [name for t in begins for name in (f"{t}.commit.requested", f"{t}.inflight", f"{t}_{t}.commit")]
    mine, now = Timeline.of(names[:-3]), Timeline.of(names)
    assert [instant.begin for instant in completed_since(mine, now)] == begins[-1:]
    assert undone_since(mine, now) == ()
    assert not archived_since(mine, now)
    assert now.next_time(0) > begins[-1]
    assert looks < 20 * len(names)


@given(st.lists(st.integers(0, 30), max_size=60), st.integers(1, 7))
def test_parts_between_the_cuts_are_the_whole_and_none_is_long(moments: list[int], size: int) -> None:
    """Whatever is there when the parts are listed: the cuts are of an earlier listing."""
    endings = (".commit.requested", ".inflight", f"_{D}.commit", f"_{D}.savepoint", ".savepoint.inflight")
    names = sorted({f"{format_ms(one)}{endings[number % len(endings)]}" for number, one in enumerate(moments)})
    cuts = Timeline.of(names[: len(names) // 2]).cuts(size)
    assert list(cuts) == sorted(set(cuts))
    bounds = ["", *cuts, "~"]
    parts = [[name for name in names if start < name < stop] for start, stop in pairwise(bounds)]
    assert [name for part in parts for name in part] == names
    longest = max((len(list(group)) for _, group in groupby(names, key=lambda name: name[:17])), default=0)
    known = set(names[: len(names) // 2])
    assert all(len([name for name in part if name in known]) <= size + longest for part in parts)


@given(
    st.lists(st.tuples(st.integers(0, 30), st.integers(0, 40), st.sampled_from(list(Action)), st.booleans())), st.data()
)
def test_added_instants_equal_listed_ones(made: list[tuple[int, int, Action, bool]], data: st.DataObject) -> None:
    instants = [
        parsed
        for begin, more, action, done in made
        if (parsed := parse_instant(_name(begin, begin + more, action, done=done))) is not None
    ]
    instants = list(dict.fromkeys(instants))
    cut = data.draw(st.integers(0, len(instants)))
    before = Timeline.of(i.file_name for i in instants[:cut])
    before.latest_time, before.writes  # noqa: B018 - known before
    added, listed = before.plus(instants[cut:]), Timeline.of(i.file_name for i in instants)
    for what in ("instants", "written", "latest_time", "latest_completed_time", "first_active", "names", "unfinished"):
        assert getattr(added, what) == getattr(listed, what), what
    for what in ("besides_commits", "perhaps_pending"):
        assert set(getattr(added, what)) == set(getattr(listed, what)), what
    actions = data.draw(st.sets(st.sampled_from(list(Action))))
    assert added.pending(*actions) == listed.pending(*actions) == pending_by_the_book(listed, actions)
    writes = {i.begin for i in listed.instants if i.changes_rows}
    assert set(listed.unfinished) == writes - {i.begin for i in listed.writes}
    assert [i.completion for i in added.writes] == [i.completion for i in listed.writes]


def pending_by_the_book(timeline: Timeline, actions: set[Action]) -> tuple[str, ...]:
    """Looking at each instant. Table services are completed by the name of a commit."""
    as_write = not actions.isdisjoint({Action.CLUSTERING, Action.COMPACTION, Action.LOGCOMPACTION})
    begun = {i.begin for i in timeline.instants if i.action in actions}
    done = [i for i in timeline.instants if i.is_completed]
    return tuple(sorted(begun - {i.begin for i in done if i.action in actions or (as_write and i.changes_rows)}))


def _name(begin: int, completion: int, action: Action, *, done: bool) -> str:
    first, last = f"2026112100000{begin:04d}", f"2026112100000{completion:04d}"
    return (
        Instant(first, action, InstantState.COMPLETED, last).file_name if done else f"{first}.{action.value}.requested"
    )
