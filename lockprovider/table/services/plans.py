"""Steps that table services share.

Each must be safe to repeat: any process may carry out a dead executor's plan.

Source: Hudi `BaseHoodieTableServiceClient`, `HoodieHeartbeatClient`, `HoodieBackedTableMetadataWriter`,
`BaseHoodieWriteClient.commitStats`.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from types import MappingProxyType
from typing import TYPE_CHECKING

from fsspec_cas import AlreadyExists, CasError
from lockprovider import Lease, Pending
from lockprovider.table.errors import Aborted, TableNotFound
from lockprovider.table.format.layout import (
    METADATA_TABLE,
    PROPERTIES,
    TIMELINE,
    Action,
    Instant,
    InstantState,
    after,
    data_files_in,
    heartbeat_path,
    hfile_at,
    markers_dir,
)
from lockprovider.table.format.metadata import CommitMetadata, encode_commit
from lockprovider.table.format.metadata_table import OWN_TIMELINE, FilesRecord, ListingCommit, written_files
from lockprovider.table.format.properties import TableConfig, encode_properties, parse_properties
from lockprovider.table.state.heartbeat import WriterHeartbeat, claim, dead, last_beats
from lockprovider.table.state.knowledge import ListingState
from lockprovider.table.state.metadata_table import compacted_at, own_schema, own_slices, own_timeline, uncompacted
from lockprovider.table.state.parallel import concurrently, files_below
from lockprovider.table.timeline.retention import KeepHours, Policy
from lockprovider.table.timeline.timeline import Timeline

if TYPE_CHECKING:
    from lockprovider.table.state.context import TableContext

_HADOOP_CHECKSUM = ".hoodie/.hoodie.properties.crc"  # By it JVM readers would reject the new file.


def claim_time(table: TableContext, timeline: Timeline) -> str:
    """Reserve an unused begin time by creating its heartbeat file; `timeline` must be listed under the lock."""
    begin = timeline.next_time(table.clock.now_ms())
    while claim(table.store, begin) is None:  # A writer took it without the lock.
        begin = after(begin)
    return begin


@contextlib.contextmanager
def claim_with_heartbeat(table: TableContext, timeline: Timeline) -> Iterator[str]:
    """Reserve an unused begin time and yield it; a thread renews its heartbeat file, deleted at the end."""
    begin = timeline.next_time(table.clock.now_ms())
    while not (heartbeat := WriterHeartbeat(table.store, begin, table.settings.heartbeat, table.world)).start():
        begin = after(begin)
    try:
        yield begin
    finally:
        with contextlib.suppress(CasError):
            heartbeat.stop()


def put_plan(table: TableContext, begin: str, action: Action, plan: bytes, lease: Lease | None) -> None:
    """Store an action's requested state, fenced by the `lease` if given, then its inflight state."""
    requested = state_path(begin, action, InstantState.REQUESTED)
    if lease is None:
        table.store.put_if_absent(requested, plan, create_once=True).unwrap()
    else:
        lease.publish(requested, plan)
    table.store.put_if_absent(state_path(begin, action, InstantState.INFLIGHT), b"", create_once=True).unwrap()


def state_path(begin: str, action: Action, state: InstantState) -> str:
    return f"{TIMELINE}/{Instant(begin, action, state).file_name}"


def read_requested(table: TableContext, begin: str, action: Action) -> tuple[bytes, str]:
    """Read a plan; also return its file name."""
    name = Instant(begin, action, InstantState.REQUESTED).file_name
    return table.store.read(f"{TIMELINE}/{name}").data, name


def complete(
    table: TableContext, lease: Lease, begin: str, action: Action, data: bytes, *, listed: Sequence[FilesRecord] = ()
) -> str:
    """Publish an action's completed state with content `data`, under `lease`; return the completion time.

    A metadata table, which `listed` needs, first gets these records.
    """
    timeline, first = table.listed_timeline(), None
    completion = timeline.next_time(table.clock.now_ms())
    if listed:
        first, completion = begin_listing(table, lease, begin, listed, timeline, again=True)
    name = Instant(begin, action, InstantState.COMPLETED, completion).file_name
    lease.publish(replace(table.lock.stage(f"{TIMELINE}/{name}", data), first=first))
    return completion


def complete_write(table: TableContext, lease: Lease, begin: str, action: Action, metadata: CommitMetadata) -> str:
    """Like `complete`, for an action that wrote files: lists these in any metadata table."""
    listed = written_files(metadata) if table.config().named_metadata else ()
    return complete(table, lease, begin, action, encode_commit(metadata), listed=listed)


def change_properties(table: TableContext, lease: Lease, change: Callable[[TableConfig], TableConfig]) -> None:
    """Replace the table's properties by `change`'s result, if it differs, under `lease`.

    Deletes their Hadoop checksum. Raises `TableNotFound` without properties, `Refused` if another process just wrote
    them.
    """
    table.listed_timeline()  # Refuses another table or version.
    stored = table.store.read_or_none(PROPERTIES)
    if stored is None:
        raise TableNotFound(f"there is no {PROPERTIES} at {table.url!r}; restore it, then try again")
    config = parse_properties(stored.data)
    changed = change(config)
    if changed != config:
        lease.check()
        table.store.put_if_match(PROPERTIES, encode_properties(changed), stored.version).unwrap()
    table.store.delete(_HADOOP_CHECKSUM)


def written_ms(table: TableContext, policy: Policy, now_ms: int) -> dict[str, int]:
    """Each timeline file's write time; empty unless the policy is by hours."""
    if not isinstance(policy, KeepHours):
        return {}
    now_s = table.world.monotonic_s()
    stored_ms = {name: entry.modified_ms or 0 for name, entry in files_below(table.store, TIMELINE).items()}
    own_ms = {name: now_ms - round((now_s - done_s) * 1000) for name, done_s in table.knowledge.committed_s.items()}
    return stored_ms | {name: max(ms, stored_ms.get(name, 0)) for name, ms in own_ms.items()}


def check_no_write(table: TableContext) -> None:
    """List the timeline; raise `Aborted` if a write is pending, whose writer may use the properties.

    The caller holds the lock, except for a dry run.
    """
    pending = table.listed_timeline().pending_writes
    if pending:
        raise Aborted(
            f"write {min(pending)} is pending, and its writer goes by the table's present properties (it may be "
            "building the metadata table): try again when it is done; if its writer is dead, `lockprovider table "
            "rollback URL` first"
        )


def remove_plan(table: TableContext, lease: Lease, begin: str, action: Action) -> None:
    """Delete a plan that no executor runs: listing, inflight state, files, markers, requested state, heartbeat."""
    lease.check()
    unlist(table, begin)
    table.store.delete(state_path(begin, action, InstantState.INFLIGHT))
    remove_files(table, begin, files_by_begin(table).get(begin, ()))
    table.store.delete(state_path(begin, action, InstantState.REQUESTED))
    table.store.delete(heartbeat_path(begin))


def files_by_begin(table: TableContext) -> dict[str, tuple[str, ...]]:
    """List all base and log files, by begin time."""
    by_begin: dict[str, list[str]] = {}
    for _, file, path in data_files_in(entry.path for entry in table.data_files()):
        by_begin.setdefault(file.begin, []).append(path)
    return {begin: tuple(paths) for begin, paths in by_begin.items()}


def remove_files(table: TableContext, victim: str, files: tuple[str, ...]) -> None:
    """Delete `files`, and all markers of `victim`; its states stay."""
    table.store.delete_all(files)
    table.store.delete_all([entry.path for entry in table.store.list(f"{markers_dir(victim)}/")])


def remove_pending(table: TableContext, timeline: Timeline, victim: str) -> None:
    """Delete a write's pending states, the requested one last."""
    for name in reversed(timeline.pending_files(victim)):
        table.store.delete(f"{TIMELINE}/{name}")


def dead_plans(table: TableContext, timeline: Timeline, action: Action) -> tuple[str, ...]:
    """Begin times of pending plans with a dead executor; without heartbeat, their age counts."""
    planned = timeline.pending(action)
    entries = [entry for begin in planned for entry in table.store.list(f"{TIMELINE}/{begin}.{action.value}.requested")]
    made_ms = {entry.path.rpartition("/")[2].partition(".")[0]: entry.modified_ms or 0 for entry in entries}
    return dead_among(table, planned, made_ms)


def dead_among(
    table: TableContext, pending: Iterable[str], made_ms: Mapping[str, int] = MappingProxyType({})
) -> tuple[str, ...]:
    """Those of `pending` with a dead writer or executor, oldest first.

    `made_ms`: times in place of missing heartbeats. Without any fresh heartbeat dead ones may be missed.
    """
    suspects = tuple(sorted(pending))
    if not suspects:
        return ()
    beats_ms, now_ms = last_beats(table.store, table.knowledge, table.world, suspects)
    return dead(suspects, {**made_ms, **beats_ms}, now_ms, table.settings.heartbeat)


def silent_begins(table: TableContext) -> tuple[str, ...]:
    beats_ms, now_ms = last_beats(table.store, table.knowledge, table.world)
    return dead(beats_ms, beats_ms, now_ms, table.settings.heartbeat)


def begin_listing(
    table: TableContext,
    lease: Lease,
    begin: str,
    records: Iterable[FilesRecord],
    timeline: Timeline,
    *,
    again: bool = False,
) -> tuple[Pending, str]:
    """Write an instant's pending states and log file to the metadata table; count it in the cache.

    Returns its completed state, to publish `first`, and the table's completion time. `again` first removes an earlier
    try, which else raises `Aborted`.
    """
    log, now_ms = lease.record.log, table.clock.now_ms()
    own, cached = None, table.knowledge.listing
    if again or log is None or cached.log != log.name:
        own = own_timeline(table.store)
        compacted, count = compacted_at(own), uncompacted(own)
        if cached.compacted != compacted:
            cached = ListingState()
        schema = cached.schema or own_schema(table.store, own_slices(table.store, own))
        name = "" if log is None else log.name
        cached = ListingState(name, compacted, schema, count, min(count, cached.tried))
    commit = ListingCommit.of(begin, records, cached.schema)
    table.knowledge.listing = replace(cached, logs=cached.logs + 1)
    # Later listed instants are older than `timeline`.
    latest = "" if own is None else own.latest_time
    completion = timeline.next_time(now_ms, max(commit.begin, latest))
    former = () if own is None else tuple(instant for instant in own.instants if instant.begin == commit.begin)
    if again and former:
        unlist(table, commit.begin)
    requested, inflight = commit.path(InstantState.REQUESTED), commit.path(InstantState.INFLIGHT)
    puts = [(inflight, b""), (commit.log_path, commit.log)]
    try:
        _create(table, requested, b"")  # By this a JVM writer finds and removes the others.
        concurrently(table.store, [partial(_create, table, path, data) for path, data in puts])
    except AlreadyExists as error:
        message = f"instant {commit.begin} is already in the metadata table, from an earlier try; begin again"
        raise Aborted(message) from error
    return Pending.of_bytes(commit.path(InstantState.COMPLETED, completion), commit.completed), after(completion)


def _create(table: TableContext, path: str, data: bytes) -> None:
    table.store.put_if_absent(path, data, create_once=True).unwrap()


def unlist(table: TableContext, begin: str) -> None:
    """Remove a pending or removed instant from any metadata table; safe to repeat.

    Call it under the lock before the pending states leave the table: after that, readers count the instant as
    completed.
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
    for name in sorted(i.file_name for i in states if not i.is_completed):
        table.store.delete(OWN_TIMELINE + name)
