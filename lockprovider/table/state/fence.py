"""Fences: a writer whose turn is over commits nothing any more.

A commit says under which epoch it was made, beside the batches of streams, so "has a newer one written" and "it is
there" are one atomic step: whoever decides the commit compares its epoch with those of all commits before it. It is in
the table, not in the lock record: a JVM lock client, which drops what it does not know there, takes nothing of it
away, and an epoch is found after its commit was archived, too. What a restore or a rollback takes back is gone.

Services decide under the lock, while nobody commits: they compare once they have it (`TableContext.locked`), and what
they publish is refused if somebody else has had it since. Those whose instant is a commit say their epoch in it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from fsspec_cas import InvalidInput
from lockprovider.recipes.errors import Fenced
from lockprovider.recipes.values import check_fence
from lockprovider.table.format.instant import Instant
from lockprovider.table.format.metadata import batches_by_stream, noted
from lockprovider.table.state import archive_index
from lockprovider.table.timeline.timeline import Timeline

if TYPE_CHECKING:
    from lockprovider.table.state.context import TableContext
    from lockprovider.table.timeline.timeline import Timeline

_STREAM = "lockprovider.fence/"


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


@dataclass(frozen=True, slots=True)
class Fence:
    """The epoch under which a writer commits; epochs of different names are not compared."""

    epoch: int
    name: str = ""

    @classmethod
    def of(cls, given: Any) -> Fence:
        """A lease, a term, a job, or the epoch itself; or a pair of a name and one of these.

        Raises:
            InvalidInput: it is none.
        """
        if isinstance(given, Fence):
            return given
        name, of = given if isinstance(given, tuple) and len(given) == 2 else ("", given)  # noqa: PLR2004 - a pair
        if not isinstance(name, str):
            raise InvalidInput(f"fence={given!r} must be a term, or a name and a term: under(('compactor', term))")
        return cls(check_fence(of), name)

    @property
    def stream(self) -> str:
        """What a commit says it as: a stream whose batches are the epochs."""
        return f"{_STREAM}{self.name}"

    def must_be_newest(self, newest: int) -> None:
        """Return if no commit of a newer epoch was made.

        Raises:
            Fenced: one was.
        """
        if self.epoch < newest:
            what = f"of {self.name!r} " if self.name else ""
            raise Fenced(
                f"epoch {self.epoch} {what}is over: {newest} has written since; stop what goes on under it", newest
            )


def with_fence(extra: Mapping[str, str], fence: Any) -> Mapping[str, str]:
    """A commit's extra metadata that says this fence, too; None is none.

    Raises:
        InvalidInput: the fence has no epoch.
    """
    if fence is None:
        return extra
    found = Fence.of(fence)
    return {**extra, **noted(extra, found.stream, found.epoch)}


def fences_in(extra: Mapping[str, str]) -> tuple[Fence, ...]:
    """Those that a commit with this extra metadata says."""
    found = batches_by_stream(extra).items()
    return tuple(Fence(epoch, name.removeprefix(_STREAM)) for name, epoch in found if name.startswith(_STREAM))


def refuse_passed(extra: Mapping[str, str], others: Iterable[Mapping[str, str]]) -> None:
    """Return if a commit with this extra metadata may follow those with these.

    Raises:
        Fenced: one of them is of a newer epoch.
    """
    if fences := fences_in(extra):
        for other in others:
            said = batches_by_stream(other)
            for fence in fences:
                fence.must_be_newest(said.get(fence.stream, 0))


def refuse_passed_in(table: TableContext, now: Timeline, fences: Iterable[Fence]) -> None:
    """Return if no commit of a table is of a newer epoch than these.

    Raises:
        Fenced: one of them is.
    """
    for fence in fences:
        last = last_batch(table, now, fence.stream)
        fence.must_be_newest(0 if last is None else last[0])
