"""The locks of redis, ZooKeeper and etcd, each as its usual client takes it, for `benchmarks.lock_children`.

A process has one client, and each of its contenders a lock made by that. redis-py's lock asks again every 0.1 s while
it waits; kazoo's queues with ephemeral nodes and is told; etcd's own lock service queues in the server, and is asked
through its JSON gateway: a waiter is a request that is not answered yet.
"""

from __future__ import annotations

import base64
import contextlib
import http.client
import json
import time
from collections.abc import Callable, Iterator
from typing import Any, Protocol

LEASE_S = 600


class PeerLock(Protocol):
    """One contender's."""

    def acquire(self, until_s: float) -> bool:
        """Wait for it until that moment of the monotonic clock."""

    def release(self) -> None:
        """It was held."""


class _Redis:
    def __init__(self, lock: Any) -> None:
        self._lock = lock
        self.release = lock.release

    def acquire(self, until_s: float) -> bool:
        return bool(self._lock.acquire(blocking_timeout=max(0.0, until_s - time.monotonic())))


class _ZooKeeper:
    def __init__(self, lock: Any) -> None:
        self._lock = lock
        self.release = lock.release

    def acquire(self, until_s: float) -> bool:
        from kazoo.exceptions import LockTimeout

        try:
            return bool(self._lock.acquire(timeout=max(0.001, until_s - time.monotonic())))
        except LockTimeout:
            return False


class _Etcd:
    """It waits past its end, for a waiter that goes away would leave its request in the queue; then it gives up."""

    def __init__(self, address: str, name: str) -> None:
        self._connection = http.client.HTTPConnection(address)
        self._name = base64.b64encode(name.encode()).decode()
        self._lease = self._ask("/v3/lease/grant", {"TTL": LEASE_S})["ID"]
        self._key = ""

    def _ask(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        self._connection.request("POST", path, json.dumps(body))
        answer: dict[str, Any] = json.loads(self._connection.getresponse().read())
        return answer

    def acquire(self, until_s: float) -> bool:
        self._key = self._ask("/v3/lock/lock", {"name": self._name, "lease": self._lease})["key"]
        if time.monotonic() < until_s:
            return True
        self.release()
        return False

    def release(self) -> None:
        self._ask("/v3/lock/unlock", {"key": self._key})


@contextlib.contextmanager
def peer_locks(endpoint: str, name: str) -> Iterator[Callable[[], PeerLock]]:
    """Connect to redis, ZooKeeper or etcd by the endpoint's protocol.

    Yield a function that makes a lock of this name.
    """
    kind, _, address = endpoint.partition("://")
    match kind:
        case "redis":
            import redis

            with redis.Redis.from_url(endpoint) as client:
                client.ping()
                yield lambda: _Redis(client.lock(name, timeout=LEASE_S))
        case "zookeeper":
            from kazoo.client import KazooClient

            keeper = KazooClient(address, timeout=60)
            keeper.start(timeout=60)
            keeper.ensure_path(f"/{name}")
            try:
                yield lambda: _ZooKeeper(keeper.Lock(f"/{name}"))
            finally:
                keeper.stop()
        case _:
            yield lambda: _Etcd(address, name)
