"""The processes that `benchmarks.table` starts: each runs one task from stdin on one table and prints figures as JSON.

Every engine appends the same hundred rows a commit, and is set as its manual says for many writers on an S3 store.
"""

from __future__ import annotations

import contextlib
import json
import sys
import time
from pathlib import Path
from typing import Any, Protocol

import pyarrow as pa

from benchmarks.s3_clients import Site, known_to_take

ROWS = 100
SCHEMA = pa.schema([("id", pa.int64()), ("writer", pa.int64()), ("value", pa.float64())])
UPSERTS = {  # of one table's 16 buckets by all writers
    "upserts, non-blocking": "non_blocking_concurrency_control",
    "upserts, optimistic": "optimistic_concurrency_control",
}
AT_ONCE = "ours, unordered"
ON_OBSTORE = "ours, on obstore"
BOTH = "ours, on obstore, unordered"
_LAST = 20  # commits, of which the median is taken
_RETRIES = 1000  # of the loop that pyiceberg's manual asks its callers to write


def rows(writer: int, number: int) -> pa.Table:
    """The rows of one commit; the ids tell writer and commit."""
    first = (writer << 40) + number * ROWS
    ids = pa.array(range(first, first + ROWS), pa.int64())
    return pa.table([ids, pa.repeat(writer, ROWS), pa.repeat(0.5, ROWS)], schema=SCHEMA)


class Engine(Protocol):
    """One table, opened."""

    def make(self) -> None:
        """Create it, empty."""

    def append(self, part: pa.Table) -> int:
        """One commit; how often it was tried again by its caller."""

    def load(self) -> None:
        """Find out what it consists of now, with the handle that is there."""

    def ids(self) -> list[int]:
        """Of all rows."""


class Ours:
    """`lockprovider.table`."""

    def __init__(self, site: Site, visibility: str = "ordered") -> None:
        from lockprovider.table import TableSpec

        self._url, self._options = f"s3://{site.bucket}/{site.prefix}/ours", site.storage_options
        self._spec = TableSpec("bench", SCHEMA, record_keys=("id",), visibility=visibility)
        self._table: Any = None

    @property
    def table(self) -> Any:
        from lockprovider.table import Table

        if self._table is None:
            self._table = Table.open(self._url, storage_options=self._options)
        return self._table

    def make(self) -> None:
        from lockprovider.table import Table

        Table.create(self._url, self._spec, storage_options=self._options)

    def append(self, part: pa.Table) -> int:
        self.table.append(part)
        return 0

    def load(self) -> None:
        self.table.snapshot()

    def ids(self) -> list[int]:
        found: list[int] = self.table.to_arrow(["id"]).column("id").to_pylist()
        return found


class OursOnObstore(Ours):
    """The same by way of obstore."""

    def __init__(self, site: Site, visibility: str = "ordered") -> None:
        super().__init__(site, visibility)
        self._options = site.obstore_options


class Upserts(Ours):
    """`lockprovider.table`, merge-on-read: each commit upserts into all of the same 16 buckets, in this mode."""

    def __init__(self, site: Site, mode: str) -> None:
        from lockprovider.table import Mode, TableSettings, TableSpec

        super().__init__(site)
        kind = {"ordering": "value", "buckets": 16, "table_type": "merge_on_read"}
        self._spec = TableSpec("bench", SCHEMA, record_keys=("id",), **kind)
        self._settings = TableSettings(mode=Mode(mode))

    @property
    def table(self) -> Any:
        from lockprovider.table import Table

        if self._table is None:
            self._table = Table.open(self._url, storage_options=self._options, settings=self._settings)
        return self._table

    def make(self) -> None:
        from lockprovider.table import Table

        made = Table.create(self._url, self._spec, storage_options=self._options, settings=self._settings)
        made.upsert(rows(2000, 0))  # so that the buckets are there

    def append(self, part: pa.Table) -> int:
        conflicts: int = self.table.upsert(part, retries=_RETRIES).conflicts
        return conflicts


class Delta:
    """deltalake, a held table; conditional puts, its default of 15 retries."""

    def __init__(self, site: Site) -> None:
        self._url = f"s3://{site.bucket}/{site.prefix}/delta"
        self._options = {
            "AWS_ENDPOINT_URL": site.endpoint,
            "AWS_ACCESS_KEY_ID": site.key,
            "AWS_SECRET_ACCESS_KEY": site.secret,
            "AWS_REGION": site.region,
            "AWS_ALLOW_HTTP": "true",
            "conditional_put": "etag",
        }
        self._table: Any = None

    @property
    def table(self) -> Any:
        from deltalake import DeltaTable

        if self._table is None:
            self._table = DeltaTable(self._url, storage_options=self._options)
        return self._table

    def make(self) -> None:
        from deltalake import DeltaTable

        DeltaTable.create(self._url, pa.schema(SCHEMA), storage_options=self._options)

    def append(self, part: pa.Table) -> int:
        from deltalake import write_deltalake

        write_deltalake(self.table, part, mode="append")
        return 0

    def load(self) -> None:
        self.table.update_incremental()
        self.table.file_uris()

    def ids(self) -> list[int]:
        self.table.update_incremental()
        found: list[int] = self.table.to_pyarrow_table(columns=["id"]).column("id").to_pylist()
        return found


class Lance:
    """pylance: `write_dataset` as in its manual, which opens the table each time."""

    def __init__(self, site: Site) -> None:
        self._url = f"s3://{site.bucket}/{site.prefix}/lance"
        self._options = {
            "aws_endpoint": site.endpoint,
            "aws_access_key_id": site.key,
            "aws_secret_access_key": site.secret,
            "aws_region": site.region,
            "allow_http": "true",
        }

    def make(self) -> None:
        import lance

        lance.write_dataset(SCHEMA.empty_table(), self._url, storage_options=self._options)

    def append(self, part: pa.Table) -> int:
        import lance

        lance.write_dataset(part, self._url, mode="append", storage_options=self._options)
        return 0

    def load(self) -> None:
        import lance

        lance.dataset(self._url, storage_options=self._options).get_fragments()

    def ids(self) -> list[int]:
        import lance

        found = lance.dataset(self._url, storage_options=self._options).to_table(columns=["id"])
        listed: list[int] = found.column("id").to_pylist()
        return listed


class Iceberg:
    """pyiceberg with its SqlCatalog on SQLite; after a refused commit refreshed and tried again."""

    def __init__(self, site: Site, folder: str) -> None:
        self._folder = Path(folder)
        self._properties = {
            "uri": f"sqlite:///{self._folder / 'catalog.db'}?timeout=60",
            "warehouse": f"s3://{site.bucket}/{site.prefix}/iceberg",
            "s3.endpoint": site.endpoint,
            "s3.access-key-id": site.key,
            "s3.secret-access-key": site.secret,
            "s3.region": site.region,
        }
        self._table: Any = None

    @property
    def catalog(self) -> Any:
        from pyiceberg.catalog.sql import SqlCatalog

        return SqlCatalog("bench", **self._properties)

    @property
    def table(self) -> Any:
        if self._table is None:
            self._table = self.catalog.load_table("bench.t")
        return self._table

    def make(self) -> None:
        catalog = self.catalog
        catalog.create_namespace("bench")
        catalog.create_table("bench.t", schema=SCHEMA)

    def append(self, part: pa.Table) -> int:
        """Append the rows, again after each conflict.

        Return the number of retries, or raise RuntimeError after the last.
        """
        from pyiceberg.exceptions import CommitFailedException
        from sqlalchemy.exc import OperationalError

        for attempt in range(_RETRIES):
            with contextlib.suppress(CommitFailedException, OperationalError):
                self.table.append(part)
                return attempt
            self.table.refresh()
        raise RuntimeError("no commit")

    def load(self) -> None:
        self.table.refresh()
        list(self.table.scan().plan_files())

    def ids(self) -> list[int]:
        found: list[int] = self.table.scan(selected_fields=("id",)).to_arrow().column("id").to_pylist()
        return found


def engine_of(site: Site, task: dict[str, Any]) -> Engine:
    """Open the table by the engine that the task names."""
    if task["engine"] == "pyiceberg":
        return Iceberg(site, task["folder"])
    if task["engine"] in UPSERTS:
        return Upserts(site, UPSERTS[task["engine"]])
    if task["engine"] in (ON_OBSTORE, BOTH):
        return OursOnObstore(site, "unordered" if task["engine"] == BOTH else "ordered")
    if task["engine"] == AT_ONCE:
        return Ours(site, "unordered")
    return {"lockprovider.table": Ours, "deltalake": Delta, "lance": Lance}[task["engine"]](site)


def make(engine: Engine, task: dict[str, Any]) -> dict[str, Any]:
    """The table, and nothing in it."""
    del task
    engine.make()
    return {}


def commits(engine: Engine, task: dict[str, Any]) -> dict[str, Any]:
    """Warm up, print "ready", read start and end from stdin, and append until the end.

    Return each call's times and success.
    """
    for number in range(2):
        with contextlib.suppress(Exception):
            engine.append(rows(task["writer"] + 1000, number))
    print("ready", flush=True)
    task.update(json.loads(sys.stdin.readline()))
    while time.monotonic() < task["start_s"]:
        time.sleep(0.001)
    cpu_s = time.process_time()
    done: list[tuple[float, float, bool, int]] = []
    why = ""
    while (began_s := time.monotonic()) < task["end_s"]:
        again = 0
        try:
            again = engine.append(rows(task["writer"], len(done)))
            fine = True
        except Exception as error:  # noqa: BLE001 - counted
            fine, why = False, repr(error)[:300]
        done.append((began_s, time.monotonic(), fine, again))
    return {"done": done, "why": why, "cpu_s": time.process_time() - cpu_s}


def check(engine: Engine, task: dict[str, Any]) -> dict[str, Any]:
    """How many rows there are of each writer's commits, warm-up left out."""
    del task
    found: dict[str, int] = {}
    for one in engine.ids():
        name = f"{one >> 40}/{(one & ((1 << 40) - 1)) // ROWS}"
        found[name] = found.get(name, 0) + 1
    return {name: count for name, count in found.items() if int(name.partition("/")[0]) < 1000}


def growth(engine: Engine, task: dict[str, Any]) -> list[dict[str, Any]]:
    """Append many times; return ms of a commit and of loads, by a held and a fresh handle, at each of `counts`.

    Stops after `limit_s`; the last entry is after an archival, if the engine has one.
    """
    found, took_ms, began_s = [], [], time.monotonic()
    for number in range(max(task["counts"])):
        took_ms.append(_append_ms(engine, number))
        if number + 1 in task["counts"]:
            found.append({"commits": number + 1, "commit_ms": _of_last(took_ms), **_loads_ms(engine, task)})
        if time.monotonic() - began_s > task["limit_s"]:
            break
    return [*found, *_after_archival(engine, task, len(took_ms))]


def _after_archival(engine: Engine, task: dict[str, Any], commits: int) -> list[dict[str, Any]]:
    """The same figures once the oldest instants are archived; none where none are. The loads are after one commit."""
    if not isinstance(engine, Ours) or not engine.table.archive().instants:
        return []
    engine.append(rows(0, commits))
    loads_ms = _loads_ms(engine, task)
    took_ms = [_append_ms(engine, commits + 1 + number) for number in range(_LAST)]
    return [{"commits": commits, "archived": True, "commit_ms": _of_last(took_ms), **loads_ms}]


def _append_ms(engine: Engine, number: int) -> float:
    return _ms(lambda: engine.append(rows(0, number)))


def _loads_ms(engine: Engine, task: dict[str, Any]) -> dict[str, float]:
    site = Site(**task["site"])
    engine.load()
    held = min(_ms(engine.load) for _ in range(5))
    return {"held_ms": held, "fresh_ms": min(_ms(engine_of(site, task).load) for _ in range(3))}


def _of_last(took_ms: list[float]) -> float:
    """The median of the last few."""
    last = sorted(took_ms[-_LAST:])
    return last[len(last) // 2]


def _ms(call: Any) -> float:
    began_s = time.perf_counter()
    call()
    return 1000 * (time.perf_counter() - began_s)


def main() -> None:
    """Run the task."""
    task = json.loads(sys.stdin.readline())
    if task.get("pace"):
        known_to_take(task["pace"])
    kinds = {"make": make, "commits": commits, "check": check, "growth": growth}
    print(json.dumps(kinds[task["kind"]](engine_of(Site(**task["site"]), task), task)))


if __name__ == "__main__":
    main()
