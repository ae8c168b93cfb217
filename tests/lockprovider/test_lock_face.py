"""`lockprovider.lock` as people use locks: made first, acquired later, dropped, told to end."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
import warnings
from pathlib import Path

import pytest
from patience import PATIENCE_S, until

import lockprovider
from lockprovider import InvalidSettings, LeaseLost, Lock, LockError, LockSettings, LossReason, NotAcquired


def test_lock_is_not_acquired_by_being_made(tmp_path: Path) -> None:
    lock = lockprovider.lock(tmp_path, timeout=5)
    assert isinstance(lock, Lock)
    assert not lock.locked()
    assert lock.status().state == "absent"
    assert list(tmp_path.iterdir()) == []


def test_with_block_acquires_and_releases_the_lock(tmp_path: Path) -> None:
    lock, other = lockprovider.lock(tmp_path), lockprovider.lock(tmp_path)
    with lock as lease:
        lease.check()
        assert other.locked()
        assert other.status().record.owner == lease.owner
        with lock as inner:  # by the thread that holds it
            assert inner is lease
        lease.check()
    assert lease.released
    assert not other.locked()
    with pytest.raises(ZeroDivisionError), lock:
        _ = 1 / 0
    assert not other.locked()


def test_acquire_and_release_are_a_pair(tmp_path: Path) -> None:
    lock, other = lockprovider.lock(tmp_path), lockprovider.lock(tmp_path)
    lock.release()  # without a lease: nothing
    lock.acquire(timeout=1)  # the lock keeps the lease: it need not be
    with pytest.raises(NotAcquired):
        other.acquire(blocking=False)
    with pytest.raises(NotAcquired):
        other.acquire(timeout=0)
    lock.release()
    with other.acquire(blocking=False):
        pass


def test_timeout_is_refused_when_not_waiting(tmp_path: Path) -> None:
    with pytest.raises(InvalidSettings, match=r"timeout=5"):
        lockprovider.lock(tmp_path).acquire(timeout=5, blocking=False)


def test_only_the_thread_that_took_it_may_release_it(tmp_path: Path) -> None:
    lock, refused = lockprovider.lock(tmp_path), []

    def release() -> None:
        try:
            lock.release()
        except LockError as error:
            refused.append(error)

    with lock as lease:
        thread = threading.Thread(target=release)
        thread.start()
        thread.join()
        lease.check()
    assert "MainThread" in str(refused[0])


def test_timeouts_of_the_call_override_settings_and_url(tmp_path: Path) -> None:
    settings = LockSettings(validity=100, renew=2, timeout=7)
    found = lockprovider.lock(tmp_path, timeout=3, validity=50, max_hold=60, settings=settings).settings
    assert found == LockSettings(validity=50, renew=2, timeout=3, max_hold=60)
    found = lockprovider.lock(f"file://{tmp_path}?validity=40&max_hold=9", timeout=1).settings
    assert found == LockSettings(validity=40, renew=4, timeout=1, max_hold=9)
    assert lockprovider.lock(tmp_path, validity=50).settings.renew == 5


def test_dropped_lease_is_reported_and_released(tmp_path: Path) -> None:
    other = lockprovider.lock(tmp_path)
    with pytest.warns(ResourceWarning, match=r"garbage-collected while it was held.*use `with`"):
        lockprovider.lock(tmp_path).acquire()
    with other.acquire(timeout=PATIENCE_S):
        pass


def test_dropped_lock_is_reported_with_its_lease(tmp_path: Path) -> None:
    lock = lockprovider.lock(tmp_path)
    lock.acquire()
    with pytest.warns(ResourceWarning, match="dropped"):
        del lock
    with lockprovider.lock(tmp_path).acquire(timeout=PATIENCE_S):
        pass


def test_lease_stays_held_when_its_lock_object_is_dropped(tmp_path: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        lease = lockprovider.lock(tmp_path).acquire()
        lease.check()
        assert lockprovider.lock(tmp_path).locked()
        lease.release()


def test_lease_is_not_renewed_longer_than_max_hold(tmp_path: Path) -> None:
    told: list[LeaseLost] = []
    settings = LockSettings(validity=60, renew=0.05)
    lock = lockprovider.lock(tmp_path, settings=settings, max_hold=0.2, on_lost=told.append)
    with lock as lease:
        until(lambda: told)
        with pytest.raises(LeaseLost, match=r"max_hold=0\.2") as lost:
            lease.check()
    assert lost.value.reason is LossReason.LAPSED
    assert not lockprovider.lock(tmp_path).locked()


SERVICE = """
import sys, threading, lockprovider
with lockprovider.until_signal():
    other = lockprovider.lock(sys.argv[1], on="other.json")
    taken = threading.Event()
    def hold():
        lease = other.acquire()
        taken.set()
        threading.Event().wait()
    threading.Thread(target=hold, daemon=True).start()
    with lockprovider.lock(sys.argv[1]):
        taken.wait()
        print("held", flush=True)
        threading.Event().wait()
"""


def test_service_releases_its_lock_on_sigterm(tmp_path: Path) -> None:
    with subprocess.Popen([sys.executable, "-c", SERVICE, str(tmp_path)], stdout=subprocess.PIPE, text=True) as service:
        assert service.stdout is not None
        assert service.stdout.readline() == "held\n"
        assert lockprovider.lock(tmp_path).locked()
        assert lockprovider.lock(tmp_path, on="other.json").locked()
        service.send_signal(signal.SIGTERM)
        assert service.wait(PATIENCE_S) == 128 + signal.SIGTERM
    assert not lockprovider.lock(tmp_path).locked()
    assert not lockprovider.lock(tmp_path, on="other.json").locked()


def test_until_signal_restores_earlier_handlers(tmp_path: Path) -> None:
    before = signal.getsignal(signal.SIGUSR1)
    with pytest.raises(SystemExit) as stopped, lockprovider.until_signal(signal.SIGUSR1):
        signal.raise_signal(signal.SIGUSR1)
    assert stopped.value.code == 128 + signal.SIGUSR1
    assert signal.getsignal(signal.SIGUSR1) is before
    refused: list[LockError] = []

    def elsewhere() -> None:
        try:
            with lockprovider.until_signal():
                pass
        except LockError as error:
            refused.append(error)

    thread = threading.Thread(target=elsewhere)
    thread.start()
    thread.join()
    assert "main thread" in str(refused[0])


def test_until_signal_restores_handlers_if_one_cannot_be_set() -> None:
    before = signal.getsignal(signal.SIGUSR1)
    with pytest.raises(OSError, match="Invalid argument"), lockprovider.until_signal(signal.SIGUSR1, signal.SIGKILL):
        pass
    assert signal.getsignal(signal.SIGUSR1) is before


def test_until_signal_ends_where_the_earlier_handler_was_not_of_python() -> None:
    code = "import signal, lockprovider\nwith lockprovider.until_signal(signal.SIGSEGV): print('in')\nprint('out')"
    done = subprocess.run(
        [sys.executable, "-X", "faulthandler", "-c", code], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "in\nout\n", "")


def test_spellings_of_earlier_versions_are_refused_by_name(tmp_path: Path) -> None:
    assert not hasattr(lockprovider, "open_lock")
    with pytest.raises(TypeError, match="timeout_s"):
        lockprovider.lock(tmp_path).acquire(timeout_s=1)  # type: ignore[call-arg]
    with pytest.raises(TypeError, match="validity_s"):
        LockSettings(validity_s=20)  # type: ignore[call-arg]
    with pytest.raises(InvalidSettings, match=r"'validity_s' .* no option"):
        lockprovider.lock(f"file://{tmp_path}?validity_s=20")


async def test_async_lock_reports_whether_it_is_held(tmp_path: Path) -> None:
    async with lockprovider.async_lock(tmp_path, timeout=5, validity=60):
        from fsspec_cas import Store

        lock = lockprovider.AsyncLock(Store.from_url(str(tmp_path)))
        assert await lock.locked()
        assert (await lock.status()).state == "held"
    assert not await lock.locked()
