"""The heartbeat beats while it is needed, and its end is never silent."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest

from fsspec_cas import Unavailable
from fsspec_cas.machine import Worker
from lockprovider.storage_lock.client import Heartbeat, Pulse

SOON_S = 5.0  # the longest that a condition is waited for; reached only by a failure


class Beaten:
    """A lease as a heartbeat sees it."""

    def __init__(self, renew: Callable[[], bool] = lambda: True) -> None:
        self.thread = threading.current_thread()
        self.lost = threading.Event()
        self.beats = threading.Semaphore(0)
        self.abandoned: list[str] = []
        self.told = threading.Event()
        self._renew = renew

    def renew(self) -> bool:
        self.beats.release()
        return self._renew()

    def abandon(self, why: str) -> None:
        self.abandoned.append(why)
        self.told.set()


def ended(heartbeat: Heartbeat) -> bool:
    heartbeat._thread.join(SOON_S)
    return not heartbeat._thread.is_alive()


def test_heartbeat_renews_until_it_is_stopped() -> None:
    lease = Beaten()
    heartbeat = Heartbeat(lease, 0.001)
    heartbeat.start()
    for _ in range(3):
        assert lease.beats.acquire(timeout=SOON_S)
    heartbeat.stop()
    assert ended(heartbeat)
    assert lease.abandoned == [], "a release is no loss"


def test_heartbeat_goes_on_after_a_failure() -> None:
    def fails() -> bool:
        raise Unavailable("the store is down")

    lease = Beaten(fails)
    heartbeat = Heartbeat(lease, 0.001)
    heartbeat.start()
    for _ in range(3):
        assert lease.beats.acquire(timeout=SOON_S)
    heartbeat.stop()
    assert lease.abandoned == []


def test_heartbeat_stops_and_reports_when_the_owning_thread_is_dead() -> None:
    lease = Beaten()
    lease.thread = threading.Thread(target=lambda: None, name="worker-7")
    lease.thread.start()
    lease.thread.join()
    heartbeat = Heartbeat(lease, 0.001)
    heartbeat.start()
    assert ended(heartbeat)
    assert lease.abandoned == ["the thread that acquired it (worker-7) has ended"]
    assert not lease.beats.acquire(blocking=False), "it renewed for nobody"


def test_heartbeat_stops_when_the_lease_is_lost() -> None:
    lease = Beaten()
    lease.lost.set()
    heartbeat = Heartbeat(lease, 0.001)
    heartbeat.start()
    assert ended(heartbeat)
    assert not lease.beats.acquire(blocking=False)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_heartbeat_does_not_die_silently_of_a_defect() -> None:
    def breaks() -> bool:
        raise ZeroDivisionError

    lease = Beaten(breaks)
    heartbeat = Heartbeat(lease, 0.001)
    heartbeat.start()
    assert ended(heartbeat)
    assert lease.abandoned == ["its heartbeat failed"]


def test_stop_waits_for_a_renewal_in_flight() -> None:
    go_on, order = threading.Event(), []

    def slow() -> bool:
        assert go_on.wait(SOON_S)
        order.append("renewed")
        return True

    lease = Beaten(slow)
    heartbeat = Heartbeat(lease, 0.001)
    heartbeat.start()
    assert lease.beats.acquire(timeout=SOON_S)
    stopper = threading.Thread(target=lambda: (heartbeat.stop(), order.append("stopped")))
    stopper.start()
    go_on.set()
    stopper.join(SOON_S)
    assert order == ["renewed", "stopped"]


def test_heartbeat_can_be_stopped_from_its_own_thread() -> None:
    lease = Beaten()
    heartbeat = Heartbeat(lease, 0.001)
    lease._renew = lambda: heartbeat.stop() is None
    heartbeat.start()
    assert ended(heartbeat)


# -- one thread for many leases ----------------------------------------------------------------------------------------


def test_single_acquisition_leaves_no_heartbeat_thread() -> None:
    heartbeat = Heartbeat(Beaten(), 1000.0)
    heartbeat.start()
    heartbeat.stop()
    assert ended(heartbeat)


def test_repeated_acquisition_keeps_the_heartbeat_thread_for_an_interval() -> None:
    pulse, used = Pulse(), []
    for _ in range(5):
        heartbeat = Heartbeat(Beaten(), 1000.0, pulse)
        heartbeat.start()
        used.append(pulse.thread)
        heartbeat.stop()
    assert used[0] is not used[1]
    assert len(set(used[1:])) == 1
    assert used[1].is_alive()
    assert used[1].name == "parked-heartbeat"
    pulse._end.set()
    assert ended(heartbeat)
    last = Pulse()
    for _ in range(3):
        heartbeat = Heartbeat(Beaten(), 0.01, last)
        heartbeat.start()
        heartbeat.stop()
    assert ended(heartbeat), "nobody wants it any more"


def test_parked_heartbeat_thread_renews_the_new_lease_and_not_the_old() -> None:
    pulse, before, lease = Pulse(), Beaten(), Beaten()
    for _ in range(2):
        first = Heartbeat(before, 0.05, pulse)
        first.start()
        first.stop()
    beats = 0
    while before.beats.acquire(blocking=False):
        beats += 1
    second = Heartbeat(lease, 0.05, pulse)
    second.start()
    for _ in range(3):
        assert lease.beats.acquire(timeout=SOON_S)
    second.stop()
    assert not before.beats.acquire(blocking=False)
    assert lease.abandoned == before.abandoned == []


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_next_lease_after_a_defect_gets_a_live_thread() -> None:
    def breaks() -> bool:
        raise ZeroDivisionError

    pulse, bad, good = Pulse(), Beaten(breaks), Beaten()
    broken = Heartbeat(bad, 0.001, pulse)
    broken.start()
    assert bad.told.wait(SOON_S)
    broken.stop()
    heartbeat = Heartbeat(good, 0.001, pulse)
    heartbeat.start()
    assert good.beats.acquire(timeout=SOON_S)
    heartbeat.stop()


def test_heartbeat_thread_that_cannot_start_is_an_error_and_is_retried(monkeypatch: pytest.MonkeyPatch) -> None:
    pulse, lease = Pulse(), Beaten()

    class Full(Worker):
        def start(self) -> None:
            raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patch:
        patch.setattr("lockprovider.storage_lock.client.Worker", Full)
        with pytest.raises(RuntimeError, match="can't start"):
            Heartbeat(lease, 0.001, pulse).start()
    heartbeat = Heartbeat(lease, 0.001, pulse)
    heartbeat.start()
    assert lease.beats.acquire(timeout=SOON_S)
    heartbeat.stop()
