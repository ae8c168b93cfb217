"""What rollback, clean and restore share: a begin time of their own, and plan and completion under the lock.

A plan is a file: whoever finds one whose executor is dead carries it out. So every step of an execution may be
repeated, by anybody, at any time.

Source: Hudi `BaseHoodieTableServiceClient`, `HoodieHeartbeatClient`.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from fsspec_cas import CasError
from lockprovider import Lease
from lockprovider.table.errors import Aborted, TableNotFound
from lockprovider.table.format.instant import Action, Instant, InstantState, after
from lockprovider.table.format.layout import PROPERTIES, TIMELINE, data_file, heartbeat_path, markers_dir
from lockprovider.table.format.metadata import CommitMetadata, encode_commit
from lockprovider.table.format.metadata_table import FilesRecord, written_files
from lockprovider.table.format.properties import TableConfig, encode_properties, parse_properties
from lockprovider.table.services import listing
from lockprovider.table.state.heartbeat import WriterHeartbeat, claim, last_beats
from lockprovider.table.state.parallel import files_below
from lockprovider.table.timeline.liveness import dead
from lockprovider.table.timeline.retention import KeepHours, Policy
from lockprovider.table.timeline.timeline import Timeline

if TYPE_CHECKING:
    from lockprovider.table.state.context import TableContext

_HADOOP_CHECKSUM = ".hoodie/.hoodie.properties.crc"  # on local disks only; JVM readers would find it wrong


def claim_time(table: TableContext, now: Timeline) -> str:
    """A begin time that no other action has or can get; `now` was listed under the lock.

    Its heartbeat file is there from now on, and is to be removed after the completion.
    """
    begin = now.next_time(table.clock.now_ms())
    while claim(table.store, begin) is None:  # a writer begins now; it does not need the lock for that
        begin = after(begin)
    return begin


@contextlib.contextmanager
def beating(table: TableContext, now: Timeline) -> Iterator[str]:
    """A begin time as by `claim_time`, with a heartbeat for as long as its executor lives."""
    begin = now.next_time(table.clock.now_ms())
    while not (heartbeat := WriterHeartbeat(table.store, begin, table.settings.heartbeat, table.world)).start():
        begin = after(begin)
    try:
        yield begin
    finally:
        with contextlib.suppress(CasError):  # a heartbeat that is left over only says that nobody beats
            heartbeat.stop()


def put_plan(table: TableContext, begin: str, action: Action, plan: bytes, lease: Lease | None) -> None:
    """Put the requested and the inflight state on the timeline, under the lock.

    With a `lease` it cannot happen after somebody else took over: so what was found out under the lock is still true
    when the plan is there, and what is done by the plan later needs no lock. None: the plan is true anyway.
    """
    requested = state_path(begin, action, InstantState.REQUESTED)
    if lease is None:
        table.store.put_if_absent(requested, plan, create_once=True).unwrap()
    else:
        lease.publish(requested, plan)
    table.store.put_if_absent(state_path(begin, action, InstantState.INFLIGHT), b"", create_once=True).unwrap()


def state_path(begin: str, action: Action, state: InstantState) -> str:
    """Where a pending state of an instant is."""
    return f"{TIMELINE}/{Instant(begin, action, state).file_name}"


def read_requested(table: TableContext, begin: str, action: Action) -> tuple[bytes, str]:
    """The content and the name of a requested file.

    Raises:
        ObjectNotFound: it was removed meanwhile.
    """
    name = Instant(begin, action, InstantState.REQUESTED).file_name
    return table.store.read(f"{TIMELINE}/{name}").data, name


def complete(
    table: TableContext, lease: Lease, begin: str, action: Action, data: bytes, *, listed: Sequence[FilesRecord] = ()
) -> str:
    """Publish the completed state, under the lock; the completion time.

    `listed`: what it changes of the listing of files, where a metadata table is kept; by the same decision.
    """
    now, first = table.listed_timeline(), None
    completion = now.next_time(table.clock.now_ms())
    if listed:
        first, completion = listing.begin_listing(table, lease, begin, listed, now, again=True)
    name = Instant(begin, action, InstantState.COMPLETED, completion).file_name
    lease.publish(replace(table.lock.stage(f"{TIMELINE}/{name}", data), first=first))
    return completion


def complete_write(table: TableContext, lease: Lease, begin: str, action: Action, said: CommitMetadata) -> str:
    """The same of what writes files."""
    listed = written_files(said) if table.config().named_metadata else ()
    return complete(table, lease, begin, action, encode_commit(said), listed=listed)


def change_properties(table: TableContext, lease: Lease, change: Callable[[TableConfig], TableConfig]) -> None:
    """Replace the table's properties by what `change` makes of them, under the lock, with one conditional write.

    Nothing is written if they are so already.

    Raises:
        TableNotFound: there is no `hoodie.properties`.
        VersionMismatch: a writer that does not take the lock changed them at the same moment; try again.
    """
    table.listed_timeline()  # refuses another table, or another version, than was opened
    found = table.store.read_or_none(PROPERTIES)
    if found is None:
        raise TableNotFound(f"there is no {PROPERTIES} at {table.url!r}; restore it, then try again")
    config = parse_properties(found.data)
    wanted = change(config)
    if wanted != config:
        lease.check()
        table.store.put_if_match(PROPERTIES, encode_properties(wanted), found.version).unwrap()
    table.store.delete(_HADOOP_CHECKSUM)


def written_ms(table: TableContext, policy: Policy, now_ms: int) -> dict[str, int]:
    """When the completed files were written, for a policy that goes by hours: by the store, or as this process knows.

    A writer whose clock is behind gives its commits times of long ago.
    """
    if not isinstance(policy, KeepHours):
        return {}
    now_s = table.world.monotonic_s()
    found = {name: entry.modified_ms or 0 for name, entry in files_below(table.store, TIMELINE).items()}
    mine = {name: now_ms - round((now_s - done_s) * 1000) for name, done_s in table.knowledge.committed_s.items()}
    return found | {name: max(ms, found.get(name, 0)) for name, ms in mine.items()}


def check_no_write(table: TableContext) -> None:
    """A JVM writer builds a metadata table outside the lock: then what hides commits could come back.

    Raises:
        Aborted: a write is pending.
    """
    pending = table.listed_timeline().pending_writes
    if pending:
        raise Aborted(
            f"write {min(pending)} is pending, and its writer may be building the metadata table: try again when it is "
            "done; if its writer is dead, `lockprovider table rollback URL` first"
        )


def take_back(table: TableContext, lease: Lease, begin: str, action: Action) -> None:
    """Remove a plan of rows to be rewritten that nobody runs, and what was written of it: the plan last."""
    lease.check()
    listing.unlist(table, begin)
    table.store.delete(state_path(begin, action, InstantState.INFLIGHT))
    remove_files(table, begin, files_by_begin(table).get(begin, ()))
    table.store.delete(state_path(begin, action, InstantState.REQUESTED))
    table.store.delete(heartbeat_path(begin))


def files_by_begin(table: TableContext) -> dict[str, tuple[str, ...]]:
    """The paths of all base and log files by the begin time that they carry, whether a marker names them or not."""
    found: dict[str, list[str]] = {}
    for entry in table.data_files():
        file = data_file(entry.path.rpartition("/")[2])
        if file is not None:
            found.setdefault(file.begin, []).append(entry.path)
    return {begin: tuple(paths) for begin, paths in found.items()}


def remove_files(table: TableContext, victim: str, files: tuple[str, ...]) -> None:
    """Remove these files of an instant, and its markers."""
    table.store.delete_all(files)
    table.store.delete_all([entry.path for entry in table.store.list(f"{markers_dir(victim)}/")])


def remove_pending(table: TableContext, now: Timeline, victim: str) -> None:
    """Take the pending states of a write off the timeline, the requested one last: until then it counts as pending."""
    for name in reversed(now.pending_files(victim)):
        table.store.delete(f"{TIMELINE}/{name}")


def dead_plans(table: TableContext, now: Timeline, action: Action) -> tuple[str, ...]:
    """The begin times of pending plans whose executor is dead; one without a heartbeat has as long as one with it."""
    planned = now.pending(action)
    entries = [entry for begin in planned for entry in table.store.list(f"{TIMELINE}/{begin}.{action.value}.requested")]
    made_ms = {entry.path.rpartition("/")[2].partition(".")[0]: entry.modified_ms or 0 for entry in entries}
    return _dead(table, planned, made_ms) if planned else ()


def dead_among(table: TableContext, pending: Iterable[str]) -> tuple[str, ...]:
    """The begin times among `pending` whose writer or executor is dead, oldest first."""
    suspects = sorted(pending)
    return _dead(table, suspects, {}) if suspects else ()


def silent(table: TableContext) -> tuple[str, ...]:
    """The begin times whose heartbeats are too old, pending or not."""
    beats_ms, now_ms = last_beats(table.store, table.knowledge, table.world)
    return dead(beats_ms, beats_ms, now_ms, table.settings.heartbeat)


def _dead(table: TableContext, suspects: Iterable[str], made_ms: Mapping[str, int]) -> tuple[str, ...]:
    asked = tuple(suspects)
    beats_ms, now_ms = last_beats(table.store, table.knowledge, table.world, asked)
    return dead(asked, {**made_ms, **beats_ms}, now_ms, table.settings.heartbeat)
