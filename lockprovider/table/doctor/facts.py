"""Facts about a table that the doctor gathers, and its findings; `rules` judges the facts."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

import pyarrow as pa
import pyarrow.compute as pc

from fsspec_cas import CasError, Entry
from lockprovider import JVM_HOLDS, JVM_STARVES, LockRecord, MalformedRecord
from lockprovider.table.errors import Corrupt, HistoryGone, TableError, TableNotFound, UnsupportedTable
from lockprovider.table.files.base_file import misplaced
from lockprovider.table.files.keys import KeyFile
from lockprovider.table.format.instant import Action, Instant, format_ms, parse_instant
from lockprovider.table.format.layout import (
    BUCKET_RULES,
    HISTORY,
    LOCK,
    MARKERS,
    METADATA_TABLE,
    PROPERTIES,
    PROPERTIES_BACKUP,
    TIMELINE,
    BaseFile,
    FileGroup,
    LogFile,
    data_file_at,
)
from lockprovider.table.format.metadata import CommitMetadata, WriteStat, decode_rollback
from lockprovider.table.format.metadata_table import LISTING
from lockprovider.table.format.properties import TableConfig, parse_properties
from lockprovider.table.format.service_metadata import decode_restore
from lockprovider.table.state import archive_index
from lockprovider.table.state.heartbeat import last_beats
from lockprovider.table.state.metadata_table import ListingDifferences, differences, listed_files
from lockprovider.table.state.parallel import files_below
from lockprovider.table.timeline.liveness import dead
from lockprovider.table.timeline.timeline import Timeline
from lockprovider.table.timeline.view import FileSlice

if TYPE_CHECKING:
    from lockprovider.table.state.context import TableContext

_SHOWN = 3


@dataclass(frozen=True, slots=True)
class TableFinding:
    """Finding of the doctor: a fault of a table, or a note.

    Attributes:
        rule: the name of the rule, e.g. `R4`.
        state: `wrong`, or `note`.
        what: the fault.
        mend: the remedy.

    >>> TableFinding("R4", "note", "the table was upgraded", "nothing").state
    'note'
    """

    rule: str
    state: Literal["wrong", "note"]
    what: str
    mend: str


@dataclass(frozen=True, slots=True)
class Facts:
    """Facts about a table. `files` were listed before `timeline`.

    Attributes:
        properties: the parsed properties, or the error text.
        lone_backup: whether only the backup of the properties exists.
        both: whether the properties and their backup exist.
        entries: the files of the timeline folder, by name.
        commits: the metadata of completed writes, or the error text.
        markers: paths of all markers.
        beats: begin times that have a heartbeat file.
        victims: begin times that completed rollbacks and restores name.
        now_ms: the time of these facts, in epoch ms.
        dead: begin times of pending instants whose writer or executor is dead or missing.
        metadata_table: whether there are files in the metadata table's folder.
        clock_ahead_ms: this machine's clock minus the store's, in ms; 0 if harmless.
        lock_fault: a fault of the lock record.
        lock_note: the lock's holder, or a pending publish.
        lockless: commits that the lock's log lacks, although it reaches back far enough.
        bucket_rules: whether a JVM writer stored bucket rules, unknown to this library.
        slices: the latest snapshot, if it could be read.
        misread: why a reader here would misread rows.
        archive_fault: a fault of the archive's own files.
        archive_left: archived instants that are still on the timeline.
        archive_hidden: archived writes that `archive_left` hides: they count as never committed.
        listing: differences between the metadata table and the files, or the error text; None if readers use none.
        misplaced: number of rows in the wrong bucket, by file.
        repeated: number of keys in several base files, by partition; None if not read.
        data: partition, parsed name and entry of each base or log file.
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
    misplaced: Mapping[str, int] = field(default_factory=dict)
    repeated: Mapping[str, int] | None = None
    data: tuple[tuple[str, BaseFile | LogFile, Entry], ...] = field(init=False)

    def __post_init__(self) -> None:
        entries = ((data_file_at(entry.path), entry) for entry in self.files)
        object.__setattr__(self, "data", tuple((*at, entry) for at, entry in entries if at is not None))

    @property
    def config(self) -> TableConfig | None:
        """The properties, or None if they could not be parsed."""
        return None if isinstance(self.properties, str) else self.properties

    @property
    def stats(self) -> Iterator[tuple[Instant, WriteStat]]:
        """The statistics of every file that a readable commit wrote."""
        for instant, metadata in self.commits.items():
            if not isinstance(metadata, str):
                yield from ((instant, stat) for stats in metadata.stats.values() for stat in stats)

    @property
    def replaced(self) -> frozenset[FileGroup]:
        """The file groups that readable commits replaced."""
        readable = (metadata for metadata in self.commits.values() if not isinstance(metadata, str))
        return frozenset[FileGroup]().union(*(metadata.ended for metadata in readable))


def first_names(names: Iterable[str]) -> str:
    """Return the first three names in order, as text, with the number of others."""
    ordered = sorted(names)
    more = f" and {len(ordered) - _SHOWN} more" if len(ordered) > _SHOWN else ""
    return ", ".join(ordered[:_SHOWN]) + more


def gather(table: TableContext, *, keys: bool = False) -> Facts:
    """Read all facts, changing no file; errors in the table become texts.

    With `keys`, or a bucket index, reads all record keys of base files. Raises `TableNotFound` without properties and
    timeline, and store errors.
    """
    store = table.store
    # Files before the timeline: a file without an instant never gets one later.
    files = tuple(table.data_files())
    entries = files_below(store, TIMELINE)
    timeline = Timeline.of(entries)
    plain, backup = _read(table, PROPERTIES), _read(table, PROPERTIES_BACKUP)
    if plain is None and backup is None and not timeline.instants:
        raise TableNotFound(f"there is no Hudi table at {table.url!r}; create one with `lockprovider table create`")
    beats_ms, beats_now_ms = last_beats(store, table.knowledge, table.world)
    # No action depends on this time, so the clock of this machine is good enough.
    now_ms = max(table.world.now_ms(), beats_now_ms)
    fault, note, lockless = _lock(table, timeline)
    broken, left, hidden = _archive(table, timeline)
    properties = _parsed(plain if plain is not None else backup)
    slices, misread = _slices(table, timeline, files)
    return Facts(
        properties=properties,
        timeline=timeline,
        entries=entries,
        files=files,
        commits={instant: _commit(table, instant) for instant in timeline.writes},
        markers=tuple(entry.path for entry in store.list(f"{MARKERS}/")),
        beats=tuple(beats_ms),
        victims=_victims(table, timeline),
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
        listing=None if isinstance(properties, str) else _listing(table, properties, timeline, files),
        misplaced={} if isinstance(properties, str) else _misplaced(table, properties, slices),
        repeated=_repeated(table, slices) if keys else None,
    )


def _slices(table: TableContext, timeline: Timeline, files: tuple[Entry, ...]) -> tuple[tuple[FileSlice, ...], str]:
    """Return the latest snapshot's slices; or none, and why a reader would misread rows.

    Both are empty after errors that other checks report.
    """
    with contextlib.suppress(Corrupt, CasError, HistoryGone):  # Other checks report these errors.
        try:
            return table.snapshot_of(timeline, files).slices, ""
        except UnsupportedTable as error:
            return (), str(error)
    return (), ""


def _listing(
    table: TableContext, config: TableConfig, timeline: Timeline, files: tuple[Entry, ...]
) -> ListingDifferences | str | None:
    """Compare the metadata table with the files; return differences, or the error text.

    None if readers use no such listing.
    """
    if LISTING not in config.metadata_partitions:
        return None
    try:
        listed = listed_files(table.store, timeline)
    except TableError as error:
        return str(error)
    return differences(listed, files, table.data_files(), timeline)


def _misplaced(table: TableContext, config: TableConfig, slices: tuple[FileSlice, ...]) -> dict[str, int]:
    """Read all base files' keys, and count rows in a wrong bucket, by path.

    Skips unreadable files; empty without a bucket index.
    """
    counts: dict[str, int] = {}
    for file_slice in (file_slice for file_slice in slices if config.bucket_index is not None and file_slice.path):
        with contextlib.suppress(Corrupt, CasError, HistoryGone):
            counts[file_slice.path] = misplaced(
                config, file_slice, KeyFile(table.place, file_slice.path, file_slice.size).keys
            )
    return {path: count for path, count in counts.items() if count}


def _repeated(table: TableContext, slices: tuple[FileSlice, ...]) -> dict[str, int]:
    """Read base files, but no logs; count keys in several of them, by partition, if any.

    Skips unreadable files.
    """
    repeated: dict[str, int] = {}
    for partition in sorted({file_slice.partition for file_slice in slices}):
        parts = []
        for file_slice in (
            file_slice for file_slice in slices if file_slice.partition == partition and file_slice.path
        ):
            with contextlib.suppress(Corrupt, CasError, HistoryGone):
                parts.append(KeyFile(table.place, file_slice.path, file_slice.size).keys.unique())
        counts = pa.chunked_array(parts, pa.string()).value_counts().field("counts")
        repeated[partition] = pc.sum(pc.greater(counts, 1)).as_py() or 0
    return {partition: count for partition, count in repeated.items() if count}


def _read(table: TableContext, path: str) -> bytes | None:
    content = table.store.read_or_none(path)
    return None if content is None else content.data


def _parsed(data: bytes | None) -> TableConfig | str:
    """Parse the properties; return an error text if they are missing or damaged."""
    if data is None:
        return "hoodie.properties is missing"
    try:
        return parse_properties(data)
    except Corrupt as error:
        return str(error)


def _commit(table: TableContext, instant: Instant) -> CommitMetadata | str:
    try:
        return table.metadata_of(instant)
    except (Corrupt, HistoryGone) as error:
        return str(error)


def _victims(table: TableContext, timeline: Timeline) -> frozenset[str]:
    """Read completed rollbacks and restores; return the begin times that they undid.

    Skips unreadable files.
    """
    begins: set[str] = set()
    for instant in timeline.instants:
        if instant.is_completed and instant.action in (Action.ROLLBACK, Action.RESTORE):
            with contextlib.suppress(Corrupt, CasError):  # Readers do not need this file.
                name = instant.file_name
                data = table.store.read(f"{TIMELINE}/{name}").data
                begins |= _undone(instant.action, data, name)
    return frozenset(begins)


def _undone(action: Action, data: bytes, name: str) -> set[str]:
    if action is Action.RESTORE:
        return set(decode_restore(data, name))
    return {victim.begin for victim in decode_rollback(data, name)}


def _dead(
    table: TableContext, timeline: Timeline, entries: dict[str, Entry], beats_ms: dict[str, int], now_ms: int
) -> frozenset[str]:
    """Return the begin times of dead pending instants.

    A service is alive while its files are fresh, a waiting plan only while its executor sends heartbeats.
    """
    services = timeline.pending(Action.ROLLBACK, Action.CLEAN, Action.RESTORE)
    waiting = timeline.pending(Action.COMPACTION, Action.CLUSTERING)
    files_ms = {name.partition(".")[0]: e.modified_ms or 0 for name, e in entries.items() if _is_of(name, services)}
    begins = (*timeline.pending_writes, *services, *waiting)
    return frozenset(dead(begins, files_ms | beats_ms, now_ms, table.settings.heartbeat))


def _is_of(name: str, begins: tuple[str, ...]) -> bool:
    return name.partition(".")[0] in begins and name.endswith(".requested")


def _archive(table: TableContext, timeline: Timeline) -> tuple[str, tuple[str, ...], tuple[str, ...]]:
    """Read the archive; return its fault, archived instants on the timeline, and the writes that these hide.

    Each is empty if there is none.
    """
    sizes = {name: entry.size for name, entry in files_below(table.store, HISTORY).items()}
    done = [i.begin for i in timeline.instants if i.is_completed]
    try:
        files = archive_index.read_history(table.knowledge).files
        archived = archive_index.instants_since(table.knowledge, min(done, default="~"))
    except Corrupt as error:
        return str(error), (), ()
    lost = [name for name, size in files.items() if sizes.get(name) != size]
    fault = f"{len(lost)} files of the archive are gone or have a wrong size: {first_names(lost)}" if lost else ""
    names = timeline.names
    left = sorted(i.file_name for i in archived if i.file_name in names)
    hidden = (i for i in archived if i.changes_rows and i.file_name not in names and i.begin > timeline.first_active)
    return fault, tuple(left), tuple(sorted(i.file_name for i in hidden)) if left else ()


def _lock(table: TableContext, timeline: Timeline) -> tuple[str, str, tuple[str, ...]]:
    """Read the lock record; return its fault, a note, and commits without the lock; empty if there is none."""
    data = _read(table, LOCK)
    if data is None:
        return "", "", ()
    try:
        record = LockRecord.decode(data, LOCK)
        lockless = _lockless(record, timeline)
    except MalformedRecord as error:
        return str(error), "", ()
    return "", _lock_note(table, record), lockless


def _lockless(record: LockRecord, timeline: Timeline) -> tuple[str, ...]:
    """Return commits after the first entry of the lock's log that the log lacks.

    A commit under the lock adds an entry to its log, or ends the log.
    """
    log = record.log if record.log_has_pending else None
    names = [entry.path.rpartition("/")[2] for entry in log.entries] if log is not None else []
    times = [instant.completion for instant in map(parse_instant, names) if instant is not None and instant.completion]
    first = min(times, default=None)
    if first is None:
        return ()
    writes = (instant for instant in timeline.writes if (instant.completion or "") > first)
    return tuple(instant.file_name for instant in writes if instant.file_name not in names)


def _lock_note(table: TableContext, record: LockRecord) -> str:
    """Describe the lock: a commit not applied yet, else its holder and a starving JVM writer; empty if none."""
    missing = [pending.path for pending in record.all_pending if _read(table, pending.path) is None]
    if missing:
        return f"a commit is decided but not applied yet ({missing[0]}): the next holder of the lock applies it"
    held = "" if record.is_free else f"the lock is held by {record.owner} until {format_ms(record.valid_until_ms)}"
    if held and record.holder is None:
        held = f"{held}, by a JVM writer: {JVM_HOLDS}"
    starves = JVM_STARVES if record.foreign_seen_ms and record.waiters else ""
    return "; ".join(filter(None, [held, starves]))
