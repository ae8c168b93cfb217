"""What one process remembers of a table, so that it need not ask again.

seen        the table at one place of the lock's log. If the same log is found later, the entries that it has got since
            are all that has happened: no other than our own commits. A rollback of another's, a clean, a restore, a
            change of the properties and every JVM writer end the log (see `lockprovider.storage_lock.commit_log`)
metadata    completed files never change
partitions  those known to have a metafile, as long as nothing happened that may remove one
latest      the timeline as it was seen last: to start from, not to decide by

What others have pending is not in a log. So a timeline that was gone by a log tells who has committed, and not who is
at work; and nothing is remembered of a table on which a service is pending.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from itertools import islice, takewhile

import pyarrow as pa

from fsspec_cas import Version
from lockprovider import Log, LogEntry
from lockprovider.table.format.instant import Action, Instant, parse_instant
from lockprovider.table.format.layout import TIMELINE, FileGroup, LogFile, data_file
from lockprovider.table.format.metadata import CommitMetadata, decode_commit
from lockprovider.table.format.properties import TableConfig
from lockprovider.table.timeline.timeline import Timeline
from lockprovider.table.timeline.view import FileSlice, SliceLog, Snapshot

_REMOVERS = (Action.CLEAN, Action.ROLLBACK, Action.RESTORE, Action.REPLACECOMMIT)
_PLAIN = (Action.COMMIT, Action.DELTACOMMIT, Action.REPLACECOMMIT)
_PREFIX = f"{TIMELINE}/"
_KEPT = 20_000  # commits


@dataclass(frozen=True, slots=True)
class KnownView:
    """The table at one place of one log. `slices`: the latest of each file group; None if nobody has looked."""

    log: str
    place: int
    timeline: Timeline
    config: TableConfig
    slices: Mapping[FileGroup, FileSlice] | None = None


@dataclass(frozen=True, slots=True)
class KeySpellings:
    """What a handle has compared: up to which begin time, and one key of each spelling (True: it names its column)."""

    compared: str = ""
    found: Mapping[bool, str] = field(default_factory=dict)


class Memory:
    """Of one open table; thread-safe: what one thread has found out replaces what another has, as a whole."""

    def __init__(self) -> None:
        self.latest = Timeline()
        self.is_there = ""  # a decided publish that was seen there, and all before it
        self.schema: pa.Schema | None = None  # of the last commit that was looked at
        self.listing_seen = ""  # the log in which the metadata table's timeline was listed: since then it is ours alone
        self.key_spellings = KeySpellings()
        self.listing_schema: tuple[str, str] | None = None  # of the metadata table, and its compaction as of then
        self.listing_logs = 0  # its commits since it was compacted, of others those that were seen then
        self._seen: KnownView | None = None
        self._raw: dict[str, bytes] = {}
        self._metadata: dict[str, CommitMetadata] = {}
        self._partitions: tuple[frozenset[str], set[str]] = (frozenset(), set())
        self.committed_s: dict[str, float] = {}  # when this handle completed them, by a clock that does not step
        self._looked_s: float | None = None
        self._beats: dict[str, tuple[Version | None, float]] = {}

    def known(self, log: Log | None) -> KnownView | None:
        """The table now, if `log` is in the lock record now and tells; None: look."""
        seen = self._seen
        if seen is None or log is None or log.name != seen.log:
            return None
        since = log.since(seen.place)
        if since is None:
            return None
        if since:
            there = seen.timeline.written  # a listing may have shown more than the place that it was noted for
            instants = tuple(i for i in self._learn(since) if i.file_name not in there)
            slices = self._advanced(seen, instants)
            timeline = seen.timeline.plus(instants)
            seen = self._seen = KnownView(seen.log, log.next, timeline, seen.config, slices)
            self.latest = timeline
        return seen

    def learn(
        self, log: Log | None, unapplied: int, timeline: Timeline, config: TableConfig, *, decided: bool
    ) -> tuple[Timeline, int]:
        """The table was listed after `log` had been read, or under the lock; the timeline now, and its place in it.

        So many of the last publishes may be decided and not be there yet; they are part of the timeline if `decided`.
        """
        before = self.known(log)
        entries = () if log is None else log.since(log.first) or ()
        # A listing may have a later one, and not the one before.
        last = entries[len(entries) - unapplied :] if unapplied else ()
        is_there = (entry.path.removeprefix(_PREFIX) in timeline.names for entry in last)
        missing = last[sum(1 for _ in takewhile(bool, is_there)) :]
        self._learn(entries)
        unseen = self._learn(missing)
        timeline = timeline.plus(unseen) if decided else timeline.without(unseen)
        self.latest = timeline
        place = 0 if log is None else log.next - (0 if decided else len(missing))
        if log is not None and not any(not i.is_completed and i.action not in _PLAIN for i in timeline.instants):
            is_same = before is not None and before.timeline.written == timeline.written
            slices = before.slices if before is not None and is_same else None
            self._seen = KnownView(log.name, place, timeline, config, slices)
        else:
            self._seen = None
        return timeline, place

    def adopt(self, log: Log, seen: KnownView) -> KnownView | None:
        """Go by what others have seen at some place of the log that is in the lock record now; as `known`."""
        self._learn(log.since(log.first) or ())
        self._seen, self.latest = seen, seen.timeline
        return self.known(log)

    @property
    def config(self) -> TableConfig | None:
        """The properties as they were seen last: to start from, not to decide by."""
        seen = self._seen
        return None if seen is None else seen.config

    def found(self, snapshot: Snapshot) -> Snapshot:
        """The files were listed for this snapshot; the same."""
        seen = self._seen
        if seen is not None and seen.timeline.written == snapshot.timeline.written:
            self._seen = replace(seen, slices={s.group: s for s in snapshot.slices})
        return snapshot

    @property
    def slices(self) -> Snapshot | None:
        """The files as they were seen last, if they were: to start from, not to decide by."""
        seen = self._seen
        return None if seen is None or seen.slices is None else Snapshot(seen.timeline, tuple(seen.slices.values()))

    def snapshot(self, timeline: Timeline) -> Snapshot | None:
        """The files of this timeline, if it is the one that was seen last and they are known.

        For the table of just now: what is not the latest any more may be cleaned.
        """
        seen = self._seen
        if seen is None or seen.slices is None or seen.timeline.written != timeline.written:
            return None
        return Snapshot(timeline, tuple(sorted(seen.slices.values())))

    def remember(self, name: str, data: bytes) -> None:
        """The content of a completed write. The oldest are forgotten; they can be read again."""
        self._raw[name] = data
        for kept in (self._raw, self._metadata):
            for old in list(islice(kept, max(0, len(kept) - _KEPT))):
                kept.pop(old, None)

    def has(self, name: str) -> bool:
        """Whether the content of a completed write is known."""
        return name in self._raw or name in self._metadata

    def metadata(self, name: str) -> CommitMetadata | None:
        """What a completed write did, if its content is known.

        Raises:
            Corrupt: it cannot be understood.
        """
        raw = self._raw.get(name)
        if raw is not None:
            self._metadata[name] = decode_commit(raw, name)
            self._raw.pop(name, None)
        return self._metadata.get(name)

    def partitions_at(self, timeline: Timeline) -> set[str]:
        """The partitions known to have a metafile; to be added to."""
        removers = frozenset(i.file_name for i in timeline.services if i.action in _REMOVERS)
        if self._partitions[0] != removers:
            self._partitions = (removers, set())
        return self._partitions[1]

    def watch_beats(self, versions: Mapping[str, Version | None], now_s: float) -> Mapping[str, float]:
        """Note which heartbeats there are now; for how long each has been seen unchanged, in seconds."""
        first = {begin: seen for begin, seen in self._beats.items() if versions.get(begin) == seen[0] is not None}
        self._beats = {begin: first.get(begin, (version, now_s)) for begin, version in versions.items()}
        return {begin: now_s - since_s for begin, (_, since_s) in self._beats.items()}

    def may_look_for_dead(self, now_s: float, every_s: float) -> bool:
        """Whether this writer looks for dead ones again: not at each of its commits."""
        last_s = self._looked_s
        if last_s is not None and now_s - last_s < every_s:
            return False
        self._looked_s = now_s
        return True

    def _learn(self, entries: Iterable[LogEntry]) -> tuple[Instant, ...]:
        """The instants that were published; their contents are kept."""
        found: list[Instant] = []
        for entry in entries:
            name = entry.path.removeprefix(_PREFIX)
            instant = parse_instant(name)
            if instant is None:
                continue
            found.append(instant)
            if entry.data is not None and name not in self._metadata:
                self.remember(name, entry.data)
        return tuple(found)

    def _advanced(self, seen: KnownView, done: Iterable[Instant]) -> Mapping[FileGroup, FileSlice] | None:
        """The slices after these writes; None if one of them is not known."""
        if seen.slices is None:
            return None
        slices = dict(seen.slices)
        for instant in done:
            metadata = self.metadata(instant.file_name)
            if metadata is None:
                return None
            _apply(slices, instant, metadata)
        return slices


def _apply(slices: dict[FileGroup, FileSlice], done: Instant, metadata: CommitMetadata) -> None:
    for ended in metadata.ended:
        slices.pop(ended, None)
    for stat in metadata.all_stats:
        file, old = data_file(stat.file_name), slices.get(stat.group)
        logs = () if old is None else old.logs
        if isinstance(file, LogFile):
            if file.is_cdc or (old is not None and (done.completion or "") < old.base):
                continue
            logs = (*logs, SliceLog(file, stat.path, stat.file_size, done.completion or ""))
            base = old if old is not None and old.path else None
        elif old is None or old.base < done.begin:
            base = FileSlice(stat.partition, stat.file_id, done.begin, stat.path, stat.file_size)
        else:
            continue
        slices[stat.group] = FileSlice.of_logs(*stat.group, logs) if base is None else base.with_logs(logs)
