"""The processes that `benchmarks.table_age` starts: each opens a table, or commits to it, and prints the cost."""

from __future__ import annotations

import gc
import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa

from benchmarks.lock import ask
from benchmarks.s3_clients import Site
from lockprovider.table import Table, TableSpec

GROUPS = 20
ROWS = 100
HELD = 4  # commits by the same handle, a round
_REST_S = 0.3  # after which nothing goes on behind a commit any more

Costs = dict[str, float]


def rows(number: int) -> pa.Table:
    """Of one commit: those of one partition, where the keys are always the same."""
    keys = [f"key-{n:04d}" for n in range(ROWS)]
    return pa.table({"id": keys, "part": [f"p{number % GROUPS:02d}"] * ROWS, "value": [float(number)] * ROWS})


def commit(table: Table, number: int, *, appends: bool) -> None:
    """One, of a few rows."""
    (table.append if appends else table.upsert)(rows(number))


def make(folder: Path, commits: int, *, appends: bool) -> None:
    """A table of so many commits, the first of which writes into all partitions."""
    first = pa.concat_tables([rows(number) for number in range(GROUPS)])
    table = Table.create(str(folder), TableSpec("t", first.schema, ("id",), ("part",)))
    table.append(first)
    for number in range(1, commits):
        commit(table, number, appends=appends)
    time.sleep(_REST_S)


def measured(task: dict[str, Any]) -> dict[str, list[Costs]]:
    """Measure an open, or commits by a fresh and by a held handle; return the costs by kind.

    First warms up with another table.
    """
    site, appends, first = Site(**task["site"]), task["appends"], task["first"]
    shared = site.storage_options | {"skip_instance_cache": False}
    options = site.obstore_options if task["obstore"] else shared

    def opened(name: str) -> Table:
        return Table.open(f"s3://{site.bucket}/{name}", storage_options=options)

    opened("other").snapshot()
    commit(opened("other"), first, appends=appends)
    time.sleep(_REST_S)
    if task["what"] == "open":
        return {"open": [_costs(site, 0.0, lambda: opened(task["table"]).snapshot())]}
    found: list[Table] = []

    def freshly() -> None:
        found.append(opened(task["table"]))
        commit(found[0], first, appends=appends)

    fresh = _costs(site, _REST_S, freshly)
    held = [
        _costs(site, _REST_S, lambda number=number: commit(found[0], number, appends=appends))  # type: ignore[misc]
        for number in range(first + 1, first + 1 + HELD)
    ]
    return {"fresh": [fresh], "held": held}


def _costs(site: Site, rest_s: float, call: Callable[[], object]) -> Costs:
    """Call `call` after a garbage collection, rest `rest_s`; return ms, CPU ms and the server's number of requests."""
    ask(site, "DELETE", "/")
    gc.collect()  # or whoever makes 10,000 objects pays for what the imports have left
    start_s, cpu_s = time.perf_counter(), time.process_time()
    call()
    took_s, cpu_s = time.perf_counter() - start_s, time.process_time() - cpu_s
    time.sleep(rest_s)
    return {"ms": 1000 * took_s, "cpu_ms": 1000 * cpu_s, "requests": sum(json.loads(ask(site, "GET", "/")).values())}


def main() -> None:
    """Run the task."""
    task = json.loads(sys.stdin.readline())
    if task["what"] == "make":
        make(Path(task["folder"]), task["commits"], appends=task["appends"])
        print("{}")
    else:
        print(json.dumps(measured(task)))


if __name__ == "__main__":
    main()
