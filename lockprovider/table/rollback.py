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
from lockprovider.table.heartbeat import claim
from lockprovider.table.instant import Action, Instant, State, after
from lockprovider.table.layout import HEARTBEATS, TIMELINE, heartbeat_path, markers_dir, parse_base_file
from lockprovider.table.liveness import dead
from lockprovider.table.metadata import (
    RollbackMetadata,
    RollbackPlan,
    RollbackRequest,
    RolledBackPartition,
    decode_rollback_plan,
    encode_rollback,
    encode_rollback_plan,
)
from lockprovider.table.timeline import Timeline

if TYPE_CHECKING:
    from lockprovider.table.manager import Table


def clean_dead(table: Table, timeline: Timeline, me: str) -> None:
    """Roll back the pending instants whose writers are dead; `me` is an instant with a fresh heartbeat.

    A cleaner that cannot get through leaves the work to the next one.
    """
    suspects = set(timeline.pending_writes) | set(timeline.pending_rollbacks)
    suspects.discard(me)
    with contextlib.suppress(CasError, LockError):
        for begin in _dead(table, suspects) if suspects else ():
            if begin in timeline.pending_rollbacks:
                _finish(table, begin)
            else:
                roll_back(table, begin, only_if_dead=True)


def roll_back(table: Table, begin: str, *, only_if_dead: bool = False) -> None:
    """Remove a pending instant and all its files. A completed instant, or one that is gone, is left alone.

    Raises:
        NotAcquired, CasError: the lock or the store; may be repeated.
    """
    with table.lock.acquire() as lease:
        now = table.timeline()
        if now.written_at(begin) is not None or not now.pending_files(begin):
            return
        if only_if_dead and not _dead(table, {begin}):
            return
        _execute(table, lease, now, begin)
    table.tell("rolled_back", begin)


def is_planned(table: Table, timeline: Timeline, begin: str) -> bool:
    """Whether a rollback that is not completed names this instant."""
    return any(_plan(table, planned).victim == begin for planned in timeline.pending_rollbacks if planned > begin)


def _dead(table: Table, pending: Iterable[str]) -> tuple[str, ...]:
    prefix = f"{HEARTBEATS}/"
    entries = table.store.list(prefix)
    beats_ms = {entry.path.removeprefix(prefix): entry.modified_ms or 0 for entry in entries}
    # The newest beat is the store's own clock a moment ago.
    return dead(sorted(pending), beats_ms, max(beats_ms.values(), default=0), table.settings.heartbeat)


def _finish(table: Table, planned: str) -> None:
    """Take up a rollback whose cleaner died."""
    with table.lock.acquire() as lease:
        now = table.timeline()
        if planned in now.pending_rollbacks:
            _execute(table, lease, now, _plan(table, planned).victim)


def _execute(table: Table, lease: Lease, now: Timeline, victim: str) -> None:
    files = _files_of(table, victim)
    begin = _planned_for(table, now, victim) or _plan_it(table, now, victim, files)
    for path in files:
        table.store.delete(path)
    for entry in table.store.list(f"{markers_dir(victim)}/"):
        table.store.delete(entry.path)
    # Inflight first: from here on its writer, should it wake up, sees that it must not commit.
    for name in reversed(now.pending_files(victim)):
        table.store.delete(f"{TIMELINE}/{name}")
    table.store.delete(heartbeat_path(victim))
    _complete(table, lease, begin, victim, files)
    table.store.delete(heartbeat_path(begin))


def _plan_it(table: Table, now: Timeline, victim: str, files: tuple[str, ...]) -> str:
    begin = now.next_time(table.world.now_ms())
    while claim(table.store, begin) is None:  # a writer begins now; it does not need the lock for that
        begin = after(begin)
    requests = tuple(
        RollbackRequest(partition, tuple(f"{table.url.rstrip('/')}/{path}" for path in paths))
        for partition, paths in _by_partition(files).items()
    )
    plan = encode_rollback_plan(RollbackPlan(victim, Action.COMMIT.value, requests))
    for state, data in ((State.REQUESTED, plan), (State.INFLIGHT, b"")):
        name = Instant(begin, Action.ROLLBACK, state).file_name
        table.store.put_if_absent(f"{TIMELINE}/{name}", data, create_once=True).unwrap()
    return begin


def _complete(table: Table, lease: Lease, begin: str, victim: str, files: tuple[str, ...]) -> None:
    completion = table.timeline().next_time(table.world.now_ms())
    done = {partition: RolledBackPartition(deleted=tuple(paths)) for partition, paths in _by_partition(files).items()}
    metadata = RollbackMetadata(begin, ((victim, Action.COMMIT.value),), done)
    name = Instant(begin, Action.ROLLBACK, State.COMPLETED, completion).file_name
    lease.publish(f"{TIMELINE}/{name}", encode_rollback(metadata))


def _planned_for(table: Table, now: Timeline, victim: str) -> str | None:
    """The begin time of a pending rollback of this victim, left by a cleaner that died."""
    return next((begin for begin in now.pending_rollbacks if _plan(table, begin).victim == victim), None)


def _plan(table: Table, begin: str) -> RollbackPlan:
    name = Instant(begin, Action.ROLLBACK, State.REQUESTED).file_name
    try:
        return decode_rollback_plan(table.store.read(f"{TIMELINE}/{name}").data, name)
    except ObjectNotFound:
        return RollbackPlan("", Action.COMMIT.value)  # completed meanwhile, and archived or removed


def _files_of(table: Table, begin: str) -> tuple[str, ...]:
    """Every base file that carries this begin time, whether a marker names it or not."""
    found = ((entry.path, parse_base_file(entry.path.rpartition("/")[2])) for entry in table.data_files())
    return tuple(path for path, base in found if base is not None and base.begin == begin)


def _by_partition(files: Iterable[str]) -> dict[str, list[str]]:
    grouped: dict[str, list[str]] = {}
    for path in files:
        grouped.setdefault(path.rpartition("/")[0], []).append(path)
    return grouped
