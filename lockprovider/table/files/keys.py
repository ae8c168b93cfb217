"""The record keys in base files: what footers say of them, which file has some, and which of its rows.

    match = number_match(keys, "id", stored) or text_match(keys, "id", stored)
    rows, numbers = match.met(batch)        # the rows that have one of the keys, and the number of it

A small file is fetched with one request, of a large one only its footer and the column of keys.

In a table with one key column (`TableConfig.key_column`) a record key is the value as text. Of whole numbers the column
itself is read and compared then, in place of the texts: less to decode, and no text to hash. Of texts it is read in
place of the record keys, which are the same.

Promised: both matches find the same rows. Keys that are not the text of a number, as that is written, are found by
texts only.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyarrow import types

from lockprovider.table.errors import Corrupt
from lockprovider.table.files import base_file
from lockprovider.table.files.base_file import array_of
from lockprovider.table.files.footers import FooterNote
from lockprovider.table.files.place import TablePlace
from lockprovider.table.format.schema import RECORD_KEY

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Met = tuple[NDArray[np.int64], NDArray[np.int64]]

    from numpy.typing import NDArray

_SLOTS_A_KEY = 16  # so few other values pass for one of the keys, until they are compared
_SPREAD = np.uint64(0x9E3779B97F4A7C15)  # 2**64 by the golden ratio: neighbours get slots far apart


class KeyMatch(Protocol):
    """Some keys, all different, that rows are compared with by one of their columns."""

    column: str

    def met(self, rows: pa.Table) -> Met:
        """The places of the rows that have one of the keys, rising, and of each the number of the key."""


class TextMatch:
    """By record key, or a column of the same texts; each call makes a hash table of the keys."""

    def __init__(self, keys: pa.Array, column: str = RECORD_KEY) -> None:
        self.column = column
        self._keys = keys.cast(pa.string())

    def met(self, rows: pa.Table) -> Met:
        """See `KeyMatch`.

        Raises:
            Corrupt: a row has no key.
        """
        found = pc.index_in(_filled(rows, self.column), value_set=self._keys)
        return np.flatnonzero(found.is_valid().to_numpy(zero_copy_only=False)), found.drop_null().to_numpy()


class NumberMatch:
    """By a column of whole numbers: a mark at each key's slot rules most rows out, the rest are looked up in order."""

    def __init__(self, numbers: NDArray[np.int64], column: str) -> None:
        self.column = column
        self._order = np.argsort(numbers)
        self._sorted = numbers[self._order]
        bits = max(1, (_SLOTS_A_KEY * len(numbers)).bit_length())
        self._shift = np.uint64(64 - bits)
        self._marks = np.zeros(1 << bits, dtype=np.bool_)
        self._marks[self._slots(numbers)] = True

    def met(self, rows: pa.Table) -> Met:
        """See `KeyMatch`.

        Raises:
            Corrupt: a row has no key.
        """
        values = _filled(rows, self.column).cast(pa.int64()).to_numpy()
        places = np.flatnonzero(self._marks[self._slots(values)])
        asked = values[places]
        at = np.minimum(np.searchsorted(self._sorted, asked), len(self._sorted) - 1)
        same = self._sorted[at] == asked
        return places[same], self._order[at[same]]

    def _slots(self, values: NDArray[np.int64]) -> NDArray[np.int64]:
        found: NDArray[np.uint64] = (values.view(np.uint64) * _SPREAD) >> self._shift
        return found.view(np.int64)  # which numpy looks up as it is


def _filled(rows: pa.Table, column: str) -> pa.Array:
    values = array_of(rows.column(column))
    if values.null_count:
        raise Corrupt(f"a base file has rows without a value in key column {column!r}; take it from a backup")
    return values


def text_match(keys: pa.Array, column: str | None, *schemas: pa.Schema) -> TextMatch:
    """The match by a column of texts, or by record key if one of these schemas has it not, or not as texts."""
    if column is None or not all(_is_text(schema, column) for schema in schemas):
        return TextMatch(keys)
    return TextMatch(keys, column)


def number_match(keys: pa.Array, column: str | None, *schemas: pa.Schema) -> NumberMatch | None:
    """The match by a column; None if one of these schemas has it not, or not as whole numbers, or a key is no number.

    The keys are texts, or numbers already. The schemas are the table's, whose types rows have, and that of the file.
    """
    if column is None or not all(is_whole(schema, column) for schema in schemas):
        return None
    numbers = numbers_of(keys)
    return None if numbers is None else NumberMatch(numbers.to_numpy(), column)


def numbers_of(keys: pa.Array) -> pa.Array | None:
    """The keys as numbers; None if one is not the text of a number, as that is written."""
    if types.is_int64(keys.type):
        return keys
    try:
        numbers = keys.cast(pa.int64())
    except pa.ArrowInvalid:
        return None
    return numbers if numbers.cast(pa.string()).equals(keys) else None  # not as of 007


def key_column(column: str | None, *schemas: pa.Schema) -> str:
    """The column by which rows are matched: this one, if all schemas have it as whole numbers or as texts.

    Else that of the record keys.
    """
    alike = (all(fits(schema, column) for schema in schemas) for fits in (is_whole, _is_text) if column is not None)
    return column if column is not None and any(alike) else RECORD_KEY


def is_whole(schema: pa.Schema, column: str) -> bool:
    """Whether there is such a column of whole numbers."""
    kind = schema.field(column).type if column in schema.names else pa.null()
    return bool(types.is_int32(kind) or types.is_int64(kind))


def _is_text(schema: pa.Schema, column: str) -> bool:
    return column in schema.names and bool(types.is_string(schema.field(column).type))


@dataclass(frozen=True)
class KeyFile:
    """One base file, opened when it is asked."""

    place: TablePlace
    path: str
    size: int

    @cached_property
    def keys(self) -> pa.Array:
        """All record keys.

        Raises:
            HistoryGone: the file was cleaned.
            Corrupt: it is damaged.
        """
        return base_file.keys_of(self._file)

    def shared(self, other: KeyFile) -> pa.Array:
        """The keys that the other file has, too; nothing but footers is read if their ranges are apart.

        Raises:
            HistoryGone, Corrupt: as for `keys`.
        """
        mine, theirs = self._note.ends, other._note.ends
        if mine is not None and theirs is not None and (mine[1] < theirs[0] or theirs[1] < mine[0]):
            return pa.array([], pa.string())
        return other.among(self.keys)

    def among(self, wanted: pa.Array) -> pa.Array:
        """Those of the wanted keys that are in the file, each once.

        Raises:
            HistoryGone, Corrupt: as for `keys`.
        """
        each = wanted.unique()
        return each.filter(pa.array(self.has(each)))

    def has(self, wanted: pa.Array, by_number: NumberMatch | None = None) -> NDArray[np.bool_]:
        """Which of some different keys are in the file: by the range of its keys, its bloom filter, then the keys.

        `by_number` is the match of all of them, if the table has one.

        Raises:
            HistoryGone, Corrupt: as for `keys`.
        """
        found = self._note.perhaps(wanted)
        if not found.any():
            return found
        if by_number is not None and is_whole(self._file.schema_arrow, by_number.column):
            found[:] = False
            found[by_number.met(base_file.read_columns(self._file, [by_number.column]))[1]] = True
            return found
        near = np.flatnonzero(found)
        found[:] = False
        found[near[TextMatch(wanted.take(pa.array(near))).met(pa.table([self.keys], [RECORD_KEY]))[1]]] = True
        return found

    @property
    def _note(self) -> FooterNote:
        return self.place.footer_notes.get(self.path) or FooterNote.of(self._file.metadata)

    @cached_property
    def _file(self) -> pq.ParquetFile:
        return self.place.open(self.path, self.size)
