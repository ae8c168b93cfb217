"""Whether a store must prove that it obeys conditions before a lock is kept in it, and whether it has done so.

The S3 API is spoken by many stores, and some of them say 200 to a condition that does not hold. Amazon S3, GCS, Azure,
local files and memory are documented, and not asked.
"""

from __future__ import annotations

from typing import ClassVar

from fsspec_cas.async_store import AsyncStore
from fsspec_cas.backends import off_thread
from fsspec_cas.bridge.drive import OnLoop, drive_of
from fsspec_cas.clock import Machine
from fsspec_cas.deletes import undocumented
from fsspec_cas.given import seconds
from fsspec_cas.store import Store

_TIMEOUT_S = 30.0


class _Proved:
    """What this process has seen. An endpoint is the same for all of it, so what was seen belongs to all of it."""

    buckets: ClassVar[set[tuple[str, str]]] = set()


def require_safe_for_locks(store: Store, *, timeout: float = _TIMEOUT_S) -> None:
    """Let an undocumented S3 endpoint prove, once in a process for each bucket, that it refuses what it must.

    Creates and matches race in pairs, their last bytes held back where the client can. Costs 56 requests, in ten
    steps, on objects of its own below the store's root, which are removed again; none after the first time, and none
    ever for Amazon S3, GCS, Azure, local files and memory. `timeout` is for all of it, and 3 s more at most. Not
    promised: that a store which passed is right, see `fsspec_cas.probe`.

    Raises:
        NotSupported: the store ignores a condition, or two writers won. A lock kept there would have two holders.
        StoreError: the store cannot be used; `Unavailable`: it did not answer in time.

    >>> require_safe_for_locks(Store.from_url("memory://docs"))  # documented, so nothing is asked
    """
    if store.kind != "s3":
        return
    place = drive_of(Machine(), blocking=store.backend.blocking).run(
        undocumented(store.backend, store.root, seconds(timeout))
    )
    if place is None or place in _Proved.buckets:
        return
    from fsspec_cas.probe.race import require_conditions  # noqa: PLC0415 - documented stores prove nothing

    racing = AsyncStore(off_thread(store.backend), store.root)
    OnLoop().run(require_conditions(racing, timeout=timeout))
    _Proved.buckets.add(place)
