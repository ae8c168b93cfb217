from __future__ import annotations

from datetime import datetime, timezone

import pytest

from fsspec_cas import Entry, InvalidInput
from lockprovider.table.format.layout import Instant, format_ms
from lockprovider.table.format.metadata import CommitMetadata, WriteStat
from lockprovider.table.timeline.timeline import Timeline
from lockprovider.table.timeline.versions import AsOf, rewound
from lockprovider.table.timeline.view import cleaned_groups, snapshot_of

A, B, C, D = (format_ms(1_000 * number) for number in range(1, 5))


def files(*paths: str) -> list[Entry]:
    return [Entry(path, 1, None) for path in paths]


def test_latest_completed_slice_of_a_group_counts() -> None:
    timeline = Timeline.of([f"{A}_{B}.commit", f"{C}_{D}.commit"])
    seen = snapshot_of(timeline, files(f"p/f-0_0-0-0_{A}.parquet", f"p/f-0_0-0-0_{C}.parquet"))
    assert [s.begin for s in seen.slices] == [C]


def test_slice_whose_instant_is_pending_is_not_seen() -> None:
    timeline = Timeline.of([f"{A}_{B}.commit", f"{C}.commit.requested", f"{C}.inflight"])
    seen = snapshot_of(
        timeline, files(f"p/f-0_0-0-0_{A}.parquet", f"p/f-0_0-0-0_{C}.parquet", f"q/g-0_0-0-0_{C}.parquet")
    )
    assert [(s.partition, s.begin) for s in seen.slices] == [("p", A)]


def test_pending_first_instant_is_not_taken_for_an_archived_one() -> None:
    timeline = Timeline.of([f"{A}.commit.requested", f"{A}.inflight", f"{B}_{C}.commit"])
    assert snapshot_of(timeline, files(f"p/f-0_0-0-0_{A}.parquet")).slices == ()


@pytest.mark.parametrize("action", ["compaction", "logcompaction", "clustering", "replacecommit", "deltacommit"])
@pytest.mark.parametrize("state", ["requested", "inflight"])
def test_pending_writes_and_services_are_not_taken_for_archived(action: str, state: str) -> None:
    timeline = Timeline.of([f"{B}.{action}.{state}", f"{C}_{D}.commit"])
    paths = files(f"p/old-0_0-0-0_{A}.parquet", f"p/new-0_0-0-0_{B}.parquet")
    assert [s.file_id for s in snapshot_of(timeline, paths).slices] == ["old-0"]
    done = {"clustering": "replacecommit", "compaction": "commit", "logcompaction": "deltacommit"}.get(action, action)
    assert len(snapshot_of(timeline.plus(Timeline.of([f"{B}_{D}.{done}"]).instants), paths).slices) == 2


def test_slice_older_than_the_timeline_is_an_archived_commits() -> None:
    timeline = Timeline.of([f"{B}_{C}.commit"])
    assert [s.begin for s in snapshot_of(timeline, files(f"p/f-0_0-0-0_{A}.parquet")).slices] == [A]


def test_retired_groups_and_bookkeeping_are_not_seen() -> None:
    timeline = Timeline.of([f"{A}_{B}.commit"])
    paths = files(
        f"p/f-0_0-0-0_{A}.parquet", f".hoodie/x/f-1_0-0-0_{A}.parquet", f"p/g-0_0-0-0_{A}.parquet", "p/readme"
    )
    seen = snapshot_of(timeline, paths, {("p", "g-0")})
    assert [s.file_id for s in seen.slices] == ["f-0"]


def test_view_can_be_narrowed_to_partitions() -> None:
    timeline = Timeline.of([f"{A}_{B}.commit"])
    seen = snapshot_of(
        timeline, files(f"p/f-0_0-0-0_{A}.parquet", f"q/r/g-0_0-0-0_{A}.parquet", f"h-0_0-0-0_{A}.parquet")
    )
    assert seen.partitions == ("", "p", "q/r")
    assert [s.file_id for s in seen.within(["q/r", "none"])] == ["g-0"]
    assert len(seen.within(None)) == 3
    found = seen.slice_of("p", "f-0")
    assert found is not None
    assert found.path == f"p/f-0_0-0-0_{A}.parquet"
    assert seen.slice_of("p", "g-0") is None


def test_write_pending_at_a_past_time_is_invisible() -> None:
    now = Timeline.of(
        [f"{A}.commit.requested", f"{A}.inflight", f"{A}_{D}.commit", f"{B}_{C}.commit", f"{C}_{D}.clean"]
    )
    then = rewound(now, AsOf(C).includes)
    assert [i.begin for i in then.writes] == [B]
    assert [i.file_name for i in then.instants if i.action.value == "clean"] == [f"{C}_{D}.clean"]
    files_ = files(f"p/f-0_0-0-0_{A}.parquet", f"p/g-0_0-0-0_{B}.parquet")
    assert [s.begin for s in snapshot_of(then, files_).slices] == [B], "the file of A is not an archived one's"
    assert [s.begin for s in snapshot_of(rewound(now, AsOf(A, "begin").includes), files_).slices] == [A]


def test_time_is_17_digits_or_datetime_and_a_second_includes_its_end() -> None:
    assert AsOf.of("20240229120000").time == "20240229120000999"
    assert AsOf.of(datetime(2024, 2, 29, 12, 0, 0, 1999, tzinfo=timezone.utc)) == AsOf("20240229120000001")
    assert AsOf.of(AsOf("20240229120000", "begin")) == AsOf("20240229120000999", "begin")
    with pytest.raises(InvalidInput, match="'20240230120000000' is not a time"):
        AsOf.of("20240230120000000")


@pytest.mark.parametrize(
    ("text", "time"),
    [
        ("2026-11-22T08:30:00Z", "20261122083000000"),
        ("2026-11-22t08:30:00.5z", "20261122083000500"),
        ("2026-11-22 08:30:00.1239999+00:00", "20261122083000123"),
        ("2026-11-22T08:30:00.25-0130", "20261122100000250"),
        ("2026-11-22T08:30+01", "20261122073000000"),
        ("2026-11-22T08:30:00.5", None),
        ("20261122T083000Z", None),
        ("2026-W47-7T08:30:00Z", None),
        ("2026-11-22T08:30.5Z", None),
        ("2026-11-22T08:30:00+24:00", None),
    ],
)
def test_iso_text_means_the_same_in_every_python(text: str, time: str | None) -> None:
    if time is not None:
        assert AsOf.of(text).time == time
        return
    with pytest.raises(InvalidInput, match="is not a time"):
        AsOf.of(text)


def wrote(begin: str, *stats: tuple[str, str | None], replaced: tuple[str, ...] = ()) -> tuple[Instant, CommitMetadata]:
    """A later write of partition p: (file id, its slice before)."""
    found = tuple(WriteStat(f, f"p/{f}_0-0-0_{begin}.parquet", "p", prev_commit=before) for f, before in stats)
    (instant,) = Timeline.of([f"{begin}_{begin}.commit"]).instants
    return instant, CommitMetadata({"p": found}, "UPSERT", replaced={"p": replaced} if replaced else {})


def test_slice_that_a_later_write_replaced_must_exist() -> None:
    seen = snapshot_of(Timeline.of([f"{A}_{A}.commit"]), files(f"p/f-0_0-0-0_{A}.parquet"))
    assert cleaned_groups(seen, [], [wrote(C, ("f-0", B)), wrote(B, ("f-0", A), ("new-0", None))]) == frozenset()
    assert cleaned_groups(seen, [], [wrote(B, ("g-0", A))]) == {("p", "g-0")}
    assert cleaned_groups(seen, [], [wrote(C, ("f-0", B))]) == {("p", "f-0")}, (
        "the slice there is older than the one replaced"
    )


def test_group_that_a_later_write_ended_must_exist() -> None:
    seen = snapshot_of(Timeline.of([f"{A}_{A}.commit"]), files(f"p/f-0_0-0-0_{A}.parquet"))
    assert cleaned_groups(seen, [], [wrote(C, replaced=("f-0", "new-0")), wrote(B, ("new-0", None))]) == frozenset()
    assert cleaned_groups(seen, [], [wrote(C, replaced=("g-0",))]) == {("p", "g-0")}
