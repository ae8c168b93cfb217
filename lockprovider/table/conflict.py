"""Optimistic concurrency control: whose write gives way.

The check compares sets, never times: what completed since my snapshot is the set of completed instants now, without the
set that my snapshot was made of. A time can lie (a commit that began earlier may finish later); a set cannot.

Source: Hudi RFC-22; `SimpleConcurrentFileWritesConflictResolutionStrategy`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from lockprovider.table.instant import Instant
from lockprovider.table.metadata import CommitMetadata
from lockprovider.table.timeline import Timeline

FileGroup = tuple[str, str]  # partition, file id


@dataclass(frozen=True, slots=True)
class Overlap:
    """My write and a completed one touched the same file groups."""

    lost_to: Instant
    file_groups: tuple[FileGroup, ...]


def completed_since(mine: Timeline, now: Timeline) -> tuple[Instant, ...]:
    """The writes that completed after my snapshot, in the order of their completion."""
    return tuple(instant for instant in now.writes if instant.file_name not in mine.written)


def first_overlap(mine: Iterable[FileGroup], others: Mapping[Instant, CommitMetadata]) -> Overlap | None:
    """The first completed commit that touched a file group of mine; None if there is none.

    New file groups have fresh ids, so inserts never conflict: two writers that insert the same new key are not told.
    """
    my_groups = frozenset(mine)
    for instant, metadata in others.items():
        both = my_groups & metadata.file_groups
        if both:
            return Overlap(instant, tuple(sorted(both)))
    return None
