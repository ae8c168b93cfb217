"""Each kind of file that a table reads x each kind of damage: right rows or one typed error, no error of Python's."""

from __future__ import annotations

import contextlib
import json
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from fsspec_cas import CasError
from lockprovider import LockError
from lockprovider.table import Table, TableSpec
from lockprovider.table.errors import Corrupt, HistoryGone, TableError
from lockprovider.table.files import base_file
from lockprovider.table.files.encoding import all_fresh, encode_base_file
from lockprovider.table.files.merge_log import MergeRule
from lockprovider.table.files.place import FooterNote
from lockprovider.table.files.slice_rows import events_of
from lockprovider.table.format import bloom, schema, schema_on_read
from lockprovider.table.format.hfile import decode_hfile, encode_hfile
from lockprovider.table.format.layout import BaseFile, MarkerKind, marker_name, markers_file, markers_in
from lockprovider.table.format.log_block import BlockKind, Header, LogBlock, encode_avro, encode_blocks, encode_deletes
from lockprovider.table.format.lsm import Archived, Digest, decode_manifest, encode_file, encode_manifest, rows_of
from lockprovider.table.format.metadata import CommitMetadata, WriteStat, decode_commit, encode_commit
from lockprovider.table.format.metadata_table import decode_files, encode_files, metadata_schema, written_files
from lockprovider.table.format.properties import TableConfig, encode_properties, parse_properties
from lockprovider.table.format.service_metadata import (
    CleanPlan,
    ClusteringGroup,
    ClusteringPlan,
    PlannedSlice,
    RestorePlan,
    Savepoint,
    Victim,
    decode_clean_plan,
    decode_clustering_plan,
    decode_compaction_plan,
    decode_restore,
    decode_restore_plan,
    decode_rollback,
    decode_rollback_plan,
    decode_savepoint,
    encode_clean_plan,
    encode_clustering_plan,
    encode_compaction_plan,
    encode_restore,
    encode_restore_plan,
    encode_rollback,
    encode_rollback_plan,
    encode_savepoint,
)

BEGIN = "20260105010203004"
COLUMNS = pa.schema([("id", pa.string()), ("n", pa.int64()), ("x", pa.float64())])
ROWS = pa.table({"id": [f"k{n:03d}" for n in range(200)], "n": range(200), "x": [n / 3 for n in range(200)]}, COLUMNS)
BASE = BaseFile("f-0", "0-0-0", BEGIN)
TYPED = (TableError, LockError, CasError)
FLIPS = 300
VICTIM = Victim(BEGIN, "commit")
SLICE = PlannedSlice("p", "f-0", BASE.name, (".f-0_20260105010203005.log.1_0-0-0",), BEGIN, {"TOTAL": 1.0})


def base() -> bytes:
    keys = base_file.record_keys(ROWS, ["id"])
    written = encode_base_file(
        all_fresh(ROWS, BASE), COLUMNS, keys=keys, partition="p", base_file=BASE, table_name="trips"
    )
    return written.data


def log() -> bytes:
    full = schema.with_meta(COLUMNS)
    text = schema.to_avro(full, "trips")
    rows = pa.table([ROWS["id"]] * 5 + ROWS.columns, schema=full)[:20]
    header: dict[int, str] = {Header.SCHEMA: text, Header.INSTANT_TIME: BEGIN}
    deletes = encode_deletes(["k1", "k2"], "p", [5, 6], "LongWrapper")
    blocks = ((BlockKind.AVRO, encode_avro(rows, text)), (BlockKind.PARQUET, base()), (BlockKind.DELETE, deletes))
    return encode_blocks(LogBlock(kind, header, content) for kind, content in blocks)


def read_listing(data: bytes) -> Any:
    file = decode_hfile(data, "x")
    return decode_files(file, file.schema_json, "x")


def archive() -> bytes:
    rows = rows_of([Archived(f"2026010501020300{n}", "2", "commit", b"m" * 50) for n in range(9)])
    return encode_file(rows, Digest("1", "2", {"s": (1, "f")}))


def read_rows(data: bytes) -> Any:
    file = base_file.open_base_file(data)
    base_file.known_filter(file.metadata)
    base_file.key_range(file.metadata)
    return base_file.read_columns(file)


STAT = WriteStat("f-0", f"p/{BASE.name}", "p", num_writes=3, file_size=500)
COMMIT = CommitMetadata({"p": (STAT,)}, "UPSERT", schema.to_avro(COLUMNS, "trips"), {"a": "b"}, {"p": ("f-1",)})
CLEAN = CleanPlan("KEEP_LATEST_COMMITS", {"p": ("a", "b")}, (BEGIN, "commit"), BEGIN, (BEGIN,))
LISTING = encode_hfile(encode_files(written_files(COMMIT)), metadata_schema(), 5, bloom.encode_filter(["p"]))
HISTORY = {"version_id": 5, "fields": [{"id": 1, "name": "a", "type": {"type": "array", "element": "int"}}]}
KINDS: dict[str, tuple[bytes, Callable[[bytes], Any]]] = {
    "base file": (base(), read_rows),
    "log": (log(), lambda data: events_of([("x", data)], COLUMNS, MergeRule(("n",)))),
    "archive": (archive(), read_rows),
    "HFile": (LISTING, read_listing),
    "bloom filter": (
        bloom.encode_filter(["a", "b"]).encode(),
        lambda data: FooterNote(("a", "z"), data.decode("latin-1")).may_have_each(pa.array(["a", "c"])),
    ),
    "commit": (encode_commit(COMMIT), lambda data: decode_commit(data, "x_y.replacecommit")),
    "rollback": (encode_rollback(BEGIN, VICTIM, ["p/a"]), lambda data: decode_rollback(data, "x")),
    "rollback plan": (encode_rollback_plan(VICTIM, ["p/a"]), lambda data: decode_rollback_plan(data, "x")),
    "clean plan": (encode_clean_plan(CLEAN, "file:///t"), lambda data: decode_clean_plan(data, "x")),
    "savepoint": (encode_savepoint(Savepoint("me", 5, "why", {"p": ("a",)})), lambda data: decode_savepoint(data, "x")),
    "restore plan": (encode_restore_plan(RestorePlan(BEGIN, (VICTIM,))), lambda data: decode_restore_plan(data, "x")),
    "restore": (encode_restore(BEGIN, [VICTIM], {BEGIN: ["p/a"]}, 3), lambda data: decode_restore(data, "x")),
    "clustering plan": (
        encode_clustering_plan(ClusteringPlan((ClusteringGroup((SLICE,), 2),), ("n",), True), "file:///t"),
        lambda data: decode_clustering_plan(data, "x"),
    ),
    "compaction plan": (encode_compaction_plan([SLICE]), lambda data: decode_compaction_plan(data, "x")),
    "manifest": (encode_manifest({"a.parquet": 5}), lambda data: decode_manifest(data, "x")),
    "properties": (encode_properties(TableConfig("trips", ("id",), ("p",))), parse_properties),
    "markers": (
        markers_file(BEGIN, 0, [marker_name("p", BASE.name, MarkerKind.CREATE)] * 3)[1],
        lambda data: markers_in(markers_file(BEGIN, 0, [])[0], data),
    ),
    "table schema": (
        schema.to_avro(pa.schema([*COLUMNS, ("d", pa.decimal128(9, 2)), ("l", pa.list_(pa.int32()))]), "t").encode(),
        lambda data: schema.from_avro(data.decode("latin-1")),
    ),
    "schema history": (
        json.dumps({"schemas": [HISTORY]}).encode(),
        lambda data: schema_on_read.parse_history(data, "x"),
    ),
}


def damaged(data: bytes, draw: random.Random) -> Iterator[bytes]:
    """Copies with a changed byte, a flipped bit, or the end cut off."""
    for _ in range(FLIPS):
        copy, at = bytearray(data), draw.randrange(len(data))
        copy[at] = draw.randrange(256) if draw.random() < 0.3 else copy[at] ^ 1 << draw.randrange(8)
        yield bytes(copy)
    for _ in range(50):
        yield data[: draw.randrange(len(data))]


@pytest.mark.parametrize("kind", KINDS)
def test_damaged_file_raises_a_typed_error_or_is_read(kind: str, seed: int) -> None:
    data, read = KINDS[kind]
    read(data)
    refused = 0
    for copy in damaged(data, random.Random(seed)):
        try:
            read(copy)
        except TableError:
            refused += 1
    assert refused or kind in ("markers", "properties")


def pages(data: bytes) -> int:
    """Where the footer begins."""
    return len(data) - 8 - int.from_bytes(data[-8:-4], "little")


def test_damaged_pages_never_give_other_rows(seed: int) -> None:
    data, draw = base(), random.Random(seed)
    rows, end = read_rows(data), pages(data)
    for _ in range(FLIPS):
        copy = bytearray(data)
        copy[draw.randrange(4, end)] ^= 1 << draw.randrange(8)
        with contextlib.suppress(Corrupt):
            assert read_rows(bytes(copy)).equals(rows)


def test_pages_of_all_parquet_files_have_checksums() -> None:
    for data in (base(), archive()):
        at = pq.ParquetFile(pa.BufferReader(data)).metadata.row_group(0).column(0)
        first = at.dictionary_page_offset or at.data_page_offset
        copy = bytearray(data)
        copy[first + at.total_compressed_size - 1] ^= 1
        with pytest.raises(Corrupt, match="CRC|checksum|cannot be read"):
            read_rows(bytes(copy))


def test_error_of_a_store_is_no_damage() -> None:
    for error in (ConnectionResetError("gone"), OSError(5, "Input/output error"), TimeoutError("slow")):
        with pytest.raises(type(error)), base_file.reading("p/f"):
            raise error
    with pytest.raises(HistoryGone, match="p/f"), base_file.reading("p/f"):
        raise FileNotFoundError


@pytest.mark.parametrize("kind", ["copy_on_write", "merge_on_read"])
def test_damaged_table_raises_a_typed_error_or_reads_right_rows(kind: str, tmp_path: Path, seed: int) -> None:
    """Through `Table`, each file of a table in turn. Rows in a log have no checksum: any rows of it may come."""
    draw = random.Random(seed)
    table = Table.create(str(tmp_path / "t"), TableSpec("trips", COLUMNS, ("id",), ordering="n", table_type=kind))
    table.upsert(ROWS)
    table.upsert(ROWS.slice(5, 20).set_column(1, "n", pa.array(np.arange(20) + 1000)))
    rows = table.to_arrow().sort_by("id")
    for path in sorted(
        path
        for path in (tmp_path / "t").rglob("*")
        if path.is_file() and not path.name.startswith(".cas") and path.stat().st_size
    ):
        data = path.read_bytes()
        end = pages(data) if path.suffix == ".parquet" else len(data)
        for _ in range(12):
            copy = bytearray(data)
            copy[draw.randrange(end)] ^= 1 << draw.randrange(8)
            path.write_bytes(copy)
            try:
                found = Table.open(table.url).to_arrow()
            except TYPED:
                continue
            if path.suffix == ".parquet":
                assert found.sort_by("id").equals(rows), path
        path.write_bytes(data)
    assert Table.open(table.url).to_arrow().sort_by("id").equals(rows)
