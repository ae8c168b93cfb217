"""Logs between real processes on real stores: kill -9, SIGSTOP, and what a frozen producer appends when it wakes."""

from __future__ import annotations

import random
import signal
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest
from patience import until
from servers.stores import STORES

from lockprovider.wal import LogBatch, Position, Wal
from recipes.freezing import freeze
from recipes.speaking import Speaking

SLOTS = 8
Place = tuple[str, dict[str, Any]]
Start = Callable[[str], "Producer"]


@pytest.fixture(params=STORES)
def place(request, tmp_path) -> Place:
    if request.param == "local":
        return f"file://{tmp_path}/folder/orders", {"auto_mkdir": True}
    server = request.getfixturevalue(request.param)
    return f"{server.new_prefix()}/folder/orders", server.storage_options


class Producer(Speaking):
    """One process, and what it has said."""

    def __init__(self, place: Place, name: str, many: int) -> None:
        super().__init__("recipes.wal_child", *place, name, many)
        self.name = name

    @property
    def told(self) -> list[str]:
        return [word for word in self.lines if word.startswith(self.name)]


class Reading:
    """One who reads on and commits, opened anew each time; without it the ring is full."""

    def __init__(self, log: Wal) -> None:
        self.log = log
        self.batches: list[LogBatch] = []
        log.reader("test")

    def on(self) -> None:
        reader = self.log.reader("test")
        for batch in reader.read():
            self.batches.append(batch)
            reader.commit(batch.end)

    def until(self, condition: Callable[[], object]) -> None:
        until(lambda: self.on() or condition())

    def audit(self, told: list[str]) -> list[str]:
        """What is in the log: each record once and in order, no slot twice, none left out."""
        self.on()
        records = [record.decode() for batch in self.batches for record in batch.records]
        assert {one: count for one, count in Counter(records).items() if count > 1} == {}
        assert {*told} <= {*records}, "what was told to be there is not"
        for name in {one.partition(".")[0] for one in records}:
            mine = [one for one in records if one.startswith(f"{name}.")]
            assert mine == [f"{name}.{n}" for n in range(1, len(mine) + 1)]
        end = Position(0, 0)
        for batch in self.batches:
            assert batch.start == end, "a slot is read twice, or left out"
            end = batch.end
        assert end == self.log.end()
        return records


@pytest.fixture
def start(place) -> Iterator[Callable[[str, int], Producer]]:
    with ExitStack() as started:

        def begin(name: str, many: int) -> Producer:
            producer = Producer(place, name, many)
            started.callback(producer.close)
            return producer

        yield begin


def test_each_record_of_killed_and_restarted_producers_exists_once(place, start, seed) -> None:
    chance = random.Random(seed)
    reading = Reading(Wal.create(place[0], storage_options=place[1], slots=SLOTS))
    killed = [start(name, 24) for name in ("p0", "p1")]
    enough = [chance.randrange(2, 12) for _ in killed]
    reading.until(lambda: all(len(one.told) >= n or one.is_over() for one, n in zip(killed, enough, strict=True)))
    for one in killed:
        one.close()
    again = [start(name, 24) for name in ("p0", "p1")]
    reading.until(lambda: all(one.is_over() for one in again))
    for one in again:
        one.close()
        assert one.process.returncode == 0
    records = reading.audit([word for one in (*killed, *again) for word in one.told])
    assert len(records) == 48
    assert reading.log.end().slot > SLOTS


@pytest.mark.soak
def test_killed_and_frozen_producers_lose_and_double_nothing_for_minutes(place, start, seed, request, capsys) -> None:
    """Whoever is frozen is followed by another of its name, and is fenced when it wakes after that one has written."""
    seconds, chance = float(request.config.getoption("--soak")) * 60 / 4, random.Random(seed)
    reading = Reading(Wal.create(place[0], storage_options=place[1], slots=SLOTS))
    running = {name: start(name, 10**9) for name in ("p0", "p1", "p2", "p3")}
    everybody, frozen = [*running.values()], []
    happened: Counter[str] = Counter()

    def stop(one: Producer, *, freezes: bool) -> None:
        """And let another go on under its name."""
        assert not one.is_over(), f"{one.name} has the name, and ended: {one.lines[-3:]}"
        if freezes:
            freeze(one.process, f"{place[0]}/log.json", f"{place[0]}/slots/00000000")
            frozen.append(one)
        else:
            one.process.kill()
        happened["frozen" if freezes else "killed"] += 1
        running[one.name] = start(one.name, 10**9)
        everybody.append(running[one.name])

    def told(one: Producer, many: int) -> None:
        reading.until(lambda: len(one.told) >= many or one.is_over())

    first = running["p0"]
    told(first, 1)
    stop(first, freezes=True)
    told(running["p0"], 1)
    wake(frozen)
    reading.until(lambda: "fenced" in first.lines)
    end_s = time.monotonic() + seconds
    while time.monotonic() < end_s:
        one = running[chance.choice([*running])]
        told(one, chance.randrange(1, 30))
        stop(one, freezes=chance.random() < 0.5)
        if chance.random() < 0.5:
            told(running[one.name], 1)  # it has the name
        if chance.random() < 0.5:
            wake(frozen)
    wake(frozen)
    reading.until(lambda: len(alive := [one.name for one in everybody if not one.is_over()]) == len({*alive}))
    for one in everybody:
        one.close()
    records = reading.audit([word for one in everybody for word in one.told])
    happened["fenced"] = sum("fenced" in one.lines for one in everybody)
    happened |= Counter(records=len(records), slots=reading.log.end().slot)
    said = f"\nlog on {place[0].partition(':')[0]}, {seconds:.0f} s: {dict(happened)}"
    with capsys.disabled():
        print(said)  # noqa: T201 - it is a report
    assert all(one.process.returncode in (0, -signal.SIGKILL) for one in everybody)


def wake(frozen: list[Producer]) -> None:
    for one in frozen:
        one.process.send_signal(signal.SIGCONT)
    frozen.clear()
