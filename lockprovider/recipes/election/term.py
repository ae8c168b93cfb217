"""`Term`: what one who is elected has, until it resigns or another may lead."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import logging
import os
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from types import TracebackType
from typing import Any, Literal, NoReturn, TypeVar, get_args

from fsspec_cas import (
    Cached,
    CasError,
    Content,
    InvalidInput,
    ObjectNotFound,
    Outcome,
    OutcomeUnknown,
    Store,
    Unavailable,
    Version,
    Won,
    World,
)
from fsspec_cas.given import check_text, function
from fsspec_cas.waiting import Signal, Worker
from lockprovider.errors import LossReason, NotPicklable
from lockprovider.recipes.election import decide
from lockprovider.recipes.election.decide import CandidateId, ElectionRecord, Leading, Observed, decode_election
from lockprovider.recipes.errors import Fenced, TermLost
from lockprovider.recipes.place import Proof
from lockprovider.recipes.values import json_copy
from lockprovider.settings import LockSettings
from lockprovider.storage_lock.heartbeat import Heartbeat

# One candidate at the store: looks, stands, renews, resigns.


_REQUEST_S = 20.0  # for one write, with all its tries
_SENDS = 4  # of one renewal or resignation, each at the version that the look before it has shown


class Candidate:
    """Thread-safe for looks; one thread at a time stands, renews or resigns."""

    def __init__(self, store: Store, path: str, name: str, settings: LockSettings, world: World) -> None:
        self.world = world
        self.me = CandidateId(world.new_id(), name, round(settings.validity * 1000), settings.margin_s)
        self._store = store
        self._path = path
        self._proof = Proof(store, path)
        self._object = Cached(store, path, timeout=_REQUEST_S, world=world)
        self._guard = threading.Lock()
        self._observed: Observed | None = None
        self._decoded: tuple[Content, ElectionRecord] | None = None
        self._highest = 0

    @property
    def observed(self) -> Observed | None:
        """As of the last look."""
        return self._observed

    def look(self) -> Observed | None:
        """What is there; None: nothing, and nothing was. One conditional GET, shared by all who look at once.

        One request more when a term is seen for the first time: its age, where the store tells it by its own clock.

        Raises:
            MalformedObject: the object there is no election.
            StoreError: the store did not answer.
        """
        content = self._object.get()
        now_s = self.world.monotonic_s()
        if content is None:
            with self._guard:
                self._observed = decide.vanished(self._observed)
                return self._observed
        record = self._record(content)
        age_s = 0.0
        if self._observed is None and record.stands_s and self._store.capabilities.own_clock:
            age_s = self._age_s(content.version)
            now_s = self.world.monotonic_s()
        with self._guard:
            self._observed = decide.observe(self._observed, record, content.version, now_s, age_s)
            self._highest = max(self._highest, record.epoch)
            return self._observed

    def stand(self, observed: Observed | None, value: Any) -> Leading | None:
        """Try to be elected, on what was observed; None if another was.

        Raises:
            OutcomeUnknown: nobody can tell; what may have been won lapses, or is won again.
            NotSupported: the store ignores conditions: there would be two leaders.
            MalformedObject, StoreError: as `look`.
        """
        self._proof.require()
        sent_s = self.world.monotonic_s()
        write, now_ms = self.world.new_id(), self.world.now_ms()
        record = decide.candidacy(self.me, observed, self._highest, write=write, now_ms=now_ms, value=value)
        version = None if observed is None or observed.gone else observed.version
        outcome = self._put(record, version, _REQUEST_S)
        if isinstance(outcome, Won):
            return decide.leads_by(self.me, record, outcome.version, sent_s)
        return decide.elected(self.me, record, sent_s, self.look())  # a refusal is never believed without a look

    def renew(self, leading: Leading, changes: dict[str, Any] | None = None) -> Leading:
        """Prolong the term; one write. `changes` are of the record.

        Raises:
            TermLost: it is over.
            OutcomeUnknown, StoreError: nobody can tell; the deadline stays, and it may be tried again.
        """
        for _ in range(_SENDS):
            sent_s = self.world.monotonic_s()
            left_s = leading.deadline_s - sent_s
            if left_s <= 0:
                raise TermLost(self._over(leading, "it was not renewed in time"), LossReason.LAPSED)
            record = replace(leading.record, **(changes or {}), write=self.world.new_id())
            # a request that hangs must not keep the news of the end until others may lead
            outcome = self._put(record, leading.version, min(_REQUEST_S, max(left_s, self.me.margin_s / 2)))
            if isinstance(outcome, Won):
                return decide.leads_by(self.me, record, outcome.version, sent_s)
            there = self.look()
            now = decide.renewed(self.me, leading, record, sent_s, there)
            if now is None:
                raise self._deposed(leading, there)
            if now.record.write == record.write:
                return now
            leading = now
        raise Unavailable(f"the term {leading.record.epoch} of {self._path!r} was not renewed", path=self._path)

    def resign(self, leading: Leading, heir: str) -> None:
        """End the term, in favour of `heir` if that is not empty. If it is over already, nothing is done.

        Raises:
            OutcomeUnknown, StoreError: nobody can tell; else it lapses.
        """
        for _ in range(_SENDS):
            record = leading.record.resign(self.world.new_id(), heir)
            if isinstance(self._put(record, leading.version, _REQUEST_S), Won):
                return
            there = self.look()
            if there is None or not decide.goes_on(self.me, leading, there):
                return
            leading = Leading(there.record, there.version, leading.deadline_s)
        raise OutcomeUnknown(f"the term {leading.record.epoch} of {self._path!r} may lapse only", path=self._path)

    def _put(self, record: ElectionRecord, version: Version | None, timeout_s: float) -> Outcome:
        if version is None:
            return self._store.put_if_absent(self._path, record.encode(), timeout=timeout_s)
        return self._store.put_if_match(self._path, record.encode(), version, timeout=timeout_s)

    def _record(self, content: Content) -> ElectionRecord:
        known = self._decoded
        if known is None or known[0] is not content:
            known = self._decoded = (content, decode_election(content.data, self._path))
        return known[1]

    def _age_s(self, version: Version) -> float:
        """Of the record at that version, by the store's own clock; 0 if it does not say, or there is a newer one."""
        try:
            info = self._store.head(self._path, timeout=_REQUEST_S)
        except ObjectNotFound:
            return 0.0
        if info.version != version or info.modified_ms is None or info.answered_ms is None:
            return 0.0
        return (info.answered_ms - info.modified_ms) / 1000

    def _over(self, leading: Leading, why: str) -> str:
        return f"the term {leading.record.epoch} of {self._path!r} is over: {why}; stop what it protects"

    def _deposed(self, leading: Leading, there: Observed | None) -> TermLost:
        if there is None or there.gone:
            return TermLost(self._over(leading, "its object was removed"), LossReason.BROKEN)
        now = there.record
        who = f"{now.name!r} {'has led' if now.resigned else 'leads'}, in term {now.epoch}"
        return TermLost(self._over(leading, who), LossReason.TAKEN_OVER)


_LOG = logging.getLogger("lockprovider")


class LostEvent(Signal):
    """Set once the term is over; `is_set` says so also when its time is past and nobody had a chance to set it."""

    def __init__(self, over: Callable[[], bool]) -> None:
        super().__init__()
        self._over = over

    def is_set(self) -> bool:
        """Whether to stop."""
        return super().is_set() or self._over()


class Term:
    """A term of this candidate's. Leave it (`with`), or `resign`; it is renewed from a thread of its own meanwhile.

    It belongs to the process that was elected: a forked child finds it lost. Not promised: that nobody else leads while
    this process, or its machine, stands still for longer than the validity. Give it as `fence` to what is written then.

    Attributes:
        epoch: rises with each term: `fence=term`.
        name: the candidate's.
        lost: set once another may lead.

    >>> election = lockprovider.election.open("memory://docs/scheduler.json", name="a")
    >>> term = election.lead()
    """

    def __init__(self, candidate: Candidate, leading: Leading, renew_s: float) -> None:
        self.epoch = leading.record.epoch
        self.name = leading.record.name
        self.thread = threading.current_thread()
        self.lost: Signal = LostEvent(self._is_over)
        self._candidate = candidate
        self._leading = leading
        self._why: TermLost | None = None
        self._one_write = threading.RLock()
        self._resigned = self._deposed = False
        self._telling = threading.RLock()
        self._told: list[Callable[[], object]] = []
        self._pid = os.getpid()
        self._heartbeat = Heartbeat(self, renew_s)
        self._heartbeat.start()
        _LOG.debug("%r was elected", self)

    def __repr__(self) -> str:
        return f"<Term {self.epoch} of {self.name!r}, {'over' if self.lost.is_set() else 'goes on'}>"

    def __getstate__(self) -> NoReturn:
        raise NotPicklable(
            f"the term {self.epoch} belongs to this process and cannot be pickled or copied: give `epoch` to others"
        )

    @property
    def value(self) -> Any:
        """What it tells of itself."""
        return json_copy(self._leading.record.value, "value")

    @property
    def deadline_s(self) -> float:
        """Until when this process believes in it, on `time.monotonic`'s clock, if it is not renewed."""
        return self._leading.deadline_s

    @property
    def since(self) -> datetime:
        """When it began, by this machine's clock, UTC."""
        return datetime.fromtimestamp(self._leading.record.since_ms / 1000, timezone.utc)

    def check(self) -> None:
        """Return if nobody else leads, as far as this process can know, without a request.

        Raises:
            TermLost: stop.

        >>> term.check()
        >>> term.resign()
        >>> term.check()
        Traceback (most recent call last):
        ...
        lockprovider.recipes.errors.TermLost: ...resigned...
        """
        if self.lost.is_set():
            forked = TermLost(self._said("it belongs to the process that this one was forked from"), LossReason.FORKED)
            why = self._why or forked
            raise TermLost(str(why), why.reason)

    def proclaim(self, value: Any) -> None:
        """Tell all who ask for the leader this of oneself, JSON, from now on. One write, which renews the term, too.

        Raises:
            TermLost: it is over; nothing was told.
            OutcomeUnknown, StoreError: nobody can tell; do it again.
            InvalidInput: JSON cannot say it.

        >>> term.proclaim({"port": 8080})
        >>> election.leader().value
        {'port': 8080}
        """
        told = json_copy(value, "value")
        with self._one_write:
            self.check()
            self._renew({"value": told})

    def resign(self, to: str = "") -> None:
        """End the term; the next may begin at once. `to`: who shall lead, if it stands within a third of the validity.

        Raises:
            OutcomeUnknown, StoreError: nobody can tell; if it was not done, the term lapses.

        >>> term.resign(to="b")
        >>> election.leader() is None
        True
        """
        check_text(to, "to")
        if self._pid != os.getpid() or self._resigned:
            return
        self._resigned = True
        self.give_up("it was resigned")  # before the store hears of it
        self._heartbeat.stop()
        with self._one_write:
            if not self._deposed:
                self._candidate.resign(self._leading, to)

    def give_up(self, why: str) -> None:
        """Take it for lost; the others are told of that by `resign`, or when it lapses."""
        self._end(TermLost(self._said(why), LossReason.RELEASED))

    def when_lost(self, call: Callable[[], object]) -> None:
        """Call it once the term is over, on whatever thread finds that; at once, if it is.

        >>> term.when_lost(lambda: print("stop"))
        >>> term.resign()
        stop
        """
        function(call, "call", "of nothing")
        with self._telling:
            if not Signal.is_set(self.lost):
                self._told.append(call)
                return
        call()

    def __enter__(self) -> Term:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with contextlib.suppress(CasError):  # it lapses by itself
            self.resign()

    # -- for its heartbeat ---------------------------------------------------------------------------------------------

    def renew(self) -> bool:
        """Prolong it once."""
        with self._one_write:
            if not Signal.is_set(self.lost):
                with contextlib.suppress(TermLost):
                    self._renew({})
        return True

    def abandon(self, why: str) -> None:
        """It is not renewed any more, and nobody asked for that."""
        self._end(TermLost(self._said(why), LossReason.LAPSED))

    def _renew(self, changes: dict[str, Any]) -> None:
        try:
            self._leading = self._candidate.renew(self._leading, changes)
        except TermLost as error:
            self._deposed = error.reason is not LossReason.LAPSED
            self._end(error)
            raise

    def _is_over(self) -> bool:
        if self._pid != os.getpid():
            return True
        if self._candidate.world.monotonic_s() < self._leading.deadline_s:
            return False
        self.abandon("it was not renewed in time")  # for good: an answer that comes now prolongs nothing any more
        return True

    def _said(self, why: str) -> str:
        return f"the term {self.epoch} is over: {why}; stop what it protects"

    def _end(self, why: TermLost) -> None:
        with self._telling:
            if Signal.is_set(self.lost):
                return
            self._why = why
            self.lost.set()
            told, self._told = self._told, []
            _LOG.log(logging.DEBUG if why.reason is LossReason.RELEASED else logging.INFO, "%s", why)
        for call in told:
            call()


# What is done while one leads, and how it is ended when another may.


T = TypeVar("T")
OnDeposed = Literal["event", "interrupt", "exit"]

DEPOSED_CODE = 123  # of a process that had to be ended; as `lockprovider run` has it for a lost lease
AGAIN_S = 1.0  # between two interrupts of what goes on
_LOOK_S = 0.2  # so that a Ctrl-C is seen


class Deposed(BaseException):
    """Raised in what leads when it does so no more. Not an `Exception`: nobody should go on after it by mistake."""


@dataclass(frozen=True, slots=True)
class Ending:
    """How work is ended that goes on after its term: not, by interrupts, or with the process after `grace_s`."""

    on_deposed: OnDeposed
    grace_s: float

    def __post_init__(self) -> None:
        if self.on_deposed not in get_args(OnDeposed):
            ways = ", ".join(map(repr, get_args(OnDeposed)))
            raise InvalidInput(f"on_deposed={self.on_deposed!r} must be one of {ways}")

    @property
    def interrupts(self) -> bool:
        """Whether it is interrupted, again and again."""
        return self.on_deposed != "event"

    def pause_s(self, waited_s: float) -> float:
        """Until the next step, for work that went on for so long."""
        return min(AGAIN_S, self.grace_s - waited_s) if self.on_deposed == "exit" else AGAIN_S

    def end_process(self, waited_s: float, epoch: int) -> None:
        """At once, with all its threads, if it is time for that."""
        if self.on_deposed == "exit" and waited_s >= self.grace_s:
            sys.stderr.write(f"lockprovider: term {epoch} is lost, and its work goes on: this process ends\n")
            sys.stderr.flush()
            os._exit(DEPOSED_CODE)


def work_under(term: Term, main: Callable[[Term], T], ending: Ending) -> tuple[bool, T | None]:
    """Call it on a thread of its own. Whether it ended by itself while it led, and what it returned.

    Raises:
        What it raised, but for what came of the loss.
    """
    call = _Call(main, term)
    try:
        while not call.done.wait(_LOOK_S):
            if term.lost.is_set():
                call.end(ending)
    except BaseException:  # a Ctrl-C here
        term.give_up("its work is being stopped")
        call.end(ending)
        raise
    return ended_by_itself(call.error, term), call.result


def ended_by_itself(error: BaseException | None, term: Term) -> bool:
    """Whether work ended while it led; False: because it did so no more. If it was refused first, the store is asked.

    Raises:
        The error, if it did not come of the loss.
    """
    if error is None:
        return not term.lost.is_set()
    if isinstance(error, (Deposed, asyncio.CancelledError, TermLost, Fenced)):
        if not term.lost.is_set():
            with contextlib.suppress(CasError):
                term.renew()
        if term.lost.is_set():
            return False
    raise error


class _Call:
    """One call on a thread of its own, that can be interrupted."""

    def __init__(self, main: Callable[[Term], Any], term: Term) -> None:
        self.done = Signal()
        self.result: Any = None
        self.error: BaseException | None = None
        self._main, self._term = main, term
        self._guard = threading.Lock()
        self._over = False
        self._thread = Worker(self._live, f"term-{term.epoch}")
        self._thread.start()

    def end(self, ending: Ending) -> None:
        """Return once it has ended; else this process does."""
        waited_s = 0.0
        while True:
            if ending.interrupts:
                self._interrupt()
            pause_s = ending.pause_s(waited_s)
            if self.done.wait(pause_s):
                return
            waited_s += pause_s
            ending.end_process(waited_s, self._term.epoch)

    def _interrupt(self) -> None:
        """Raise `Deposed` in it, between two of its steps; not once it has ended."""
        with self._guard:
            if not self._over and self._thread.ident is not None:
                _raise_in(self._thread.ident, Deposed)

    def _live(self) -> None:
        try:
            try:
                self.result = self._main(self._term)
            except BaseException as error:  # noqa: BLE001 - raised where the work was asked for
                self.error = error
            self._leave()
        except Deposed as error:  # it came between the end and this
            self.error = self.error or error
            self._leave()
        self.done.set()

    def _leave(self) -> None:
        with self._guard:
            self._over = True
            _raise_in(threading.get_ident(), None)  # none that was sent may come later


def _raise_in(thread: int, error: type[BaseException] | None) -> None:
    given = None if error is None else ctypes.py_object(error)
    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread), given)
