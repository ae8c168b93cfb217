"""The plan of a compaction, as Hudi keeps it: one Avro record in a container file.

Source: `HoodieCompactionPlan.avsc`; `CompactionUtils`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from lockprovider.table.format.layout import FileGroup
from lockprovider.table.format.metadata import decoded, one_record

_COMPACTION_VERSION = 2


@dataclass(frozen=True, slots=True)
class CompactionOperation:
    """One file slice that a compaction merges. Names are without folders, logs in merge order.

    `base_instant` is that of its base file, or of a slice of logs alone that of its first; then `base_file` is empty.
    """

    partition: str
    file_id: str
    base_instant: str
    base_file: str
    logs: tuple[str, ...]
    metrics: Mapping[str, float] = field(default_factory=dict)

    @property
    def group(self) -> FileGroup:
        """Its file group."""
        return self.partition, self.file_id


def encode_compaction_plan(operations: Iterable[CompactionOperation]) -> bytes:
    """The content of `<begin>.compaction.requested`."""
    planned = [
        {
            "baseInstantTime": one.base_instant,
            "deltaFilePaths": list(one.logs),
            "dataFilePath": one.base_file or None,
            "fileId": one.file_id,
            "partitionPath": one.partition,
            "metrics": dict(one.metrics),
        }
        for one in operations
    ]
    record = {
        "operations": planned,
        "extraMetadata": {},
        "version": _COMPACTION_VERSION,
        "missingSchedulePartitions": [],
    }
    return one_record("HoodieCompactionPlan", record)


def decode_compaction_plan(data: bytes, file_name: str) -> tuple[CompactionOperation, ...]:
    """Read a requested compaction.

    Raises:
        Corrupt: not one whole Avro record of that kind; the message names the file.
    """
    return decoded(data, file_name, "a compaction plan", _compaction_plan)


def _compaction_plan(record: Mapping[str, Any]) -> tuple[CompactionOperation, ...]:
    return tuple(
        CompactionOperation(
            one.get("partitionPath") or "",
            one["fileId"],
            one["baseInstantTime"],
            (one.get("dataFilePath") or "").rpartition("/")[2],
            tuple(path.rpartition("/")[2] for path in one.get("deltaFilePaths") or ()),
            one.get("metrics") or {},
        )
        for one in record.get("operations") or ()
    )
