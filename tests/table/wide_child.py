"""How many functions each verb calls on a table of few and of many columns.

It is a process of its own. CPython 3.11 loops for ever in a function that is profiled, once an exception was sent to a
thread that had ended: a pending exception stops each call of the main thread, which then begins it again.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
from table.own_process import tell
from table.tables import SETTINGS

from lockprovider.table import Table, TableSpec


def calls(run: Callable[[], Any]) -> int:
    """How many functions are called, of Python and of C."""
    count = 0

    def seen(frame: Any, event: str, argument: Any) -> None:
        nonlocal count
        count += event.endswith("call")

    sys.setprofile(seen)
    try:
        run()
    finally:
        sys.setprofile(None)
    return count


def work(folder: Path, width: int) -> dict[str, int]:
    kinds = [pa.int64(), pa.float64(), pa.string(), pa.bool_()]
    rows = pa.table({"id": range(20), **{f"c{n}": pa.array([0] * 20).cast(kinds[n % 4]) for n in range(width)}})
    table = Table.create(folder, TableSpec("wide", rows, "id"), settings=SETTINGS)
    verbs: dict[str, Callable[[], Any]] = {
        "append": lambda: table.append(rows),
        "upsert": lambda: table.upsert(rows),
        "read": table.to_arrow,
        "filter": lambda: table.to_arrow(filter="c0 = 0"),
        "delete": lambda: table.delete(rows.slice(0, 1).select(["id"])),
    }
    return {verb: calls(run) for verb, run in verbs.items()}


if __name__ == "__main__":
    place = Path(sys.argv[1])
    work(place / "first", 10)  # imports
    tell({"few": work(place / "few", 100), "many": work(place / "many", 800)})
