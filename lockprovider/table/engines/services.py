"""Compaction and clustering by the tasks of an engine."""

from __future__ import annotations

from fsspec_cas import InvalidInput
from lockprovider.table.rewrite.clustering import ClusteringResult, cluster_table, run_clustering
from lockprovider.table.rewrite.compaction import CompactionResult, compact_table, run_compaction
from lockprovider.table.rewrite.executor import Runner
from lockprovider.table.state.context import TableContext
from lockprovider.table.timeline.rewrite_plan import ClusteringRule


def compact_by(table: TableContext, run: Runner, instant: str | None) -> tuple[CompactionResult, ...]:
    """Compact like `Table.compact`, or run only the scheduled compaction `instant`; `run` runs the tasks."""
    return compact_table(table, run) if instant is None else (run_compaction(table, instant, run),)


def cluster_by(
    table: TableContext, run: Runner, rule: ClusteringRule, instant: str | None
) -> tuple[ClusteringResult, ...]:
    """Cluster like `Table.cluster`, or run only the scheduled clustering `instant`; `run` runs the tasks.

    With `instant`, another rule than the default raises InvalidInput, as the clustering runs by its plan.
    """
    if instant is None:
        return cluster_table(table, rule, run)
    if rule != ClusteringRule.of():
        raise InvalidInput(
            f"clustering {instant} runs by its plan: leave out sort_by, target_file_bytes and small_file_bytes"
        )
    return (run_clustering(table, instant, run),)
