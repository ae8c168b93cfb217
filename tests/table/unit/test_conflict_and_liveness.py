from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from lockprovider.table.conflict import completed_since, first_overlap
from lockprovider.table.instant import format_ms
from lockprovider.table.liveness import HeartbeatSettings, dead
from lockprovider.table.metadata import CommitMetadata, WriteStat
from lockprovider.table.timeline import Timeline

A, B, C, D = (format_ms(1_000 * number) for number in range(1, 5))


def wrote(*groups: tuple[str, str], retired: dict[str, tuple[str, ...]] | None = None) -> CommitMetadata:
    stats = {p: tuple(WriteStat(f, f"{p}/{f}", p) for q, f in groups if q == p) for p, _ in groups}
    return CommitMetadata(stats, "UPSERT", replaced=retired or {})


def test_what_completed_since_is_a_difference_of_sets_not_of_times() -> None:
    mine = Timeline.of([f"{B}_{C}.commit"])
    now = Timeline.of([f"{B}_{C}.commit", f"{A}_{D}.commit", f"{C}_{D}.clean"])
    assert [instant.begin for instant in completed_since(mine, now)] == [A]


def test_the_first_commit_that_touched_a_group_of_mine_is_named() -> None:
    now = Timeline.of([f"{A}_{B}.commit", f"{B}_{C}.commit", f"{C}_{D}.commit"])
    others = dict(zip(now.writes, [wrote(("p", "x")), wrote(("p", "f"), ("q", "g")), wrote(("p", "f"))], strict=True))
    overlap = first_overlap([("q", "g"), ("p", "f")], others)
    assert overlap is not None
    assert overlap.lost_to.begin == B
    assert overlap.file_groups == (("p", "f"), ("q", "g"))


def test_a_group_that_was_retired_conflicts_too() -> None:
    (instant,) = Timeline.of([f"{A}_{B}.replacecommit"]).writes
    assert first_overlap([("p", "f")], {instant: wrote(retired={"p": ("f",)})}) is not None


def test_the_same_file_id_in_another_partition_is_another_group() -> None:
    (instant,) = Timeline.of([f"{A}_{B}.commit"]).writes
    assert first_overlap([("q", "f")], {instant: wrote(("p", "f"))}) is None


GROUPS = st.frozensets(st.tuples(st.sampled_from("pq"), st.sampled_from("fgh")), min_size=1)


@given(GROUPS, st.lists(GROUPS, max_size=4))
def test_there_is_an_overlap_exactly_when_some_group_is_shared(
    mine: frozenset[tuple[str, str]], others: list[frozenset[tuple[str, str]]]
) -> None:
    now = Timeline.of(f"{format_ms(n * 10)}_{format_ms(n * 10 + 5)}.commit" for n in range(len(others)))
    found = first_overlap(mine, {i: wrote(*sorted(g)) for i, g in zip(now.writes, others, strict=True)})
    assert (found is not None) == any(mine & groups for groups in others)


def test_a_writer_is_dead_when_its_beat_is_older_than_the_tolerance_or_missing() -> None:
    settings = HeartbeatSettings(interval_s=60, misses=2)
    beats = {A: 1_000_000, B: 1_000_000 - 119_000, C: 1_000_000 - 121_000}
    assert dead([A, B, C, D], beats, 1_000_000, settings) == (C, D)
