"""A commit, on its way: decided in its turn at the table lock, once or never.

    turn      the lock need not be held, as a commit is all that is done: a publish at the version at which the lock was
              seen free is enough. It is held by one that was overtaken again and again; and while an earlier try may be
              on its way: to take the lock is what makes an end of that
    look      the table, as of that version: read while the turn is waited for
    validate  see `validate`
    publish   the completed file, fenced

The completion time is made in the turn and exceeds everything on the timeline. A lost lease, an answer that is not
known, or a look that may be of what is not there: the next turn sees what became of it.

Source: Hudi RFC-22; `TransactionManager`, `BaseHoodieWriteClient.commitStats`.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

from fsspec_cas import CasError
from lockprovider import FreeLock, Lease, LeaseLost, LockError, LockRecord, Pending, PublishUnknown
from lockprovider.table.errors import Aborted, AlreadyCommitted, TableError, WriteConflict
from lockprovider.table.format.instant import Action
from lockprovider.table.format.layout import TIMELINE
from lockprovider.table.format.metadata import encode_commit
from lockprovider.table.services import restore
from lockprovider.table.state.prefetch import Prefetch, at_once
from lockprovider.table.timeline.timeline import Timeline
from lockprovider.table.transaction import validate
from lockprovider.table.transaction.proposal import Proposal
from lockprovider.table.transaction.start import Started

if TYPE_CHECKING:
    from lockprovider.table.state.context import TableContext
    from lockprovider.table.state.current import TableView

_LEASES = 8  # how often a commit may lose its lease, or its turn, before it gives up
_TURNS = 2  # how often its turn


@dataclass(frozen=True, slots=True)
class _Again:
    """This turn came to nothing. `hold`: be the holder from the next on."""

    hold: bool = False
    unknown: PublishUnknown | None = None  # it may have been decided
    restoring: Timeline | None = None  # a restore is pending


class Committing:
    """The commit of one proposal; good for one `run`."""

    def __init__(self, table: TableContext, mine: Started, proposal: Proposal, announced: Iterable[str]) -> None:
        self._proposal = proposal
        self._table = table
        self._mine = mine
        self._announced = announced  # the markers, of no use once it is committed
        self._data = encode_commit(proposal.metadata)

    def run(self) -> tuple[str, float]:
        """The completion time, and the seconds waited for the lock.

        Raises:
            WriteConflict, Aborted, AlreadyCommitted: as `validate` does; nothing of it will be visible.
            PublishUnknown: it may have been decided.
            NotAcquired, CasError: the lock or the store.
        """
        lock = self._table.lock
        staged = lock.enclose(f"{TIMELINE}/{self._proposal.begin}", self._data, sole=True)
        try:
            return self._in_some_turn(staged)
        except (WriteConflict, Aborted, AlreadyCommitted):
            with contextlib.suppress(CasError, LockError):
                lock.unstage(staged)
            raise

    def _in_some_turn(self, staged: Pending) -> tuple[str, float]:
        table, begin = self._table, self._proposal.begin
        waited_s, hold, again = 0.0, False, _Again()
        for tried in range(_LEASES):
            asked_s = table.world.monotonic_s()
            table.tell("lock_wait", begin)
            prefetch, lease = self._turn(hold=hold or tried >= _TURNS)
            try:
                waited_s += table.world.monotonic_s() - asked_s
                came = self._try(prefetch, lease, staged)
            finally:
                with contextlib.suppress(CasError):  # an unreleased lock lapses; the commit stands
                    lease.release()
                table.tell("lock_released", begin)
            if isinstance(came, str):
                return came, waited_s
            again, hold = came, hold or came.hold
            if again.restoring is not None and not restore.finish_left(table, again.restoring):
                raise Aborted("a restore of the table is not finished; wait for it, or restore again, then begin again")
        if again.unknown is not None:
            raise again.unknown
        raise Aborted(f"instant {begin} lost its lease {_LEASES} times before its commit; begin again")

    def _turn(self, *, hold: bool) -> tuple[Prefetch[TableView], Lease | FreeLock]:
        table = self._table
        prefetch = Prefetch(table.store, self._look, skips_first=table.memory.is_contended)
        if hold:
            return prefetch, table.lock.acquire(meanwhile=prefetch, keeps_log=True)
        return prefetch, table.lock.wait_for_turn(meanwhile=prefetch)

    def _look(self, record: LockRecord) -> TableView:
        """The table now, with what the validation is going to read of it at hand.

        If the log is the one of the start, nobody has rolled this instant back.
        """
        table, log = self._table, record.log
        others_count = self._proposal.is_table_service  # with what they have pending
        seen = table.now(record, listed=log is None or log.name != self._mine.log or others_count)
        needed = validate.needed(table, self._proposal, seen.timeline)
        at_once(table.store, [partial(table.metadata_of, other) for other in needed])
        return seen

    def _try(self, prefetch: Prefetch[TableView], lease: Lease | FreeLock, staged: Pending) -> str | _Again:
        """The completion time, if it came to that."""
        table, begin = self._table, self._proposal.begin
        try:
            table.memory.is_contended = prefetch.tries > 1
            table.tell("lock_held", begin, epoch=lease.epoch)
            seen = prefetch.result(lease.record)
            if isinstance(lease, FreeLock) and lease.record.unapplied and seen.timeline.written_at(begin):
                return _Again(hold=True)  # mine is decided, and may not be there; it is before one who takes the lock
            if seen.timeline.pending(Action.RESTORE):
                return _Again(restoring=seen.timeline)
            completion = self._publish(lease, staged, seen)
            self._mine.end(table, [*self._announced, *filter(None, [staged.staged])])
        except LeaseLost:
            return _Again()
        except PublishUnknown as error:
            return _Again(hold=True, unknown=error)  # the next holder (me, if I get it) sees what was decided
        except TableError:
            if isinstance(lease, Lease) or (lease.looked and not lease.record.unapplied):
                raise
            return _Again(hold=True)  # it was validated by a record that may be gone, or by what may not be there
        else:
            return completion

    def _publish(self, lease: Lease | FreeLock, staged: Pending, seen: TableView) -> str:
        table, proposal, now = self._table, self._proposal, seen.timeline
        done = now.written_at(proposal.begin)
        if done is not None and done.completion is not None:
            return done.completion  # decided under an earlier lease of mine, and rolled forward
        if seen.listed:
            table.memory.learn(lease.record.log, len(lease.record.unapplied), now, seen.config, decided=True)
        validate.validate(table, proposal, self._mine.heartbeat, seen)
        completion = now.next_time(table.world.now_ms(), proposal.begin)  # by a log, `now` has it not
        name = proposal.completed(completion).file_name
        # New: its begin time is mine alone, and its completion time is above all that was listed under this lease.
        lease.publish_last(replace(staged, path=f"{TIMELINE}/{name}"), self._data)
        table.memory.remember(name, self._data)
        table.tell("committed", proposal.begin, completion=completion)
        return completion
