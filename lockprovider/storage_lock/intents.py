"""The intents of one lock in the store: posted, listed, withdrawn."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial

from fsspec_cas import ObjectNotFound, Store, Unknown, Won
from lockprovider.storage_lock.commit_log import LARGEST, Log
from lockprovider.storage_lock.intent import Intent, folder, is_over, parse

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
        for entry in self._store.list(self._below + folder(log.name)):
            name = entry.path.removeprefix(self._below)
            found = self._known.get(name) or parse(name, b"")
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
        found = (parse(entry.path.removeprefix(self._below), b"") for entry in self._store.list(self._below))
        return tuple(intent for intent in found if intent is not None)

    def _read(self, names: list[str]) -> Iterable[tuple[str, Intent]]:
        reading = [(name, self._store.in_background(partial(self._body, name))) for name in names]
        for name, answer in reading:
            found = parse(name, answer.result())
            if found is not None:
                yield name, found

    def _body(self, name: str) -> bytes:
        try:
            return self._store.read(self._below + name).data
        except ObjectNotFound:
            return b""
