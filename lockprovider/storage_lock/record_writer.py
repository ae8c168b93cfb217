"""`RecordWriter`, group commit's writer of the lock record, and `Applying`, whose threads create decided objects."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Sequence

from fsspec_cas import Store, Unavailable, Won, World
from lockprovider.storage_lock import commit_rules, publisher
from lockprovider.storage_lock.audit_log import AuditLog
from lockprovider.storage_lock.commit_requests import SMOOTHING
from lockprovider.storage_lock.driver import REQUEST_S, KnownRecord, RecordFile, audits
from lockprovider.storage_lock.machine import Me, Moment, Sent, became, hand_over_s, pending_after
from lockprovider.storage_lock.record import LockRecord, Pending


class Applying:
    """Applies decided publishes in the log's order, or concurrently with unordered visibility.

    It uses background threads; for a local store, the caller's. Not promised: that all is applied; the rest stays
    pending.

    `last_applied`: the last publish known to be applied, with all before it.
    """

    def __init__(self, store: Store, world: World, notify: Callable[[], None]) -> None:
        self.last_applied: Pending | None = None
        self.unordered = False
        self.failed: Exception | None = None
        self._store = store
        self._world = world
        self._notify = notify
        self._guard = threading.Lock()
        self._todo: tuple[Pending, ...] = ()
        self._new: Collection[Pending] = ()
        self._begun: set[Pending] = set()
        self._done: set[Pending] = set()
        self._threads = 0
        self._until_s = 0.0

    @property
    def busy(self) -> bool:
        return self._threads > 0

    def apply(self, all_pending: tuple[Pending, ...], new: Collection[Pending], until_s: float) -> None:
        """Start to apply `all_pending`, instead of earlier work, until `until_s` (monotonic).

        Objects of `new` cannot exist yet.

        Skips what is known as applied. A local store's are applied before it returns.
        """
        with self._guard:
            self._todo, self._new, self._until_s = all_pending, {*self._new, *new} & {*all_pending}, until_s
            self._done &= {*all_pending}
            if not self._threads:
                self.failed, self._begun = None, set()
            starts = len(self._open()) if self.unordered else int(bool(all_pending) and not self._threads)
            self._threads += starts
        for _ in range(starts):
            self._store.in_background(self._run)

    def check_applied(self, pending: Pending, before: Sequence[Pending] = ()) -> bool:
        """Read whether this publish and those `before` it are applied; if so, set `last_applied` to it.

        `before`: all earlier pending ones; may be empty if publishes are applied in order.
        """
        applied = (
            publisher.all_exist(self._store, [pending.path for pending in (*before, pending)])
            if before
            else publisher.digest_at(self._store, pending.path) == pending.digest
        )
        if applied:
            with self._guard:
                self.last_applied = pending
        return applied

    def _run(self) -> None:
        """Apply publishes until none is left, notifying after each; an error ends this thread, kept in `failed`."""
        try:
            while (pending := self._next()) is not None:
                self._put(pending)
                self._notify()
        except Exception as error:  # noqa: BLE001 - for `CommitSteps`
            with self._guard:
                self._threads, self.failed = self._threads - 1, error
        else:
            self._notify()

    def _put(self, pending: Pending) -> None:
        """Apply one publish, and advance `last_applied` over all done in order.

        Raises `Unavailable` if it ended after `until_s`.
        """
        publisher.apply(self._store, pending, pending.data if pending in self._new else None, self._left_s)
        if self._left_s() <= 0:  # the process was stopped while sending
            # A JVM writer may have had the lock: read the record.
            raise Unavailable(f"{pending.path!r} was written after the lease had ended", path=pending.path)
        with self._guard:
            self._done.add(pending)
            for publish in self._left():
                if publish not in self._done:
                    break
                self.last_applied = publish

    def _next(self) -> Pending | None:
        """Return the next publish, marked as begun; None counts this thread as ended."""
        with self._guard:
            pending = next(iter(self._open()), None)
            if pending is None:
                self._threads -= 1
            else:
                self._begun.add(pending)
            return pending

    def _open(self) -> list[Pending]:
        return [pending for pending in self._left() if pending not in self._begun and pending not in self._done]

    def _left(self) -> tuple[Pending, ...]:
        return self._todo[self._todo.index(self.last_applied) + 1 :] if self.last_applied in self._todo else self._todo

    def _left_s(self) -> float:
        return self._until_s - self._world.monotonic_s()


class RecordWriter:
    """Reads and writes the record for group commit. Not thread-safe.

    `stale`: read first. `refused`: lost writes in a row.
    """

    def __init__(
        self, records: Store, path: str, me: Me, world: World, *, applying: Applying, audit: AuditLog | None
    ) -> None:
        self.stale = True
        self.refused = 0
        self.put_s = 0.0
        self._me = me
        self._world = world
        self._audit = audit
        self.applying = applying
        self._file = RecordFile(records, path, world)
        self._doubts: tuple[Sent, ...] = ()

    @property
    def known(self) -> KnownRecord | None:
        return self._file.known

    @property
    def in_doubt(self) -> bool:
        return bool(self._doubts)

    def learn(self, known: KnownRecord) -> None:
        current = self._file.known
        if not self._doubts and (current is None or known.record.epoch > current.record.epoch):
            self._file.known, self.stale = known, False

    def look(self) -> KnownRecord | None:
        """Read the record (None: absent), and forget writes in doubt that it settles.

        Starts to apply what one of them has decided.
        """
        known = self._file.read(REQUEST_S)
        self.stale = False
        record, version = (None, None) if known is None else (known.record, known.version)
        for sent in self._doubts:
            if record is not None and record.released_pending and became(sent, record, version) == "there":
                self.applying.apply(record.all_pending, (), sent.until_s)
        self._doubts = tuple(sent for sent in self._doubts if became(sent, record, version) == "open")
        return known

    def put(self, known: KnownRecord, batch: tuple[Pending, ...], *, leading_s: float, yield_until_ms: int = 0) -> bool:
        """Write the record that decides `batch` over `known`, start to apply it, and audit it unless empty.

        False if refused or unknown: then it stays in doubt. `leading_s`: announced time as leader, 0 for none.
        """
        began_s = self._world.monotonic_s()
        at = Moment(self._world.now_ms(), began_s, self._world.new_id())
        last_applied, epoch = self.applying.last_applied, self._file.highest_epoch
        record = commit_rules.combine(
            self._me,
            known.record,
            batch,
            at,
            last_applied=last_applied,
            combiner_ms=round(leading_s * 1000),
            yield_until_ms=yield_until_ms,
            epoch=epoch,
        )
        until_s = began_s + hand_over_s(self._me.settings) / 2  # the other half is for differing clocks
        outcome = self._file.put(record, known.version, REQUEST_S)
        now_s = self._world.monotonic_s()
        self.put_s += (now_s - began_s - self.put_s) / (SMOOTHING if self.put_s else 1)
        if not isinstance(outcome, Won):
            self.refused += 1
            self.stale = True
            # Even if refused: a proxy may have sent it twice.
            self._doubts = (*self._doubts, Sent(record.nonce, known.version, until_s))
            return False
        self.refused, self.stale, self._doubts = 0, False, ()
        self.applying.apply(record.all_pending, batch, until_s)
        if batch and audits(self._audit):
            self._audit.taken(record)
            self._audit.ended(self._world.now_ms(), held=True)
        return True

    def move_on(self) -> None:
        """Read and write the record until no earlier write can land, or until no write is allowed."""
        first = known = self.look()
        while first is not None and known is not None and known.version == first.version:
            if not commit_rules.may_write(known.record):
                return
            self.put(known, (), leading_s=0.0)
            known = self.look()

    def all_pending(self, record: LockRecord) -> tuple[Pending, ...]:
        return pending_after(record, self.applying.last_applied)
