"""Client of group commit: `Committer` takes requests, and on its thread `CommitSteps` decides them, or leads."""

from __future__ import annotations

import atexit
import contextlib
import math
import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import partial

from fsspec_cas import CasError, InvalidInput, Store, World, check_path
from fsspec_cas.machine import Signal, Worker
from lockprovider.errors import LockError, NotAcquired, PublishUnknown, Unappliable
from lockprovider.storage_lock import commit_rules
from lockprovider.storage_lock.audit_log import AuditLog
from lockprovider.storage_lock.commit_rules import Decided, Decider, Hold, Intent, Void, is_over
from lockprovider.storage_lock.commit_writes import (
    SMOOTHING,
    Applying,
    CommitAnswer,
    CommitRequest,
    CommitRequests,
    Intents,
    RecordWriter,
)
from lockprovider.storage_lock.driver import REQUEST_S, KnownRecord, RecordFile
from lockprovider.storage_lock.polling import due_yield_until_ms, others_wait
from lockprovider.storage_lock.record import LockRecord, Me, Pending, fits_log

_IDLE_S = 1.0
_LEFT = 4
_AT_EXIT_S = 5.0
_RETRY_S = 0.2
_LEAST_LEADING_S = 0.06
_LEAST_ROUND_S = 0.005


class Committer:
    """One client of group commit, with a thread while requests exist. Thread-safe.

    `wants_hold`: a thread of this process wants the lock. `resting`: set while all is done and applied.
    """

    def __init__(
        self,
        store: Store,
        records: Store,
        path: str,
        me: Me,
        world: World,
        *,
        wants_hold: Callable[[], bool],
        throttled: Callable[[], bool],
        audit: AuditLog | None,
    ) -> None:
        self._store = store
        self._path = path
        self._world = world
        self._intents = Intents(store, path.rpartition("/")[0])
        self._wake = Signal()
        self._guard = threading.Lock()
        self.resting = Signal()
        self.resting.set()
        self._new: list[tuple[CommitRequest, KnownRecord | None]] = []
        self._thread: threading.Thread | None = None
        self._exiting = False
        self._left: list[tuple[str, ...]] = []
        me = replace(me, owner=world.new_id())  # differs from a holder's
        applying = Applying(store, world, self._wake.set)
        self._requests = CommitRequests(store, self._intents, world)
        self._writer = writer = RecordWriter(records, path, me, world, applying=applying, audit=audit)
        self._steps = CommitSteps(
            store,
            me,
            world,
            requests=self._requests,
            writer=writer,
            wants_hold=wants_hold,
            throttled=throttled,
        )

    @property
    def known(self) -> KnownRecord | None:
        return self._writer.known

    def commit(self, intent: Intent, decider: Decider, known: KnownRecord | None, timeout_s: float) -> CommitAnswer:
        """Wait until the publish is decided and applied, or can no longer be.

        Starts the sending thread if needed. `known`: the record by which the caller judged the intent. An interrupt
        gives the request up, within 20 s.

        Returns:
            Decided: the publish is applied.
            Void: read whether it was published; if not, ask with a new intent.
            Hold: as `Void`, but ask under a held lock. At once for an empty or too large intent.

        Raises:
            Exception: the decider's refusal; it is never published.
            NotAcquired: it was not decided in time, and never will be.
            PublishUnknown: it is or may be decided, and another client applies it.
            CasError, MalformedRecord: it is never published.
        """
        if not intent.body or not fits_log(Pending.of_bytes(intent.stem, intent.body)):
            return Hold()
        now_s = self._world.monotonic_s()
        request = CommitRequest(intent, decider, now_s, now_s + timeout_s, Signal())
        is_wanted = False
        try:
            with self._guard:
                if self._thread is None or not self._thread.is_alive():
                    self._thread = Worker(self._serve, "group-commit")
                    atexit.register(self._at_exit)
                    try:
                        self._thread.start()  # even if interrupted here
                    except RuntimeError:
                        self._thread = None
                        atexit.unregister(self._at_exit)
                        raise
                self.resting.clear()
                self._new.append((request, known))
                is_wanted = True
            self._wake.set()
            request.done.wait()
        except BaseException:
            request.deadline_s = now_s
            self._wake.set()
            if is_wanted:
                request.done.wait(REQUEST_S)
            raise
        if isinstance(request.outcome, BaseException):
            raise request.outcome
        assert request.outcome is not None  # noqa: S101 - it is done
        return request.outcome

    def discard(self, paths: Iterable[str]) -> None:
        """Delete these objects in the background, perhaps later; not promised."""
        checked = tuple(map(check_path, paths))
        with self._guard:
            self._left.append(checked)
            waits = self._thread is not None and self._store.is_remote and len(self._left) < _LEFT
        if not waits:
            self._store.in_background(self._remove_left)

    def sweep(self) -> int:
        """Delete all logs' intents that no write can decide; returns their number."""
        # Listed before the read: an intent of another log is over.
        intents = self._intents.left()
        known = RecordFile(self._store, self._path, self._world).read(REQUEST_S)
        log = None if known is None else known.record.log
        over = [intent for intent in intents if is_over(intent, log)]
        self._intents.remove(*over)
        return len(over)

    def _remove_left(self) -> None:
        with self._guard:
            leftovers, self._left = self._left, []
        self._store.delete_all([path for paths in leftovers for path in paths])

    def _serve(self) -> None:
        """On the thread, take steps and pause until no request is left.

        An unexpected error ends all requests by `PublishUnknown`, and passes.
        """
        with self._guard:
            if self._thread is not threading.current_thread():
                return  # a start that was interrupted, after which another commit has started one
        try:
            while (pause_s := self._turn()) is not None or not self._ends():
                if pause_s:
                    self._wake.wait(pause_s)
                    self._wake.clear()
        except BaseException as error:
            with self._guard:
                atexit.unregister(self._at_exit)
                self._thread, requests, self._new = None, self._new, []
                self.resting.set()
                self._steps.take(requests)
                for request in self._requests:
                    message = f"{request.intent.stem!r} may have been published: {error!r}"
                    self._requests.end(request, PublishUnknown(message))
            raise

    def _turn(self) -> float | None:
        with self._guard:
            requests, self._new = self._new, []
        self._steps.take(requests)
        return self._steps.turn()

    def _ends(self) -> bool:
        """Unless requests wait, set `resting`, wait a second (not at exit); return whether the thread ends.

        If none came, deletes discarded objects, ignoring store errors. False: requests or discarded objects are left.
        """
        with self._guard:
            if self._new:
                return False
            self.resting.set()
        if not self._exiting:
            self._wake.wait(_IDLE_S)
            self._wake.clear()
        if not self._new:
            with contextlib.suppress(CasError):
                self._remove_left()
        with self._guard:
            if self._new or self._left:
                return False
            self._thread = None
            atexit.unregister(self._at_exit)
            return True

    def _at_exit(self) -> None:
        self._exiting = True
        self._wake.set()
        thread = self._thread
        if thread is not None and thread.is_alive():
            thread.join(_AT_EXIT_S)


@dataclass
class _Leading:
    round_s: float
    began_s: float
    empty_rounds: int = 0
    listing_s: float = 0.0


class CommitSteps:
    """Steps of one group commit client. Not thread-safe."""

    def __init__(
        self,
        store: Store,
        me: Me,
        world: World,
        *,
        requests: CommitRequests,
        writer: RecordWriter,
        wants_hold: Callable[[], bool],
        throttled: Callable[[], bool],
    ) -> None:
        self._store = store
        self._me = me
        self._world = world
        self._requests = requests
        self._writer = writer
        self._applying = writer.applying
        self._wants_hold = wants_hold
        self._throttled = throttled
        self._decider: Decider | None = None
        self._leading: _Leading | None = None

    def take(self, requests: Iterable[tuple[CommitRequest, KnownRecord | None]]) -> None:
        """Add requests, and adopt their callers' newer records, unless a write is in doubt.

        Marks the known record as stale if its log does not reach a request's position.
        """
        for request, known in requests:
            self._requests.add(request)
            if known is not None:
                self._writer.learn(known)
            current = self._writer.known
            log = None if current is None else current.record.log
            if log is None or log.name != request.intent.log or request.intent.position > log.next:
                self._writer.stale = True

    def turn(self) -> float | None:
        """Do one step; return the pause in seconds, None if nothing is left.

        Store and lock errors are retried until the requests' deadlines, others end all requests. All end the lead, none
        passes.
        """
        try:
            return self._step()
        except (CasError, LockError) as error:
            self._writer.stale, self._leading = True, None
            for request in self._requests.late():
                self._give_up(request, error)
            return _RETRY_S if self._requests else None
        except Exception as error:  # noqa: BLE001 - the decider's error, for callers
            self._leading = None
            for request in self._requests:
                self._give_up(request, error)
            return 0.0

    def _step(self) -> float | None:
        """Read the record if stale, end judged and late requests, and do the next act.

        Returns the pause in seconds; None if nothing is left, or the record is absent, which ends all requests by
        `Void`.
        """
        writer, requests = self._writer, self._requests
        if requests and (writer.stale or writer.known is None):
            writer.look()
        known = writer.known
        if known is None:
            requests.end_judged(None, ())
        else:
            requests.end_judged(known.record.log, {pending.path for pending in writer.all_pending(known.record)})
        for request in requests.late():
            self._give_up(request, self._not_in_time(request))
        if known is None:
            self._leading = None
            return None
        return self._do_next(known)

    def _do_next(self, known: KnownRecord) -> float | None:
        """Choose one act and do it; return the pause in seconds, None if nothing is left.

        It writes the record, posts intents, leads a round, steps down, reads what is applied, or marks the record as
        stale. May end requests, or all by `Hold`.
        """
        record, leading = known.record, self._leading
        undecided = self._requests.undecided(record.log) if leading is None else []
        situation = self._situation(known, undecided)
        position = (
            self._applied_by_others(known) if situation.waiting and not (undecided or situation.applies) else None
        )
        situation = replace(situation, others_apply=position is not None)
        pause_s: float | None = 0.0
        match commit_rules.next_act(record, situation, self._world.now_ms(), self._me.settings.poll):
            case commit_rules.Combine() if leading is not None:
                pause_s = self._round(known, leading, situation)
            case commit_rules.StepDown():
                self._leading = None
            case commit_rules.AwaitOthers() if position is not None:
                pause_s = self._until_applied_s(known, position)
            case commit_rules.Wait():
                pause_s = _RETRY_S
            case commit_rules.WriteRecord(leads=announced):
                pause_s = self._write_own(known, leads=announced)
            case commit_rules.Post() if record.log is not None:
                pause_s = 0.0 if self._requests.post(undecided, record.log) else _RETRY_S
            case commit_rules.PollAgain(seconds):
                self._writer.stale = True
                pause_s = self._next_poll_s(record, seconds)
            case commit_rules.Free():
                pause_s = self._free(known)
            case commit_rules.Rest():
                pause_s = None
            case _:
                pause_s = self._all_hold()
        return pause_s

    def _situation(self, known: KnownRecord, undecided: list[CommitRequest]) -> commit_rules.Situation:
        """Gather what `next_act` needs besides the record, without a request.

        `undecided`: own requests that the log does not decide.
        """
        record, writer, leads = known.record, self._writer, self._leading is not None
        # Read first: then what is applied is not among the pending.
        applies, failed = self._applying.busy, self._applying.failed
        all_pending = writer.all_pending(record)
        return commit_rules.Situation(
            all_pending=all_pending,
            waiting=self._waiting(known, undecided) if self._requests and not leads else None,
            undecided=bool(undecided),
            leads=leads,
            applies=applies,
            fails=failed is not None,
            is_stuck=isinstance(failed, Unappliable) and bool(all_pending),
            is_waited_for=others_wait(record, self._name()),
            wrote=record.owner == self._me.owner and not writer.stale,
        )

    def _next_poll_s(self, record: LockRecord, seconds: float) -> float:
        spread_s = seconds + self._world.random() * min(seconds / 4, self._requests.post_s or seconds)
        if not self._record_shows_applied:
            return spread_s
        return max(spread_s, min(self._requests.first_poll_s(), commit_rules.latest_first_poll_s(record)))

    def _applied_by_others(self, known: KnownRecord) -> int | None:
        """Return the index, among all pending publishes, of the first own one that another client applies.

        None without one, if that client is overdue, or if the record soon shows it.
        """
        record, now_s = known.record, self._world.monotonic_s()
        if self._record_shows_applied:
            return None
        if record.owner == self._me.owner or now_s - known.seen_s >= record.combiner_ms / 1000:
            return None
        stems = tuple(request.intent.stem for request in self._requests)
        all_pending = self._writer.all_pending(record)
        return next((position for position, pending in enumerate(all_pending) if pending.path.startswith(stems)), None)

    def _until_applied_s(self, known: KnownRecord, position: int) -> float:
        """Read, once due, whether the pending publish at `position` is applied; if unordered, also those before it.

        If so, notes it and returns 0, else the pause in seconds.
        """
        record, now_s, put_s = known.record, self._world.monotonic_s(), self._requests.post_s
        all_pending = self._writer.all_pending(record)
        unordered = any(request.decider.unordered for request in self._requests)
        ago_s = max(now_s - known.seen_s, (self._world.now_ms() - record.freed_ms) / 1000)
        due_s = put_s * (1 if unordered else position + 1) - ago_s
        if due_s > 0:
            return due_s
        before = all_pending[:position] if unordered else ()
        return 0.0 if self._applying.check_applied(all_pending[position], before) else max(_LEAST_ROUND_S, put_s / 2)

    def _waiting(self, known: KnownRecord, undecided: list[CommitRequest]) -> commit_rules.Waiting:
        now_s = self._world.monotonic_s()
        posted = all(request.is_stored for request in undecided)
        age_s, waits_s = now_s - known.seen_s, now_s - min(request.began_s for request in self._requests)
        # The first write decides, the next shows what is applied.
        writes = 2 if undecided and self._record_shows_applied else 1
        return commit_rules.Waiting(posted, self._writer.refused, age_s, waits_s, self._name(), writes)

    def _name(self) -> str:
        return "" if self._wants_hold() else self._me.waiter_name

    def _not_in_time(self, request: CommitRequest) -> NotAcquired:
        known = self._writer.known
        owner, until_ms = ("", 0) if known is None else (known.record.owner, known.record.valid_until_ms)
        waited_s = request.deadline_s - request.began_s
        message = f"{request.intent.stem!r} was not published within {waited_s:g} s; {owner} wrote the lock record last"
        return NotAcquired(message, owner=owner, valid_until_ms=until_ms)

    def _all_hold(self) -> float:
        for request in self._requests:
            self._give_up(request, Hold())
        self._writer.stale = True
        return 0.0

    def _give_up(self, request: CommitRequest, outcome: CommitAnswer | BaseException) -> None:
        """Withdraw a request, perhaps in the store; end it by `outcome`, or `PublishUnknown` if maybe decided.

        An error as `outcome` becomes `Void` if instead an ended log may have decided it.
        """
        try:
            if self._withdraw(request) and isinstance(outcome, BaseException):
                outcome = Void()
        except (CasError, LockError) as error:
            unknown = PublishUnknown(f"{request.intent.stem!r} may have been published: {error}")
            unknown.__cause__ = error
            self._requests.end(request, unknown)
        else:
            self._requests.end(request, outcome)

    def _withdraw(self, request: CommitRequest) -> bool:
        """Empty the posted intent, then read and write the record until no client can decide it.

        Returns whether an ended log may have; raises `PublishUnknown` if this log has, and store errors.
        """
        if request.posted:
            self._requests.intents.withdraw(request.intent)
        may_be_decided = request.posted or self._writer.in_doubt
        if may_be_decided:
            self._writer.move_on()
        known = self._writer.known
        outcome = commit_rules.verdict(None if known is None else known.record.log, request.intent, request.decider)
        if isinstance(outcome, Decided):
            raise PublishUnknown(f"the publish of {outcome.path!r} was decided; the next writer of the lock applies it")
        return may_be_decided and isinstance(outcome, Void)

    def _write_own(self, known: KnownRecord, *, leads: bool) -> float:
        """Write the record with own publishes, unless too soon or nothing is pending; return seconds to pause.

        A won write starts to apply all pending publishes and, with `leads`, makes this client the leader. May end
        requests as `_choose_batch`.
        """
        writer = self._writer
        if pause_s := self._paced_s(known):
            return pause_s
        batch = self._choose_batch(known)
        began_s = self._world.monotonic_s()
        if not batch and not known.record.all_pending:
            return 0.0
        round_s = max(2 * writer.put_s, self._pace_s)
        if writer.put(known, batch, leading_s=_announced_s(round_s) if leads else 0.0):
            self._leading = _Leading(round_s, began_s) if leads else None
            return 0.0 if self._applying.failed is None else _RETRY_S
        return writer.put_s * self._world.random() if writer.refused > 1 else 0.0

    def _round(self, known: KnownRecord, leading: _Leading, situation: commit_rules.Situation) -> float:
        """Lead one round, once due: list intents if useful, then write the record, wait, or step down.

        Sleeps before a write, which if won starts to apply all pending, else ends the lead. Stepping down may free the
        record. May end own requests. Returns seconds to pause.
        """
        writer, record = self._writer, known.record
        assert record.log is not None  # noqa: S101 - a leader has a log
        if (pause_s := self._paced_s(known) - leading.listing_s) > 0:
            return pause_s
        batch: tuple[Pending, ...] = ()
        yield_until_ms = due_yield_until_ms(record, self._world.now_ms())
        if len(situation.all_pending) < commit_rules.MOST_PENDING and not yield_until_ms:
            sample = b"" if self._decider is None else self._decider.sample
            listed = self._store.in_background(partial(self._requests.intents.listed, record.log, sample))
            listing_s = self._world.monotonic_s()
            batch = self._choose_batch(known, listed.result)
            leading.listing_s = self._world.monotonic_s() - listing_s
        now_s = self._world.monotonic_s()
        is_due = now_s - known.seen_s > leading.round_s
        match commit_rules.after_listing(
            record, situation, batch, yields=bool(yield_until_ms), is_due=is_due, empty_rounds=leading.empty_rounds
        ):
            case commit_rules.StepDown(frees):
                self._leading = None
                if frees:
                    writer.put(known, (), leading_s=0.0, yield_until_ms=yield_until_ms)
                return 0.0
            case commit_rules.Wait():
                return max(_LEAST_ROUND_S, leading.round_s / 2)
            case commit_rules.WriteRecord():
                leading.empty_rounds = 0 if batch or record.all_pending else leading.empty_rounds + 1
                leading.round_s += (max(_LEAST_ROUND_S, now_s - leading.began_s) - leading.round_s) / SMOOTHING
                leading.began_s = now_s
                self._world.sleep(self._paced_s(known))
                if not writer.put(known, batch, leading_s=_announced_s(leading.round_s)):
                    self._leading = None
                return 0.0

    def _free(self, known: KnownRecord) -> float | None:
        if pause_s := self._paced_s(known):
            return pause_s
        self._writer.put(known, (), leading_s=0.0)
        return None

    @property
    def _record_shows_applied(self) -> bool:
        return self._store.capabilities.writes_per_s is None

    @property
    def _pace_s(self) -> float:
        return 1 / (self._store.capabilities.writes_per_s or math.inf) if self._throttled() else 0.0

    def _paced_s(self, known: KnownRecord) -> float:
        return max(0.0, known.seen_s + self._pace_s - self._world.monotonic_s())

    def _choose_batch(
        self, known: KnownRecord, listed: Callable[[], tuple[Intent, ...]] = tuple
    ) -> tuple[Pending, ...]:
        """Choose the next write's publishes from own intents and `listed`'s.

        Refreshes the first request's decider, else the last one, and adopts its `unordered`. Ends own requests that
        cannot be published so, by `Hold`, `Void` or `InvalidInput`.
        """
        record = known.record
        assert record.log is not None  # noqa: S101 - only such records are written
        own = [request.intent for request in self._requests]
        decider = self._decider = next((request.decider for request in self._requests), self._decider)
        assert decider is not None  # noqa: S101 - leaders had a request
        decider.refresh(known.seen_s)
        self._applying.unordered = decider.unordered
        intents = [*own, *(intent for intent in listed() if intent not in own)]
        now_ms = self._world.now_ms()
        batch = commit_rules.choose(record.log, self._writer.all_pending(record), intents, decider, now_ms)
        for request in self._requests.undecided(record.log):
            if any(pending.path.startswith(request.intent.stem) for pending in batch):
                continue
            try:
                pending = decider.pending(request.intent, record.log, now_ms)
            except InvalidInput as error:
                self._give_up(request, error)
                continue
            if pending is None:
                # Its writer must read anew. A posted intent's name is used up.
                self._give_up(request, Hold() if request.posted else Void())
            elif not fits_log(pending):  # while pending it would block all writers
                self._give_up(request, Hold())
            elif not pending.path.startswith(request.intent.stem):
                message = f"the path {pending.path!r} must begin with {request.intent.stem!r}, the stem of its intent"
                self._give_up(request, InvalidInput(message))
        return batch


def _announced_s(round_s: float) -> float:
    return max(_LEAST_LEADING_S, commit_rules.LEADER_ROUNDS * round_s)
