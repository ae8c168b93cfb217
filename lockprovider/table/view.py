"""Which files a snapshot is made of: the file-system view.

A file group is one (partition, file id); each commit that touches it writes a new file slice of it. The latest slice
whose instant is completed is the one that counts. Of an instant older than the oldest active one nothing is known any
more, and it is taken as completed: that is Hudi's archival rule, and why failed writes must be cleaned before archival.

Source: Hudi `HoodieTableFileSystemView`, `BaseHoodieTimeline.isBeforeTimelineStarts`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from fsspec_cas import Entry
from lockprovider.table.layout import META, parse_base_file
from lockprovider.table.timeline import Timeline


@dataclass(frozen=True, slots=True, order=True)
class FileSlice:
    """One version of one file group. `path` is relative to the table, `begin` its instant."""

    partition: str
    file_id: str
    begin: str
    path: str = field(compare=False)
    size: int = field(compare=False)


@dataclass(frozen=True, slots=True)
class Snapshot:
    """What a reader sees: the completed instants of one listing, and the latest slice of each file group."""

    timeline: Timeline
    slices: tuple[FileSlice, ...]

    @property
    def partitions(self) -> tuple[str, ...]:
        """The partitions that have rows, or had."""
        return tuple(sorted({slice_.partition for slice_ in self.slices}))

    def within(self, partitions: Iterable[str] | None) -> tuple[FileSlice, ...]:
        """The slices of these partitions; None means all."""
        wanted = None if partitions is None else set(partitions)
        return tuple(s for s in self.slices if wanted is None or s.partition in wanted)

    def slice_of(self, partition: str, file_id: str) -> FileSlice | None:
        """The latest slice of one file group."""
        return next((s for s in self.slices if (s.partition, s.file_id) == (partition, file_id)), None)


def snapshot(
    timeline: Timeline, files: Iterable[Entry], replaced: Mapping[str, frozenset[str]] | None = None
) -> Snapshot:
    """The latest slices among `files`, as of `timeline`.

    `replaced` maps a partition to the file ids that completed replacecommits retired.
    """
    completed = {instant.begin for instant in timeline.writes}
    active = timeline.first_active
    latest: dict[tuple[str, str], FileSlice] = {}
    for entry in files:
        found = _slice(entry)
        if found is None or not (found.begin in completed or found.begin < active):
            continue
        if found.file_id in (replaced or {}).get(found.partition, frozenset()):
            continue
        key = (found.partition, found.file_id)
        if key not in latest or latest[key].begin < found.begin:
            latest[key] = found
    return Snapshot(timeline, tuple(sorted(latest.values())))


def _slice(entry: Entry) -> FileSlice | None:
    partition, _, name = entry.path.rpartition("/")
    base = parse_base_file(name)
    if base is None or partition.partition("/")[0] == META:
        return None
    return FileSlice(partition, base.file_id, base.begin, entry.path, entry.size)
