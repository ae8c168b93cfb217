"""A local backend that notes what it is asked, and the lock record that is kept there."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from fsspec_cas import Machine, Store, Unavailable
from fsspec_cas.answer import NoAnswer
from fsspec_cas.backends.local import LocalBackend
from fsspec_cas.outcome import Write
from lockprovider import HUDI_LOCK_PATH, LockRecord, LockSettings

SETTINGS = LockSettings(validity=100, renew=10, timeout=1, poll=0.05)
RECORD = "table_lock.json"


class Noting(LocalBackend):
    """Notes what is asked; may fail to write data, and may lose the answer to the next write.

    With `blocking=False` it is driven as a backend behind a network is.
    """

    def __init__(self, *, blocking: bool = True) -> None:
        self.blocking = blocking
        self.asked: list[str] = []
        self.down = False
        self.loses = ""  # "answer", "request", or neither
        self.twice = False  # something on the way sends the next write twice, and hands back the second answer
        self.out_of_reach = False

    @property
    def written(self) -> list[str]:
        """The names of what was to be written, in order."""
        return [asked.removeprefix("put ") for asked in self.asked if asked.startswith("put ")]

    async def head(self, path: str, *args: Any, **kwargs: Any) -> Any:
        self._reach()
        self.asked.append(f"head {Path(path).name}")
        return await super().head(path, *args, **kwargs)

    async def put(self, write: Write, *args: Any, **kwargs: Any) -> Any:
        name, loses = Path(write.path).name, self.loses
        if self.down and name != RECORD:
            raise Unavailable("the store is down")
        self._reach()
        self.asked.append(f"put {name}")
        if self.twice:
            self.twice = False
            await super().put(write, *args, **kwargs)
        self.out_of_reach = bool(loses)
        if loses == "request":
            return NoAnswer("it never got there")
        answer = await super().put(write, *args, **kwargs)
        return NoAnswer("it never got back") if loses else answer

    async def get(self, *args: Any, **kwargs: Any) -> Any:
        self._reach()
        return await super().get(*args, **kwargs)

    def _reach(self) -> None:
        if self.out_of_reach:
            raise Unavailable("the store is out of reach")


class Later:
    """The machine's world, with some time more that has passed."""

    def __init__(self) -> None:
        self.passed_s = 0.0

    def __getattr__(self, name: str) -> Any:
        return getattr(Machine(), name)

    def monotonic_s(self) -> float:
        return Machine().monotonic_s() + self.passed_s


def record(store: Store) -> LockRecord:
    return LockRecord.decode(store.read(HUDI_LOCK_PATH).data)


def rewritten(store: Store, **fields: object) -> None:
    """The lock record with these fields in place of its own, as another client would write it."""
    content = store.read(HUDI_LOCK_PATH)
    data = json.dumps(json.loads(content.data) | fields).encode()
    read = json.loads(LockRecord.decode(data).encode())
    assert {name for name, value in fields.items() if value} <= read.keys(), "a field that nobody reads tests nothing"
    store.put_if_match(HUDI_LOCK_PATH, data, content.version).unwrap()
