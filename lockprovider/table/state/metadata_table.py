"""Read the metadata table: a merge-on-read table of HFiles in `.hoodie/metadata` that lists files.

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
from lockprovider.table.format.layout import METADATA_TABLE, Action, Instant, data_file_at, hfile_at
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
from lockprovider.table.state.parallel import concurrently, files_below
from lockprovider.table.timeline.timeline import Timeline
from lockprovider.table.timeline.view import FileSlice, snapshot_of


def listed_files(store: Store, timeline: Timeline, must_have: Iterable[str] = ()) -> FileListing:
    """Read the metadata table; return the data table's files as of `timeline`, listed before.

    Raises `HistoryGone` if a begin time of `must_have` is not completed there, or the table was removed or rewritten.
    """
    own = own_timeline(store)
    if missing := {*must_have} - {instant.begin for instant in own.instants if instant.is_completed}:
        raise HistoryGone(f"the metadata table has no commit {min(missing)} on its timeline; list the files")
    slices = own_slices(store, own)
    if not slices:
        root = f"{METADATA_TABLE}/"
        raise HistoryGone(
            f"{root} has no listing of the files any more: the metadata table was removed; read the table again"
        )
    return merged_listing(store, slices, is_valid(timeline, own))


def own_slices(store: Store, own: Timeline) -> tuple[FileSlice, ...]:
    """List the slices of the metadata table's partition `files`; paths are relative to that table."""
    root = f"{METADATA_TABLE}/"
    entries = (Entry(e.path.removeprefix(root), e.size, e.modified_ms) for e in store.list(f"{root}{LISTING}/"))
    return snapshot_of(own, entries, file_at=hfile_at).slices


def merged_listing(store: Store, slices: Iterable[FileSlice], valid: Callable[[str], bool]) -> FileListing:
    """Read all these slices' files; return their listing, with log blocks whose instant `valid` accepts."""
    slices, root = tuple(slices), f"{METADATA_TABLE}/"
    paths = [path for slice_ in slices for path in slice_.paths]
    contents = dict(
        zip(paths, concurrently(store, [partial(_read, store, root + path) for path in paths]), strict=True)
    )

    def records(slice_: FileSlice) -> Iterator[FilesRecord]:
        if slice_.path:
            base = decode_hfile(contents[slice_.path], slice_.path)
            yield from decode_files(base, base.schema_json, slice_.path)
        blocks = [(b, log.path) for log in slice_.logs for b in decode_blocks(contents[log.path], log.path)]
        yield from _of_blocks([(block, path) for block, path in blocks if valid(block.instant)])

    return merge_files(record for slice_ in slices for record in records(slice_))


def own_schema(store: Store, slices: Iterable[FileSlice]) -> str:
    """Read metadata table slices until one states a record schema; return its Avro text, else the default."""
    for path in (path for slice_ in slices for path in slice_.paths):  # the base file first
        data = _read(store, f"{METADATA_TABLE}/{path}")
        if path.rpartition(".")[2] == "hfile":
            schema = decode_hfile(data, path).schema_json
        else:
            schema = next(filter(None, (b.header.get(Header.SCHEMA, "") for b in decode_blocks(data, path))), "")
        if schema:
            return schema
    return metadata_schema()


def own_timeline(store: Store) -> Timeline:
    """List the metadata table's timeline."""
    return Timeline.of(files_below(store, OWN_TIMELINE.rstrip("/")))


def _of_blocks(blocks: Collection[tuple[LogBlock, str]]) -> Iterator[FilesRecord]:
    """Yield the listing's records of these blocks, except records that a later block took back.

    Skips empty delete blocks; other kinds than HFile raise `UnsupportedTable`.
    """
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


# Source: Hudi `HoodieTableMetadataUtil.getValidInstantTimestamps`.
_FIRST = "0" * 14  # begins of writes that create its partitions
_REMOVING = (Action.CLEAN, Action.ROLLBACK, Action.RESTORE)


def is_valid(timeline: Timeline, own: Timeline) -> Callable[[str], bool]:
    """A test whether a log block counts, by its instant's begin time."""
    done = {i.begin for i in timeline.instants if i.is_completed}
    pending = {i.begin for i in timeline.instants} - done
    valid = done | ({i.begin for i in own.instants if i.is_completed} - pending)
    return lambda begin: begin in valid or begin.startswith(_FIRST)


def compacted_at(own: Timeline) -> str:
    """Begin time of the metadata table's last compaction; empty if never."""
    return max((i.begin for i in own.writes if i.action is Action.COMMIT), default="")


def uncompacted(own: Timeline) -> int:
    """Number of the metadata table's commits since its last compaction."""
    last = compacted_at(own)
    since = (i for i in own.writes if (i.completion or "") > last and i.action is Action.DELTACOMMIT)
    return sum(not i.begin.startswith(_FIRST) for i in since)


def unneeded_instants(own: Timeline, remaining: Collection[str], first: str) -> tuple[Instant, ...]:
    """Metadata table's oldest instants, in all states, that no reader needs and that completed before `first`.

    The latest such stays. `remaining`: begin times of files; the first unarchived one and all later instants stay.
    """
    end = min((first, *(begin for begin in remaining if begin >= own.first_active)))
    states: dict[str, list[Instant]] = {}
    for instant in own.instants:
        states.setdefault(instant.begin, []).append(instant)
    done = takewhile(
        lambda begin: begin < end and any("" < (i.completion or "") < first for i in states[begin]), states
    )
    return tuple(instant for begin in [*done][:-1] for instant in states[begin])


@dataclass(frozen=True, slots=True)
class ListingDifferences:
    """Differences between listing and files, as paths of base and log files.

    Attributes:
        hidden: visible and not listed.
        gone: listed and absent.
        resized: of another size than listed.
        empty: listed with no bytes, at which readers fail.
    """

    hidden: tuple[str, ...] = ()
    gone: tuple[str, ...] = ()
    resized: tuple[str, ...] = ()
    empty: tuple[str, ...] = ()


def differences(
    listing: FileListing, before: Iterable[Entry], after: Iterable[Entry], timeline: Timeline
) -> ListingDifferences:
    """Sorted paths where listing and files differ.

    `before`: files listed before `timeline`, `after`: after the listing; only committed files in both count as hidden.
    While a clean, rollback or restore is pending, no file counts as gone.
    """
    first, last = _data_files(before), _data_files(after)
    listed, visible, sizes = listing.sizes, timeline.visible, {**first, **last}
    begins = {path: at[1].begin for path in sizes if (at := data_file_at(path)) is not None}
    is_removing = bool(timeline.pending(*_REMOVING))
    data = [path for path in sorted(listed) if data_file_at(path) is not None]
    return ListingDifferences(
        hidden=tuple(p for p in sorted(first.keys() & last.keys()) if visible(begins[p]) and p not in listed),
        gone=tuple(path for path in data if path not in sizes and not is_removing),
        resized=tuple(path for path in data if listed[path] and sizes.get(path, listed[path]) != listed[path]),
        empty=tuple(path for path in data if not listed[path]),
    )


def _data_files(entries: Iterable[Entry]) -> dict[str, int]:
    return {entry.path: entry.size for entry in entries if data_file_at(entry.path) is not None}
