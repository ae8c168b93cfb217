"""Calls in the background: each begins at once, few threads are started for many, and none is left."""

from __future__ import annotations

import os
import threading
import time
from concurrent.futures import as_completed, wait

import pytest
from patience import until

from fsspec_cas.bridge.threads import Background, Later
from fsspec_cas.machine import Worker

LONG_S = 60.0


def test_call_never_waits_for_other_running_calls() -> None:
    background, all_there = Background(), threading.Barrier(40)
    for _ in range(2):
        calls = [background.begin(lambda: all_there.wait(LONG_S)) for _ in range(40)]
        assert sorted(call.result() for call in calls) == [*range(40)]


def test_call_may_wait_for_a_call_that_it_starts() -> None:
    background = Background()

    def nested(depth: int) -> int:
        return depth if depth == 20 else background.begin(lambda: nested(depth + 1)).result(LONG_S)

    assert background.begin(lambda: nested(0)).result(LONG_S) == 20


def test_consecutive_calls_share_a_few_threads() -> None:
    background = Background()
    used = set()
    for _ in range(50):
        used.add(background.begin(threading.get_ident).result(LONG_S))
        until(lambda: background._waiting)
    assert len(used) <= 4


def test_exception_of_a_call_is_its_answer_and_the_next_call_begins() -> None:
    background = Background()
    for _ in range(20):
        with pytest.raises(ZeroDivisionError):
            background.begin(lambda: 1 // 0).result(LONG_S)
    assert background.begin(lambda: 1).result(LONG_S) == 1


@pytest.mark.parametrize("threads", ["start", "do not start"])
@pytest.mark.parametrize(
    "function", [lambda calls: wait(calls).done, lambda calls: {*as_completed(calls)}], ids=["wait", "as_completed"]
)
def test_functions_of_concurrent_futures_wait_for_a_call(monkeypatch, function, threads) -> None:
    def full(*_: object, **__: object) -> None:
        raise RuntimeError("can't start new thread")

    call, done = Later(), Background().begin(lambda: function([call]))
    until(lambda: call._waiters)
    if threads == "do not start":
        monkeypatch.setattr(Worker, "start", full)
    call.set_result(1)
    assert done.result(LONG_S) == {call}


def test_exit_waits_once_for_all_calls() -> None:
    background, over = Background(), threading.Event()
    calls = [background.begin(lambda: over.wait(LONG_S)) for _ in range(20)]
    began_s = time.monotonic()
    background.wait(0.2)
    waited_s = time.monotonic() - began_s
    over.set()
    assert [call.result(LONG_S) for call in calls] == [True] * 20
    assert 0.2 <= waited_s < 2


def test_threads_end_when_no_call_comes() -> None:
    thread = Background().begin(threading.current_thread).result(LONG_S)
    thread.join(LONG_S)
    assert not thread.is_alive()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
def test_forked_child_begins_calls_on_threads_of_its_own() -> None:
    from fsspec_cas.bridge.threads import BACKGROUND

    BACKGROUND.begin(threading.get_ident).result(LONG_S)
    child = os.fork()
    if child == 0:
        try:
            os._exit(0 if BACKGROUND.begin(lambda: 1).result(LONG_S) == 1 else 1)
        finally:
            os._exit(2)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
