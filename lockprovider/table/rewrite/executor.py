"""Plans of compaction and clustering, which any process schedules, runs or removes."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Generic, TypeVar, cast

from fsspec_cas import CasError, Entry, InvalidInput
from fsspec_cas.arguments import shown
from fsspec_cas.bridge.threads import in_order
from fsspec_cas.outcome import won_or_lost
from lockprovider import Lease
from lockprovider.table.errors import Aborted, HistoryGone
from lockprovider.table.format import schema as hudi_schema
from lockprovider.table.format.layout import (
    Action,
    FileGroup,
    Instant,
    InstantState,
    data_file_at,
    heartbeat_path,
    join,
    parse_log_file,
    to_ms,
)
from lockprovider.table.format.metadata import CLUSTER, COMPACT, CommitMetadata, WriteStat, stats_by_partition
from lockprovider.table.format.service_metadata import PlannedSlice, decode_clustering_plan, decode_compaction_plan
from lockprovider.table.services import checkpoint, plans
from lockprovider.table.state.context import writable_config
from lockprovider.table.state.heartbeat import WriterHeartbeat
from lockprovider.table.timeline.conflict import with_fence
from lockprovider.table.timeline.timeline import Timeline
from lockprovider.table.timeline.view import FileSlice, SliceLog, in_merge_order

if TYPE_CHECKING:
    from lockprovider.table.state.context import TableContext
    from lockprovider.table.state.events import EventKind

TOKEN = "0-0-0"  # noqa: S105 - same in each attempt, so a file group gets one base file
_Planned = TypeVar("_Planned")
_AT_ONCE = 4
_HOUR_MS = 3_600_000
_AT_ONCE_BYTES = 256 << 20  # of stored files


@dataclass(frozen=True, slots=True)
class RewriteTask:
    """Picklable part of a plan; a repeated run finds its files. `held`: stored bytes in memory."""

    write: Callable[[], list[WriteStat]]
    held: int = 0


Runner = Callable[[Sequence[RewriteTask]], Iterable[WriteStat]]


def run_in_threads(tasks: Sequence[RewriteTask]) -> Iterator[WriteStat]:
    """Run the tasks while iterated, in up to 4 threads, fewer if they hold much; yield statistics in order."""
    largest = max((task.held for task in tasks), default=0)
    at_once = max(1, min(_AT_ONCE, _AT_ONCE_BYTES // max(1, largest)))
    return (stat for stats in in_order((task.write for task in tasks), at_once) for stat in stats)


def schedule(
    table: TableContext, action: Action, plan: Callable[[Timeline], bytes], *, owned: bool = False
) -> str | None:
    """Call `plan` with the present timeline under the lock; publish its bytes as a requested plan, and report it.

    Returns the begin time; None, publishing nothing, for empty bytes. Only an `owned` plan's heartbeat file stays.
    """
    with table.locked() as lease:
        timeline = table.listed_timeline()
        data = plan(timeline)
        if not data:
            return None
        begin = plans.claim_time(table, timeline)
        is_there = False
        try:
            lease.publish(plans.state_path(begin, action, InstantState.REQUESTED), data)
            is_there = True
        finally:
            if not (owned and is_there):
                table.store.delete(heartbeat_path(begin))
    table.report(cast("EventKind", f"{action.value}_scheduled"), begin)
    return begin


def own_plan(table: TableContext, begin: str, action: Action) -> WriterHeartbeat:
    """Start the heartbeat thread of this process's own, `owned` plan; raise `Aborted` if it was removed."""
    heartbeat = WriterHeartbeat(table.store, begin, table.settings.heartbeat, table.world)
    if not heartbeat.resume():
        raise _taken_over(begin, action)
    return heartbeat


def planned_groups(table: TableContext, timeline: Timeline) -> set[FileGroup]:
    """Read all pending plans of compactions, log compactions and clusterings; return their file groups.

    Raises `ObjectNotFound` if one was just removed.
    """
    groups: set[FileGroup] = set()
    for action in (Action.COMPACTION, Action.LOGCOMPACTION):
        for begin in timeline.pending(action):
            slices = decode_compaction_plan(*plans.read_requested(table, begin, action))
            groups.update(planned_slice.group for planned_slice in slices)
    for begin in timeline.pending(Action.CLUSTERING):
        groups |= decode_clustering_plan(*plans.read_requested(table, begin, Action.CLUSTERING)).file_groups
    return groups


def plans_without_executor(table: TableContext, action: Action) -> tuple[str, ...]:
    """Begin times of pending plans without a live executor; writes heartbeats."""
    return tuple(begin for begin in table.listed_timeline().pending(action) if not _probe_executor(table, begin))


@dataclass(frozen=True)
class Execution(Generic[_Planned]):
    """Plan's run by this process. `sizes`: of the table's files by path."""

    heartbeat: WriterHeartbeat
    planned: _Planned
    action: Action
    sizes: Mapping[str, int]

    def slice_of(self, planned: PlannedSlice) -> FileSlice:
        """Planned slice with its files' paths and sizes, logs in merge order.

        Raises `HistoryGone` if a file is gone.
        """
        partition, base_file = planned.partition, planned.base_file
        named = [(name, join(partition, name)) for name in (*([base_file] if base_file else []), *planned.logs)]
        missing = [path for _, path in named if path not in self.sizes]
        if missing:
            word = self.action.value
            raise HistoryGone(f"the {word} needs {missing[0]!r}, which is gone; unschedule it, then schedule another")
        logs = ((parse_log_file(name), path) for name, path in named)
        ordered = in_merge_order(SliceLog(file, path, self.sizes[path], "") for file, path in logs if file is not None)
        path = join(partition, base_file) if base_file else ""
        return FileSlice(partition, planned.file_id, planned.base_instant, path, self.sizes.get(path, 0), ordered)


@contextlib.contextmanager
def executing(
    table: TableContext,
    begin: str,
    action: Action,
    read: Callable[[Lease, list[Entry]], _Planned],
    is_ours: Callable[[_Planned, str], bool],
    *,
    owned: WriterHeartbeat | None = None,
) -> Iterator[Execution[_Planned]]:
    """Store a plan's inflight state under the lock; run the block unlocked, with a heartbeat.

    `read` gets the table's files, and returns the plan. Deletes the instant's files unless `is_ours(plan, path)`. At
    the end, also after an error, only stops the heartbeat (`owned`: an own plan's). `Aborted`: another executor runs
    the plan, or removed an `owned` one. `HistoryGone`: it is not scheduled.
    """
    heartbeat = owned or WriterHeartbeat(table.store, begin, table.settings.heartbeat, table.world)
    try:
        with table.locked() as lease:
            if owned is None:
                _refuse_unless_free(table, begin, action)
            elif begin not in table.listed_timeline().pending(action):
                raise _taken_over(begin, action)
            files = table.data_files()
            planned = read(lease, files)
            for path, file in ((entry.path, data_file_at(entry.path)) for entry in files):
                if file is not None and file[1].begin == begin and not is_ours(planned, path):
                    table.store.delete(path)
            lease.check()
            if owned is None:
                table.store.delete(heartbeat_path(begin))
                if not heartbeat.start():
                    raise _at_work(begin, action)
            inflight = plans.state_path(begin, action, InstantState.INFLIGHT)
            won_or_lost(table.store.put_if_absent(inflight, b"", create_once=True))
        yield Execution(heartbeat, planned, action, {entry.path: entry.size for entry in files})
    finally:
        if heartbeat.is_started:
            with contextlib.suppress(CasError):  # harmless if left
                heartbeat.stop()


def complete(
    table: TableContext,
    begin: str,
    action: Action,
    execution: Execution[_Planned],
    stats: Sequence[WriteStat],
    *,
    check: Callable[[Lease, Timeline], None] = lambda *_: None,
    ended: Iterable[FileGroup] = (),
) -> str:
    """Complete a plan under the lock; return the completion time.

    `check` raises if a write overtook the plan. `ended`: file groups that the new files replace. Caches footer notes,
    may store them in the background; deletes markers. Raises `Aborted` if this executor counted as dead.
    """
    with table.locked() as lease:
        timeline = table.listed_timeline()
        is_inflight = Instant(begin, action, InstantState.INFLIGHT) in timeline.instants
        if not (execution.heartbeat.alive and is_inflight and begin in timeline.pending(action)):
            raise _taken_over(begin, action)
        check(lease, timeline)
        config = writable_config(table)
        replaced: dict[str, tuple[str, ...]] = {}
        for partition, file_id in ended:
            replaced[partition] = (*replaced.get(partition, ()), file_id)
        operation = COMPACT if action is Action.COMPACTION else CLUSTER
        schema_json = hudi_schema.to_avro(table.schema(timeline), config.name)
        extra = {**with_fence({}, table.fence), **table.current.stated_schema(timeline, begin)}
        metadata = CommitMetadata(stats_by_partition(stats), operation, schema_json, extra, replaced)
        completion = plans.complete_write(table, lease, begin, action, metadata)
    checkpoint.store_notes(table, begin, stats)
    with contextlib.suppress(CasError):  # it is committed; `doctor` names markers that are left
        plans.remove_files(table, begin, ())
    return completion


def unschedule(table: TableContext, begin: str | None, hours: float | None, action: Action) -> tuple[str, ...]:
    """Remove and report plan `begin`, or all at least `hours` old without a live executor, with files.

    Takes the lock; returns begin times. Raises InvalidInput unless exactly one is given, and `hours` above 0;
    `HistoryGone` if `begin` is not scheduled, `Aborted` if its executor is alive.
    """
    if (begin is None) == (hours is None):
        raise InvalidInput(
            f"give either instant={shown(begin)} for one plan, or hours={shown(hours)} for all older plans"
        )
    if hours is not None and not (isinstance(hours, (int, float)) and 0 < hours < math.inf):
        raise InvalidInput(f"hours={shown(hours)} must be a number above 0: older plans are removed")
    with table.locked() as lease:
        if begin is not None:
            _refuse_unless_free(table, begin, action)
            begins = [begin]
        else:
            latest_ms = table.clock.store_ms() - (hours or 0) * _HOUR_MS
            old = [plan for plan in table.listed_timeline().pending(action) if to_ms(plan) <= latest_ms]
            begins = [plan for plan in old if not _probe_executor(table, plan)]
        for plan in begins:
            plans.remove_plan(table, lease, plan, action)
    for plan in begins:
        table.report(cast("EventKind", f"{action.value}_unscheduled"), plan)
    return tuple(begins)


def _probe_executor(table: TableContext, begin: str) -> bool:
    """Whether a plan's executor is alive; writes a heartbeat, to compare."""
    with plans.claim_with_heartbeat(table, table.listed_timeline()):
        return begin not in plans.dead_among(table, [begin])


def _refuse_unless_free(table: TableContext, begin: str, action: Action) -> None:
    if begin not in table.listed_timeline().pending(action):
        raise HistoryGone(
            f"no {action.value} that began at {begin} is scheduled; `lockprovider table doctor` lists the plans"
        )
    if _probe_executor(table, begin):
        raise _at_work(begin, action)


def _taken_over(begin: str, action: Action) -> Aborted:
    return Aborted(
        f"{action.value} {begin} was taken over or unscheduled: its executor counted as dead; if it is gone, schedule "
        "another"
    )


def _at_work(begin: str, action: Action) -> Aborted:
    return Aborted(f"another executor runs {action.value} {begin}; wait until it completes, or its heartbeat expires")
