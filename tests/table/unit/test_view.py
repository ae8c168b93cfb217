from __future__ import annotations

from fsspec_cas import Entry
from lockprovider.table.instant import format_ms
from lockprovider.table.timeline import Timeline
from lockprovider.table.view import snapshot

A, B, C, D = (format_ms(1_000 * number) for number in range(1, 5))


def files(*paths: str) -> list[Entry]:
    return [Entry(path, 1, None) for path in paths]


def test_the_latest_completed_slice_of_a_group_counts() -> None:
    timeline = Timeline.of([f"{A}_{B}.commit", f"{C}_{D}.commit"])
    seen = snapshot(timeline, files(f"p/f-0_0-0-0_{A}.parquet", f"p/f-0_0-0-0_{C}.parquet"))
    assert [s.begin for s in seen.slices] == [C]


def test_a_slice_whose_instant_is_pending_is_not_seen() -> None:
    timeline = Timeline.of([f"{A}_{B}.commit", f"{C}.commit.requested", f"{C}.inflight"])
    seen = snapshot(timeline, files(f"p/f-0_0-0-0_{A}.parquet", f"p/f-0_0-0-0_{C}.parquet", f"q/g-0_0-0-0_{C}.parquet"))
    assert [(s.partition, s.begin) for s in seen.slices] == [("p", A)]


def test_a_pending_first_instant_is_not_taken_for_an_archived_one() -> None:
    timeline = Timeline.of([f"{A}.commit.requested", f"{A}.inflight", f"{B}_{C}.commit"])
    assert snapshot(timeline, files(f"p/f-0_0-0-0_{A}.parquet")).slices == ()


def test_a_slice_older_than_the_timeline_is_an_archived_commits() -> None:
    timeline = Timeline.of([f"{B}_{C}.commit"])
    assert [s.begin for s in snapshot(timeline, files(f"p/f-0_0-0-0_{A}.parquet")).slices] == [A]


def test_retired_groups_and_bookkeeping_are_not_seen() -> None:
    timeline = Timeline.of([f"{A}_{B}.commit"])
    paths = files(
        f"p/f-0_0-0-0_{A}.parquet", f".hoodie/x/f-1_0-0-0_{A}.parquet", f"p/g-0_0-0-0_{A}.parquet", "p/readme"
    )
    seen = snapshot(timeline, paths, {"p": frozenset({"g-0"})})
    assert [s.file_id for s in seen.slices] == ["f-0"]


def test_a_view_can_be_narrowed_to_partitions() -> None:
    timeline = Timeline.of([f"{A}_{B}.commit"])
    seen = snapshot(timeline, files(f"p/f-0_0-0-0_{A}.parquet", f"q/r/g-0_0-0-0_{A}.parquet", f"h-0_0-0-0_{A}.parquet"))
    assert seen.partitions == ("", "p", "q/r")
    assert [s.file_id for s in seen.within(["q/r", "none"])] == ["g-0"]
    assert len(seen.within(None)) == 3
    found = seen.slice_of("p", "f-0")
    assert found is not None
    assert found.path == f"p/f-0_0-0-0_{A}.parquet"
    assert seen.slice_of("p", "g-0") is None
