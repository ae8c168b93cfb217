"""Files that a clean may remove, and instants that an archiver may remove from the timeline.

Rules: SPECIFICATION.md, "Clean" and "Archive". Restores and savepoints are never archived.

Source: Hudi `CleanPlanner`, `CleanerUtils.getEarliestCommitToRetain`, `TimelineArchiverV2`, `ArchivalUtils`,
`ClusteringUtils.getEarliestInstantToRetainForClustering`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from lockprovider.table.format.layout import (
    Action,
    FileGroup,
    Instant,
    LogFile,
    data_files_in,
    format_ms,
    names_by_partition,
)
from lockprovider.table.timeline.timeline import Timeline
from lockprovider.table.timeline.view import files_of_no_instant

_HOUR_MS = 3_600_000
BESIDES = (Action.CLEAN, Action.ROLLBACK)  # archived with the writes around them


@dataclass(frozen=True, slots=True)
class KeepCommits:
    """Keep the files that an as-of to one of the last `commits` commits needs (`hoodie.clean.commits.retained`).

    >>> settings = TableSettings(retention=KeepCommits(24))
    """

    commits: int = 10
    name = "KEEP_LATEST_COMMITS"


@dataclass(frozen=True, slots=True)
class KeepHours:
    """Keep the files that an as-of within the last `hours` needs (`hoodie.clean.hours.retained`).

    >>> settings = TableSettings(retention=KeepHours(48))
    """

    hours: float = 24.0
    name = "KEEP_LATEST_BY_HOURS"


@dataclass(frozen=True, slots=True)
class KeepVersions:
    """Keep the last `versions` slices of each live file group (`hoodie.clean.fileversions.retained`).

    >>> settings = TableSettings(retention=KeepVersions(3))
    """

    versions: int = 3
    name = "KEEP_LATEST_FILE_VERSIONS"


Policy = KeepCommits | KeepHours | KeepVersions


@dataclass(frozen=True, slots=True)
class Removable:
    """Removable file names by partition. `earliest`: oldest commit that stays complete, None by versions."""

    earliest: Instant | None
    files: Mapping[str, tuple[str, ...]]


def removable(
    policy: Policy,
    timeline: Timeline,
    paths: Iterable[str],
    *,
    now_ms: int,
    replaced_by: Mapping[FileGroup, str],
    protected: frozenset[str],
    archived: Mapping[str, str] = MappingProxyType({}),
    written_ms: Mapping[str, int] = MappingProxyType({}),
) -> Removable:
    """Files that neither `policy` nor a pending write needs, and those whose instant was removed.

    Empty while a restore is pending. List `paths` BEFORE `timeline`. `replaced_by`: the completion time of the
    replacecommit that ended a group; a plan from before that may need the group. `protected`: paths to keep.
    `archived`: completion times of archived writes of logs. `written_ms`: see `earliest_retained`.
    """
    paths, earliest = tuple(paths), earliest_retained(policy, timeline, now_ms, written_ms)
    if timeline.pending(Action.RESTORE):
        return Removable(earliest, {})
    # A pending write may rewrite slices that were the latest at its begin.
    since = min([*([earliest.begin] if earliest else []), *timeline.unfinished], default=None)
    taken = {*files_of_no_instant(timeline, paths)}
    for group, slices in _committed(timeline, paths, archived).items():
        needed = _needed(policy, [begin for begin, _ in slices], since, replaced_by.get(group))
        taken |= {path for begin, files in slices if begin not in needed for path in files}
    return Removable(earliest, names_by_partition(sorted(taken - protected)))


def earliest_retained(
    policy: Policy, timeline: Timeline, now_ms: int, written_ms: Mapping[str, int] = MappingProxyType({})
) -> Instant | None:
    """First begun of the completed writes that `policy` retains; `KeepHours` retains at least the last.

    None without writes, or for `KeepVersions`. `written_ms`: when the store got completed files, by name; the later of
    this and the completion time counts.
    """
    match policy:
        case KeepVersions():
            return None
        case KeepCommits(commits):
            retained = timeline.writes[-commits:]
        case KeepHours(hours):
            border = format_ms(round(max(0.0, now_ms - hours * _HOUR_MS)))  # `hours` may mean for ever
            late = {name for name, ms in written_ms.items() if format_ms(ms) >= border}
            retained = tuple(i for i in timeline.writes if (i.completion or "") >= border or i.file_name in late)
            retained = retained or timeline.writes[-1:]
    return min(retained, key=lambda instant: instant.begin, default=None)


def _needed(policy: Policy, begins: list[str], since: str | None, replaced_by: str | None) -> set[str]:
    """Begin times of one file group's slices to keep: the latest, those from `since` on, and one before.

    `KeepVersions` adds the latest `versions`; without `since`, other policies keep all. Appends `replaced_by`, the
    completion time of the write that ended the group, to `begins` (oldest first), unless None; it counts as the latest.
    """
    versions = policy.versions if isinstance(policy, KeepVersions) and replaced_by is None else 1
    if replaced_by is not None:
        begins.append(replaced_by)
    needed = set(begins[-versions:])
    if since is not None:
        needed |= {begin for begin in begins if begin >= since}
        needed |= set([begin for begin in begins if begin < since][-1:])
    elif not isinstance(policy, KeepVersions):
        needed |= set(begins)
    return needed


def _committed(
    timeline: Timeline, paths: Iterable[str], archived: Mapping[str, str]
) -> dict[FileGroup, list[tuple[str, list[str]]]]:
    """Each file group's completed slices, oldest first, as begin time and paths.

    Logs before any base file have an empty begin time. `archived`: completion times by begin.
    """
    bases: dict[FileGroup, dict[str, list[str]]] = {}
    logs: list[tuple[FileGroup, str, str]] = []
    for group, file, path in data_files_in(paths):
        if not timeline.visible(file.begin):
            continue
        if isinstance(file, LogFile):
            completion = timeline.completions.get(file.begin) or archived.get(file.begin, file.begin)
            logs.append((group, completion, path))
        else:
            bases.setdefault(group, {}).setdefault(file.begin, []).append(path)
    for group, completion, path in logs:
        by_begin = bases.setdefault(group, {})
        by_begin.setdefault(max((begin for begin in by_begin if begin <= completion), default=""), []).append(path)
    return {group: sorted(slices.items()) for group, slices in bases.items()}


@dataclass(frozen=True, slots=True)
class KeepActive:
    """Number of writes that stay on the timeline.

    Attributes:
        least: number that stays (`hoodie.keep.min.commits`).
        most: up to this number nothing is archived (`hoodie.keep.max.commits`).

    >>> settings = TableSettings(archival=KeepActive(least=100, most=150))
    """

    least: int = 20
    most: int = 30

    @classmethod
    def of(cls, least: int | None, most: int | None) -> KeepActive:
        """If only one value is given, the other is ten away.

        >>> KeepActive.of(least=40, most=None)
        KeepActive(least=40, most=50)
        """
        if least is None:
            return cls() if most is None else cls(max(1, most - 10), most)
        return cls(least, least + 10 if most is None else most)

    @property
    def fault(self) -> str:
        """Reason why these values are impossible; empty if they are whole and 1 <= `least` < `most`."""
        whole = all(isinstance(number, int) and not isinstance(number, bool) for number in (self.least, self.most))
        if whole and 1 <= self.least < self.most:
            return ""
        return (
            f"hoodie.keep.min.commits={self.least!r} and hoodie.keep.max.commits={self.most!r} are not possible: "
            "give whole numbers, keep at least one commit, and let the second be greater than the first"
        )


@dataclass(frozen=True, slots=True)
class Archivable:
    """Completed instant with all its files."""

    completed: tuple[Instant, ...]
    pending: tuple[Instant, ...] = ()

    @classmethod
    def of(cls, files: Iterable[Instant]) -> Archivable:
        files = tuple(files)
        return cls(tuple(i for i in files if i.is_completed), tuple(i for i in files if not i.is_completed))

    @property
    def done(self) -> Instant:
        """Latest completed state, which counts; a clean may have two."""
        return max(self.completed, key=lambda instant: instant.completion or "")


@dataclass(frozen=True, slots=True)
class ArchivalFacts:
    """Facts for an archival plan, read under the lock.

    Attributes:
        paths: all data files, listed before `now`.
        replaced: file groups that each replacecommit ended, by its begin time.
        victims: what unfinished rollbacks take back.
        logs: begin times of writes whose log files are read by completion time.
        listed: metadata table's last compaction, empty if never; None without one.
        earliest: oldest write that the cleaner's retention needs.
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
    """Instants to archive, oldest first; `held`: why they are fewer than asked for."""

    actions: tuple[Archivable, ...]
    held: str = ""


def surplus(timeline: Timeline, earliest: str, keep: KeepActive) -> int:
    """Number of writes to archive; those since `earliest`, and one before, stay."""
    count = len(timeline.writes)
    needed = sum(write.begin > earliest for write in timeline.writes) + 2 if earliest else 0
    least = max(keep.least, needed)
    return count - least if count > keep.most + least - keep.least else 0


def archival_plan(facts: ArchivalFacts, keep: KeepActive, *, at_most: int) -> ArchivalPlan:
    """Oldest instants to archive: up to `at_most` of the `surplus`, with cleans and rollbacks in between.

    At least one write stays. If `facts` forbid some, `held` says why.
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
    """Yield begin time and reason of each fact that holds back instants from then on (empty: all)."""
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
    groups = {group for group, _, _ in data_files_in(facts.paths)}
    replace = min((begin for begin, ended in facts.replaced.items() if ended & groups), default="")
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
    """Begin of the last write before `begin` without a savepoint, or empty text."""
    savepoints = {instant.begin for instant in timeline.instants if instant.action is Action.SAVEPOINT}
    return max(
        (write.begin for write in timeline.writes if write.begin < begin and write.begin not in savepoints), default=""
    )


def _with_all_files(timeline: Timeline, writes: list[Instant]) -> tuple[Archivable, ...]:
    """`writes` and completed cleans and rollbacks begun before the last, oldest first, with pending files.

    Empty without `writes`.
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
