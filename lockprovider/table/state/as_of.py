"""What the table was at a moment of the past, and when that cannot be known any more.

Source: Hudi `HoodieTableFileSystemView`, time travel queries.
"""

from __future__ import annotations

from collections.abc import Callable

from lockprovider.table.errors import HistoryGone
from lockprovider.table.format.instant import Action, Instant
from lockprovider.table.format.layout import FileGroup
from lockprovider.table.format.metadata import CommitMetadata
from lockprovider.table.state.archive_index import reach
from lockprovider.table.state.context import TableContext
from lockprovider.table.timeline.incremental import Order
from lockprovider.table.timeline.timeline import Timeline
from lockprovider.table.timeline.versions import Reached, TableVersion, moment_of_version
from lockprovider.table.timeline.view import AsOf, Snapshot, lost, rewound


def reached(table: TableContext) -> Reached:
    """The last completion time that was archived, if it is asked for."""
    return lambda: reach(table.archived).completion


def snapshot_of_version(table: TableContext, now: Timeline, given: TableVersion) -> Snapshot:
    """What the table was at a version.

    Raises:
        InvalidInput: it names none.
        HistoryGone: it is before the table, before what was archived, or a file was cleaned.
    """
    return snapshot_at(table, now, moment_of_version(now, given, reached(table)))


def snapshot_at(table: TableContext, now: Timeline, moment: AsOf) -> Snapshot:
    """What the table was at a moment.

    Raises:
        HistoryGone: it is before the table, before what was archived, or a file was cleaned.
    """
    then = rewound(now, moment.includes)
    archived = refuse_archived(table, moment.time, Order(moment.by))
    if not then.writes and not archived:
        raise HistoryGone(f"there is no table at {table.url!r} as of {moment.time}; ask for a later time")
    seen = table.snapshot_of(then)
    refuse_gone(table, now, seen, lambda _: True, f"as of {moment.time}")
    return seen


def refuse_gone(
    table: TableContext, now: Timeline, seen: Snapshot, is_needed: Callable[[FileGroup], bool], which: str
) -> None:
    """Refuse a past of which a file is needed that was cleaned."""
    shown = seen.timeline.written
    gone = lost(
        seen,
        with_logs(table, seen.timeline),
        [(i, table.metadata_of(i)) for i in now.writes if i.file_name not in shown],
    )
    missing = sorted(filter(is_needed, gone))
    if missing:
        partition, file_id = missing[0]
        raise HistoryGone(
            f"the table {which} cannot be read any more: of {len(missing)} file groups the files were cleaned, one is "
            f"{file_id} in partition {partition!r}; ask for a later time, or read the whole table again"
        )


def with_logs(table: TableContext, timeline: Timeline) -> list[tuple[Instant, CommitMetadata]]:
    """The writes that tell which log files there are: those that may have written some, and those that end groups."""
    told = [i for i in timeline.writes if i.action in (Action.DELTACOMMIT, Action.REPLACECOMMIT)]
    return [(i, table.metadata_of(i)) for i in told] if any(i.action is Action.DELTACOMMIT for i in told) else []


def refuse_archived(table: TableContext, start: str, order: Order) -> str:
    """The time up to which writes were archived; empty if none were.

    Of archived writes the view knows only that they were completed, so it cannot tell a time between them.
    """
    found = reach(table.archived)
    reached = found.completion if order is Order.COMPLETION else found.begin
    if start < reached:
        raise HistoryGone(f"commits up to {reached} were archived; ask for a later time than {start}")
    return reached
