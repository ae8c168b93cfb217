"""Who asks for an object, who waits for the answer, and what is known of it. Pure: no store, no clock, no lock.

1. One look is under way at a time: opaque versions have no order, so of two answers nobody could say which is newer.
2. A caller never gets a look that began before its call: it may have seen what was overwritten before the call. Looks
   are numbered, and whoever calls is served by the next one, or by any later one.
3. A look whose asker was interrupted taught nothing; one of those who wait begins another.
4. What overlaps with a write made here has no known order to it: it is kept to be compared with, and no age is claimed
   for it.

`T` is an object's content; None is an object that is not there.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Generic, TypeVar

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class SharedLook(Generic[T]):
    """A request under way: has the object changed since `known`?

    `asker` gives the one who asks, or None if that one is gone; `after` is how many looks and writes were over when it
    began.
    """

    number: int
    asker: Callable[[], object]
    known: T | None
    after: int
    began_s: float


@dataclass(frozen=True, slots=True)
class LookResult(Generic[T]):
    """What a look came to: the object as it was, or None where there was none."""

    number: int
    content: T | None


@dataclass(frozen=True, slots=True)
class Failed:
    """A look that came to nothing, for all who waited for it."""

    number: int
    error: Exception


@dataclass(frozen=True, slots=True)
class ReadState(Generic[T]):
    """All that is known; each event gives the next one.

    Attributes:
        begun: how many looks have begun, ever.
        over: how many looks and writes have taught something, ever.
        look: the one under way.
        known: the content last seen or written here. To be compared with; not to be served, but for `recent`.
        as_of_s: `known` was current then or later; None where nobody can say.
        written: what `over` was after the last write that was won here.
        waiting: how many callers have not got their answer yet. While there are some, the last answers are kept.
    """

    begun: int = 0
    over: int = 0
    look: SharedLook[T] | None = None
    known: T | None = None
    as_of_s: float | None = None
    written: int = 0
    waiting: int = 0
    seen: LookResult[T] | None = None
    failed: Failed | None = None

    def recent(self, now_s: float, max_age_s: float) -> bool:
        """Whether `known` was current less than so long ago, and nobody here was told anything newer since."""
        return self.as_of_s is not None and now_s - self.as_of_s < max_age_s

    def called(self) -> tuple[ReadState[T], int]:
        """Somebody calls: the number of the look that serves it, or any later one."""
        return replace(self, waiting=self.waiting + 1), self.begun + 1

    def answer(self, number: int) -> LookResult[T] | Failed | None:
        """What the caller of this number gets; None: it has to wait, or to ask."""
        if self.seen is not None and self.seen.number >= number:
            return self.seen
        return self.failed if self.failed is not None and self.failed.number >= number else None

    def must_wait(self, number: int) -> bool:
        """Whether there is no answer for it yet, and a look under way."""
        return self.answer(number) is None and self.look is not None

    def left(self) -> ReadState[T]:
        """A caller has its answer, or waits no more."""
        if self.waiting > 1:
            return replace(self, waiting=self.waiting - 1)
        return replace(self, waiting=0, seen=None, failed=None)

    def began(self, asker: Callable[[], object], now_s: float) -> tuple[ReadState[T], SharedLook[T]]:
        """A look begins."""
        look = SharedLook(self.begun + 1, asker, self.known, self.over, now_s)
        return replace(self, begun=look.number, look=look), look

    def saw(self, look: SharedLook[T], content: T | None) -> ReadState[T]:
        """The look's answer. What was written here meanwhile stays what the next look is compared with."""
        return replace(
            self,
            over=self.over + 1,
            look=None,
            known=self.known if self.written > look.after else content,
            as_of_s=look.began_s if self.over == look.after else None,
            seen=LookResult(look.number, content),
        )

    def failed_with(self, look: SharedLook[T], error: Exception) -> ReadState[T]:
        """There was no answer. What is known stays what it was."""
        return replace(self, look=None, failed=Failed(look.number, error))

    def interrupted(self) -> ReadState[T]:
        """Whoever asked has gone; the others go on without it."""
        return replace(self, look=None)

    def wrote(self, after: int, began_s: float, content: T | None) -> ReadState[T]:
        """A write (a delete: None) made here was won; it began when `after` looks and writes were over."""
        as_of_s = began_s if self.over == after else None
        return replace(self, over=self.over + 1, written=self.over + 1, known=content, as_of_s=as_of_s)

    def wrote_in_vain(self) -> ReadState[T]:
        """A write made here was refused, or nobody knows: what is known is not current any more, or may be not."""
        return replace(self, over=self.over + 1, as_of_s=None)

    def forked(self) -> ReadState[T]:
        """In a child process: whoever asked or waited is in the parent."""
        return replace(self, look=None, waiting=0, seen=None, failed=None)
