"""Restore: take back all commits that completed after a given one; and savepoints, which keep a commit's files.

Source: Hudi `RestorePlanActionExecutor`, `CopyOnWriteRestoreActionExecutor`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from lockprovider import Lease
from lockprovider.table.errors import HistoryGone
from lockprovider.table.format.instant import Action, Instant, InstantState
from lockprovider.table.format.layout import TIMELINE, heartbeat_path, names_by_partition
from lockprovider.table.format.metadata import Victim
from lockprovider.table.format.service_metadata import (
    RestorePlan,
    Savepoint,
    decode_clean_plan,
    decode_restore_plan,
    decode_savepoint,
    encode_restore,
    encode_restore_plan,
    encode_savepoint,
)
from lockprovider.table.services import archive_files, plans
from lockprovider.table.services.metadata_table import retire
from lockprovider.table.state import archive_index
from lockprovider.table.state.as_of import reached, snapshot_at
from lockprovider.table.state.context import writable_config
from lockprovider.table.timeline.timeline import Timeline
from lockprovider.table.timeline.versions import TableVersion, commit_of, refuse_none
from lockprovider.table.timeline.view import AsOf

if TYPE_CHECKING:
    from lockprovider.table.state.context import TableContext


@dataclass(frozen=True, slots=True)
class RestoreResult:
    """Result of a restore.

    Attributes:
        instant: begin time of the restore; empty if there was nothing to do.
        target: begin time of the commit that is now the last one.
        completion: completion time of that commit.
        taken_back: begin times of the removed instants, the latest commit first.
    """

    instant: str
    target: str
    completion: str
    taken_back: tuple[str, ...]


def restore(table: TableContext, version: TableVersion) -> RestoreResult:
    """Finish a dead archival and all pending restores, then undo pending writes and all commits after `version`.

    Holds the lock throughout. Returns an empty `instant` if nothing is to be undone. See `Table.restore`.
    """
    refuse_none(version)
    writable_config(table)
    with table.locked() as lease:
        archive_files.finish_removal(table, lease)
        for begin in table.listed_timeline().pending(Action.RESTORE):
            _carry_out(table, lease, begin, read_restore_plan(table, begin))
        timeline = table.listed_timeline()
        target = commit_of(timeline, version, reached(table))
        _check_archive(table, target)
        plan = RestorePlan(target.begin, tuple(_victims(timeline, target)))
        if not plan.victims:
            return RestoreResult("", target.begin, target.completion or "", ())
        _check_savepoints(table, timeline, plan)
        files_needed_by(table, timeline, target)
        if table.config().named_metadata:
            plans.check_no_write(table)
        with plans.claim_with_heartbeat(table, timeline) as begin:
            plans.put_plan(table, begin, Action.RESTORE, encode_restore_plan(plan), lease)
            return _carry_out(table, lease, begin, plan)


def finish_restore(table: TableContext, begin: str) -> None:
    """Finish the pending restore `begin` of a dead executor, under the lock; does nothing if it is not pending."""
    with table.lock.acquire() as lease:
        if begin in table.listed_timeline().pending(Action.RESTORE):
            _carry_out(table, lease, begin, read_restore_plan(table, begin))


def finish_dead_restores(table: TableContext, timeline: Timeline) -> bool:
    """Finish the restores of dead executors, under the lock; return whether any existed."""
    dead = plans.dead_plans(table, timeline, Action.RESTORE)
    for begin in dead:
        finish_restore(table, begin)
    return bool(dead)


def read_restore_plan(table: TableContext, begin: str) -> RestorePlan:
    """Read the plan of an uncompleted restore; may raise `Corrupt`."""
    return decode_restore_plan(*plans.read_requested(table, begin, Action.RESTORE))


def _victims(timeline: Timeline, target: Instant) -> list[Victim]:
    """Return the instants to remove: pending ones, then later commits, latest first."""
    pending = [Victim(begin, (timeline.pending_action(begin) or Action.COMMIT).value) for begin in timeline.unfinished]
    later = [i for i in reversed(timeline.writes) if (i.completion or "") > (target.completion or "")]
    return [*pending, *(Victim(instant.begin, instant.action.value) for instant in later)]


def _check_savepoints(table: TableContext, timeline: Timeline, plan: RestorePlan) -> None:
    """Read all savepoints; raise `HistoryGone` if the plan would undo a commit that has one."""
    saved = sorted(set(savepoints(table, timeline)) & {begin for begin, _ in plan.victims})
    if saved:
        raise HistoryGone(
            f"the restore to {plan.target} would undo {', '.join(saved)}, which have savepoints; "
            "delete these savepoints first, or restore to the last of them"
        )


def _check_archive(table: TableContext, target: Instant) -> None:
    """Raise `HistoryGone` if a commit that completed after `target` was archived, and so cannot be undone."""
    reached = archive_index.reach(table.knowledge).completion
    if reached > (target.completion or ""):
        raise HistoryGone(
            f"a commit that completed at {reached}, after {target.begin}, was archived, and cannot be undone; "
            "restore to a later commit"
        )


def _carry_out(table: TableContext, lease: Lease, begin: str, plan: RestorePlan) -> RestoreResult:
    """Delete any metadata table and the plan's victims with their files; then complete the restore.

    Waits for late publishes first. Repeat it after `LeaseLost`.
    """
    started_s = table.world.monotonic_s()
    table.lock.wait_for_late()
    if table.config().named_metadata:
        retire(table, lease)  # It lists commits that are removed here.
    files = plans.files_by_begin(table)
    timeline = table.listed_timeline()
    # Commits go one by one, the latest first: readers see the table after some commit, never a part of one.
    for victim, _ in plan.victims:
        lease.check()
        _take_back(table, timeline, victim, files.get(victim, ()))
    late = plans.files_by_begin(table)  # Tasks may have written until they saw their instant gone.
    table.store.delete_all([path for victim, _ in plan.victims for path in late.get(victim, ())])
    took_ms = round((table.world.monotonic_s() - started_s) * 1000)
    data = encode_restore(begin, plan.victims, files, took_ms)
    plans.complete(table, lease, begin, Action.RESTORE, data)
    table.store.delete(heartbeat_path(begin))
    table.report("restored", begin, target=plan.target, taken_back=len(plan.victims))
    completion = timeline.completions.get(plan.target, "")
    return RestoreResult(begin, plan.target, completion, tuple(victim for victim, _ in plan.victims))


def _take_back(table: TableContext, timeline: Timeline, victim: str, files: tuple[str, ...]) -> None:
    """Delete one instant with files, markers and heartbeat; its completed file goes first and hides the commit."""
    for done in (i for i in timeline.begun_at(victim) if i.is_completed and i.changes_rows):
        table.store.delete(f"{TIMELINE}/{done.file_name}")
    plans.remove_files(table, victim, files)
    plans.remove_pending(table, timeline, victim)
    table.store.delete(heartbeat_path(victim))


# Source of savepoints: Hudi `SavepointActionExecutor`, `SavepointHelpers`.
def savepoints(table: TableContext, timeline: Timeline) -> dict[str, Savepoint]:
    """Read all savepoints by the begin time of their commit, oldest first; one deleted since `timeline` is empty.

    May raise `Corrupt`.
    """
    saved = (i for i in timeline.instants if i.action is Action.SAVEPOINT and i.is_completed)
    contents = (
        (i, table.store.read_or_none(f"{TIMELINE}/{i.file_name}")) for i in sorted(saved, key=lambda i: i.begin)
    )
    return {
        i.begin: Savepoint("", 0, "", {}) if content is None else decode_savepoint(content.data, i.file_name)
        for i, content in contents
    }


def create_savepoint(
    table: TableContext, version: TableVersion | None, *, user: str, comment: str
) -> tuple[str, Savepoint]:
    """Store a savepoint under the lock, or return the existing one unchanged; see `Table.savepoint`.

    First finishes a dead archival. The savepoint lists all files that readers of the commit need.
    """
    writable_config(table)
    with table.lock.acquire() as lease:
        archive_files.finish_removal(table, lease)
        timeline = table.listed_timeline()
        target = commit_of(timeline, version, reached(table))
        existing = savepoints(table, timeline).get(target.begin)
        if existing is not None:
            return target.begin, existing
        names = names_by_partition(sorted(files_needed_by(table, timeline, target)))
        savepoint = Savepoint(user, table.world.now_ms(), comment, names)
        inflight = Instant(target.begin, Action.SAVEPOINT, InstantState.INFLIGHT)
        table.store.put_if_absent(f"{TIMELINE}/{inflight.file_name}", b"", create_once=True)
        plans.complete(table, lease, target.begin, Action.SAVEPOINT, encode_savepoint(savepoint))
    table.report("savepoint", target.begin)
    return target.begin, savepoint


def delete_savepoint(table: TableContext, version: TableVersion) -> bool:
    """Delete a commit's savepoint under the lock; return False if it has none.

    `version` may be the savepoint's begin time. Unknown commits raise `HistoryGone`.
    """
    refuse_none(version)
    with table.lock.acquire():
        timeline = table.listed_timeline()
        saved = [i for i in timeline.instants if i.action is Action.SAVEPOINT]
        begin = (
            version if any(i.begin == version for i in saved) else commit_of(timeline, version, reached(table)).begin
        )
        states = [i for i in saved if i.begin == begin]
        for state in sorted(states, key=lambda i: not i.is_completed):
            table.store.delete(f"{TIMELINE}/{state.file_name}")
    return bool(states)


def files_needed_by(table: TableContext, timeline: Timeline, target: Instant) -> frozenset[str]:
    """Return the paths that a read as of `target` needs, under the lock.

    Raises `HistoryGone` if some were cleaned, or a planned clean removes them.
    """
    by_completion = snapshot_at(table, timeline, AsOf(target.completion or "")).slices
    by_begin = snapshot_at(table, timeline, AsOf(target.begin, "begin")).slices
    needed = frozenset(path for slice_ in (*by_completion, *by_begin) for path in slice_.paths)
    planned = _planned_removals(table, timeline) & needed
    if planned:
        raise HistoryGone(
            f"commit {target.begin} needs {len(planned)} files that a planned clean is about to remove, "
            f"such as {min(planned)!r}; choose a later commit"
        )
    return needed


def _planned_removals(table: TableContext, timeline: Timeline) -> frozenset[str]:
    requested = (plans.read_requested(table, begin, Action.CLEAN) for begin in timeline.pending(Action.CLEAN))
    return frozenset(path for data, name in requested for path in decode_clean_plan(data, name).paths)
