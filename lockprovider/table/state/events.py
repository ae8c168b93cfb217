"""Events of a table, which its watcher gets."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from typing import Literal, TextIO

EventKind = Literal[
    "begin",  # data files may be written
    "written",  # all files are stored, not yet visible
    "lock_wait",
    "lock_held",
    "committed",  # the completed instant is on the timeline
    "conflict",  # another operation came first, or its snapshot is gone
    "rolled_back",  # an own or a dead writer's instant, with its files
    "lock_released",
    "cleaned",
    "archived",
    "anchored",  # bare buckets got empty files, for non-blocking writers
    "compaction_scheduled",
    "compaction_unscheduled",
    "compacted",
    "listing_compacted",  # in the metadata table
    "clustering_scheduled",
    "clustering_unscheduled",
    "clustered",
    "savepoint",
    "restored",
    "service_failed",  # the commit stands
    "retry",  # the transaction begins again
    "progress",  # a step began, or a part of it is done; see `ShowProgress`
    "left_out",  # a stream's batch: committed already, or no rows
]


MAY_STOP: frozenset[EventKind] = frozenset(
    {"begin", "written", "lock_wait", "lock_held", "progress", "conflict", "retry"}
)
# Logged at DEBUG.
STEPS: frozenset[EventKind] = frozenset({"begin", "written", "lock_wait", "lock_held", "lock_released", "progress"})


@dataclass(frozen=True, slots=True)
class TableEvent:
    """Event of one instant; `instant` is empty without one.

    `at_ms` is this process's wall clock in epoch ms; do not order commits by it. After a finished step, such as
    `committed`, a watcher's error is logged; else it stops the work and is raised.

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
        """Event as a JSON-able mapping.

        >>> sorted(event.to_json())
        ['at_ms', 'detail', 'instant', 'kind']
        """
        return asdict(self)


Watcher = Callable[[TableEvent], None]


def ignore_event(event: TableEvent) -> None:
    del event


# `detail` of a `progress` event: `step` (name), `number`, `of` (most steps), `done`, `total` (None: unknown).
_LOG = logging.getLogger("lockprovider.table")
_WIDTH = 24
_TENTHS = 10


class ShowProgress:
    """Watcher that shows the progress of reads and writes: a bar on a terminal, log lines elsewhere.

    The logger `lockprovider.table` gets each step, and each tenth of it, at INFO. Spark and a Dask cluster report only
    each step, other engines each file or partition. Not promised: one line for each of several threads.

    >>> rows = pa.table({"id": [1]})
    >>> table = Table.create("memory://docs/trips", TableSpec("trips", rows, "id"), watcher=ShowProgress())
    >>> table.append(rows).inserted
    1
    """

    def __init__(self, stream: TextIO | None = None) -> None:
        self._stream = stream
        self._last: tuple[object, ...] = ()

    def __repr__(self) -> str:
        return f"<{type(self).__name__} on {'standard error' if self._stream is None else self._stream!r}>"

    def __getstate__(self) -> dict[str, object]:
        return {}  # a copy writes to its own process's standard error

    def __setstate__(self, state: dict[str, object]) -> None:
        ShowProgress.__init__(self)

    def __call__(self, event: TableEvent) -> None:
        """Show a `progress` event on a terminal, or log each tenth; any other event clears the terminal's line."""
        stream = self._stream or sys.stderr
        is_terminal = stream is not None and stream.isatty()
        if event.kind != "progress":
            if is_terminal and self._last:
                stream.write("\r\x1b[K")
                stream.flush()
            self._last = ()
            return
        text, tenths = _text(event), _tenths(event)
        if is_terminal:
            stream.write(f"\r{text} {_bar(tenths)}\x1b[K")
            stream.flush()
        elif (event.instant, event.detail["number"], tenths) != self._last:
            _LOG.info("%s", text)
        self._last = (event.instant, event.detail["number"], tenths)


def _text(event: TableEvent) -> str:
    detail = event.detail
    whole = "" if detail["total"] is None else f" {detail['done']}/{detail['total']}"
    return f"hudi: {detail['number']} of {detail['of']}, {detail['step']}{whole}"


def _tenths(event: TableEvent) -> int | None:
    done, total = event.detail["done"], event.detail["total"]
    return min(done, total) * _TENTHS // total if isinstance(done, int) and isinstance(total, int) and total else None


def _bar(tenths: int | None) -> str:
    if tenths is None:
        return ""
    full = tenths * _WIDTH // _TENTHS
    return f"[{'#' * full}{'.' * (_WIDTH - full)}]"
