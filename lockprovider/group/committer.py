"""One client of a lock that wants publishes to be decided, and need not hold the lock for that.

While nobody else is there it writes the lock record itself, with what it wants decided. Where somebody is on duty it
posts an intent, and looks what became of it. Where writes meet it announces duty, and combines for all who have posted,
for as long as there is something to decide. One thread does all of that, and ends when nothing is left to do;
`combine` has the decisions.
"""

from __future__ import annotations

import atexit
import threading
from collections.abc import Callable, Collection
from dataclasses import dataclass, replace
from functools import partial

from fsspec_cas import CasError, Store, Unknown, Version, Won, World
from lockprovider.errors import LockError, NotAcquired, PublishUnknown, Unappliable
from lockprovider.group import combine
from lockprovider.group.applying import Applying
from lockprovider.group.combine import Decided, Decider, Hold, Look, Post, Refused, Standing, Void, Waiting, Write
from lockprovider.group.intent import Intent, is_over
from lockprovider.group.intents import Intents
from lockprovider.lease.machine import hand_over_s, not_there
from lockprovider.lease.record_file import Known, RecordFile
from lockprovider.lease.states import Me, Moment
from lockprovider.observe.audit_log import AuditLog
from lockprovider.record.commit_log import Log, tells
from lockprovider.record.line import rest_due_ms
from lockprovider.record.pending import Pending
from lockprovider.record.record import LockRecord

_REQUEST_S = 20.0
_RETRY_S = 0.2
_IDLE_S = 1.0  # for so long the thread waits for more
_AT_EXIT_S = 5.0  # at most, for what is under way
_EMPTY_ROUNDS = 2  # in a row, and the duty is over
_DUTY_ROUNDS = 3  # for so many rounds it is announced
_LEAST_DUTY_S = 0.06
_LEAST_ROUND_S = 0.005
_SMOOTHING = 4
_EARLY = 0.7  # of the time that it takes, the first look is made
_MOST_EARLY_S = 2.0

Result = Decided | Void | Hold


@dataclass(eq=False)
class _Draft:
    """What one caller waits for."""

    intent: Intent
    decider: Decider
    began_s: float
    deadline_s: float
    done: threading.Event
    posted_s: float | None = None
    came: Result | None = None
    error: BaseException | None = None

    @property
    def posted(self) -> bool:
        """Whether others may decide it."""
        return self.posted_s is not None

    def end(self, came: Result | BaseException) -> None:
        if isinstance(came, BaseException):
            self.error = came
        else:
            self.came = came
        self.done.set()


@dataclass
class _Duty:
    """Of one who is on duty: how long a round takes, when the last one began, how many in a row had nothing to do."""

    round_s: float
    began_s: float
    empty: int = 0


class Committer:
    """Thread-safe: what several threads want at once goes into one write."""

    def __init__(
        self, store: Store, records: Store, path: str, me: Me, world: World, *, audit: AuditLog | None
    ) -> None:
        self._store = store
        self._path = path
        self._me = replace(me, owner=world.new_id())  # what it writes is not to be taken for what a holder wrote
        self._world = world
        self._audit = audit
        self._file = RecordFile(records, path, world)
        self._intents = Intents(store, path.rpartition("/")[0])
        self._wake = threading.Event()
        self._applying = Applying(store, world, self._wake.set)
        self._guard = threading.Lock()
        self._new: list[tuple[_Draft, Known | None]] = []
        self._thread: threading.Thread | None = None
        self._exiting = False
        # What follows is the thread's own.
        self._drafts: list[_Draft] = []
        self._decider: Decider | None = None
        self._stale = True  # whether it must be looked at before anything is done by it
        self._doubt: Version | None = None  # at which a write was sent whose answer is missing
        self._refused = 0
        self._wait_s = 0.0  # how long it took of late until what was posted was there
        self._put_s = 0.0  # how long a write takes of late
        # Of writes without an answer, by their nonces: until when what they decide may be applied.
        self._sent: dict[str, float] = {}
        self._duty: _Duty | None = None

    def commit(self, intent: Intent, decider: Decider, known: Known | None, timeout_s: float) -> Result:
        """Wait until it is decided and applied, or never will be by this intent.

        `known`: the record as it was seen by whoever has judged the intent.

        Returns:
            Decided: it is there. Void: whoever wants it looks again, and asks with another intent, if it is not there.
            Hold: the same, under a lock that is held; at once if there is more of it than the log keeps.

        Raises:
            Exception: what the decider refuses it with; it never was and never will be.
            NotAcquired: nobody decided it in time; nor will anybody.
            PublishUnknown: it may have been decided; or it is, and another applies it.
            CasError: the store failed; it never was and never will be.
        """
        if not tells(Pending.of_bytes(intent.stem, intent.body)):
            return Hold()
        now_s = self._world.monotonic_s()
        draft = _Draft(intent, decider, now_s, now_s + timeout_s, threading.Event())
        with self._guard:
            self._new.append((draft, known))
            if self._thread is None:
                self._thread = threading.Thread(target=self._serve, name="group-commit", daemon=True)
                self._thread.start()
                atexit.register(self._at_exit)
        self._wake.set()
        try:
            draft.done.wait()
        except BaseException:  # an interrupt: nobody waits for it any more
            draft.deadline_s = now_s
            self._wake.set()
            draft.done.wait(_REQUEST_S)
            raise
        if draft.error is not None:
            raise draft.error
        assert draft.came is not None  # noqa: S101 - it is done
        return draft.came

    def sweep(self) -> int:
        """Remove the intents of those who died; how many.

        Raises:
            CasError: the store failed; may be repeated.
        """
        left = self._intents.left()  # first: their logs have begun, so those that the record has not have ended
        known = RecordFile(self._store, self._path, self._world).read(_REQUEST_S)
        log = None if known is None else known.record.log
        over = [intent for intent in left if is_over(intent, log)]
        self._intents.remove(*over)
        return len(over)

    # -- the thread ----------------------------------------------------------------------------------------------------

    def _serve(self) -> None:
        try:
            while (pause_s := self._turn()) is not None or not self._ends():
                if pause_s:
                    self._wake.wait(pause_s)
                    self._wake.clear()
        except BaseException as error:
            with self._guard:
                self._thread, left = None, [*self._drafts, *(draft for draft, _ in self._new)]
                self._drafts, self._new = [], []
            for draft in left:
                draft.end(PublishUnknown(f"the publish of {draft.intent.stem!r} may have been decided: {error!r}"))
            raise

    def _ends(self) -> bool:
        """Nothing is left to do: wait a little for more."""
        if not self._exiting:
            self._wake.wait(_IDLE_S)
            self._wake.clear()
        with self._guard:
            if self._new:
                return False
            self._thread = None
            atexit.unregister(self._at_exit)
            return True

    def _at_exit(self) -> None:
        self._exiting = True
        self._wake.set()
        thread = self._thread
        if thread is not None:
            thread.join(_AT_EXIT_S)

    def _turn(self) -> float | None:
        """One thing to do; for how long to wait then, None if nothing is left."""
        try:
            return self._step()
        except (CasError, LockError) as error:
            self._stale, self._duty = True, None
            for draft in self._late():
                self._give_up(draft, error)
            return _RETRY_S if self._drafts else None
        except Exception as error:  # noqa: BLE001 - of the decider; for those who wait
            self._duty = None
            for draft in [*self._drafts]:
                self._give_up(draft, error)
            return 0.0

    def _step(self) -> float | None:
        self._take_new()
        if self._drafts and (self._stale or self._file.known is None):
            self._look()
        known = self._file.known
        self._settle(known)
        for draft in self._late():
            self._give_up(draft, self._not_in_time(draft))
        if known is None:
            return self._all_hold()
        if self._duty is not None and not combine.may_write(known.record):
            self._duty = None  # somebody has taken it
        if self._duty is not None:
            return self._round(known)
        return self._wait_or_write(known) if self._drafts else self._finish(known)

    def _wait_or_write(self, known: Known) -> float:
        undecided = self._undecided(known.record)
        if not undecided and self._applying.busy:
            return _RETRY_S
        if not undecided and (pause_s := self._until_there_s(known)) is not None:
            return pause_s
        poll_s, mine = self._me.settings.poll_s, self._standing(known, undecided)
        act = combine.next_step(known.record, mine, self._world.now_ms(), poll_s)
        match act:
            case Write(duty) if not self._is_stuck(known.record):
                return self._straight(known, duty=duty)
            case Post():
                return self._post(undecided)
            case Look(seconds):
                self._stale = True
                return max(seconds * (1 + self._world.random() / 4), min(self._first_look_s(), _MOST_EARLY_S))
            case _:
                return self._all_hold()

    def _until_there_s(self, known: Known) -> float | None:
        """All is decided, and another applies it, one after the other: until the next look whether mine is there.

        None if nobody does.
        """
        record, now_s = known.record, self._world.monotonic_s()
        if record.owner == self._me.owner or now_s - known.seen_s >= record.duty_ms / 1000:
            return None
        stems = tuple(draft.intent.stem for draft in self._drafts)
        unapplied = self._unapplied(record)
        at = next((n for n, pending in enumerate(unapplied) if pending.path.startswith(stems)), None)
        if at is None:
            return None
        due_s = known.seen_s + at * self._put_s
        if now_s < due_s:
            return due_s - now_s
        return 0.0 if self._applying.finds(unapplied[at]) else max(_LEAST_ROUND_S, self._put_s / 2)

    def _take_new(self) -> None:
        with self._guard:
            new, self._new = self._new, []
        self._drafts += [draft for draft, _ in new]
        for draft, known in new:
            mine = self._file.known
            if known is not None and (mine is None or known.record.epoch > mine.record.epoch):
                self._file.known, self._stale = known, False
            log = None if self._file.known is None else self._file.known.record.log
            if log is None or log.name != draft.intent.log or draft.intent.place > log.next:
                self._stale = True

    def _look(self) -> None:
        before = self._file.known
        known = self._file.read(_REQUEST_S)
        self._stale = False
        if before is None or known is None or before.version != known.version:
            self._doubt = None
            sent, self._sent = self._sent, {}
            if known is not None and known.record.handed and known.record.nonce in sent:
                # A write of mine that was taken for refused. It may have been late: its time counts from when it began.
                self._applying.apply(known.record.unapplied, (), sent[known.record.nonce])

    def _undecided(self, record: LockRecord) -> list[_Draft]:
        verdicts = ((draft, combine.verdict(record.log, draft.intent, draft.decider)) for draft in self._drafts)
        return [draft for draft, came in verdicts if isinstance(came, Waiting)]

    def _standing(self, known: Known, undecided: list[_Draft]) -> Standing:
        now_s = self._world.monotonic_s()
        began_s = min(draft.began_s for draft in self._drafts)
        posted = all(draft.posted for draft in undecided)
        return Standing(posted, self._refused, now_s - known.seen_s, now_s - began_s)

    # -- what became of those who wait ---------------------------------------------------------------------------------

    def _settle(self, known: Known | None) -> None:
        log = None if known is None else known.record.log
        unapplied = set() if known is None else {pending.path for pending in self._unapplied(known.record)}
        for draft in [*self._drafts]:
            match combine.verdict(log, draft.intent, draft.decider):
                case Decided(path) if path in unapplied:
                    continue
                case Refused():
                    error = self._refused_by(draft, log, unapplied)
                    if error is not None:
                        self._forget(draft)
                        self._end(draft, error)
                case Decided(path):
                    self._note_wait(draft)
                    self._end(draft, Decided(path, self._intents.path(draft.intent) if draft.posted else ""))
                case Void() as came:
                    self._forget(draft)
                    self._end(draft, came)

    def _refused_by(self, draft: _Draft, log: Log | None, unapplied: Collection[str]) -> Exception | None:
        """What refuses it and is there: of what is not yet nobody is told, for it may never come to be."""
        since = () if log is None else log.since(draft.intent.place) or ()
        try:
            draft.decider.refuse(draft.intent, [entry for entry in since if entry.path not in unapplied])
        except combine.JudgeAnew:
            return None
        except Exception as error:  # noqa: BLE001 - for the writer of the intent
            return error
        return None

    def _forget(self, draft: _Draft) -> None:
        """No write can decide it any more; if this fails it is swept."""
        if draft.posted:
            self._store.in_background(partial(self._intents.remove, draft.intent))

    def _note_wait(self, draft: _Draft) -> None:
        if draft.posted_s is not None:
            waited_s = self._world.monotonic_s() - draft.posted_s
            self._wait_s += (waited_s - self._wait_s) / _SMOOTHING

    def _first_look_s(self) -> float:
        """Until one that is posted may be decided and there, as it was of late."""
        now_s = self._world.monotonic_s()
        posted_s = min((draft.posted_s for draft in self._drafts if draft.posted_s is not None), default=now_s)
        return posted_s + _EARLY * self._wait_s - now_s

    def _late(self) -> list[_Draft]:
        now_s = self._world.monotonic_s()
        return [draft for draft in self._drafts if now_s >= draft.deadline_s]

    def _not_in_time(self, draft: _Draft) -> NotAcquired:
        record = None if self._file.known is None else self._file.known.record
        owner, until_ms = ("", 0) if record is None else (record.owner, record.valid_until_ms)
        waited_s = draft.deadline_s - draft.began_s
        said = f"{draft.intent.stem!r} was not decided in {waited_s:g} s; the lock was last written by {owner}"
        return NotAcquired(said, owner=owner, valid_until_ms=until_ms)

    def _end(self, draft: _Draft, came: Result | BaseException) -> None:
        self._drafts.remove(draft)
        draft.end(came)

    def _all_hold(self) -> float:
        """Whoever wants something has to hold the lock for it."""
        for draft in [*self._drafts]:
            self._give_up(draft, Hold())
        self._stale = True
        return 0.0

    def _give_up(self, draft: _Draft, came: Result | BaseException) -> None:
        """End it, once it is sure that it is not decided, nor will be; or, if the log has ended, with that."""
        try:
            if self._withdraw(draft) and isinstance(came, BaseException):
                came = Void()
        except (CasError, LockError) as error:
            unknown = PublishUnknown(f"the publish of {draft.intent.stem!r} may have been decided: {error}")
            unknown.__cause__ = error
            self._end(draft, unknown)
        else:
            self._end(draft, came)

    def _withdraw(self, draft: _Draft) -> bool:
        """Return once it cannot be decided any more; whether it may have been, in a log that has ended since.

        Raises:
            PublishUnknown, CasError: it may be.
        """
        if draft.posted:
            self._intents.withdraw(draft.intent)
        asked = draft.posted or self._doubt is not None
        if asked:
            self._move_on()
        known = self._file.known
        came = combine.verdict(None if known is None else known.record.log, draft.intent, draft.decider)
        if isinstance(came, Decided):
            raise PublishUnknown(f"{came.path!r} was decided, and whoever writes the lock record next puts it there")
        return asked and isinstance(came, Void)

    def _move_on(self) -> None:
        """Return once nothing can land any more that was to be written over the record as it was.

        Over one that may not be written nothing is on its way.

        Raises:
            CasError: the store failed.
        """
        self._look()
        first = known = self._file.known
        while first is not None and known is not None and known.version == first.version:
            if not combine.may_write(known.record):
                return
            self._put(known, (), duty_s=0.0)
            self._look()
            known = self._file.known

    # -- posting and writing -------------------------------------------------------------------------------------------

    def _post(self, undecided: list[_Draft]) -> float:
        for draft in undecided:
            if not draft.posted:
                draft.posted_s = self._world.monotonic_s()  # whatever the answer will be
                self._intents.post(draft.intent)
        return 0.0

    def _straight(self, known: Known, *, duty: bool) -> float:
        """Write what is wanted here, and nothing else."""
        wanted = [draft.intent for draft in self._drafts]
        batch = self._chosen(known, wanted)
        began_s = self._world.monotonic_s()
        if not batch and not known.record.unapplied:
            return 0.0  # what is wanted was given up
        round_s = 2 * self._put_s
        if self._put(known, batch, duty_s=self._announced_s(round_s) if duty else 0.0):
            self._duty = _Duty(round_s, began_s) if duty else None
            return 0.0 if self._applying.failed is None else _RETRY_S
        return self._put_s * self._world.random() if self._refused > 1 else 0.0

    def _round(self, known: Known) -> float:
        """Combine what is posted; whoever is on duty does this again and again."""
        duty, record, unapplied = self._duty, known.record, self._unapplied(known.record)
        assert duty is not None  # noqa: S101 - a round
        assert record.log is not None  # noqa: S101 - else nobody would be on duty
        if record.line or (unapplied and self._applying.failed is not None):
            return self._off_duty(known, unapplied)
        batch: tuple[Pending, ...] = ()
        rest_ms = rest_due_ms(record, self._world.now_ms())
        if len(unapplied) < combine.MOST_UNAPPLIED and not rest_ms:
            listed = self._store.in_background(partial(self._intents.listed, record.log.name))
            batch = self._chosen(known, [draft.intent for draft in self._drafts], listed.result)
        news = len(unapplied) < len(record.unapplied)
        if rest_ms and not unapplied:
            return self._off_duty(known, unapplied, rest_ms=rest_ms)
        now_s = self._world.monotonic_s()
        if batch or news or now_s - known.seen_s > duty.round_s:
            duty.empty = 0 if batch or unapplied or news else duty.empty + 1
            if duty.empty >= _EMPTY_ROUNDS:
                return self._off_duty(known, unapplied)
            duty.round_s += (max(_LEAST_ROUND_S, now_s - duty.began_s) - duty.round_s) / _SMOOTHING
            duty.began_s = now_s
            if not self._put(known, batch, duty_s=self._announced_s(duty.round_s)):
                self._duty = None
            return 0.0
        return max(_LEAST_ROUND_S, duty.round_s / 2)

    def _off_duty(self, known: Known, unapplied: tuple[Pending, ...], *, rest_ms: int = 0) -> float:
        self._duty = None
        if rest_ms or not (unapplied or known.record.line):
            self._put(known, (), duty_s=0.0, rest_ms=rest_ms)
        return 0.0

    def _finish(self, known: Known) -> float | None:
        """Nothing is wanted any more: what is applied is noted, for those who know nothing of `pending`."""
        if self._applying.busy:
            return _RETRY_S
        record = known.record
        mine = record.owner == self._me.owner and record.handed and not record.line
        if mine and not self._stale and not self._unapplied(record):
            self._put(known, (), duty_s=0.0)
        return None

    def _announced_s(self, round_s: float) -> float:
        return max(_LEAST_DUTY_S, _DUTY_ROUNDS * round_s)

    def _chosen(
        self, known: Known, wanted: list[Intent], listed: Callable[[], tuple[Intent, ...]] = tuple
    ) -> tuple[Pending, ...]:
        """What the next write decides; what is wanted here and cannot be is given up."""
        record = known.record
        assert record.log is not None  # noqa: S101 - of a record that may be written
        decider = self._decider = self._drafts[0].decider if self._drafts else self._decider
        assert decider is not None  # noqa: S101 - nobody is on duty who never wanted anything
        decider.refresh(known.seen_s)
        intents = [*wanted, *(intent for intent in listed() if intent not in wanted)]
        now_ms = self._world.now_ms()
        batch = combine.choose(record.log, self._unapplied(record), intents, decider, now_ms)
        for draft in self._undecided(record):
            if any(pending.path.startswith(draft.intent.stem) for pending in batch):
                continue
            pending = decider.pending(draft.intent, record.log, now_ms)
            if pending is None:
                # Only by its writer, who looks again. Where it was posted its name is used up.
                self._give_up(draft, Hold() if draft.posted else Void())
            elif not tells(pending):  # it could not go on where it is not there yet
                self._give_up(draft, Hold())
        return batch

    def _unapplied(self, record: LockRecord) -> tuple[Pending, ...]:
        """What may not be there yet, as far as is known here."""
        return not_there(record, self._applying.there)

    def _is_stuck(self, record: LockRecord) -> bool:
        """Whether something was decided that never can be put there: that is for a holder."""
        return isinstance(self._applying.failed, Unappliable) and bool(self._unapplied(record))

    def _put(self, known: Known, batch: tuple[Pending, ...], *, duty_s: float, rest_ms: int = 0) -> bool:
        """Write the record at the version that is known; whether that was won."""
        began_s = self._world.monotonic_s()
        at = Moment(self._world.now_ms(), began_s, self._world.new_id())
        there, epoch = self._applying.there, self._file.highest_epoch
        record = combine.combine(
            self._me, known.record, batch, at, there=there, duty_ms=round(duty_s * 1000), rest_ms=rest_ms, epoch=epoch
        )
        until_s = began_s + hand_over_s(self._me.settings) / 2  # the other half is for clocks that differ
        self._sent[record.nonce] = until_s
        outcome = self._file.put(record, known.version, _REQUEST_S)
        now_s = self._world.monotonic_s()
        self._put_s += (now_s - began_s - self._put_s) / (_SMOOTHING if self._put_s else 1)
        if not isinstance(outcome, Won):
            self._refused += 1
            self._stale = True
            self._doubt = known.version if isinstance(outcome, Unknown) else self._doubt
            return False
        self._refused, self._stale, self._doubt, self._sent = 0, False, None, {}
        self._applying.apply(record.unapplied, batch, until_s)
        if self._audit is not None and batch:
            self._audit.taken(record)
            self._audit.ended(self._world.now_ms(), held=True)
        return True
