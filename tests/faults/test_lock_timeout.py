"""An acquisition is over within its timeout and 10 s where the store does not answer, its proof included."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

import pytest
from patience import until
from servers.seaweedfs import SeaweedFS

from faults import actions as do
from faults.actions import Action, Ending
from faults.proxy import FaultProxy
from fsspec_cas import Store, Unavailable
from lockprovider import Lock, LockSettings

TIMEOUT_S = 1.0
OVER_S = TIMEOUT_S + 10.0
BUSY_S = 6.0  # a machine that has other things to do; one request alone had 20 s before, and a proof 90 s
SILENT = {"503": do.slow_down(), "no answer": do.never_deliver(Ending.HANG)}


@pytest.mark.parametrize("action", SILENT.values(), ids=SILENT)
@pytest.mark.parametrize("proved", [False, True], ids=["to be proved", "trusted"])
def test_acquire_on_silent_store_ends_in_time_and_succeeds_later(
    seaweedfs: SeaweedFS,
    fault_proxy: Callable[[SeaweedFS], FaultProxy],
    action: Action,
    proved: bool,
    caplog: pytest.LogCaptureFixture,
) -> None:
    proxy = fault_proxy(seaweedfs)
    store = Store.from_url(seaweedfs.new_prefix(), seaweedfs.options_for(proxy.endpoint))
    assert store.read_or_none("connected") is None
    lock = Lock(store, settings=LockSettings(timeout=TIMEOUT_S, check_store=not proved))
    rule = proxy.rule(action=action, times=None)

    def given_up() -> bool:
        began_s = time.monotonic()
        with caplog.at_level(logging.ERROR, "fsspec_cas"), pytest.raises(Unavailable):
            lock.acquire()
        assert time.monotonic() - began_s < OVER_S + BUSY_S
        return rule.fired >= 1  # a busy machine may not have sent anything in this time

    until(given_up)
    proxy.rules.clear()
    with lock.acquire(60.0) as lease:
        lease.check()
