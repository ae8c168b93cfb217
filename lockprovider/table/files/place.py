"""Where a table is, and the one way to open a file of it, in whatever process."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow import fs as arrow_fs

from fsspec_cas import Store
from fsspec_cas.backends import split_url
from lockprovider.table.errors import HistoryGone
from lockprovider.table.files import base_file
from lockprovider.table.files.footers import FooterNotes, Ranges

WHOLE_BYTES = 8 << 20  # up to here one request for all of it is cheaper than several for its parts
_LOCAL = "local"


class Source(NamedTuple):
    """What pyarrow opens: a path in a filesystem, or the bytes (then without a filesystem)."""

    file: Any
    filesystem: arrow_fs.FileSystem | None


@dataclass(frozen=True)
class TablePlace:
    """Where a table is. Picklable; opens its store in whatever process it was sent to."""

    url: str
    storage_options: dict[str, Any] | None

    @cached_property
    def store(self) -> Store:
        """The table's store, opened once in each process."""
        return Store.from_url(self.url, self.storage_options)

    @cached_property
    def footer_notes(self) -> FooterNotes:
        """What this process knows of the keys and columns of the table's files."""
        return FooterNotes()

    @classmethod
    def of(cls, store: Store, url: str, storage_options: dict[str, Any] | None) -> TablePlace:
        """The place of a table whose store is open in this process already."""
        place = cls(url, storage_options)
        place.__dict__["store"] = store
        place.__dict__["footer_notes"] = FooterNotes(beside_the_lock=True)
        return place

    def __getstate__(self) -> dict[str, Any]:
        return {"url": self.url, "storage_options": self.storage_options}

    def ranges(self, paths: Sequence[str]) -> Mapping[str, Ranges]:
        """What the columns of these files are between, of those that this process, or who writes, knows."""
        return self.footer_notes.ranges(self.store, paths)

    def source(self, path: str, size: int | None = None) -> Source:
        """A file of the table for pyarrow: a local path, all of a small file's bytes, or the ranges of a large one.

        Without a `size` it is fetched as a whole.

        Raises:
            FileNotFoundError: it is not there (said now, or when it is read).
        """
        store = self.store
        if self.is_local:
            return Source(f"{store.root}/{path}", arrow_fs.LocalFileSystem())
        if store.kind == "memory" or size is None or size <= WHOLE_BYTES:
            return Source(pa.BufferReader(store.read(path).data), None)
        fs, root = split_url(self.url, self.storage_options)
        return Source(f"{root}/{path}", arrow_fs.PyFileSystem(arrow_fs.FSSpecHandler(fs)))

    def read(self, path: str, columns: list[str] | None = None) -> pa.Table:
        """The rows of one base file, meta columns included (or just `columns`).

        Raises:
            HistoryGone: it was cleaned.
        """
        return base_file.read_columns(self.open(path), columns)

    def open(self, path: str, size: int | None = None) -> pq.ParquetFile:
        """One base file whose footer is read; without a `size` it is fetched as a whole.

        Raises:
            HistoryGone: it was cleaned.
            Corrupt: it is no Parquet file.
        """
        return self._opened(path, size, base_file.open_base_file)

    def footer(self, path: str) -> pq.FileMetaData:
        """What the end of a base file says of it; nothing else is read.

        Raises:
            HistoryGone, Corrupt, UnsupportedTable: see `open`, and `base_file.check_footer`.
        """
        return self.open(path, WHOLE_BYTES + 1).metadata

    @property
    def is_local(self) -> bool:
        """Whether it is a folder of this machine's."""
        return self.store.kind == _LOCAL

    def open_encoded(self, path: str) -> pq.ParquetFile:
        """The same, to be merged with changes; see `base_file.open_encoded`."""
        return self._opened(path, None, base_file.open_encoded)

    def _opened(self, path: str, size: int | None, way: Callable[..., pq.ParquetFile]) -> pq.ParquetFile:
        try:
            found = way(*self.source(path, size))
        except FileNotFoundError as error:
            raise HistoryGone.with_file(path) from error
        self.footer_notes.opened(path, found.metadata)
        return found
