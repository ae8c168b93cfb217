"""`LockProvider`: lock with the interface of Hudi's provider.

Source: `LockProvider`, `StorageBasedLockProvider` of Hudi 1.2.0.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import Any, TypeVar

from fsspec_cas import CasError, Store, check_url
from lockprovider.errors import InvalidSettings, LeaseLost, LockError, NotAcquired
from lockprovider.hudi_keys import MANAGED_IDENTITY
from lockprovider.settings import LockSettings, Options, checked, from_config, from_url
from lockprovider.storage_lock.audit_log import AuditLog
from lockprovider.storage_lock.lease import Lease, OnLost
from lockprovider.storage_lock.lock import Lock, wait_s
from lockprovider.storage_lock.metrics import OnMetric
from lockprovider.storage_lock.record import HUDI_LOCK_PATH, LockRecord

L = TypeVar("L")
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class LockPlace:
    """Place of a lock; `settings` None: defaults."""

    url: str
    store: Store
    path: str
    settings: LockSettings | None

    def __str__(self) -> str:
        return f"{self.url.rstrip('/')}/{self.path}"

    def over(self, *, timeout: float | None, validity: float | None, max_hold: float | None) -> LockPlace:
        """Return a copy with those times that are not None; a `renew` of a tenth of the validity stays one.

        Raises `InvalidSettings` for an invalid one.
        """
        times = {"timeout": timeout, "validity": validity, "max_hold": max_hold}
        named: dict[str, Any] = {name: value for name, value in times.items() if value is not None}
        settings = self.settings or LockSettings()
        wait_s(timeout, settings.timeout)
        if validity is not None and settings.renew == LockSettings(settings.validity).renew:
            named["renew"] = None
        return dataclasses.replace(self, settings=dataclasses.replace(settings, **named)) if named else self

    def open(self, kind: Callable[..., L], *, on_lost: OnLost | None = None, on_metric: OnMetric | None = None) -> L:
        audit = AuditLog(self.store, self.path)
        return kind(self.store, self.path, self.settings, on_lost=on_lost, on_metric=on_metric, audit=audit)


def locate(
    url: str | os.PathLike[str],
    *,
    on: str | os.PathLike[str] | None = None,
    settings: LockSettings | None = None,
    storage_options: dict[str, Any] | None = None,
) -> LockPlace:
    """Open the URL's store; return its lock's place. Raises as `lockprovider.lock`."""
    return _place(from_url(check_url(url)), on, settings, storage_options)


class LockProvider:
    """One client of one table's lock. Thread-safe; `try_lock` and `unlock` belong to the calling thread.

        with LockProvider.from_config({"hoodie.base.path": "s3://bucket/table"}) as provider:
            if provider.try_lock(timeout=60):
                try:
                    ...
                finally:
                    provider.unlock()

    Promises and errors as `Lock`. Unlike in Hudi, its threads exclude each other, and an inner `unlock` does not free
    the outer `try_lock`. A forked child or a pickled copy is another client.

    >>> provider = lockprovider.LockProvider.from_url("memory://docs/table")
    """

    def __init__(self, lock: Lock) -> None:
        if not isinstance(lock, Lock):
            raise InvalidSettings(
                f"lock={lock!r} must be a Lock: use LockProvider.from_url(url) or from_config(config)"
            )
        self._lock = lock
        self._lease: Lease | None = None
        self._closed = False

    @classmethod
    def from_url(
        cls,
        url: str | os.PathLike[str],
        storage_options: dict[str, Any] | None = None,
        *,
        on: str | os.PathLike[str] | None = None,
        settings: LockSettings | None = None,
        on_lost: OnLost | None = None,
        on_metric: OnMetric | None = None,
    ) -> LockProvider:
        """Open the provider of the table (or any folder) at `url`; options and errors as `lockprovider.lock`.

        >>> lockprovider.LockProvider.from_url("memory://docs/other?validity=60").close()
        """
        place = locate(url, on=on, settings=settings, storage_options=storage_options)
        return cls(place.open(Lock, on_lost=on_lost, on_metric=on_metric))

    @classmethod
    def from_config(
        cls,
        config: Mapping[str, object],
        storage_options: dict[str, Any] | None = None,
        *,
        on_lost: OnLost | None = None,
        on_metric: OnMetric | None = None,
    ) -> LockProvider:
        """Open the provider that a Hudi writer's config describes, with Hudi's names, defaults and bounds.

        It reads `hoodie.base.path` (required) and the lock's keys; see `LockSettings.from_hudi`. On Azure
        `hoodie.write.lock.azure.*` are the credentials.

        Raises:
            InvalidSettings: a setting is missing, unknown, out of range, or contradicts another.
            CasError: the base path cannot be opened.

        >>> config = {
        ...     "hoodie.base.path": "memory://docs/table",
        ...     "hoodie.write.lock.provider": "org.apache.hudi.client.transaction.lock.StorageBasedLockProvider",
        ... }
        >>> lockprovider.LockProvider.from_config(config).try_lock()
        True
        """
        place = _place(from_config(config), None, None, storage_options)
        return cls(place.open(Lock, on_lost=on_lost, on_metric=on_metric))

    def __repr__(self) -> str:
        return f"<LockProvider of {self._lock!r}>"

    def __getstate__(self) -> dict[str, object]:
        return {"_lock": self._lock, "_lease": None, "_closed": self._closed}

    def try_lock(self, timeout: float = 0.0) -> bool:
        """Take the lock within `timeout` seconds; False if another client or thread still holds it then.

        The holding thread gets True, and must unlock once more.

        Raises:
            LeaseLost: this thread's lease is lost: unlock first.
            LockError: this provider is closed.

        >>> provider.try_lock(timeout=10)
        True
        """
        timeout = wait_s(timeout, 0.0)
        if self._closed:
            raise LockError(f"the LockProvider of {self._lock.path!r} is closed: create a new one")
        try:
            self._lease = self._lock.acquire(timeout)
        except NotAcquired:
            return False
        return True

    def unlock(self) -> None:
        """Release the lock; without a lock, or after `close`, it does nothing.

        Raises:
            LeaseLost: the lease was lost before.
            LockError: another thread holds the lock.
            CasError: the store failed; the lease lapses by itself.

        >>> provider.try_lock() and provider.unlock()
        >>> provider.get_lock() is None
        True
        """
        lease = self._lease
        if lease is None or lease.released:
            return
        self._lock.release()
        if lease.lost.is_set():
            lease.check()

    def get_lock(self) -> LockRecord | None:
        """Held lease's record, without a request; None without a lease.

        >>> provider.try_lock() and provider.get_lock().expired
        False
        """
        if self._lease is None or self._lease.lost.is_set():
            return None
        with contextlib.suppress(LeaseLost):
            return self._lease.record
        return None

    @property
    def lease(self) -> Lease | None:
        """Lease of the last `try_lock`, for `check` and `publish`."""
        return self._lease

    def close(self) -> None:
        """Release the lock, whichever thread holds it; later `try_lock` calls raise.

        >>> provider.close()
        """
        self._closed = True
        while self._lease is not None and not self._lease.released:
            self._lease.release()

    def __enter__(self) -> LockProvider:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            return self.close()
        with contextlib.suppress(CasError, LockError):
            self.close()
        return None


def _place(
    options: Options,
    on: str | os.PathLike[str] | None,
    settings: LockSettings | None,
    storage_options: dict[str, Any] | None,
) -> LockPlace:
    """Open the store, and combine the URL's options with the arguments, whose `storage_options` win.

    If neither has `on`, the path is Hudi's. Raises `InvalidSettings` if `on` or `settings` contradict the URL's, or
    `on` is no path below the URL.
    """
    path_given = _one_of("on", options.on, os.fspath(on) if isinstance(on, os.PathLike) else on)
    path = HUDI_LOCK_PATH if path_given is None else path_given
    if not isinstance(path, str) or not path or any(part in ("", ".", "..") for part in path.split("/")):
        raise InvalidSettings(f"on={path!r} must be the path of an object below the URL, such as 'jobs/nightly.json'")
    chosen = _one_of("settings", options.settings, None if settings is None else checked(settings))
    options_given = {**_with_credential(options.storage_options), **(storage_options or {})} or None
    return LockPlace(options.url, Store.from_url(options.url, options_given), path, chosen)


def _with_credential(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return a copy with a managed identity's id replaced by its Azure credential.

    Raises `InvalidSettings` if its package is missing.
    """
    storage_options = dict(options)
    identity = storage_options.pop(MANAGED_IDENTITY, None)
    if identity is not None:
        try:
            from azure.identity.aio import ManagedIdentityCredential  # noqa: PLC0415 - an optional dependency
        except ImportError as error:
            raise InvalidSettings(
                "a managed identity needs a package that is not installed: run `pip install azure-identity`"
            ) from error
        storage_options["credential"] = ManagedIdentityCredential(client_id=identity)
    return storage_options


def _one_of(name: str, in_url: T | None, argument: T | None) -> T | None:
    if in_url is not None and argument is not None and in_url != argument:
        raise InvalidSettings(f"{name}={argument!r} contradicts the URL, which has {in_url!r}: give only one of them")
    return argument if in_url is None else in_url
