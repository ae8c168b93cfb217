"""Terraform's and OpenTofu's own S3 lock file (`use_lockfile = true`): `<key>.tflock`, with their LockInfo.

    lock = lockprovider.state.TfLock.open("s3://bucket/infra/network.tfstate")
    held = lock.acquire(operation="migration", timeout=60)
    ...
    lock.unlock(held)

Promised. Who holds it excludes every run of theirs that locks the same key, and is excluded by it. A lock whose answer
was lost is known as one's own (theirs names itself as the one that is in its way). `unlock` removes the very file that
was shown, and no newer one: theirs looks, and then removes whatever is there.

Needed: a store that keeps the condition of a delete; MinIO and Ceph do not, so the lock is refused there.

Not promised. It has no lease: of a holder that died it stays until somebody unlocks it. Their write of the state stays
unconditional, so nothing stops a run whose lock was removed under it; `lockprovider state run` does.

Source: internal/backend/remote-state/s3/client.go, internal/states/statemgr/locker.go (Terraform 1.11, OpenTofu 1.10).
"""

from __future__ import annotations

import contextlib
import json
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import Any

from fsspec_cas import (
    CasError,
    InvalidInput,
    Machine,
    Outcome,
    Store,
    StoreError,
    Unknown,
    Version,
    Won,
    World,
    check_path,
    require_safe_for_locks,
)
from fsspec_cas.given import check_text, seconds
from fsspec_cas.sender import delay_s
from lockprovider.bounded import parse_object
from lockprovider.recipes.errors import StateConflict, StateLocked
from lockprovider.recipes.place import me, open_at, repr_at

_TIMEOUT_S = 60.0
_SUFFIX = ".tflock"
_LARGEST = 1 << 20  # bytes


@dataclass(frozen=True, slots=True)
class TfLockFile:
    """A lock file as it was seen. What is no LockInfo has an empty `id`; it locks all the same, as it does for them.

    >>> lock = lockprovider.state.TfLock.open("memory://docs/network.tfstate")
    >>> mine = lock.acquire(operation="apply")
    >>> mine.operation
    'apply'
    """

    id: str
    who: str
    operation: str
    info: str
    created: str
    version: Version


class TfLock:
    """The lock file of one state. Thread-safe. `path` is the state's, `timeout` (s) for each request with its tries.

    >>> lock = lockprovider.state.TfLock.open("memory://docs/network.tfstate")
    >>> mine = lock.acquire(operation="apply", timeout=60)
    """

    def __init__(self, store: Store, path: str, *, timeout: float = _TIMEOUT_S, world: World | None = None) -> None:
        if not isinstance(store, Store):
            raise InvalidInput(f"store={store!r} must be a Store: give Store.from_url(url), or use TfLock.open(url)")
        self.path = f"{check_path(path)}{_SUFFIX}"
        self.world = world or Machine()
        self._store = store
        self._timeout_s = seconds(timeout)

    @classmethod
    def open(cls, url: str, *, storage_options: dict[str, Any] | None = None, **options: Any) -> TfLock:
        """That of the state at a URL: `bucket` and `key` of their configuration; nothing is asked of the store yet.

        Raises:
            InvalidInput: the URL cannot be understood or names no object, or an option does not fit.

        >>> lockprovider.state.TfLock.open("memory://docs/network.tfstate").path
        'network.tfstate.tflock'
        """
        return open_at(cls, url, storage_options, options)

    def __repr__(self) -> str:
        return repr_at(self, self._store, self.path)

    def shown(self) -> TfLockFile | None:
        """Who has it; None: nobody.

        Raises:
            StoreError: the store did not answer.

        >>> lock.shown() == mine
        True
        """
        content = self._store.read_or_none(self.path, timeout=self._timeout_s)
        return None if content is None else _decoded(content.data, content.version)

    def acquire(self, *, operation: str = "", info: str = "", timeout: float = 0.0) -> TfLockFile:
        """Take it, waiting `timeout` seconds for others; `operation` and `info` are shown to those who wait.

        Raises:
            StateLocked: others had it until then; `reason` says what for.
            OutcomeUnknown: the store was silent, and the file may yet come to be: look with `shown`, and unlock it.
            NotSupported: this store deletes whatever the version is, so that the lock could not be given back safely.
            StoreError: it was not taken.

        >>> lock.acquire()
        Traceback (most recent call last):
        ...
        lockprovider.recipes.errors.StateLocked: ...
        """
        check_text(operation, "operation")
        check_text(info, "info")
        folder = self.path.rpartition("/")[0]
        store = self._store.below(folder) if folder else self._store
        require_safe_for_locks(store)
        store.require_conditional_delete(timeout=self._timeout_s)  # else it could not be given back
        deadline_s, tries = self.world.monotonic_s() + seconds(timeout), 0
        mine = self.world.new_id()
        data = self._encoded(mine, operation, info)
        try:
            while True:
                outcome = self._store.put_if_absent(self.path, data, timeout=self._timeout_s)
                if isinstance(outcome, Won):
                    return _decoded(data, outcome.version)
                there = self._looked(outcome)
                if there is not None and there.id == mine:
                    return there
                tries += 1
                left_s = deadline_s - self.world.monotonic_s()
                if left_s <= 0:
                    if isinstance(outcome, Unknown):
                        outcome.unwrap()
                    raise _locked(self.path, there)
                self.world.sleep(min(left_s, delay_s(tries, self.world.random())))
        except KeyboardInterrupt:  # it has no lease: what was taken would stay
            with contextlib.suppress(CasError, StateConflict):
                there = self.shown()
                if there is not None and there.id == mine:
                    self.unlock(there)
            raise

    def unlock(self, shown: TfLockFile) -> bool:
        """Remove the very file that was shown; False: it was gone already.

        Raises:
            StateConflict: another has it by now; it was left.
            NotSupported, StoreError: it was not removed.

        >>> lock.unlock(mine), lock.shown()
        (True, None)
        """
        if not isinstance(shown, TfLockFile):
            raise InvalidInput(f"shown={shown!r} must be what shown() or acquire() has returned")
        deadline_s = self.world.monotonic_s() + self._timeout_s
        tries = 0
        while True:
            outcome = self._store.delete_if_match(self.path, shown.version, timeout=self._timeout_s)
            if isinstance(outcome, Won):
                return True
            there = self.shown()
            if there is None:
                return isinstance(outcome, Unknown)  # it was there, and who removed it cannot be told
            if there.version != shown.version:
                raise StateConflict(f"{self.path!r} is not what was shown: {_words(there)} has it; look again")
            tries += 1
            if self.world.monotonic_s() > deadline_s:
                outcome.unwrap()
            self.world.sleep(delay_s(tries, self.world.random()))

    def _looked(self, outcome: Outcome) -> TfLockFile | None:
        """A refusal is never believed without a look: it may be of the own second copy."""
        try:
            return self.shown()
        except StoreError:
            if isinstance(outcome, Unknown):
                outcome.unwrap()
            raise

    def _encoded(self, identity: str, operation: str, info: str) -> bytes:
        created = datetime.fromtimestamp(self.world.now_ms() / 1000, tz=timezone.utc).isoformat()
        said = {"ID": identity, "Operation": operation or "lockprovider", "Info": info, "Who": me(), "Version": ""}
        return json.dumps({**said, "Created": created, "Path": self.path.removesuffix(_SUFFIX)}).encode()


def _decoded(data: bytes, version: Version) -> TfLockFile:
    try:
        said = parse_object(data, most=_LARGEST)
    except ValueError:
        said = {}
    identity, who, what, info, created = (
        str(said.get(name) or "") for name in ("ID", "Who", "Operation", "Info", "Created")
    )
    return TfLockFile(identity, who, what, info, created, version)


def _words(there: TfLockFile) -> str:
    about = " ".join(word for word in (there.operation, there.info) if word)
    return f"{there.who or 'somebody'} (ID {there.id or 'not said'}{', ' + about if about else ''})"


def _locked(path: str, there: TfLockFile | None) -> StateLocked:
    if there is None:
        return StateLocked(f"others had {path!r} whenever it was asked for")
    said = f"{path!r} is held by {_words(there)} since {there.created or 'nobody knows when'}"
    return StateLocked(f"{said}; it has no lease: if that is dead, unlock it", there.who, 0, there.operation)
