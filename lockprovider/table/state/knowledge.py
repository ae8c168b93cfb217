"""One process's cache about one table."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from itertools import islice, takewhile

import pyarrow as pa

from fsspec_cas import Version
from lockprovider import LockRecord, Log, LogEntry
from lockprovider.table.files.place import TablePlace
from lockprovider.table.format.layout import TIMELINE, Action, FileGroup, Instant, LogFile, data_file, parse_instant
from lockprovider.table.format.lsm import Digest, Manifest
from lockprovider.table.format.metadata import CommitMetadata, decode_commit
from lockprovider.table.format.properties import TableConfig
from lockprovider.table.timeline.timeline import Timeline
from lockprovider.table.timeline.view import FileSlice, SliceLog, Snapshot

_REMOVERS = (Action.CLEAN, Action.ROLLBACK, Action.RESTORE, Action.REPLACECOMMIT)
_PLAIN = (Action.COMMIT, Action.DELTACOMMIT, Action.REPLACECOMMIT)
_PREFIX = f"{TIMELINE}/"
_KEPT = 20_000  # commits


@dataclass(frozen=True, slots=True)
class TableView:
    """Table at one moment.

    Attributes:
        log: name of the lock's log; empty if none covers the table.
        slices: latest of each file group; None if not read.
        listed: whether the timeline was listed; else it lacks others' pending instants.
        latest_begin: latest begin time of completed instants, even of those not in `timeline` yet.
        is_combined: whether another client leads the batch, and decides others' commits.
    """

    timeline: Timeline
    config: TableConfig
    log: str = ""
    position: int = 0
    slices: Mapping[FileGroup, FileSlice] | None = None
    listed: bool = False
    latest_begin: str = ""
    is_combined: bool = False
    has_jvm_writers: bool = False


@dataclass(frozen=True, slots=True)
class CachedProperties:
    """Properties at one version of their file; `asked_s`: when they were last requested."""

    version: Version
    config: TableConfig
    asked_s: float


@dataclass(frozen=True, slots=True)
class History:
    """Archive's files; `number`: manifest's, 0 if nothing was archived.

    `version`: of the file with the number; None without it.
    """

    number: int = 0
    files: Manifest = field(default_factory=dict)
    version: Version | None = None


@dataclass(frozen=True, slots=True)
class ListingState:
    """Metadata table's state while the lock has one log: only clients of that log write it.

    Attributes:
        log: in which its timeline was listed; empty without one.
        schema: of its files; empty if not read.
        logs: number of commits since `compacted`.
        tried: `logs` when a compaction was last tried in vain, else 0.
    """

    log: str = ""
    compacted: str = ""
    schema: str = ""
    logs: int = 0
    tried: int = 0


@dataclass(frozen=True, slots=True)
class KeySpellings:
    """One key by spelling (True: it names its column), from files up to `compared`."""

    compared: str = ""
    samples: Mapping[bool, str] = field(default_factory=dict)


class TableKnowledge:
    """Facts that this process has cached about one open table. Thread-safe: attributes are replaced as a whole.

    **Everything but these facts is a hint: it may start a read, and never replaces one.** A fact is of

    - an immutable object, true for ever: completed writes, digests and completion times of archive files, `writable`
    - a position in a log, while the record's log reaches back to it: the view, `applied`, `listing`, a checkpoint
    - a version of one object, until a conditional request finds another: `properties`, `history`

    A log has only its own clients' commits, without pending instants (SPECIFICATION.md, "Reading").

    Two hints replace reads: partitions with a metafile; and files of a blind write, whose commit conflicts if one was
    replaced.
    """

    def __init__(self, place: TablePlace) -> None:
        self.place = place
        self._commits: dict[str, CommitMetadata | bytes] = {}
        self.digests: Mapping[str, Digest] = {}
        self.completions: Mapping[str, Mapping[str, str]] = {}

        self._view: TableView | None = None
        self.applied = ""  # the last publish found stored, like all before
        self.listing = ListingState()

        self.properties: CachedProperties | None = None
        self.writable: TableConfig | None = None  # the last ones found to allow writes
        self.history = History()

        self.latest = Timeline()
        self.schema: pa.Schema | None = None
        self.key_spellings = KeySpellings()
        self.committed_s: dict[str, float] = {}  # when this handle's commits completed, monotonic
        self.late_checked_s: float | None = None
        self.dead_checked_s: float | None = None
        self._beats: dict[str, tuple[Version | None, float]] = {}
        self._partitions: tuple[frozenset[str], set[str]] = (frozenset(), set())

    def view_at(self, log: Log | None) -> TableView | None:
        """Advance the cached view to the end of the lock's current `log`, caching its commits; return it.

        None without a view, or if `log` does not reach back to it.
        """
        view = self._view
        if view is None or log is None or log.name != view.log or (since := log.since(view.position)) is None:
            return None
        if since:
            written = view.timeline.written  # a listing may contain later commits
            instants = tuple(i for i in self._learn_contents(since) if i.file_name not in written)
            slices, timeline = self._advanced(view, instants), view.timeline.plus(instants)
            view = self._view = replace(view, position=log.next, timeline=timeline, slices=slices)
            self.latest = timeline
        return view

    def learn(self, record: LockRecord | None, listed: Timeline, config: TableConfig, *, decided: bool) -> TableView:
        """Cache and return the view of a table `listed` after reading `record`, or under the lock.

        The record's publishes, from the first that `listed` lacks, count if `decided`, else are left out. Without a
        log, or with a pending service, it drops the cached view.
        """
        log = record.log if record is not None and (decided or record.log_has_pending) else None
        unapplied = 0 if record is None else len(record.all_pending)
        before = self.view_at(log)
        entries = () if log is None else log.since(log.first) or ()
        # A listing may lack a publish and have a later one.
        last = entries[max(0, len(entries) - unapplied) :] if unapplied else ()
        is_there = (entry.path.removeprefix(_PREFIX) in listed.names for entry in last)
        missing = last[sum(1 for _ in takewhile(bool, is_there)) :]
        self._learn_contents(entries)
        unseen = self._learn_contents(missing)
        timeline = self.latest = listed.plus(unseen) if decided else listed.without(unseen)
        name, position = ("", 0) if log is None else (log.name, log.next - (0 if decided else len(missing)))
        slices = before.slices if before is not None and before.timeline.written == timeline.written else None
        is_known = bool(name) and not any(not i.is_completed and i.action not in _PLAIN for i in timeline.instants)
        self._view = TableView(timeline, config, name, position, slices) if is_known else None
        return TableView(
            timeline, config, name, position, slices, listed=True, latest_begin=listed.latest_completed_begin
        )

    def adopt(self, log: Log, view: TableView) -> TableView | None:
        """Replace the cached view by a checkpoint's, cache the commits of `log`, and return as `view_at`."""
        self._learn_contents(log.since(log.first) or ())
        self._view, self.latest = view, view.timeline
        return self.view_at(log)

    def cache_files(self, snapshot: Snapshot) -> Snapshot:
        """Return this snapshot; cache its slices if the cached view has the same completed writes."""
        view = self._view
        if view is not None and view.timeline.written == snapshot.timeline.written:
            self._view = replace(view, slices={s.group: s for s in snapshot.slices})
        return snapshot

    def snapshot(self, timeline: Timeline) -> Snapshot | None:
        """Cached files if `timeline` has the cached view's completed writes, else None."""
        view = self._view
        if view is None or view.slices is None or view.timeline.written != timeline.written:
            return None
        return Snapshot(timeline, tuple(sorted(view.slices.values())))

    def _advanced(self, view: TableView, done: Iterable[Instant]) -> Mapping[FileGroup, FileSlice] | None:
        """Slices after these writes; None if the view has none, or a write is not cached."""
        if view.slices is None:
            return None
        slices = dict(view.slices)
        for instant in done:
            metadata = self.metadata(instant.file_name)
            if metadata is None:
                return None
            _apply(slices, instant, metadata)
        return slices

    def remember(self, name: str, data: bytes) -> None:
        """Cache a completed write's content; drops the oldest beyond `_KEPT`."""
        self._commits[name] = data
        for oldest in list(islice(self._commits, max(0, len(self._commits) - _KEPT))):
            self._commits.pop(oldest, None)

    def has(self, name: str) -> bool:
        """Whether a completed write's content is cached."""
        return name in self._commits

    def metadata(self, name: str) -> CommitMetadata | None:
        """Completed write's metadata if cached, else None; may raise `Corrupt`."""
        content = self._commits.get(name)
        if isinstance(content, bytes):
            content = self._commits[name] = decode_commit(content, name)
        return content

    def _learn_contents(self, entries: Iterable[LogEntry]) -> tuple[Instant, ...]:
        """Cache the contents that log entries carry for timeline files; return the instants of all such entries."""
        instants: list[Instant] = []
        for entry in entries:
            name = entry.path.removeprefix(_PREFIX)
            instant = parse_instant(name)
            if instant is None:
                continue
            instants.append(instant)
            if entry.data is not None and not self.has(name):
                self.remember(name, entry.data)
        return tuple(instants)

    @property
    def config(self) -> TableConfig | None:
        """Properties last seen, or None: a hint."""
        return None if self._view is None else self._view.config

    @property
    def files_seen_last(self) -> Snapshot | None:
        """Files last seen, or None: a hint."""
        view = self._view
        return None if view is None or view.slices is None else Snapshot(view.timeline, tuple(view.slices.values()))

    def partitions_at(self, timeline: Timeline) -> set[str]:
        """Set of partitions known to have a metafile; callers add to it.

        It starts empty if `timeline` has other cleans, rollbacks, restores or replacecommits than before.
        """
        removers = frozenset(i.file_name for i in timeline.besides_commits if i.action in _REMOVERS)
        if self._partitions[0] != removers:
            self._partitions = (removers, set())
        return self._partitions[1]

    def watch_beats(self, versions: Mapping[str, Version | None], now_s: float) -> Mapping[str, float]:
        """Replace the recorded heartbeat versions; return for how many seconds each was seen unchanged."""
        first = {begin: beat for begin, beat in self._beats.items() if versions.get(begin) == beat[0] is not None}
        self._beats = {begin: first.get(begin, (version, now_s)) for begin, version in versions.items()}
        return {begin: now_s - since_s for begin, (_, since_s) in self._beats.items()}


def _apply(slices: dict[FileGroup, FileSlice], done: Instant, metadata: CommitMetadata) -> None:
    """Change `slices` in place: drop the file groups that a completed write ended, add its files.

    Apply writes once, in completion order. Skips change-data logs, and files older than the group's base.
    """
    for ended in metadata.ended:
        slices.pop(ended, None)
    for stat in metadata.all_stats:
        file, before = data_file(stat.file_name), slices.get(stat.group)
        logs = () if before is None else before.logs
        if isinstance(file, LogFile):
            if file.is_cdc or (before is not None and (done.completion or "") < before.base):
                continue
            logs = (*logs, SliceLog(file, stat.path, stat.file_size, done.completion or ""))
            base = before if before is not None and before.path else None
        elif before is None or before.base < done.begin:
            base = FileSlice(stat.partition, stat.file_id, done.begin, stat.path, stat.file_size)
        else:
            continue
        slices[stat.group] = FileSlice.of_logs(*stat.group, logs) if base is None else base.with_logs(logs)
