"""Writes of group commit: intents, the record, and decided objects."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial

from fsspec_cas import Store, Unavailable, Unknown, Won, World
from fsspec_cas.machine import Signal
from lockprovider.storage_lock import commit_rules, driver
from lockprovider.storage_lock.audit_log import AuditLog
from lockprovider.storage_lock.commit_rules import Decided, Decider, Hold, Intent, Void
from lockprovider.storage_lock.driver import REQUEST_S, KnownRecord, RecordFile, audits
from lockprovider.storage_lock.record import (
    LARGEST_ENTRY,
    LockRecord,
    Log,
    Me,
    Moment,
    Pending,
    Sent,
    became,
    hand_over_s,
    pending_after,
)

FOLDER = "intents"
_MOST_READ = 16  # no write decides more


class Intents:
    """Stored intents of a lock; bodies are cached."""

    def __init__(self, store: Store, lock_folder: str) -> None:
        self._store = store
        self._below = f"{lock_folder}/{FOLDER}/" if lock_folder else f"{FOLDER}/"
        self._known: dict[str, Intent] = {}

    def path(self, intent: Intent) -> str:
        return self._below + intent.name

    def named(self, intent: Intent, log: Log, sample: bytes) -> Intent:
        return intent.with_packed_body(log, sample) if self._store.is_remote else intent

    def post(self, intent: Intent) -> bool:
        """Post the intent; after False or `CasError` it may be posted."""
        return not isinstance(self._store.put_if_absent(self.path(intent), intent.body, create_once=True), Unknown)

    def listed(self, log: Log, sample: bytes = b"") -> tuple[Intent, ...]:
        """List this log's undecided intents, with bodies from the cache, the name or the store. Replaces the cache.

        Reads at most 16 bodies, and leaves out intents without one. `sample`: dictionary by which bodies in names are
        deflated.
        """
        listed: dict[str, Intent] = {}
        unknown: list[tuple[str, str]] = []
        for entry in self._store.list(self._below + commit_rules.intents_folder(log.name)):
            name = entry.path.removeprefix(self._below)
            intent = self._known.get(name) or commit_rules.parse_intent(name, b"")
            if intent is None or not 0 < entry.size <= LARGEST_ENTRY or commit_rules.is_over(intent, log):
                continue
            intent = intent if intent.body else intent.read(log, sample)
            if intent.body:
                listed[name] = intent
            else:
                unknown.append((intent.stem, name))
        first = [name for _, name in sorted(unknown)[:_MOST_READ]]
        listed.update({name: intent for name, intent in self._read(first) if intent.body})
        self._known = listed
        return tuple(listed.values())

    def withdraw(self, intent: Intent) -> None:
        """Write the intent's object empty, so that later listings leave it out.

        A client that listed it before may still decide it. Raises `CasError` if bytes may remain.
        """
        path = self.path(intent)
        # Not deleted: a late copy of the post must not recreate it.
        if isinstance(self._store.put_if_absent(path, b""), Won):
            return
        posted = self._store.read(path)
        if posted.data:
            outcome = self._store.put_if_match(path, b"", posted.version)
            if not isinstance(outcome, Won) and self._store.read(path).data:
                outcome.unwrap()

    def remove(self, *intents: Intent) -> None:
        """Delete the intents' objects. None may be decidable, or withdrawn in a log that goes on."""
        self._store.delete_all([self.path(intent) for intent in intents])

    def left(self) -> tuple[Intent, ...]:
        parsed = (
            commit_rules.parse_intent(entry.path.removeprefix(self._below), b"")
            for entry in self._store.list(self._below)
        )
        return tuple(intent for intent in parsed if intent is not None)

    def _read(self, names: list[str]) -> Iterable[tuple[str, Intent]]:
        reading = [(name, self._store.in_background(partial(self._body, name))) for name in names]
        for name, answer in reading:
            intent = commit_rules.parse_intent(name, answer.result())
            if intent is not None:
                yield name, intent

    def _body(self, name: str) -> bytes:
        content = self._store.read_or_none(self._below + name)
        return b"" if content is None else content.data


SMOOTHING = 4
_EARLY = 0.85

CommitAnswer = Decided | Void | Hold


@dataclass(eq=False)
class CommitRequest:
    """One caller's request; `done` is set with its outcome."""

    intent: Intent
    decider: Decider
    began_s: float
    deadline_s: float
    done: Signal
    posted_s: float | None = None
    is_stored: bool = False
    outcome: CommitAnswer | BaseException | None = None

    @property
    def posted(self) -> bool:
        return self.posted_s is not None


class CommitRequests:
    """Waiting requests of this client. Not thread-safe."""

    def __init__(self, store: Store, intents: Intents, world: World) -> None:
        self.intents = intents
        self._store = store
        self._world = world
        self._all: list[CommitRequest] = []
        self.post_s = 0.0
        self._wait_s = 0.0

    def __iter__(self) -> Iterator[CommitRequest]:
        return iter([*self._all])

    def __bool__(self) -> bool:
        return bool(self._all)

    def add(self, request: CommitRequest) -> None:
        self._all.append(request)

    def end(self, request: CommitRequest, outcome: CommitAnswer | BaseException) -> None:
        self._all.remove(request)
        request.outcome = outcome
        request.done.set()

    def late(self) -> list[CommitRequest]:
        now_s = self._world.monotonic_s()
        return [request for request in self._all if now_s >= request.deadline_s]

    def undecided(self, log: Log | None) -> list[CommitRequest]:
        verdicts = ((request, commit_rules.verdict(log, request.intent, request.decider)) for request in self._all)
        return [request for request, outcome in verdicts if isinstance(outcome, commit_rules.Undecided)]

    def post(self, requests: Collection[CommitRequest], log: Log) -> bool:
        """Write each request's intent not stored yet; False if a write's outcome is unknown.

        Repeat it after False or `CasError`: some may be stored. Marks each posted, and fixes its name, before its
        write. Updates `post_s`.
        """
        for request in requests:
            if not request.is_stored:
                began_s = self._world.monotonic_s()
                if request.posted_s is None:
                    request.intent = self.intents.named(request.intent, log, request.decider.sample)
                    request.posted_s = began_s
                request.is_stored = self.intents.post(request.intent)
                self.post_s = _smoothed(self.post_s, self._world.monotonic_s() - began_s)
        return all(request.is_stored for request in requests)

    def first_poll_s(self) -> float:
        now_s = self._world.monotonic_s()
        posted_s = min((request.posted_s for request in self._all if request.posted_s is not None), default=now_s)
        return posted_s + _EARLY * self._wait_s - now_s

    def end_judged(self, log: Log | None, all_pending: Collection[str]) -> None:
        """End requests that are refused, void (all, if `log` is None), or decided and not in `all_pending`.

        `all_pending`: paths not known as applied; their entries refuse nothing. Deletes refused and void intents in the
        background.
        """
        for request in self:
            match commit_rules.verdict(log, request.intent, request.decider):
                case Decided(path) if path in all_pending:
                    continue
                case commit_rules.Refused():
                    error = _refused_by(request, log, all_pending)
                    if error is not None:
                        self._forget(request)
                        self.end(request, error)
                case Decided() as outcome:
                    if request.posted_s is not None:
                        self._wait_s = _smoothed(self._wait_s, self._world.monotonic_s() - request.posted_s)
                    self.end(
                        request, replace(outcome, posted=self.intents.path(request.intent) if request.posted else "")
                    )
                case Void() as outcome:
                    self._forget(request)
                    self.end(request, outcome)

    def _forget(self, request: CommitRequest) -> None:
        if request.posted:
            self._store.in_background(partial(self.intents.remove, request.intent))


def _smoothed(mean: float, last: float) -> float:
    return mean + (last - mean) / (SMOOTHING if mean else 1)


def _refused_by(request: CommitRequest, log: Log | None, all_pending: Collection[str]) -> Exception | None:
    """Return the decider's refusal by the log's applied entries alone, as pending ones may never appear.

    None: the request may yet be decided.
    """
    since = () if log is None else log.since(request.intent.position) or ()
    try:
        request.decider.refuse(request.intent, [entry for entry in since if entry.path not in all_pending])
    except commit_rules.JudgeAnew:
        return None
    except Exception as error:  # noqa: BLE001 - its writer gets it
        return error
    return None


class Applying:
    """Applies decided publishes in the log's order, or, if `unordered`, concurrently. What fails stays pending.

    `last_applied`: last publish known to be applied, with all before it.
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
        """Start to apply `all_pending` on threads until `until_s` (monotonic), instead of earlier work.

        Skips what is known as applied; objects of `new` cannot exist yet. A local store's are applied before it
        returns. Errors go to `failed`.
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

        `before`: all earlier pending ones; may be empty if publishes are applied in order. With them, any object
        counts.
        """
        applied = (
            driver.all_exist(self._store, [pending.path for pending in (*before, pending)])
            if before
            else driver.digest_at(self._store, pending.path) == pending.digest
        )
        if applied:
            with self._guard:
                self.last_applied = pending
        return applied

    def _run(self) -> None:
        """Apply publishes until none is left, notifying after each.

        An error ends this thread without a notification, and is kept in `failed`.
        """
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
        """Apply one publish, and if in time advance `last_applied` over all done in order.

        Else raises `Unavailable`: it ended after `until_s`.
        """
        driver.apply(self._store, pending, pending.data if pending in self._new else None, self._left_s)
        if self._left_s() <= 0:
            # Stopped while sending: a JVM writer may have had the lock.
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
        return pending_after(self._todo, self.last_applied)

    def _left_s(self) -> float:
        return self._until_s - self._world.monotonic_s()


class RecordWriter:
    """Reads and writes the record for group commit. Not thread-safe. `stale`: read first."""

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
        """Read the record (None: absent), clear `stale`, and forget writes in doubt that it settles.

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
        """Write the record that decides `batch` over `known`; if won, start to apply all pending publishes.

        Audits a won batch unless empty. False if refused or unknown: it stays in doubt, and `stale` is set. Store
        errors pass. `leading_s`: announced time as leader, 0 for none.
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
        until_s = began_s + hand_over_s(self._me.settings) / 2  # the rest is for differing clocks
        outcome = self._file.put(record, known.version, REQUEST_S)
        now_s = self._world.monotonic_s()
        self.put_s = _smoothed(self.put_s, now_s - began_s)
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
        """Read and write the record until no earlier write can land, or no write is allowed."""
        first = known = self.look()
        while first is not None and known is not None and known.version == first.version:
            if not commit_rules.may_write(known.record):
                return
            self.put(known, (), leading_s=0.0)
            known = self.look()

    def all_pending(self, record: LockRecord) -> tuple[Pending, ...]:
        return pending_after(record.all_pending, self.applying.last_applied)
