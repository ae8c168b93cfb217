"""Rules that refuse a commit: conflicts with other writes, fences, and streams' repeated batches.

A *blind write* adds a log file per bucket and reads no rows; readers merge logs by the ordering value. A bucket without
a visible file group is *bare*. An *anchor* is an empty base file that gives it one, for JVM readers (apache/hudi issue
19774).

Source: Hudi RFC-22, RFC-66; `SimpleConcurrentFileWritesConflictResolutionStrategy`,
`PreferWriterConflictResolutionStrategy`, `BucketIndexConcurrentFileWritesConflictResolutionStrategy`,
`BucketIdentifier.newBucketFileIdForNBCC`, `HoodieStreamingSink`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import count
from typing import Any, TypeVar

from fsspec_cas import InvalidInput
from lockprovider import InvalidSettings
from lockprovider.recipes.errors import Fenced
from lockprovider.recipes.values import check_fence
from lockprovider.table.errors import AlreadyCommitted, WrongCheckpoint
from lockprovider.table.format.bucket import bucket_of, fixed_file_id, prefix
from lockprovider.table.format.compatibility import MODE_KEY, NON_BLOCKING, OPTIMISTIC
from lockprovider.table.format.layout import Action, FileGroup, Instant
from lockprovider.table.format.metadata import CommitMetadata, batches_by_stream, with_batch
from lockprovider.table.format.properties import EVENT_TIME, TableConfig
from lockprovider.table.timeline.timeline import Timeline
from lockprovider.table.timeline.view import Snapshot

TABLE_SERVICES = frozenset({"CLUSTER", "COMPACT", "LOG_COMPACT"})
_STREAM = "lockprovider.fence/"
_KEY = re.compile(r"(?P<stream>[^@#]+)@(?P<run>[^@#]*)#(?P<write>[0-9]+)", re.ASCII)
_Commit = TypeVar("_Commit")


@dataclass(frozen=True, slots=True)
class ConcurrentOperation:
    """Write to compare: completed, or pending with the file groups that it is known to touch.

    `name`: Hudi's name of the operation.
    """

    instant: Instant
    name: str
    file_groups: frozenset[FileGroup]

    @classmethod
    def of(cls, instant: Instant, metadata: CommitMetadata) -> ConcurrentOperation:
        return cls(instant, metadata.operation, metadata.file_groups)

    @property
    def is_table_service(self) -> bool:
        """Whether it rewrites earlier rows."""
        return self.name in TABLE_SERVICES


@dataclass(frozen=True, slots=True)
class Overlap:
    """Conflict: the winning write, and the file groups that both touch."""

    lost_to: Instant
    file_groups: tuple[FileGroup, ...]


Resolution = Callable[[ConcurrentOperation, Sequence[ConcurrentOperation]], Overlap | None]


def completed_since(before: Timeline, timeline: Timeline) -> tuple[Instant, ...]:
    """Writes completed since the snapshot `before`, by completion."""
    if _has_grown(before, timeline):
        return timeline.writes[len(before.writes) :]
    written = before.written
    return tuple(instant for instant in timeline.writes if instant.file_name not in written)


def undone_since(before: Timeline, timeline: Timeline) -> tuple[Instant, ...]:
    """Writes of the snapshot `before` that a restore took back."""
    if _has_grown(before, timeline):
        return ()
    first, written = timeline.first_active, timeline.written
    return tuple(i for i in before.writes if i.file_name not in written and i.begin >= first)


def _has_grown(before: Timeline, timeline: Timeline) -> bool:
    return timeline.writes[: len(before.writes)] == before.writes


def archived_since(before: Timeline, timeline: Timeline) -> bool:
    """Whether a write that completed after the snapshot `before` may be archived."""
    first = timeline.first_active
    passed = (
        bool(before.writes) and all(i.begin < first for i in before.writes) and bool(completed_since(before, timeline))
    )
    pending = {begin for begin in before.unfinished if begin < first}
    return passed or bool(pending and pending.difference(instant.begin for instant in timeline.instants))


def by_file_group(operation: ConcurrentOperation, concurrent: Sequence[ConcurrentOperation]) -> Overlap | None:
    """First overlap in file groups with a completed write or a planned table service; Hudi's default."""
    return _first_overlap(
        operation.file_groups, (o for o in concurrent if o.instant.is_completed or o.is_table_service)
    )


def prefer_writer(operation: ConcurrentOperation, concurrent: Sequence[ConcurrentOperation]) -> Overlap | None:
    """First overlap in file groups with a completed write; for a table service, with any write."""
    if operation.is_table_service:
        return _first_overlap(operation.file_groups, concurrent)
    return _first_overlap(operation.file_groups, (other for other in concurrent if other.instant.is_completed))


def by_partition(operation: ConcurrentOperation, concurrent: Sequence[ConcurrentOperation]) -> Overlap | None:
    """As `by_file_group`, by partitions."""
    return _by_unit(by_file_group, lambda group: (group[0], ""))(operation, concurrent)


def non_blocking(operation: ConcurrentOperation, concurrent: Sequence[ConcurrentOperation]) -> Overlap | None:
    """First overlap with a write that ends a blind write's file group, or plans to."""
    ending = (Action.REPLACECOMMIT, Action.CLUSTERING)
    return _first_overlap(operation.file_groups, (other for other in concurrent if other.instant.action in ending))


def by_bucket(resolution: Resolution) -> Resolution:
    """Resolution by buckets instead of file groups."""
    return _by_unit(resolution, _bucket)


def _by_unit(resolution: Resolution, unit: Callable[[FileGroup], FileGroup]) -> Resolution:
    """Rule that compares units of file groups, such as partitions, by `resolution`.

    `unit` maps a file group to its unit; the overlap names file groups.
    """

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
    partition, file_id = group
    bucket = bucket_of(file_id)
    return group if bucket is None else (partition, prefix(bucket))


def _first_overlap(groups: frozenset[FileGroup], concurrent: Iterable[ConcurrentOperation]) -> Overlap | None:
    for other in concurrent:
        both = groups & other.file_groups
        if both:
            return Overlap(other.instant, tuple(sorted(both)))
    return None


Bucket = tuple[str, int]  # partition and number


def lacks_for_non_blocking(config: TableConfig) -> tuple[str, ...]:
    """Conditions of non-blocking writes that the table lacks, as texts."""
    conditions = {
        "table_type='merge_on_read'": config.is_merge_on_read,
        "a bucket index (buckets=)": config.bucket_index is not None,
        "one ordering column (ordering=)": len(config.ordering_fields) == 1,
        f"hoodie.record.merge.mode={EVENT_TIME}": config.effective_merge_mode == EVENT_TIME,
    }
    return tuple(condition for condition, is_met in conditions.items() if not is_met)


def refuse_unless_possible(config: TableConfig) -> None:
    """Raise `InvalidSettings` if the table `lacks_for_non_blocking` something."""
    if lacks := lacks_for_non_blocking(config):
        raise InvalidSettings(
            f"{MODE_KEY}={NON_BLOCKING} is not possible for table {config.name!r}, it lacks {', '.join(lacks)}: "
            f"use {OPTIMISTIC}, or create a table with it"
        )


def refuse_replacing(operation: str) -> None:
    """Raise `InvalidSettings`: a non-blocking write ends no file groups."""
    raise InvalidSettings(
        f"{operation} ends file groups, which {MODE_KEY}={NON_BLOCKING} cannot do: open the table with {OPTIMISTIC} "
        "for it, while no JVM writer writes without blocking"
    )


def bare_buckets(snapshot: Snapshot, partitions: Iterable[str], buckets: int) -> tuple[Bucket, ...]:
    occupied = {(slice_.partition, bucket_of(slice_.file_id)) for slice_ in snapshot.slices}
    candidates = [(partition, bucket) for partition in sorted(set(partitions)) for bucket in range(buckets)]
    return tuple(pair for pair in candidates if pair not in occupied)


def anchor_id(bucket: Bucket, ended: Collection[FileGroup]) -> str:
    """Bucket's first fixed id that is not in `ended`."""
    partition, number = bucket
    ids = (fixed_file_id(number, generation) for generation in count())
    return next(file_id for file_id in ids if (partition, file_id) not in ended)


def left_bare(
    replaced: Mapping[str, Collection[str]], written: Iterable[FileGroup], ended: Collection[FileGroup], buckets: int
) -> tuple[Bucket, ...]:
    """Buckets of overwritten partitions that an overwrite leaves bare, and JVM writers log into.

    They use the bucket's first fixed id, although its group has ended. `replaced`: file ids that the overwrite ends, by
    partition. `written`: its groups. `ended`: groups ended before.
    """
    hidden = {*ended, *((partition, file_id) for partition, ids in replaced.items() for file_id in ids)}
    rewritten = {(partition, bucket_of(file_id)) for partition, file_id in written}
    candidates = [(partition, bucket) for partition in sorted(replaced) for bucket in range(buckets)]
    return tuple(pair for pair in candidates if pair not in rewritten and (pair[0], fixed_file_id(pair[1])) in hidden)


@dataclass(frozen=True, slots=True)
class Fence:
    """Epoch under which a writer commits; epochs of different names are not compared."""

    epoch: int
    name: str = ""

    @classmethod
    def of(cls, given: Any) -> Fence:
        """Make a fence of a lease, term, job or epoch, alone or paired with a name; may raise `InvalidInput`."""
        if isinstance(given, Fence):
            return given
        name, of = given if isinstance(given, tuple) and len(given) == 2 else ("", given)  # noqa: PLR2004 - a pair
        if not isinstance(name, str):
            raise InvalidInput(f"fence={given!r} must be a term, or a name and a term: under(('compactor', term))")
        return cls(check_fence(of), name)

    @property
    def stream(self) -> str:
        """Stream name under which a commit records the epoch."""
        return f"{_STREAM}{self.name}"


def with_fence(extra: Mapping[str, str], fence: Fence | None) -> Mapping[str, str]:
    return extra if fence is None else {**extra, **with_batch(extra, fence.stream, fence.epoch)}


def fences_in(extra: Mapping[str, str]) -> tuple[Fence, ...]:
    batches = batches_by_stream(extra).items()
    return tuple(Fence(epoch, name.removeprefix(_STREAM)) for name, epoch in batches if name.startswith(_STREAM))


def refuse_repeated_or_fenced(
    fences: Iterable[Fence], batch_id: BatchId | None, notes: Callable[[], Iterable[tuple[Instant, Mapping[str, int]]]]
) -> None:
    """Raise `AlreadyCommitted` or `WrongCheckpoint` for `batch_id`, unless None; `Fenced` if a fence's epoch is over.

    It is over once a later one of its name has committed. `notes` returns commits with batch numbers by stream, newest
    first.
    """
    if batch_id is not None and (done := batch_id.committed_by(notes())) is not None:
        raise batch_id.duplicate_error(done)
    for fence in fences:
        newest = next((batches[fence.stream] for _, batches in notes() if fence.stream in batches), 0)
        if fence.epoch < newest:
            named = f"of {fence.name!r} " if fence.name else ""
            raise Fenced(
                f"epoch {fence.epoch} {named}is over, because epoch {newest} has written since: stop the work under "
                "the old epoch",
                newest,
            )


@dataclass(frozen=True, slots=True)
class BatchId:
    """One write of a stream's batch; a repeated one is found in the table, archived or not, and skipped.

    Attributes:
        stream: its name, without `@` and `#`.
        batch: its number, from 0 on.
        run: checkpoint that numbers the batches (the id of Spark's query). Empty: the caller does.
        write: its number within the batch, from 1 on.
    """

    stream: str
    batch: int
    run: str = ""
    write: int = 1

    @classmethod
    def of(cls, stream: object, batch: object, run: str = "", write: int = 1) -> BatchId:
        """May raise `InvalidInput`."""
        if not isinstance(stream, str) or not stream or {"@", "#"} & {*stream}:
            raise InvalidInput(f"stream_id={stream!r} must be a text without '@' and '#': give each stream its own")
        if not isinstance(batch, int) or isinstance(batch, bool) or batch < 0:
            raise InvalidInput(f"batch={batch!r} must be a whole number from 0 on")
        return cls(stream, batch, run, write)

    def __str__(self) -> str:
        again = f"write {self.write} of " if self.write > 1 else ""
        return f"{again}batch {self.batch} of stream {self.stream}"

    @property
    def key(self) -> str:
        """Name under which a commit records the batch, as Hudi's streaming sink does."""
        return f"{self.stream}@{self.run}#{self.write}" if self.run or self.write > 1 else self.stream

    def note(self, extra: Mapping[str, str]) -> dict[str, str]:
        """Entry for a commit's metadata, with other streams' batches."""
        return with_batch(extra, self.key, self.batch)

    def committed_by(self, notes: Iterable[tuple[_Commit, Mapping[str, int]]]) -> _Commit | None:
        """Commit with this write of the batch or, without a `run`, a later batch; None: the batch is new.

        Searches `notes`, newest first, back to an earlier batch of the stream. On the way another run, or this run's
        later batch, raises `WrongCheckpoint`.
        """
        for commit, batches in notes:
            same_stream = [
                other for key, batch in batches.items() if (other := _parsed(key, batch)).stream == self.stream
            ]
            for other in same_stream:
                if other.run != self.run:
                    raise WrongCheckpoint(
                        f"stream {self.stream} has committed batch {other.batch} of query {other.run or 'none'}, and "
                        f"this is batch {self.batch} of query {self.run or 'none'}, whose checkpoint is another one; "
                        f"nothing was written; {_WAYS_OUT}"
                    )
                if other.batch > self.batch:
                    if not self.run:
                        return commit
                    raise WrongCheckpoint(
                        f"stream {self.stream} has committed batch {other.batch}, and this is batch {self.batch}: the "
                        f"checkpoint is an older copy, or was edited; nothing was written; {_WAYS_OUT}"
                    )
                if other.batch == self.batch and other.write == self.write:
                    return commit
            if any(other.batch < self.batch for other in same_stream):
                return None
        return None

    def duplicate_error(self, done: Instant) -> AlreadyCommitted:
        return AlreadyCommitted(f"{self} is in {done.file_name} already; nothing was written again")


_WAYS_OUT = (
    "start the query with the checkpoint that it had, or give it a new stream_id (the rows that the source delivers "
    "again are written again then)"
)


def _parsed(key: str, batch: int) -> BatchId:
    match = _KEY.fullmatch(key)
    return BatchId(key, batch) if match is None else BatchId(match["stream"], batch, match["run"], int(match["write"]))
