"""One case of `benchmarks.older_commit`, on public names that both commits have. It prints its figures as JSON.

The parent starts it with the packages of one commit on `PYTHONPATH`; nothing of `benchmarks` is imported.
"""

from __future__ import annotations

import http.client
import json
import resource
import sys
import time
from collections.abc import Callable
from statistics import median
from typing import Any

import pyarrow as pa

WARM_UP = 10
SCHEMA = pa.schema([("id", pa.int64()), ("value", pa.float64())])
Operation = Callable[[int], object]


def rows(first: int, count: int) -> pa.Table:
    """Rows with the ids from `first` on."""
    return pa.table([pa.array(range(first, first + count), pa.int64()), pa.repeat(0.5, count)], schema=SCHEMA)


def put(url: str, options: dict[str, Any]) -> Operation:
    """Create an object of 200 bytes."""
    from fsspec_cas import Store

    store = Store.from_url(url, options)
    return lambda n: store.put_if_absent(f"object-{n}", b"x" * 200)


def hand_over(url: str, options: dict[str, Any]) -> Operation:
    """Two clients take one lock in turns."""
    from fsspec_cas import Store
    from lockprovider import Lock, LockSettings

    settings = LockSettings(check_store=False)
    locks = [Lock(Store.from_url(url, options), "lock.json", settings) for _ in range(2)]
    return lambda n: locks[n % 2].acquire().release()


def publish(url: str, options: dict[str, Any]) -> Operation:
    """Return an operation that acquires the lock, publishes 200 bytes, and releases."""
    from fsspec_cas import Store
    from lockprovider import Lock, LockSettings

    lock = Lock(Store.from_url(url, options), "lock.json", LockSettings(check_store=False))

    def once(n: int) -> None:
        with lock.acquire() as lease:
            lease.publish(f"objects/{n}", b"x" * 200)

    return once


def append(url: str, options: dict[str, Any]) -> Operation:
    """Append ten rows to a table."""
    from lockprovider.table import Table, TableSpec

    table = Table.create(url, TableSpec("bench", SCHEMA, record_keys=("id",)), storage_options=options)
    return lambda n: table.append(rows(10 * n, 10))


def upsert(url: str, options: dict[str, Any]) -> Operation:
    """Upsert ten rows into a table of a thousand."""
    from lockprovider.table import Table, TableSpec

    table = Table.create(url, TableSpec("bench", SCHEMA, record_keys=("id",)), storage_options=options)
    table.append(rows(0, 1000))
    return lambda n: table.upsert(rows(10 * (n % 100), 10))


CASES = {"put": put, "hand over": hand_over, "publish": publish, "append": append, "upsert": upsert}


def asked(endpoint: str) -> int:
    """How many requests the server got."""
    connection = http.client.HTTPConnection(endpoint.removeprefix("http://"))
    connection.request("GET", "/")
    counts = json.loads(connection.getresponse().read())
    connection.close()
    return sum(counts.values())


def cpu_s() -> float:
    """The CPU time of this process, all threads."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def alone(case: str, url: str, task: dict[str, Any]) -> dict[str, float]:
    """Run an operation again and again; return its median ms, and its mean CPU ms and requests."""
    operation, endpoint = CASES[case](url, task["options"]), task["site"]["endpoint"]
    for n in range(WARM_UP):
        operation(n)
    before, cpu_before_s, took_s = asked(endpoint), cpu_s(), []
    for n in range(WARM_UP, WARM_UP + task["count"]):
        began_s = time.perf_counter()
        operation(n)
        took_s.append(time.perf_counter() - began_s)
    used_s = cpu_s() - cpu_before_s
    requests = asked(endpoint) - before
    return {
        "ms": median(took_s) * 1000,
        "cpu ms": used_s * 1000 / task["count"],
        "requests": requests / task["count"],
    }


def shared(case: str, url: str, task: dict[str, Any]) -> dict[str, float]:
    """Append to a shared table for the given time; return the number of commits and their CPU seconds.

    With the role "make", creates the table instead, and returns nothing.
    """
    from lockprovider.table import Table, TableSpec

    if task["role"] == "make":
        if "visibility" in TableSpec.__dataclass_fields__:
            order = {"visibility": case.split()[1]}
        else:  # as it was called until 2026-11-27
            order = {"appears": "in order" if case == "16 ordered" else "for our readers"}
        spec = TableSpec("bench", SCHEMA, record_keys=("id",), **order)
        Table.create(url, spec, storage_options=task["options"])
        return {}
    table = Table.open(url, storage_options=task["options"])
    first, commits = task["number"] << 40, 0
    table.append(rows(first, 10))
    cpu_before_s, end_s = cpu_s(), time.monotonic() + task["seconds"]
    while time.monotonic() < end_s:
        commits += 1
        table.append(rows(first + 10 * commits, 10))
    return {"commits": commits, "cpu_s": cpu_s() - cpu_before_s}


def main() -> None:
    """Run the task of the command line, and print its figures as JSON.

    SystemExit if the packages are of another tree.
    """
    import fsspec_cas as package

    task = json.loads(sys.argv[1])
    folder = package.__path__[0]
    if not folder.startswith(task["tree"]):
        raise SystemExit(f"the packages are those in {folder}, not those of {task['tree']}")
    url = f"s3://{task['site']['bucket']}/{task['site']['prefix']}/place"
    run = alone if task["case"] in CASES else shared
    print(json.dumps(run(task["case"], url, task)), flush=True)


if __name__ == "__main__":
    main()
