"""Every public call that waits, of locks and recipes: one table for threads and for tasks.

`CALLS` has a function of `Made` for each; what is in none of the tables is found by `waiting_calls`.
"""

from __future__ import annotations

import inspect
import itertools
import os
import uuid
from collections.abc import Callable
from typing import Any

from fsspec_cas import Cached, Store
from lockprovider import AsyncLease, AsyncLock, Lease, Lock, LockSettings
from lockprovider.election import AsyncElection, AsyncTerm, Election, Term
from lockprovider.queue import AsyncJob, AsyncQueue, Job, Queue
from lockprovider.state import AsyncState, State
from lockprovider.wal import Appender, AsyncAppender, AsyncLogReader, AsyncWal, Leader, LogReader, Wal

SYNC = (Lock, Lease, State, Queue, Job, Wal, Appender, Leader, LogReader, Election, Term, Cached)
ASYNC = (
    AsyncLock,
    AsyncLease,
    AsyncState,
    AsyncQueue,
    AsyncJob,
    AsyncWal,
    AsyncAppender,
    AsyncLogReader,
    AsyncElection,
    AsyncTerm,
)
SETTINGS = LockSettings(validity=2.0, renew=0.2, poll=0.05, timeout=240)
LONG_S = 240.0


class Made:
    """One of each over one store, for threads; `for_tasks` has those of `ASYNC`."""

    def __init__(self, store: Store, *, for_tasks: bool = False) -> None:
        self.store, self.for_tasks = store, for_tasks
        self._numbers = itertools.count(1)
        pick = (lambda one, other: other) if for_tasks else (lambda one, _: one)
        self.lock = pick(Lock, AsyncLock)(store, "lock.json", SETTINGS)
        self.state = self.new(pick(State, AsyncState), "state.json", default=list)
        made = Queue.create(f"{store.url}/queue.json", visible_s=2)
        made.put("first")
        self.queue = self.new(pick(Queue, AsyncQueue), "queue.json")
        Queue.create(f"{store.url}/empty.json")
        self.empty = self.new(pick(Queue, AsyncQueue), "empty.json")
        Wal.create(f"{store.url}/log").append(b"first")
        self.log = self.new(pick(Wal, AsyncWal), "log")
        self.election = self.new(pick(Election, AsyncElection), "election.json", name="me", validity=1.0, poll=0.02)
        self.cached = Cached(store, "cached")
        State(store, "state.json").put([1])

    def new(self, kind: Any, path: str, **options: Any) -> Any:
        return kind(self.store, path, **options)

    def number(self) -> int:
        return next(self._numbers)

    def fresh(self, kind: str) -> Any:
        return self.new(type(getattr(self, kind)), f"{kind}-{uuid.uuid4().hex}")

    def url(self) -> str:
        return f"{self.store.url}/{uuid.uuid4().hex}"


def added(value: list[int]) -> list[int]:
    return [*value, 1][-3:]


Call = Callable[[Made], Any]

# What is called may be awaited, entered, or iterated; `finish` of the test knows.
CALLS: dict[str, Call] = {
    "Lock.acquire": lambda m: m.lock.acquire(),
    "Lock.status": lambda m: m.lock.status(),
    "Lock.locked": lambda m: m.lock.locked(),
    "Lock.stage": lambda m: m.lock.stage("staged", os.urandom(10_000)),
    "State.read": lambda m: m.state.read(),
    "State.update": lambda m: m.state.update(added),
    "State.put": lambda m: m.state.put([2]),
    "State.edit": lambda m: m.state.edit(),
    "State.history": lambda m: m.state.history(3),
    "State.at": lambda m: m.state.at(1),
    "State.diff": lambda m: m.state.diff(1, 1),
    "State.rollback": lambda m: m.state.rollback(1),
    "State.who": lambda m: m.state.who(),
    "State.close": lambda m: m.fresh("state").close(),
    "Queue.create": lambda m: type(m.queue).create(m.url()),
    "Queue.put": lambda m: m.queue.put("more"),
    "Queue.put_many": lambda m: m.queue.put_many(["more", "still more"]),
    "Queue.last_seq": lambda m: m.queue.last_seq("nobody"),
    "Queue.claim": lambda m: m.queue.claim(timeout=LONG_S),
    "Queue.stat": lambda m: m.queue.stat(),
    "Queue.peek": lambda m: m.queue.peek(),
    "Queue.dead": lambda m: m.queue.dead(),
    "Queue.redrive": lambda m: m.queue.redrive(),
    "Queue.clean": lambda m: m.queue.clean(),
    "Queue.close": lambda m: m.fresh("queue").close(),
    "Wal.create": lambda m: type(m.log).create(m.url()),
    "Wal.append": lambda m: m.log.append(b"more"),
    "Wal.append_many": lambda m: m.log.append_many([b"more", b"still more"]),
    "Wal.read": lambda m: m.log.read(),
    "Wal.follow": lambda m: m.log.follow(),
    "Wal.reader": lambda m: m.log.reader("r"),
    "Wal.drop_reader": lambda m: m.log.drop_reader("nobody"),
    "Wal.end": lambda m: m.log.end(),
    "Wal.position": lambda m: m.log.position("oldest"),
    "Wal.info": lambda m: m.log.info(),
    "Wal.close": lambda m: m.fresh("log").close(),
    "Appender.append": lambda m: m.log.appender(f"p{m.number()}").append(b"x", seq=1),
    "Appender.append_many": lambda m: m.log.appender(f"p{m.number()}").append_many([b"x", b"y"], first=1),
    "Appender.flush": lambda m: m.log.appender(f"p{m.number()}").flush(),
    "Election.lead": lambda m: m.election.lead(),
    "Election.leader": lambda m: m.election.leader(),
    "Election.close": lambda m: m.fresh("election").close(),
}

# Those that end what another call has begun, by what begins it.
_JOB = "after Queue.claim, in its `with`"
ELSEWHERE = {
    **{f"Job.{name}": _JOB for name in ("ack", "nack", "bury", "extend", "leave")},
    **{f"Lease.{name}": "after Lock.acquire, in its `with`" for name in ("release", "renew", "end")},
    "Lease.publish": "a publish is asked of the lock's tests",
    **{f"Lock.{name}": "as Lock.acquire" for name in ("release", "require_safe_store", "look", "commit")},
    **{f"Lock.{name}": "as Lock.stage" for name in ("unstage", "discard", "wait_for_late", "sweep_intents")},
    "State.unlock": "as State.who",
    "State.settle": "as State.read",
    "Queue.jobs": "as Queue.claim",
    "Queue.work": "as Queue.claim; `fn` is the user's",
    "Queue.purge": "as Queue.redrive",
    "Wal.append_later": "waits for nothing",
    "Wal.lead": "as Wal.append",
    "Wal.seal": "as Wal.append",
    "Wal.trim": "as Wal.drop_reader",
    "Leader.resign": "as Wal.append",
    **{f"Leader.{name}": "as of Appender" for name in ("append", "append_later", "append_many", "flush")},
    "Appender.append_later": "waits for nothing",
    "Appender.last_seq": "as Wal.end",
    **{f"LogReader.{name}": "as of Wal" for name in ("read", "follow", "commit")},
    "Election.run": "as Election.lead; `main` is the user's",
    "Election.watch": "as Election.leader",
    "Election.transfer": "as the end of Election.lead",
    "Election.try_once": "as Election.lead",
    **{f"Term.{name}": "as the end of Election.lead" for name in ("resign", "proclaim", "renew", "wait_lost")},
    "Cached.get": "as State.read, which calls it",
    **{f"Cached.{name}": "as State.put" for name in ("put_if_absent", "put_if_match", "delete_if_match", "update")},
}
WAITS_FOR_NOTHING = {
    *("Lock.acquire_later", "Lease.check", "Lease.again", "Lease.start", "Lease.abandon", "Lease.when_lost"),
    *("State.open", "Queue.open", "Wal.open", "Election.open", "Queue.stop", "Election.stop", "Wal.appender"),
    *("Job.check", "Job.then", "Job.believe_until", "Election.ending"),
    *("Term.check", "Term.give_up", "Term.when_lost", "Term.abandon"),
}


def waiting_calls(kinds: tuple[type, ...]) -> set[str]:
    """Their names as in the tables, without the `Async` of those for tasks."""
    return {
        f"{kind.__name__.removeprefix('Async')}.{name}"
        for kind in kinds
        for name in dir(kind)
        if not name.startswith("_") and inspect.isroutine(getattr(kind, name))
    } - WAITS_FOR_NOTHING


def finish(came: Any) -> None:
    """A call for threads to its end."""
    if isinstance(came, (list, str)) or came is None:
        return
    if inspect.isgenerator(came):
        next(came)
    elif hasattr(came, "__exit__") and not isinstance(came, (State, Queue, Wal)):
        with came:
            pass


async def finish_task(came: Any) -> None:
    """A call for tasks to its end."""
    if hasattr(came, "__aenter__") and not hasattr(came, "__await__"):
        async with came:
            return
    if hasattr(came, "__aiter__"):
        async for _ in came:
            break
        return
    came = await came
    if hasattr(came, "__aenter__") and not isinstance(came, (AsyncState, AsyncQueue, AsyncWal)):
        async with came:
            return
