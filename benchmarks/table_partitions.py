"""What does a small append into many partitions cost, next to delta-rs?

    python -m benchmarks.table_partitions          # half a minute; --rows, --partitions, --rounds, --places, --json

One commit of a few rows for each of many partitions, into a table of its own each round. Both clients run in this
process, by turns. Seconds are the median of the rounds, a ratio is the median of those within the rounds; MB are what
the append left on disk or in the store.

Not to be fooled: on a local disk each of our files is synced to it before the commit, and none of delta-rs's.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator
from statistics import median
from typing import Any

import fsspec
import pyarrow as pa

from benchmarks.table import WEED, seaweedfs
from lockprovider.table import Table, TableSpec

OURS, DELTA = "lockprovider.table", "deltalake"
LOCAL = "local"


def rows_of(count: int, partitions: int) -> pa.Table:
    """Make `count` rows of four columns, spread over the partitions."""
    numbers = range(count)
    return pa.table(
        {
            "id": [f"key-{n:08d}" for n in numbers],
            "part": [f"p{n % partitions:04d}" for n in numbers],
            "value": [float(n) for n in numbers],
            "name": [f"name {n % 17}" for n in numbers],
        }
    )


def ours(url: str, options: dict[str, Any] | None, rows: pa.Table) -> Callable[[], object]:
    """An append into a new table."""
    table = Table.create(url, TableSpec("t", rows.schema, ("id",), ("part",)), storage_options=options)
    return lambda: table.append(rows)


def deltas(url: str, options: dict[str, Any] | None, rows: pa.Table) -> Callable[[], object]:
    """The same by delta-rs."""
    import deltalake

    given = None if options is None else delta_options(options)
    return lambda: deltalake.write_deltalake(url, rows, partition_by=["part"], storage_options=given)


def delta_options(options: dict[str, Any]) -> dict[str, str]:
    """Return fsspec's S3 options by delta-rs's names."""
    return {
        "AWS_ACCESS_KEY_ID": options["key"],
        "AWS_SECRET_ACCESS_KEY": options["secret"],
        "AWS_ENDPOINT_URL": options["endpoint_url"],
        "AWS_REGION": "us-east-1",
        "AWS_ALLOW_HTTP": "true",
    }


@contextlib.contextmanager
def place(name: str) -> Iterator[tuple[str, dict[str, Any] | None]]:
    """Run the named store if needed; yield a URL for tables, and its storage options (None: local)."""
    if name == LOCAL:
        with tempfile.TemporaryDirectory(prefix="table-partitions-") as folder:
            yield folder, None
        return
    with seaweedfs() as site:
        yield (
            f"s3://{site.bucket}",
            {"key": site.key, "secret": site.secret, "endpoint_url": site.endpoint},
        )


def size_mb(url: str, options: dict[str, Any] | None) -> float:
    """What is there."""
    fs, root = fsspec.core.url_to_fs(url, **(options or {}))
    return sum(fs.du(root, total=False).values()) / 1e6


def measured(name: str, rows: pa.Table, rounds: int) -> dict[str, Any]:
    """Write the rows by both clients in each round, after one to warm up.

    Return median seconds, their ratio, and MB.
    """
    took: dict[str, list[float]] = {OURS: [], DELTA: []}
    size: dict[str, float] = {}
    with place(name) as (root, options):
        for turn in range(rounds + 1):
            for client, make in ((OURS, ours), (DELTA, deltas)):
                url = f"{root}/{uuid.uuid4().hex}"
                work = make(url, options, rows)
                start_s = time.perf_counter()
                work()
                if turn:
                    took[client].append(time.perf_counter() - start_s)
                size[client] = size_mb(url, options)
    ratio = median(a / b for a, b in zip(took[OURS], took[DELTA], strict=True))
    return {
        "place": name,
        "seconds": {client: median(seconds) for client, seconds in took.items()},
        "ratio": ratio,
        "mb": size,
    }


def lines(found: list[dict[str, Any]]) -> Iterator[str]:
    """Markdown."""
    yield "| store | table | s | x deltalake | MB |"
    yield "|---|---|---|---|---|"
    for one in found:
        for client in (OURS, DELTA):
            ratio = f"{one['ratio']:.1f}" if client == OURS else ""
            yield f"| {one['place']} | {client} | {one['seconds'][client]:.2f} | {ratio} | {one['mb'][client]:.1f} |"


def main() -> None:
    """Measure in each place, and print a Markdown table or JSON."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--rows", type=int, default=4000)
    parser.add_argument("--partitions", type=int, default=200)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--places", nargs="*", choices=(LOCAL, WEED), default=[LOCAL, WEED])
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    rows = rows_of(given.rows, given.partitions)
    found = [measured(name, rows, given.rounds) for name in given.places]
    print(json.dumps(found) if given.json else "\n".join(lines(found)))


if __name__ == "__main__":
    main()
