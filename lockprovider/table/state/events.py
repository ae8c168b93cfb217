"""What a table tells its watcher while a transaction runs: for progress, pictures and metrics."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from typing import Literal, get_args

EventKind = Literal[
    "begin",  # an instant was taken; data files may be written from here on
    "written",  # all data files and markers are in the store, nobody sees them yet
    "lock_wait",  # the writer asks for the table lock
    "lock_held",  # it has it
    "committed",  # the completed instant is on the timeline
    "conflict",  # another commit touched the same file groups first; this instant will be rolled back
    "rolled_back",  # an instant (own or a dead writer's) and its files were removed
    "lock_released",  # the lock is free again
    "cleaned",  # files that no reader needs any more were removed
    "archived",  # the oldest instants are in the archive, and off the timeline
    "anchored",  # buckets of new partitions got their first files, for non-blocking writers
    "compaction_scheduled",  # which log files are to be merged is on the timeline
    "compaction_unscheduled",  # it is not any more
    "compacted",  # they are merged
    "listing_compacted",  # the log files of the metadata table are merged
    "clustering_scheduled",  # which small files are to be joined is on the timeline
    "clustering_unscheduled",  # it is not any more
    "clustered",  # they are joined
    "savepoint",  # a commit's files are kept from now on
    "restored",  # later commits were taken back
    "service_failed",  # a compaction or clustering by the writer itself failed; its commit stands
    "retry",  # the transaction starts over from a fresh snapshot
    "progress",  # a step of a long read or write has begun, or a part of it is done; see `state.progress`
    "left_out",  # a batch of a stream was in the table already, or had no rows; nothing was committed
]


# What the logger `lockprovider.table` says at INFO, or as a warning; the rest is at DEBUG.
_STEPS: frozenset[EventKind] = frozenset({"begin", "written", "lock_wait", "lock_held", "lock_released", "progress"})
WARNED: frozenset[EventKind] = frozenset({"service_failed"})
LOGGED: frozenset[EventKind] = frozenset(get_args(EventKind)) - _STEPS


@dataclass(frozen=True, slots=True)
class TableEvent:
    """One thing that happened to one instant, at one moment.

    `at_ms` is this process's own wall clock in epoch ms, UTC: good for drawing, not for ordering commits.

    >>> seen = []
    >>> rows = pa.table({"id": [1]})
    >>> table = Table.create("memory://docs/trips", TableSpec("trips", rows, "id"), watcher=seen.append)
    >>> done = table.append(rows)
    >>> event = next(one for one in seen if one.instant == done.instant)
    """

    kind: EventKind
    at_ms: int
    instant: str
    detail: dict[str, object] = field(default_factory=dict)

    def to_json(self) -> dict[str, object]:
        """The event as a JSON-able mapping.

        >>> sorted(event.to_json())
        ['at_ms', 'detail', 'instant', 'kind']
        """
        return asdict(self)


Watcher = Callable[[TableEvent], None]


def nobody(event: TableEvent) -> None:
    """Watch nothing."""
    del event
