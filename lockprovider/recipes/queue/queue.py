"""`Queue`, and `AsyncQueue` for tasks."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import itertools
import threading
from collections import defaultdict, deque
from collections.abc import Callable, Coroutine, Iterable, Iterator, Sequence
from concurrent.futures import Future
from typing import Any

from fsspec_cas import InvalidInput, Store, World
from fsspec_cas.arguments import check_items, check_seconds, check_whole, to_ms
from fsspec_cas.bridge.threads import EnteredByTasks, Later, converted, on_thread, threaded
from fsspec_cas.machine import Signal, Worker
from lockprovider.recipes.base import BatchedRecipe, RecipeForTasks, process_name
from lockprovider.recipes.broker import Broker, check_broker
from lockprovider.recipes.broker_rules import Bundle
from lockprovider.recipes.errors import CoordinationError
from lockprovider.recipes.queue.contents import MAX_ATTEMPTS, MAX_BYTES, VISIBLE_S, Claim, Contents, QueueSettings
from lockprovider.recipes.queue.job import ClaimHeartbeat, Job, Letter, QueueStat, Receipt, Worked, count, new_message
from lockprovider.recipes.queue.operations import (
    End,
    New,
    NothingReady,
    Purge,
    Put,
    PutBefore,
    QueueCodec,
    QueueOperation,
    Redrive,
    Take,
    Touch,
)
from lockprovider.recipes.queue.writer import QueueWriter
from lockprovider.recipes.values import UNNAMED, AcknowledgedNumbers, check_call, check_producer, epoch_of, not_async

_TIMEOUT_S = 60.0
_CHUNK = 1000
_FIRST_POLL_S, _LAST_POLL_S = 0.05, 1.0


class Queue(BatchedRecipe[QueueOperation | Bundle[QueueOperation], Any]):
    """A queue; `create` or `open` it by its URL. Thread-safe: a process's threads share writes.

    "Queues" in `lockprovider/recipes/README.md` has the promises. A message may be delivered twice: fence its effect
    (`fence=job`), or name it by `job.id`.

    Args:
        timeout: seconds for each operation with all tries.
        pace_s: seconds between writes (default: 1 on GCS).
        broker: True: one process of a host writes for all that set it. A TCP address of this machine, e.g.
            "10.0.0.7": one of all hosts, unencrypted.

    Raises:
        NoQueue, MalformedObject, StoreError: any operation: nothing was done.
        OutcomeUnknown: any write: it may have been done.

    >>> queue = lockprovider.queue.create("memory://docs/backfill.json", max_attempts=1)
    >>> receipts = queue.put_many([{"day": "mon"}, {"day": "tue"}], producer="backfill-7")
    """

    def __init__(
        self,
        store: Store,
        path: str,
        *,
        timeout: float = _TIMEOUT_S,
        pace_s: float | None = None,
        broker: bool | str = False,
        world: World | None = None,
    ) -> None:
        super().__init__(store, path, world, pace_s)
        self._broker = Broker(check_broker(broker), QueueCodec(), self._batcher.submit, self.world)
        self._writer: QueueWriter = QueueWriter(
            self._store, self.path, check_seconds(timeout), self.world, self._broker
        )
        self._heartbeat = ClaimHeartbeat(self._batcher.submit, self.world)
        self._last_seqs: dict[str, int] = {}
        self._acknowledged: defaultdict[str, AcknowledgedNumbers] = defaultdict(AcknowledgedNumbers)
        self._init_state()

    def _reset(self) -> None:
        """Become a new client, as a forked child must: without jobs, not stopped.

        Producers' numbers stay.
        """
        self._client = self.world.new_id()
        self._claims = itertools.count(1)
        self._unnamed = 0
        self._numbers = threading.Lock()  # numbers arrive in order
        for acknowledged in self._acknowledged.values():
            acknowledged.forget_waiting()
        self._stopping = Signal()
        self._heartbeat.reset()
        self._writer.reset()

    @classmethod
    def create(
        cls,
        url: str,
        *,
        visible_s: float = VISIBLE_S,
        max_attempts: int = MAX_ATTEMPTS,
        max_bytes: int = MAX_BYTES,
        storage_options: dict[str, Any] | None = None,
        **options: Any,
    ) -> Queue:
        """Create the queue, or open it if it exists with the same settings; see `QueueSettings`.

        Raises:
            CoordinationError: the queue exists with other settings.
            MalformedObject: the object is no queue.
            NotSupported: the store ignores write conditions.
            StoreError, OutcomeUnknown: it may exist; do it again.

        >>> lockprovider.queue.create("memory://docs/small.json", visible_s=60, max_attempts=3).stat().ready
        0
        """
        settings = QueueSettings(visible_s, max_attempts, max_bytes)
        queue: Queue = cls.open(url, storage_options=storage_options, **options)
        created = queue._writer.create(Contents(queue.world.new_id(), settings))
        stored = queue._writer.read()[0].settings
        if not created and stored != settings:
            raise CoordinationError(
                f"the queue at {url!r} already exists with {stored}: open() it, or give the new queue another path"
            )
        return queue

    def put(
        self,
        body: Any,
        *,
        key: str = "",
        priority: int = 0,
        delay_s: float = 0.0,
        dedupe: str | None = None,
        producer: str | None = None,
        seq: int | None = None,
        fence: Any = None,
    ) -> Receipt:
        """Put a message: JSON or bytes. A higher `priority` goes first; `delay_s` seconds pass before delivery.

        With `producer` and `seq` it is put once: a producer's numbers rise, and come from one client at a time. With
        `dedupe` it is put once while the queue remembers the name (the last 1,000).

        Raises:
            SequenceGap: a higher number was put, and not this one; or an earlier number failed.
            QueueFull: dead letters, claims and messages with keys fill the object.
            TooLarge: above 256 KiB of JSON (bytes as base64).
            Fenced: `fence` is over.
            OutcomeUnknown: with a producer or `dedupe`, put it again.

        >>> queue.put({"day": "wed"}, priority=5)
        Receipt(n=3, again=False)
        >>> queue.put({"day": "thu"}, dedupe="thu").again, queue.put({"day": "thu"}, dedupe="thu").again
        (False, True)
        """
        message = new_message(self.world, body, key, priority, delay_s)
        return self._receipt(self._putting(message, producer, seq, dedupe, fence))

    def put_many(
        self,
        bodies: Iterable[Any],
        *,
        producer: str | None = None,
        key: Callable[[Any], str] | None = None,
        fence: Any = None,
    ) -> list[Receipt]:
        """Put messages, up to 1000 at once, and return receipts, both in order.

        `key(body)` returns a message's key. Raises what `put` raises; others may be stored. With a `producer` they are
        numbered from 1, and the same call may be repeated: none is put twice.

        >>> again = queue.put_many([{"day": "mon"}, {"day": "tue"}], producer="backfill-7")  # as after a crash
        >>> [one.again for one in again], queue.stat().ready
        ([True, True], 2)
        """
        receipts: list[Receipt] = []
        waiting: deque[Later[Any]] = deque()
        if key is not None:
            check_call(key, "key", "of a message, that returns its key")
        try:
            for number, body in enumerate(check_items(bodies, "bodies", "messages"), 1):
                message = new_message(self.world, body, "" if key is None else key(body))
                waiting.append(self._putting(message, producer, None if producer is None else number, None, fence))
                if len(waiting) >= _CHUNK:
                    receipts.append(self._receipt(waiting.popleft()))
            return [*receipts, *map(self._receipt, waiting)]
        except Exception:
            self._batcher.await_end(waiting)
            raise

    def last_seq(self, producer: str) -> int:
        """Producer's last number (0: none); a restarted one goes on after it.

        >>> queue.last_seq("backfill-7")
        2
        """
        return self._writer.read()[0].producers.get(check_producer(producer, "producer"), (0, 0, ""))[0]

    def claim(self, *, visible_s: float | None = None, timeout: float = 0.0) -> Job | None:
        """Claim the next message; None if none came in `timeout` seconds, or before `stop`.

        A heartbeat prolongs the claim until the job's end; without one it lapses after `visible_s` (None: the queue's).

        Raises:
            QueueFull: dead letters leave no room for messages in segments.
            OutcomeUnknown: if the claim was made, it lapses.

        >>> with queue.claim() as job:  # acks at the end
        ...     job.body
        {'day': 'mon'}
        >>> queue.claim().nack(), queue.claim()  # nothing is left, for 2 s
        (None, None)
        """
        if visible_s is None:
            visible_s = self._writer.read(max_age_s=float("inf"))[0].settings.visible_s
        visible_ms = to_ms(check_seconds(visible_s, "visible_s", finite=True, above=True))
        deadline_s, poll_s = self.world.monotonic_s() + check_seconds(timeout), _FIRST_POLL_S
        while True:
            began_s = self.world.monotonic_s()
            token = f"{self._client[-17:]}-{next(self._claims)}"
            claim = self._claimed(Take(token, process_name(), visible_ms))
            if not isinstance(claim, NothingReady):
                hasten = self._heartbeat.hasten
                job = Job(self._writer.id, claim, began_s, self._batcher.do, self.world, on_extend=hasten)
                try:
                    self._heartbeat.add(job)
                except BaseException:
                    job.leave()
                    raise
                return job
            left_s = deadline_s - self.world.monotonic_s()
            if left_s <= 0 or self._stopping.is_set():
                return None
            waits_s = min(poll_s, left_s)
            if claim.until_ms:
                waits_s = min(waits_s, max(0.001, (claim.until_ms - self.world.now_ms()) / 1000))
            self._writer.wait_for_messages(waits_s)
            poll_s = min(poll_s * 2, _LAST_POLL_S)

    def _claimed(self, take: Take) -> Claim | NothingReady:
        """Submit a claim, and wait for its result; on an error or interrupt, also raised, give a later claim back."""
        answer: Later[Any] = Later()
        try:
            came: Claim | NothingReady = self._batcher.do(take, answer)
        except BaseException:
            answer.add_done_callback(lambda future: self._give_back(take.token, future))
            raise
        return came

    def _give_back(self, token: str, future: Future[Any]) -> None:
        claim = None if future.cancelled() or future.exception() is not None else future.result()
        if isinstance(claim, Claim):
            with contextlib.suppress(CoordinationError):  # if closed or full, the claim lapses
                self._batcher.submit(End(claim.message.n, token, "nack", error=claim.message.error, counts=False))

    def jobs(self, *, visible_s: float | None = None, until_empty: bool = False) -> Iterator[Job]:
        """Iterate over claimed messages until `stop`, or with `until_empty` until none is ready. Leave each by `with`.

        >>> for job in queue.jobs(until_empty=True):
        ...     with job:
        ...         print(job.body["day"])
        mon
        tue
        """
        if visible_s is not None:
            check_seconds(visible_s, "visible_s", finite=True, above=True)
        return self._claimed_jobs(visible_s, until_empty=until_empty)

    def _claimed_jobs(
        self, visible_s: float | None, *, until_empty: bool, errors: Sequence[object] = ()
    ) -> Iterator[Job]:
        while not self.stopping and not errors:
            job = self.claim(visible_s=visible_s, timeout=0.0 if until_empty else _LAST_POLL_S)
            if job is not None:
                yield job
            elif until_empty:
                return

    def work(
        self,
        fn: Callable[[Job], object],
        *,
        threads: int = 1,
        visible_s: float | None = None,
        until_empty: bool = False,
        on_error: Callable[[Job, Exception], None] | None = None,
    ) -> Worked:
        """Call `fn` with each message on `threads` threads until `stop` or, with `until_empty`, none is ready.

        A message is acked when `fn` returns, and given back when it raises; `on_error(job, error)` gets `fn`'s or the
        ack's error. `failed` counts messages not acked. Raises what `claim` or `on_error` raises, which ends the work.

        >>> queue.work(lambda job: print(job.body["day"]), until_empty=True)
        mon
        tue
        Worked(acked=2, failed=0)
        """
        check_call(fn, "fn", "of a job")
        tell = error_handler(on_error)
        worked, errors, guard = Worked(), deque[BaseException](), threading.Lock()

        def live() -> None:
            """Work on and count messages until `stop`, an entry in `errors`, or, with `until_empty`, none is ready.

            Appends an own error to `errors`.
            """
            try:
                for job in self._claimed_jobs(visible_s, until_empty=until_empty, errors=errors):
                    failed = _failed(job, fn, tell)
                    with guard:
                        count(worked, job, failed=failed)
            except BaseException as error:  # noqa: BLE001 - `work` raises it
                errors.append(error)

        self._run_on(live, check_whole(threads, "threads", least=1), errors)
        if errors:
            raise errors[0]
        return worked

    def _run_on(self, live: Callable[[], None], threads: int, errors: deque[BaseException]) -> None:
        """Run `live` on threads until all end.

        Raises only an interrupt, which calls `stop`, or a thread's failed start, once all ended, and appends it to
        `errors`.
        """
        crew = [Worker(live, "queue-crew") for _ in range(threads)]
        try:
            for worker in crew:
                worker.start()
            for worker in crew:
                while worker.is_alive():
                    worker.join(1.0)  # notices a Ctrl-C
        except BaseException as error:
            errors.append(error)
            if not isinstance(error, Exception):
                self.stop()
            for worker in crew:
                if worker.ident is not None:  # it was started
                    worker.join()
            raise

    def stop(self) -> None:
        """Stop claiming: `work`, `jobs` and `claim` finish their messages, and return.

        >>> queue.stop()
        >>> queue.stopping
        True
        """
        self._stopping.set()
        self._writer.wake()

    @property
    def stopping(self) -> bool:
        """Whether `stop` was called."""
        return self._stopping.is_set()

    def stat(self) -> QueueStat:
        """Counts of messages by state, from one read.

        >>> stat = queue.stat()
        >>> stat.ready, stat.claimed, stat.dead
        (2, 0, 0)
        """
        contents, _ = self._writer.read()
        now_ms = self.world.now_ms()
        delayed = sum(item.not_before_ms > now_ms for item in contents.ready)
        delayed += sum(item.count for item in contents.segments if item.due_ms > now_ms)
        counts = contents.waiting, delayed, len(contents.claims), len(contents.dead)
        return QueueStat(*counts, contents.next - 1, contents.size, contents.rev, len(contents.segments))

    def peek(self, limit: int = 20) -> list[Letter]:
        """Next messages in the order of delivery, with delayed ones; claims none.

        >>> [letter.body for letter in queue.peek(1)]
        [{'day': 'mon'}]
        """
        return [Letter.of(message) for message in self._writer.next_messages(check_whole(limit, "limit"))]

    def dead(self) -> list[Letter]:
        """Dead letters.

        >>> queue.claim().bury("no such day")
        >>> [(letter.body, letter.why) for letter in queue.dead()]
        [({'day': 'mon'}, 'no such day')]
        """
        return [Letter.of(letter.message, letter.why) for letter in self._writer.read()[0].dead.values()]

    def redrive(self, numbers: Iterable[int] | None = None) -> int:
        """Deliver these dead letters, or all, with all attempts again.

        >>> queue.claim().bury("no such day")
        >>> queue.redrive(), queue.stat().ready
        (1, 2)
        """
        chosen = None if numbers is None else check_items(numbers, "numbers", "the numbers of dead letters")
        named = None if chosen is None else tuple(check_whole(n, "number", least=1) for n in chosen)
        redriven: int = self._batcher.do(Redrive(named))
        return redriven

    def purge(self, *, expected: int) -> int:
        """Remove ready, delayed and dead messages; claimed ones stay.

        Raises:
            StateConflict: the queue was written since `expected=stat.rev`.

        >>> queue.purge(expected=queue.stat().rev)
        2
        """
        removed: int = self._batcher.do(Purge(check_whole(expected, "expected")))
        return removed

    def clean(self) -> int:
        """Remove segments left by dead writers, by a listing, a write, a read and deletes.

        >>> queue.clean()
        0
        """
        existing = self._writer.segments.names()
        self._batcher.do(Touch())  # writers of unnamed segments now fail
        garbage = existing - {segment.name for segment in self._writer.read()[0].segments}
        self._writer.segments.remove(garbage)
        return len(garbage)

    def close(self, timeout: float | None = None) -> None:
        """Stop claiming, refuse operations, and wait for waiting writes, at most `timeout` seconds. Open claims lapse.

        >>> queue.close(timeout=10)
        """
        limit_s = None if timeout is None else check_seconds(timeout)
        self.stop()
        super().close(limit_s)
        self._heartbeat.close()
        self._broker.close()

    def _putting(
        self, message: New, producer: str | None, seq: int | None, dedupe: str | None, fence: Any
    ) -> Later[Any]:
        """Submit a put as `producer`, once for `dedupe`, or as this client; return its future.

        A `producer`'s put is uncancellable; a new one's last number is read first. Raises InvalidInput unless
        `producer` and `seq` come together, without `dedupe`.
        """
        if (producer is None) is not (seq is None) or (producer is not None and dedupe is not None):
            raise InvalidInput("give `producer` with `seq`, or `dedupe`, or none of them")
        epoch = epoch_of(fence)
        if dedupe is not None:
            check_producer(dedupe, "dedupe")
            return self._batcher.submit(Put(message, f"{UNNAMED}={dedupe}", 1, self._client, 1, epoch))
        if producer is not None:
            check_producer(producer, "producer")
        name = producer or f"{UNNAMED}{self._client}"
        if producer is not None and producer not in self._last_seqs:
            self._last_seqs[producer] = self.last_seq(producer)
        with self._numbers:
            self._unnamed += seq is None
            number = self._unnamed if seq is None else check_whole(seq, "seq", least=1)
            was_told = seq is not None and self._acknowledged[name].note_ended(number)
            put = Put(message, name, number, self._client, number if was_told else self._last_seqs.get(name, 0), epoch)
            answer: Later[Any] = self._batcher.submit(put, uncancellable=producer is not None)
            if producer is not None:
                self._acknowledged[name].add_waiting(number, answer)
        return answer

    def _receipt(self, answer: Later[Any]) -> Receipt:
        result = self._batcher.wait(answer)
        return Receipt(result.n, again=True) if isinstance(result, PutBefore) else Receipt(result)


def error_handler(on_error: Any) -> Callable[[Any, Exception], object]:
    return (lambda *_: None) if on_error is None else check_call(on_error, "on_error", "of a job and its error")


def _failed(job: Job, fn: Callable[[Job], object], tell: Callable[[Job, Exception], object]) -> bool:
    """Call `fn(job)`; unless it ended the job, ack, or give back if it raised.

    Returns whether any raised, after `tell(job, error)`.
    """
    try:
        with job:
            fn(job)
    except Exception as error:  # noqa: BLE001 - the message keeps it, and `tell` gets it
        tell(job, error)
        return True
    return False


class AsyncJob(EnteredByTasks[Job]):
    """Claimed message, for tasks. Leave it with `async with`, whose end survives a cancellation.

    >>> queue = await lockprovider.queue.AsyncQueue.create("memory://docs/backfill.json")
    >>> receipt = await queue.put("mon")
    >>> job = await queue.claim()
    >>> job.then("report of mon")
    >>> await job.ack()
    """

    def __init__(self, job: Job) -> None:
        super().__init__(job)
        self.job = job
        self.id, self.n, self.body, self.key = job.id, job.n, job.body, job.key
        self.attempt, self.epoch, self.error = job.attempt, job.epoch, job.error
        self.check, self.then = job.check, job.then

    ack = threaded(Job.ack, runs_to_end=True)
    nack = threaded(Job.nack, runs_to_end=True)
    bury = threaded(Job.bury, runs_to_end=True)
    extend = threaded(Job.extend)


async def _failed_task(
    job: AsyncJob, fn: Callable[[AsyncJob], Coroutine[Any, Any, object]], tell: Callable[[AsyncJob, Exception], object]
) -> bool:
    """Await `fn(job)`; unless it ended the job, ack, or give back if it raised.

    Returns whether any raised, after `tell(job, error)`. Raises InvalidInput, without `tell`, if `fn` returned no
    awaitable.
    """
    can_wait = True
    try:
        async with job:
            coming = fn(job)
            can_wait = inspect.isawaitable(coming)
            await coming
    except Exception as error:
        if not can_wait:
            raise not_async(fn, "fn", "of a job") from error
        tell(job, error)
        return True
    return False


def _give_back(job: Job | None) -> None:
    if job is not None:
        job.leave()


class AsyncQueue(RecipeForTasks[Queue]):
    """Queue, for tasks; arguments as `Queue`.

    >>> queue = await lockprovider.queue.AsyncQueue.create("memory://docs/backfill.json")
    >>> receipts = await queue.put_many(["mon", "tue"], producer="backfill-7")
    >>> [letter.body for letter in await queue.peek()]
    ['mon', 'tue']
    >>> async with await queue.claim() as job:
    ...     job.body
    'mon'
    """

    _of = Queue

    @classmethod
    async def create(cls, url: str, **options: Any) -> AsyncQueue:
        """See `Queue.create`.

        >>> other = await lockprovider.queue.AsyncQueue.create("memory://docs/other.json", visible_s=60)
        """
        return cls._over(await on_thread(lambda: Queue.create(url, **options)))

    put = threaded(Queue.put)
    put_many = threaded(Queue.put_many)
    last_seq = threaded(Queue.last_seq)
    stat = threaded(Queue.stat)
    peek = threaded(Queue.peek)
    dead = threaded(Queue.dead)
    redrive = threaded(Queue.redrive)
    purge = threaded(Queue.purge)
    clean = threaded(Queue.clean)
    close = threaded(Queue.close)
    claim = converted(Queue.claim, lambda job: None if job is None else AsyncJob(job), undo=_give_back)

    async def work(
        self,
        fn: Callable[[AsyncJob], Coroutine[Any, Any, object]],
        *,
        tasks: int = 1,
        visible_s: float | None = None,
        until_empty: bool = False,
        on_error: Callable[[AsyncJob, Exception], None] | None = None,
    ) -> Worked:
        """Await `fn(job)` for each message, in `tasks` tasks, else as `Queue.work` does.

        >>> async def load(job):
        ...     print(job.body)
        >>> await queue.work(load, until_empty=True)
        tue
        Worked(acked=1, failed=0)
        """
        check_call(fn, "fn", "of a job", awaited=True)
        tell, worked, errors = error_handler(on_error), Worked(), list[Exception]()

        async def live() -> None:
            """Work on and count messages until `stop`, an entry in `errors`, or, with `until_empty`, none is ready.

            Appends an own error to `errors`.
            """
            try:
                while not self._sync.stopping and not errors:
                    job = await self.claim(visible_s=visible_s, timeout=0.0 if until_empty else 1.0)
                    if job is not None:
                        count(worked, job.job, failed=await _failed_task(job, fn, tell))
                    elif until_empty:
                        return
            except Exception as error:  # noqa: BLE001 - raised once the other tasks have ended their jobs
                errors.append(error)

        await asyncio.gather(*(live() for _ in range(check_whole(tasks, "tasks", least=1))))
        if errors:
            raise errors[0]
        return worked

    def stop(self) -> None:
        """See `Queue.stop`.

        >>> queue.stop()
        """
        self._sync.stop()
