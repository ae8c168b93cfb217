"""`AsyncElection`: the same election for tasks of an event loop.

It is the very `Election` of the threads, so every promise is the same. Each call has a thread while it lasts, and a
term the thread that renews it. A term that is won for a task that was cancelled meanwhile is resigned.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import threading
from collections.abc import AsyncIterator, Callable, Coroutine
from datetime import datetime
from typing import Any, TypeVar

from fsspec_cas import Store
from fsspec_cas.bridge.tasks import ForTasks, iterated, on_thread, threaded
from lockprovider.recipes.election.election import Election
from lockprovider.recipes.election.term import Term
from lockprovider.recipes.election.work import Ending, OnDeposed, ended_by_itself
from lockprovider.recipes.errors import NotElected

T = TypeVar("T")


class AsyncTerm(ForTasks[Term]):
    """A term, for a task; see `Term`. `lost.is_set()` may be asked on the loop, `wait_lost` waits for it.

    >>> election = lockprovider.election.AsyncElection.open("memory://docs/scheduler.json", name="a")
    >>> async with election.lead() as term:
    ...     term.check()
    ...     await term.proclaim({"port": 8080})
    """

    def __init__(self, term: Term) -> None:
        super().__init__(term)
        self.term = term
        self.epoch, self.name, self.lost, self.check = term.epoch, term.name, term.lost, term.check
        self._lost_here = asyncio.Event()
        loop = asyncio.get_running_loop()

        def told() -> None:
            with contextlib.suppress(RuntimeError):  # the loop is closed
                loop.call_soon_threadsafe(self._lost_here.set)

        term.when_lost(told)

    proclaim = threaded(Term.proclaim)
    resign = threaded(Term.resign, goes_on=True)

    @property
    def value(self) -> Any:
        """See `Term.value`."""
        return self.term.value

    @property
    def deadline_s(self) -> float:
        """See `Term.deadline_s`."""
        return self.term.deadline_s

    @property
    def since(self) -> datetime:
        """See `Term.since`."""
        return self.term.since

    async def wait_lost(self) -> None:
        """Return once the term is over.

        >>> async with election.lead() as term:
        ...     await term.resign()
        ...     await term.wait_lost()
        """
        await self._lost_here.wait()


class AsyncElection(ForTasks[Election]):
    """An election, for tasks; the arguments are those of `Election`.

    >>> election = lockprovider.election.AsyncElection.open("memory://docs/scheduler.json", name="a")
    >>> await election.leader() is None
    True
    """

    def __init__(self, store: Store, path: str, **options: Any) -> None:
        super().__init__(Election(store, path, **options))

    @classmethod
    def open(cls, url: str, *, storage_options: dict[str, Any] | None = None, **options: Any) -> AsyncElection:
        """See `Election.open`.

        >>> other = lockprovider.election.AsyncElection.open("memory://docs/scheduler.json", name="b")
        """
        return cls._over(Election.open(url, storage_options=storage_options, **options))

    leader = threaded(Election.leader)
    transfer = threaded(Election.transfer)
    close = threaded(Election.close)
    watch = iterated(Election.watch)

    @contextlib.asynccontextmanager
    async def lead(self, timeout: float | None = None) -> AsyncIterator[AsyncTerm]:
        """See `Election.lead`: `async with election.lead() as term:`.

        >>> async with election.lead(timeout=10) as term:
        ...     term.check()
        """
        term = await on_thread(lambda: self._sync.lead(timeout), undo=_leave)
        term.thread = threading.current_thread()  # the term shall lapse if that dies
        try:
            yield AsyncTerm(term)
        finally:
            await on_thread(lambda: _leave(term), goes_on=True)

    async def run(
        self,
        main: Callable[[AsyncTerm], Coroutine[Any, Any, T]],
        *,
        on_deposed: OnDeposed = "interrupt",
        grace: float | None = None,
    ) -> T | None:
        """See `Election.run`; `main` is a coroutine function, and what interrupts it is a cancellation.

        >>> async def main(term):
        ...     return "done"
        >>> await election.run(main)
        'done'
        """
        ending = self._sync.ending(on_deposed, grace)
        while not self._sync.stopping:
            try:
                async with self.lead() as term:
                    task = asyncio.ensure_future(main(term))
                    ended = functools.partial(ended_by_itself, await _under(term, task, ending), term.term)
                    if await on_thread(ended):
                        return task.result()
            except NotElected:
                if not self._sync.stopping:
                    raise
        return None

    def stop(self) -> None:
        """See `Election.stop`.

        >>> election.stop()
        """
        self._sync.stop()

    async def __aenter__(self) -> AsyncElection:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()


def _leave(term: Term) -> None:
    """As by the end of a `with`."""
    term.__exit__(None, None, None)


async def _under(term: AsyncTerm, task: asyncio.Future[Any], ending: Ending) -> BaseException | None:
    """The task to its end, or to that of the term, which it shall not outlive; its error."""
    lost = asyncio.ensure_future(term.wait_lost())
    try:
        await asyncio.wait([task, lost], return_when=asyncio.FIRST_COMPLETED)
    finally:
        lost.cancel()
        if not task.done():
            term.term.give_up("its work is being stopped")
        waited_s = 0.0
        while not task.done():
            if ending.interrupts:
                task.cancel()
            pause_s = ending.pause_s(waited_s)
            await asyncio.wait([task], timeout=pause_s)
            waited_s += pause_s
            if not task.done():
                ending.end_process(waited_s, term.epoch)
    return asyncio.CancelledError() if task.cancelled() else task.exception()
