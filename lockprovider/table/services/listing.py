"""The metadata table's partition `files`, written: what an instant of the table changes of its listing.

    begin       under the table lock, which is the only one there is: the pending states, and the log file
    complete    by the one decision that completes the instant in the table, right before that: whoever finishes the one
                finishes the other

A reader passes over what is pending in either. A writer that dies before the decision leaves what a JVM writer leaves;
the rollback of its instant, ours or theirs, takes that back, too.

Promised: what is completed in the table by a writer that uses this is listed. NOT promised: a compaction; see
`metadata_table`.

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
from lockprovider.table.state.knowledge import SeenListing
from lockprovider.table.state.metadata_table import compacted_at, own_schema, own_slices, own_timeline, uncompacted
from lockprovider.table.state.parallel import at_once
from lockprovider.table.timeline.timeline import Timeline

if TYPE_CHECKING:
    from lockprovider.table.state.context import TableContext


def begin_listing(
    table: TableContext,
    lease: Lease,
    begin: str,
    records: Iterable[FilesRecord],
    now: Timeline,
    *,
    again: bool = False,
) -> tuple[Pending, str]:
    """All of this commit of the listing but its completion: that goes `first` with the table's own, at this time.

    `now`: the table's timeline under this lease. `again`: what is there of one who died is taken back before. The
    schema is that of the metadata table's other files, which it gets from the release that made or compacted it.

    Raises:
        Aborted: it may not be there, and is: of a former try, or its writer was taken for dead.
        CasError: the store failed.
    """
    log, now_ms = lease.record.log, table.clock.now_ms()
    own, seen = None, table.knowledge.listing
    if again or log is None or seen.log != log.name:
        own = own_timeline(table.store)
        compacted = compacted_at(own)
        schema = seen.schema if seen.compacted == compacted else ""
        schema = schema or own_schema(table.store, own_slices(table.store, own))
        seen = SeenListing("" if log is None else log.name, compacted, schema, uncompacted(own))
    commit = ListingCommit.of(begin, records, seen.schema)
    table.knowledge.listing = replace(seen, logs=seen.logs + 1)
    latest = "" if own is None else own.latest_time  # what came since in this log is older than `now`
    completion = now.next_time(now_ms, max(commit.begin, latest))
    former = () if own is None else tuple(instant for instant in own.instants if instant.begin == commit.begin)
    if again and former:
        unlist(table, commit.begin)
    requested, inflight = commit.path(InstantState.REQUESTED), commit.path(InstantState.INFLIGHT)
    puts = [(inflight, b""), (commit.log_path, commit.log)]
    try:
        _create(table, requested, b"")  # first: by it a JVM writer finds the others, and removes them
        at_once(table.store, [partial(_create, table, path, data) for path, data in puts])
    except AlreadyExists as error:
        said = f"instant {commit.begin} is in the metadata table already, of a former try; begin again"
        raise Aborted(said) from error
    return Pending.of_bytes(commit.path(InstantState.COMPLETED, completion), commit.completed), after(completion)


def _create(table: TableContext, path: str, data: bytes) -> None:
    table.store.put_if_absent(path, data, create_once=True).unwrap()


def unlist(table: TableContext, begin: str) -> None:
    """Remove what an instant that is pending in the table, or gone from it, has in its metadata table, if it has one.

    Under the lock, before its pending states go from the table: from then on readers would take it for done. May be
    repeated; one that dies halfway leaves it pending, which JVM writers roll back at their start.
    """
    if not table.config().named_metadata:
        return
    states = [i for i in own_timeline(table.store).instants if i.begin == begin and i.changes_rows]
    for instant in (i for i in states if i.is_completed):
        table.store.delete(OWN_TIMELINE + instant.file_name)
    root = f"{METADATA_TABLE}/"
    paths = [entry.path for entry in table.store.list(root)] if states else []
    found = ((path, hfile_at(path.removeprefix(root))) for path in paths)
    table.store.delete_all([path for path, file in found if file is not None and file[1].begin == begin])
    for name in sorted(i.file_name for i in states if not i.is_completed):  # inflight first
        table.store.delete(OWN_TIMELINE + name)
