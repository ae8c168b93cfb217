from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from lockprovider.table.errors import WriteConflict
from lockprovider.table.format.bucket import BucketIndex, file_id
from lockprovider.table.format.layout import Action, Instant, InstantState, format_ms
from lockprovider.table.format.metadata import CommitMetadata, WriteStat, encode_commit, stats_by_partition
from lockprovider.table.format.properties import TableConfig
from lockprovider.table.timeline.conflict import (
    BatchId,
    ConcurrentOperation,
    by_file_group,
    by_partition,
    non_blocking,
    prefer_writer,
)
from lockprovider.table.timeline.timeline import Timeline
from lockprovider.table.timeline.view import Snapshot
from lockprovider.table.transaction.decision import (
    Basis,
    LaterCommits,
    Proposal,
    _proposal_in,
    decide,
    decode,
    encode,
)
from lockprovider.table.transaction.transaction import _result

A, B = format_ms(1_000), format_ms(2_000)
NEW = WriteStat("new", "p/new", "p", num_inserts=3)
OLD = WriteStat("old", "p/old", "p", prev_commit=A, num_inserts=1, num_updates=2, num_deletes=4)
OTHER = WriteStat("other", "q/other", "q", num_inserts=5)
CONFIG = TableConfig("t", ("id",))
BUCKETED = replace(CONFIG, bucket_index=BucketIndex(4, ("id",)))


def propose(
    *stats: WriteStat, replaced: Any = (), operation: str = "UPSERT", rule: Any = by_file_group, **seen: Any
) -> tuple[Proposal, Basis]:
    metadata = CommitMetadata(stats_by_partition(stats), operation, replaced=dict(replaced))
    basis = Basis(**{"config": CONFIG, "timeline": Timeline(), "resolution": rule, **seen})
    buckets, keys = basis.config.bucket_index is not None, basis.keys is not None
    data = encode_commit(metadata)
    return Proposal(B, Action.COMMIT, basis.rule_name, buckets, "", "", None, keys, data, metadata), basis


def proposal(*stats: WriteStat, **seen: Any) -> Proposal:
    return propose(*stats, **seen)[0]


def may_overlap(given: tuple[Proposal, Basis], rule: Any) -> bool:
    mine, basis = given
    return replace(basis, resolution=rule).may_overlap(mine)


def test_new_files_of_a_writer_that_read_nothing_never_overlap() -> None:
    for nobody in (propose(), propose(NEW, OTHER)):
        assert not may_overlap(nobody, by_file_group)
        assert not may_overlap(nobody, prefer_writer)


@pytest.mark.parametrize(
    "may",
    [
        propose(NEW, OLD),
        propose(NEW, replaced={"p": ("old",)}),
        propose(NEW, snapshot=Snapshot(Timeline(), ())),
        propose(NEW, keys=object()),
        propose(NEW, config=BUCKETED),
    ],
    ids=["rewrites a file", "ends a file group", "read rows", "compares keys", "has buckets"],
)
def test_any_other_write_may_overlap(may: tuple[Proposal, Basis]) -> None:
    assert may_overlap(may, by_file_group)


def test_custom_resolution_is_also_asked_about_new_files() -> None:
    assert may_overlap(propose(NEW), by_partition)
    assert may_overlap(propose(NEW), lambda mine, others: None)


def test_first_file_groups_of_one_bucket_overlap_only_with_buckets() -> None:
    mine, theirs = (WriteStat(file_id(2, f"{n}" * 24), "p/x", "p") for n in (1, 2))
    done = Instant(A, Action.COMMIT, InstantState.COMPLETED, A)
    others = [ConcurrentOperation.of(done, CommitMetadata({"p": (theirs,)}, "UPSERT"))]
    since = LaterCommits(notes=lambda: (), latest_first=lambda: (), others=lambda: others)
    with pytest.raises(WriteConflict) as found:
        decide(proposal(mine, config=BUCKETED), by_file_group, since)
    assert (found.value.lost_to, found.value.file_groups) == (done.file_name, (("p", theirs.file_id),))
    decide(proposal(mine), by_file_group, since)


def test_result_counts_the_rows_of_all_files_and_the_attempts() -> None:
    made = proposal(NEW, OLD, OTHER, replaced={"r": ("ended",)})
    found = _result(made, "done", conflicts=2, lock_wait_s=0.5)
    assert (found.inserted, found.updated, found.deleted) == (3 + 1 + 5, 2, 4)
    assert found.file_groups == (("p", "new"), ("p", "old"), ("q", "other"), ("r", "ended"))
    assert (found.instant, found.completion, found.attempts, found.conflicts) == (B, "done", 3, 2)
    assert found.lock_wait_s == 0.5


def test_blind_write_conflicts_only_with_writes_that_end_file_groups() -> None:
    def compared(given: tuple[Proposal, Basis]) -> tuple[Instant, ...]:
        return given[1].compared(given[0], done)

    done = [Instant(A, action, InstantState.COMPLETED, B) for action in (Action.DELTACOMMIT, Action.REPLACECOMMIT)]
    assert compared(propose(OLD, config=BUCKETED, rule=non_blocking)) == (done[1],)
    read = propose(OLD, config=BUCKETED, rule=non_blocking, snapshot=Snapshot(Timeline(), ()))
    assert compared(read) == tuple(done), "what it has read may be cleaned by any of them"
    assert compared(propose(OLD, config=BUCKETED)) == tuple(done)
    assert compared(propose(NEW)) == ()


@pytest.mark.parametrize("batch", [None, BatchId("s", 5), BatchId("s", 5, "run", 2)], ids=str)
def test_decider_reads_a_proposal_as_it_was_written(batch: BatchId | None) -> None:
    mine = replace(proposal(OLD), batch_id=batch)
    read = decode(encode(mine))
    assert read == mine
    assert read.metadata == mine.metadata


def test_proposal_is_posted_only_with_a_rule_that_other_writers_have() -> None:
    assert proposal(OLD).rule == "by_file_group"
    assert proposal(OLD, rule=lambda mine, others: None).rule == ""
    with pytest.raises(KeyError):
        decode(encode(replace(proposal(OLD), rule="of a later version")))


def test_only_proposals_of_decidable_size_stay_in_memory() -> None:
    small = encode(proposal(NEW))
    large = encode(proposal(*(replace(NEW, file_id=f"new-{number}") for number in range(1000))))
    assert len(large) > 1 << 15
    assert _proposal_in(small) is _proposal_in(small)
    assert _proposal_in(large) == _proposal_in(large) is not None
    assert _proposal_in(large) is not _proposal_in(large)
