"""Real processes on real servers: what was acknowledged is there once, also of those that were killed."""

from __future__ import annotations

import itertools
import json
import random
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from lockprovider.state import State

TESTS = Path(__file__).resolve().parent.parent
STORES = ("local", "seaweedfs", "fake_gcs", "azurite")
Place = tuple[str, dict[str, Any]]


@pytest.fixture(params=STORES)
def place(request, tmp_path) -> Place:
    if request.param == "local":
        return f"file://{tmp_path}", {"auto_mkdir": True}
    server = request.getfixturevalue(request.param)
    return server.new_prefix(), server.storage_options


@pytest.fixture
def children() -> Iterator[ExitStack]:
    with ExitStack() as started:
        yield started


def start(children: ExitStack, module: str, *arguments: Any) -> subprocess.Popen[str]:
    child = subprocess.Popen(
        [sys.executable, "-m", module, json.dumps(arguments)], cwd=TESTS, stdout=subprocess.PIPE, text=True
    )
    children.callback(child.wait)
    children.callback(child.kill)
    return child


def lines(child: subprocess.Popen[str]) -> Iterator[str]:
    for line in child.stdout:
        yield line.strip()


def test_processes_that_are_killed_lose_and_double_no_update(place, children, seed) -> None:
    url, options = place
    chance = random.Random(seed)
    url = f"{url}/folder/orders.json"
    told: list[str] = []
    running = [start(children, "recipes.state_child", url, options, f"a{one}", 12) for one in range(3)]
    for child in running[:2]:
        words = lines(child)
        told += [next(words) for _ in range(chance.randrange(2, 6))]
        child.kill()
        told += words  # what it had said before
    for child in running[2:]:
        told += lines(child)
        assert child.wait() == 0
    told = [word for word in told if word != "ready"]
    state = State.open(url, storage_options=options, default=list)
    value = state.read().value
    assert {one: count for one, count in Counter(value).items() if count > 1} == {}
    assert set(told) <= set(value)
    assert [one for one in value if one.startswith("a2")] == [f"a2.{n}" for n in range(12)]
    revisions = state.history(1000)
    assert [one.serial for one in revisions] == [*range(state.read().serial, 0, -1)]
    assert all(newer.value[: len(older.value)] == older.value for newer, older in itertools.pairwise(revisions))
