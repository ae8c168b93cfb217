"""Clean: plan under the lock, then delete, files that no reader within the retention needs; and savepoints.

Source: Hudi `CleanPlanActionExecutor`, `CleanActionExecutor`, `SavepointActionExecutor`, `SavepointHelpers`.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from fsspec_cas.outcome import won_or_lost
from lockprovider.table.errors import HistoryGone
from lockprovider.table.format.layout import (
    META,
    TIMELINE,
    Action,
    Instant,
    InstantState,
    checked_path,
    heartbeat_path,
    join,
    names_by_partition,
)
from lockprovider.table.format.metadata_table import removed_files
from lockprovider.table.format.service_metadata import (
    CleanPlan,
    Savepoint,
    decode_clean_plan,
    decode_savepoint,
    encode_clean,
    encode_clean_plan,
    encode_savepoint,
)
from lockprovider.table.services import archive_files, plans
from lockprovider.table.settings import check_retention
from lockprovider.table.state.as_of import snapshot_at
from lockprovider.table.state.context import writable_config
from lockprovider.table.timeline.retention import Policy, removable
from lockprovider.table.timeline.timeline import Timeline
from lockprovider.table.timeline.versions import AsOf, TableVersion, commit_of, refuse_none
from lockprovider.table.timeline.view import replaced_groups

if TYPE_CHECKING:
    from lockprovider.table.state.context import TableContext


@dataclass(frozen=True, slots=True)
class CleanResult:
    """Removed file names by partition. A dry run has empty times."""

    instant: str
    completion: str
    policy: str
    files: Mapping[str, tuple[str, ...]]


def clean(table: TableContext, policy: Policy | None = None, *, dry_run: bool = False) -> tuple[CleanResult, ...]:
    """Finish dead cleaners' plans; plan a clean by `policy` (None: the settings'), delete its files.

    Deletes under a heartbeat; takes the lock to plan and to complete. Returns the finished cleans, then its own, unless
    another or a restore is pending, or nothing is to delete. `dry_run` changes nothing, and returns only its own,
    without times.
    """
    policy = table.settings.retention if policy is None else policy
    check_retention(policy)
    writable_config(table)
    if dry_run:
        plan, _ = _plan(table, policy)
        return (CleanResult("", "", plan.policy, plan.files),) if plan.files else ()
    finished = finish_dead_cleans(table)
    with contextlib.ExitStack() as alive:
        scheduled = _schedule(table, policy, alive)
        own = None if scheduled is None else _carry_out(table, *scheduled)
        return finished if own is None else (*finished, own)


def _schedule(table: TableContext, policy: Policy, alive: contextlib.ExitStack) -> tuple[str, CleanPlan] | None:
    """Store a clean's plan under the lock, with a heartbeat until `alive` closes; return begin time and plan.

    None, storing nothing, if a clean or restore is pending or nothing is to delete.
    """
    with table.locked() as lease:
        plan, timeline = _plan(table, policy)
        if timeline.pending(Action.CLEAN) or not plan.files:
            return None
        begin = alive.enter_context(plans.claim_with_heartbeat(table, timeline))
        plans.put_plan(table, begin, Action.CLEAN, encode_clean_plan(plan, table.url.rstrip("/")), lease)
    return begin, plan


def finish_dead_cleans(table: TableContext) -> tuple[CleanResult, ...]:
    """Delete the files planned by dead cleaners, complete these cleans; return results, oldest first.

    Takes the lock for each; runs a heartbeat thread if cleans are pending. Omits those another process completed first.
    """
    timeline = table.listed_timeline()
    if not timeline.pending(Action.CLEAN):
        return ()
    with plans.claim_with_heartbeat(table, timeline):
        dead = plans.dead_plans(table, timeline, Action.CLEAN)
        stored = ((begin, *plans.read_requested(table, begin, Action.CLEAN)) for begin in dead)
        done = (_carry_out(table, begin, decode_clean_plan(data, name)) for begin, data, name in stored)
        return tuple(result for result in done if result is not None)


def _plan(table: TableContext, policy: Policy) -> tuple[CleanPlan, Timeline]:
    """List files, then the timeline; plan what `policy` deletes, maybe nothing."""
    paths = tuple(entry.path for entry in table.data_files())  # First: a file without an instant never gets one.
    timeline, now_ms = table.listed_timeline(), table.clock.store_ms()
    saved, replaced = savepoints(table, timeline), replaced_groups(timeline, table.metadata_of)
    removals = removable(
        policy,
        timeline,
        paths,
        now_ms=now_ms,
        replaced_by={group: done.completion or done.begin for done, groups in replaced.items() for group in groups},
        protected=frozenset(path for savepoint in saved.values() for path in savepoint.paths),
        archived=table.current.completions_of(timeline, paths),
        written_ms=plans.written_ms(table, policy, now_ms),
    )
    last = max((instant.begin for instant in timeline.writes), default="")
    earliest = None if removals.earliest is None else (removals.earliest.begin, removals.earliest.action.value)
    return CleanPlan(policy.name, removals.files, earliest, last, tuple(sorted(saved))), timeline


def _carry_out(table: TableContext, begin: str, plan: CleanPlan) -> CleanResult | None:
    """Delete the planned files, never the metadata table's; complete the clean under the lock.

    Also records this in any metadata table, then deletes the heartbeat and reports the clean. If another cleaner
    completed it first, only deletes the files, and returns None.
    """
    started_s = table.world.monotonic_s()
    parts = plan.files.items()
    metadata_parts = {partition for partition, _ in parts if checked_path(partition).partition("/")[0] == META}
    table.store.delete_all([join(part, name) for part, names in parts if part not in metadata_parts for name in names])
    took_ms = round((table.world.monotonic_s() - started_s) * 1000)
    with table.lock.acquire() as lease:
        timeline = table.listed_timeline()
        if begin not in timeline.pending(Action.CLEAN):
            return None
        listed = removed_files(plan.files) if table.config().named_metadata else ()
        data = encode_clean(begin, plan, took_ms)
        completion = plans.complete(table, lease, begin, Action.CLEAN, data, listed=listed)
    table.store.delete(heartbeat_path(begin))
    table.report("cleaned", begin, files=len(plan.paths))
    return CleanResult(begin, completion, plan.policy, plan.files)


def savepoints(table: TableContext, timeline: Timeline) -> dict[str, Savepoint]:
    """Read all completed savepoints by their commit's begin time, oldest first; one just deleted is empty."""
    completed = (i for i in timeline.instants if i.action is Action.SAVEPOINT and i.is_completed)
    saved = sorted(completed, key=lambda i: i.begin)
    contents = ((i, table.store.read_or_none(f"{TIMELINE}/{i.file_name}")) for i in saved)
    return {
        i.begin: Savepoint("", 0, "", {}) if content is None else decode_savepoint(content.data, i.file_name)
        for i, content in contents
    }


def create_savepoint(
    table: TableContext, version: TableVersion | None, *, user: str, comment: str
) -> tuple[str, Savepoint]:
    """Store and report a commit's savepoint (None: the latest's) under the lock.

    Returns the commit's begin time and the savepoint, an existing one unchanged. First finishes a dead archival. Raises
    `HistoryGone` if commit or files are gone.
    """
    writable_config(table)
    with table.lock.acquire() as lease:
        archive_files.finish_removal(table, lease)
        timeline = table.listed_timeline()
        target = commit_of(timeline, version, table.current.last_archived)
        existing = savepoints(table, timeline).get(target.begin)
        if existing is not None:
            return target.begin, existing
        names = names_by_partition(sorted(files_needed_by(table, timeline, target)))
        savepoint = Savepoint(user, table.world.now_ms(), comment, names)
        inflight = Instant(target.begin, Action.SAVEPOINT, InstantState.INFLIGHT)
        won_or_lost(table.store.put_if_absent(f"{TIMELINE}/{inflight.file_name}", b"", create_once=True))
        plans.complete(table, lease, target.begin, Action.SAVEPOINT, encode_savepoint(savepoint))
    table.report("savepoint", target.begin)
    return target.begin, savepoint


def delete_savepoint(table: TableContext, version: TableVersion) -> bool:
    """Delete a commit's savepoint under the lock, also an unfinished one; return False if it has none.

    Raises `HistoryGone` if no commit and no savepoint has this version.
    """
    refuse_none(version)
    with table.lock.acquire():
        timeline = table.listed_timeline()
        saved = [i for i in timeline.instants if i.action is Action.SAVEPOINT]
        is_begin = any(i.begin == version for i in saved)
        begin = version if is_begin else commit_of(timeline, version, table.current.last_archived).begin
        states = [i for i in saved if i.begin == begin]
        for state in sorted(states, key=lambda i: not i.is_completed):
            table.store.delete(f"{TIMELINE}/{state.file_name}")
    return bool(states)


def files_needed_by(table: TableContext, timeline: Timeline, target: Instant) -> frozenset[str]:
    """Paths of all data files that a read as of `target`'s completion or begin time needs.

    Raises `HistoryGone` if a clean, done or planned, removes some.
    """
    by_completion = snapshot_at(table, timeline, AsOf(target.completion or "")).slices
    by_begin = snapshot_at(table, timeline, AsOf(target.begin, "begin")).slices
    needed = frozenset(path for slice_ in (*by_completion, *by_begin) for path in slice_.paths)
    requested = (plans.read_requested(table, begin, Action.CLEAN) for begin in timeline.pending(Action.CLEAN))
    planned = needed & {path for data, name in requested for path in decode_clean_plan(data, name).paths}
    if planned:
        raise HistoryGone(
            f"commit {target.begin} needs {len(planned)} files that a planned clean is about to remove, "
            f"such as {min(planned)!r}; choose a later commit"
        )
    return needed
