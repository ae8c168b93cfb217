"""The record keys in base files, and what their footers say of them without reading any.

A small file is fetched with one request, of a large one only its footer and the column of keys.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from lockprovider.table.files import base_file
from lockprovider.table.files.place import TablePlace
from lockprovider.table.format import bloom

if TYPE_CHECKING:
    from collections.abc import Iterable

_MANY = 10_000  # from here on it is quicker to read all keys than to ask the bloom filter for each


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
        mine, theirs = base_file.key_range(self._file), base_file.key_range(other._file)
        if mine is not None and theirs is not None and (mine[1] < theirs[0] or theirs[1] < mine[0]):
            return pa.array([], pa.string())
        return other.among(self.keys)

    def among(self, wanted: pa.Array) -> pa.Array:
        """Those of the wanted keys that are in the file: by the range of its keys, its bloom filter, then the keys.

        Raises:
            HistoryGone, Corrupt: as for `keys`.
        """
        ends = base_file.key_range(self._file)
        if ends is not None:
            wanted = wanted.filter(pc.and_(pc.greater_equal(wanted, ends[0]), pc.less_equal(wanted, ends[1])))
        if 0 < len(wanted) <= _MANY:
            wanted = self._perhaps(wanted)
        return wanted.filter(pc.is_in(wanted, value_set=self.keys)) if len(wanted) else wanted

    def _perhaps(self, wanted: pa.Array) -> pa.Array:
        text = (self._file.metadata.metadata or {}).get(base_file.BLOOM_KEY.encode())
        if text is None:
            return wanted
        found = bloom.BloomFilter.parse(text.decode())
        return wanted.filter(pa.array(found.might_contain_each(wanted)))

    @cached_property
    def _file(self) -> pq.ParquetFile:
        return self.place.open(self.path, self.size)


def all_keys(place: TablePlace, paths: Iterable[tuple[str, int]]) -> pa.Array:
    """The record keys of several files, given by path and size, one after the other."""
    found = [KeyFile(place, path, size).keys for path, size in paths]
    return pa.concat_arrays(found) if found else pa.array([], pa.string())
