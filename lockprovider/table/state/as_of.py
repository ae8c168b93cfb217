"""Snapshots of past moments, and checks whether a clean, restore or archival removed a snapshot's files.

Source: Hudi `HoodieTableFileSystemView`, time travel queries.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection
from functools import partial
from typing import Any, TypeVar

import pyarrow as pa

from fsspec_cas import ObjectNotFound
from lockprovider.table.errors import HistoryGone, WriteConflict
from lockprovider.table.format.layout import TIMELINE, Action, FileGroup, Instant
from lockprovider.table.format.metadata import CommitMetadata
from lockprovider.table.state.archive_index import reach
from lockprovider.table.state.context import TableContext
from lockprovider.table.state.parallel import Stale, concurrently, files_below
from lockprovider.table.timeline.timeline import Timeline
from lockprovider.table.timeline.versions import AsOf, Order, rewound
from lockprovider.table.timeline.view import Snapshot, cleaned_groups


def snapshot_at(table: TableContext, timeline: Timeline, moment: AsOf) -> Snapshot:
    """List the files, and return the snapshot of a past moment; `timeline` is the current one.

    Raises `HistoryGone` if the moment is before the first write or the last archived one, or a clean removed its files.
    """
    then = rewound(timeline, moment.includes)
    archived = refuse_archived(table, moment.time, Order(moment.by))
    if not then.writes and not archived:
        raise HistoryGone(f"there is no table at {table.url!r} as of {moment.time}; ask for a later time")
    snapshot = table.snapshot_of(then)
    refuse_gone(table, timeline, snapshot, lambda _: True, f"as of {moment.time}")
    return snapshot


def refuse_gone(
    table: TableContext, timeline: Timeline, snapshot: Snapshot, is_needed: Callable[[FileGroup], bool], which: str
) -> None:
    """Raise `HistoryGone` if a clean removed a file of the past `snapshot` in a group that `is_needed` accepts.

    Reads its commits, and later ones of the current `timeline`. `which` names it in the error.
    """
    shown = snapshot.timeline.written
    lost_groups = cleaned_groups(
        snapshot,
        with_logs(table, snapshot.timeline),
        [(i, table.metadata_of(i)) for i in timeline.writes if i.file_name not in shown],
    )
    missing = sorted(filter(is_needed, lost_groups))
    if missing:
        partition, file_id = missing[0]
        raise HistoryGone(
            f"the table {which} cannot be read any more: a clean removed files of {len(missing)} file groups, such as "
            f"{file_id} in partition {partition!r}; ask for a later time, or read the whole table again"
        )


def with_logs(table: TableContext, timeline: Timeline) -> list[tuple[Instant, CommitMetadata]]:
    """Read deltacommits and replacecommits with their metadata; empty without a deltacommit."""
    writes = [i for i in timeline.writes if i.action in (Action.DELTACOMMIT, Action.REPLACECOMMIT)]
    return [(i, table.metadata_of(i)) for i in writes] if any(i.action is Action.DELTACOMMIT for i in writes) else []


def columns_at(table: TableContext, timeline: Timeline) -> pa.Schema:
    """Columns at the moment of a snapshot's `timeline`; if its commits are all archived, those of now, which lack none.

    Raises as `TableContext.schema`.
    """
    is_archived = timeline.instants and not timeline.writes and table.current.last_archived()
    return table.schema(None if is_archived else timeline)


def refuse_archived(table: TableContext, start: str, order: Order) -> str:
    """Read the last archived write's time in `order`, or empty text.

    Raises `HistoryGone` if `start` precedes it.
    """
    digest = reach(table.knowledge)
    last = digest.completion if order is Order.COMPLETION else digest.begin
    if start < last:
        raise HistoryGone(f"commits up to {last} were archived, and {start} is before that; ask for {last} or later")
    return last


T = TypeVar("T")

_GONE = (ObjectNotFound, HistoryGone)
_SAID = re.compile("^(?:{}): ".format("|".join(re.escape(f"{e.__module__}.{e.__name__}") for e in _GONE)), re.MULTILINE)


def unless_stale(table: TableContext, timeline: Timeline, look: Callable[[], T]) -> T:
    """Call `look`, list the timeline, and return the result.

    Raises `Stale` if files of `timeline` may have been removed, else a `HistoryGone` of `look`.
    """
    try:
        result = look()
    except HistoryGone as error:
        if not is_stale(table, lambda: timeline, error):
            raise
    else:
        if not may_lack_files(table, timeline):
            return result
    message = f"the table at {table.url!r} is cleaned faster than its files are listed; set a longer retention"
    raise Stale(HistoryGone(message))


def is_stale(table: TableContext, snapshot: Callable[[], Timeline], error: Exception) -> bool:
    """Whether a retry may help: `error` is a conflict, or reports a file removed since `snapshot()`.

    May list the timeline; calls `snapshot` only for a missing file.
    """
    if isinstance(error, WriteConflict):
        return True
    if not misses_file(error):
        return False
    timeline = snapshot()
    return may_lack_files(table, timeline) or not timeline.written <= table.listed_timeline().written


def may_lack_files(table: TableContext, timeline: Timeline) -> bool:
    """List the timeline; return whether a clean, restore or archival may have removed files of `timeline` since."""
    after = f"{timeline.latest_time}~"
    calls: list[Callable[[], Collection[Any]]] = [partial(files_below, table.store, TIMELINE, after=after, until=":")]
    oldest = min((i for i in timeline.writes if i.begin >= timeline.first_active), key=lambda i: i.begin, default=None)
    if oldest is not None:
        calls.append(partial(table.store.list, f"{TIMELINE}/{oldest.file_name}"))
    newest, *first = concurrently(table.store, calls)
    later = Timeline.of(newest).instants
    if any(instant.action in (Action.CLEAN, Action.RESTORE) for instant in later) or not all(first):
        return True
    return bool(timeline.pending(Action.RESTORE)) and not timeline.written <= table.listed_timeline().written


def misses_file(error: Exception) -> bool:
    """Whether the error, or an engine's text in it, reports a missing file."""
    return isinstance(error, _GONE) or _SAID.search(str(error)) is not None
