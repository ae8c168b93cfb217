"""What the footers of base files say of keys and columns, remembered: a file never changes, so none is asked twice.

    others = place.footer_notes.without(place.store, paths, keys)     # files that certainly have none of the keys
    known = place.footer_notes.ranges(place.store, paths)             # what columns are between, of some of the files
    guarantee(known[path], [pa.field("day", pa.date32())])            # an expression that is true of all rows of a file

In a process it is what was opened for it or written there. Beside the lock, in `.hoodie/.locks/footers/`, are objects
of what processes knew: a commit of many files puts one of these, and who writes a checkpoint one of what it knows and
has not seen there. Who knows nothing of many files reads the objects that it has not read. They say what footers say,
of files whose names never come again, so they hold for ever, whatever ends the lock's log.

Promised: no file that has one of the keys is left out, and ranges are of all rows of a file; a guarantee is true of
every row as it is read with these columns, a null included. NOT promised: that all others are left out: of files with
more than some hundred keys only the range is kept beside the lock, and of too many files no filters at all; of the last
files that came one by one nothing is there yet. Nor a range of each column: there are none of floats (statistics know
no NaN), decimals, booleans, binary and nested columns, of texts longer than 64 characters, of more than 32 columns of a
file, of a column that the file does not have; and of dates and timestamps where Spark may have written them by the
Julian calendar (see `base_file.check_footer`).

Source: the Parquet specification, "Statistics"; Arrow `ParquetFileFragment::EvaluateStatisticsAsExpression`.
"""

from __future__ import annotations

import contextlib
import json
import zlib
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache, partial, reduce
from operator import and_
from threading import Lock
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyarrow import types

from fsspec_cas import CasError, Outcome, Store, Won
from lockprovider.bounded import as_text, inflate, parse_json, plausible
from lockprovider.table.errors import Corrupt
from lockprovider.table.files import base_file
from lockprovider.table.files.base_file import LEGACY_KEY
from lockprovider.table.format import bloom
from lockprovider.table.format.schema import META_COLUMNS

if TYPE_CHECKING:
    from numpy.typing import NDArray

NOTES = ".hoodie/.locks/footers/"
MANY = 10_000  # keys from which on it is quicker to read all keys of a file than to ask its filter for each
FEW = 8  # files that nothing is known of are opened rather than looked for beside the lock, or said there
_VERSION = 1
_LEVEL = 1  # filters are random bits
_ONE_BY_ONE = 64  # files of small commits are said together
_OBJECTS = 16  # beside the lock; of more one is made
_MERGED = "m"  # after the newest name
_KEPT = 2  # of those that it is made of; who reads may have listed just before
_FILTER_BYTES = 4096  # of base64: of 512 keys
_FILTERS_BYTES = 4 << 20  # of all filters in one object
_MEMORY_BYTES = 64 << 20
_DAMAGED = (ValueError, KeyError, TypeError, IndexError, AttributeError, zlib.error)


@dataclass(frozen=True, slots=True)
class FooterNote:
    """What the footer of a file says.

    Its least and greatest key, if that is for sure, its bloom filter, if it has one, and what its columns are between.
    """

    ends: tuple[str, str] | None
    filter: str | None
    ranges: Ranges = field(default_factory=dict)

    @classmethod
    def of(cls, footer: pq.FileMetaData) -> FooterNote:
        """By its footer."""
        known = base_file.known_filter(footer)
        return cls(base_file.key_range(footer), None if known is None else known.text, ranges_of(footer))

    @classmethod
    def written(cls, footer: pq.FileMetaData) -> FooterNote:
        """By the footer of a file that was written here; no more than is said beside the lock."""
        note = cls.of(footer)
        return note if len(note.filter or "") <= _FILTER_BYTES else replace(note, filter=None)

    def may_have(self, least: str, greatest: str, asked: bloom.Asked | None) -> bool:
        """Whether the file may have one of some keys between these; `asked` are the keys, if they are not too many.

        A filter that cannot be read tells nothing.
        """
        if self.ends is not None and (greatest < self.ends[0] or self.ends[1] < least):
            return False
        if asked is None or self.filter is None:
            return True
        try:
            return bloom.BloomFilter.parse(self.filter).might_contain_any(asked)
        except Corrupt:
            return True

    def perhaps(self, wanted: pa.Array) -> NDArray[np.bool_]:
        """Which of these keys the file may have: by range, and of no more than `MANY` by its filter.

        Raises:
            Corrupt: the filter cannot be read.
        """
        found = np.ones(len(wanted), dtype=np.bool_)
        if self.ends is not None:
            between = pc.and_(pc.greater_equal(wanted, self.ends[0]), pc.less_equal(wanted, self.ends[1]))
            found = np.array(between, dtype=np.bool_)
        if self.filter is not None and 0 < np.count_nonzero(found) <= MANY:
            found[found] = bloom.BloomFilter.parse(self.filter).might_contain_each(wanted.filter(pa.array(found)))
        return found

    @property
    def size(self) -> int:
        """About so many bytes of memory."""
        return len(self.filter or "") + 200 * (1 + len(self.ranges))

    @property
    def text(self) -> str:
        """For whoever has not written the file."""
        return json.dumps(self.row, separators=(",", ":"))

    @property
    def row(self) -> Sequence[Any]:
        """For JSON."""
        return self.ends, self.filter, encode_ranges(self.ranges)

    @classmethod
    def parse(cls, row: Sequence[Any]) -> FooterNote:
        """From JSON.

        Raises:
            ValueError, TypeError, IndexError, AttributeError: it is none.
        """
        ends, text, known = row
        if ends is not None:
            ends = (as_text(ends[0], "least key"), as_text(ends[1], "greatest key"))
        return cls(ends, None if text is None else as_text(text, "filter"), decode_ranges(known))


class FooterNotes:
    """Of the files of one table, as far as one process knows them. Thread-safe.

    `beside_the_lock`: what others have said is looked for; not by each of many tasks.
    """

    def __init__(self, *, beside_the_lock: bool = False) -> None:
        self._has_keys_asked = False  # then long filters are remembered, too
        self._notes: dict[str, FooterNote] = {}
        self._size = 0
        self._adding = Lock()
        self._looking = Lock()
        self._may_look = beside_the_lock
        self._read: set[str] = set()  # objects beside the lock
        self._said: set[str] = set()  # files that those tell of
        self._missed: set[str] = set()  # files that they did not tell of when they were read
        self._one_by_one: list[str] = []  # files written here, not said yet

    def get(self, path: str) -> FooterNote | None:
        """What is known of one file, in which keys are looked up."""
        self._has_keys_asked = True
        return self._notes.get(path)

    def opened(self, path: str, footer: pq.FileMetaData) -> None:
        """Remember what the footer of a file says that was opened."""
        known = self._notes.get(path)
        if known is None or (known.filter is None and self._has_keys_asked):
            self.add(path, FooterNote.of(footer))

    def add(self, path: str, note: FooterNote) -> None:
        """Remember it, unless as much is known; the first that were remembered are forgotten when there is no room."""
        if not self._has_keys_asked and len(note.filter or "") > _FILTER_BYTES:
            note = replace(note, filter=None)
        with self._adding:
            known = self._notes.get(path)
            if known is not None and (known.filter is not None or note.filter is None):
                return
            self._notes[path] = note
            self._size += note.size - (0 if known is None else known.size)
            while self._size > _MEMORY_BYTES:
                self._size -= self._notes.pop(next(iter(self._notes))).size

    def ranges(self, store: Store, paths: Sequence[str]) -> Mapping[str, Ranges]:
        """What the columns of these files are between, of those that are known."""
        self._look(store, paths)
        return {path: note.ranges for path in paths if (note := self._notes.get(path)) is not None}

    def without(self, store: Store, paths: Sequence[str], wanted: pa.Array) -> set[str]:
        """Those of the files that certainly have none of the wanted keys. What is not known is not among them."""
        self.look_up(store, paths)
        if not len(wanted):
            return {*paths}
        ends, asked = pc.min_max(wanted), bloom.Asked(wanted) if len(wanted) <= MANY else None
        least, greatest = ends["min"].as_py(), ends["max"].as_py()
        notes = {path: note for path in paths if (note := self._notes.get(path)) is not None}
        return {path for path, note in notes.items() if not note.may_have(least, greatest, asked)}

    def look_up(self, store: Store, paths: Iterable[str]) -> None:
        """Keys are looked up in these files: know what others have known, if little is known here."""
        self._has_keys_asked = True
        self._look(store, paths)

    def _look(self, store: Store, paths: Iterable[str]) -> None:
        """Read what others have said, if nothing is known of many files and it was not looked for."""
        if not self._may_look or len(self._unknown(paths)) <= FEW:
            return
        with self._looking:
            if len(unknown := self._unknown(paths)) > FEW:
                with contextlib.suppress(CasError):
                    self._keep(read_notes(store, self._read))
                self._missed.update(unknown)

    def _unknown(self, paths: Iterable[str]) -> list[str]:
        return [path for path in paths if path not in self._notes and path not in self._missed]

    def _keep(self, found: Mapping[str, Mapping[str, FooterNote]]) -> None:
        for name, notes in found.items():
            for path, note in notes.items():
                self.add(path, note)
            self._said.update(notes)
            self._read.add(name)

    def written(self, paths: Sequence[str]) -> Sequence[str]:
        """These were written here by one commit: those that are to be `put` now, if there are enough."""
        if len(paths) > FEW:
            return paths
        with self._adding:
            self._one_by_one += paths
            if len(self._one_by_one) < _ONE_BY_ONE:
                return ()
            found, self._one_by_one = self._one_by_one, []
            return found

    def put(self, store: Store, time: str, paths: Iterable[str]) -> bool:
        """Put what is known of these files beside the lock, if they are many that nobody has said there.

        Whether there are too many objects now: see `merge`.

        Raises:
            CasError: the store failed.
        """
        known = {path: note for path in paths if path not in self._said and (note := self._notes.get(path)) is not None}
        if len(known) <= FEW or not isinstance(_create(store, time, known), Won):
            return False
        self._said.update(known)
        return len(store.list(NOTES)) > _OBJECTS

    def merge(self, store: Store, is_kept: Callable[[str], bool]) -> None:
        """Make one of all objects beside the lock, with the files that are kept; of several at once one does.

        Raises:
            CasError: the store failed; what is said is still there.
        """
        found = read_notes(store, ())
        names = sorted(found)
        notes = {path: note for name in names for path, note in found[name].items() if is_kept(path)}
        if len(names) > _KEPT and isinstance(_create(store, f"{names[-1]}{_MERGED}", notes), Won):
            store.delete_all([f"{NOTES}{name}" for name in names[:-_KEPT]])


def _create(store: Store, name: str, notes: Mapping[str, FooterNote]) -> Outcome:
    return store.put_if_absent(f"{NOTES}{name}", encode_notes(notes), create_once=True)


def read_notes(store: Store, known: Collection[str]) -> Mapping[str, Mapping[str, FooterNote]]:
    """What is said beside the lock, by the names of objects that are not `known`.

    Raises:
        CasError: the store failed.
    """
    names = [name for entry in store.list(NOTES) if (name := entry.path.removeprefix(NOTES)) not in known]
    reading = [store.in_background(partial(store.read_or_none, f"{NOTES}{name}")) for name in names]
    contents = ((name, one.result()) for name, one in zip(names, reading, strict=True))
    return {name: decode_notes(content.data) for name, content in contents if content is not None}


def encode_notes(notes: Mapping[str, FooterNote]) -> bytes:
    """As bytes; the largest filters are left out."""
    rows, room = [], _FILTERS_BYTES
    for path, note in sorted(notes.items(), key=lambda one: len(one[1].filter or "")):
        length = len(note.filter or "")
        kept = note if length <= min(_FILTER_BYTES, room) else replace(note, filter=None)
        room -= len(kept.filter or "")
        rows.append((path, *kept.row))
    return zlib.compress(json.dumps({"version": _VERSION, "files": rows}, separators=(",", ":")).encode(), _LEVEL)


def decode_notes(data: bytes) -> Mapping[str, FooterNote]:
    """Read it; nothing, if it is none, or one of another version."""
    try:
        most = plausible(data)
        said = parse_json(inflate(data, most=most), most=most, items=most)
        if said["version"] != _VERSION:
            return {}
        return {path: FooterNote.parse(row) for path, *row in said["files"]}
    except _DAMAGED:
        return {}


_MOST_COLUMNS = 32
_LONGEST = 64  # characters of a text
_INTEGERS = {str(kind) for kind in (pa.int8(), pa.int16(), pa.int32(), pa.int64())}
_STORED_AS = {"INT32", "INT64", "BYTE_ARRAY"}  # not INT96, whose statistics have no order


class Range(NamedTuple):
    """What all values of a column are between; without ends all of them are null.

    `kind` is Arrow's name of the type that is stored, the ends are as stored: text, a number, days, or units of time.
    """

    kind: str
    least: int | str | None
    greatest: int | str | None
    has_nulls: bool  # or may have


Ranges = Mapping[str, Range]


def may_have_range(kind: pa.DataType) -> bool:
    """Whether ranges are kept of columns of this type."""
    return bool(_name_of(kind))


def ranges_of(footer: pq.FileMetaData) -> Ranges:
    """By its footer."""
    fields, found, at = footer.schema.to_arrow_schema(), dict[str, Range](), 0
    is_legacy = LEGACY_KEY.encode() in (footer.metadata or {})
    groups = [footer.row_group(number) for number in range(footer.num_row_groups)]
    for name, kind in zip(fields.names, fields.types, strict=True):
        said = "" if name in META_COLUMNS or (is_legacy and _is_time(kind)) else _name_of(kind)
        if said and fields.get_field_index(name) >= 0:  # once
            one = _range(said, name, [group.column(at) for group in groups])
            if one is not None:
                found[name] = one
        at += _parts_of(kind)
        if len(found) == _MOST_COLUMNS:
            break
    return found


def guarantee(ranges: Ranges, columns: Iterable[pa.Field]) -> Any:
    """What is true of these columns, as they are now, in all rows."""
    sure = pc.scalar(True)
    for column in columns:
        one = ranges.get(column.name)
        if one is not None and _tells_of(one.kind, column.type):
            sure = sure & _between(pc.field(column.name), one, column.type)
    return sure


def encode_ranges(ranges: Ranges) -> Mapping[str, Sequence[Any]]:
    """For JSON."""
    return {name: list(one) for name, one in ranges.items()}


def decode_ranges(said: Mapping[str, Sequence[Any]]) -> Ranges:
    """From JSON.

    Raises:
        ValueError, TypeError, AttributeError: it is not what `encode_ranges` makes.
    """
    return {name: _checked(*one) for name, one in said.items()}


def _checked(kind: str, least: int | str | None, greatest: int | str | None, has_nulls: bool) -> Range:  # noqa: FBT001
    kinds = {type(least), type(greatest)}
    if kinds not in ({int}, {str}, {type(None)}) or not isinstance(has_nulls, bool):
        raise ValueError("no range")
    return Range(kind, least, greatest, has_nulls)


def _range(kind: str, name: str, chunks: Iterable[pq.ColumnChunkMetaData]) -> Range | None:
    """That of a column's parts in the row groups; None if one of them does not tell for sure."""
    lows, highs, has_nulls = list[Any](), list[Any](), False
    for chunk in chunks:
        if chunk.path_in_schema != name or chunk.physical_type not in _STORED_AS:
            return None
        if not (count := chunk.num_values):
            continue
        if (said := chunk.statistics) is None:
            return None
        nulls = said.null_count if said.has_null_count else None
        has_nulls = has_nulls or nulls != 0
        if said.has_min_max:
            lows.append(_value(said.min_raw))
            highs.append(_value(said.max_raw))
        elif nulls is None or nulls < count:
            return None
    if None in lows or None in highs or not (lows or has_nulls):
        return None
    return Range(kind, min(lows, default=None), max(highs, default=None), has_nulls)


def _value(raw: int | bytes) -> int | str | None:
    if isinstance(raw, int):
        return raw
    try:
        text = raw.decode()
    except UnicodeDecodeError:
        return None
    return text if len(text) <= _LONGEST else None


@lru_cache(1024)
def _name_of(kind: pa.DataType) -> str:
    """Arrow's name of a type that ranges are kept of; empty for others."""
    return str(kind) if types.is_signed_integer(kind) or types.is_string(kind) or _is_time(kind) else ""


@lru_cache(1024)
def _parts_of(kind: pa.DataType) -> int:
    """How many columns of the file a column of this type is."""
    return sum(_parts_of(kind.field(number).type) for number in range(kind.num_fields)) or 1


def _is_time(kind: pa.DataType) -> bool:
    return bool(types.is_date32(kind) or types.is_timestamp(kind))


def _tells_of(stored: str, now: pa.DataType) -> bool:
    return stored == str(now) or (stored in _INTEGERS and str(now) in _INTEGERS)


def _between(value: Any, one: Range, kind: pa.DataType) -> Any:
    """As Arrow says it of a row group."""
    if one.least is None or one.greatest is None:
        return value.is_null()
    try:
        least, greatest = pa.scalar(one.least, kind), pa.scalar(one.greatest, kind)
    except (pa.ArrowException, TypeError, ValueError, OverflowError):
        return pc.scalar(True)  # narrower now, or no such values
    ends = [value == least] if one.least == one.greatest else [value >= least, value <= greatest]
    if one.has_nulls:  # each by itself: else Arrow cannot go by it
        ends = [end | value.is_null() for end in ends]
    return reduce(and_, ends)
