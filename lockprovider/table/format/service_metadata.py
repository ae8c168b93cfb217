"""What table services plan and did, as Hudi keeps it: one Avro record in a container file.

Source: `HoodieCleanerPlan.avsc`, `HoodieCleanMetadata.avsc`, `HoodieSavePointMetadata.avsc`, `HoodieRestorePlan.avsc`,
`HoodieRestoreMetadata.avsc`; `CleanerUtils`, `TimelineMetadataUtils`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from lockprovider.table.format.layout import join
from lockprovider.table.format.metadata import (
    RollbackMetadata,
    RolledBackPartition,
    decoded,
    one_record,
    rollback_record,
)

_CLEAN_VERSION = 2
_RESTORE_PLAN_VERSION = 2


@dataclass(frozen=True, slots=True)
class CleanPlan:
    """Which files a clean is going to remove: names by partition.

    `earliest` is the begin time of the oldest commit that stays whole, with its action; empty when the policy has none.
    `last_commit` is the begin time of the last completed commit at the planning. `savepoints` are those that counted.
    """

    policy: str
    files: Mapping[str, tuple[str, ...]]
    earliest: tuple[str, str] | None = None
    last_commit: str = ""
    savepoints: tuple[str, ...] = ()

    @property
    def paths(self) -> frozenset[str]:
        """All files, relative to the table."""
        return frozenset(join(partition, name) for partition, names in self.files.items() for name in names)


@dataclass(frozen=True, slots=True)
class CleanMetadata:
    """What a clean did; `failed` files are still there."""

    begin: str
    plan: CleanPlan
    failed: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    time_taken_ms: int = 0


@dataclass(frozen=True, slots=True)
class Savepoint:
    """Files that no clean may take: names by partition. `at_ms` is epoch ms, UTC."""

    user: str
    at_ms: int
    comment: str
    files: Mapping[str, tuple[str, ...]]

    @property
    def paths(self) -> frozenset[str]:
        """All files, relative to the table."""
        return frozenset(join(partition, name) for partition, names in self.files.items() for name in names)


@dataclass(frozen=True, slots=True)
class RestorePlan:
    """Which writes a restore takes back, (begin, action) pairs in that order; `target` is the last one that stays."""

    target: str
    victims: tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class RestoreMetadata:
    """What a restore did; `deleted` has the files of each victim, names by partition."""

    begin: str
    plan: RestorePlan
    deleted: Mapping[str, Mapping[str, tuple[str, ...]]]
    time_taken_ms: int = 0


def encode_clean_plan(plan: CleanPlan, root: str) -> bytes:
    """The content of `<begin>.clean.requested`; paths in it begin with `root`, as in Hudi's own plans."""
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
    """Read a requested clean. Whole partitions that a JVM plan wants to remove are passed over: others may write there.

    Raises:
        Corrupt: not one whole Avro record of that kind; the message names the file.
    """
    return decoded(data, file_name, "a clean plan", _clean_plan)


def _clean_plan(record: Mapping[str, Any]) -> CleanPlan:
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


def encode_clean(metadata: CleanMetadata) -> bytes:
    """The content of a completed clean."""
    plan = metadata.plan
    partitions: dict[str, dict[str, Any]] = {
        partition: {
            "partitionPath": partition,
            "policy": plan.policy,
            "deletePathPatterns": list(names),
            "successDeleteFiles": [name for name in names if name not in metadata.failed.get(partition, ())],
            "failedDeleteFiles": list(metadata.failed.get(partition, ())),
            "isPartitionDeleted": False,
        }
        for partition, names in plan.files.items()
    }
    record = {
        "startCleanTime": metadata.begin,
        "timeTakenInMillis": metadata.time_taken_ms,
        "totalFilesDeleted": sum(len(done["successDeleteFiles"]) for done in partitions.values()),
        "earliestCommitToRetain": plan.earliest[0] if plan.earliest else "",
        "lastCompletedCommitTimestamp": plan.last_commit,
        "partitionMetadata": partitions,
        "version": _CLEAN_VERSION,
        "bootstrapPartitionMetadata": {},
        "extraMetadata": _savepointed(plan.savepoints),
    }
    return one_record("HoodieCleanMetadata", record)


def decode_clean(data: bytes, file_name: str) -> tuple[str, tuple[str, ...]]:
    """The earliest commit that a completed clean retained (empty if it had none), and the paths it deleted.

    Raises:
        Corrupt: not one whole Avro record of that kind; the message names the file.
    """
    return decoded(data, file_name, "clean metadata", _clean)


def _clean(record: Mapping[str, Any]) -> tuple[str, tuple[str, ...]]:
    parts = record["partitionMetadata"].items()
    paths = tuple(join(partition, _name(name)) for partition, done in parts for name in done["successDeleteFiles"])
    return record.get("earliestCommitToRetain") or "", paths


def encode_savepoint(savepoint: Savepoint) -> bytes:
    """The content of a completed savepoint."""
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
    """Read a completed savepoint.

    Raises:
        Corrupt: not one whole Avro record of that kind; the message names the file.
    """
    return decoded(data, file_name, "savepoint metadata", _savepoint)


def _savepoint(record: Mapping[str, Any]) -> Savepoint:
    parts = record["partitionMetadata"].items()
    files = {partition: tuple(map(_name, part["savepointDataFile"])) for partition, part in parts}
    return Savepoint(record["savepointedBy"], record["savepointedAt"], record["comments"], files)


def encode_restore_plan(plan: RestorePlan) -> bytes:
    """The content of `<begin>.restore.requested`."""
    record = {
        "instantsToRollback": _infos(plan),
        "version": _RESTORE_PLAN_VERSION,
        "savepointToRestoreTimestamp": plan.target,
    }
    return one_record("HoodieRestorePlan", record)


def decode_restore_plan(data: bytes, file_name: str) -> RestorePlan:
    """Read a requested restore.

    Raises:
        Corrupt: not one whole Avro record of that kind; the message names the file.
    """
    return decoded(data, file_name, "a restore plan", _restore_plan)


def _restore_plan(record: Mapping[str, Any]) -> RestorePlan:
    victims = tuple((victim["commitTime"], victim["action"]) for victim in record["instantsToRollback"])
    return RestorePlan(record.get("savepointToRestoreTimestamp") or "", victims)


def encode_restore(metadata: RestoreMetadata) -> bytes:
    """The content of a completed restore: for each victim what a rollback of it would have said."""
    rollbacks = {victim[0]: [rollback_record(_rolled_back(metadata, victim))] for victim in metadata.plan.victims}
    record = {
        "startRestoreTime": metadata.begin,
        "timeTakenInMillis": metadata.time_taken_ms,
        "instantsToRollback": [begin for begin, _ in metadata.plan.victims],
        "hoodieRestoreMetadata": rollbacks,
        "version": 1,
        "restoreInstantInfo": _infos(metadata.plan),
    }
    return one_record("HoodieRestoreMetadata", record)


def decode_restore(data: bytes, file_name: str) -> tuple[str, ...]:
    """The begin times that a completed restore took back.

    Raises:
        Corrupt: not one whole Avro record of that kind; the message names the file.
    """
    return decoded(data, file_name, "restore metadata", lambda record: tuple(record["instantsToRollback"]))


def _rolled_back(metadata: RestoreMetadata, victim: tuple[str, str]) -> RollbackMetadata:
    files = metadata.deleted.get(victim[0], {})
    done = {path: RolledBackPartition(tuple(join(path, name) for name in names)) for path, names in files.items()}
    return RollbackMetadata(metadata.begin, (victim,), done)


def _infos(plan: RestorePlan) -> list[dict[str, str]]:
    return [{"commitTime": begin, "action": action} for begin, action in plan.victims]


def _name(path: str) -> str:
    return path.rpartition("/")[2]
