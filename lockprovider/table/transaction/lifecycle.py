"""Life of a transaction's instant. Services use `rewrite.executor` instead.

Source: Hudi RFC-22; `BaseHoodieWriteClient`, `HoodieHeartbeatClient`, `TransactionManager`.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, replace
from enum import Enum, auto
from functools import partial
from typing import TYPE_CHECKING

from fsspec_cas import CasError, Won
from lockprovider import (
    Decided,
    Hold,
    Intent,
    Lease,
    LeaseLost,
    LockError,
    LockRecord,
    Pending,
    PublishUnknown,
)
from lockprovider.recipes.errors import Fenced
from lockprovider.table.errors import (
    Aborted,
    AlreadyCommitted,
    Corrupt,
    InvalidRecords,
    PropertiesChanged,
    TableError,
    WriteConflict,
    WrongCheckpoint,
)
from lockprovider.table.format.layout import TIMELINE, Action, Instant, InstantState, heartbeat_path
from lockprovider.table.format.metadata import encode_commit, encode_replace_pending
from lockprovider.table.format.metadata_table import written_files
from lockprovider.table.services import plans, rollback
from lockprovider.table.services.checkpoint import store_checkpoint
from lockprovider.table.state import checkpoint
from lockprovider.table.state.heartbeat import WriterHeartbeat
from lockprovider.table.state.parallel import concurrently
from lockprovider.table.timeline.conflict import completed_since
from lockprovider.table.timeline.timeline import Timeline
from lockprovider.table.transaction import decision
from lockprovider.table.transaction.decision import Basis, Proposal, TableDecider, encode, sample_of

if TYPE_CHECKING:
    from lockprovider.table.format.properties import TableConfig
    from lockprovider.table.state.context import TableContext
    from lockprovider.table.state.knowledge import TableView
    from lockprovider.table.transaction.transaction import Transaction

_REQUEST_S = 60.0  # for the inflight file
_FRESH_S = 10.0  # from the choice of a begin time until it is taken
_TRIES = 8  # of a commit that loses its lease, or whose log ends
_LOGS = 4  # group commits among these tries
_LOOKED_AT = 5  # commits, since those of services carry no keys
_REFUSED = (WriteConflict, Aborted, AlreadyCommitted, WrongCheckpoint, Fenced)


class State(Enum):
    """Progress of a transaction."""

    OPEN = auto()  # no instant yet
    BEGUN = auto()  # data files may be written
    RESUMED = auto()  # begun by another process, which may have asked for the commit
    WRITTEN = auto()  # all files are stored
    ASKED = auto()  # any writer may decide its commit
    REFUSED = auto()  # its commit never becomes visible
    OVER = auto()  # committed or rolled back

    @property
    def may_be_decided(self) -> bool:
        """Whether another writer may still commit it; then a rollback needs the lock."""
        return self in (State.RESUMED, State.ASKED)


class Step(Enum):
    """Event that changes the state."""

    RESUME = auto()
    BEGIN = auto()
    WRITE = auto()
    ASK = auto()
    REFUSE = auto()
    END = auto()


_NEXT: dict[Step, dict[State, State]] = {
    Step.RESUME: {State.OPEN: State.RESUMED},
    Step.BEGIN: {State.OPEN: State.BEGUN, State.BEGUN: State.BEGUN, State.RESUMED: State.RESUMED},
    Step.WRITE: {State.BEGUN: State.WRITTEN, State.RESUMED: State.ASKED},
    Step.ASK: {State.WRITTEN: State.ASKED, State.ASKED: State.ASKED, State.REFUSED: State.ASKED},
    Step.REFUSE: {State.ASKED: State.REFUSED},
    Step.END: dict.fromkeys(State, State.OVER),
}


def after(state: State, step: Step) -> State:
    """State after `step`; raises `Aborted` after the end, else `InvalidRecords`."""
    following = _NEXT[step].get(state)
    if following is None:
        raise _refusal(state, step)
    return following


def _refusal(state: State, step: Step) -> TableError:
    if state is State.OVER:
        return Aborted("this transaction is over, it was committed or rolled back; begin another one")
    if step is Step.ASK:
        return InvalidRecords("nothing was written in this transaction; write first, or do not commit")
    return InvalidRecords("a transaction takes one write; put upserts and deletes into the same one")


@dataclass(frozen=True, slots=True)
class InstantKind:
    """Purpose of an instant; `config`: properties as its writer knows them."""

    action: Action
    operation: str
    config: TableConfig


@dataclass(frozen=True, slots=True)
class Started:
    """Pending instant of this writer, with a heartbeat.

    `view`: table read when it was pending, for the commit's first try. `creating`: creation of the inflight file.
    `pending`: timeline with others' pending instants, if a check for dead writers is due.
    """

    begin: str
    heartbeat: WriterHeartbeat
    view: TableView
    creating: Future[bool] | None = None
    pending: Timeline | None = None

    def wait_in_flight(self) -> None:
        """Wait for the inflight file, else raise `Aborted`: only with it a JVM rollback removes data files."""
        if self.creating is not None and not self.creating.result():
            raise Aborted(f"the inflight file of {self.begin} could not be created: begin again, this write rolls back")

    def wait_to_write(self) -> None:
        """Wait until data files may be written; raise `Aborted` if others may have removed this instant."""
        self.wait_in_flight()
        self.heartbeat.require_alive()

    def announce_and_clean(self, table: TableContext, snapshot: Timeline) -> None:
        """Report the start on `snapshot`; if due, clean up after dead writers and, with JVM writers, ended heartbeats.

        Reads the properties in the background, unless a batch's leader does. An error, also the watcher's, stops the
        heartbeat. Call it after the transaction owns this instant.
        """
        if not self.view.is_combined:  # else the leader of the batch reads them
            # After the record's read: no commit waits for it.
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
        """After the commit, stop the heartbeat; delete leftovers and its file in the background.

        If JVM writers were seen, that file stays (see `rollback.remove_ended_beats`).
        """
        self.heartbeat.leave()
        table.lock.discard(*leftovers, *(() if self.view.has_jvm_writers else (heartbeat_path(self.begin),)))

    def roll_back(self, table: TableContext, files: Sequence[str] | None) -> None:
        """Remove the heartbeat and, unless completed, instant and files; swallows store errors, `LockError`, `Corrupt`.

        `files`: all files, removed without the lock if no other process may roll it back. None: unknown; acquires the
        lock.
        """
        try:
            with contextlib.suppress(CasError, Aborted):
                self.wait_in_flight()  # else the file might appear after its removal
            with contextlib.suppress(CasError, LockError, Corrupt):
                own_files = files if self.heartbeat.alive else None
                if own_files is None or not rollback.roll_back_own(table, self.begin, own_files):
                    rollback.roll_back(table, self.begin, own=True)
        finally:  # last, or others would roll back
            with contextlib.suppress(CasError):
                self.heartbeat.stop()


def start(table: TableContext, kind: InstantKind, timeline: Timeline) -> Started:
    """Take an instant later than all of `timeline`: start its heartbeat, create its pending files.

    Repeats if the time is taken, or a later instant completed. Raises `PropertiesChanged` if `kind` has old properties.
    Call `announce_and_clean` next.
    """
    while True:
        begin, chosen_s = timeline.next_time(table.clock.now_ms()), table.world.monotonic_s()
        heartbeat = WriterHeartbeat(table.store, begin, table.settings.heartbeat, table.world)
        if not heartbeat.start():  # another writer has that time
            timeline = table.listed_timeline()
            continue
        tried = _take(table, kind, begin, heartbeat, chosen_s)
        if isinstance(tried, Started):
            return tried
        timeline = tried


def resume(table: TableContext, begin: str, view: TableView) -> Started:
    """Start the heartbeat of another process's instant; raises `Aborted` if it is not pending. `view`: a listed one."""
    heartbeat = WriterHeartbeat(table.store, begin, table.settings.heartbeat, table.world)
    if not view.timeline.is_pending(begin) or not heartbeat.resume():
        raise Aborted(f"instant {begin} is not pending any more: others took its writer for dead; begin again")
    return Started(begin, heartbeat, view)


def _take(
    table: TableContext, kind: InstantKind, begin: str, heartbeat: WriterHeartbeat, chosen_s: float
) -> Started | Timeline:
    """Create the instant's pending files, inflight in the background, read the table, and return the instant.

    If its begin time, chosen at `chosen_s`, is taken, too old or before a completed one, or properties changed, it
    removes heartbeat and created files. Then it returns the timeline read, or raises `PropertiesChanged`. Another error
    stops the heartbeat, and leaves the files to a cleaner.
    """
    requested, inflight = (Instant(begin, kind.action, s) for s in (InstantState.REQUESTED, InstantState.INFLIGHT))
    plan, profile = encode_replace_pending(kind.operation) if kind.action is Action.REPLACECOMMIT else (b"", b"")
    try:
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
    """Read the table and, if a check for dead writers is due, others' pending instants; record that check.

    If `is_eager`, list it, and record nothing.
    """
    if table.settings.is_eager:
        view = table.now(listed=True)
        return view, view.timeline
    return table.current.now_and_pending() if table.begin_dead_check_if_due() else (table.now(), None)


def _create(table: TableContext, instant: Instant, content: bytes, *, timeout_s: float) -> bool:
    outcome = table.store.put_if_absent(f"{TIMELINE}/{instant.file_name}", content, timeout=timeout_s)
    return isinstance(outcome, Won)


@dataclass(frozen=True, slots=True)
class _Undecided:
    """Try that did not decide the commit.

    Attributes:
        hold: hold the lock from now on.
        unknown: error of a try that may still be decided.
        restoring: timeline with an unfinished restore, to end first.
    """

    hold: bool = False
    unknown: PublishUnknown | None = None
    restoring: Timeline | None = None


@contextlib.contextmanager
def _in_doubt(unknown: PublishUnknown | None, *final: type[Exception]) -> Iterator[None]:
    """Raise `unknown`, if any, in place of the block's error, unless that is `final`."""
    try:
        yield
    except final:
        raise
    except Exception as error:
        if unknown is None:
            raise
        raise unknown from error


class Committing:
    """Commit of one proposal, decided by one call of `run`."""

    def __init__(self, txn: Transaction, started: Started, proposal: Proposal, basis: Basis) -> None:
        self._txn, self._table, self._started = txn, txn.table, started
        self._proposal, self._basis = proposal, basis
        self._listing = written_files(proposal.metadata) if basis.config.metadata_partitions else None
        self._waited_s = 0.0

    def run(self) -> tuple[str, float]:
        """Stage and decide the commit, end transaction and heartbeat; return completion time and seconds waited.

        After an error of `_REFUSED` nothing will be visible; after `PublishUnknown` it may be. After any error the
        heartbeat goes on, and staged copies stay for the rollback.
        """
        self._staged = self._stage(self._proposal.data)
        self._txn.enter(Step.ASK)
        try:
            return self._try_until_decided(), self._waited_s
        except _REFUSED:
            self._txn.enter(Step.REFUSE)
            raise

    def _stage(self, data: bytes) -> Pending:
        staged = self._table.lock.stage(f"{TIMELINE}/{self._proposal.begin}", data, unshared=True)
        self._txn.staged.append(staged)
        return staged

    def _try_until_decided(self) -> str:
        """Try group commits if others can judge, then under the lock; return the completion time.

        Finishes dead restores, removes dead clusterings. Raises `Aborted` after `_TRIES` tries or for a restore that
        goes on, `PublishUnknown` if a try may yet be decided, or the errors of `validate`.
        """
        proposal, table = self._proposal, self._table
        carries = bool(table.settings.carried_keys)  # a lock holder reads them
        alone = bool(self._staged.staged) or self._listing is not None or carries
        unknown, others_can_judge = None, bool(proposal.rule) and not alone
        for tried in range(_TRIES):
            try:
                outcome = self._try_group() if others_can_judge and tried < _LOGS else self._try_held(unknown)
            except WriteConflict as conflict:
                if not self._roll_back_dead_clustering(conflict):
                    raise
                outcome = _Undecided()
            if isinstance(outcome, str):
                return outcome
            unknown, others_can_judge = outcome.unknown or unknown, others_can_judge and not outcome.hold
            with _in_doubt(unknown):
                if outcome.restoring is not None and not rollback.finish_dead_restores(table, outcome.restoring):
                    raise Aborted(
                        "a restore of the table is not finished; wait for it, or repeat the restore, then begin again"
                    )
        raise unknown or Aborted(
            f"instant {proposal.begin} lost its lease {_TRIES} times before its commit; begin again"
        )

    def _roll_back_dead_clustering(self, conflict: WriteConflict) -> bool:
        """Remove this conflict's planned clustering, if its dead maker was to run it; return whether it is gone."""
        begin, _, kind = conflict.lost_to.partition(".")
        if kind != Instant(begin, Action.CLUSTERING, InstantState.REQUESTED).file_name.partition(".")[2]:
            return False
        with contextlib.suppress(CasError, LockError):
            return rollback.take_back_dead_clustering(self._table, begin)
        return False

    def _try_group(self) -> str | _Undecided:
        """Judge the commit and have it decided without the lock; if so, finish and return its completion time.

        Else, also if the outcome is unknown, return why not; a refusal raises. It stores a checkpoint in the background
        if due.
        """
        table, proposal, begin = self._table, self._proposal, self._proposal.begin
        # The start's listing is too old. Another try looks again: a withdrawn intent has used up its name.
        view = self._look() if self._txn.has_used_start_view else replace(self._started.view, listed=False)
        self._txn.has_used_start_view = True
        if not view.listed and view.timeline.written_at(begin) is not None:
            view = table.now(listed=True)  # its log may have ended
        if not view.log:
            return _Undecided(hold=True)
        done = view.timeline.written_at(begin)
        if done is not None and done.completion is not None:
            table.report("committed", begin, completion=done.completion)
            return self._finish(done.completion)  # decided before the log ended
        if view.timeline.pending(Action.RESTORE):
            return _Undecided(restoring=view.timeline)
        if done is None:
            decision.validate(table, proposal, self._basis, self._started.heartbeat, view)
        asked_s = table.world.monotonic_s()
        table.report("lock_wait", begin)
        try:
            intent = Intent(view.log, view.position, proposal.stem, encode(proposal))
            latest = view.timeline.latest_time
            outcome = table.lock.commit(intent, TableDecider(table, latest, self._basis.config, sample_of(proposal)))
        except WriteConflict as conflict:
            table.report("conflict", begin, lost_to=conflict.lost_to, file_groups=len(conflict.file_groups))
            raise
        except PublishUnknown as error:
            return _Undecided(hold=True, unknown=error)  # the next holder finds the outcome
        finally:
            self._waited_s += table.world.monotonic_s() - asked_s
        if isinstance(outcome, Decided):
            name = outcome.path.removeprefix(f"{TIMELINE}/")
            completion = self._note(name, proposal.data)
            if outcome.position > 0 and outcome.position % checkpoint.EVERY == 0:
                store_checkpoint(table, outcome.position)
            return self._finish(completion, outcome.posted)
        return _Undecided(hold=isinstance(outcome, Hold))

    def _note(self, name: str, data: bytes) -> str:
        """Cache and report the commit with this file name; return its completion time."""
        table, completion = self._table, name.partition("_")[2].partition(".")[0]
        table.knowledge.remember(name, data)
        table.knowledge.committed_s[name] = table.world.monotonic_s()
        table.report("committed", self._proposal.begin, completion=completion)
        return completion

    def _finish(self, completion: str, posted: str = "") -> str:
        """End transaction and heartbeat; remove markers, staged copies and `posted` intent in the background."""
        txn = self._txn
        txn.enter(Step.END)
        self._started.end(self._table, filter(None, [*txn.markers, posted, *(copy.staged for copy in txn.staged)]))
        return completion

    def _try_held(self, unknown: PublishUnknown | None) -> str | _Undecided:
        """Acquire the lock, and judge and publish as `_commit_under`.

        `unknown`: the error of an earlier try, whose intent may still be decided. Then a refusal repeats this once with
        the log ended, so that it cannot; after another error, it raises `unknown`.
        """
        with _in_doubt(unknown, *_REFUSED):
            with contextlib.suppress(*_REFUSED if unknown is not None else ()):
                return self._commit_under(self._acquire())
            return self._commit_under(self._acquire(keeps_log=False))

    def _acquire(self, *, keeps_log: bool = True) -> Lease:
        table = self._table
        asked_s = table.world.monotonic_s()
        table.report("lock_wait", self._proposal.begin)
        lease = table.lock.acquire(keeps_log=keeps_log)
        self._waited_s += table.world.monotonic_s() - asked_s
        return lease

    def _commit_under(self, lease: Lease) -> str | _Undecided:
        """Judge and publish under this lease, and release it; if published, finish, and return the completion time.

        Else (lease lost, outcome unknown, restore pending) return why not; a refusal raises.
        """
        table, begin = self._table, self._proposal.begin
        try:
            table.report("lock_held", begin, epoch=lease.epoch)
            view = self._look(lease.record)
            if view.timeline.pending(Action.RESTORE):
                return _Undecided(restoring=view.timeline)
            completion = self._publish(lease, view)
        except LeaseLost:
            return _Undecided()
        except PublishUnknown as error:
            return _Undecided(hold=True, unknown=error)
        finally:
            with contextlib.suppress(CasError):  # an unreleased lock expires
                lease.release()
            table.report("lock_released", begin)
        return self._finish(completion)

    def _publish(self, lease: Lease, view: TableView) -> str:
        """Judge the commit, write a metadata table's listing, publish the completed file; return its completion time.

        The file has carried keys. Caches and reports it; if `view` has the commit already, only returns the time.
        Errors of `validate` and the lease pass through.
        """
        table, proposal, timeline = self._table, self._proposal, view.timeline
        done = timeline.written_at(proposal.begin)
        if done is not None and done.completion is not None:
            return done.completion
        decision.validate(table, proposal, self._basis, self._started.heartbeat, view)
        first, completion = None, timeline.next_time(table.clock.now_ms(), proposal.begin)  # the log lacks its begin
        if self._listing is not None:
            self._txn.is_listed = True
            first, completion = plans.begin_listing(table, lease, proposal.begin, self._listing, timeline)
        name = proposal.completed(completion).file_name
        data = self._with_carried_keys(timeline)
        staged = self._staged if data is proposal.data else self._stage(data)
        # `new`: only this writer has the begin time, and the completion time exceeds all listed ones.
        lease.publish(replace(staged, path=f"{TIMELINE}/{name}", first=first), data, new=True)
        return self._note(name, data)

    def _with_carried_keys(self, timeline: Timeline) -> bytes:
        """Encoded commit, with entries by the setting `carried_keys` of the newest commit that has some.

        Reads `_LOOKED_AT` commits at most. Its own entries win.
        """
        prefixes, metadata = self._table.settings.carried_keys, self._proposal.metadata
        for instant in reversed(timeline.writes[-_LOOKED_AT:]) if prefixes else ():
            extra = self._table.metadata_of(instant).extra
            carried = {key: value for key, value in extra.items() if key.startswith(prefixes)}
            if carried:
                return encode_commit(replace(metadata, extra={**carried, **metadata.extra}))
        return self._proposal.data

    def _look(self, record: LockRecord | None = None) -> TableView:
        """Return the table now, listed if its log is not the start's; cache the metadata of commits to validate.

        `record`: the held lock's; None: read it.
        """
        table = self._table
        view = table.now(record)
        if not view.listed and view.log != self._started.view.log:
            view = table.now(record, listed=True)
        done = completed_since(self._basis.timeline, view.timeline)
        needed = dict.fromkeys((*self._basis.compared(self._proposal, done), *done[-1:]))
        concurrently(table.store, [partial(table.metadata_of, other) for other in needed])
        return view
