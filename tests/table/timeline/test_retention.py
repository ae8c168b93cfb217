"""What a clean may take, against what readers of the past then see."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fsspec_cas import Entry
from lockprovider.table.format.layout import Action, Instant, InstantState, format_ms, to_ms
from lockprovider.table.timeline.retention import (
    KeepCommits,
    KeepHours,
    KeepVersions,
    Policy,
    Removable,
    earliest_retained,
    removable,
)
from lockprovider.table.timeline.timeline import Timeline
from lockprovider.table.timeline.versions import AsOf, rewound
from lockprovider.table.timeline.view import FileSlice, snapshot_of

HOUR_MS = 3_600_000


def at(hours: float) -> str:
    return format_ms(round(hours * HOUR_MS))


def base(group: str, begin: str, partition: str = "p") -> str:
    return f"{partition}/{group}_0-0-0_{begin}.parquet"


def entries(paths: set[str]) -> list[Entry]:
    return [Entry(path, 1, None) for path in sorted(paths)]


def taken(found: Removable) -> set[str]:
    return {f"{partition}/{name}" for partition, names in found.files.items() for name in names}


def clean(
    policy: Policy,
    names: list[str],
    paths: set[str],
    *,
    now: float = 100,
    replaced_by: dict[tuple[str, str], str] | None = None,
    protected: set[str] | None = None,
) -> set[str]:
    found = removable(
        policy,
        Timeline.of(names),
        iter(paths),
        now_ms=round(now * HOUR_MS),
        replaced_by=replaced_by or {},
        protected=frozenset(protected or ()),
    )
    return taken(found)


COMMITS = [f"{at(n)}_{at(n + 0.5)}.commit" for n in range(1, 6)]
SLICES = {base("f", at(n)) for n in range(1, 6)}


@pytest.mark.parametrize(
    ("policy", "gone"),
    [
        (KeepCommits(1), {1, 2, 3}),  # the one before the oldest retained stays: a reader may have just begun
        (KeepCommits(2), {1, 2}),
        (KeepCommits(4), set()),
        (KeepCommits(10), set()),
        (KeepHours(1.6), {1, 2}),
        (KeepHours(2.6), {1}),
        (KeepHours(0), {1, 2, 3}),
        (KeepHours(100), set()),
        (KeepHours(1e9), set()),  # before the year 1
        (KeepHours(1e308), set()),
        (KeepVersions(1), {1, 2, 3, 4}),
        (KeepVersions(3), {1, 2}),
        (KeepVersions(9), set()),
    ],
)
def test_each_policy_removes_slices_older_than_it_keeps(policy: Policy, gone: set[int]) -> None:
    assert clean(policy, COMMITS, SLICES, now=6) == {base("f", at(n)) for n in gone}


def test_only_slice_of_a_group_stays_however_old_it_is() -> None:
    assert clean(KeepVersions(1), COMMITS, {base("g", at(1)), base("f", at(5))}) == set()
    assert clean(KeepCommits(1), COMMITS, {base("g", at(1)), base("f", at(5))}) == set()


def test_files_of_a_savepoint_stay() -> None:
    assert clean(KeepVersions(1), COMMITS, SLICES, protected={base("f", at(2))}) == {
        base("f", at(n)) for n in (1, 3, 4)
    }


@pytest.mark.parametrize("policy", [KeepCommits(1), KeepHours(0), KeepVersions(1)])
def test_latest_slice_at_the_begin_of_a_pending_write_stays(policy: Policy) -> None:
    pending = [f"{at(2.7)}.commit.requested", f"{at(2.7)}.inflight"]
    assert clean(policy, COMMITS + pending, {*SLICES, base("g", at(2.7))}) == {base("f", at(1))}


@pytest.mark.parametrize("policy", [KeepCommits(1), KeepHours(0), KeepVersions(1)])
def test_nothing_goes_while_a_restore_is_pending(policy: Policy) -> None:
    """It may bring back slices that were replaced since, after its executor has died."""
    assert clean(policy, [*COMMITS, f"{at(9)}.restore.requested"], SLICES) == set()


def test_replaced_group_goes_once_its_end_is_older_than_what_is_kept() -> None:
    names = [*COMMITS, f"{at(2.6)}_{at(2.7)}.replacecommit"]
    replaced = {("p", "r"): at(2.7)}
    paths = {base("r", at(1)), base("r", at(2))}
    assert clean(KeepCommits(2), names, paths, replaced_by=replaced) == paths
    assert clean(KeepCommits(4), names, paths, replaced_by=replaced) == {base("r", at(1))}
    assert clean(KeepVersions(1), names, paths, replaced_by=replaced) == paths
    assert clean(KeepVersions(2), names, paths, replaced_by=replaced) == paths  # as in Hudi: it will get no newer one


def test_files_of_no_instant_go_unless_archival_may_have_taken_the_instant() -> None:
    orphan, archived = base("o", at(3.3)), base("a", at(0.5))
    assert clean(KeepCommits(10), COMMITS, {orphan, archived}) == {orphan}
    assert clean(KeepCommits(10), [f"{at(1)}.savepoint.inflight", *COMMITS], {base("x", at(1.5))}) == set()
    assert clean(KeepCommits(10), [], {orphan}) == set()


@pytest.mark.parametrize("policy", [KeepCommits(2), KeepHours(1.6), KeepVersions(3)])
def test_file_of_no_instant_does_not_stand_in_for_a_slice(policy: Policy) -> None:
    """Else the slice at 3 would go for it, and with that the table as it was until 4.5."""
    orphan = base("f", at(3.7))
    expected = clean(policy, COMMITS, SLICES, now=6) | {orphan}
    assert base("f", at(3)) not in expected
    assert clean(policy, COMMITS, {*SLICES, orphan}, now=6) == expected


@pytest.mark.parametrize("state", ["commit.requested", "inflight", "replacecommit.inflight", "deltacommit.inflight"])
def test_file_of_a_pending_write_is_no_version(state: str) -> None:
    for begin in (4.2, 5.7):
        names, paths = [*COMMITS, f"{at(begin)}.{state}"], {*SLICES, base("f", at(begin))}
        assert clean(KeepVersions(3), names, paths) == {base("f", at(n)) for n in (1, 2)}


@pytest.mark.parametrize(
    ("policy", "gone"), [(KeepCommits(2), {0.2, 0.3, 1, 2}), (KeepHours(100), {0.2}), (KeepVersions(6), {0.2})]
)
def test_archived_slices_count_as_those_on_the_timeline(policy: Policy, gone: set[float]) -> None:
    archived = {base("f", at(0.2)), base("f", at(0.3))}
    assert clean(policy, COMMITS, SLICES | archived, now=6) == {base("f", at(n)) for n in gone}


def test_pending_write_older_than_the_timeline_does_not_count_as_archived() -> None:
    archived = {base("f", at(0.2)), base("f", at(0.3))}
    pending = base("f", at(0.5))
    assert clean(KeepVersions(2), [*COMMITS, f"{at(0.5)}.inflight"], {*archived, pending}) == set()


def test_bookkeeping_and_foreign_files_stay() -> None:
    paths = {".hoodie/metadata/files/f_0-0-0_" + at(3.3) + ".parquet", "p/.hoodie_partition_metadata", "p/notes.txt"}
    assert clean(KeepCommits(1), COMMITS, paths) == set()


def test_commit_that_finished_late_counts_by_completion() -> None:
    """By begin times alone the slice at 2 would go, and with it the table as it was at 4.5."""
    late = f"{at(3)}_{at(5)}.commit"
    names = [f"{at(1)}_{at(1.1)}.commit", f"{at(2)}_{at(2.1)}.commit", late, f"{at(4)}_{at(4.5)}.commit"]
    paths = {base("f", at(1)), base("f", at(2)), base("f", at(3)), base("g", at(4))}
    assert clean(KeepCommits(2), names, paths) == {base("f", at(1))}


# --- random histories -----------------------------------------------------------------------------------------------


@st.composite
def histories(draw: st.DrawFn) -> tuple[list[Instant], set[str], dict[tuple[str, str], str]]:
    """Commits that overlap in time, of which no two that overlap touch the same group; some end groups."""
    free = dict.fromkeys("fgh", 0)  # when the group's last commit completed
    instants: list[Instant] = []
    paths: set[str] = set()
    replaced: dict[tuple[str, str], str] = {}
    for number in range(draw(st.integers(1, 9))):
        group = draw(st.sampled_from(sorted(free)))
        # Numbers make all times different, as the lock does.
        begin_ms = (free[group] // 100 + draw(st.integers(1, 4))) * 100 + number
        done_ms = (begin_ms // 100 + draw(st.integers(1, 5))) * 100 + 50 + number
        free[group] = done_ms
        known = any(f"/{group}_" in path for path in paths)
        if ("p", group) in replaced:
            continue
        ends = known and draw(st.integers(0, 4)) == 0
        action = Action.REPLACECOMMIT if ends else Action.COMMIT
        instants.append(Instant(format_ms(begin_ms), action, InstantState.COMPLETED, format_ms(done_ms)))
        if ends:
            replaced["p", group] = format_ms(done_ms)
        else:
            paths.add(base(group, format_ms(begin_ms)))
    return instants, paths, replaced


def seen(now: Timeline, paths: set[str], replaced: dict[tuple[str, str], str], moment: AsOf) -> tuple[FileSlice, ...]:
    then = rewound(now, moment.includes)
    done = {instant.completion for instant in then.writes}
    ended = {group for group, by in replaced.items() if by in done}
    return snapshot_of(then, entries(paths), ended).slices


@settings(max_examples=120)
@given(histories(), st.integers(1, 4))
def test_every_as_of_within_the_retained_commits_stays_what_it_was(
    history: tuple[list[Instant], set[str], dict[tuple[str, str], str]], commits: int
) -> None:
    instants, paths, replaced = history
    now = Timeline(tuple(instants))
    found = removable(KeepCommits(commits), now, paths, now_ms=0, replaced_by=replaced, protected=frozenset())
    left = paths - taken(found)
    for kept in now.writes[-commits:]:
        for moment in (AsOf(kept.completion or ""), AsOf(kept.begin, "begin")):
            if moment.by == "begin" and kept.begin < min(i.begin for i in now.writes[-commits:]):
                continue
            assert seen(now, left, replaced, moment) == seen(now, paths, replaced, moment)


@settings(max_examples=50)
@given(histories(), st.integers(1, 3))
def test_no_policy_changes_the_current_rows(
    history: tuple[list[Instant], set[str], dict[tuple[str, str], str]], number: int
) -> None:
    instants, paths, replaced = history
    now = Timeline(tuple(instants))
    for policy in (KeepCommits(number), KeepHours(0), KeepVersions(number)):
        found = removable(policy, now, paths, now_ms=HOUR_MS, replaced_by=replaced, protected=frozenset())
        moment = AsOf(now.writes[-1].completion or "")
        assert seen(now, paths - taken(found), replaced, moment) == seen(now, paths, replaced, moment)


@settings(max_examples=80)
@given(histories(), st.integers(1, 4), st.data())
def test_files_that_no_reader_sees_change_nothing_for_those_that_are_seen(
    history: tuple[list[Instant], set[str], dict[tuple[str, str], str]], number: int, data: st.DataObject
) -> None:
    instants, paths, replaced = history
    first_ms = to_ms(min(instant.begin for instant in instants))
    after_ms = st.integers(1, 40).map(lambda n: first_ms + n * 50 + 25)  # numbers that no begin or completion ends with
    begins = data.draw(st.dictionaries(after_ms.map(format_ms), st.booleans(), min_size=1, max_size=4))
    pending = [
        Instant(begin, Action.COMMIT, InstantState.INFLIGHT) for begin, is_pending in begins.items() if is_pending
    ]
    unseen = {base(data.draw(st.sampled_from("fgh")), begin) for begin in begins}
    now = Timeline.of(instant.file_name for instant in (*instants, *pending))
    for policy in (KeepCommits(number), KeepHours(0), KeepVersions(number)):
        with_them, without = (
            taken(removable(policy, now, there, now_ms=HOUR_MS, replaced_by=replaced, protected=frozenset()))
            for there in (paths | unseen, paths)
        )
        assert with_them - unseen == without


def test_check_of_random_histories_can_fail() -> None:
    """The wrong twin: a clean that also takes the slice before the oldest retained commit."""
    instants = [Instant(at(n), Action.COMMIT, InstantState.COMPLETED, at(n + 0.5)) for n in (1, 2)]
    now, paths = Timeline(tuple(instants)), {base("f", at(1)), base("g", at(2))}
    moment = AsOf(instants[-1].completion or "")
    assert seen(now, paths - {base("f", at(1))}, {}, moment) != seen(now, paths, {}, moment)
    assert replace(moment, by="begin").includes(instants[0])


def test_hours_are_counted_from_the_write_time_and_not_the_name() -> None:
    """K2: a writer whose clock was 25 h behind named a commit so, and a right cleaner removed what it superseded."""
    done = InstantState.COMPLETED
    writes = [Instant(f"2026010100000{n}000", Action.COMMIT, done, f"2026010100000{n}500") for n in (1, 2)]
    now, a_day_later = Timeline(tuple(writes)), to_ms("20260102010000000")
    assert earliest_retained(KeepHours(24), now, a_day_later) == writes[1]
    written = {writes[0].file_name: a_day_later - 1000}
    assert earliest_retained(KeepHours(24), now, a_day_later, written) == writes[0]
