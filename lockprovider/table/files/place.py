"""`TablePlace`, and its notes of files' footers.

`services.checkpoint` shares the notes in the lock folder (SPECIFICATION.md, "Footers"). They never expire: file names
are never reused.

Source: the Parquet specification, "Statistics"; Arrow `ParquetFileFragment::EvaluateStatisticsAsExpression`.
"""

from __future__ import annotations

import contextlib
import json
import zlib
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache, partial, reduce
from operator import and_
from threading import Lock
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from numpy.typing import NDArray
from pyarrow import fs as arrow_fs
from pyarrow import types

from fsspec_cas import CasError, Outcome, Store, Won
from fsspec_cas.backends import split_url
from lockprovider.bounded import as_text, inflate, parse_json, plausible
from lockprovider.table.errors import Corrupt
from lockprovider.table.files import base_file
from lockprovider.table.files.base_file import LEGACY_KEY
from lockprovider.table.format import bloom
from lockprovider.table.format.metadata import WriteStat
from lockprovider.table.format.schema import META_COLUMNS

WHOLE_BYTES = 8 << 20  # Up to here, one request is cheaper.
NOTES = ".hoodie/.locks/footers/"
MANY = 10_000  # Above, reading all keys is quicker.
FEW = 8  # Up to here, reading footers is quicker.
_LOCAL = "local"
_VERSION = 1
_LEVEL = 1  # Filters compress badly.
_ONE_BY_ONE = 64
_OBJECTS = 16  # More objects are merged.
_MERGED = "m"  # suffix
_KEPT = 2  # sources, for readers that listed them
_FILTER_BYTES = 4096  # of 512 keys
_FILTERS_BYTES = 4 << 20  # of all filters in one object
_MEMORY_BYTES = 64 << 20
_DAMAGED = (ValueError, KeyError, TypeError, IndexError, AttributeError, zlib.error)


@dataclass(frozen=True)
class TablePlace:
    """Location of a table, with its store and footer notes. Picklable; each process opens its own store."""

    url: str
    storage_options: dict[str, Any] | None

    @cached_property
    def store(self) -> Store:
        return Store.from_url(self.url, self.storage_options)

    @cached_property
    def footer_notes(self) -> FooterNotes:
        return FooterNotes()

    @classmethod
    def of(cls, store: Store, url: str, storage_options: dict[str, Any] | None) -> TablePlace:
        """Place of an open `store`; its footer notes also read the lock folder."""
        place = cls(url, storage_options)
        place.__dict__["store"] = store
        place.__dict__["footer_notes"] = FooterNotes(beside_the_lock=True)
        return place

    def __getstate__(self) -> dict[str, Any]:
        return {"url": self.url, "storage_options": self.storage_options}

    def ranges(self, paths: Sequence[str]) -> Mapping[str, Ranges]:
        return self.footer_notes.ranges(self.store, paths)

    def source(self, path: str, size: int | None = None) -> tuple[Any, arrow_fs.FileSystem | None]:
        """Return what pyarrow opens: a path and its filesystem, or bytes, read now, and None.

        Bytes are of remote files up to 8 MiB or without `size`, and of those in memory. May raise `FileNotFoundError`,
        for a path at its read.
        """
        store = self.store
        if self.is_local:
            return (f"{store.root}/{path}", arrow_fs.LocalFileSystem())
        if store.kind == "memory" or size is None or size <= WHOLE_BYTES:
            return (pa.BufferReader(store.read(path).data), None)
        fs, root = split_url(self.url, self.storage_options)
        return (f"{root}/{path}", arrow_fs.PyFileSystem(arrow_fs.FSSpecHandler(fs)))

    def read(self, path: str, columns: list[str] | None = None) -> pa.Table:
        return base_file.read_columns(self.open(path), columns)

    def open(self, path: str, size: int | None = None) -> base_file.ParquetFile:
        """Open a base file as `open_base_file` and cache its footer's note; without `size` fetch a remote one whole."""
        with base_file.reading(path):
            file = base_file.open_base_file(*self.source(path, size), path)
        self.footer_notes.opened(path, file.metadata)
        return file

    def footer(self, path: str) -> pq.FileMetaData:
        return self.open(path, WHOLE_BYTES + 1).metadata

    @property
    def is_local(self) -> bool:
        return self.store.kind == _LOCAL


@dataclass(frozen=True, slots=True)
class FooterNote:
    """Summary of a base file's footer: least and greatest key, bloom filter as text, column ranges."""

    ends: tuple[str, str] | None
    filter: str | None
    ranges: Ranges = field(default_factory=dict)

    @classmethod
    def of(cls, footer: pq.FileMetaData) -> FooterNote:
        key_filter = base_file.known_filter(footer)
        return cls(base_file.key_range(footer), None if key_filter is None else key_filter.text, ranges_of(footer))

    def may_have(self, least: str, greatest: str, asked: bloom.Asked | None) -> bool:
        """Return False if the file certainly has none of the keys `asked`, from `least` to `greatest`.

        Without `asked` compares only the range. A damaged filter excludes nothing.
        """
        if self.ends is not None and (greatest < self.ends[0] or self.ends[1] < least):
            return False
        if asked is None or self.filter is None:
            return True
        try:
            return bloom.BloomFilter.parse(self.filter).might_contain_any(asked)
        except Corrupt:
            return True

    def may_have_each(self, keys: pa.Array) -> NDArray[np.bool_]:
        """Mask of keys that the file may have; above 10,000 in range, by range only.

        Raises `Corrupt` for a damaged filter.
        """
        mask = np.ones(len(keys), dtype=np.bool_)
        if self.ends is not None:
            between = pc.and_(pc.greater_equal(keys, self.ends[0]), pc.less_equal(keys, self.ends[1]))
            mask = np.array(between, dtype=np.bool_)
        if self.filter is not None and 0 < np.count_nonzero(mask) <= MANY:
            mask[mask] = bloom.BloomFilter.parse(self.filter).might_contain_each(keys.filter(pa.array(mask)))
        return mask

    @property
    def short(self) -> FooterNote:
        return self if len(self.filter or "") <= _FILTER_BYTES else replace(self, filter=None)

    @property
    def size(self) -> int:
        return len(self.filter or "") + 200 * (1 + len(self.ranges))

    @property
    def text(self) -> str:
        return json.dumps(self.row, separators=(",", ":"))

    @property
    def row(self) -> Sequence[Any]:
        return self.ends, self.filter, self.ranges

    @classmethod
    def parse(cls, row: Sequence[Any]) -> FooterNote:
        """Convert a decoded `row` to a note; if malformed raise one of `_DAMAGED`, such as `ValueError`."""
        ends, text, ranges = row
        if ends is not None:
            ends = (as_text(ends[0], "least key"), as_text(ends[1], "greatest key"))
        return cls(
            ends,
            None if text is None else as_text(text, "filter"),
            {name: decode_range(*bounds) for name, bounds in ranges.items()},
        )


class FooterNotes:
    """Cache of one table's footer notes in one process. Thread-safe.

    With `beside_the_lock` it reads the lock folder, which each of many tasks should not.
    """

    def __init__(self, *, beside_the_lock: bool = False) -> None:
        self._has_keys_asked = False  # then long filters are kept
        self._notes: dict[str, FooterNote] = {}
        self._size = 0
        self._adding = Lock()
        self._looking = Lock()
        self._may_look = beside_the_lock
        self._read: set[str] = set()
        self._saved: set[str] = set()  # in the lock folder
        self._missed: set[str] = set()
        self._one_by_one: list[str] = []  # waiting for `put`

    def get(self, path: str) -> FooterNote | None:
        """Return the path's note, if cached; keep long filters from now on."""
        self._has_keys_asked = True
        return self._notes.get(path)

    def opened(self, path: str, footer: pq.FileMetaData) -> None:
        """Cache the footer's note, if the path has none or, after a key lookup, one without a filter."""
        note = self._notes.get(path)
        if note is None or (note.filter is None and self._has_keys_asked):
            self.add(path, FooterNote.of(footer))

    def add(self, path: str, note: FooterNote) -> None:
        """Cache a note if there is none, or one without a filter where this has one.

        Before the first key lookup, leaves out filters above 4 KiB. Above 64 MiB in all, drops the oldest.
        """
        note = note if self._has_keys_asked else note.short
        with self._adding:
            known = self._notes.get(path)
            if known is not None and (known.filter is not None or note.filter is None):
                return
            self._notes[path] = note
            self._size += note.size - (0 if known is None else known.size)
            while self._size > _MEMORY_BYTES:
                self._size -= self._notes.pop(next(iter(self._notes))).size

    def ranges(self, store: Store, paths: Sequence[str]) -> Mapping[str, Ranges]:
        """Column ranges of the `paths` that have a note.

        If many lack one, first reads the lock folder (only with `beside_the_lock`); ignores store errors.
        """
        self._look(store, paths)
        return {path: note.ranges for path in paths if (note := self._notes.get(path)) is not None}

    def without(self, store: Store, paths: Sequence[str], wanted: pa.Array) -> set[str]:
        """Return the `paths` whose notes exclude every wanted key; if none is wanted, all, even without note.

        First calls `look_up`. Above 10,000 keys, compares only ranges.
        """
        self.look_up(store, paths)
        if not len(wanted):
            return {*paths}
        ends, lookup = pc.min_max(wanted), bloom.Asked(wanted) if len(wanted) <= MANY else None
        least, greatest = ends["min"].as_py(), ends["max"].as_py()
        notes = {path: note for path in paths if (note := self._notes.get(path)) is not None}
        return {path for path, note in notes.items() if not note.may_have(least, greatest, lookup)}

    def look_up(self, store: Store, paths: Iterable[str]) -> None:
        """Keep long filters from now on; read the lock folder as `ranges` does."""
        self._has_keys_asked = True
        self._look(store, paths)

    def _look(self, store: Store, paths: Iterable[str]) -> None:
        """Cache new notes of the lock folder if more than 8 of `paths` have none and were not sought before.

        These paths then count as sought, also after a store error, which is ignored. Does nothing without
        `beside_the_lock`.
        """
        if not self._may_look or len(self._unknown(paths)) <= FEW:
            return
        with self._looking:
            if len(unknown := self._unknown(paths)) > FEW:
                with contextlib.suppress(CasError):
                    self._keep(read_notes(store, self._read))
                self._missed.update(unknown)

    def _unknown(self, paths: Iterable[str]) -> list[str]:
        return [path for path in paths if path not in self._notes and path not in self._missed]

    def _keep(self, notes_by_object: Mapping[str, Mapping[str, FooterNote]]) -> None:
        for name, notes in notes_by_object.items():
            for path, note in notes.items():
                self.add(path, note)
            self._saved.update(notes)
            self._read.add(name)

    def take_due(self, stats: Iterable[WriteStat]) -> Sequence[str]:
        """Cache the notes in `stats`, and return the base files to `put` now: those of `stats` if more than 8.

        Else collects them and returns none; once 64 are collected, returns and forgets these.
        """
        paths = []
        for stat in stats:
            if stat.note:
                self.add(stat.path, FooterNote.parse(json.loads(stat.note)))
            if not stat.is_log:
                paths.append(stat.path)
        if len(paths) > FEW:
            return paths
        with self._adding:
            self._one_by_one += paths
            if len(self._one_by_one) < _ONE_BY_ONE:
                return ()
            found, self._one_by_one = self._one_by_one, []
            return found

    def put(self, store: Store, time: str, paths: Iterable[str]) -> bool:
        """Create object `time` in the lock folder with the cached notes of `paths` that it lacks, if more than 8.

        Returns True if `merge` is due, by a listing; False after a lost or unknown write. Failures raise `CasError`.
        """
        unsaved = (path for path in paths if path not in self._saved)
        notes = {path: note for path in unsaved if (note := self._notes.get(path)) is not None}
        if len(notes) <= FEW or not isinstance(_create(store, time, notes), Won):
            return False
        self._saved.update(notes)
        return len(store.list(NOTES)) > _OBJECTS

    def merge(self, store: Store, is_kept: Callable[[str], bool]) -> None:
        """Join the lock folder's objects, if more than two, in a new one, without files that `is_kept` rejects.

        Deletes all but the last two sources, unless another merge won.
        """
        notes_by_object = read_notes(store, ())
        names = sorted(notes_by_object)
        notes = {path: note for name in names for path, note in notes_by_object[name].items() if is_kept(path)}
        if len(names) > _KEPT and isinstance(_create(store, f"{names[-1]}{_MERGED}", notes), Won):
            store.delete_all([f"{NOTES}{name}" for name in names[:-_KEPT]])


def _create(store: Store, name: str, notes: Mapping[str, FooterNote]) -> Outcome:
    return store.put_if_absent(f"{NOTES}{name}", encode_notes(notes), create_once=True)


def read_notes(store: Store, known: Collection[str]) -> Mapping[str, Mapping[str, FooterNote]]:
    names = [name for entry in store.list(NOTES) if (name := entry.path.removeprefix(NOTES)) not in known]
    reading = [store.in_background(partial(store.read_or_none, f"{NOTES}{name}")) for name in names]
    contents = ((name, pending.result()) for name, pending in zip(names, reading, strict=True))
    return {name: decode_notes(content.data) for name, content in contents if content is not None}


def encode_notes(notes: Mapping[str, FooterNote]) -> bytes:
    """Encode notes by path for the lock folder.

    Filters above 4 KiB are left out, and the longest above 4 MiB in all.
    """
    rows, room = [], _FILTERS_BYTES
    for path, note in sorted(notes.items(), key=lambda item: len(item[1].filter or "")):
        length = len(note.filter or "")
        stored = note if length <= min(_FILTER_BYTES, room) else replace(note, filter=None)
        room -= len(stored.filter or "")
        rows.append((path, *stored.row))
    return zlib.compress(json.dumps({"version": _VERSION, "files": rows}, separators=(",", ":")).encode(), _LEVEL)


def decode_notes(data: bytes) -> Mapping[str, FooterNote]:
    """Decode a lock folder object to notes by path: none if damaged or of another version."""
    try:
        most = plausible(data)
        content = parse_json(inflate(data, most=most), most=most, items=most)
        if content["version"] != _VERSION:
            return {}
        return {path: FooterNote.parse(row) for path, *row in content["files"]}
    except _DAMAGED:
        return {}


_MOST_COLUMNS = 32
_LONGEST = 64
_INTEGERS = {str(kind) for kind in (pa.int8(), pa.int16(), pa.int32(), pa.int64())}
_STORED_AS = {"INT32", "INT64", "BYTE_ARRAY"}  # INT96 statistics have no order.


class Range(NamedTuple):
    """Bounds of a column's values as stored in the Arrow type `kind`; without bounds all are null."""

    kind: str
    least: int | str | None
    greatest: int | str | None
    has_nulls: bool  # or unknown


Ranges = Mapping[str, Range]


def may_have_range(kind: pa.DataType) -> bool:
    return bool(_name_of(kind))


def ranges_of(footer: pq.FileMetaData) -> Ranges:
    """Ranges of a footer's first 32 signed integer, text, date and timestamp columns with usable statistics.

    Leaves out nested and meta columns, repeated names, and dates and timestamps with Spark's legacy mark.
    """
    fields, ranges, at = footer.schema.to_arrow_schema(), dict[str, Range](), 0
    is_legacy = LEGACY_KEY.encode() in (footer.metadata or {})
    groups = [footer.row_group(number) for number in range(footer.num_row_groups)]
    for name, kind in zip(fields.names, fields.types, strict=True):
        type_name = "" if name in META_COLUMNS or (is_legacy and _is_time(kind)) else _name_of(kind)
        if type_name and fields.get_field_index(name) >= 0:  # not duplicate
            bounds = _range(type_name, name, [group.column(at) for group in groups])
            if bounds is not None:
                ranges[name] = bounds
        at += _parts_of(kind)
        if len(ranges) == _MOST_COLUMNS:
            break
    return ranges


def guarantee(ranges: Ranges, columns: Iterable[pa.Field]) -> Any:
    """Arrow filter that holds for every row of a file with these ranges, as read with these columns.

    Skips columns without a range or now of another type (integer types may differ); always true if none remains.
    """
    sure = pc.scalar(True)
    for column in columns:
        bounds = ranges.get(column.name)
        kind = str(column.type)
        if bounds is not None and (bounds.kind == kind or {bounds.kind, kind} <= _INTEGERS):
            sure = sure & _between(pc.field(column.name), bounds, column.type)
    return sure


def decode_range(kind: str, least: int | str | None, greatest: int | str | None, has_nulls: bool) -> Range:  # noqa: FBT001
    kinds = {type(least), type(greatest)}
    if kinds not in ({int}, {str}, {type(None)}) or not isinstance(has_nulls, bool):
        raise ValueError("no range")
    return Range(kind, least, greatest, has_nulls)


def _range(kind: str, name: str, chunks: Iterable[pq.ColumnChunkMetaData]) -> Range | None:
    """Plain column `name`'s range, with Arrow type `kind`, over its chunks in all row groups.

    None if these are of another column or lack usable statistics, or there are no rows.
    """
    lows, highs, has_nulls = list[Any](), list[Any](), False
    for chunk in chunks:
        if chunk.path_in_schema != name or chunk.physical_type not in _STORED_AS:
            return None
        if not (count := chunk.num_values):
            continue
        if (statistics := chunk.statistics) is None:
            return None
        nulls = statistics.null_count if statistics.has_null_count else None
        has_nulls = has_nulls or nulls != 0
        if statistics.has_min_max:
            lows.append(_value(statistics.min_raw))
            highs.append(_value(statistics.max_raw))
        elif nulls is None or nulls < count:
            return None
    if None in lows or None in highs or not (lows or has_nulls):
        return None
    return Range(kind, min(lows, default=None), max(highs, default=None), has_nulls)


def _value(raw: int | bytes) -> int | str | None:
    """Bound as number or text; None if it is not UTF-8, or longer than 64 characters."""
    if isinstance(raw, int):
        return raw
    try:
        text = raw.decode()
    except UnicodeDecodeError:
        return None
    return text if len(text) <= _LONGEST else None


@lru_cache(1024)
def _name_of(kind: pa.DataType) -> str:
    return str(kind) if types.is_signed_integer(kind) or types.is_string(kind) or _is_time(kind) else ""


@lru_cache(1024)
def _parts_of(kind: pa.DataType) -> int:
    return sum(_parts_of(kind.field(number).type) for number in range(kind.num_fields)) or 1


def _is_time(kind: pa.DataType) -> bool:
    return bool(types.is_date32(kind) or types.is_timestamp(kind))


def _between(value: Any, bounds: Range, kind: pa.DataType) -> Any:
    """Arrow filter: `value`, a column's expression, is in `bounds`, or null if these have nulls.

    Always true if the column's type `kind` cannot hold them.
    """
    if bounds.least is None or bounds.greatest is None:
        return value.is_null()
    try:
        least, greatest = pa.scalar(bounds.least, kind), pa.scalar(bounds.greatest, kind)
    except (pa.ArrowException, TypeError, ValueError, OverflowError):
        return pc.scalar(True)  # now a narrower type
    ends = [value == least] if bounds.least == bounds.greatest else [value >= least, value <= greatest]
    if bounds.has_nulls:  # Arrow needs it at both ends.
        ends = [end | value.is_null() for end in ends]
    return reduce(and_, ends)
