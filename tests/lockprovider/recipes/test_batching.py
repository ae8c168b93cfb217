"""`Batcher`: who shares a write, who is told what, and what a cancellation, an exit and a fork do."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import uuid
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from patience import PATIENCE_S, until

import lockprovider
from fsspec_cas import Machine
from fsspec_cas.bridge.threads import Background, Later
from fsspec_cas.machine import Worker
from fsspec_cas.testing import ManualClock
from lockprovider.recipes import base
from lockprovider.recipes.base import Batcher
from lockprovider.recipes.errors import CoordinationError, Overloaded

TESTS = Path(__file__).resolve().parents[2]


class Held:
    """A write that waits until it is let go."""

    def __init__(self) -> None:
        self.batches: list[list[int]] = []
        self.reached = threading.Event()
        self.go = threading.Semaphore(0)

    def write(self, batch):
        self.batches.append(list(batch))
        self.reached.set()
        assert self.go.acquire(timeout=240)
        return [ValueError(f"bad {one}") if one < 0 else one * 10 for one in batch]


def test_operations_during_a_write_share_the_next_and_get_own_results() -> None:
    held = Held()
    batcher = Batcher(held.write, world=Machine())
    first = batcher.submit(1)
    until(held.reached.is_set)
    rest = [batcher.submit(n) for n in (2, -3, 4)]
    dropped = batcher.submit(5)
    assert dropped.cancel()
    assert not first.cancel()
    held.go.release(2)
    assert [first.result(), rest[0].result(), rest[2].result()] == [10, 20, 40]
    with pytest.raises(ValueError, match="bad -3"):
        rest[1].result()
    assert held.batches == [[1], [2, -3, 4]]


def test_close_during_thread_start_returns_once_all_is_written(monkeypatch) -> None:
    batcher = Batcher(lambda batch: batch, world=Machine())
    start, begun, closed = threading.Thread.start, threading.Event(), threading.Event()

    def close() -> None:
        begun.set()
        batcher.close()
        closed.set()

    closer = threading.Thread(target=close)

    def after_the_closer(thread: threading.Thread) -> None:
        if thread.name == "batcher":
            start(closer)
            begun.wait(PATIENCE_S)
            closer.join(0.2)  # one that does not wait for the start is over by then
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", after_the_closer)
    answer = batcher.submit(1)
    assert closed.wait(PATIENCE_S)
    assert answer.result(0) == 1


def test_error_of_a_write_goes_to_all_its_operations_and_to_no_later_ones() -> None:
    fails = [OSError("no store")]

    def write(batch):
        if fails:
            raise fails.pop()
        return batch

    batcher = Batcher(write, world=Machine())
    with pytest.raises(OSError, match="no store"):
        batcher.do(1)
    assert batcher.do(2) == 2


def test_write_with_too_few_answers_is_an_error_for_all() -> None:
    batcher = Batcher(lambda batch: batch[:-1], world=Machine())
    with pytest.raises(ValueError, match="zip"):
        batcher.do(1)


def test_batcher_is_bounded_and_close_flushes_and_refuses_more(monkeypatch) -> None:
    held = Held()
    monkeypatch.setattr(base, "_MOST_WAITING", 2)
    batcher = Batcher(held.write, world=Machine())
    batcher.submit(1)
    until(held.reached.is_set)
    waiting = [batcher.submit(n) for n in (2, 3)]
    with pytest.raises(Overloaded, match="2 operations are already waiting"):
        batcher.submit(4)
    held.go.release(2)
    batcher.close()
    assert [one.result() for one in waiting] == [20, 30]
    with pytest.raises(CoordinationError, match="closed"):
        batcher.submit(5)


def test_close_returns_within_its_timeout_when_the_last_write_hangs_on(monkeypatch) -> None:
    """It waited for the last answer, and then as long again for the thread."""
    held = Held()
    batcher = Batcher(held.write, world=Machine())
    answer = batcher.submit(1)
    until(held.reached.is_set)
    now_s = [100.0]

    def passes(_: object, timeout: float = 3.0) -> None:
        now_s[0] += timeout

    monkeypatch.setattr(base, "_CLOCK", SimpleNamespace(monotonic_s=lambda: now_s[0]), raising=False)
    monkeypatch.setattr("lockprovider.recipes.base.Later.exception", lambda self, _=None: passes(self))
    monkeypatch.setattr(threading.Thread, "join", passes)
    batcher.close(5.0)
    monkeypatch.undo()
    assert now_s == [105.0]
    held.go.release()
    assert answer.result() == 10


def test_all_batchers_share_one_timeout_at_interpreter_exit(monkeypatch) -> None:
    batchers, limits, now_s = [Batcher(list, world=Machine()) for _ in range(3)], [], [100.0]

    def close(_: object, timeout_s: float | None = None) -> None:
        limits.append(timeout_s)
        now_s[0] += 2.0

    monkeypatch.setattr(base, "_BATCHERS", batchers)
    monkeypatch.setattr(Batcher, "close", close)
    monkeypatch.setattr(base, "_CLOCK", SimpleNamespace(monotonic_s=lambda: now_s[0]), raising=False)
    base._at_exit()
    assert limits == [5.0, 3.0, 1.0]


def test_pace_is_counted_from_the_answer() -> None:
    clock = ManualClock()

    def write(batch):
        clock.advance(5)
        return batch

    batcher = Batcher(write, world=clock, pace_s=1.0)
    for n in range(3):
        assert batcher.do(n) == n
        until(lambda: batcher._writer is None)
    assert clock.sleeps == [1.0, 1.0]
    batcher = Batcher(write, world=clock)
    assert batcher.do(1) == 1
    batcher.throttled()
    assert batcher.do(2) == 2
    assert clock.sleeps == [1.0, 1.0, 1.0]


def test_concurrent_operations_share_one_write() -> None:
    """What arrives while a write is under way goes with the next, all of it."""
    batches: list[int] = []
    begun, gate = threading.Event(), threading.Event()

    def write(batch):
        batches.append(len(batch))
        begun.set()
        assert gate.wait(PATIENCE_S)
        return batch

    batcher = Batcher(write, world=Machine())
    answers = [batcher.submit(0)]
    assert begun.wait(PATIENCE_S)
    answers += [batcher.submit(n) for n in range(1, 64)]
    gate.set()
    assert [answer.result() for answer in answers] == [*range(64)]
    assert batches == [1, 63]


def test_operations_waiting_at_interpreter_exit_are_written() -> None:
    code = """
import sys, threading
from fsspec_cas import Machine
from lockprovider.recipes.base import Batcher
def write(batch):
    threading.Event().wait(0.2)
    print(*batch, flush=True)
    return batch
batcher = Batcher(write, world=Machine())
for n in range(3):
    batcher.submit(n)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert sorted(done.stdout.split()) == ["0", "1", "2"]
    assert done.stderr == ""


def test_ctrl_c_cancels_its_own_operation_and_no_other() -> None:
    code = """
import sys, threading
from patience import until
from fsspec_cas import Machine
from lockprovider.recipes.base import Batcher
go = threading.Event()
def tell():
    until(lambda: batcher.waiting)
    print("mine waits", flush=True)
def write(batch):
    print("writing", *batch, flush=True)
    go.wait(240)
    return batch
batcher = Batcher(write, world=Machine())
other = batcher.submit("other")
until(lambda: not batcher.waiting)
threading.Thread(target=tell).start()
try:
    batcher.do("mine")
except KeyboardInterrupt:
    print("left", flush=True)
go.set()
print(other.result(), batcher.do("last"), flush=True)
"""
    child = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, cwd=TESTS)
    assert [child.stdout.readline() for _ in range(2)] == ["writing other\n", "mine waits\n"]
    child.send_signal(signal.SIGINT)
    rest, _ = child.communicate(timeout=240)
    assert "mine" not in rest
    assert rest.splitlines()[-1] == "other last"


def test_forked_child_starts_without_waiting_operations() -> None:
    held = Held()
    batcher = Batcher(held.write, world=Machine())
    batcher.submit(1)
    until(held.reached.is_set)
    batcher.submit(2)
    if (child := os.fork()) == 0:
        batcher._write = lambda batch: [one + 1 for one in batch]
        os._exit(0 if (batcher.waiting, batcher.do(41)) == (0, 42) else 1)
    assert os.waitpid(child, 0)[1] == 0
    held.go.release(2)
    batcher.close()
    assert held.batches == [[1], [2]]


def puts(url: str) -> Callable[[int], Callable[[], Any]]:
    queue = lockprovider.queue.create(url)
    return lambda seq: lambda: queue.put(seq, producer="p", seq=seq)


def appends(url: str) -> Callable[[int], Callable[[], Any]]:
    out = lockprovider.wal.create(url).appender("p")
    return lambda seq: lambda: out.append(b"%d" % seq, seq=seq)


@pytest.fixture(params=[puts, appends])
def write(request) -> Callable[[int], Callable[[], Any]]:
    return request.param(f"memory://{uuid.uuid4().hex}/a")


def test_repeat_of_a_number_is_recognized_before_callbacks_of_its_write(write, monkeypatch) -> None:
    monkeypatch.setattr(Later, "_call_back", lambda _: None)
    assert [write(seq)().again for seq in (1, 2, 1)] == [False, False, True]


def test_write_on_its_callers_thread_ends_an_earlier_one_of_its_producer(write, monkeypatch) -> None:
    """A thread that was started may run late, and no other can start."""
    start, begun = Worker.start, threading.Event()

    def scarce(worker: Worker, **options: bool) -> None:
        if worker.name != "batcher":
            start(worker, **options)
        elif begun.is_set():
            raise RuntimeError("can't start new thread")
        else:
            begun.set()

    monkeypatch.setattr(Worker, "start", scarce)
    threads = Background()
    first = threads.begin(write(1))
    until(begun.is_set)
    second = threads.begin(write(2))
    assert not any(answer.result(PATIENCE_S).again for answer in (first, second))
