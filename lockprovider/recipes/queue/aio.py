"""`AsyncQueue`: the same queue for tasks of an event loop.

It is the very `Queue` of the threads, so every promise is the same. Each operation has a thread while it lasts. What is
cancelled goes on there; a claim that it brings is given back.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine, Iterable
from types import TracebackType
from typing import Any

from fsspec_cas import Store
from fsspec_cas.given import function, whole
from lockprovider.recipes.queue.job import Job
from lockprovider.recipes.queue.queue import Queue
from lockprovider.recipes.queue.reports import Letter, QueueStat, Receipt, Worked
from lockprovider.renamed import renamed


class AsyncJob:
    """A claimed message, for a task; see `Job`. Leave it with `async with`.

    >>> queue = await lockprovider.queue.AsyncQueue.create("memory://docs/backfill.json")
    >>> receipt = await queue.put("mon")
    >>> job = await queue.claim()
    """

    def __init__(self, job: Job) -> None:
        self.job = job
        self.id, self.n, self.body, self.key = job.id, job.n, job.body, job.key
        self.attempt, self.epoch, self.error = job.attempt, job.epoch, job.error

    def check(self) -> None:
        """See `Job.check`.

        >>> job.check()
        """
        self.job.check()

    def then(self, body: Any, *, key: str = "", priority: int = 0, delay_s: float = 0.0) -> None:
        """See `Job.then`.

        >>> job.then("report of mon")
        >>> await job.ack()
        """
        self.job.then(body, key=key, priority=priority, delay_s=delay_s)

    async def ack(self) -> None:
        """See `Job.ack`.

        >>> await job.ack()
        """
        await asyncio.to_thread(self.job.ack)

    async def nack(self, *, delay_s: float | None = None, error: str = "", counts: bool = True) -> None:
        """See `Job.nack`.

        >>> await job.nack(error="no file yet")
        """
        await asyncio.to_thread(self.job.nack, delay_s=delay_s, error=error, counts=counts)

    async def bury(self, why: str) -> None:
        """See `Job.bury`.

        >>> await job.bury("no such day")
        """
        await asyncio.to_thread(self.job.bury, why)

    async def extend(self, visible_s: float) -> None:
        """See `Job.extend`.

        >>> await job.extend(3600)
        """
        await asyncio.to_thread(self.job.extend, visible_s)

    def __repr__(self) -> str:
        return f"<Async{repr(self.job)[1:]}"

    async def __aenter__(self) -> AsyncJob:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await asyncio.to_thread(self.job.__exit__, kind, error, trace)


def _give_back(claiming: asyncio.Future[Job | None]) -> None:
    """The message that was claimed for a task that is gone."""
    job = None if claiming.cancelled() or claiming.exception() is not None else claiming.result()
    if job is not None:
        threading.Thread(target=job.leave, name="queue-give-back", daemon=True).start()


class AsyncQueue:
    """A queue, for tasks; the arguments are those of `Queue`.

    >>> queue = await lockprovider.queue.AsyncQueue.create("memory://docs/backfill.json")
    >>> receipts = await queue.put_many(["mon", "tue"], producer="backfill-7")
    """

    def __init__(self, store: Store, path: str, **options: Any) -> None:
        self._queue = Queue(store, path, **options)

    @classmethod
    async def create(cls, url: str, **options: Any) -> AsyncQueue:
        """See `Queue.create`.

        >>> other = await lockprovider.queue.AsyncQueue.create("memory://docs/other.json", visible_s=60)
        """
        return cls._of(await asyncio.to_thread(Queue.create, url, **options))

    @classmethod
    def open(cls, url: str, **options: Any) -> AsyncQueue:
        """See `Queue.open`.

        >>> stat = await lockprovider.queue.AsyncQueue.open("memory://docs/backfill.json").stat()
        >>> stat.ready
        2
        """
        return cls._of(Queue.open(url, **options))

    async def put(self, body: Any, **how: Any) -> Receipt:
        """See `Queue.put`, for what may be said beside the body.

        >>> await queue.put("wed", dedupe="wed")
        Receipt(n=3, again=False)
        """
        return await asyncio.to_thread(self._queue.put, body, **how)

    async def put_many(
        self,
        bodies: Iterable[Any],
        *,
        producer: str | None = None,
        key: Callable[[Any], str] | None = None,
        fence: Any = None,
    ) -> list[Receipt]:
        """See `Queue.put_many`.

        >>> [one.again for one in await queue.put_many(["mon", "tue"], producer="backfill-7")]
        [True, True]
        """
        return await asyncio.to_thread(self._queue.put_many, bodies, producer=producer, key=key, fence=fence)

    async def last_seq(self, producer: str) -> int:
        """See `Queue.last_seq`.

        >>> await queue.last_seq("backfill-7")
        2
        """
        return await asyncio.to_thread(self._queue.last_seq, producer)

    @renamed(timeout_s="timeout")
    async def claim(self, *, visible_s: float | None = None, timeout: float = 0.0) -> AsyncJob | None:
        """See `Queue.claim`.

        >>> async with await queue.claim() as job:
        ...     job.body
        'mon'
        """
        claiming = asyncio.ensure_future(asyncio.to_thread(self._queue.claim, visible_s=visible_s, timeout=timeout))
        try:
            job = await asyncio.shield(claiming)
        except asyncio.CancelledError:
            claiming.add_done_callback(_give_back)
            raise
        return None if job is None else AsyncJob(job)

    async def work(
        self,
        fn: Callable[[AsyncJob], Coroutine[Any, Any, object]],
        *,
        tasks: int = 1,
        visible_s: float | None = None,
        until_empty: bool = False,
        on_error: Callable[[AsyncJob, Exception], None] | None = None,
    ) -> Worked:
        """See `Queue.work`; `fn` is a coroutine function, and `tasks` of them run at once.

        >>> async def load(job):
        ...     print(job.body)
        >>> await queue.work(load, until_empty=True)
        mon
        tue
        Worked(acked=2, failed=0)
        """
        function(fn, "fn", "of a job that returns a coroutine")
        worked = Worked()

        async def live() -> None:
            while not self._queue.stopping:
                job = await self.claim(visible_s=visible_s, timeout=0.0 if until_empty else 1.0)
                if job is None:
                    if until_empty:
                        return
                    continue
                try:
                    async with job:
                        await fn(job)
                except Exception as error:  # noqa: BLE001 - it is in the message, and told
                    if on_error is not None:
                        on_error(job, error)
                acked = job.job.ended == "ack"
                worked.acked += acked
                worked.failed += not acked

        await asyncio.gather(*(live() for _ in range(whole(tasks, "tasks", least=1))))
        return worked

    def stop(self) -> None:
        """See `Queue.stop`.

        >>> queue.stop()
        """
        self._queue.stop()

    async def stat(self) -> QueueStat:
        """See `Queue.stat`.

        >>> stat = await queue.stat()
        >>> stat.ready
        2
        """
        return await asyncio.to_thread(self._queue.stat)

    async def peek(self, limit: int = 20) -> list[Letter]:
        """See `Queue.peek`.

        >>> [letter.body for letter in await queue.peek()]
        ['mon', 'tue']
        """
        return await asyncio.to_thread(self._queue.peek, limit)

    async def dead(self) -> list[Letter]:
        """See `Queue.dead`.

        >>> await queue.dead()
        []
        """
        return await asyncio.to_thread(self._queue.dead)

    async def redrive(self, numbers: Iterable[int] | None = None) -> int:
        """See `Queue.redrive`.

        >>> await queue.redrive()
        0
        """
        return await asyncio.to_thread(self._queue.redrive, numbers)

    async def purge(self, *, expected: int) -> int:
        """See `Queue.purge`.

        >>> stat = await queue.stat()
        >>> await queue.purge(expected=stat.rev)
        2
        """
        return await asyncio.to_thread(self._queue.purge, expected=expected)

    async def clean(self) -> int:
        """See `Queue.clean`.

        >>> await queue.clean()
        0
        """
        return await asyncio.to_thread(self._queue.clean)

    @renamed(timeout_s="timeout")
    async def close(self, timeout: float | None = None) -> None:
        """See `Queue.close`.

        >>> await queue.close()
        """
        await asyncio.to_thread(self._queue.close, timeout)

    def __repr__(self) -> str:
        return f"<Async{repr(self._queue)[1:]}"

    async def __aenter__(self) -> AsyncQueue:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    @classmethod
    def _of(cls, queue: Queue) -> AsyncQueue:
        found = cls.__new__(cls)
        found._queue = queue  # noqa: SLF001 - its own
        return found
