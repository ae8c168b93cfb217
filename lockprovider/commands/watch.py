"""`lockprovider watch URL`: what happens to a lock, as it happens."""

from __future__ import annotations

from typing import Any

from fsspec_cas import Content, Machine, Store, Unavailable, World
from fsspec_cas.command import DONE, complain
from lockprovider.commands.place import Commands, add_command, add_request_timeout, place, say
from lockprovider.storage_lock.provider import LockPlace
from lockprovider.storage_lock.record import LockRecord
from lockprovider.storage_lock.status import Change, changes_between, describe, record_fields, state_at
from lockprovider.words import moment

_MORE = """It looks every --every seconds; while nothing changes, no body is moved (304). What came and went between two
looks is not seen. It ends by Ctrl-C, or after --for seconds."""


def add(commands: Commands) -> None:
    """Register it."""
    parser = add_command(commands, "watch", _watch, "Print what happens to the lock, as it happens.", more=_MORE)
    parser.add_argument("--every", type=float, default=1.0, metavar="S", help="seconds between looks (default: 1)")
    parser.add_argument("--for", dest="for_s", type=float, metavar="S", help="end after so many seconds")
    add_request_timeout(parser)


def _watch(arguments: Any) -> int:
    at, world = place(arguments), Machine()
    watcher = _Watcher(at.store, at.path, world, arguments.timeout)
    end_s = None if arguments.for_s is None else world.monotonic_s() + arguments.for_s
    reached = True
    while True:
        try:
            found = watcher.look()
            reached = True
        except Unavailable as error:
            found = []
            if reached:
                complain("lockprovider", f"{error}; looking again")
            reached = False
        for change in found:
            _tell(arguments, at, change, world.now_ms())
        if end_s is not None and world.monotonic_s() + arguments.every > end_s:
            return DONE
        world.sleep(arguments.every)


def _tell(arguments: Any, at: LockPlace, change: Change, now_ms: int) -> None:
    said = {"at_ms": now_ms, "url": at.url, "path": at.path, "what": change.what, **record_fields(change.record)}
    say(arguments, said, f"{moment(now_ms)}  {describe(change)}")


class _Watcher:
    """Remembers the last look, and what it has said of it."""

    def __init__(self, store: Store, path: str, world: World, timeout_s: float) -> None:
        self._store, self._path, self._world, self._timeout_s = store, path, world, timeout_s
        self._seen: Content | None = None
        self._record: LockRecord | None = None
        self._first = True
        self._lapse_told = False

    def look(self) -> list[Change]:
        """What happened since the last look; at first, what is there."""
        content = self._store.read_or_none(self._path, self._seen, timeout=self._timeout_s)
        after = None if content is None else LockRecord.decode(content.data, self._path)
        found = self._at_first(after) if self._first else changes_between(self._record, after)
        if found:
            self._lapse_told = False
        self._seen, self._record, self._first = content, after, False
        return found + self._lapse(after)

    def _at_first(self, record: LockRecord | None) -> list[Change]:
        state = state_at(record, self._world.now_ms())
        if state == "lapsed":
            return []  # told below
        return [Change(state, record)]

    def _lapse(self, record: LockRecord | None) -> list[Change]:
        if self._lapse_told or state_at(record, self._world.now_ms()) != "lapsed":
            return []
        self._lapse_told = True
        return [Change("lapsed", record)]
