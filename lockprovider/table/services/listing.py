"""Writes to the metadata table's listing of files (its partition `files`), for instants of the table.

Source: Hudi `HoodieBackedTableMetadataWriter`, `BaseHoodieWriteClient.commitStats`.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from fsspec_cas import AlreadyExists
from lockprovider import Lease, Pending
from lockprovider.table.errors import Aborted
from lockprovider.table.format.instant import InstantState, after
from lockprovider.table.format.layout import METADATA_TABLE, hfile_at
from lockprovider.table.format.metadata_table import OWN_TIMELINE, FilesRecord, ListingCommit
from lockprovider.table.state.knowledge import ListingState
from lockprovider.table.state.metadata_table import compacted_at, own_schema, own_slices, own_timeline, uncompacted
from lockprovider.table.state.parallel import concurrently
from lockprovider.table.timeline.timeline import Timeline

if TYPE_CHECKING:
    from lockprovider.table.state.context import TableContext


def begin_listing(
    table: TableContext,
    lease: Lease,
    begin: str,
    records: Iterable[FilesRecord],
    timeline: Timeline,
    *,
    again: bool = False,
) -> tuple[Pending, str]:
    """Write an instant's pending states and log file to the metadata table, under the lock; count it in the cache.

    Returns its completion, to be published `first`, and the completion time of the table's instant. `timeline`: listed
    under this lease. `again`: first remove what a dead writer left. The instant's rollback removes these files, too.

    Raises:
        Aborted: an earlier try left the instant here, or its writer was taken for dead.
    """
    log, now_ms = lease.record.log, table.clock.now_ms()
    own, cached = None, table.knowledge.listing
    if again or log is None or cached.log != log.name:
        own = own_timeline(table.store)
        compacted = compacted_at(own)
        schema = cached.schema if cached.compacted == compacted else ""
        schema = schema or own_schema(table.store, own_slices(table.store, own))
        cached = ListingState("" if log is None else log.name, compacted, schema, uncompacted(own))
    commit = ListingCommit.of(begin, records, cached.schema)
    table.knowledge.listing = replace(cached, logs=cached.logs + 1)
    # Instants added to the listing since then are older than `timeline`.
    latest = "" if own is None else own.latest_time
    completion = timeline.next_time(now_ms, max(commit.begin, latest))
    former = () if own is None else tuple(instant for instant in own.instants if instant.begin == commit.begin)
    if again and former:
        unlist(table, commit.begin)
    requested, inflight = commit.path(InstantState.REQUESTED), commit.path(InstantState.INFLIGHT)
    puts = [(inflight, b""), (commit.log_path, commit.log)]
    try:
        _create(table, requested, b"")  # This goes first: a JVM writer finds and removes the others by it.
        concurrently(table.store, [partial(_create, table, path, data) for path, data in puts])
    except AlreadyExists as error:
        message = f"instant {commit.begin} is already in the metadata table, from an earlier try; begin again"
        raise Aborted(message) from error
    return Pending.of_bytes(commit.path(InstantState.COMPLETED, completion), commit.completed), after(completion)


def _create(table: TableContext, path: str, data: bytes) -> None:
    table.store.put_if_absent(path, data, create_once=True).unwrap()


def unlist(table: TableContext, begin: str) -> None:
    """Remove a pending or removed instant from the metadata table, if it has one. Safe to repeat.

    Call it under the lock, before the pending states leave the table: after that, readers count the instant as
    completed. If the caller dies halfway, the instant stays pending.
    """
    if not table.config().named_metadata:
        return
    states = [i for i in own_timeline(table.store).instants if i.begin == begin and i.changes_rows]
    for instant in (i for i in states if i.is_completed):
        table.store.delete(OWN_TIMELINE + instant.file_name)
    root = f"{METADATA_TABLE}/"
    paths = [entry.path for entry in table.store.list(root)] if states else []
    files = ((path, hfile_at(path.removeprefix(root))) for path in paths)
    table.store.delete_all([path for path, file in files if file is not None and file[1].begin == begin])
    for name in sorted(i.file_name for i in states if not i.is_completed):  # The inflight state sorts first.
        table.store.delete(OWN_TIMELINE + name)
