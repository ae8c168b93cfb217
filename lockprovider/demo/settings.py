"""How the demonstration's writers behave: short times, so that a killed pipeline is noticed while people watch."""

from __future__ import annotations

from lockprovider import LockSettings
from lockprovider.table.liveness import HeartbeatSettings
from lockprovider.table.manager import TableSettings

VALIDITY_S = 30.0
RENEW_S = 3.0
LOCK_TIMEOUT_S = 120.0
BEAT_S = 3.0
MISSES = 5


def table_settings() -> TableSettings:
    """The same for every process of the demonstration; a real table keeps the defaults, which are Hudi's."""
    return TableSettings(
        lock=LockSettings(validity_s=VALIDITY_S, renew_s=RENEW_S, timeout_s=LOCK_TIMEOUT_S),
        heartbeat=HeartbeatSettings(interval_s=BEAT_S, misses=MISSES),
    )
