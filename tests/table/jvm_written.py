"""Tables that released JVM Hudi wrote, as zip files beside these tests; in `services` those with table services."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from zipfile import ZipFile

DATA = Path(__file__).parent / "data"
TABLES = tuple(sorted(path.stem for path in DATA.glob("*.zip")))


@cache
def contents(table: str) -> dict[str, bytes]:
    """Every file of a table by its path in the table; checksum files and the archiver's own are left out."""
    with ZipFile(DATA / f"{table}.zip") as archive:
        names = [name for name in archive.namelist() if not name.startswith("__MACOSX/") and not name.endswith("/")]
        return {name.split("/", 1)[1]: archive.read(name) for name in names if not name.endswith(".crc")}


def timeline(table: str) -> dict[str, bytes]:
    """The files of the timeline folder by name."""
    prefix = ".hoodie/timeline/"
    return {path.removeprefix(prefix): data for path, data in contents(table).items() if path.startswith(prefix)}


def base_files() -> list[tuple[str, str]]:
    """All (table, path) pairs of base files."""
    return [(table, path) for table in TABLES for path in contents(table) if path.endswith(".parquet")]
