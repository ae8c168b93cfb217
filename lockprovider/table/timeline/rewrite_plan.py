"""Which file slices a clustering joins: decided here, without touching anything.

Of each partition the small latest slices, but those that another plan has already, or that are alone. Joined are those
that began one after the other: their rows came in one after the other, too. Slices with logs count with them.

With the default sizes each plan leaves fewer files than it takes, so that a table that nobody writes is done with soon.

Source: Hudi `PartitionAwareClusteringPlanStrategy`, `SparkSizeBasedClusteringPlanStrategy`.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from fsspec_cas import InvalidInput
from fsspec_cas.given import whole
from lockprovider.table.format.layout import FileGroup
from lockprovider.table.format.service_metadata import (
    ClusteringGroup,
    ClusteringPlan,
    PlannedSlice,
)
from lockprovider.table.timeline.view import FileSlice, SliceLog, Snapshot

TARGET_FILE_BYTES = 128 << 20
_MOST_GROUPS = 30  # in one plan (`hoodie.clustering.plan.strategy.max.num.groups`): the rest is for the next
_SORTED_FILES = 16  # so many of the target size are sorted together: each of them has a range of its own
_MB = 1 << 20


@dataclass(frozen=True, slots=True)
class ClusteringRule:
    """How a table is clustered. Sizes are bytes, of files as they are stored.

    Attributes:
        sort_by: the columns that rows are sorted by, nulls first; none: rows stay in the order of their files.
        target_file_bytes: how large the new files are to be.
        small_file_bytes: files below this are joined.
    """

    sort_by: tuple[str, ...] = ()
    target_file_bytes: int = TARGET_FILE_BYTES
    small_file_bytes: int = TARGET_FILE_BYTES // 2

    @classmethod
    def of(
        cls,
        sort_by: Sequence[str] = (),
        target_file_bytes: int = TARGET_FILE_BYTES,
        small_file_bytes: int | None = None,
    ) -> ClusteringRule:
        """The rule that a caller gave; small files are by default those below half of the target.

        Raises:
            InvalidInput: one of them cannot be.
        """
        if (
            isinstance(sort_by, str)
            or not isinstance(sort_by, Iterable)
            or not all(isinstance(name, str) for name in sort_by)
        ):
            raise InvalidInput(f"sort_by={sort_by!r} must be names of columns, e.g. sort_by=('ts',)")
        target = whole(target_file_bytes, "target_file_bytes", least=1)
        small = (
            max(1, target // 2) if small_file_bytes is None else whole(small_file_bytes, "small_file_bytes", least=1)
        )
        return cls(tuple(sort_by), target, small)


@dataclass(frozen=True, slots=True)
class ClusterEvery:
    """After so many commits a writer clusters (`hoodie.clustering.inline`, `hoodie.clustering.inline.max.commits`).

    The others are as of `Table.cluster`.

    >>> settings = TableSettings(clustering=ClusterEvery(4, sort_by=("ts",)))
    """

    commits: int = 4
    sort_by: Sequence[str] = ()
    target_file_bytes: int = TARGET_FILE_BYTES
    small_file_bytes: int | None = None

    @property
    def rule(self) -> ClusteringRule:
        """How it clusters.

        Raises:
            InvalidInput: it cannot be.
        """
        return ClusteringRule.of(self.sort_by, self.target_file_bytes, self.small_file_bytes)


def clustering_plan(
    seen: Snapshot, rule: ClusteringRule, busy: Container[FileGroup], until: str = ""
) -> ClusteringPlan:
    """What a clustering joins now.

    `busy` are the file groups of other plans that are not completed; slices that began at `until` or later are left
    for another time.
    """
    small = [
        one
        for one in seen.slices
        if bytes_of(one) < rule.small_file_bytes and one.group not in busy and (not until or one.begin < until)
    ]
    found = [
        group for partition in sorted({one.partition for one in small}) for group in _joined(small, partition, rule)
    ]
    return ClusteringPlan(tuple(_group(group, rule) for group in found[:_MOST_GROUPS]), rule.sort_by)


def is_full(plan: ClusteringPlan) -> bool:
    """Whether there may be more to join than it has."""
    return len(plan.groups) >= _MOST_GROUPS


def bytes_of(one: FileSlice) -> int:
    """How large all files of a slice are."""
    return one.size + sum(log.size for log in one.logs)


def _joined(small: Iterable[FileSlice], partition: str, rule: ClusteringRule) -> Iterator[list[FileSlice]]:
    """Slices of one partition that are joined, as many as fit."""
    most = rule.target_file_bytes * (_SORTED_FILES if rule.sort_by else 1)
    group: list[FileSlice] = []
    for one in sorted((one for one in small if one.partition == partition), key=lambda one: (one.begin, one.file_id)):
        if len(group) > 1 and sum(map(bytes_of, group)) + bytes_of(one) > most:
            yield group
            group = []
        group.append(one)
    if len(group) > 1:
        yield group


def _group(slices: list[FileSlice], rule: ClusteringRule) -> ClusteringGroup:
    planned = tuple(_planned(one, one.logs) for one in slices)
    metrics = _metrics(sum(one.size for one in slices), [log for one in slices for log in one.logs])
    return ClusteringGroup(planned, max(1, -(-sum(map(bytes_of, slices)) // rule.target_file_bytes)), metrics)


def _planned(one: FileSlice, logs: Iterable[SliceLog]) -> PlannedSlice:
    names = tuple(log.file.name for log in logs)
    return PlannedSlice(one.partition, one.file_id, one.path.rpartition("/")[2], names)


def _metrics(base_bytes: int, logs: Sequence[SliceLog]) -> dict[str, float]:
    """What Hudi's tools show of a plan that reads these files, and writes about as much as the base files have."""
    log_bytes = sum(log.size for log in logs)
    return {
        "TOTAL_LOG_FILES": float(len(logs)),
        "TOTAL_LOG_FILES_SIZE": float(log_bytes),
        "TOTAL_IO_READ_MB": float((base_bytes + log_bytes) // _MB),
        "TOTAL_IO_WRITE_MB": float(base_bytes // _MB),
        "TOTAL_IO_MB": float((2 * base_bytes + log_bytes) // _MB),
    }


# Which file slices a compaction merges: decided here, without touching anything.
#
# Each latest slice with logs, but those that another plan has already. Only logs that were completed before the
# compaction begins are part of it: those of writes that are pending now complete later, and so belong to the next
# slice.
#
# Source: Hudi `BaseHoodieCompactionPlanGenerator`, `CompactionStrategy`.
LOG_COMPACTION_KEYS = ("hoodie.log.compaction.enable", "hoodie.log.compaction.inline")  # read here, not written


@dataclass(frozen=True, slots=True)
class CompactEvery:
    """After so many commits a writer compacts (`hoodie.compact.inline`, `hoodie.compact.inline.max.delta.commits`).

    >>> settings = TableSettings(compaction=CompactEvery(commits=5))
    """

    commits: int = 5


def compaction_plan(seen: Snapshot, begin: str, busy: Container[FileGroup]) -> tuple[PlannedSlice, ...]:
    """What a compaction that begins then merges, those with the most in their logs first.

    `busy` are the file groups of other plans that are not completed.
    """
    found = [(one, _compacted(one, begin)) for one in seen.slices if one.logs and one.group not in busy]
    ordered = sorted(found, key=lambda pair: (-pair[1].metrics["TOTAL_LOG_FILES_SIZE"], pair[0]))
    return tuple(planned for _, planned in ordered if planned.logs)


def _compacted(one: FileSlice, begin: str) -> PlannedSlice:
    logs = [log for log in one.logs if log.completion < begin]
    return replace(_planned(one, logs), base_instant=one.begin, metrics=_metrics(one.size, logs))
