"""Clients of one object who do what they like at once; what they did, as a history.

python -m linearize.recording URL KEY SEED CALLS      one client as a process of its own, its calls as JSON
"""

from __future__ import annotations

import json
import random
import sys
import threading
import time
import uuid
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from typing import Any

from fsspec_cas import ABSENT, Lost, ObjectNotFound, Store, StoreError, Unknown, Version, Won
from linearize.history import History, Kind, Op, Result

TIMEOUT_S = 30.0
_RESULTS = {Won: Result.OK, Lost: Result.LOST, Unknown: Result.UNKNOWN}


@dataclass
class Call:
    """An op with versions, as text, where the history has ids."""

    kind: str
    result: str
    called: int
    returned: int
    client: int
    write: str | None = None
    expected: str | None = None
    version: str | None = None  # that it made, or that its look showed; None for "nothing is there"
    data: str | None = None  # the id that a read showed


class Client:
    """Creates first, then reads, matches and (where told) deletes as its dice have it."""

    def __init__(self, store: Store, key: str, seed: int, number: int, *, deletes: bool) -> None:
        self.store, self.key, self.number, self.deletes = store, key, number, deletes
        self.dice = random.Random(seed * 1000 + number)
        self.known: Version | None = None
        self.calls: list[Call] = []

    def run(self, calls: int) -> list[Call]:
        for n in range(calls):
            try:
                self._one(Kind.CREATE if n == 0 else self._choose())
            except StoreError:
                self.known = None  # nothing was done: no part of the history
        return self.calls

    def _choose(self) -> Kind:
        if self.known is None:
            return self.dice.choice([Kind.READ, Kind.READ, Kind.CREATE])
        deletes = [Kind.DELETE] if self.deletes else []
        return self.dice.choice([Kind.READ, *[Kind.MATCH] * 5, *deletes])

    def _one(self, kind: Kind) -> None:
        if kind is Kind.READ:
            return self._read()
        write = None if kind is Kind.DELETE else uuid.uuid4().hex
        expected, called = self.known, time.monotonic_ns()
        outcome = self._write(kind, write, expected)
        if isinstance(outcome, Unknown) and kind is not Kind.DELETE and self.dice.random() < 0.5:
            outcome = self.store.resolve(outcome, timeout=TIMEOUT_S)
        call = Call(kind.value, _RESULTS[type(outcome)].value, called, time.monotonic_ns(), self.number, write)
        call.expected = str(expected) if kind is not Kind.CREATE else None
        self.known = outcome.version if isinstance(outcome, Won) and write else None
        if isinstance(outcome, Lost):
            call.version = None if outcome.current == ABSENT else str(outcome.current)
        elif self.known:
            call.version = str(self.known)
        self.calls.append(call)
        return None

    def _write(self, kind: Kind, write: str | None, expected: Version | None) -> Won | Lost | Unknown:
        match kind:
            case Kind.CREATE:
                return self.store.put_if_absent(self.key, write.encode(), timeout=TIMEOUT_S)
            case Kind.MATCH:
                return self.store.put_if_match(self.key, write.encode(), expected, timeout=TIMEOUT_S)
            case _:
                return self.store.delete_if_match(self.key, expected, timeout=TIMEOUT_S)

    def _read(self) -> None:
        called = time.monotonic_ns()
        try:
            content = self.store.read(self.key, timeout=TIMEOUT_S)
        except ObjectNotFound:
            content = None
        call = Call(Kind.READ.value, Result.OK.value, called, time.monotonic_ns(), self.number)
        self.known = content and content.version
        if content:
            call.version, call.data = str(content.version), content.data.decode()
        self.calls.append(call)


def to_history(calls: Iterable[Call]) -> History:
    """With ids for versions.

    A loss to a version that nobody else ever saw is left out: it is that of an unknown write, and does not tell its id.
    """
    every = list(calls)
    ids = {call.version: call.data or call.write for call in every if call.result == "ok" and call.version}
    return [
        Op(
            Kind(call.kind),
            Result(call.result),
            call.called,
            call.returned,
            call.write,
            ids[call.expected] if call.expected else None,
            _seen(call, ids),
            call.client,
        )
        for call in every
        if not (call.result == "lost" and call.version and call.version not in ids)
    ]


def _seen(call: Call, ids: dict[Any, Any]) -> str | None:
    if call.kind == Kind.READ.value:
        return call.data
    return ids[call.version] if call.result == "lost" and call.version else None


def record(stores: Sequence[Store], key: str, calls: int, seed: int, *, deletes: bool = True) -> list[Call]:
    """One client a store, each in a thread, all at once."""
    start = threading.Barrier(len(stores))

    def run(number: int) -> list[Call]:
        client = Client(stores[number], key, seed, number, deletes=deletes)
        start.wait()
        return client.run(calls)

    with ThreadPoolExecutor(len(stores)) as pool:
        return [call for made in pool.map(run, range(len(stores))) for call in made]


def main() -> None:
    url, key, seed, calls = sys.argv[1:]
    client = Client(Store.from_url(url), key, 0, int(seed), deletes=True)
    print("ready", flush=True)  # noqa: T201 (how it speaks to the test)
    sys.stdin.readline()
    print(json.dumps([asdict(call) for call in client.run(int(calls))]))  # noqa: T201


if __name__ == "__main__":
    main()
