"""Merge-on-read tables that JVM Hudi wrote, beside these tests, with their rows as the JVM read them."""

from __future__ import annotations

import json
from typing import Any

from table.jvm_written import DATA, contents

FOLDER = "merge_on_read"
NAMES = tuple(sorted(path.stem for path in (DATA / FOLDER).glob("*.zip")))


def table(name: str) -> dict[str, bytes]:
    """Every file of a table by its path in the table."""
    return contents(f"{FOLDER}/{name}")


def log_files(name: str) -> dict[str, bytes]:
    """The log files of a table by path."""
    return {path: data for path, data in table(name).items() if ".log." in path and not path.startswith(".hoodie/")}


def expected(name: str) -> dict[str, Any] | None:
    """What the JVM read of it; None for a table that came without."""
    path = DATA / FOLDER / f"{name}.expected.json"
    return json.loads(path.read_text()) if path.exists() else None


LOGS = [(name, path) for name in NAMES for path in sorted(log_files(name))]
