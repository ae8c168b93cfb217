"""The table's own objects, damaged or hostile: each is one typed error, in little memory and time (S12)."""

from __future__ import annotations

import io
import json
import struct
import subprocess
import sys
import zlib
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import fastavro
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from lockprovider.table.errors import TableError
from lockprovider.table.format.hfile import HFile, decode_hfile, encode_hfile
from lockprovider.table.format.log_block import MAGIC, decode_avro, decode_blocks, decode_deletes
from lockprovider.table.format.lsm import decode_manifest, digest_of
from lockprovider.table.format.metadata import SINK_KEY, batches_by_stream, decode_commit
from lockprovider.table.format.metadata_table import decode_files
from lockprovider.table.format.properties import parse_properties
from lockprovider.table.format.service_metadata import decode_clustering_plan, decode_rollback_plan
from lockprovider.table.state import archive_index
from lockprovider.table.state.archive_index import digest_of_file
from lockprovider.table.state.heartbeat import LocalBeat

MB = 1 << 20
Case = tuple[Callable[[], Any], bool]  # what is done, and whether it has to fail


def number(value: int) -> bytes:
    """A long as Avro has it."""
    out = io.BytesIO()
    fastavro.schemaless_writer(out, "long", value)
    return out.getvalue()


def container(schema: Any, body: bytes, *, count: int = 1, codec: bytes = b"null") -> bytes:
    """An Avro file of one block."""
    out = io.BytesIO()
    head = {"avro.schema": json.dumps(schema).encode(), "avro.codec": codec}
    fastavro.schemaless_writer(out, {"type": "map", "values": "bytes"}, head)
    return b"".join((b"Obj\x01", out.getvalue(), bytes(16), number(count), number(len(body)), body, bytes(16)))


def deflated(size: int) -> bytes:
    """Zeros. After a full flush the next megabyte is packed as the one before, so that it is packed once."""
    packer = zlib.compressobj(9, wbits=-15)
    megabyte = packer.compress(bytes(MB)) + packer.flush(zlib.Z_FULL_FLUSH)
    return megabyte * (size // MB) + packer.flush()


def record(*fields: Any, name: str = "HoodieCommitMetadata") -> dict[str, Any]:
    return {"type": "record", "name": name, "fields": list(fields)}


NULLS = record({"name": "extraMetadata", "type": {"type": "array", "items": "null"}})
EMPTY = {"type": "record", "name": "Empty", "fields": []}
NAMED = record({"name": "a", "type": EMPTY}, {"name": "b", "type": {"type": "array", "items": "Empty"}})
ITSELF = record({"name": "a", "type": "HoodieCommitMetadata"})


def avros() -> Iterator[tuple[str, bytes]]:
    yield (
        "a block that inflates to 2 GB",
        container(record({"name": "a", "type": "bytes"}), deflated(2048 * MB), codec=b"deflate"),
    )
    yield "a list of a billion nulls", container(NULLS, number(10**9) + number(0))
    yield "a list of a billion empty records", container(NAMED, number(10**9) + number(0))
    yield "a record within itself", container(ITSELF, b"")
    yield "a billion records without bytes", container(EMPTY, b"", count=10**9)
    yield "a text of a negative length", container(record({"name": "a", "type": "string"}), number(-5))
    yield "a text of 2 GB", container(record({"name": "a", "type": "string"}), number(2 << 30))
    yield "a schema that is nested deep", container(json.loads("[" * 900 + '"int"' + "]" * 900), b"")
    yield "another codec", container(record({"name": "a", "type": "long"}), number(1), codec=b"zstandard")
    yield "no Avro", b"{}" * 1000


def log(header: bytes, content: bytes = b"", kind: int = 2) -> bytes:
    body = struct.pack(">ii", 1, kind) + header + struct.pack(">q", len(content)) + content + struct.pack(">i", 0)
    size = len(body) + 8
    return MAGIC + struct.pack(">q", size) + body + struct.pack(">q", size + len(MAGIC))


def hfile_bomb() -> bytes:
    """A whole HFile whose first block says that it is 1 GB; its size stands behind the magic and the size on disk."""
    whole = encode_hfile({b"a": bytes(8 * MB)}, "{}", 0)
    return whole[:12] + struct.pack(">i", (1 << 30) - 1) + whole[16:]


def archive(rows: int, metadata: bytes) -> pq.ParquetFile:
    """A file of the archive with equal rows: a few kB on disk, however many there are."""
    row = {"instantTime": "1", "completionTime": "2", "action": "commit", "metadata": metadata}
    columns = {name: pa.DictionaryArray.from_arrays(np.zeros(rows, "int32"), [value]) for name, value in row.items()}
    data = io.BytesIO()
    pq.write_table(pa.table(columns), data, store_schema=False)
    place = SimpleNamespace(source=lambda *_: (data, None))
    return archive_index.open_file(SimpleNamespace(place=place), "x", len(data.getvalue()))


def cases() -> Iterator[tuple[str, Case]]:
    for name, data in avros():
        for decode in (decode_commit, decode_rollback_plan, decode_clustering_plan):
            yield f"{decode.__name__}: {name}", (lambda decode=decode, data=data: decode(data, "x"), True)
    negative = struct.pack(">i", 0x7FFFFFFF) + struct.pack(">ii", 1, -8)
    yield "log block: a header that goes backwards", (lambda: decode_blocks(log(negative), "x"), True)
    many = struct.pack(">i", 0x7FFFFFFF)
    yield "log block: two billion header entries", (lambda: decode_blocks(log(many), "x"), True)
    yield "log block: a million torn blocks", (lambda: decode_blocks(MAGIC * 1_000_000, "x"), False)
    rows = struct.pack(">ii", 3, 0x7FFFFFFF) + struct.pack(">i", 0) * 10
    yield (
        "log rows: two billion",
        (lambda: decode_avro(rows, json.dumps(record({"name": "a", "type": "long"})), "x"), True),
    )
    lists = record({"name": "a", "type": {"type": "array", "items": "null"}})
    body = number(10**9) + number(0)
    bomb = struct.pack(">iii", 3, 1, len(body)) + body
    yield "log rows: a billion nulls", (lambda: decode_avro(bomb, json.dumps(lists), "x"), True)
    yield "log deletes: two billion", (lambda: decode_deletes(struct.pack(">ii", 3, 0x7FFFFFFF), "x"), True)
    yield "HFile: a block of 1 GB", (lambda: decode_hfile(hfile_bomb(), "x"), True)
    yield (
        "HFile: records by a hostile schema",
        (
            lambda: decode_files(HFile(((b"k", number(10**9)),), {}), json.dumps(lists), "x"),
            True,
        ),
    )
    for name, text in (("deep", "[" * 1_000_000), ("numbers", '{"files":[' + "1e999," * 10 + "1]}")):
        yield f"archive manifest: {name}", (lambda text=text: decode_manifest(text.encode(), "x"), True)
    for name, rows, size in (("three million rows", 3_000_000, 1), ("50 GB of metadata", 50_000, MB)):
        yield (
            f"archive: {name}",
            (lambda rows=rows, size=size: digest_of_file(archive(rows, bytes(size)), "x", 1 << 20, streams=True), True),
        )
    yield "archive digest: deep", (lambda: digest_of({b"lockprovider.digest": b"[" * 1_000_000}), False)
    yield "stream batches: deep", (lambda: batches_by_stream({SINK_KEY: '{"a":' * 100_000}), False)
    yield "heartbeat: deep", (lambda: LocalBeat.decode(b"[" * 1_000_000), False)
    yield "properties: 5 MB of nothing", (lambda: parse_properties(b"\\\n" * (5 * MB // 2)), True)
    yield "properties: a million keys", (lambda: parse_properties(b"a=b\n" * 1_000_000), True)


def test_hostile_objects_raise_one_typed_error_in_little_memory_and_time() -> None:
    """All of them in one process: of memory what it takes at most, of time what the slowest takes of CPU."""
    run = subprocess.run([sys.executable, __file__], capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr
    grown_mb, slowest_s, name = json.loads(run.stdout.splitlines()[-1])
    assert grown_mb < 200, name
    assert slowest_s < 3, name


def main() -> None:
    import resource
    import time

    made = dict(cases())
    before_kb, slowest = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, (0.0, "")
    for name, (do, fails) in made.items():
        began_s = time.process_time()
        try:
            do()
        except TableError:
            assert fails, name
        else:
            assert not fails, name
        slowest = max(slowest, (time.process_time() - began_s, name))
    grown_kb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before_kb
    sys.stdout.write(json.dumps([grown_kb / 1024, *slowest]) + "\n")


if __name__ == "__main__":
    main()
