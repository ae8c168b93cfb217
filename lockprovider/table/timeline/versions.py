"""Versions and moments, which name the table's states, and the commits and changed rows between two."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from datetime import datetime, timedelta, timezone
from enum import Enum
from typing import Literal, Protocol, get_args, runtime_checkable

import pyarrow as pa
import pyarrow.compute as pc

from fsspec_cas import InvalidInput
from fsspec_cas.arguments import shown
from lockprovider.table.errors import Corrupt, HistoryGone
from lockprovider.table.format.layout import Action, Instant, InstantState, format_ms, to_ms
from lockprovider.table.format.metadata import CommitMetadata
from lockprovider.table.format.schema import COMMIT_SEQNO, RECORD_KEY
from lockprovider.table.timeline.timeline import Timeline
from lockprovider.table.timeline.view import file_ids_by_partition

By = Literal["completion", "begin"]
_TIMES = "give yyyyMMddHHmmssSSS in UTC, 2026-11-22T08:30:00Z, or a datetime with a time zone"
_EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)
# Python 3.10's `fromisoformat` reads fewer forms.
_ISO = re.compile(
    r"(\d{4}-\d\d-\d\d)[T ](\d\d:\d\d)(?:(:\d\d)(?:\.(\d+))?)?(?:Z|([+-]\d\d)(?::?(\d\d))?)", re.ASCII | re.IGNORECASE
)


@dataclass(frozen=True, slots=True)
class AsOf:
    """Moment in the table's past, to the millisecond, including commits at it.

    By begin, as in Hudi's own readers, it includes commits that finished after it, so it is only certain once all
    earlier begun commits are done.

    >>> AsOf("20261122083000000").by
    'completion'
    """

    time: str
    by: By = "completion"

    def __post_init__(self) -> None:
        """Raise `InvalidInput` for an unknown `by`."""
        if not isinstance(self.by, str) or self.by not in get_args(By):
            raise InvalidInput(f"by={shown(self.by)} is unknown: use {' or '.join(get_args(By))}")

    @classmethod
    def of(cls, when: str | datetime | AsOf) -> AsOf:
        """Parse 17 (or 14) digits of UTC as on the timeline, ISO text with its zone, or an aware datetime.

        Raises:
            InvalidInput: `when` is none of these.

        >>> AsOf.of("2026-11-22T08:30:00Z").time
        '20261122083000000'
        """
        return cls(time_text(when.time), when.by) if isinstance(when, AsOf) else cls(time_text(when))

    def includes(self, done: Instant) -> bool:
        return (done.begin if self.by == "begin" else done.completion or "") <= self.time


def time_text(when: str | datetime) -> str:
    """Time as 17 digits in UTC, cut to milliseconds; raises `InvalidInput`.

    `when`: 17 digits, 14 (their second's last millisecond), ISO text with its zone, or an aware datetime.
    """
    try:
        if isinstance(when, str) and when.isdigit():
            return format_ms(to_ms(when))
        moment = _of_iso(when) if isinstance(when, str) else when
        if isinstance(moment, datetime) and moment.tzinfo is not None:
            return format_ms((moment - _EPOCH) // timedelta(milliseconds=1))
    except (Corrupt, ValueError, OverflowError) as error:  # An offset may move a time out of Python's years.
        raise InvalidInput(f"{shown(when)} is not a time: {_TIMES}") from error
    raise InvalidInput(f"{shown(when)} is not a time: {_TIMES}")


def _of_iso(text: str) -> datetime:
    """Parse ISO text with its zone, cut to microseconds; other text raises `ValueError`."""
    if (match := _ISO.fullmatch(text)) is None:
        raise ValueError("this is no ISO text with a zone")
    day, clock, seconds, fraction, hours, minutes = match.groups()
    fraction = (fraction or "")[:6].ljust(6, "0")
    return datetime.fromisoformat(f"{day}T{clock}{seconds or ':00'}.{fraction}{hours or '+00'}:{minutes or '00'}")


def rewound(timeline: Timeline, keep: Callable[[Instant], bool]) -> Timeline:
    """Timeline with completed writes that `keep` rejects pending again."""

    def then(instant: Instant) -> Instant:
        stays = not (instant.is_completed and instant.changes_rows) or keep(instant)
        return instant if stays else replace(instant, state=InstantState.INFLIGHT, completion=None)

    return Timeline(tuple(map(then, timeline.instants)))


@runtime_checkable
class DoneCommit(Protocol):
    """Completed commit, as writes return it and `history` lists it."""

    @property
    def instant(self) -> str:
        """Begin time."""

    @property
    def completion(self) -> str:
        """Completion time."""


TableVersion = str | datetime | AsOf | DoneCommit
LastArchived = Callable[[], str]  # the last archived completion time, or empty


def moment_of_version(timeline: Timeline, version: TableVersion, last_archived: LastArchived) -> AsOf:
    """May raise `InvalidInput` or `HistoryGone`."""
    if isinstance(version, AsOf):
        return AsOf.of(version)
    return AsOf(checkpoint_of(timeline, version, Order.COMPLETION, last_archived))


def check_version(version: TableVersion) -> None:
    """Raise `InvalidInput` if `version` cannot name a version."""
    if not isinstance(version, DoneCommit):
        AsOf.of(version)


def checkpoint_of(timeline: Timeline, version: TableVersion, order: Order, last_archived: LastArchived) -> str:
    """Time up to which commits belong to `version`: of completion by `Order.COMPLETION`, else of begin.

    A commit's time becomes its time in this order. Raises `InvalidInput` for no version or an `AsOf` of the other
    order, `HistoryGone` for a commit's result that the table lacks.
    """
    if isinstance(version, AsOf):
        if version.by != ("completion" if order is Order.COMPLETION else "begin"):
            raise InvalidInput(
                f"{version} cannot be compared with the times of order={order.value!r}; give a version, or a time alone"
            )
        return time_text(version.time)
    if isinstance(version, (str, datetime)):
        time = time_text(version)
        commit = None if version != time else _named(timeline, time, order, last_archived)
        return time if commit is None else order.time_of(commit)
    if not isinstance(version, DoneCommit):
        return time_text(version)  # raises `InvalidInput`
    return _of_done(timeline, version, order, last_archived)


def is_empty(version: TableVersion) -> bool:
    """Whether this is the version of a table without commits."""
    return isinstance(version, str) and not version


def refuse_none(version: TableVersion | None) -> None:
    """Raise `InvalidInput` for None, and for what cannot name a version."""
    if version is None or is_empty(version):
        raise InvalidInput(f"{version!r} is no version; give a commit's result, or a Table.version from before")
    check_version(version)


def commit_of(timeline: Timeline, version: TableVersion | None, last_archived: LastArchived) -> Instant:
    """Last commit at `version`, or of the table if None.

    Raises `HistoryGone` without one, or if 17 digits are no commit's time; `InvalidInput` for an `AsOf` by begin.
    """
    if version is None:
        if not timeline.writes:
            raise HistoryGone("the table has no commit; write some rows first")
        return timeline.writes[-1]
    moment = moment_of_version(timeline, version, last_archived)
    if moment.by == "begin":
        raise InvalidInput(
            f"{moment} counts by begin, which names no state after a commit; give a version, or a time of completion"
        )
    commits = [instant for instant in timeline.writes if moment.includes(instant)]
    is_named = any(version in (i.begin, i.completion) for i in timeline.writes)
    if commits and (is_named or not is_instant(version)):
        return commits[-1]
    problem = (
        f"no commit began or completed at {version}" if is_instant(version) else f"no commit completed by {moment.time}"
    )
    if archived := last_archived():
        problem += f", and those up to {archived} are archived: no restore or savepoint can use them"
    raise HistoryGone(f"{problem}; choose a commit of `history()`, or give the time as ISO text for the state at it")


def is_instant(version: object) -> bool:
    """Whether this is a time of 17 digits; other digits raise `InvalidInput` if they are no time."""
    return isinstance(version, str) and version.isdigit() and time_text(version) == version


def _named(timeline: Timeline, time: str, order: Order, last_archived: LastArchived) -> Instant | None:
    """Commit that completed or began at this time, by `order`; None if none, or it may be archived."""
    by_completion = next((i for i in timeline.writes if i.completion == time), None)
    by_begin = next((i for i in timeline.writes if i.begin == time), None)
    first, second = (by_completion, by_begin) if order is Order.COMPLETION else (by_begin, by_completion)
    if first is None and second is not None and time <= last_archived():
        return None  # it may be the time of an archived commit
    return second if first is None else first


def _of_done(timeline: Timeline, commit: DoneCommit, order: Order, last_archived: LastArchived) -> str:
    """Completion or begin time of a commit's result, by `order`.

    Raises `InvalidInput` for empty times, `HistoryGone` if the timeline lacks it and it completed after
    `last_archived()`.
    """
    if not all(isinstance(time, str) and time for time in (commit.instant, commit.completion)):
        raise InvalidInput(f"{shown(commit)} has made no commit; give Table.version for the table as it is")
    is_known = any((i.begin, i.completion) == (commit.instant, commit.completion) for i in timeline.writes)
    if not is_known and commit.completion > last_archived():
        raise HistoryGone(
            f"commit {commit.instant}, completed {commit.completion}, is not in the table: it was taken back, or it is "
            "another table's; choose one of its history"
        )
    return commit.completion if order is Order.COMPLETION else commit.instant


# Source of incremental reads: Hudi RFC-22; `IncrementalQueryAnalyzer`.
OPERATION = "_operation"
INSERT, UPDATE, DELETE = "insert", "update", "delete"
_ID = (RECORD_KEY, COMMIT_SEQNO)
# A compaction is no fence: in any order it changes no row.
_FENCES = (Action.COMMIT, Action.DELTACOMMIT, Action.REPLACECOMMIT, Action.CLUSTERING)


class Order(str, Enum):
    """Order in which a consumer gets commits. Its checkpoint is the time up to which it has seen them.

        order       checkpoint is     a commit is given when              a late finisher is
        completion  a completion time it is completed                     given when it completes
        fenced      a begin time      all that began before it are done   waited for: nothing passes a pending write
        begin       a begin time      it is completed                     MISSED, if a later one was given before

    `begin` is for consumers that must agree with Hudi's readers before 1.0.

    >>> rows = pa.table({"id": [1]})
    >>> table = Table.create("memory://docs/trips", TableSpec("trips", rows, "id"))
    >>> len(table.changes(order=Order.FENCED).commits)
    1
    """

    COMPLETION = "completion"
    FENCED = "fenced"
    BEGIN = "begin"

    def time_of(self, done: Instant) -> str:
        """Commit's time to compare with a checkpoint."""
        return (done.completion or "") if self is Order.COMPLETION else done.begin


@dataclass(frozen=True, slots=True)
class Window:
    """Commits for a consumer, with the table's states before and after them.

    `checkpoint`: consumer's next one, by the last of these commits, else the last archived one or the old one.
    """

    commits: tuple[Instant, ...]
    checkpoint: str
    before: Timeline
    then: Timeline


def latest_checkpoint(timeline: Timeline, order: Order) -> str:
    """Checkpoint after all completed writes."""
    return max(map(order.time_of, timeline.writes), default="")


def window(timeline: Timeline, after: str, until: str, order: Order, archived: str = "") -> Window:
    """Completed commits with a time in (after, until], oldest first, a checkpoint, and timelines at both.

    The checkpoint is the latest of their times, `after` and `archived`. Empty `after`: from the beginning.
    `Order.FENCED`: commits begun before the oldest pending write.
    """
    fence = min(timeline.pending(*_FENCES), default="") if order is Order.FENCED else ""
    passed = [i for i in timeline.writes if not fence or i.begin < fence]
    commits = tuple(sorted((i for i in passed if after < order.time_of(i) <= until), key=order.time_of))
    checkpoint = max(after, archived, *map(order.time_of, commits))
    return Window(
        commits=commits,
        checkpoint=checkpoint,
        before=rewound(timeline, lambda i: order.time_of(i) <= after),
        then=rewound(timeline, lambda i: order.time_of(i) <= checkpoint),
    )


def touched(commits: Iterable[CommitMetadata]) -> dict[str, frozenset[str]]:
    """File groups that commits wrote or ended, by partition."""
    return file_ids_by_partition(group for metadata in commits for group in metadata.file_groups)


def changed_rows(old: pa.Table, new: pa.Table) -> pa.Table:
    """One partition's changed rows: inserted and updated ones of `new`, then deleted ones of `old`.

    A first column `OPERATION` says which. Rows are compared by key and sequence number, which survive a rewrite.
    """
    old_ids, new_ids = _ids(old), _ids(new)
    arrived = new.filter(pc.invert(pc.is_in(new_ids, value_set=old_ids)))
    removed = old.filter(pc.invert(pc.is_in(old_ids, value_set=new_ids)))
    arrived_keys, removed_keys = (rows.column(RECORD_KEY).combine_chunks() for rows in (arrived, removed))
    deleted = removed.filter(pc.invert(pc.is_in(removed_keys, value_set=arrived_keys)))
    is_update = pc.is_in(arrived_keys, value_set=removed_keys)
    return pa.concat_tables(
        [
            _labelled(arrived, pc.if_else(is_update, UPDATE, INSERT)),
            _labelled(deleted.select(arrived.column_names), pa.repeat(DELETE, deleted.num_rows)),
        ]
    )


def _ids(rows: pa.Table) -> pa.Array:
    key, number = (rows.column(name).combine_chunks().fill_null("") for name in _ID)
    return pc.binary_join_element_wise(number, key, "/")  # a number has no slash


def _labelled(rows: pa.Table, labels: pa.Array) -> pa.Table:
    return rows.add_column(0, pa.field(OPERATION, pa.string()), labels)
