"""Plans of clusterings and compactions: file slices to rewrite.

Source: Hudi `PartitionAwareClusteringPlanStrategy`, `SparkSizeBasedClusteringPlanStrategy`.
"""

from __future__ import annotations

from collections.abc import Collection, Container, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from operator import attrgetter

from fsspec_cas import InvalidInput
from fsspec_cas.arguments import check_whole
from lockprovider.table.format.layout import FileGroup
from lockprovider.table.format.service_metadata import ClusteringGroup, ClusteringPlan, PlannedSlice
from lockprovider.table.timeline.view import FileSlice, SliceLog, Snapshot

TARGET_FILE_BYTES = 128 << 20
_MOST_GROUPS = 30  # per plan (`hoodie.clustering.plan.strategy.max.num.groups`)
_SORTED_FILES = 16  # target files sorted together, each with its own range
_MB = 1 << 20


@dataclass(frozen=True, slots=True)
class ClusteringRule:
    """Rule for clustering a table: `Table.cluster`'s arguments."""

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
        """Make the rule of a caller's values; `small_file_bytes` None: half the target.

        Raises `InvalidInput` for columns that are no texts, or sizes that are not whole from 1 on.
        """
        if (
            isinstance(sort_by, str)
            or not isinstance(sort_by, Collection)  # an iterator would be read twice
            or not all(isinstance(name, str) for name in sort_by)
        ):
            raise InvalidInput(f"sort_by={sort_by!r} must be names of columns, e.g. sort_by=('ts',)")
        target = check_whole(target_file_bytes, "target_file_bytes", least=1)
        small = (
            max(1, target // 2)
            if small_file_bytes is None
            else check_whole(small_file_bytes, "small_file_bytes", least=1)
        )
        return cls(tuple(sort_by), target, small)


@dataclass(frozen=True, slots=True)
class ClusterEvery:
    """Cluster after this many commits (`hoodie.clustering.inline`, `hoodie.clustering.inline.max.commits`).

    Other values: as in `Table.cluster`.

    >>> settings = TableSettings(clustering=ClusterEvery(4, sort_by=("ts",)))
    """

    commits: int = 4
    sort_by: Sequence[str] = ()
    target_file_bytes: int = TARGET_FILE_BYTES
    small_file_bytes: int | None = None

    @property
    def rule(self) -> ClusteringRule:
        """Rule; may raise `InvalidInput`."""
        return ClusteringRule.of(self.sort_by, self.target_file_bytes, self.small_file_bytes)


def clustering_plan(
    snapshot: Snapshot, rule: ClusteringRule, busy: Container[FileGroup], until: str = ""
) -> ClusteringPlan:
    """Plan to join each partition's slices below `rule.small_file_bytes`, oldest first, without `busy` ones.

    It has up to `_MOST_GROUPS` groups. `until`: only slices that began before it; empty: all.
    """
    small = [
        slice_
        for slice_ in snapshot.slices
        if bytes_of(slice_) < rule.small_file_bytes and slice_.group not in busy and (not until or slice_.begin < until)
    ]
    small.sort(key=attrgetter("partition", "begin", "file_id"))
    groups = [group for _, slices in groupby(small, attrgetter("partition")) for group in _joined(slices, rule)]
    return ClusteringPlan(tuple(_group(group, rule) for group in groups[:_MOST_GROUPS]), rule.sort_by)


def is_full(plan: ClusteringPlan) -> bool:
    """Whether more may be left to join."""
    return len(plan.groups) >= _MOST_GROUPS


def bytes_of(slice_: FileSlice) -> int:
    return slice_.size + sum(log.size for log in slice_.logs)


def _joined(slices: Iterable[FileSlice], rule: ClusteringRule) -> Iterator[list[FileSlice]]:
    """Yield lists of two or more of one partition's slices to join, in their order.

    A list of three or more stays within the target size, or `_SORTED_FILES` times that if sorted.
    """
    most = rule.target_file_bytes * (_SORTED_FILES if rule.sort_by else 1)
    group: list[FileSlice] = []
    total = 0
    for slice_ in slices:
        size = bytes_of(slice_)
        if len(group) > 1 and total + size > most:
            yield group
            group, total = [], 0
        group.append(slice_)
        total += size
    if len(group) > 1:
        yield group


def _group(slices: list[FileSlice], rule: ClusteringRule) -> ClusteringGroup:
    planned = tuple(_planned(slice_, slice_.logs) for slice_ in slices)
    metrics = _metrics(sum(slice_.size for slice_ in slices), [log for slice_ in slices for log in slice_.logs])
    return ClusteringGroup(planned, max(1, -(-sum(map(bytes_of, slices)) // rule.target_file_bytes)), metrics)


def _planned(slice_: FileSlice, logs: Iterable[SliceLog]) -> PlannedSlice:
    names = tuple(log.file.name for log in logs)
    return PlannedSlice(slice_.partition, slice_.file_id, slice_.path.rpartition("/")[2], names)


def _metrics(base_bytes: int, logs: Sequence[SliceLog]) -> dict[str, float]:
    """Plan's metrics for Hudi's tools: number and bytes of logs, and MB to read and write.

    Writes are estimated by the base files' size.
    """
    log_bytes = sum(log.size for log in logs)
    return {
        "TOTAL_LOG_FILES": float(len(logs)),
        "TOTAL_LOG_FILES_SIZE": float(log_bytes),
        "TOTAL_IO_READ_MB": float((base_bytes + log_bytes) // _MB),
        "TOTAL_IO_WRITE_MB": float(base_bytes // _MB),
        "TOTAL_IO_MB": float((2 * base_bytes + log_bytes) // _MB),
    }


# Source of the compaction plan: Hudi `BaseHoodieCompactionPlanGenerator`, `CompactionStrategy`.
LOG_COMPACTION_KEYS = ("hoodie.log.compaction.enable", "hoodie.log.compaction.inline")  # read here, not written


@dataclass(frozen=True, slots=True)
class CompactEvery:
    """Compact after this many commits (`hoodie.compact.inline`, `hoodie.compact.inline.max.delta.commits`).

    >>> settings = TableSettings(compaction=CompactEvery(commits=5))
    """

    commits: int = 5


def compaction_plan(snapshot: Snapshot, begin: str, busy: Container[FileGroup]) -> tuple[PlannedSlice, ...]:
    """All slices that a compaction beginning at `begin` merges, largest logs first, without `busy` groups."""
    slices = [
        (slice_, _compacted(slice_, begin)) for slice_ in snapshot.slices if slice_.logs and slice_.group not in busy
    ]
    ordered = sorted(slices, key=lambda pair: (-pair[1].metrics["TOTAL_LOG_FILES_SIZE"], pair[0]))
    return tuple(planned for _, planned in ordered if planned.logs)


def _compacted(slice_: FileSlice, begin: str) -> PlannedSlice:
    logs = [log for log in slice_.logs if log.completion < begin]
    return replace(_planned(slice_, logs), base_instant=slice_.begin, metrics=_metrics(slice_.size, logs))
