"""The processes of the demonstration begin together, are followed to their end, and learn of a death."""

from __future__ import annotations

import os
import signal
from multiprocessing.connection import Connection
from pathlib import Path

import pytest

from lockprovider.demo.run import COMPACT, Death, Job, Processes, Step

pytestmark = pytest.mark.soak  # each process imports Spark, pandas and pyarrow


def play(role: str, job: Job, pipe: Connection) -> None:
    """In place of a pipeline: says what it hears. `ingest` is killed in the middle of its work, `protect` fails."""
    os.write(1, b"last words")
    pipe.send(Step(0, 0, "started"))
    pipe.send(Step(0, 0, pipe.recv()))
    if role == "ingest":
        os.kill(os.getpid(), signal.SIGKILL)
    while role == COMPACT:
        word = pipe.recv()
        pipe.send(Step(0, 0, word))
        if word == "alone":
            break
    if role == "protect":
        raise SystemExit(3)
    pipe.send(Step(0, 0, "done"))


def test_death_of_a_process_is_reported_to_all_others_and_the_service(tmp_path: Path) -> None:
    with Processes(Job("t", {}, (1,), is_merge_on_read=True), tmp_path, play) as processes:
        assert str(processes).startswith("ingest ")
        items = list(processes.messages())
    deaths = {role: (item.status, item.last_words) for role, item in items if isinstance(item, Death)}
    assert deaths == {"ingest": (-9, ("last words",)), "protect": (3, ("last words",))}
    said = [(role, item.doing) for role, item in items if isinstance(item, Step)]
    assert {word for _, word in said[:4]} == {"started"}, "no process begins before all have started"
    words = [word for role, word in said[4:] if role == COMPACT]
    assert (words[0], words[-1]) == ("go", "done")
    assert sorted(words[1:-1]) == ["alone", "ingest", "protect"]
    assert {role for role, word in said if word == "done"} == {"backfill", COMPACT}


def test_processes_that_still_run_are_ended_with_the_block(tmp_path: Path) -> None:
    with Processes(Job("t", {}, (1,)), tmp_path, play) as processes:
        pids = [process.pid for process, _ in processes.running.values()]
    assert None not in pids
    assert not any(Path(f"/proc/{pid}").exists() for pid in pids)
