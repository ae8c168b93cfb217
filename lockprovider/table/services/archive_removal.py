"""Archived instants leave the timeline: what an archiver removes, and what it had no time to.

Pending states go first, of all of them: without its completed file an instant looks pending, and its rows are gone.
Then the completed files, one by one, oldest first, so that at every moment what is there is younger than what is gone.
A listing that goes on meanwhile can still miss one behind another that it has seen; `stale.has_gone_stale` tells.

Source: Hudi `TimelineArchiverV2.deleteArchivedActions`.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from lockprovider import Lease
from lockprovider.table.format.instant import Action, Instant
from lockprovider.table.format.layout import TIMELINE
from lockprovider.table.services import archive_files
from lockprovider.table.state import archive_index
from lockprovider.table.timeline.archival import BESIDES, Archivable
from lockprovider.table.timeline.timeline import Timeline

if TYPE_CHECKING:
    from lockprovider.table.state.context import TableContext


def finish_removal(table: TableContext, lease: Lease) -> None:
    """Under the lock: finish what an archiver that died has decided. A few requests if there is nothing to do."""
    history = archive_files.settle(table, lease)
    if not history.files:
        return
    now = table.listed_timeline()
    kept = {instant.begin for instant in now.instants if instant.action is Action.SAVEPOINT}
    may = (i for i in now.instants if i.is_completed and (i.changes_rows or i.action in BESIDES))
    done = [instant for instant in may if instant.begin not in kept]
    oldest = min((instant.begin for instant in done), default="~")
    there = {instant.file_name for instant in archive_index.instants_since(table.archived, oldest)}
    remove_archived(table, lease, [_whole(now, instant) for instant in done if instant.file_name in there])


def remove_archived(table: TableContext, lease: Lease, actions: Iterable[Archivable]) -> None:
    """Take these instants, which are in the archive, off the timeline; may be repeated.

    Raises:
        LeaseLost: others may list the timeline and rely on it; whoever archives next goes on.
    """
    found = list(actions)
    if found:
        table.lock.wait_for_late()  # a commit that came back would hide all that is archived and younger
    lease.check()
    table.store.delete_all([f"{TIMELINE}/{i.file_name}" for action in found for i in action.pending])
    for name in sorted(i.file_name for action in found for i in action.completed):
        lease.check()
        table.store.delete(f"{TIMELINE}/{name}")


def _whole(now: Timeline, done: Instant) -> Archivable:
    """A completed instant with its other states."""
    return Archivable.of(i for i in now.instants if i.begin == done.begin and _is_same(i, done))


def _is_same(one: Instant, done: Instant) -> bool:
    return (one.changes_rows and done.changes_rows) or one.action is done.action
