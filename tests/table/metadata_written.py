"""Tables with a metadata table that JVM Hudi wrote, beside these tests, with their rows as the JVM read them."""

from __future__ import annotations

import json
import struct
import zlib
from pathlib import Path
from typing import Any

from table.jvm_written import DATA, contents

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
