"""Background writes to the lock folder: checkpoints and notes from footers."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from fsspec_cas import CasError
from lockprovider import LockRecord
from lockprovider.table.errors import TableError
from lockprovider.table.format.layout import data_file_at, format_ms
from lockprovider.table.format.metadata import WriteStat
from lockprovider.table.state import checkpoint
from lockprovider.table.state.as_of import may_lack_files
from lockprovider.table.state.checkpoint import Checkpoint
from lockprovider.table.state.knowledge import TableView
from lockprovider.table.timeline.view import FileSlice

if TYPE_CHECKING:
    from lockprovider.table.state.context import TableContext

_DAY_MS = 86_400_000


def store_notes(table: TableContext, begin: str, stats: Iterable[WriteStat]) -> None:
    """Cache the footer notes in `stats`; if enough are due, store them in the background, ignoring errors."""
    if paths := table.place.footer_notes.take_due(stats):
        table.store.in_background(partial(_ignoring_errors, _store_notes, table, begin, paths))


def store_checkpoint(table: TableContext, position: int) -> None:
    """Store the checkpoint of a log position, a multiple of `EVERY`, in the background, ignoring errors."""
    table.store.in_background(partial(_ignoring_errors, _write_checkpoint, table, position // checkpoint.EVERY))


def _ignoring_errors(write: Callable[..., None], *args: object) -> None:
    with contextlib.suppress(CasError, TableError):
        write(*args)


def _store_notes(table: TableContext, begin: str, paths: Iterable[str]) -> None:
    if table.place.footer_notes.put(table.store, begin, paths):
        _merge_notes(table, table.snapshot_of(table.timeline()).slices)


def _merge_notes(table: TableContext, slices: Iterable[FileSlice]) -> None:
    """Join three or more objects of footer notes in one; if it wins, delete all sources but the last two.

    Leaves out files that neither `slices` nor a write of the last day has.
    """
    paths, since = {file_slice.path for file_slice in slices}, format_ms(table.world.now_ms() - _DAY_MS)

    def is_kept(path: str) -> bool:
        at = data_file_at(path)
        return path in paths or (at is not None and at[1].begin > since)

    table.place.footer_notes.merge(table.store, is_kept)


def _write_checkpoint(table: TableContext, number: int) -> None:
    """Store the table's checkpoint `number` and footer notes; delete an older checkpoint.

    May list and cache files, and merge the stored notes. Does nothing if no log covers the table, or it ends during the
    listing.
    """
    view = _complete_view(table, table.lock.look())
    if view is None:
        return
    slices = tuple((view.slices or {}).values())
    contents = Checkpoint(view.log, view.position, view.timeline, slices)
    table.store.put_if_absent(checkpoint.checkpoint_path(view.log, number), contents.encode(), create_once=True)
    if number > checkpoint.KEPT:
        table.store.delete(checkpoint.checkpoint_path(view.log, number - checkpoint.KEPT))
    if table.place.footer_notes.put(table.store, view.timeline.latest_time, [file_slice.path for file_slice in slices]):
        _merge_notes(table, slices)


def _complete_view(table: TableContext, record: LockRecord | None) -> TableView | None:
    """Table at this lock record with its file slices, listed and cached if absent.

    None: no log covers the record, or during the listing the log ended or files may have gone.
    """
    view = table.current.view_by_log(record)
    if view is None or view.slices is not None:
        return view
    snapshot = table.snapshot_of(view.timeline)
    later = table.lock.look()  # A removal of files during the listing has ended the log.
    if later is None or later.log is None or later.log.name != view.log or may_lack_files(table, view.timeline):
        return None
    slices = table.knowledge.cache_files(snapshot).slices
    return replace(view, slices={file_slice.group: file_slice for file_slice in slices})
