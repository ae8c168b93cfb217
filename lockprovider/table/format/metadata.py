"""Codec of commit metadata and other Avro container files with one record; equal input gives equal bytes.

Decoders raise `Corrupt` with the file's name, also for layout 1 (JSON) and empty files.
"""

from __future__ import annotations

import json
import sys
import zlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import cache, lru_cache, partial
from hashlib import sha256
from importlib.resources import files
from io import BytesIO
from types import MappingProxyType
from typing import Any, TypeVar

import fastavro

from lockprovider.bounded import DEEPEST_SCHEMA, LARGEST_OBJECT, inflate, parse_json, plausible
from lockprovider.table.errors import undamaged
from lockprovider.table.format.layout import FileGroup, parse_log_file

SCHEMA_KEY = "schema"
CLUSTER = "CLUSTER"
COMPACT = "COMPACT"
REPLACING = frozenset({"INSERT_OVERWRITE", "INSERT_OVERWRITE_TABLE", "DELETE_PARTITION", CLUSTER})
_NO_COMMIT = "null"
_FIELDS = ("partitionToWriteStats", "extraMetadata", "operationType")
_NEEDED = {"commit": _FIELDS, "deltacommit": _FIELDS, "replacecommit": (*_FIELDS, "partitionToReplaceFileIds")}
_SYNC_BYTES = 16
_MAGIC = b"Obj\x01"
_HEADER = {"type": "map", "values": "bytes"}
_T = TypeVar("_T")


def _nothing() -> Mapping[str, Any]:
    return MappingProxyType({})


@dataclass(frozen=True, slots=True)
class WriteStat:
    """Statistics of one data file of a commit; sizes are bytes.

    `num_writes` counts all rows, also rewritten ones. A new file group has no `prev_commit` and `prev_base_file`.
    `note`, the footer's note for the committing process, is not stored.
    """

    file_id: str
    path: str
    partition: str = ""
    prev_commit: str | None = None
    prev_base_file: str | None = None
    num_writes: int = 0
    num_inserts: int = 0
    num_updates: int = 0
    num_deletes: int = 0
    file_size: int = 0
    note: str = field(default="", compare=False, repr=False)

    @property
    def group(self) -> FileGroup:
        return self.partition, self.file_id

    @property
    def file_name(self) -> str:
        return self.path.rsplit("/", 1)[-1]

    @property
    def is_log(self) -> bool:
        return parse_log_file(self.file_name) is not None


@dataclass(frozen=True, slots=True)
class CommitMetadata:
    """Effect of a commit: written and replaced file groups by partition path.

    `schema_json` is the table's Avro schema without meta columns; readers take the latest commit's.
    """

    stats: Mapping[str, tuple[WriteStat, ...]]
    operation: str
    schema_json: str | None = None
    extra: Mapping[str, str] = field(default_factory=_nothing)
    replaced: Mapping[str, tuple[str, ...]] = field(default_factory=_nothing)

    @property
    def all_stats(self) -> tuple[WriteStat, ...]:
        return tuple(stat for stats in self.stats.values() for stat in stats)

    @property
    def ended(self) -> frozenset[FileGroup]:
        return frozenset((partition, file_id) for partition, ids in self.replaced.items() for file_id in ids)

    @property
    def file_groups(self) -> frozenset[FileGroup]:
        written = {(partition, stat.file_id) for partition, stats in self.stats.items() for stat in stats}
        return self.ended | written


def encode_commit(metadata: CommitMetadata) -> bytes:
    """Encode a completed or inflight commit.

    It is a replacecommit if it replaces or its operation is in `REPLACING`.
    """
    schema = {SCHEMA_KEY: metadata.schema_json} if metadata.schema_json is not None else {}
    record: dict[str, Any] = {
        "partitionToWriteStats": {
            partition: [_stat_to_avro(stat) for stat in stats] for partition, stats in metadata.stats.items()
        },
        "compacted": metadata.operation == COMPACT,
        "extraMetadata": {**metadata.extra, **schema},
        "version": 1,
        "operationType": metadata.operation,
    }
    if not metadata.replaced and metadata.operation not in REPLACING:
        return one_record("HoodieCommitMetadata", record)
    replaced = {partition: list(ids) for partition, ids in metadata.replaced.items()}
    return one_record("HoodieReplaceCommitMetadata", {**record, "partitionToReplaceFileIds": replaced})


def encode_replace_pending(operation: str) -> tuple[bytes, bytes]:
    requested = {"operationType": operation, "clusteringPlan": None, "extraMetadata": None, "version": 1}
    inflight = {"partitionToWriteStats": {}, "compacted": False, "extraMetadata": {}, "operationType": operation}
    return one_record("HoodieRequestedReplaceMetadata", requested), one_record("HoodieCommitMetadata", inflight)


def decode_commit(data: bytes, file_name: str) -> CommitMetadata:
    return decoded(data, file_name, "commit metadata", partial(_commit, file_name=file_name))


def _commit(record: Mapping[str, Any], file_name: str) -> CommitMetadata:
    """Convert an Avro record to commit metadata.

    KeyError: a field is missing that its kind of instant, by file name, needs. Others become empty, the operation
    `UNKNOWN`.
    """
    if missing := [name for name in _NEEDED.get(file_name.rpartition(".")[2], ()) if name not in record]:
        raise KeyError(*missing)
    extra = dict(record.get("extraMetadata") or {})
    schema = extra.pop(SCHEMA_KEY, None)
    return CommitMetadata(
        stats={
            partition: tuple(_stat_from_avro(stat, partition) for stat in stats)
            for partition, stats in (record.get("partitionToWriteStats") or {}).items()
        },
        operation=record.get("operationType") or "UNKNOWN",
        schema_json=sys.intern(schema) if schema else None,  # Commits share one text.
        extra=extra,
        replaced={partition: tuple(ids) for partition, ids in (record.get("partitionToReplaceFileIds") or {}).items()},
    )


def _stat_to_avro(stat: WriteStat) -> dict[str, Any]:
    """Write statistics for Avro, with 0 for counts unknown here."""
    zeros = dict.fromkeys(_ZERO_COUNTS, 0)
    return zeros | {
        "fileId": stat.file_id,
        "path": stat.path,
        "prevCommit": stat.prev_commit or _NO_COMMIT,
        "prevBaseFile": stat.prev_base_file,
        "partitionPath": stat.partition,
        **{avro: getattr(stat, name) for name, avro in _COUNTS.items()},
        "totalWriteBytes": stat.file_size,
        **({"baseFile": "", "logFiles": [stat.file_name], "logVersion": 1, "logOffset": 0} if stat.is_log else {}),
    }


_COUNTS = {
    "num_writes": "numWrites", "num_inserts": "numInserts", "num_updates": "numUpdateWrites",
    "num_deletes": "numDeletes", "file_size": "fileSizeInBytes",
}  # fmt: skip
# At null some JVM tools fail.
_ZERO_COUNTS = (
    "totalWriteErrors", "totalLogRecords", "totalLogBlocks", "totalCorruptLogBlock", "totalRollbackBlocks",
    "totalUpdatedRecordsCompacted", "totalLogFilesCompacted", "totalLogReadTimeMs", "totalLogSizeCompacted",
    "numUpdates",
)  # fmt: skip


def _stat_from_avro(record: Mapping[str, Any], partition: str) -> WriteStat:
    """File's write statistics; missing counts become 0, a missing partition path `partition`.

    Raises `KeyError` without file id or path.
    """
    previous = record.get("prevCommit")
    counts: dict[str, Any] = {name: record.get(avro) or 0 for name, avro in _COUNTS.items()}
    return WriteStat(
        file_id=record["fileId"],
        path=record["path"],
        partition=record.get("partitionPath") or partition,
        prev_commit=None if previous in {None, "", _NO_COMMIT} else previous,
        prev_base_file=record.get("prevBaseFile"),
        **counts,
    )


@cache
def avro_schema(name: str) -> Any:
    return fastavro.parse_schema(json.loads(schema_text(name)))


@cache
def schema_text(name: str) -> str:
    return (files("lockprovider.table") / "schemas" / f"{name}.json").read_text("ascii")


def one_record(name: str, record: Mapping[str, Any]) -> bytes:
    """Encode a record, in the packaged Avro schema `name`, as a container file; equal records give equal bytes."""
    out, counts = BytesIO(), BytesIO()
    fastavro.schemaless_writer(out, avro_schema(name), record)
    body = out.getvalue()
    for count in (1, len(body)):
        fastavro.schemaless_writer(counts, "long", count)
    mark = sha256(body).digest()[:_SYNC_BYTES]
    return b"".join((_head(name), mark, counts.getvalue(), body, mark))


@cache
def _head(name: str) -> bytes:
    out = BytesIO()
    fastavro.writer(out, avro_schema(name), [], codec="null", sync_marker=bytes(_SYNC_BYTES))
    return out.getvalue()[:-_SYNC_BYTES]


def decoded(data: bytes, file_name: str, kind: str, read: Callable[[Mapping[str, Any]], _T]) -> _T:
    """What `read` makes of the file's one record; raises `Corrupt` if either step fails."""
    with undamaged(f"{file_name} cannot be read as {kind}"):
        return read(_one_value(data))


def _one_value(data: bytes) -> Any:
    """Decode an untrusted container file's one value within memory bounds.

    Raises `ValueError` for none or several values or an unknown codec, any error if damaged.
    """
    if not data.startswith(_MAGIC):
        raise ValueError("it does not begin as an Avro container file")
    source = BytesIO(data)
    source.seek(len(_MAGIC))
    read: Any = fastavro.schemaless_reader
    head = read(source, _HEADER, None)
    mark = source.read(_SYNC_BYTES)
    parsed = parsed_schema(head["avro.schema"])
    codec, records, body = head.get("avro.codec", b"null"), 0, b""
    while source.tell() < len(data):
        count, size = read(source, "long", None), read(source, "long", None)
        body = source.read(max(0, size))
        if count < 0 or len(body) != size or source.read(_SYNC_BYTES) != mark:
            raise ValueError("a block that is cut")
        records += count
    if records != 1:
        raise ValueError(f"it holds {records} records, not one")
    if codec not in (b"null", b"deflate"):
        raise ValueError(f"codec {codec!r}, where null and deflate are known")
    body = inflate(body, most=plausible(body), wbits=-zlib.MAX_WBITS) if codec == b"deflate" else body
    return read(BytesIO(body), parsed, None)


@lru_cache(maxsize=16)
def parsed_schema(text: bytes | str) -> Any:
    return fastavro.parse_schema(checked_schema(text))


def checked_schema(text: bytes | str) -> Any:
    """Parse an Avro schema as JSON; raise `ValueError` if its values could exhaust memory."""
    data = text if isinstance(text, bytes) else text.encode()
    parsed = parse_json(data, most=LARGEST_OBJECT, deepest=DEEPEST_SCHEMA)
    _refuse_free(parsed)
    return parsed


def _is_null(avro: Any) -> bool:
    while isinstance(avro, dict):
        avro = avro.get("type")
    return bool(avro == "null")


def _refuse_free(avro: Any, within: frozenset[str] = frozenset()) -> None:
    """Raise ValueError for types whose values take no bytes, and for a record within itself.

    A few bytes could claim a billion values. `within` names the enclosing records.
    """
    if isinstance(avro, str) and avro.rpartition(".")[2] in within:
        raise ValueError(f"record {avro!r} is part of itself")
    for part in avro if isinstance(avro, list) else ():
        _refuse_free(part, within)
    if not isinstance(avro, dict):
        return
    if avro.get("type") in ("record", "error"):  # a list, as it may be a dict
        within |= {str(avro.get("name")).rpartition(".")[2]}
        fields = avro.get("fields")
        if not isinstance(fields, list) or all(
            isinstance(part, dict) and _is_null(part.get("type")) for part in fields
        ):
            raise ValueError(f"record {avro.get('name')!r} has no value")
        for part in fields:
            _refuse_free(part.get("type"), within)
        return
    if (avro.get("type") == "fixed" and not avro.get("size")) or _is_null(avro.get("items")):
        raise ValueError("values that take no bytes")
    for name in ("items", "values", "type"):
        _refuse_free(avro.get(name), within)


SINK_KEY = "_hudi_streaming_sink_checkpoint"


def batches_by_stream(extra: Mapping[str, str]) -> dict[str, int]:
    try:
        batches = parse_json(extra.get(SINK_KEY, "{}").encode(), most=LARGEST_OBJECT).items()
    except (ValueError, TypeError, AttributeError):
        return {}
    return {str(stream): int(batch) for stream, batch in batches if _is_number(batch)}


def with_batch(extra: Mapping[str, str], stream: str, batch: int) -> dict[str, str]:
    said = {name: str(number) for name, number in batches_by_stream(extra).items()}
    return {SINK_KEY: json.dumps({**said, stream: str(batch)})}


def _is_number(batch: object) -> bool:
    try:
        return int(str(batch)) >= 0
    except ValueError:
        return False


def stats_by_partition(stats: Iterable[WriteStat]) -> dict[str, tuple[WriteStat, ...]]:
    grouped: dict[str, list[WriteStat]] = {}
    for stat in stats:
        grouped.setdefault(stat.partition, []).append(stat)
    return {partition: tuple(found) for partition, found in grouped.items()}
