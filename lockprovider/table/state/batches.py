"""The last batch of a stream that a table has, by what its commits say."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lockprovider.table.format.instant import Instant
from lockprovider.table.format.streams import batches_by_stream
from lockprovider.table.state import archive_index
from lockprovider.table.timeline.timeline import Timeline

if TYPE_CHECKING:
    from lockprovider.table.state.context import TableContext


def last_batch(table: TableContext, timeline: Timeline, stream: str) -> tuple[int, Instant] | None:
    """The last batch of a stream, and the commit that it is in; None if there is none.

    Reads back to the stream's latest commit; for a stream that has none all commits on the timeline, and what the
    archive's files say of their streams.
    """
    for instant in reversed(timeline.writes):
        last = batches_by_stream(table.metadata_of(instant).extra).get(stream)
        if last is not None:
            return last, instant
    return archive_index.last_archived_batch(table.archived, stream)
