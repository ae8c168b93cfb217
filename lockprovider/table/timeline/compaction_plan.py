"""Which file slices a compaction merges: decided here, without touching anything.

Each latest slice with logs, but those that another plan has already. Only logs that were completed before the
compaction begins are part of it: those of writes that are pending now complete later, and so belong to the next slice.

Source: Hudi `BaseHoodieCompactionPlanGenerator`, `CompactionStrategy`.
"""

from __future__ import annotations

from collections.abc import Container
from dataclasses import dataclass

from lockprovider.table.format.layout import FileGroup
from lockprovider.table.format.service_metadata import CompactionOperation
from lockprovider.table.timeline.view import FileSlice, Snapshot

LOG_COMPACTION_KEYS = ("hoodie.log.compaction.enable", "hoodie.log.compaction.inline")  # read here, not written
_MB = 1 << 20


@dataclass(frozen=True, slots=True)
class CompactEvery:
    """After so many commits a writer compacts (`hoodie.compact.inline`, `hoodie.compact.inline.max.delta.commits`).

    >>> settings = TableSettings(compaction=CompactEvery(commits=5))
    """

    commits: int = 5


def compaction_plan(seen: Snapshot, begin: str, busy: Container[FileGroup]) -> tuple[CompactionOperation, ...]:
    """What a compaction that begins then merges, those with the most in their logs first.

    `busy` are the file groups of other plans that are not completed.
    """
    found = [(one, _planned(one, begin)) for one in seen.slices if one.logs and one.group not in busy]
    ordered = sorted(found, key=lambda pair: (-pair[1].metrics["TOTAL_LOG_FILES_SIZE"], pair[0]))
    return tuple(planned for _, planned in ordered if planned.logs)


def _planned(one: FileSlice, begin: str) -> CompactionOperation:
    logs = [log for log in one.logs if log.completion < begin]
    read = one.size + sum(log.size for log in logs)
    metrics = {
        "TOTAL_LOG_FILES": float(len(logs)),
        "TOTAL_LOG_FILES_SIZE": float(sum(log.size for log in logs)),
        "TOTAL_IO_READ_MB": float(read // _MB),
        "TOTAL_IO_WRITE_MB": float(one.size // _MB),
        "TOTAL_IO_MB": float((read + one.size) // _MB),
    }
    names = tuple(log.file.name for log in logs)
    return CompactionOperation(one.partition, one.file_id, one.begin, one.path.rpartition("/")[2], names, metrics)
