"""A process that gevent has patched: what works, and what says so."""

from __future__ import annotations

import subprocess
import sys

import pytest
from servers.over_obstore import OverObstore

PROGRAM = """
from gevent import monkey

monkey.patch_all()
import sys

import gevent
import lockprovider
from fsspec_cas import NotSupported

url, options, check = sys.argv[1], eval(sys.argv[2]), "unproved" not in sys.argv
order = []


def work(number):
    with lockprovider.lock(f"{url}/t?check_store={str(check).lower()}", storage_options=options):
        order.append(number)
        gevent.sleep(0.01)
        order.append(number)


try:
    gevent.joinall([gevent.spawn(work, number) for number in range(5)], raise_error=True)
    assert len(order) == 10 and order[::2] == order[1::2], order
    if check:
        lockprovider.wal.create(f"{url}/log", storage_options=options).append(b"one")
        queue = lockprovider.queue.create(f"{url}/queue.json", storage_options=options)
        queue.put({"a": 1})
        queue.claim(timeout=20).ack()
        state = lockprovider.state.open(f"{url}/state.json", default=dict, storage_options=options)
        state.update(lambda value: {**value, "a": 1})
    print("done")
except NotSupported as error:
    print(error)
"""


def said(url: str, options: dict[str, object], *more: str) -> str:
    program = [sys.executable, "-W", "ignore", "-c", PROGRAM, url, repr(options), *more]
    ran = subprocess.run(program, capture_output=True, text=True, timeout=300, check=False)
    assert ran.stdout, ran.stderr[-2000:]
    return ran.stdout


@pytest.mark.parametrize("place", ["memory", "local"])
def test_greenlets_share_locks_logs_queues_and_states(place, tmp_path):
    url = "memory://gevent" if place == "memory" else f"file://{tmp_path}"
    assert said(url, {}) == "done\n"


def test_greenlets_share_a_lock_on_s3_by_the_lean_client(seaweedfs):
    server = OverObstore(seaweedfs)
    assert said(server.new_prefix(), server.storage_options, "unproved") == "done\n"


@pytest.mark.parametrize("client", ["s3fs", "obstore"])
def test_call_that_needs_an_event_loop_is_refused_with_the_next_step(seaweedfs, client):
    server = seaweedfs if client == "s3fs" else OverObstore(seaweedfs)
    text = said(server.new_prefix(), server.storage_options)
    assert "gevent has patched threads" in text
    assert "monkey.patch_all(thread=False)" in text
    assert "check_store=False" in text
