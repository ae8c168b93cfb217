"""Optimistic concurrency control: the rules by which a write gives way to another one.

The check compares sets of commits, not times: a commit that began earlier may complete later. A `Resolution` returns
the other write that a write loses to.

Source: Hudi RFC-22; `SimpleConcurrentFileWritesConflictResolutionStrategy`, `PreferWriterConflictResolutionStrategy`,
`BucketIndexConcurrentFileWritesConflictResolutionStrategy`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import count

from lockprovider import InvalidSettings
from lockprovider.table.format.bucket import bucket_of, fixed_file_id, prefix
from lockprovider.table.format.compatibility import MODE_KEY, NON_BLOCKING, OPTIMISTIC
from lockprovider.table.format.instant import Action, Instant
from lockprovider.table.format.layout import FileGroup
from lockprovider.table.format.metadata import CommitMetadata
from lockprovider.table.format.properties import EVENT_TIME, TableConfig
from lockprovider.table.timeline.timeline import Timeline
from lockprovider.table.timeline.view import Snapshot

TABLE_SERVICES = frozenset({"CLUSTER", "COMPACT", "LOG_COMPACT"})


@dataclass(frozen=True, slots=True)
class ConcurrentOperation:
    """One write for the check: completed, or pending with the file groups that it is known to touch.

    `name`: Hudi's name of the operation, upper case.
    """

    instant: Instant
    name: str
    file_groups: frozenset[FileGroup]

    @classmethod
    def of(cls, instant: Instant, metadata: CommitMetadata) -> ConcurrentOperation:
        """Make the operation of a completed write."""
        return cls(instant, metadata.operation, metadata.file_groups)

    @property
    def is_table_service(self) -> bool:
        """Whether it rewrites earlier rows, and so may be repeated later."""
        return self.name in TABLE_SERVICES


@dataclass(frozen=True, slots=True)
class Overlap:
    """A conflict: the other write, to which a write loses, and the file groups that both touched."""

    lost_to: Instant
    file_groups: tuple[FileGroup, ...]


Resolution = Callable[[ConcurrentOperation, Sequence[ConcurrentOperation]], Overlap | None]


def completed_since(before: Timeline, timeline: Timeline) -> tuple[Instant, ...]:
    """Return the writes completed since the snapshot `before`, in the order of completion."""
    if _has_grown(before, timeline):
        return timeline.writes[len(before.writes) :]
    written = before.written
    return tuple(instant for instant in timeline.writes if instant.file_name not in written)


def undone_since(before: Timeline, timeline: Timeline) -> tuple[Instant, ...]:
    """Return the writes of the snapshot `before` that a restore took back, without archived ones."""
    if _has_grown(before, timeline):
        return ()
    first, written = timeline.first_active, timeline.written
    return tuple(i for i in before.writes if i.file_name not in written and i.begin >= first)


def _has_grown(before: Timeline, timeline: Timeline) -> bool:
    return timeline.writes[: len(before.writes)] == before.writes


def archived_since(before: Timeline, timeline: Timeline) -> bool:
    """Return whether a write that completed after the snapshot `before` may be archived.

    Such a write began after all writes of `before`, or was pending in it.
    """
    first = timeline.first_active
    passed = (
        bool(before.writes) and all(i.begin < first for i in before.writes) and bool(completed_since(before, timeline))
    )
    pending = {begin for begin in before.unfinished if begin < first}
    return passed or bool(pending and pending.difference(instant.begin for instant in timeline.instants))


def by_file_group(operation: ConcurrentOperation, concurrent: Sequence[ConcurrentOperation]) -> Overlap | None:
    """Return the first overlap in file groups with a completed write or a planned table service; None: no conflict.

    It is Hudi's default. New file groups have fresh ids: two inserts of the same new key are not detected.
    """
    return _first_overlap(
        operation.file_groups, (o for o in concurrent if o.instant.is_completed or o.is_table_service)
    )


def prefer_writer(operation: ConcurrentOperation, concurrent: Sequence[ConcurrentOperation]) -> Overlap | None:
    """Return the first overlap in file groups with a completed write; None: no conflict.

    A table service also loses to pending writes. So a write never loses to a pending service.
    """
    if operation.is_table_service:
        return _first_overlap(operation.file_groups, concurrent)
    return _first_overlap(operation.file_groups, (other for other in concurrent if other.instant.is_completed))


def by_partition(operation: ConcurrentOperation, concurrent: Sequence[ConcurrentOperation]) -> Overlap | None:
    """Return the first overlap in partitions with a completed write or a planned table service; None: no conflict.

    So two inserts of the same new key conflict.
    """
    return _by_unit(by_file_group, lambda group: (group[0], ""))(operation, concurrent)


def non_blocking(operation: ConcurrentOperation, concurrent: Sequence[ConcurrentOperation]) -> Overlap | None:
    """Return the first overlap with a write that ends a file group of a blind write, or plans to; None: no conflict.

    An ended group hides rows logged at the same time.
    """
    ending = (Action.REPLACECOMMIT, Action.CLUSTERING)
    return _first_overlap(operation.file_groups, (other for other in concurrent if other.instant.action in ending))


def by_bucket(resolution: Resolution) -> Resolution:
    """Return the resolution over buckets instead of file groups, so that two inserts of the same new key conflict."""
    return _by_unit(resolution, _bucket)


def _by_unit(resolution: Resolution, unit: Callable[[FileGroup], FileGroup]) -> Resolution:
    """Return the resolution over units of file groups; its overlap names the other write's file groups."""

    def in_units(operation: ConcurrentOperation) -> ConcurrentOperation:
        return replace(operation, file_groups=frozenset(map(unit, operation.file_groups)))

    def resolve(operation: ConcurrentOperation, concurrent: Sequence[ConcurrentOperation]) -> Overlap | None:
        overlap = resolution(in_units(operation), list(map(in_units, concurrent)))
        if overlap is None:
            return None
        groups = {group for other in concurrent if other.instant == overlap.lost_to for group in other.file_groups}
        return Overlap(overlap.lost_to, tuple(sorted(group for group in groups if unit(group) in overlap.file_groups)))

    return resolve


def _bucket(group: FileGroup) -> FileGroup:
    """Return a file group's partition and bucket, or the group itself if it has no bucket."""
    partition, file_id = group
    bucket = bucket_of(file_id)
    return group if bucket is None else (partition, prefix(bucket))


def _first_overlap(groups: frozenset[FileGroup], concurrent: Iterable[ConcurrentOperation]) -> Overlap | None:
    for other in concurrent:
        both = groups & other.file_groups
        if both:
            return Overlap(other.instant, tuple(sorted(both)))
    return None


# Blind writes add one log file per bucket; readers merge them by the ordering value. An anchor is an empty base file:
# without it JVM readers see no log until the write that began first completes (apache/hudi issue 19774).
# Source: Hudi RFC-66; `BucketIdentifier.newBucketFileIdForNBCC`.
Bucket = tuple[str, int]  # partition and number


def lacks_for_non_blocking(config: TableConfig) -> tuple[str, ...]:
    """Return what a table lacks for non-blocking writes; empty if they are possible."""
    conditions = {
        "table_type='merge_on_read'": config.is_merge_on_read,
        "a bucket index (buckets=)": config.bucket_index is not None,
        "one ordering column (ordering=)": len(config.ordering_fields) == 1,
        f"hoodie.record.merge.mode={EVENT_TIME}": config.effective_merge_mode == EVENT_TIME,
    }
    return tuple(condition for condition, is_met in conditions.items() if not is_met)


def refuse_unless_possible(config: TableConfig) -> None:
    """Raise `InvalidSettings` if the table lacks something for non-blocking writes."""
    if lacks := lacks_for_non_blocking(config):
        raise InvalidSettings(
            f"{MODE_KEY}={NON_BLOCKING} is not possible for table {config.name!r}, it lacks {', '.join(lacks)}: "
            f"use {OPTIMISTIC}, or create a table with it"
        )


def refuse_replacing(operation: str) -> None:
    """Raise `InvalidSettings`: a non-blocking write ends no file groups, since others log into them unchecked."""
    raise InvalidSettings(
        f"{operation} ends file groups, which {MODE_KEY}={NON_BLOCKING} cannot do: open the table with {OPTIMISTIC} "
        "for it, while no JVM writer writes without blocking"
    )


def bare_buckets(snapshot: Snapshot, partitions: Iterable[str], buckets: int) -> tuple[Bucket, ...]:
    """Return the buckets of these partitions without a file group."""
    occupied = {(slice_.partition, bucket_of(slice_.file_id)) for slice_ in snapshot.slices}
    candidates = [(partition, bucket) for partition in sorted(set(partitions)) for bucket in range(buckets)]
    return tuple(pair for pair in candidates if pair not in occupied)


def anchor_id(bucket: Bucket, ended: Collection[FileGroup]) -> str:
    """Return the file id of a bucket's anchor: the first fixed one that was never replaced.

    JVM writers would write into a replaced group, which is hidden for ever.
    """
    partition, number = bucket
    ids = (fixed_file_id(number, generation) for generation in count())
    return next(file_id for file_id in ids if (partition, file_id) not in ended)


def left_bare(
    replaced: Mapping[str, Collection[str]],
    written: Iterable[FileGroup],
    ended: Collection[FileGroup],
    buckets: int,
) -> tuple[Bucket, ...]:
    """Return the buckets of replaced partitions that JVM writers would fill in a hidden group, so no row would show.

    `replaced`: file ids that a commit ends, by partition. `written`: groups that it writes. `ended`: groups that
    earlier commits ended.
    """
    hidden = {*ended, *((partition, file_id) for partition, ids in replaced.items() for file_id in ids)}
    rewritten = {(partition, bucket_of(file_id)) for partition, file_id in written}
    candidates = [(partition, bucket) for partition in sorted(replaced) for bucket in range(buckets)]
    return tuple(pair for pair in candidates if pair not in rewritten and (pair[0], fixed_file_id(pair[1])) in hidden)
