"""When the metadata table's listing counts, how long, and where it differs from what is there. Pure.

Its log blocks name the write of the data table that they are of. One counts that is completed there, or that the
metadata table alone has: a write that is pending on the data table's timeline is not part of the listing yet.

Source: Hudi `HoodieTableMetadataUtil.getValidInstantTimestamps`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from itertools import takewhile

from fsspec_cas import Entry
from lockprovider.table.format.instant import Action, Instant
from lockprovider.table.format.layout import data_file_at
from lockprovider.table.format.metadata_table import FileListing
from lockprovider.table.timeline.timeline import Timeline

_FIRST = "0" * 14  # what begins so is the making of one of its partitions, which the data table knows nothing of
_REMOVING = (Action.CLEAN, Action.ROLLBACK, Action.RESTORE)


def is_valid(timeline: Timeline, own: Timeline) -> Callable[[str], bool]:
    """Whether a log block of an instant counts, by the data table's timeline and the metadata table's own."""
    done = {i.begin for i in timeline.instants if i.is_completed}
    pending = {i.begin for i in timeline.instants} - done
    valid = done | ({i.begin for i in own.instants if i.is_completed} - pending)
    return lambda begin: begin in valid or begin.startswith(_FIRST)


def compacted_at(own: Timeline) -> str:
    """When the metadata table was compacted last; empty if it never was."""
    return max((i.begin for i in own.writes if i.action is Action.COMMIT), default="")


def uncompacted(own: Timeline) -> int:
    """How many commits the metadata table has had since then: each is a log file that its readers read."""
    last = compacted_at(own)
    since = (i for i in own.writes if (i.completion or "") > last and i.action is Action.DELTACOMMIT)
    return sum(not i.begin.startswith(_FIRST) for i in since)


def outlived(own: Timeline, left: Collection[str], first: str) -> tuple[Instant, ...]:
    """The states of its instants that nobody needs: from the oldest on, those that were completed before `first`.

    `left`: the begin times of its files, after those of slices before `first` were removed. A reader takes what is
    older than the timeline for completed: so what is left of it begins before each file that is not older than it now.
    """
    end = min((first, *(begin for begin in left if begin >= own.first_active)))
    found: dict[str, list[Instant]] = {}
    for instant in own.instants:
        found.setdefault(instant.begin, []).append(instant)
    done = takewhile(lambda begin: begin < end and any("" < (i.completion or "") < first for i in found[begin]), found)
    return tuple(instant for begin in [*done][:-1] for instant in found[begin])


@dataclass(frozen=True, slots=True)
class ListingDifferences:
    """Paths of base and log files.

    Attributes:
        hidden: they are rows of the table, and no reader of the metadata table finds them.
        gone: readers of the metadata table look for them, and they are not there.
        resized: they have another size than it says.
        empty: it says that they have no bytes, at which readers fail.
    """

    hidden: tuple[str, ...] = ()
    gone: tuple[str, ...] = ()
    resized: tuple[str, ...] = ()
    empty: tuple[str, ...] = ()


def differences(
    listing: FileListing, before: Iterable[Entry], after: Iterable[Entry], timeline: Timeline
) -> ListingDifferences:
    """Where the metadata table differs from the files, which were listed before `timeline` and after it was read.

    What others do meanwhile is no difference; what a service that is at it has removed is none either.
    """
    first, last = _data_files(before), _data_files(after)
    listed, visible, there = listing.sizes, timeline.visible, {**first, **last}
    begins = {path: at[1].begin for path in there if (at := data_file_at(path)) is not None}
    is_removing = bool(timeline.pending(*_REMOVING))
    data = [path for path in sorted(listed) if data_file_at(path) is not None]
    return ListingDifferences(
        hidden=tuple(p for p in sorted(first.keys() & last.keys()) if visible(begins[p]) and p not in listed),
        gone=tuple(path for path in data if path not in there and not is_removing),
        resized=tuple(path for path in data if listed[path] and there.get(path, listed[path]) != listed[path]),
        empty=tuple(path for path in data if not listed[path]),
    )


def _data_files(entries: Iterable[Entry]) -> dict[str, int]:
    return {entry.path: entry.size for entry in entries if data_file_at(entry.path) is not None}
