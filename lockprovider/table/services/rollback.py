"""Rollback of pending instants, restore, and sweep.

Source: Hudi `BaseRollbackActionExecutor`; RFC-22, lazy cleaning of failed writes; `RestorePlanActionExecutor`,
`CopyOnWriteRestoreActionExecutor`.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from fsspec_cas import CasError, ObjectNotFound
from lockprovider import Lease, LockError
from lockprovider.table.errors import Aborted, Corrupt, HistoryGone
from lockprovider.table.format.layout import TIMELINE, Action, Instant, heartbeat_path
from lockprovider.table.format.service_metadata import (
    RestorePlan,
    Victim,
    decode_clustering_plan,
    decode_restore_plan,
    encode_restore,
    encode_restore_plan,
    encode_rollback,
    encode_rollback_plan,
)
from lockprovider.table.services import archive_files, clean, metadata_table, plans
from lockprovider.table.state import archive_index
from lockprovider.table.state.checkpoint import remove_ended
from lockprovider.table.state.context import writable_config
from lockprovider.table.state.heartbeat import last_beats
from lockprovider.table.state.parallel import files_below
from lockprovider.table.timeline.timeline import Timeline
from lockprovider.table.timeline.versions import TableVersion, commit_of, refuse_none

if TYPE_CHECKING:
    from lockprovider.table.state.context import TableContext

_STAYS_S = 60.0


def roll_back(table: TableContext, begin: str, *, only_if_dead: bool = False, own: bool = False) -> None:
    """Delete a pending write under the lock, record the rollback, and report it; ignore other instants.

    `only_if_dead` spares live writers and live rollbacks. `own`: the caller is its writer; its files go even if others
    roll or rolled it back. With neither, takes over a live rollback.
    """
    with table.lock.acquire() as lease:
        timeline = table.listed_timeline()
        if timeline.written_at(begin) is not None:
            return
        if not timeline.pending_files(begin):
            if own and not archive_index.completions(table.knowledge, [begin]):  # Rolled back while this writer wrote.
                plans.remove_files(table, begin, files_of(table, begin))
                plans.unlist(table, begin)
            return
        if only_if_dead and not plans.dead_among(table, {begin}):
            return
        # Unless forced, a live rollback goes on: a JVM process fails if overtaken.
        planned = table.current.pending_rollback_of(timeline, begin) if own or only_if_dead else None
        if planned is not None and planned not in plans.dead_plans(table, timeline, Action.ROLLBACK):
            if own:
                plans.remove_files(table, begin, files_of(table, begin))  # Their plan lacks files written after it.
            return
        execute_rollback(table, lease, timeline, begin, fenced=not own)
    table.report("rolled_back", begin)


def roll_back_own(table: TableContext, begin: str, files: Sequence[str]) -> bool:
    """Remove the caller's own pending instant without the lock, and without a trace on the timeline; report it.

    `files` must be all its files, and no other writer able to commit it. Returns False, removing nothing, if it is
    completed, missing, or being rolled back.
    """
    # A rollback begins after its victim.
    timeline = Timeline.of(files_below(table.store, TIMELINE, after=begin, until=":"))
    if (
        not timeline.pending_files(begin)
        or timeline.written_at(begin) is not None
        or table.current.pending_rollback_of(timeline, begin) is not None
    ):
        return False
    table.store.delete_all(files)
    plans.remove_pending(table, timeline, begin)
    table.report("rolled_back", begin)
    return True


def execute_rollback(table: TableContext, lease: Lease, timeline: Timeline, victim: str, *, fenced: bool) -> None:
    """Roll back the uncompleted `victim`, or finish its rollback, and record it, under `lease`.

    Deletes metadata table entries, files, markers, pending states, heartbeats. `fenced`: publish the plan by the lease;
    `victim`'s writer may live.
    """
    files = files_of(table, victim)
    begin = table.current.pending_rollback_of(timeline, victim)
    if begin is None:
        named = Victim(victim, _action_of(timeline, victim))
        begin = plan_rollback(table, timeline, named, files, lease if fenced else None)
    else:
        named = table.current.victim_of(begin)
    plans.unlist(table, victim)
    plans.remove_files(table, victim, files)
    plans.remove_pending(table, timeline, victim)  # From here on the victim's writer does not commit.
    # A task still writing removes its file as its instant is gone, or it is listed now.
    table.store.delete_all(files_of(table, victim))
    table.store.delete(heartbeat_path(victim))
    plans.complete(table, lease, begin, Action.ROLLBACK, encode_rollback(begin, named, files))
    table.store.delete(heartbeat_path(begin))


def plan_rollback(
    table: TableContext, timeline: Timeline, victim: Victim, files: Sequence[str], lease: Lease | None
) -> str:
    """Store a rollback plan that names these files; return its begin time, whose heartbeat file stays."""
    begin, plan = plans.claim_time(table, timeline), encode_rollback_plan(victim, files, table.url.rstrip("/"))
    plans.put_plan(table, begin, Action.ROLLBACK, plan, lease)
    return begin


def _action_of(timeline: Timeline, begin: str) -> str:
    return (timeline.pending_action(begin) or Action.COMMIT).value


def files_of(table: TableContext, begin: str) -> tuple[str, ...]:
    """Like `files_by_begin`, of one instant."""
    return plans.files_by_begin(table).get(begin, ())


def recover_dead(table: TableContext, timeline: Timeline, me: str) -> None:
    """Roll back or finish dead writers' pending instants (EAGER: all), except `me`.

    Ignores errors of lock and store, and rollbacks of completed commits.
    """
    with contextlib.suppress(CasError, LockError, Aborted):
        _recover(table, timeline, {me}, eager=table.settings.is_eager)


def remove_ended_beats(table: TableContext, timeline: Timeline) -> None:
    """Delete in the background old heartbeats of instants not pending, ignoring store errors.

    `timeline` must have all pending instants.
    """
    with contextlib.suppress(CasError):
        beats_ms, now_ms = last_beats(table.store, table.knowledge, table.world)
        oldest_ms = now_ms - round(max(_STAYS_S, table.settings.heartbeat.tolerance_s) * 1000)
        old = {begin for begin, ms in beats_ms.items() if ms < oldest_ms} - {*timeline.pending(*Action)}
        table.lock.discard(*map(heartbeat_path, sorted(old)))


def take_back_dead_clustering(table: TableContext, planned: str) -> bool:
    """Remove and report, under the lock, a clustering that a dead process was to run itself.

    Returns whether it is gone; else its process lives, or any process may run it.
    """
    with table.lock.acquire() as lease:
        if planned not in table.listed_timeline().pending(Action.CLUSTERING):
            return True
        if planned not in plans.dead_among(table, [planned]) or not _is_owned(table, planned):
            return False
        plans.remove_plan(table, lease, planned, Action.CLUSTERING)
    table.report("clustering_unscheduled", planned)
    return True


def _is_owned(table: TableContext, planned: str) -> bool:
    with contextlib.suppress(ObjectNotFound, Corrupt):
        return decode_clustering_plan(*plans.read_requested(table, planned, Action.CLUSTERING)).owned
    return False


def sweep(table: TableContext) -> tuple[str, ...]:
    """Roll back or finish dead writers' instants, each under the lock, and return their begin times.

    Deletes left markers, heartbeats, intents and checkpoints. At the end raises `Aborted` if a dead rollback would undo
    a completed commit.
    """
    timeline = table.listed_timeline()
    # Its heartbeat shows the store's time, so the others' age.
    with plans.claim_with_heartbeat(table, timeline):
        try:
            return _recover(table, timeline, set(), eager=False)
        finally:
            _remove_leftovers(table)


def roll_back_dead(table: TableContext, begin: str, *, force: bool) -> None:
    """Roll back one pending write under the lock if its writer is dead, or with `force`.

    Takes over a live rollback. Raises `HistoryGone` if the write is not pending, `Aborted` if its writer is alive.
    """
    timeline = table.listed_timeline()
    if begin not in timeline.pending_writes:
        raise HistoryGone(f"{begin} is no pending write; to take back commits, use restore")
    if not force:
        with plans.claim_with_heartbeat(table, timeline):
            alive = begin not in plans.dead_among(table, [begin])
        if alive:
            raise Aborted(f"the writer of {begin} is alive; wait for it, or give force=True (`--force`)")
    roll_back(table, begin)


def _remove_leftovers(table: TableContext) -> None:
    """Delete silent, not pending instants' markers and heartbeats, dead intents, and ended logs' checkpoints."""
    silent = plans.silent_begins(table)  # First: a write may begin before the timeline is listed.
    for begin in {*silent} - {*table.listed_timeline().pending(*Action)}:
        plans.remove_files(table, begin, ())
        table.store.delete(heartbeat_path(begin))
    table.lock.sweep_intents()
    remove_ended(table.store, table.lock)


def _recover(table: TableContext, timeline: Timeline, spared: set[str], *, eager: bool) -> tuple[str, ...]:
    """Roll back dead writers, finish dead rollbacks and restores, remove dead `owned` clusterings; except `spared`.

    Takes the lock for each. `eager`: live ones count as dead, except clusterings. Returns begin times, oldest first,
    also of those then left alone. Raises `Aborted` at the end if a rollback would undo a completed commit.
    """
    restores, clusterings = timeline.pending(Action.RESTORE), timeline.pending(Action.CLUSTERING)
    suspects = _suspects(timeline, spared)
    dead = tuple(sorted(suspects)) if eager else _dead(table, timeline, suspects)
    if dead and not eager:  # One that completed since has no heartbeat.
        dead = tuple(sorted({*dead} & _suspects(table.listed_timeline(), spared)))
    dead = tuple(begin for begin in dead if begin not in clusterings or _is_owned(table, begin))
    refused: list[Aborted] = []
    for begin in dead:
        if begin in clusterings:
            take_back_dead_clustering(table, begin)
        elif begin in restores:
            finish_restore(table, begin)
        elif begin in timeline.pending_rollbacks:
            try:
                _finish_rollback(table, timeline, begin)
            except Aborted as error:
                refused.append(error)
        else:
            roll_back(table, begin, only_if_dead=not eager)
    if refused:
        raise refused[0]
    return dead


def _suspects(timeline: Timeline, spared: set[str]) -> set[str]:
    services = *timeline.pending(Action.RESTORE), *timeline.pending(Action.CLUSTERING)
    return {*services, *timeline.pending_writes, *timeline.pending_rollbacks} - spared


def _dead(table: TableContext, timeline: Timeline, suspects: set[str]) -> tuple[str, ...]:
    rollbacks = suspects & {*timeline.pending_rollbacks}
    dead_rollbacks = rollbacks & {*plans.dead_plans(table, timeline, Action.ROLLBACK)} if rollbacks else rollbacks
    return tuple(sorted({*plans.dead_among(table, suspects - rollbacks), *dead_rollbacks}))


def _finish_rollback(table: TableContext, timeline: Timeline, planned: str) -> None:
    """Acquire the lock, and finish the rollback `planned` if pending; without its plan, only delete its states.

    Raises `Aborted`, changing nothing, if its target is completed or archived; without the lock if `timeline` tells.
    """
    _victim_to_undo(table, timeline, planned)
    with table.lock.acquire() as lease:
        timeline = table.listed_timeline()
        if planned not in timeline.pending_rollbacks:
            return
        if victim := _victim_to_undo(table, timeline, planned):
            execute_rollback(table, lease, timeline, victim, fenced=True)
        else:
            rest = [i for i in timeline.begun_at(planned) if i.action is Action.ROLLBACK]
            table.store.delete_all([f"{TIMELINE}/{i.file_name}" for i in rest])


def _victim_to_undo(table: TableContext, timeline: Timeline, planned: str) -> str:
    """Read the target of the rollback `planned`, empty without its plan.

    `Aborted`: this target is completed or archived.
    """
    victim = table.current.victim_of(planned).begin
    if victim and (timeline.written_at(victim) is not None or archive_index.completions(table.knowledge, [victim])):
        raise Aborted(
            f"the dead rollback {planned} would undo {victim}, which is completed: let JVM Hudi finish it, or "
            f"delete {TIMELINE}/{planned}.rollback.* to keep the commit"
        )
    return victim


@dataclass(frozen=True, slots=True)
class RestoreResult:
    """Result of a restore.

    Attributes:
        instant: its begin time; empty if nothing to do.
        target, completion: begin and completion time of the now last commit.
        taken_back: begin times of the removed instants, the latest commit first.
    """

    instant: str
    target: str
    completion: str
    taken_back: tuple[str, ...]


def restore(table: TableContext, version: TableVersion) -> RestoreResult:
    """Undo all writes after `version`, also pending ones, under the lock; first finish dead archivals and restores.

    If it undoes any, deletes the metadata table. Raises `HistoryGone` if `version` or its files are gone, or a later
    write was archived or has a savepoint. Raises `Aborted` for a pending write with a metadata table.
    """
    refuse_none(version)
    writable_config(table)
    with table.locked() as lease:
        archive_files.finish_removal(table, lease)
        for begin in table.listed_timeline().pending(Action.RESTORE):
            _carry_out_restore(table, lease, begin, read_restore_plan(table, begin))
        timeline = table.listed_timeline()
        target = commit_of(timeline, version, table.current.last_archived)
        _check_archive(table, target)
        pending = (Victim(begin, _action_of(timeline, begin)) for begin in timeline.unfinished)
        later = (i for i in reversed(timeline.writes) if (i.completion or "") > (target.completion or ""))
        plan = RestorePlan(target.begin, (*pending, *(Victim(i.begin, i.action.value) for i in later)))
        if not plan.victims:
            return RestoreResult("", target.begin, target.completion or "", ())
        _check_savepoints(table, timeline, plan)
        clean.files_needed_by(table, timeline, target)
        if table.config().named_metadata:
            plans.check_no_write(table)
        with plans.claim_with_heartbeat(table, timeline) as begin:
            plans.put_plan(table, begin, Action.RESTORE, encode_restore_plan(plan), lease)
            return _carry_out_restore(table, lease, begin, plan)


def finish_restore(table: TableContext, begin: str) -> None:
    """Finish a dead executor's restore under the lock, if pending."""
    with table.lock.acquire() as lease:
        if begin in table.listed_timeline().pending(Action.RESTORE):
            _carry_out_restore(table, lease, begin, read_restore_plan(table, begin))


def finish_dead_restores(table: TableContext, timeline: Timeline) -> bool:
    """Finish dead executors' restores, each under the lock; return whether any existed."""
    dead = plans.dead_plans(table, timeline, Action.RESTORE)
    for begin in dead:
        finish_restore(table, begin)
    return bool(dead)


def read_restore_plan(table: TableContext, begin: str) -> RestorePlan:
    return decode_restore_plan(*plans.read_requested(table, begin, Action.RESTORE))


def _check_savepoints(table: TableContext, timeline: Timeline, plan: RestorePlan) -> None:
    saved = sorted(set(clean.savepoints(table, timeline)) & {begin for begin, _ in plan.victims})
    if saved:
        raise HistoryGone(
            f"the restore to {plan.target} would undo {', '.join(saved)}, which have savepoints; "
            "delete these savepoints first, or restore to the last of them"
        )


def _check_archive(table: TableContext, target: Instant) -> None:
    reached = archive_index.reach(table.knowledge).completion
    if reached > (target.completion or ""):
        raise HistoryGone(
            f"a commit that completed at {reached}, after {target.begin}, was archived, and cannot be undone; "
            "restore to a later commit"
        )


def _carry_out_restore(table: TableContext, lease: Lease, begin: str, plan: RestorePlan) -> RestoreResult:
    """Delete any metadata table, then the plan's victims with their files; complete and report the restore.

    First waits until no publish can appear late.
    """
    started_s = table.world.monotonic_s()
    table.lock.wait_for_late()
    if table.config().named_metadata:
        metadata_table.retire(table, lease)
    files = plans.files_by_begin(table)
    timeline = table.listed_timeline()
    # Readers see the table after some commit, never a part of one.
    for victim, _ in plan.victims:
        lease.check()
        _undo(table, timeline, victim, files.get(victim, ()))
    late = plans.files_by_begin(table)  # Tasks may have written until they saw their instant gone.
    table.store.delete_all([path for victim, _ in plan.victims for path in late.get(victim, ())])
    took_ms = round((table.world.monotonic_s() - started_s) * 1000)
    data = encode_restore(begin, plan.victims, files, took_ms)
    plans.complete(table, lease, begin, Action.RESTORE, data)
    table.store.delete(heartbeat_path(begin))
    table.report("restored", begin, target=plan.target, taken_back=len(plan.victims))
    completion = timeline.completions.get(plan.target, "")
    return RestoreResult(begin, plan.target, completion, tuple(victim for victim, _ in plan.victims))


def _undo(table: TableContext, timeline: Timeline, victim: str, files: tuple[str, ...]) -> None:
    for done in (i for i in timeline.begun_at(victim) if i.is_completed and i.changes_rows):
        table.store.delete(f"{TIMELINE}/{done.file_name}")
    plans.remove_files(table, victim, files)
    plans.remove_pending(table, timeline, victim)
    table.store.delete(heartbeat_path(victim))
