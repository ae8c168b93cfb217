"""`AsyncQueue`: the same queue for tasks of an event loop.

It is the very `Queue` of the threads, so every promise is the same. Each call has a thread while it lasts. One that is
cancelled ends at once; what a write has taken by then goes on, and a message that it claims is given back.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from types import TracebackType
from typing import Any

from fsspec_cas import Store
from fsspec_cas.bridge.tasks import ForTasks, on_thread, threaded
from fsspec_cas.given import function, whole
from lockprovider.recipes.queue.job import Job
from lockprovider.recipes.queue.queue import Queue
from lockprovider.recipes.queue.reports import Worked


class AsyncJob(ForTasks[Job]):
    """A claimed message, for a task; see `Job`. Leave it with `async with`. A cancelled end of it goes on.

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

    ack = threaded(Job.ack, goes_on=True)
    nack = threaded(Job.nack, goes_on=True)
    bury = threaded(Job.bury, goes_on=True)
    extend = threaded(Job.extend)

    async def __aenter__(self) -> AsyncJob:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await on_thread(lambda: self.job.__exit__(kind, error, trace), goes_on=True)


class AsyncQueue(ForTasks[Queue]):
    """A queue, for tasks; the arguments are those of `Queue`.

    >>> queue = await lockprovider.queue.AsyncQueue.create("memory://docs/backfill.json")
    >>> receipts = await queue.put_many(["mon", "tue"], producer="backfill-7")
    >>> [letter.body for letter in await queue.peek()]
    ['mon', 'tue']
    """

    def __init__(self, store: Store, path: str, **options: Any) -> None:
        super().__init__(Queue(store, path, **options))

    @classmethod
    async def create(cls, url: str, **options: Any) -> AsyncQueue:
        """See `Queue.create`.

        >>> other = await lockprovider.queue.AsyncQueue.create("memory://docs/other.json", visible_s=60)
        """
        return cls._over(await on_thread(lambda: Queue.create(url, **options)))

    @classmethod
    def open(cls, url: str, **options: Any) -> AsyncQueue:
        """See `Queue.open`.

        >>> stat = await lockprovider.queue.AsyncQueue.open("memory://docs/backfill.json").stat()
        >>> stat.ready
        2
        """
        return cls._over(Queue.open(url, **options))

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

    async def claim(self, *, visible_s: float | None = None, timeout: float = 0.0) -> AsyncJob | None:
        """See `Queue.claim`.

        >>> async with await queue.claim() as job:
        ...     job.body
        'mon'
        """
        job = await on_thread(lambda: self._sync.claim(visible_s=visible_s, timeout=timeout), undo=_give_back)
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
            while not self._sync.stopping:
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
        self._sync.stop()

    async def __aenter__(self) -> AsyncQueue:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()


def _give_back(job: Job | None) -> None:
    """The message that was claimed for a task that is gone."""
    if job is not None:
        job.leave()
