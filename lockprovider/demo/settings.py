"""The demonstration's table, and how its writers behave."""

from __future__ import annotations

from lockprovider import LockSettings
from lockprovider.demo import flights
from lockprovider.table import HeartbeatSettings, TableSettings, TableSpec

VALIDITY_S = 30.0
RENEW_S = 3.0
LOCK_TIMEOUT_S = 120.0
BEAT_S = 3.0
MISSES = 5


def table_settings() -> TableSettings:
    """Short times, so that a killed pipeline is noticed while people watch; the same for every process.

    A real table keeps the defaults, which are Hudi's.
    """
    return TableSettings(
        lock=LockSettings(validity=VALIDITY_S, renew=RENEW_S, timeout=LOCK_TIMEOUT_S),
        heartbeat=HeartbeatSettings(interval_s=BEAT_S, misses=MISSES),
    )


def table_spec(*, is_merge_on_read: bool = False) -> TableSpec:
    """The flights by key, partitioned by month."""
    return TableSpec(
        name=flights.TABLE_NAME,
        schema=flights.SCHEMA,
        record_keys=flights.KEYS,
        partition_by=(flights.PARTITION,),
        table_type="merge_on_read" if is_merge_on_read else "copy_on_write",
    )
