"""The metadata table, read: which files it says that the table has.

It is a merge-on-read table of HFiles below `.hoodie/metadata`, with a timeline of its own, kept by JVM Hudi's writers.

Promised: what JVM Hudi's readers find in its partition `files`, if the metadata table is kept while it is read. NOT
promised: that this is what is there; the doctor compares the two.

Source: Hudi `HoodieBackedTableMetadata`, `HoodieMergedLogRecordReader`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import takewhile

from fsspec_cas import Entry, ObjectNotFound, Store
from lockprovider.table.errors import HistoryGone, UnsupportedTable
from lockprovider.table.format.hfile import decode_hfile
from lockprovider.table.format.instant import Action, Instant
from lockprovider.table.format.layout import METADATA_TABLE, data_file_at, hfile_at
from lockprovider.table.format.log_block import BlockKind, Header, LogBlock, decode_blocks, decode_deletes, effective
from lockprovider.table.format.metadata_table import (
    LISTING,
    OWN_TIMELINE,
    FileListing,
    FilesRecord,
    decode_files,
    merge_files,
    metadata_schema,
)
from lockprovider.table.state.parallel import at_once, files_below
from lockprovider.table.timeline.timeline import Timeline
from lockprovider.table.timeline.view import FileSlice, snapshot_of

_SCHEMA = "schema"


def listed_files(store: Store, timeline: Timeline, must_have: Iterable[str] = ()) -> FileListing:
    """What the metadata table lists, as of `timeline`, the data table's, which was listed before.

    `must_have`: begin times of what must be completed there.

    Raises:
        HistoryGone: it is not there, or was rewritten meanwhile; or one of `must_have` is not, as long as it is only
            decided, or is not any more.
        Corrupt, UnsupportedTable: it cannot be understood; the message names the file.
    """
    own = own_timeline(store)
    if missing := {*must_have} - {instant.begin for instant in own.instants if instant.is_completed}:
        raise HistoryGone(f"the metadata table has no commit {min(missing)} on its timeline; list the files")
    slices = own_slices(store, own)
    if not slices:
        root = f"{METADATA_TABLE}/"
        raise HistoryGone(f"there is no listing of the files below {root}: the metadata table was removed; look again")
    return merged_listing(store, slices, is_valid(timeline, own))


def own_slices(store: Store, own: Timeline) -> tuple[FileSlice, ...]:
    """The file slices of its partition `files` now, as of `own`; their paths are relative to the metadata table."""
    root = f"{METADATA_TABLE}/"
    found = (Entry(e.path.removeprefix(root), e.size, e.modified_ms) for e in store.list(f"{root}{LISTING}/"))
    return snapshot_of(own, found, file_at=hfile_at).slices


def merged_listing(store: Store, slices: Iterable[FileSlice], valid: Callable[[str], bool]) -> FileListing:
    """What these come to, by their blocks of `valid` instants.

    Raises:
        HistoryGone, Corrupt, UnsupportedTable: as `listed_files` does.
    """
    slices, root = tuple(slices), f"{METADATA_TABLE}/"
    paths = [path for one in slices for path in one.paths]
    contents = dict(zip(paths, at_once(store, [partial(_read, store, root + path) for path in paths]), strict=True))

    def records(one: FileSlice) -> Iterator[FilesRecord]:
        if one.path:
            base = decode_hfile(contents[one.path], one.path)
            yield from decode_files(base, base.info.get(_SCHEMA, b"").decode(), one.path)
        blocks = [(b, log.path) for log in one.logs for b in decode_blocks(contents[log.path], log.path)]
        yield from _of_blocks([(block, path) for block, path in blocks if valid(block.instant)])

    return merge_files(record for one in slices for record in records(one))


def own_schema(store: Store, slices: Iterable[FileSlice]) -> str:
    """The schema of the records in these slices of `files`, as their base file has it, else their first log file.

    Raises:
        HistoryGone, Corrupt, UnsupportedTable: as `listed_files` does.
    """
    for path in (path for one in slices for path in one.paths):  # the base file first
        data = _read(store, f"{METADATA_TABLE}/{path}")
        if path.rpartition(".")[2] == "hfile":
            found = decode_hfile(data, path).info.get(_SCHEMA, b"").decode()
        else:
            found = next(filter(None, (b.header.get(Header.SCHEMA, "") for b in decode_blocks(data, path))), "")
        if found:
            return found
    return metadata_schema()


def own_timeline(store: Store) -> Timeline:
    """The metadata table's, listed now."""
    return Timeline.of(files_below(store, OWN_TIMELINE.rstrip("/")))


def _of_blocks(blocks: Iterable[tuple[LogBlock, str]]) -> Iterator[FilesRecord]:
    paths = {id(block): path for block, path in blocks}
    for block in effective(block for block, _ in blocks):
        path = paths[id(block)]
        if block.kind is BlockKind.HFILE:
            yield from decode_files(decode_hfile(block.content, path), block.header.get(Header.SCHEMA, ""), path)
        elif block.kind is not BlockKind.DELETE or decode_deletes(block.content, path):
            raise UnsupportedTable(f"{path!r} has blocks of another kind than a listing has; compact it with JVM Hudi")


def _read(store: Store, path: str) -> bytes:
    try:
        return store.read(path).data
    except ObjectNotFound as error:
        raise HistoryGone.with_file(path) from error


# When the metadata table's listing counts, how long, and where it differs from what is there. Pure.
#
# Its log blocks name the write of the data table that they are of. One counts that is completed there, or that the
# metadata table alone has: a write that is pending on the data table's timeline is not part of the listing yet.
#
# Source: Hudi `HoodieTableMetadataUtil.getValidInstantTimestamps`.
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
