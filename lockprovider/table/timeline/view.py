"""Which files a snapshot is made of: the file-system view.

A file group is one (partition, file id); each commit that touches it writes a new file slice of it. The latest slice
whose instant is completed is the one that counts. Of an instant older than the oldest active one nothing is known any
more, and it is taken as completed: that is Hudi's archival rule, and why failed writes must be cleaned before archival.

The past is the same view of a timeline on which later commits are pending again, as long as their predecessors' files
are there: `lost` says which are not.

Source: Hudi `HoodieTableFileSystemView`, `BaseHoodieTimeline.isBeforeTimelineStarts`.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta, timezone
from typing import Literal

from fsspec_cas import Entry, InvalidInput
from lockprovider.table.errors import Corrupt
from lockprovider.table.format.instant import Action, Instant, InstantState, format_ms, to_ms
from lockprovider.table.format.layout import FileGroup, base_file_at
from lockprovider.table.format.metadata import CommitMetadata
from lockprovider.table.timeline.timeline import Timeline

By = Literal["completion", "begin"]
_EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)


@dataclass(frozen=True, slots=True)
class AsOf:
    """A moment in the table's past, to the millisecond, that commit included.

    By completion it is what a reader then saw. By begin it is what Hudi's own readers make of a time: a commit that
    began before and finished after it is part of it, so it is only certain once all that began before it are done.
    """

    time: str
    by: By = "completion"

    @classmethod
    def of(cls, when: str | datetime | AsOf) -> AsOf:
        """Read a time: 17 (or 14) digits of UTC as on the timeline, or an aware datetime.

        Raises:
            InvalidInput: it is neither.
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
                return format_ms(to_ms(when))
            except Corrupt as error:
                raise InvalidInput(f"{when!r} is not a time: give yyyyMMddHHmmssSSS in UTC, or a datetime") from error
        case _:
            raise InvalidInput(f"{when!r} is not a time: give yyyyMMddHHmmssSSS in UTC, or a datetime with a time zone")


def rewound(timeline: Timeline, keep: Callable[[Instant], bool]) -> Timeline:
    """The timeline with those completed writes that are not kept made pending again.

    They stay on it, so that their files are not taken for archived ones.
    """
    return Timeline(tuple(i if _stays(i, keep) else _pending_again(i) for i in timeline.instants))


def _stays(instant: Instant, keep: Callable[[Instant], bool]) -> bool:
    return not (instant.is_completed and instant.changes_rows) or keep(instant)


def _pending_again(instant: Instant) -> Instant:
    return replace(instant, state=InstantState.INFLIGHT, completion=None)


@dataclass(frozen=True, slots=True, order=True)
class FileSlice:
    """One version of one file group. `path` is relative to the table, `begin` its instant; `size` is in bytes."""

    partition: str
    file_id: str
    begin: str
    path: str = field(compare=False)
    size: int = field(compare=False)

    @property
    def group(self) -> FileGroup:
        """Its file group."""
        return self.partition, self.file_id


@dataclass(frozen=True, slots=True)
class Snapshot:
    """What a reader sees: the completed instants of one listing, and the latest slice of each file group."""

    timeline: Timeline
    slices: tuple[FileSlice, ...]

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
        """The slices of these partitions; None means all."""
        wanted = None if partitions is None else set(partitions)
        return tuple(s for s in self.slices if wanted is None or s.partition in wanted)

    def slice_of(self, partition: str, file_id: str) -> FileSlice | None:
        """The latest slice of one file group."""
        return next((s for s in self.slices if s.group == (partition, file_id)), None)


def snapshot_of(timeline: Timeline, files: Iterable[Entry], replaced: Container[FileGroup] = frozenset()) -> Snapshot:
    """The latest slices among `files`, as of `timeline`.

    `replaced` are the file groups that completed replacecommits retired.
    """
    visible = timeline.visible
    latest: dict[FileGroup, FileSlice] = {}
    for found in filter(None, map(_slice, files)):
        if found.group in replaced or not visible(found.begin):
            continue
        if found.group not in latest or latest[found.group].begin < found.begin:
            latest[found.group] = found
    return Snapshot(timeline, tuple(sorted(latest.values())))


def replaced_groups(
    timeline: Timeline, metadata_of: Callable[[Instant], CommitMetadata]
) -> dict[Instant, frozenset[FileGroup]]:
    """The file groups that each completed replacecommit retired, in the order of their completion."""
    done = (instant for instant in timeline.writes if instant.action is Action.REPLACECOMMIT)
    return {instant: metadata_of(instant).ended for instant in done}


def lost(seen: Snapshot, later: Iterable[tuple[Instant, CommitMetadata]]) -> frozenset[FileGroup]:
    """The file groups whose slice in `seen`, a past snapshot, was cleaned, as the writes after it tell.

    A later write names the slice that it replaced, and a replacecommit the group that it ended; what no later write
    touched is never cleaned.
    """
    there = {s.group: s.begin for s in seen.slices}
    first: dict[FileGroup, str | None] = {}
    for _, metadata in sorted(later, key=lambda one: one[0].begin):
        for stat in (stat for stats in metadata.stats.values() for stat in stats):
            first.setdefault(stat.group, stat.prev_commit)
        for group in metadata.ended:
            first.setdefault(group, there.get(group, "some slice"))
    return frozenset(group for group, expected in first.items() if there.get(group) != expected)


def _slice(entry: Entry) -> FileSlice | None:
    at = base_file_at(entry.path)
    if at is None:
        return None
    partition, base = at
    return FileSlice(partition, base.file_id, base.begin, entry.path, entry.size)
