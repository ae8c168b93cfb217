"""What does a filter on a column that is not the partition's cost, in a table of many file groups?

    python -m benchmarks.table_filters             # half a minute; --files, --rows, --allowed, --place

One commit of many files, then a filter that a few of them may have rows for: by a handle that knows nothing where
nothing is said beside the lock (all files are opened), by one where it is, and by that one again. Requests and
MB are what was asked of the store and what it answered with, from the opening of the table on; CPU is of this process.

Not to be fooled: the column rises with the files. Of a column without any order each file may have any value.
"""

from __future__ import annotations

import argparse
import time
import uuid
from collections.abc import Iterator
from typing import Any

import pyarrow as pa

from benchmarks.table_partitions import place
from fsspec_cas import Store
from lockprovider.table import Table, TableSpec
from lockprovider.table.engines import changes
from lockprovider.table.files.place import NOTES


class Counted:
    """Any backend; how many requests it got, and the bytes of what was read."""

    def __init__(self, inner: Any) -> None:
        self.inner = inner
        self.name, self.capabilities, self.blocking = inner.name, inner.capabilities, inner.blocking
        self.requests = self.files = self.bytes = 0

    def __getattr__(self, name: str) -> Any:
        request = getattr(self.inner, name)
        if name not in {"put", "head", "delete", "list_page"}:
            return request

        def send(*args: Any, **kwargs: Any) -> Any:
            self.requests += 1
            return request(*args, **kwargs)

        return send

    async def get(self, path: str, *args: Any, **kwargs: Any) -> Any:
        """Read one object."""
        self.requests += 1
        self.files += path.endswith(".parquet")
        found = await self.inner.get(path, *args, **kwargs)
        self.bytes += len(getattr(found, "data", b""))
        return found


def made(url: str, options: dict[str, Any] | None, files: int, rows: int) -> Table:
    """Create a table of `files` files with `rows` rows each, by one commit."""
    changes.ROWS_PER_FILE = rows
    numbers = range(files * rows)
    data = pa.table(
        {"id": [f"key-{n:08d}" for n in numbers], "n": numbers, "name": [f"name {n % 17}" for n in numbers]}
    )
    table = Table.create(url, TableSpec("t", data.schema, ("id",)), storage_options=options)
    table.append(data)
    return table


def measured(table: Table, where: str, expected: int, handle: str) -> Iterator[str]:
    """Read by a new handle, and by the same again.

    Yield a Markdown line of each. AssertionError unless `expected` rows are read.
    """
    counted = Counted(table.store.backend)
    store = Store(counted, table.store.root)  # type: ignore[arg-type] # by name
    fresh = Table(store, table.url, storage_options=table.storage_options)
    for who in (handle, "the same handle again"):
        counted.requests = counted.files = counted.bytes = 0
        start_s, cpu_s = time.perf_counter(), time.process_time()
        found = fresh.to_arrow(filter=where).num_rows
        took_s, cpu_s = time.perf_counter() - start_s, time.process_time() - cpu_s
        assert found == expected, f"{found} rows instead of {expected}"
        size = f"{counted.bytes / 1e6:.2f}"
        yield f"| {who} | {counted.requests} | {counted.files} | {size} | {took_s:.2f} | {cpu_s:.2f} |"


def main() -> None:
    """Make a table, and print what a filtered read costs, with and without noted ranges."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--files", type=int, default=1000)
    parser.add_argument("--rows", type=int, default=100, help="of each file")
    parser.add_argument("--allowed", type=int, default=10, help="files that may have such rows")
    parser.add_argument("--place", default="SeaweedFS", help="or local, where files are read without a request")
    asked = parser.parse_args()
    expected = asked.allowed * asked.rows
    where = f"n < {expected}"
    print("| by | requests | data files | MB | s | CPU s |\n|---|---|---|---|---|---|")
    with place(asked.place) as (root, options):
        table = made(f"{root}/{uuid.uuid4().hex}", options, asked.files, asked.rows)
        for line in measured(table, where, expected, "a new handle"):
            print(line, flush=True)
        table.store.delete_all([entry.path for entry in table.store.list(NOTES)])
        print(next(measured(table, where, expected, "a new handle, without noted ranges")))


if __name__ == "__main__":
    main()
