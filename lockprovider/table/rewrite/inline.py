"""Archival, compaction and clustering by themselves: what a writer whose settings say so does after its commits.

The metadata table that a writer keeps is compacted whatever its settings say.

Counted is what has completed since the last plan, whoever made it. The commit stands whatever comes of them: one that
fails is told to the watcher and, as a warning, to the log. A plan that could not be run now is run after a later
commit, or by anybody, and the doctor names it until then.

Source: Hudi `hoodie.archive.automatic`, `hoodie.compact.inline`, `hoodie.clustering.inline`;
`ScheduleCompactionActionExecutor.needCompact`.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import TYPE_CHECKING

from lockprovider.table.errors import UnsupportedTable
from lockprovider.table.format.instant import Action
from lockprovider.table.rewrite.clustering import cluster_table
from lockprovider.table.rewrite.compaction import compact_table
from lockprovider.table.services import archive, metadata_table
from lockprovider.table.timeline.timeline import Timeline

if TYPE_CHECKING:
    from lockprovider.table.state.context import TableContext


def run_due(table: TableContext) -> None:
    """Run what is due. A table with nothing to compact, or that cannot be clustered, is left alone."""
    compaction, clustering = table.settings.compaction, table.settings.clustering
    if table.settings.archive_automatically:
        with _told(table, "archival"):
            archive.archive_if_due(table)
    with _told(table, "compaction of the metadata table"):
        metadata_table.compact_if_due(table)
    if compaction is not None:
        with _told(table, "compaction"):
            if _commits_since(table.listed_timeline(), Action.COMPACTION) >= compaction.commits:
                compact_table(table)
    if clustering is not None:
        with _told(table, "clustering"):
            if _commits_since(table.listed_timeline(), Action.CLUSTERING) >= clustering.commits:
                cluster_table(table, clustering.rule)


@contextlib.contextmanager
def _told(table: TableContext, service: str) -> Iterator[None]:
    """A failure fails no commit."""
    try:
        yield
    except UnsupportedTable:
        return  # it has nothing of the kind
    except Exception as error:  # noqa: BLE001 - of a full disk, say: the commit stands
        table.tell("service_failed", "", service=service, error=f"{type(error).__name__}: {error}")


def _commits_since(now: Timeline, action: Action) -> int:
    """How many commits of rows have completed since the last of these plans was made."""
    planned = {i.begin for i in now.instants if i.action in (Action.COMPACTION, Action.CLUSTERING)}
    last = max((i.begin for i in now.instants if i.action is action), default="")
    return sum((i.completion or "") > last and i.begin not in planned for i in now.writes)
