"""A writer of `test_beside_an_older_commit.py`, by public names that both commits have.

It runs with the packages of one commit on `PYTHONPATH`, until it is killed. After each verb that returned it writes one
line to its log.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa

SCHEMA = pa.schema([("id", pa.int64()), ("value", pa.int64()), ("writer", pa.int64())])
OWN = 1 << 60  # the key that a writer upserts again and again is this plus its number


def rows(*given: tuple[int, int, int]) -> pa.Table:
    return pa.Table.from_pylist([dict(zip(SCHEMA.names, row, strict=True)) for row in given], schema=SCHEMA)


def claim(store: Any, lock: Any, first: int, writer: int) -> int:
    """Publish the first number from `first` on that nobody has, under the lock, and return it."""
    with lock.acquire(timeout=300) as lease:
        number = first
        while True:
            try:
                store.read(f"numbers/{number}")
            except FileNotFoundError:
                lease.publish(f"numbers/{number}", str(writer).encode())
                return number
            number += 1


def main() -> None:
    import fsspec_cas as package
    from fsspec_cas import Store
    from lockprovider import Lock
    from lockprovider.table import Table

    task = json.loads(sys.argv[1])
    assert package.__path__[0].startswith(task["tree"]), package.__path__
    options, number, log = task["options"], task["number"], Path(task["log"])
    table = Table.open(f"{task['url']}/table", storage_options=options)
    if number < 0:
        log.write_text(json.dumps(table.to_arrow(SCHEMA.names).sort_by("id").to_pylist()))
        return
    store = Store.from_url(task["url"], options)
    lock = Lock(store, "lock.json")
    n, claimed = task["life"] * 1_000_000, 0  # no number of an earlier life
    while True:
        n += 1
        table.append(rows(((number << 40) + n, n, number)))
        note(log, "append", n)
        table.upsert(rows((OWN + number, n, number)))
        note(log, "upsert", n)
        claimed = claim(store, lock, claimed + 1, number)
        note(log, "claim", claimed)


def note(log: Path, verb: str, number: int) -> None:
    """Acknowledge one verb."""
    with log.open("a") as file:
        file.write(f"{verb} {number}\n")


if __name__ == "__main__":
    main()
