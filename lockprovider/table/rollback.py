"""Rolling back what did not commit: an instant of one's own that lost, or a dead writer's.

Everything happens under the table lock, so two cleaners do not meet; every step may be repeated, so a cleaner that dies
halfway leaves a planned rollback that the next one finishes. A rollback is on the timeline as Hudi writes it: its plan,
then its completion, while the victim's own files are gone.

Source: Hudi `BaseRollbackActionExecutor`; RFC-22, lazy cleaning of failed writes.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable
from typing import TYPE_CHECKING

from fsspec_cas import CasError, ObjectNotFound
from lockprovider import Lease, LockError
from lockprovider.table import restore, service
from lockprovider.table.instant import Action, Instant, State
from lockprovider.table.layout import TIMELINE, heartbeat_path, markers_dir, parse_base_file
from lockprovider.table.metadata import (
    RollbackMetadata,
    RollbackPlan,
    RollbackRequest,
    RolledBackPartition,
    decode_rollback_plan,
    encode_rollback,
    encode_rollback_plan,
)
from lockprovider.table.service import dead_among
from lockprovider.table.timeline import Timeline

if TYPE_CHECKING:
    from lockprovider.table.manager import Table


def clean_dead(table: Table, timeline: Timeline, me: str) -> None:
    """Roll back the pending instants whose writers are dead; `me` is an instant with a fresh heartbeat.

    A cleaner that cannot get through leaves the work to the next one. With EAGER settings all of them count as dead.
    """
    with contextlib.suppress(CasError, LockError):
        if _suspects(timeline, {me}):
            _clean(table, timeline, {me}, eager=table.settings.is_eager)


def sweep(table: Table) -> tuple[str, ...]:
    """Roll back what dead writers left, and finish the rollbacks and restores of dead executors; their begin times.

    Also removes what is of no use to anybody: heartbeats and markers of those who died before their instant was
    pending, or after it was over.

    Raises:
        NotAcquired, CasError: the lock or the store; may be repeated.
    """
    now = table.timeline()
    with service.beating(table, now):  # a fresh heartbeat shows how late the others are
        done = _clean(table, now, set(), eager=False)
        _forget(table)
    return done


def _forget(table: Table) -> None:
    silent = service.silent(table)  # before the timeline is listed: one that begins meanwhile is not among them
    for begin in {*silent} - {*table.timeline().pending(*Action)}:
        _remove(table, begin, ())
        table.store.delete(heartbeat_path(begin))


def _clean(table: Table, timeline: Timeline, spared: set[str], *, eager: bool) -> tuple[str, ...]:
    restores = timeline.pending(Action.RESTORE)
    suspects = _suspects(timeline, spared)
    found = tuple(sorted(suspects)) if eager else _dead(table, timeline, suspects)
    if found and not eager:  # one that has completed since it was listed has removed its heartbeat
        found = tuple(sorted({*found} & _suspects(table.timeline(), spared)))
    for begin in found:
        if begin in restores:
            restore.finish_dead(table, begin)
        elif begin in timeline.pending_rollbacks:
            _finish(table, begin)
        else:
            roll_back(table, begin, only_if_dead=not eager)
    return found


def _suspects(timeline: Timeline, spared: set[str]) -> set[str]:
    return {*timeline.pending(Action.RESTORE), *timeline.pending_writes, *timeline.pending_rollbacks} - spared


def roll_back(table: Table, begin: str, *, only_if_dead: bool = False, own: bool = False) -> None:
    """Remove a pending instant and all its files. A completed instant, or one that is gone, is left alone.

    `own`: the caller is its writer, so that nobody else can commit it meanwhile.

    Raises:
        NotAcquired, CasError: the lock or the store; may be repeated.
    """
    with table.lock.acquire() as lease:
        now = table.timeline()
        if now.written_at(begin) is not None:
            return
        if not now.pending_files(begin):
            if own and begin > now.first_active:  # not archived, so rolled back while this writer wrote on
                _remove(table, begin, files_of(table, begin))
            return
        if only_if_dead and not dead_among(table, {begin}):
            return
        if (own or only_if_dead) and _in_good_hands(table, now, begin):
            if own:
                _remove(table, begin, files_of(table, begin))  # their plan has not got what was written after it
            return
        _execute(table, lease, now, begin, fenced=not own)
    table.tell("rolled_back", begin)


def _dead(table: Table, now: Timeline, suspects: set[str]) -> tuple[str, ...]:
    """A JVM executor of a rollback may have no heartbeat: then it has as long as if it had one."""
    rollbacks = suspects & {*now.pending_rollbacks}
    left = rollbacks & {*service.dead_plans(table, now, Action.ROLLBACK)} if rollbacks else rollbacks
    return tuple(sorted({*dead_among(table, suspects - rollbacks), *left}))


def _in_good_hands(table: Table, now: Timeline, victim: str) -> bool:
    """Whether somebody alive is rolling it back: JVM writers do that without the lock, and fail if we get ahead."""
    planned = _planned_for(table, now, victim)
    return planned is not None and planned not in service.dead_plans(table, now, Action.ROLLBACK)


def is_planned(table: Table, timeline: Timeline, begin: str) -> bool:
    """Whether a rollback that is not completed names this instant."""
    return any(_plan(table, planned).victim == begin for planned in timeline.pending_rollbacks if planned > begin)


def _finish(table: Table, planned: str) -> None:
    """Take up a rollback whose cleaner died."""
    with table.lock.acquire() as lease:
        now = table.timeline()
        if planned in now.pending_rollbacks:
            _execute(table, lease, now, _plan(table, planned).victim, fenced=True)


def _execute(table: Table, lease: Lease, now: Timeline, victim: str, *, fenced: bool) -> None:
    """`fenced`: the victim is another's, who may wake up and commit once our lease has lapsed."""
    files = files_of(table, victim)
    planned = _planned_for(table, now, victim)
    plan = _plan(table, planned) if planned else RollbackPlan(victim, _action(now, victim), _requests(table, files))
    begin = planned or _plan_it(table, now, plan, lease if fenced else None)
    _remove(table, victim, files)
    # Inflight first: from here on its writer, should it wake up, sees that it must not commit.
    for name in reversed(now.pending_files(victim)):
        table.store.delete(f"{TIMELINE}/{name}")
    # A task that still wrote either saw that the instant is gone, and withdrew its file, or the file is there now.
    for path in files_of(table, victim):
        table.store.delete(path)
    table.store.delete(heartbeat_path(victim))
    _complete(table, lease, begin, plan, files)
    table.store.delete(heartbeat_path(begin))


def _remove(table: Table, victim: str, files: tuple[str, ...]) -> None:
    for path in files:
        table.store.delete(path)
    for entry in table.store.list(f"{markers_dir(victim)}/"):
        table.store.delete(entry.path)


def _action(now: Timeline, victim: str) -> str:
    return (now.pending_action(victim) or Action.COMMIT).value


def _requests(table: Table, files: tuple[str, ...]) -> tuple[RollbackRequest, ...]:
    root = table.url.rstrip("/")
    return tuple(
        RollbackRequest(partition, tuple(f"{root}/{path}" for path in paths))
        for partition, paths in _by_partition(files).items()
    )


def _plan_it(table: Table, now: Timeline, plan: RollbackPlan, lease: Lease | None) -> str:
    begin = service.claim_time(table, now)
    service.put_plan(table, begin, Action.ROLLBACK, encode_rollback_plan(plan), lease)
    return begin


def _complete(table: Table, lease: Lease, begin: str, plan: RollbackPlan, files: tuple[str, ...]) -> None:
    done = {partition: RolledBackPartition(deleted=tuple(paths)) for partition, paths in _by_partition(files).items()}
    metadata = RollbackMetadata(begin, ((plan.victim, plan.action),), done)
    service.complete(table, lease, begin, Action.ROLLBACK, encode_rollback(metadata))


def _planned_for(table: Table, now: Timeline, victim: str) -> str | None:
    """The begin time of a pending rollback of this victim, left by a cleaner that died."""
    return next((begin for begin in now.pending_rollbacks if _plan(table, begin).victim == victim), None)


def _plan(table: Table, begin: str) -> RollbackPlan:
    name = Instant(begin, Action.ROLLBACK, State.REQUESTED).file_name
    try:
        return decode_rollback_plan(table.store.read(f"{TIMELINE}/{name}").data, name)
    except ObjectNotFound:
        return RollbackPlan("", Action.COMMIT.value)  # completed meanwhile, and archived or removed


def files_of(table: Table, begin: str) -> tuple[str, ...]:
    """Every base file that carries this begin time, whether a marker names it or not."""
    found = ((entry.path, parse_base_file(entry.path.rpartition("/")[2])) for entry in table.data_files())
    return tuple(path for path, base in found if base is not None and base.begin == begin)


def _by_partition(files: Iterable[str]) -> dict[str, list[str]]:
    grouped: dict[str, list[str]] = {}
    for path in files:
        grouped.setdefault(path.rpartition("/")[0], []).append(path)
    return grouped
