"""What changed since a checkpoint, deletes included, as a DataFrame: one Spark task a table partition.

    feed = changes(spark, table, after=checkpoint)
    upsert(copy, feed.rows.where("_operation <> 'delete'").drop("_operation"), ...)
    checkpoint = feed.checkpoint                                # kept by the consumer, with what it applied

Source: Hudi RFC-22, incremental queries.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime

from pyspark.sql import DataFrame, SparkSession

from lockprovider.table.engines.spark import jobs, tasks
from lockprovider.table.read.changes import changes_since
from lockprovider.table.state.context import TableContext
from lockprovider.table.timeline.incremental import Order


@dataclass(frozen=True)
class Feed:
    """The changes of some commits.

    Attributes:
        rows: the operation (`insert`, `update` or `delete`) as `_operation`, then the columns.
        checkpoint: the `after` of the next call.
        commits: begin times of the commits whose changes these are.
    """

    rows: DataFrame
    checkpoint: str
    commits: tuple[str, ...]


def changes(
    spark: SparkSession,
    table: TableContext,
    after: str | datetime | None = None,
    until: str | datetime | None = None,
    *,
    order: Order | str = Order.COMPLETION,
    columns: Sequence[str] | None = None,
    partitions: Iterable[str] | None = None,
) -> Feed:
    """What the commits in (after, until] changed, as a whole; see `Table.changes` for all but the session.

    The files are fixed now: a DataFrame that is computed again shows the same changes. One task holds the touched files
    of one partition, before and after.

    Raises:
        HistoryGone: files were cleaned or commits archived since `after`, or the table was restored.
    """
    found = changes_since(table, after, until, order=order, columns=columns, partitions=partitions)
    place = table.place
    rows = jobs.run_over(spark, found.parts, tasks.comparer(place), found.schema)
    return Feed(rows, found.checkpoint, tuple(commit.begin for commit in found.commits))
