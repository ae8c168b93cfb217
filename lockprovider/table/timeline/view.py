"""File-system view: a snapshot's files, as each file group's latest completed slice.

Source: Hudi `HoodieTableFileSystemView`, `BaseHoodieTimeline.isBeforeTimelineStarts`.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Mapping
from dataclasses import dataclass, field, replace
from html import escape

from fsspec_cas import Entry
from fsspec_cas.arguments import check_texts
from lockprovider.table.format.layout import (
    Action,
    BaseFile,
    FileGroup,
    Instant,
    LogFile,
    data_file_at,
    data_files_in,
)
from lockprovider.table.format.metadata import CommitMetadata
from lockprovider.table.timeline.timeline import Timeline


@dataclass(frozen=True, slots=True)
class SliceLog:
    """Log file of a slice. `path` is relative to the table."""

    file: LogFile
    path: str
    size: int
    completion: str


@dataclass(frozen=True, slots=True, order=True)
class FileSlice:
    """One version of one file group; `path` (relative to the table), `begin` and `size` in bytes are its base file's.

    `logs` are merged with it, in their order. A slice without a base file has an empty `path`, and its first log's
    `begin`.

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
        """Make a slice without a base file, of at least one log."""
        ordered = in_merge_order(logs)
        return cls(partition, file_id, ordered[0].file.begin, "", 0, ordered)

    @property
    def group(self) -> FileGroup:
        """Partition and file id."""
        return self.partition, self.file_id

    @property
    def base(self) -> str:
        """Its base file's begin time, or empty text."""
        return self.begin if self.path else ""

    @property
    def paths(self) -> tuple[str, ...]:
        return (*([self.path] if self.path else []), *(log.path for log in self.logs))

    @property
    def begins(self) -> frozenset[str]:
        """Begin times of the writes of its files."""
        return frozenset([self.begin, *(log.file.begin for log in self.logs)])

    def with_logs(self, logs: Iterable[SliceLog]) -> FileSlice:
        """Copy with those of `logs` that completed at its base's begin or later."""
        own_logs = in_merge_order(log for log in logs if log.completion >= self.base)
        return replace(self, logs=own_logs) if self.path else FileSlice.of_logs(self.partition, self.file_id, own_logs)


def in_merge_order(logs: Iterable[SliceLog]) -> tuple[SliceLog, ...]:
    """Logs ordered by begin time."""
    return tuple(sorted(logs, key=lambda log: log.file.merge_order))


def given_partitions(partitions: Iterable[str] | None) -> tuple[str, ...] | None:
    """Paths of a caller's partitions (the keys of a dict), or None; may raise `InvalidInput`."""
    if partitions is None:
        return None
    return check_texts(
        partitions.keys() if isinstance(partitions, dict) else partitions, "partitions", "paths of partitions"
    )


def file_ids_by_partition(groups: Iterable[FileGroup]) -> dict[str, frozenset[str]]:
    """File ids by partition, in order."""
    file_ids: dict[str, set[str]] = {}
    for partition, file_id in groups:
        file_ids.setdefault(partition, set()).add(file_id)
    return {partition: frozenset(file_ids[partition]) for partition in sorted(file_ids)}


def html_facts(title: str, rows: Iterable[tuple[str, object]]) -> str:
    """Render an HTML table; escapes every text."""
    body = "".join(f"<tr><th>{escape(name)}</th><td>{escape(str(value))}</td></tr>" for name, value in rows)
    return f"<table><caption>{escape(title)}</caption><tbody>{body}</tbody></table>"


@dataclass(frozen=True, slots=True)
class Snapshot:
    """Reader's view: one listing's completed instants, and each file group's latest slice.

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
        """HTML table of time and counts."""
        logs = sum(len(slice_.logs) for slice_ in self.slices)
        return html_facts(
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
        """Partitions that have rows, or had."""
        return tuple(sorted({slice_.partition for slice_ in self.slices}))

    @property
    def groups(self) -> dict[str, frozenset[str]]:
        """File ids of each partition."""
        return file_ids_by_partition(slice_.group for slice_ in self.slices)

    def within(self, partitions: Iterable[str] | None) -> tuple[FileSlice, ...]:
        """Slices of these partitions, or all if None.

        Raises:
            InvalidInput: `partitions` is one text, whose letters would count as partitions.

        >>> [one.partition for one in snapshot.within(["ulm"])]
        ['ulm']
        """
        if (paths := given_partitions(partitions)) is None:
            return self.slices
        among = frozenset(paths)
        return tuple(s for s in self.slices if s.partition in among)

    @property
    def read_optimized(self) -> Snapshot:
        """Snapshot of base files only: the rows of each group's last compaction."""
        return Snapshot(self.timeline, tuple(replace(s, logs=()) for s in self.slices if s.path))

    def slice_of(self, partition: str, file_id: str) -> FileSlice | None:
        """Latest slice of one file group; None without one.

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
    """Latest visible slice of each file group among `files`, as of `timeline`; without change-data logs.

    `replaced`: ended file groups, left out. `archived`: returns an archived write's completion time.
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
    for group, group_logs in logs.items():
        base = bases.get(group)
        bases[group] = FileSlice.of_logs(*group, group_logs) if base is None else base.with_logs(group_logs)
    return Snapshot(timeline, tuple(sorted(bases.values())))


def archived_logs(timeline: Timeline, paths: Iterable[str]) -> frozenset[str]:
    """Begin times of log files whose writes were archived."""
    log_files = (file for _, file, _ in data_files_in(paths) if isinstance(file, LogFile))
    visible, completions = timeline.visible, timeline.completions
    return frozenset(file.begin for file in log_files if file.begin not in completions and visible(file.begin))


def files_of_no_instant(timeline: Timeline, paths: Iterable[str]) -> dict[str, str]:
    """Begin times, by path, of data files that a task wrote after its instant's rollback.

    List `paths` BEFORE `timeline`.
    """
    begins = {instant.begin for instant in timeline.instants if instant.changes_rows}
    files = ((path, file.begin) for _, file, path in data_files_in(paths))
    return {path: begin for path, begin in files if begin not in begins and begin > timeline.first_active > ""}


def replaced_groups(
    timeline: Timeline, metadata_of: Callable[[Instant], CommitMetadata]
) -> dict[Instant, frozenset[FileGroup]]:
    """File groups that each completed replacecommit ended, by completion."""
    done = (instant for instant in timeline.writes if instant.action is Action.REPLACECOMMIT)
    return {instant: metadata_of(instant).ended for instant in done}


def ended_groups(timeline: Timeline, metadata_of: Callable[[Instant], CommitMetadata]) -> frozenset[FileGroup]:
    """All file groups that completed replacecommits ended."""
    return frozenset[FileGroup]().union(*replaced_groups(timeline, metadata_of).values())


def cleaned_groups(
    snapshot: Snapshot,
    earlier: Iterable[tuple[Instant, CommitMetadata]],
    later: Iterable[tuple[Instant, CommitMetadata]],
) -> frozenset[FileGroup]:
    """File groups of which a clean removed files that the past `snapshot` needs.

    Writes in `later`, since the snapshot, name the base files that they replaced; those in `earlier` name logs.
    """
    slices = {s.group: s for s in snapshot.slices}
    bases = {group: slice_.base for group, slice_ in slices.items()}
    first: dict[FileGroup, str] = {}
    for _, metadata in sorted(later, key=lambda done: done[0].begin):
        for stat in metadata.all_stats:
            if not stat.is_log:  # a log names its own begin, not its slice
                first.setdefault(stat.group, stat.prev_commit or "")
        for group in metadata.ended:
            first.setdefault(group, bases.get(group, "some slice"))
    missing = {group for group, expected in first.items() if bases.get(group, "") != expected}
    return frozenset(missing | _without_logs(slices, list(earlier)))


def _without_logs(
    slices: Mapping[FileGroup, FileSlice], earlier: list[tuple[Instant, CommitMetadata]]
) -> set[FileGroup]:
    """Groups without some log file of the writes in `earlier` that their base file does not contain.

    Not those that these writes ended.
    """
    ended = frozenset[FileGroup]().union(*(metadata.ended for _, metadata in earlier))
    paths = {log.path for slice_ in slices.values() for log in slice_.logs}
    missing: set[FileGroup] = set()
    for instant, metadata in earlier:
        for stat in metadata.all_stats:
            if not stat.is_log or stat.path in paths or stat.group in ended:
                continue
            if stat.group not in slices or (instant.completion or "") >= slices[stat.group].base:
                missing.add(stat.group)
    return missing
