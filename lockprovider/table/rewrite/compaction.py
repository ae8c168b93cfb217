"""Compaction: merge the log files of file slices into new base files, while writers continue.

Writers and compactions never conflict: a log completed after the compaction's begin belongs to the new slice.

Source: Hudi `HoodieCompactor`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from lockprovider.table.errors import UnsupportedTable
from lockprovider.table.files.group_writer import GroupWriter, write_compacted
from lockprovider.table.files.slice_rows import held_bytes
from lockprovider.table.format.layout import Action, FileGroup
from lockprovider.table.format.metadata import WriteStat
from lockprovider.table.format.service_metadata import PlannedSlice, decode_compaction_plan, encode_compaction_plan
from lockprovider.table.rewrite import executor
from lockprovider.table.services import plans
from lockprovider.table.state.context import writable_config
from lockprovider.table.timeline.rewrite_plan import compaction_plan
from lockprovider.table.timeline.timeline import Timeline
from lockprovider.table.timeline.view import FileSlice

if TYPE_CHECKING:
    from lockprovider.table.state.context import TableContext


@dataclass(frozen=True, slots=True)
class CompactionResult:
    """Result of one compaction; `instant` and `completion`: 17 digits, UTC, empty for a dry run.

    `log_files` counts those of the merged `file_groups`.
    """

    instant: str
    completion: str
    file_groups: tuple[FileGroup, ...]
    log_files: int


def compact_table(
    table: TableContext, run: executor.Runner = executor.run_in_threads, *, dry_run: bool = False
) -> tuple[CompactionResult, ...]:
    """Run the scheduled compactions without a live executor, then schedule and run one if log files are left.

    `dry_run` only returns the next plan, if any, with empty times. Raises as `run_compaction`.
    """
    _check(table)
    if dry_run:
        planned = _planned(table, table.listed_timeline())
        return (_result("", "", planned),) if planned else ()
    done = [run_compaction(table, begin, run) for begin in executor.plans_without_executor(table, Action.COMPACTION)]
    begin_of_own = schedule_compaction(table)
    return tuple(done if begin_of_own is None else [*done, run_compaction(table, begin_of_own, run)])


def schedule_compaction(table: TableContext) -> str | None:
    """Publish a compaction plan under the lock, for any process; return its begin time, None if none is needed.

    UnsupportedTable: the table is copy-on-write.
    """
    _check(table)

    def plan(now: Timeline) -> bytes:
        planned = _planned(table, now)
        return encode_compaction_plan(planned) if planned else b""

    return executor.schedule(table, Action.COMPACTION, plan)


def run_compaction(table: TableContext, begin: str, run: executor.Runner = executor.run_in_threads) -> CompactionResult:
    """Write and commit a scheduled compaction's base files, under a heartbeat; report it.

    It may be JVM Hudi's or a dead executor's: first deletes files of its instant with another write token. `Aborted`:
    another executor runs it. `HistoryGone`: plan or files are gone. `UnsupportedTable`: a copy-on-write table.
    """
    _check(table)
    with executor.executing(table, begin, Action.COMPACTION, lambda *_: _plan_of(table, begin), _is_ours) as execution:
        writer = GroupWriter(table.place, begin, table.config(), table.schema())
        tasks = [
            executor.RewriteTask(partial(_write, writer, file_slice), held_bytes(file_slice))
            for file_slice in map(execution.slice_of, execution.planned)
        ]
        completion = executor.complete(table, begin, Action.COMPACTION, execution, list(run(tasks)))
    table.report("compacted", begin, file_groups=len(execution.planned))
    return _result(begin, completion, execution.planned)


def unschedule_compaction(table: TableContext, begin: str | None, hours: float | None) -> tuple[str, ...]:
    """See `executor.unschedule`."""
    _check(table)
    return executor.unschedule(table, begin, hours, Action.COMPACTION)


def _check(table: TableContext) -> None:
    config = writable_config(table)
    if not config.is_merge_on_read:
        raise UnsupportedTable(f"table {config.name!r} is copy-on-write: it has no log files, and nothing to compact")


def _planned(table: TableContext, now: Timeline) -> tuple[PlannedSlice, ...]:
    begin = now.next_time(table.clock.now_ms())
    return compaction_plan(table.snapshot_of(now), begin, executor.planned_groups(table, now))


def _plan_of(table: TableContext, begin: str) -> tuple[PlannedSlice, ...]:
    return decode_compaction_plan(*plans.read_requested(table, begin, Action.COMPACTION))


def _is_ours(planned: tuple[PlannedSlice, ...], path: str) -> bool:
    del planned  # Readers fail at two base files in one slice; ours has a fixed name.
    return f"_{executor.TOKEN}_" in path


def _write(writer: GroupWriter, file_slice: FileSlice) -> list[WriteStat]:
    return [write_compacted(writer, file_slice, executor.TOKEN)]


def _result(begin: str, completion: str, planned: Sequence[PlannedSlice]) -> CompactionResult:
    logs = sum(len(planned_slice.logs) for planned_slice in planned)
    return CompactionResult(begin, completion, tuple(planned_slice.group for planned_slice in planned), logs)
