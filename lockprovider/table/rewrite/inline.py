"""Inline services after a writer's commits.

Compaction and clustering are due by the number of commits since the last plan of any process.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import TYPE_CHECKING

from lockprovider.table.errors import UnsupportedTable
from lockprovider.table.format.layout import Action
from lockprovider.table.rewrite.clustering import cluster_table
from lockprovider.table.rewrite.compaction import compact_table
from lockprovider.table.services import archive, metadata_table
from lockprovider.table.timeline.timeline import Timeline

if TYPE_CHECKING:
    from lockprovider.table.state.context import TableContext


def run_due(table: TableContext) -> None:
    """Run archival, compaction, clustering, each if set and due, and compact a metadata table if due.

    Reports a failed service to the watcher, and goes on. Ignores UnsupportedTable.
    """
    compaction, clustering = table.settings.compaction, table.settings.clustering
    if table.settings.archive_automatically:
        with _reporting_errors(table, "archival"):
            if len(table.knowledge.latest.writes) > table.settings.archival.most:
                archive.archive(table)
    with _reporting_errors(table, "compaction of the metadata table"):
        metadata_table.compact_if_due(table)
    if compaction is not None:
        with _reporting_errors(table, "compaction"):
            if _commits_since(table.listed_timeline(), Action.COMPACTION) >= compaction.commits:
                compact_table(table)
    if clustering is not None:
        with _reporting_errors(table, "clustering"):
            if _commits_since(table.listed_timeline(), Action.CLUSTERING) >= clustering.commits:
                cluster_table(table, clustering.rule)


@contextlib.contextmanager
def _reporting_errors(table: TableContext, service: str) -> Iterator[None]:
    """Swallow errors of the block, and report them as `service_failed`, except `UnsupportedTable`."""
    try:
        yield
    except UnsupportedTable:
        return
    except Exception as error:  # noqa: BLE001 - the commit stands
        table.report("service_failed", "", service=service, error=f"{type(error).__name__}: {error}")


def _commits_since(timeline: Timeline, action: Action) -> int:
    planned = {i.begin for i in timeline.instants if i.action in (Action.COMPACTION, Action.CLUSTERING)}
    last = max((i.begin for i in timeline.instants if i.action is action), default="")
    return sum((i.completion or "") > last and i.begin not in planned for i in timeline.writes)
