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

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import count

from lockprovider import InvalidSettings
from lockprovider.table.format.bucket import bucket_of, fixed_file_id, prefix
from lockprovider.table.format.instant import Action, Instant
from lockprovider.table.format.layout import FileGroup
from lockprovider.table.format.metadata import CommitMetadata
from lockprovider.table.format.properties import EVENT_TIME, TableConfig
from lockprovider.table.format.writer_settings import MODE_KEY, NON_BLOCKING, OPTIMISTIC
from lockprovider.table.timeline.timeline import Timeline
from lockprovider.table.timeline.view import Snapshot

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


# Non-blocking concurrency control: of which tables it can be had, and which anchors it needs.
#
# A blind write, of a transaction that has read nothing, puts one log file for each bucket, and conflicts with no other
# such write: readers merge them by the ordering value. An anchor is an empty base file. A group that has one shows its
# completed logs, whoever else is still at work; without it JVM readers see none of them as long as the write that began
# first is not completed (apache/hudi issue 19774).
#
# Source: Hudi RFC-66; `BucketIdentifier.newBucketFileIdForNBCC`.
Bucket = tuple[str, int]  # its partition and its number


def missing(config: TableConfig) -> tuple[str, ...]:
    """What a table would need for it, and has not; nothing if it can be had."""
    conditions = {
        "table_type='merge_on_read'": config.is_merge_on_read,
        "a bucket index (buckets=)": config.bucket_index is not None,
        "one ordering column (ordering=)": len(config.ordering_fields) == 1,
        f"hoodie.record.merge.mode={EVENT_TIME}": config.effective_merge_mode == EVENT_TIME,
    }
    return tuple(what for what, is_met in conditions.items() if not is_met)


def refuse_unless_possible(config: TableConfig) -> None:
    """Refuse a table that does not have all it needs.

    Raises:
        InvalidSettings: naming what is missing.
    """
    if lacks := missing(config):
        raise InvalidSettings(
            f"{MODE_KEY}={NON_BLOCKING} cannot be had for table {config.name!r}, it lacks {', '.join(lacks)}: "
            f"use {OPTIMISTIC}, or make a table that has it"
        )


def refuse_replacing(operation: str) -> None:
    """Refuse what ends file groups, of a non-blocking writer: others log into them, and JVM writers do not look.

    Raises:
        InvalidSettings: naming the operation.
    """
    raise InvalidSettings(
        f"{operation} ends file groups, which {MODE_KEY}={NON_BLOCKING} cannot do: open the table with {OPTIMISTIC} "
        "for it, while no JVM writer writes without blocking"
    )


def bare_buckets(seen: Snapshot, partitions: Iterable[str], buckets: int) -> tuple[Bucket, ...]:
    """The buckets of these partitions that have no file group."""
    there = {(one.partition, bucket_of(one.file_id)) for one in seen.slices}
    wanted = [(partition, bucket) for partition in sorted(set(partitions)) for bucket in range(buckets)]
    return tuple(one for one in wanted if one not in there)


def anchor_id(bucket: Bucket, ended: Collection[FileGroup]) -> str:
    """The file id of a bucket's anchor: the first of the fixed ones that no replacecommit has ended.

    A group that was replaced is hidden by its id for ever, and JVM writers would go on writing into it.
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
    """The buckets of replaced partitions into which JVM writers would go on writing by an id that is hidden.

    `replaced` are the file ids that a commit ends, `written` its new groups, `ended` those of commits before it.
    """
    gone = {*ended, *((partition, file_id) for partition, ids in replaced.items() for file_id in ids)}
    there = {(partition, bucket_of(file_id)) for partition, file_id in written}
    wanted = [(partition, bucket) for partition in sorted(replaced) for bucket in range(buckets)]
    return tuple(one for one in wanted if one not in there and (one[0], fixed_file_id(one[1])) in gone)
