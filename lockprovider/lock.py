"""`Lock`: the lease machine driven against a store.

    with Lock(store).acquire(timeout_s=30) as lease:
        lease.check()                      # raises LeaseLost as soon as it is known
        lease.publish("state/7", data)     # cannot happen after somebody else took over

Not promised: that nobody else acts while you hold the lease and the process was paused. Only `publish` is safe then.
"""

from __future__ import annotations

import contextlib
import os
import socket
import threading
from concurrent.futures import Future
from dataclasses import replace
from datetime import datetime, timezone
from functools import partial
from typing import Any, Protocol

from fsspec_cas import (
    CasError,
    Content,
    Machine,
    ObjectNotFound,
    Outcome,
    Store,
    Unknown,
    Version,
    Won,
    World,
    require_safe_for_locks,
)
from lockprovider import lease as machine
from lockprovider import publish
from lockprovider.asking import Tried, ask
from lockprovider.audit_log import AuditLog
from lockprovider.errors import LockError, NotAcquired, NotPicklable
from lockprovider.fifo import Fifo
from lockprovider.free import FreeLock
from lockprovider.heartbeat import Pulse
from lockprovider.holding import Lease, OnLost
from lockprovider.lease import HAND_OVERS, hand_over_s, not_there, settle_commit
from lockprovider.metrics import OnMetric, Recorder, Step
from lockprovider.moves import (
    AppliedPending,
    Apply,
    Busy,
    Checking,
    Commit,
    Ended,
    Event,
    Free,
    HandOver,
    Held,
    Idle,
    Look,
    Lost,
    Me,
    Moment,
    Outrun,
    Passing,
    Publish,
    PutFailed,
    PutRecord,
    PutWon,
    ReadRecord,
    RecordSeen,
    Release,
    Renew,
    Rolling,
    State,
    Tick,
    Told,
    TryLock,
    Verdict,
    Writing,
)
from lockprovider.party import Known, Party
from lockprovider.pending import Pending
from lockprovider.record import HUDI_LOCK_PATH, LockRecord
from lockprovider.settings import GRACE_MS, HAND_OVER_S, LockSettings

_LINE_S = 30.0  # for so long those are taken to wait who were seen in a line that a JVM writer has dropped
_REQUEST_S = 20.0  # for one step of the protocol; retries within it are the store's


class Meanwhile(Protocol):
    """Reads that an acquisition is accompanied by, so that they are there when the lock is.

    The take is conditional on the version at which the record was seen. Once it has succeeded, nobody can have held the
    lock since; what was begun with the last `start` is as good as begun under the lock, if no `drop` came after it.
    """

    def start(self, seen: LockRecord) -> None:
        """The lock was seen free, as `seen`, and is about to be taken: read, from the start. Shall not keep the caller.

        What is pending in `seen` is decided, and may not be applied yet.
        """

    def drop(self) -> None:
        """What was read is not to be relied on; read again once the lock is there."""


class Lock:
    """One client of one lock; its threads exclude each other, a thread that holds it may acquire it again.

    Those who wait in one process (same store, path and options) are served in the order of asking, and only the first
    of them asks the store. Across processes a line in the record says whose turn is next, also after a release by one
    that asks again at once. That is politeness, not a promise: a JVM writer, or a try with `timeout_s=0`, goes between.

    `world` supplies time, randomness and ids. `owner` is this client's UUID. `audit` writes Hudi's audit records, where
    the table's users want them.
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
        self.path = path
        self.settings = settings or LockSettings()
        self._store = store
        self._world = world or Machine()
        self._on_lost = on_lost
        self._audit = audit
        self._on_metric = on_metric
        self._store_is_safe = False
        self._kept = (*vars(self), "_kept")  # what makes another client of the same lock; the rest is this client's own
        self._be_new()

    def __getstate__(self) -> dict[str, Any]:
        """For a pickle or a copy, which is another client, who holds nothing."""
        if self._lease is not None and not self._lease.released:
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
        self._party = Party.of(self._store, self.path, self._world)
        self._me = Me(self._world.new_id(), self.settings, socket.gethostname(), os.getpid(), self._party.name)
        self._state: State = Idle()
        self.known: Known | None = None
        self._looking = threading.Lock()
        self._glimpse: Known | None = None  # what `look` saw last
        self._looked = False  # whether the store was asked in this try
        self._patient = False
        self._tried: set[Pending] = set()  # commits that were sent under this lease
        self._meanwhile: Meanwhile | None = None
        self._keeps_log = self._leaves = False
        self._there: Pending | None = None  # the last publish that is known to be applied, and all before it
        self._ahead: tuple[Pending, Future[bool]] | None = None  # whether what is to be rolled forward is there
        self._sent: set[Pending] = set()  # what this client began to apply, and may yet arrive
        self._applied: Pending | None = None
        self._line: tuple[float, tuple[str, ...]] = (0.0, ())  # as it was seen last, and when
        self.metrics = Recorder(self._on_metric, self._world)
        # A busy data path must not starve the renewals.
        self._records = self._store.apart().telling(self.metrics.throttled)
        self._one_step = threading.RLock()  # the machine takes one event at a time
        self._publishing = threading.RLock()  # one publish at a time; renewals go on meanwhile
        self._turn = Fifo()  # one thread of this client at a time wants or has the lock
        self._lease: Lease | None = None
        self.pulse = Pulse()

    @property
    def world(self) -> World:
        """Where its time, randomness and ids come from."""
        return self._world

    @property
    def owner(self) -> str:
        """This client's UUID, as it stands in the lock record."""
        return self._me.owner

    def acquire(
        self, timeout_s: float | None = None, *, meanwhile: Meanwhile | None = None, keeps_log: bool = False
    ) -> Lease:
        """Wait for the lock, at most `timeout_s` seconds (default: the settings').

        `meanwhile` is told when the lock is about to be taken: see `Meanwhile`. `keeps_log` is a promise: that what the
        lock protects is changed by the publishes of this lease, and by nothing else; see `lockprovider.log`.

        Raises:
            NotAcquired: it was held by others until the timeout; says by whom.
            MalformedRecord: the object at the lock's path is not a lock record.
            CasError: the store failed.
        """
        lease = self._wait(timeout_s, meanwhile, keeps_log=keeps_log, leaves=False)
        assert isinstance(lease, Lease)  # noqa: S101 - it is not left free
        return lease

    def wait_for_turn(self, timeout_s: float | None = None, *, meanwhile: Meanwhile | None = None) -> Lease | FreeLock:
        """As `acquire` by one that keeps the log and has nothing to do under the lock but one publish.

        For that the lock need not be held. Where that will do it is left free, and its `publish_last` is what takes it.

        Raises:
            NotAcquired, MalformedRecord, CasError: as `acquire`.
        """
        return self._wait(timeout_s, meanwhile, keeps_log=True, leaves=True)

    def _wait(
        self, timeout_s: float | None, meanwhile: Meanwhile | None, *, keeps_log: bool, leaves: bool
    ) -> Lease | FreeLock:
        if self._me.pid != os.getpid():
            self._be_new()  # forked: with the parent's owner id each would take the other's lock for its own
        mine = self._lease
        if mine is not None and mine.thread is threading.current_thread():
            return mine.again(keeps_log=keeps_log)
        with self.metrics.acquisition():
            timeout_s = self.settings.timeout_s if timeout_s is None else timeout_s
            return self._waited(timeout_s, meanwhile, keeps_log=keeps_log, leaves=leaves)

    def _waited(
        self, timeout_s: float, meanwhile: Meanwhile | None, *, keeps_log: bool, leaves: bool
    ) -> Lease | FreeLock:
        deadline = self._world.monotonic_s() + timeout_s
        if not self._turn.acquire(timeout=max(0.0, deadline - self._world.monotonic_s())):
            raise NotAcquired(f"another thread of this process holds {self.path!r}", owner=self.owner)
        try:
            self._meanwhile, self._keeps_log, self._leaves = meanwhile, keeps_log, leaves
            self.require_safe_store()
            ask(self, self._party, self._world, deadline)
            self._tried = set()
            state = self._state
            return FreeLock(self, state, looked=self._looked) if isinstance(state, Free) else self._begin()
        except BaseException:
            self._leave()
            raise
        finally:
            self._meanwhile = None

    def _leave(self) -> None:
        self.step_aside()
        self._turn.release()

    def require_safe_store(self) -> None:
        """Refuse a store that ignores conditions; the first acquisition does it, and nothing is asked after it.

        Raises:
            NotSupported: a lock kept there would have two holders. `LockSettings.check_store=False` trusts it.
            CasError: the store failed.
        """
        if self.settings.check_store and not self._store_is_safe:
            require_safe_for_locks(self._records.below(folder) if (folder := _folder(self.path)) else self._records)
        self._store_is_safe = True

    def look(self) -> LockRecord | None:
        """The lock record now, without wanting the lock; None if there is none. One request, and no body if unchanged.

        Raises:
            MalformedRecord: the object at the lock's path is not a lock record.
            CasError: the store failed.
        """
        if self._me.pid != os.getpid():
            self._be_new()
        with self._looking:  # not the machine's: a look waits for no acquisition or renewal
            self._glimpse = self._known_now(self._glimpse or self.known, self._store)
            self._party.saw(self._glimpse)
            return None if self._glimpse is None else self._glimpse.record

    def stage(self, path: str, data: bytes, *, sole: bool = False) -> Pending:
        """Put the bytes of a later `publish_staged` into the store; the lock is not needed yet.

        `sole`: a promise that nobody ever writes anything else to `path`.
        """
        return publish.stage(self._store, _folder(self.path), self._world.new_id(), path, data, sole=sole)

    def enclose(self, path: str, data: bytes, *, sole: bool = False) -> Pending:
        """As `stage`; but what is small goes along in the lock record itself, and nothing is asked of the store."""
        return publish.enclose(path, data, sole=sole) or self.stage(path, data, sole=sole)

    def unstage(self, pending: Pending) -> None:
        """Remove bytes that were staged and will not be published after all."""
        publish.discard(self._store, pending)

    def try_lock(self) -> Lease | Busy:
        """Take the lock if it is free now, else say who holds it."""
        try:
            return self.acquire(0.0)
        except NotAcquired as refusal:
            return Busy(refusal.owner, refusal.valid_until_ms, None)

    # -- what asking for it needs (`lockprovider.asking`) ----------------------------------------------------------

    def adopt(self, idle: Idle, known: Known | None) -> None:
        """What another client of this process has released, and knows, is as good as the own."""
        self.known = known or self.known
        state = self._state
        if idle.released is not None:
            self._state = idle
        elif isinstance(state, Idle) and state.released is not None and known is not None:
            self._state = state if known.version == state.released[1] else Idle()

    def joined(self, there: LockRecord, version: Version) -> bool:
        """Add this process to the line, under the version that was read."""
        with contextlib.suppress(CasError):  # politeness must not fail an acquisition
            outcome = self._records.put_if_match(self.path, there.encode(), version, timeout=self._request_s())
            if isinstance(outcome, Won):
                self.known = Known(there, outcome.version, understood=True)
                return True
        return False

    def try_once(self, over: Passing, *, patient: bool) -> Tried:
        """Take the lock, if it is there; one that is not `patient` looks once more at who was faster."""
        with self._one_step:
            self._looked, self._patient = False, patient
            if not isinstance(self._state, (Idle, Lost)):
                self._state = Idle()  # what an earlier release or acquisition that failed has left
            self._applied = None
            try:
                answer = self._feed(TryLock(self._moment(), over, self._keeps_log, self._leaves, self._line_of_late()))
                if isinstance(answer, Apply):  # there is no heartbeat yet that this could keep waiting
                    self._roll_forward(answer)
                if isinstance(self._state, Free) and self._meanwhile is not None:
                    self._meanwhile.start(self._state.record)
            except BaseException:
                self._back_out()
                raise
        return Tried(answer if isinstance(answer, Busy) else None, self._looked)

    def _back_out(self) -> None:
        """After a failed try; what landed, or lands yet, is recognised as ours at the next one."""
        if isinstance(self._state, Rolling):
            self._release_quietly()  # taken, but not rolled forward: nobody shall wait for it to lapse
        self._state = Idle()

    def _begin(self) -> Lease:
        lease = Lease(self, self._on_lost)
        try:
            lease.start()
        except BaseException:
            self._release_quietly()
            raise
        self._lease = lease
        return lease

    def end(self, lease: Lease) -> None:
        """Let other threads of this client have their turn."""
        if self._lease is lease:
            self._lease = None
            self._leave()

    def step_aside(self) -> None:
        """Whatever we held is over: other clients of this process need not wait for us."""
        state = self._state
        self._party.freed(self.has_turn, state if isinstance(state, Idle) else Idle(), self.known)

    # -- what the lease and its heartbeat ask for ------------------------------------------------------------------

    def held(self) -> Held | None:
        """What the machine believes we hold; does not wait for a request on its way."""
        return machine.belief(self._state)

    def tick(self) -> Ended | None:
        """Tell the machine the time; the end of the lease if it lapsed. Does not wait for a request on its way."""
        state = self._state
        after, effect = machine.step(self._me, state, Tick(self._world.monotonic_s()))
        if after is not state and self._one_step.acquire(blocking=False):
            try:
                self._state = after if self._state is state else self._state
            finally:
                self._one_step.release()
        return effect if isinstance(effect, Ended) else None

    def renew(self) -> Told | Ended | None:
        """Prolong the lease once. What could not be applied before is tried again, if nobody is at it."""
        with self._one_step:
            self._note_applied()
            effect: Busy | Told | Ended | Apply | None = None
            if isinstance(self._state, Checking):
                effect = self._feed(Look())
            elif isinstance(self._state, (Held, Rolling)):
                effect = self._feed(Renew(self._moment()))
        if self._publishing.acquire(blocking=False):
            try:
                self._apply_left(lambda: min(self._left_s(), self.settings.renew_s))
            finally:
                self._publishing.release()
        return self._final(effect)

    def time_of(self, monotonic_s: float) -> datetime:
        """The wall clock's reading when the monotonic one shows this, if neither steps."""
        now_s = self._world.now_ms() / 1000
        return datetime.fromtimestamp(now_s + monotonic_s - self._world.monotonic_s(), timezone.utc)

    def give_back(self) -> None:
        """Release until it is known to be released, or not ours any more."""
        at_ms = self._world.now_ms()
        with self._publishing, self._one_step:
            self._finish_in_flight()
            while isinstance(self._state, (Held, Rolling)):
                self._feed(Release(self._moment(), self._comes_again()))
                self._finish_in_flight()
            released = isinstance(self._state, Idle) and self._state.released is not None
        self.note_end(at_ms, held=released)

    def note_end(self, at_ms: int | None = None, *, held: bool) -> None:
        """Tell the audit, if there is one, that the lock was released, or is not held any more."""
        if self._audit is not None:
            self._audit.ended(self._world.now_ms() if at_ms is None else at_ms, held=held)

    def _note(self, effect: Busy | Told | Ended | Apply | None) -> None:
        """Tell the audit what the machine has told."""
        held = machine.belief(self._state)
        if self._audit is None or held is None or not isinstance(effect, Told):
            return
        if effect.what == "acquired":
            self._audit.taken(held.record)
        elif effect.what in ("renewed", "committed"):
            self._audit.renewed(held.record, self.settings.validity_s)

    def commit(self, pending: Pending, data: bytes | None = None) -> Told | Ended | None:
        """Try to pass the commit point once, and apply; None if nothing is held. Renewals go on all the while.

        `data`, if the caller has it at hand and knows that nothing is at the path.
        """
        with self._publishing:
            while True:
                with self._one_step:
                    ended = self._finish_in_flight()
                    if not isinstance(self._state, (Held, Rolling)):
                        return ended
                    if isinstance(self._state, Held) and data is not None:
                        self._tried.add(pending)
                        effect = self._feed(Commit(pending, self._moment()))
                        break
                self._apply_left(self._left_s)
                if data is None:
                    data = publish.prepare(self._store, pending, self._left_s)
            if isinstance(effect, Apply):
                self._apply(effect, data)
                return Told("committed")
            return self._final(effect)

    def hand_over(self, pending: Pending) -> Told | Ended | None:
        """Try once to pass the commit point and to give the lock back, in one write; None if nothing is held.

        To be applied after that, see `apply_late`.
        """
        with self._publishing:
            with self._one_step:
                self._note_applied()
            self._apply_left(self._left_s)
            with self._one_step:
                ended = self._finish_in_flight()
                if not isinstance(self._state, Held):
                    return Told("handed_over") if self._handed_over(pending) else ended
                self._tried.add(pending)
                return self._final(self._feed(HandOver(pending, self._moment(), self._comes_again())))

    # -- what a lock that is left free is asked for (`lockprovider.free`) ------------------------------------------

    def publish_free(self, free: Free, pending: Pending) -> tuple[Apply, Busy | Told | Ended | None]:
        """Try once to take the lock, pass the commit point and hand over; and what is to be applied if that is so."""
        with self._publishing, self._one_step:
            what = Apply(pending, not_there(free.record, self._there))
            if self._state is not free:
                return what, None
            self._patient = True
            self._tried.add(pending)
            self._look_ahead(what.earlier[-1] if what.earlier else None)
            again = self._party.comes_again(free.record)
            answer = self._feed(Publish(pending, self._moment(), again, self._there))
            state = self._state
            if self._audit is not None and isinstance(state, Idle) and state.released is not None:
                self._audit.taken(state.released[0])
                self.note_end(held=True)
            return what, None if isinstance(answer, Apply) else answer

    def has_turn(self) -> Held | Free | None:
        """What the others of this process wait for: the lock that is held, or that is free and about to be taken."""
        state = self._state
        return self.held() or (state if isinstance(state, Free) else state.free if isinstance(state, Writing) else None)

    @property
    def is_waited_for(self) -> bool:
        """Whether others wait, as the own last write of the record says, or in this process."""
        state = self._state
        released = state.released if isinstance(state, Idle) else None
        line = () if released is None else released[0].line
        return any(p != self._party.name for p in line) or self._party.fifo.taken or self._turn.wanted

    def free_again(self) -> Future[None]:
        """Release what was handed over, while nobody waits, for those who know nothing of that. Best effort."""
        return self._store.beside(self._free_again)

    def _free_again(self) -> None:
        with contextlib.suppress(CasError, LockError), self._one_step:
            state = self._state
            if isinstance(state, Idle) and state.released is not None and state.released[0].handed:
                self._patient = True
                self._feed(Release(self._moment()))

    def go_last(self, free: Free) -> None:
        """Let the next one in the line have the turn that was not used. Best effort."""
        party = self._party.name
        line = tuple(p for p in free.record.line if p != party)
        if party in free.record.line and line and self._state is free:
            again = self._party.comes_again(free.record)
            # With a nonce of its own: where a version is a hash of the content, no bytes may come again.
            left = replace(free.record, line=(*line, party) if again else line, nonce=self._world.new_id())
            self.joined(left, free.version)
            self._state = Idle()

    def left_free(self) -> None:
        """Whoever had the turn is done with it."""
        if isinstance(self._state, Free):
            self._state = Idle((self._state.record, self._state.version))
        self._leave()

    def _handed_over(self, pending: Pending) -> bool:
        """Whether that is what became of the last lease: the heartbeat may have been told, in the publisher's place."""
        state = self._state
        return isinstance(state, Idle) and state.released is not None and state.released[0].pending == pending

    @property
    def others_wait(self) -> bool:
        """Whether it is time for a holder to hand over: others are in the line, and it is not for a JVM's turn.

        A lock that is only ever handed over is never free for a client that knows nothing of that.
        """
        held = self.held()
        log = None if held is None else held.record.log
        return held is not None and bool(held.record.line) and (log is None or log.next % HAND_OVERS != 0)

    def apply_late(self, what: Apply, data: bytes, began_s: float) -> None:
        """Apply what was handed over by a write that was sent after `began_s`; others may be at it, too.

        Raises:
            Unavailable: the time for it is over; the next holder does it.
            OutcomeUnknown, StoreError: as `publish.apply`.
        """
        until_s = began_s + hand_over_s(self.settings) / 2  # the other half is for clocks that differ
        if what.earlier and self._is_there(what.earlier[-1]):
            what = Apply(what.pending)
        self._put_there(what, data, lambda: until_s - self._world.monotonic_s())

    def wait_for_late(self) -> None:
        """Return once nobody puts anything there any more that was published under an earlier lease of this lock.

        At once, or after half of `HAND_OVER_S`. To be called under the lock by whoever is going to remove what was
        published.
        """
        held = self.held()
        if held is not None and held.record.late_ms:
            self._world.sleep(HAND_OVER_S / 2 + GRACE_MS / 1000)

    def tried(self, pending: Pending) -> bool:
        """Whether this lease ever sent the commit of `pending`."""
        return pending in self._tried

    def settle(self, pending: Pending, epoch: int) -> Verdict:
        """What became of a commit that was tried under the lease of `epoch`, which has ended.

        Raises:
            CasError, LockError: it cannot be found out now.
        """
        with self._one_step:
            seen = self._read().record  # the record first: its `pending` is dropped only after the object is there
        there = publish.digest_at(self._store, pending.path)
        verdict = settle_commit(pending, self.owner, epoch, seen, there)
        # Who drops `pending` from the record (a JVM writer does) does not stop what we have sent already.
        return "unknown" if verdict == "not_committed" and pending in self._sent else verdict

    def _comes_again(self) -> bool:
        held = self.held()
        return held is not None and self._party.comes_again(held.record)

    def _release_quietly(self) -> None:
        """Best effort, when something else is already being raised."""
        with contextlib.suppress(CasError, LockError):
            self.give_back()

    def _finish_in_flight(self) -> Ended | None:
        """Find out what became of a write whose answer is missing, and take note of what was applied."""
        effect = self._feed(Look()) if isinstance(self._state, Checking) else None
        self._note_applied()
        return effect if isinstance(effect, Ended) else None

    def _apply_left(self, left_s: publish.Left) -> None:
        """Finish what was decided and could not be applied before."""
        state = self._state
        if isinstance(state, Rolling) and state.held.record.pending is not None:
            self._apply(Apply(state.held.record.pending, state.held.record.earlier), left_s=left_s)

    def _apply(self, what: Apply, data: bytes | None = None, left_s: publish.Left | None = None) -> None:
        """Apply it, while this lease lives. That may take long, so the machine is not kept; only told in the end."""
        self._put_there(what, data, left_s or self._left_s)
        with self._one_step:
            self._applied = what.pending
            self._note_applied()

    def _put_there(self, what: Apply, data: bytes | None, left_s: publish.Left) -> None:
        """What was decided, in the order of the decisions."""
        for earlier in what.earlier:
            publish.apply(self._store, earlier, None, left_s)
        self._sent.add(what.pending)
        publish.apply(self._store, what.pending, data, left_s)
        self._sent.discard(what.pending)
        self._there = what.pending

    def _look_ahead(self, pending: Pending | None) -> None:
        """Whoever handed the lock over is at its publish: look for that while the record is being written."""
        self._ahead = None
        if pending is not None and pending.sole and not self._store.backend.blocking:
            self._ahead = pending, self._store.beside(partial(publish.is_there, self._store, pending.path))

    def _is_there(self, pending: Pending) -> bool:
        """What came of the look ahead."""
        ahead, self._ahead = self._ahead, None
        return ahead is not None and ahead[0] == pending and ahead[1].exception() is None and ahead[1].result()

    def _roll_forward(self, what: Apply) -> None:
        """Finish what was decided under an earlier lease, if it was not there already."""
        if self._is_there(what.pending):
            self._applied = what.pending
            self._note_applied()
        else:
            self._apply(what)

    def _note_applied(self) -> None:
        state = self._state
        if isinstance(state, Rolling) and state.held.record.pending == self._applied:
            self._feed(AppliedPending())

    def _left_s(self) -> float:
        held = self.held()
        return 0.0 if held is None else held.deadline_s - self._world.monotonic_s()

    @staticmethod
    def _final(effect: Busy | Told | Ended | Apply | None) -> Told | Ended | None:
        return None if isinstance(effect, (Busy, Apply)) else effect

    def _feed(self, event: Event) -> Busy | Told | Ended | Apply | None:
        """Feed one event and do what the machine asks for, until it asks for nothing more, or for an `Apply`."""
        while True:
            before = self._state
            self._state, effect = machine.step(self._me, before, event)
            self.metrics.stepped(self._me, Step(before, event, self._state, effect))
            match effect:
                case ReadRecord():
                    event = self._read()
                case PutRecord():
                    if _takes(self._state):
                        self._look_ahead(effect.record.pending)
                        self._tell_meanwhile(effect)
                    event = self._put(effect)
                case _:
                    self._note(effect)
                    return effect

    def _tell_meanwhile(self, effect: PutRecord) -> None:
        meanwhile, seen = self._meanwhile, self.known
        if meanwhile is None:
            return
        record = seen.record if seen is not None and seen.version == effect.condition else None
        # Not if whoever had it let it lapse, or was made to, and may still be at work.
        given = record is not None and (record.handed or (record.expired and record.pending is None))
        if record is not None and given and record.tells_all:
            meanwhile.start(record)
        else:
            meanwhile.drop()

    def _read(self) -> RecordSeen:
        """Read the record; while it has not changed, no body is moved."""
        self._looked = True
        known = self.known = self._known_now(self.known, self._records)
        if known is None:
            return RecordSeen(None, None, self._moment())
        if known.record.nonce:
            self._saw_line(known.record)
        return RecordSeen(known.record, known.version, self._moment())

    def _saw_line(self, record: LockRecord) -> None:
        self._line = self._world.monotonic_s(), record.line

    def _line_of_late(self) -> tuple[str, ...]:
        at_s, line = self._line
        return line if self._world.monotonic_s() - at_s < _LINE_S else ()

    def _known_now(self, before: Known | None, store: Store) -> Known | None:
        """The record now; None if there is none."""
        try:
            content = self._content(before, store)
        except ObjectNotFound:
            return None
        if content is None:
            return before
        record = LockRecord.decode(content.data)
        return Known(record, content.version, record.nonce != "" and record.encode() == content.data)

    def _content(self, before: Known | None, store: Store) -> Content | None:
        if before is None:
            return store.read(self.path, timeout=self._request_s())
        return store.read_if_changed(self.path, before.version, timeout=self._request_s())

    def _put(self, effect: PutRecord) -> Event:
        try:
            outcome = self._send(effect)
        except BaseException:
            self._state, _ = machine.step(self._me, self._state, PutFailed())  # looked at when next asked
            raise
        self.metrics.wrote(self._state, outcome)
        if isinstance(outcome, Won):
            self.known = Known(effect.record, outcome.version, understood=True)
            self._saw_line(effect.record)
            return PutWon(outcome.version)
        outrun = self._patient and not isinstance(outcome, Unknown) and isinstance(effect.condition, Version)
        return Outrun() if outrun and _may_be_outrun(self._state) else PutFailed()

    def _send(self, effect: PutRecord) -> Outcome:
        data = effect.record.encode()
        if isinstance(effect.condition, Version):
            return self._records.put_if_match(self.path, data, effect.condition, timeout=self._request_s())
        return self._records.put_if_absent(self.path, data, timeout=self._request_s())

    def _request_s(self) -> float:
        """A renewal that hangs must not keep the news of the lapse until others may act."""
        state = self._state.write if isinstance(self._state, Checking) else self._state
        if not isinstance(state, Writing) or state.purpose != "renew" or state.before is None:
            return _REQUEST_S
        left_s = state.before.deadline_s - self._world.monotonic_s()
        return min(_REQUEST_S, max(left_s, self.settings.margin_s / 2))

    def _moment(self) -> Moment:
        # The monotonic clock first: a pause between the two readings then only shortens our own belief.
        monotonic_s = self._world.monotonic_s()
        return Moment(self._world.now_ms(), monotonic_s, self._world.new_id())


def _takes(state: State) -> bool:
    return isinstance(state, Writing) and state.purpose == "take"


def _may_be_outrun(state: State) -> bool:
    """Then it is not asked by whom."""
    return isinstance(state, Writing) and state.purpose in ("take", "publish", "free")


def _folder(path: str) -> str:
    return path.rpartition("/")[0]
