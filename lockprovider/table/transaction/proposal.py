"""A write that is ready to be committed, and what came of it: what it will say, and what it had seen.

By the two a commit is validated. Nothing here asks the table: what others have done since comes in as an argument.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING

from lockprovider.table.format.instant import Action, Instant, InstantState
from lockprovider.table.format.layout import FileGroup
from lockprovider.table.format.metadata import REPLACING, CommitMetadata, WriteStat
from lockprovider.table.timeline.conflict import (
    TABLE_SERVICES,
    Resolution,
    by_file_group,
    non_blocking,
    prefer_writer,
)
from lockprovider.table.timeline.timeline import Timeline
from lockprovider.table.timeline.view import Snapshot

if TYPE_CHECKING:
    from lockprovider.table.format.properties import TableConfig
    from lockprovider.table.state.fence import BatchId
    from lockprovider.table.transaction.validate import KeyCheck


@dataclass(frozen=True, slots=True)
class CommitResult:
    """What a transaction came to.

    `instant` is its begin time, `completion` its completion time (17 digits, UTC). `inserted`, `updated` and `deleted`
    count rows; `file_groups` are those that it wrote or replaced. `attempts` counts the runs of the function given to
    `transact`, `conflicts` those that lost; `lock_wait_s` are the seconds that the last one waited for the table lock.

    >>> rows = pa.table({"id": [1]})
    >>> table = Table.create("memory://docs/trips", TableSpec("trips", rows, "id"))
    >>> done = table.upsert(rows)
    >>> done.inserted, done.updated, done.attempts, done.conflicts
    (1, 0, 1, 0)
    """

    instant: str
    completion: str
    inserted: int
    updated: int
    deleted: int
    file_groups: tuple[FileGroup, ...]
    attempts: int
    conflicts: int
    lock_wait_s: float


@dataclass(frozen=True, slots=True)
class Proposal:
    """What one instant is going to commit.

    `config` and `timeline` are the table as its writer knew it, `snapshot` the rows that it read, None if it read none.
    `keys` are its new keys, where they are compared; `batch_id` says which batch it is, of a stream. `is_blind`: it is
    of a non-blocking writer, and read no rows.
    """

    begin: str
    action: Action
    metadata: CommitMetadata
    config: TableConfig
    timeline: Timeline
    snapshot: Snapshot | None = None
    keys: KeyCheck | None = None
    batch_id: BatchId | None = None
    is_blind: bool = False

    @property
    def inflight(self) -> Instant:
        """The instant, until it is completed."""
        return Instant(self.begin, self.action, InstantState.INFLIGHT)

    def completed(self, completion: str) -> Instant:
        """The instant, once it is."""
        return Instant(self.begin, self.action, InstantState.COMPLETED, completion)

    @property
    def buckets(self) -> bool:
        """Whether it is compared with others by buckets, in place of file groups."""
        return self.config.bucket_index is not None

    @property
    def is_table_service(self) -> bool:
        """Whether it rewrites rows that came in earlier: then what others have pending counts, too."""
        return self.metadata.operation in TABLE_SERVICES

    def rule(self, resolution: Resolution) -> Resolution:
        """By which it gives way to others, if the settings have this one."""
        return non_blocking if self.is_blind else resolution

    def compared(self, done: Sequence[Instant], resolution: Resolution) -> tuple[Instant, ...]:
        """Those of the commits since its snapshot whose file groups it is compared with."""
        if self.is_blind:
            return tuple(instant for instant in done if instant.action is Action.REPLACECOMMIT)
        return tuple(done) if self.may_overlap(resolution) else ()

    def may_overlap(self, resolution: Resolution) -> bool:
        """Whether a completed write can touch what this one does; new file groups are nobody else's.

        Resolutions that look at more than file groups see all others, and so does a write that read a snapshot.
        """
        if self.snapshot is not None or self.keys is not None or self.buckets:
            return True
        fresh = not self.metadata.replaced and all(stat.prev_commit is None for stat in self._stats)
        return not (fresh and resolution in (by_file_group, prefer_writer))

    def result(self, completion: str, *, conflicts: int, lock_wait_s: float) -> CommitResult:
        """What it came to: it was committed, after so many conflicts of earlier tries."""
        return CommitResult(
            instant=self.begin,
            completion=completion,
            inserted=sum(stat.num_inserts for stat in self._stats),
            updated=sum(stat.num_updates for stat in self._stats),
            deleted=sum(stat.num_deletes for stat in self._stats),
            file_groups=tuple(sorted(self.metadata.file_groups)),
            attempts=conflicts + 1,
            conflicts=conflicts,
            lock_wait_s=lock_wait_s,
        )

    @property
    def _stats(self) -> Iterable[WriteStat]:
        return chain.from_iterable(self.metadata.stats.values())


def operation_name(action: Action, said: str) -> str:
    """Hudi's name of the operation; an engine that knows no overwrite may have said another."""
    return "INSERT_OVERWRITE" if action is Action.REPLACECOMMIT and said not in REPLACING else said
