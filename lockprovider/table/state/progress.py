"""How far a long write or read has come: told to the table's watcher, and shown on a terminal or in the log.

Each engine tells its steps as events of the kind `progress`. Their `detail` has `step` (what is done), `number` and
`of` (the step's number, and how many the write has at most), `done` and `total` (files or partitions; None: unknown).
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, TextIO, TypeVar

from lockprovider.table.state.events import TableEvent

if TYPE_CHECKING:
    from lockprovider.table.state.context import TableContext

T = TypeVar("T")
_LOG = logging.getLogger("lockprovider.table")
_WIDTH = 24
_TENTHS = 10


def counted(table: TableContext, begin: str, step: str, results: Iterable[T], total: int) -> Iterator[T]:
    """The results of the only step as they come; each is told of."""
    for done, one in enumerate(results, start=1):
        table.tell("progress", begin, step=step, number=1, of=1, done=done, total=total)
        yield one


class ShowProgress:
    """A watcher that shows how far reads and writes are: a line with a bar on a terminal, lines of the log elsewhere.

    The log is that of the logger `lockprovider.table`, at INFO: each step, and each tenth of it. Reads and writes of
    pyarrow, pandas and polars tell each file or partition, Dask's local schedulers each task, Spark and a Dask cluster
    each step: what is inside a step their own dashboards show.

    Not promised: one line for each of several threads that write at once.

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
        return {}  # a copy in another process writes to that process's standard error

    def __setstate__(self, state: dict[str, object]) -> None:
        ShowProgress.__init__(self)

    def __call__(self, event: TableEvent) -> None:
        """Show it, if it is of the kind `progress`; whatever else happens ends the line."""
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
