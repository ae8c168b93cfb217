"""A process of ours that counts in a table which others write, too: `python -m jvm.counting_child CONFIG`, JSON.

Each of its commits adds one to a counter of its own and to one that it shares, of one partition; after each it writes
into the file `told` what its own counters have come to. A write of the JVM takes as long as many of ours and loses to
each of them in its file group: so a few are made in one partition whenever the file `turns` says another number, which
is how many writes the JVM has tried. It ends when there is the file `over`.
"""

from __future__ import annotations

import json
import sys
import time
from functools import partial
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING

from table.own_process import tell
from table.tables import rows

from jvm.test_spark_without_settings import PLAIN
from lockprovider.table import KeepCommits, Table

if TYPE_CHECKING:
    from lockprovider.table.table_transaction import TableTransaction

PARTITIONS = "abcdef"
_AT_ONCE = 12
_CLEANS = 7  # with each so manieth commit


def own_key(number: int, at: int) -> int:
    """The counter of this process in this partition; the shared one's key is the partition's number."""
    return 1000 * (number + 1) + at


def main() -> None:
    config = json.loads(sys.argv[1])
    number, told, over, turns = int(config["number"]), *(Path(config[name]) for name in ("told", "over", "turns"))
    table = Table.open(config["url"], storage_options=config["options"], settings=PLAIN)
    random, conflicts, seen = Random(config["seed"] + number), 0, ""
    counts = [0] * len(PARTITIONS)
    while not over.exists():
        if (now := turns.read_text()) == seen:
            time.sleep(0.1)
            continue
        seen, at = now, random.randrange(len(PARTITIONS))
        for _ in range(random.randint(1, _AT_ONCE)):
            conflicts += table.transact(partial(add, number, at), retries=100).conflicts
            counts[at] += 1
            new = told.with_suffix(".new")
            new.write_text(json.dumps(counts))
            new.replace(told)
            if sum(counts) % _CLEANS == number:
                table.clean(KeepCommits(60))  # more than are made during a write of the JVM
    tell({"counts": counts, "conflicts": conflicts})


def add(number: int, at: int, txn: TableTransaction) -> None:
    found = txn.to_arrow(["id", "value"], filter=f"part = '{PARTITIONS[at]}'").to_pylist()
    values = {row["id"]: row["value"] for row in found}
    txn.upsert(rows(*((key, PARTITIONS[at], values[key] + 1) for key in (at, own_key(number, at)))))


if __name__ == "__main__":
    main()
