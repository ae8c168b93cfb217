"""Tables with a metadata table that JVM Hudi wrote, beside these tests, with their rows as the JVM read them."""

from __future__ import annotations

import json
import shutil
import struct
import zlib
from pathlib import Path
from typing import Any

from table.jvm_written import DATA, contents

from lockprovider.table.format.hfile import _fields, _varint
from lockprovider.table.format.log_block import BlockKind, decode_blocks

FOLDER = "metadata_table"
NAMES = tuple(sorted(path.stem for path in (DATA / FOLDER).glob("*.zip")))
ROOT = ".hoodie/metadata/"
TRAILER_BYTES = 4096


def table(name: str) -> dict[str, bytes]:
    """Every file of a table by its path in the table."""
    return contents(f"{FOLDER}/{name}")


def unpacked(name: str, folder: Path) -> Path:
    """The table in this folder."""
    for path, data in table(name).items():
        target = folder / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(data)
    return folder


def expected(name: str) -> dict[str, Any]:
    """What the JVM read of it."""
    return dict(json.loads((DATA / FOLDER / "expected.json").read_text())[name])


def hfiles() -> dict[str, bytes]:
    """All HFiles of all tables, also those that are blocks of log files."""
    found = {}
    for name in NAMES:
        for path, data in table(name).items():
            if path.startswith(ROOT) and path.endswith(".hfile"):
                found[f"{name}/{path}"] = data
            elif path.startswith(ROOT) and ".log." in path:
                blocks = [block for block in decode_blocks(data, path) if block.kind is BlockKind.HFILE]
                found |= {f"{name}/{path}": block.content for block in blocks}
    return found


def data_of(data: bytes) -> bytes:
    """The data blocks of an HFile, unpacked; all of these have one."""
    on_disk = struct.unpack_from(">i", data, 8 + 4 + 4 + 8 + 1 + 4)[0]
    assert data.startswith(b"DATABLK*")
    return zlib.decompress(data[33:on_disk], 31)


def blocks_of(data: bytes) -> list[tuple[bytes, bytes]]:
    """Magic and content of all blocks of an HFile that was written as part of a log; all checksums are zeros."""
    found, at = [], 0
    while at < len(data) - TRAILER_BYTES:
        magic, on_disk, size, before, kind, checked, whole = struct.unpack_from(">8siiqBii", data, at)
        assert (before, kind, checked) == (-1, 0, 16384)
        assert data[at + whole : at + 33 + on_disk].strip(b"\0") == b""
        assert 33 + on_disk - whole == 4 * -(-whole // 16384)
        content = zlib.decompress(data[at + 33 : at + whole], 31)
        assert len(content) == size
        found.append((magic, content))
        at += 33 + on_disk
    return found


def trailer_of(data: bytes) -> dict[int, object]:
    """The fields of an HFile's trailer by their numbers."""
    end = len(data) - TRAILER_BYTES
    length, at = _varint(data, end + 8)
    return dict(_fields(data[at : at + length]))


def encoded(entries: tuple[tuple[bytes, bytes], ...]) -> bytes:
    """A data block with these entries, as JVM Hudi writes it."""
    return b"".join(
        struct.pack(">iih", len(key) + 12, len(value), len(key))
        + key
        + b"\0"
        + b"\x7f"
        + b"\xff" * 7
        + b"\4"
        + value
        + b"\0"
        for key, value in entries
    )


def with_files_alone(name: str, folder: Path) -> Path:
    """The table in this folder, when its metadata table has no other partition than `files`."""
    unpacked(name, folder)
    properties = folder / ".hoodie" / "hoodie.properties"
    key = "hoodie.table.metadata.partitions"
    kept = [line for line in properties.read_text().splitlines() if not line.startswith(f"{key}=")]
    properties.write_text("\n".join([*kept, f"{key}=files", ""]))
    for other in (folder / ROOT).iterdir():
        if other.name not in ("files", ".hoodie"):
            shutil.rmtree(other)
    return folder
