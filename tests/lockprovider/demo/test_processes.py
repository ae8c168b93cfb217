"""The processes of the demonstration begin together, are followed to their end, and learn of a death."""

from __future__ import annotations

import os
import signal
from multiprocessing.connection import Connection
from pathlib import Path

import pytest

from lockprovider.demo.pipelines import COMPACT, Job, Message
from lockprovider.demo.run import Death, Processes

pytestmark = pytest.mark.soak  # each process imports Spark, pandas and pyarrow


def play(role: str, job: Job, pipe: Connection, log: str) -> None:
    """In place of a pipeline: says what it hears. `ingest` is killed in the middle of its work, `protect` fails."""
    os.setsid()
    Path(log).write_text("last words")
    pipe.send(Message("started", role, 0))
    pipe.send(Message("heard", role, 0, detail={"word": pipe.recv()}))
    if role == "ingest":
        os.kill(os.getpid(), signal.SIGKILL)
    while role == COMPACT:
        word = pipe.recv()
        pipe.send(Message("heard", role, 0, detail={"word": word}))
        if word == "alone":
            break
    if role == "protect":
        raise SystemExit(3)
    pipe.send(Message("finished", role, 0))


def test_a_death_is_told_to_all_others_and_the_service_learns_that_it_is_alone(tmp_path: Path) -> None:
    with Processes(Job("t", {}, (1,), is_merge_on_read=True), tmp_path, play) as processes:
        assert str(processes).startswith("ingest ")
        items = list(processes.messages())
    deaths = {item.role: (item.status, item.last_words) for item in items if isinstance(item, Death)}
    assert deaths == {"ingest": (-9, ("last words",)), "protect": (3, ("last words",))}
    messages = [item for item in items if isinstance(item, Message)]
    started = [number for number, one in enumerate(messages) if one.kind == "started"]
    heard = [number for number, one in enumerate(messages) if one.kind == "heard"]
    assert (len(started), started[-1] < heard[0]) == (4, True), "no process begins before all have started"
    words = [one.detail["word"] for one in messages if (one.kind, one.role) == ("heard", COMPACT)]
    assert words[0] == "go"
    assert sorted(words[1:]) == ["alone", "ingest", "protect"]
    assert {one.role for one in messages if one.kind == "finished"} == {"backfill", COMPACT}


def test_processes_that_still_run_are_ended_with_the_block(tmp_path: Path) -> None:
    with Processes(Job("t", {}, (1,)), tmp_path, play) as processes:
        pids = [process.pid for process, _ in processes._running.values()]
    assert None not in pids
    assert not any(Path(f"/proc/{pid}").exists() for pid in pids)
