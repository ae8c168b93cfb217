"""The start of a write: an instant that is its writer's alone, pending on the timeline, with a heartbeat.

The begin time exceeds those of all that is completed on a timeline seen after `.requested` was created, and no other
action has it, else it is given up for a later one. Then every writer that took its snapshot before sees an instant that
began later than all in it (so JVM writers judge), and every one after sees it pending; and among the files of one file
group the last that was written began last.

Source: Hudi `BaseHoodieWriteClient.startCommit`, `HoodieHeartbeatClient`.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, replace
from functools import partial
from threading import RLock
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
_FRESH_S = 10.0  # after it was chosen a begin time may be taken


@dataclass(frozen=True, slots=True)
class InstantKind:
    """What an instant is started for; `config` is the table's as its writer knows it."""

    action: Action
    operation: str
    config: TableConfig

    @property
    def contents(self) -> tuple[bytes, bytes]:
        """Of the requested and of the inflight file."""
        return encode_replace_pending(self.operation) if self.action is Action.REPLACECOMMIT else (b"", b"")


@dataclass(frozen=True, slots=True)
class Started:
    """An instant of this writer: pending, with a heartbeat.

    `view` is the table as it was seen after it was taken. `creating`: its inflight file, which may be under way.
    `pending`: a timeline that has what others have pending, if it is time to look for dead writers.
    """

    begin: str
    heartbeat: WriterHeartbeat
    view: TableView
    creating: Future[bool] | None = None
    pending: Timeline | None = None

    def wait_in_flight(self) -> None:
        """Return once its inflight file is there: by that a JVM's rollback knows that there may be data files.

        Raises:
            CasError: it may not be.
        """
        if self.creating is not None:
            self.creating.result()

    def look_around(self, table: TableContext, snapshot: Timeline) -> None:
        """Report the start, on this snapshot, and clean up after dead writers if it is time to."""
        if not self.view.is_combined:  # else the leader of the batch reads them
            # As of after the look at the record: the commit, which writes that itself, need not wait for it.
            table.store.in_background(table.config)
        try:
            table.tell("begin", self.begin, snapshot=snapshot.latest_completed_time)
            if self.pending is not None:
                rollback.clean_dead(table, self.pending, self.begin)
                if self.view.has_guests:
                    rollback.remove_ended_beats(table, self.pending)
        except BaseException:
            self.heartbeat.leave()  # what is left is a dead writer's, then
            raise

    def end(self, table: TableContext, left: Iterable[str]) -> None:
        """End after the commit: what is left over is harmless, no caller waits for it, and `rollback.sweep` removes it.

        Beside JVM writers the heartbeat stays for a while, see `rollback.remove_ended_beats`.
        """
        self.heartbeat.leave()
        table.lock.discard(*left, *(() if self.view.has_guests else (heartbeat_path(self.begin),)))

    def roll_back(self, table: TableContext, files: Sequence[str] | None) -> None:
        """Remove everything that was written; what cannot be removed now is left to the next writer.

        `files`: all of it, which takes no lock; None: there may be more, or another writer may commit it yet.
        """
        try:
            with contextlib.suppress(CasError):
                self.wait_in_flight()  # else it might come after what removes it
            with contextlib.suppress(CasError, NotAcquired):
                mine = files if self.heartbeat.alive else None
                if mine is None or not rollback.take_back_alone(table, self.begin, mine):
                    rollback.roll_back(table, self.begin, own=True)
        finally:  # not before: others would take it for dead at once, and get in each other's way
            with contextlib.suppress(CasError):
                self.heartbeat.stop()


class Passed(Exception):
    """An early start will not do: what was written under its begin time goes, and the write begins again."""


class EarlyStart:
    """An instant that is being taken while its append announces its files; no data file is written yet. Thread-safe.

    `accept` raises if the instant does not fit what the append has assumed; it is called until it has returned once.
    """

    def __init__(self, table: TableContext, kind: InstantKind, accept: Callable[[Started], object]) -> None:
        claimed = _claim(table, table.knowledge.latest)
        self.begin, self.heartbeat = claimed.begin, claimed.heartbeat
        self._taking = table.store.in_background(partial(_take, table, kind, claimed))
        self._accept, self._is_accepted = accept, False
        self._guard = RLock()

    def taken(self) -> Started:
        """Wait for the instant.

        Raises:
            Passed: the time that was claimed will not do.
            PropertiesChanged, CasError: as of `start`.
        """
        found = self._taking.result()
        if not isinstance(found, Started):
            raise Passed
        return found

    def confirm(self) -> None:
        """Return once data files may be written.

        Raises:
            Passed, PropertiesChanged, CasError: they may not; as of `taken` and of what accepts it.
        """
        with self._guard:
            if not self._is_accepted:
                self._accept(self.taken())
                self._is_accepted = True


def start(table: TableContext, kind: InstantKind, known: Timeline) -> Started:
    """Take an instant, later than all that is known; give it to its transaction, and then `look_around`.

    Raises:
        PropertiesChanged: the table is not the one that its writer knows any more; nothing was begun.
        CasError: the store failed; what is left is a dead writer's.
    """
    while not isinstance(tried := _take(table, kind, _claim(table, known)), Started):
        known = tried
    return tried


def resume(table: TableContext, begin: str) -> Started:
    """Take up an instant that another process of the same writer has started.

    Raises:
        Aborted: it is not pending any more.
    """
    heartbeat = WriterHeartbeat(table.store, begin, table.settings.heartbeat, table.world)
    seen = table.now(listed=True)
    if not seen.timeline.is_pending(begin) or not heartbeat.resume():
        raise Aborted(f"instant {begin} is not pending any more: others took its writer for dead; begin again")
    return Started(begin, heartbeat, seen)


@dataclass(frozen=True, slots=True)
class _Claimed:
    """A begin time that no other has, chosen at `chosen_s`."""

    begin: str
    heartbeat: WriterHeartbeat
    chosen_s: float


def _claim(table: TableContext, known: Timeline) -> _Claimed:
    while True:
        begin, chosen_s = known.next_time(table.clock.now_ms()), table.world.monotonic_s()
        # The heartbeat first: a pending instant without one counts as dead.
        heartbeat = WriterHeartbeat(table.store, begin, table.settings.heartbeat, table.world)
        if heartbeat.start():
            return _Claimed(begin, heartbeat, chosen_s)
        known = table.listed_timeline()


def _take(table: TableContext, kind: InstantKind, claimed: _Claimed) -> Started | Timeline:
    """Try to begin at this time; if it will not do, the timeline as it was listed after."""
    heartbeat, requested = claimed.heartbeat, Instant(claimed.begin, kind.action, InstantState.REQUESTED)
    plan, profile = kind.contents
    try:
        # One that comes so late may find itself before what was archived meanwhile.
        is_late = table.world.monotonic_s() - claimed.chosen_s > _FRESH_S
        if is_late or not _create(table, requested, plan, timeout_s=_FRESH_S):
            heartbeat.stop()
            return table.listed_timeline()
        return _verify(table, kind, requested, profile, heartbeat)
    except BaseException:
        heartbeat.leave()  # what is left is a dead writer's, then
        raise


def _verify(
    table: TableContext, kind: InstantKind, requested: Instant, profile: bytes, heartbeat: WriterHeartbeat
) -> Started | Timeline:
    """Whether that time, which is requested now, will do; the timeline as it was seen after, if not."""
    begin = requested.begin
    inflight = Instant(begin, kind.action, InstantState.INFLIGHT)
    creating = table.store.in_background(partial(_create, table, inflight, profile, timeout_s=_REQUEST_S))
    seen, pending = _look(table)
    if seen.listed:  # maybe before it was there
        seen = replace(seen, timeline=seen.timeline.plus([inflight]))
    now = seen.timeline
    if seen.config == kind.config and seen.latest_begin < begin and now.is_alone(requested):
        return Started(begin, heartbeat, seen, creating, pending)
    creating.result()  # else it might come after its removal
    heartbeat.leave()
    names = (inflight.file_name, requested.file_name)  # in this order
    table.store.delete_all([*(f"{TIMELINE}/{name}" for name in names), heartbeat_path(begin)])
    if seen.config != kind.config:
        raise PropertiesChanged("the table's properties were changed by another writer; begin again")
    return now


def _look(table: TableContext) -> tuple[TableView, Timeline | None]:
    """The table now, and what others have pending, if it is time to look for dead writers."""
    if table.settings.is_eager:
        seen = table.now(listed=True)
        return seen, seen.timeline
    return table.current.now_and_pending() if table.may_look_for_dead() else (table.now(), None)


def _create(table: TableContext, instant: Instant, content: bytes, *, timeout_s: float) -> bool:
    outcome = table.store.put_if_absent(f"{TIMELINE}/{instant.file_name}", content, timeout=timeout_s)
    return isinstance(outcome, Won)
