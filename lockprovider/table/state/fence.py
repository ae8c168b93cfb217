"""Fences and stream batches: a commit is refused if the table has a newer epoch, or has the batch already.

Commits store epochs, since a JVM lock client would drop them from the lock record. A restore or rollback removes those
of its commits.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from fsspec_cas import InvalidInput
from lockprovider.recipes.errors import Fenced
from lockprovider.recipes.values import check_fence
from lockprovider.table.errors import AlreadyCommitted, WrongCheckpoint
from lockprovider.table.format.instant import Instant
from lockprovider.table.format.metadata import batches_by_stream, with_batch
from lockprovider.table.state import archive_index
from lockprovider.table.timeline.timeline import Timeline

if TYPE_CHECKING:
    from lockprovider.table.state.context import TableContext


_STREAM = "lockprovider.fence/"


def batches_newest_first(table: TableContext, timeline: Timeline) -> Iterator[tuple[Instant, Mapping[str, int]]]:
    """Yield commits with their streams' batches, newest first, then each stream's last archived batches.

    Reads uncached commits; may raise `HistoryGone` or `Corrupt`.
    """
    for instant in reversed(timeline.writes):
        yield instant, batches_by_stream(table.metadata_of(instant).extra)
    yield from archive_index.last_archived_batches(table.knowledge)


@dataclass(frozen=True, slots=True)
class Fence:
    """The epoch under which a writer commits; epochs of different names are not compared."""

    epoch: int
    name: str = ""

    @classmethod
    def of(cls, given: Any) -> Fence:
        """Make a fence of a lease, term, job or epoch, alone or paired with a name; may raise `InvalidInput`."""
        if isinstance(given, Fence):
            return given
        name, of = given if isinstance(given, tuple) and len(given) == 2 else ("", given)  # noqa: PLR2004 - a pair
        if not isinstance(name, str):
            raise InvalidInput(f"fence={given!r} must be a term, or a name and a term: under(('compactor', term))")
        return cls(check_fence(of), name)

    @property
    def stream(self) -> str:
        """The stream name under which a commit records the epoch as a batch."""
        return f"{_STREAM}{self.name}"


def with_fence(extra: Mapping[str, str], fence: Fence | None) -> Mapping[str, str]:
    """Return a commit's extra metadata with this fence, if any."""
    return extra if fence is None else {**extra, **with_batch(extra, fence.stream, fence.epoch)}


def fences_in(extra: Mapping[str, str]) -> tuple[Fence, ...]:
    """Return the fences recorded in a commit's extra metadata."""
    batches = batches_by_stream(extra).items()
    return tuple(Fence(epoch, name.removeprefix(_STREAM)) for name, epoch in batches if name.startswith(_STREAM))


def refuse_repeated_or_fenced(
    fences: Iterable[Fence], batch_id: BatchId | None, notes: Callable[[], Iterable[tuple[Instant, Mapping[str, int]]]]
) -> None:
    """Raise `AlreadyCommitted` or `WrongCheckpoint` for this batch, or `Fenced` if a fence's epoch is over.

    `notes` returns commits with their streams' batches, newest first; it is called again for each fence.
    """
    if batch_id is not None and (done := batch_id.committed_by(notes())) is not None:
        raise batch_id.duplicate_error(done)
    for fence in fences:
        newest = next((batches[fence.stream] for _, batches in notes() if fence.stream in batches), 0)
        if fence.epoch < newest:
            named = f"of {fence.name!r} " if fence.name else ""
            raise Fenced(
                f"epoch {fence.epoch} {named}is over, because epoch {newest} has written since: stop the work under "
                "the old epoch",
                newest,
            )


# Source of exactly once: Hudi `HoodieStreamingSink`, `CommitUtils.getValidCheckpointForCurrentWriter`.
T = TypeVar("T")

_KEY = re.compile(r"(?P<stream>[^@#]+)@(?P<run>[^@#]*)#(?P<write>[0-9]+)", re.ASCII)


@dataclass(frozen=True, slots=True)
class BatchId:
    """One write of a stream's batch; a repeated one is found in the table, archived or not, and skipped.

    A commit records it in the form of Hudi's streaming sink, in one atomic step with the check. Commit batches, and the
    writes of a batch, in the order of their numbers.

    Attributes:
        stream: the stream's name, without `@` and `#`.
        batch: the batch's number, from 0 on.
        run: the checkpoint that numbers the batches (the id of Spark's query). Empty: the caller does.
        write: the write's number within the batch, from 1 on.
    """

    stream: str
    batch: int
    run: str = ""
    write: int = 1

    @classmethod
    def of(cls, stream: object, batch: object, run: str = "", write: int = 1) -> BatchId:
        """Return the id for a user's values; may raise `InvalidInput`."""
        if not isinstance(stream, str) or not stream or {"@", "#"} & {*stream}:
            raise InvalidInput(f"stream_id={stream!r} must be a text without '@' and '#': give each stream its own")
        if not isinstance(batch, int) or isinstance(batch, bool) or batch < 0:
            raise InvalidInput(f"batch={batch!r} must be a whole number from 0 on")
        return cls(stream, batch, run, write)

    def __str__(self) -> str:
        again = f"write {self.write} of " if self.write > 1 else ""
        return f"{again}batch {self.batch} of stream {self.stream}"

    @property
    def key(self) -> str:
        """The name under which a commit records the batch's number."""
        return f"{self.stream}@{self.run}#{self.write}" if self.run or self.write > 1 else self.stream

    def note(self, extra: Mapping[str, str]) -> dict[str, str]:
        """Return the entry for a commit's extra metadata, with other streams' batches."""
        return with_batch(extra, self.key, self.batch)

    def committed_by(self, notes: Iterable[tuple[T, Mapping[str, int]]]) -> T | None:
        """Return the commit that has this batch or, without a run, a later one; None: the batch is new.

        `notes`: newest first. Raises `WrongCheckpoint` if the stream's last commit is of another run, or a later batch
        of this run.
        """
        for commit, batches in notes:
            same_stream = [
                other for key, batch in batches.items() if (other := _parsed(key, batch)).stream == self.stream
            ]
            for other in same_stream:
                if other.run != self.run:
                    raise WrongCheckpoint(
                        f"stream {self.stream} has committed batch {other.batch} of query {other.run or 'none'}, and "
                        f"this is batch {self.batch} of query {self.run or 'none'}, whose checkpoint is another one; "
                        f"nothing was written; {_WAYS_OUT}"
                    )
                if other.batch > self.batch:
                    if not self.run:
                        return commit
                    raise WrongCheckpoint(
                        f"stream {self.stream} has committed batch {other.batch}, and this is batch {self.batch}: the "
                        f"checkpoint is an older copy, or was edited; nothing was written; {_WAYS_OUT}"
                    )
                if other.batch == self.batch and other.write == self.write:
                    return commit
            if any(other.batch < self.batch for other in same_stream):
                return None
        return None

    def duplicate_error(self, done: Instant) -> AlreadyCommitted:
        """Return the error for a batch that the commit `done` has."""
        return AlreadyCommitted(f"{self} is in {done.file_name} already; nothing was written again")


_WAYS_OUT = (
    "start the query with the checkpoint that it had, or give it a new stream_id (the rows that the source delivers "
    "again are written again then)"
)


def _parsed(key: str, batch: int) -> BatchId:
    match = _KEY.fullmatch(key)
    return BatchId(key, batch) if match is None else BatchId(match["stream"], batch, match["run"], int(match["write"]))
