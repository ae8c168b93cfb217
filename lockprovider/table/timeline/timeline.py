"""Timeline, and the part of it that readers use."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import takewhile
from operator import attrgetter

from lockprovider.table.format.layout import Action, Instant, InstantState, after, format_ms, parse_instant, to_ms

_ROLLED_BACK = (Action.COMMIT, Action.DELTACOMMIT, Action.REPLACECOMMIT)
_SECOND = 14  # digits
_SERVICES = frozenset({Action.CLUSTERING, Action.COMPACTION, Action.LOGCOMPACTION})
ZONE_MS = 15 * 60_000  # time zones differ by multiples of this


@dataclass(frozen=True)
class Timeline:
    """All instants of one listing, ordered by file name."""

    instants: tuple[Instant, ...] = ()

    @classmethod
    def of(cls, names: Iterable[str]) -> Timeline:
        """Parse these names; skip names of other files."""
        return cls(tuple(instant for name in sorted(names) if (instant := parse_instant(name)) is not None))

    @classmethod
    def of_done(cls, done: Iterable[Instant], other_names: Iterable[str]) -> Timeline:
        return cls(tuple(sorted([*done, *cls.of(other_names).instants], key=attrgetter("file_name"))))

    def plus(self, instants: Iterable[Instant]) -> Timeline:
        """Timeline with these instants inserted by name, or this one if it has all; keeps derived facts."""
        merged, added = list(self.instants), []
        for instant in instants:
            at = bisect_left(merged, instant.file_name, key=lambda other: other.file_name)
            if merged[at : at + 1] != [instant]:
                merged.insert(at, instant)
                added.append(instant)
        return _knowing(Timeline(tuple(merged)), self, added) if added else self

    def cuts(self, size: int) -> tuple[str, ...]:
        """Begin times that split the file names into parts of about this size."""
        begins = [instant.begin for instant in self.instants[size::size]]
        return tuple(dict.fromkeys(begins))

    def without(self, instants: Iterable[Instant]) -> Timeline:
        names = {instant.file_name for instant in instants}
        return (
            self
            if names.isdisjoint(self.names)
            else Timeline(tuple(i for i in self.instants if i.file_name not in names))
        )

    def completed_before(self, time: str) -> Timeline:
        """Timeline as of before that time."""
        return Timeline(tuple(i for i in self.instants if (i.completion or i.begin) < time))

    @cached_property
    def names(self) -> frozenset[str]:
        return frozenset(instant.file_name for instant in self.instants)

    @cached_property
    def writes(self) -> tuple[Instant, ...]:
        """Completed instants that change rows, by completion."""
        done = (instant for instant in self.instants if instant.is_completed and instant.changes_rows)
        return tuple(sorted(done, key=lambda instant: instant.completion or ""))

    @cached_property
    def written(self) -> frozenset[str]:
        """File names of `writes`."""
        return frozenset(instant.file_name for instant in self.writes)

    @cached_property
    def completions(self) -> Mapping[str, str]:
        """Completion times of `writes` by begin time."""
        return {instant.begin: instant.completion or "" for instant in self.writes}

    @cached_property
    def latest_time(self) -> str:
        """Largest begin or completion time, or empty text."""
        times = (time for instant in self.instants for time in (instant.begin, instant.completion) if time)
        return max(times, default="")

    @cached_property
    def latest_completed_time(self) -> str:
        """Largest time of a completed instant, or empty text."""
        done = (instant for instant in self.instants if instant.is_completed)
        return max((time for i in done for time in (i.begin, i.completion) if time), default="")

    @cached_property
    def latest_completed_begin(self) -> str:
        """Largest begin time of a completed instant, or empty text."""
        return max((instant.begin for instant in self.instants if instant.is_completed), default="")

    @cached_property
    def first_active(self) -> str:
        """Begin time before which a write not on the timeline was archived; empty without writes.

        Only writes without a savepoint count; pending ones only if none is completed.
        """
        savepointed = self.savepointed
        writes = [instant for instant in self.instants if instant.changes_rows and instant.begin not in savepointed]
        done = [instant for instant in writes if instant.is_completed]
        return min((instant.begin for instant in done or writes), default="")

    @cached_property
    def besides_commits(self) -> tuple[Instant, ...]:
        """All instants of actions other than `commit`; in no order."""
        return tuple(instant for instant in self.instants if instant.action is not Action.COMMIT)

    @cached_property
    def savepointed(self) -> frozenset[str]:
        """Begin times that have a savepoint, completed or not."""
        return frozenset(instant.begin for instant in self.besides_commits if instant.action is Action.SAVEPOINT)

    @cached_property
    def visible(self) -> Callable[[str], bool]:
        """Test whether a begin time's write is completed or archived."""
        done, first, unfinished = {i.begin for i in self.writes}, self.first_active, {*self.unfinished}
        return lambda begin: begin in done or (begin < first and begin not in unfinished)

    @cached_property
    def unfinished(self) -> tuple[str, ...]:
        """Begin times of uncompleted commits and table services, oldest first."""
        states = [i for i in self.perhaps_pending if i.changes_rows]
        return tuple(sorted({i.begin for i in states} - {i.begin for i in states if i.is_completed}))

    @cached_property
    def perhaps_pending(self) -> tuple[Instant, ...]:
        """All instants of begin times without exactly one, completed action; in no order."""
        return _perhaps_pending(self.instants)

    def next_time(self, now_ms: int, begun: str = "") -> str:
        """Time of now, later than all on it and `begun`."""
        return time_after(now_ms, self.latest_time, begun)

    def begun_at(self, begin: str) -> Iterator[Instant]:
        second = begin[:_SECOND]
        at = bisect_left(self.instants, second, key=lambda instant: instant.begin[:_SECOND])
        near = takewhile(lambda i: i.begin.startswith(second), self.instants[at:])
        return (i for i in near if i.begin == begin)

    def is_alone(self, instant: Instant) -> bool:
        """Whether no other action began at the same time."""
        return all(other.action is instant.action for other in self.begun_at(instant.begin))

    def written_at(self, begin: str) -> Instant | None:
        return next((i for i in self.begun_at(begin) if i.is_completed and i.changes_rows), None)

    def pending_action(self, begin: str) -> Action | None:
        return next((i.action for i in self.begun_at(begin) if i.changes_rows and not i.is_completed), None)

    def is_pending(self, begin: str) -> bool:
        """Whether the write `begin` is inflight and not completed."""
        states = {i.state for i in self.begun_at(begin) if i.changes_rows}
        return InstantState.INFLIGHT in states and InstantState.COMPLETED not in states

    @property
    def pending_writes(self) -> tuple[str, ...]:
        """Begin times of uncompleted commits, oldest first."""
        return self.pending(*_ROLLED_BACK)

    @property
    def pending_rollbacks(self) -> tuple[str, ...]:
        """Begin times of uncompleted rollbacks, oldest first."""
        return self.pending(Action.ROLLBACK)

    def pending(self, *actions: Action) -> tuple[str, ...]:
        """Begin times of uncompleted instants, oldest first."""
        as_write = not _SERVICES.isdisjoint(actions)  # completed, they are named like a commit
        instants = self.perhaps_pending
        done = {i.begin for i in instants if i.is_completed and (i.action in actions or (as_write and i.changes_rows))}
        return tuple(sorted({i.begin for i in instants if i.action in actions} - done))

    def pending_files(self, begin: str) -> tuple[str, ...]:
        """Pending states' file names, inflight last."""
        pending = (i for i in self.begun_at(begin) if i.changes_rows and not i.is_completed)
        return tuple(i.file_name for i in sorted(pending, key=lambda i: i.state is InstantState.INFLIGHT))


def time_after(now_ms: int, *floors: str) -> str:
    """Time of now that exceeds `floors`."""
    time, latest = format_ms(now_ms), max(floors)
    return time if time > latest else after(latest)


def _knowing(after: Timeline, before: Timeline, added: Sequence[Instant]) -> Timeline:
    """Cache derived facts in `after`, from those of `before` and the instants `added`; return `after`.

    After an added savepoint or out-of-order completion, only `perhaps_pending` and `besides_commits`.
    """
    begun = {i.begin for i in added}
    unchanged = (i for i in before.perhaps_pending if i.begin not in begun)
    vars(after)["perhaps_pending"] = (
        *unchanged,
        *_perhaps_pending(i for begin in begun for i in after.begun_at(begin)),
    )
    vars(after)["besides_commits"] = (*before.besides_commits, *(i for i in added if i.action is not Action.COMMIT))
    done = sorted((i for i in added if i.is_completed and i.changes_rows), key=lambda i: i.completion or "")
    last = before.writes[-1].completion or "" if before.writes else ""
    if any(i.action is Action.SAVEPOINT for i in added) or any((i.completion or "") <= last for i in done):
        return after
    times = [time for i in added for time in (i.begin, i.completion) if time]
    completed = [time for i in added if i.is_completed for time in (i.begin, i.completion) if time]
    vars(after)["writes"] = (*before.writes, *done)
    vars(after)["written"] = before.written | {i.file_name for i in done}
    vars(after)["latest_time"] = max([before.latest_time, *times])
    begins = [i.begin for i in added if i.is_completed]
    vars(after)["latest_completed_begin"] = max([before.latest_completed_begin, *begins])
    vars(after)["latest_completed_time"] = max([before.latest_completed_time, *completed])
    if any(i.begin not in before.savepointed for i in before.writes):
        counted = [i.begin for i in done if i.begin not in before.savepointed]
        vars(after)["first_active"] = min([before.first_active, *counted])
    return after


def _perhaps_pending(instants: Iterable[Instant]) -> tuple[Instant, ...]:
    by_begin: dict[str, list[Instant]] = {}
    for instant in instants:
        by_begin.setdefault(instant.begin, []).append(instant)
    return tuple(instant for states in by_begin.values() if not _is_simply_done(states) for instant in states)


def _is_simply_done(states: Sequence[Instant]) -> bool:
    action = states[0].action
    return all(i.action is action for i in states) and any(i.is_completed for i in states)


def drifts_ms(timeline: Timeline, modified_ms: Mapping[str, int | None]) -> dict[str, int]:
    """By file name, how many ms the completion time is ahead of the store's."""
    drifts = {}
    for instant in timeline.instants:
        written_ms = modified_ms.get(instant.file_name)
        if instant.completion is not None and written_ms is not None:
            drifts[instant.file_name] = to_ms(instant.completion) - written_ms
    return drifts


def of_other_zones(drifts: Mapping[str, int]) -> list[str]:
    """Files named in local time; a wrong clock or a copy looks alike."""
    return [name for name, drift_ms in drifts.items() if abs(drift_ms) > ZONE_MS / 2]


@dataclass(frozen=True, slots=True)
class Decisions:
    """Table's commits in the lock record.

    Attributes:
        record: identifies this state of the record.
        log: its name; empty without one.
        next: position after its last entry.
        entries: the last ones; None for one off the timeline.
        unapplied: decided publishes that may not be stored yet, in order.
    """

    record: str = ""
    log: str = ""
    next: int = 0
    entries: tuple[Instant | None, ...] = ()
    unapplied: tuple[Instant, ...] = ()

    @property
    def last(self) -> str:
        """Largest completion time in the log; empty if unknown."""
        return max((instant.completion or "" for instant in self.entries if instant is not None), default="")

    def since(self, before: Decisions) -> tuple[Instant | None, ...] | None:
        """Instants decided after `before`; None if the log does not show them."""
        count = self.next - before.next
        is_known = self.log == before.log != "" and 0 <= count <= len(self.entries)
        return self.entries[len(self.entries) - count :] if is_known else None


def visible_part(listed: Timeline, before: Decisions, later: Decisions | None = None) -> Timeline | None:
    """`listed` for readers: up to the first decided commit that is not stored yet.

    `before`: the lock record, read before the listing; `later`: read again after it. Rules: SPECIFICATION.md,
    "Reading", order.

    None: without `later`, read the record again and pass it; with `later`, the log has ended: start again.
    """
    visible = _until_missing(listed, before.unapplied)
    if visible is not listed or (before.log and listed.latest_completed_time <= before.last):
        return visible
    if later is None:
        return None
    if later.record == before.record:
        return listed
    newer = later.since(before)
    if newer is not None:
        return _until_missing(listed, newer)
    return listed.completed_before(after(before.last)) if later.log == before.log and before.last else None


def _until_missing(listed: Timeline, decided: Iterable[Instant | None]) -> Timeline:
    done = (instant for instant in decided if instant is not None and instant.is_completed)
    missing = next((instant for instant in done if instant.file_name not in listed.names), None)
    return listed if missing is None else listed.completed_before(missing.completion or "")
