"""`Cached` and `AsyncCached` on memory, whose answers can be held back until the test has seen who waits for them."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import threading
from collections import deque
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import fsspec
import pytest
from fsspec.asyn import get_loop
from patience import soon, until

from fsspec_cas import (
    AsyncCached,
    AsyncStore,
    Cached,
    CasError,
    Content,
    InvalidInput,
    Lost,
    NotBytes,
    Store,
    StoreError,
    Unavailable,
    Won,
)
from fsspec_cas.answer import Missing, Unchanged
from fsspec_cas.backends.local import LocalBackend
from fsspec_cas.backends.memory import MemoryBackend
from fsspec_cas.testing import Faulty, LoseAnswer, LoseRequest, ManualClock

TESTS = Path(__file__).resolve().parents[1]
CALLERS = 8


class Gate:
    """Holds the answer to one read, and then gives it, or raises this instead."""

    def __init__(self, error: BaseException | None = None) -> None:
        self.reached = threading.Event()
        self.error = error
        self._open = threading.Event()
        self._open_for_tasks = asyncio.Event()

    def open(self) -> None:
        self._open.set()
        self._open_for_tasks.set()

    async def hold(self, *, blocking: bool) -> None:
        self.reached.set()
        if blocking:
            assert self._open.wait(240)
        else:
            await self._open_for_tasks.wait()
        if self.error is not None:
            raise self.error


class Gated(MemoryBackend):
    """Notes what each read moved: a body, "unchanged" or "missing"; and holds answers that were read already."""

    def __init__(self, *, blocking: bool = True, conditional: bool = True) -> None:
        super().__init__(fsspec.filesystem("memory"))
        self.blocking = blocking
        self.conditional = conditional
        self.reads: list[bytes | str] = []
        self._gates: deque[Gate] = deque()

    def gate(self, error: BaseException | None = None) -> Gate:
        """For the next read that has none."""
        self._gates.append(Gate(error))
        return self._gates[-1]

    async def get(self, path: str, unless: Any, *, timeout_s: float) -> Any:
        answer = await super().get(path, unless if self.conditional else None, timeout_s=timeout_s)
        kinds = {Unchanged: "unchanged", Missing: "missing"}
        self.reads.append(kinds.get(type(answer)) or answer.data)
        if self._gates:
            await self._gates.popleft().hold(blocking=self.blocking)
        return answer


@pytest.fixture
def root() -> str:
    return f"/{os.urandom(6).hex()}"


@pytest.fixture
def backend() -> Gated:
    return Gated()


@pytest.fixture
def store(backend: Gated, root: str) -> Store:
    return Store(backend, root)


@pytest.fixture
def cached(store: Store) -> Cached:
    return Cached(store, "flags")


def written(store: Store, data: bytes) -> Content:
    """As another program writes it."""
    outcome = store.put_if_absent("flags", data)
    if isinstance(outcome, Lost):
        outcome = store.put_if_match("flags", data, store.head("flags").version)
    return Content(data, outcome.unwrap())


def waiting(cached: Cached | AsyncCached) -> int:
    """How many callers have no answer yet, the one that asks among them."""
    return cached._state.waiting


class Callers:
    """Threads that call `get`: one whose request is under way, and then many."""

    def __init__(self, cached: Cached) -> None:
        self.cached = cached
        self._pool = ThreadPoolExecutor(2 * CALLERS)

    def __enter__(self) -> Callers:
        return self

    def __exit__(self, *_: object) -> None:
        self._pool.shutdown()

    def call(self, many: int = 1) -> list[Future[Content | None]]:
        before = waiting(self.cached)
        futures = [self._pool.submit(self.cached.get) for _ in range(many)]
        until(lambda: waiting(self.cached) == before + many)
        return futures

    def first(self, gate: Gate) -> Future[Content | None]:
        future = self.call()[0]
        assert gate.reached.wait(240)
        return future


def test_cached_reads_a_body_only_when_it_has_changed(cached: Cached, store: Store, backend: Gated) -> None:
    assert cached.get() is None
    assert cached.get() is None
    one = written(store, b"1")
    assert [cached.get(), cached.get()] == [one, one]
    two = written(store, b"2")
    assert [cached.get(), cached.get()] == [two, two]
    store.delete("flags")
    assert [cached.get(), cached.get()] == [None, None]
    assert backend.reads == ["missing", "missing", b"1", "unchanged", b"2", "unchanged", "missing", "missing"]


def test_caller_during_a_request_shares_the_next_request(cached: Cached, store: Store, backend: Gated) -> None:
    old, gate = written(store, b"old"), backend.gate()
    with Callers(cached) as callers:
        early = callers.first(gate)
        new = written(store, b"new")
        late = callers.call(CALLERS)
        gate.open()
        assert early.result() == old
        assert [one.result() for one in late] == [new] * CALLERS
    assert backend.reads == [b"old", b"new"]
    assert (cached._state.waiting, cached._state.last_result) == (0, None)


def test_error_goes_to_all_callers_of_the_request_without_stale_bytes(
    cached: Cached, store: Store, backend: Gated
) -> None:
    old = written(store, b"old")
    assert cached.get() == old
    first, second = backend.gate(), backend.gate(Unavailable("down"))
    second.open()
    with Callers(cached) as callers:
        early = callers.first(first)
        late = callers.call(CALLERS)
        first.open()
        assert early.result() == old
        assert {str(one.exception()) for one in late} == {"down"}
    assert backend.reads == [b"old", "unchanged", "unchanged"]
    assert (cached._state.waiting, cached._state.failed) == (0, None)
    assert cached.get() == old


def test_interrupted_caller_interrupts_no_other_caller(cached: Cached, store: Store, backend: Gated) -> None:
    old, gate = written(store, b"old"), backend.gate(KeyboardInterrupt())
    with Callers(cached) as callers:
        early = callers.first(gate)
        late = callers.call(CALLERS)
        gate.open()
        assert isinstance(early.exception(), KeyboardInterrupt)
        assert [one.result() for one in late] == [old] * CALLERS
    assert backend.reads == [b"old", b"old"]


def test_no_thread_reads_bytes_overwritten_before_its_call(cached: Cached, store: Store, backend: Gated) -> None:
    written(store, b"0")
    newest = 0

    def write() -> None:
        nonlocal newest
        for number in range(1, 101):
            if number % 2:
                written(store, b"%d" % number)
            else:
                cached.update(lambda _, data=b"%d" % number: data)
            newest = number

    def read(max_age_s: float) -> None:
        while (before := newest) < 100:
            oldest = before - before % 2 if max_age_s else before  # odd ones are written past it
            content = cached.get(max_age_s=max_age_s)
            assert content is not None
            assert int(content.data) >= oldest

    with ThreadPoolExecutor(CALLERS + 1) as pool:
        running = [pool.submit(read, max_age_s) for max_age_s in (0, 0, 0, 0, 0, 1e9, 1e9)]
        pool.submit(write).result()
        for one in running:
            one.result()


def test_ctrl_c_ends_the_wait_for_the_request_of_another_thread(cached: Cached, store: Store, backend: Gated) -> None:
    old, gate = written(store, b"old"), backend.gate()

    def stop() -> None:
        until(lambda: waiting(cached) == 2)
        signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)

    with Callers(cached) as callers, ThreadPoolExecutor(1) as other:
        early = callers.first(gate)
        stopping = other.submit(stop)
        with pytest.raises(KeyboardInterrupt):
            cached.get()
        stopping.result()
        assert waiting(cached) == 1
        gate.open()
        assert early.result() == old
    assert (backend.reads, waiting(cached)) == ([b"old"], 0)


def test_bytes_written_through_cached_are_not_read_back(cached: Cached, backend: Gated) -> None:
    one = cached.put_if_absent(b"1").unwrap()
    assert cached.get() == Content(b"1", one)
    changing = bytearray(b"2")
    two = cached.put_if_match(changing, one).unwrap()
    changing[:] = b"x"
    assert cached.get() == Content(b"2", two)
    assert isinstance(cached.put_if_match(b"lost", str(one)), Lost)
    assert cached.get() == Content(b"2", two)
    three = cached.update(lambda old: bytearray((old or b"") + b"3"))
    assert backend.reads.pop() == b"2"  # the update's own
    assert cached.get() == Content(b"23", three)
    assert isinstance(cached.delete_if_match(three), Won)
    assert cached.get() is None
    assert backend.reads == ["unchanged"] * 4 + ["missing"]


def test_read_overtaken_by_a_write_does_not_undo_it(cached: Cached, store: Store, backend: Gated) -> None:
    old, gate = written(store, b"old"), backend.gate()
    with Callers(cached) as callers:
        early = callers.first(gate)
        new = Content(b"new", cached.put_if_match(b"new", old.version).unwrap())
        gate.open()
        assert early.result() == old
    assert cached.get(max_age_s=1e9) == new
    assert backend.reads == [b"old", "unchanged"]


def test_max_age_saves_the_request_and_never_goes_back_in_time(backend: Gated, store: Store) -> None:
    clock = ManualClock()
    cached = Cached(store, "flags", world=clock)
    assert cached.get(max_age_s=10) is None
    one = written(store, b"1")
    clock.advance(9)
    assert cached.get(max_age_s=10) is None
    clock.advance(1)
    assert cached.get(max_age_s=10) == one
    two = written(store, b"2")
    assert cached.get() == two  # asked for in full: from now on nobody is given less
    assert cached.get(max_age_s=10) == two
    three = Content(b"3", cached.put_if_match(b"3", two.version).unwrap())
    assert cached.get(max_age_s=10) == three
    four = written(store, b"4")
    assert isinstance(cached.put_if_match(b"lost", three.version), Lost)
    assert cached.get(max_age_s=10) == four
    assert backend.reads == ["missing", b"1", b"2", b"4"]


def test_write_of_unknown_outcome_ends_the_age_of_cached_bytes(root: str) -> None:
    backend = Faulty(Gated(), {"put": [LoseAnswer()], "head": [LoseRequest()] * 99})
    cached = Cached(Store(backend, root, world=backend._world), "flags", timeout=5)
    assert cached.get() is None
    outcome = cached.put_if_absent(b"1")
    assert not isinstance(outcome, (Won, Lost))
    content = cached.get(max_age_s=1e9)
    assert content is not None
    assert content.data == b"1"
    assert backend.fired[0] == ("put", LoseAnswer())


def test_store_that_ignores_read_conditions_costs_only_bodies(root: str) -> None:
    backend = Gated(conditional=False)
    store = Store(backend, root)
    cached, one = Cached(store, "flags"), written(store, b"1")
    assert [cached.get(), cached.get()] == [one, one]
    assert backend.reads == [b"1", b"1"]


def test_invalid_arguments_of_cached_are_refused_before_any_request(
    cached: Cached, store: Store, backend: Gated
) -> None:
    with pytest.raises(InvalidInput, match="must be a Store"):
        Cached(AsyncStore(backend), "flags")  # type: ignore[arg-type]
    with pytest.raises(InvalidInput, match="must be an AsyncStore"):
        AsyncCached(store, "flags")  # type: ignore[arg-type]
    with pytest.raises(InvalidInput, match="has a step '..'"):
        Cached(store, "../flags")
    with pytest.raises(InvalidInput, match="timeout=-1"):
        Cached(store, "flags", timeout=-1)
    with pytest.raises(InvalidInput, match="max_age_s='5'"):
        cached.get(max_age_s="5")  # type: ignore[arg-type]
    with pytest.raises(NotBytes):
        cached.put_if_absent("text")  # type: ignore[arg-type]
    with pytest.raises(InvalidInput, match="fn=5"):
        cached.update(5)  # type: ignore[arg-type]
    assert backend.reads == []
    assert store.read_or_none("flags") is None
    with pytest.raises(NotBytes):
        cached.update(lambda _: 5)  # type: ignore[arg-type, return-value]
    assert cached.get() is None


def test_call_on_the_fsspec_loop_is_refused_and_does_not_deadlock(tmp_path: object) -> None:
    backend = LocalBackend()
    backend.blocking = False  # as one behind a network is driven
    cached = Cached(Store(backend, str(tmp_path)), "flags")

    async def call() -> None:
        cached.get()

    with pytest.raises(CasError, match="event loop"):
        asyncio.run_coroutine_threadsafe(call(), get_loop()).result()
    assert cached.get() is None


FORKED = """
import os, signal, sys
sys.path[:0] = [".", "fsspec_cas"]
from test_cached import Callers, Gated, written
from fsspec_cas import Cached, Store

backend = Gated()
store = Store(backend, "/forked")
cached, old, gate = Cached(store, "flags"), written(store, b"old"), backend.gate()
with Callers(cached) as callers:
    early = callers.first(gate)
    with cached._guard:
        child = os.fork()
        if child == 0:
            signal.alarm(200)  # waits for ever, if it is wrong
            same = cached.get() == old and cached.get() == old and backend.reads == [b"old", b"old", "unchanged"]
            os._exit(0 if same else 1)
    gate.open()
    assert early.result() == old
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
def test_forked_child_waits_for_no_request_or_lock_of_its_parent() -> None:
    done = subprocess.run(
        [sys.executable, "-c", FORKED], cwd=TESTS, capture_output=True, text=True, timeout=240, check=False
    )
    assert done.returncode == 0, done.stderr


# -- tasks -------------------------------------------------------------------------------------------------------------


class Tasks:
    """The same store twice: read by tasks, and written by another program."""

    def __init__(self, root: str) -> None:
        self.backend = Gated(blocking=False)
        self.other = Store(Gated(), root)
        self.cached = AsyncCached(AsyncStore(self.backend, root), "flags")

    async def call(self, many: int = 1) -> list[asyncio.Task[Content | None]]:
        before = waiting(self.cached)
        tasks = [asyncio.create_task(self.cached.get()) for _ in range(many)]
        await soon(lambda: waiting(self.cached) == before + many)
        return tasks

    async def first(self, gate: Gate) -> asyncio.Task[Content | None]:
        task = (await self.call())[0]
        await soon(gate.reached.is_set)
        return task


def test_tasks_during_a_request_share_the_next_request(root: str) -> None:
    async def run() -> None:
        tasks = Tasks(root)
        old, gate = written(tasks.other, b"old"), tasks.backend.gate()
        early = await tasks.first(gate)
        new = written(tasks.other, b"new")
        late = await tasks.call(CALLERS)
        gate.open()
        assert await early == old
        assert await asyncio.gather(*late) == [new] * CALLERS
        assert tasks.backend.reads == [b"old", b"new"]
        assert (waiting(tasks.cached), tasks.cached._state.last_result) == (0, None)

    asyncio.run(run())


def test_error_goes_to_all_tasks_that_share_the_request(root: str) -> None:
    async def run() -> None:
        tasks = Tasks(root)
        first, second = tasks.backend.gate(), tasks.backend.gate(Unavailable("down"))
        second.open()
        early = await tasks.first(first)
        late = await tasks.call(CALLERS)
        first.open()
        assert await early is None
        given = await asyncio.gather(*late, return_exceptions=True)
        assert {type(one) for one in given} == {Unavailable}
        assert tasks.backend.reads == ["missing", "missing"]
        tasks.backend.gate(Unavailable("still down")).open()
        with pytest.raises(StoreError):
            await tasks.cached.get()
        assert await tasks.cached.get() is None

    asyncio.run(run())


def test_cancelled_task_cancels_no_other_task(root: str) -> None:
    async def run() -> None:
        tasks = Tasks(root)
        old, gate = written(tasks.other, b"old"), tasks.backend.gate()
        early = await tasks.first(gate)
        late = await tasks.call(CALLERS)
        late[0].cancel()
        early.cancel()
        given = await asyncio.gather(early, *late, return_exceptions=True)
        assert [type(one) for one in given[:2]] == [asyncio.CancelledError] * 2
        assert given[2:] == [old] * (CALLERS - 1)
        assert tasks.backend.reads == [b"old", b"old"]
        assert waiting(tasks.cached) == 0

    asyncio.run(run())


def test_bytes_that_tasks_write_through_cached_are_not_read_back(root: str) -> None:
    async def run() -> None:
        tasks = Tasks(root)
        cached = tasks.cached
        one = (await cached.put_if_absent(b"1")).unwrap()
        two = (await cached.put_if_match(b"2", one)).unwrap()
        assert await cached.get() == Content(b"2", two)
        three = await cached.update(lambda old: (old or b"") + b"3")
        assert await cached.get(max_age_s=1e9) == Content(b"23", three)
        assert await cached.get() == Content(b"23", three)
        assert isinstance(await cached.delete_if_match(three), Won)
        assert await cached.get() is None
        assert tasks.backend.reads == ["unchanged", b"2", "unchanged", "missing"]

    asyncio.run(run())
