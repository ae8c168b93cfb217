"""`AsyncElection`: the same election for tasks of an event loop.

It is the very `Election` of the threads, so every promise is the same. Each request has a thread while it lasts, and a
term the thread that renews it. A term that is won for a task that was cancelled meanwhile is resigned.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import AsyncIterator, Callable, Coroutine
from datetime import datetime
from typing import Any, TypeVar

from fsspec_cas import Store
from lockprovider.recipes.election.election import Election
from lockprovider.recipes.election.reports import Leader, LeaderChange
from lockprovider.recipes.election.term import Term
from lockprovider.recipes.election.work import Ending, OnDeposed, ended_by_itself
from lockprovider.recipes.errors import NotElected

T = TypeVar("T")


class AsyncTerm:
    """A term, for a task; see `Term`. `lost.is_set()` may be asked on the loop, `wait_lost` waits for it.

    >>> election = lockprovider.election.AsyncElection.open("memory://docs/scheduler.json", name="a")
    """

    def __init__(self, term: Term) -> None:
        self.term = term
        self.epoch, self.name, self.lost = term.epoch, term.name, term.lost
        self._lost_here = asyncio.Event()
        loop = asyncio.get_running_loop()

        def told() -> None:
            with contextlib.suppress(RuntimeError):  # the loop is closed
                loop.call_soon_threadsafe(self._lost_here.set)

        term.when_lost(told)

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

    def __repr__(self) -> str:
        return f"<Async{repr(self.term)[1:]}"

    def check(self) -> None:
        """See `Term.check`.

        >>> async with election.lead() as term:
        ...     term.check()
        """
        self.term.check()

    async def wait_lost(self) -> None:
        """Return once the term is over.

        >>> async with election.lead() as term:
        ...     await term.resign()
        ...     await term.wait_lost()
        """
        await self._lost_here.wait()

    async def proclaim(self, value: Any) -> None:
        """See `Term.proclaim`.

        >>> async with election.lead() as term:
        ...     await term.proclaim({"port": 8080})
        """
        await asyncio.to_thread(self.term.proclaim, value)

    async def resign(self, to: str = "") -> None:
        """See `Term.resign`.

        >>> async with election.lead() as term:
        ...     await term.resign(to="b")
        """
        await asyncio.to_thread(self.term.resign, to)


class AsyncElection:
    """An election, for tasks; the arguments are those of `Election`.

    >>> election = lockprovider.election.AsyncElection.open("memory://docs/scheduler.json", name="a")
    """

    def __init__(self, store: Store, path: str, **options: Any) -> None:
        self._election = Election(store, path, **options)

    @classmethod
    def open(cls, url: str, *, storage_options: dict[str, Any] | None = None, **options: Any) -> AsyncElection:
        """See `Election.open`.

        >>> other = lockprovider.election.AsyncElection.open("memory://docs/scheduler.json", name="b")
        """
        found = cls.__new__(cls)
        found._election = Election.open(url, storage_options=storage_options, **options)  # noqa: SLF001 - its own
        return found

    @contextlib.asynccontextmanager
    async def lead(self, timeout: float | None = None) -> AsyncIterator[AsyncTerm]:
        """See `Election.lead`: `async with election.lead() as term:`.

        >>> async with election.lead(timeout=10) as term:
        ...     term.check()
        """
        term = await self._elected(timeout)
        try:
            yield AsyncTerm(term)
        finally:
            await asyncio.shield(asyncio.to_thread(term.__exit__, None, None, None))

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
        ending = self._election.ending(on_deposed, grace)
        while not self._election.stopping:
            try:
                async with self.lead() as term:
                    task = asyncio.ensure_future(main(term))
                    error = await _under(term, task, ending)
                    if await asyncio.to_thread(ended_by_itself, error, term.term):
                        return task.result()
            except NotElected:
                if not self._election.stopping:
                    raise
        return None

    def stop(self) -> None:
        """See `Election.stop`.

        >>> election.stop()
        """
        self._election.stop()

    async def close(self) -> None:
        """See `Election.close`.

        >>> await election.close()
        """
        await asyncio.to_thread(self._election.close)

    def __repr__(self) -> str:
        return f"<Async{repr(self._election)[1:]}"

    async def __aenter__(self) -> AsyncElection:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def leader(self) -> Leader | None:
        """See `Election.leader`.

        >>> await election.leader() is None
        True
        """
        return await asyncio.to_thread(self._election.leader)

    async def watch(self) -> AsyncIterator[LeaderChange]:
        """See `Election.watch`.

        >>> async with election.lead():
        ...     async for change in election.watch():
        ...         print(change.leader.name)
        ...         break
        a
        """
        before: Leader | None = None
        while not self._election.stopping:
            change, before, wait_s = await asyncio.to_thread(self._election.changed, before)
            if change is not None:
                yield change
            await asyncio.sleep(wait_s)

    async def transfer(self, to: str) -> None:
        """See `Election.transfer`.

        >>> async with election.lead():
        ...     await election.transfer("b")
        """
        await asyncio.to_thread(self._election.transfer, to)

    async def _elected(self, timeout: float | None) -> Term:
        deadline_s = self._election.deadline_s(timeout)
        while True:
            trying = asyncio.ensure_future(asyncio.to_thread(self._election.try_once, deadline_s))
            try:
                term = await asyncio.shield(trying)
            except asyncio.CancelledError:
                trying.add_done_callback(_give_back)
                raise
            if isinstance(term, Term):
                term.thread = threading.current_thread()  # the term shall lapse if that dies
                return term
            await asyncio.sleep(term)


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


def _give_back(trying: asyncio.Future[Term | float]) -> None:
    """The term that was won for a task that is gone."""
    term = None if trying.cancelled() or trying.exception() is not None else trying.result()
    if isinstance(term, Term):
        threading.Thread(target=term.__exit__, args=(None, None, None), name="term-give-back", daemon=True).start()
