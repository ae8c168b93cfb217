"""`TablePlace`, which opens a table's files in any process, and lookup of record keys in base files."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from numpy.typing import NDArray
from pyarrow import fs as arrow_fs
from pyarrow import types

from fsspec_cas import Store
from fsspec_cas.backends import split_url
from lockprovider.table.errors import Corrupt
from lockprovider.table.files import base_file
from lockprovider.table.files.footers import FooterNote, FooterNotes, Ranges
from lockprovider.table.format.schema import RECORD_KEY

Met = tuple[NDArray[np.int64], NDArray[np.int64]]

WHOLE_BYTES = 8 << 20  # Up to this size, one request is cheaper than ranged reads.
_LOCAL = "local"
_SLOTS_A_KEY = 16
_SPREAD = np.uint64(0x9E3779B97F4A7C15)  # 2**64 / golden ratio: neighbours get distant slots.


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
        """Return the place of an open `store`; its footer notes also read the lock folder."""
        place = cls(url, storage_options)
        place.__dict__["store"] = store
        place.__dict__["footer_notes"] = FooterNotes(beside_the_lock=True)
        return place

    def __getstate__(self) -> dict[str, Any]:
        return {"url": self.url, "storage_options": self.storage_options}

    def ranges(self, paths: Sequence[str]) -> Mapping[str, Ranges]:
        return self.footer_notes.ranges(self.store, paths)

    def source(self, path: str, size: int | None = None) -> tuple[Any, arrow_fs.FileSystem | None]:
        """Return pyarrow's source: path and filesystem, or bytes, read now, and None.

        Outside local folders, files that are small, in memory or without `size` are read to bytes. May raise
        `FileNotFoundError`, now or at the read.
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
        """Open a base file, and cache its footer's note; without a `size` fetch a remote file whole.

        Raises as `open_base_file`.
        """
        with base_file.reading(path):
            file = base_file.open_base_file(*self.source(path, size), path)
        self.footer_notes.opened(path, file.metadata)
        return file

    def footer(self, path: str) -> pq.FileMetaData:
        return self.open(path, WHOLE_BYTES + 1).metadata

    @property
    def is_local(self) -> bool:
        return self.store.kind == _LOCAL


class KeyMatch(Protocol):
    """Set of unique keys to find in rows by one column."""

    column: str

    def met(self, rows: pa.Table) -> Met:
        """Return ascending positions of rows with one of the keys, and each row's key number; may raise `Corrupt`."""


class TextMatch:
    """Match by record key, or by a column with the same texts."""

    def __init__(self, keys: pa.Array, column: str = RECORD_KEY) -> None:
        self.column = column
        self._keys = keys.cast(pa.string())

    def met(self, rows: pa.Table) -> Met:
        numbers = pc.index_in(_filled(rows, self.column), value_set=self._keys)
        return np.flatnonzero(numbers.is_valid().to_numpy(zero_copy_only=False)), numbers.drop_null().to_numpy()


class NumberMatch:
    """Match by a column of whole numbers; hash slots exclude most rows before a binary search."""

    def __init__(self, numbers: NDArray[np.int64], column: str) -> None:
        self.column = column
        self._order = np.argsort(numbers)
        self._sorted = numbers[self._order]
        bits = max(1, (_SLOTS_A_KEY * len(numbers)).bit_length())
        self._shift = np.uint64(64 - bits)
        self._marks = np.zeros(1 << bits, dtype=np.bool_)
        self._marks[self._slots(numbers)] = True

    def met(self, rows: pa.Table) -> Met:
        values = _filled(rows, self.column).cast(pa.int64()).to_numpy()
        places = np.flatnonzero(self._marks[self._slots(values)])
        numbers = values[places]
        at = np.minimum(np.searchsorted(self._sorted, numbers), len(self._sorted) - 1)
        same = self._sorted[at] == numbers
        return places[same], self._order[at[same]]

    def _slots(self, values: NDArray[np.int64]) -> NDArray[np.int64]:
        slots: NDArray[np.uint64] = (values.view(np.uint64) * _SPREAD) >> self._shift
        return slots.view(np.int64)


def _filled(rows: pa.Table, column: str) -> pa.Array:
    values = base_file.array_of(rows.column(column))
    if values.null_count:
        raise Corrupt(f"a base file has rows without a value in key column {column!r}; take it from a backup")
    return values


def text_match(keys: pa.Array, column: str | None, *schemas: pa.Schema) -> TextMatch:
    if column is None or not all(_is_text(schema, column) for schema in schemas):
        return TextMatch(keys)
    return TextMatch(keys, column)


def number_match(keys: pa.Array, column: str | None, *schemas: pa.Schema) -> NumberMatch | None:
    if column is None or not all(is_whole(schema, column) for schema in schemas):
        return None
    numbers = numbers_of(keys)
    return None if numbers is None else NumberMatch(numbers.to_numpy(), column)


def numbers_of(keys: pa.Array) -> pa.Array | None:
    """Convert keys to 64-bit integers; None if one is not a number's canonical text, such as `007`."""
    if types.is_int64(keys.type):
        return keys
    try:
        numbers = keys.cast(pa.int64())
    except pa.ArrowInvalid:
        return None
    return numbers if numbers.cast(pa.string()).equals(keys) else None  # not 007


def key_column(column: str | None, *schemas: pa.Schema) -> str:
    """Return `column` if all schemas have it as whole numbers or texts; else the record key column."""
    alike = (all(fits(schema, column) for schema in schemas) for fits in (is_whole, _is_text) if column is not None)
    return column if column is not None and any(alike) else RECORD_KEY


def is_whole(schema: pa.Schema, column: str) -> bool:
    kind = schema.field(column).type if column in schema.names else pa.null()
    return bool(types.is_int32(kind) or types.is_int64(kind))


def _is_text(schema: pa.Schema, column: str) -> bool:
    return column in schema.names and bool(types.is_string(schema.field(column).type))


@dataclass(frozen=True)
class KeyFile:
    """Base file for key lookups, opened at first use. Reads may raise `HistoryGone` or `Corrupt`."""

    place: TablePlace
    path: str
    size: int

    @cached_property
    def keys(self) -> pa.Array:
        return base_file.keys_of(self._file)

    def shared(self, other: KeyFile) -> pa.Array:
        mine, theirs = self._note.ends, other._note.ends
        if mine is not None and theirs is not None and (mine[1] < theirs[0] or theirs[1] < mine[0]):
            return pa.array([], pa.string())
        return other.among(self.keys)

    def among(self, wanted: pa.Array) -> pa.Array:
        each = wanted.unique()
        return each.filter(pa.array(self.has(each)))

    def has(self, wanted: pa.Array, by_number: NumberMatch | None = None) -> NDArray[np.bool_]:
        """Read which unique keys the file has, as a mask, by key range, bloom filter, then stored keys or `by_number`.

        `by_number` must match the same keys.
        """
        mask = self._note.may_have_each(wanted)
        if not mask.any():
            return mask
        if by_number is not None and is_whole(self._file.schema_arrow, by_number.column):
            mask[:] = False
            mask[by_number.met(base_file.read_columns(self._file, [by_number.column]))[1]] = True
            return mask
        near = np.flatnonzero(mask)
        mask[:] = False
        mask[near[TextMatch(wanted.take(pa.array(near))).met(pa.table([self.keys], [RECORD_KEY]))[1]]] = True
        return mask

    @property
    def _note(self) -> FooterNote:
        return self.place.footer_notes.get(self.path) or FooterNote.of(self._file.metadata)

    @cached_property
    def _file(self) -> base_file.ParquetFile:
        return self.place.open(self.path, self.size)
