"""Leases, fenced publish and other protocols built on conditional writes.

import lockprovider
with lockprovider.lock("s3://bucket/table") as lease:
    lease.check()
    lease.publish("state/7", b"...")
"""

from __future__ import annotations

import asyncio
from functools import partial
from typing import TYPE_CHECKING, Any

from lockprovider.aio import Acquiring, AsyncLease, AsyncLock
from lockprovider.client.lease import Lease, OnLost
from lockprovider.client.lock import Lock
from lockprovider.client.provider import LockProvider, locate, open_lock
from lockprovider.errors import (
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
from lockprovider.group.combine import Decided, Decider, Hold, JudgeAnew, Void
from lockprovider.group.intent import Intent
from lockprovider.observe.audit_log import AuditLog
from lockprovider.observe.metrics import Counters, Measure, OnMetric
from lockprovider.observe.status import JVM_HOLDS
from lockprovider.record.commit_log import Entry as LogEntry
from lockprovider.record.commit_log import Log
from lockprovider.record.pending import Pending
from lockprovider.record.record import HUDI_LOCK_PATH, Holder, LockRecord
from lockprovider.settings import LockSettings

if TYPE_CHECKING:
    from lockprovider import queue, state

__all__ = [
    "HUDI_LOCK_PATH",
    "JVM_HOLDS",
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
    "lock",
    "open_lock",
    "queue",
    "state",
]


def __getattr__(name: str) -> Any:
    """What is imported only when it is used: the recipes."""
    found: Any = None
    if name == "state":
        import lockprovider.state as found  # noqa: PLC0415 - see above
    elif name == "queue":
        import lockprovider.queue as found  # noqa: PLC0415
    if found is not None:
        return found
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def lock(
    url: str,
    *,
    on: str | None = None,
    timeout_s: float | None = None,
    settings: LockSettings | None = None,
    storage_options: dict[str, Any] | None = None,
    on_lost: OnLost | None = None,
    on_metric: OnMetric | None = None,
) -> Lease:
    """Take the lock of the table (or any folder) at `url`; use it as `with lockprovider.lock(url) as lease:`.

    `on` is the lock object's path below `url`; the default is Hudi's, so JVM Hudi writers and this one exclude each
    other. `on_lost` is called from the heartbeat's thread; `on_metric` gets what
    `lockprovider.observe.metrics` lists. Options may stand behind the URL: see `open_lock`.

    Raises:
        NotAcquired: it was held by others for `timeout_s` seconds (default 60).
        InvalidSettings: an option does not fit.
        CasError: the URL or the store failed.
    """
    place = locate(url, on=on, settings=settings, storage_options=storage_options)
    return place.open(Lock, on_lost=on_lost, on_metric=on_metric).acquire(timeout_s)


def async_lock(
    url: str,
    *,
    on: str | None = None,
    timeout_s: float | None = None,
    settings: LockSettings | None = None,
    storage_options: dict[str, Any] | None = None,
    on_lost: OnLost | None = None,
    on_metric: OnMetric | None = None,
) -> Acquiring:
    """The same for tasks: `async with lockprovider.async_lock(url) as lease:`, or `lease = await ...`.

    `on_lost` is called on the event loop. See `lockprovider.aio` for what a cancellation does.

    Raises (when awaited or entered):
        NotAcquired: it was held by others for `timeout_s` seconds (default 60).
        InvalidSettings: an option does not fit.
        CasError: the URL or the store failed.
    """
    find = partial(locate, url, on=on, settings=settings, storage_options=storage_options)

    async def take() -> AsyncLease:
        place = await asyncio.to_thread(find)
        return await place.open(AsyncLock, on_lost=on_lost, on_metric=on_metric).acquire(timeout_s)

    return Acquiring(take)
