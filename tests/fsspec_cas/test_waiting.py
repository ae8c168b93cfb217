"""Threads of the library, and the threads that start them."""

from __future__ import annotations

import ctypes
import gc
import os
import sys
import threading
import time
import weakref

import pytest
from patience import PATIENCE_S, until

from fsspec_cas.machine import SLICE_S, Signal, Worker, _Starter

SENT = 200


class Sent(Exception):
    """What another thread sends."""


def test_exception_sent_to_a_thread_that_starts_threads_reaches_it() -> None:
    """CPython gives it to the thread that was just created, which then never runs; `Thread.start` hung for ever."""
    begun, caught = ([Signal() for _ in range(SENT)] for _ in range(2))

    def start_threads() -> None:
        Worker(lambda: None, "first").start()
        for ready, one in zip(begun, caught, strict=True):
            try:
                ready.set()  # from here on it is caught
                while True:
                    ended = Signal()
                    Worker(ended.set, "another").start()
                    ended.wait()
            except Sent:
                one.set()

    starting = threading.Thread(target=start_threads, daemon=True)
    starting.start()
    for ready, one in zip(begun, caught, strict=True):
        assert ready.wait(PATIENCE_S)
        ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(starting.ident or 0), ctypes.py_object(Sent))
        assert one.wait(PATIENCE_S)


def test_worker_that_cannot_start_raises_in_the_calling_thread(monkeypatch) -> None:
    def refuse(_: object) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    with pytest.raises(RuntimeError, match="can't start new thread"):
        Worker(lambda: None, "never").start()
    monkeypatch.undo()
    over = Signal()
    Worker(over.set, "next").start()
    assert over.wait(PATIENCE_S)


@pytest.mark.parametrize("wait", [True, False])
def test_worker_started_by_garbage_collection_on_starting_thread_starts(monkeypatch, wait) -> None:
    over, real = Signal(), threading.Thread.start

    class Dropped:
        pass

    def collect_first(thread: threading.Thread) -> None:
        monkeypatch.undo()
        dropped = Dropped()
        weakref.finalize(dropped, lambda: Worker(over.set, "of a finalizer").start(wait=wait))
        del dropped
        gc.collect()
        real(thread)

    monkeypatch.setattr(threading.Thread, "start", collect_first)
    Worker(lambda: None, "collects").start()
    assert over.wait(PATIENCE_S)


@pytest.mark.parametrize("wait", [True, False])
def test_worker_started_by_garbage_collection_on_unbegun_thread_starts(monkeypatch, wait) -> None:
    """The starting thread waits for the new one, and the finalizer on the new one for the starting thread."""
    over, real = Signal(), threading.Thread._bootstrap_inner

    def collect_first(thread: threading.Thread) -> None:
        monkeypatch.undo()
        Worker(over.set, "of a finalizer").start(wait=wait)
        real(thread)

    monkeypatch.setattr(threading.Thread, "_bootstrap_inner", collect_first)
    Worker(lambda: None, "collects").start()
    assert over.wait(PATIENCE_S)


@pytest.mark.parametrize("wait", [True, False])
def test_worker_starts_after_the_starting_thread_was_killed(wait) -> None:
    starter, idents = _Starter(), []
    starter.start(lambda: idents.append(threading.get_ident()), wait=True)
    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(idents[0]), ctypes.py_object(SystemExit))
    starter.start(lambda: None, wait=False)  # wakes the thread, which ends then
    until(lambda: idents[0] not in sys._current_frames())
    over, began_s = Signal(), time.monotonic()
    starter.start(over.set, wait=wait)
    assert over.wait(PATIENCE_S)
    assert time.monotonic() - began_s < SLICE_S  # not by the helper of a thread that hangs


def test_worker_starts_in_a_forked_child() -> None:
    Worker(lambda: None, "of the parent").start()
    child = os.fork()
    if child == 0:
        over = Signal()
        Worker(over.set, "of the child").start()
        os._exit(0 if over.wait(PATIENCE_S) else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
