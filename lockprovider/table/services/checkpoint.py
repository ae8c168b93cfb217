"""Writing the checkpoint beside the lock; see `state.checkpoint`."""

from __future__ import annotations

import contextlib
from dataclasses import replace
from typing import TYPE_CHECKING

from fsspec_cas import CasError
from lockprovider import LockRecord
from lockprovider.table.errors import TableError
from lockprovider.table.state import checkpoint
from lockprovider.table.state.cache import KnownView
from lockprovider.table.state.stale import has_gone_stale
from lockprovider.table.timeline.checkpoint import Checkpoint

if TYPE_CHECKING:
    from lockprovider.table.state.context import TableContext


def write_if_due(table: TableContext, place: int) -> None:
    """Write the one that is due behind this place of the lock's log, if one is; nobody waits for it."""
    if checkpoint.is_due(place):
        table.store.in_background(lambda: _write_quietly(table, place // checkpoint.EVERY))


def _write_quietly(table: TableContext, number: int) -> None:
    with contextlib.suppress(CasError, TableError):
        _write(table, number)


def _write(table: TableContext, number: int) -> None:
    seen = _seen(table, table.lock.look())
    if seen is None:
        return
    made = Checkpoint.of(seen.log, seen.place, seen.timeline, (seen.slices or {}).values())
    table.store.put_if_absent(checkpoint.checkpoint_path(seen.log, number), made.encode(), create_once=True)
    if number > checkpoint.KEPT:
        table.store.delete(checkpoint.checkpoint_path(seen.log, number - checkpoint.KEPT))
    paths = [one.path for one in (seen.slices or {}).values() if one.path]
    table.place.key_notes.write(table.store, seen.timeline.latest_time, paths)


def _seen(table: TableContext, record: LockRecord | None) -> KnownView | None:
    """The table by this record, with all its files; None if that is not to be known."""
    log = None if record is None or not record.tells_all else record.log
    seen = table.current.known(log)
    if log is None or seen is None or seen.slices is not None:
        return seen
    snapshot = table.snapshot_of(seen.timeline)
    now = table.lock.look()  # others may have removed files while they were listed; then the log has ended
    if now is None or now.log is None or now.log.name != log.name or has_gone_stale(table, seen.timeline):
        return None
    return replace(seen, slices={one.group: one for one in table.memory.found(snapshot).slices})
