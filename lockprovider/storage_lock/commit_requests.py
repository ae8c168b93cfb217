"""Those of this client who wait for a decision."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass, replace
from functools import partial

from fsspec_cas import Store, World
from fsspec_cas.waiting import Signal
from lockprovider.storage_lock import combine
from lockprovider.storage_lock.combine import Decided, Decider, Hold, Refused, Undecided, Void
from lockprovider.storage_lock.commit_log import Log
from lockprovider.storage_lock.intent import Intent
from lockprovider.storage_lock.intents import Intents

SMOOTHING = 4  # a running mean takes over one part in so many of what was measured last
_EARLY = 0.85  # of the time that it takes, the first look is made

CommitAnswer = Decided | Void | Hold


@dataclass(eq=False)
class CommitRequest:
    """What one caller waits for."""

    intent: Intent
    decider: Decider
    began_s: float
    deadline_s: float
    done: Signal
    posted_s: float | None = None
    is_there: bool = False  # where it is posted; that is known
    came: CommitAnswer | None = None
    error: BaseException | None = None

    @property
    def posted(self) -> bool:
        """Whether others may decide it."""
        return self.posted_s is not None

    def end(self, came: CommitAnswer | BaseException) -> None:
        """Tell the caller."""
        if isinstance(came, BaseException):
            self.error = came
        else:
            self.came = came
        self.done.set()


class CommitRequests:
    """All that wait, of one thread. `post_s`: how long it takes of late to post one."""

    def __init__(self, store: Store, intents: Intents, world: World) -> None:
        self.intents = intents
        self._store = store
        self._world = world
        self._all: list[CommitRequest] = []
        self.post_s = 0.0
        self._wait_s = 0.0  # how long it took of late until what was posted was there

    def __iter__(self) -> Iterator[CommitRequest]:
        return iter([*self._all])

    def __bool__(self) -> bool:
        return bool(self._all)

    def add(self, request: CommitRequest) -> None:
        """It waits from now on."""
        self._all.append(request)

    def end(self, request: CommitRequest, came: CommitAnswer | BaseException) -> None:
        """It does not wait any more."""
        self._all.remove(request)
        request.end(came)

    @property
    def since_s(self) -> float:
        """Since when the first of them waits; there is one."""
        return min(request.began_s for request in self._all)

    def late(self) -> list[CommitRequest]:
        """Those whose time is over."""
        now_s = self._world.monotonic_s()
        return [request for request in self._all if now_s >= request.deadline_s]

    def undecided(self, log: Log | None) -> list[CommitRequest]:
        """Those of which the log says nothing yet."""
        verdicts = ((request, combine.verdict(log, request.intent, request.decider)) for request in self._all)
        return [request for request, came in verdicts if isinstance(came, Undecided)]

    def post(self, requests: Collection[CommitRequest], log: Log) -> bool:
        """Let others decide these in that log; False where that is not known to be done, and is to be done again.

        Raises:
            CasError: the same.
        """
        for request in requests:
            if not request.is_there:
                began_s = self._world.monotonic_s()
                if request.posted_s is None:
                    request.intent = self.intents.named(request.intent, log, request.decider.sample)
                    request.posted_s = began_s  # whatever the answer will be
                request.is_there = self.intents.post(request.intent)
                self.post_s = _smoothed(self.post_s, self._world.monotonic_s() - began_s)
        return all(request.is_there for request in requests)

    def first_look_s(self) -> float:
        """For how long not to look, by how long it took of late until what was posted was decided and there."""
        now_s = self._world.monotonic_s()
        posted_s = min((request.posted_s for request in self._all if request.posted_s is not None), default=now_s)
        return posted_s + _EARLY * self._wait_s - now_s

    def settle(self, log: Log | None, unapplied: Collection[str]) -> None:
        """End those that are decided and there, and those that never will be. `unapplied`: paths not there yet."""
        for request in self:
            match combine.verdict(log, request.intent, request.decider):
                case Decided(path) if path in unapplied:
                    continue
                case Refused():
                    error = _refused_by(request, log, unapplied)
                    if error is not None:
                        self._forget(request)
                        self.end(request, error)
                case Decided() as came:
                    self._note_wait(request)
                    self.end(request, replace(came, posted=self.intents.path(request.intent) if request.posted else ""))
                case Void() as came:
                    self._forget(request)
                    self.end(request, came)

    def _forget(self, request: CommitRequest) -> None:
        """No write can decide it any more; if this fails it is swept."""
        if request.posted:
            self._store.in_background(partial(self.intents.remove, request.intent))

    def _note_wait(self, request: CommitRequest) -> None:
        if request.posted_s is not None:
            self._wait_s = _smoothed(self._wait_s, self._world.monotonic_s() - request.posted_s)


def _smoothed(mean: float, last: float) -> float:
    return mean + (last - mean) / (SMOOTHING if mean else 1)


def _refused_by(request: CommitRequest, log: Log | None, unapplied: Collection[str]) -> Exception | None:
    """What refuses it and is there: of what is not yet nobody is told, for it may never come to be."""
    since = () if log is None else log.since(request.intent.place) or ()
    try:
        request.decider.refuse(request.intent, [entry for entry in since if entry.path not in unapplied])
    except combine.JudgeAnew:
        return None
    except Exception as error:  # noqa: BLE001 - for the writer of the intent
        return error
    return None
