"""The heartbeat beats while it is needed, and its end is never silent."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest
from patience import until

from fsspec_cas import Unavailable
from lockprovider.storage_lock.lease import Heartbeat

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
    until(lambda: heartbeat._thread.ident)
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


def test_stopped_heartbeat_ends_its_thread() -> None:
    lease = Beaten()
    heartbeat = Heartbeat(lease, 0.001)
    heartbeat.start()
    assert lease.beats.acquire(timeout=SOON_S)
    heartbeat.stop()
    assert ended(heartbeat)


def test_heartbeat_stopped_before_its_first_beat_starts_no_thread() -> None:
    lease = Beaten()
    heartbeat = Heartbeat(lease, 0.05)
    heartbeat.start()
    heartbeat.stop()
    assert not lease.beats.acquire(timeout=0.2)
    assert heartbeat._thread.ident is None


def test_heartbeat_beats_once_the_system_starts_threads_again(monkeypatch: pytest.MonkeyPatch) -> None:
    lease, refused = Beaten(), threading.Event()
    heartbeat = Heartbeat(lease, 0.001)
    start = threading.Thread.start

    def scarce(thread: threading.Thread) -> None:
        if thread is heartbeat._thread and not refused.is_set():
            refused.set()
            raise RuntimeError("can't start new thread")
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", scarce)
    heartbeat.start()
    assert refused.wait(SOON_S)
    assert lease.beats.acquire(timeout=SOON_S)
    heartbeat.stop()
