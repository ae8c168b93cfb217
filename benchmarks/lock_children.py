"""The processes that `benchmarks.lock` starts: each runs one task from stdin and prints its figures as JSON."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import gc
import http.client
import json
import random
import sys
import threading
import time
from typing import Any

from benchmarks.s3_clients import Aiobotocore, Obstore, Site, Watch

RECORD = b'{"expired":false,"validUntil":1795250449580,"owner":"50ae75cb-5a53-4c07-98f4-e21abd3923f0","epoch":%020d,'
RECORD += b'"nonce":"557d2fe1-2331-4b7f-bf5c-1450512b1b5d","pending":null,"holder":{"host":"vm","pid":1703}}'
WARM_UP = 20
PATH = "lock.json"


def _ours(site: Site, task: dict[str, Any]) -> Watch:
    """`Lock.acquire` and `release`; cold: each cycle by a client that knows nothing."""
    from fsspec_cas import Store
    from lockprovider import Lock, LockSettings

    store = Store.from_url(f"s3://{site.bucket}/{site.prefix}", site.storage_options)
    settings = LockSettings(check_store=False)
    lock, watch = Lock(store, PATH, settings), Watch()
    for _ in range(WARM_UP + task["count"]):
        if task["cold"]:
            lock = None  # type: ignore[assignment]
            _collect(task)  # with the last client goes what this process knows of the record
            lock = Lock(store, PATH, settings)
        with watch:
            lock.acquire().release()
    return watch


def _collect(task: dict[str, Any]) -> None:
    """Ours needs it to be cold, and whatever runs next takes milliseconds longer for it: so all do it."""
    if task["cold"]:
        gc.collect()


def _obstore(site: Site, task: dict[str, Any]) -> Watch:
    """The same requests."""
    client, watch = Obstore(site), Watch()
    tag = client.create(PATH, RECORD % 0)
    for n in range(WARM_UP + task["count"]):
        _collect(task)
        with watch:
            tag = client.read(PATH) if task["cold"] else tag
            tag = client.match(PATH, RECORD % (2 * n + 1), tag)
            tag = client.match(PATH, RECORD % (2 * n + 2), tag)
    return watch


async def _aiobotocore(site: Site, task: dict[str, Any]) -> Watch:
    """The same requests."""
    watch = Watch()
    async with Aiobotocore(site) as client:
        tag = await client.create(PATH, RECORD % 0)
        for n in range(WARM_UP + task["count"]):
            _collect(task)
            with watch:
                tag = await client.read(PATH) if task["cold"] else tag
                tag = await client.match(PATH, RECORD % (2 * n + 1), tag)
                tag = await client.match(PATH, RECORD % (2 * n + 2), tag)
    return watch


def _redis(site: Site, task: dict[str, Any]) -> Watch:
    """redis-py's own lock: a server that is one process, and keeps its locks in memory."""
    import redis

    watch = Watch()
    lock = redis.Redis.from_url(site.endpoint).lock("lock", timeout=300)
    for _ in range(WARM_UP + task["count"]):
        with watch:
            lock.acquire()
            lock.release()
    return watch


def _zookeeper(site: Site, task: dict[str, Any]) -> Watch:
    """Kazoo's own lock: a queue of ephemeral nodes."""
    from kazoo.client import KazooClient

    watch = Watch()
    client = KazooClient(site.endpoint.removeprefix("zookeeper://"))
    client.start(timeout=60)
    lock = client.Lock("/lock")
    for _ in range(WARM_UP + task["count"]):
        with watch:
            lock.acquire()
            lock.release()
    client.stop()
    return watch


def _etcd(site: Site, task: dict[str, Any]) -> Watch:
    """Etcd's own lock service, through its JSON gateway; the lease is granted once."""
    connection = http.client.HTTPConnection(site.endpoint.removeprefix("etcd://"))

    def ask(path: str, body: dict[str, Any]) -> dict[str, Any]:
        connection.request("POST", path, json.dumps(body))
        answer: dict[str, Any] = json.loads(connection.getresponse().read())
        return answer

    watch = Watch()
    lease = ask("/v3/lease/grant", {"TTL": 300})["ID"]
    for _ in range(WARM_UP + task["count"]):
        with watch:
            key = ask("/v3/lock/lock", {"name": base64.b64encode(b"lock").decode(), "lease": lease})["key"]
            ask("/v3/lock/unlock", {"key": key})
    return watch


def cycles(site: Site, task: dict[str, Any]) -> dict[str, list[float]]:
    """Milliseconds of each cycle, of the clock and of this process's CPU."""
    kinds = {"lockprovider": _ours, "obstore": _obstore, "redis": _redis, "zookeeper": _zookeeper, "etcd": _etcd}
    if task["client"] == "aiobotocore":
        found = asyncio.run(_aiobotocore(site, task))
    else:
        found = kinds[task["client"]](site, task)
    return {"wall": found.wall_ms[WARM_UP:], "cpu": found.cpu_ms[WARM_UP:]}


class Contender:
    """One thread: asks, holds for 2 ms, releases, and notes when; moments are those of the machine's one clock."""

    def __init__(self, store: Any, task: dict[str, Any]) -> None:
        from lockprovider import Lock, LockSettings

        self.turns: list[tuple[float, float, float]] = []
        self._task = task
        self._store = store
        self._lock = Lock(self._store, PATH, LockSettings(check_store=False, timeout_s=600))

    def work(self) -> None:
        """Until the end, or once."""
        while time.monotonic() < self._task["start_s"]:
            time.sleep(0.001)
        while time.monotonic() < self._task["end_s"]:
            (self._naive if self._task["policy"] == "naive" else self._line)()
            if self._task["drain"]:
                return

    def _line(self) -> None:
        asked_s = time.monotonic()
        try:
            lease = self._lock.acquire(max(0.0, self._task["end_s"] - asked_s))
        except Exception:  # noqa: BLE001 - the end
            return self.turns.append((asked_s, 0.0, time.monotonic()))
        with lease:
            taken_s = time.monotonic()
            time.sleep(0.002)
            self.turns.append((asked_s, taken_s, time.monotonic()))
        return None

    def _naive(self) -> None:
        """Look, take what is free, else sleep: the first thing that comes to mind."""
        from fsspec_cas import Won

        asked_s, mine = time.monotonic(), f"{id(self)}-{random.random()}"
        while time.monotonic() < self._task["end_s"]:
            content = self._store.read(PATH)
            if content.data.startswith(b"free"):
                won = self._store.put_if_match(PATH, f"held {mine}".encode(), content.version)
                if isinstance(won, Won):
                    taken_s = time.monotonic()
                    time.sleep(0.002)
                    self.turns.append((asked_s, taken_s, time.monotonic()))
                    self._store.put_if_match(PATH, f"free {mine}".encode(), won.version)
                    return
            time.sleep(self._task["poll_s"] * random.uniform(0.5, 1.5))
        self.turns.append((asked_s, 0.0, time.monotonic()))


def contend(site: Site, task: dict[str, Any]) -> list[tuple[float, float, float]]:
    """The turns of all threads of this process: asked, taken (0: never), release sent."""
    from fsspec_cas import ObjectNotFound, Store

    store = Store.from_url(f"s3://{site.bucket}/{site.prefix}", site.storage_options)
    with contextlib.suppress(ObjectNotFound):
        store.head("warm")  # the client is made, and a connection
    contenders = [Contender(store, task) for _ in range(task["threads"])]
    print("ready", flush=True)
    task.update(json.loads(sys.stdin.readline()))  # when to start, and to end
    threads = [threading.Thread(target=contender.work) for contender in contenders]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return [turn for contender in contenders for turn in contender.turns]


def main() -> None:
    """Run the task."""
    task = json.loads(sys.stdin.readline())
    site = Site(**task["site"])
    print(json.dumps({"cycles": cycles, "contend": contend}[task["kind"]](site, task)))


if __name__ == "__main__":
    main()
