"""Elections between real processes on real stores: kill -9, SIGSTOP, and what a frozen leader writes when it wakes."""

from __future__ import annotations

import itertools
import json
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from patience import until
from servers.stores import STORES

from fsspec_cas import ObjectNotFound, Store
from lockprovider.election import Election
from lockprovider.recipes.election.decide import decode_election
from lockprovider.state import State
from recipes.freezing import freeze

TESTS = Path(__file__).resolve().parent.parent
Place = tuple[str, dict[str, Any]]


SHORT = pytest.mark.parametrize("place", ["local", "seaweedfs"], indirect=True)


@pytest.fixture(params=STORES)
def place(request, tmp_path) -> Place:
    if request.param == "local":
        return f"file://{tmp_path}/jobs", {"auto_mkdir": True}
    server = request.getfixturevalue(request.param)
    return f"{server.new_prefix()}/jobs", server.storage_options


class Candidate:
    """One process, and what it has said."""

    def __init__(self, place: Place, name: str, *, validity_s: float = 1.5, by_itself: bool = False) -> None:
        url, options = place
        words = json.dumps([f"{url}/compactor.json", options, name, validity_s, by_itself])
        self.process = subprocess.Popen(
            [sys.executable, "-m", "recipes.election_child", words],
            cwd=TESTS,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            bufsize=1,
        )
        self.said: list[str] = []
        self._reading = threading.Thread(target=self._read)
        self._reading.start()

    def _read(self) -> None:
        self.said += (line.strip() for line in self.process.stdout)

    def words(self, first: str) -> list[str]:
        return [line.partition(" ")[2] for line in [*self.said] if line.startswith(first)]

    def close(self) -> None:
        self.process.kill()
        self.process.stdin.close()
        self.process.wait()
        self._reading.join()
        self.process.stdout.close()


@pytest.fixture
def start(place) -> Iterator[Callable[..., Candidate]]:
    with ExitStack() as started:

        def begin(name: str, **options: Any) -> Candidate:
            one = Candidate(place, name, **options)
            started.callback(one.close)
            return one

        yield begin


def effects(place: Place) -> State[Any]:
    url, options = place
    return State.open(f"{url}/compactor.json.effects", storage_options=options, default=dict, pace_s=0.0)


def epoch_now(place: Place) -> int:
    """As the object has it, whoever leads."""
    url, options = place
    try:
        return decode_election(Store.from_url(url, options).read("compactor.json").data, "").epoch
    except ObjectNotFound:
        return 0


@SHORT
def test_write_of_a_frozen_leader_is_refused_when_it_wakes(place, start) -> None:
    frozen = start("frozen")
    epoch = int(until(lambda: frozen.words("leads"))[0])
    frozen.process.stdin.write("\n")
    until(lambda: frozen.words("wrote"))
    url, options = place
    freeze(frozen.process, f"{url}/compactor.json")
    other = Election.open(f"{url}/compactor.json", storage_options=options, name="other", poll=0.1)
    with other.lead() as term:
        assert term.epoch == epoch + 1
        effects(place).update(lambda done: {**done, "epochs": [*done["epochs"], term.epoch]}, fence=term)
        frozen.process.stdin.write("\n")  # the first that it reads when it wakes
        frozen.process.send_signal(signal.SIGCONT)
        assert until(lambda: frozen.words("refused")) == ["True"]
        assert effects(place).read().value == {"epochs": [epoch, term.epoch], "writes": 1}
        assert other.leader().name == "other"
    until(lambda: len(frozen.words("leads")) == 2)
    assert frozen.words("leads")[1] == str(term.epoch + 1)


@SHORT
def test_killed_and_frozen_leaders_are_succeeded_and_no_epoch_repeats(place, start, seed) -> None:
    happened = trouble(place, start, random.Random(seed), lambda terms, _: terms >= 3, validity_s=1.5)
    assert happened["terms"] >= 3


@pytest.mark.soak
def test_killed_and_frozen_leaders_are_succeeded_for_minutes(place, start, seed, request, capsys) -> None:
    seconds = float(request.config.getoption("--soak")) * 60 / 4
    happened = trouble(place, start, random.Random(seed), lambda _, s: s > seconds, validity_s=2.0, count=6)
    with capsys.disabled():
        print(f"\nelection on {place[0].partition(':')[0]}, {seconds:.0f} s: {happened}")  # noqa: T201 - it is a report


def trouble(
    place: Place,
    start: Callable[..., Candidate],
    chance: random.Random,
    is_over: Callable[[int, float], bool],
    *,
    validity_s: float,
    count: int = 3,
) -> dict[str, int]:
    """Candidates that write whenever they lead; whoever leads is killed, or frozen until others have led."""
    numbers = itertools.count()
    candidates = [start(f"c{next(numbers)}", validity_s=validity_s, by_itself=True) for _ in range(count)]
    everybody, frozen = [*candidates], []
    happened = {"killed": 0, "frozen": 0}
    began_s, epochs = time.monotonic(), set()

    def leading() -> Candidate | None:
        """Who has led last, once it has written."""
        awake = [one for one in candidates if one not in frozen]
        newest = str(epoch_now(place))
        return next(
            (one for one in awake if one.words("leads")[-1:] == [newest] and one.said[-1:] != [f"leads {newest}"]), None
        )

    while not is_over(len(epochs), time.monotonic() - began_s):
        leader = until(leading, "no leader")
        epochs.add(epoch_now(place))
        for one in frozen:
            one.process.send_signal(signal.SIGCONT)
        frozen.clear()
        if chance.random() < 0.5:
            leader.process.kill()
            candidates.remove(leader)
            candidates.append(start(f"c{next(numbers)}", validity_s=validity_s, by_itself=True))
            everybody.append(candidates[-1])
            happened["killed"] += 1
        else:
            freeze(leader.process, f"{place[0]}/compactor.json")
            frozen.append(leader)
            happened["frozen"] += 1
    for one in everybody:
        one.close()
    led = [int(epoch) for one in everybody for epoch in one.words("leads")]
    assert len(led) == len({*led}), "an epoch was given twice"
    done = effects(place).read().value
    assert done["epochs"] == sorted({*done["epochs"]}), "a leader wrote after it was followed"
    assert {*done["epochs"]} <= {*led}
    told = sum(len(one.words("wrote")) for one in everybody)
    assert told <= done["writes"] <= told + len(everybody), "a write was lost, or done twice"
    refused = sum(len(one.words("refused")) for one in everybody)
    return {**happened, "terms": len(led), "writes": done["writes"], "refused": refused}
