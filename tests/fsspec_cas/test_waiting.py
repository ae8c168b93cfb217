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


def test_worker_starts_when_it_is_due_and_an_earlier_one_before_it() -> None:
    order: list[str] = []
    over = Signal()
    Worker(lambda: (order.append("late"), over.set()), "late").start_later(0.2)
    Worker(lambda: order.append("early"), "early").start_later(0.01)
    assert over.wait(PATIENCE_S)
    assert order == ["early", "late"]


def test_cancelled_worker_starts_no_thread() -> None:
    over, cancelled = Signal(), Worker(lambda: None, "cancelled")
    cancelled.start_later(0.05)
    cancelled.start_never()
    Worker(over.set, "after it").start_later(0.1)
    assert over.wait(PATIENCE_S)
    assert cancelled.ident is None


def test_worker_starts_later_in_a_forked_child() -> None:
    parents = Worker(lambda: None, "of the parent")
    parents.start_later(0.01)
    child = os.fork()
    if child == 0:
        over = Signal()
        Worker(over.set, "of the child").start_later(0.02)
        os._exit(0 if over.wait(PATIENCE_S) and parents.ident is None else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_worker_starts_later_after_the_starting_thread_was_killed() -> None:
    starter, idents, over = _Starter(), [], Signal()
    starter.start(lambda: idents.append(threading.get_ident()), wait=True)
    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(idents[0]), ctypes.py_object(SystemExit))
    starter.start(lambda: None, wait=False)  # wakes the thread, which ends then
    until(lambda: idents[0] not in sys._current_frames())
    starter.start_later(over.set, time.monotonic() + 0.01)
    assert over.wait(PATIENCE_S)


class Dropped:
    """What is collected in a cycle, and then starts a worker later."""

    def __init__(self, starter: _Starter) -> None:
        self.cycle = self
        self.starter = starter

    def __del__(self) -> None:
        self.starter._due[lambda: None] = time.monotonic() + PATIENCE_S


def test_starting_thread_survives_finalizers_that_start_threads_later() -> None:
    starter = _Starter()
    for _ in range(2 * gc.get_threshold()[0]):
        starter._due[lambda: None] = time.monotonic() + PATIENCE_S
    gc.disable()
    try:
        Dropped(starter)
    finally:
        gc.enable()
    starter._start_due()  # looks at so many that garbage is collected meanwhile
    gc.collect()
    assert len(starter._due) == 2 * gc.get_threshold()[0] + 1
