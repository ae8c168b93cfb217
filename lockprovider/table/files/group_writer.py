"""Writer of markers, partition metafiles and data files.

Source: Hudi `HoodieCompactor`, `FileGroupReaderBasedMergeHandle`; `SparkSortAndSizeExecutionStrategy`,
`RowCustomColumnsSortPartitioner`.
"""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from hashlib import blake2b
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from numpy.typing import NDArray
from pyarrow import types

from fsspec_cas import Machine
from fsspec_cas.outcome import won_or_lost
from lockprovider.table.convert import OnMissing, Plan, compile_plan
from lockprovider.table.errors import Aborted, InvalidRecords
from lockprovider.table.files import base_file, encoding
from lockprovider.table.files.encoding import WrittenFile, all_fresh, encode_log, refuse_unordered, values_of_deletes
from lockprovider.table.files.merge import MergePlan, dedupe, merge_plan, merged, untouched, without
from lockprovider.table.files.merge_log import MergeRule, at_least, order_of
from lockprovider.table.files.place import FooterNote, TablePlace
from lockprovider.table.files.slice_rows import columns_to_merge, merged_rows, rows_of_keys
from lockprovider.table.format import bloom, keygen, layout
from lockprovider.table.format import schema as hudi_schema
from lockprovider.table.format.keygen import outer_of
from lockprovider.table.format.layout import PARTITION_METAFILE, BaseFile, LogFile, MarkerKind, join
from lockprovider.table.format.metadata import WriteStat
from lockprovider.table.format.properties import TableConfig
from lockprovider.table.format.schema import IS_DELETED, has_deletes, with_meta
from lockprovider.table.timeline.view import FileSlice

_SPILLED = pa.ipc.IpcWriteOptions(compression="lz4")
_MARKED = 2  # More files share one marker object.
_FEW = 8  # More places are read by one listing.


class WritesHere(NamedTuple):
    """Markers and partitions of a transaction, in its own process."""

    markers: list[str]  # recorded before their write
    announced: set[str]
    partitions: set[str]  # with a metafile
    wait_in_flight: Callable[[], object]  # before each data file


class NewGroup(NamedTuple):
    """New file group; keys may repeat."""

    partition: str
    rows: pa.Table
    keys: pa.Array
    token: str
    file_id: str

    def at(self, begin: str) -> tuple[str, BaseFile]:
        return self.partition, BaseFile(self.file_id, self.token, begin)


class Encoded(NamedTuple):
    """Encoded base file; `stat` lacks the file size."""

    stat: WriteStat
    written: WrittenFile


@dataclass(frozen=True)
class GroupWriter:
    """Writes the data files of instant `begin`, each after its marker, and never overwrites one.

    `here`: transaction's state, in its own process only; None makes it picklable.
    """

    place: TablePlace
    begin: str
    config: TableConfig
    schema: pa.Schema
    here: WritesHere | None = None

    def __getstate__(self) -> dict[str, Any]:
        if self.here is not None:
            raise TypeError("this writer is for the process of its transaction; make one by `writer.start_for_tasks`")
        return self.__dict__

    def plan(self, given: pa.Schema, missing: OnMissing = "null") -> Plan:
        return compile_plan(given, self.schema, missing, needed=self.config.identifying)

    def keyed(self, rows: pa.Table, missing: OnMissing = "null") -> tuple[pa.Table, pa.Array, pa.Array]:
        """Rows in the table's columns, their record keys and partition paths.

        Rows that replace others need `missing="refuse"`. Raises `InvalidRecords` for a null key or a set delete flag.
        """
        return self._keyed(self.plan(rows.schema, missing)(rows))

    def keyed_deletes(self, rows: pa.Table, *, valued: bool = False) -> tuple[pa.Table, pa.Array, pa.Array]:
        return self._keyed(self.deletes(rows, valued=valued))

    def deletes(self, rows: pa.Table, *, valued: bool = False) -> pa.Table:
        """Convert deletes to key, partition and, if `valued`, ordering columns, of which none may be missing."""
        names = [*self.config.identifying, *([self.config.ordering_field] if valued else [])]
        schema = pa.schema([self.schema.field(name) for name in dict.fromkeys(names)])
        rows = rows.select(hudi_schema.present(schema.names, rows.column_names))
        return compile_plan(rows.schema, schema, "refuse", needed=self.config.identifying)(rows)

    def _keyed(self, plain: pa.Table) -> tuple[pa.Table, pa.Array, pa.Array]:
        if has_deletes(plain.schema) and (count := pc.sum(plain.column(IS_DELETED)).as_py()):
            raise InvalidRecords(f"{IS_DELETED} is true in {count} rows: give such keys as `deletes`, or to `delete`")
        keys = base_file.record_keys(plain, self.config.record_keys, named=self.config.names_single_key)
        return plain, keys, base_file.partition_paths(plain, self.config.partition_style)

    def insert(
        self, partition: str, rows: pa.Table, keys: pa.Array, token: str, file_id: str | None = None
    ) -> WriteStat:
        return self.put(self.encode(NewGroup(partition, rows, keys, token, file_id or f"{Machine().new_id()}-0")))

    def encode(self, group: NewGroup) -> Encoded:
        """Encode each key's latest row."""
        return next(self.encode_each([group]))

    def encode_each(self, groups: Iterable[NewGroup]) -> Iterator[Encoded]:
        """Yield each new group's encoded base file, in order, with each key's latest row.

        Reads all groups first. Raises as `refuse_unordered` and `dedupe`.
        """
        unique = []
        for group in groups:
            refuse_unordered(self.config, group.rows)
            rows, keys = dedupe(group.rows, group.keys, self.config.ordering_field)
            unique.append(group._replace(rows=rows, keys=keys))
        for group, key_filter in zip(unique, bloom.encode_filters([group.keys for group in unique]), strict=True):
            partition, base = group.at(self.begin)
            stat = WriteStat(base.file_id, "", partition, num_inserts=group.rows.num_rows)
            rows = all_fresh(group.rows, base)
            yield self.encoded(stat, base, rows, group.rows.schema, group.keys, key_filter=key_filter)

    def encoded(
        self,
        stat: WriteStat,
        base: BaseFile,
        parts: Iterable[pa.Table],
        columns: pa.Schema,
        keys: pa.Array | None = None,
        *,
        known: pq.ParquetFile | None = None,
        key_filter: str | None = None,
    ) -> Encoded:
        """Encode a base file in memory as `encode_base_file`; add its path and row count to a copy of `stat`."""
        written = encoding.encode_base_file(
            parts,
            columns,
            keys=keys,
            partition=stat.partition,
            base_file=base,
            table_name=self.config.name,
            known=known,
            key_filter=key_filter,
        )
        return Encoded(replace(stat, path=join(stat.partition, base.name), num_writes=len(written.keys)), written)

    def announce(self, files: Sequence[tuple[str, BaseFile | LogFile]]) -> None:
        """Write many new files' markers in one object; few files, or files after single markers, are left out."""
        here = self.here
        if here is not None and (self._marks_in_one if here.markers else len(files) > _MARKED):
            self._mark_in_one(here, [(partition, file.name, MarkerKind.CREATE) for partition, file in files])

    def put(self, file: Encoded) -> WriteStat:
        """Create a missing partition metafile, then marker and file."""
        self.open_partitions([file.stat.partition])
        return self.put_slice(file, MarkerKind.CREATE)

    def rewrite(
        self,
        old: FileSlice,
        upserts: pa.Table,
        upsert_keys: pa.Array,
        delete_keys: pa.Array,
        token: str,
        *,
        delete_values: pa.Array | None = None,
    ) -> WriteStat | None:
        """Write upserts (each key's latest row) and deletes to a file group; None: nothing changes. See `log`."""
        rows, keys = dedupe(upserts, upsert_keys, self.config.ordering_field)
        if self.config.is_merge_on_read:
            return self.log(old, rows, keys, delete_keys, token, delete_values=delete_values)
        rows, opened = rows.combine_chunks(), self.place.open(old.path)
        plan = merge_plan(opened, rows, keys, delete_keys, self.config.ordering_field) or untouched(opened)
        return self.merge(old, opened, plan.with_new(keys, delete_keys), rows, token)

    def merge(
        self, old: FileSlice, opened: base_file.ParquetFile, plan: MergePlan, upserts: pa.Table, token: str
    ) -> WriteStat | None:
        """Write a file group's marker and next base file by `plan` for `upserts` and current file `opened`.

        Returns None, writing nothing, if nothing changes; raises as `put_slice`.
        """
        if not plan.changed:
            return None
        base = BaseFile(old.file_id, token, self.begin)
        stat = WriteStat(
            old.file_id,
            "",
            old.partition,
            prev_commit=old.begin,
            prev_base_file=old.path.rpartition("/")[2],
            num_inserts=plan.inserts,
            num_updates=plan.updates,
            num_deletes=plan.deletes,
        )
        rows, known = merged(opened, plan, upserts, base), None if plan.deletes else opened
        return self.put_slice(self.encoded(stat, base, rows, upserts.schema, plan.keys, known=known), MarkerKind.MERGE)

    def log(
        self,
        old: FileSlice,
        rows: pa.Table,
        keys: pa.Array,
        delete_keys: pa.Array,
        token: str,
        *,
        delete_values: pa.Array | None = None,
    ) -> WriteStat | None:
        """Create a marker and a log file of rows with unique keys and of deletes; None, writing nothing, if empty.

        A key in both is deleted, at the higher of their ordering values. Without `delete_values` reads the slice, and
        deletes only keys that it has. Raises as `encode_log` and `values_of_deletes`, and `Aborted` as `put_slice`.
        """
        rule = MergeRule.of(self.config)
        found_deletes = None
        if delete_values is not None:
            of_upserts = base_file.array_of(rows.column(*rule.ordering)).take(pc.index_in(delete_keys, value_set=keys))
            is_higher = pa.array(at_least([of_upserts], [delete_values]))
            values = pc.if_else(is_higher, of_upserts, delete_values)
            found_deletes = pa.table([delete_keys, values], names=[hudi_schema.RECORD_KEY, *rule.ordering])
            values_of_deletes(self.config, found_deletes)
        elif len(delete_keys):
            found_deletes = rows_of_keys(self.place, old, self.schema, rule, delete_keys)
        rows, keys = without(rows, keys, delete_keys)
        deletes = with_meta(self.schema).empty_table() if found_deletes is None else found_deletes
        if not rows.num_rows and not deletes.num_rows:
            return None
        file = LogFile(old.file_id, self.begin, 1, token)
        stat, data = encode_log(self.config, file, old.partition, (rows, keys, deletes))
        self._mark(stat.partition, stat.file_name, MarkerKind.CREATE)
        if self.here is not None:
            self.here.wait_in_flight()
        created = self._create(stat.path, data)
        if not created and self.place.store.read(stat.path).data != data:
            raise _written_twice(stat.path)
        return self._unless_rolled_back(stat, created=created)

    def put_slice(self, file: Encoded, marker: MarkerKind) -> WriteStat:
        """Create a base file after its marker, cache its note; return statistics with size, in tasks its note.

        Keeps an earlier attempt's file with the same keys. Raises `Aborted` if it has others, or the instant was rolled
        back: then a file just created is deleted.
        """
        stat = file.stat
        self._mark(stat.partition, stat.file_name, marker)
        if self.here is not None:
            self.here.wait_in_flight()
        if not self._create(stat.path, file.written.data):
            size = self._size_of_earlier(stat.path, file.written.keys)
            return self._unless_rolled_back(replace(stat, file_size=size), created=False)
        note = FooterNote.of(file.written.footer).short
        self.place.footer_notes.add(stat.path, note)
        return self._unless_rolled_back(
            replace(stat, file_size=len(file.written.data), note=note.text if self.here is None else ""), created=True
        )

    def _unless_rolled_back(self, stat: WriteStat, *, created: bool) -> WriteStat:
        """Return `stat` if `here` is set or the store has the instant; else delete a `created` file, raise `Aborted`.

        An earlier attempt's file stays, since it may be committed.
        """
        if self.here is not None or self.place.store.list(f"{layout.TIMELINE}/{self.begin}"):
            return stat
        if created:
            self.place.store.delete(stat.path)
            raise Aborted(f"instant {self.begin} was rolled back while a task still wrote; its file was removed")
        raise Aborted(
            f"instant {self.begin} ended before this attempt of a task: it was rolled back, or committed and archived; "
            f"{stat.path!r} of an earlier attempt stays as it is"
        )

    def _mark(self, partition: str, name: str, kind: MarkerKind) -> None:
        """Create a file's marker, alone or, like earlier ones, in an object; first record it in `here`, if set.

        Does nothing if it is announced.
        """
        if self.here is not None and join(partition, name) in self.here.announced:
            return
        if self.here is not None and self._marks_in_one:
            self._mark_in_one(self.here, [(partition, name, kind)])
            return
        marker = layout.marker_path(self.begin, partition, name, kind)
        if self.here is not None:
            self.here.markers.append(marker)
            self.here.announced.add(join(partition, name))
        self._create(marker, b"")

    @property
    def _marks_in_one(self) -> bool:
        return self.here is not None and layout.markers_type(self.begin)[0] in self.here.markers[:1]

    def _mark_in_one(self, here: WritesHere, files: Sequence[tuple[str, str, MarkerKind]]) -> None:
        """Record files (partition, name, kind) in `here`, then create an object with their markers.

        In parallel, creates `MARKERS.type`, which points to it.
        """
        kind = layout.markers_type(self.begin)
        marker = layout.markers_file(self.begin, len(here.markers), [layout.marker_name(*file) for file in files])
        here.markers.extend(path for path, _ in (kind, marker))
        here.announced.update(join(*file[:2]) for file in files)
        created = self.place.store.in_background(partial(self._create, *kind))
        self._create(*marker)
        created.result()

    def open_partitions(self, partitions: Iterable[str], each: Callable[..., Iterable[bool]] = map) -> None:
        """Create missing metafiles, for JVM readers, and record partitions in `here`; `each` works like `map`.

        Skips recorded ones. Raises `InvalidRecords` if a new one is inside or around another, and deletes the metafiles
        made for these.
        """
        known = set() if self.here is None else self.here.partitions
        new = [partition for partition in partitions if partition not in known]
        if not new:
            return
        outer = [
            join(folder, PARTITION_METAFILE) for partition in new for folder in outer_of(partition) if self._can_nest
        ]
        self._refuse_nested(new, outer, made=False)
        made = [partition for partition, is_mine in zip(new, each(self._make_partition, new), strict=True) if is_mine]
        if made and self._can_nest:  # One of two concurrent writers sees both.
            self._refuse_nested(made, [*outer, *(f"{partition}/" for partition in made)], made=True)
        known.update(new)

    def _make_partition(self, partition: str) -> bool:
        metafile = layout.partition_metafile(partition, self.begin)
        return won_or_lost(self.place.store.put_if_absent(*metafile, create_once=True))

    @cached_property
    def _can_nest(self) -> bool:
        style = self.config.partition_style
        return style.can_nest and types.is_string(self.schema.field(style.fields[0]).type)

    def _refuse_nested(self, new: list[str], places: Iterable[str], *, made: bool) -> None:
        """Raise `InvalidRecords` for `new` partitions inside or around new ones, or any listed at `places`.

        These are path prefixes. If `made`, first deletes only the refused new ones' metafiles.
        """
        partitions = {*new, *self._partitions_at(sorted(set(places)))}
        pairs = [(inner, outer) for inner in sorted(partitions) for outer in partitions.intersection(outer_of(inner))]
        faults = [pair for pair in pairs if not set(new).isdisjoint(pair)]
        for partition in {member for pair in faults if made for member in pair}.intersection(new):
            self.place.store.delete(join(partition, PARTITION_METAFILE))
        if faults:
            raise keygen.nested(*faults[0])

    def _partitions_at(self, places: list[str]) -> Iterator[str]:
        """List partitions with a metafile at these sorted path prefixes; above 8 also others between them."""
        store = self.place.store
        if len(places) <= _FEW:
            entries = [entry for place in places for entry in store.list(place)]
        else:
            entries = store.list("", start_after=places[0][:-1], stop_at=f"{places[-1]}\U0010ffff")
        for entry in entries:
            folder, _, name = entry.path.rpartition("/")
            if name.startswith(PARTITION_METAFILE) and not folder.startswith(f"{layout.META}/"):
                yield folder

    def _size_of_earlier(self, path: str, keys: pa.Array) -> int:
        stored_keys = self.place.read(path, [hudi_schema.RECORD_KEY]).column(0)
        if len(stored_keys) != len(keys) or pc.all(pc.is_in(keys, value_set=stored_keys)).as_py() is False:
            raise _written_twice(path)
        return self.place.store.head(path).size

    def _create(self, path: str, data: bytes) -> bool:
        return won_or_lost(self.place.store.put_if_absent(path, data, create_once=True))


def _written_twice(path: str) -> Aborted:
    return Aborted(
        f"{path!r} was written twice, with different rows: they change when they are computed again; "
        "store the rows first (a table, a checkpoint), then write them; and write once in a transaction"
    )


def group_id(begin: str, *task: object) -> str:
    """New file group's id, equal in every attempt of one task."""
    text = "/".join(map(str, (begin, *task)))
    digest = blake2b(text.encode(), digest_size=16).hexdigest()
    # Buckets begin with a digit.
    digest = "abcdef"[int(digest[0], 16) % 6] + digest[1:]
    return f"{digest[:8]}-{digest[8:12]}-{digest[12:16]}-{digest[16:20]}-{digest[20:]}-0"


def write_clustered(
    writer: GroupWriter, slices: Sequence[FileSlice], sort_by: Sequence[str], file_ids: Sequence[str], token: str
) -> list[WriteStat]:
    """Write one partition's slices, sorted by `sort_by`, as new file groups `file_ids`; commit times stay.

    Each gets a range of about equal size; several use temporary files. Empty ones are not written. Raises as
    `put_slice`.
    """
    rule = MergeRule.of(writer.config) if any(file_slice.logs for file_slice in slices) else MergeRule()
    stored = [hudi_schema.COMMIT_TIME, hudi_schema.COMMIT_SEQNO, hudi_schema.RECORD_KEY, *writer.schema.names]
    outputs = [np.zeros(0, np.int64)]
    if len(file_ids) > 1:
        columns = pa.concat_tables(_rows(writer, slices, [hudi_schema.RECORD_KEY, *sort_by], rule))
        outputs = [_output_of(columns.select(list(sort_by)), columns.num_rows, len(file_ids))]
        del columns
    tables = _spread(_rows(writer, slices, stored, rule), outputs[0], len(file_ids))
    return [
        _write_sorted(writer, slices[0].partition, BaseFile(file_id, token, writer.begin), _ordered(rows, sort_by))
        for file_id, rows in zip(file_ids, tables, strict=True)
        if rows.num_rows
    ]


def _rows(writer: GroupWriter, slices: Iterable[FileSlice], names: list[str], rule: MergeRule) -> Iterator[pa.Table]:
    """Read the slices, and yield the named columns of their merged rows, in parts; the first is empty."""
    full = with_meta(writer.schema)
    unique_names = dict.fromkeys(names)
    columns = pa.schema([full.field(name) for name in dict.fromkeys([*unique_names, *columns_to_merge(full, rule)])])
    yield columns.empty_table().select([*unique_names])
    for file_slice in slices:
        for part in merged_rows(writer.place, file_slice, columns, rule, in_place=True):
            if part.num_rows:
                yield part.select([*unique_names])


def _output_of(rows: pa.Table, count: int, files: int) -> NDArray[np.int64]:
    size = max(1, -(-count // files))
    order = order_of(rows.columns) if rows.num_columns else np.arange(count)
    outputs = np.empty(count, np.int64)
    outputs[order] = np.arange(count) // size
    return outputs


def _spread(parts: Iterator[pa.Table], outputs: NDArray[np.int64], files: int) -> Iterator[pa.Table]:
    """Yield one table for each output file, in order; `outputs` has each row's file.

    The first part must be empty. Several use temporary files; a single one needs no `outputs`.
    """
    if files == 1:
        yield pa.concat_tables(parts)
        return
    with contextlib.ExitStack() as opened:
        runs = [opened.enter_context(tempfile.TemporaryFile()) for _ in range(files)]
        first = next(parts)
        streams = [pa.ipc.new_stream(run, first.schema, options=_SPILLED) for run in runs]
        done = 0
        for part in parts:
            positions = outputs[done : done + part.num_rows]
            for number in np.unique(positions).tolist():
                streams[number].write_table(part.filter(pa.array(positions == number)))
            done += part.num_rows
        for run, stream in zip(runs, streams, strict=True):
            stream.close()
            run.seek(0)
            yield pa.ipc.open_stream(run).read_all()


def _ordered(rows: pa.Table, sort_by: Sequence[str]) -> pa.Table:
    return rows.take(order_of(rows.select(list(sort_by)).columns)) if sort_by else rows


def _write_sorted(writer: GroupWriter, partition: str, base: BaseFile, rows: pa.Table) -> WriteStat:
    keys, plain = base_file.array_of(rows.column(hudi_schema.RECORD_KEY)), rows.drop([hudi_schema.RECORD_KEY])
    parts = (plain[first : first + encoding.BATCH_ROWS] for first in range(0, rows.num_rows, encoding.BATCH_ROWS))
    stat = WriteStat(base.file_id, "", partition, num_inserts=rows.num_rows)
    return writer.put(writer.encoded(stat, base, parts, writer.schema, keys))


def write_compacted(writer: GroupWriter, file_slice: FileSlice, token: str) -> WriteStat:
    """Merge a slice's logs with its base file, if any; create marker and next base file.

    Commit times and sequence numbers stay. Raises as `put_slice`.
    """
    rule, full = MergeRule.of(writer.config), with_meta(writer.schema)
    stored = [hudi_schema.COMMIT_TIME, hudi_schema.COMMIT_SEQNO, hudi_schema.RECORD_KEY, *writer.schema.names]
    needed = [name for name in columns_to_merge(full, rule) if name not in stored]
    columns = pa.schema([full.field(name) for name in (*stored, *needed)])
    stat = WriteStat(
        file_slice.file_id,
        "",
        file_slice.partition,
        prev_commit=file_slice.base or None,
        prev_base_file=file_slice.path.rpartition("/")[2] or None,
    )
    parts = (rows.select(stored) for rows in merged_rows(writer.place, file_slice, columns, rule, in_place=True))
    file = writer.encoded(stat, BaseFile(file_slice.file_id, token, writer.begin), parts, writer.schema)
    return writer.put_slice(file, MarkerKind.MERGE if file_slice.path else MarkerKind.CREATE)
