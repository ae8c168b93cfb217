"""Retire a metadata table: a listing of the files that only JVM Hudi keeps, and that hides every commit not in it.

Under the table lock the properties stop naming it, and tell Spark's writers to make none, with one conditional write;
from then on readers list the folders. Then it is removed. JVM writers that do not look there (HoodieStreamer, Flink,
the Java client) build it anew, with all commits in it: set `hoodie.metadata.enable=false` on them first.

Source: Hudi `HoodieTableMetadataUtil.deleteMetadataTable`, `HoodieTableConfig`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

from lockprovider.table.format.instant import Action, InstantState
from lockprovider.table.format.layout import METADATA_TABLE, BaseFile, LogFile, hfile_at
from lockprovider.table.format.metadata_table import LISTING, OWN_TIMELINE, ListingCompaction
from lockprovider.table.format.writer_settings import without_metadata_table
from lockprovider.table.services import plans
from lockprovider.table.state.metadata_table import (
    is_valid,
    merged_listing,
    outlived,
    own_schema,
    own_slices,
    own_timeline,
    uncompacted,
)
from lockprovider.table.timeline.rewrite_plan import compaction_plan
from lockprovider.table.timeline.timeline import Timeline
from lockprovider.table.timeline.view import Snapshot

if TYPE_CHECKING:
    from lockprovider import Lease
    from lockprovider.table.state.context import TableContext


def retire_metadata_table(table: TableContext) -> int:
    """Stop using the metadata table, and remove it: how many of its files there were. Safe to repeat.

    Readers that had opened the table before may fail once, and then see it right.

    Raises:
        TableNotFound: there is no `hoodie.properties`.
        Aborted: a write is pending, whose writer may be building the metadata table; nothing was changed.
        VersionMismatch: a writer that does not take the lock changed the properties at the same moment; try again.
        NotAcquired, CasError: the lock or the store; may be repeated.
    """
    with table.lock.acquire() as lease:
        if table.config().named_metadata or table.store.list(f"{METADATA_TABLE}/"):
            plans.check_no_write(table)
        return retire(table, lease)


def retire(table: TableContext, lease: Lease) -> int:
    """The same, under a lock that is held, by one that knows that no pending write can be completed."""
    plans.change_properties(table, lease, without_metadata_table)
    entries = table.store.list(f"{METADATA_TABLE}/")
    table.store.delete_all([entry.path for entry in entries])
    return len(entries)


# The metadata table's listing, compacted: without that its readers read one log file more with each commit.
#
# JVM writers do it at their start, ours after a commit, when there were ten since the last. All of it is under the
# table lock, which keeps all others from the metadata table:
#
#     take back   what one who died has left of a compaction: nothing is read of it before it is completed
#     plan        `.compaction.requested`, a fenced publish: no log file is completed before its time from here on
#     write       `.inflight`, and the base file with all that the latest slice lists
#     complete    `.commit`, a fenced publish, by which readers begin with the base file
#     remove      the files of slices before the last few; readers that are still at one list the folders
#     forget      instants of which no file is left, from the oldest on: its timeline stays as short as the slices
#
# A commit that is completed there and pending in the table counts for no reader yet. While there is one nothing is
# compacted, for its log file would be passed over for good.
#
# NOT promised: an archive of that timeline, as a JVM writer makes one: nobody reads it, for each of its instants is one
# of the table, or a service of the listing. Nor that it stays short after a writer was stopped within its own turn
# until others had taken its instant back, and then put its log file there and died: what is younger than that stays.
#
# Source: Hudi `HoodieBackedTableMetadataWriter.performTableServices`, `compactIfNecessary`, `cleanIfNecessary`;
# `TimelineArchiverV2`.
MOST_LOGS = 10  # as `hoodie.metadata.compact.max.delta.commits` is by default
_KEPT_SLICES = 3


def compact_if_due(table: TableContext) -> None:
    """Compact, if this process has seen as many commits there as make it worth while.

    Raises:
        HistoryGone, Corrupt, UnsupportedTable: the metadata table cannot be read.
        NotAcquired, LeaseLost, CasError: the lock or the store; may be repeated.
    """
    if table.knowledge.listing.logs < MOST_LOGS:
        return
    with table.lock.acquire() as lease:
        own = own_timeline(table.store)
        count = uncompacted(own)  # others may have done it
        table.knowledge.listing = replace(table.knowledge.listing, logs=count)
        if count >= MOST_LOGS and table.config().named_metadata == (LISTING,):
            compact(table, lease, own)


def compact(table: TableContext, lease: Lease, own: Timeline) -> str | None:
    """The same now, under the lock, with `own` as it is now: its begin time; None if it cannot be now."""
    now = table.listed_timeline()
    for begin in own.pending(Action.COMPACTION):
        own = _taken_back(table, begin, own)
    slices = own_slices(table.store, own)
    valid = is_valid(now, own)
    if len(slices) != 1 or not all(valid(log.file.begin) for log in slices[0].logs):
        return None
    both = Timeline((*now.instants, *own.instants))
    with plans.beating(table, both) as begin:
        for planned in compaction_plan(Snapshot(own, slices), begin, ()):
            listing = merged_listing(table.store, slices, valid)
            done = ListingCompaction.of(begin, planned, listing, own_schema(table.store, slices))
            lease.publish(done.path(InstantState.REQUESTED), done.plan)
            for path, data in ((done.path(InstantState.INFLIGHT), b""), (done.base_path, done.base)):
                table.store.put_if_absent(path, data, create_once=True).unwrap()
            completion = both.next_time(table.clock.now_ms(), begin)
            lease.publish(done.path(InstantState.COMPLETED, completion), done.completed)
    table.knowledge.listing = replace(table.knowledge.listing, logs=0)
    table.tell("listing_compacted", begin, log_files=len(slices[0].logs))
    _remove_old(table, own)
    return begin


def _taken_back(table: TableContext, begin: str, own: Timeline) -> Timeline:
    """Of one who died; the timeline without it. The plan goes last, as others find the rest by it."""
    written = (path for path, found in _files(table) if isinstance(found, BaseFile) and found.begin == begin)
    table.store.delete_all(list(written))
    states = [i for i in own.instants if i.begin == begin and i.action is Action.COMPACTION]
    for instant in sorted(states, key=lambda i: i.file_name):  # inflight first
        table.store.delete(OWN_TIMELINE + instant.file_name)
    return own.without(states)


def _remove_old(table: TableContext, own: Timeline) -> None:
    """A log file that was completed late goes with the slice that it belongs to.

    Then the instants without a file, pending states before completed ones: a JVM writer would roll back what looks
    pending. One that dies at any of it leaves the rest to the next compaction.
    """
    files = list(_files(table))
    first = sorted(found.begin for _, found in files if isinstance(found, BaseFile))[-_KEPT_SLICES:][0]

    def since(found: BaseFile | LogFile) -> str:
        return found.begin if isinstance(found, BaseFile) else own.completions.get(found.begin, first)

    table.store.delete_all([path for path, found in files if since(found) < first])
    gone = outlived(own, {found.begin for _, found in files if since(found) >= first}, first)
    for is_completed in (False, True):
        table.store.delete_all([OWN_TIMELINE + i.file_name for i in gone if i.is_completed is is_completed])


def _files(table: TableContext) -> Iterator[tuple[str, BaseFile | LogFile]]:
    root = f"{METADATA_TABLE}/"
    for entry in table.store.list(f"{root}{LISTING}/"):
        at = hfile_at(entry.path.removeprefix(root))
        if at is not None:
            yield entry.path, at[1]
