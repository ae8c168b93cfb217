"""`Job`: a message that this process works on, and its heartbeat."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable
from dataclasses import dataclass
from types import TracebackType
from typing import Any

from fsspec_cas import CasError, InvalidInput, World
from fsspec_cas.bridge.background import Later
from fsspec_cas.given import LARGEST_NUMBER, check_text, seconds
from fsspec_cas.waiting import Signal, Worker
from lockprovider.recipes.errors import ClaimLost, CoordinationError, TooLarge
from lockprovider.recipes.place import OfThisProcess
from lockprovider.recipes.queue.contents import Claim, Message
from lockprovider.recipes.queue.operations import Beat, End, New
from lockprovider.recipes.values import check_name, json_copy, storable

# What a queue's callers are told.


@dataclass(frozen=True, slots=True)
class Receipt:
    """A message is in the queue; `again`: it had been put before (then `n` is 0 if it is not known which it was).

    >>> lockprovider.queue.create("memory://docs/backfill.json").put("mon")
    Receipt(n=1, again=False)
    """

    n: int
    again: bool = False


@dataclass(frozen=True, slots=True)
class QueueStat:
    """A queue as one read showed it: how many messages wait (of those, for their time), are worked on, are dead.

    `bytes` are those in the queue's object; `segments` are the objects in which others wait.

    >>> queue = lockprovider.queue.create("memory://docs/backfill.json")
    >>> receipt = queue.put("mon", delay_s=3600)
    >>> queue.stat().ready, queue.stat().delayed
    (1, 1)
    """

    ready: int
    delayed: int
    claimed: int
    dead: int
    put: int
    bytes: int
    rev: int
    segments: int = 0


@dataclass(frozen=True, slots=True)
class Letter:
    """A message as `peek` and `dead` show it; `why` is of dead letters.

    >>> queue = lockprovider.queue.create("memory://docs/backfill.json")
    >>> receipt = queue.put("mon", key="ulm")
    >>> letter = queue.peek()[0]
    >>> letter.body, letter.key, letter.attempts
    ('mon', 'ulm', 0)
    """

    n: int
    body: Any
    key: str
    priority: int
    attempts: int
    error: str
    why: str = ""

    @classmethod
    def of(cls, message: Message, why: str = "") -> Letter:
        """The message as it is."""
        kept = message
        return cls(kept.n, kept.given(), kept.key, kept.priority, kept.attempts, kept.error, why)


@dataclass(slots=True)
class Worked:
    """What `work` came to.

    >>> queue = lockprovider.queue.create("memory://docs/backfill.json")
    >>> receipt = queue.put("mon")
    >>> queue.work(print, until_empty=True).failed
    <Job 1, attempt 1, claimed>
    0
    """

    acked: int = 0
    failed: int = 0


Do = Callable[[Any], Any]

_MARGIN_SHARE = 10
_MARGIN_MAX_S = 10.0
_BEATS = 3  # in the time of a claim
_JOBS = 16  # that have ended are dropped when there are so many, or twice as many as are worked on
_LINGER_S = 1.0  # of the thread, with no jobs; so often it looks whether there are any
_ERROR_CHARS = 500
_BODY_BYTES = 256 << 10
_LONGEST_DELAY_S = 300.0


class Job(OfThisProcess):
    """A claimed message. Leave it (`with`) to ack it, or, after an exception, to give it back.

    Attributes:
        id: of the message, the same at each delivery: for effects that must not be made twice.
        n: its number in the queue.
        attempt: 1 at the first delivery.
        epoch: rises with each claim of the queue: `fence=job`.
        error: what the last attempt ended with.
        lost: set once another may have it.

    >>> queue = lockprovider.queue.create("memory://docs/backfill.json")
    >>> receipt = queue.put({"day": "mon"})
    >>> job = queue.claim(visible_s=60)
    >>> job.n, job.body, job.attempt
    (1, {'day': 'mon'}, 1)
    """

    def __init__(self, queue_id: str, claim: Claim, began_s: float, do: Do, world: World) -> None:
        message = claim.message
        self.id = f"{queue_id}-{message.n}"
        self.n = message.n
        self.body = message.given()
        self.key = message.key
        self.attempt = message.attempts
        self.error = message.error
        self.epoch = claim.turn
        self.token = claim.token
        self.visible_s = claim.visible_ms / 1000
        self.lost = Signal()
        self.ended: str | None = None
        self._then: list[New] = []
        self._do = do
        self._world = world
        self.believe_until(began_s)

    def believe_until(self, sent_s: float) -> None:
        """The claim was made or prolonged by a write that was sent then (monotonic s)."""
        self._deadline_s = sent_s + self.visible_s - min(self.visible_s / _MARGIN_SHARE, _MARGIN_MAX_S)

    def check(self) -> None:
        """Return if nobody else has it, as far as this process can know, without a request.

        Raises:
            ClaimLost: stop working on it.

        >>> job.check()
        >>> job.ack()
        >>> job.check()
        Traceback (most recent call last):
        ...
        lockprovider.recipes.errors.ClaimLost: message 1 was given up here (ack)
        """
        if self.ended is not None:
            raise ClaimLost(f"message {self.n} was given up here ({self.ended})")
        if self.lost.is_set() or self._world.monotonic_s() > self._deadline_s:
            self.lost.set()
            raise ClaimLost(f"the claim of message {self.n} has lapsed, another may have it: stop working on it")

    def then(self, body: Any, *, key: str = "", priority: int = 0, delay_s: float = 0.0) -> None:
        """Put this message together with the ack: both are done, or neither.

        >>> job.then({"report of": "mon"})
        >>> job.ack()
        >>> [letter.body for letter in queue.peek()]
        [{'report of': 'mon'}]
        """
        self._then.append(new_message(self._world, body, key, priority, delay_s))

    def ack(self) -> None:
        """It is done: it is not delivered again.

        Raises:
            ClaimLost: the claim had ended; another may have it, or has done it. What `then` was given was not put.
            OutcomeUnknown: nobody can tell; do it again.
            CasError: the store failed; do it again within `visible_s`, after which the claim lapses.

        >>> job.ack()
        >>> queue.stat().ready, queue.stat().claimed
        (0, 0)
        """
        self._end(End(self.n, self.token, "ack", tuple(self._then)))

    def nack(self, *, delay_s: float | None = None, error: str = "", counts: bool = True) -> None:
        """Give it back, to be delivered again after `delay_s` (default: 2 s, doubling with each attempt, 300 at most).

        With `counts=False` the attempt is not counted.

        Raises:
            ClaimLost, OutcomeUnknown: as `ack`.

        >>> job.nack(delay_s=0, error="no file yet")
        >>> again = queue.claim()
        >>> again.attempt, again.error
        (2, 'no file yet')
        """
        wait_s = (
            min(2.0**self.attempt, _LONGEST_DELAY_S) if delay_s is None else seconds(delay_s, "delay_s", finite=True)
        )
        delay_ms, error = int(wait_s * 1000), storable(check_text(error, "error"))[:_ERROR_CHARS]
        self._end(End(self.n, self.token, "nack", delay_ms=delay_ms, error=error, counts=counts))

    def leave(self) -> None:
        """Give it back at once, as if it had not been claimed; if that fails, it lapses.

        >>> job.leave()
        >>> queue.claim().attempt
        1
        """
        with contextlib.suppress(CasError, CoordinationError):
            self.nack(delay_s=0.0, error=self.error, counts=False)
        self.lost.set()

    def bury(self, why: str) -> None:
        """Make it a dead letter: it is not delivered again until `redrive`.

        Raises:
            ClaimLost, OutcomeUnknown: as `ack`.

        >>> job.bury("no such day")
        >>> queue.dead()[0].why
        'no such day'
        """
        self._end(End(self.n, self.token, "bury", error=storable(check_text(why, "why"))[:_ERROR_CHARS]))

    def extend(self, visible_s: float) -> None:
        """From now on it may take so long without a heartbeat.

        Raises:
            ClaimLost: another has it.

        >>> job.extend(visible_s=3600)
        """
        sent_s = self._world.monotonic_s()
        visible_s = seconds(visible_s, "visible_s", finite=True, above=True)
        if self._do(Beat(((self.n, self.token),), int(visible_s * 1000))):
            self.lost.set()
        self.visible_s = visible_s
        self.believe_until(sent_s)
        self.check()

    def __repr__(self) -> str:
        state = self.ended or ("lost" if self.lost.is_set() else "claimed")
        return f"<Job {self.n}, attempt {self.attempt}, {state}>"

    def __enter__(self) -> Job:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.ended is not None:
            return
        if error is None:
            self.ack()
        else:
            with contextlib.suppress(CasError, CoordinationError):  # the error on its way is the news; else it lapses
                counts = isinstance(error, Exception)  # a Ctrl-C says nothing of the message
                self.nack(error=f"{type(error).__name__}: {error}", counts=counts, delay_s=None if counts else 0.0)

    def _end(self, end: End) -> None:
        if self.ended not in (None, end.verb):
            raise ClaimLost(f"message {self.n} was given up here ({self.ended})")
        try:
            self._do(end)
        except BaseException:
            self.lost.set()  # the work is over: no heartbeat keeps a claim whose end has failed, so it lapses
            raise
        self.ended = end.verb


def new_message(world: World, body: Any, key: str = "", priority: int = 0, delay_s: float = 0.0) -> New:
    """A message that may be put.

    Raises:
        InvalidInput: JSON cannot say it, or it cannot be put so.
        TooLarge: it has no room.
    """
    not_before_ms = world.now_ms() + int(seconds(delay_s, "delay_s", finite=True) * 1000) if delay_s else 0
    check_name(key, "key")
    if isinstance(priority, bool) or not isinstance(priority, int) or abs(priority) > LARGEST_NUMBER:
        raise InvalidInput(f"priority={priority!r} must be a whole number of at most {LARGEST_NUMBER}")
    body = body if isinstance(body, bytes) else json_copy(body, "a message that is no bytes")
    told = Message(0, priority, not_before_ms, 0, key, body).told()
    if (size := len(told.text)) > _BODY_BYTES:
        raise TooLarge(f"a message of {size} bytes: keep it in an object of its own, and put its name")
    return New(body, key, priority, not_before_ms, told.said)


def count(worked: Worked, job: Job, *, failed: bool) -> None:
    """Count a message that was worked on; `failed`: the function raised."""
    acked = not failed and job.ended == "ack"
    worked.acked += acked
    worked.failed += not acked


class ClaimHeartbeat:
    """Prolongs the claims of all jobs of a process, with one operation, as long as there are some."""

    def __init__(self, submit: Callable[[Beat], Later[Any]], world: World) -> None:
        self._submit = submit
        self._world = world
        self.be_new()

    def be_new(self) -> None:
        """With no jobs: in a forked child, which holds no claims."""
        self._jobs: dict[str, Job] = {}
        self._every_s = 0.0  # the thread wakes up by itself after so long
        self._most = _JOBS  # before those that have ended are dropped
        self._sooner = Signal()  # there is a job that has to be beaten for sooner than the others, or none any more
        self._beating = threading.Lock()  # whoever has it beats
        self._closed = False

    def add(self, job: Job) -> None:
        """Beat for it from now on."""
        self._jobs[job.token] = job
        if len(self._jobs) > self._most:
            self._drop_ended()
            self._most = max(_JOBS, 2 * len(self._jobs))
        if job.visible_s / _BEATS < self._every_s or not self._every_s:
            self._sooner.set()
        if not self._beating.locked():
            Worker(self._run, "queue-heartbeat").start()

    def close(self) -> None:
        """Beat no more; claims that are not ended lapse."""
        self._closed = True
        self._sooner.set()

    def _run(self) -> None:
        while self._jobs and not self._closed and self._beating.acquire(blocking=False):
            try:
                self._beat_on()
            finally:
                self._beating.release()

    def _beat_on(self) -> None:
        """While there are jobs, and a little longer."""
        began_s = self._world.monotonic_s()
        while not self._closed:
            self._sooner.clear()
            self._drop_ended()
            jobs = [*self._jobs.values()]
            self._every_s = min((job.visible_s for job in jobs), default=0.0) / _BEATS
            now_s = self._world.monotonic_s()
            if not jobs:
                if not self._sooner.wait(_LINGER_S):
                    return
                began_s = now_s
            elif (left_s := began_s + self._every_s - now_s) > 0:
                self._sooner.wait(min(left_s, _LINGER_S))  # a new job, or all have ended
            else:
                began_s = now_s
                self.beat(jobs)

    def beat(self, jobs: list[Job]) -> None:
        """Prolong these now; one that fails is late, and the next may come in time."""
        sent_s = self._world.monotonic_s()
        try:
            lost = self._submit(Beat(tuple((job.n, job.token) for job in jobs))).result()
        except (CasError, CoordinationError):
            return
        for job in jobs:
            if job.n in lost:
                job.lost.set()
            else:
                job.believe_until(sent_s)

    def _drop_ended(self) -> None:
        for token, job in [*self._jobs.items()]:
            if job.ended is not None or job.lost.is_set():
                self._jobs.pop(token, None)
