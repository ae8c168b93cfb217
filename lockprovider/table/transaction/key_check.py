"""Whether the new keys of a write are new at its commit, too: for tables whose keys are looked up.

Two writers that insert the same new key at once write different file groups, so that no file group shows it. Here the
later one compares its new files' keys with those of the files that others have added since its snapshot: first by the
ranges of keys in the footers, then by the bloom filter, then by the keys. Most of it is done before the lock is taken;
under it only what was committed in between.

Promised, if all writers do it: no key is twice in a partition because of a race. NOT promised: anything for writers
that do not, JVM writers among them; and it costs reading the new files' keys back, in the process that commits.

Source: the key ranges and bloom filters are those of Hudi's `HoodieBloomIndex`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

from lockprovider.table.errors import InvalidRecords, WriteConflict
from lockprovider.table.files.keys import KeyFile
from lockprovider.table.timeline.conflict import completed_since

if TYPE_CHECKING:
    from lockprovider.table.files.place import TablePlace
    from lockprovider.table.format.instant import Instant
    from lockprovider.table.format.metadata import CommitMetadata, WriteStat
    from lockprovider.table.state.context import TableContext
    from lockprovider.table.timeline.timeline import Timeline
    from lockprovider.table.timeline.view import Snapshot


@dataclass(frozen=True, slots=True)
class SharedKeys:
    """Keys that another commit has inserted since the snapshot, too."""

    lost_to: Instant
    partition: str
    keys: tuple[str, ...]


class KeyCheck:
    """The new keys of one write; each commit of others is compared with them once."""

    def __init__(self, place: TablePlace, stats: Iterable[WriteStat]) -> None:
        self._place = place
        self._new: dict[str, list[KeyFile]] = {}
        for stat in stats:
            if stat.prev_commit is None and stat.num_writes:
                self._new.setdefault(stat.partition, []).append(_file(place, stat))
        self._compared: set[str] = set()

    def compare(self, later: Iterable[tuple[Instant, CommitMetadata]]) -> SharedKeys | None:
        """The first of these commits that has inserted a key of this write, if any.

        Raises:
            HistoryGone: a file of theirs was cleaned already.
        """
        for instant, metadata in later:
            if instant.file_name in self._compared:
                continue
            for partition, keys in self._shared(metadata.stats):
                return SharedKeys(instant, partition, keys)
            self._compared.add(instant.file_name)
        return None

    def refuse_known(self, seen: Snapshot) -> None:
        """Refuse an insert of keys that the snapshot has, or that come twice in the write itself.

        Raises:
            InvalidRecords: naming one.
        """
        for partition, mine in self._new.items():
            keys = pa.concat_arrays([file.keys for file in mine])
            if pc.count_distinct(keys).as_py() < len(keys):
                counts = pc.value_counts(keys)
                twice = counts.filter(pc.greater(counts.field("counts"), 1))[0]["values"].as_py()
                raise InvalidRecords(f"record key {twice!r} comes more than once for partition {partition!r}")
            for one in seen.within([partition]):
                self._refuse(partition, KeyFile(self._place, one.path, one.size))

    def _refuse(self, partition: str, there: KeyFile) -> None:
        for mine in self._new[partition]:
            known = mine.shared(there)
            if len(known):
                raise InvalidRecords(
                    f"{len(known)} record keys are in partition {partition!r} already, the first is "
                    f"{known[0].as_py()!r}; upsert them instead"
                )

    def _shared(self, stats: Mapping[str, Iterable[WriteStat]]) -> Iterable[tuple[str, tuple[str, ...]]]:
        for partition, mine in self._new.items():
            for stat in stats.get(partition, ()):
                if stat.prev_commit is not None and not stat.num_inserts:
                    continue  # its keys were there before
                there = _file(self._place, stat)
                for one in mine:
                    keys = one.shared(there)
                    if len(keys):
                        yield partition, tuple(keys.to_pylist())


def refuse_shared(
    table: TableContext, begin: str, keys: KeyCheck, later: Iterable[tuple[Instant, CommitMetadata]]
) -> None:
    """Let the write that began then give way to one of these that has inserted a key of its own.

    Raises:
        WriteConflict: naming the keys.
    """
    shared = keys.compare(later)
    if shared is not None:
        table.tell("conflict", begin, lost_to=shared.lost_to.begin, keys=len(shared.keys))
        raise WriteConflict(begin, shared.lost_to.file_name, (), shared.keys)


def _file(place: TablePlace, stat: WriteStat) -> KeyFile:
    return KeyFile(place, stat.path, stat.file_size)


def look_for_keys(
    table: TableContext, begin: str, stats: Sequence[WriteStat], since: Timeline, inserted_into: Snapshot | None
) -> KeyCheck:
    """Most of the check, before others have to wait for it; `inserted_into`: where none of the keys may be already.

    Raises:
        WriteConflict: another has inserted a key of these files since that timeline.
        InvalidRecords: they are inserted, and a key is in the table already.
    """
    keys = KeyCheck(table.place, stats)
    if inserted_into is not None:
        keys.refuse_known(inserted_into)
    done = completed_since(since, table.listed_timeline())
    refuse_shared(table, begin, keys, [(i, table.metadata_of(i)) for i in done])
    return keys
