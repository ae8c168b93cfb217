"""The record keys in base files, and what their footers say of them without reading any.

A small file is fetched with one request, of a large one only its footer and the column of keys.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from lockprovider.table.files import base_file
from lockprovider.table.files.footers.notes import FooterNote
from lockprovider.table.files.key_match import NumberMatch, TextMatch, is_whole
from lockprovider.table.files.place import TablePlace
from lockprovider.table.format.schema import RECORD_KEY

if TYPE_CHECKING:
    from collections.abc import Iterable

    from numpy.typing import NDArray


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


def all_keys(place: TablePlace, paths: Iterable[tuple[str, int]]) -> pa.Array:
    """The record keys of several files, given by path and size, one after the other."""
    found = [KeyFile(place, path, size).keys for path, size in paths]
    return pa.concat_arrays(found) if found else pa.array([], pa.string())
