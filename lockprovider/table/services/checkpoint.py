"""Background writes to the lock folder: checkpoints (`state.checkpoint`) and notes from footers (`files.footers`)."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Collection, Iterable
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from fsspec_cas import CasError
from lockprovider import LockRecord
from lockprovider.table.errors import TableError
from lockprovider.table.files.footers import FooterNote
from lockprovider.table.format.instant import format_ms
from lockprovider.table.format.layout import data_file_at
from lockprovider.table.format.metadata import WriteStat
from lockprovider.table.state import checkpoint
from lockprovider.table.state.as_of import may_lack_files
from lockprovider.table.state.checkpoint import Checkpoint
from lockprovider.table.state.knowledge import TableView
from lockprovider.table.timeline.view import FileSlice

if TYPE_CHECKING:
    from lockprovider.table.state.context import TableContext

_DAY_MS = 86_400_000  # Older instants are not pending any more.


def note_files(table: TableContext, begin: str, stats: Collection[WriteStat]) -> None:
    """Cache the footers of an instant's files; store many notes at once, in the background."""
    notes = table.place.footer_notes
    for stat in stats:
        if stat.note:
            notes.add(stat.path, FooterNote.parse(json.loads(stat.note)))
    if paths := notes.written([stat.path for stat in stats if not stat.is_log]):
        table.store.in_background(partial(_quietly, _put, table, begin, paths))


def write_if_due(table: TableContext, place: int) -> None:
    """Write the checkpoint due at this position of the log, if any, in the background."""
    if checkpoint.is_due(place):
        table.store.in_background(partial(_quietly, _write, table, place // checkpoint.EVERY))


def _quietly(write: Callable[..., None], *args: object) -> None:
    with contextlib.suppress(CasError, TableError):
        write(*args)


def _put(table: TableContext, begin: str, paths: Iterable[str]) -> None:
    if table.place.footer_notes.put(table.store, begin, paths):
        _merge(table, table.snapshot_of(table.timeline()).slices)


def _merge(table: TableContext, slices: Iterable[FileSlice]) -> None:
    """Merge footer notes; drop files that neither the table nor a pending write needs."""
    there, since = {one.path for one in slices}, format_ms(table.world.now_ms() - _DAY_MS)

    def is_kept(path: str) -> bool:
        at = data_file_at(path)
        return path in there or (at is not None and at[1].begin > since)

    table.place.footer_notes.merge(table.store, is_kept)


def _write(table: TableContext, number: int) -> None:
    """Store a checkpoint and its files' notes, and delete the checkpoint that is `KEPT` older."""
    seen = _seen(table, table.lock.look())
    if seen is None:
        return
    made = Checkpoint.of(seen.log, seen.position, seen.timeline, (seen.slices or {}).values())
    table.store.put_if_absent(checkpoint.checkpoint_path(seen.log, number), made.encode(), create_once=True)
    if number > checkpoint.KEPT:
        table.store.delete(checkpoint.checkpoint_path(seen.log, number - checkpoint.KEPT))
    slices = (seen.slices or {}).values()
    if table.place.footer_notes.put(table.store, seen.timeline.latest_time, [one.path for one in slices]):
        _merge(table, slices)


def _seen(table: TableContext, record: LockRecord | None) -> TableView | None:
    """Return the table at this record with all files; None if the log does not cover it."""
    seen = table.current.view_by_log(record)
    if seen is None or seen.slices is not None:
        return seen
    snapshot = table.snapshot_of(seen.timeline)
    now = table.lock.look()  # A removal of files during the listing has ended the log.
    if now is None or now.log is None or now.log.name != seen.log or may_lack_files(table, seen.timeline):
        return None
    return replace(seen, slices={one.group: one for one in table.knowledge.cache_files(snapshot).slices})
