"""What the footers of base files say of their keys, remembered: a file never changes, so none is opened for it twice.

    others = place.key_notes.without(place.store, paths, keys)     # files that certainly have none of the keys

In a process it is what was opened or written there. Beside the lock, in `.hoodie/.locks/keys/<time>`, is what a process
that looks keys up knew when it wrote a checkpoint: who knows little of many files reads the newest once. It says what
footers say, of files whose names never come again, so it holds for ever, whatever ends the lock's log.

Promised: no file that has one of the keys is left out. NOT promised: that all others are: of files with more than some
hundred keys only the range is kept beside the lock, and of too many files no filters at all.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from threading import Lock
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from fsspec_cas import CasError, Store
from lockprovider.table.errors import Corrupt
from lockprovider.table.files import base_file
from lockprovider.table.format import bloom

if TYPE_CHECKING:
    from numpy.typing import NDArray

NOTES = ".hoodie/.locks/keys/"
MANY = 10_000  # keys from which on it is quicker to read all keys of a file than to ask its filter for each
_VERSION = 1
_LEVEL = 1  # filters are random bits
_FEW = 8  # files that nothing is known of are opened rather than looked for beside the lock
_KEPT = 2  # of those beside the lock; who reads may have listed just before
_FILTER_BYTES = 4096  # of base64: of 512 keys
_FILTERS_BYTES = 4 << 20  # of all filters in one object
_MEMORY_BYTES = 64 << 20


@dataclass(frozen=True, slots=True)
class KeyNote:
    """The least and the greatest key of a file, if its footer tells for sure, and its bloom filter, if it has one."""

    ends: tuple[str, str] | None
    filter: str | None

    @classmethod
    def of(cls, footer: pq.FileMetaData) -> KeyNote:
        """By its footer."""
        known = base_file.known_filter(footer)
        return cls(base_file.key_range(footer), None if known is None else known.text)

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
        return len(self.filter or "") + 200


class KeyNotes:
    """Of the files of one table, as far as one process knows them. Thread-safe.

    `beside_the_lock`: what others have known is looked for, once; not by each of many tasks.
    """

    def __init__(self, *, beside_the_lock: bool = False) -> None:
        self.are_used = False  # keys are looked up here; else nothing need be remembered
        self._notes: dict[str, KeyNote] = {}
        self._size = 0
        self._adding = Lock()
        self._looking = Lock()
        self._may_look = beside_the_lock

    def get(self, path: str) -> KeyNote | None:
        """What is known of one file, in which keys are looked up."""
        self.are_used = True
        return self._notes.get(path)

    def add(self, path: str, note: KeyNote) -> None:
        """Remember it, unless as much is known; the first that were remembered are forgotten when there is no room."""
        with self._adding:
            known = self._notes.get(path)
            if known is not None and (known.filter is not None or note.filter is None):
                return
            self._notes[path] = note
            self._size += note.size - (0 if known is None else known.size)
            while self._size > _MEMORY_BYTES:
                self._size -= self._notes.pop(next(iter(self._notes))).size

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
        self.are_used = True
        if not self._may_look or len([path for path in paths if path not in self._notes]) <= _FEW:
            return
        with self._looking:
            if self._may_look:
                for path, note in read_notes(store).items():
                    self.add(path, note)
                self._may_look = False

    def write(self, store: Store, time: str, paths: Iterable[str]) -> None:
        """Put what is known of these files beside the lock, if keys are looked up here.

        Raises:
            CasError: the store failed; the one before is still there.
        """
        if not self.are_used:
            return
        before = read_notes(store)
        found = ((path, self._notes.get(path) or before.get(path)) for path in paths)
        known = {path: note for path, note in found if note is not None}
        if not known:
            return
        store.put_if_absent(f"{NOTES}{time}", encode_notes(known), create_once=True)
        there = sorted(entry.path for entry in store.list(NOTES))
        store.delete_all(there[:-_KEPT])


def read_notes(store: Store) -> Mapping[str, KeyNote]:
    """The newest beside the lock; nothing, if there is none that can be read."""
    try:
        there = sorted(entry.path for entry in store.list(NOTES))
        content = store.read_or_none(there[-1]) if there else None
    except CasError:
        return {}
    return {} if content is None else decode_notes(content.data)


def encode_notes(notes: Mapping[str, KeyNote]) -> bytes:
    """As bytes; the largest filters are left out."""
    rows, room = [], _FILTERS_BYTES
    for path, note in sorted(notes.items(), key=lambda one: one[1].size):
        length = len(note.filter or "")
        kept = note if length <= min(_FILTER_BYTES, room) else replace(note, filter=None)
        room -= len(kept.filter or "")
        rows.append((path, kept.ends, kept.filter))
    return zlib.compress(json.dumps({"version": _VERSION, "files": rows}, separators=(",", ":")).encode(), _LEVEL)


def decode_notes(data: bytes) -> Mapping[str, KeyNote]:
    """Read it; nothing, if it is none, or one of another version."""
    try:
        said = json.loads(zlib.decompress(data))
        if said["version"] != _VERSION:
            return {}
        return {path: KeyNote(None if ends is None else (ends[0], ends[1]), text) for path, ends, text in said["files"]}
    except (ValueError, KeyError, TypeError, IndexError, zlib.error):
        return {}
