"""Real processes on real servers: what was acknowledged is there once, also of those that were killed."""

from __future__ import annotations

import itertools
import json
import random
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from patience import until
from servers.stores import STORES

from lockprovider.queue import Queue
from lockprovider.state import UNCHANGED, State

TESTS = Path(__file__).resolve().parent.parent
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


def kill_after(child: subprocess.Popen[str], count: int, over: Callable[[], bool]) -> None:
    """Kill it when it has said so many lines, or when there is nothing left to say: another may have been faster."""
    words: list[str] = []
    reading = threading.Thread(target=lambda: words.extend(lines(child)), daemon=True)
    reading.start()
    until(lambda: len(words) >= count or over())
    child.kill()
    child.wait()
    reading.join()


def test_killed_processes_lose_and_double_no_update(place, children, seed) -> None:
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


def test_killed_producers_and_workers_lose_and_double_no_message(place, children, seed) -> None:
    """Producers begin again under their name; what killed workers had claimed is delivered again."""
    url, options = place
    chance = random.Random(seed)
    url = f"{url}/folder/backfill.json"
    queue = Queue.create(url, storage_options=options, pace_s=0.0, visible_s=2.0, max_attempts=1000)
    producers = [start(children, "recipes.queue_child", url, options, "put", f"p{one}", 40) for one in range(2)]
    for child in producers:
        words = lines(child)
        for _ in range(chance.randrange(1, 4)):
            next(words)
        child.kill()
        child.wait()
    for child in [start(children, "recipes.queue_child", url, options, "put", f"p{one}", 40) for one in range(2)]:
        assert [*lines(child)][-1] == "40"
    for child in [start(children, "recipes.queue_child", url, options, "work", "endless", 0) for _ in range(2)]:
        kill_after(child, chance.randrange(1, 4), lambda: empty(queue))
    queue.work(lambda job: note(url, options, job.id), threads=2, until_empty=True)
    until(lambda: queue.work(lambda job: note(url, options, job.id), until_empty=True).acked == 0 and empty(queue))
    assert queue.stat().put == 80
    assert sorted(state_of(url, options).read().value) == sorted(f"{queue._writer.id}-{n}" for n in range(1, 81))


def state_of(url: str, options: dict[str, Any]) -> State[list[str]]:
    return State.open(f"{url}.effects", storage_options=options, default=list, pace_s=0.0, keep=1000)


def note(url: str, options: dict[str, Any], job: str) -> None:
    state_of(url, options).update(lambda done: UNCHANGED if job in done else [*done, job])


def empty(queue: Queue) -> bool:
    stat = queue.stat()
    return stat.ready == stat.claimed == stat.dead == 0
