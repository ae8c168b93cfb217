"""A commit to decide (`Proposal`), its writer's knowledge (`Basis`), and its outcome (`CommitResult`). Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from lockprovider.table.format.instant import Action, Instant, InstantState
from lockprovider.table.format.layout import TIMELINE, FileGroup
from lockprovider.table.format.metadata import CommitMetadata
from lockprovider.table.timeline.conflict import Resolution, by_file_group, by_partition, non_blocking, prefer_writer
from lockprovider.table.timeline.timeline import Timeline
from lockprovider.table.timeline.view import Snapshot

if TYPE_CHECKING:
    from lockprovider.table.format.properties import TableConfig
    from lockprovider.table.state.fence import BatchId
    from lockprovider.table.transaction.decision import KeyCheck

RULES: dict[str, Resolution] = {
    rule.__name__: rule for rule in (by_file_group, prefer_writer, by_partition, non_blocking)
}


@dataclass(frozen=True, slots=True)
class CommitResult:
    """The outcome of a committed transaction.

    `instant` is its begin time, `completion` its completion time (17 digits, UTC). `inserted`, `updated` and `deleted`
    count rows; `file_groups` are those written or replaced. `attempts` counts the runs of the function given to
    `transact`, `conflicts` those that lost. `lock_wait_s`: how long the last run waited for the table lock, in seconds.

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
class Basis:
    """What the writer of a proposal knew of the table.

    `resolution`: the rule for conflicts. `snapshot`: the rows that it read, or None. `keys`: its new keys, if compared.
    """

    config: TableConfig
    timeline: Timeline
    resolution: Resolution
    snapshot: Snapshot | None = None
    keys: KeyCheck | None = None

    @property
    def rule(self) -> str:
        """The name of the resolution; empty if other writers do not have it."""
        return next((name for name, rule in RULES.items() if rule is self.resolution), "")

    def compared(self, proposal: Proposal, done: Sequence[Instant]) -> tuple[Instant, ...]:
        """Return the commits in `done` whose file groups are compared with those of the proposal."""
        # A blind write ignores other commits only if it has read nothing.
        if self.resolution is non_blocking and self.snapshot is None:
            return tuple(instant for instant in done if instant.action is Action.REPLACECOMMIT)
        return tuple(done) if self.may_overlap(proposal) else ()

    def may_overlap(self, proposal: Proposal) -> bool:
        """Return whether a completed write can touch the same data.

        It cannot if this one has read nothing and only adds file groups, and only file groups are compared.
        """
        if self.snapshot is not None or proposal.compares_keys or proposal.buckets:
            return True
        fresh = not proposal.metadata.replaced and all(stat.prev_commit is None for stat in proposal.metadata.all_stats)
        return not (fresh and self.resolution in (by_file_group, prefer_writer))


@dataclass(frozen=True, slots=True)
class Proposal:
    """The commit that one instant proposes.

    Attributes:
        rule: the name of the resolution; empty if only its own writer has it, so that no other can judge it.
        buckets: compared with others by buckets instead of file groups.
        config: the digest of the table's properties as its writer knows them.
        columns: the digest of the table's columns, without those that it adds.
        compares_keys: its new keys are compared with those of other inserts.
        data: its completed file.
    """

    begin: str
    action: Action
    rule: str
    buckets: bool
    config: str
    columns: str
    batch_id: BatchId | None
    compares_keys: bool
    data: bytes
    metadata: CommitMetadata = field(compare=False)

    @property
    def inflight(self) -> Instant:
        """The instant before its completion."""
        return Instant(self.begin, self.action, InstantState.INFLIGHT)

    def completed(self, completion: str) -> Instant:
        """Return the instant as completed at this time."""
        return Instant(self.begin, self.action, InstantState.COMPLETED, completion)

    @property
    def stem(self) -> str:
        """The beginning of its path, the same for every completion time."""
        return f"{TIMELINE}/{self.begin}_"

    def result(self, completion: str, *, conflicts: int, lock_wait_s: float) -> CommitResult:
        """Return the outcome of its commit."""
        stats = self.metadata.all_stats
        return CommitResult(
            instant=self.begin,
            completion=completion,
            inserted=sum(stat.num_inserts for stat in stats),
            updated=sum(stat.num_updates for stat in stats),
            deleted=sum(stat.num_deletes for stat in stats),
            file_groups=tuple(sorted(self.metadata.file_groups)),
            attempts=conflicts + 1,
            conflicts=conflicts,
            lock_wait_s=lock_wait_s,
        )
