"""A state's objects in a store, and one write of it, until its outcome is known.

orders.json                             the current revision (`document.py`)
orders.json.d/history/<lineage>/<n>     the ones before
orders.json.d/lock                      the lock of held edits
"""

from __future__ import annotations

import contextlib

from fsspec_cas import (
    ABSENT,
    Absent,
    Cached,
    CasError,
    Content,
    OutcomeUnknown,
    Store,
    StoreError,
    Unavailable,
    Unknown,
    Won,
    World,
)
from fsspec_cas.outcome import Write
from fsspec_cas.sender import delay_s
from lockprovider.recipes.state.document import Document, decode
from lockprovider.recipes.state.turn import Todo, Turn

TRIM_EVERY = 16  # writes


class StateFile:
    """The path, its history, and what this process knows of it."""

    def __init__(self, store: Store, path: str, timeout_s: float, world: World) -> None:
        self.store = store
        self.path = path
        self.world = world
        self._timeout_s = timeout_s
        self._object = Cached(store, path, timeout=timeout_s, world=world)
        self._decoded: tuple[Content, Document] | None = None

    @property
    def lock_path(self) -> str:
        """Where the lock of held edits is."""
        return f"{self.path}.d/lock"

    def read(self, *, max_age_s: float = 0.0) -> tuple[Document | None, Content | None]:
        """What is there; with `max_age_s`, see `Cached.get`."""
        content = self._object.get(max_age_s=max_age_s)
        return (None if content is None else self._document(content)), content

    def at(self, lineage: str, serial: int) -> Document | None:
        """An earlier revision."""
        path = self._history(lineage, serial)
        content = self.store.read_or_none(path, timeout=self._timeout_s)
        return None if content is None else decode(content.data, path)

    def finish(self, turn: Turn, base: Content | None, deadline_s: float) -> Turn:
        """Take a write to its end.

        Raises:
            StoreError: the store failed, and nothing was written.
            OutcomeUnknown: it failed, or what would tell is gone, after a copy may have been written.
        """
        data = turn.mine.encode()
        failures = 0
        while turn.next is not Todo.DONE:
            if failures:
                self.world.sleep(delay_s(failures, self.world.random()))
            try:
                turn = self._step(turn, base, data)
                failed = turn.next is Todo.REPLACE and turn.doubt  # not yet there, and may come: the same once more
            except StoreError as error:
                if not turn.doubt:
                    raise
                failed = True
                if not isinstance(error, Unavailable):
                    raise self._unknown(turn, base, data, str(error)) from error
            failures += failed
            if failed and self.world.monotonic_s() > deadline_s:
                raise self._unknown(turn, base, data, f"no answer within {self._timeout_s:g} s")
        if turn.verdict == "untold":
            raise self._unknown(turn, base, data, "others wrote since, and what would tell was trimmed or removed")
        return turn

    def settle(self, unknown: Unknown, deadline_s: float) -> Turn:
        """What such a write came to; it may be sent again, under its own condition.

        Raises:
            MalformedObject: it is no write of a state.
            OutcomeUnknown, StoreError: see `finish`.
        """
        mine = decode(unknown.data or b"", unknown.write.path)
        condition = unknown.write.condition
        base = None if isinstance(condition, Absent) else Content(b"", condition)
        return self.finish(Turn.settling(None if base is None else mine, mine), base, deadline_s)

    @staticmethod
    def may_trim(now: Document, keep: int) -> bool:
        """Once in a while."""
        return now.serial > keep and now.serial % TRIM_EVERY == 0

    def trim(self, now: Document, keep: int) -> None:
        """Remove what is older than the newest `keep` before this one; it may be repeated by anybody."""
        folder, first = self._history(now.lineage, 0).rpartition("/")[0], self._history(now.lineage, now.serial - keep)
        with contextlib.suppress(CasError):  # the next one takes it
            self.store.delete_all([one.path for one in self.store.list(f"{folder}/", stop_at=first)])

    def _step(self, turn: Turn, base: Content | None, data: bytes) -> Turn:
        match turn.next:
            case Todo.ARCHIVE:
                assert turn.base is not None and base is not None  # noqa: S101, PT018 - else there is nothing to archive
                path = self._history(turn.base.lineage, turn.base.serial)
                # create_once: it never has other bytes. One that a trim removed may come back, with the same.
                outcome = self.store.put_if_absent(path, base.data, create_once=True, timeout=self._timeout_s)
                if isinstance(outcome, Unknown):
                    raise Unavailable(
                        f"{self.path!r} was not written: its history was not ({outcome.why})", path=self.path
                    )
                return turn.archived()
            case Todo.REPLACE:
                put = self._object
                outcome = put.put_if_absent(data) if base is None else put.put_if_match(data, base.version)
                return turn.sending().won() if isinstance(outcome, Won) else turn.sending().not_won()
            case Todo.LOOK:
                return turn.looked(self.read()[0])
            case Todo.LOOK_BACK:
                return turn.looked_back(self.at(turn.mine.lineage, turn.mine.serial))
            case Todo.DONE:
                return turn

    def _unknown(self, turn: Turn, base: Content | None, data: bytes, why: str) -> OutcomeUnknown:
        condition = ABSENT if base is None else base.version
        return OutcomeUnknown(
            f"it is not known whether serial {turn.mine.serial} of {self.path!r} was written: {why}; "
            "give this error to settle(), or read and decide",
            path=self.path,
            outcome=Unknown(Write(self.path, condition, turn.mine.write), why, data),
        )

    def _document(self, content: Content) -> Document:
        known = self._decoded
        if known is None or known[0] != content:
            known = self._decoded = (content, decode(content.data, self.path))
        return known[1]

    def _history(self, lineage: str, serial: int) -> str:
        return f"{self.path}.d/history/{lineage}/{serial:012d}"
