"""The files that a clean may remove, by the retention policy. Pure.

Never removed: the latest slice of a live file group, files in a savepoint, files that a pending write may read. Always
removed: files of no instant, which archival would make visible.

Source: Hudi `CleanPlanner`, `CleanerUtils.getEarliestCommitToRetain`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

from lockprovider.table.format.instant import Instant, format_ms
from lockprovider.table.format.layout import FileGroup, LogFile, data_files_in, names_by_partition
from lockprovider.table.timeline.timeline import Timeline
from lockprovider.table.timeline.view import files_of_no_instant

_HOUR_MS = 3_600_000


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
    """Keep the last `versions` slices of each file group (`hoodie.clean.fileversions.retained`).

    >>> settings = TableSettings(retention=KeepVersions(3))
    """

    versions: int = 3
    name = "KEEP_LATEST_FILE_VERSIONS"


Policy = KeepCommits | KeepHours | KeepVersions


@dataclass(frozen=True, slots=True)
class Removable:
    """Removable file names by partition. `earliest`: the oldest commit that stays complete, None by versions."""

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
    """Return the files that a clean may remove; removes none. List `paths` BEFORE `timeline`.

    `replaced_by`: the begin of the replacecommit that ended a group.
    `protected`: paths to keep. `archived`: completion times of archived writes of logs. `written_ms`: see
    `earliest_retained`.
    """
    earliest = earliest_retained(policy, timeline, now_ms, written_ms)
    # A pending write may rewrite the slices that were the latest when it began.
    since = min([*([earliest.begin] if earliest else []), *timeline.unfinished], default=None)
    taken = {*files_of_no_instant(timeline, paths)}
    for group, slices in _committed(timeline, paths, archived).items():
        needed = _needed(policy, [begin for begin, _ in slices], since, replaced_by.get(group))
        taken |= {path for begin, files in slices if begin not in needed for path in files}
    return Removable(earliest, names_by_partition(sorted(taken - protected)))


def earliest_retained(
    policy: Policy, timeline: Timeline, now_ms: int, written_ms: Mapping[str, int] = MappingProxyType({})
) -> Instant | None:
    """Return the retained commit that began first, else the last commit; None for `KeepVersions`, or no commit.

    Files that a late commit replaced are still needed. `written_ms`: when completed files were written, by a better
    clock than in their names; the later time counts.
    """
    match policy:
        case KeepVersions():
            return None
        case KeepCommits(commits):
            retained = timeline.writes[-commits:]
        case KeepHours(hours):
            border = format_ms(now_ms - round(hours * _HOUR_MS))
            late = {name for name, ms in written_ms.items() if format_ms(ms) >= border}
            retained = tuple(i for i in timeline.writes if (i.completion or "") >= border or i.file_name in late)
            retained = retained or timeline.writes[-1:]
    return min(retained, key=lambda instant: instant.begin, default=None)


def _needed(policy: Policy, begins: list[str], since: str | None, replaced_by: str | None) -> set[str]:
    """Return the begin times of one file group's slices to keep; appends `replaced_by`, if any, to `begins`.

    `begins`: oldest first. `since`: readers need the slices from this begin time on, and the one before it; None: all,
    but for `KeepVersions`.
    """
    versions = policy.versions if isinstance(policy, KeepVersions) else 1
    if replaced_by is not None:
        begins.append(replaced_by)  # its end counts as its latest version
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
    """Return begin time and paths of each file group's completed slices, oldest first.

    Logs belong to the last slice that began before they completed; those without one to a slice with an empty begin
    time.
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
