"""What a reader takes of the timeline that it lists: never a commit without those that were decided before it.

Where commits appear at once (`APPEARS_KEY`), a listing may show a later one and not an earlier one. So a reader reads
the lock record, and then lists. What may not be there yet is named by the record; the first of these that is not
listed, and all that completes later, is left for the next look.

What is later than all in the log that the reader knows was decided after that, and something before it may be missing
of which the reader does not know; or it is of one who knows nothing of the log (a JVM writer that takes no lock). A
second look at the record tells: what its log has got since is all that can be on the listing and was not known. If the
log does not go back so far any more, nothing that is later is taken; if it has ended, the reader begins again.

Completion times rise in the order of the log: whoever decides chooses them above all in it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from lockprovider.table.format.instant import Instant, after
from lockprovider.table.timeline.timeline import Timeline


@dataclass(frozen=True, slots=True)
class Decisions:
    """What the lock record says of the table's commits.

    Attributes:
        record: names this state of the record.
        log: the name of its log; empty if it has none.
        next: the place behind the last in the log.
        entries: the last of the log; None for what is not of the timeline.
        unapplied: what was decided and may not be there yet, in the order of the decisions.
    """

    record: str = ""
    log: str = ""
    next: int = 0
    entries: tuple[Instant | None, ...] = ()
    unapplied: tuple[Instant, ...] = ()

    @property
    def last(self) -> str:
        """The largest completion time in the log; empty if that is not known."""
        return max((one.completion or "" for one in self.entries if one is not None), default="")

    def since(self, before: Decisions) -> tuple[Instant | None, ...] | None:
        """What was decided after `before`; None if it does not tell."""
        count = self.next - before.next
        known = self.log == before.log != "" and 0 <= count <= len(self.entries)
        return self.entries[len(self.entries) - count :] if known else None


def taken(listed: Timeline, before: Decisions, now: Decisions | None = None) -> Timeline | None:
    """What is taken of a timeline that was listed after the record had said `before`.

    `now`: what it says after that. None: it has to be known; or, where it is given, read the record and list again.
    """
    found = _until_missing(listed, before.unapplied)
    if found is not listed or (before.log and listed.latest_completed_time <= before.last):
        return found
    if now is None:
        return None
    if now.record == before.record:
        return listed
    newer = now.since(before)
    if newer is not None:
        return _until_missing(listed, newer)
    return listed.completed_before(after(before.last)) if now.log == before.log and before.last else None


def _until_missing(listed: Timeline, decided: Iterable[Instant | None]) -> Timeline:
    """As it was before the first of these that is not on it. Not plans: nothing that completes needs them there."""
    done = (one for one in decided if one is not None and one.is_completed)
    missing = next((one for one in done if one.file_name not in listed.names), None)
    return listed if missing is None else listed.completed_before(missing.completion or "")
