"""`Lock`: a lock in an object store.

    lock = lockprovider.lock("s3://bucket/table", timeout=30)    # nothing is asked of the store yet
    with lock as lease:                    # acquires, and gives back
        lease.check()                      # raises LeaseLost as soon as it is known
        lease.publish("state/7", data)     # cannot happen after somebody else took over

Not promised: that nobody else acts while you hold the lease and the process was paused. Only `publish` is safe then.
"""

from __future__ import annotations

import os
import threading
from types import TracebackType
from typing import Any

from fsspec_cas import CasError, Machine, Store, World, check_bytes, check_path, require_safe_for_locks
from fsspec_cas.waiting import Signal, ends_with
from lockprovider.errors import InvalidSettings, LockError, NotAcquired, NotPicklable
from lockprovider.settings import LockSettings, check_functions, checked, wait_s
from lockprovider.storage_lock.acquire import FifoTurn, Wish, acquire
from lockprovider.storage_lock.audit_log import AuditLog
from lockprovider.storage_lock.client import Client
from lockprovider.storage_lock.combine import Decider, Intent
from lockprovider.storage_lock.commit_log import Pending
from lockprovider.storage_lock.commit_requests import CommitAnswer
from lockprovider.storage_lock.driver import LAST_S, REQUEST_S, RecordFile, newest
from lockprovider.storage_lock.inspect import look
from lockprovider.storage_lock.lease import Lease, OnLost
from lockprovider.storage_lock.metrics import OnMetric, Recorder
from lockprovider.storage_lock.record import HUDI_LOCK_PATH, LockRecord
from lockprovider.storage_lock.states import Busy
from lockprovider.storage_lock.status import LockStatus, telling

_FREED_S = 0.25  # for so long an acquisition waits for the end of what was committed here just before


class Lock:
    """One client of one lock; its threads exclude each other, a thread that holds it may acquire it again.

    Those who wait in one process (same store, path and options) are served in the order of asking, and only the first
    of them asks the store. Across processes a line in the record says whose turn is next, also after a release by one
    that asks again at once. That is politeness, not a promise: a JVM writer, or a try with `timeout=0`, goes between.

    `world` supplies time, randomness and ids. `owner` is this client's UUID. `audit` writes Hudi's audit records, where
    the table's users want them.

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
        self._kept = (*vars(self), "_kept")  # what makes another client of the same lock; the rest is this client's own
        self._be_new()

    def __getstate__(self) -> dict[str, Any]:
        """For a pickle or a copy, which is another client, who holds nothing."""
        lease = self._client.lease
        if lease is not None and not lease.released:
            raise NotPicklable(
                f"the lock {self.path!r} is held by this process, and a lease cannot be taken elsewhere: "
                "release it first, or pickle the lock before it is acquired"
            )
        return {name: getattr(self, name) for name in self._kept}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """A client of its own, with another owner id."""
        vars(self).update(state)
        self._be_new()

    def _be_new(self) -> None:
        """A client of its own, who holds nothing."""
        self._client = Client(
            self._store, self.path, self.settings, self._world, on_metric=self._on_metric, audit=self._audit
        )
        self._looking = threading.Lock()
        self._looked_at = RecordFile(self._store, self.path, self._world)
        self._held: Lease | None = None  # who drops the lock has dropped it too; see `Lease`

    def _of_this_process(self) -> Client:
        """Forked, with the parent's owner id, each would take the other's lock for its own."""
        if self._client.me.pid != os.getpid():
            self._be_new()
        return self._client

    @property
    def world(self) -> World:
        """Where its time, randomness and ids come from."""
        return self._world

    @property
    def owner(self) -> str:
        """This client's UUID, as it stands in the lock record."""
        return self._of_this_process().owner

    @property
    def metrics(self) -> Recorder:
        """What it has counted and timed."""
        return self._of_this_process().metrics

    @property
    def url(self) -> str:
        """Where its record is, for people and messages."""
        return self._client.where

    def __repr__(self) -> str:
        lease = self._held
        state = "not held by this client" if lease is None or lease.released else "held"
        return f"<Lock {self._client.where!r}, {state}>"

    def acquire(self, timeout: float | None = None, *, blocking: bool = True, keeps_log: bool = False) -> Lease:
        """Wait for the lock, at most `timeout` seconds (default: the settings'); not `blocking`: ask once.

        A store that does not answer is waited for as long, and 10 s more at most. What a holder before had decided and
        left undone is finished after that, within the lease.

        `keeps_log` is a promise: that what the lock protects is changed by the publishes of this lease, and by nothing
        else; see `commit_log`.

        Raises:
            NotAcquired: it was held by others until the timeout; says by whom.
            LeaseLost: this thread has acquired it before, that lease is lost, and is not released yet: release it.
            MalformedRecord: the object at the lock's path is not a lock record.
            CasError: the store failed.

        >>> with lock.acquire(timeout=10) as lease:
        ...     lease.check()
        >>> lock.acquire(blocking=False).release()
        """
        self._held = self._wait(
            wait_s(_at_most(timeout, blocking=blocking), self.settings.timeout), keeps_log=keeps_log
        )
        return self._held

    def _wait(self, timeout_s: float, *, keeps_log: bool) -> Lease:
        client = self._of_this_process()
        mine = client.lease
        if mine is not None and mine.thread is threading.current_thread() and not mine.released:
            return mine.again(keeps_log=keeps_log)
        with client.telling(), client.metrics.acquisition():
            deadline_s = self._world.monotonic_s() + timeout_s
            turn = FifoTurn(client.turn)
            try:
                self._must_come(turn, deadline_s)
                self.require_safe_store(max(0.0, deadline_s - self._world.monotonic_s()))
                # Who takes the lock before it is freed, as it is after a commit, has to wait for late writers of that.
                client.committer.rest(min(_FREED_S, max(0.0, deadline_s - self._world.monotonic_s())))
                acquire(client, client.queue, self._world, Wish(keeps_log, deadline_s))
                client.got()
                return self._begin(client, turn)
            except BaseException as error:
                if not isinstance(error, (CasError, LockError)) and client.turn.first() is turn:
                    with ends_with(Signal()):  # the task whose call was stopped does not wait for this
                        client.give_up()
                client.leave(turn)
                raise

    def _must_come(self, turn: FifoTurn, deadline_s: float) -> None:
        if not turn.wait(max(0.0, deadline_s - self._world.monotonic_s())):
            said = f"another thread of this process holds {self._client.where!r}: wait longer"
            raise NotAcquired(said, owner=self.owner)

    def _begin(self, client: Client, turn: FifoTurn) -> Lease:
        lease = Lease(client, self._on_lost, turn)
        try:
            lease.start()
        except BaseException:
            client.release_quietly()
            raise
        client.lease = lease
        return lease

    def release(self) -> None:
        """Give back what this thread has acquired; an inner release only counts down. Without a lease it does nothing.

        Raises:
            LockError: another thread holds it.
            CasError: the store could not be reached; the lease lapses by itself.

        >>> lease = lock.acquire()
        >>> lock.release()
        >>> lease.released
        True
        """
        lease = self._mine()
        if lease is not None:
            lease.release()

    def _mine(self) -> Lease | None:
        lease = self._held
        if lease is None or lease.released:
            return None
        if lease.thread is not threading.current_thread():
            said = f"{self._client.where!r} was taken by thread {lease.thread.name!r}; only that may release it"
            raise LockError(said, url=self._client.where, owner=lease.owner)
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
        """Whether anybody holds it now, this client included; see `status`.

        Raises:
            MalformedRecord, CasError: as `status`.

        >>> with lock:
        ...     lock.locked()
        True
        """
        return self.status().state == "held"

    def status(self) -> LockStatus:
        """Who holds it, since when, until when, who waits; judged by the store's clock where it says that.

        Two requests. It is news when it arrives: to exclude others, acquire.

        Raises:
            MalformedRecord: the object at the lock's path is not a lock record.
            CasError: the store failed.

        >>> with lock as lease:
        ...     status = lock.status()
        >>> status.state, status.record.owner == lock.owner, status.record.epoch == lease.epoch
        ('held', True, True)
        """
        with telling(self._client.where, lambda: None, self._world.now_ms):
            return look(self._store, self.path, self._world)

    def try_lock(self) -> Lease | Busy:
        """Take the lock if it is free now, else say who holds it.

        >>> other = lockprovider.Lock(Store.from_url("memory://docs/table"))
        >>> with other:
        ...     lock.try_lock().owner == other.owner
        True
        """
        try:
            return self.acquire(0.0)
        except NotAcquired as refusal:
            return Busy(refusal.owner, refusal.valid_until_ms, None)

    def require_safe_store(self, timeout: float | None = None) -> None:
        """Refuse a store that ignores conditions; the first acquisition does it, and nothing is asked after it.

        It has `timeout` seconds (default: the settings'), but 5 at least.

        Raises:
            NotSupported: a lock kept there would have two holders. `LockSettings.check_store=False` trusts it.
            CasError: the store failed.

        >>> lock.require_safe_store()
        """
        if self.settings.check_store and not self._store_is_safe:
            records, folder = self._of_this_process().records, self.path.rpartition("/")[0]
            left_s = max(LAST_S, wait_s(timeout, self.settings.timeout))
            require_safe_for_locks(records.below(folder) if folder else records, timeout=left_s)
        self._store_is_safe = True

    def look(self) -> LockRecord | None:
        """The lock record now, without wanting the lock; None if there is none. One request, and no body if unchanged.

        Raises:
            MalformedRecord: the object at the lock's path is not a lock record.
            CasError: the store failed.

        >>> lock.look() is None  # nobody has ever held it
        True
        >>> lock.acquire().release()
        >>> lock.look().owner == lock.owner
        True
        """
        client = self._of_this_process()
        with self._looking:  # not the machine's: a look waits for no acquisition or renewal
            self._looked_at.known = newest(self._looked_at.known, client.known, client.committer.known)
            known = self._looked_at.read(REQUEST_S)
            client.queue.saw(known)
            return None if known is None else known.record

    def commit(self, intent: Intent, decider: Decider, timeout: float | None = None) -> CommitAnswer:
        """Let a publish be decided together with those of others, without holding the lock; see `combine`.

        Raises:
            Exception, NotAcquired, PublishUnknown, CasError: as `Committer.commit`.
            InvalidSettings: `timeout` is no number of seconds.
            NotBytes: the body of the intent is none.
        """
        timeout_s = wait_s(timeout, self.settings.timeout)
        check_bytes(intent.stem, intent.body)
        client = self._of_this_process()
        self.require_safe_store(timeout_s)
        with client.telling(), client.metrics.acquisition():
            return client.committer.commit(intent, decider, self._looked_at.known, timeout_s)

    def sweep_intents(self) -> int:
        """Remove what those have left who died after they had asked for a commit; how many objects that were.

        Raises:
            CasError: the store failed; may be repeated.

        >>> lock.sweep_intents()
        0
        """
        return self._of_this_process().committer.sweep()

    def discard(self, *paths: str) -> None:
        """Remove what a commit has left and nobody needs: soon, or never, should this process die or the store fail.

        Raises:
            InvalidInput: one is no path of an object; nothing is removed.

        >>> lock.discard("heartbeats/7")
        """
        self._of_this_process().committer.discard(paths)

    def stage(self, path: str, data: bytes, *, sole: bool = False) -> Pending:
        """Get a later publish ready; the lock is not needed yet. The handle is for `Lease.publish`.

        What is small goes along in the lock record itself, and nothing is asked of the store. The rest is put into the
        store now, and stays there until it is published or unstaged.

        `sole`: a promise that nobody ever writes anything else to `path`. If it is broken, whoever finishes the publish
        for its writer takes what it finds there for it, without a look at the bytes; the writer itself does look.

        >>> pending = lock.stage("state/7", b"seven")  # before the lock is needed
        >>> with lock as lease:
        ...     lease.publish(pending)
        """
        return self._of_this_process().publisher.stage(path, data, sole=sole)

    def unstage(self, pending: Pending) -> None:
        """Remove bytes that were staged and will not be published after all, or are there.

        Raises:
            LockError: they are those of a publish that was decided, or may be yet (`PublishUnknown`); without them
                nobody could take the lock. Try again after the next acquisition.
            CasError: the store failed; they may be there still.

        >>> lock.unstage(lock.stage("state/9", b"never mind"))
        """
        self._of_this_process().publisher.unstage(pending)

    def wait_for_late(self) -> None:
        """Return once nobody puts anything there any more that was published under an earlier lease of this lock.

        At once if that was a minute ago (clocks differ by less), or once the lock has been held for half of
        `HAND_OVER_S`. To be called under the lock by whoever is going to remove what was published.

        Raises:
            CasError: the record still names such a publish, and could not be written without it.

        >>> with lock:
        ...     lock.wait_for_late()  # now what was published before may be removed
        """
        self._of_this_process().wait_for_late()


def _at_most(timeout: float | None, *, blocking: bool) -> float | None:
    """How long to wait; refused if it is not to wait, and for how long."""
    if blocking:
        return timeout
    if timeout:
        raise InvalidSettings(f"blocking=False asks once, and timeout={timeout!r} waits: give one of them")
    return 0.0
