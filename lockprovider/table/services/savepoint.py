"""Savepoints: a commit whose files no clean takes, so that the table can be read as of it, or restored to it.

A savepoint has the begin time of its commit. It lists every file that an as-of to the commit needs, by completion as by
begin.

Source: Hudi `SavepointActionExecutor`, `SavepointHelpers`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from lockprovider.table.errors import HistoryGone
from lockprovider.table.format.instant import Action, Instant, InstantState
from lockprovider.table.format.layout import TIMELINE, names_by_partition
from lockprovider.table.format.service_metadata import Savepoint, decode_clean_plan, decode_savepoint, encode_savepoint
from lockprovider.table.services import archive_files
from lockprovider.table.services.plans import complete, read_requested
from lockprovider.table.state.as_of import reached, snapshot_at
from lockprovider.table.state.context import writable_config
from lockprovider.table.timeline.timeline import Timeline
from lockprovider.table.timeline.versions import TableVersion, commit_of, refuse_none
from lockprovider.table.timeline.view import AsOf

if TYPE_CHECKING:
    from lockprovider.table.state.context import TableContext


def savepoints(table: TableContext, now: Timeline) -> dict[str, Savepoint]:
    """All savepoints by the begin time of their commit, oldest first.

    Raises:
        Corrupt: one cannot be understood.
    """
    found = (i for i in now.instants if i.action is Action.SAVEPOINT and i.is_completed)
    return {instant.begin: _read(table, instant) for instant in sorted(found, key=lambda instant: instant.begin)}


def save(table: TableContext, version: TableVersion | None, *, user: str, comment: str) -> tuple[str, Savepoint]:
    """Make a savepoint of the last commit of `version` (None: of the last one); an existing one is returned.

    Raises:
        InvalidInput: it names no version.
        HistoryGone: there is no such commit, or files that it needs were cleaned or are about to be.
        UnsupportedTable: the table cannot be written here.
        NotAcquired, CasError: the lock or the store; may be repeated.
    """
    writable_config(table)
    with table.lock.acquire() as lease:
        archive_files.finish_removal(table, lease)
        now = table.listed_timeline()
        target = commit_of(now, version, reached(table))
        known = savepoints(table, now).get(target.begin)
        if known is not None:
            return target.begin, known
        names = names_by_partition(sorted(needed_by(table, now, target)))
        made = Savepoint(user, table.world.now_ms(), comment, names)
        inflight = Instant(target.begin, Action.SAVEPOINT, InstantState.INFLIGHT)
        table.store.put_if_absent(f"{TIMELINE}/{inflight.file_name}", b"", create_once=True)
        complete(table, lease, target.begin, Action.SAVEPOINT, encode_savepoint(made))
    table.tell("savepoint", target.begin)
    return target.begin, made


def delete_savepoint(table: TableContext, version: TableVersion) -> bool:
    """Let the files of the savepoint of a commit be cleaned again; False if it has none.

    Raises:
        InvalidInput: it names no version.
        NotAcquired, CasError: the lock or the store; may be repeated.
    """
    refuse_none(version)
    with table.lock.acquire():
        now = table.listed_timeline()
        saved = [i for i in now.instants if i.action is Action.SAVEPOINT]
        begin = version if any(i.begin == version for i in saved) else commit_of(now, version, reached(table)).begin
        mine = [i for i in saved if i.begin == begin]
        for state in sorted(mine, key=lambda i: not i.is_completed):
            table.store.delete(f"{TIMELINE}/{state.file_name}")
    return bool(mine)


def needed_by(table: TableContext, now: Timeline, target: Instant) -> frozenset[str]:
    """The paths of the files that an as-of to `target` needs; asked under the lock.

    Raises:
        HistoryGone: some were cleaned, or a clean that is planned removes them.
    """
    by_completion = snapshot_at(table, now, AsOf(target.completion or "")).slices
    by_begin = snapshot_at(table, now, AsOf(target.begin, "begin")).slices
    needed = frozenset(path for slice_ in (*by_completion, *by_begin) for path in slice_.paths)
    going = _planned(table, now) & needed
    if going:
        raise HistoryGone(
            f"commit {target.begin} needs {len(going)} files that a planned clean is about to remove, "
            f"such as {min(going)!r}; choose a later commit"
        )
    return needed


def _planned(table: TableContext, now: Timeline) -> frozenset[str]:
    plans = (decode_clean_plan(*read_requested(table, begin, Action.CLEAN)) for begin in now.pending(Action.CLEAN))
    return frozenset(path for plan in plans for path in plan.paths)


def _read(table: TableContext, instant: Instant) -> Savepoint:
    name = instant.file_name
    content = table.store.read_or_none(f"{TIMELINE}/{name}")
    if content is None:
        return Savepoint("", 0, "", {})  # deleted just now
    return decode_savepoint(content.data, name)
