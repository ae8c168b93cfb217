"""Which batches of streams a table has, by what its commits say."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from lockprovider.table.format.instant import Instant
from lockprovider.table.format.streams import batches_by_stream
from lockprovider.table.state import archive_index
from lockprovider.table.timeline.timeline import Timeline

if TYPE_CHECKING:
    from lockprovider.table.state.context import TableContext


def batches_back(table: TableContext, timeline: Timeline) -> Iterator[tuple[Instant, Mapping[str, int]]]:
    """Commits and the batches by stream that they are, newest first; of the archive each stream's last batch.

    Reads no more than is taken from it.
    """
    for instant in reversed(timeline.writes):
        yield instant, batches_by_stream(table.metadata_of(instant).extra)
    yield from archive_index.last_archived_batches(table.archived)


def last_batch(table: TableContext, timeline: Timeline, stream: str) -> tuple[int, Instant] | None:
    """The last batch of a stream, and the commit that it is in; None if there is none."""
    for instant, batches in batches_back(table, timeline):
        if stream in batches:
            return batches[stream], instant
    return None
