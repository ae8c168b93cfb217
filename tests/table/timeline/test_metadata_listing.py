"""Which of the metadata table's blocks count, and what is a difference between its listing and what is there."""

from __future__ import annotations

from fsspec_cas import Entry
from lockprovider.table.format.metadata_table.files_records import FileListing
from lockprovider.table.timeline.metadata_listing import ListingDifferences, differences, is_valid
from lockprovider.table.timeline.timeline import Timeline

A, B, C = "20261122000000001", "20261122000000002", "20261122000000003"
DONE = "20261122000000009"
TIMELINE = Timeline.of([f"{A}_{DONE}.commit", f"{B}.commit.requested", f"{B}.inflight"])


def path(begin: str, partition: str = "p") -> str:
    return f"{partition}/6a7f-0_0-1-0_{begin}.parquet"


def entry(begin: str, size: int = 7) -> Entry:
    return Entry(path(begin), size, None)


def listing(*begins: str, size: int = 7) -> FileListing:
    return FileListing(frozenset(["p"]), {"p": {path(begin).removeprefix("p/"): size for begin in begins}})


def test_a_block_counts_if_its_write_is_done_or_if_nobody_else_has_it_pending() -> None:
    own = Timeline.of([f"{begin}_{DONE}.deltacommit" for begin in (A, B, C)])
    valid = is_valid(TIMELINE, own)
    assert [valid(begin) for begin in (A, B, C)] == [True, False, True]
    assert [is_valid(TIMELINE, Timeline())(begin) for begin in (A, B, C)] == [True, False, False]


def test_the_making_of_its_partitions_counts() -> None:
    assert is_valid(Timeline(), Timeline())("00000000000000002")


def test_what_others_wrote_meanwhile_is_no_difference() -> None:
    assert differences(listing(A, C), [entry(A)], [entry(A), entry(C)], TIMELINE) == ListingDifferences()
    assert differences(listing(C), [entry(A)], [entry(C)], TIMELINE) == ListingDifferences()


def test_a_file_of_a_pending_write_need_not_be_listed() -> None:
    there = [entry(A), entry(B)]
    assert differences(listing(A), there, there, TIMELINE) == ListingDifferences()


def test_each_difference_has_its_kind() -> None:
    there = [entry(A)]
    assert differences(listing(), there, there, TIMELINE).hidden == (path(A),)
    assert differences(listing(A, C), there, there, TIMELINE).gone == (path(C),)
    assert differences(listing(A, size=8), there, there, TIMELINE).resized == (path(A),)
    assert differences(listing(A, size=0), there, there, TIMELINE).empty == (path(A),)


def test_what_a_service_that_is_at_it_has_removed_is_not_told_of() -> None:
    cleaning = TIMELINE.plus(Timeline.of([f"{C}.clean.requested"]).instants)
    assert differences(listing(A, C), [entry(A)], [entry(A)], cleaning) == ListingDifferences()
