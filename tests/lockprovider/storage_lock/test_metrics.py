"""The numbers of a lock, each against what was done to it; and OpenTelemetry's own view of them."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import threading
import uuid
from collections import defaultdict, deque
from pathlib import Path
from typing import Any

import fsspec
import pytest
from deciding import RULES
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from patience import soon

import lockprovider
from fsspec_cas import CasError, NotSupported, Store
from fsspec_cas.answer import NoAnswer, NotApplied
from fsspec_cas.backends.memory import MemoryBackend
from fsspec_cas.testing import Faulty, LoseAnswer, LoseRequest, ManualClock
from lockprovider import (
    HUDI_LOCK_PATH,
    AsyncLock,
    Counters,
    Hold,
    Intent,
    LeaseLost,
    Lock,
    LockProvider,
    LockSettings,
    MalformedRecord,
    Measure,
    NotAcquired,
)
from lockprovider.storage_lock import metrics, otel

SETTINGS = LockSettings(validity=100, renew=10, timeout=5, poll=1)
SILENCE = [LoseRequest()] * 500


class Timed(Counters):
    """Keeps the values of timers, too."""

    def __init__(self) -> None:
        super().__init__()
        self.ms: defaultdict[str, list[float]] = defaultdict(list)

    def __call__(self, measure: Measure) -> None:
        super().__call__(measure)
        if measure.kind == "timer":
            self.ms[measure.name].append(measure.value)


class Town:
    """A store in memory and a clock that moves when it is told to."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.backend = MemoryBackend(fsspec.filesystem("memory"))
        self.root = f"/metrics/{uuid.uuid4().hex}"
        self.store = Store(self.backend, self.root, world=self.clock)

    def lock(self, plan: dict[str, Any] | None = None, on_metric: Any = None) -> tuple[Lock, Any, Faulty]:
        faulty = Faulty(self.backend, plan or {}, world=self.clock)
        store = Store(faulty, self.root, world=self.clock)
        counters = on_metric or Timed()
        return Lock(store, settings=SETTINGS, world=self.clock, on_metric=counters), counters, faulty

    def rewrite(self, **fields: object) -> None:
        content = self.store.read(HUDI_LOCK_PATH)
        data = json.dumps(json.loads(content.data) | fields).encode()
        self.store.put_if_match(HUDI_LOCK_PATH, data, content.version).unwrap()


@pytest.fixture
def town() -> Town:
    return Town()


def test_cycle_is_one_attempt_one_success_one_release_and_its_times(town: Town) -> None:
    lock, counters, _ = town.lock()
    with lock.acquire() as lease:
        assert counters.values == {
            "lock.acquire.attempts": 1,
            "lock.acquire.success": 1,
            "lock.expiration.deadline": 100_000,
        }
        town.clock.advance(30)
        assert lease.renew()
        assert counters.values["lock.expiration.deadline"] == 70_000, "what was left of the old"
        town.clock.advance(12)
    assert counters.values["lock.release.success"] == 1
    assert counters.ms["lock.acquire.duration"] == [42_000]
    assert len(counters.ms["lock.request.latency"]) == 1
    with lock.acquire():
        town.clock.advance(1)
    assert counters.values["lock.acquire.success"] == 2
    assert counters.ms["lock.acquire.duration"] == [42_000, 1_000]
    assert not [name for name in counters.values if "failure" in name or "error" in name]


def test_group_commit_leaves_the_time_for_which_the_lock_is_held(town: Town) -> None:
    lock, counters, _ = town.lock()
    with lock.acquire():
        town.clock.advance(30)
        assert lock.commit(Intent("log", 0, "empty", b""), RULES) == Hold()
        town.clock.advance(12)
    assert counters.ms["lock.acquire.duration"] == [42_000]


def test_inner_acquisition_changes_no_metric(town: Town) -> None:
    lock, counters, _ = town.lock()
    with lock.acquire(), lock.acquire():
        pass
    assert counters.values["lock.acquire.attempts"] == 1
    assert counters.values["lock.release.success"] == 1


def test_timed_out_wait_is_a_failure_with_its_duration(town: Town) -> None:
    holder, _, _ = town.lock()
    lock, counters, _ = town.lock()
    with holder.acquire(), pytest.raises(NotAcquired):
        lock.acquire(3)
    assert counters.values == {"lock.acquire.attempts": 1, "lock.acquire.failure": 1}
    assert counters.ms["lock.request.latency"] == pytest.approx([3000])


def test_takeover_of_a_lapsed_lock_counts_as_dangling(town: Town) -> None:
    old, told_old, _ = town.lock()
    new, told_new, _ = town.lock()
    lease = old.acquire()
    town.rewrite(validUntil=0)
    successor = new.acquire()
    assert told_new.values["lock.dangling"] == 1
    assert not lease.renew()
    assert told_old.values["lock.acquired.others.error"] == 1
    lease.release()
    successor.release()
    assert "lock.release.success" not in told_old.values
    assert "lock.dangling" not in told_old.values
    assert len(told_old.ms["lock.acquire.duration"]) == 1


def test_own_write_that_landed_late_is_no_dangling_lock(town: Town) -> None:
    lock, counters, _ = town.lock()
    lock.acquire().release()
    town.rewrite(expired=False, nonce="late")
    lock.acquire().release()
    assert counters.values["lock.acquire.success"] == 2
    assert "lock.dangling" not in counters.values


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"expired": True}, {"lock.release.failure": 1}),
        ({"owner": "another"}, {"lock.release.failure": 1, "lock.acquired.others.error": 1}),
    ],
    ids=["broken", "taken over"],
)
def test_release_that_comes_too_late_is_a_failure(
    town: Town, change: dict[str, object], expected: dict[str, int]
) -> None:
    lock, counters, _ = town.lock()
    lease = lock.acquire()
    town.rewrite(nonce="theirs", **change)
    lease.release()
    assert {name: n for name, n in counters.values.items() if name in expected or "release" in name} == expected


def test_release_whose_answer_was_lost_is_a_success(town: Town) -> None:
    lock, counters, faulty = town.lock()
    lease = lock.acquire()
    faulty._plan["put"] = deque([LoseAnswer()])
    lease.release()
    assert faulty.fired
    assert counters.values["lock.release.success"] == 1


def test_release_that_does_not_reach_the_store_is_a_failure(town: Town) -> None:
    lock, counters, faulty = town.lock()
    lease = lock.acquire()
    for operation in ("put", "get", "head"):
        faulty._plan[operation] = deque(SILENCE)
    with pytest.raises(CasError):
        lease.release()
    assert counters.values["lock.release.failure"] == 1
    assert counters.values["lock.state.unknown"] >= 1
    assert len(counters.ms["lock.acquire.duration"]) == 1


def test_store_that_does_not_answer_leaves_the_state_unknown(town: Town) -> None:
    lock, counters, _ = town.lock({"get": SILENCE})
    with pytest.raises(CasError):
        lock.acquire()
    assert counters.values == {"lock.acquire.attempts": 1, "lock.acquire.failure": 1, "lock.state.unknown": 1}


def test_acquisition_lost_after_the_read_is_a_precondition_failure(town: Town) -> None:
    winner, _, _ = town.lock()
    lock, counters, faulty = town.lock()
    send = faulty.put
    leases = []

    async def late(*args: Any, **kwargs: Any) -> Any:
        if not leases:
            leases.append(winner.acquire(0))
        return await send(*args, **kwargs)

    faulty.put = late  # type: ignore[method-assign]
    with pytest.raises(NotAcquired):
        lock.acquire(0)
    assert counters.values["lock.acquire.precondition.failure"] == 1
    assert counters.values["lock.acquire.failure"] == 1
    leases[0].release()


def test_garbage_at_the_path_and_a_heartbeat_that_cannot_start_are_fatal(
    town: Town, monkeypatch: pytest.MonkeyPatch
) -> None:
    lock, counters, _ = town.lock()

    def refuse(*_: object) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", refuse)
        with pytest.raises(RuntimeError):
            lock.acquire()
    assert counters.values["lock.provider.fatal.error"] == 1
    town.store.delete(HUDI_LOCK_PATH)
    town.store.put_if_absent(HUDI_LOCK_PATH, b"garbage")
    with pytest.raises(MalformedRecord):
        town.lock(on_metric=counters)[0].acquire()
    assert counters.values["lock.provider.fatal.error"] == 2
    assert counters.values["lock.acquire.failure"] == 2


def test_store_that_ignores_conditions_is_fatal(town: Town, monkeypatch: pytest.MonkeyPatch) -> None:
    lock, counters, _ = town.lock()

    def unsafe(_timeout: float | None = None) -> None:
        raise NotSupported("it ignores conditions")

    monkeypatch.setattr(lock, "require_safe_store", unsafe)
    with pytest.raises(NotSupported):
        lock.acquire()
    assert counters.values["lock.provider.fatal.error"] == 1


def test_ctrl_c_while_waiting_is_an_interruption(town: Town, monkeypatch: pytest.MonkeyPatch) -> None:
    holder, _, _ = town.lock()
    lock, counters, _ = town.lock()

    def interrupt(_: float) -> None:
        raise KeyboardInterrupt

    with holder.acquire():
        monkeypatch.setattr(ManualClock, "sleep", lambda _self, seconds: interrupt(seconds))
        with pytest.raises(KeyboardInterrupt):
            lock.acquire(3)
        monkeypatch.undo()
    assert counters.values == {"lock.acquire.attempts": 1, "lock.acquire.failure": 1, "lock.interrupted": 1}


async def test_task_that_is_cancelled_while_waiting_is_an_interruption() -> None:
    store, counters = Store.from_url(f"memory://{uuid.uuid4().hex}"), Counters()
    with Lock(store).acquire():
        lock = AsyncLock(store, settings=LockSettings(timeout=60, poll=30), on_metric=counters)
        task = asyncio.create_task(lock.acquire()._take())
        await soon(lambda: "lock.acquire.attempts" in counters.values)
        task.cancel()
        await soon(lambda: "lock.interrupted" in counters.values)
    async with lock.acquire():
        pass
    assert counters.values["lock.release.success"] == 1


def test_callback_that_fails_costs_a_warning_and_no_lock(town: Town) -> None:
    def fail(_: Measure) -> None:
        raise ZeroDivisionError

    lock, _, _ = town.lock(on_metric=fail)
    with pytest.warns(RuntimeWarning, match="ZeroDivisionError"), lock.acquire() as lease:
        lease.publish("state/1", b"done")
    assert town.store.read("state/1").data == b"done"


def test_every_front_door_takes_the_callback(tmp_path: Path) -> None:
    counters = Counters()

    async def with_tasks() -> None:
        async with lockprovider.async_lock(str(tmp_path), on_metric=counters):
            pass

    with lockprovider.lock(str(tmp_path), on_metric=counters):
        pass
    with lockprovider.lock(str(tmp_path), on_metric=counters).acquire():
        pass
    for provider in (
        LockProvider.from_url(str(tmp_path), on_metric=counters),
        LockProvider.from_config({"hoodie.base.path": str(tmp_path)}, on_metric=counters),
    ):
        assert provider.try_lock()
        provider.unlock()
    asyncio.run(with_tasks())
    assert counters.values["lock.acquire.success"] == counters.values["lock.release.success"] == 5


class Throttling(MemoryBackend):
    """Asks for patience as often as it is told to, as each store does."""

    def __init__(self, answers: list[NotApplied | NoAnswer]) -> None:
        super().__init__(fsspec.filesystem("memory"))
        self.answers = answers

    async def put(self, *args: Any, **kwargs: Any) -> Any:
        return self.answers.pop(0) if self.answers else await super().put(*args, **kwargs)

    async def get(self, *args: Any, **kwargs: Any) -> Any:
        return self.answers.pop(0) if self.answers else await super().get(*args, **kwargs)


PATIENCE = [
    NotApplied("429 TooManyRequests"),
    NoAnswer("503 SlowDown"),
    NoAnswer("200 SlowDown"),
    NotApplied("429", 1.0),
]
NO_PATIENCE = [
    NotApplied("409 ConditionalRequestConflict"),
    NoAnswer("500 InternalError"),
    NoAnswer("no answer within 1 s"),
]


def test_throttling_is_counted_at_acquire_renew_and_release(town: Town) -> None:
    backend, counters = Throttling(list(PATIENCE)), Counters()
    lock = Lock(Store(backend, town.root, world=town.clock), settings=SETTINGS, world=town.clock, on_metric=counters)
    told = iter((4, 5, 6))
    lease = lock.acquire()
    assert counters.values["lock.throttled"] == next(told)
    backend.answers.append(PATIENCE[1])
    assert lease.renew()
    assert counters.values["lock.throttled"] == next(told)
    backend.answers.append(PATIENCE[0])
    lease.release()
    assert counters.values["lock.throttled"] == next(told)
    assert counters.values["lock.release.success"] == 1


def test_other_errors_and_data_requests_are_not_counted_as_throttling(town: Town) -> None:
    backend, counters = Throttling(list(NO_PATIENCE)), Counters()
    lock = Lock(Store(backend, town.root, world=town.clock), settings=SETTINGS, world=town.clock, on_metric=counters)
    with lock.acquire():
        assert backend.answers == []
        backend.answers += PATIENCE
        lock.stage("state/1", os.urandom(10_000))
        assert backend.answers == []
    assert "lock.throttled" not in counters.values


def test_metric_names_are_those_of_hudi() -> None:
    """As `javap -constants` shows them in the released class."""
    hudis = {
        "lock.acquire.attempts",
        "lock.acquire.success",
        "lock.acquire.failure",
        "lock.release.success",
        "lock.acquire.duration",
        "lock.request.latency",
        "lock.acquired.others.error",
        "lock.state.unknown",
        "lock.acquire.precondition.failure",
        "lock.provider.fatal.error",
        "lock.release.failure",
        "lock.expiration.deadline",
        "lock.dangling",
        "lock.interrupted",
        "lock.throttled",
    }
    ours = {value for name, value in vars(metrics).items() if name.isupper() and isinstance(value, str)}
    assert ours == hudis


def test_opentelemetry_sees_the_same_numbers(town: Town) -> None:
    reader = InMemoryMetricReader()
    meter = MeterProvider([reader]).get_meter("test")
    lock, _, _ = town.lock(on_metric=otel.on_metric(meter, {"table": "trips"}))
    for _ in range(2):
        with lock.acquire():
            town.clock.advance(5)
    data = reader.get_metrics_data()
    assert data is not None
    seen = {m.name: m for r in data.resource_metrics for s in r.scope_metrics for m in s.metrics}
    points = {name: next(iter(metric.data.data_points)) for name, metric in seen.items()}
    assert points["lock.acquire.success"].value == points["lock.release.success"].value == 2
    assert points["lock.expiration.deadline"].value == 100_000
    assert (points["lock.acquire.duration"].count, points["lock.acquire.duration"].sum) == (2, 10_000)
    assert seen["lock.acquire.duration"].unit == "ms"
    assert all(dict(point.attributes) == {"table": "trips"} for point in points.values())


def test_global_meter_is_used_without_a_given_one(town: Town) -> None:
    with town.lock(on_metric=otel.on_metric())[0].acquire():
        pass


def test_opentelemetry_is_loaded_only_on_request_and_its_absence_is_named() -> None:
    code = (
        "import sys, lockprovider, lockprovider.storage_lock.otel\n"
        "assert not [name for name in sys.modules if name.startswith('opentelemetry')]\n"
        "sys.modules['opentelemetry'] = None\n"
        "try: lockprovider.storage_lock.otel.on_metric()\n"
        "except lockprovider.LockError as error: print(error)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "install the extra 'otel' of fsspec-cas" in done.stdout


def test_lost_lease_counts_as_no_success(town: Town) -> None:
    lock, counters, _ = town.lock()
    lease = lock.acquire()
    town.clock.advance(200)
    with pytest.raises(LeaseLost):
        lease.check()
    lease.release()
    assert "lock.release.success" not in counters.values
