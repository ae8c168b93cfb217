"""Reads and writes of a state, its history and lock of edits, for all callers of a process."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence

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
from lockprovider.errors import NotAcquired
from lockprovider.recipes.base import StoreCheck, process_name
from lockprovider.recipes.errors import CoordinationError, StateLocked
from lockprovider.recipes.state.changes import Changed, Stamp, StateChange, StateWrite, WriteStep, apply_all, following
from lockprovider.recipes.state.document import Document, decode
from lockprovider.settings import LockSettings
from lockprovider.storage_lock.lock import Lock

# orders.json                             the current revision
# orders.json.d/history/<lineage>/<n>     earlier revisions
# orders.json.d/lock                      the lock of held edits


TRIM_EVERY = 16  # writes between two trims
_EVER = float("inf")


class StateWriter:
    def __init__(
        self,
        store: Store,
        path: str,
        world: World,
        *,
        exclusive: bool,
        keep: int,
        timeout_s: float,
        lock_settings: LockSettings | None,
    ) -> None:
        self.store = store
        self.path = path
        self.lock_path = f"{path}.d/lock"
        self.world = world
        self.lock_settings = lock_settings
        self._exclusive = exclusive
        self._keep = keep
        self._timeout_s = timeout_s
        self._store_check = StoreCheck(store, path)
        self._object = Cached(store, path, timeout=timeout_s, world=world)
        self._decoded: tuple[Content, Document] | None = None

    def read(self, *, max_age_s: float = 0.0) -> tuple[Document | None, Content | None]:
        content = self._object.get(max_age_s=max_age_s)
        return (None if content is None else self._document(content)), content

    def at(self, lineage: str, serial: int) -> Document | None:
        path = self._history(lineage, serial)
        content = self.store.read_or_none(path, timeout=self._timeout_s)
        return None if content is None else decode(content.data, path)

    def finish(self, turn: StateWrite, base: Content | None, deadline_s: float) -> StateWrite:
        """Send a write's requests until its verdict is `mine` or `never`; `base`: the content that it replaces, if any.

        Raises OutcomeUnknown at `deadline_s`, if reads cannot tell, or after an error other than Unavailable. Errors
        before the first sending stay as they are.
        """
        data = turn.document.encode()
        failures = 0
        while turn.next is not WriteStep.DONE:
            if failures:
                self.world.sleep(delay_s(failures, self.world.random()))
            try:
                turn = self._step(turn, base, data)
                failed = turn.next is WriteStep.REPLACE and turn.doubt  # may still be written
            except (StoreError, CoordinationError) as error:
                if not turn.doubt:
                    raise
                failed = True
                if not isinstance(error, Unavailable):
                    raise self._unknown(turn, base, data, str(error)) from error
            failures += failed
            if failed and self.world.monotonic_s() > deadline_s:
                raise self._unknown(turn, base, data, f"no answer within {self._timeout_s:g} s")
        if turn.verdict == "untold":
            raise self._unknown(
                turn, base, data, "other clients wrote since, and the history that would show it was trimmed or removed"
            )
        return turn

    def settle(self, unknown: Unknown) -> StateWrite:
        document = decode(unknown.data or b"", unknown.write.path)
        condition = unknown.write.condition
        base = None if isinstance(condition, Absent) else Content(b"", condition)
        write = StateWrite(None if base is None else document, document, WriteStep.LOOK, doubt=True)
        return self.finish(write, base, self.world.monotonic_s() + self._timeout_s)

    def _trim(self, current: Document) -> None:
        first = self._history(current.lineage, current.serial - self._keep)
        with contextlib.suppress(CasError):
            earlier = self.store.list(f"{first.rpartition('/')[0]}/", stop_at=first)
            self.store.delete_all([entry.path for entry in earlier])

    def _step(self, turn: StateWrite, base: Content | None, data: bytes) -> StateWrite:
        """Send the write's next request (archive `base`, replace it by `data`, or read); return the write after it.

        Raises Unavailable if the archive's outcome is unknown.
        """
        match turn.next:
            case WriteStep.ARCHIVE:
                assert turn.base is not None and base is not None  # noqa: S101, PT018 - only a base is archived
                path = self._history(turn.base.lineage, turn.base.serial)
                # create_once: this path only ever has these bytes
                outcome = self.store.put_if_absent(path, base.data, create_once=True, timeout=self._timeout_s)
                if isinstance(outcome, Unknown):
                    raise Unavailable(
                        f"{self.path!r} was not written, because its history could not be written ({outcome.why})",
                        path=self.path,
                    )
                return turn.archived()
            case WriteStep.REPLACE:
                put = self._object
                outcome = put.put_if_absent(data) if base is None else put.put_if_match(data, base.version)
                return turn.sending().won() if isinstance(outcome, Won) else turn.sending().not_won()
            case WriteStep.LOOK:
                return turn.looked(self.read()[0])
            case WriteStep.LOOK_BACK:
                return turn.looked_back(self.at(turn.document.lineage, turn.document.serial))
            case WriteStep.DONE:
                return turn

    def _unknown(self, turn: StateWrite, base: Content | None, data: bytes, why: str) -> OutcomeUnknown:
        """Make the error of a write that may be done, with what `settle` needs."""
        condition = ABSENT if base is None else base.version
        return OutcomeUnknown(
            f"serial {turn.document.serial} of {self.path!r} may have been written: {why}; "
            "give this error to settle(), or read and decide",
            path=self.path,
            outcome=Unknown(Write(self.path, condition, turn.document.write), why, data),
        )

    def _document(self, content: Content) -> Document:
        cached = self._decoded
        if cached is None or cached[0] != content:
            cached = self._decoded = (content, decode(content.data, self.path))
        return cached[1]

    def _history(self, lineage: str, serial: int) -> str:
        return f"{self.path}.d/history/{lineage}/{serial:012d}"

    def commit(self, changes: Sequence[StateChange]) -> list[Document | Exception | None]:
        """Write changes together, again after lost races; return each's error or the last document, if any.

        Tests the store once, before its first write. Raises as `finish` and `require_safe_for_locks`, or Unavailable:
        others won until the timeout. If an open edit locks a change, acquires and releases the lock of edits, to see if
        the editor lives. May trim the history.
        """
        failures, world = 0, self.world
        deadline_s = world.monotonic_s() + self._timeout_s
        max_age_s, over = _EVER, 0  # the write is conditional on the cached version
        holder: NotAcquired | None = None
        while True:
            base, content = self.read(max_age_s=max_age_s)
            stamp = Stamp(world.new_id(), process_name(), world.now_ms(), world.new_id())
            applied = apply_all(base, changes, stamp, over, exclusive=self._exclusive)
            if applied.locked and max_age_s:
                max_age_s = 0.0
            elif base is not None and applied.locked and holder is None and (holder := self._editor()) is None:
                over = base.editing
            elif applied.is_changed:
                turn = self._write(base, content, following(applied.draft, stamp), deadline_s)
                if turn.verdict == "mine":
                    return _answers(turn.document, applied, holder)
                max_age_s, failures = 0.0, failures + 1
                if world.monotonic_s() > deadline_s:
                    message = f"{self.path!r} was changed by other writers during each of {failures} tries"
                    raise Unavailable(message, path=self.path)
                if failures > 1:
                    world.sleep(delay_s(failures - 1, world.random()))
            elif max_age_s:
                max_age_s = 0.0
            else:
                return _answers(base, applied, holder)

    def new_lock(self) -> Lock:
        return Lock(self.store, self.lock_path, self.lock_settings, world=self.world)

    def _write(
        self, base: Document | None, content: Content | None, document: Document, deadline_s: float
    ) -> StateWrite:
        self._store_check.require()
        turn = self.finish(StateWrite.begin(base, document), content, deadline_s)
        if turn.verdict == "mine" and document.serial > self._keep and document.serial % TRIM_EVERY == 0:
            self.store.in_background(lambda: self._trim(document))
        return turn

    def _editor(self) -> NotAcquired | None:
        """Acquire and release the lock of edits; return any refusal."""
        try:
            self.new_lock().acquire(0.0).release()
        except NotAcquired as refusal:
            return refusal
        return None


def _answers(
    document: Document | None, applied: Changed, holder: NotAcquired | None
) -> list[Document | Exception | None]:
    answers = [document if error is None else error for error in applied.errors]
    for index in applied.locked if holder is not None else ():
        error = answers[index]
        if isinstance(error, StateLocked) and holder is not None:
            answers[index] = StateLocked(str(error), holder.owner, holder.valid_until_ms, error.reason)
    return answers
