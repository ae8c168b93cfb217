"""Whether a transaction's own work failed only because others were faster, so that another try may succeed.

The files of a snapshot go when others have committed since: replaced files are cleaned, old commits are archived, later
ones are taken back. Whoever reads by the snapshot meets a file that is not there, and in Spark only the text of that.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, TypeVar

from fsspec_cas import ObjectNotFound
from lockprovider.table.errors import HistoryGone, WriteConflict
from lockprovider.table.format.instant import Action
from lockprovider.table.format.layout import TIMELINE
from lockprovider.table.state.look_again import Stale
from lockprovider.table.state.parallel import at_once
from lockprovider.table.timeline.timeline import Timeline

if TYPE_CHECKING:
    from lockprovider.table.state.context import TableContext

T = TypeVar("T")

_GONE = (ObjectNotFound, HistoryGone)
_SAID = re.compile("^(?:{}): ".format("|".join(re.escape(f"{e.__module__}.{e.__name__}") for e in _GONE)), re.MULTILINE)


def unless_stale(table: TableContext, seen: Timeline, look: Callable[[], T]) -> T:
    """What `look` finds by `seen`, if all files that it may go by were there until its end.

    Raises:
        Stale: they may not have been.
    """
    try:
        found = look()
    except HistoryGone as error:
        if not is_stale(table, seen, error):
            raise
    else:
        if not has_gone_stale(table, seen):
            return found
    gone = f"the table at {table.url!r} is cleaned faster than its files are listed; keep more commits"
    raise Stale(HistoryGone(gone))


def is_stale(table: TableContext, seen: Timeline, error: Exception) -> bool:
    """Whether `error`, of work on the snapshot `seen`, is a conflict, or of a file that others have removed since."""
    if isinstance(error, WriteConflict):
        return True
    if not misses_file(error):
        return False
    return has_gone_stale(table, seen) or not seen.written <= table.listed_timeline().written


def has_gone_stale(table: TableContext, seen: Timeline) -> bool:
    """Whether files that are part of `seen` may have been removed since: by a clean planned later, or a restore.

    A clean that was planned before takes nothing that was the latest at `seen`. Also, whether `seen` may have holes:
    archival removes the oldest first, so that it has not begun to as long as the oldest is there.
    """
    calls = [
        partial(
            table.store.list, f"{TIMELINE}/", start_after=f"{TIMELINE}/{seen.latest_time}~", stop_at=f"{TIMELINE}/:"
        )
    ]
    oldest = min((i for i in seen.writes if i.begin >= seen.first_active), key=lambda i: i.begin, default=None)
    if oldest is not None:
        calls.append(partial(table.store.list, f"{TIMELINE}/{oldest.file_name}"))
    newest, *first = at_once(table.store, calls)
    later = Timeline.of(entry.path.rpartition("/")[2] for entry in newest)
    if any(instant.action in (Action.CLEAN, Action.RESTORE) for instant in later.instants) or [] in first:
        return True
    return bool(seen.pending(Action.RESTORE)) and not seen.written <= table.listed_timeline().written


def misses_file(error: Exception) -> bool:
    """Whether it says that a file of the table was not there, by its type or in an engine's report of a task."""
    return isinstance(error, _GONE) or _SAID.search(str(error)) is not None
