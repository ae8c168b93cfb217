"""State of shared reads of one object, without I/O; None as content means no object."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Generic, TypeVar

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class SharedRead(Generic[T]):
    """A read under way that asks whether the object has changed since `known`.

    `caller` returns the caller that began it, or None once gone; `after` counts the reads and writes over by then.
    """

    number: int
    caller: Callable[[], object]
    known: T | None
    after: int
    began_s: float


@dataclass(frozen=True, slots=True)
class ReadResult(Generic[T]):
    """Result of a read: the object's content, or None."""

    number: int
    content: T | None


@dataclass(frozen=True, slots=True)
class Failed:
    """A failed read, whose waiting callers all get `error`."""

    number: int
    error: Exception


@dataclass(frozen=True, slots=True)
class ReadState(Generic[T]):
    """Immutable state of one object's reads; each event method returns the next state.

    One read is under way at a time, as versions have no order. A caller never gets a read that began before its call,
    which may show overwritten content. A read that overlaps with a local write has no known order to it, so its content
    gets no age.

    Attributes:
        reads_begun: number of reads begun, ever.
        events_ended: number of reads answered and writes ended, ever.
        known: content last read or written here; callers get it only if `is_recent`.
        as_of_s: `known` was current at this time or later; None if unknown.
        written: value of `events_ended` after the last write won here.
        waiting: callers without an answer; the last answers are kept until it is 0.
    """

    reads_begun: int = 0
    events_ended: int = 0
    read: SharedRead[T] | None = None
    known: T | None = None
    as_of_s: float | None = None
    written: int = 0
    waiting: int = 0
    last_result: ReadResult[T] | None = None
    failed: Failed | None = None

    def is_recent(self, now_s: float, max_age_s: float) -> bool:
        """Return whether `known` was current less than `max_age_s` ago."""
        return self.as_of_s is not None and now_s - self.as_of_s < max_age_s

    def with_caller(self) -> tuple[ReadState[T], int]:
        """Return the state with one more waiting caller, and the number of the first read that may serve it."""
        return replace(self, waiting=self.waiting + 1), self.reads_begun + 1

    def answer(self, number: int) -> ReadResult[T] | Failed | None:
        """Return the answer for a caller with this number; None if there is none yet."""
        if self.last_result is not None and self.last_result.number >= number:
            return self.last_result
        return self.failed if self.failed is not None and self.failed.number >= number else None

    def must_wait(self, number: int) -> bool:
        """Return whether the caller has no answer while a read is under way."""
        return self.answer(number) is None and self.read is not None

    def without_caller(self) -> ReadState[T]:
        """Return the state with one waiting caller less; after the last one the kept answers go."""
        if self.waiting > 1:
            return replace(self, waiting=self.waiting - 1)
        return replace(self, waiting=0, last_result=None, failed=None)

    def with_read_begun(self, caller: Callable[[], object], now_s: float) -> tuple[ReadState[T], SharedRead[T]]:
        """Return the state with a read begun for `caller` (a weak reference), and that read; sends nothing."""
        read = SharedRead(self.reads_begun + 1, caller, self.known, self.events_ended, now_s)
        return replace(self, reads_begun=read.number, read=read), read

    def with_answer(self, read: SharedRead[T], content: T | None) -> ReadState[T]:
        """Return the state after a read's answer.

        `content` becomes `known` unless a write was won here since the read began.
        """
        return replace(
            self,
            events_ended=self.events_ended + 1,
            read=None,
            known=self.known if self.written > read.after else content,
            as_of_s=read.began_s if self.events_ended == read.after else None,
            last_result=ReadResult(read.number, content),
        )

    def with_failure(self, read: SharedRead[T], error: Exception) -> ReadState[T]:
        """Return the state after a failed read, with its error for waiting callers; the known content stays."""
        return replace(self, read=None, failed=Failed(read.number, error))

    def without_read(self) -> ReadState[T]:
        """Return the state without the read, whose caller is gone; waiting callers stay, and one begins another."""
        return replace(self, read=None)

    def with_won_write(self, after: int, began_s: float, content: T | None) -> ReadState[T]:
        """Return the state after a won write of `content` (a delete: None).

        When the write began, `after` reads and writes were over.
        """
        as_of_s = began_s if self.events_ended == after else None
        return replace(
            self, events_ended=self.events_ended + 1, written=self.events_ended + 1, known=content, as_of_s=as_of_s
        )

    def with_other_write(self) -> ReadState[T]:
        """Return the state after a lost, unknown or failed write; `known` loses its age, so no `get` trusts it."""
        return replace(self, events_ended=self.events_ended + 1, as_of_s=None)

    def after_fork(self) -> ReadState[T]:
        """Return the state for a forked child, without the parent's read, callers and kept answers."""
        return replace(self, read=None, waiting=0, last_result=None, failed=None)
