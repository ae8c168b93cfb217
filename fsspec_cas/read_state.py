"""State of shared reads of one object: the read under way, its waiting callers, and the known content. No I/O.

1. One read is under way at a time: versions have no order, so the newer of two answers could not be determined.
2. A caller never gets a read that began before its call, as it may show content overwritten before the call. Reads are
   numbered; the next one, or any later one, serves a caller.
3. A read whose caller was interrupted gives no result; a waiting caller begins another.
4. A read that overlaps with a local write has no known order to it. Its content is kept for comparison, without an age.

`T` is the type of the content; None means that the object does not exist.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Generic, TypeVar

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class SharedLook(Generic[T]):
    """A read under way: has the object changed since `known`?

    `asker` returns the caller that began it, or None once that is gone. `after` counts the reads and writes that were
    over when it began.
    """

    number: int
    asker: Callable[[], object]
    known: T | None
    after: int
    began_s: float


@dataclass(frozen=True, slots=True)
class LookResult(Generic[T]):
    """Result of a read: the object's content, or None if it did not exist."""

    number: int
    content: T | None


@dataclass(frozen=True, slots=True)
class Failed:
    """A failed read; all callers that waited for it get `error`."""

    number: int
    error: Exception


@dataclass(frozen=True, slots=True)
class ReadState(Generic[T]):
    """Immutable state of the reads of one object; each event method returns the next state.

    Attributes:
        begun: number of reads begun, ever.
        over: number of reads answered and writes ended, ever.
        look: the read under way.
        known: content last read or written here. Reads are compared with it; callers get it only if `recent`.
        as_of_s: `known` was current at this time or later; None if unknown.
        written: value of `over` after the last write won here.
        waiting: number of callers without an answer; the last answers are kept while it is not 0.
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
        """Whether `known` was current less than `max_age_s` ago, and no caller here got newer content since."""
        return self.as_of_s is not None and now_s - self.as_of_s < max_age_s

    def called(self) -> tuple[ReadState[T], int]:
        """Add a waiting caller; return the number of the first read that may serve it."""
        return replace(self, waiting=self.waiting + 1), self.begun + 1

    def answer(self, number: int) -> LookResult[T] | Failed | None:
        """Return the answer for a caller with this number; None if it must wait, or begin a read."""
        if self.seen is not None and self.seen.number >= number:
            return self.seen
        return self.failed if self.failed is not None and self.failed.number >= number else None

    def must_wait(self, number: int) -> bool:
        """Whether the caller has no answer yet and a read is under way."""
        return self.answer(number) is None and self.look is not None

    def left(self) -> ReadState[T]:
        """Remove a waiting caller; after the last one the kept answers are dropped."""
        if self.waiting > 1:
            return replace(self, waiting=self.waiting - 1)
        return replace(self, waiting=0, seen=None, failed=None)

    def began(self, asker: Callable[[], object], now_s: float) -> tuple[ReadState[T], SharedLook[T]]:
        """Begin a read."""
        look = SharedLook(self.begun + 1, asker, self.known, self.over, now_s)
        return replace(self, begun=look.number, look=look), look

    def saw(self, look: SharedLook[T], content: T | None) -> ReadState[T]:
        """Record the answer of a read. Later reads are compared with it, unless a write was won here since it began."""
        return replace(
            self,
            over=self.over + 1,
            look=None,
            known=self.known if self.written > look.after else content,
            as_of_s=look.began_s if self.over == look.after else None,
            seen=LookResult(look.number, content),
        )

    def failed_with(self, look: SharedLook[T], error: Exception) -> ReadState[T]:
        """Record a failed read; the known content stays."""
        return replace(self, look=None, failed=Failed(look.number, error))

    def interrupted(self) -> ReadState[T]:
        """Drop the read whose caller has gone; the waiting callers stay."""
        return replace(self, look=None)

    def wrote(self, after: int, began_s: float, content: T | None) -> ReadState[T]:
        """Record a won write (a delete: None) that began when `after` reads and writes were over."""
        as_of_s = began_s if self.over == after else None
        return replace(self, over=self.over + 1, written=self.over + 1, known=content, as_of_s=as_of_s)

    def wrote_in_vain(self) -> ReadState[T]:
        """Record a lost or unknown write: the known content may no longer be current."""
        return replace(self, over=self.over + 1, as_of_s=None)

    def forked(self) -> ReadState[T]:
        """Drop the read and the callers of the parent process, in a forked child."""
        return replace(self, look=None, waiting=0, seen=None, failed=None)
