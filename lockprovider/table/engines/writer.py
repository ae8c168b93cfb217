"""The steps of a write that all engines share, and their compaction and clustering.

An engine calls `plan_*`, then `start_*`, writes the files, and adds them by `Transaction.add`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from contextlib import suppress
from dataclasses import dataclass
from typing import Generic, TypeVar

import pyarrow as pa

from fsspec_cas import InvalidInput
from lockprovider.table.errors import TableError, UnsupportedTable, WriteConflict
from lockprovider.table.files.base_file import look_like_buckets
from lockprovider.table.files.group_writer import GroupWriter
from lockprovider.table.format.properties import BUCKET, BUCKETS, INDEX
from lockprovider.table.rewrite.clustering import ClusteringResult, cluster_table, run_clustering
from lockprovider.table.rewrite.compaction import CompactionResult, compact_table, run_compaction
from lockprovider.table.rewrite.executor import Runner
from lockprovider.table.state.context import TableContext
from lockprovider.table.timeline.rewrite_plan import ClusteringRule
from lockprovider.table.transaction.transaction import Transaction

Changes = TypeVar("Changes")


@dataclass(frozen=True, slots=True)
class WritePlan(Generic[Changes]):
    """Rows that fit the table's columns, split into `changes` by `split`."""

    planner: GroupWriter
    split: Callable[[GroupWriter], Changes]
    changes: Changes


def planner_for(txn: Transaction, schema: pa.Schema) -> GroupWriter:
    """Make a `GroupWriter` without an instant, which only computes keys and partitions."""
    return GroupWriter(txn.table.place, "", txn.config, schema)


def planner_of(txn: Transaction) -> GroupWriter:
    """Make the planner for the table's columns; reads them unless cached."""
    return planner_for(txn, txn.table.schema(txn.timeline))


def plan_write(txn: Transaction, split: Callable[[GroupWriter], Changes]) -> WritePlan[Changes]:
    """Check and split rows by the table's cached columns; without them or after a TableError, by its current ones."""
    if (cached := txn.expected_schema) is not None:
        planner = planner_for(txn, cached)
        with suppress(TableError):
            return WritePlan(planner, split, split(planner))
    return plan_for_tasks(txn, split)


def plan_for_tasks(txn: Transaction, split: Callable[[GroupWriter], Changes]) -> WritePlan[Changes]:
    """Check and split rows by the table's current columns."""
    planner = planner_of(txn)
    return WritePlan(planner, split, split(planner))


def start_here(
    txn: Transaction, plan: WritePlan[Changes], blindly: Collection[str] | None = None
) -> tuple[GroupWriter, Changes]:
    """Begin `txn`; return a `GroupWriter` for this process only, and the changes, split again if the columns are new.

    `blindly`: partitions to write without reading stored rows; may first commit anchors (empty base files) for them.
    UnsupportedTable: a JVM writer's unmarked buckets.
    """
    if blindly is not None:
        txn.write_blindly(blindly)
    schema, changes = txn.begin_to_write(), plan.changes
    if not schema.equals(plan.planner.schema):
        changes = plan.split(planner_for(txn, schema))
    _refuse_unmarked_buckets(txn)
    here = txn.start_here()
    return GroupWriter(txn.table.place, txn.begin, txn.config, schema, here), changes


def start_for_tasks(txn: Transaction, schema: pa.Schema, blindly: Collection[str] | None = None) -> GroupWriter:
    """Begin `txn`; return a picklable `GroupWriter` for tasks in other processes; see `start_here`.

    Raises WriteConflict if the table's columns are no longer the plan's `schema`.
    """
    _refuse_unmarked_buckets(txn)
    if blindly is not None:
        txn.write_blindly(blindly)
    if not txn.begin_to_write().equals(schema):
        raise WriteConflict(txn.begin, txn.timeline.writes[-1].file_name, ())
    txn.start()
    return GroupWriter(txn.table.place, txn.begin, txn.config, schema)


def _refuse_unmarked_buckets(txn: Transaction) -> None:
    """Raise UnsupportedTable for file groups named like JVM writers' buckets, if the properties lack a bucket index.

    Reads commits, newest first, up to one with files.
    """
    if txn.config.bucket_index is not None:
        return
    for instant in reversed(txn.timeline.writes):
        ids = [file_id for _, file_id in txn.table.metadata_of(instant).file_groups]
        if not ids:
            continue
        if look_like_buckets(ids) and look_like_buckets(file_slice.file_id for file_slice in txn.snapshot.slices):
            raise UnsupportedTable(
                f"table {txn.config.name!r} has file groups like {ids[0]}, of a JVM writer with {INDEX}={BUCKET}: "
                f"run `lockprovider table adopt-buckets` (Table.adopt_bucket_index) with that writer's {BUCKETS}"
            )
        return


def compact_by(table: TableContext, run: Runner, instant: str | None) -> tuple[CompactionResult, ...]:
    """Compact like `Table.compact`, or run only the scheduled compaction `instant`."""
    return compact_table(table, run) if instant is None else (run_compaction(table, instant, run),)


def cluster_by(
    table: TableContext, run: Runner, rule: ClusteringRule, instant: str | None
) -> tuple[ClusteringResult, ...]:
    """Cluster like `Table.cluster`, or run only the scheduled clustering `instant`.

    With `instant`, another `rule` than the default raises InvalidInput.
    """
    if instant is None:
        return cluster_table(table, rule, run)
    if rule != ClusteringRule.of():
        raise InvalidInput(
            f"clustering {instant} runs by its plan: leave out sort_by, target_file_bytes and small_file_bytes"
        )
    return (run_clustering(table, instant, run),)
