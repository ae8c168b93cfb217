"""Location of a table, with which any process can open its files."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow import fs as arrow_fs

from fsspec_cas import Store
from fsspec_cas.backends import split_url
from lockprovider.table.files import base_file
from lockprovider.table.files.base_file import ParquetFile
from lockprovider.table.files.footers import FooterNotes, Ranges

WHOLE_BYTES = 8 << 20  # Up to this size, one request is cheaper than ranged reads.
_LOCAL = "local"


@dataclass(frozen=True)
class TablePlace:
    """Location of a table. Picklable; each process opens its own store."""

    url: str
    storage_options: dict[str, Any] | None

    @cached_property
    def store(self) -> Store:
        """The table's open store."""
        return Store.from_url(self.url, self.storage_options)

    @cached_property
    def footer_notes(self) -> FooterNotes:
        """This process's cache of footer notes."""
        return FooterNotes()

    @classmethod
    def of(cls, store: Store, url: str, storage_options: dict[str, Any] | None) -> TablePlace:
        """Return the location of a table with its open store; its notes also use the lock folder."""
        place = cls(url, storage_options)
        place.__dict__["store"] = store
        place.__dict__["footer_notes"] = FooterNotes(beside_the_lock=True)
        return place

    def __getstate__(self) -> dict[str, Any]:
        return {"url": self.url, "storage_options": self.storage_options}

    def ranges(self, paths: Sequence[str]) -> Mapping[str, Ranges]:
        """Return column ranges by path, as far as cached.

        If many are missing, a place made by `of` first caches the lock folder's notes.
        """
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
        """Read a base file's rows, or some `columns`; raise `HistoryGone` if a clean removed it."""
        return base_file.read_columns(self.open(path), columns)

    def open(self, path: str, size: int | None = None) -> ParquetFile:
        """Open a base file, and cache its footer's note; without a `size` fetch the whole file.

        May raise `HistoryGone`, `Corrupt` or `UnsupportedTable`.
        """
        with base_file.reading(path):
            file = base_file.open_base_file(*self.source(path, size), path)
        self.footer_notes.opened(path, file.metadata)
        return file

    def footer(self, path: str) -> pq.FileMetaData:
        """Read only the footer of a base file, and cache its note; raises as `open`."""
        return self.open(path, WHOLE_BYTES + 1).metadata

    @property
    def is_local(self) -> bool:
        """Whether the table is in a local folder."""
        return self.store.kind == _LOCAL
