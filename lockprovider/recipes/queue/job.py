"""`Job`, its heartbeat, and results of `Queue`."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable
from dataclasses import dataclass
from types import TracebackType
from typing import Any

from fsspec_cas import CasError, InvalidInput, World
from fsspec_cas.arguments import LARGEST_NUMBER, check_seconds, check_text, shown, to_ms
from fsspec_cas.bridge.threads import Later
from fsspec_cas.machine import Signal, Worker
from lockprovider.recipes.base import ProcessBound
from lockprovider.recipes.errors import ClaimLost, CoordinationError, TooLarge
from lockprovider.recipes.queue.contents import Claim, Message
from lockprovider.recipes.queue.operations import Beat, End, New
from lockprovider.recipes.values import check_storable, json_copy
from lockprovider.words import storable


@dataclass(frozen=True, slots=True)
class Receipt:
    """`again`: the message was put before; `n` is then 0 if its number is unknown.

    >>> lockprovider.queue.create("memory://docs/backfill.json").put("mon")
    Receipt(n=1, again=False)
    """

    n: int
    again: bool = False


@dataclass(frozen=True, slots=True)
class QueueStat:
    """Counts of messages, from one read. `delayed` of the ready ones are not due.

    `put` counts all ever, `bytes` those in the queue's object; `segments` objects hold more. `rev` is for
    `Queue.purge`.

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
    """Message as `peek` and `dead` show it; `why` it is a dead letter.

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
        body = message.body_copy()
        return cls(message.n, body, message.key, message.priority, message.attempts, message.error, why)


@dataclass(slots=True)
class Worked:
    """Counts of messages that `work` has ended.

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
_BEATS = 3
_LINGER_S = 1.0
_ERROR_CHARS = 500
_BODY_BYTES = 256 << 10
_LONGEST_DELAY_S = 300.0
_MOST_DOUBLINGS = 9  # 2**9 s exceed `_LONGEST_DELAY_S`


class Job(ProcessBound):
    """Claimed message. Leave it with `with`: a clean end acks it, an exception gives it back.

    Attributes:
        id: the same at each delivery, for effects that must happen once.
        attempt: 1 at the first delivery.
        epoch: rises with each claim of the queue: `fence=job`.
        lost: set once another worker may have it.

    >>> queue = lockprovider.queue.create("memory://docs/backfill.json")
    >>> receipt = queue.put({"day": "mon"})
    >>> job = queue.claim(visible_s=60)
    >>> job.n, job.body, job.attempt
    (1, {'day': 'mon'}, 1)
    """

    def __init__(
        self,
        queue_id: str,
        claim: Claim,
        began_s: float,
        do: Do,
        world: World,
        *,
        on_extend: Callable[[], object] = lambda: None,
    ) -> None:
        message = claim.message
        self.id = f"{queue_id}-{message.n}"
        self.n = message.n
        self.body = message.body_copy()
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
        self._on_extend = on_extend
        self.believe_until(began_s)

    def believe_until(self, sent_s: float) -> None:
        self._deadline_s = sent_s + self.visible_s - min(self.visible_s / _MARGIN_SHARE, _MARGIN_MAX_S)

    def check(self) -> None:
        """Check, without a request, that no other worker has the message, as far as this process knows.

        Sets `lost` after the claim's time.

        Raises:
            ClaimLost: stop working on it.

        >>> job.check()
        >>> job.ack()
        >>> job.check()
        Traceback (most recent call last):
        ...
        lockprovider.recipes.errors.ClaimLost: message 1 was given up here (ack)
        """
        if self.ended is None and self._world.monotonic_s() > self._deadline_s:
            self.lost.set()
        self._must_go_on()

    def then(self, body: Any, *, key: str = "", priority: int = 0, delay_s: float = 0.0) -> None:
        """Add a message that the ack's write puts: both happen, or neither.

        Raises InvalidInput, TooLarge, or ClaimLost.

        >>> job.then({"report of": "mon"})
        >>> job.ack()
        >>> [letter.body for letter in queue.peek()]
        [{'report of': 'mon'}]
        """
        self._must_go_on()
        self._then.append(new_message(self._world, body, key, priority, delay_s))

    def ack(self) -> None:
        """End the message: it is not delivered again.

        Raises:
            ClaimLost: the claim had ended; this call put no message of `then`.
            OutcomeUnknown, StoreError: repeat it within `visible_s`, before the claim lapses.

        >>> job.ack()
        >>> queue.stat().ready, queue.stat().claimed
        (0, 0)
        """
        self._end(End(self.n, self.token, "ack", tuple(self._then)))

    def nack(self, *, delay_s: float | None = None, error: str = "", counts: bool = True) -> None:
        """Give the message back for delivery after `delay_s`, with `error`, cut to 500 characters.

        After its last attempt it is a dead letter, unless `counts=False` takes the attempt back. By default 2 s,
        doubled by each attempt, at most 300 s. Raises what `ack` raises.

        >>> job.nack(delay_s=0, error="no file yet")
        >>> again = queue.claim()
        >>> again.attempt, again.error
        (2, 'no file yet')
        """
        wait_s = (
            min(2.0 ** min(self.attempt, _MOST_DOUBLINGS), _LONGEST_DELAY_S)
            if delay_s is None
            else check_seconds(delay_s, "delay_s", finite=True)
        )
        delay_ms, error = to_ms(wait_s), storable(check_text(error, "error"))[:_ERROR_CHARS]
        self._end(End(self.n, self.token, "nack", delay_ms=delay_ms, error=error, counts=counts))

    def leave(self) -> None:
        """Give the message back at once, as if not claimed. Sets `lost`.

        >>> job.leave()
        >>> queue.claim().attempt
        1
        """
        with contextlib.suppress(CasError, CoordinationError):
            self.nack(delay_s=0.0, error=self.error, counts=False)
        self.lost.set()

    def bury(self, why: str) -> None:
        """Make it a dead letter, not delivered again until `redrive`. Raises what `ack` raises.

        >>> job.bury("no such day")
        >>> queue.dead()[0].why
        'no such day'
        """
        self._end(End(self.n, self.token, "bury", error=storable(check_text(why, "why"))[:_ERROR_CHARS]))

    def extend(self, visible_s: float) -> None:
        """Prolong the claim: it lives `visible_s` seconds from now, and from each beat. The heartbeat goes on.

        If it has ended, sets `lost` and raises ClaimLost.

        >>> job.extend(visible_s=3600)
        """
        visible_s = check_seconds(visible_s, "visible_s", finite=True, above=True)
        self._must_go_on()
        sent_s = self._world.monotonic_s()
        if self._do(Beat(((self.n, self.token),), to_ms(visible_s))):
            self.lost.set()
        self.visible_s = visible_s
        self.believe_until(sent_s)
        self._on_extend()
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
            with contextlib.suppress(CasError, CoordinationError):  # the claim lapses
                counts = isinstance(error, Exception)  # a Ctrl-C is no failure
                self.nack(error=_described(error), counts=counts, delay_s=None if counts else 0.0)

    def _must_go_on(self) -> None:
        """Raise ClaimLost if the job has ended or is `lost`."""
        if self.ended is not None:
            raise ClaimLost(f"message {self.n} was given up here ({self.ended})")
        if self.lost.is_set():
            raise ClaimLost(
                f"the claim of message {self.n} has lapsed, or its end may be stored, and another worker may have the "
                "message: stop working on it"
            )

    def _end(self, end: End) -> None:
        """Send the claim's end, and set `ended`; an error sets `lost`, is raised, and the claim lapses.

        The same end may be repeated; another one raises ClaimLost.
        """
        if self.ended not in (None, end.verb):
            raise ClaimLost(f"message {self.n} was given up here ({self.ended})")
        try:
            self._do(end)
        except BaseException:
            self.lost.set()
            raise
        self.ended = end.verb


def _described(error: BaseException) -> str:
    try:
        return f"{type(error).__name__}: {error}"
    except Exception:  # noqa: BLE001 - its own text fails
        return type(error).__name__


def new_message(world: World, body: Any, key: str = "", priority: int = 0, delay_s: float = 0.0) -> New:
    """Return the message to put, with a copy of `body` (JSON or bytes), due `delay_s` from now.

    Raises InvalidInput, or TooLarge above 256 KiB of JSON (bytes as base64).
    """
    delay_s = check_seconds(delay_s, "delay_s", finite=True)
    not_before_ms = world.now_ms() + to_ms(delay_s) if delay_s else 0
    check_storable(key, "key")
    if isinstance(priority, bool) or not isinstance(priority, int) or abs(priority) > LARGEST_NUMBER:
        raise InvalidInput(f"priority={shown(priority)} must be a whole number of at most {LARGEST_NUMBER}")
    body = body if isinstance(body, bytes) else json_copy(body, "a message that is not bytes")
    message = Message(0, priority, not_before_ms, 0, key, body)
    if (size := len(message.text)) > _BODY_BYTES:
        raise TooLarge(f"a message of {size} bytes: store it in its own object, and put the name of that object")
    return New(body, key, priority, not_before_ms, message.body_json)


def count(worked: Worked, job: Job, *, failed: bool) -> None:
    acked = not failed and job.ended == "ack"
    worked.acked += acked
    worked.failed += not acked


class ClaimHeartbeat:
    """Prolongs the claims of a process's jobs, on a thread that lives while it has any."""

    def __init__(self, submit: Callable[[Beat], Later[Any]], world: World) -> None:
        self._submit = submit
        self._world = world
        self.reset()

    def reset(self) -> None:
        self._jobs: dict[str, Job] = {}
        self._every_s = 0.0
        self._sooner = Signal()
        self._beating = threading.Lock()
        self._closed = False

    def add(self, job: Job) -> None:
        self._jobs[job.token] = job
        if job.visible_s / _BEATS < self._every_s or not self._every_s:
            self._sooner.set()
        if not self._beating.locked():
            Worker(self._run, "queue-heartbeat").start()

    def hasten(self) -> None:
        self._sooner.set()

    def close(self) -> None:
        self._closed = True
        self._sooner.set()

    def _run(self) -> None:
        while self._jobs and not self._closed and self._beating.acquire(blocking=False):
            try:
                self._beat_on()
            finally:
                self._beating.release()

    def _beat_on(self) -> None:
        """Prolong all jobs' claims each third of the shortest `visible_s`; drop ended and lost jobs.

        Under `_beating`, until `close` or a second without jobs; ignores store and queue errors.
        """
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
                self._sooner.wait(min(left_s, _LINGER_S))
            else:
                began_s = now_s
                self.beat(jobs)

    def beat(self, jobs: list[Job]) -> None:
        """Prolong jobs' claims by one operation, and move their deadlines; ignores errors of store and queue.

        Sets `lost` of ended ones, and of the earlier of two jobs of one message.
        """
        newest = {job.n: job for job in jobs}
        for job in jobs:
            if newest[job.n] is not job:  # its message was claimed again
                job.lost.set()
        sent_s = self._world.monotonic_s()
        try:
            lost = self._submit(Beat(tuple((job.n, job.token) for job in newest.values()))).result()
        except (CasError, CoordinationError):
            return
        for job in newest.values():
            if job.n in lost:
                job.lost.set()
            else:
                job.believe_until(sent_s)

    def _drop_ended(self) -> None:
        for token, job in [*self._jobs.items()]:
            if job.ended is not None or job.lost.is_set():
                self._jobs.pop(token, None)
