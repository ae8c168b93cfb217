"""The processes that `benchmarks.lock` starts: each runs one task from stdin and prints its figures as JSON."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import json
import random
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from benchmarks.lock_peer_clients import PeerLock, peer_locks
from benchmarks.s3_clients import Aiobotocore, Obstore, Site, Watch

RECORD = b'{"expired":false,"validUntil":1795250449580,"owner":"50ae75cb-5a53-4c07-98f4-e21abd3923f0","epoch":%020d,'
RECORD += b'"nonce":"557d2fe1-2331-4b7f-bf5c-1450512b1b5d","pending":null,"holder":{"host":"vm","pid":1703}}'
WARM_UP = 20
PATH = "lock.json"
Turn = tuple[float, float, float]  # asked, taken (0: never), release sent


def _ours(site: Site, task: dict[str, Any]) -> Watch:
    """Time acquire and release cycles of `Lock`; cold: each by a new client, without caches."""
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
    """Time the requests of the same cycles, sent by obstore; a cold cycle reads first."""
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
    """Time the requests of the same cycles, sent by aiobotocore; a cold cycle reads first."""
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


def cycles(site: Site, task: dict[str, Any]) -> dict[str, list[float]]:
    """Milliseconds of each cycle, of the clock and of this process's CPU."""
    if task["client"] == "aiobotocore":
        found = asyncio.run(_aiobotocore(site, task))
    else:
        found = {"lockprovider": _ours, "obstore": _obstore}[task["client"]](site, task)
    return {"wall": found.wall_ms[WARM_UP:], "cpu": found.cpu_ms[WARM_UP:]}


class Contender:
    """One thread: asks, holds for 2 ms, releases, and notes when; moments are those of the machine's one clock."""

    def __init__(self, turn: Callable[[dict[str, Any]], Turn], task: dict[str, Any]) -> None:
        self.turns: list[Turn] = []
        self._turn = turn
        self._task = task

    def work(self) -> None:
        """Until the end, or once."""
        while time.monotonic() < self._task["start_s"]:
            time.sleep(0.001)
        while time.monotonic() < self._task["end_s"]:
            self.turns.append(self._turn(self._task))
            if self._task["drain"]:
                return


def _line(lock: Any, task: dict[str, Any]) -> Turn:
    """Take one turn with `Lock`; return when it was asked for, taken and released; taken is 0 if acquiring failed."""
    asked_s = time.monotonic()
    try:
        lease = lock.acquire(max(0.0, task["end_s"] - asked_s))
    except Exception:  # noqa: BLE001 - the end
        return asked_s, 0.0, time.monotonic()
    with lease:
        return asked_s, *_held()


def _naive(store: Any, task: dict[str, Any]) -> Turn:
    """Take one turn by plain polling: read, take the lock if free, else sleep; return as `_line`."""
    from fsspec_cas import Won

    asked_s, mine = time.monotonic(), f"{uuid.uuid4()}"
    while time.monotonic() < task["end_s"]:
        content = store.read(PATH)
        if content.data.startswith(b"free"):
            won = store.put_if_match(PATH, f"held {mine}".encode(), content.version)
            if isinstance(won, Won):
                turn = asked_s, *_held()
                store.put_if_match(PATH, f"free {mine}".encode(), won.version)
                return turn
        time.sleep(task["poll_s"] * random.uniform(0.5, 1.5))
    return asked_s, 0.0, time.monotonic()


def _queued(lock: PeerLock, task: dict[str, Any]) -> Turn:
    asked_s = time.monotonic()
    if not lock.acquire(task["end_s"]):
        return asked_s, 0.0, time.monotonic()
    turn = asked_s, *_held()
    lock.release()
    return turn


def _held() -> tuple[float, float]:
    taken_s = time.monotonic()
    time.sleep(0.002)
    return taken_s, time.monotonic()


@contextlib.contextmanager
def contenders(site: Site, task: dict[str, Any]) -> Iterator[list[Contender]]:
    """Yield this process's contenders, one for each thread, of the task's policy; they share one connected client."""
    if task["policy"] not in ("line", "naive"):
        with peer_locks(site.endpoint, site.prefix) as new:
            yield [Contender(partial(_queued, new()), task) for _ in range(task["threads"])]
        return
    from fsspec_cas import ObjectNotFound, Store
    from lockprovider import Lock, LockSettings

    store = Store.from_url(f"s3://{site.bucket}/{site.prefix}", site.storage_options)
    with contextlib.suppress(ObjectNotFound):
        store.head("warm")
    if task["policy"] == "naive":
        yield [Contender(partial(_naive, store), task) for _ in range(task["threads"])]
    else:
        settings = LockSettings(check_store=False, timeout=600)
        yield [Contender(partial(_line, Lock(store, PATH, settings)), task) for _ in range(task["threads"])]


def contend(site: Site, task: dict[str, Any]) -> list[Turn]:
    """Print "ready", read start and end from stdin, and run all threads.

    Returns their turns: asked, taken (0: never), released.
    """
    with contenders(site, task) as all_of_them:
        print("ready", flush=True)
        task.update(json.loads(sys.stdin.readline()))  # when to start, and to end
        threads = [threading.Thread(target=contender.work) for contender in all_of_them]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return [turn for contender in all_of_them for turn in contender.turns]


def main() -> None:
    """Run the task."""
    task = json.loads(sys.stdin.readline())
    site = Site(**task["site"])
    print(json.dumps({"cycles": cycles, "contend": contend}[task["kind"]](site, task)))


if __name__ == "__main__":
    main()
