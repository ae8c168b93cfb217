"""Candidate's requests, its `Term`, renewed by a thread, and work that ends with the term."""

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
from fsspec_cas.machine import Signal, Worker
from lockprovider.errors import LossReason, NotPicklable
from lockprovider.recipes.base import StoreCheck
from lockprovider.recipes.election import decide
from lockprovider.recipes.election.decide import (
    LARGEST_VALUE,
    CandidateId,
    ElectionRecord,
    Leading,
    Observed,
    decode_election,
)
from lockprovider.recipes.errors import CoordinationError, Fenced, TermLost
from lockprovider.recipes.values import check_call, check_storable, copied, json_copy
from lockprovider.settings import LockSettings
from lockprovider.storage_lock.client import Heartbeat, run_callbacks

_REQUEST_S = 20.0  # with all tries
_SENDS = 4


class Candidate:
    """Only reads are thread-safe."""

    def __init__(self, store: Store, path: str, name: str, settings: LockSettings, world: World) -> None:
        self.world = world
        self.me = CandidateId(world.new_id(), name, round(settings.validity * 1000), settings.margin_s)
        self._store = store
        self._path = path
        self._store_check = StoreCheck(store, path)
        self._object = Cached(store, path, timeout=_REQUEST_S, world=world)
        self._guard = threading.Lock()
        self.observed: Observed | None = None
        self._decoded: tuple[Content, ElectionRecord] | None = None
        self._highest = 0

    def look(self) -> Observed | None:
        """Read the record by a conditional GET, store it in `observed`; return that (None: never read).

        A removed object's last record stays, with `is_removed`. The first read may take a HEAD.
        """
        content = self._object.get()
        now_s = self.world.monotonic_s()
        if content is None:
            with self._guard:
                self.observed = decide.observe_missing(self.observed)
                return self.observed
        record = self._record(content)
        age_s = 0.0
        if self.observed is None and record.protected_s and self._store.capabilities.own_clock:
            age_s = self._age_s(content.version)
            now_s = self.world.monotonic_s()
        with self._guard:
            self.observed = decide.observe(self.observed, record, content.version, now_s, age_s)
            self._highest = max(self._highest, record.epoch)
            return self.observed

    def stand(self, observed: Observed | None, value: Any) -> Leading | None:
        """Write a record that elects this candidate over `observed` (None: no object), with `value`; return its term.

        Unless the write won, a read decides; None: it was not stored. Raises NotSupported if the store ignores
        conditions.
        """
        self._store_check.require()
        sent_s = self.world.monotonic_s()
        write, now_ms = self.world.new_id(), self.world.now_ms()
        record = decide.candidate_record(self.me, observed, self._highest, write=write, now_ms=now_ms, value=value)
        version = None if observed is None or observed.is_removed else observed.version
        outcome = self._put(record, version, _REQUEST_S)
        if isinstance(outcome, Won):
            return decide.term_after(self.me, record, outcome.version, sent_s)
        return decide.elected(self.me, record, sent_s, self.look())  # a second copy may be refused

    def renew(self, leading: Leading, changes: dict[str, Any] | None = None) -> Leading:
        """Prolong the term by a write, also replacing the record's fields in `changes`; return the renewed term.

        After a refusal or lost answer reads, and tries again; after four writes raises Unavailable. TermLost: the
        deadline has passed, or the object is gone or holds another term.
        """
        for _ in range(_SENDS):
            sent_s = self.world.monotonic_s()
            left_s = leading.deadline_s - sent_s
            if left_s <= 0:
                raise self.over(leading, "it was not renewed in time", LossReason.LAPSED)
            record = replace(leading.record, **(changes or {}), write=self.world.new_id())
            # a hanging request must not hide the term's end
            outcome = self._put(record, leading.version, min(_REQUEST_S, max(left_s, self.me.margin_s / 2)))
            if isinstance(outcome, Won):
                return decide.term_after(self.me, record, outcome.version, sent_s)
            observed = self.look()
            renewed = decide.renewed(self.me, leading, record, sent_s, observed)
            if renewed is None:
                raise self._deposed(leading, observed)
            if renewed.record.write == record.write:
                return renewed
            leading = renewed
        raise Unavailable(f"the term {leading.record.epoch} of {self._path!r} was not renewed", path=self._path)

    def resign(self, leading: Leading, heir: str) -> None:
        """End the term by a write in favour of `heir` ("": any candidate); return if it is over already.

        After four tries raises OutcomeUnknown.
        """
        for _ in range(_SENDS):
            record = leading.record.resign(self.world.new_id(), heir)
            if isinstance(self._put(record, leading.version, _REQUEST_S), Won):
                return
            observed = self.look()
            if observed is None or not decide.goes_on(self.me, leading, observed):
                return
            leading = Leading(observed.record, observed.version, leading.deadline_s)
        raise OutcomeUnknown(f"the term {leading.record.epoch} of {self._path!r} may lapse only", path=self._path)

    def _put(self, record: ElectionRecord, version: Version | None, timeout_s: float) -> Outcome:
        if version is None:
            return self._store.put_if_absent(self._path, record.encode(), timeout=timeout_s)
        return self._store.put_if_match(self._path, record.encode(), version, timeout=timeout_s)

    def _record(self, content: Content) -> ElectionRecord:
        cached = self._decoded
        if cached is None or cached[0] is not content:
            cached = self._decoded = (content, decode_election(content.data, self._path))
        return cached[1]

    def _age_s(self, version: Version) -> float:
        """Record's age by the store's clock, by a HEAD.

        0.0: the object has changed or is gone, or the store tells no times.
        """
        try:
            info = self._store.head(self._path, timeout=_REQUEST_S)
        except ObjectNotFound:
            return 0.0
        if info.version != version or info.modified_ms is None or info.answered_ms is None:
            return 0.0
        return (info.answered_ms - info.modified_ms) / 1000

    def over(self, leading: Leading, why: str, reason: LossReason) -> TermLost:
        message = f"the term {leading.record.epoch} of {self._path!r} is over: {why}; stop what it protects"
        return TermLost(message, reason)

    def _deposed(self, leading: Leading, observed: Observed | None) -> TermLost:
        if observed is None or observed.is_removed:
            return self.over(leading, "its object was removed", LossReason.BROKEN)
        record = observed.record
        who = f"{record.name!r} {'has led' if record.resigned else 'leads'}, in term {record.epoch}"
        return self.over(leading, who, LossReason.TAKEN_OVER)


_LOG = logging.getLogger("lockprovider")


class LostEvent(Signal):
    def __init__(self, over: Callable[[], bool]) -> None:
        super().__init__()
        self._over = over

    def is_set(self) -> bool:
        """Whether to stop; may mark the term as lapsed."""
        return super().is_set() or self._over()


class Term:
    """Term of this candidate, renewed by a thread until you leave its `with` or `resign`; lost in a forked child.

    Attributes:
        epoch: rises with each term: `fence=term`.
        lost: set once another candidate may lead.

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
        self._callbacks: list[Callable[[], object]] = []
        self._pid = os.getpid()
        self._heartbeat = Heartbeat(self, renew_s)
        try:
            self._heartbeat.start()
        except BaseException:
            self.__exit__(*sys.exc_info())
            raise
        _LOG.debug("%r was elected", self)

    def __repr__(self) -> str:
        return f"<Term {self.epoch} of {self.name!r}, {'over' if self.lost.is_set() else 'goes on'}>"

    def __getstate__(self) -> NoReturn:
        raise NotPicklable(
            f"the term {self.epoch} belongs to this process and cannot be pickled or copied: give `epoch` to others"
        )

    @property
    def value(self) -> Any:
        return copied(self._leading.record.value)

    @property
    def deadline_s(self) -> float:
        """End of this process's belief in the term (`time.monotonic`)."""
        return self._leading.deadline_s

    def check(self) -> None:
        """Check, without a request, that no other candidate leads, as far as this process knows.

        A term past its deadline is marked as lost.

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
            forked = "it belongs to the parent process, from which this process was forked"
            why = self._why or self._candidate.over(self._leading, forked, LossReason.FORKED)
            raise TermLost(str(why), why.reason)

    def proclaim(self, value: Any) -> None:
        """Replace the JSON value that clients get with the leader, by a write that also renews the term.

        Raises:
            TermLost: nothing was written.
            OutcomeUnknown, StoreError: do it again.
            InvalidInput: it is no JSON, or above 3 MiB.

        >>> term.proclaim({"port": 8080})
        >>> election.leader().value
        {'port': 8080}
        """
        copy = json_copy(value, "value", LARGEST_VALUE)
        with self._one_write:
            self.check()
            self._renew({"value": copy})

    def resign(self, to: str = "") -> None:
        """End the term by a write, so that another may begin, and set `lost`.

        `to` leads next, if it stands within a third of the validity. Repeated, in a forked child, or once deposed,
        sends nothing. If it raises OutcomeUnknown or StoreError, the term lapses.

        >>> term.resign(to="b")
        >>> election.leader() is None
        True
        """
        check_storable(to, "to")
        if self._pid != os.getpid() or self._resigned:
            return
        self._resigned = True
        self.give_up("it was resigned")
        self._heartbeat.stop()
        with self._one_write:
            if not self._deposed:
                self._candidate.resign(self._leading, to)

    def give_up(self, why: str) -> None:
        """Mark the term as lost; sends nothing."""
        self._end(self._candidate.over(self._leading, why, LossReason.RELEASED))

    def when_lost(self, call: Callable[[], object]) -> None:
        """Call `call` once the term is over, on the noticing thread, or at once if already over; log errors.

        >>> term.when_lost(lambda: print("stop"))
        >>> term.resign()
        stop
        """
        check_call(call, "call", "of nothing")
        with self._telling:
            if not Signal.is_set(self.lost):
                self._callbacks.append(call)
                return
        run_callbacks([call])

    def __enter__(self) -> Term:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        # The term lapses by itself. An error of the block is not replaced.
        with contextlib.suppress(CasError, *(() if error is None else (CoordinationError,))):
            self.resign()

    def renew(self) -> bool:
        """Prolong the term once, or mark it as lost."""
        with self._one_write:
            if not Signal.is_set(self.lost):
                with contextlib.suppress(TermLost):
                    self._renew({})
        return True

    def abandon(self, why: str) -> None:
        self._end(self._candidate.over(self._leading, why, LossReason.LAPSED))

    def _renew(self, changes: dict[str, Any]) -> None:
        try:
            self._leading = self._candidate.renew(self._leading, changes)
        except TermLost as error:
            self._deposed = error.reason is not LossReason.LAPSED
            self._end(error)
            raise

    def _is_over(self) -> bool:
        """May mark the term as lapsed."""
        if self._pid != os.getpid():
            return True
        if self._candidate.world.monotonic_s() < self._leading.deadline_s:
            return False
        self.abandon("it was not renewed in time")  # a late answer must not prolong the term
        return True

    def _end(self, why: TermLost) -> None:
        """Set `lost`, with the reason `why`, log it, and call the callbacks; only once."""
        with self._telling:
            if Signal.is_set(self.lost):
                return
            self._why = why
            self.lost.set()
            callbacks, self._callbacks = self._callbacks, []
            _LOG.log(logging.DEBUG if why.reason is LossReason.RELEASED else logging.INFO, "%s", why)
        run_callbacks(callbacks)


T = TypeVar("T")
OnDeposed = Literal["event", "interrupt", "exit"]

DEPOSED_CODE = 123
AGAIN_S = 1.0  # between two interrupts
_LOOK_S = 0.2


class Deposed(BaseException):
    """Raised in work whose term is lost; no `Exception`, so that no handler goes on."""


@dataclass(frozen=True, slots=True)
class Ending:
    """How work ends after its term."""

    on_deposed: OnDeposed
    grace_s: float

    def __post_init__(self) -> None:
        if self.on_deposed not in get_args(OnDeposed):
            ways = ", ".join(map(repr, get_args(OnDeposed)))
            raise InvalidInput(f"on_deposed={self.on_deposed!r} must be one of {ways}")

    def pause_s(self, waited_s: float) -> float:
        return min(AGAIN_S, self.grace_s - waited_s) if self.on_deposed == "exit" else AGAIN_S

    def end_process(self, waited_s: float, epoch: int) -> None:
        if self.on_deposed == "exit" and waited_s >= self.grace_s:
            sys.stderr.write(f"lockprovider: term {epoch} is lost, but its work still runs: ending this process\n")
            sys.stderr.flush()
            os._exit(DEPOSED_CODE)


def work_under(term: Term, main: Callable[[Term], T], ending: Ending) -> tuple[bool, T | None]:
    """Call `main(term)` on its own thread; return whether it ended while it led, and its result, if any.

    Once the term is lost, `ending` applies. A Ctrl-C gives the term up, ends the call and is raised. Other errors: see
    `ended_by_itself`.
    """
    call = _Call(main, term)
    try:
        call.thread.start()
        while not call.done.wait(_LOOK_S):
            if term.lost.is_set():
                call.end(ending)
    except BaseException:  # a Ctrl-C in this thread
        term.give_up("its work is being stopped")
        call.end(ending)
        raise
    return ended_by_itself(call.error, term), call.result


def ended_by_itself(error: BaseException | None, term: Term) -> bool:
    """Return True if work ended without `error` while it led, False if its term was lost; else raise the error.

    After Deposed, CancelledError, TermLost or Fenced, first renews the term, to see if it is lost; raises others
    always.
    """
    if error is None:
        return not term.lost.is_set()
    if isinstance(error, (Deposed, asyncio.CancelledError, TermLost, Fenced)):
        if not term.lost.is_set():
            with contextlib.suppress(CasError, CoordinationError):
                term.renew()
        if term.lost.is_set():
            return False
    raise error


class _Call:
    """Runs `main(term)` on its own thread, once started."""

    def __init__(self, main: Callable[[Term], Any], term: Term) -> None:
        self.done = Signal()
        self.result: Any = None
        self.error: BaseException | None = None
        self._main, self._term = main, term
        self._decided = threading.Lock()  # taken once, by the thread that begins or prevents the call
        self._guard = threading.Lock()
        self._ident: int | None = None  # of its thread, while an interrupt may be raised there
        self.thread = Worker(self._live, f"term-{term.epoch}")

    def end(self, ending: Ending) -> None:
        """Raise Deposed in the call's thread each second until it ends; "event" only waits.

        "exit" exits the process after its grace. A call that has not begun never does.
        """
        if self._decided.acquire(blocking=False):
            self.done.set()
        waited_s = 0.0
        while True:
            if ending.on_deposed != "event":
                with self._guard:
                    if self._ident is not None:
                        _raise_in(self._ident, Deposed)
            pause_s = ending.pause_s(waited_s)
            if self.done.wait(pause_s):
                return
            waited_s += pause_s
            ending.end_process(waited_s, self._term.epoch)

    def _live(self) -> None:
        """Call `main(term)`, store its result or error, or a late Deposed, and set `done`."""
        try:
            try:
                if self._decided.acquire(blocking=False):
                    self._ident = threading.get_ident()
                    self.result = self._main(self._term)
            except BaseException as error:  # noqa: BLE001 - the caller of the work raises it
                self.error = error
            self._leave()
        except Deposed as error:  # it came between the end and `_leave`
            self.error = self.error or error
            self._leave()
        self.done.set()

    def _leave(self) -> None:
        with self._guard:
            self._ident = None
            _raise_in(threading.get_ident(), None)  # drops a late interrupt


def _raise_in(thread: int, error: type[BaseException] | None) -> None:
    exception = None if error is None else ctypes.py_object(error)
    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread), exception)
