"""Those of this client who wait for a decision, and the intents of a lock in the store."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, replace
from functools import partial

from fsspec_cas import ObjectNotFound, Store, Unknown, Won, World
from fsspec_cas.waiting import Signal
from lockprovider.storage_lock import combine
from lockprovider.storage_lock.combine import (
    Decided,
    Decider,
    Hold,
    Intent,
    Refused,
    Undecided,
    Void,
    intents_folder,
    is_over,
    parse_intent,
)
from lockprovider.storage_lock.commit_log import LARGEST, Log

FOLDER = "intents"
_MOST_READ = 16  # bodies at a time: no write decides more


class Intents:
    """Those beside one lock. Bodies are read once: an intent never changes, but for its end."""

    def __init__(self, store: Store, lock_folder: str) -> None:
        self._store = store
        self._below = f"{lock_folder}/{FOLDER}/" if lock_folder else f"{FOLDER}/"
        self._known: dict[str, Intent] = {}

    def path(self, intent: Intent) -> str:
        """Where it is, while it waits."""
        return self._below + intent.name

    def named(self, intent: Intent, log: Log, sample: bytes) -> Intent:
        """As it is to be posted: where a read takes its time, its name tells as much as it can."""
        return intent.telling(log, sample) if self._store.is_remote else intent

    def post(self, intent: Intent) -> bool:
        """Let it be decided by whoever is on duty, from now on until it is withdrawn; False if that is not known.

        May be repeated.

        Raises:
            CasError: it may be there, or not.
        """
        return not isinstance(self._store.put_if_absent(self.path(intent), intent.body, create_once=True), Unknown)

    def listed(self, log: Log, sample: bytes = b"") -> tuple[Intent, ...]:
        """What waits in this log and is not withdrawn by now; `sample`: the decider's.

        Of those that nobody has read here yet only the first by their stems: the next time it is the turn of others.

        Raises:
            CasError: the store failed.
        """
        there: dict[str, Intent] = {}
        unknown: list[tuple[str, str]] = []
        for entry in self._store.list(self._below + intents_folder(log.name)):
            name = entry.path.removeprefix(self._below)
            found = self._known.get(name) or parse_intent(name, b"")
            if found is None or not 0 < entry.size <= LARGEST or is_over(found, log):
                continue  # withdrawn, nothing that the log could tell, or what a dead writer has left
            found = found if found.body else found.read(log, sample)
            if found.body:
                there[name] = found
            else:
                unknown.append((found.stem, name))
        first = [name for _, name in sorted(unknown)[:_MOST_READ]]
        there.update({name: found for name, found in self._read(first) if found.body})
        self._known = there
        return tuple(there.values())

    def withdraw(self, intent: Intent) -> None:
        """Let nobody who lists from now on find it. Whoever has listed before may decide it, at that version still.

        Raises:
            CasError: it may be decided still.
        """
        path = self.path(intent)
        # A tombstone, not a deletion: a late copy of the post must find its place taken.
        if isinstance(self._store.put_if_absent(path, b""), Won):
            return
        posted = self._store.read(path)
        if posted.data:
            outcome = self._store.put_if_match(path, b"", posted.version)
            if not isinstance(outcome, Won) and self._store.read(path).data:
                outcome.unwrap()

    def remove(self, *intents: Intent) -> None:
        """What nobody can decide any more; not what was withdrawn in a log that goes on.

        Raises:
            CasError: they may be there still; they harm nobody.
        """
        self._store.delete_all([self.path(intent) for intent in intents])

    def left(self) -> tuple[Intent, ...]:
        """All that are there, of all logs, withdrawn or not; without their bodies.

        Raises:
            CasError: the store failed.
        """
        found = (parse_intent(entry.path.removeprefix(self._below), b"") for entry in self._store.list(self._below))
        return tuple(intent for intent in found if intent is not None)

    def _read(self, names: list[str]) -> Iterable[tuple[str, Intent]]:
        reading = [(name, self._store.in_background(partial(self._body, name))) for name in names]
        for name, answer in reading:
            found = parse_intent(name, answer.result())
            if found is not None:
                yield name, found

    def _body(self, name: str) -> bytes:
        try:
            return self._store.read(self._below + name).data
        except ObjectNotFound:
            return b""


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
