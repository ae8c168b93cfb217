"""Codec of the metadata table's partition `files`.

    __all_partitions__   type 1   {partition: is it deleted}
    <partition>, or .    type 2   {file name: its size, is it deleted}

Source: Hudi `HoodieMetadataPayload.combineFileSystemMetadata`,
`HoodieTableMetadataUtil.convertMetadataToFilesPartitionRecords`, `HoodieBackedTableMetadataWriter`,
`SparkHoodieBackedTableMetadataWriter`, `HoodieAppendHandle`, `HoodieAvroHFileWriter`.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from io import BytesIO
from typing import Any, NamedTuple

import fastavro

from lockprovider.table.errors import InvalidRecords, undamaged
from lockprovider.table.format import metadata
from lockprovider.table.format.bloom import encode_filter
from lockprovider.table.format.hfile import HFile, encode_hfile
from lockprovider.table.format.layout import (
    METADATA_TABLE,
    TIMELINE,
    Action,
    Instant,
    InstantState,
    LogFile,
    join,
    to_ms,
)
from lockprovider.table.format.log_block import BlockKind, Header, LogBlock, encode_blocks
from lockprovider.table.format.metadata import CommitMetadata, WriteStat, parsed_schema
from lockprovider.table.format.service_metadata import PlannedSlice, encode_compaction_plan

LISTING = "files"
ALL_PARTITIONS = "__all_partitions__"
_ROOT = "."
_TYPES = {True: 1, False: 2}


class ListedFile(NamedTuple):
    """Listed file or partition."""

    size: int
    is_deleted: bool


@dataclass(frozen=True, slots=True)
class FilesRecord:
    """Record of the `files` partition."""

    key: str
    files: Mapping[str, ListedFile]


@dataclass(frozen=True, slots=True)
class FileListing:
    """Merged records: the partitions, and for each its file sizes in bytes by name."""

    partitions: frozenset[str]
    files: Mapping[str, Mapping[str, int]]

    @property
    def sizes(self) -> dict[str, int]:
        return {
            join(partition, name): size
            for partition, files in self.files.items()
            if partition in self.partitions
            for name, size in files.items()
        }


def decode_files(content: HFile, schema_json: str, file_name: str) -> tuple[FilesRecord, ...]:
    with undamaged(f"{file_name!r} has records that are no listing of files"):
        parsed = parsed_schema(schema_json)
        return tuple(_record(key.decode(), _datum(value, parsed)) for key, value in content.entries)


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


def written_files(commit: CommitMetadata) -> tuple[FilesRecord, ...]:
    """Records that list a commit's written files, that of all partitions first.

    Replaced files stay listed until a clean. Raises `InvalidRecords` for an empty file.
    """
    named = {
        partition: {stat.file_name: ListedFile(stat.file_size, is_deleted=False) for stat in stats}
        for partition, stats in commit.stats.items()
        if stats
    }
    empty = [stat.path for stat in commit.all_stats if stat.file_size <= 0]
    if empty:
        raise InvalidRecords(f"files {empty} have no bytes, which a metadata table cannot list; write them again")
    everything = {_key(partition): ListedFile(0, is_deleted=False) for partition in named}
    partitions = (FilesRecord(_key(partition), written) for partition, written in named.items())
    return (FilesRecord(ALL_PARTITIONS, everything), *partitions)


def removed_files(names: Mapping[str, Iterable[str]]) -> tuple[FilesRecord, ...]:
    removed = {
        partition: {name: ListedFile(0, is_deleted=True) for name in files} for partition, files in names.items()
    }
    return tuple(FilesRecord(_key(partition), files) for partition, files in removed.items() if files)


def whole_listing(listing: FileListing) -> tuple[FilesRecord, ...]:
    everything = {_key(partition): ListedFile(0, is_deleted=False) for partition in sorted(listing.partitions)}
    partitions = (
        FilesRecord(_key(partition), {name: ListedFile(size, is_deleted=False) for name, size in files.items()})
        for partition, files in listing.files.items()
    )
    return (FilesRecord(ALL_PARTITIONS, everything), *partitions)


def encode_files(records: Iterable[FilesRecord], schema_json: str | None = None) -> dict[bytes, bytes]:
    """Encode records, each key once, as HFile entries in `schema_json` or, if None, Hudi 1.2's schema."""
    parsed = parsed_schema(schema_json or metadata_schema())
    entries: dict[bytes, bytes] = {}
    for record in records:
        out = BytesIO()
        listed = {name: {"size": entry.size, "isDeleted": entry.is_deleted} for name, entry in record.files.items()}
        said = {"key": "", "type": _TYPES[record.key == ALL_PARTITIONS], "filesystemMetadata": listed}
        fastavro.schemaless_writer(out, parsed, said)
        entries[record.key.encode()] = out.getvalue()
    return entries


def metadata_schema() -> str:
    return metadata.schema_text("HoodieMetadataRecord")


@lru_cache(maxsize=8)
def record_schema(schema_json: str) -> str:
    whole = json.loads(schema_json)
    plain = [one for one in whole["fields"] if not one["name"].startswith("_hoodie_")]
    return json.dumps({**whole, "fields": plain}, separators=(",", ":"))


def merge_files(records: Iterable[FilesRecord]) -> FileListing:
    """Merge records, oldest first, into a listing.

    A file's largest size counts. A deleted file is gone until a later record names it.
    """
    listing: dict[str, dict[str, int]] = {}
    for record in records:
        files = listing.setdefault(record.key, {})
        for name, listed in record.files.items():
            if listed.is_deleted:
                files.pop(name, None)
            else:
                files[name] = max(listed.size, files.get(name, 0))
    partitions = frozenset(map(_path, listing.pop(ALL_PARTITIONS, {})))
    return FileListing(partitions, {_path(key): files for key, files in listing.items()})


def _path(key: str) -> str:
    return "" if key == _ROOT else key


def _key(path: str) -> str:
    return path or _ROOT


OWN_TIMELINE = f"{METADATA_TABLE}/{TIMELINE}/"
_GROUP = "files-0000-0"  # the only file group
_WRITER = "0-0-0"
_OPERATION = "UPSERT_PREPPED"


@dataclass(frozen=True, slots=True)
class ListingCommit:
    """Log and completed instant of one commit of the metadata table."""

    begin: str
    log: bytes
    completed: bytes

    @classmethod
    def of(cls, begin: str, records: Iterable[FilesRecord], schema_json: str | None = None) -> ListingCommit:
        """Build, in memory, the files of a metadata-table commit of these records: at least one, no key twice.

        `schema_json` must be the other files'; None: Hudi 1.2's.
        """
        schema = schema_json or metadata_schema()
        entries = encode_files(records, schema)
        content = encode_hfile(entries, schema, to_ms(begin))
        header: dict[int, str] = {Header.SCHEMA: schema, Header.INSTANT_TIME: begin}
        log = encode_blocks([LogBlock(BlockKind.HFILE, header, content)])
        stat = WriteStat(_GROUP, f"{LISTING}/{_log_name(begin)}", LISTING, prev_commit=begin, file_size=len(log))
        return cls(begin, log, _completed(stat, len(entries), _OPERATION, schema))

    @property
    def log_path(self) -> str:
        return f"{METADATA_TABLE}/{LISTING}/{_log_name(self.begin)}"

    def path(self, state: InstantState, completion: str | None = None) -> str:
        return OWN_TIMELINE + Instant(self.begin, Action.DELTACOMMIT, state, completion).file_name


def _log_name(begin: str) -> str:
    return LogFile(_GROUP, begin, 1, _WRITER).name


def _completed(stat: WriteStat, count: int, operation: str, schema: str) -> bytes:
    stat = replace(stat, num_writes=count, num_updates=count)
    return metadata.encode_commit(CommitMetadata({LISTING: (stat,)}, operation, record_schema(schema)))


@dataclass(frozen=True, slots=True)
class ListingCompaction:
    """Base file, plan and completed instant of one compaction of the metadata table."""

    begin: str
    base_path: str
    base: bytes
    plan: bytes
    completed: bytes

    @classmethod
    def of(
        cls, begin: str, planned: PlannedSlice, listing: FileListing, schema_json: str | None = None
    ) -> ListingCompaction:
        """Build the files of the compaction that makes one slice a base file of `listing`.

        `schema_json` must be the slice's; None is Hudi 1.2's.
        """
        schema = schema_json or metadata_schema()
        entries = encode_files(whole_listing(listing), schema)
        bloom = encode_filter([key.decode() for key in sorted(entries)])
        base = encode_hfile(entries, schema, to_ms(begin), bloom)
        path = f"{LISTING}/{planned.file_id}_{_WRITER}_{begin}.hfile"
        stat = WriteStat(planned.file_id, path, LISTING, prev_commit=planned.base_instant, file_size=len(base))
        completed = _completed(stat, len(entries), metadata.COMPACT, schema)
        return cls(begin, f"{METADATA_TABLE}/{path}", base, encode_compaction_plan([planned]), completed)

    def path(self, state: InstantState, completion: str | None = None) -> str:
        return OWN_TIMELINE + Instant(self.begin, Action.COMPACTION, state, completion).file_name
