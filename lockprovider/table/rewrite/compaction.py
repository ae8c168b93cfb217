"""Compaction: the log files of file slices are merged into new base files, while writers go on.

    schedule  under the table lock, as a file: `.compaction.requested` names the files that are merged
    run       without the lock, anywhere, by one executor at a time, who beats: `.inflight`, then the base files
    complete  under the lock: from here on readers see the new slices

A log that is completed after the compaction began belongs to the new slice, whenever it was begun: so writers and
compactions never conflict. What an executor that died has left, the next one goes on with: its files have the same
names and rows. What JVM Hudi has scheduled is run here; that it runs what is scheduled here was not tried.

NOT promised: that a delete is remembered: a row that comes later with a lower ordering value is there again.

Source: Hudi `ScheduleCompactionActionExecutor`, `HoodieCompactor`, `BaseHoodieTableServiceClient`.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from fsspec_cas import CasError
from lockprovider.table.errors import Aborted, HistoryGone, UnsupportedTable
from lockprovider.table.files.compact import write_compacted
from lockprovider.table.files.group_writer import GroupWriter
from lockprovider.table.format import schema as hudi_schema
from lockprovider.table.format.data_files import data_file_at, parse_log_file
from lockprovider.table.format.instant import Action, Instant, InstantState
from lockprovider.table.format.layout import TIMELINE, FileGroup, heartbeat_path, join
from lockprovider.table.format.metadata import COMPACT, CommitMetadata, WriteStat, decode_clustering_plan, encode_commit
from lockprovider.table.format.properties import check_writable
from lockprovider.table.format.service_metadata import (
    CompactionOperation,
    decode_compaction_plan,
    encode_compaction_plan,
)
from lockprovider.table.services import plans
from lockprovider.table.state.heartbeat import WriterHeartbeat
from lockprovider.table.state.parallel import in_order
from lockprovider.table.timeline.compaction_plan import compaction_plan
from lockprovider.table.timeline.timeline import Timeline
from lockprovider.table.timeline.view import FileSlice, SliceLog

if TYPE_CHECKING:
    from lockprovider.table.state.context import TableContext

_TOKEN = "0-0-0"  # noqa: S105 - of every attempt: so one base file a file group is left, whoever writes it
_AT_ONCE = 4
_MERGES = (Action.COMPACTION, Action.LOGCOMPACTION)


@dataclass(frozen=True, slots=True)
class CompactionResult:
    """One compaction. `instant` and `completion` are 17 digits, UTC; empty if it is only what would be done.

    `file_groups` are those that it merged, `log_files` how many log files they had.
    """

    instant: str
    completion: str
    file_groups: tuple[FileGroup, ...]
    log_files: int


def compact_table(table: TableContext) -> tuple[CompactionResult, ...]:
    """Run what is scheduled and nobody runs, then schedule what there is to merge now, and run that, too.

    Raises:
        UnsupportedTable: the table is not merge-on-read, or cannot be written here.
        NotAcquired, CasError: the lock or the store; what was scheduled is run by the next call.
    """
    _check(table)
    left = [begin for begin in table.timeline().pending(Action.COMPACTION) if not _is_run(table, begin)]
    done = [run_compaction(table, begin) for begin in left]
    mine = schedule_compaction(table)
    return tuple(done if mine is None else [*done, run_compaction(table, mine)])


def would_compact(table: TableContext) -> tuple[CompactionResult, ...]:
    """What `compact_table` would schedule now; nothing is written."""
    _check(table)
    now = table.timeline()
    planned = _planned(table, now, now.next_time(table.world.now_ms()))
    return (_result("", "", planned),) if planned else ()


def schedule_compaction(table: TableContext) -> str | None:
    """Write down which file slices are to be merged, to be run by anybody: its begin time; None if there are none.

    Raises:
        UnsupportedTable: the table is not merge-on-read, or cannot be written here.
        NotAcquired, LeaseLost, CasError: the lock or the store; may be repeated.
    """
    _check(table)
    with table.lock.acquire() as lease:
        now = table.timeline()
        if not _planned(table, now, now.next_time(table.world.now_ms())):
            return None
        begin = plans.claim_time(table, now)
        try:
            planned = encode_compaction_plan(_planned(table, now, begin))
            lease.publish(f"{TIMELINE}/{_name(begin, InstantState.REQUESTED)}", planned)
        finally:
            table.store.delete(heartbeat_path(begin))  # nobody runs it yet
    table.tell("compaction_scheduled", begin)
    return begin


def run_compaction(table: TableContext, begin: str) -> CompactionResult:
    """Run a scheduled compaction, of the JVM's too, or go on with one whose executor died.

    Raises:
        HistoryGone: there is none that began then and is not completed, or files that it names are gone.
        Aborted: another executor is at work, or took this one for dead.
        NotAcquired, LeaseLost, CasError: the lock or the store; may be repeated.
    """
    _check(table)
    with _executing(table, begin) as (heartbeat, planned):
        stats = _execute(table, begin, planned)
        with table.lock.acquire() as lease:
            now = table.timeline()
            if not heartbeat.alive or Instant(begin, Action.COMPACTION, InstantState.INFLIGHT) not in now.instants:
                raise Aborted(f"compaction {begin} was taken over or unscheduled: others took its executor for dead")
            config = table.config()
            check_writable(config)
            metadata = CommitMetadata(
                _by_partition(stats), COMPACT, hudi_schema.to_avro(table.schema(now), config.name)
            )
            completion = plans.complete(table, lease, begin, Action.COMPACTION, encode_commit(metadata))
    plans.remove_files(table, begin, ())
    table.tell("compacted", begin, file_groups=len(planned))
    return _result(begin, completion, planned)


def unschedule_compaction(table: TableContext, begin: str) -> None:
    """Take a scheduled compaction back, with what an executor that died has written of it. No row changes by it.

    Raises:
        HistoryGone: there is none that began then and is not completed.
        Aborted: an executor is at work.
        NotAcquired, CasError: the lock or the store; may be repeated.
    """
    _check(table)
    with table.lock.acquire() as lease:
        _refuse_unless_free(table, begin)
        lease.check()
        table.store.delete(f"{TIMELINE}/{_name(begin, InstantState.INFLIGHT)}")
        plans.remove_files(table, begin, plans.files_by_begin(table).get(begin, ()))
        table.store.delete(f"{TIMELINE}/{_name(begin, InstantState.REQUESTED)}")
        table.store.delete(heartbeat_path(begin))
    table.tell("compaction_unscheduled", begin)


def _check(table: TableContext) -> None:
    config = table.config()
    check_writable(config)
    if not config.is_merge_on_read:
        raise UnsupportedTable(f"table {config.name!r} is copy-on-write: it has no log files, and nothing to compact")


def _planned(table: TableContext, now: Timeline, begin: str) -> tuple[CompactionOperation, ...]:
    busy: set[FileGroup] = set()
    for action in _MERGES:
        for pending in now.pending(action):
            busy |= {one.group for one in _plan_of(table, pending, action)}
    for pending in now.pending(Action.CLUSTERING):
        busy |= decode_clustering_plan(*plans.read_requested(table, pending, Action.CLUSTERING))
    return compaction_plan(table.snapshot_of(now), begin, busy)


def _plan_of(table: TableContext, begin: str, action: Action = Action.COMPACTION) -> tuple[CompactionOperation, ...]:
    return decode_compaction_plan(*plans.read_requested(table, begin, action))


def _is_run(table: TableContext, begin: str) -> bool:
    with plans.beating(table, table.timeline()):  # a fresh heartbeat shows how late the other is
        return begin not in plans.dead_among(table, [begin])


def _refuse_unless_free(table: TableContext, begin: str) -> None:
    """Under the lock: it is scheduled, and nobody runs it."""
    if begin not in table.timeline().pending(Action.COMPACTION):
        raise HistoryGone(f"no compaction that began at {begin} is scheduled; the timeline has those that are")
    if _is_run(table, begin):
        raise Aborted(f"an executor is at work on compaction {begin}; wait for it, or until it is dead")


@contextlib.contextmanager
def _executing(table: TableContext, begin: str) -> Iterator[tuple[WriterHeartbeat, tuple[CompactionOperation, ...]]]:
    """Claimed under the lock: its only executor, for as long as it beats."""
    heartbeat = WriterHeartbeat(table.store, begin, table.settings.heartbeat, table.world)
    with table.lock.acquire() as lease:
        _refuse_unless_free(table, begin)
        planned = _plan_of(table, begin)
        _remove_others(table, begin, planned)
        lease.check()
        table.store.delete(heartbeat_path(begin))  # of one that died
        if not heartbeat.start():
            raise Aborted(f"an executor is at work on compaction {begin}; wait for it, or until it is dead")
        table.store.put_if_absent(f"{TIMELINE}/{_name(begin, InstantState.INFLIGHT)}", b"", create_once=True)
    try:
        yield heartbeat, planned
    finally:
        with contextlib.suppress(CasError):  # a heartbeat that is left over only says that nobody beats
            heartbeat.stop()


def _remove_others(table: TableContext, begin: str, planned: Iterable[CompactionOperation]) -> None:
    """Base files that an executor of other names has left, as the JVM's: of two in one slice readers fail."""
    groups = {one.group for one in planned}
    for path in plans.files_by_begin(table).get(begin, ()):
        at = data_file_at(path)
        if at is not None and (at[0], at[1].file_id) in groups and f"_{_TOKEN}_" not in path:
            table.store.delete(path)


def _execute(table: TableContext, begin: str, planned: Iterable[CompactionOperation]) -> list[WriteStat]:
    writer = GroupWriter(table.place, begin, table.config(), table.schema())
    sizes = {entry.path: entry.size for entry in table.data_files()}

    def write(one: FileSlice) -> WriteStat:
        stat = write_compacted(writer, one, _TOKEN)
        writer.withdraw_if_rolled_back(stat.path)
        return stat

    slices = [_slice(one, sizes) for one in planned]
    return list(in_order([partial(write, one) for one in slices], _AT_ONCE))


def _slice(one: CompactionOperation, sizes: dict[str, int]) -> FileSlice:
    names = (*([one.base_file] if one.base_file else []), *one.logs)
    gone = [path for name in names if (path := join(one.partition, name)) not in sizes]
    if gone:
        raise HistoryGone(f"the compaction needs {gone[0]!r}, which is not there; unschedule it, and schedule another")
    found = ((parse_log_file(name), join(one.partition, name)) for name in one.logs)
    logs = tuple(SliceLog(file, path, sizes[path], "") for file, path in found if file is not None)
    path = join(one.partition, one.base_file) if one.base_file else ""
    return FileSlice(one.partition, one.file_id, one.base_instant, path, sizes.get(path, 0), logs)


def _by_partition(stats: Iterable[WriteStat]) -> dict[str, tuple[WriteStat, ...]]:
    found: dict[str, tuple[WriteStat, ...]] = {}
    for stat in stats:
        found[stat.partition] = (*found.get(stat.partition, ()), stat)
    return found


def _name(begin: str, state: InstantState) -> str:
    return Instant(begin, Action.COMPACTION, state).file_name


def _result(begin: str, completion: str, planned: Iterable[CompactionOperation]) -> CompactionResult:
    done = tuple(planned)
    return CompactionResult(begin, completion, tuple(one.group for one in done), sum(len(one.logs) for one in done))
