"""The plan of a clustering, as Hudi keeps it: one Avro record in a container file.

Source: `HoodieRequestedReplaceMetadata.avsc`, `HoodieClusteringPlan.avsc`; `ClusteringUtils`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from lockprovider.table.format.layout import FileGroup, join
from lockprovider.table.format.metadata import CLUSTER, decoded, one_record

SORTED_BY = "hoodie.clustering.plan.strategy.sort.columns"
_OWNED = "fsspec_cas.owned"
_STRATEGY = "org.apache.hudi.client.clustering.run.strategy.SparkSortAndSizeExecutionStrategy"


@dataclass(frozen=True, slots=True)
class ClusteringSlice:
    """One file slice that a clustering replaces. Names are without folders; `base_file` is empty if it has none."""

    partition: str
    file_id: str
    base_file: str
    logs: tuple[str, ...] = ()

    @property
    def group(self) -> FileGroup:
        """Its file group."""
        return self.partition, self.file_id

    @property
    def names(self) -> frozenset[str]:
        """All its files."""
        return frozenset([*([self.base_file] if self.base_file else []), *self.logs])


@dataclass(frozen=True, slots=True)
class ClusteringGroup:
    """Slices whose rows are joined, and into how many files at most."""

    slices: tuple[ClusteringSlice, ...]
    outputs: int = 1
    metrics: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ClusteringPlan:
    """What a clustering is going to replace; `sort_by` are the columns that the rows are sorted by.

    `owned`: whoever made the plan runs it at once, and beats for it from its schedule on. Once that heartbeat is too
    old or gone, the plan is taken back as a dead writer's instant is. Other plans wait for anybody to run them.
    """

    groups: tuple[ClusteringGroup, ...] = ()
    sort_by: tuple[str, ...] = ()
    owned: bool = False

    @property
    def slices(self) -> tuple[ClusteringSlice, ...]:
        """Those of all groups."""
        return tuple(one for group in self.groups for one in group.slices)

    @property
    def file_groups(self) -> frozenset[FileGroup]:
        """The file groups that end with it."""
        return frozenset(one.group for one in self.slices)


def encode_clustering_plan(plan: ClusteringPlan, root: str) -> bytes:
    """The content of `<begin>.clustering.requested`; paths in it begin with `root`, as in Hudi's own plans."""
    groups = [
        {
            "slices": [_slice_to_avro(one, root) for one in group.slices],
            "metrics": dict(group.metrics),
            "numOutputFileGroups": group.outputs,
            "extraMetadata": None,
            "version": 1,
        }
        for group in plan.groups
    ]
    params = {SORTED_BY: ",".join(plan.sort_by)} if plan.sort_by else {}
    record = {
        "operationType": CLUSTER,
        "clusteringPlan": {
            "inputGroups": groups,
            "strategy": {"strategyClassName": _STRATEGY, "strategyParams": params, "version": 1},
            "extraMetadata": {},
            "version": 1,
            "preserveHoodieMetadata": True,
            "missingSchedulePartitions": [],
        },
        "extraMetadata": {_OWNED: "true"} if plan.owned else {},
        "version": 1,
    }
    return one_record("HoodieRequestedReplaceMetadata", record)


def _slice_to_avro(one: ClusteringSlice, root: str) -> dict[str, Any]:
    return {
        "dataFilePath": f"{root}/{join(one.partition, one.base_file)}" if one.base_file else "",
        "deltaFilePaths": [f"{root}/{join(one.partition, name)}" for name in one.logs],
        "fileId": one.file_id,
        "partitionPath": one.partition,
        "bootstrapFilePath": "",
        "version": 1,
    }


def decode_clustering_plan(data: bytes, file_name: str) -> ClusteringPlan:
    """Read a requested clustering; an empty file plans nothing.

    Raises:
        Corrupt: neither empty nor one whole Avro record of that kind; the message names the file.
    """
    return decoded(data, file_name, "a clustering plan", _clustering_plan) if data else ClusteringPlan()


def _clustering_plan(record: Mapping[str, Any]) -> ClusteringPlan:
    plan = record.get("clusteringPlan") or {}
    params = (plan.get("strategy") or {}).get("strategyParams") or {}
    columns = (name.strip() for name in params.get(SORTED_BY, "").split(","))
    groups = (_clustering_group(group) for group in plan.get("inputGroups") or ())
    owned = (record.get("extraMetadata") or {}).get(_OWNED) == "true"
    return ClusteringPlan(tuple(groups), tuple(filter(None, columns)), owned)


def _clustering_group(group: Mapping[str, Any]) -> ClusteringGroup:
    slices = tuple(
        ClusteringSlice(
            one.get("partitionPath") or "",
            one["fileId"],
            (one.get("dataFilePath") or "").rpartition("/")[2],
            tuple(path.rpartition("/")[2] for path in one.get("deltaFilePaths") or ()),
        )
        for one in group.get("slices") or ()
    )
    return ClusteringGroup(slices, group.get("numOutputFileGroups") or 1, group.get("metrics") or {})
