from __future__ import annotations

from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest

from lockprovider.table.errors import WriteConflict
from lockprovider.table.format.bucket import BucketIndex, file_id
from lockprovider.table.format.instant import Action, Instant, InstantState, format_ms
from lockprovider.table.format.metadata import CommitMetadata, WriteStat, encode_commit, stats_by_partition
from lockprovider.table.format.properties import TableConfig
from lockprovider.table.state.fence import BatchId
from lockprovider.table.timeline.conflict import (
    ConcurrentOperation,
    by_file_group,
    by_partition,
    non_blocking,
    prefer_writer,
)
from lockprovider.table.timeline.timeline import Timeline
from lockprovider.table.timeline.view import Snapshot
from lockprovider.table.transaction.decider import Wanted
from lockprovider.table.transaction.proposal import Proposal, operation_name
from lockprovider.table.transaction.validate import Since, decide

A, B = format_ms(1_000), format_ms(2_000)
NEW = WriteStat("new", "p/new", "p", num_inserts=3)
OLD = WriteStat("old", "p/old", "p", prev_commit=A, num_inserts=1, num_updates=2, num_deletes=4)
OTHER = WriteStat("other", "q/other", "q", num_inserts=5)
CONFIG = TableConfig("t", ("id",))
BUCKETED = replace(CONFIG, bucket_index=BucketIndex(4, ("id",)))


def proposal(*stats: WriteStat, replaced: Any = (), operation: str = "UPSERT", **seen: Any) -> Proposal:
    metadata = CommitMetadata(stats_by_partition(stats), operation, replaced=dict(replaced))
    return Proposal(B, Action.COMMIT, metadata, **{"config": CONFIG, "timeline": Timeline(), **seen})


def test_new_files_of_a_writer_that_read_nothing_overlap_with_nobody() -> None:
    for nobody in (proposal(), proposal(NEW, OTHER)):
        assert not nobody.may_overlap(by_file_group)
        assert not nobody.may_overlap(prefer_writer)


@pytest.mark.parametrize(
    "may",
    [
        proposal(NEW, OLD),
        proposal(NEW, replaced={"p": ("old",)}),
        proposal(NEW, snapshot=Snapshot(Timeline(), ())),
        proposal(NEW, keys=object()),
        proposal(NEW, config=BUCKETED),
    ],
    ids=["rewrites a file", "ends a file group", "read rows", "compares keys", "has buckets"],
)
def test_any_other_write_may_overlap(may: Proposal) -> None:
    assert may.may_overlap(by_file_group)


def test_a_resolution_that_looks_at_more_than_file_groups_is_asked_of_new_files_too() -> None:
    assert proposal(NEW).may_overlap(by_partition)
    assert proposal(NEW).may_overlap(lambda mine, others: None)


def test_two_first_file_groups_of_one_bucket_overlap_where_there_are_buckets_only() -> None:
    mine, theirs = (WriteStat(file_id(2, f"{n}" * 24), "p/x", "p") for n in (1, 2))
    done = Instant(A, Action.COMMIT, InstantState.COMPLETED, A)
    others = [ConcurrentOperation.of(done, CommitMetadata({"p": (theirs,)}, "UPSERT"))]
    since = Since(notes=lambda: (), latest_first=lambda: (), others=lambda: others)
    with pytest.raises(WriteConflict) as found:
        decide(proposal(mine, config=BUCKETED), str, by_file_group, since)
    assert (found.value.lost_to, found.value.file_groups) == (done.file_name, (("p", theirs.file_id),))
    decide(proposal(mine), str, by_file_group, since)


def test_its_result_counts_the_rows_of_all_files_and_the_tries() -> None:
    found = proposal(NEW, OLD, OTHER, replaced={"r": ("ended",)}).result("done", conflicts=2, lock_wait_s=0.5)
    assert (found.inserted, found.updated, found.deleted) == (3 + 1 + 5, 2, 4)
    assert found.file_groups == (("p", "new"), ("p", "old"), ("q", "other"), ("r", "ended"))
    assert (found.instant, found.completion, found.attempts, found.conflicts) == (B, "done", 3, 2)
    assert found.lock_wait_s == 0.5


def test_an_engine_that_knows_no_overwrite_says_one_where_rows_are_replaced() -> None:
    assert operation_name(Action.COMMIT, "INSERT") == "INSERT"
    assert operation_name(Action.REPLACECOMMIT, "INSERT") == "INSERT_OVERWRITE"
    assert operation_name(Action.REPLACECOMMIT, "DELETE_PARTITION") == "DELETE_PARTITION"


def test_of_what_others_have_pending_a_table_service_alone_is_told() -> None:
    assert proposal(OLD, operation="CLUSTER").is_table_service
    assert not proposal(OLD, operation="UPSERT").is_table_service


def test_a_blind_write_is_compared_with_what_ends_file_groups_and_with_nothing_else() -> None:
    done = [Instant(A, action, InstantState.COMPLETED, B) for action in (Action.DELTACOMMIT, Action.REPLACECOMMIT)]
    blind = proposal(OLD, config=BUCKETED, is_blind=True)
    assert blind.compared(done, by_partition) == (done[1],)
    assert proposal(OLD, config=BUCKETED).compared(done, by_file_group) == tuple(done)
    assert proposal(NEW).compared(done, by_file_group) == ()
    assert (blind.rule(by_partition), proposal(OLD).rule(by_partition)) == (non_blocking, by_partition)


@pytest.mark.parametrize("batch", [None, BatchId("s", 5), BatchId("s", 5, "run", 2)], ids=str)
def test_decider_reads_what_a_writer_wants_as_it_was_written(batch: BatchId | None) -> None:
    said = proposal(OLD)
    wanted = Wanted.of(said, by_file_group, pa.schema([("id", pa.int64())]), encode_commit(said.metadata))
    assert wanted is not None
    wanted = replace(wanted, batch_id=batch)
    assert Wanted.decode(wanted.encode()) == wanted
