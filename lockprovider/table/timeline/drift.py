"""How far the times on the timeline are from the store's clock: by that a writer of another zone is found. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from lockprovider.table.format.instant import to_ms
from lockprovider.table.timeline.timeline import Timeline

ZONE_MS = 15 * 60_000  # zones differ by multiples of this


def drifts_ms(timeline: Timeline, modified_ms: Mapping[str, int | None]) -> dict[str, int]:
    """By file name, how far each completion time is ahead of the time at which the store wrote the file.

    Files of which the store does not say when are left out.
    """
    found = {}
    for instant in timeline.instants:
        written_ms = modified_ms.get(instant.file_name)
        if instant.completion is not None and written_ms is not None:
            found[instant.file_name] = to_ms(instant.completion) - written_ms
    return found


def of_other_zones(drifts: Mapping[str, int]) -> list[str]:
    """The files that cannot have been written then by a clock in UTC, unless it was wrong or they were copied."""
    return [name for name, drift_ms in drifts.items() if abs(drift_ms) > ZONE_MS / 2]
