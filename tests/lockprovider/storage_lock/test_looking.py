"""A look at the lock by one who does not want it, and those of one who waits: what they see, and what they cost."""

from __future__ import annotations

import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from fsspec_cas import Content, Store
from fsspec_cas.backends.local import LocalBackend
from fsspec_cas.testing import ManualClock
from lockprovider import HUDI_LOCK_PATH, Lock, LockSettings, NotAcquired

SETTINGS = LockSettings(timeout=20, poll=0.2)


class Elsewhere(LocalBackend):
    """Another place, as far as this process knows: its clients are of another queue."""


FORKED_IN_THE_MIDDLE = """
import os, signal, sys, threading
from fsspec_cas import Store
from lockprovider import Lock

lock = Lock(Store.from_url(sys.argv[1]))
lock.acquire().release()
inside, go_on = threading.Event(), threading.Event()

def in_a_request():
    with lock._client.driver.step_guard, lock._looking, lock._client.queue._guard:
        inside.set()
        go_on.wait()

thread = threading.Thread(target=in_a_request)
thread.start()
inside.wait()
child = os.fork()
if child == 0:
    signal.alarm(60)
    print(lock.look().owner, flush=True)
    os._exit(0)
_, status = os.waitpid(child, 0)
go_on.set()
thread.join()
print(lock.owner, os.waitstatus_to_exitcode(status))
"""


def test_child_forked_during_a_request_reads_for_itself(tmp_path: Path) -> None:
    program = [sys.executable, "-c", FORKED_IN_THE_MIDDLE, str(tmp_path)]
    done = subprocess.run(program, capture_output=True, text=True, timeout=300, check=True)
    seen, owner, status = done.stdout.split()
    assert (seen, status) == (owner, "0"), "the alarm ends a child that hangs"


def test_read_is_not_older_than_its_request_during_a_wait_of_another_thread(tmp_path: Path) -> None:
    lock = Lock(Store.from_url(str(tmp_path)), settings=SETTINGS)
    lock.acquire().release()
    other = Lock(Store(Elsewhere(), str(tmp_path)), settings=SETTINGS)
    other.acquire().release()
    with lock._client.driver.step_guard:
        lock._client.driver.read()  # as the waiting thread does when it looks in vain
    asked = lock._client.records.read_if_changed

    def read_if_changed(*args: Any, **kwargs: Any) -> Content | None:
        there = asked(*args, **kwargs)
        waiting = threading.Thread(target=lambda: lock._client.adopt(*lock._client.queue.take_news()))
        waiting.start()
        waiting.join()
        return there

    lock._client.records.read_if_changed = read_if_changed  # type: ignore[method-assign]
    for _ in range(2):
        seen = lock.look()
        assert seen is not None
        assert seen.owner == other.owner


@pytest.mark.parametrize("had_it", [False, True], ids=["new", "had it before"])
def test_waiter_reads_one_body_while_nothing_changes(tmp_path: Path, had_it: bool) -> None:
    store = Store.from_url(str(tmp_path))
    lock = Lock(store, settings=SETTINGS, world=ManualClock())
    if had_it:
        lock.acquire().release()
    store.update(HUDI_LOCK_PATH, lambda old: b'{"owner":"jvm","validUntil":9007199254740991,"expired":false}')
    moved: list[bool] = []
    asked, read = lock._client.records.read_if_changed, lock._client.records.read

    def read_if_changed(*args: Any, **kwargs: Any) -> Content | None:
        there = asked(*args, **kwargs)
        moved.append(there is not None)
        return there

    def read_it(*args: Any, **kwargs: Any) -> Content:
        moved.append(True)
        return read(*args, **kwargs)

    lock._client.records.read_if_changed, lock._client.records.read = read_if_changed, read_it  # type: ignore[method-assign]
    with pytest.raises(NotAcquired, match="jvm"):
        lock.acquire()
    assert moved.count(True) == 1
    assert len(moved) > 20
