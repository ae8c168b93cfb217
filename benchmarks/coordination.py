"""What do many readers of one object cost, with and without `Cached`?

    python -m benchmarks.coordination          # half a minute; --callers, --seconds, --get-ms, --kib, --json

Readers in this process read one object over and over, each with a request of its own, each with a conditional one that
keeps what it has, or all through one `Cached`; another client replaces the object once a second. The server is
`shaped_s3`, whose GETs take as long as they are told to. A reader that gets less than what was written before its call
fails the run.

Not to be fooled: reads per second are those of this process's one interpreter. What is saved is requests and bodies.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any
from urllib.request import Request, urlopen

from benchmarks.s3_clients import Site
from benchmarks.shaped_s3 import running
from fsspec_cas import AsyncCached, AsyncStore, Cached, Content, Store

NAME = "flags"
Figures = dict[str, dict[str, float]]


class Object:
    """The object, as it is replaced by another client; and what its readers got."""

    def __init__(self, site: Site, bytes_each: int) -> None:
        self.url = f"s3://{site.bucket}/coordination"
        self.store = Store.from_url(self.url, site.storage_options)
        self.newest = 0
        self.reads = 0
        self._bytes_each = bytes_each
        self._guard = threading.Lock()
        self.replace()

    def replace(self) -> None:
        """With the next number, and the rest to fill it up."""
        number = self.newest + 1
        data = b"%d".ljust(self._bytes_each) % number
        self.store.update(NAME, lambda _: data)
        self.newest = number

    @contextmanager
    def replaced_each_second(self, seconds: int) -> Iterator[Callable[[], bool]]:
        """Replace the object each second on a thread.

        Yield a function that returns whether `seconds` have not yet passed.
        """
        end_s = time.monotonic() + seconds

        def replace() -> None:
            while (left_s := end_s - time.monotonic()) > 0:
                time.sleep(min(1.0, left_s))
                self.replace()

        with ThreadPoolExecutor(1) as pool:
            replacing = pool.submit(replace)
            yield lambda: time.monotonic() < end_s
            replacing.result()

    def check(self, content: Content | None, before: int) -> None:
        """One read."""
        assert content is not None
        assert int(content.data.split()[0]) >= before, "a read was older than its call"
        with self._guard:
            self.reads += 1


def threads(one: Object, callers: int, seconds: int, reader: Callable[[], Callable[[], Content | None]]) -> None:
    """Read the object on `callers` threads, again and again, and check each result.

    `reader` makes each thread's read.
    """

    def run(going: Callable[[], bool]) -> None:
        read = reader()
        while going():
            before = one.newest
            one.check(read(), before)

    with one.replaced_each_second(seconds) as going, ThreadPoolExecutor(callers) as pool:
        for done in [pool.submit(run, going) for _ in range(callers)]:
            done.result()


async def tasks(one: Object, callers: int, seconds: int, read: Callable[[], Any]) -> None:
    """Read the object in `callers` tasks of one loop, again and again, and check each result; `read` is awaited."""

    async def run(going: Callable[[], bool]) -> None:
        while going():
            before = one.newest
            one.check(await read(), before)

    with one.replaced_each_second(seconds) as going:
        await asyncio.gather(*(run(going) for _ in range(callers)))


def keeping(store: Store) -> Callable[[], Content]:
    """Read the object; return a function that reads it anew only if it has changed, else returns its own copy."""
    kept = store.read(NAME)

    def read() -> Content:
        nonlocal kept
        kept = store.read_if_changed(NAME, kept.version) or kept
        return kept

    return read


def measured(site: Site, one: Object, callers: int, seconds: int) -> Figures:
    """Measure five ways of reading, one after the other; return reads, GETs and bodies a second of each."""
    options = site.storage_options | {"config_kwargs": {"max_pool_connections": callers}}
    store = Store.from_url(one.url, options)
    cached = Cached(store, NAME)

    async def of_tasks(*, shared: bool) -> None:
        async with AsyncStore.from_url(one.url, options) as inner:
            together = AsyncCached(inner, NAME)
            await tasks(one, callers, seconds, together.get if shared else lambda: inner.read(NAME))

    ways: dict[str, Callable[[], None]] = {
        "threads, `Store.read`": lambda: threads(one, callers, seconds, lambda: lambda: store.read(NAME)),
        "threads, `Store.read_if_changed`": lambda: threads(one, callers, seconds, lambda: keeping(store)),
        "threads, `Cached.get`": lambda: threads(one, callers, seconds, lambda: cached.get),
        "tasks, `AsyncStore.read`": lambda: asyncio.run(of_tasks(shared=False)),
        "tasks, `AsyncCached.get`": lambda: asyncio.run(of_tasks(shared=True)),
    }
    found: Figures = {}
    for name, way in ways.items():
        asked(site, "DELETE")
        one.reads, first = 0, one.newest
        began_s = time.monotonic()
        way()
        took_s = time.monotonic() - began_s
        answers = asked(site)
        bodies = answers["GET 200"] - (one.newest - first)  # the other client reads, too, what it replaces
        gets = bodies + answers.get("GET 304", 0)
        found[name] = {
            "reads/s": one.reads / took_s,
            "GETs/s": gets / took_s,
            "bodies/s": bodies / took_s,
        }
    return found


def asked(site: Site, verb: str = "GET") -> dict[str, int]:
    """How often the server was asked for what; DELETE starts anew."""
    with urlopen(Request(f"{site.endpoint}/", method=verb)) as answer:  # noqa: S310 - it is on loopback
        return json.loads(answer.read())


def main() -> None:
    """Run the ways of reading on a server with delays, and print a Markdown table or JSON."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--callers", type=int, default=64)
    parser.add_argument("--seconds", type=int, default=3, help="for each way of reading")
    parser.add_argument("--get-ms", type=float, default=20.0)
    parser.add_argument("--kib", type=int, default=64, help="of the object")
    parser.add_argument("--json", action="store_true")
    asked_for = parser.parse_args()
    with running(asked_for.get_ms, 30.0) as site:
        found = measured(site, Object(site, asked_for.kib * 1024), asked_for.callers, asked_for.seconds)
    if asked_for.json:
        print(json.dumps(found, indent=2))
        return
    print("| one object | reads/s | GETs/s | bodies/s |\n|---|---|---|---|")
    for name, row in found.items():
        print(f"| {name} | " + " | ".join(f"{value:,.1f}" for value in row.values()) + " |")


if __name__ == "__main__":
    main()
