"""Recovery: what dead writers and dead services left is rolled back, or finished.

Whoever's heartbeat has stopped is dead; its instant is rolled back, a rollback or restore of its is taken up. A
clustering that its maker was to run at once is taken back; one that was scheduled for others stays.

Source: RFC-22, lazy cleaning of failed writes.
"""

from __future__ import annotations

import contextlib

from fsspec_cas import CasError, ObjectNotFound
from lockprovider import LockError
from lockprovider.table.errors import Aborted, Corrupt, HistoryGone
from lockprovider.table.format.instant import Action
from lockprovider.table.format.layout import heartbeat_path
from lockprovider.table.format.service_metadata import decode_clustering_plan
from lockprovider.table.services import plans, restore, rollback
from lockprovider.table.services.plans import dead_among
from lockprovider.table.state.checkpoint import remove_ended
from lockprovider.table.state.context import TableContext
from lockprovider.table.state.heartbeat import last_beats
from lockprovider.table.timeline.timeline import Timeline

_STAYS_S = 60.0


def clean_dead(table: TableContext, timeline: Timeline, me: str) -> None:
    """Roll back the pending instants whose writers are dead; `me` is an instant with a fresh heartbeat.

    A cleaner that cannot get through leaves the work to the next one. With EAGER settings all of them count as dead.
    """
    with contextlib.suppress(CasError, LockError):
        if _suspects(timeline, {me}):
            _clean(table, timeline, {me}, eager=table.settings.is_eager)


def remove_ended_beats(table: TableContext, timeline: Timeline) -> None:
    """Remove the heartbeats of instants that ended at least a minute ago; `timeline` has what is pending.

    A JVM writer looks first whether a heartbeat is there, then how old it is, and fails its job if the file went in
    between. So where JVM writers are at work a heartbeat outlives its instant. What cannot be removed now stays.
    """
    with contextlib.suppress(CasError):
        beats_ms, now_ms = last_beats(table.store, table.memory, table.world)
        oldest_ms = now_ms - round(max(_STAYS_S, table.settings.heartbeat.tolerance_s) * 1000)
        pending = {*timeline.pending(*Action)}
        table.lock.discard(
            *(heartbeat_path(begin) for begin, ms in beats_ms.items() if ms < oldest_ms and begin not in pending)
        )


def take_back_dead_clustering(table: TableContext, planned: str) -> bool:
    """Take back a clustering that its maker was to run at once, and that nobody beats for; whether it is gone now.

    Raises:
        NotAcquired, CasError: the lock or the store; may be repeated.
    """
    with table.lock.acquire() as lease:
        if planned not in table.listed_timeline().pending(Action.CLUSTERING):
            return True
        if planned not in dead_among(table, [planned]) or not _is_owned(table, planned):
            return False
        plans.take_back(table, lease, planned, Action.CLUSTERING)
    table.tell("clustering_unscheduled", planned)
    return True


def _is_owned(table: TableContext, planned: str) -> bool:
    with contextlib.suppress(ObjectNotFound, Corrupt):
        return decode_clustering_plan(*plans.read_requested(table, planned, Action.CLUSTERING)).owned
    return False


def sweep(table: TableContext) -> tuple[str, ...]:
    """Roll back what dead writers left, and finish the rollbacks and restores of dead executors; their begin times.

    Also removes what is of no use to anybody: heartbeats and markers of those who died before their instant was
    pending, or after it was over.

    Raises:
        NotAcquired, CasError: the lock or the store; may be repeated.
    """
    now = table.listed_timeline()
    with plans.beating(table, now):  # a fresh heartbeat shows how late the others are
        done = _clean(table, now, set(), eager=False)
        _forget(table)
    return done


def roll_back_dead(table: TableContext, begin: str, *, force: bool) -> None:
    """Roll back one pending write, if its writer is dead; with `force` in any case.

    Raises:
        HistoryGone: there is no such pending write.
        Aborted: its writer is alive.
        NotAcquired, CasError: the lock or the store; may be repeated.
    """
    now = table.listed_timeline()
    if begin not in now.pending_writes:
        raise HistoryGone(f"{begin} is no pending write; to take back commits, use restore")
    if not force:
        with plans.beating(table, now):  # a fresh heartbeat shows how late the other is
            alive = begin not in dead_among(table, [begin])
        if alive:
            raise Aborted(f"the writer of {begin} is alive; wait for it, or force it (`--force`)")
    rollback.roll_back(table, begin)


def _forget(table: TableContext) -> None:
    silent = plans.silent(table)  # before the timeline is listed: one that begins meanwhile is not among them
    for begin in {*silent} - {*table.listed_timeline().pending(*Action)}:
        plans.remove_files(table, begin, ())
        table.store.delete(heartbeat_path(begin))
    table.lock.sweep_intents()
    remove_ended(table.store, table.lock)


def _clean(table: TableContext, timeline: Timeline, spared: set[str], *, eager: bool) -> tuple[str, ...]:
    restores, clusterings = timeline.pending(Action.RESTORE), timeline.pending(Action.CLUSTERING)
    suspects = _suspects(timeline, spared)
    found = tuple(sorted(suspects)) if eager else _dead(table, timeline, suspects)
    if found and not eager:  # one that has completed since it was listed has removed its heartbeat
        found = tuple(sorted({*found} & _suspects(table.listed_timeline(), spared)))
    found = tuple(begin for begin in found if begin not in clusterings or _is_owned(table, begin))
    for begin in found:
        if begin in clusterings:
            take_back_dead_clustering(table, begin)
        elif begin in restores:
            restore.finish_restore(table, begin)
        elif begin in timeline.pending_rollbacks:
            _finish(table, begin)
        else:
            rollback.roll_back(table, begin, only_if_dead=not eager)
    return found


def _suspects(timeline: Timeline, spared: set[str]) -> set[str]:
    services = *timeline.pending(Action.RESTORE), *timeline.pending(Action.CLUSTERING)
    return {*services, *timeline.pending_writes, *timeline.pending_rollbacks} - spared


def _dead(table: TableContext, now: Timeline, suspects: set[str]) -> tuple[str, ...]:
    """A JVM executor of a rollback may have no heartbeat: then it has as long as if it had one."""
    rollbacks = suspects & {*now.pending_rollbacks}
    left = rollbacks & {*plans.dead_plans(table, now, Action.ROLLBACK)} if rollbacks else rollbacks
    return tuple(sorted({*dead_among(table, suspects - rollbacks), *left}))


def _finish(table: TableContext, planned: str) -> None:
    """Take up a rollback whose cleaner died."""
    with table.lock.acquire() as lease:
        now = table.listed_timeline()
        if planned in now.pending_rollbacks:
            rollback.execute(table, lease, now, rollback.read_rollback_plan(table, planned).victim, fenced=True)
