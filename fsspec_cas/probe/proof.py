"""Whether a store must prove that it obeys conditions before a lock is kept in it, and whether it has done so.

The S3 API is spoken by many stores, and some of them say 200 to a condition that does not hold. Amazon S3, GCS, Azure,
local files and memory are documented, and not asked.
"""

from __future__ import annotations

import asyncio
from typing import ClassVar, Protocol, runtime_checkable
from urllib.parse import urlsplit

from fsspec_cas.async_store import AsyncStore
from fsspec_cas.backends import off_thread
from fsspec_cas.bridge.drive import OnLoop
from fsspec_cas.errors import Unavailable
from fsspec_cas.given import seconds
from fsspec_cas.store import Store

_TIMEOUT_S = 30.0
_AMAZON = ("amazonaws.com", "amazonaws.com.cn", "api.aws")


@runtime_checkable
class _Endpointed(Protocol):
    async def endpoint(self) -> str:
        """The URL that requests go to."""


class _Proved:
    """What this process has seen. An endpoint is the same for all of it, so what was seen belongs to all of it."""

    buckets: ClassVar[set[tuple[str, str]]] = set()


def require_safe_for_locks(store: Store, *, timeout: float = _TIMEOUT_S) -> None:
    """Let an undocumented S3 endpoint prove, once in a process for each bucket, that it refuses what it must.

    Costs five requests on an object of its own below the store's root, which is removed again; none after the first
    time, and none ever for Amazon S3, GCS, Azure, local files and memory. `timeout` is for all of it, and 3 s more at
    most. Not promised: that a store which passed is right, see `fsspec_cas.probe`.

    Raises:
        NotSupported: the store ignores a condition. A lock kept there would have two holders.
        StoreError: the store cannot be used; `Unavailable`: it did not answer in time.

    >>> require_safe_for_locks(Store.from_url("memory://docs"))  # documented, so nothing is asked
    """
    if store.kind != "s3" or not isinstance(store.backend, _Endpointed):
        return
    asking = AsyncStore(off_thread(store.backend), store.root)
    OnLoop().run(_prove_once(asking, store.backend, seconds(timeout)))


async def _prove_once(store: AsyncStore, backend: _Endpointed, timeout: float) -> None:
    try:
        endpoint = await asyncio.wait_for(backend.endpoint(), timeout)
    except asyncio.TimeoutError:
        raise Unavailable(f"no client of the store of {store.root!r} could be made within {timeout:g} s") from None
    place = (endpoint, store.root.partition("/")[0])
    if documented(endpoint) or place in _Proved.buckets:
        return
    from fsspec_cas.probe.probe import require_refusals  # noqa: PLC0415 - documented stores prove nothing

    await require_refusals(store, timeout=timeout)
    _Proved.buckets.add(place)


def documented(endpoint: str) -> bool:
    """Whether this is Amazon's own S3, in any region and through any of its gateways."""
    host = urlsplit(endpoint).hostname or ""
    return any(host == amazon or host.endswith(f".{amazon}") for amazon in _AMAZON)
