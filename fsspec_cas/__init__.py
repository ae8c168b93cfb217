"""Conditional writes with a reliable outcome, on every fsspec filesystem.

    from fsspec_cas import Store, Won
    store = Store.from_url("s3://bucket/folder")
    if isinstance(store.put_if_absent("leader.json", b"me"), Won): ...

Start with `Store` or `AsyncStore`.
"""

from typing import Any

from fsspec_cas.answer import Capabilities, Content, Entry, Info
from fsspec_cas.arguments import Bytes, check_bytes, check_path
from fsspec_cas.async_store import AsyncStore
from fsspec_cas.cached import AsyncCached, Cached
from fsspec_cas.errors import (
    AccessDenied,
    AlreadyExists,
    BucketNotFound,
    CasError,
    InvalidInput,
    InvalidUrl,
    InvalidVersion,
    NotBytes,
    NotSupported,
    ObjectNotFound,
    OutcomeUnknown,
    Refused,
    StoreError,
    Unavailable,
    VersionMismatch,
)
from fsspec_cas.machine import Machine, World
from fsspec_cas.outcome import ABSENT, Absent, Condition, Lost, Outcome, Unknown, Version, Won
from fsspec_cas.probe.proof import require_safe_for_locks
from fsspec_cas.store import Store
from fsspec_cas.urls import check_url

__all__ = [
    "ABSENT",
    "Absent",
    "AccessDenied",
    "AlreadyExists",
    "AsyncCached",
    "AsyncStore",
    "BucketNotFound",
    "Bytes",
    "Cached",
    "Capabilities",
    "CasError",
    "Condition",
    "Content",
    "Entry",
    "Info",
    "InvalidInput",
    "InvalidUrl",
    "InvalidVersion",
    "Lost",
    "Machine",
    "NotBytes",
    "NotSupported",
    "ObjectNotFound",
    "Outcome",
    "OutcomeUnknown",
    "Refused",
    "Store",
    "StoreError",
    "Unavailable",
    "Unknown",
    "Version",
    "VersionMismatch",
    "Won",
    "World",
    "check_bytes",
    "check_path",
    "check_url",
    "require_safe_for_locks",
]


def __getattr__(name: str) -> Any:
    """Only `__version__` is loaded on demand."""
    if name == "__version__":
        from importlib.metadata import version  # noqa: PLC0415 - slow

        return version("fsspec-cas")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
