"""Versions: what a caller may name a state of the table by, and which state that is. One meaning for every verb.

    given                                      the state
    a commit's result, or one of `history()`   after that commit
    a completion time, as `Table.version`      after that commit
    a begin time, as a savepoint's             after that commit
    any other time                             what had completed by then

A text of 17 digits is a completion time if a commit has it, else a begin time if a commit has that, else a time.
`savepoint`, `restore` and `changes` refuse 17 digits that are no commit's. Times have milliseconds: two writers may,
rarely, begin and complete a commit in the same one; its completion counts then.

Promised: `as_of`, `changes`, `savepoint`, `restore` and the commands go by this. NOT promised: begin times of archived
commits, of which only the time is known; name those by their completion.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from typing import Protocol, runtime_checkable

from fsspec_cas import InvalidInput
from lockprovider.table.errors import HistoryGone
from lockprovider.table.format.instant import Instant
from lockprovider.table.timeline.incremental import Order
from lockprovider.table.timeline.timeline import Timeline
from lockprovider.table.timeline.view import AsOf, time_text


@runtime_checkable
class DoneCommit(Protocol):
    """A commit that is done: what writes return, and what `history` lists."""

    @property
    def instant(self) -> str:
        """Its begin time."""

    @property
    def completion(self) -> str:
        """Its completion time."""


TableVersion = str | datetime | AsOf | DoneCommit
Reached = Callable[[], str]  # the last completion time that was archived; empty if none was


def moment_of_version(timeline: Timeline, given: TableVersion, reached: Reached) -> AsOf:
    """The moment that a version names: by completion, that commit included.

    Raises:
        InvalidInput: it names none.
        HistoryGone: it is a commit that is not in the table (any more).
    """
    if isinstance(given, AsOf):
        return AsOf.of(given)
    return AsOf(checkpoint_of(timeline, given, Order.COMPLETION, reached))


def check_version(given: TableVersion) -> None:
    """Return if it may name a version, whatever commits there are.

    Raises:
        InvalidInput: it names none.
    """
    if not isinstance(given, DoneCommit):
        AsOf.of(given)


def checkpoint_of(timeline: Timeline, given: TableVersion, order: Order, reached: Reached) -> str:
    """The time, in this order, up to which commits belong to a version.

    Raises:
        InvalidInput: it names none.
        HistoryGone: it is a commit that is not in the table (any more).
    """
    if isinstance(given, AsOf):
        if given.by != ("completion" if order is Order.COMPLETION else "begin"):
            raise InvalidInput(f"{given} is no time in the order {order.value!r}; give a version, or a time alone")
        return time_text(given.time)
    if isinstance(given, (str, datetime)):
        time = time_text(given)
        found = None if given != time else _named(timeline, time, order, reached)
        return time if found is None else order.time_of(found)
    if not isinstance(given, DoneCommit):
        return time_text(given)  # which refuses it
    return _of_done(timeline, given, order, reached)


def refuse_none(given: TableVersion | None) -> None:
    """Refuse no version, where the last commit is not meant by it.

    Raises:
        InvalidInput: it is none.
    """
    if given is None or given == "":
        raise InvalidInput(f"{given!r} is no version; give a commit's result, or a Table.version from before")


def commit_of(timeline: Timeline, given: TableVersion | None, reached: Reached) -> Instant:
    """The last commit of a version; of None the last of all.

    Raises:
        InvalidInput: it names none.
        HistoryGone: there is no such commit (any more).
    """
    if given is None:
        if not timeline.writes:
            raise HistoryGone("the table has no commit; write some rows first")
        return timeline.writes[-1]
    moment = moment_of_version(timeline, given, reached)
    if moment.by == "begin":
        raise InvalidInput(f"{moment} is no state after a commit; give a version, or a time of completion")
    found = [instant for instant in timeline.writes if moment.includes(instant)]
    is_named = any(given in (i.begin, i.completion) for i in timeline.writes)
    if found and (is_named or not _is_instant(given)):
        return found[-1]
    what = f"no commit began or completed at {given}" if _is_instant(given) else f"no commit completed by {moment.time}"
    if archived := reached():
        what += f", and those up to {archived} are archived, which can neither be restored nor kept"
    raise HistoryGone(f"{what}; `history()` has those that can be chosen, or give ISO text for what a time had")


def _is_instant(given: TableVersion) -> bool:
    """Whether it is written as times of commits are."""
    return isinstance(given, str) and given.isdigit() and time_text(given) == given


def _named(timeline: Timeline, time: str, order: Order, reached: Reached) -> Instant | None:
    """The commit that has this very time; of two the one whose time it is in this order."""
    by_completion = next((i for i in timeline.writes if i.completion == time), None)
    by_begin = next((i for i in timeline.writes if i.begin == time), None)
    first, second = (by_completion, by_begin) if order is Order.COMPLETION else (by_begin, by_completion)
    if first is None and second is not None and time <= reached():
        return None  # it may be the time of a commit that is archived
    return second if first is None else first


def _of_done(timeline: Timeline, given: DoneCommit, order: Order, reached: Reached) -> str:
    if not given.instant or not given.completion:
        raise InvalidInput(f"{given!r} has made no commit; give Table.version for the table as it is")
    there = any((i.begin, i.completion) == (given.instant, given.completion) for i in timeline.writes)
    if not there and given.completion > reached():
        raise HistoryGone(
            f"commit {given.instant}, completed {given.completion}, is not in the table: it was taken back, or it is "
            "another table's; choose one of its history"
        )
    return given.completion if order is Order.COMPLETION else given.instant
