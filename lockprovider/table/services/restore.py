"""Restore: take back every commit that completed after another one, as if they had never been.

All of it happens under the table lock, the latest commit first, each by the removal of its completed file: readers see
the table as it was after one commit or another, never a part of one. A restore that dies leaves its plan; until
somebody has finished it, nobody commits. A writer whose snapshot had a commit that was taken back gives way with
`WriteConflict`; one that was pending is rolled back with the rest.

NOT promised: anything for JVM writers that run meanwhile; stop them first, as Hudi asks for its own restores.

Source: Hudi `RestorePlanActionExecutor`, `CopyOnWriteRestoreActionExecutor`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from lockprovider import Lease
from lockprovider.table.errors import HistoryGone
from lockprovider.table.format.instant import Action, Instant, InstantState
from lockprovider.table.format.layout import TIMELINE, heartbeat_path, names_by_partition
from lockprovider.table.format.service_metadata import (
    RestoreMetadata,
    RestorePlan,
    decode_restore_plan,
    encode_restore,
    encode_restore_plan,
)
from lockprovider.table.services import archive_files, plans
from lockprovider.table.services.metadata_table import retire
from lockprovider.table.services.savepoint import needed_by, savepoints
from lockprovider.table.state import archive_index
from lockprovider.table.state.as_of import reached
from lockprovider.table.state.context import writable_config
from lockprovider.table.timeline.timeline import Timeline
from lockprovider.table.timeline.versions import TableVersion, commit_of, refuse_none

if TYPE_CHECKING:
    from lockprovider.table.state.context import TableContext


@dataclass(frozen=True, slots=True)
class RestoreResult:
    """What a restore took back: begin times, the latest commit first.

    `instant` is its own begin time, empty if there was nothing to do. `target` and `completion` are the times of the
    commit that it made the last one.
    """

    instant: str
    target: str
    completion: str
    taken_back: tuple[str, ...]


def restore(table: TableContext, version: TableVersion) -> RestoreResult:
    """Make the last commit of `version` the last one of the table; a restore that died is finished first.

    Raises:
        InvalidInput: it names no version.
        HistoryGone: there is no such commit (any more), files that it needs were cleaned, or a later commit has a
            savepoint or was archived.
        UnsupportedTable: the table cannot be written here.
        Aborted: the table has a metadata table, which ends with this, and a write is pending, whose writer may be
            building it; nothing was changed.
        NotAcquired, LeaseLost, CasError: the lock or the store; may be repeated.
    """
    refuse_none(version)
    writable_config(table)
    with table.locked() as lease:
        archive_files.finish_removal(table, lease)
        for begin in table.listed_timeline().pending(Action.RESTORE):
            _carry_out(table, lease, begin, read_restore_plan(table, begin))
        now = table.listed_timeline()
        target = commit_of(now, version, reached(table))
        _check_archive(table, target)
        plan = RestorePlan(target.begin, tuple(_victims(now, target)))
        if not plan.victims:
            return RestoreResult("", target.begin, target.completion or "", ())
        _check_savepoints(table, now, plan)
        needed_by(table, now, target)
        if table.config().named_metadata:
            plans.check_no_write(table)
        with plans.beating(table, now) as begin:
            plans.put_plan(table, begin, Action.RESTORE, encode_restore_plan(plan), lease)
            return _carry_out(table, lease, begin, plan)


def finish_restore(table: TableContext, begin: str) -> None:
    """Finish the restore of an executor that died."""
    with table.lock.acquire() as lease:
        if begin in table.listed_timeline().pending(Action.RESTORE):
            _carry_out(table, lease, begin, read_restore_plan(table, begin))


def finish_left(table: TableContext, now: Timeline) -> bool:
    """Finish what dead executors have left, under the lock; whether there was any: then the timeline has changed."""
    left = plans.dead_plans(table, now, Action.RESTORE)
    for begin in left:
        finish_restore(table, begin)
    return bool(left)


def read_restore_plan(table: TableContext, begin: str) -> RestorePlan:
    """The plan of a restore that is not completed.

    Raises:
        Corrupt: it cannot be understood.
    """
    return decode_restore_plan(*plans.read_requested(table, begin, Action.RESTORE))


def _victims(now: Timeline, target: Instant) -> list[tuple[str, str]]:
    """What is pending first (nobody sees it), then what completed later, the latest first."""
    pending = [(begin, (now.pending_action(begin) or Action.COMMIT).value) for begin in now.unfinished]
    later = [i for i in reversed(now.writes) if (i.completion or "") > (target.completion or "")]
    return [*pending, *((instant.begin, instant.action.value) for instant in later)]


def _check_savepoints(table: TableContext, now: Timeline, plan: RestorePlan) -> None:
    kept = sorted(set(savepoints(table, now)) & {begin for begin, _ in plan.victims})
    if kept:
        raise HistoryGone(
            f"the restore to {plan.target} would take back {', '.join(kept)}, of which there are savepoints; "
            "delete those first, or restore to the last of them"
        )


def _check_archive(table: TableContext, target: Instant) -> None:
    """Archival goes by begin times: what began before the target may have completed after it."""
    reached = archive_index.reach(table.archived).completion
    if reached > (target.completion or ""):
        raise HistoryGone(
            f"a commit that completed at {reached}, after {target.begin}, was archived, and cannot be taken back; "
            "restore to a later commit"
        )


def _carry_out(table: TableContext, lease: Lease, begin: str, plan: RestorePlan) -> RestoreResult:
    started_s = table.world.monotonic_s()
    table.lock.wait_for_late()
    if table.config().named_metadata:
        retire(table, lease)  # it lists what is taken back
    files = plans.files_by_begin(table)
    now = table.listed_timeline()
    for victim, _ in plan.victims:
        lease.check()
        _take_back(table, now, victim, files.get(victim, ()))
    late = plans.files_by_begin(table)  # of tasks that wrote on until they saw that their instant is gone
    for path in (path for victim, _ in plan.victims for path in late.get(victim, ())):
        table.store.delete(path)
    deleted = {victim: names_by_partition(files.get(victim, ())) for victim, _ in plan.victims}
    took_ms = round((table.world.monotonic_s() - started_s) * 1000)
    data = encode_restore(RestoreMetadata(begin, plan, deleted, took_ms))
    plans.complete(table, lease, begin, Action.RESTORE, data)
    table.store.delete(heartbeat_path(begin))
    table.tell("restored", begin, target=plan.target, taken_back=len(plan.victims))
    completion = now.completions.get(plan.target, "")
    return RestoreResult(begin, plan.target, completion, tuple(victim for victim, _ in plan.victims))


def _take_back(table: TableContext, now: Timeline, victim: str, files: tuple[str, ...]) -> None:
    """The completed file first: with it the commit is gone for every reader."""
    states = [instant for instant in now.instants if instant.begin == victim and instant.changes_rows]
    for done in (instant for instant in states if instant.is_completed):
        table.store.delete(f"{TIMELINE}/{done.file_name}")
    plans.remove_files(table, victim, files)
    for state in (InstantState.INFLIGHT, InstantState.REQUESTED):
        for instant in (instant for instant in states if instant.state is state):
            table.store.delete(f"{TIMELINE}/{instant.file_name}")
    table.store.delete(heartbeat_path(victim))
