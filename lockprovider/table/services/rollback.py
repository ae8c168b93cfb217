"""Rollback of uncommitted instants: a writer's own that lost, or a dead writer's; the sweep of other leftovers.

An instant that another writer may commit is rolled back under the table lock, so two cleaners do not meet. Each step
may be repeated: the next cleaner finishes the plan of a dead one. The timeline shows it as Hudi writes it: its plan,
then its completion, without the victim's own files.

A writer removes its own instant that no other can commit (`take_back_alone`). That takes no lock, so the lock's log
continues, and leaves no trace on the timeline.

Source: Hudi `BaseRollbackActionExecutor`; RFC-22, lazy cleaning of failed writes.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import TYPE_CHECKING

from fsspec_cas import CasError, ObjectNotFound
from lockprovider import Lease, LockError
from lockprovider.table.errors import Aborted, Corrupt, HistoryGone
from lockprovider.table.format.instant import Action, Instant, InstantState
from lockprovider.table.format.layout import TIMELINE, heartbeat_path
from lockprovider.table.format.metadata import Victim, decode_rollback_plan, encode_rollback, encode_rollback_plan
from lockprovider.table.format.service_metadata import decode_clustering_plan
from lockprovider.table.services import listing, plans, restore
from lockprovider.table.services.plans import dead_among
from lockprovider.table.state.checkpoint import remove_ended
from lockprovider.table.state.context import TableContext
from lockprovider.table.state.heartbeat import last_beats
from lockprovider.table.state.parallel import files_below
from lockprovider.table.timeline.timeline import Timeline

if TYPE_CHECKING:
    from lockprovider.table.state.context import TableContext


def roll_back(table: TableContext, begin: str, *, only_if_dead: bool = False, own: bool = False) -> None:
    """Remove a pending instant and all its files, under the lock; a completed or removed one is left unchanged.

    `own`: the caller is its writer, so no other writer can commit it in that time.

    Raises:
        NotAcquired, CasError: the lock or the store failed; may be repeated.
    """
    with table.lock.acquire() as lease:
        now = table.listed_timeline()
        if now.written_at(begin) is not None:
            return
        if not now.pending_files(begin):
            if own and begin > now.first_active:  # not archived, so rolled back while this writer wrote on
                plans.remove_files(table, begin, files_of(table, begin))
                listing.unlist(table, begin)
            return
        if only_if_dead and not dead_among(table, {begin}):
            return
        if (own or only_if_dead) and _in_good_hands(table, now, begin):
            if own:
                plans.remove_files(table, begin, files_of(table, begin))  # their plan lacks files written after it
            return
        execute(table, lease, now, begin, fenced=not own)
    table.tell("rolled_back", begin)


def take_back_alone(table: TableContext, begin: str, files: Sequence[str]) -> bool:
    """Remove the caller's own pending instant that no other writer can commit, without the lock.

    `files` are all its files. A caller that dies halfway leaves a pending instant, like any dead writer.

    Returns:
        False: it is not pending, or others roll it back; nothing was removed.

    Raises:
        CasError: the store failed; may be repeated.
    """
    now = Timeline.of(files_below(table.store, TIMELINE, after=begin, until=":"))  # a rollback begins after its victim
    if not now.pending_files(begin) or now.written_at(begin) is not None or planned_for(table, now, begin) is not None:
        return False
    table.store.delete_all(files)
    plans.remove_pending(table, now, begin)
    table.tell("rolled_back", begin)
    return True


def _in_good_hands(table: TableContext, now: Timeline, victim: str) -> bool:
    """Whether a live process is rolling it back: JVM writers do so without the lock, and fail if overtaken."""
    planned = planned_for(table, now, victim)
    return planned is not None and planned not in plans.dead_plans(table, now, Action.ROLLBACK)


def execute(table: TableContext, lease: Lease, now: Timeline, victim: str, *, fenced: bool) -> None:
    """Plan and carry out the rollback of `victim`, or finish a planned one.

    `fenced`: the victim is another writer's, which may wake up and commit after this lease expired.
    """
    files = files_of(table, victim)
    begin = planned_for(table, now, victim)
    if begin is None:
        named = Victim(victim, (now.pending_action(victim) or Action.COMMIT).value)
        begin = plan_rollback(table, now, named, files, lease if fenced else None)
    else:
        named = victim_of(table, begin)
    listing.unlist(table, victim)  # while pending: an instant only in the metadata table counts
    plans.remove_files(table, victim, files)
    plans.remove_pending(table, now, victim)  # after this its writer, if it wakes up, does not commit
    # A task that still wrote found its instant gone and removed its file, or the file exists now.
    table.store.delete_all(files_of(table, victim))
    table.store.delete(heartbeat_path(victim))
    plans.complete(table, lease, begin, Action.ROLLBACK, encode_rollback(begin, named, files))
    table.store.delete(heartbeat_path(begin))


def plan_rollback(table: TableContext, now: Timeline, victim: Victim, files: Sequence[str], lease: Lease | None) -> str:
    """Store the plan to remove these files of that instant, and return the begin time of the rollback."""
    begin, plan = plans.claim_time(table, now), encode_rollback_plan(victim, files, table.url.rstrip("/"))
    plans.put_plan(table, begin, Action.ROLLBACK, plan, lease)
    return begin


def planned_for(table: TableContext, now: Timeline, victim: str, *, since: str = "") -> str | None:
    """Return the begin time of a pending rollback of this victim that began after `since`; None if there is none.

    A JVM writer with a slow clock may plan one that began before its victim.
    """
    later = (begin for begin in now.pending_rollbacks if begin > since)
    return next((begin for begin in later if victim_of(table, begin).begin == victim), None)


def victim_of(table: TableContext, begin: str) -> Victim:
    """Read the victim of the rollback with this begin time; an empty one if the rollback was completed since."""
    name = Instant(begin, Action.ROLLBACK, InstantState.REQUESTED).file_name
    content = table.store.read_or_none(f"{TIMELINE}/{name}")
    if content is None:
        return Victim("", Action.COMMIT.value)  # completed, then archived or removed
    return decode_rollback_plan(content.data, name)


def files_of(table: TableContext, begin: str) -> tuple[str, ...]:
    """Return all base and log files with this begin time, with or without a marker."""
    return plans.files_by_begin(table).get(begin, ())


# Recovery treats a writer without a fresh heartbeat as dead. Its instant is rolled back; its rollback or restore is
# finished. A clustering that its maker was to run itself is removed; one scheduled for others stays.
# Source: RFC-22, lazy cleaning of failed writes.
_STAYS_S = 60.0


def clean_dead(table: TableContext, timeline: Timeline, me: str) -> None:
    """Roll back the pending instants of dead writers; `me` is an instant with a fresh heartbeat.

    Errors of lock and store are suppressed: the next cleaner does the work. With EAGER settings all writers count as
    dead.
    """
    with contextlib.suppress(CasError, LockError):
        if _suspects(timeline, {me}):
            _clean(table, timeline, {me}, eager=table.settings.is_eager)


def remove_ended_beats(table: TableContext, timeline: Timeline) -> None:
    """Remove the heartbeats of instants that ended at least a minute ago; `timeline` has the pending ones.

    A JVM writer checks that a heartbeat exists, then reads its age, and fails its job if the file disappears in
    between. So with JVM writers a heartbeat outlives its instant. What cannot be removed now stays.
    """
    with contextlib.suppress(CasError):
        beats_ms, now_ms = last_beats(table.store, table.knowledge, table.world)
        oldest_ms = now_ms - round(max(_STAYS_S, table.settings.heartbeat.tolerance_s) * 1000)
        pending = {*timeline.pending(*Action)}
        table.lock.discard(
            *(heartbeat_path(begin) for begin, ms in beats_ms.items() if ms < oldest_ms and begin not in pending)
        )


def take_back_dead_clustering(table: TableContext, planned: str) -> bool:
    """Remove a dead maker's clustering that it was to run itself; return whether it is gone.

    Raises:
        NotAcquired, CasError: the lock or the store failed; may be repeated.
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
    """Roll back dead writers, finish rollbacks and restores of dead executors; return their begin times.

    It also removes heartbeats and markers of writers that died before their instant was pending or after it ended,
    unused intents, and checkpoints of ended logs.

    Raises:
        NotAcquired, CasError: the lock or the store failed; may be repeated.
    """
    now = table.listed_timeline()
    with plans.beating(table, now):  # a fresh heartbeat shows the age of the others
        done = _clean(table, now, set(), eager=False)
        _forget(table)
    return done


def roll_back_dead(table: TableContext, begin: str, *, force: bool) -> None:
    """Roll back one pending write if its writer is dead, or in any case with `force`.

    Raises:
        HistoryGone: there is no such pending write.
        Aborted: its writer is alive.
        NotAcquired, CasError: the lock or the store failed; may be repeated.
    """
    now = table.listed_timeline()
    if begin not in now.pending_writes:
        raise HistoryGone(f"{begin} is no pending write; to take back commits, use restore")
    if not force:
        with plans.beating(table, now):  # a fresh heartbeat shows the age of the other
            alive = begin not in dead_among(table, [begin])
        if alive:
            raise Aborted(f"the writer of {begin} is alive; wait for it, or force it (`--force`)")
    roll_back(table, begin)


def _forget(table: TableContext) -> None:
    silent = plans.silent(table)  # before the timeline is listed, so without writes that begin in between
    for begin in {*silent} - {*table.listed_timeline().pending(*Action)}:
        plans.remove_files(table, begin, ())
        table.store.delete(heartbeat_path(begin))
    table.lock.sweep_intents()
    remove_ended(table.store, table.lock)


def _clean(table: TableContext, timeline: Timeline, spared: set[str], *, eager: bool) -> tuple[str, ...]:
    """Roll back or finish the dead instants of `timeline`, without those of `spared`; return their begin times.

    `eager`: all pending ones count as dead.
    """
    restores, clusterings = timeline.pending(Action.RESTORE), timeline.pending(Action.CLUSTERING)
    suspects = _suspects(timeline, spared)
    found = tuple(sorted(suspects)) if eager else _dead(table, timeline, suspects)
    if found and not eager:  # one completed since the listing has removed its heartbeat
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
            roll_back(table, begin, only_if_dead=not eager)
    return found


def _suspects(timeline: Timeline, spared: set[str]) -> set[str]:
    services = *timeline.pending(Action.RESTORE), *timeline.pending(Action.CLUSTERING)
    return {*services, *timeline.pending_writes, *timeline.pending_rollbacks} - spared


def _dead(table: TableContext, now: Timeline, suspects: set[str]) -> tuple[str, ...]:
    """Return the dead suspects; a rollback without a heartbeat, by a JVM writer, has the same time as one with it."""
    rollbacks = suspects & {*now.pending_rollbacks}
    left = rollbacks & {*plans.dead_plans(table, now, Action.ROLLBACK)} if rollbacks else rollbacks
    return tuple(sorted({*dead_among(table, suspects - rollbacks), *left}))


def _finish(table: TableContext, planned: str) -> None:
    """Finish the rollback of a dead cleaner, under the lock."""
    with table.lock.acquire() as lease:
        now = table.listed_timeline()
        if planned in now.pending_rollbacks:
            execute(table, lease, now, victim_of(table, planned).begin, fenced=True)
