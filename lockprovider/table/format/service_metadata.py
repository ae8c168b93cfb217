"""Codec of table services' plans and results: one Avro record in a container file. Decoders raise `Corrupt`.

Source: Hudi `CleanerUtils`, `TimelineMetadataUtils`, `ClusteringUtils`, `CompactionUtils`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from lockprovider.table.format.layout import FileGroup, join, names_by_partition
from lockprovider.table.format.metadata import CLUSTER, decoded, one_record

_CLEAN_VERSION = 2
_RESTORE_PLAN_VERSION = 2


@dataclass(frozen=True, slots=True)
class CleanPlan:
    """Plan of a clean: the names of files to remove, by partition.

    `earliest`: begin time and action of the oldest commit that stays whole. `last_commit`: begin time of the last
    commit completed before.
    """

    policy: str
    files: Mapping[str, tuple[str, ...]]
    earliest: tuple[str, str] | None = None
    last_commit: str = ""
    savepoints: tuple[str, ...] = ()

    @property
    def paths(self) -> frozenset[str]:
        return frozenset(join(partition, name) for partition, names in self.files.items() for name in names)


@dataclass(frozen=True, slots=True)
class Savepoint:
    """Files that no clean may remove: names by partition. `at_ms` is epoch ms."""

    user: str
    at_ms: int
    comment: str
    files: Mapping[str, tuple[str, ...]]

    @property
    def paths(self) -> frozenset[str]:
        return frozenset(join(partition, name) for partition, names in self.files.items() for name in names)


class Victim(NamedTuple):
    """Instant to roll back."""

    begin: str
    action: str


@dataclass(frozen=True, slots=True)
class RestorePlan:
    """Writes that a restore undoes, in that order; `target`: last write that stays."""

    target: str
    victims: tuple[Victim, ...]


def encode_clean_plan(plan: CleanPlan, root: str) -> bytes:
    """Encode a requested clean; its file paths begin with `root`."""
    files = {
        partition: [{"filePath": f"{root}/{join(partition, name)}", "isBootstrapBaseFile": False} for name in names]
        for partition, names in plan.files.items()
    }
    earliest = plan.earliest and {"timestamp": plan.earliest[0], "action": plan.earliest[1], "state": "COMPLETED"}
    record: dict[str, Any] = {
        "earliestInstantToRetain": earliest,
        "lastCompletedCommitTimestamp": plan.last_commit,
        "policy": plan.policy,
        "filesToBeDeletedPerPartition": {},
        "version": _CLEAN_VERSION,
        "filePathsToBeDeletedPerPartition": files,
        "partitionsToBeDeleted": [],
        "extraMetadata": _savepointed(plan.savepoints),
    }
    return one_record("HoodieCleanerPlan", record)


def decode_clean_plan(data: bytes, file_name: str) -> CleanPlan:
    """Decode a clean plan; ignore the JVM's list of whole partitions, where others may write."""
    return decoded(data, file_name, "a clean plan", _clean_plan)


def _clean_plan(record: Mapping[str, Any]) -> CleanPlan:
    """Convert a clean plan's record, paths to file names.

    In each partition, the newer field for files replaces the older.
    """
    paths = record.get("filePathsToBeDeletedPerPartition") or {}
    old = record.get("filesToBeDeletedPerPartition") or {}
    earliest = record.get("earliestInstantToRetain")
    return CleanPlan(
        policy=record["policy"],
        files={
            **{partition: tuple(map(_name, names)) for partition, names in old.items()},
            **{partition: tuple(_name(info["filePath"]) for info in infos) for partition, infos in paths.items()},
        },
        earliest=(earliest["timestamp"], earliest["action"]) if earliest else None,
        last_commit=record.get("lastCompletedCommitTimestamp") or "",
        savepoints=tuple(filter(None, (record.get("extraMetadata") or {}).get(_SAVEPOINTED, "").split(","))),
    )


_SAVEPOINTED = "savepointed_timestamps"


def _savepointed(savepoints: tuple[str, ...]) -> dict[str, str]:
    return {_SAVEPOINTED: ",".join(savepoints)} if savepoints else {}


def encode_clean(begin: str, plan: CleanPlan, took_ms: int) -> bytes:
    """Encode the completed clean `begin`, which deleted all files of `plan`."""
    partitions = {
        partition: {
            "partitionPath": partition,
            "policy": plan.policy,
            "deletePathPatterns": list(names),
            "successDeleteFiles": list(names),
            "failedDeleteFiles": [],
            "isPartitionDeleted": False,
        }
        for partition, names in plan.files.items()
    }
    record = {
        "startCleanTime": begin,
        "timeTakenInMillis": took_ms,
        "totalFilesDeleted": sum(map(len, plan.files.values())),
        "earliestCommitToRetain": plan.earliest[0] if plan.earliest else "",
        "lastCompletedCommitTimestamp": plan.last_commit,
        "partitionMetadata": partitions,
        "version": _CLEAN_VERSION,
        "bootstrapPartitionMetadata": {},
        "extraMetadata": _savepointed(plan.savepoints),
    }
    return one_record("HoodieCleanMetadata", record)


def encode_savepoint(savepoint: Savepoint) -> bytes:
    """Encode the completed instant of a savepoint."""
    partitions = {
        partition: {"partitionPath": partition, "savepointDataFile": list(names)}
        for partition, names in savepoint.files.items()
    }
    record = {
        "savepointedBy": savepoint.user,
        "savepointedAt": savepoint.at_ms,
        "comments": savepoint.comment,
        "partitionMetadata": partitions,
        "version": 1,
    }
    return one_record("HoodieSavepointMetadata", record)


def decode_savepoint(data: bytes, file_name: str) -> Savepoint:
    return decoded(data, file_name, "savepoint metadata", _savepoint)


def _savepoint(record: Mapping[str, Any]) -> Savepoint:
    parts = record["partitionMetadata"].items()
    files = {partition: tuple(map(_name, part["savepointDataFile"])) for partition, part in parts}
    return Savepoint(record["savepointedBy"], record["savepointedAt"], record["comments"], files)


def encode_rollback_plan(victim: Victim, paths: Iterable[str] = (), root: str = "") -> bytes:
    """Encode a requested rollback that will delete `paths`, named below `root`."""
    requests = [
        {
            "partitionPath": partition,
            "fileId": "",
            "latestBaseInstant": "",
            "filesToBeDeleted": [f"{root}/{join(partition, name)}" for name in names],
            "logBlocksToBeDeleted": {},
        }
        for partition, names in names_by_partition(paths).items()
    ]
    record = {"instantToRollback": victim_record(victim), "RollbackRequests": requests, "version": 1}
    return one_record("HoodieRollbackPlan", record)


def decode_rollback_plan(data: bytes, file_name: str) -> Victim:
    return decoded(data, file_name, "a rollback plan", lambda record: victim_of(record["instantToRollback"]))


def encode_rollback(begin: str, victim: Victim, paths: Iterable[str]) -> bytes:
    return one_record("HoodieRollbackMetadata", rollback_record(begin, victim, paths))


def rollback_record(begin: str, victim: Victim, paths: Iterable[str]) -> dict[str, Any]:
    """Avro record of the completed rollback `begin` that deleted `paths` of `victim`."""
    deleted = names_by_partition(paths)
    partitions = {
        partition: {
            "partitionPath": partition,
            "successDeleteFiles": [join(partition, name) for name in names],
            "failedDeleteFiles": [],
            "rollbackLogFiles": {},
            "logFilesFromFailedCommit": {},
        }
        for partition, names in deleted.items()
    }
    return {
        "startRollbackTime": begin,
        "timeTakenInMillis": 0,
        "totalFilesDeleted": sum(map(len, deleted.values())),
        "commitsRollback": [victim.begin],
        "partitionMetadata": partitions,
        "version": 1,
        "instantsRollback": [victim_record(victim)],
    }


def decode_rollback(data: bytes, file_name: str) -> tuple[Victim, ...]:
    return decoded(
        data, file_name, "rollback metadata", lambda record: tuple(map(victim_of, record["instantsRollback"]))
    )


def victim_record(victim: Victim) -> dict[str, str]:
    return {"commitTime": victim.begin, "action": victim.action}


def victim_of(record: Mapping[str, str]) -> Victim:
    return Victim(record["commitTime"], record["action"])


def encode_restore_plan(plan: RestorePlan) -> bytes:
    record = {
        "instantsToRollback": [victim_record(victim) for victim in plan.victims],
        "version": _RESTORE_PLAN_VERSION,
        "savepointToRestoreTimestamp": plan.target,
    }
    return one_record("HoodieRestorePlan", record)


def decode_restore_plan(data: bytes, file_name: str) -> RestorePlan:
    return decoded(data, file_name, "a restore plan", _restore_plan)


def _restore_plan(record: Mapping[str, Any]) -> RestorePlan:
    victims = tuple(map(victim_of, record["instantsToRollback"]))
    return RestorePlan(record.get("savepointToRestoreTimestamp") or "", victims)


def encode_restore(begin: str, victims: Sequence[Victim], paths: Mapping[str, Iterable[str]], took_ms: int) -> bytes:
    """Encode a completed restore with its victims' rollback records.

    `paths`: by a victim's begin, files deleted, if any, relative to the table.
    """
    record = {
        "startRestoreTime": begin,
        "timeTakenInMillis": took_ms,
        "instantsToRollback": [victim.begin for victim in victims],
        "hoodieRestoreMetadata": {
            victim.begin: [rollback_record(begin, victim, paths.get(victim.begin, ()))] for victim in victims
        },
        "version": 1,
        "restoreInstantInfo": [victim_record(victim) for victim in victims],
    }
    return one_record("HoodieRestoreMetadata", record)


def decode_restore(data: bytes, file_name: str) -> tuple[str, ...]:
    return decoded(data, file_name, "restore metadata", lambda record: tuple(record["instantsToRollback"]))


def _name(path: str) -> str:
    return path.rpartition("/")[2]


SORTED_BY = "hoodie.clustering.plan.strategy.sort.columns"
_OWNED = "fsspec_cas.owned"
_STRATEGY = "org.apache.hudi.client.clustering.run.strategy.SparkSortAndSizeExecutionStrategy"


@dataclass(frozen=True, slots=True)
class PlannedSlice:
    """File slice that a clustering replaces or a compaction merges; files have no folders, `base_file` may be empty.

    Only a compaction has `metrics`, for Hudi's tools, and `base_instant`, the begin time of the base file or first log.
    """

    partition: str
    file_id: str
    base_file: str
    logs: tuple[str, ...] = ()
    base_instant: str = ""
    metrics: Mapping[str, float] = field(default_factory=dict)

    @property
    def group(self) -> FileGroup:
        return self.partition, self.file_id

    @property
    def names(self) -> frozenset[str]:
        return frozenset([*([self.base_file] if self.base_file else []), *self.logs])


@dataclass(frozen=True, slots=True)
class ClusteringGroup:
    """Slices whose rows are joined."""

    slices: tuple[PlannedSlice, ...]
    outputs: int = 1
    metrics: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ClusteringPlan:
    """Slices that a clustering will replace, sorted by the columns `sort_by`.

    `owned`: only the planner may run it, with a heartbeat.
    """

    groups: tuple[ClusteringGroup, ...] = ()
    sort_by: tuple[str, ...] = ()
    owned: bool = False

    @property
    def slices(self) -> tuple[PlannedSlice, ...]:
        return tuple(planned for group in self.groups for planned in group.slices)

    @property
    def file_groups(self) -> frozenset[FileGroup]:
        return frozenset(planned.group for planned in self.slices)


def encode_clustering_plan(plan: ClusteringPlan, root: str) -> bytes:
    """Encode a requested clustering; its file paths begin with `root`."""
    groups = [
        {
            "slices": [_slice_to_avro(planned, root) for planned in group.slices],
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


def _slice_to_avro(planned: PlannedSlice, root: str) -> dict[str, Any]:
    """Slice as a clustering plan's record; paths begin with `root`, a missing base file's is empty."""
    return {
        "dataFilePath": f"{root}/{join(planned.partition, planned.base_file)}" if planned.base_file else "",
        "deltaFilePaths": [f"{root}/{join(planned.partition, name)}" for name in planned.logs],
        "fileId": planned.file_id,
        "partitionPath": planned.partition,
        "bootstrapFilePath": "",
        "version": 1,
    }


def decode_clustering_plan(data: bytes, file_name: str) -> ClusteringPlan:
    """An empty file is an empty plan."""
    return decoded(data, file_name, "a clustering plan", _clustering_plan) if data else ClusteringPlan()


def _clustering_plan(record: Mapping[str, Any]) -> ClusteringPlan:
    plan = record.get("clusteringPlan") or {}
    params = (plan.get("strategy") or {}).get("strategyParams") or {}
    columns = (name.strip() for name in params.get(SORTED_BY, "").split(","))
    groups = (_clustering_group(group) for group in plan.get("inputGroups") or ())
    owned = (record.get("extraMetadata") or {}).get(_OWNED) == "true"
    return ClusteringPlan(tuple(groups), tuple(filter(None, columns)), owned)


def _clustering_group(group: Mapping[str, Any]) -> ClusteringGroup:
    slices = tuple(map(_planned_slice, group.get("slices") or ()))
    return ClusteringGroup(slices, group.get("numOutputFileGroups") or 1, group.get("metrics") or {})


def _planned_slice(record: Mapping[str, Any], base_instant: str = "") -> PlannedSlice:
    """Convert a plan's record of a slice, with this `base_instant`, paths to file names.

    Missing parts become empty; raises `KeyError` without file id.
    """
    return PlannedSlice(
        record.get("partitionPath") or "",
        record["fileId"],
        _name(record.get("dataFilePath") or ""),
        tuple(map(_name, record.get("deltaFilePaths") or ())),
        base_instant,
        record.get("metrics") or {},
    )


_COMPACTION_VERSION = 2


def encode_compaction_plan(slices: Iterable[PlannedSlice]) -> bytes:
    """Encode a requested compaction of these slices, with file names, not paths."""
    planned = [
        {
            "baseInstantTime": one.base_instant,
            "deltaFilePaths": list(one.logs),
            "dataFilePath": one.base_file or None,
            "fileId": one.file_id,
            "partitionPath": one.partition,
            "metrics": dict(one.metrics),
        }
        for one in slices
    ]
    record = {
        "operations": planned,
        "extraMetadata": {},
        "version": _COMPACTION_VERSION,
        "missingSchedulePartitions": [],
    }
    return one_record("HoodieCompactionPlan", record)


def decode_compaction_plan(data: bytes, file_name: str) -> tuple[PlannedSlice, ...]:
    return decoded(data, file_name, "a compaction plan", _compaction_plan)


def _compaction_plan(record: Mapping[str, Any]) -> tuple[PlannedSlice, ...]:
    return tuple(
        _planned_slice(operation, operation["baseInstantTime"]) for operation in record.get("operations") or ()
    )
