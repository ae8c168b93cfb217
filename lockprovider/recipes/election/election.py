"""`Election`, and `AsyncElection` for tasks."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import socket
import sys
import threading
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from typing import Any, TypeVar

from fsspec_cas import CasError, InvalidInput, OutcomeUnknown, Store, Unavailable, World
from fsspec_cas.arguments import check_seconds
from fsspec_cas.bridge.threads import ForTasks, iterated, on_thread, threaded
from fsspec_cas.machine import Signal
from lockprovider.recipes.base import Recipe, RecipeForTasks, process_name
from lockprovider.recipes.election.decide import (
    LARGEST_VALUE,
    Leader,
    LeaderChange,
    change_since,
    leads,
    may_stand,
    pause_s,
)
from lockprovider.recipes.election.term import Candidate, Ending, OnDeposed, Term, ended_by_itself, work_under
from lockprovider.recipes.errors import NotElected
from lockprovider.recipes.values import check_call, check_storable, json_copy
from lockprovider.settings import LockSettings

T = TypeVar("T")

VALIDITY_S, POLL_S = 30.0, 1.0


class Election(Recipe):
    """An election, and one candidate of it. Thread-safe; `open` it by its URL.

    "Elections" in `lockprovider/recipes/README.md` has the promises. A paused leader may act before it notices: fence
    its writes (`fence=term`).

    Args:
        name: candidate's name for others (default: host and process).
        value: JSON that it proclaims.
        validity: seconds that a leader leads without a renewal.
        renew: seconds between renewals (default: a tenth of `validity`).
        poll: seconds between reads while another candidate leads.

    Raises:
        InvalidInput, InvalidSettings: an option has the wrong type, or the times do not fit together.
        MalformedObject, StoreError: from any request: the object is not an election, or the store failed.

    >>> election = lockprovider.election.open("memory://docs/scheduler.json", name="a", validity=60)
    >>> with election.lead(timeout=10) as term:
    ...     term.check()
    ...     election.leader().name
    'a'
    """

    def __init__(
        self,
        store: Store,
        path: str,
        *,
        name: str | None = None,
        value: Any = None,
        validity: float = VALIDITY_S,
        renew: float | None = None,
        poll: float = POLL_S,
        world: World | None = None,
    ) -> None:
        super().__init__(store, path, world)
        if name is not None and not check_storable(name, "name"):
            raise InvalidInput(f"name={name!r} must not be empty, e.g. name={socket.gethostname()!r}")
        self.settings = LockSettings(validity, renew, poll=poll)
        self.name = process_name() if name is None else name
        self._value = json_copy(value, "value", LARGEST_VALUE)
        self._store = store.isolated_connections()  # a busy data path must not delay renewals
        self._init_state()

    def _reset(self) -> None:
        self._candidate = Candidate(self._store, self.path, self.name, self.settings, self.world)
        self._standing = threading.Lock()
        self._stopping = Signal()
        self._term: Term | None = None

    def __repr__(self) -> str:
        term = self._term
        state = "does not lead" if term is None or term.lost.is_set() else f"leads in term {term.epoch}"
        return f"<Election {self.path!r}, {self.name!r} {state}>"

    def lead(self, timeout: float | None = None) -> Term:
        """Wait until this candidate is elected; a thread renews the term.

        Takes two requests if no candidate leads, else one conditional GET each `poll`. The last may add 20 s. While
        this candidate leads, another call waits.

        Raises:
            NotElected: a candidate led for `timeout` seconds (None: for ever), or `stop` was called.

        >>> with election.lead(timeout=10) as term:
        ...     term.check()  # before each piece of work
        """
        deadline_s = float("inf") if timeout is None else self.world.monotonic_s() + check_seconds(timeout)
        while True:
            term = self.try_once(deadline_s)
            if isinstance(term, Term):
                return term
            self._stopping.wait(term)

    def try_once(self, deadline_s: float = 0.0) -> Term | float:
        """Try once to be elected; return the term, which a thread renews.

        Else, before `deadline_s` (monotonic; 0: now), returns the seconds to wait, afterwards raises the try's
        Unavailable or OutcomeUnknown, else NotElected. While this candidate leads, sends nothing and returns no term.
        Raises NotElected after `stop`.
        """
        stopped = f"this candidate for {self.path!r} was stopped"
        if self.stopping:
            raise NotElected(stopped)
        failure: Unavailable | OutcomeUnknown | None = None
        observed = None
        with self._standing:
            if self._term is None or self._term.lost.is_set():
                try:
                    observed = self._candidate.look()
                    if may_stand(self._candidate.me, observed, self.world.monotonic_s()):
                        leading = self._candidate.stand(observed, self._value)
                        if leading is not None:
                            term = self._term = Term(self._candidate, leading, self.settings.renew)
                            if not self.stopping:
                                return term
                            _leave(term)  # `stop` did not see it
                            raise NotElected(stopped)
                        observed = self._candidate.observed
                except (Unavailable, OutcomeUnknown) as error:
                    failure = error
        now_s = self.world.monotonic_s()
        if now_s >= deadline_s:
            if failure is not None:
                raise failure
            raise self._not_elected(leads(observed, now_s))
        pause = pause_s(observed, now_s, self.settings.poll, self.world.random())
        return min(pause, max(0.0, deadline_s - now_s))

    def _not_elected(self, leader: Leader | None) -> NotElected:
        term = self._term
        if term is not None and not term.lost.is_set():
            return NotElected(f"this candidate leads {self.path!r} already, in term {term.epoch}", self.name)
        if leader is None:
            return NotElected(f"another candidate is to lead {self.path!r}, or has just been elected")
        return NotElected(f"{leader.name!r}, in term {leader.epoch}, leads {self.path!r}", leader.name)

    def run(
        self, main: Callable[[Term], T], *, on_deposed: OnDeposed = "interrupt", grace: float | None = None
    ) -> T | None:
        """Lead, call `main(term)` and resign, until a call returns before its term is lost; return its result.

        `main` runs on its own thread. When the term is lost, `term.lost` is set, and by `on_deposed`:

        - "event": nothing more.
        - "interrupt": `Deposed` is raised in `main`, every second until it ends; not in code that blocks in C.
        - "exit": as "interrupt", and after `grace` seconds this process exits with code 123. The default `grace` is the
          margin by which a leader stops believing before others may lead.

        This candidate stands again only after `main` has ended. Returns None after `stop`. Raises as `lead`, and what
        `main` raised, except `Deposed`, `TermLost` and `Fenced` of a lost term.

        >>> election.run(lambda term: "done, in the newest term")
        'done, in the newest term'
        """
        check_call(main, "main", "of a term")
        ending = self.ending(on_deposed, grace)
        while not self.stopping:
            try:
                term = self.lead()
            except NotElected:  # stopped
                break
            with term:
                ended, result = work_under(term, main, ending)
                if ended:
                    return result
        return None

    def ending(self, on_deposed: OnDeposed, grace: float | None) -> Ending:
        return Ending(on_deposed, self.settings.margin_s if grace is None else check_seconds(grace, "grace"))

    def stop(self) -> None:
        """Give up the term, make `run` end its `main` and return, and stand no more.

        >>> election.stop()
        >>> election.run(lambda term: "never") is None
        True
        """
        self._stopping.set()
        if self._term is not None:
            self._term.give_up("this candidate was stopped")

    def close(self) -> None:
        """Stop, and resign; if the store fails, the term lapses.

        >>> election.close()
        """
        self.stop()
        term = self._term
        if term is not None:
            with contextlib.suppress(CasError):
                term.resign()

    @property
    def stopping(self) -> bool:
        return self._stopping.is_set()

    def leader(self) -> Leader | None:
        """Leader, as far as an observer can know, by one conditional GET; None: none leads.

        >>> with election.lead():
        ...     election.leader().name
        'a'
        >>> election.leader() is None
        True
        """
        return leads(self._candidate.look(), self.world.monotonic_s())

    def watch(self) -> Iterator[LeaderChange]:
        """Yield `Elected` for the current leader, if any, then each change of leader or value, until `stop`.

        May miss changes between two reads. Takes one conditional GET each `poll`; ignores only Unavailable.

        >>> with election.lead():
        ...     next(election.watch()).leader.name
        'a'
        """
        before: Leader | None = None
        while not self.stopping:
            change, wait_s = None, self.settings.poll
            with contextlib.suppress(Unavailable):
                observed, now_s = self._candidate.look(), self.world.monotonic_s()
                leader = leads(observed, now_s)
                change, before = change_since(before, leader, observed), leader
                if observed is None or now_s < observed.until_s:
                    wait_s = pause_s(observed, now_s, self.settings.poll, 1.0)
            if change is not None:
                yield change
            self._stopping.wait(wait_s)

    def transfer(self, to: str) -> None:
        """Resign in favour of the named candidate: for a third of the validity no other one stands.

        Raises NotElected if this candidate does not lead, InvalidInput for an empty name; else as `Term.resign`.

        >>> term = election.lead()
        >>> election.transfer("b")
        >>> term.lost.is_set()
        True
        """
        if not isinstance(to, str) or not to:
            raise InvalidInput(
                f"to={to!r} must be the name of a candidate; to resign for any candidate, call term.resign()"
            )
        term = self._term
        if term is None or term.lost.is_set():
            raise NotElected(f"{self.name!r} does not lead {self.path!r}, so it cannot transfer it")
        term.resign(to)


class AsyncTerm(ForTasks[Term]):
    """Term, for tasks; `lost.is_set()` may be called on the loop.

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

        def notify_loop() -> None:
            with contextlib.suppress(RuntimeError):
                loop.call_soon_threadsafe(self._lost_here.set)

        term.when_lost(notify_loop)

    proclaim = threaded(Term.proclaim)
    resign = threaded(Term.resign, runs_to_end=True)

    @property
    def value(self) -> Any:
        return self.term.value

    async def wait_lost(self) -> None:
        """Wait until the term is over.

        >>> async with election.lead() as term:
        ...     await term.resign()
        ...     await term.wait_lost()
        """
        await self._lost_here.wait()


class AsyncElection(RecipeForTasks[Election]):
    """Election, for tasks; arguments as `Election`.

    >>> election = lockprovider.election.AsyncElection.open("memory://docs/scheduler.json", name="a")
    >>> await election.leader() is None
    True
    """

    _of = Election

    leader = threaded(Election.leader)
    transfer = threaded(Election.transfer)
    close = threaded(Election.close)
    watch = iterated(Election.watch)

    @contextlib.asynccontextmanager
    async def lead(self, timeout: float | None = None) -> AsyncIterator[AsyncTerm]:
        """Lead during the block; see `Election.lead`.

        >>> async with election.lead(timeout=10) as term:
        ...     term.check()
        """
        term = await on_thread(lambda: self._sync.lead(timeout), undo=_leave)
        term.thread = threading.current_thread()  # the term lapses if the loop's thread dies
        try:
            yield AsyncTerm(term)
        finally:
            raised = sys.exc_info()
            await on_thread(lambda: term.__exit__(*raised), runs_to_end=True)

    async def run(
        self,
        main: Callable[[AsyncTerm], Coroutine[Any, Any, T]],
        *,
        on_deposed: OnDeposed = "interrupt",
        grace: float | None = None,
    ) -> T | None:
        """Lead and await `main(term)`, until a call returns before its term is lost; return its result.

        None after `stop`. See `Election.run`; here cancellation interrupts `main`.

        >>> async def main(term):
        ...     return "done"
        >>> await election.run(main)
        'done'
        """
        check_call(main, "main", "of a term", awaited=True)
        ending = self._sync.ending(on_deposed, grace)
        while not self._sync.stopping:
            async with contextlib.AsyncExitStack() as stack:
                try:
                    term = await stack.enter_async_context(self.lead())
                except NotElected:  # stopped
                    break
                task = asyncio.ensure_future(main(term))
                ended = functools.partial(ended_by_itself, await _under(term, task, ending), term.term)
                if await on_thread(ended):
                    return task.result()
        return None

    def stop(self) -> None:
        """See `Election.stop`.

        >>> election.stop()
        """
        self._sync.stop()


def _leave(term: Term) -> None:
    term.__exit__(None, None, None)


async def _under(term: AsyncTerm, task: asyncio.Future[Any], ending: Ending) -> BaseException | None:
    """Wait until the work's task ends; return its error, or None.

    Once the term is lost, cancels the task each second, unless `ending` is "event"; "exit" may exit the process. A
    cancelled wait gives the term up first, and raises CancelledError last.
    """
    lost = asyncio.ensure_future(term.wait_lost())
    try:
        await asyncio.wait([task, lost], return_when=asyncio.FIRST_COMPLETED)
    finally:
        lost.cancel()
        if not task.done():
            term.term.give_up("its work is being stopped")
        waited_s = 0.0
        while not task.done():
            if ending.on_deposed != "event":
                task.cancel()
            pause_s = ending.pause_s(waited_s)
            await asyncio.wait([task], timeout=pause_s)
            waited_s += pause_s
            if not task.done():
                ending.end_process(waited_s, term.epoch)
    return asyncio.CancelledError() if task.cancelled() else task.exception()
