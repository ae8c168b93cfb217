"""Peers of the queue and the log, for `benchmarks.queues`: redis streams, and puts into slatedb.

redis-server is that of `benchmarks.lock_peers`, one process, told to sync its file before it answers (`appendfsync
always`), as an object store does; its clients reach it through a proxy that holds back half of a PUT's time each way.
A message goes through XADD, XREADGROUP by a consumer of each thread's own, XACK and XDEL. slatedb is its wheel (0.17),
with the server that the others ask; a put waits until it is durable, with its own flush interval and with 1 ms. What is
not installed is `NotHere`. jqueue is not here: it needs Python 3.12.

Not compared: what they promise. redis is one server, whose disk is the only copy.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
from collections import Counter
from collections.abc import Iterator
from statistics import median, quantiles

from benchmarks.coordination import asked
from benchmarks.delaying import delayed
from benchmarks.lock_peers import NotHere, serving
from benchmarks.s3_clients import Site

Row = dict[str, float]
_STREAM, _GROUP = "messages", "workers"


def amount(value: float) -> str:
    """Format a figure with three digits, and whole numbers from 100 on."""
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def figures(took_ms: list[float], seconds: float, requests: int) -> Row:
    """Of calls that took so long, in so many seconds."""
    return {
        "per s": len(took_ms) / seconds,
        "median ms": median(took_ms),
        "p99 ms": quantiles(took_ms, n=100, method="inclusive")[98] if len(took_ms) > 1 else took_ms[0],
        "requests each": requests / len(took_ms),
    }


@contextlib.contextmanager
def redis_streams(put_ms: float) -> Iterator[str]:
    """Run a redis that syncs each write; yield the URL of a proxy before it that delays as a PUT takes.

    Raises:
        NotHere: its server or its client is not to be had.
    """
    with serving("redis") as server:
        import redis

        with redis.Redis.from_url(f"redis://{server.address}") as near:
            near.config_set("appendonly", "yes")
            near.config_set("appendfsync", "always")
        with delayed(server.address, put_ms / 2) as address:
            yield f"redis://{address}"


class StreamCycles:
    """Put, claim and acknowledge, each thread with a connection; to be called by threads, each with its number."""

    def __init__(self, url: str, count: int) -> None:
        import redis

        self.client = redis.Redis.from_url(url, max_connections=count + 1)
        self.client.flushall()
        self.client.xgroup_create(_STREAM, _GROUP, "$", mkstream=True)
        self.worked: Counter[bytes] = Counter()

    def __call__(self, number: int) -> None:
        """One cycle."""
        self.client.xadd(_STREAM, {"from": number})
        found = self.client.xreadgroup(_GROUP, f"worker-{number}", {_STREAM: ">"}, count=1, block=30_000)
        ((_, ((name, _),)),) = found
        self.worked[name] += 1
        with self.client.pipeline(transaction=False) as both:
            both.xack(_STREAM, _GROUP, name).xdel(_STREAM, name).execute()

    def requests(self) -> int:
        """Round trips: the last two commands of a cycle go together."""
        return 3 * self.worked.total()


def slatedb_puts(site: Site, count: int, seconds: float, flush_ms: int | None) -> Row:
    """Put 200 bytes in `count` tasks for `seconds`, each until durable; return rate, latencies and requests.

    `flush_ms`: interval of flushes; None: the default.

    Raises:
        NotHere: it is not installed.
    """
    try:
        import slatedb.uniffi as slatedb
    except ImportError as error:
        raise NotHere(f"pip install slatedb ({error})") from None
    os.environ.update(AWS_ACCESS_KEY_ID=site.key, AWS_SECRET_ACCESS_KEY=site.secret, AWS_REGION=site.region)
    os.environ.update(AWS_ENDPOINT=site.endpoint, AWS_ALLOW_HTTP="true")
    took_ms: list[float] = []

    async def put(db: slatedb.Db, number: int, end_s: float) -> None:
        n = 0
        while (sent_s := time.monotonic()) < end_s:
            written = await db.put(b"%d/%d" % (number, n), bytes(200))
            await written.await_durable()  # `put` alone returns before anything is stored
            took_ms.append(1000 * (time.monotonic() - sent_s))
            n += 1

    async def run() -> Row:
        """Open a database, run the tasks, close it, and return the figures."""
        settings = slatedb.Settings.default()
        if flush_ms is not None:
            settings.set("flush_interval", f'"{flush_ms}ms"')
        builder = slatedb.DbBuilder(f"slatedb/{count}-{flush_ms}", slatedb.ObjectStore.resolve(f"s3://{site.bucket}"))
        builder.with_settings(settings)
        db = await builder.build()
        asked(site, "DELETE")
        began_s = time.monotonic()
        await asyncio.gather(*(put(db, number, began_s + seconds) for number in range(count)))
        row = figures(took_ms, time.monotonic() - began_s, sum(asked(site).values()))
        await db.shutdown()
        return row

    return asyncio.run(run())
