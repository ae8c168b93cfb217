"""Metrics of a lock, under Hudi's names, for `lockprovider.lock(url, on_metric=Counters())`.

A group commit counts as an acquisition, an inner acquisition does not.

    lock.acquire.attempts                begun acquisitions (Hudi: those that succeeded)
    lock.acquire.success, .failure       their results
    lock.acquire.precondition.failure    another client wrote before the take
    lock.acquired.others.error           a holder found another's record
    lock.state.unknown                   unknown outcome of a read or write of the record
    lock.provider.fatal.error            no lock record, no heartbeat, store that ignores conditions
    lock.release.success, .failure       failure: also a lock broken or taken over before
    lock.dangling                        taken from a holder that let it lapse
    lock.throttled                       the store answered 429 or 503
    lock.interrupted                     Ctrl-C, or cancelled task, during an acquisition
    lock.acquire.duration      timer     time held, at the release (Hudi's name)
    lock.request.latency       timer     an acquisition's duration, whatever its result
    lock.expiration.deadline   gauge     left of the old validity at a renewal; the new one after a take

Source: `HoodieLockMetrics`, `StorageBasedLockProvider` of Hudi 1.2.0.
"""

from __future__ import annotations

import contextlib
import threading
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Literal

from fsspec_cas import CasError, Lost, NotSupported, Outcome, Unknown, World
from fsspec_cas.machine import WaitStopped
from lockprovider.errors import LockError, NotAcquired
from lockprovider.storage_lock.machine import (
    Checking,
    Done,
    Effect,
    Ended,
    Event,
    Held,
    Idle,
    PutRecord,
    RecordSeen,
    State,
    TakeLock,
    Writing,
)
from lockprovider.storage_lock.record import LockRecord

ATTEMPTS = "lock.acquire.attempts"
SUCCESS = "lock.acquire.success"
FAILURE = "lock.acquire.failure"
PRECONDITION = "lock.acquire.precondition.failure"
BY_OTHERS = "lock.acquired.others.error"
UNKNOWN = "lock.state.unknown"
FATAL = "lock.provider.fatal.error"
RELEASED = "lock.release.success"
NOT_RELEASED = "lock.release.failure"
DANGLING = "lock.dangling"
THROTTLED = "lock.throttled"
INTERRUPTED = "lock.interrupted"
HELD_MS = "lock.acquire.duration"
LATENCY_MS = "lock.request.latency"
DEADLINE_MS = "lock.expiration.deadline"

_INTERRUPTIONS = (KeyboardInterrupt, SystemExit, WaitStopped)


@dataclass(frozen=True, slots=True)
class Measure:
    """One number: an increment of a counter, or the milliseconds of a timer or gauge.

    >>> seen = []
    >>> with lockprovider.lock("memory://docs/lock", on_metric=seen.append):
    ...     pass
    >>> sorted({type(one).__name__ for one in seen})
    ['Measure']
    """

    name: str
    kind: Literal["counter", "timer", "gauge"]
    value: float


OnMetric = Callable[[Measure], None]


class Counters:
    """Sums of the counters, and the last gauge, of any number of locks, as their `on_metric`. Thread-safe.

    >>> counters = lockprovider.Counters()
    >>> with lockprovider.lock("memory://docs/lock", on_metric=counters):
    ...     pass
    >>> counters.values["lock.acquire.attempts"]
    1
    """

    def __init__(self) -> None:
        self._guard = threading.Lock()
        self._values: dict[str, float] = {}

    def __call__(self, measure: Measure) -> None:
        with self._guard:
            if measure.kind == "counter":
                self._values[measure.name] = self._values.get(measure.name, 0) + measure.value
            elif measure.kind == "gauge":
                self._values[measure.name] = measure.value

    def __repr__(self) -> str:
        return f"<Counters, {len(self._values)} values>"

    @property
    def values(self) -> dict[str, float]:
        with self._guard:
            return dict(self._values)


class Recorder:
    """Reports a lock's measures to a callback, whose errors become warnings."""

    def __init__(self, call: OnMetric, world: World) -> None:
        self._call = call
        self._world = world
        self._since_s: float | None = None

    @contextlib.contextmanager
    def acquisition(self, *, holds: bool) -> Iterator[None]:
        """Count the block's attempt, and its success or failure, and report its duration.

        With `holds`, note the time for `release`; without, it is a group commit.
        """
        began_s = self._world.monotonic_s()
        self._count(ATTEMPTS)
        try:
            yield
        except BaseException as error:
            self._ms(LATENCY_MS, began_s)
            self._count(FAILURE, *_reasons(error))
            raise
        self._ms(LATENCY_MS, began_s)
        self._count(SUCCESS)
        if holds:
            self._since_s = self._world.monotonic_s()

    @contextlib.contextmanager
    def release(self) -> Iterator[None]:
        """Count a failed release in this block; in any case report the time since a recorded acquisition."""
        try:
            yield
        except (CasError, LockError):
            self._count(NOT_RELEASED)
            raise
        finally:
            since_s, self._since_s = self._since_s, None
            if since_s is not None:
                self._ms(HELD_MS, since_s)

    def stepped(self, owner: str, before: State, event: Event, after: State, effect: Effect | None) -> None:
        self._count(*_counted(owner, before, event, after, effect))
        held = _timed(before, after, effect)
        if held is not None:
            self._tell(Measure(DEADLINE_MS, "gauge", max(0, held.record.valid_until_ms - self._world.now_ms())))

    def wrote(self, state: State, outcome: Outcome) -> None:
        if isinstance(outcome, Unknown):
            self._count(UNKNOWN)
        elif isinstance(outcome, Lost) and isinstance(state, Writing) and state.purpose == "take":
            self._count(PRECONDITION)

    def throttled(self) -> None:
        self._count(THROTTLED)

    def _count(self, *names: str) -> None:
        for name in names:
            self._tell(Measure(name, "counter", 1))

    def _ms(self, name: str, since_s: float) -> None:
        self._tell(Measure(name, "timer", (self._world.monotonic_s() - since_s) * 1000))

    def _tell(self, measure: Measure) -> None:
        try:
            self._call(measure)
        except Exception as error:  # noqa: BLE001 - a callback must not fail the lock
            warnings.warn(f"on_metric failed for {measure.name}: {error!r}", RuntimeWarning, stacklevel=2)


def _counted(owner: str, before: State, event: Event, after: State, effect: Effect | None) -> tuple[str, ...]:
    """Names of counters that this step raises by one, mostly none.

    They count a take from a lapsed holder, a loss found by a read, and a release, confirmed or not.
    """
    match before, event, effect:
        case _, TakeLock(RecordSeen(record=LockRecord(is_free=False, owner=holder))), PutRecord() if holder != owner:
            return (DANGLING,)
        case Checking(), RecordSeen(), Ended():
            return (BY_OTHERS,)
        case Checking(), RecordSeen(record), Done("released") if after == Idle(None):
            return (BY_OTHERS, NOT_RELEASED) if record and record.owner != owner else (NOT_RELEASED,)
        case _, _, Done("released"):
            return (RELEASED,)
        case _:
            return ()


def _timed(before: State, after: State, effect: Effect | None) -> Held | None:
    """Lease whose left validity is reported: after a take the new, after a renewal the old, else None."""
    match before, effect, after:
        case _, Done("acquired"), Held() as new:
            return new
        case ((Writing(before=Held() as old) | Checking(Writing(before=Held() as old))), Done("renewed"), _):
            return old
        case _:
            return None


def _reasons(error: BaseException) -> tuple[str, ...]:
    """Return an acquisition error's counters besides the failure: interrupted, unknown (store error) or fatal.

    Empty for a timeout.
    """
    match error:
        case NotAcquired():
            return ()
        case NotSupported():
            return (FATAL,)
        case CasError():
            return (UNKNOWN,)
        case _:
            return (INTERRUPTED,) if isinstance(error, _INTERRUPTIONS) else (FATAL,)
