"""Clients of one store in memory, with one true time and a wall clock for each."""

from __future__ import annotations

import atexit
import json
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import fsspec
import pytest

from fsspec_cas import Store
from fsspec_cas.answer import ObjectState, ReadAnswer, WriteAnswer
from fsspec_cas.backends.memory import MemoryBackend
from fsspec_cas.outcome import Version, Write
from fsspec_cas.testing import Fault, Faulty, Operation
from lockprovider import HUDI_LOCK_PATH, Lock, LockRecord, LockSettings, OnLost

SETTINGS = LockSettings(validity=100, renew=10, timeout=5)  # so the margin is 10 s
FOR_LONG = 400  # requests; more than fit into any timeout
SOON_S = 5.0  # the longest that a real condition is waited for; reached only by a failure


@dataclass
class Time:
    """True time, in seconds."""

    now_s: float = 1_700_000_000.0


@dataclass
class Clock:
    """One machine's `World`. Its wall clock may be wrong; its monotonic clock starts anywhere and is true."""

    time: Time
    name: str
    wrong_by_s: float = 0.0
    draw: Callable[[], float] = lambda: 0.5
    slept_s: list[float] = field(default_factory=list)
    _ids: int = 0

    def now_ms(self) -> int:
        return round((self.time.now_s + self.wrong_by_s) * 1000)

    def monotonic_s(self) -> float:
        return self.time.now_s - 1_699_990_000.0

    def new_id(self) -> str:
        self._ids += 1
        return f"{self.name}-{self._ids}"

    def random(self) -> float:
        return self.draw()

    def sleep(self, seconds: float) -> None:
        self.slept_s.append(seconds)
        self.time.now_s += seconds


class Hooked:
    """A backend that calls `before(operation, path, data)` before each request, and may forget the identity of writes.

    Stores that keep no metadata forget it: then a lost answer cannot be settled below the lock, and the lock has to.
    """

    def __init__(self, inner: Any, *, forgets: bool = False) -> None:
        self._inner = inner
        self._forgets = forgets
        self.before: Callable[[str, str, bytes], None] = lambda *_: None
        self.bodies = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    async def put(self, write: Write, data: bytes, *, timeout_s: float) -> WriteAnswer:
        self.before("put", write.path, data)
        answer: WriteAnswer = await self._inner.put(write, data, timeout_s=timeout_s)
        return answer

    async def head(self, path: str, *, timeout_s: float) -> ReadAnswer:
        self.before("head", path, b"")
        return self._seen(await self._inner.head(path, timeout_s=timeout_s))

    async def get(self, path: str, unless: Version | None, *, timeout_s: float) -> ReadAnswer:
        self.before("get", path, b"")
        answer = self._seen(await self._inner.get(path, unless, timeout_s=timeout_s))
        self.bodies += isinstance(answer, ObjectState)
        return answer

    def _seen(self, answer: ReadAnswer) -> ReadAnswer:
        return replace(answer, write_id=None) if self._forgets and isinstance(answer, ObjectState) else answer


@dataclass
class Client:
    """One client with its own clock and its own way to the store."""

    lock: Lock
    clock: Clock
    way: Hooked
    faulty: Faulty

    def pause_before(
        self, path_ends: str, meanwhile: Callable[[], None], *, only: Callable[[bytes], bool] = lambda _: True
    ) -> list[str]:
        """Run `meanwhile` once, right before the client's next put to such a path leaves; filled when it was run."""
        paused: list[str] = []

        def before(operation: str, path: str, data: bytes) -> None:
            if operation == "put" and path.endswith(path_ends) and only(data) and not paused:
                paused.append(path)
                meanwhile()

        self.way.before = before
        return paused


def commits(data: bytes) -> bool:
    """Whether these bytes of a lock record pass the commit point of a publish."""
    return b'"pending":{' in data


class Town:
    """A store, and the clients that share it."""

    def __init__(self, *, forgets: bool = False) -> None:
        self.time = Time()
        self._forgets = forgets
        self._memory = MemoryBackend(fsspec.filesystem("memory", skip_instance_cache=True))
        self._root = f"/town/{uuid.uuid4()}"  # the memory filesystem is one for the process
        self._clients: list[Client] = []
        self.store = Store(self._memory, self._root, world=Clock(self.time, "observer"))

    def client(
        self, plan: Mapping[Operation, Sequence[Fault]] | None = None, *, on_lost: OnLost | None = None
    ) -> Client:
        """A client whose requests suffer `plan`, from its first on."""
        clock = Clock(self.time, "abcdefgh"[len(self._clients)])
        faulty = Faulty(self._memory, plan or {}, world=clock)
        way = Hooked(faulty, forgets=self._forgets)
        store = Store(way, self._root, world=clock)
        client = Client(Lock(store, settings=SETTINGS, world=clock, on_lost=on_lost), clock, way, faulty)
        self._clients.append(client)
        return client

    def plan(self, client: Client, plan: Mapping[Operation, Sequence[Fault]]) -> None:
        """What happens to the client's requests from now on."""
        client.faulty = client.way._inner = Faulty(self._memory, plan, world=client.clock)

    def close(self) -> None:
        """Stop what tests that are about lost holders leave behind."""
        for client in self._clients:
            if client.lock._client.lease is not None:
                client.lock._client.lease._heartbeat.stop()
                atexit.unregister(client.lock._client.lease._at_exit)

    def pass_s(self, seconds: float) -> None:
        self.time.now_s += seconds

    def lapse(self) -> None:
        """Let every lease lapse that is not renewed."""
        self.pass_s(SETTINGS.validity + 1)

    @property
    def record(self) -> LockRecord:
        return LockRecord.decode(self.store.read(HUDI_LOCK_PATH).data)

    def rewrite(self, **fields: object) -> None:
        """As an operator, or another writer, changes the record."""
        content = self.store.read(HUDI_LOCK_PATH)
        data = json.dumps(json.loads(content.data) | fields).encode()
        self.store.put_if_match(HUDI_LOCK_PATH, data, content.version).unwrap()

    def has(self, path: str) -> bool:
        return any(entry.path.endswith(path) for entry in self.store.list(path))


@pytest.fixture(params=[False, True], ids=["settled by the store", "settled by the lock"])
def town(request: pytest.FixtureRequest) -> Iterator[Town]:
    made = Town(forgets=request.param)
    yield made
    made.close()
