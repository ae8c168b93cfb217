"""Optimistic concurrency control: whose write gives way.

The check compares sets, never times: what completed since my snapshot is the set of completed instants now, without the
set that my snapshot was made of. A time can lie (a commit that began earlier may finish later); a set cannot.

A resolution says which of the others my write loses to. Three come with it, and any function of that shape will do:

    by_file_group   a write that completed since, or a planned clustering, of a file group of mine (Hudi's default)
    prefer_writer   the same, but rows that come in win over table services: they pass over planned clusterings, and a
                    table service gives way to writes that are still pending
    by_partition    the same partition is enough: two writers that insert the same new key are detected, too

A blind write of a non-blocking writer has another, `non_blocking`, whatever its settings say.

In a table with a bucket index each of them compares buckets (see `by_bucket`): there two writers that insert the same
new key are detected, even if both make the bucket's first file group.

Source: Hudi RFC-22; `SimpleConcurrentFileWritesConflictResolutionStrategy`, `PreferWriterConflictResolutionStrategy`,
`BucketIndexConcurrentFileWritesConflictResolutionStrategy`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

from lockprovider.table.format.bucket import bucket_of, prefix
from lockprovider.table.format.instant import Action, Instant
from lockprovider.table.format.layout import FileGroup
from lockprovider.table.format.metadata import CommitMetadata
from lockprovider.table.timeline.timeline import Timeline

TABLE_SERVICES = frozenset({"CLUSTER", "COMPACT", "LOG_COMPACT"})


@dataclass(frozen=True, slots=True)
class ConcurrentOperation:
    """One write as the check sees it: completed, or pending with what it is known to touch.

    `name` is Hudi's name of the operation, upper case.
    """

    instant: Instant
    name: str
    file_groups: frozenset[FileGroup]

    @classmethod
    def of(cls, instant: Instant, metadata: CommitMetadata) -> ConcurrentOperation:
        """What a completed write did."""
        return cls(instant, metadata.operation, metadata.file_groups)

    @property
    def is_table_service(self) -> bool:
        """Whether it rewrites rows that came in earlier, and so may be done again later."""
        return self.name in TABLE_SERVICES


@dataclass(frozen=True, slots=True)
class Overlap:
    """My write and another one touched the same file groups."""

    lost_to: Instant
    file_groups: tuple[FileGroup, ...]


Resolution = Callable[[ConcurrentOperation, Sequence[ConcurrentOperation]], Overlap | None]


def completed_since(mine: Timeline, now: Timeline) -> tuple[Instant, ...]:
    """The writes that completed after my snapshot, in the order of their completion."""
    if _has_grown(mine, now):
        return now.writes[len(mine.writes) :]
    seen = mine.written
    return tuple(instant for instant in now.writes if instant.file_name not in seen)


def undone_since(mine: Timeline, now: Timeline) -> tuple[Instant, ...]:
    """The writes of my snapshot that a restore has taken back; archived ones are not meant."""
    if _has_grown(mine, now):
        return ()
    first, there = now.first_active, now.written
    return tuple(i for i in mine.writes if i.file_name not in there and i.begin >= first)


def _has_grown(mine: Timeline, now: Timeline) -> bool:
    """Whether the writes of my snapshot are the first of now: the usual case, told without looking at each."""
    return now.writes[: len(mine.writes)] == mine.writes


def archived_since(mine: Timeline, now: Timeline) -> bool:
    """Whether a write may have completed after my snapshot and be archived by now: nobody can compare with it any more.

    Archival takes the oldest by begin, and leaves the latest. What my snapshot has not seen completed began after all
    that it has, or was pending in it.
    """
    first = now.first_active
    passed = bool(mine.writes) and all(i.begin < first for i in mine.writes) and bool(completed_since(mine, now))
    pending = {begin for begin in mine.unfinished if begin < first}
    return passed or bool(pending and pending.difference(instant.begin for instant in now.instants))


def by_file_group(mine: ConcurrentOperation, others: Sequence[ConcurrentOperation]) -> Overlap | None:
    """The first of the others that touches a file group of mine, if it is completed or a planned table service.

    New file groups have fresh ids, so inserts never conflict: two that insert the same new key are not detected.
    """
    return _first_overlap(mine.file_groups, (o for o in others if o.instant.is_completed or o.is_table_service))


def prefer_writer(mine: ConcurrentOperation, others: Sequence[ConcurrentOperation]) -> Overlap | None:
    """As `by_file_group`, but a table service gives way to every pending write, and no write to a pending service."""
    if mine.is_table_service:
        return _first_overlap(mine.file_groups, others)
    return _first_overlap(mine.file_groups, (other for other in others if other.instant.is_completed))


def by_partition(mine: ConcurrentOperation, others: Sequence[ConcurrentOperation]) -> Overlap | None:
    """The first of the others that touches a partition of mine, if it is completed or a planned table service."""
    partitions = {partition for partition, _ in mine.file_groups}
    for other in others:
        shared = {group for group in other.file_groups if group[0] in partitions}
        if shared and (other.instant.is_completed or other.is_table_service):
            return Overlap(other.instant, tuple(sorted(shared)))
    return None


def non_blocking(mine: ConcurrentOperation, others: Sequence[ConcurrentOperation]) -> Overlap | None:
    """The first of the others that ends a file group of mine, or plans to; rows that are logged beside mine do not.

    For blind writes: a group that ends takes what is logged meanwhile with it, whoever completes first.
    """
    ending = (Action.REPLACECOMMIT, Action.CLUSTERING)
    return _first_overlap(mine.file_groups, (other for other in others if other.instant.action in ending))


def by_bucket(resolution: Resolution) -> Resolution:
    """The same resolution, over buckets in place of file groups; the file groups of the other write are named."""

    def resolve(mine: ConcurrentOperation, others: Sequence[ConcurrentOperation]) -> Overlap | None:
        overlap = resolution(_bucketed(mine), [_bucketed(other) for other in others])
        if overlap is None:
            return None
        theirs = {group for other in others if other.instant == overlap.lost_to for group in other.file_groups}
        return Overlap(
            overlap.lost_to, tuple(sorted(group for group in theirs if _bucket(group) in overlap.file_groups))
        )

    return resolve


def _bucketed(operation: ConcurrentOperation) -> ConcurrentOperation:
    return replace(operation, file_groups=frozenset(map(_bucket, operation.file_groups)))


def _bucket(group: FileGroup) -> FileGroup:
    """A file group's partition and bucket; one that is of no bucket stands for itself."""
    partition, file_id = group
    bucket = bucket_of(file_id)
    return group if bucket is None else (partition, prefix(bucket))


def _first_overlap(mine: frozenset[FileGroup], others: Iterable[ConcurrentOperation]) -> Overlap | None:
    for other in others:
        both = mine & other.file_groups
        if both:
            return Overlap(other.instant, tuple(sorted(both)))
    return None
