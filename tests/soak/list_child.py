"""A process that appends to lists in a table until it is killed; of each entry it says what it was told.

Its arguments are JSON: url, options, name. By turns it adds the next number to its own list, and to one that all share.
"""

from __future__ import annotations

import json
import random
import sys
from itertools import count

import pyarrow as pa
from recipes.state_child import say

from fsspec_cas import CasError
from lockprovider import LockError, LockSettings
from lockprovider.table import Aborted, HeartbeatSettings, Table, TableSettings, TableSpec, WriteConflict
from lockprovider.table.table_transaction import TableTransaction

SCHEMA = pa.schema([("id", pa.string()), ("part", pa.string()), ("entries", pa.string())])
SPEC = TableSpec("lists", SCHEMA, "id", "part")
SETTINGS = TableSettings(
    lock=LockSettings(validity=15, renew=1.5, timeout=120), heartbeat=HeartbeatSettings(interval_s=2, misses=4)
)
SHARED = ("shared-0", "shared-1", "shared-2")


def lists(table: Table | TableTransaction, name: str | None = None) -> dict[str, list[str]]:
    """The entries by list, or of one."""
    found = table.to_arrow(filter=None if name is None else f"id = '{name}' and part = '{name}'").to_pylist()
    by_name = {row["id"]: row["entries"].split() for row in found}
    assert len(by_name) == len(found), "a key is there twice"
    return by_name


def row(name: str, entries: list[str]) -> pa.Table:
    return pa.Table.from_pylist([{"id": name, "part": name, "entries": " ".join(entries)}], schema=SCHEMA)


def add(table: Table, name: str, entry: str) -> str:
    """Its completion time."""

    def one_more(txn: TableTransaction) -> None:
        txn.upsert(row(name, [*lists(txn, name).get(name, []), entry]))

    return table.transact(one_more, retries=5).completion


def main() -> None:
    url, options, name = json.loads(sys.argv[1])
    table, chance = Table.open(url, storage_options=options, settings=SETTINGS), random.Random(name)
    say("ready")
    for number in count(1):
        entry = f"{name}.{number}"
        say(f"asked {entry}")
        try:
            completion = add(table, name if number % 2 else chance.choice(SHARED), entry)
        except (WriteConflict, Aborted):
            say(f"refused {entry}")
        except (CasError, LockError) as error:
            say(f"unknown {entry} {type(error).__name__}")
        else:
            say(f"done {entry} {completion}")


if __name__ == "__main__":
    main()
