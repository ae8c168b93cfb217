"""The one who writes a state for all callers of this process: changes in, the revision or an error for each out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from fsspec_cas import Content, Unavailable, require_safe_for_locks
from fsspec_cas.sender import delay_s
from lockprovider.errors import NotAcquired
from lockprovider.recipes.errors import StateLocked
from lockprovider.recipes.place import me
from lockprovider.recipes.state.changes import Changed, Stamp, StateChange, apply_all, following
from lockprovider.recipes.state.document import Document
from lockprovider.recipes.state.file import StateFile
from lockprovider.recipes.state.turn import Turn
from lockprovider.settings import LockSettings
from lockprovider.storage_lock.lock import Lock

_EVER = float("inf")


@dataclass(slots=True)
class StateWriter:
    """Writes batches of changes, one at a time.

    Attributes:
        exclusive: no update while somebody edits.
        keep: how many revisions before the current one.
        timeout_s: for a batch with all its tries.
    """

    file: StateFile
    exclusive: bool
    keep: int
    timeout_s: float
    lock_settings: LockSettings | None = None
    _store_is_safe: bool = False

    def commit(self, changes: Sequence[StateChange]) -> list[Document | Exception | None]:
        """What becomes of each change: the document that it is in (None: there is none), or its error.

        Raises:
            OutcomeUnknown, StoreError, MalformedObject: for all of them.
        """
        world, failures = self.file.world, 0
        deadline_s = world.monotonic_s() + self.timeout_s
        max_age_s, over = _EVER, 0  # what this process knows will do: the write is conditional on it
        holder: NotAcquired | None = None
        while True:
            base, content = self.file.read(max_age_s=max_age_s)
            stamp = Stamp(world.new_id(), me(), world.now_ms(), world.new_id())
            done = apply_all(base, changes, stamp, over, exclusive=self.exclusive)
            if done.locked and max_age_s:
                max_age_s = 0.0
            elif base is not None and done.locked and holder is None and (holder := self._editor()) is None:
                over = base.editing
            elif done.changed:
                turn = self._write(base, content, following(base, done.draft, stamp), deadline_s)
                if turn.verdict == "mine":
                    return _answers(turn.mine, done, holder)
                max_age_s, failures = 0.0, failures + 1
                if world.monotonic_s() > deadline_s:
                    path = self.file.path
                    raise Unavailable(f"{path!r} was changed by others at each of {failures} tries", path=path)
                if failures > 1:
                    world.sleep(delay_s(failures - 1, world.random()))
            elif max_age_s:
                max_age_s = 0.0  # nothing is to be written, as far as is known: that has to be what is so
            else:
                return _answers(base, done, holder)

    def new_lock(self) -> Lock:
        """A client of the lock of edits."""
        return Lock(self.file.store, self.file.lock_path, self.lock_settings, world=self.file.world)

    def _write(self, base: Document | None, content: Content | None, mine: Document, deadline_s: float) -> Turn:
        if not self._store_is_safe:
            folder = self.file.path.rpartition("/")[0]
            require_safe_for_locks(self.file.store.below(folder) if folder else self.file.store)
            self._store_is_safe = True
        turn = self.file.finish(Turn.begin(base, mine), content, deadline_s)
        if turn.verdict == "mine" and self.file.may_trim(mine, self.keep):
            self.file.store.in_background(lambda: self.file.trim(mine, self.keep))
        return turn

    def _editor(self) -> NotAcquired | None:
        """Who holds the lock of edits; None: nobody, so whoever has put its mark there has died or was stopped."""
        try:
            self.new_lock().acquire(0.0).release()
        except NotAcquired as refusal:
            return refusal
        return None


def _answers(document: Document | None, done: Changed, holder: NotAcquired | None) -> list[Document | Exception | None]:
    answers = [document if error is None else error for error in done.errors]
    for place in done.locked if holder is not None else ():
        error = answers[place]
        if isinstance(error, StateLocked) and holder is not None:
            answers[place] = StateLocked(str(error), holder.owner, holder.valid_until_ms, error.reason)
    return answers
