"""Clustering: join and sort rows of small files in new file groups, while writers continue elsewhere.

Source: Hudi `ClusteringPlanActionExecutor`, `SparkRejectUpdateStrategy`.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

import pyarrow as pa
from pyarrow import types

from fsspec_cas import Entry, InvalidInput
from lockprovider import Lease
from lockprovider.table.errors import ARCHIVED, UnsupportedTable, WriteConflict
from lockprovider.table.files.base_file import look_like_buckets
from lockprovider.table.files.group_writer import GroupWriter, group_id, write_clustered
from lockprovider.table.format import schema as hudi_schema
from lockprovider.table.format.layout import Action, FileGroup, Instant, InstantState, data_file_at
from lockprovider.table.format.metadata import CLUSTER, WriteStat
from lockprovider.table.format.service_metadata import (
    ClusteringPlan,
    PlannedSlice,
    decode_clustering_plan,
    encode_clustering_plan,
)
from lockprovider.table.rewrite import executor
from lockprovider.table.services import plans
from lockprovider.table.state.context import writable_config
from lockprovider.table.state.heartbeat import WriterHeartbeat
from lockprovider.table.timeline.conflict import ConcurrentOperation
from lockprovider.table.timeline.rewrite_plan import ClusteringRule, bytes_of, clustering_plan, is_full
from lockprovider.table.timeline.timeline import Timeline
from lockprovider.table.timeline.view import Snapshot
from lockprovider.table.transaction.decision import pending_writes

if TYPE_CHECKING:
    from lockprovider.table.state.context import TableContext


@dataclass(frozen=True, slots=True)
class ClusteringResult:
    """Result of one clustering; `instant` and `completion`: 17 digits, UTC, empty for a dry run."""

    instant: str
    completion: str
    file_groups: tuple[FileGroup, ...]
    new_file_groups: tuple[FileGroup, ...]


def cluster_table(
    table: TableContext, rule: ClusteringRule, run: executor.Runner = executor.run_in_threads, *, dry_run: bool = False
) -> tuple[ClusteringResult, ...]:
    """Run scheduled clusterings without a live executor, then own plans until one has under 30 groups.

    Skips a scheduled one that a write overtook; for an own one raises `WriteConflict`. `dry_run` only returns the next
    plan, if any, with empty times. Else raises as `run_clustering`.
    """
    _check(table, rule)
    if dry_run:
        planned = _planned(table, rule, table.listed_timeline())
        return (_result("", "", planned, ()),) if planned.groups else ()
    done = []
    for begin in executor.plans_without_executor(table, Action.CLUSTERING):
        with contextlib.suppress(WriteConflict):
            done.append(run_clustering(table, begin, run))
    first = begin_of_own = schedule_clustering(table, rule, owned=True)
    while begin_of_own is not None:
        done.append(run_clustering(table, begin_of_own, run, executor.own_plan(table, begin_of_own, Action.CLUSTERING)))
        more = is_full(decode_clustering_plan(*plans.read_requested(table, begin_of_own, Action.CLUSTERING)))
        begin_of_own = schedule_clustering(table, rule, until=first or "", owned=True) if more else None
    return tuple(done)


def schedule_clustering(
    table: TableContext, rule: ClusteringRule, *, until: str = "", owned: bool = False
) -> str | None:
    """Publish a clustering plan under the lock, then report it; return its begin time.

    None, publishing nothing, if it joins none of the slices begun before `until` ("": all). The caller runs an `owned`
    plan at once, and its heartbeat file stays; other plans are for any process. UnsupportedTable: buckets.
    InvalidInput: absent or nested sort columns.
    """
    _check(table, rule)

    def plan(timeline: Timeline) -> bytes:
        planned = _planned(table, rule, timeline, until)
        return encode_clustering_plan(replace(planned, owned=owned), table.url.rstrip("/")) if planned.groups else b""

    return executor.schedule(table, Action.CLUSTERING, plan, owned=owned)


def run_clustering(
    table: TableContext,
    begin: str,
    run: executor.Runner = executor.run_in_threads,
    owned: WriterHeartbeat | None = None,
) -> ClusteringResult:
    """Write and commit a scheduled clustering's files, under a heartbeat; report it.

    It may be JVM Hudi's or a dead executor's: first deletes its files with other file ids. If a write overtook it or is
    preferred, removes the plan and raises `WriteConflict`. `Aborted`: another executor runs it. `HistoryGone`: plan or
    files are gone. `UnsupportedTable`: buckets, or unfit sort columns. `owned`: the heartbeat from `own_plan`, always
    stopped.
    """
    if owned is None:  # else the plan was checked; an error here would leave the heartbeat running
        _check(table)
    read, is_ours = partial(_plan_of, table, begin), partial(_is_ours, begin)
    with executor.executing(table, begin, Action.CLUSTERING, read, is_ours, owned=owned) as execution:
        planned = execution.planned
        stats = _execute(table, begin, execution, run)
        completion = executor.complete(
            table,
            begin,
            Action.CLUSTERING,
            execution,
            stats,
            check=lambda lease, now: _give_way(table, lease, begin, table.snapshot_of(now), planned),
            ended=sorted(planned.file_groups),
        )
    table.report("clustered", begin, file_groups=len(planned.slices), files=len(stats))
    return _result(begin, completion, planned, [stat.group for stat in stats])


def unschedule_clustering(table: TableContext, begin: str | None, hours: float | None) -> tuple[str, ...]:
    """See `executor.unschedule`."""
    _check(table)
    return executor.unschedule(table, begin, hours, Action.CLUSTERING)


def _check(table: TableContext, rule: ClusteringRule | None = None) -> None:
    """Raise UnsupportedTable unless writable and without buckets, InvalidInput for absent or nested sort columns."""
    config = writable_config(table)
    if config.bucket_index is not None:
        raise UnsupportedTable(
            f"table {config.name!r} has buckets, and a key's bucket is its file group: there is nothing to join; "
            "to have fewer files, make a table with fewer buckets"
        )
    if rule is not None and (fault := _fault(table.schema(), rule.sort_by)):
        raise InvalidInput(f"sort_by={list(rule.sort_by)!r}: {fault}")


def _fault(schema: pa.Schema, sort_by: Sequence[str]) -> str:
    missing = hudi_schema.absent(sort_by, schema.names)
    if missing:
        return f"columns {missing} are not in the table, which has {schema.names}"
    nested = [name for name in sort_by if types.is_nested(schema.field(name).type)]
    return f"columns {nested} are nested and have no order; sort by other columns" if nested else ""


def _planned(table: TableContext, rule: ClusteringRule, timeline: Timeline, until: str = "") -> ClusteringPlan:
    """Choose small slices to join, begun before `until` ("": all), maybe none; store nothing.

    Leaves out other plans' file groups, and those where a pending write is preferred. Raises UnsupportedTable for JVM
    buckets.
    """
    snapshot = table.snapshot_of(timeline)
    if snapshot.slices and look_like_buckets(file_slice.file_id for file_slice in snapshot.slices):
        raise UnsupportedTable(
            f"table {table.config().name!r} has file groups like {snapshot.slices[0].file_id}, which are buckets "
            "of a JVM writer: there is nothing to join"
        )
    busy = executor.planned_groups(table, timeline)
    busy |= _preferred(table, timeline, frozenset(file_slice.group for file_slice in snapshot.slices) - busy)
    return clustering_plan(snapshot, rule, busy, until)


def _preferred(table: TableContext, timeline: Timeline, groups: frozenset[FileGroup]) -> set[FileGroup]:
    """Those of `groups` that a clustering would lose to pending writes by the settings; reads markers."""
    pending, preferred = pending_writes(table, timeline, ""), set[FileGroup]()
    while overlap := table.settings.resolution(_operation("", groups - preferred), pending):
        more = (groups - preferred).intersection(overlap.file_groups)
        if not more:  # The resolution compares more; the completion checks it.
            break
        preferred |= more
    return preferred


def _operation(begin: str, groups: frozenset[FileGroup]) -> ConcurrentOperation:
    return ConcurrentOperation(Instant(begin, Action.CLUSTERING, InstantState.INFLIGHT), CLUSTER, groups)


def _plan_of(table: TableContext, begin: str, lease: Lease, files: list[Entry]) -> ClusteringPlan:
    """Read the plan; remove it and raise `WriteConflict` if a write has precedence."""
    planned = decode_clustering_plan(*plans.read_requested(table, begin, Action.CLUSTERING))
    _give_way(table, lease, begin, table.snapshot_of(table.listed_timeline(), files), planned)
    return planned


def _is_ours(begin: str, planned: ClusteringPlan, path: str) -> bool:
    at = data_file_at(path)
    return at is not None and any(at[1].file_id in file_ids for _, file_ids in _outputs(begin, planned))


def _outputs(begin: str, planned: ClusteringPlan) -> Iterator[tuple[tuple[PlannedSlice, ...], tuple[str, ...]]]:
    for number, group in enumerate(planned.groups):
        for partition in sorted({planned_slice.partition for planned_slice in group.slices}):
            slices = tuple(planned_slice for planned_slice in group.slices if planned_slice.partition == partition)
            ids = tuple(group_id(begin, CLUSTER, number, partition, output) for output in range(group.outputs))
            yield slices, ids


def _execute(
    table: TableContext, begin: str, execution: executor.Execution[ClusteringPlan], run: executor.Runner
) -> list[WriteStat]:
    """Write a plan's new files, one task per group and partition, by `run`; return their statistics.

    UnsupportedTable: absent or nested sort columns. `HistoryGone`: a file to join is gone.
    """
    schema, planned = table.schema(), execution.planned
    if fault := _fault(schema, planned.sort_by):
        raise UnsupportedTable(f"clustering {begin} sorts by {list(planned.sort_by)}: {fault}; unschedule it")
    writer = GroupWriter(table.place, begin, table.config(), schema)

    tasks = []
    for planned_slices, file_ids in _outputs(begin, planned):
        slices = [execution.slice_of(planned_slice) for planned_slice in planned_slices]
        write = partial(write_clustered, writer, slices, planned.sort_by, file_ids, executor.TOKEN)
        tasks.append(executor.RewriteTask(write, sum(map(bytes_of, slices))))
    return list(run(tasks))


def _give_way(table: TableContext, lease: Lease, begin: str, snapshot: Snapshot, planned: ClusteringPlan) -> None:
    """Remove and report the plan, and raise `WriteConflict`, if a write has precedence.

    Completed writes to the planned slices have it, and pending ones by the settings.
    """
    timeline = snapshot.timeline
    names_by_group = {
        file_slice.group: frozenset(path.rpartition("/")[2] for path in file_slice.paths)
        for file_slice in snapshot.slices
    }
    lost_to, touched = (
        "",
        {file_slice.group for file_slice in planned.slices if names_by_group.get(file_slice.group) != file_slice.names},
    )
    if touched:
        later = (i for i in reversed(timeline.writes) if table.metadata_of(i).file_groups & touched)
        lost_to = next((i.file_name for i in later), ARCHIVED)
    else:
        overlap = table.settings.resolution(
            _operation(begin, planned.file_groups), pending_writes(table, timeline, begin)
        )
        if overlap is not None:
            lost_to, touched = overlap.lost_to.file_name, {*overlap.file_groups}
    if lost_to:
        plans.remove_plan(table, lease, begin, Action.CLUSTERING)
        table.report("clustering_unscheduled", begin)
        raise WriteConflict(begin, lost_to, tuple(sorted(touched)))


def _result(begin: str, completion: str, planned: ClusteringPlan, new: Sequence[FileGroup]) -> ClusteringResult:
    return ClusteringResult(begin, completion, tuple(sorted(planned.file_groups)), tuple(sorted(new)))
