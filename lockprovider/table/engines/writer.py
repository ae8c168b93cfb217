"""Steps of a write whose files tasks in other processes make, and such engines' compaction and clustering.

An engine calls `plan_for_tasks`, then `start_for_tasks`, has the files written, and adds them by `Transaction.add`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Generic, TypeVar

import pyarrow as pa

from fsspec_cas import InvalidInput
from lockprovider.table.errors import WriteConflict
from lockprovider.table.files.group_writer import GroupWriter
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


def plan_for_tasks(txn: Transaction, split: Callable[[GroupWriter], Changes]) -> WritePlan[Changes]:
    """Check and split rows by the table's current columns."""
    planner = txn.planner()
    return WritePlan(planner, split, split(planner))


def start_for_tasks(txn: Transaction, schema: pa.Schema, blindly: Collection[str] | None = None) -> GroupWriter:
    """Begin `txn`; return a picklable `GroupWriter` for tasks in other processes.

    `blindly`: partitions to write without reading rows, if `may_be_blind`; commits missing anchors first.
    WriteConflict: the table's columns are no longer `schema`. UnsupportedTable: a JVM writer's unmarked buckets.
    """
    txn.write_blindly(blindly)
    if not txn.begin_to_write().equals(schema):
        raise WriteConflict(txn.begin, txn.timeline.writes[-1].file_name, ())
    txn.start()
    return GroupWriter(txn.table.place, txn.begin, txn.config, schema)


def compact_by(table: TableContext, run: Runner, instant: str | None) -> tuple[CompactionResult, ...]:
    """Like `Table.compact`, or run only the scheduled compaction `instant`."""
    return compact_table(table, run) if instant is None else (run_compaction(table, instant, run),)


def cluster_by(
    table: TableContext, run: Runner, rule: ClusteringRule, instant: str | None
) -> tuple[ClusteringResult, ...]:
    """Cluster like `Table.cluster`, or run only the scheduled `instant`; empty if none ran.

    With `instant`, another `rule` than the default raises InvalidInput.
    """
    if instant is None:
        return cluster_table(table, rule, run)
    if rule != ClusteringRule.of():
        raise InvalidInput(
            f"clustering {instant} runs by its plan: leave out sort_by, target_file_bytes and small_file_bytes"
        )
    return (run_clustering(table, instant, run),)
