"""Requests of one group commit client, and `Intents`, objects that ask other clients to decide them."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, replace
from functools import partial

from fsspec_cas import Store, Unknown, Won, World
from fsspec_cas.machine import Signal
from lockprovider.storage_lock import commit_rules
from lockprovider.storage_lock.commit_rules import Decided, Decider, Hold, Intent, Void
from lockprovider.storage_lock.record import LARGEST_ENTRY, Log

FOLDER = "intents"
_MOST_READ = 16  # bodies of a listing: no write decides more


class Intents:
    """Stored intents of a lock; bodies are cached."""

    def __init__(self, store: Store, lock_folder: str) -> None:
        self._store = store
        self._below = f"{lock_folder}/{FOLDER}/" if lock_folder else f"{FOLDER}/"
        self._known: dict[str, Intent] = {}

    def path(self, intent: Intent) -> str:
        return self._below + intent.name

    def named(self, intent: Intent, log: Log, sample: bytes) -> Intent:
        return intent.with_packed_body(log, sample) if self._store.is_remote else intent

    def post(self, intent: Intent) -> bool:
        """Post the intent; after False, or `CasError`, it may be posted or not."""
        return not isinstance(self._store.put_if_absent(self.path(intent), intent.body, create_once=True), Unknown)

    def listed(self, log: Log, sample: bytes = b"") -> tuple[Intent, ...]:
        """List this log's undecided intents, with bodies from the cache, the name or the store.

        Reads at most 16, and leaves out those without a body. `sample`: dictionary of names. Replaces the cache.
        """
        listed: dict[str, Intent] = {}
        unknown: list[tuple[str, str]] = []
        for entry in self._store.list(self._below + commit_rules.intents_folder(log.name)):
            name = entry.path.removeprefix(self._below)
            intent = self._known.get(name) or commit_rules.parse_intent(name, b"")
            if intent is None or not 0 < entry.size <= LARGEST_ENTRY or commit_rules.is_over(intent, log):
                continue
            intent = intent if intent.body else intent.read(log, sample)
            if intent.body:
                listed[name] = intent
            else:
                unknown.append((intent.stem, name))
        first = [name for _, name in sorted(unknown)[:_MOST_READ]]
        listed.update({name: intent for name, intent in self._read(first) if intent.body})
        self._known = listed
        return tuple(listed.values())

    def withdraw(self, intent: Intent) -> None:
        """Write the intent's object empty, so that later listings leave it out.

        A client that listed it before may still decide it. Raises `CasError` if bytes may remain.
        """
        path = self.path(intent)
        # Not deleted: a late copy of the post must not recreate it.
        if isinstance(self._store.put_if_absent(path, b""), Won):
            return
        posted = self._store.read(path)
        if posted.data:
            outcome = self._store.put_if_match(path, b"", posted.version)
            if not isinstance(outcome, Won) and self._store.read(path).data:
                outcome.unwrap()

    def remove(self, *intents: Intent) -> None:
        """Delete the intents' objects; give only undecidable ones, and none withdrawn in a log that goes on."""
        self._store.delete_all([self.path(intent) for intent in intents])

    def left(self) -> tuple[Intent, ...]:
        parsed = (
            commit_rules.parse_intent(entry.path.removeprefix(self._below), b"")
            for entry in self._store.list(self._below)
        )
        return tuple(intent for intent in parsed if intent is not None)

    def _read(self, names: list[str]) -> Iterable[tuple[str, Intent]]:
        reading = [(name, self._store.in_background(partial(self._body, name))) for name in names]
        for name, answer in reading:
            intent = commit_rules.parse_intent(name, answer.result())
            if intent is not None:
                yield name, intent

    def _body(self, name: str) -> bytes:
        content = self._store.read_or_none(self._below + name)
        return b"" if content is None else content.data


SMOOTHING = 4  # a running mean takes 1/4 of the last value
_EARLY = 0.85

CommitAnswer = Decided | Void | Hold


@dataclass(eq=False)
class CommitRequest:
    """One caller's request; `done` is set with its outcome."""

    intent: Intent
    decider: Decider
    began_s: float
    deadline_s: float
    done: Signal
    posted_s: float | None = None
    is_stored: bool = False
    outcome: CommitAnswer | BaseException | None = None

    @property
    def posted(self) -> bool:
        return self.posted_s is not None


class CommitRequests:
    """Waiting requests of this client. Not thread-safe."""

    def __init__(self, store: Store, intents: Intents, world: World) -> None:
        self.intents = intents
        self._store = store
        self._world = world
        self._all: list[CommitRequest] = []
        self.post_s = 0.0
        self._wait_s = 0.0

    def __iter__(self) -> Iterator[CommitRequest]:
        return iter([*self._all])

    def __bool__(self) -> bool:
        return bool(self._all)

    def add(self, request: CommitRequest) -> None:
        self._all.append(request)

    def end(self, request: CommitRequest, outcome: CommitAnswer | BaseException) -> None:
        self._all.remove(request)
        request.outcome = outcome
        request.done.set()

    def late(self) -> list[CommitRequest]:
        now_s = self._world.monotonic_s()
        return [request for request in self._all if now_s >= request.deadline_s]

    def undecided(self, log: Log | None) -> list[CommitRequest]:
        verdicts = ((request, commit_rules.verdict(log, request.intent, request.decider)) for request in self._all)
        return [request for request, outcome in verdicts if isinstance(outcome, commit_rules.Undecided)]

    def post(self, requests: Collection[CommitRequest], log: Log) -> bool:
        """Write each request's intent that is not stored yet; True if all are stored.

        After False or `CasError` some may be, so repeat it.
        """
        for request in requests:
            if not request.is_stored:
                began_s = self._world.monotonic_s()
                if request.posted_s is None:
                    request.intent = self.intents.named(request.intent, log, request.decider.sample)
                    request.posted_s = began_s
                request.is_stored = self.intents.post(request.intent)
                self.post_s = _smoothed(self.post_s, self._world.monotonic_s() - began_s)
        return all(request.is_stored for request in requests)

    def first_poll_s(self) -> float:
        now_s = self._world.monotonic_s()
        posted_s = min((request.posted_s for request in self._all if request.posted_s is not None), default=now_s)
        return posted_s + _EARLY * self._wait_s - now_s

    def end_judged(self, log: Log | None, all_pending: Collection[str]) -> None:
        """End requests that are refused, void, or decided with a path outside `all_pending`, which holds paths.

        Others go on. Deletes refused and void intents in the background.
        """
        for request in self:
            match commit_rules.verdict(log, request.intent, request.decider):
                case Decided(path) if path in all_pending:
                    continue
                case commit_rules.Refused():
                    error = _refused_by(request, log, all_pending)
                    if error is not None:
                        self._forget(request)
                        self.end(request, error)
                case Decided() as outcome:
                    if request.posted_s is not None:
                        self._wait_s = _smoothed(self._wait_s, self._world.monotonic_s() - request.posted_s)
                    self.end(
                        request, replace(outcome, posted=self.intents.path(request.intent) if request.posted else "")
                    )
                case Void() as outcome:
                    self._forget(request)
                    self.end(request, outcome)

    def _forget(self, request: CommitRequest) -> None:
        if request.posted:
            self._store.in_background(partial(self.intents.remove, request.intent))


def _smoothed(mean: float, last: float) -> float:
    return mean + (last - mean) / (SMOOTHING if mean else 1)


def _refused_by(request: CommitRequest, log: Log | None, all_pending: Collection[str]) -> Exception | None:
    """Return the decider's refusal by the log's applied entries alone, as pending ones may never appear.

    None: the request may yet be decided.
    """
    since = () if log is None else log.since(request.intent.position) or ()
    try:
        request.decider.refuse(request.intent, [entry for entry in since if entry.path not in all_pending])
    except commit_rules.JudgeAnew:
        return None
    except Exception as error:  # noqa: BLE001 - its writer gets it
        return error
    return None
