"""What every engine does where the rows are: write one file group's next file, read one file.

It runs on executors and workers, so it is picklable and knows no lock and no timeline. A file is announced by a marker
before it is written, so that a rollback finds it, and is created, never overwritten.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from hashlib import blake2b
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyarrow import types

from fsspec_cas import Lost, Machine, Won
from lockprovider.table.errors import Aborted, InvalidRecords
from lockprovider.table.files import base_file
from lockprovider.table.files import merge as merging
from lockprovider.table.files.place import TablePlace
from lockprovider.table.files.write_base_file import all_fresh, write_base_file
from lockprovider.table.format import schema as hudi_schema
from lockprovider.table.format.layout import (
    META,
    PARTITION_METAFILE,
    TIMELINE,
    BaseFile,
    MarkerKind,
    join,
    marker_path,
    nested,
    outer_of,
    partition_metafile,
)
from lockprovider.table.format.metadata import WriteStat
from lockprovider.table.format.properties import TableConfig
from lockprovider.table.timeline.view import FileSlice

_FEW = 8  # places are looked at one by one, and more by one listing from the first to the last


class WritesHere(NamedTuple):
    """What a transaction whose files are all written in its own process is told, and knows."""

    announce: Callable[[str], None]  # a marker, before its file is written
    partitions: set[str]  # those known to have a metafile; to be added to


@dataclass(frozen=True)
class GroupWriter:
    """Writes the files of one transaction."""

    place: TablePlace
    begin: str
    config: TableConfig
    schema: pa.Schema
    here: WritesHere | None = None

    def __getstate__(self) -> dict[str, Any]:
        if self.here is not None:
            raise TypeError("this writer is for the process of its transaction; make one by `writer.for_tasks`")
        return self.__dict__

    def keyed(self, rows: pa.Table) -> tuple[pa.Table, pa.Array, pa.Array]:
        """The rows with the table's columns and types, their record keys, and their partition paths.

        Raises:
            InvalidRecords: a key is null, a column does not fit, or one is not in the table.
        """
        strangers = sorted(set(rows.column_names) - set(self.schema.names))
        if strangers:
            raise InvalidRecords(f"columns {strangers} are not in the table, which has {self.schema.names}")
        plain = base_file.conform(rows, self.schema)
        keys = base_file.record_keys(plain, self.config.record_keys, named=self.config.names_single_key)
        return plain, keys, base_file.partition_paths(plain, self.config.partition_style)

    def insert(
        self, partition: str, rows: pa.Table, keys: pa.Array, token: str, file_id: str | None = None
    ) -> WriteStat:
        """Write a new file group; of rows with one key the latest is kept.

        A task that may be run again gives the `file_id`, the same one in each attempt: see `group_id`.
        """
        rows, keys = merging.dedupe(rows, keys, self.config.ordering_field)
        base = BaseFile(file_id or f"{Machine().new_id()}-0", token, self.begin)
        data = write_base_file(
            all_fresh(rows, base),
            rows.schema,
            keys=keys,
            partition=partition,
            base_file=base,
            table_name=self.config.name,
        )
        size = self._put(partition, base, data, keys, MarkerKind.CREATE)
        count = rows.num_rows
        return WriteStat(
            base.file_id,
            join(partition, base.name),
            partition,
            num_writes=count,
            num_inserts=count,
            file_size=size,
        )

    def rewrite(
        self, old: FileSlice, upserts: pa.Table, upsert_keys: pa.Array, delete_keys: pa.Array, token: str
    ) -> WriteStat | None:
        """Write the next slice of a file group, upserts of new keys in it; None if nothing in it changes."""
        rows, keys = merging.dedupe(upserts, upsert_keys, self.config.ordering_field)
        rows, opened = rows.combine_chunks(), self.place.open_encoded(old.path)
        found = merging.merge_plan(opened, rows, keys, delete_keys, self.config.ordering_field) or merging.untouched(
            opened
        )
        return self.merge(old, opened, found.with_new(keys, delete_keys), rows, token)

    def merge(
        self, old: FileSlice, opened: pq.ParquetFile, found: merging.MergePlan, upserts: pa.Table, token: str
    ) -> WriteStat | None:
        """Write the next slice of a file group, whose file is open, as planned; None if nothing in it changes."""
        if not found.changed:
            return None
        base = BaseFile(old.file_id, token, self.begin)
        data = write_base_file(
            merging.merged(opened, found, upserts, base),
            upserts.schema,
            keys=found.keys,
            partition=old.partition,
            base_file=base,
            table_name=self.config.name,
            known=None if found.deletes else opened,
        )
        size = self._put(old.partition, base, data, found.keys, MarkerKind.MERGE)
        return WriteStat(
            file_id=base.file_id,
            path=join(old.partition, base.name),
            partition=old.partition,
            prev_commit=old.begin,
            prev_base_file=old.path.rpartition("/")[2],
            num_writes=len(found.keys),
            num_inserts=found.inserts,
            num_updates=found.updates,
            num_deletes=found.deletes,
            file_size=size,
        )

    def withdraw_if_rolled_back(self, path: str) -> None:
        """Remove a file written just now if its instant was rolled back meanwhile: nobody would look for it again.

        Raises:
            Aborted: it was.
        """
        if not self.place.store.list(f"{TIMELINE}/{self.begin}"):
            self.place.store.delete(path)
            raise Aborted(f"instant {self.begin} was rolled back while a task still wrote; its file was removed")

    def _put(self, partition: str, base: BaseFile, data: bytes, keys: pa.Array, kind: MarkerKind) -> int:
        """Create the file; its size."""
        path = join(partition, base.name)
        self._announce(marker_path(self.begin, partition, base.name, kind))
        if kind is MarkerKind.CREATE:
            self.open_partitions([partition])
        return len(data) if self._create(path, data) else self._size_of_earlier(path, keys)

    def _announce(self, marker: str) -> None:
        if self.here is not None:
            self.here.announce(marker)
        self._create(marker, b"")

    def open_partitions(self, partitions: Iterable[str], each: Callable[..., Iterable[bool]] = map) -> None:
        """Make these partitions, unless they are there; `each` calls a function with each of many, as `map` does.

        Without its metafile a JVM reader takes a partition for none; another writer's serves as well.

        Raises:
            InvalidRecords: a new partition is inside another one, or around one.
        """
        known = set() if self.here is None else self.here.partitions
        new = [partition for partition in partitions if partition not in known]
        if not new:
            return
        outer = [join(one, PARTITION_METAFILE) for partition in new for one in outer_of(partition) if self._can_nest]
        self._refuse_nested(new, outer, made=False)
        made = [partition for partition, is_mine in zip(new, each(self._make_partition, new), strict=True) if is_mine]
        if made and self._can_nest:  # of two writers at once who make one inside the other at least one sees both
            self._refuse_nested(made, [*outer, *(f"{partition}/" for partition in made)], made=True)
        known.update(new)

    def _make_partition(self, partition: str) -> bool:
        made = self.place.store.put_if_absent(*partition_metafile(partition, self.begin), create_once=True)
        return isinstance(made, Won)

    @cached_property
    def _can_nest(self) -> bool:
        style = self.config.partition_style
        return style.can_nest and types.is_string(self.schema.field(style.fields[0]).type)

    def _refuse_nested(self, new: list[str], places: Iterable[str], *, made: bool) -> None:
        """Refuse new partitions that are in or around one at these places; if they are `made`, they are removed."""
        there = {*new, *self._partitions_at(sorted(set(places)))}
        pairs = [(inner, outer) for inner in sorted(there) for outer in there.intersection(outer_of(inner))]
        mine = [pair for pair in pairs if not set(new).isdisjoint(pair)]
        for partition in {one for pair in mine if made for one in pair}.intersection(new):
            self.place.store.delete(join(partition, PARTITION_METAFILE))
        if mine:
            raise nested(*mine[0])

    def _partitions_at(self, places: list[str]) -> Iterator[str]:
        """All partitions whose metafile is at one of these places, given in order; and maybe some between."""
        store = self.place.store
        if len(places) <= _FEW:
            found = [entry for place in places for entry in store.list(place)]
        else:
            found = store.list("", start_after=places[0][:-1], stop_at=f"{places[-1]}\U0010ffff")
        for entry in found:
            folder, _, name = entry.path.rpartition("/")
            if name.startswith(PARTITION_METAFILE) and not folder.startswith(f"{META}/"):
                yield folder

    def _size_of_earlier(self, path: str, keys: pa.Array) -> int:
        """The size of the file that an earlier attempt of the same task wrote; it stays.

        Raises:
            Aborted: it has other rows.
        """
        there = self.place.read(path, [hudi_schema.RECORD_KEY]).column(0)
        if len(there) != len(keys) or not pc.all(pc.is_in(keys, value_set=there)).as_py():
            raise Aborted(
                f"{path!r} was written twice, with different rows: they change when they are computed again; "
                "store the rows first (a table, a checkpoint), then write them; and write once in a transaction"
            )
        return self.place.store.head(path).size

    def _create(self, path: str, data: bytes) -> bool:
        """False if it is there already."""
        outcome = self.place.store.put_if_absent(path, data, create_once=True)
        if isinstance(outcome, Lost):
            return False
        outcome.unwrap()
        return True


def group_id(begin: str, *task: object) -> str:
    """The file id of a new file group, the same in every attempt of one task.

    So a second attempt (a retry, a late one, a speculative one) finds the first one's file, and writes no other.
    """
    text = "/".join(map(str, (begin, *task)))
    digest = blake2b(text.encode(), digest_size=16).hexdigest()
    digest = "abcdef"[int(digest[0], 16) % 6] + digest[1:]  # so that it is never taken for one of a bucket
    return f"{digest[:8]}-{digest[8:12]}-{digest[12:16]}-{digest[16:20]}-{digest[20:]}-0"
