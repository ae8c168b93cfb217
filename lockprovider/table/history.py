"""The table's past: what it was at a time.

Source: RFC-22; Hudi `HoodieTableFileSystemView`, time travel queries.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from lockprovider.table.errors import HistoryGone
from lockprovider.table.timeline import Timeline
from lockprovider.table.view import AsOf, Snapshot, lost, rewound

if TYPE_CHECKING:
    from lockprovider.table.manager import Table


def snapshot_at(table: Table, now: Timeline, moment: AsOf) -> Snapshot:
    """What the table was at a moment.

    Of writes that were archived only their begin is known: they are part of every past that can be asked for.

    Raises:
        HistoryGone: it is before the first write that is still on the timeline, or a file was cleaned.
    """
    then = rewound(now, moment.includes)
    if not then.writes:
        known = f"the first {moment.by} time known is {_first(now, moment)}" if now.writes else "it has no commits"
        raise HistoryGone(f"there is no table at {table.url!r} as of {moment.time}: {known}; ask for a later time")
    seen = table.snapshot(then)
    gone = lost(seen, [(i, table.metadata_of(i)) for i in now.writes if not moment.includes(i)])
    if gone:
        partition, file_id = min(gone)
        raise HistoryGone(
            f"the table as of {moment.time} cannot be read any more: of {len(gone)} file groups the files were "
            f"cleaned, one is {file_id} in partition {partition!r}; ask for a later time"
        )
    return seen


def _first(now: Timeline, moment: AsOf) -> str:
    return min((i.begin if moment.by == "begin" else i.completion or "") for i in now.writes)
