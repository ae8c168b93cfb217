"""Three hundred threads of one process want one lock on a store: each gets it, one at a time."""

from __future__ import annotations

from threading import Barrier, Thread
from typing import TYPE_CHECKING

import pytest

import lockprovider

if TYPE_CHECKING:
    from servers.seaweedfs import SeaweedFS

THREADS = 300


@pytest.mark.soak
def test_lock_admits_300_threads_one_at_a_time(seaweedfs: SeaweedFS) -> None:
    url, settings = seaweedfs.new_prefix(), lockprovider.LockSettings(timeout=600)
    lock = lockprovider.lock(url, storage_options=seaweedfs.storage_options, settings=settings)
    together, inside, most, epochs = Barrier(THREADS), 0, 0, []

    def work() -> None:
        nonlocal inside, most
        together.wait()
        with lock.acquire() as lease:
            inside += 1
            most = max(most, inside)
            epochs.append(lease.epoch)
            inside -= 1

    threads = [Thread(target=work) for _ in range(THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (len(epochs), most) == (THREADS, 1)
    assert epochs == sorted(set(epochs))
