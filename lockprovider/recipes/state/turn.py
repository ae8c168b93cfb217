"""One write of a state, until its outcome is known. Pure: no store, no clock.

1. What is about to be overwritten is archived first: serial n *is* committed, so any number of clients may put it into
   the history, and "there already" is success. Archived after the write, a crash between the two would leave a serial
   nowhere.
2. The write is conditional on the version that was read.
3. A refusal is never believed without a look: something on the way may have sent the write twice and handed back the
   second answer. Mine is told by its identity: at the path while it is current, and in the history after that, as
   whoever overwrote it has archived it first.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass, replace
from typing import Literal

from lockprovider.recipes.state.document import Document

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
