"""`AsyncQueue`: a queue for tasks of an event loop, with the promises of `Queue`."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

from fsspec_cas.bridge.tasks import EnteredByTasks, converted, on_thread, threaded
from fsspec_cas.given import function, whole
from lockprovider.recipes.base import RecipeForTasks
from lockprovider.recipes.queue.job import Job, Worked, count
from lockprovider.recipes.queue.queue import Queue, error_handler


class AsyncJob(EnteredByTasks[Job]):
    """A claimed message, for tasks; see `Job`. Leave it with `async with`, whose end goes on after a cancellation.

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


async def _failed(
    job: AsyncJob, fn: Callable[[AsyncJob], Coroutine[Any, Any, object]], tell: Callable[[AsyncJob, Exception], object]
) -> bool:
    """Await `fn(job)`, then ack the job or give it back; return whether any of that raised.

    An error goes to `tell`, and is not raised.
    """
    try:
        async with job:
            await fn(job)
    except Exception as error:  # noqa: BLE001 - the message keeps it, and `tell` gets it
        tell(job, error)
        return True
    return False


def _for_a_task(job: Job | None) -> AsyncJob | None:
    return None if job is None else AsyncJob(job)


def _give_back(job: Job | None) -> None:
    if job is not None:
        job.leave()


class AsyncQueue(RecipeForTasks[Queue]):
    """A queue, for tasks; takes the arguments of `Queue`.

    Each call has a thread while it runs. A cancelled call ends at once: an operation that a write has taken goes on,
    and a claimed message is given back.

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
    claim = converted(Queue.claim, _for_a_task, undo=_give_back)

    async def work(
        self,
        fn: Callable[[AsyncJob], Coroutine[Any, Any, object]],
        *,
        tasks: int = 1,
        visible_s: float | None = None,
        until_empty: bool = False,
        on_error: Callable[[AsyncJob, Exception], None] | None = None,
    ) -> Worked:
        """Work on messages as `Queue.work` does, with `tasks` tasks that await the coroutine function `fn`.

        >>> async def load(job):
        ...     print(job.body)
        >>> await queue.work(load, until_empty=True)
        tue
        Worked(acked=1, failed=0)
        """
        function(fn, "fn", "of a job that returns a coroutine")
        tell, worked, errors = error_handler(on_error), Worked(), list[Exception]()

        async def live() -> None:
            """Work on messages until stopped, or with `until_empty` until none is ready.

            Puts a queue's error into `errors`, which ends all tasks.
            """
            try:
                while not self._sync.stopping and not errors:
                    job = await self.claim(visible_s=visible_s, timeout=0.0 if until_empty else 1.0)
                    if job is not None:
                        count(worked, job.job, failed=await _failed(job, fn, tell))
                    elif until_empty:
                        return
            except Exception as error:  # noqa: BLE001 - raised once the other tasks have ended their jobs
                errors.append(error)

        await asyncio.gather(*(live() for _ in range(whole(tasks, "tasks", least=1))))
        if errors:
            raise errors[0]
        return worked

    def stop(self) -> None:
        """See `Queue.stop`.

        >>> queue.stop()
        """
        self._sync.stop()
