"""Clean: plan under the lock, then delete, the files that no reader within the retention needs.

Source: Hudi `CleanPlanActionExecutor`, `CleanActionExecutor`.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from lockprovider.table.format.instant import Action
from lockprovider.table.format.layout import META, checked_path, heartbeat_path, join
from lockprovider.table.format.metadata_table import removed_files
from lockprovider.table.format.service_metadata import (
    CleanPlan,
    decode_clean_plan,
    encode_clean,
    encode_clean_plan,
)
from lockprovider.table.services import plans
from lockprovider.table.services.restore import savepoints
from lockprovider.table.settings import check_retention
from lockprovider.table.state.context import writable_config
from lockprovider.table.timeline.retention import Policy, removable
from lockprovider.table.timeline.timeline import Timeline
from lockprovider.table.timeline.view import replaced_groups

if TYPE_CHECKING:
    from lockprovider.table.state.context import TableContext


@dataclass(frozen=True, slots=True)
class CleanResult:
    """Result of a completed clean: the removed file names by partition. A dry run has empty times."""

    instant: str
    completion: str
    policy: str
    files: Mapping[str, tuple[str, ...]]


def clean(table: TableContext, policy: Policy | None = None, *, dry_run: bool = False) -> tuple[CleanResult, ...]:
    """Finish dead cleaners' plans, then plan under the lock, delete the files, and complete; see `Table.clean`.

    `dry_run` writes nothing.
    """
    policy = table.settings.retention if policy is None else policy
    check_retention(policy)
    if dry_run:
        plan = plan_clean(table, policy, *_list_paths_and_timeline(table), table.clock.store_ms())
        return (CleanResult("", "", plan.policy, plan.files),) if plan.files else ()
    writable_config(table)
    finished = finish_dead_cleans(table)
    with contextlib.ExitStack() as alive:
        scheduled = _schedule(table, policy, alive)
        own = None if scheduled is None else _carry_out(table, *scheduled)
        return finished if own is None else (*finished, own)


def _schedule(table: TableContext, policy: Policy, alive: contextlib.ExitStack) -> tuple[str, CleanPlan] | None:
    """Store a plan under the lock, with heartbeat until `alive` closes; return begin time and plan.

    None: nothing to remove, or another is pending.
    """
    with table.locked() as lease:
        paths, timeline = _list_paths_and_timeline(table)
        plan = plan_clean(table, policy, paths, timeline, table.clock.store_ms())
        if timeline.pending(Action.CLEAN) or not plan.files:
            return None
        begin = alive.enter_context(plans.claim_with_heartbeat(table, timeline))
        plans.put_plan(table, begin, Action.CLEAN, encode_clean_plan(plan, table.url.rstrip("/")), lease)
    return begin, plan


def finish_dead_cleans(table: TableContext) -> tuple[CleanResult, ...]:
    """Delete the files that dead cleaners planned, complete these cleans, and return their results.

    Leaves out cleans that another process completed.
    """
    timeline = table.listed_timeline()
    if not timeline.pending(Action.CLEAN):
        return ()
    with plans.claim_with_heartbeat(table, timeline):
        dead = plans.dead_plans(table, timeline, Action.CLEAN)
        done = (_carry_out(table, begin, read_clean_plan(table, begin)) for begin in dead)
        return tuple(result for result in done if result is not None)


def read_clean_plan(table: TableContext, begin: str) -> CleanPlan:
    """Read the plan of an uncompleted clean; may raise `Corrupt`."""
    return decode_clean_plan(*plans.read_requested(table, begin, Action.CLEAN))


def plan_clean(
    table: TableContext, policy: Policy, paths: tuple[str, ...], timeline: Timeline, now_ms: int
) -> CleanPlan:
    """Plan which files a clean removes; reads savepoints and commits.

    List `paths` before `timeline`. A policy that keeps nothing raises `InvalidSettings`.
    """
    check_retention(policy)
    saved, replaced = savepoints(table, timeline), replaced_groups(timeline, table.metadata_of)
    removals = removable(
        policy,
        timeline,
        paths,
        now_ms=now_ms,
        replaced_by={group: done.begin for done, groups in replaced.items() for group in groups},
        protected=frozenset(path for savepoint in saved.values() for path in savepoint.paths),
        archived=table.current.completions_of(timeline, paths),
        written_ms=plans.written_ms(table, policy, now_ms),
    )
    last = max((instant.begin for instant in timeline.writes), default="")
    earliest = None if removals.earliest is None else (removals.earliest.begin, removals.earliest.action.value)
    return CleanPlan(policy.name, removals.files, earliest, last, tuple(sorted(saved)))


def _list_paths_and_timeline(table: TableContext) -> tuple[tuple[str, ...], Timeline]:
    """List files, then the timeline: a file without an instant never gets one."""
    paths = tuple(entry.path for entry in table.data_files())
    return paths, table.listed_timeline()


def _carry_out(table: TableContext, begin: str, plan: CleanPlan) -> CleanResult | None:
    """Delete the planned files, complete the clean under the lock, and delete its heartbeat.

    None: another cleaner completed it. The metadata table's files stay.
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
