"""Codec of the timeline archive: Parquet files of completed instants, and numbered manifests that list these.

Source: Hudi `LSMTimeline`, `LSMTimelineWriter`, `HoodieLSMTimelineManifest`, `HoodieLSMTimelineInstant.avsc`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import astuple, dataclass
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from lockprovider.bounded import LARGEST_OBJECT, parse_json
from lockprovider.table.errors import undamaged
from lockprovider.table.format.layout import HISTORY
from lockprovider.table.format.metadata import schema_text

VERSION_FILE = f"{HISTORY}/_version_"
_MANIFEST = re.compile(r"manifest_([0-9]+)", re.ASCII)
_FILE = re.compile(r"([0-9]+)_([0-9]+)_([0-9])\.parquet", re.ASCII)
_DIGEST_KEY = "lockprovider.digest"
_VERSION = 1
_GROUP_BYTES = 16 << 20  # of a row group, uncompressed
SCHEMA = pa.schema(
    [
        *(pa.field(name, pa.string()) for name in ("instantTime", "completionTime", "action")),
        *(pa.field(name, pa.binary()) for name in ("metadata", "plan")),
        pa.field("version", pa.int32(), nullable=False),
    ]
)


@dataclass(frozen=True, slots=True, order=True)
class HistoryFile:
    """Parsed name of an archive file."""

    least: str
    greatest: str
    level: int

    @property
    def name(self) -> str:
        return f"{self.least}_{self.greatest}_{self.level}.parquet"


def parse_file(name: str) -> HistoryFile | None:
    match = _FILE.fullmatch(name)
    return HistoryFile(match[1], match[2], int(match[3])) if match else None


def manifest_path(number: int) -> str:
    return f"{HISTORY}/manifest_{number}"


def parse_manifest_name(name: str) -> int | None:
    match = _MANIFEST.fullmatch(name)
    return int(match[1]) if match else None


Manifest = Mapping[str, int]  # bytes by file name


def encode_manifest(files: Manifest) -> bytes:
    listed = [{"fileName": name, "fileLen": size} for name, size in files.items()]
    return json.dumps({"files": listed}, indent=2).encode("ascii")


def decode_manifest(data: bytes, name: str) -> Manifest:
    with undamaged(f"{name} cannot be understood"):
        listed = parse_json(data, most=LARGEST_OBJECT)["files"]
        return {str(file["fileName"]): int(file["fileLen"]) for file in listed}


@dataclass(frozen=True, slots=True)
class Digest:
    """Summary of an archive file.

    `begin` and `completion` are the greatest times of its writes; `streams` has each stream's greatest batch and its
    file.
    """

    begin: str = ""
    completion: str = ""
    streams: Mapping[str, tuple[int, str]] | None = None

    def plus(self, other: Digest) -> Digest:
        streams = dict(self.streams or {})
        for stream, last in (other.streams or {}).items():
            streams[stream] = max(streams.get(stream, last), last)
        return Digest(max(self.begin, other.begin), max(self.completion, other.completion), streams)


def digest_of(footer: Mapping[bytes, bytes] | None) -> Digest | None:
    try:
        digest = parse_json((footer or {})[_DIGEST_KEY.encode()], most=LARGEST_OBJECT)
        streams = {str(name): (int(batch), str(file)) for name, (batch, file) in digest["streams"].items()}
        return Digest(str(digest["begin"]), str(digest["completion"]), streams)
    except (KeyError, ValueError, TypeError, AttributeError):
        return None


@dataclass(frozen=True, slots=True)
class Archived:
    """Archived instant."""

    begin: str
    completion: str
    action: str
    metadata: bytes | None
    plan: bytes | None = None


def rows_of(instants: Iterable[Archived]) -> list[dict[str, Any]]:
    ordered = sorted(instants, key=lambda instant: (instant.begin, instant.completion))
    return [dict(zip(SCHEMA.names, (*astuple(instant), _VERSION), strict=True)) for instant in ordered]


def encode_file(rows: Iterable[Mapping[str, Any]], digest: Digest) -> bytes:
    """Encode an archive file of rows as from `rows_of`, with `digest` in its footer; equal rows give equal bytes."""
    out = pa.BufferOutputStream()
    summary = {"begin": digest.begin, "completion": digest.completion, "streams": dict(digest.streams or {})}
    with pq.ParquetWriter(
        out, SCHEMA, compression="gzip", version="1.0", store_schema=False, write_page_checksum=True
    ) as writer:
        for group in _groups(rows):
            writer.write_table(pa.Table.from_pylist(group, SCHEMA))
        writer.add_key_value_metadata(
            {
                "parquet.avro.schema": schema_text("HoodieLSMTimelineInstant"),
                "writer.model.name": "avro",
                _DIGEST_KEY: json.dumps(summary, separators=(",", ":"), sort_keys=True),
            }
        )
    return bytes(out.getvalue())


def _groups(rows: Iterable[Mapping[str, Any]]) -> Iterator[list[Mapping[str, Any]]]:
    """Split rows, in order, into row groups.

    Each but the last ends with the row that takes its metadata and plans above 16 MiB.
    """
    group, size = list[Mapping[str, Any]](), 0
    for row in rows:
        group.append(row)
        size += len(row["metadata"] or b"") + len(row["plan"] or b"")
        if size > _GROUP_BYTES:
            yield group
            group, size = [], 0
    if group:
        yield group
