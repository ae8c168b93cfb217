"""Archive: move the oldest instants from the timeline to archive files.

Source: Hudi `TimelineArchiverV2`, `LSMTimelineWriter`.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from fsspec_cas.arguments import shown
from lockprovider import InvalidSettings, Lease
from lockprovider.table.errors import Aborted
from lockprovider.table.format.layout import MARKERS, TIMELINE, Action, Instant, InstantState
from lockprovider.table.format.lsm import Archived
from lockprovider.table.format.service_metadata import decode_rollback_plan
from lockprovider.table.services import archive_files, plans, rollback
from lockprovider.table.state import archive_index
from lockprovider.table.state.context import writable_config
from lockprovider.table.state.metadata_table import compacted_at, own_timeline
from lockprovider.table.state.parallel import concurrently
from lockprovider.table.timeline.retention import (
    Archivable,
    ArchivalFacts,
    ArchivalPlan,
    KeepActive,
    KeepHours,
    archival_plan,
    earliest_retained,
    surplus,
)
from lockprovider.table.timeline.timeline import Timeline
from lockprovider.table.timeline.view import Snapshot, replaced_groups

if TYPE_CHECKING:
    from lockprovider.table.state.context import TableContext

_ROUND = 100  # writes


@dataclass(frozen=True, slots=True)
class ArchiveResult:
    """Result of an archive run.

    Attributes:
        instants: file names of the archived completed instants, oldest first.
        held: why fewer than the settings ask for, and what to do; or empty.
    """

    instants: tuple[str, ...]
    held: str = ""


def archive(table: TableContext, keep: KeepActive | None = None, *, dry_run: bool = False) -> ArchiveResult:
    """Roll back dead writers, then archive oldest instants by rounds, each under the lock; report them.

    `keep` (None: the settings') says how many writes stay; within it, nothing is done unless an archiver died.
    `dry_run` only returns what would be archived. `InvalidSettings`: an invalid `keep`.
    """
    writable_config(table)
    keep = table.settings.archival if keep is None else keep
    if not isinstance(keep, KeepActive):
        raise InvalidSettings(f"keep={shown(keep)} must be KeepActive(least, most), e.g. KeepActive(20, 30)")
    if keep.fault:
        raise InvalidSettings(keep.fault)
    timeline = table.listed_timeline()
    if dry_run:
        planned = archival_plan(_read_facts(table), keep, at_most=len(timeline.instants))
        return ArchiveResult(tuple(action.done.file_name for action in planned.actions), planned.held)
    earliest = _earliest(table, timeline)
    if not surplus(timeline, earliest, keep) and archive_index.reach(table.knowledge).begin < timeline.first_active:
        return ArchiveResult(())  # nor did a dead archiver leave any
    if timeline.pending_writes or timeline.pending(Action.ROLLBACK, Action.RESTORE):
        with contextlib.suppress(Aborted):  # a dead rollback that stays; it holds what it needs
            rollback.sweep(table)
    names: list[str] = []
    while True:
        with table.locked() as lease:
            done, is_last = _round(table, lease, keep)
        names += [action.done.file_name for action in done.actions]
        if is_last:
            if names:
                table.report("archived", "", instants=len(names))
            return ArchiveResult(tuple(names), done.held)


def _round(table: TableContext, lease: Lease, keep: KeepActive) -> tuple[ArchivalPlan, bool]:
    """Finish a dead archiver's work, then move up to 100 writes, with older cleans and rollbacks, to the archive.

    Deletes their markers, merges archive files. Returns what it moved, and whether this was the last round.
    """
    archive_files.finish_removal(table, lease)
    planned = archival_plan(_read_facts(table), keep, at_most=_ROUND)
    if planned.actions:
        calls = [partial(_content, table, action) for action in planned.actions]
        archive_files.add_instants(table, lease, concurrently(table.store, calls))
        archive_files.remove_archived(table, lease, planned.actions)
        begins, markers = {action.done.begin for action in planned.actions}, table.store.list(f"{MARKERS}/")
        dead = [e.path for e in markers if e.path.removeprefix(f"{MARKERS}/").partition("/")[0] in begins]
        table.store.delete_all(dead)
        archive_files.compact(table, lease)
    writes = sum(action.done.changes_rows for action in planned.actions)
    return planned, writes < _ROUND


def _read_facts(table: TableContext) -> ArchivalFacts:
    """List files, then the timeline; read what else decides which instants may be archived."""
    files = table.data_files()
    paths = frozenset(entry.path for entry in files)
    timeline = table.listed_timeline()
    replaced = {done.begin: groups for done, groups in replaced_groups(timeline, table.metadata_of).items()}
    logs = _unsafe_logs(table.snapshot_of(timeline, files)) if table.config().is_merge_on_read else frozenset[str]()
    listed = compacted_at(own_timeline(table.store)) if table.config().named_metadata else None
    return ArchivalFacts(timeline, paths, replaced, _victims(table, timeline), _earliest(table, timeline), logs, listed)


def _unsafe_logs(snapshot: Snapshot) -> frozenset[str]:
    logs = ((log.file.begin, part.base or "~") for part in snapshot.slices for log in part.logs)
    return frozenset(begin for begin, base in logs if begin < base) & frozenset(snapshot.timeline.completions)


def _earliest(table: TableContext, timeline: Timeline) -> str:
    policy = table.settings.retention
    now_ms = table.clock.store_ms() if isinstance(policy, KeepHours) else 0
    write = earliest_retained(policy, timeline, now_ms, plans.written_ms(table, policy, now_ms))
    return write.begin if write else ""


def _victims(table: TableContext, timeline: Timeline) -> frozenset[str]:
    instants = (Instant(begin, Action.ROLLBACK, InstantState.REQUESTED) for begin in timeline.pending_rollbacks)
    stored = ((i.file_name, _read(table, i.file_name)) for i in instants if i.file_name in timeline.names)
    return frozenset(decode_rollback_plan(data, name).begin for name, data in stored if data)


def _content(table: TableContext, action: Archivable) -> Archived:
    """Read an instant's completed file and first non-empty plan, of a service or replacecommit; empty ones as None."""
    done = action.done
    names = [done.file_name]
    pending = {(i.action, i.state): i.file_name for i in action.pending}
    for kind in (Action.CLEAN, Action.COMPACTION, Action.LOGCOMPACTION, Action.CLUSTERING, Action.REPLACECOMMIT):
        states = (InstantState.INFLIGHT,) if kind is Action.REPLACECOMMIT else ()
        names += [pending[kind, s] for s in (*states, InstantState.REQUESTED) if (kind, s) in pending]
    metadata, *plans = (_read(table, name) for name in names)
    return Archived(done.begin, done.completion or "", done.action.value, metadata, next(filter(None, plans), None))


def _read(table: TableContext, name: str) -> bytes | None:
    return table.store.read(f"{TIMELINE}/{name}").data or None
