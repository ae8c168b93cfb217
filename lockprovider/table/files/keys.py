"""Record key lookup in base files."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray
from pyarrow import types

from lockprovider.table.errors import Corrupt
from lockprovider.table.files import base_file
from lockprovider.table.files.place import FooterNote, TablePlace
from lockprovider.table.format.schema import RECORD_KEY

Met = tuple[NDArray[np.int64], NDArray[np.int64]]

_SLOTS_A_KEY = 16
_SPREAD = np.uint64(0x9E3779B97F4A7C15)  # 2**64 / golden ratio


class KeyMatch(Protocol):
    """Set of unique keys to find in rows by one column."""

    column: str

    def met(self, rows: pa.Table) -> Met:
        """Ascending positions of rows with one of the keys, and their key numbers; may raise `Corrupt`."""


class TextMatch:
    """Match by record key, or by a column with the same texts."""

    def __init__(self, keys: pa.Array, column: str = RECORD_KEY) -> None:
        self.column = column
        self._keys = keys.cast(pa.string())

    def met(self, rows: pa.Table) -> Met:
        numbers = pc.index_in(_filled(rows, self.column), value_set=self._keys)
        return np.flatnonzero(numbers.is_valid().to_numpy(zero_copy_only=False)), numbers.drop_null().to_numpy()


class NumberMatch:
    """Match by a column of whole numbers."""

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
    """Convert keys to 64-bit integers; None if any is not a number's canonical text, such as `007`."""
    if types.is_int64(keys.type):
        return keys
    try:
        numbers = keys.cast(pa.int64())
    except pa.ArrowInvalid:
        return None
    return numbers if numbers.cast(pa.string()).equals(keys) else None


def key_column(column: str | None, *schemas: pa.Schema) -> str:
    """`column` if all schemas have it as whole numbers or texts; else the record key column."""
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
        """Mask of the unique keys `wanted` that the file has.

        Key range and bloom filter exclude keys. Stored keys decide, or `by_number`, a match of the wanted keys, if its
        column is an integer in the file.
        """
        try:
            mask = self._note.may_have_each(wanted)
        except Corrupt as error:
            raise Corrupt(f"base file {self.path!r}: {error}") from error
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
