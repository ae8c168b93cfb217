"""Which files a snapshot is made of: the file-system view.

A file group is one (partition, file id); each commit that touches it writes a new file slice of it, or in a
merge-on-read table a log file of its latest one. The latest slice whose instant is completed is the one that counts. A
log file belongs to the last slice whose base file began before the log was completed, so that a compaction between its
begin and its completion leaves it to the slice after. A group may have logs alone.

Of an instant older than the oldest active one nothing is known any more, and it is taken as completed: that is Hudi's
archival rule, and why failed writes must be cleaned before archival.

The past is the same view of a timeline on which later commits are pending again, as long as their predecessors' files
are there: `lost` says which are not.

Source: Hudi `HoodieTableFileSystemView`, `BaseHoodieTimeline.isBeforeTimelineStarts`.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta, timezone
from typing import Literal

from fsspec_cas import Entry, InvalidInput
from lockprovider.table.errors import Corrupt
from lockprovider.table.format.instant import Action, Instant, InstantState, format_ms, to_ms
from lockprovider.table.format.layout import BaseFile, FileGroup, LogFile, data_file_at, data_files_in
from lockprovider.table.format.metadata import CommitMetadata
from lockprovider.table.html import facts
from lockprovider.table.timeline.timeline import Timeline

By = Literal["completion", "begin"]
_TIMES = "give yyyyMMddHHmmssSSS in UTC, 2026-11-22T08:30:00Z, or a datetime with a time zone"
_EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)


@dataclass(frozen=True, slots=True)
class AsOf:
    """A moment in the table's past, to the millisecond, that commit included.

    By completion it is what a reader then saw. By begin it is what Hudi's own readers make of a time: a commit that
    began before and finished after it is part of it, so it is only certain once all that began before it are done.

    >>> AsOf("20261122083000000").by
    'completion'
    """

    time: str
    by: By = "completion"

    @classmethod
    def of(cls, when: str | datetime | AsOf) -> AsOf:
        """Read a time: 17 (or 14) digits of UTC as on the timeline, ISO text with its zone, or an aware datetime.

        Raises:
            InvalidInput: it is neither.

        >>> AsOf.of("2026-11-22T08:30:00Z").time
        '20261122083000000'
        """
        match when:
            case AsOf():
                return cls(time_text(when.time), when.by)
            case _:
                return cls(time_text(when))

    def includes(self, done: Instant) -> bool:
        """Whether this completed instant was there."""
        return (done.begin if self.by == "begin" else done.completion or "") <= self.time


def time_text(when: str | datetime) -> str:
    """A time as on the timeline, 17 digits.

    Raises:
        InvalidInput: it is no such time.
    """
    match when:
        case datetime() if when.tzinfo is not None:
            return format_ms((when - _EPOCH) // timedelta(milliseconds=1))
        case str():
            try:
                return format_ms(to_ms(when)) if when.isdigit() else time_text(_of_iso(when))
            except (Corrupt, ValueError) as error:
                raise InvalidInput(f"{when!r} is not a time: {_TIMES}") from error
        case _:
            raise InvalidInput(f"{when!r} is not a time: {_TIMES}")


def _of_iso(text: str) -> datetime:
    """A time as in ISO 8601.

    Raises:
        ValueError: it is none.
    """
    return datetime.fromisoformat(text[:-1] + "+00:00" if text.endswith(("Z", "z")) else text)


def rewound(timeline: Timeline, keep: Callable[[Instant], bool]) -> Timeline:
    """The timeline with those completed writes that are not kept made pending again.

    They stay on it, so that their files are not taken for archived ones.
    """

    def then(instant: Instant) -> Instant:
        stays = not (instant.is_completed and instant.changes_rows) or keep(instant)
        return instant if stays else replace(instant, state=InstantState.INFLIGHT, completion=None)

    return Timeline(tuple(map(then, timeline.instants)))


@dataclass(frozen=True, slots=True)
class SliceLog:
    """One log file of a file slice. `path` is relative to the table; the times are its instant's."""

    file: LogFile
    path: str
    size: int
    completion: str


@dataclass(frozen=True, slots=True, order=True)
class FileSlice:
    """One version of one file group. `path` is relative to the table, `begin` its instant; `size` is in bytes.

    `logs` are merged with it, in their order. A slice of logs alone has an empty `path`, and the `begin` of its first.

    >>> rows = pa.table({"id": [1], "city": ["ulm"]})
    >>> table = Table.create("memory://docs/trips", TableSpec("trips", rows, "id", "city"))
    >>> done = table.append(rows)
    >>> one = table.snapshot().slices[0]
    >>> one.partition, one.begin == done.instant, one.logs
    ('ulm', True, ())
    """

    partition: str
    file_id: str
    begin: str
    path: str = field(compare=False)
    size: int = field(compare=False)
    logs: tuple[SliceLog, ...] = field(compare=False, default=())

    @classmethod
    def of_logs(cls, partition: str, file_id: str, logs: Iterable[SliceLog]) -> FileSlice:
        """A slice without a base file."""
        ordered = in_merge_order(logs)
        return cls(partition, file_id, ordered[0].file.begin, "", 0, ordered)

    @property
    def group(self) -> FileGroup:
        """Its file group."""
        return self.partition, self.file_id

    @property
    def base(self) -> str:
        """The begin time of its base file; empty if it has none."""
        return self.begin if self.path else ""

    @property
    def paths(self) -> tuple[str, ...]:
        """All its files."""
        return (*([self.path] if self.path else []), *(log.path for log in self.logs))

    @property
    def begins(self) -> frozenset[str]:
        """The begin times of the writes that its files are of."""
        return frozenset([self.begin, *(log.file.begin for log in self.logs)])

    def with_logs(self, logs: Iterable[SliceLog]) -> FileSlice:
        """The same with these logs alone, of those that belong to it."""
        mine = in_merge_order(log for log in logs if log.completion >= self.base)
        return replace(self, logs=mine) if self.path else FileSlice.of_logs(self.partition, self.file_id, mine)


def in_merge_order(logs: Iterable[SliceLog]) -> tuple[SliceLog, ...]:
    """By begin times, whenever they were completed."""
    return tuple(sorted(logs, key=lambda log: log.file.place))


def given_partitions(partitions: Iterable[str] | None) -> tuple[str, ...] | None:
    """The paths of partitions that a caller gave; None if none were named.

    Raises:
        InvalidInput: they are one text, whose letters would be taken for partitions, or no list.
    """
    if isinstance(partitions, (str, bytes)) or not isinstance(partitions, Iterable | None):
        one = f"[{str(partitions)!r}]"
        raise InvalidInput(f"partitions={partitions!r} must be a list of paths of partitions: give {one}")
    return None if partitions is None else tuple(partitions)


@dataclass(frozen=True, slots=True)
class Snapshot:
    """What a reader sees: the completed instants of one listing, and the latest slice of each file group.

    >>> rows = pa.table({"id": [1, 2], "city": ["ulm", "bonn"]})
    >>> table = Table.create("memory://docs/trips", TableSpec("trips", rows, "id", "city"))
    >>> done = table.append(rows)
    >>> snapshot = table.snapshot()
    >>> len(snapshot.slices)
    2
    """

    timeline: Timeline
    slices: tuple[FileSlice, ...]

    def _repr_html_(self) -> str:
        """For notebooks: how many partitions, file groups and files, and as of when."""
        logs = sum(len(slice_.logs) for slice_ in self.slices)
        return facts(
            "Snapshot",
            [
                ("as of", self.timeline.latest_completed_time or "before the first write"),
                ("partitions", len(self.partitions)),
                ("file groups", len(self.slices)),
                ("base files", sum(1 for slice_ in self.slices if slice_.path)),
                ("log files", logs),
            ],
        )

    @property
    def partitions(self) -> tuple[str, ...]:
        """The partitions that have rows, or had."""
        return tuple(sorted({slice_.partition for slice_ in self.slices}))

    @property
    def groups(self) -> dict[str, frozenset[str]]:
        """The file ids of each partition."""
        found: dict[str, set[str]] = {}
        for slice_ in self.slices:
            found.setdefault(slice_.partition, set()).add(slice_.file_id)
        return {partition: frozenset(file_ids) for partition, file_ids in found.items()}

    def within(self, partitions: Iterable[str] | None) -> tuple[FileSlice, ...]:
        """The slices of these partitions; None means all.

        Raises:
            InvalidInput: they are one text, whose letters would be taken for partitions.

        >>> [one.partition for one in snapshot.within(["ulm"])]
        ['ulm']
        """
        if (wanted := given_partitions(partitions)) is None:
            return self.slices
        among = frozenset(wanted)
        return tuple(s for s in self.slices if s.partition in among)

    @property
    def read_optimized(self) -> Snapshot:
        """What the base files alone have: of each group the rows of its last compaction."""
        return Snapshot(self.timeline, tuple(replace(s, logs=()) for s in self.slices if s.path))

    def slice_of(self, partition: str, file_id: str) -> FileSlice | None:
        """The latest slice of one file group.

        >>> one = snapshot.slices[0]
        >>> snapshot.slice_of(one.partition, one.file_id) == one
        True
        """
        return next((s for s in self.slices if s.group == (partition, file_id)), None)


def snapshot_of(
    timeline: Timeline,
    files: Iterable[Entry],
    replaced: Container[FileGroup] = frozenset(),
    archived: Callable[[str], str] = str,
    file_at: Callable[[str], tuple[str, BaseFile | LogFile] | None] = data_file_at,
) -> Snapshot:
    """The latest slices among `files`, as of `timeline`.

    `replaced` are the file groups that completed replacecommits retired; `archived` tells the completion time of a
    write that began then and was archived, or if nobody knows it, that time itself; `file_at` understands a path.
    """
    visible, completions = timeline.visible, timeline.completions
    bases: dict[FileGroup, FileSlice] = {}
    logs: dict[FileGroup, list[SliceLog]] = {}
    for entry, (partition, file) in ((entry, at) for entry in files if (at := file_at(entry.path)) is not None):
        group = (partition, file.file_id)
        if group in replaced or not visible(file.begin) or (isinstance(file, LogFile) and file.is_cdc):
            continue
        if isinstance(file, LogFile):
            completion = completions.get(file.begin) or archived(file.begin)
            logs.setdefault(group, []).append(SliceLog(file, entry.path, entry.size, completion))
        elif group not in bases or bases[group].begin < file.begin:
            bases[group] = FileSlice(partition, file.file_id, file.begin, entry.path, entry.size)
    for group, found in logs.items():
        base = bases.get(group)
        bases[group] = FileSlice.of_logs(*group, found) if base is None else base.with_logs(found)
    return Snapshot(timeline, tuple(sorted(bases.values())))


def archived_logs(timeline: Timeline, paths: Iterable[str]) -> frozenset[str]:
    """The begin times of log files whose completion times are not on the timeline any more."""
    found = (file for _, file, _ in data_files_in(paths) if isinstance(file, LogFile))
    visible, known = timeline.visible, timeline.completions
    return frozenset(file.begin for file in found if file.begin not in known and visible(file.begin))


def replaced_groups(
    timeline: Timeline, metadata_of: Callable[[Instant], CommitMetadata]
) -> dict[Instant, frozenset[FileGroup]]:
    """The file groups that each completed replacecommit retired, in the order of their completion."""
    done = (instant for instant in timeline.writes if instant.action is Action.REPLACECOMMIT)
    return {instant: metadata_of(instant).ended for instant in done}


def ended_groups(timeline: Timeline, metadata_of: Callable[[Instant], CommitMetadata]) -> frozenset[FileGroup]:
    """The file groups that completed replacecommits have retired."""
    return frozenset[FileGroup]().union(*replaced_groups(timeline, metadata_of).values())


def lost(
    seen: Snapshot,
    earlier: Iterable[tuple[Instant, CommitMetadata]],
    later: Iterable[tuple[Instant, CommitMetadata]],
) -> frozenset[FileGroup]:
    """The file groups whose slice in `seen`, a past snapshot, was cleaned, as the writes tell.

    A later write names the base file that it replaced, and a replacecommit the group that it ended; what no later write
    touched is never cleaned. Which logs there were the `earlier` writes tell, those of `seen` that wrote some.
    """
    there = {s.group: s for s in seen.slices}
    bases = {group: found.base for group, found in there.items()}
    first: dict[FileGroup, str] = {}
    for _, metadata in sorted(later, key=lambda one: one[0].begin):
        for stat in metadata.all_stats:
            if not stat.is_log:  # a log names its own begin, not its slice
                first.setdefault(stat.group, stat.prev_commit or "")
        for group in metadata.ended:
            first.setdefault(group, bases.get(group, "some slice"))
    gone = {group for group, expected in first.items() if bases.get(group, "") != expected}
    return frozenset(gone | _without_logs(there, list(earlier)))


def _without_logs(
    there: Mapping[FileGroup, FileSlice], earlier: list[tuple[Instant, CommitMetadata]]
) -> set[FileGroup]:
    """The file groups some of whose log files are not there, and not part of their base file either."""
    ended = frozenset[FileGroup]().union(*(metadata.ended for _, metadata in earlier))
    paths = {log.path for found in there.values() for log in found.logs}
    gone: set[FileGroup] = set()
    for instant, metadata in earlier:
        for stat in metadata.all_stats:
            if not stat.is_log or stat.path in paths or stat.group in ended:
                continue
            if stat.group not in there or (instant.completion or "") >= there[stat.group].base:
                gone.add(stat.group)
    return gone
