"""The records of the metadata table's partition `files`: which partitions the table has, and which files they have.

    __all_partitions__   type 1   {partition: is it deleted}
    <partition>, or .    type 2   {file name: its size, is it deleted}

Promised: what records come to depends on their order only where a file was deleted: sizes merge by the larger one, and
a file that is deleted is gone until a later record names it. NOT promised: to understand records of other partitions.

Source: Hudi `HoodieMetadata.avsc`, `HoodieMetadataPayload.combineFileSystemMetadata`.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from io import BytesIO
from typing import Any, NamedTuple

import fastavro

from lockprovider.table.errors import Corrupt
from lockprovider.table.format.layout import join
from lockprovider.table.format.metadata_table.hfile import HFile

ALL_PARTITIONS = "__all_partitions__"
_ROOT = "."
_TYPES = {True: 1, False: 2}  # of the record of all partitions, and of one


class ListedFile(NamedTuple):
    """What a record says of one file (or partition): its size in bytes, and whether it is deleted."""

    size: int
    is_deleted: bool


@dataclass(frozen=True, slots=True)
class FilesRecord:
    """One record: files by their names, of a partition by its path; or the partitions, of `ALL_PARTITIONS`."""

    key: str
    files: Mapping[str, ListedFile]


@dataclass(frozen=True, slots=True)
class FileListing:
    """What records come to: the partitions, and the files of each by name, with their sizes in bytes."""

    partitions: frozenset[str]
    files: Mapping[str, Mapping[str, int]]

    @property
    def sizes(self) -> dict[str, int]:
        """The sizes of the files by their paths, as readers find them: those of listed partitions alone."""
        return {
            join(partition, name): size
            for partition, files in self.files.items()
            if partition in self.partitions
            for name, size in files.items()
        }


def decode_files(content: HFile, schema_json: str, file_name: str) -> tuple[FilesRecord, ...]:
    """The records of an HFile of this partition, whose values are of this schema.

    Raises:
        Corrupt: it has others, or the values do not fit the schema; the message names the file.
    """
    try:
        parsed = _parsed(schema_json)
        return tuple(_record(key.decode(), _datum(value, parsed)) for key, value in content.entries)
    except (ValueError, KeyError, TypeError, IndexError, EOFError, AttributeError) as error:
        raise Corrupt(f"{file_name!r} has records that are no listing of files ({error!r}); restore it") from error


@lru_cache(maxsize=8)
def _parsed(schema_json: str) -> Any:
    return fastavro.parse_schema(json.loads(schema_json))


def _datum(value: bytes, parsed: Any) -> Mapping[str, Any]:
    source = BytesIO(value)
    found = fastavro.schemaless_reader(source, parsed, None)
    if source.tell() != len(value):
        raise ValueError("a value of another length")
    return found  # type: ignore[return-value]


def _record(key: str, said: Mapping[str, Any]) -> FilesRecord:
    if said["type"] != _TYPES[key == ALL_PARTITIONS]:
        raise ValueError(f"record {key!r} is of type {said['type']}")
    files = said["filesystemMetadata"] or {}
    return FilesRecord(key, {name: ListedFile(one["size"], one["isDeleted"]) for name, one in files.items()})


def merge_files(records: Iterable[FilesRecord]) -> FileListing:
    """What records, the oldest first, come to."""
    found: dict[str, dict[str, int]] = {}
    for record in records:
        files = found.setdefault(record.key, {})
        for name, listed in record.files.items():
            if listed.is_deleted:
                files.pop(name, None)
            else:
                files[name] = max(listed.size, files.get(name, 0))
    partitions = frozenset(map(_path, found.pop(ALL_PARTITIONS, {})))
    return FileListing(partitions, {_path(key): files for key, files in found.items()})


def _path(key: str) -> str:
    return "" if key == _ROOT else key
