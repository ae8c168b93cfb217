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
from lockprovider.recipes.broker.handing import offers_of
from lockprovider.wal import Wal
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
        self.everybody: list[Child] = []

    def start(self, name: str) -> Child:
        child = self.running[name] = Child(self.url, self.options, name, self.many)
        self.everybody.append(child)
        return child

    def broker(self) -> Child | None:
        """Who writes for the others of the queue now, if it has said where it listens."""
        there = self.queue._writer.read()[0].more.get("broker")
        offers = {*offers_of(there).values()}
        return next((one for one in self.running.values() if offers & offers_said(one)), None)

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


def test_the_broker_is_killed_again_and_again_and_each_effect_is_there_once(crowds) -> None:
    crowd = crowds(20)
    names = [f"p{n}" for n in range(4)]
    for name in names:
        crowd.start(name)
    kills = 0
    while kills < 2 and not all(one.is_over() for one in crowd.running.values()):
        broker = until(lambda: crowd.broker() or all(one.is_over() for one in crowd.running.values()))
        if isinstance(broker, Child):
            broker.close()
            crowd.start(broker.name)
            kills += 1
    until(lambda: all(one.is_over() for one in crowd.running.values()))
    assert {one.process.returncode for one in crowd.running.values()} == {0}
    assert kills
    audit(crowd, names)


@pytest.mark.soak
def test_sixteen_processes_whose_broker_is_killed_and_frozen_for_minutes(crowds, request, capsys) -> None:
    crowd = crowds(500)
    names = [f"p{n}" for n in range(16)]
    for name in names:
        crowd.start(name)
    end_s = time.monotonic() + float(request.config.getoption("--soak")) * 60
    happened: Counter[str] = Counter()
    while time.monotonic() < end_s and not all(one.is_over() for one in crowd.running.values()):
        broker = until(lambda: crowd.broker() or all(one.is_over() for one in crowd.running.values()))
        if not isinstance(broker, Child):
            break
        if sum(happened.values()) % 3 < 2:
            broker.close()
            crowd.start(broker.name)
            happened["killed"] += 1
        else:
            broker.process.send_signal(signal.SIGSTOP)
            until(lambda broker=broker: crowd.broker() not in (broker, None) or len(crowd.running) == 1)
            broker.process.send_signal(signal.SIGCONT)  # what it was asked before it does now, or not
            happened["frozen"] += 1
    until(lambda: all(one.is_over() for one in crowd.running.values()))
    assert {one.process.returncode for one in crowd.running.values()} == {0}
    happened |= Counter(audit(crowd, names))
    with capsys.disabled():
        print(f"\nbroker: {dict(happened)}")  # noqa: T201 - it is a report
    assert happened["killed"]
