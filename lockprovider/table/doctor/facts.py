"""What a doctor looks up, and what it says."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Literal

from fsspec_cas import Entry
from lockprovider.table.format.instant import Instant
from lockprovider.table.format.layout import BaseFile, FileGroup, LogFile, data_file_at
from lockprovider.table.format.metadata import CommitMetadata, WriteStat
from lockprovider.table.format.properties import TableConfig
from lockprovider.table.state.metadata_table import ListingDifferences
from lockprovider.table.timeline.timeline import Timeline
from lockprovider.table.timeline.view import FileSlice

_SHOWN = 3


@dataclass(frozen=True, slots=True)
class TableFinding:
    """One thing that is wrong, or (a note) only good to know.

    Attributes:
        rule: the rule that it is found by, e.g. `R4`.
        state: `wrong`, or `note`.
        what: what was found.
        mend: what to do about it.

    >>> TableFinding("R4", "note", "the table was upgraded", "nothing").state
    'note'
    """

    rule: str
    state: Literal["wrong", "note"]
    what: str
    mend: str


@dataclass(frozen=True, slots=True)
class Facts:
    """What was found. `files` were listed before `timeline`.

    Attributes:
        properties: what was understood of them, or the sentence that says why not.
        lone_backup, both: which of the two properties files are there besides the plain one alone.
        entries: the files of the timeline folder, by name.
        commits: what completed writes did, or the sentence that says why that cannot be read.
        markers: paths of all markers.
        beats: begin times that have a heartbeat file.
        victims: begin times that completed rollbacks and restores name.
        now_ms: when that was, in epoch ms.
        dead: begin times of pending instants whose writer or executor is dead, or that have none.
        clock_ahead_ms: how far this machine's clock is ahead of the store's; 0 if that makes no difference.
        lock_fault: what is wrong with the lock record; empty if nothing is.
        lock_note: who holds the lock, or what is not applied yet; empty if it is free.
        lockless: the commits that are not in the lock's log, though it goes back so far.
        bucket_rules: whether a JVM writer has made rules for its buckets, which are unknown here.
        slices: the latest snapshot, if it could be read.
        misread: why its rows would come out wrong here; empty if they do not.
        archive_fault: what is wrong with the archive's own files.
        archive_left: instants that are in the archive, and on the timeline still.
        archive_hidden: archived writes that are younger than one of those, and so count as never committed.
        listing: where the metadata table differs from what is there, or the sentence that says why it cannot be read;
            None if readers use none.
        misplaced: in how many rows of a file the key is of another bucket, if there are buckets; not the files without.
        repeated: how many keys of a partition are in several base files, not the partitions without; None: not counted.
    """

    properties: TableConfig | str
    timeline: Timeline
    entries: Mapping[str, Entry]
    files: tuple[Entry, ...]
    commits: Mapping[Instant, CommitMetadata | str]
    markers: tuple[str, ...] = ()
    beats: tuple[str, ...] = ()
    victims: frozenset[str] = frozenset()
    now_ms: int = 0
    dead: frozenset[str] = frozenset()
    metadata_table: bool = False
    lone_backup: bool = False
    both: bool = False
    clock_ahead_ms: int = 0
    lock_fault: str = ""
    lock_note: str = ""
    lockless: tuple[str, ...] = ()
    bucket_rules: bool = False
    slices: tuple[FileSlice, ...] = ()
    misread: str = ""
    archive_fault: str = ""
    archive_left: tuple[str, ...] = ()
    archive_hidden: tuple[str, ...] = ()
    listing: ListingDifferences | str | None = None
    misplaced: Mapping[str, int] = field(default_factory=dict)
    repeated: Mapping[str, int] | None = None
    data: tuple[tuple[str, BaseFile | LogFile, Entry], ...] = field(init=False)

    def __post_init__(self) -> None:
        found = ((data_file_at(entry.path), entry) for entry in self.files)
        object.__setattr__(self, "data", tuple((*at, entry) for at, entry in found if at is not None))

    @property
    def config(self) -> TableConfig | None:
        """The properties, if they could be understood."""
        return None if isinstance(self.properties, str) else self.properties

    @property
    def stats(self) -> Iterator[tuple[Instant, WriteStat]]:
        """Every file that a readable commit says it wrote."""
        for instant, metadata in self.commits.items():
            if not isinstance(metadata, str):
                yield from ((instant, stat) for stats in metadata.stats.values() for stat in stats)

    @property
    def replaced(self) -> frozenset[FileGroup]:
        """The file groups that ended."""
        known = (metadata for metadata in self.commits.values() if not isinstance(metadata, str))
        return frozenset[FileGroup]().union(*(metadata.ended for metadata in known))


def some(names: Iterable[str]) -> str:
    """A few of them, and how many more there are."""
    found = sorted(names)
    more = f" and {len(found) - _SHOWN} more" if len(found) > _SHOWN else ""
    return ", ".join(found[:_SHOWN]) + more
