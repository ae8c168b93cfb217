"""Random histories of whole logs: clients of one small ring, each behind a network that loses, repeats and delays.

At every request of one, others may append, read, trim, die and begin again under their names.
"""

from __future__ import annotations

import asyncio
import itertools
import random
import time
import uuid
from collections import Counter, deque
from itertools import pairwise

import fsspec
import pytest

from fsspec_cas import OutcomeUnknown, Store, Unavailable
from fsspec_cas.answer import NoAnswer
from fsspec_cas.backends.memory import MemoryBackend
from fsspec_cas.testing import DeliverLate, DeliverTwice, Faulty, LoseAnswer, LoseRequest, ManualClock, Pass, Refuse
from lockprovider.recipes.wal import appending
from lockprovider.recipes.wal.contents import LogManifest
from lockprovider.wal import LogBatch, LogFull, Position, Trimmed, Wal

FAULTS = (LoseAnswer(), LoseRequest(), DeliverTwice(), DeliverLate(1), DeliverLate(5), Refuse())
NAMES = ("a", "b", "c")
DEEP = 3  # clients that are in the middle of a request at once


class Network(Faulty):
    """Faults at random, and others' doings at every request."""

    def __init__(self, history: History, inner: MemoryBackend) -> None:
        super().__init__(inner, {}, world=history.clock)
        self.history = history

    async def relay(self, operation, ask):
        chance = self.history.chance
        self.history.meanwhile()
        fault = chance.choice(FAULTS) if operation == "put" and chance.random() < self.history.faults else Pass()
        if not isinstance(fault, Pass):
            self.history.happened[type(fault).__name__] += 1
        self._plan[operation] = deque([fault])
        answer = await super().relay(operation, ask)
        self.history.meanwhile()
        return NoAnswer("lost") if operation == "get" and chance.random() < self.history.faults / 4 else answer


class Client:
    """A producer, in one life after the other; each record is named by its number."""

    def __init__(self, history: History, name: str) -> None:
        self.history = history
        self.name = name
        self.next = 1
        self.busy = False
        self.begin()

    def begin(self) -> None:
        self.network = Network(self.history, self.history.backend)
        store = Store(self.network, self.history.root, world=self.history.clock)
        self.log = Wal(store, "orders", world=self.history.clock, timeout=5)
        self.out = self.log.appender(self.name)

    def append(self) -> None:
        history = self.history
        try:
            self.out.append(f"{self.name}.{self.next}".encode(), seq=self.next)
        except LogFull:
            history.happened["full"] += 1
        except (OutcomeUnknown, Unavailable):
            history.happened["unknown"] += 1
        else:
            history.told.append(f"{self.name}.{self.next}")
            self.next += 1

    def die(self) -> None:
        """It begins again, perhaps with numbers that it was told are there."""
        self.history.networks.append(self.network)  # what is on its way may arrive
        self.begin()
        self.next = max(1, self.next - self.history.chance.randrange(3))


class History:
    """One seed's story."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        self.clock = ManualClock()
        self.backend = MemoryBackend(fsspec.filesystem("memory", skip_instance_cache=True))
        self.root = f"/{uuid.uuid4().hex}"
        self.faults = 0.0
        self.happened: Counter[str] = Counter()
        self.told: list[str] = []
        self.networks: list[Network] = []
        self.batches: list[LogBatch] = []
        self.plain = Wal(Store(self.backend, self.root), "orders")
        self.plain._objects.create(manifest(self.chance))
        self.waits = self.plain._objects.manifest().retain == "readers"
        self.reader = self.plain.reader("r")
        self.clients = [Client(self, name) for name in NAMES]
        self.depth = 0

    def meanwhile(self) -> None:
        if self.depth < DEEP and self.chance.random() < 0.15:
            self.step()

    def step(self) -> None:
        """Somebody who is not in the middle of something does something."""
        self.depth += 1
        try:
            free = [one for one in self.clients if not one.busy]
            draw = self.chance.random()
            if draw < 0.2 or not free:
                self.read()
                return
            one = self.chance.choice(free)
            one.busy = True
            try:
                one.die() if draw < 0.27 else one.append()
            finally:
                one.busy = False
        finally:
            self.depth -= 1

    def read(self) -> None:
        try:
            for batch in self.reader.read():
                self.batches.append(batch)
                self.reader.commit(batch.end)
        except Trimmed:
            assert not self.waits
            self.plain.drop_reader("r")
            self.reader = self.plain.reader("r")
            self.happened["trimmed"] += 1

    def run(self, steps: int = 25) -> None:
        self.faults = 0.15
        for _ in range(steps):
            self.step()
        self.faults = 0.0
        for network in (*self.networks, *(one.network for one in self.clients)):
            asyncio.run(network.deliver_late())
        self.read()
        self.audit()

    def audit(self) -> None:
        records = [record.decode() for batch in self.batches for record in batch.records]
        assert {one: count for one, count in Counter(records).items() if count > 1} == {}
        for before, after in pairwise(self.batches):
            assert before.end <= after.start
            assert before.end == after.start or not self.waits
        for name in NAMES:
            mine = [int(one[2:]) for one in records if one.startswith(name)]
            assert mine == sorted(mine)
        if self.waits:
            assert {*self.told} <= {*records}
            assert self.plain.end() == (self.batches[-1].end if self.batches else Position(0, 0))


def manifest(chance: random.Random) -> LogManifest:
    return LogManifest("id", chance.choice((1, 2, 3, 5, 9, None)), chance.choice(("readers", "readers", "slots")))


@pytest.mark.parametrize("is_soak", [False, pytest.param(True, marks=pytest.mark.soak)])
def test_random_histories_lose_and_double_nothing(seed, is_soak, request) -> None:
    end_s = time.monotonic() + 60 * request.config.getoption("--soak") * is_soak
    happened: Counter[str] = Counter()
    for count, n in enumerate(itertools.count(seed)):
        if count >= 8 and time.monotonic() > end_s:
            break
        history = History(n)
        try:
            history.run()
        except BaseException as error:
            error.add_note(f"seed {n}")
            raise
        happened += history.happened + Counter(told=len(history.told))
    assert [name for fault in FAULTS if not happened[name := type(fault).__name__]] == [], happened
    assert happened["told"] > count
    print(count, happened)  # noqa: T201 - pytest shows it with a failure


def test_mutant_log_without_a_producer_table_is_caught(seed, monkeypatch) -> None:
    monkeypatch.setattr(appending, "_repeated", lambda table, append, *, sent: None)
    with pytest.raises(AssertionError):
        all(History(n).run() is None for n in range(seed, seed + 25))
