"""What do bulk writes into a table cost, next to bare Parquet files and to delta-rs?

    python -m benchmarks.table_bulk                 # 5 to 8 minutes; --rows, --repeat, --only, --places, --json

Append: so many rows of 8 columns into an empty table, in one commit. Upsert: a tenth as many, a fifth of them new, by
key; the known keys all over the table, then (in the same table) the latest. Next to it the same

- by delta-rs (`write_deltalake`, `merge`);
- by pyarrow: one Parquet file, for an upsert read, filtered, and written again;
- by Spark: `df.write.parquet`, for an upsert anti-join, union, and all files written again.

The table has more in its files than any of them: record keys, Hudi's columns, bloom filters. Rows are in memory before
the clock starts (in Spark: made by the job). Each client's result is read again and must be right. Every client runs in
a process of its own, a fresh one each round for those without Spark; a ratio is the median of those within the rounds.
CPU seconds are those of the client's process tree (not the store's), memory is its peak, rows included. The table has
the seconds of this client, with its ratios to bare Parquet and to delta-rs, and in the last column their memory.

On SeaweedFS Spark's own writer is missing: PySpark from PyPI has no S3 connector. So the table in Spark is compared
there with Spark's files on local disk.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.table_bulk_children import OPERATIONS

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tests"))
PLAIN = ("lockprovider", "deltalake", "pyarrow, one file")
SPARK = ("lockprovider in Spark", "Spark's Parquet")
WHAT = {"append": "append", "all over": "upsert, keys all over", "recent": "upsert, latest keys"}


@dataclass
class Client:
    """A process that stays until it is closed."""

    name: str
    rows: int
    options: dict[str, Any] | None
    module: str = "benchmarks.table_bulk_children"
    environment: dict[str, str] = field(default_factory=dict)
    process: subprocess.Popen[str] = field(init=False)

    def __post_init__(self) -> None:
        environment = os.environ | {"AWS_EC2_METADATA_DISABLED": "true", "NO_PROXY": "127.0.0.1"} | self.environment
        self.process = subprocess.Popen(
            [sys.executable, "-m", self.module],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=ROOT,
            env=environment,
        )
        self._say(json.dumps({"client": self.name, "rows": self.rows, "options": self.options}))

    def costs(self, place: str) -> dict[str, Any]:
        """Of all operations, in this place."""
        self._say(place)
        assert self.process.stdout is not None
        answer = self.process.stdout.readline()
        if not answer:
            raise SystemExit(f"{self.name} failed, see above")
        return dict(json.loads(answer))

    def close(self) -> None:
        """Wait for its end."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait()

    def _say(self, line: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(f"{line}\n")
        self.process.stdin.flush()


@dataclass(frozen=True)
class Run:
    """What is asked for."""

    rows: int
    repeat: int
    folder: Path

    def plain(self, options: dict[str, Any] | None, url: str) -> dict[str, list[Any]]:
        """Costs of each client, a fresh process each round."""
        found: dict[str, list[Any]] = {name: [] for name in PLAIN}
        for number in range(self.repeat):
            for name in turned(PLAIN, number):
                with contextlib.closing(Client(name, self.rows, options)) as client:
                    found[name].append(client.costs(f"{url}/{PLAIN.index(name)}-{number}"))
        return found

    def spark(self, clients: dict[str, tuple[Client, str]]) -> dict[str, list[Any]]:
        """Costs of each client, after a round that is not counted: its jobs pay for Python workers and JIT."""
        found: dict[str, list[Any]] = {name: [] for name in clients}
        for number in range(self.repeat + 1):
            for name in turned(tuple(clients), number):
                client, url = clients[name]
                found[name].append(client.costs(f"{url}/spark-{list(clients).index(name)}-{number}"))
        return {name: costs[1:] for name, costs in found.items()}


def turned(names: tuple[str, ...], number: int) -> tuple[str, ...]:
    """Another order each round."""
    first = number % len(names)
    return names[first:] + names[:first]


@contextlib.contextmanager
def store(place: str, folder: Path) -> Iterator[tuple[dict[str, Any] | None, str]]:
    """Run a store if needed; yield fsspec's options (None: local) and a URL for tables."""
    if place == "local":
        yield None, str(folder)
        return
    from servers.seaweedfs import SeaweedFS

    with SeaweedFS() as server:
        yield server.storage_options, server.new_prefix()


def measure(run: Run, places: list[str], only: str | None) -> dict[str, dict[str, list[Any]]]:
    """Measure Arrow and Spark clients, or `only` one kind, in each place.

    Return costs by kind and place, then by client.
    """
    found: dict[str, dict[str, list[Any]]] = {}
    for place in places:
        with store(place, run.folder) as (options, url):
            if only != "spark":
                found[f"Arrow, {place}"] = run.plain(options, url)
            if only != "plain":
                ours, theirs = (
                    Client(name, run.rows, where) for name, where in zip(SPARK, (options, None), strict=True)
                )
                with contextlib.closing(ours), contextlib.closing(theirs):
                    found[f"Spark, {place}"] = run.spark({SPARK[0]: (ours, url), SPARK[1]: (theirs, str(run.folder))})
    return found


def lines(found: dict[str, dict[str, list[Any]]]) -> Iterator[str]:
    """Yield a Markdown table: seconds and memory of this client, with ratios to bare Parquet and deltalake."""
    heads = ["", *(f"{WHAT[operation]} s" for operation in OPERATIONS), "CPU s of the append", "peak MB"]
    yield f"| {' | '.join(heads)} |"
    yield "|---" * len(heads) + "|"
    for where, costs in found.items():
        ours, bare = next(names for names in ((PLAIN[0], PLAIN[-1]), SPARK) if names[0] in costs)
        others = [other for other in (bare, "deltalake") if other in costs]
        cells = [where]
        for operation, unit in (*((operation, "wall_s") for operation in OPERATIONS), ("append", "cpu_s")):
            ratios = ", ".join(f"{_ratio(costs, ours, other, operation, unit)}x" for other in others)
            cells.append(f"{_middle(costs[ours], operation, unit):.2f} ({ratios})")
        peaks = (
            max(_middle(costs[name], operation, "peak_mb") for operation in OPERATIONS) for name in (ours, *others)
        )
        mine, *theirs = (f"{peak:,.0f}" for peak in peaks)
        cells.append(f"{mine} ({', '.join(theirs)})")
        yield f"| {' | '.join(cells)} |"


def _middle(rounds: list[Any], operation: str, unit: str) -> float:
    return median(one[operation][unit] for one in rounds)


def _ratio(costs: dict[str, list[Any]], name: str, other: str, operation: str, unit: str) -> str:
    pairs = zip(costs[name], costs[other], strict=True)
    return f"{median(ours[operation][unit] / theirs[operation][unit] for ours, theirs in pairs):.2f}"


def main() -> None:
    """Measure in the chosen places, and print a Markdown table or JSON."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--rows", type=int, default=2_000_000)
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--only", choices=("plain", "spark"))
    parser.add_argument("--places", nargs="*", choices=("local", "SeaweedFS"), default=["local", "SeaweedFS"])
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="table-bulk-") as folder:
        found = measure(Run(given.rows, given.repeat, Path(folder)), given.places, given.only)
    print(json.dumps(found) if given.json else "\n".join(lines(found)))


if __name__ == "__main__":
    main()
