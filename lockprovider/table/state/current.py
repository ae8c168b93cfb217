"""Table's current state as one process reads it, with as few requests as possible.

Answers may be out of date: readers check afterwards (`read.consistent`), and the client that decides a commit compares
it with later ones.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from itertools import chain, pairwise

import pyarrow as pa

from fsspec_cas import Content, Entry, ObjectNotFound
from fsspec_cas.outcome import won_or_lost
from lockprovider import Lock, LockRecord, MalformedRecord
from lockprovider.table.errors import Corrupt, HistoryGone, TableNotFound, TableReplaced, UnsupportedTable
from lockprovider.table.format import schema as hudi_schema
from lockprovider.table.format import schema_on_read
from lockprovider.table.format.compatibility import check_readable
from lockprovider.table.format.layout import (
    HEARTBEATS,
    PROPERTIES,
    PROPERTIES_BACKUP,
    TIMELINE,
    Action,
    Instant,
    InstantState,
    parse_instant,
)
from lockprovider.table.format.metadata import CommitMetadata, batches_by_stream
from lockprovider.table.format.metadata_table import LISTING
from lockprovider.table.format.properties import READABLE_VERSIONS, TableConfig, parse_properties
from lockprovider.table.format.service_metadata import Victim, decode_rollback_plan
from lockprovider.table.state import checkpoint
from lockprovider.table.state.archive_index import completions, last_archived_batches, reach
from lockprovider.table.state.knowledge import CachedProperties, TableKnowledge, TableView
from lockprovider.table.state.metadata_table import listed_files
from lockprovider.table.state.parallel import Stale, both, concurrently, files_below, repeat_while_stale
from lockprovider.table.timeline.timeline import Decisions, Timeline, visible_part
from lockprovider.table.timeline.view import Snapshot, archived_logs, ended_groups, snapshot_of

_LOG = logging.getLogger("lockprovider.table")
_AFTER_META = ".hoodie0"  # sorts after all names in .hoodie/
_BEFORE_META = ".hoodie/"
_SEEKING = ("s3", "gcs")
_FRESH_S = 1.0
_PAGE = 900  # names per request; a store's page is 1000
_RECENT = 300  # commits, of three names each
_LATE = 16  # commits
_LOOKED_S = 60.0
_OLD = 8  # pending writes, listed one by one


class CurrentState:
    """Reader of one open table's current state, through the process's cache. Thread-safe.

    Only `stated_schema` writes to the table.
    """

    def __init__(self, lock: Lock, knowledge: TableKnowledge, *, by_metadata: bool = False) -> None:
        self._by_metadata = by_metadata
        self._knowledge = knowledge
        self._store = knowledge.place.store
        self._url = knowledge.place.url
        self._lock = lock
        self._world = lock.world

    def config(self) -> TableConfig:
        """Ask the store for the properties, without a body if unchanged, and cache them.

        Reads the backup, uncached, if the file is missing or unreadable. Raises `TableNotFound` or `Corrupt`.
        """
        cut: Corrupt | None = None
        for path in (PROPERTIES, PROPERTIES_BACKUP, PROPERTIES):
            try:
                return self._read_config() if path == PROPERTIES else parse_properties(self._store.read(path).data)
            except ObjectNotFound:
                continue  # a JVM writer deletes the file before it replaces it
            except Corrupt as error:
                cut = error  # it may be half-written on a disk
        message = (
            f"there is no Hudi table at {self._url!r}; create one: `lockprovider table create URL`, or Table.create"
        )
        raise cut or TableNotFound(message)

    def config_since(self, monotonic_s: float) -> TableConfig:
        """Return cached properties requested after `monotonic_s` and within `_FRESH_S` seconds, else read them."""
        properties = self._knowledge.properties
        is_fresh = properties is not None and monotonic_s < properties.asked_s > self._world.monotonic_s() - _FRESH_S
        return properties.config if properties is not None and is_fresh else self.config()

    def _read_config(self) -> TableConfig:
        """Read and cache the properties file, without its body if unchanged; log an upgrade or a new version.

        Raises `ObjectNotFound` or `Corrupt`.
        """
        properties, began_s = self._knowledge.properties, self._world.monotonic_s()
        if properties is None:
            content: Content | None = self._store.read(PROPERTIES)
        else:
            content = self._store.read_if_changed(PROPERTIES, properties.version)
        if content is not None:
            before, config = None if properties is None else properties.config.version, parse_properties(content.data)
            properties = CachedProperties(content.version, config, began_s)
            self._log_version(before, config.version)
        assert properties is not None  # noqa: S101 - only a known version is unchanged
        newest = self._knowledge.properties
        if newest is None or newest.asked_s <= began_s:  # else another thread has read since
            self._knowledge.properties = replace(properties, asked_s=began_s)
        return properties.config

    def _log_version(self, before: int | None, after: int) -> None:
        if before is not None and after > before:
            _LOG.warning(
                "%s: upgraded from version %d to %d: Hudi 1.0 cannot open it any more", self._url, before, after
            )
        elif before is None and after > READABLE_VERSIONS[0]:
            _LOG.info("%s: of version %d, which readers and writers of Hudi 1.0 cannot open", self._url, after)

    def visible(self, *, noted: bool = False) -> Timeline:
        """Read the lock record, list and cache the timeline; return the readers' part of it (see `visible_part`).

        `noted`: also read the properties, and cache the view. Without writes, unreadable properties raise their error.
        """
        return repeat_while_stale(partial(self._visible, noted=noted))

    def _visible(self, *, noted: bool) -> Timeline:
        """Read lock record, list and cache the timeline; return the readers' part.

        `noted`: also read properties, cache the view. Raises `Stale` if the log ended.
        """
        record = self._record()  # first: other commits are listed, or decided later
        before = _decisions(record)
        listed = self._listed_now(record, decided=False).timeline if noted else self.listed()
        if not listed.writes:
            check_readable(self.config())  # a downgrade leaves an empty folder
        timeline = visible_part(listed, before)
        properties = self._knowledge.properties
        if timeline is None and not before.log and properties is not None and not properties.config.is_unordered:
            return listed
        timeline = visible_part(listed, before, _decisions(self._record())) if timeline is None else timeline
        if timeline is None:
            raise Stale(
                HistoryGone(
                    f"the commit log of the table at {self._url!r} ended during each of several reads; try again"
                )
            )
        return timeline

    def listed(self) -> Timeline:
        """List the whole timeline and cache it; raises `TableReplaced` for another table."""
        before = self._knowledge.latest
        timeline = self._list(before)
        self._refuse_replaced(before, timeline)
        self._knowledge.latest = timeline
        return timeline

    def _list(self, before: Timeline) -> Timeline:
        cuts = before.cuts(_PAGE) if self._store.kind in _SEEKING else ()
        parts = [partial(self._timeline, after=a, until=b) for a, b in pairwise(["", *cuts, ":"])]
        return Timeline.of(chain.from_iterable(concurrently(self._store, parts)))

    def _timeline(self, *, after: str, until: str = ":") -> dict[str, Entry]:
        return files_below(self._store, TIMELINE, after=after, until=until)

    def _refuse_replaced(self, before: Timeline, listed: Timeline) -> None:
        """Raise `TableReplaced` if `listed` has none of the last `_LATE` writes of the cached timeline `before`.

        Not if archived, undone or not stored yet: reads properties, record and archive, and lists again. Raises
        `UnsupportedTable` if the properties refuse reads.
        """
        late = before.writes[-_LATE:]  # a JVM writer may drop decided ones
        if not late or _has_one_of(listed, late):
            return
        check_readable(self.config())  # a downgrade moves the timeline
        record = self._record()
        if record is not None and self._knowledge.view_at(record.log) is not None:
            return  # the write is decided, but not stored yet
        with suppress(Corrupt):
            if reach(self._knowledge).begin >= late[0].begin:
                return
        if not _has_one_of(self._list(before), late):  # else it was just being stored
            raise TableReplaced(
                f"the table at {self._url!r} was removed and created anew, or restored from a copy: "
                f"its earlier commit {late[-1].file_name} is neither on its timeline nor in its archive; open it again"
            )

    def now(self, record: LockRecord | None = None, *, listed: bool = False) -> TableView:
        """Return the table by the lock record's log, or listed if that does not suffice or `listed`; caches it.

        `record`: the caller's own record, or the one it will replace: all decided commits count, stored or not, and the
        properties are read. None: read it.
        """
        decided = record is not None
        record = record or self._record()
        view = None if listed else self.view_by_log(record)
        is_combined = record is not None and record.combiner_ms > 0
        has_jvm_writers = record is not None and (record.foreign_seen_ms > 0 or not record.nonce)
        if view is None:
            view = self._listed_now(record, decided=decided)
        else:
            # An upgrade may be made without the lock, so a commit always reads the properties.
            config = self.config() if decided else view.config
            view = replace(view, config=config, latest_begin=view.timeline.latest_completed_begin)
        return replace(view, is_combined=is_combined, has_jvm_writers=has_jvm_writers)

    def now_and_pending(self) -> tuple[TableView, Timeline]:
        """Read and cache the table; return it and a timeline with pending instants.

        If over `_RECENT` writes are cached, this timeline lacks older instants without a heartbeat. It is complete if
        over `_OLD` have one, or the lock's log lacks a listed write.
        """
        since, pending = _begin_of_recent(self._knowledge.latest), None
        if since:
            beats = partial(files_below, self._store, HEARTBEATS, until=since)
            names, old_beats = concurrently(self._store, [partial(self._timeline, after=since), beats])
            if len(old_beats) <= _OLD:
                begun = concurrently(
                    self._store, [partial(self._store.list, f"{TIMELINE}/{begin}") for begin in old_beats]
                )
                pending = Timeline.of(chain(names, (_name(entry.path) for entries in begun for entry in entries)))
        view = self.now(listed=pending is None)
        if not view.listed and pending is not None and pending.written <= view.timeline.written:
            return view, pending
        view = view if view.listed else self.now(listed=True)
        return view, view.timeline

    def _listed_now(self, record: LockRecord | None, *, decided: bool) -> TableView:
        config, listed = both(self._store, self.config, self.listed)
        check_readable(config)
        return self._knowledge.learn(record, listed, config, decided=decided)

    def view_by_log(self, record: LockRecord | None) -> TableView | None:
        """Return and cache the table at the end of the log in `record`.

        Advances the cached view or, without one, reads the properties and a checkpoint. None: list it, as no log covers
        the table, or it reaches back to neither.
        """
        log = record.log if record is not None and record.log_has_pending else None
        view = self._knowledge.view_at(log)
        if view is not None or log is None or log.next < checkpoint.EVERY:
            return view
        # Cached properties may be older than the log.
        config, newest = both(self._store, self.config, partial(checkpoint.find, self._store, log))
        if newest is None:
            return None
        slices = {slice_.group: slice_ for slice_ in newest.slices}
        return self._knowledge.adopt(log, TableView(newest.timeline, config, newest.log, newest.position, slices))

    def has(self, instant: Instant) -> bool:
        """Ask the store whether that timeline file exists now."""
        return self._exists(f"{TIMELINE}/{instant.file_name}")

    def _record(self) -> LockRecord | None:
        """Read the lock record by `Lock.look`, which keeps it; None if absent, or if it or its log is damaged."""
        try:
            record = self._lock.look()
            if record is not None and record.log is not None:
                record.log.entries  # noqa: B018 - raises for a damaged log
        except MalformedRecord:
            return None
        return record

    def _exists(self, path: str) -> bool:
        try:
            self._store.head(path)
        except ObjectNotFound:
            return False
        return True

    def metadata_of(self, instant: Instant) -> CommitMetadata:
        """Completed write's metadata, read once and cached; may raise `HistoryGone` or `Corrupt`."""
        name = instant.file_name
        while (metadata := self._knowledge.metadata(name)) is None:
            try:
                self._knowledge.remember(name, self._store.read(f"{TIMELINE}/{name}").data)
            except ObjectNotFound as error:
                raise HistoryGone(
                    f"commit {name} was archived or taken back since it was listed; read the table again"
                ) from error
        return metadata

    def pending_rollback_of(self, timeline: Timeline, victim: str, *, since: str = "") -> str | None:
        """Begin time of a pending rollback of `victim`, begun after `since`; else None. Reads plans."""
        later = (begin for begin in timeline.pending_rollbacks if begin > since)
        return next((begin for begin in later if self.victim_of(begin).begin == victim), None)

    def victim_of(self, begin: str) -> Victim:
        """Read a pending rollback's victim; an empty one without its plan."""
        name = Instant(begin, Action.ROLLBACK, InstantState.REQUESTED).file_name
        content = self._store.read_or_none(f"{TIMELINE}/{name}")
        if content is None:
            return Victim("", Action.COMMIT.value)
        return decode_rollback_plan(content.data, name)

    def batches_newest_first(self, timeline: Timeline) -> Iterator[tuple[Instant, Mapping[str, int]]]:
        """Read and yield commits with their streams' batches, newest first, then streams' last archived ones."""
        for instant in reversed(timeline.writes):
            yield instant, batches_by_stream(self.metadata_of(instant).extra)
        yield from last_archived_batches(self._knowledge)

    def last_archived(self) -> str:
        """Last archived completion time, or empty text; reads new archive files."""
        return reach(self._knowledge).completion

    def schema(self, timeline: Timeline) -> pa.Schema:
        """Return and cache the columns of the latest commit of `timeline` that states any, else of the properties.

        Raises `TableNotFound` if none does.
        """
        if (stated := next(self._stating(timeline), None)) is not None:
            schema = hudi_schema.stated_columns(stated.schema_json or "")
        elif (created := self.config().schema_json) is not None:
            schema = hudi_schema.from_avro(created)
        else:
            raise TableNotFound(f"the table at {self._url!r} has no schema yet; write to it with its own engine first")
        self._knowledge.schema = schema
        return schema

    def _stating(self, timeline: Timeline) -> Iterator[CommitMetadata]:
        commits = (self.metadata_of(instant) for instant in reversed(timeline.writes))
        return (metadata for metadata in commits if metadata.schema_json)

    def data_files(self) -> list[Entry]:
        before = self._store.list("", stop_at=_BEFORE_META)
        return before + self._store.list("", start_after=_AFTER_META)

    def snapshot(self, timeline: Timeline, files: Iterable[Entry] | None = None) -> Snapshot:
        """Latest slices of `timeline` among `files` (None: the files of now); caches no slices.

        Reads commits that ended file groups, and the archive for completion times of logs.
        """
        files = self._files_of(timeline) if files is None else list(files)
        retired = ended_groups(timeline, self.metadata_of)
        times = self.completions_of(timeline, [entry.path for entry in files])
        snapshot = snapshot_of(timeline, files, retired, lambda begin: times.get(begin, begin))
        self.refuse_misread(timeline, snapshot)
        return snapshot

    def refuse_misread(self, timeline: Timeline, snapshot: Snapshot) -> None:
        """Raise `UnsupportedTable` if schema-on-read renamed or dropped a column of a file in `snapshot`.

        Reads commits and, with schema-on-read, the schema history.
        """
        text, oldest = self.internal_schema(timeline), min((slice_.begin for slice_ in snapshot.slices), default="")
        if not text or not oldest:
            return
        latest = schema_on_read.parse_version(text, "the last commit")
        if oldest >= str(latest.version):
            return
        path = self._history_file(timeline)
        history = schema_on_read.parse_history(self._store.read(path).data, path) if path else ()
        if fault := schema_on_read.misread(history, latest, oldest):
            raise UnsupportedTable(
                f"the table at {self._url!r} has files written at {oldest}, before its columns were changed by "
                f"hoodie.schema.on.read.enable=true: {fault}, and columns are found by name here; rewrite all "
                "partitions with JVM Hudi (a clustering does), or read the table there"
            )

    def internal_schema(self, timeline: Timeline) -> str:
        """Hudi's own schema of a table with schema-on-read, else empty text."""
        return next((metadata.extra.get(schema_on_read.LATEST_SCHEMA, "") for metadata in self._stating(timeline)), "")

    def stated_schema(self, timeline: Timeline, begin: str) -> dict[str, str]:
        """Store the schema history again under `begin`; return the entries by which this commit states its schema.

        Without schema-on-read, stores and returns nothing.
        """
        text = self.internal_schema(timeline)
        if not text:
            return {}
        path = self._history_file(timeline)
        if path:
            won_or_lost(self._store.put_if_absent(schema_on_read.schema_file(begin), self._store.read(path).data))
        return {schema_on_read.LATEST_SCHEMA: text}

    def _history_file(self, timeline: Timeline) -> str:
        """List schema histories; return the newest path of a commit on `timeline`, else the newest, or empty text."""
        entries = self._store.list(f"{schema_on_read.SCHEMAS}/")
        paths = {schema_on_read.begin_of_schema_file(entry.path): entry.path for entry in entries}
        paths.pop("", None)
        done = {instant.begin for instant in timeline.writes}
        return paths.get(max([begin for begin in paths if begin in done] or paths, default=""), "")

    def _files_of(self, timeline: Timeline) -> list[Entry]:
        """All files: of a used, complete metadata table that is not being removed, without times; else listed."""
        config = self.config() if self._by_metadata else None
        if config is not None and LISTING in config.metadata_partitions:
            with suppress(HistoryGone):
                last = [instant.begin for instant in timeline.writes[-1:]]  # maybe decided, and not stored
                sizes = listed_files(self._store, timeline, last).sizes
                if self.config() is config:  # no writer has begun to remove the metadata table
                    return [Entry(path, size, None) for path, size in sizes.items()]
        return self.data_files()

    def completions_of(self, timeline: Timeline, paths: Iterable[str]) -> Mapping[str, str]:
        """Completion times by begin time of archived writes with log files in `paths`."""
        begins = archived_logs(timeline, paths)
        return completions(self._knowledge, begins) if begins else {}

    def current_files(self, timeline: Timeline) -> Snapshot:
        """Snapshot of a timeline read just now; lists and caches unknown files."""
        return self._knowledge.snapshot(timeline) or self._knowledge.cache_files(self.snapshot(timeline))

    def known_snapshot(self) -> Snapshot | None:
        """Read the lock record and recent timeline names; return the readers' snapshot if cached.

        None: list the files; also if a decided commit is not stored yet, after one made without the lock, or if the
        timeline was moved. Caches which publishes are stored.
        """
        record = self._record()
        view = self.view_by_log(record)
        snapshot = None if view is None else self._knowledge.snapshot(view.timeline)
        if record is None or view is None or snapshot is None:
            return None
        unapplied = [pending.path for pending in record.all_pending]
        applied = self._knowledge.applied
        at = unapplied.index(applied) + 1 if applied in unapplied else 0
        begins = [_name(path)[:-1] for path in unapplied[at:] if _is_on_timeline(path)]
        last = max(view.timeline.writes, key=lambda instant: instant.begin, default=None)
        begins.append(f"{view.timeline.latest_time}~" if last is None else last.begin)
        looked_s = self._knowledge.late_checked_s
        is_due = looked_s is None or self._world.monotonic_s() - looked_s >= _LOOKED_S
        since = _begin_of_recent(view.timeline) if is_due else min(begins)
        newest = self._timeline(after=min(since, *begins))
        if last is not None and last.file_name not in newest:
            return None  # a downgrade or a removal moved the timeline
        if not all(_name(path) in newest if _is_on_timeline(path) else self._exists(path) for path in unapplied[at:]):
            return None
        if unapplied:
            self._knowledge.applied = unapplied[-1]
        if not Timeline.of(newest).written <= view.timeline.written:
            return None
        if is_due:
            self._knowledge.late_checked_s = self._world.monotonic_s()
        return snapshot


def _begin_of_recent(timeline: Timeline) -> str:
    recent = timeline.writes[-_RECENT:]
    return min(instant.begin for instant in recent) if len(recent) < len(timeline.writes) else ""


def _has_one_of(listed: Timeline, writes: Sequence[Instant]) -> bool:
    if any(listed.written_at(write.begin) is not None for write in reversed(writes)):
        return True
    ends = (Action.ROLLBACK, Action.RESTORE)
    return any(i.action in ends and i.begin > writes[0].begin for i in listed.besides_commits)


def _decisions(record: LockRecord | None) -> Decisions:
    """Log and pending publishes of a lock record, for `visible_part`; empty without a record."""
    if record is None:
        return Decisions()
    unapplied = tuple(filter(None, (_instant(pending.path) for pending in record.all_pending)))
    named = record.nonce or f"{record.owner} {record.valid_until_ms} {record.expired}"  # of a JVM writer
    log = record.log
    if log is None:
        return Decisions(named, unapplied=unapplied)
    return Decisions(named, log.name, log.next, tuple(_instant(entry.path) for entry in log.entries), unapplied)


def _instant(path: str) -> Instant | None:
    return parse_instant(_name(path))


def _name(path: str) -> str:
    return path.removeprefix(f"{TIMELINE}/")


def _is_on_timeline(path: str) -> bool:
    return path.startswith(f"{TIMELINE}/")
