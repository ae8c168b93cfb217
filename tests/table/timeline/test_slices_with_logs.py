"""File slices with logs: by completion times, against what goes wrong otherwise. Times are A < B < ... < G."""

from __future__ import annotations

import pytest

from fsspec_cas import Entry
from lockprovider.table.format.layout import Instant, format_ms, parse_instant
from lockprovider.table.format.metadata import CommitMetadata, WriteStat
from lockprovider.table.state import knowledge
from lockprovider.table.timeline.timeline import Timeline
from lockprovider.table.timeline.view import FileSlice, Snapshot, archived_logs, cleaned_groups, snapshot_of

A, B, C, D, E, F, G = (format_ms(1_000 * number) for number in range(1, 8))


def base(begin: str, group: str = "f-0") -> str:
    return f"p/{group}_0-0-0_{begin}.parquet"


def log(begin: str, version: int = 1, group: str = "f-0", written_by: str = "0-0-0") -> str:
    return f"p/.{group}_{begin}.log.{version}_{written_by}"


def seen(timeline: list[str], *paths: str, **more: object) -> Snapshot:
    return snapshot_of(Timeline.of(timeline), [Entry(path, 1, None) for path in paths], **more)  # type: ignore[arg-type]


def only(view: Snapshot) -> FileSlice:
    (found,) = view.slices
    return found


def begins(one: FileSlice) -> list[str]:
    return [found.file.begin for found in one.logs]


def test_logs_belong_to_the_last_slice_begun_before_their_completion() -> None:
    timeline = [f"{A}_{B}.deltacommit", f"{B}_{C}.deltacommit", f"{D}_{E}.commit", f"{E}_{F}.deltacommit"]
    found = only(seen(timeline, base(A), log(B), base(D), log(E)))
    assert (found.begin, begins(found)) == (D, [E])


def test_log_that_spans_a_compaction_belongs_to_the_later_slice() -> None:
    timeline = [f"{A}_{A}.deltacommit", f"{B}_{F}.deltacommit", f"{C}_{D}.commit"]
    found = only(seen(timeline, base(A), log(B), base(C)))
    assert (found.begin, begins(found)) == (C, [B])
    # Twin: by begin times it would be of the slice before, and its rows lost.
    assert B < C


def test_logs_are_merged_in_the_order_of_begin_times_not_of_completion() -> None:
    timeline = [f"{A}_{A}.deltacommit", f"{B}_{F}.deltacommit", f"{C}_{D}.deltacommit"]
    found = only(seen(timeline, base(A), log(C), log(B, 2), log(B, 1, written_by="9-9-9"), log(B, 1)))
    assert [found.path for found in found.logs] == [log(B, 1), log(B, 1, written_by="9-9-9"), log(B, 2), log(C)]


def test_group_of_logs_alone_is_one_slice() -> None:
    found = only(seen([f"{A}_{B}.deltacommit", f"{C}_{D}.deltacommit"], log(C), log(A)))
    assert (found.begin, found.path, found.base, begins(found)) == (A, "", "", [A, C])
    assert found.paths == (log(A), log(C))
    assert seen([f"{A}_{B}.deltacommit"], log(A)).read_optimized.slices == ()


def test_m1_group_whose_first_log_is_pending_shows_its_completed_logs() -> None:
    """The JVM takes the pending one for where the slice begins, and shows nothing; hudi-rs and we show the rows."""
    timeline = [f"{A}_{A}.commit", f"{B}.deltacommit.requested", f"{B}.deltacommit.inflight", f"{C}_{D}.deltacommit"]
    found = only(seen(timeline, log(B), log(C)))
    assert (found.begin, begins(found)) == (C, [C])


def test_m7_file_with_letters_in_its_token_is_no_log() -> None:
    timeline = [f"{A}_{A}.deltacommit", f"{B}_{C}.deltacommit"]
    assert begins(only(seen(timeline, base(A), log(B, written_by="a-0-0")))) == []


def test_m9_logs_of_a_group_that_a_clustering_replaced_are_not_seen() -> None:
    timeline = [f"{A}_{A}.deltacommit", f"{B}_{C}.replacecommit", f"{D}_{E}.deltacommit"]
    assert seen(timeline, base(A), log(D), replaced={("p", "f-0")}).slices == ()


@pytest.mark.parametrize("action", ["compaction", "logcompaction", "clustering"])
def test_pending_service_leaves_the_slice_as_it_is(action: str) -> None:
    timeline = [f"{A}_{A}.deltacommit", f"{B}_{C}.deltacommit", f"{D}.{action}.inflight", f"{E}_{F}.deltacommit"]
    found = only(seen(timeline, base(A), log(B), base(D), log(E)))
    assert (found.begin, begins(found)) == (A, [B, E])


def test_completion_of_an_archived_log_comes_from_the_archive_or_its_begin() -> None:
    """M11: it may be one that straddles a compaction; whoever does not read the archive loses its rows."""
    timeline = [f"{C}_{D}.commit", f"{E}_{F}.deltacommit"]
    files = [Entry(path, 1, None) for path in (base(C), log(B), log(E))]
    assert archived_logs(Timeline.of(timeline), [one.path for one in files]) == {B}
    told = only(snapshot_of(Timeline.of(timeline), files, archived=lambda _: D))
    assert begins(told) == [B, E]
    assert begins(only(snapshot_of(Timeline.of(timeline), files))) == [E]


def test_change_feed_logs_are_ignored() -> None:
    timeline = [f"{A}_{A}.deltacommit", f"{B}_{C}.deltacommit"]
    assert begins(only(seen(timeline, base(A), f"{log(B)}.cdc"))) == []


# -- what was cleaned --------------------------------------------------------------------------------------------------


def wrote(
    begin: str, completion: str, *files: tuple[str, str | None], operation: str = "UPSERT"
) -> tuple[Instant, CommitMetadata]:
    stats = tuple(WriteStat("f-0", path, "p", prev_commit=previous) for path, previous in files)
    action = "commit" if operation == "COMPACT" else "deltacommit"
    instant = parse_instant(f"{begin}_{completion}.{action}")
    assert instant is not None
    return instant, CommitMetadata({"p": stats}, operation)


def test_past_slice_without_one_of_its_logs_is_lost() -> None:
    writes = [wrote(A, A, (base(A), None)), wrote(B, C, (log(B), B))]
    then = [i.file_name for i, _ in writes]
    assert cleaned_groups(seen(then, base(A), log(B)), writes, []) == frozenset()
    assert cleaned_groups(seen(then, base(A)), writes, []) == {("p", "f-0")}
    compaction = wrote(D, E, (base(D), A), operation="COMPACT")
    later = [*then, compaction[0].file_name]
    assert cleaned_groups(seen(later, base(D)), [*writes, compaction], []) == frozenset()
    assert cleaned_groups(seen(then, base(A), log(B)), writes, [compaction]) == frozenset()
    assert cleaned_groups(seen(then), writes, [compaction]) == {("p", "f-0")}


def test_past_group_of_only_logs_is_lost_once_its_compaction_is_cleaned() -> None:
    writes = [wrote(A, B, (log(A), A))]
    compaction = wrote(C, D, (base(C), None), operation="COMPACT")
    then = [i.file_name for i, _ in writes]
    assert cleaned_groups(seen(then, log(A)), writes, [compaction]) == frozenset()
    assert cleaned_groups(seen(then), writes, [compaction]) == {("p", "f-0")}


# -- what one process remembers ----------------------------------------------------------------------------------------


def test_cached_slices_after_each_commit_equal_a_listing() -> None:
    writes = [
        wrote(A, B, (log(A), A)), wrote(C, D, (base(C), None), operation="COMPACT"),
        wrote(B, E, (log(B), B)), wrote(E, F, (log(E), E)), wrote(F, G, (base(F), C), operation="COMPACT"),
    ]  # fmt: skip
    slices: dict[tuple[str, str], FileSlice] = {}
    for count, (instant, metadata) in enumerate(writes, 1):
        knowledge._apply(slices, instant, metadata)
        done = sorted(writes[:count], key=lambda one: one[0].begin)
        paths = [stat.path for _, metadata in done for stat in metadata.all_stats]
        listed = only(seen([i.file_name for i, _ in done], *paths))
        (known,) = slices.values()
        assert (known.begin, known.path, [one.path for one in known.logs]) == (
            listed.begin, listed.path, [one.path for one in listed.logs]
        )  # fmt: skip
