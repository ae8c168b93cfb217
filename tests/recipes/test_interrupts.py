"""Each public call that waits, interrupted or cancelled at random moments; afterwards the same call is made again."""

from __future__ import annotations

import asyncio
import random
import subprocess
import sys
import uuid
from itertools import groupby
from pathlib import Path

import pytest
from patience import PATIENCE_S

from fsspec_cas import Store
from recipes.calls import ASYNC, CALLS, ELSEWHERE, SYNC, Made, finish_task, waiting_calls

TESTS = Path(__file__).resolve().parents[1]
TIMES = 15  # each: by Ctrl-C, by a signal handler that raises, by an exception that another thread sends
CROWD = 40  # more than asyncio's default executor has threads
CLASSES = {kind: [*names] for kind, names in groupby(CALLS, lambda name: name.partition(".")[0])}
FOR_TASKS = sorted(set(CALLS) & waiting_calls(ASYNC))


def test_every_public_call_that_waits_is_tried() -> None:
    known = {*CALLS, *ELSEWHERE}
    assert waiting_calls(SYNC) | waiting_calls(ASYNC) == known


@pytest.mark.parametrize("kind", CLASSES)
def test_interrupted_call_can_be_made_again_and_the_process_ends(kind, seed) -> None:
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-m", "recipes.interrupted_child", str(seed), str(TIMES), *CLASSES[kind]],
        cwd=TESTS,
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    told = dict(line.split() for line in done.stdout.splitlines())
    assert set(told) == set(CLASSES[kind])
    assert sum(map(int, told.values())) > 0


@pytest.mark.parametrize("name", FOR_TASKS)
def test_cancelled_call_ends_at_once_and_can_be_made_again(name, seed) -> None:
    chance = random.Random(seed)
    made_on = Store.from_url(f"memory://{uuid.uuid4().hex}")

    async def story() -> None:
        made = Made(made_on, for_tasks=True)
        crowd = [asyncio.ensure_future(finish_task(CALLS[name](made))) for _ in range(CROWD)]
        for one in crowd:
            for _ in range(chance.randrange(3)):
                await asyncio.sleep(0)
            one.cancel()
        ended = await asyncio.wait_for(asyncio.gather(*crowd, return_exceptions=True), PATIENCE_S)
        assert all(one is None or isinstance(one, asyncio.CancelledError) for one in ended), ended
        assert any(isinstance(one, asyncio.CancelledError) for one in ended)
        if name == "Queue.claim":
            await made.queue.put("for whoever claims")
        await asyncio.wait_for(finish_task(CALLS[name](made)), PATIENCE_S)
        assert asyncio.get_running_loop()._default_executor is None

    asyncio.run(story())
