"""The lease machine's table: which event leads from which state to which, and to which effect; and when.

It is data that `step` is compared with, in both directions, by enumeration (`test_transition_table.py`): what the
machine does stands here, and what stands here the machine does. Run as a program, this file prints the table as
Markdown; `lockprovider/SPECIFICATION.md` links to it.

A state "Writing: take" is a `Writing` whose purpose that is; as the next state "Writing" or "Checking" alone is of the
same write. "Done: acquired" is a `Done` that says so. Several in one cell stand for each of them. What is not here
raises ValueError, but for a `Tick` before the deadline, which changes nothing in any state.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import NamedTuple

from lockprovider.storage_lock.machine import Checking, Done, Effect, Event, State, Writing


class Row(NamedTuple):
    """One kind of step. `effect` is "" where there is none."""

    state: str
    event: str
    after: str
    effect: str
    when: str = ""


_OF_ONE_THAT_HOLDS = "renew, commit, release"

TABLE = (
    Row(
        "Idle; Lost",
        "TakeLock",
        "Writing: take",
        "PutRecord",
        "no record, or given, lapsed, or mine (an older write that landed late): "
        "what is unapplied is copied, the epoch rises",
    ),
    Row("Idle; Lost", "TakeLock", "Idle", "Busy", "another's and valid"),
    Row("Held", "Renew", "Writing: renew", "PutRecord", "prolonged; what was applied is cleared"),
    Row("Held", "Commit", "Writing: commit", "PutRecord", "prolonged, with the publish"),
    Row("Held", "Release", "Writing: release", "PutRecord", "given back; what was applied is cleared"),
    Row(
        "Rolling", "AppliedPending", "Held", "Done: acquired, committed, not_written", "as it began; set aside: no log"
    ),
    Row("Rolling", "Renew", "Writing: renew", "PutRecord", "what is unapplied stays"),
    Row("Rolling", "Release", "Writing: release", "PutRecord", "handed over, for what is unapplied stays"),
    Row("Held; Rolling", "Renew", "Lost", "Ended", "the deadline has passed"),
    Row("Held; Rolling", "Tick", "Lost", "Ended", "the deadline has passed"),
    Row("Writing: take", "PutWon", "Held", "Done: acquired", "nothing is unapplied"),
    Row("Writing: take", "PutWon", "Rolling", "Apply", "something is unapplied"),
    Row("Writing: renew", "PutWon", "Held", "Done: renewed", "nothing is unapplied"),
    Row("Writing: renew", "PutWon", "Rolling", "Done: renewed", "something is unapplied still"),
    Row("Writing: commit", "PutWon", "Rolling", "Apply", "the commit point was passed just now"),
    Row("Writing: release", "PutWon", "Idle", "Done: released"),
    Row("Writing: take", "LostRace", "Idle", "Busy", "lost the race; nobody has looked to whom"),
    Row(
        "Writing: take, renew, commit, release",
        "PutFailed",
        "Checking",
        "ReadRecord",
        "refused, but for a take; or nobody knows",
    ),
    Row(
        "Checking: take, renew, commit, release",
        "Look",
        "Checking",
        "ReadRecord",
        "the look before failed",
    ),
    Row("Checking: take", "RecordSeen", "Held", "Done: acquired", "my nonce; nothing is unapplied"),
    Row("Checking: take", "RecordSeen", "Rolling", "Apply", "my nonce; something is unapplied"),
    Row("Checking: take", "RecordSeen", "Idle", "Busy", "anything else"),
    Row("Checking: renew", "RecordSeen", "Held", "Done: renewed", "my nonce"),
    Row("Checking: renew", "RecordSeen", "Rolling", "Done: renewed", "my nonce; something is unapplied still"),
    Row("Checking: commit", "RecordSeen", "Rolling", "Apply", "my nonce, or an older copy of the same commit"),
    Row("Checking: release", "RecordSeen", "Idle", "Done: released", "anything but the next two"),
    Row(
        f"Checking: {_OF_ONE_THAT_HOLDS}",
        "RecordSeen",
        "Held",
        "Done: not_written",
        "mine, not given, another nonce: still the holder",
    ),
    Row(
        f"Checking: {_OF_ONE_THAT_HOLDS}",
        "RecordSeen",
        "Rolling",
        "Done: not_written",
        "the same, and something is unapplied that is not known to be applied",
    ),
    Row(
        "Checking: renew, commit",
        "RecordSeen",
        "Lost",
        "Ended",
        "anything else; whether a commit was decided, `settle_commit` says",
    ),
    Row(f"Checking: {_OF_ONE_THAT_HOLDS}", "AppliedPending", "Checking", "", "applied while the answer is in doubt"),
    Row(
        f"Writing: {_OF_ONE_THAT_HOLDS}",
        "Tick",
        "Writing",
        "Ended",
        "the deadline has passed; what is on its way still decides",
    ),
    Row(f"Checking: {_OF_ONE_THAT_HOLDS}", "Tick", "Checking", "Ended", "likewise"),
)


def kind(of: State | Event | Effect | None) -> str:
    """What the table calls it."""
    match of:
        case None:
            return ""
        case Writing(purpose=detail) | Checking(Writing(purpose=detail)) | Done(detail):
            return f"{type(of).__name__}: {detail}"
        case _:
            return type(of).__name__


def each(row: Row) -> Iterator[tuple[str, str, str, str]]:
    """The kinds of state, event, next state and effect that a row stands for."""
    for state in _alternatives(row.state):
        purpose = state.partition(": ")[2]
        for effect in _alternatives(row.effect):
            yield state, row.event, f"{row.after}: {purpose}" if row.after in _IN_FLIGHT else row.after, effect


_IN_FLIGHT = ("Writing", "Checking")


def _alternatives(cell: str) -> Iterator[str]:
    for part in cell.split("; "):
        name, colon, details = part.partition(": ")
        yield from (f"{name}{colon}{detail}" for detail in details.split(", "))


def markdown() -> str:
    """The table for people."""
    rows = ("state", "event", "next state", "effect", "when"), ("---",) * 5, *TABLE
    return "".join(f"| {' | '.join(row)} |\n" for row in rows)


if __name__ == "__main__":
    sys.stdout.write(markdown())
