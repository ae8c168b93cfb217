"""Facts that the doctor gathers."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from itertools import groupby
from operator import attrgetter
from typing import TYPE_CHECKING, Literal, TypeVar

import pyarrow as pa
import pyarrow.compute as pc

from fsspec_cas import Entry, Unavailable
from lockprovider import JVM_HOLDS, JVM_STARVES, LockRecord
from lockprovider.table.errors import HistoryGone, TableNotFound
from lockprovider.table.files.base_file import misplaced
from lockprovider.table.files.keys import KeyFile
from lockprovider.table.files.merge_log import MergeRule
from lockprovider.table.files.slice_rows import merged_keys
from lockprovider.table.format.layout import (
    BUCKET_RULES,
    HISTORY,
    LOCK,
    MARKERS,
    METADATA_TABLE,
    PROPERTIES,
    PROPERTIES_BACKUP,
    TIMELINE,
    Action,
    BaseFile,
    FileGroup,
    Instant,
    LogFile,
    data_file_at,
    format_ms,
    parse_instant,
)
from lockprovider.table.format.metadata import CommitMetadata, WriteStat
from lockprovider.table.format.metadata_table import LISTING
from lockprovider.table.format.properties import TableConfig, parse_properties
from lockprovider.table.format.service_metadata import decode_restore, decode_rollback
from lockprovider.table.state import archive_index
from lockprovider.table.state.heartbeat import dead, last_beats
from lockprovider.table.state.metadata_table import ListingDifferences, differences, listed_files
from lockprovider.table.state.parallel import files_below
from lockprovider.table.timeline.timeline import Timeline
from lockprovider.table.timeline.view import FileSlice

if TYPE_CHECKING:
    from lockprovider.table.state.context import TableContext

_SHOWN = 3
_Read = TypeVar("_Read")
_Failed = TypeVar("_Failed")


@dataclass(frozen=True, slots=True)
class TableFinding:
    """Table's fault, or a note, and the next step.

    >>> TableFinding("R4", "note", "the table was upgraded", "nothing").state
    'note'
    """

    rule: str
    state: Literal["wrong", "note"]
    what: str
    mend: str


@dataclass(frozen=True, slots=True)
class Facts:
    """Facts about a table. `files` were listed before `timeline`; a text in place of a value is its error.

    Attributes:
        victims: begin times that completed rollbacks and restores name.
        dead: begin times of pending instants without a living writer or executor.
        clock_ahead_ms: this machine's clock minus the store's; 0 if harmless.
        lockless: commits that the lock's log lacks, although it reaches back far enough.
        misread: why the latest snapshot cannot be read, if no other fact says so.
        archive_left: archived instants still on the timeline.
        archive_hidden: archived writes that `archive_left` hides: they count as never committed.
        listing: differences between the metadata table and the files; None if readers use none.
        unread: errors of files without another fact, by path.
        misplaced: rows in the wrong bucket, by file.
        repeated: keys in several file groups, by partition; None if not read.
    """

    properties: TableConfig | str
    timeline: Timeline
    entries: Mapping[str, Entry]
    files: tuple[Entry, ...]
    commits: Mapping[Instant, CommitMetadata | str]
    markers: tuple[str, ...] = ()
    beats: tuple[str, ...] = ()
    victims: frozenset[str] = frozenset()
    now_ms: int = 0
    dead: frozenset[str] = frozenset()
    metadata_table: bool = False
    lone_backup: bool = False
    both: bool = False
    clock_ahead_ms: int = 0
    lock_fault: str = ""
    lock_note: str = ""
    lockless: tuple[str, ...] = ()
    bucket_rules: bool = False
    slices: tuple[FileSlice, ...] = ()
    misread: str = ""
    archive_fault: str = ""
    archive_left: tuple[str, ...] = ()
    archive_hidden: tuple[str, ...] = ()
    listing: ListingDifferences | str | None = None
    unread: Mapping[str, str] = field(default_factory=dict)
    misplaced: Mapping[str, int] = field(default_factory=dict)
    repeated: Mapping[str, int] | None = None
    data: tuple[tuple[str, BaseFile | LogFile, Entry], ...] = field(init=False)

    def __post_init__(self) -> None:
        entries = ((data_file_at(entry.path), entry) for entry in self.files)
        object.__setattr__(self, "data", tuple((*at, entry) for at, entry in entries if at is not None))

    @property
    def config(self) -> TableConfig | None:
        """Properties, if readable."""
        return None if isinstance(self.properties, str) else self.properties

    @property
    def stats(self) -> Iterator[tuple[Instant, WriteStat]]:
        """Files of readable commits."""
        for instant, metadata in self.commits.items():
            if not isinstance(metadata, str):
                yield from ((instant, stat) for stats in metadata.stats.values() for stat in stats)

    @property
    def replaced(self) -> frozenset[FileGroup]:
        """File groups that readable commits replaced."""
        readable = (metadata for metadata in self.commits.values() if not isinstance(metadata, str))
        return frozenset[FileGroup]().union(*(metadata.ended for metadata in readable))


def first_names(names: Iterable[str]) -> str:
    """Join three names, and the number of more."""
    ordered = sorted(names)
    more = f" and {len(ordered) - _SHOWN} more" if len(ordered) > _SHOWN else ""
    return ", ".join(ordered[:_SHOWN]) + more


def gather(table: TableContext, *, keys: bool = False) -> Facts:
    """Read all facts, changing no file; errors in the table become texts.

    With `keys`, or a bucket index, reads all keys. Raises `TableNotFound`, or store errors.
    """
    store = table.store
    # First: a file without an instant never gets one later.
    files = tuple(table.data_files())
    entries = files_below(store, TIMELINE)
    timeline = Timeline.of(entries)
    plain, backup = _read(table, PROPERTIES), _read(table, PROPERTIES_BACKUP)
    if plain is None and backup is None and not timeline.instants:
        raise TableNotFound(f"there is no Hudi table at {table.url!r}; create one with `lockprovider table create`")
    beats_ms, beats_now_ms = last_beats(store, table.knowledge, table.world)
    now_ms = max(table.world.now_ms(), beats_now_ms)
    unread: dict[str, str] = {}
    fault, note, lockless = _or_error(partial(_lock, table, timeline), lambda error: (error, "", ()))
    broken, left, hidden = _or_error(partial(_archive, table, timeline), lambda error: (error, (), ()))
    content = plain if plain is not None else backup
    properties: TableConfig | str = "hoodie.properties is missing"
    if content is not None:
        properties = _or_error(partial(parse_properties, content), str)
    commits = {instant: _or_error(partial(table.metadata_of, instant), str) for instant in timeline.writes}
    snapshot = _or_error(lambda: table.snapshot_of(timeline, files).slices, str)
    slices, misread = ((), snapshot) if isinstance(snapshot, str) else (snapshot, "")
    if misread in (properties, broken, *commits.values()):
        misread = ""
    config = None if isinstance(properties, str) else properties
    strays, repeated = _count_keys(table, config, timeline, slices, unread, all_keys=keys)
    listing: ListingDifferences | str | None = None
    if config is not None and LISTING in config.metadata_partitions:
        listing = _or_error(
            lambda: differences(listed_files(store, timeline), files, table.data_files(), timeline), str
        )
    return Facts(
        properties=properties,
        timeline=timeline,
        entries=entries,
        files=files,
        commits=commits,
        markers=tuple(entry.path for entry in store.list(f"{MARKERS}/")),
        beats=tuple(beats_ms),
        victims=_victims(table, timeline, unread),
        now_ms=now_ms,
        dead=_dead(table, timeline, entries, beats_ms, now_ms),
        metadata_table=bool(store.list(f"{METADATA_TABLE}/")),
        lone_backup=plain is None and backup is not None,
        both=plain is not None and backup is not None,
        clock_ahead_ms=table.clock.asked_ahead_ms(),
        lock_fault=fault,
        lock_note=note,
        lockless=lockless,
        bucket_rules=bool(store.list(f"{BUCKET_RULES}/")),
        slices=slices,
        misread=misread,
        archive_fault=broken,
        archive_left=left,
        archive_hidden=hidden,
        listing=listing,
        unread=unread,
        misplaced=strays,
        repeated=repeated if keys else None,
    )


def _or_error(read: Callable[[], _Read], failed: Callable[[str], _Failed]) -> _Read | _Failed:
    try:
        return read()
    except Unavailable:
        raise
    except Exception as error:  # noqa: BLE001 - whatever stops a read is a finding
        return failed(str(error) or repr(error))


def _count_keys(
    table: TableContext,
    config: TableConfig | None,
    timeline: Timeline,
    slices: tuple[FileSlice, ...],
    unread: dict[str, str],
    *,
    all_keys: bool,
) -> tuple[dict[str, int], dict[str, int]]:
    """Read slices' keys; count misplaced rows by a slice's first file, keys in several file groups by partition.

    Counts rows only with a bucket index, keys only with `all_keys`; leaves out zeros. Adds errors to `unread`.
    """
    strays: dict[str, int] = {}
    counts: dict[str, int] = {}
    if config is None or not (all_keys or config.bucket_index is not None):
        return strays, counts
    for partition, group in groupby(sorted(slices, key=attrgetter("partition")), attrgetter("partition")):
        parts: list[pa.Array] = []
        for file_slice in group:
            keys, path = _or_error(partial(_keys, table, config, timeline, file_slice), str), file_slice.paths[0]
            if isinstance(keys, str):
                unread[path] = keys
                continue
            parts += [keys[0].unique()] if all_keys else []
            strays |= {path: keys[1]} if keys[1] else {}
        values = pa.chunked_array(parts, pa.string()).value_counts().field("counts")
        counts[partition] = pc.sum(pc.greater(values, 1)).as_py() or 0
    return strays, {partition: count for partition, count in counts.items() if count}


def _keys(table: TableContext, config: TableConfig, timeline: Timeline, file_slice: FileSlice) -> tuple[pa.Array, int]:
    """Read a slice's merged keys, and count those in a wrong bucket (0 without bucket index).

    No keys if files are gone.
    """
    try:
        if file_slice.logs:
            parts = merged_keys(table.place, file_slice, table.schema(timeline), MergeRule.of(config))
            keys = pa.concat_arrays([pa.array([], pa.string()), *parts])
        else:
            keys = KeyFile(table.place, file_slice.path, file_slice.size).keys
    except HistoryGone:
        return pa.array([], pa.string()), 0
    return keys, 0 if config.bucket_index is None else misplaced(config, file_slice, keys)


def _read(table: TableContext, path: str) -> bytes | None:
    content = table.store.read_or_none(path)
    return None if content is None else content.data


def _victims(table: TableContext, timeline: Timeline, unread: dict[str, str]) -> frozenset[str]:
    """Read completed rollbacks and restores; return the begin times they undid.

    Raises Unavailable; adds other errors to `unread` by path.
    """
    begins: set[str] = set()
    for instant in timeline.instants:
        if instant.is_completed and instant.action in (Action.ROLLBACK, Action.RESTORE):
            path = f"{TIMELINE}/{instant.file_name}"
            undone = _or_error(partial(_undone, table, instant.action, path), str)
            if isinstance(undone, str):
                unread[path] = undone
            else:
                begins |= undone
    return frozenset(begins)


def _undone(table: TableContext, action: Action, path: str) -> set[str]:
    data = _read(table, path)
    if data is None:
        return set()
    if action is Action.RESTORE:
        return set(decode_restore(data, path))
    return {victim.begin for victim in decode_rollback(data, path)}


def _dead(
    table: TableContext, timeline: Timeline, entries: dict[str, Entry], beats_ms: dict[str, int], now_ms: int
) -> frozenset[str]:
    """Pending instants without a fresh heartbeat or, of rollbacks, cleans and restores, a fresh plan."""
    services = timeline.pending(Action.ROLLBACK, Action.CLEAN, Action.RESTORE)
    waiting = timeline.pending(Action.COMPACTION, Action.CLUSTERING)
    requested = ((name.partition(".")[0], entry) for name, entry in entries.items() if name.endswith(".requested"))
    files_ms = {begin: entry.modified_ms or 0 for begin, entry in requested if begin in services}
    begins = (*timeline.pending_writes, *services, *waiting)
    return frozenset(dead(begins, files_ms | beats_ms, now_ms, table.settings.heartbeat))


def _archive(table: TableContext, timeline: Timeline) -> tuple[str, tuple[str, ...], tuple[str, ...]]:
    """Read the archive; return its fault (files gone or of wrong size), or "".

    Also archived instants still on the timeline, and archived writes that these hide.
    """
    sizes = {name: entry.size for name, entry in files_below(table.store, HISTORY).items()}
    done = [i.begin for i in timeline.instants if i.is_completed]
    files = archive_index.read_history(table.knowledge).files
    archived = archive_index.instants_since(table.knowledge, min(done, default="~"))
    lost = [name for name, size in files.items() if sizes.get(name) != size]
    fault = f"{len(lost)} files of the archive are gone or have a wrong size: {first_names(lost)}" if lost else ""
    names = timeline.names
    left = sorted(i.file_name for i in archived if i.file_name in names)
    hidden = (i for i in archived if i.changes_rows and i.file_name not in names and i.begin > timeline.first_active)
    return fault, tuple(left), tuple(sorted(i.file_name for i in hidden)) if left else ()


def _lock(table: TableContext, timeline: Timeline) -> tuple[str, str, tuple[str, ...]]:
    data = _read(table, LOCK)
    if data is None:
        return "", "", ()
    record = LockRecord.decode(data, LOCK)
    return "", _lock_note(table, record), _lockless(record, timeline)


def _lockless(record: LockRecord, timeline: Timeline) -> tuple[str, ...]:
    """Names of commit files later than the first in the lock's log that it lacks; empty if it is incomplete."""
    log = record.log if record.log_has_pending else None
    names = [entry.path.rpartition("/")[2] for entry in log.entries] if log is not None else []
    times = [instant.completion for instant in map(parse_instant, names) if instant is not None and instant.completion]
    first = min(times, default=None)
    if first is None:
        return ()
    writes = (instant for instant in timeline.writes if (instant.completion or "") > first)
    return tuple(instant.file_name for instant in writes if instant.file_name not in names)


def _lock_note(table: TableContext, record: LockRecord) -> str:
    """Describe a decided commit not applied yet, else the lock's holder and a starving JVM writer; or ""."""
    missing = [pending.path for pending in record.all_pending if _read(table, pending.path) is None]
    if missing:
        return f"a commit is decided but not applied yet ({missing[0]}): the next holder of the lock applies it"
    held = "" if record.is_free else f"the lock is held by {record.owner} until {format_ms(record.valid_until_ms)}"
    if held and record.holder is None:
        held = f"{held}, by a JVM writer: {JVM_HOLDS}"
    starves = JVM_STARVES if record.foreign_seen_ms and record.waiters else ""
    return "; ".join(filter(None, [held, starves]))
