"""Compaction and clustering as Spark jobs: the same plans as of `Table.compact` and `Table.cluster`, on the executors.

One task a file slice that is merged, or a group of slices that is joined; nothing but write statistics comes to the
driver, which has the table lock, the heartbeat and the completion. What is scheduled here is run by others, and the
other way round. Killed at any step, the next call goes on.

Source: Hudi `HoodieSparkCompactor`, `MultipleSparkJobExecutionStrategy`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pyarrow as pa
from pyspark.sql import SparkSession

from lockprovider.table.engines.spark import jobs, tasks
from lockprovider.table.engines.spark.errors import typed_errors
from lockprovider.table.engines.spark.given import session
from lockprovider.table.format.metadata import WriteStat
from lockprovider.table.rewrite.clustering import ClusteringResult, cluster_table, run_clustering
from lockprovider.table.rewrite.compaction import CompactionResult, compact_table, run_compaction
from lockprovider.table.rewrite.executor import RewriteTask, Runner
from lockprovider.table.state.context import TableContext
from lockprovider.table.timeline.rewrite_plan import TARGET_FILE_BYTES, ClusteringRule


def compact(spark: SparkSession, table: TableContext, instant: str | None = None) -> tuple[CompactionResult, ...]:
    """Merge log files into new base files, as `Table.compact`; with `instant` run that scheduled compaction only.

    Raises:
        UnsupportedTable, HistoryGone, Aborted, NotAcquired: as `Table.compact` and `Table.run_compaction`.
    """
    run = on_executors(session(spark))
    return compact_table(table, run) if instant is None else (run_compaction(table, instant, run),)


def cluster(
    spark: SparkSession,
    table: TableContext,
    sort_by: Sequence[str] = (),
    target_file_bytes: int = TARGET_FILE_BYTES,
    small_file_bytes: int | None = None,
    *,
    instant: str | None = None,
) -> tuple[ClusteringResult, ...]:
    """Join small files, as `Table.cluster`; with `instant` run that scheduled clustering only, as its plan says.

    A task holds what one of the new files does, and sorts in its own memory: an executor needs a few times
    `target_file_bytes`.

    Raises:
        InvalidInput, UnsupportedTable, WriteConflict, HistoryGone, Aborted, NotAcquired: as `Table.cluster` and
            `Table.run_clustering`.
    """
    rule, run = ClusteringRule.of(sort_by, target_file_bytes, small_file_bytes), on_executors(session(spark))
    return cluster_table(table, rule, run) if instant is None else (run_clustering(table, instant, run),)


def on_executors(spark: SparkSession) -> Runner:
    """Where a plan's files are written: in one Spark job, one task each."""

    def run(work: Sequence[RewriteTask]) -> Iterator[WriteStat]:
        if not work:
            return iter(())
        with typed_errors(), jobs.described(spark, f"hudi: rewrite {len(work)} file slices"):
            found = jobs.run_over(spark, list(work), _written, tasks.STATS).collect()
        return (WriteStat(**row.asDict()) for row in found)

    return run


def _written(task: RewriteTask) -> pa.Table:
    return tasks.stats_table(task.write())
