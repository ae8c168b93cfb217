"""The start of a write: take an instant with its own begin time, pending on the timeline, with a heartbeat.

All instants completed on a timeline read after `.requested` was created began earlier. So the instant began after all
in older snapshots, and is pending in newer ones. JVM writers judge by that.

Source: Hudi `BaseHoodieWriteClient.startCommit`, `HoodieHeartbeatClient`.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

from fsspec_cas import CasError, Won
from lockprovider import NotAcquired
from lockprovider.table.errors import Aborted, PropertiesChanged
from lockprovider.table.format.instant import Action, Instant, InstantState
from lockprovider.table.format.layout import TIMELINE, heartbeat_path
from lockprovider.table.format.metadata import encode_replace_pending
from lockprovider.table.services import rollback
from lockprovider.table.state.heartbeat import WriterHeartbeat
from lockprovider.table.timeline.timeline import Timeline

if TYPE_CHECKING:
    from lockprovider.table.format.properties import TableConfig
    from lockprovider.table.state.context import TableContext
    from lockprovider.table.state.knowledge import TableView

_REQUEST_S = 60.0  # for the inflight file
_FRESH_S = 10.0  # from the choice of a begin time until it is taken


@dataclass(frozen=True, slots=True)
class InstantKind:
    """The purpose of an instant; `config`: the table's properties as its writer knows them."""

    action: Action
    operation: str
    config: TableConfig


@dataclass(frozen=True, slots=True)
class Started:
    """An instant of this writer: pending, with a heartbeat.

    `view`: the table, read afterwards. `creating`: the creation of the inflight file. `pending`: a timeline with
    others' pending instants, if a check for dead writers is due.
    """

    begin: str
    heartbeat: WriterHeartbeat
    view: TableView
    creating: Future[bool] | None = None
    pending: Timeline | None = None

    def wait_in_flight(self) -> None:
        """Wait until the inflight file exists, by which a JVM rollback expects data files; may raise `CasError`."""
        if self.creating is not None:
            self.creating.result()

    def wait_to_write(self) -> None:
        """Wait until data files may be written; raise `Aborted` if other writers may have removed this instant."""
        self.wait_in_flight()
        self.heartbeat.require_alive()

    def announce_and_clean(self, table: TableContext, snapshot: Timeline) -> None:
        """Report the start, read the properties in the background, and clean up after dead writers if due.

        While another client leads the batch, it reads no properties. An error stops the heartbeat, and passes. Call it
        after the transaction owns this instant.
        """
        if not self.view.is_combined:  # else the leader of the batch reads them
            # After the read of the record, so that the commit need not wait for it.
            table.store.in_background(table.config)
        try:
            table.report("begin", self.begin, snapshot=snapshot.latest_completed_time)
            if self.pending is not None:
                rollback.recover_dead(table, self.pending, self.begin)
                if self.view.has_jvm_writers:
                    rollback.remove_ended_beats(table, self.pending)
        except BaseException:
            self.heartbeat.leave()
            raise

    def end(self, table: TableContext, leftovers: Iterable[str]) -> None:
        """Stop the heartbeat after the commit; delete leftovers and the heartbeat file in the background.

        If JVM writers were seen, the heartbeat file stays (see `rollback.remove_ended_beats`).
        """
        self.heartbeat.leave()
        table.lock.discard(*leftovers, *(() if self.view.has_jvm_writers else (heartbeat_path(self.begin),)))

    def roll_back(self, table: TableContext, files: Sequence[str] | None) -> None:
        """Remove the instant and all its files unless it is completed, then stop the heartbeat and remove its file.

        Swallows store errors and `NotAcquired`; the next writer removes what is left. `files`: all files, removed
        without the lock if the heartbeat is alive and no other process rolls it back. None: more may exist, or another
        writer may still commit them; the lock is acquired.
        """
        try:
            with contextlib.suppress(CasError):
                self.wait_in_flight()  # else the file might appear after its removal
            with contextlib.suppress(CasError, NotAcquired):
                own_files = files if self.heartbeat.alive else None
                if own_files is None or not rollback.roll_back_own(table, self.begin, own_files):
                    rollback.roll_back(table, self.begin, own=True)
        finally:  # last, or others would take this writer for dead and roll back, too
            with contextlib.suppress(CasError):
                self.heartbeat.stop()


def start(table: TableContext, kind: InstantKind, timeline: Timeline) -> Started:
    """Take an instant later than all of `timeline`: start its heartbeat thread, create its pending files.

    Repeats while the time is invalid. Raises `PropertiesChanged` if `kind` has old properties. The caller gives it to
    its transaction, then calls `announce_and_clean`.
    """
    while True:
        begin, chosen_s = timeline.next_time(table.clock.now_ms()), table.world.monotonic_s()
        # The heartbeat comes first: a pending instant without one counts as dead.
        heartbeat = WriterHeartbeat(table.store, begin, table.settings.heartbeat, table.world)
        if not heartbeat.start():  # another writer has that time
            timeline = table.listed_timeline()
            continue
        tried = _take(table, kind, begin, heartbeat, chosen_s)
        if isinstance(tried, Started):
            return tried
        timeline = tried


def resume(table: TableContext, begin: str, view: TableView) -> Started:
    """Start the heartbeat of another process's instant of this writer, and return the instant; `view`: a listed one.

    Raises `Aborted` if it is not pending, or its heartbeat file is gone.
    """
    heartbeat = WriterHeartbeat(table.store, begin, table.settings.heartbeat, table.world)
    if not view.timeline.is_pending(begin) or not heartbeat.resume():
        raise Aborted(f"instant {begin} is not pending any more: others took its writer for dead; begin again")
    return Started(begin, heartbeat, view)


def _take(
    table: TableContext, kind: InstantKind, begin: str, heartbeat: WriterHeartbeat, chosen_s: float
) -> Started | Timeline:
    """Create the instant's pending files, inflight in the background, read the table, and return the instant.

    If its begin time, chosen at `chosen_s`, is invalid, stops the heartbeat, removes the files, and returns the
    timeline read, or raises `PropertiesChanged`. Another error stops the heartbeat, and leaves the files to a cleaner.
    """
    requested, inflight = (Instant(begin, kind.action, s) for s in (InstantState.REQUESTED, InstantState.INFLIGHT))
    plan, profile = encode_replace_pending(kind.operation) if kind.action is Action.REPLACECOMMIT else (b"", b"")
    try:
        # A late instant may begin before writes archived since.
        is_late = table.world.monotonic_s() - chosen_s > _FRESH_S
        if is_late or not _create(table, requested, plan, timeout_s=_FRESH_S):
            heartbeat.stop()
            return table.listed_timeline()
        creating = table.store.in_background(partial(_create, table, inflight, profile, timeout_s=_REQUEST_S))
        view, pending = _look(table)
        if view.listed:  # the listing may be older than the inflight file
            view = replace(view, timeline=view.timeline.plus([inflight]))
        if view.config == kind.config and view.latest_begin < begin and view.timeline.is_alone(requested):
            return Started(begin, heartbeat, view, creating, pending)
        creating.result()  # else the file might appear after its removal
    except BaseException:
        heartbeat.leave()  # a cleaner then removes the instant
        raise
    heartbeat.leave()
    names = (inflight.file_name, requested.file_name)  # in this order
    table.store.delete_all([*(f"{TIMELINE}/{name}" for name in names), heartbeat_path(begin)])
    if view.config != kind.config:
        raise PropertiesChanged("the table's properties were changed by another writer; begin again")
    return view.timeline


def _look(table: TableContext) -> tuple[TableView, Timeline | None]:
    """Read the table and, if a check for dead writers is due, record that check and read others' pending instants.

    If all others' pending writes count as failed (`is_eager`), it lists the table each time, and records nothing.
    """
    if table.settings.is_eager:
        view = table.now(listed=True)
        return view, view.timeline
    return table.current.now_and_pending() if table.begin_dead_check_if_due() else (table.now(), None)


def _create(table: TableContext, instant: Instant, content: bytes, *, timeout_s: float) -> bool:
    outcome = table.store.put_if_absent(f"{TIMELINE}/{instant.file_name}", content, timeout=timeout_s)
    return isinstance(outcome, Won)
