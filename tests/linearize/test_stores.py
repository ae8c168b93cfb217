"""Histories of concurrent writers are linearizable on every store, behind a bad network too; on a broken one not."""

from __future__ import annotations

import json
import random
import subprocess
import sys
import threading
import uuid
from collections import Counter
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import fsspec
import pytest
from faults import actions as do
from faults.actions import Action, Ending
from faults.conftest import is_look, is_write

from fsspec_cas import Store
from fsspec_cas.answer import ConditionFailed, ObjectState
from fsspec_cas.backends.memory import MemoryBackend
from fsspec_cas.outcome import ABSENT
from fsspec_cas.testing import WRONG_ANSWERS, Gateway, Rule
from linearize.checker import check
from linearize.history import Kind, Op, Result
from linearize.recording import Call, Client, record, to_history

TESTS = Path(__file__).parents[1]


def is_linearizable(calls: list[Call]) -> bool:
    """Also that something happened: that some won, and some lost."""
    history = to_history(calls)
    violation = check(history)
    assert violation is None, violation
    results = Counter((op.result, op.kind) for op in history)
    assert results[Result.OK, Kind.MATCH] > 0
    assert sum(results[Result.LOST, kind] for kind in Kind) > 0
    return True


def at_the_end(store: Store, key: str) -> list[Call]:
    """One more read, when all is over."""
    last = Client(store, key, 0, 99, deletes=False)
    last._one(Kind.READ)
    return last.calls


def test_six_threads_on_memory(seed):
    store = Store.from_url(f"memory://{uuid.uuid4().hex}")
    calls = record([store] * 6, "key", 300, seed)
    assert is_linearizable(calls + at_the_end(store, "key"))


def test_six_threads_on_local_files(seed, tmp_path):
    store = Store.from_url(f"file://{tmp_path}")
    calls = record([store] * 6, "key", 60, seed)
    assert is_linearizable(calls + at_the_end(store, "key"))


def test_four_processes_on_local_files(tmp_path):
    """The monotonic clock is one for all processes of a machine."""
    with ExitStack() as cleanup:
        clients = [client_process(cleanup, f"file://{tmp_path}", seed, 80) for seed in range(4)]
        assert [client.stdout.readline() for client in clients] == ["ready\n"] * 4
        for client in clients:
            client.stdin.write("go\n")
            client.stdin.flush()
        told = [json.loads(client.communicate(timeout=60)[0]) for client in clients]
    calls = [Call(**call) for made in told for call in made]
    assert {call.client for call in calls} == {0, 1, 2, 3}
    assert is_linearizable(calls + at_the_end(Store.from_url(f"file://{tmp_path}"), "key"))


def client_process(cleanup: ExitStack, url: str, seed: int, calls: int) -> subprocess.Popen[str]:
    client = subprocess.Popen(
        [sys.executable, "-m", "linearize.recording", url, "key", str(seed), str(calls)],
        cwd=TESTS,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    cleanup.callback(client.kill)
    return client


# fake-gcs-server ignores the condition of a DELETE; contended writes on SeaweedFS move in steps of one second.
SERVERS = [("seaweedfs", 5, 6, True), ("fake_gcs", 6, 20, False), ("azurite", 6, 20, True)]


@pytest.mark.parametrize("case", SERVERS, ids=lambda case: case[0])
def test_threads_on_a_server(request, seed, case):
    name, clients, calls, deletes = case
    server = request.getfixturevalue(name)
    store = Store.from_url(server.new_prefix(), server.storage_options)
    made = record([store] * clients, "key", calls, seed, deletes=deletes)
    assert is_linearizable(made + at_the_end(store, "key"))


FAULTS: dict[str, Action] = {
    "after: dropped": do.lose_answer(),
    "after: reset": do.lose_answer(Ending.RESET),
    "after: 500": do.replace_answer(500),
    "before: reset": do.never_deliver(),
    "before: 503": do.slow_down(),
    "before: 429": do.too_many(),
    "late": do.deliver_late(),
}


class Dice:
    """A fault for every third write, drawn from a seed; `fell` counts which."""

    def __init__(self, seed: int) -> None:
        self.random, self.fell = random.Random(seed), Counter()

    def match(self, request) -> bool:
        return is_write(request) and self.random.random() < 0.35

    async def action(self, hop):
        name = self.random.choice(list(FAULTS))
        self.fell[name] += 1
        return await FAULTS[name](hop)


@pytest.mark.parametrize("round_", range(2))  # each has its own seed, from its name
@pytest.mark.parametrize("case", [("seaweedfs", 4, 6), ("fake_gcs", 6, 15), ("azurite", 6, 15)], ids=lambda c: c[0])
def test_threads_on_a_server_behind_a_faulty_network(request, seed, fault_proxy, case, round_):
    """No deletes: "nothing is there" is not unique, so a create whose answer was lost may be made twice."""
    name, clients, calls = case
    server = request.getfixturevalue(name)
    proxy, prefix, dice = fault_proxy(server), server.new_prefix(), Dice(seed)
    rule = proxy.rule(match=dice.match, action=dice.action, times=None, until=is_look)
    store = Store.from_url(prefix, server.options_for(proxy.endpoint))
    made = record([store] * clients, "key", calls, seed, deletes=False)
    rule.release()
    made += at_the_end(Store.from_url(prefix, server.storage_options), "key")
    assert rule.fired == dice.fell.total() > 3
    assert len(dice.fell) > 2
    assert is_linearizable(made)


# Broken stores.


class ChecksThenWrites(MemoryBackend):
    """Compares, waits until another has compared, then writes."""

    def __init__(self, fs) -> None:
        super().__init__(fs)
        self.gate = threading.Barrier(2)

    async def put(self, write, data, *, timeout_s):
        if await self._now(write.path) != write.condition:
            return ConditionFailed()
        try:
            self.gate.wait(0.2)
        except threading.BrokenBarrierError:
            self.gate.reset()
        answer = ConditionFailed()
        while isinstance(answer, ConditionFailed):
            answer = await super().put(replace(write, condition=await self._now(write.path)), data, timeout_s=timeout_s)
        return answer

    async def _now(self, path):
        seen = await self.head(path, timeout_s=1)
        return seen.version if isinstance(seen, ObjectState) else ABSENT


def test_a_memory_store_that_checks_and_then_writes_is_caught(seed):
    store = Store(ChecksThenWrites(fsspec.filesystem("memory")), f"/{uuid.uuid4().hex}")
    assert check(to_history(record([store] * 4, "key", 6, seed)))


def test_a_server_that_ignores_conditions_is_caught(negative_s3, seed):
    store = Store.from_url(negative_s3.new_prefix(), negative_s3.storage_options)
    made = record([store], "key", 6, seed, deletes=False) + record([store], "key", 6, seed + 1, deletes=False)
    violation = check(to_history(made))
    assert violation
    assert "overlap" in violation.why


@pytest.mark.parametrize("stripped", [False, True])
def test_t23_a_proxy_that_strips_conditions_is_caught(fake_gcs, fault_proxy, seed, stripped):
    proxy = fault_proxy(fake_gcs)
    if stripped:
        proxy.rule(match=is_write, action=do.strip_query("ifGenerationMatch"), times=None)
    store = Store.from_url(fake_gcs.new_prefix(), fake_gcs.options_for(proxy.endpoint))
    made = record([store], "key", 6, seed, deletes=False) + record([store], "key", 6, seed + 1, deletes=False)
    assert bool(check(to_history(made))) == stripped


def test_a_client_that_says_lost_to_its_own_write_is_caught(seed):
    """The bug that other clients have: a lost answer, a hidden retry, and the refusal of the retry reported."""
    store = Store.from_url(f"memory://{uuid.uuid4().hex}")
    calls = record([store], "key", 30, seed, deletes=False)
    liar = next(call for call in calls if call.kind == Kind.MATCH.value and call.result == "ok")
    history = to_history(calls + at_the_end(store, "key"))
    assert check(history) is None
    lied = [
        Op(op.kind, Result.LOST, op.called, op.returned, op.write, op.expected, op.write, op.client)
        if op.write == liar.write
        else op
        for op in history
    ]
    assert check(lied)


@pytest.mark.soak
@pytest.mark.parametrize("name", ["seaweedfs", "over_obstore", "azurite"])
def test_six_threads_behind_a_gateway_that_answers_one_in_fifty_itself(request, seed, name):
    """In the store's place, or after it: pages, empty bodies, redirects, other services' errors."""
    server = request.getfixturevalue(name)
    dice, answers = random.Random(seed), list(WRONG_ANSWERS.values())

    def choose(_method: str, _target: str) -> Rule | None:
        return Rule(dice.choice(answers), dice.choice(("instead", "after"))) if dice.random() < 0.02 else None

    url = server.new_prefix()
    with Gateway("127.0.0.1", server.port, choose) as gateway:
        stores = [Store.from_url(url, server.options_for(gateway.endpoint)) for _ in range(6)]
        calls = record(stores, "key", 60, seed)
    truth = Store.from_url(url, server.storage_options)
    assert is_linearizable(calls + at_the_end(truth, "key"))
