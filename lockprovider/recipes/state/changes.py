"""Changes of a state, and how its writes end. Pure, except for users' functions."""

from __future__ import annotations

import enum
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, Literal

from lockprovider.recipes.errors import Fenced, StateConflict, StateLocked
from lockprovider.recipes.state.document import Document, EditMark


class NotChanged:
    """Type of `UNCHANGED`.

    >>> state = lockprovider.state.open("memory://docs/orders.json", default=dict)
    >>> state.update(lambda old: lockprovider.state.UNCHANGED).serial
    0
    """

    def __repr__(self) -> str:
        return "UNCHANGED"

    def __reduce__(self) -> str:
        return "UNCHANGED"


UNCHANGED: Final = NotChanged()
"""Result of an `update` function that writes nothing."""


@dataclass(frozen=True, slots=True)
class Update:
    """Replace the value by `fn`'s result, unless UNCHANGED; only at `serial`, if any."""

    fn: Callable[[Any], Any]
    fence: int = 0
    reason: str = ""
    serial: int | None = None


@dataclass(frozen=True, slots=True)
class BeginEdit:
    epoch: int
    value: Any
    reason: str = ""


@dataclass(frozen=True, slots=True)
class EndEdit:
    """Write an edit's value; the edit stays open if it `goes_on`."""

    epoch: int
    serial: int
    value: Any
    reason: str = ""
    goes_on: bool = False


@dataclass(frozen=True, slots=True)
class StopEdits:
    epoch: int


StateChange = Update | BeginEdit | EndEdit | StopEdits


@dataclass(frozen=True, slots=True)
class Stamp:
    """Write's new fields; `lineage`: for a first write."""

    write: str
    by: str
    at_ms: int
    lineage: str


@dataclass(frozen=True, slots=True)
class Changed:
    """Batch's changed base, and each change's error."""

    draft: Document
    is_changed: bool
    errors: tuple[Exception | None, ...]
    locked: tuple[int, ...] = ()  # indexes of changes


def apply_all(
    base: Document | None, changes: Sequence[StateChange], stamp: Stamp, over: int = 0, *, exclusive: bool = True
) -> Changed:
    """Apply changes in order to `base` (None: no state); return the draft, and each change's error.

    The draft keeps the serial of `base`. A failed change changes nothing; errors of users' functions, too, are
    returned. With `exclusive`, an open edit of an epoch above `over` refuses updates.
    """
    start = Document(stamp.lineage, 0, "", "", 0, None) if base is None else base
    draft = start
    errors: list[Exception | None] = []
    locked: list[int] = []
    for index, change in enumerate(changes):
        try:
            draft = _apply(start, draft, change, stamp, over if exclusive else None)
        except StateLocked as error:
            locked.append(index)
            errors.append(error)
        except Exception as error:  # noqa: BLE001 - the caller of the user's function raises it
            errors.append(error)
        else:
            errors.append(None)
    return Changed(draft, draft is not start, tuple(errors), tuple(locked))


def _apply(start: Document, draft: Document, change: StateChange, stamp: Stamp, over: int | None) -> Document:
    """Return the draft after a change; `draft` itself for UNCHANGED without a newer fence, or a needless StopEdits.

    Calls users' functions, whose errors pass. Raises Fenced after a newer epoch, StateLocked during an edit above
    `over` (None: never). A change with a `serial` raises StateConflict unless `start` has it and is unchanged.
    """
    reached = draft.serial + (draft is not start)  # by the batch's earlier changes
    match change:
        case StopEdits(epoch):
            if draft.value is None or (draft.edit is not None and draft.edit.epoch > epoch):
                return draft
            mark = EditMark(epoch + 1, stamp.by, stamp.at_ms, "unlocked", open=False)
            return replace(draft, edit=mark, reason="unlocked")
        case Update(fn, fence, reason, serial):
            must_be_newest(draft.epoch, fence)
            if serial is not None and (draft.serial != serial or draft is not start):
                raise StateConflict(f"the state is at serial {reached}, not {serial}: read it again", reached)
            if over is not None and draft.edit is not None and draft.editing > over:
                mark = draft.edit
                why = f" ({mark.reason})" if mark.reason else ""
                raise StateLocked(
                    f"{mark.by} is editing the state{why}: wait, or see who() (`lockprovider state who URL`)",
                    reason=mark.reason,
                )
            value = fn(draft.value)
            if value is UNCHANGED and fence <= draft.epoch:
                return draft
            value = draft.value if value is UNCHANGED else value
            return replace(draft, value=value, epoch=max(draft.epoch, fence), reason=reason)
        case BeginEdit(epoch, value, reason):
            _must_not_be_passed(draft.edit, epoch)
            mark = EditMark(epoch, stamp.by, stamp.at_ms, reason)
            return replace(draft, value=value if draft.value is None else draft.value, edit=mark, reason=reason)
        case EndEdit(epoch, serial, value, reason, goes_on):
            _must_not_be_passed(draft.edit, epoch)
            if draft.serial != serial or draft is not start or draft.edit is None or draft.edit.epoch != epoch:
                raise StateConflict(
                    f"the state was changed during the edit (from serial {serial} to {reached}): edit again", reached
                )
            return replace(draft, value=value, edit=replace(draft.edit, open=goes_on), reason=reason)


def following(draft: Document, stamp: Stamp) -> Document:
    return replace(draft, serial=draft.serial + 1, write=stamp.write, by=stamp.by, at_ms=stamp.at_ms)


def must_be_newest(epoch: int, fence: int) -> None:
    if 0 < fence < epoch:
        raise Fenced(
            f"epoch {fence} is over, because epoch {epoch} has written since: stop the work under the old epoch", epoch
        )


def _must_not_be_passed(mark: EditMark | None, epoch: int) -> None:
    if mark is not None and mark.epoch > epoch:
        raise Fenced(f"the edit of epoch {epoch} is over: {mark.by} began one of epoch {mark.epoch}", mark.epoch)


Settled = Literal["mine", "never", "untold"]


class WriteStep(enum.Enum):
    ARCHIVE = "put what is there into the history"
    REPLACE = "write mine over it"
    LOOK = "read the path"
    LOOK_BACK = "read the history at my serial"
    DONE = "nothing more"


@dataclass(frozen=True, slots=True)
class StateWrite:
    """Write of `document` over `base` (None: no state), and its next step.

    1. The current revision is archived before it is overwritten: archived later, a crash could lose a serial.
    2. The write is conditional on the version read.
    3. After a refusal, the write's id is searched at the path, or in the history, where a later writer archived it.

    With `doubt` a copy may be on its way, or written. The verdict is `mine` (written), `never`, or `untold`: the
    deciding revision was trimmed or removed.
    """

    base: Document | None
    document: Document
    next: WriteStep = WriteStep.ARCHIVE
    doubt: bool = False
    verdict: Settled | None = None
    current: Document | None = None

    @classmethod
    def begin(cls, base: Document | None, document: Document) -> StateWrite:
        return cls(base, document, WriteStep.REPLACE if base is None else WriteStep.ARCHIVE)

    def archived(self) -> StateWrite:
        return replace(self, next=WriteStep.REPLACE)

    def sending(self) -> StateWrite:
        return replace(self, doubt=True)

    def won(self) -> StateWrite:
        return self._done("mine", self.document)

    def not_won(self) -> StateWrite:
        return replace(self, next=WriteStep.LOOK)

    def looked(self, now: Document | None) -> StateWrite:
        """Return the write, with its verdict or next step, after a read of the path (None: no object).

        At its serial, the write's id decides. An older one, or still no object: write again. A newer one: read the
        history. Another lineage, or a removed object: `untold`, or `never` for a first write.
        """
        if now is None:
            return replace(self, next=WriteStep.REPLACE) if self.base is None else self._done("untold", None)
        if now.lineage != self.document.lineage:  # this write began none, or the state was removed
            return self._done("never" if self.base is None else "untold", now)
        if now.serial > self.document.serial:
            return replace(self, next=WriteStep.LOOK_BACK, current=now)
        if now.serial < self.document.serial:
            return replace(self, next=WriteStep.REPLACE)  # the condition still holds
        return self._done("mine" if now.write == self.document.write else "never", now)

    def looked_back(self, then: Document | None) -> StateWrite:
        if then is None:
            return self._done("untold", self.current)
        return self._done("mine" if then.write == self.document.write else "never", self.current)

    def _done(self, verdict: Settled, current: Document | None) -> StateWrite:
        return replace(self, next=WriteStep.DONE, verdict=verdict, current=current)
