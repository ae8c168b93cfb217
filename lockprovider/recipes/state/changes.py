"""What may be done to a state, and what becomes of it. Pure but for the functions that users give.

Fences. `epoch` is the newest that was ever given as `fence=`; `edit.epoch` that of the newest held edit. An older one
is refused inside the compare-and-set: it is compared with the very document that the write replaces.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, Literal

from fsspec_cas.given import LARGEST_NUMBER
from lockprovider.recipes.errors import Fenced, StateConflict, StateLocked
from lockprovider.recipes.state.document import Document, EditMark


class NotChanged:
    """The type of `UNCHANGED`.

    >>> state = lockprovider.state.open("memory://docs/orders.json", default=dict)
    >>> state.update(lambda old: lockprovider.state.UNCHANGED).serial
    0
    """

    def __repr__(self) -> str:
        return "UNCHANGED"

    def __reduce__(self) -> str:
        return "UNCHANGED"


UNCHANGED: Final = NotChanged()
"""What a function of `update` returns where nothing is to be written."""


@dataclass(frozen=True, slots=True)
class Update:
    """A function of the value as it is stored (None: there is no state) that returns the next one, or UNCHANGED.

    With `serial`, only over that one.
    """

    fn: Callable[[Any], Any]
    fence: int = 0
    reason: str = ""
    serial: int | None = None


@dataclass(frozen=True, slots=True)
class BeginEdit:
    """The holder of the lease of this epoch is about to read. `value` is what an edit of no state begins with."""

    epoch: int
    value: Any
    reason: str = ""


@dataclass(frozen=True, slots=True)
class EndEdit:
    """The holder of the lease of this epoch has read `serial`, and writes this; `goes_on`: and edits on."""

    epoch: int
    serial: int
    value: Any
    reason: str = ""
    goes_on: bool = False


@dataclass(frozen=True, slots=True)
class StopEdits:
    """The lease of this epoch was broken by an operator: edits under it, or an older one, are refused from now on."""

    epoch: int


StateChange = Update | BeginEdit | EndEdit | StopEdits


@dataclass(frozen=True, slots=True)
class Draft:
    """A state while changes are made to it; `serial` is that of the document that it is made of."""

    value: Any
    epoch: int
    edit: EditMark | None
    serial: int
    changed: bool = False
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Changed:
    """What a batch of changes makes of a document: the draft, and an error or None for each change."""

    draft: Draft
    errors: tuple[Exception | None, ...]
    locked: tuple[int, ...] = ()  # the places of those that wait for an edit

    @property
    def changed(self) -> bool:
        """Whether there is anything to write."""
        return self.draft.changed


def apply_all(
    base: Document | None, changes: Sequence[StateChange], stamp: Stamp, over: int = 0, *, exclusive: bool = True
) -> Changed:
    """Each change sees what the one before it has made; one that fails fails alone.

    `over`: edits up to this epoch have ended, whatever their mark says. With `exclusive`, updates during an edit are
    not made: they are in `locked`, with the error that they get if it goes on.
    """
    draft = Draft(None, 0, None, 0) if base is None else Draft(base.value, base.epoch, base.edit, base.serial)
    errors: list[Exception | None] = []
    locked: list[int] = []
    for place, change in enumerate(changes):
        try:
            draft = apply_one(draft, change, stamp, over if exclusive else None)
        except StateLocked as error:
            locked.append(place)
            errors.append(error)
        except Exception as error:  # noqa: BLE001 - of the user's function; it is raised where it was called
            errors.append(error)
        else:
            errors.append(None)
    return Changed(draft, tuple(errors), tuple(locked))


def apply_one(draft: Draft, change: StateChange, stamp: Stamp, over: int | None) -> Draft:
    """The draft with one change made.

    Raises:
        Fenced, StateConflict, StateLocked, and whatever a user's function raises.
    """
    match change:
        case StopEdits(epoch):
            if draft.value is None or (draft.edit is not None and draft.edit.epoch > epoch):
                return draft
            mark = EditMark(epoch + 1, stamp.by, stamp.at_ms, "unlocked", open=False)
            return replace(draft, edit=mark, changed=True, reason="unlocked")
        case Update(fn, fence, reason, serial):
            must_be_newest(draft.epoch, fence)
            if serial is not None and (draft.serial != serial or draft.changed):
                raise StateConflict(f"it is at serial {draft.serial}, not at {serial}: read it again", draft.serial)
            if over is not None and draft.edit is not None and draft.edit.open and draft.edit.epoch > over:
                mark = draft.edit
                raise StateLocked(
                    f"{mark.by} edits it{_why(mark.reason)}: wait, or look with who()", reason=mark.reason
                )
            value = fn(draft.value)
            if value is UNCHANGED and fence <= draft.epoch:
                return draft
            value = draft.value if value is UNCHANGED else value
            return replace(draft, value=value, epoch=max(draft.epoch, fence), changed=True, reason=reason)
        case BeginEdit(epoch, value, reason):
            _must_not_be_passed(draft.edit, epoch)
            mark = EditMark(epoch, stamp.by, stamp.at_ms, reason)
            return replace(
                draft, value=value if draft.value is None else draft.value, edit=mark, changed=True, reason=reason
            )
        case EndEdit(epoch, serial, value, reason, goes_on):
            _must_not_be_passed(draft.edit, epoch)
            if draft.serial != serial or draft.changed or draft.edit is None or draft.edit.epoch != epoch:
                raise StateConflict(
                    f"it was changed during the edit (serial {draft.serial}, read was {serial}): edit again",
                    draft.serial,
                )
            return replace(draft, value=value, edit=replace(draft.edit, open=goes_on), changed=True, reason=reason)


@dataclass(frozen=True, slots=True)
class Stamp:
    """What is new in each write: its identity, whose it is, when (epoch ms), and a lineage if it is the first."""

    write: str
    by: str
    at_ms: int
    lineage: str


def following(base: Document | None, draft: Draft, stamp: Stamp) -> Document:
    """The revision that the draft becomes: one serial on, or the first of a new lineage."""
    return Document(
        lineage=stamp.lineage if base is None else base.lineage,
        serial=1 if base is None else base.serial + 1,
        write=stamp.write,
        by=stamp.by,
        at_ms=stamp.at_ms,
        value=draft.value,
        epoch=draft.epoch,
        reason=draft.reason,
        edit=draft.edit,
        more={} if base is None else base.more,
    )


def must_be_newest(epoch: int, fence: int) -> None:
    """Refuse an older epoch than the newest that was seen; 0 is no fence.

    Raises:
        Fenced: it is older.
    """
    if 0 < fence < epoch:
        raise Fenced(f"epoch {fence} is over: {epoch} has written since; stop what goes on under it", epoch)


def _must_not_be_passed(mark: EditMark | None, epoch: int) -> None:
    if mark is not None and mark.epoch > epoch:
        raise Fenced(f"the edit of epoch {epoch} is over: {mark.by} began one of epoch {mark.epoch}", mark.epoch)


def _why(reason: str) -> str:
    return f" ({reason})" if reason else ""


def epoch_of(fence: Any) -> int:
    """The epoch of a lease, a term, a job, or the number itself; 0 of None.

    Raises:
        TypeError: it has none.
    """
    if fence is None:
        return 0
    epoch = getattr(fence, "epoch", fence)
    if isinstance(epoch, bool) or not isinstance(epoch, int) or not 0 < epoch <= LARGEST_NUMBER:
        raise TypeError(f"fence={fence!r} must be a lease, or its epoch (a whole number above 0)")
    return epoch


# One write of a state, until its outcome is known. Pure: no store, no clock.
#
# 1. What is about to be overwritten is archived first: serial n *is* committed, so any number of clients may put it
#    into the history, and "there already" is success. Archived after the write, a crash between the two would leave a
#    serial nowhere.
# 2. The write is conditional on the version that was read.
# 3. A refusal is never believed without a look: something on the way may have sent the write twice and handed back the
#    second answer. Mine is told by its identity: at the path while it is current, and in the history after that, as
#    whoever overwrote it has archived it first.


Settled = Literal["mine", "never", "untold"]


class Todo(enum.Enum):
    """What is to be asked of the store."""

    ARCHIVE = "put what is there into the history"
    REPLACE = "write mine over it"
    LOOK = "read the path"
    LOOK_BACK = "read the history at my serial"
    DONE = "nothing more"


@dataclass(frozen=True, slots=True)
class Turn:
    """A write of `mine` over `base` (None: nothing is there).

    Attributes:
        doubt: a copy of the write may be on its way, or have landed.
        verdict: once it is DONE. `untold`: what would tell was trimmed or removed.
        seen: what is there now, as the last look showed it.
    """

    base: Document | None
    mine: Document
    next: Todo = Todo.ARCHIVE
    doubt: bool = False
    verdict: Settled | None = None
    seen: Document | None = None

    @classmethod
    def begin(cls, base: Document | None, mine: Document) -> Turn:
        """With nothing to archive, the write comes first."""
        return cls(base, mine, Todo.REPLACE if base is None else Todo.ARCHIVE)

    @classmethod
    def settling(cls, base: Document | None, mine: Document) -> Turn:
        """Of a write that somebody else, or this one before a crash, has sent."""
        return cls(base, mine, Todo.LOOK, doubt=True)

    def archived(self) -> Turn:
        """It is in the history, by whomever."""
        return replace(self, next=Todo.REPLACE)

    def sending(self) -> Turn:
        """From here on a copy may be on its way."""
        return replace(self, doubt=True)

    def won(self) -> Turn:
        """The store took it."""
        return self._done("mine", self.mine)

    def not_won(self) -> Turn:
        """The store refused it, or did not answer."""
        return replace(self, next=Todo.LOOK)

    def looked(self, now: Document | None) -> Turn:
        """This is at the path."""
        if now is None:
            return replace(self, next=Todo.REPLACE) if self.base is None else self._done("untold", None)
        if now.lineage != self.mine.lineage:  # mine would have been the first of its lineage, or that was removed
            return self._done("never" if self.base is None else "untold", now)
        if now.serial > self.mine.serial:
            return replace(self, next=Todo.LOOK_BACK, seen=now)
        if now.serial < self.mine.serial:
            return replace(self, next=Todo.REPLACE)  # the condition still holds: the same bytes again
        return self._done("mine" if now.write == self.mine.write else "never", now)

    def looked_back(self, then: Document | None) -> Turn:
        """This is in the history at my serial."""
        if then is None:
            return self._done("untold", self.seen)
        return self._done("mine" if then.write == self.mine.write else "never", self.seen)

    def _done(self, verdict: Settled, seen: Document | None) -> Turn:
        return replace(self, next=Todo.DONE, verdict=verdict, seen=seen)
