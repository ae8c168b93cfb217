"""Leases, fenced publishes and other protocols built on conditional writes.

```python
import lockprovider

with lockprovider.lock("s3://bucket/table") as lease:
    lease.check()
    lease.publish("state/7", b"...")
```
"""

from __future__ import annotations

import os
from importlib import import_module
from typing import TYPE_CHECKING, Any

from fsspec_cas.bridge.threads import on_thread
from lockprovider.errors import (
    Holder,
    InvalidSettings,
    LeaseLost,
    LockError,
    LossReason,
    MalformedRecord,
    NotAcquired,
    NotPicklable,
    PublishUnknown,
    Unappliable,
)
from lockprovider.settings import LockSettings
from lockprovider.storage_lock.async_lock import Acquiring, AsyncLease, AsyncLock
from lockprovider.storage_lock.audit_log import AuditLog
from lockprovider.storage_lock.commit_rules import Decided, Decider, Hold, Intent, JudgeAnew, Void
from lockprovider.storage_lock.lease import Lease, OnLost, until_signal
from lockprovider.storage_lock.lock import Lock
from lockprovider.storage_lock.metrics import Counters, Measure, OnMetric
from lockprovider.storage_lock.provider import LockProvider, locate
from lockprovider.storage_lock.record import HUDI_LOCK_PATH, LockRecord, Log, Pending
from lockprovider.storage_lock.record import Entry as LogEntry
from lockprovider.storage_lock.status import JVM_HOLDS, JVM_STARVES, LockStatus

if TYPE_CHECKING:
    from lockprovider import election, queue, state, wal

__all__ = [
    "HUDI_LOCK_PATH",
    "JVM_HOLDS",
    "JVM_STARVES",
    "AsyncLease",
    "AsyncLock",
    "AuditLog",
    "Counters",
    "Decided",
    "Decider",
    "Hold",
    "Holder",
    "Intent",
    "InvalidSettings",
    "JudgeAnew",
    "Lease",
    "LeaseLost",
    "Lock",
    "LockError",
    "LockProvider",
    "LockRecord",
    "LockSettings",
    "LockStatus",
    "Log",
    "LogEntry",
    "LossReason",
    "MalformedRecord",
    "Measure",
    "NotAcquired",
    "NotPicklable",
    "Pending",
    "PublishUnknown",
    "Unappliable",
    "Void",
    "async_lock",
    "election",
    "lock",
    "queue",
    "state",
    "until_signal",
    "wal",
]


def __getattr__(name: str) -> Any:
    """Import a recipe's module, or read `__version__`."""
    if name == "__version__":
        from importlib.metadata import version  # noqa: PLC0415 - slow to import

        return version("fsspec-cas")
    if name in ("election", "queue", "state", "wal"):
        return import_module(f"{__name__}.{name}")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def lock(
    url: str | os.PathLike[str],
    *,
    on: str | os.PathLike[str] | None = None,
    timeout: float | None = None,
    validity: float | None = None,
    max_hold: float | None = None,
    settings: LockSettings | None = None,
    storage_options: dict[str, Any] | None = None,
    on_lost: OnLost | None = None,
    on_metric: OnMetric | None = None,
) -> Lock:
    """Open a client of a table's (or folder's) lock at `url`; acquires nothing.

    May look for credentials; sends the store nothing.

    >>> with lockprovider.lock("memory://docs/lock", timeout=10) as lease:
    ...     lease.publish("state/7", b"seven")
    >>> nightly = lockprovider.lock("memory://docs/lock", on="jobs/nightly.json")
    >>> lease = nightly.acquire(blocking=False)
    >>> nightly.locked(), nightly.status().record.owner == lease.owner
    (True, True)
    >>> nightly.release()

    Times are seconds and override `settings`. Options may follow the URL:
    `s3://bucket/x?on=nightly.json&validity=60&renew=5&timeout=10&poll=0.5&max_hold=3600&check_store=false`.

    Args:
        url: fsspec URL or local path.
        on: the object's path below `url`. The default, Hudi's, excludes JVM writers too.
        timeout: how long `acquire` and `with` wait (default 60).
        validity: see `LockSettings` (default 300).
        max_hold: see `LockSettings`.
        settings: these values, to share among locks.
        storage_options: fsspec's.
        on_lost: called in the thread that notices a loss.
        on_metric: called with each `Measure`.

    Raises:
        InvalidSettings: an option is unknown, out of range, or has two values.
        CasError: the URL cannot be opened.
    """
    place = locate(url, on=on, settings=settings, storage_options=storage_options)
    place = place.over(timeout=timeout, validity=validity, max_hold=max_hold)
    return place.open(Lock, on_lost=on_lost, on_metric=on_metric)


def async_lock(
    url: str | os.PathLike[str],
    *,
    on: str | os.PathLike[str] | None = None,
    timeout: float | None = None,
    validity: float | None = None,
    max_hold: float | None = None,
    settings: LockSettings | None = None,
    storage_options: dict[str, Any] | None = None,
    on_lost: OnLost | None = None,
    on_metric: OnMetric | None = None,
) -> Acquiring:
    """Acquire a lock in a task, by `async with` or `await`.

    Arguments as `lock`; `on_lost` is called on the event loop. `AsyncLock` describes cancellation.

    Raises (when awaited or entered):
        NotAcquired: another client held the lock for `timeout` seconds.
        InvalidSettings, CasError: see `lock`.

    >>> async with lockprovider.async_lock("memory://docs/lock", timeout=10) as lease:
    ...     await lease.publish("state/7", b"seven")
    """

    async def take() -> AsyncLease:
        located = await on_thread(lambda: locate(url, on=on, settings=settings, storage_options=storage_options))
        place = located.over(timeout=timeout, validity=validity, max_hold=max_hold)
        return await place.open(AsyncLock, on_lost=on_lost, on_metric=on_metric).acquire()

    return Acquiring(take)
