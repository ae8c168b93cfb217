"""Processes that share a broker on a real store, where it is killed again and again: each effect is there once."""

from __future__ import annotations

import json
import signal
import time
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest
from patience import until

from lockprovider.queue import Queue
from lockprovider.recipes.broker_rules import offers_of
from lockprovider.wal import Wal
from recipes.broker_child import AT_ONCE
from recipes.freezing import stop
from recipes.speaking import Speaking


class Child(Speaking):
    """One process, and what it has said."""

    def __init__(self, url: str, options: dict[str, Any], name: str, many: int) -> None:
        super().__init__("recipes.broker_child", url, options, name, many)
        self.name = name

    @property
    def said(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in [*self.lines]]


class Crowd:
    """Processes of one queue and one log; whoever was killed begins again under its name."""

    def __init__(self, server: Any, many: int) -> None:
        self.url, self.options, self.many = f"{server.new_prefix()}/folder", server.storage_options, many
        self.queue = Queue.create(
            f"{self.url}/backfill.json", storage_options=self.options, visible_s=5.0, max_attempts=1000
        )
        self.log = Wal.create(f"{self.url}/orders", storage_options=self.options, retain="slots")
        self.running: dict[str, Child] = {}
        self.open_gates = 0
        self.everybody: list[Child] = []

    def start(self, name: str) -> None:
        child = self.running[name] = Child(self.url, self.options, name, self.many)
        self.everybody.append(child)
        for _ in range(self.open_gates):
            child.go()

    def begin(self, names: list[str]) -> None:
        """All have put, appended and claimed something, and stand at their first gate."""
        for name in names:
            self.start(name)
        until(lambda: all(one.said for one in self.running.values()))

    def let_go(self) -> None:
        """Of this gate; at the second one, the last, they have a few messages to go."""
        self.open_gates += 1
        for one in self.running.values():
            one.go()

    def all_wait(self, but: Child | None = None) -> bool:
        """At the second gate."""
        others = [one for one in self.running.values() if one is not but]
        return all(one.said[-1:] and one.said[-1]["done"] == self.many - AT_ONCE for one in others)

    def broker(self, but: Child | None = None) -> Child | None:
        """Who writes for the others of the queue now, if it has said where it listens."""
        there = self.queue._writer.read()[0].more.get("broker")
        offers = {*offers_of(there).values()}
        return next((one for one in self.running.values() if offers & offers_said(one) and one is not but), None)

    def kill(self, child: Child) -> None:
        """And let it begin again under its name."""
        child.close()
        self.start(child.name)

    def finish(self) -> None:
        """Let them come to their end; a busy machine takes longer, while they say something."""
        self.let_go()
        while not self._all_over():
            said = self._said()
            until(lambda said=said: self._all_over() or self._said() > said)
        assert {one.process.returncode for one in self.running.values()} == {0}

    def _all_over(self) -> bool:
        return all(one.is_over() for one in self.running.values())

    def _said(self) -> int:
        return sum(len(one.lines) for one in self.running.values())

    def close(self) -> None:
        for one in self.everybody:
            one.close()
        self.queue.close()
        self.log.close()


def offers_said(child: Child) -> set[tuple[str, str]]:
    return {tuple(offer) for said in child.said[-1:] for offer in said["offers"] if offer}


@pytest.fixture
def crowds(seaweedfs) -> Iterator[Any]:
    made: list[Crowd] = []

    def make(many: int) -> Crowd:
        made.append(Crowd(seaweedfs, many))
        return made[-1]

    yield make
    for one in made:
        one.close()


def audit(crowd: Crowd, names: list[str]) -> dict[str, int]:
    """Each was put once, appended once and in order, and acked once."""
    expected = {f"{name}.{n}" for name in names for n in range(1, crowd.many + 1)}
    stat = crowd.queue.stat()
    assert stat.put == len(expected)
    assert stat.dead == 0
    told = Counter(body for child in crowd.everybody for said in child.said for body in said["acked"])
    assert {body for body, count in told.items() if count > 1} == set(), "an ack was told to two"
    left: Counter[str] = Counter()

    def rest() -> bool:
        for job in crowd.queue.jobs(until_empty=True):
            with job:
                left[job.body] += 1
        now = crowd.queue.stat()
        return now.ready == now.claimed == 0

    until(rest)
    assert {*told} & {*left} == set(), "a message was delivered after somebody was told that it is acked"
    assert {*told, *left} <= expected
    records = [record.decode() for batch in crowd.log.read() for record in batch.records]
    assert crowd.log.end().offset == len(expected)
    assert {one: count for one, count in Counter(records).items() if count > 1} == {}
    return {"messages": len(expected), "acked by processes": len(told), "slots": crowd.log.end().slot}


def test_each_effect_exists_once_when_brokers_are_killed_repeatedly(crowds) -> None:
    crowd = crowds(20)
    names = [f"p{n}" for n in range(4)]
    crowd.begin(names)
    crowd.kill(until(crowd.broker))  # who wrote last is there: all wait
    crowd.let_go()
    crowd.kill(until(crowd.broker))  # at the latest when all wait again
    crowd.finish()
    audit(crowd, names)


@pytest.mark.soak
def test_sixteen_processes_survive_killed_and_frozen_brokers(crowds, request, capsys) -> None:
    minutes = float(request.config.getoption("--soak"))
    crowd = crowds(AT_ONCE * max(10, round(minutes * 20)))
    names = [f"p{n}" for n in range(16)]
    crowd.begin(names)
    happened: Counter[str] = Counter()
    first = until(crowd.broker)
    stop(first.process)
    happened["frozen"] += 1
    crowd.let_go()
    until(lambda: crowd.broker(but=first))  # the others have written without it
    first.process.send_signal(signal.SIGCONT)  # what it was asked before it does now, or not
    crowd.kill(until(crowd.broker))
    happened["killed"] += 1
    end_s = time.monotonic() + minutes * 60
    while time.monotonic() < end_s:
        broker = until(lambda: crowd.broker() or crowd.all_wait())
        if not isinstance(broker, Child):
            break
        if sum(happened.values()) % 3 < 2:
            crowd.kill(broker)
            happened["killed"] += 1
        else:
            stop(broker.process)
            until(lambda broker=broker: crowd.broker(but=broker) or crowd.all_wait(but=broker))
            broker.process.send_signal(signal.SIGCONT)
            happened["frozen"] += 1
    crowd.finish()
    happened |= Counter(audit(crowd, names))
    with capsys.disabled():
        print(f"\nbroker: {dict(happened)}")  # noqa: T201 - it is a report
