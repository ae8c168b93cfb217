"""Which of the metadata table's blocks count, and what is a difference between its listing and what is there."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from itertools import product

import pytest

from fsspec_cas import Entry
from lockprovider.table.format.layout import Instant
from lockprovider.table.format.metadata_table import FileListing
from lockprovider.table.state.metadata_table import ListingDifferences, differences, is_valid, unneeded_instants
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


def test_block_counts_when_its_write_is_completed_or_not_pending_elsewhere() -> None:
    own = Timeline.of([f"{begin}_{DONE}.deltacommit" for begin in (A, B, C)])
    valid = is_valid(TIMELINE, own)
    assert [valid(begin) for begin in (A, B, C)] == [True, False, True]
    assert [is_valid(TIMELINE, Timeline())(begin) for begin in (A, B, C)] == [True, False, False]


def test_making_of_its_partitions_counts() -> None:
    assert is_valid(Timeline(), Timeline())("00000000000000002")


def test_concurrent_writes_are_no_difference() -> None:
    assert differences(listing(A, C), [entry(A)], [entry(A), entry(C)], TIMELINE) == ListingDifferences()
    assert differences(listing(C), [entry(A)], [entry(C)], TIMELINE) == ListingDifferences()


def test_file_of_a_pending_write_need_not_be_listed() -> None:
    there = [entry(A), entry(B)]
    assert differences(listing(A), there, there, TIMELINE) == ListingDifferences()


def test_each_difference_has_its_kind() -> None:
    there = [entry(A)]
    assert differences(listing(), there, there, TIMELINE).hidden == (path(A),)
    assert differences(listing(A, C), there, there, TIMELINE).gone == (path(C),)
    assert differences(listing(A, size=8), there, there, TIMELINE).resized == (path(A),)
    assert differences(listing(A, size=0), there, there, TIMELINE).empty == (path(A),)


def test_files_removed_by_a_running_service_are_not_reported() -> None:
    cleaning = TIMELINE.plus(Timeline.of([f"{C}.clean.requested"]).instants)
    assert differences(listing(A, C), [entry(A)], [entry(A)], cleaning) == ListingDifferences()


Rule = Callable[[Timeline, Collection[str], str], tuple[Instant, ...]]
TIMES = tuple(f"202611220000000{number}0" for number in range(1, 5))
LATE = "20261122000000099"
AT_ONCE = {begin: f"{begin[:-1]}5" for begin in TIMES}


def timelines() -> Iterator[Timeline]:
    """All of three begin times: nothing is there, a pending instant, one that was completed at once, or at the end."""
    for kinds in product(range(4), repeat=3):
        names: list[str] = []
        for begin, kind in zip(TIMES, kinds, strict=False):
            names += [f"{begin}.deltacommit.requested", f"{begin}.deltacommit.inflight"] if kind else []
            names += [f"{begin}_{AT_ONCE[begin] if kind == 2 else LATE}.deltacommit"] if kind >= 2 else []
        yield Timeline.of(names)


def is_harmless(rule: Rule) -> bool:
    """Whatever files there are: each that is left is to readers what it was, and nothing looks pending that did not."""
    for before, named, first in product(timelines(), product((False, True), repeat=3), TIMES):
        own = before.plus(Timeline.of([f"{first}_{LATE}.commit"]).instants)  # the oldest compaction whose file is left
        left = {begin for begin, is_there in zip(TIMES, named, strict=False) if is_there}
        after = own.without(rule(own, left, first))
        if any(own.visible(begin) != after.visible(begin) for begin in left) or after.unfinished != own.unfinished:
            return False
    return True


def test_instants_go_once_none_of_their_files_is_left() -> None:
    assert is_harmless(unneeded_instants)
    own = Timeline.of(
        [f"{begin}_{AT_ONCE[begin]}.deltacommit" for begin in TIMES] + [f"{TIMES[0]}.deltacommit.requested"]
    )
    assert [i.begin for i in unneeded_instants(own, TIMES[3:], TIMES[3])] == [TIMES[0], TIMES[0], TIMES[1]]
    assert [i.begin for i in unneeded_instants(own, TIMES[2:], TIMES[3])] == [TIMES[0], TIMES[0]]
    assert unneeded_instants(own, TIMES[1:], TIMES[3]) == (), "it is where the timeline begins"


def _whatever_is_left(own: Timeline, left: Collection[str], first: str) -> tuple[Instant, ...]:
    del left
    return unneeded_instants(own, (), first)


def _not_from_the_oldest_on(own: Timeline, left: Collection[str], first: str) -> tuple[Instant, ...]:
    return tuple(i for i in own.instants if i.begin not in left and own.completions.get(i.begin, first) < first)


def _completed_ones_alone(own: Timeline, left: Collection[str], first: str) -> tuple[Instant, ...]:
    return tuple(instant for instant in unneeded_instants(own, left, first) if instant.is_completed)


@pytest.mark.parametrize("twin", [_whatever_is_left, _not_from_the_oldest_on, _completed_ones_alone])
def test_mutant_that_drops_instants_too_early_is_caught(twin: Rule) -> None:
    assert not is_harmless(twin)
