"""Exactly once: a batch that is written again after a crash finds itself in the table.

A commit says which batch of which stream it is, in the key and the form of Hudi's own streaming sink; so "is it there"
and "it is there now" are one atomic step. Batches of one stream are numbered upwards and committed in that order. It is
found after it was archived, too.

Source: Hudi `HoodieStreamingSink`, `CommitUtils.getValidCheckpointForCurrentWriter`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from lockprovider.table.errors import AlreadyCommitted
from lockprovider.table.format.instant import Instant
from lockprovider.table.format.streams import noted
from lockprovider.table.state.batches import last_batch
from lockprovider.table.timeline.timeline import Timeline

if TYPE_CHECKING:
    from lockprovider.table.state.context import TableContext


@dataclass(frozen=True, slots=True)
class BatchId:
    """One batch of one stream. Of Spark: the query's id, which its checkpoint keeps, and the batch's id."""

    stream: str
    batch: int

    def __str__(self) -> str:
        return f"batch {self.batch} of stream {self.stream}"

    def note(self, extra: Mapping[str, str]) -> dict[str, str]:
        """What the commit says in its extra metadata, which may say other things of that kind already."""
        return noted(extra, self.stream, self.batch)

    def found_in(self, done: Instant) -> AlreadyCommitted:
        """The error of a second try."""
        return AlreadyCommitted(f"{self} is in {done.file_name} already; nothing was written again")


def committed_in(table: TableContext, timeline: Timeline, batch_id: BatchId) -> Instant | None:
    """The commit that this batch, or a later one of its stream, is in; None if there is none."""
    last = last_batch(table, timeline, batch_id.stream)
    return last[1] if last is not None and last[0] >= batch_id.batch else None
