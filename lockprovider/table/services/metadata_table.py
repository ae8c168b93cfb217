"""Removal of a metadata table, and compaction of its listing.

Source: Hudi `HoodieTableMetadataUtil.deleteMetadataTable`, `HoodieTableConfig`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

from lockprovider.table.format.compatibility import without_metadata_table
from lockprovider.table.format.layout import METADATA_TABLE, Action, BaseFile, InstantState, LogFile, hfile_at
from lockprovider.table.format.metadata_table import LISTING, OWN_TIMELINE, ListingCompaction
from lockprovider.table.services import plans
from lockprovider.table.state.metadata_table import (
    is_valid,
    merged_listing,
    own_schema,
    own_slices,
    own_timeline,
    uncompacted,
    unneeded_instants,
)
from lockprovider.table.timeline.rewrite_plan import compaction_plan
from lockprovider.table.timeline.timeline import Timeline
from lockprovider.table.timeline.view import Snapshot

if TYPE_CHECKING:
    from lockprovider import Lease
    from lockprovider.table.state.context import TableContext


def retire_metadata_table(table: TableContext, *, dry_run: bool = False) -> int:
    """Call `retire` under the lock; raises `Aborted` if there is a metadata table and a write is pending.

    `dry_run` only returns the number of files.
    """
    if dry_run:
        return _count_to_retire(table)
    with table.lock.acquire() as lease:
        _count_to_retire(table)
        return retire(table, lease)


def _count_to_retire(table: TableContext) -> int:
    """Count the metadata table's files; if it exists, raise `Aborted` for a pending write."""
    count = len(table.store.list(f"{METADATA_TABLE}/"))
    if table.config().named_metadata or count:
        plans.check_no_write(table)
    return count


def retire(table: TableContext, lease: Lease) -> int:
    """Remove the metadata table from the properties, then its files; return their number.

    No write may be pending.
    """
    # Readers then list folders instead of reading the deleted files.
    plans.change_properties(table, lease, without_metadata_table)
    entries = table.store.list(f"{METADATA_TABLE}/")
    table.store.delete_all([entry.path for entry in entries])
    return len(entries)


# An instant that is completed here and pending in the table blocks it: its log file would be skipped for good.
# Source: Hudi `HoodieBackedTableMetadataWriter.performTableServices`, `TimelineArchiverV2`.
MOST_LOGS = 10  # the default of `hoodie.metadata.compact.max.delta.commits`
_KEPT_SLICES = 3


def compact_if_due(table: TableContext) -> None:
    """Compact the metadata table under the lock if it has ten commits since its last compaction and only lists files.

    Sends no request until this process has counted ten, or ten more after a try in vain.
    """
    if table.knowledge.listing.logs - table.knowledge.listing.tried < MOST_LOGS:
        return
    with table.lock.acquire() as lease:
        own = own_timeline(table.store)
        count = uncompacted(own)
        is_due = count >= MOST_LOGS
        table.knowledge.listing = replace(table.knowledge.listing, logs=count, tried=count if is_due else 0)
        if is_due and table.config().named_metadata == (LISTING,):
            compact(table, lease, own)


def compact(table: TableContext, lease: Lease, own: Timeline) -> str | None:
    """Remove dead compactions; compact the listing of files under a heartbeat, and report it.

    Then removes old files and instants; resets the cached count. `own`: the metadata table's timeline. Returns the
    begin time; None, after only the first step, unless the table has one slice, whose logs' instants all count.
    """
    timeline = table.listed_timeline()
    for begin in own.pending(Action.COMPACTION):
        own = _take_back(table, begin, own)
    slices = own_slices(table.store, own)
    valid = is_valid(timeline, own)
    if len(slices) != 1 or not all(valid(log.file.begin) for log in slices[0].logs):
        return None
    both = Timeline((*timeline.instants, *own.instants))
    with plans.claim_with_heartbeat(table, both) as begin:
        for planned in compaction_plan(Snapshot(own, slices), begin, ()):
            listing = merged_listing(table.store, slices, valid)
            done = ListingCompaction.of(begin, planned, listing, own_schema(table.store, slices))
            lease.publish(done.path(InstantState.REQUESTED), done.plan)
            for path, data in ((done.path(InstantState.INFLIGHT), b""), (done.base_path, done.base)):
                table.store.put_if_absent(path, data, create_once=True).unwrap()
            completion = both.next_time(table.clock.now_ms(), begin)
            lease.publish(done.path(InstantState.COMPLETED, completion), done.completed)
    table.knowledge.listing = replace(table.knowledge.listing, logs=0, tried=0)
    table.report("listing_compacted", begin, log_files=len(slices[0].logs))
    _remove_old(table, own)
    return begin


def _take_back(table: TableContext, begin: str, own: Timeline) -> Timeline:
    written = (path for path, file in _files(table) if isinstance(file, BaseFile) and file.begin == begin)
    table.store.delete_all(list(written))
    states = [i for i in own.instants if i.begin == begin and i.action is Action.COMPACTION]
    for instant in sorted(states, key=lambda i: i.file_name):
        table.store.delete(OWN_TIMELINE + instant.file_name)
    return own.without(states)


def _remove_old(table: TableContext, own: Timeline) -> None:
    """Delete metadata table files older than its last 3 base files, then unneeded instants, completed ones last."""
    files = list(_files(table))
    first = sorted(file.begin for _, file in files if isinstance(file, BaseFile))[-_KEPT_SLICES:][0]

    def since(file: BaseFile | LogFile) -> str:
        return file.begin if isinstance(file, BaseFile) else own.completions.get(file.begin, first)

    table.store.delete_all([path for path, file in files if since(file) < first])
    obsolete = unneeded_instants(own, {file.begin for _, file in files if since(file) >= first}, first)
    for is_completed in (False, True):  # A JVM writer would roll back an instant that looks pending.
        table.store.delete_all([OWN_TIMELINE + i.file_name for i in obsolete if i.is_completed is is_completed])


def _files(table: TableContext) -> Iterator[tuple[str, BaseFile | LogFile]]:
    root = f"{METADATA_TABLE}/"
    for entry in table.store.list(f"{root}{LISTING}/"):
        at = hfile_at(entry.path.removeprefix(root))
        if at is not None:
            yield entry.path, at[1]
