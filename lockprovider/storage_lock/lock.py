"""`Lock`, as `lockprovider.lock` opens it."""

from __future__ import annotations

import os
import threading
from types import TracebackType
from typing import Any

from fsspec_cas import (
    CasError,
    InvalidInput,
    Machine,
    Store,
    World,
    check_bytes,
    check_path,
    require_safe_for_locks,
)
from fsspec_cas.arguments import check_flag, check_seconds
from fsspec_cas.machine import Signal, ends_with
from lockprovider.errors import InvalidSettings, LockError, NotAcquired, NotPicklable
from lockprovider.settings import LockSettings, check_functions, checked
from lockprovider.storage_lock.acquire import FifoTurn, Wish, acquire, note_lease, warn_if_waiting_for_itself
from lockprovider.storage_lock.audit_log import AuditLog
from lockprovider.storage_lock.client import Client, add_details
from lockprovider.storage_lock.commit_rules import Decider, Intent
from lockprovider.storage_lock.commit_writes import CommitAnswer
from lockprovider.storage_lock.driver import LAST_S, REQUEST_S, RecordFile
from lockprovider.storage_lock.lease import Lease, OnLost
from lockprovider.storage_lock.metrics import OnMetric
from lockprovider.storage_lock.record import HUDI_LOCK_PATH, LockRecord, Pending
from lockprovider.storage_lock.status import LockStatus, look

_FREED_S = 0.25


def wait_s(timeout: Any, default_s: float) -> float:
    if timeout is None:
        return default_s
    try:
        return check_seconds(timeout)
    except InvalidInput as error:
        raise InvalidSettings(str(error)) from None


class Lock:
    """One client of one lock. Its threads exclude each other; the holding thread may acquire again.

    Clients of one process (same store, path and options) are served in the order of asking; only the first reads the
    store. Across processes no order is promised.

    Methods that send requests raise `CasError` if the store failed, and `MalformedRecord` if the object at `path` is no
    lock record. `world` supplies time, randomness and ids; `audit` writes Hudi's audit records.

    >>> lock = lockprovider.Lock(Store.from_url("memory://docs/table"))
    >>> lock
    <Lock 'memory:///docs/table/.hoodie/.locks/table_lock.json', not held by this client>
    """

    def __init__(
        self,
        store: Store,
        path: str = HUDI_LOCK_PATH,
        settings: LockSettings | None = None,
        *,
        world: World | None = None,
        on_lost: OnLost | None = None,
        on_metric: OnMetric | None = None,
        audit: AuditLog | None = None,
    ) -> None:
        """Raises `InvalidSettings`, or `InvalidInput` for `path`; sends no request."""
        self.path = check_path(path)
        self.settings = checked(settings)
        check_functions(on_lost=on_lost, on_metric=on_metric)
        if not isinstance(store, Store):
            raise InvalidSettings(
                f"store={store!r} must be a Store: give Store.from_url(url), or use lockprovider.lock(url)"
            )
        self._store = store
        self._world = world or Machine()
        self._on_lost = on_lost
        self._on_metric = on_metric
        self._audit = audit
        self._store_is_safe = False
        self._kept = (*vars(self), "_kept")
        self._be_new()

    def __getstate__(self) -> dict[str, Any]:
        lease = self._client.lease
        if lease is not None and not lease.released:
            raise NotPicklable(
                f"the lock {self.path!r} is held by this process, and a lease cannot go to another process: "
                "release the lock first, or pickle it before it is acquired"
            )
        return {name: getattr(self, name) for name in self._kept}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        self._be_new()

    def _be_new(self) -> None:
        self._client = Client(
            self._store, self.path, self.settings, self._world, on_metric=self._on_metric, audit=self._audit
        )
        self._looking = threading.Lock()
        self._looked_at = RecordFile(self._store, self.path, self._world)
        self._held: Lease | None = None

    def _of_this_process(self) -> Client:
        """Return the client; after a fork a new one, as both would own the lock."""
        if self._client.me.pid != os.getpid():
            self._be_new()
        return self._client

    @property
    def world(self) -> World:
        return self._world

    @property
    def owner(self) -> str:
        """This client's UUID in the lock record."""
        return self._of_this_process().owner

    @property
    def url(self) -> str:
        """URL of the lock record, for people."""
        return self._client.where

    def __repr__(self) -> str:
        lease = self._held
        state = "not held by this client" if lease is None or lease.released else "held"
        return f"<Lock {self._client.where!r}, {state}>"

    def acquire(self, timeout: float | None = None, *, blocking: bool = True, keeps_log: bool = False) -> Lease:
        """Wait for the lock for at most `timeout` seconds (default: the settings'). If not `blocking`, try once.

        An unanswered request gets at most 10 s more. The client first applies pending publishes. `keeps_log` is your
        promise: only this lease's publishes change what the lock protects.

        Raises:
            NotAcquired: another client held the lock until the timeout; the message names it.
            LeaseLost: this thread's earlier lease is lost but not released: release it.

        >>> with lock.acquire(timeout=10) as lease:
        ...     lease.check()
        >>> lock.acquire(blocking=False).release()
        """
        if timeout and not blocking:
            raise InvalidSettings(f"blocking=False does not wait, but timeout={timeout!r} does: give only one of them")
        self._held = self._wait(wait_s(timeout if blocking else 0.0, self.settings.timeout), keeps_log=keeps_log)
        return self._held

    def _wait(self, timeout_s: float, *, keeps_log: bool) -> Lease:
        """Wait for this client's other threads, check the store once, acquire the lock, and start its heartbeat.

        A holding thread's lease only counts once more. `keeps_log`: the record keeps a log. Raises `NotAcquired` after
        `timeout_s`.
        """
        client = self._of_this_process()
        held = client.lease
        if held is not None and held.thread is threading.current_thread() and not held.released:
            return held.again(keeps_log=keeps_log)
        with client.detailed_errors(), client.measured(holds=True):
            deadline_s = self._world.monotonic_s() + timeout_s

            def left_s() -> float:
                return max(0.0, deadline_s - self._world.monotonic_s())

            turn = FifoTurn(client.turn)
            try:
                if not turn.wait(left_s()):
                    message = f"another thread of this process holds {client.where!r}"
                    raise NotAcquired(message, owner=client.owner)  # noqa: TRY301 - the turn is left below
                self.require_safe_store(left_s())
                # Until a commit has freed the lock, a take would wait for its late writers.
                client.committer.resting.wait(min(_FREED_S, left_s()))
                acquire(client, Wish(keeps_log, deadline_s))
                lease = Lease(client, self._on_lost, turn, self._acquiring_thread())
                client.lease = lease
                note_lease(lease)
            except BaseException as error:
                if not isinstance(error, (CasError, LockError)) and client.turn.first() is turn:
                    with ends_with(Signal()):  # a cancelled task does not wait for this
                        client.give_up()
                client.leave(turn)
                raise
            return lease

    def _acquiring_thread(self) -> threading.Thread:
        return threading.current_thread()

    def release(self) -> None:
        """Release the lock that this thread acquired, if any; an inner release only counts down.

        Raises:
            LockError: another thread holds the lock.
            CasError: the store failed; the lease lapses by itself.

        >>> lease = lock.acquire()
        >>> lock.release()
        >>> lease.released
        True
        """
        lease = self._mine()
        if lease is not None:
            lease.release()

    def _mine(self) -> Lease | None:
        """Return this thread's unreleased lease, or None; raise `LockError` if another thread acquired it."""
        lease = self._held
        if lease is None or lease.released:
            return None
        if lease.thread is not threading.current_thread():
            message = f"thread {lease.thread.name!r} acquired {self._client.where!r}; release it in that thread"
            raise LockError(message, url=self._client.where, owner=lease.owner)
        return lease

    def __enter__(self) -> Lease:
        return self.acquire()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        lease = self._mine()
        if lease is not None:
            lease.__exit__(kind, error, trace)

    def locked(self) -> bool:
        """Read whether any client, even this one, holds the lock; see `status`.

        >>> with lock:
        ...     lock.locked()
        True
        """
        return self.status().state == "held"

    def status(self) -> LockStatus:
        """Read the lock's holder, times and waiters by two requests, judged by the store's clock if it reports one.

        >>> with lock as lease:
        ...     status = lock.status()
        >>> status.state, status.record.owner == lock.owner, status.record.epoch == lease.epoch
        ('held', True, True)
        """
        try:
            return look(self._store, self.path, self._world)
        except LockError as error:
            add_details(error, self._client.where, None, self._world.now_ms())
            raise

    def require_safe_store(self, timeout: float | None = None) -> None:
        """Check once, as the first acquisition does, that the store obeys conditions.

        Raises:
            NotSupported: a lock kept there would have two holders. `LockSettings.check_store=False` skips the check.

        >>> lock.require_safe_store()
        """
        if self.settings.check_store and not self._store_is_safe:
            records, folder = self._of_this_process().records, self.path.rpartition("/")[0]
            left_s = max(LAST_S, wait_s(timeout, self.settings.timeout))
            require_safe_for_locks(records.below(folder) if folder else records, timeout=left_s)
        self._store_is_safe = True

    def look(self) -> LockRecord | None:
        """Read the lock record by one request (None: absent), and keep it for the next `commit`.

        >>> lock.look() is None
        True
        >>> lock.acquire().release()
        >>> lock.look().owner == lock.owner
        True
        """
        client = self._of_this_process()
        with self._looking:
            records = filter(None, (self._looked_at.known, client.known, client.committer.known))
            self._looked_at.known = max(records, key=lambda known: known.record.epoch, default=None)
            known = self._looked_at.read(REQUEST_S)
            client.queue.note_current(known)
            return None if known is None else known.record

    def commit(self, intent: Intent, decider: Decider, timeout: float | None = None) -> CommitAnswer:
        """Publish together with other writers, without the lock; waits until decided and applied.

        Checks the store once; logs a warning if the last `look` showed this thread's lease. A thread sends the
        requests, beginning with that record. Returns and raises as `Committer.commit`.

        Raises:
            InvalidSettings: `timeout` (None: the settings') is no number of seconds.
            InvalidInput: a path names no object, or the body is not bytes.
        """
        timeout_s = wait_s(timeout, self.settings.timeout)
        check_bytes(check_path(intent.stem), intent.body)
        client, began_s = self._of_this_process(), self._world.monotonic_s()
        self.require_safe_store(timeout_s)
        timeout_s = max(0.0, timeout_s - (self._world.monotonic_s() - began_s))
        known = self._looked_at.known
        if known is not None:
            warn_if_waiting_for_itself(client.where, known.record.owner)
        with client.detailed_errors(), client.measured(holds=False):
            return client.committer.commit(intent, decider, known, timeout_s)

    def sweep_intents(self) -> int:
        """Remove intents of writers that died during a commit; returns their number.

        >>> lock.sweep_intents()
        0
        """
        return self._of_this_process().committer.sweep()

    def discard(self, *paths: str) -> None:
        """Remove leftovers of a commit in the background; not promised.

        Raises:
            InvalidInput: a path is not the path of an object; nothing is removed.

        >>> lock.discard("heartbeats/7")
        """
        self._of_this_process().committer.discard(paths)

    def stage(self, path: str, data: bytes, *, unshared: bool = False) -> Pending:
        """Prepare a later publish; returns the handle for `Lease.publish`.

        Small data travels in the lock record; larger data is written to the store, until published or unstaged.
        `unshared` promises that nothing else is ever written to `path`: another client finishing the publish accepts
        any object there.

        >>> pending = lock.stage("state/7", b"seven")  # before the lock is needed
        >>> with lock as lease:
        ...     lease.publish(pending)
        """
        return self._of_this_process().publisher.stage(path, data, unshared=check_flag(unshared, "unshared"))

    def unstage(self, pending: Pending) -> None:
        """Remove staged bytes of an abandoned or applied publish. After a `CasError` they may remain.

        Raises:
            LockError: the publish was, or may yet be, decided. Retry after the next acquisition.

        >>> lock.unstage(lock.stage("state/9", b"never mind"))
        """
        self._of_this_process().publisher.unstage(pending)

    def wait_for_late(self) -> None:
        """Wait until no client can still apply a publish from an earlier lease. May renew the lease.

        Call it under the lock before removing published objects. After a recent release with pending publishes it
        returns 5.5 s after the acquisition, else at once.

        Raises:
            CasError: the record still names such a publish, and could not be rewritten.

        >>> with lock:
        ...     lock.wait_for_late()  # now what was published before may be removed
        """
        self._of_this_process().wait_for_late()
