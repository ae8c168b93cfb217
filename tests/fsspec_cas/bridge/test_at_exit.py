"""An ending process completes its background calls and releases its leases before its filesystem closes."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import pytest

import lockprovider
from fsspec_cas import Store

SERVERS = ["seaweedfs", "over_obstore", "fake_gcs", "azurite"]

BACKGROUND = """
import json, sys, threading
from fsspec_cas import Store

store = Store.from_url(sys.argv[1], json.loads(sys.argv[2]))
store.put_if_absent("first", b"1")  # opens the filesystem's session


def call():
    threading.main_thread().join()  # returns once the interpreter has begun to exit
    store.put_if_absent("late", b"2")


store.in_background(call)
"""


LEASE = """
import json, sys
import lockprovider

lease = lockprovider.lock(sys.argv[1], storage_options=json.loads(sys.argv[2])).acquire()
"""


def run_to_its_end(program: str, url: str, options: dict[str, Any]) -> None:
    command = [sys.executable, "-c", program, url, json.dumps(options)]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=240, check=False)
    assert (ended.returncode, ended.stderr) == (0, "")


@pytest.mark.parametrize("name", SERVERS)
def test_call_in_the_background_ends_before_the_filesystem_closes(name: str, request: pytest.FixtureRequest) -> None:
    server = request.getfixturevalue(name)
    url, options = server.new_prefix(), server.storage_options
    run_to_its_end(BACKGROUND, url, options)
    assert Store.from_url(url, options).read("late").data == b"2"


@pytest.mark.parametrize("name", SERVERS)
def test_lease_is_released_at_exit(name: str, request: pytest.FixtureRequest) -> None:
    server = request.getfixturevalue(name)
    url, options = server.new_prefix(), server.storage_options
    run_to_its_end(LEASE, url, options)
    assert lockprovider.lock(url, storage_options=options).status().state == "released"
