"""Tables of ours that get a metadata table, as JVM Hudi makes one of a table that is there."""

from __future__ import annotations

from pathlib import Path

from table.metadata_written import ROOT, table
from table.state.test_metadata_table import listed, sizes_there

from lockprovider.table import Table
from lockprovider.table.doctor.rules import diagnose
from lockprovider.table.format.bloom import encode_filter
from lockprovider.table.format.hfile import encode_hfile
from lockprovider.table.format.metadata_table import (
    FileListing,
    encode_files,
    metadata_schema,
    whole_listing,
)

_MADE = "0" * 17


def with_listing(folder: Path) -> None:
    """The table in this folder gets a metadata table, of all files that it has; no write is pending."""
    theirs = table("mdt_v9_default")
    kept = [path for path in theirs if path.startswith(f"{ROOT}.hoodie/") and ("timeline" not in path or _MADE in path)]
    kept += [path for path in theirs if path.startswith(f"{ROOT}files/.") and (_MADE in path or "partition" in path)]
    for path in kept:
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_bytes(theirs[path])
    files: dict[str, dict[str, int]] = {}
    for path, size in sizes_there(folder).items():
        partition, _, name = path.rpartition("/")
        files.setdefault(partition, {})[name] = size
    entries = encode_files(whole_listing(FileListing(frozenset(files), files)))
    bloom = encode_filter([key.decode() for key in sorted(entries)])
    base = encode_hfile(entries, metadata_schema(), 0, bloom)
    (folder / ROOT / "files" / f"files-0000-0_0-0-0_{_MADE}.hfile").write_bytes(base)
    properties = folder / ".hoodie" / "hoodie.properties"
    lines = [one for one in properties.read_text().splitlines() if not one.startswith("hoodie.metadata.enable=")]
    properties.write_text("\n".join([*lines, "hoodie.table.metadata.partitions=files", ""]))


def check_listed(folder: Path) -> None:
    """What is listed is what is there, but for what is not completed."""
    said = {rule: findings for rule, _, findings in diagnose(Table.open(str(folder)))}
    assert said["metadata"] == ()
    assert listed(folder).items() <= sizes_there(folder).items()
