"""A table and a metadata table that JVM Hudi 1.0.2 made by its defaults: HFiles of HBase's writer, another schema."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from table.jvm_written import DATA, contents
from table.services.test_compact_listing import agreed, compact_now
from table.services.test_listing import Row, content, open_, rows

from lockprovider.table import KeepVersions
from lockprovider.table.format.hfile import decode_hfile
from lockprovider.table.format.log_block import Header, decode_blocks
from lockprovider.table.format.metadata_table import metadata_schema

NAME = "foreign/hudi102_v8_mor_default"
FILES = {path: data for path, data in contents(NAME).items() if "/metadata/" in path}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The table as it is after `share`; unpacking has lost its files' times, so it says that they are UTC."""
    for path, data in contents(NAME).items():
        target = tmp_path / "t" / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(data)
    properties = tmp_path / "t" / ".hoodie" / "hoodie.properties"
    zone = "hoodie.table.timeline.timezone="
    lines = [line for line in properties.read_text().splitlines() if not line.startswith(zone)]
    properties.write_text("\n".join([*lines, f"{zone}UTC", ""]))
    open_(tmp_path / "t").share()
    return tmp_path / "t"


def expected() -> set[Row]:
    said = json.loads((DATA / f"{NAME}.expected.json").read_text())["rows"]
    return {(row["id"], row["part"], row["v"], row["ts"]) for row in said}


def schemas(folder: Path) -> set[str]:
    """Those of all files of the listing, in which a metadata table has one."""
    found = set()
    for path in (folder / ".hoodie" / "metadata" / "files").iterdir():
        if path.name.endswith(".hfile"):
            found.add(decode_hfile(path.read_bytes(), path.name).info["schema"].decode())
        elif ".log." in path.name:
            found |= {block.header.get(Header.SCHEMA, "") for block in decode_blocks(path.read_bytes(), path.name)}
    return found - {""}


def test_every_hfile_of_hbases_writer_is_read() -> None:
    bases = {path: data for path, data in FILES.items() if path.endswith(".hfile")}
    assert len(bases) >= 1
    for path, data in bases.items():
        found = decode_hfile(data, path)
        assert data.endswith(b"\3\0\0\3")
        keys = [key for key, _ in found.entries]
        assert keys == sorted(set(keys))


def test_every_verb_leaves_a_listing_that_all_readers_read(folder: Path) -> None:
    """I2, I3: an append with the schema of Hudi 1.2 made it unreadable for hudi-rs, and it was never compacted."""
    known, before = expected(), schemas(folder)
    assert metadata_schema() not in before
    table = open_(folder)
    assert content(folder) == known
    table.append(rows((100, "a", "new", 9)))
    assert agreed(folder) == known | {(100, "a", "new", 9)}
    table.upsert(rows((100, "a", "newer", 10), (101, "c", "other", 9)))
    expect = known | {(100, "a", "newer", 10), (101, "c", "other", 9)}
    assert agreed(folder) == expect
    assert compact_now(table) is not None
    assert agreed(folder) == expect
    table.compact()
    assert agreed(folder) == expect
    table.append(rows((102, "b", "after", 9)))
    table.clean(KeepVersions(1))
    assert agreed(folder) == expect | {(102, "b", "after", 9)}
    assert schemas(folder) <= before
