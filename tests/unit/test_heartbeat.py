"""The heartbeat beats while it is needed, and its end is never silent."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest

from fsspec_cas import Unavailable
from lockprovider.heartbeat import Heartbeat

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


def test_it_renews_again_and_again_until_it_is_stopped() -> None:
    lease = Beaten()
    heartbeat = Heartbeat(lease, 0.001)
    heartbeat.start()
    for _ in range(3):
        assert lease.beats.acquire(timeout=SOON_S)
    heartbeat.stop()
    assert not heartbeat._thread.is_alive()
    assert lease.abandoned == [], "a release is no loss"


def test_after_a_failure_it_goes_on() -> None:
    def fails() -> bool:
        raise Unavailable("the store is down")

    lease = Beaten(fails)
    heartbeat = Heartbeat(lease, 0.001)
    heartbeat.start()
    for _ in range(3):
        assert lease.beats.acquire(timeout=SOON_S)
    heartbeat.stop()
    assert lease.abandoned == []


def test_it_stops_when_the_thread_that_took_the_lock_is_dead_and_says_so() -> None:
    lease = Beaten()
    lease.thread = threading.Thread(target=lambda: None, name="worker-7")
    lease.thread.start()
    lease.thread.join()
    heartbeat = Heartbeat(lease, 0.001)
    heartbeat.start()
    assert ended(heartbeat)
    assert lease.abandoned == ["the thread that took it (worker-7) is dead"]
    assert not lease.beats.acquire(blocking=False), "it renewed for nobody"


def test_it_stops_when_the_lease_is_lost() -> None:
    lease = Beaten()
    lease.lost.set()
    heartbeat = Heartbeat(lease, 0.001)
    heartbeat.start()
    assert ended(heartbeat)
    assert not lease.beats.acquire(blocking=False)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_it_does_not_die_silently_of_a_defect() -> None:
    def breaks() -> bool:
        raise ZeroDivisionError

    lease = Beaten(breaks)
    heartbeat = Heartbeat(lease, 0.001)
    heartbeat.start()
    assert ended(heartbeat)
    assert lease.abandoned == ["its heartbeat failed"]


def test_stopping_waits_for_a_beat_on_its_way() -> None:
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


def test_it_can_be_stopped_from_its_own_thread() -> None:
    lease = Beaten()
    heartbeat = Heartbeat(lease, 0.001)
    lease._renew = lambda: heartbeat.stop() is None
    heartbeat.start()
    assert ended(heartbeat)
