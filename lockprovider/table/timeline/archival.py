"""The instants that an archiver may remove from the active timeline. Pure.

It archives a contiguous beginning of the writes, by begin. All that began before the first remaining write then counts
as completed for every reader: so `_barriers` limit it. Restores and savepoints stay for ever, so readers see them.

Source: Hudi `TimelineArchiverV2`, `ArchivalUtils`, `ClusteringUtils.getEarliestInstantToRetainForClustering`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from lockprovider.table.format.instant import Action, Instant
from lockprovider.table.format.layout import FileGroup, data_files_in
from lockprovider.table.timeline.timeline import Timeline
from lockprovider.table.timeline.view import files_of_no_instant

BESIDES = (Action.CLEAN, Action.ROLLBACK)  # archived with the writes around them


@dataclass(frozen=True, slots=True)
class KeepActive:
    """The number of writes that stay on the timeline.

    Attributes:
        least: the number that stays (`hoodie.keep.min.commits`).
        most: up to this number nothing is archived (`hoodie.keep.max.commits`).

    >>> settings = TableSettings(archival=KeepActive(least=100, most=150))
    """

    least: int = 20
    most: int = 30

    @classmethod
    def of(cls, least: int | None, most: int | None) -> KeepActive:
        """Make the setting; if only one value is given, the other is ten away.

        >>> KeepActive.of(least=40, most=None)
        KeepActive(least=40, most=50)
        """
        if least is None:
            return cls() if most is None else cls(max(1, most - 10), most)
        return cls(least, least + 10 if most is None else most)

    @property
    def fault(self) -> str:
        """The reason why these values are impossible, or an empty text."""
        whole = all(isinstance(number, int) and not isinstance(number, bool) for number in (self.least, self.most))
        if whole and 1 <= self.least < self.most:
            return ""
        return (
            f"hoodie.keep.min.commits={self.least!r} and hoodie.keep.max.commits={self.most!r} are not possible: "
            "give whole numbers, keep at least one commit, and let the second be greater than the first"
        )


@dataclass(frozen=True, slots=True)
class Archivable:
    """One completed instant with all its files; a clean may have been completed twice."""

    completed: tuple[Instant, ...]
    pending: tuple[Instant, ...] = ()

    @classmethod
    def of(cls, files: Iterable[Instant]) -> Archivable:
        """Make the instant of these files."""
        files = tuple(files)
        return cls(tuple(i for i in files if i.is_completed), tuple(i for i in files if not i.is_completed))

    @property
    def done(self) -> Instant:
        """The latest completed state, which counts."""
        return max(self.completed, key=lambda instant: instant.completion or "")


@dataclass(frozen=True, slots=True)
class ArchivalFacts:
    """The facts for an archival plan, read under the lock.

    Attributes:
        paths: all data files, listed before `now`.
        replaced: the file groups that each completed replacecommit ended, by its begin time.
        victims: the begin times that unfinished rollbacks take back.
        logs: the begin times of writes whose log files are read by completion time.
        listed: the metadata table's last compaction, which lists earlier files; None without one, empty if never
            compacted.
        earliest: the begin time of the oldest write that the cleaner's retention needs.
    """

    now: Timeline
    paths: frozenset[str] = frozenset()
    replaced: Mapping[str, frozenset[FileGroup]] = field(default_factory=dict)
    victims: frozenset[str] = frozenset()
    earliest: str = ""
    logs: frozenset[str] = frozenset()
    listed: str | None = None


@dataclass(frozen=True, slots=True)
class ArchivalPlan:
    """The instants to archive, oldest first; `held`: why they are fewer than asked for."""

    actions: tuple[Archivable, ...]
    held: str = ""


def surplus(timeline: Timeline, earliest: str, keep: KeepActive) -> int:
    """Return the number of writes to archive; those that the retention needs stay, with one before them."""
    count = len(timeline.writes)
    needed = sum(write.begin > earliest for write in timeline.writes) + 2 if earliest else 0
    least = max(keep.least, needed)
    return count - least if count > keep.most + least - keep.least else 0


def archival_plan(facts: ArchivalFacts, keep: KeepActive, *, at_most: int) -> ArchivalPlan:
    """Return the oldest instants to archive now, at most `at_most` writes, with cleans and rollbacks before the last.

    Fewer if something holds them back; `held` says what. Empty if the timeline is short enough; at least one write
    stays.
    """
    writes = sorted(facts.now.writes, key=lambda instant: (instant.begin, instant.completion or ""))
    candidates = writes[: surplus(facts.now, facts.earliest, keep)]
    if not candidates:
        return ArchivalPlan(())
    end, why = min(_barriers(facts), default=("~", ""))
    taken = [write for write in candidates if write.begin < end][:at_most]
    stays = writes[len(taken)].begin  # at least one stays
    taken = [write for write in taken if write.begin < stays]
    held = why if end <= candidates[-1].begin else ""
    return ArchivalPlan(_with_all_files(facts.now, taken), held)


def _barriers(facts: ArchivalFacts) -> Iterable[tuple[str, str]]:
    """Yield begin times that the archived writes must end before, each with its reason.

    A restore to a savepoint needs the later writes. A pending write must not begin before the first remaining one. Rows
    of replaced files would reappear, files without an instant become visible.
    """
    timeline = facts.now
    for begin in timeline.pending(Action.RESTORE):
        yield "", f"the restore {begin} is not finished: `lockprovider table rollback URL`, once its executor is dead"
    savepoints = [instant.begin for instant in timeline.instants if instant.action is Action.SAVEPOINT]
    if savepoints:
        yield (
            min(savepoints),
            f"{min(savepoints)} has a savepoint: delete the savepoint once no restore to it is needed",
        )
    if facts.listed is not None:
        state = f"was compacted at {facts.listed}" if facts.listed else "was never compacted"
        yield facts.listed, f"the metadata table {state}: writers do that every ten commits; or retire it"
    for begin in timeline.unfinished[:1]:
        yield _before(timeline, begin), f"write {begin} is pending: wait for it, or roll it back"
    if facts.victims:
        first = min(facts.victims)
        yield _before(timeline, first), f"the rollback of {first} is not finished: `lockprovider table rollback URL`"
    replace = _first_with_files(facts)
    if replace:
        yield replace, f"files that {replace} replaced are still there: `lockprovider table clean URL` removes them"
    if facts.logs:
        first = min(facts.logs)
        yield first, f"log files of {first} are not compacted: hudi-rs would not see their rows; compact the table"
    lost = files_of_no_instant(timeline, facts.paths)
    if lost:
        first = min(lost.values())
        summary = f"{len(lost)} files are of no instant, the first of {first}"
        yield _before(timeline, first), f"{summary}: `lockprovider table clean URL` removes them"


def _before(timeline: Timeline, begin: str) -> str:
    """Return the begin time of the last write before `begin` without a savepoint; empty if there is none.

    If archival stops there, that write begins the timeline.
    """
    savepoints = {instant.begin for instant in timeline.instants if instant.action is Action.SAVEPOINT}
    return max(
        (write.begin for write in timeline.writes if write.begin < begin and write.begin not in savepoints), default=""
    )


def _first_with_files(facts: ArchivalFacts) -> str:
    groups = {group for group, _, _ in data_files_in(facts.paths)}
    return min((begin for begin, ended in facts.replaced.items() if ended & groups), default="")


def _with_all_files(timeline: Timeline, writes: list[Instant]) -> tuple[Archivable, ...]:
    """Return the writes, and the completed cleans and rollbacks before the last of them, each with its pending files.

    They are ordered by begin time.
    """
    if not writes:
        return ()
    last, begins = writes[-1].begin, {write.begin for write in writes}
    groups: dict[tuple[str, str], list[Instant]] = {}
    for instant in timeline.instants:
        if instant.changes_rows and instant.begin in begins:
            groups.setdefault((instant.begin, ""), []).append(instant)
        elif instant.action in BESIDES and instant.begin < last:
            groups.setdefault((instant.begin, instant.action.value), []).append(instant)
    actions = (Archivable.of(files) for _, files in sorted(groups.items()))
    return tuple(action for action in actions if action.completed)
