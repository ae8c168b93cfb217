"""The bridge between a thread that waits and the loop: answers, errors, cancellations and Ctrl-C all come across."""

from __future__ import annotations

import asyncio
import gc
import signal
import threading
import weakref
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import fsspec.asyn
import pytest

from fsspec_cas.bridge import drive
from fsspec_cas.bridge.drive import OnLoop
from fsspec_cas.bridge.threads import ForTasks, awaited, iterated, run_here, threaded
from fsspec_cas.errors import CasError

LONG_S = 60.0


class Reason(Exception):
    """Why something ended."""


@contextmanager
def ctrl_c(when: threading.Event) -> Iterator[None]:
    """Sends this thread a SIGINT once `when` is set."""
    here = threading.get_ident()

    def send() -> None:
        assert when.wait(LONG_S)
        signal.pthread_kill(here, signal.SIGINT)

    sender = threading.Thread(target=send)
    sender.start()
    yield
    sender.join()


async def waits(begun: threading.Event, end: Exception | None = None) -> None:
    """Until it is cancelled."""
    begun.set()
    try:
        await asyncio.sleep(LONG_S)
    except asyncio.CancelledError as stop:
        raise stop from end


def test_each_of_many_threads_gets_its_own_answer():
    async def double(number: int) -> int:
        await asyncio.sleep(0)
        return 2 * number

    with ThreadPoolExecutor(16) as pool:
        answers = list(pool.map(lambda n: OnLoop().run(double(n)), range(400)))
    assert answers == [2 * n for n in range(400)]


def test_error_comes_across_with_its_cause():
    async def fails() -> None:
        raise Reason from KeyError("why")

    with pytest.raises(Reason) as caught:
        OnLoop().run(fails())
    assert isinstance(caught.value.__cause__, KeyError)


def test_cancelled_coroutine_never_looks_like_a_finished_one():
    async def ends_itself() -> None:
        task = asyncio.current_task()
        assert task is not None
        task.cancel()
        await waits(threading.Event(), Reason())

    with pytest.raises(asyncio.CancelledError) as caught:
        OnLoop().run(ends_itself())
    assert isinstance(caught.value.__cause__, Reason)


def test_ctrl_c_ends_the_coroutine_and_carries_its_outcome():
    begun = threading.Event()
    with ctrl_c(begun), pytest.raises(KeyboardInterrupt) as caught:
        OnLoop().run(waits(begun, Reason()))
    assert isinstance(caught.value.__cause__, Reason)


def test_ctrl_c_before_a_coroutine_begins_ends_it_at_its_first_await(monkeypatch):
    waiting, go_on, went_on = threading.Event(), threading.Event(), []
    wait = drive.Signal.wait

    def watched(over: drive.Signal, timeout: float | None = None) -> bool:
        (go_on if timeout == drive._CANCEL_S else waiting).set()
        return wait(over, timeout)

    async def two_steps() -> None:
        try:
            await asyncio.sleep(0)
            went_on.append("past the first suspension")
        except asyncio.CancelledError as stop:
            raise stop from Reason()

    monkeypatch.setattr(drive.Signal, "wait", watched)
    fsspec.asyn.get_loop().call_soon_threadsafe(go_on.wait, LONG_S)
    with ctrl_c(waiting), pytest.raises(KeyboardInterrupt) as caught:
        OnLoop().run(two_steps())
    assert isinstance(caught.value.__cause__, Reason)
    assert went_on == []


def test_exception_that_ends_a_coroutine_does_not_end_the_loop():
    async def leaves() -> None:
        raise SystemExit(3)

    async def one() -> int:
        return 1

    with pytest.raises(SystemExit):
        OnLoop().run(leaves())
    assert OnLoop().run(one()) == 1


def test_sync_call_on_the_loop_itself_is_refused():
    async def one() -> int:
        return 1

    async def calls() -> int:
        return OnLoop().run(one())

    with pytest.raises(CasError, match="AsyncStore"):
        OnLoop().run(calls())


def test_handled_error_keeps_no_objects_alive():
    class Large:
        pass

    held = []

    async def fails() -> None:
        large = Large()
        held.append(weakref.ref(large))
        raise Reason

    gc.disable()
    try:
        with pytest.raises(Reason) as caught:
            OnLoop().run(fails())
        del caught
        OnLoop().run(asyncio.sleep(0))  # the loop has let go of the task before
        assert held[0]() is None
    finally:
        gc.enable()


class Plain:
    def go(self, to: str) -> str:
        return to

    def walk(self, to: str) -> Iterator[str]:
        yield to


class AsyncPlain(ForTasks[Plain]):
    go = threaded(Plain.go)
    went = awaited(Plain.go, lambda plain, to: run_here(lambda: plain.go(to)))
    walk = iterated(Plain.walk)


async def test_refused_argument_is_reported_for_the_class_that_was_called() -> None:
    plain = AsyncPlain(Plain())
    with pytest.raises(TypeError, match=r"^AsyncPlain\.go\(\)"):
        await plain.go(attempts=0)
    with pytest.raises(TypeError, match=r"^AsyncPlain\.go\(\)"):
        await plain.went(attempts=0)
    with pytest.raises(TypeError, match=r"^AsyncPlain\.walk\(\)"):
        await anext(plain.walk(attempts=0))
