"""One transaction: begin, write, and the commit that happens once or never.

    begin   the snapshot is one listing of the timeline; nothing is written yet
    start   with the first write: heartbeat, `.requested`, `.inflight`, at a begin time that will do (see `starting`)
    write   engines put markers and data files under names that carry the begin time; nobody reads them
    commit  under the table lock: the instant is still pending and its heartbeat alive, the table is still what it was,
            nothing completed since the snapshot touched the same file groups -> fenced publish of the completed file

Completion times are made under the lock and exceed everything on the timeline.

Source: Hudi RFC-22; `BaseHoodieWriteClient`, `TransactionManager`.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

import pyarrow as pa

from fsspec_cas import CasError
from lockprovider import FreeLock, Lease, LeaseLost, LockRecord, Pending, PublishUnknown
from lockprovider.table import archived, restore, rollback
from lockprovider.table import schema as hudi_schema
from lockprovider.table.ahead import Ahead, at_once
from lockprovider.table.bucket_groups import check_written
from lockprovider.table.conflict import (
    TABLE_SERVICES,
    Operation,
    archived_since,
    by_bucket,
    by_file_group,
    completed_since,
    prefer_writer,
    undone_since,
)
from lockprovider.table.errors import (
    ARCHIVED,
    Aborted,
    AlreadyCommitted,
    InvalidRecords,
    TableError,
    WriteConflict,
)
from lockprovider.table.heartbeat import WriterHeartbeat
from lockprovider.table.instant import Action, Instant, State
from lockprovider.table.key_check import KeyCheck, look_for_keys, refuse_shared
from lockprovider.table.layout import TIMELINE, markers_dir, parse_marker
from lockprovider.table.metadata import (
    REPLACING,
    CommitMetadata,
    WriteStat,
    encode_commit,
)
from lockprovider.table.once import Once, committed_in
from lockprovider.table.pending import pending_writes, planned_services
from lockprovider.table.properties import TableConfig, check_writable
from lockprovider.table.starting import Intent, Started, resume, start
from lockprovider.table.timeline import Timeline
from lockprovider.table.view import FileSlice, Snapshot, lost

if TYPE_CHECKING:
    from lockprovider.table.manager import Table
    from lockprovider.table.present import Now

_LEASES = 8  # how often a commit may lose its lease, or its turn, before it gives up
_TURNS = 2  # how often its turn


@dataclass(frozen=True, slots=True)
class CommitResult:
    """What a transaction came to.

    `instant` is its begin time, `completion` its completion time (17 digits, UTC). `attempts` counts the runs of the
    function given to `transact`, `conflicts` those that lost.
    """

    instant: str
    completion: str
    inserted: int
    updated: int
    deleted: int
    file_groups: tuple[tuple[str, str], ...]
    attempts: int
    conflicts: int
    lock_wait_s: float


class Transaction:
    """One instant of one writer; not thread-safe, and good for one commit."""

    def __init__(self, table: Table, *, pinned: bool = True) -> None:
        self.table = table
        now = table.now() if pinned else None
        self.config: TableConfig = now.config if now is not None else table.memory.config or table.config()
        check_writable(self.config)
        self._timeline: Timeline | None = None if now is None else now.timeline
        self.extra: dict[str, str] = {}
        self.operation = "UPSERT"
        self._action = Action.COMMIT
        self._replaced: dict[str, tuple[str, ...]] = {}
        self._schema_json: str | None = None
        self._snapshot: Snapshot | None = None
        self._instant: Started | None = None
        self._stats: tuple[WriteStat, ...] | None = None
        self._data = b""  # of the completed file
        self._announced: list[str] = []  # the markers that this process has written
        self._writes_elsewhere: bool | None = None
        self._once: Once | None = None
        self.check_keys = table.settings.check_keys
        self._keys: KeyCheck | None = None

    @classmethod
    def resume(cls, table: Table, begin: str) -> Transaction:
        """Take up an instant that another process of the same writer began, to commit it or to roll it back.

        Its snapshot is of now: for writes that only add file groups. A replacecommit replaces all there are now.

        Raises:
            Aborted: it is not pending any more.
        """
        txn = cls(table)
        mine = resume(table, begin, txn.timeline)
        if any(i.begin == begin and i.action is Action.REPLACECOMMIT for i in txn.timeline.instants):
            txn.overwrite(txn.snapshot.partitions, "INSERT_OVERWRITE_TABLE")
        txn._instant = mine
        return txn

    @property
    def timeline(self) -> Timeline:
        """What was completed when this transaction began; if nothing was read before its start, when it started."""
        if self._timeline is None:
            self._timeline = self.table.timeline()
        return self._timeline

    @property
    def schema_json(self) -> str | None:
        """The table's Avro schema, without meta columns, as this transaction's commit will state it."""
        if self._schema_json is None:
            self._schema_json = hudi_schema.to_avro(self.table.schema(self.timeline), self.config.name)
        return self._schema_json

    @property
    def snapshot(self) -> Snapshot:
        """The rows this transaction reads; conflicts are judged against it."""
        if self._snapshot is None:
            known = self.table.memory.snapshot(self.timeline)
            found = known or self.table.memory.found(self.table.snapshot(self.timeline))
            self._snapshot = self._snapshot or found  # threads that read partitions at once go by the same
        return self._snapshot

    @property
    def begin(self) -> str:
        """The begin time; empty until something is written."""
        return "" if self._instant is None else self._instant.begin

    def exactly_once(self, once: Once) -> None:
        """Say which batch of a stream this is; the commit carries it, and is refused if another one did before.

        Raises:
            AlreadyCommitted: it is in the table; `commit` looks again, under the lock.
        """
        self._once = once
        self.extra.update(once.note())
        done = committed_in(self.table, self.timeline, once)
        # What is decided, and not there yet, may not come to be: then the commit finds out, under the lock.
        if done is not None and (done.file_name not in self.timeline.names or self.table.has(done)):
            raise once.found_in(done)

    def start(self) -> str:
        """Take an instant, if not done yet: after this, data files may be written under its begin time."""
        return self._started().begin

    def _started(self) -> Started:
        if self._instant is None:
            intent = Intent(self._action, self.operation, self.config)
            mine = self._instant = start(self.table, intent, self._timeline or self.table.memory.latest)
            mine.look_around(self.table, self._timeline or mine.seen)
            self._timeline = self._timeline or mine.seen
        return self._instant

    def columns(self, check: Callable[[pa.Schema], object]) -> pa.Schema:
        """The table's schema, of a transaction that has started then; `check` refuses input, before it if possible."""
        seen = self.table.memory.schema
        if self._timeline is None and seen is not None and _passes(check, seen):
            self.start()  # else it may have got a column since
        schema = self.table.schema(self.timeline)
        check(schema)
        self.start()
        return schema

    @property
    def partitions(self) -> set[str]:
        """The partitions that are known to have a metafile; to be added to."""
        return self.table.memory.partitions_at(self.timeline)

    def announce(self, marker: str) -> None:
        """A marker that this process is about to write."""
        self._announced.append(marker)

    def write_here(self) -> None:
        """This process writes files, and announces them."""
        self._writes_elsewhere = self._writes_elsewhere or False

    def write_elsewhere(self) -> None:
        """Other processes write files too: what they announce is looked for in the store."""
        self._writes_elsewhere = True

    def overwrite(self, partitions: Iterable[str], operation: str = "INSERT_OVERWRITE") -> None:
        """Let all rows that the snapshot has in these partitions end with this commit; before anything is written.

        Rows that come in by other writers meanwhile, in new file groups, stay: they count as written after. With
        `add(())` the partitions are emptied (`operation` is `DELETE_PARTITION` then, in Hudi's words).

        Raises:
            InvalidRecords: something was written already, or the operation replaces nothing.
        """
        if self._instant is not None:
            raise InvalidRecords("overwrite comes first in a transaction, before its first write; begin another one")
        if operation not in REPLACING:
            raise InvalidRecords(f"operation {operation!r} replaces nothing; use one of {sorted(REPLACING)}")
        self._action, self.operation = Action.REPLACECOMMIT, operation
        for old in self.snapshot.within(partitions):
            self._replaced[old.partition] = (*self._replaced.get(old.partition, ()), old.file_id)

    def remaining(self, partitions: Iterable[str]) -> tuple[FileSlice, ...]:
        """What the snapshot has in these partitions, without what this transaction lets end."""
        seen = self.snapshot.within(partitions)
        return tuple(old for old in seen if old.file_id not in self._replaced.get(old.partition, ()))

    def add_columns(self, columns: pa.Schema) -> None:
        """Let the table have these columns too, from this commit on; older rows have nulls there.

        A column that is there already with this type stays as it is.

        Raises:
            UnsupportedSchema: a column is there with another type, or is of a type that cannot be stored.
        """
        evolved = hudi_schema.with_columns(self.table.schema(self.timeline), columns)
        self._schema_json = hudi_schema.to_avro(evolved, self.config.name)

    def add(self, stats: Iterable[WriteStat]) -> None:
        """Say which data files were written; once, after all of them are in the store.

        Raises:
            InvalidRecords: called twice, or a file is of a file group that ends with this commit.
        """
        if self._stats is not None:
            raise InvalidRecords("a transaction takes one write; put upserts and deletes into the same one")
        self.start()
        found = tuple(stats)
        ended = [stat.path for stat in found if stat.file_id in self._replaced.get(stat.partition, ())]
        if ended:
            raise InvalidRecords(f"files {ended} are of file groups that are overwritten; insert their rows instead")
        check_written(self.config, found)
        self._stats = found

    def commit(self, *, conflicts: int = 0) -> CommitResult:
        """Make the write visible, if no other got in the way; then it is visible for good.

        Raises:
            WriteConflict: a commit that completed since the snapshot touched the same file groups.
            Aborted: this instant was rolled back, its heartbeat expired, or the table changed.
            AlreadyCommitted: this batch was committed before, see `exactly_once`.
            InvalidRecords: nothing was written.
        """
        if self._stats is None:
            raise InvalidRecords("nothing was written in this transaction; write first, or do not commit")
        self._remove_strays(self._stats)
        self.table.tell("written", self.begin, files=len(self._stats))
        if self.check_keys:
            self._keys = look_for_keys(self, self._stats)
        self._data = encode_commit(self._metadata(self._stats))
        staged = self.table.lock.enclose(f"{TIMELINE}/{self.begin}", self._data, sole=True)
        try:
            completion, waited_s = self._commit_under_lock(self._started(), staged, self._stats)
        except (WriteConflict, Aborted, AlreadyCommitted):
            with contextlib.suppress(CasError):
                self.table.lock.unstage(staged)
            raise
        return self._result(completion, conflicts, waited_s, self._stats)

    def leave(self) -> None:
        """Let go of the instant: another process of this writer has taken it up, or nobody will."""
        if self._instant is not None:
            self._instant.heartbeat.leave()

    def rollback(self) -> None:
        """Remove everything this transaction wrote; nothing of it was visible.

        What cannot be removed now is left to the next writer, who will find this one's heartbeat expired.
        """
        if self._instant is not None:
            self._instant.roll_back(self.table)

    def _metadata(self, stats: tuple[WriteStat, ...]) -> CommitMetadata:
        by_partition: dict[str, tuple[WriteStat, ...]] = {}
        for stat in stats:
            by_partition[stat.partition] = (*by_partition.get(stat.partition, ()), stat)
        return CommitMetadata(by_partition, self._operation_name, self.schema_json, self.extra, self._replaced)

    @property
    def _operation_name(self) -> str:
        """An engine that knows no overwrite may have said otherwise."""
        replaces = self._action is Action.REPLACECOMMIT and self.operation not in REPLACING
        return "INSERT_OVERWRITE" if replaces else self.operation

    def _remove_strays(self, stats: tuple[WriteStat, ...]) -> None:
        """Delete data files that were announced by a marker and are not part of the commit: of failed task attempts."""
        store, mine = self.table.store, {stat.path for stat in stats}
        if self._writes_elsewhere is not False:
            self._announced = [entry.path for entry in store.list(f"{markers_dir(self.begin)}/")]
        for path in self._announced:
            marker = parse_marker(path)
            if marker is not None and marker.data_path not in mine:
                store.delete(marker.data_path)

    def _commit_under_lock(self, mine: Started, staged: Pending, stats: tuple[WriteStat, ...]) -> tuple[str, float]:
        """The completion time, and the seconds waited for the lock."""
        table, waited_s, hold, unknown = self.table, 0.0, False, None
        for tried in range(_LEASES):
            asked_s = table.world.monotonic_s()
            table.tell("lock_wait", self.begin)
            ahead = Ahead(table.store, self._look, wary=table.memory.is_contended)
            lease = self._turn(ahead, hold=hold or tried >= _TURNS)
            try:
                waited_s, unknown = waited_s + table.world.monotonic_s() - asked_s, None
                table.memory.is_contended = ahead.tries > 1
                table.tell("lock_held", self.begin, epoch=lease.epoch)
                seen = ahead.result(lease.record)
                if isinstance(lease, FreeLock) and lease.record.undone and seen.timeline.written_at(self.begin):
                    hold = True  # mine is decided, and may not be there; it is before one who takes the lock
                    continue
                if not seen.timeline.pending(Action.RESTORE):
                    completion = self._publish(lease, mine.heartbeat, staged, stats, seen)
                    mine.end(table, [*self._announced, *filter(None, [staged.staged])])
                    return completion, waited_s
            except LeaseLost:
                continue
            except PublishUnknown as error:
                hold, unknown = True, error
                continue  # the next holder (me, if I get it) sees what was decided
            except TableError:
                if isinstance(lease, Lease) or (lease.looked and not lease.record.undone):
                    raise
                hold = True  # it was judged by a record that may be gone, or by what may not be there
                continue
            finally:
                with contextlib.suppress(CasError):  # an unreleased lock lapses; the commit stands
                    lease.release()
                table.tell("lock_released", self.begin)
            if not restore.finish_left(table, seen.timeline):
                raise Aborted("a restore of the table is not finished; wait for it, or restore again, then begin again")
        if unknown is not None:
            raise unknown
        raise Aborted(f"instant {self.begin} lost its lease {_LEASES} times before its commit; begin again")

    def _turn(self, ahead: Ahead[Now], *, hold: bool) -> Lease | FreeLock:
        """A commit is all that is done, so the lock need not be held, but by one that was overtaken again and again.

        And not while an earlier try may be on its way: to take the lock is what makes an end of that.
        """
        lock = self.table.lock
        return lock.acquire(meanwhile=ahead, keeps_log=True) if hold else lock.wait_for_turn(meanwhile=ahead)

    def _look(self, record: LockRecord) -> Now:
        """The table now, with what the check is going to read of it at hand.

        If the log is the one of the begin, nobody has rolled this instant back.
        """
        table, log = self.table, record.log
        others_count = self.operation in TABLE_SERVICES  # with what they have pending
        seen = table.now(record, listed=log is None or log.name != self._started().log or others_count)
        done = completed_since(self.timeline, seen.timeline)
        needed = done if self._may_overlap else done[-1:]
        at_once(table.store, [partial(table.metadata_of, other) for other in needed])
        return seen

    def _publish(
        self,
        lease: Lease | FreeLock,
        heartbeat: WriterHeartbeat,
        staged: Pending,
        stats: tuple[WriteStat, ...],
        seen: Now,
    ) -> str:
        now = seen.timeline
        done = now.written_at(self.begin)
        if done is not None and done.completion is not None:
            return done.completion  # decided under an earlier lease of mine, and rolled forward
        if seen.listed:
            self.table.memory.learn(lease.record.log, len(lease.record.undone), now, seen.config, decided=True)
        self._check_alive(heartbeat, seen)
        self._check_once(now)
        self._check_conflicts(now, stats)
        mine = Instant(self.begin, self._action, State.INFLIGHT)  # by a log, `now` has it not
        completion = now.plus([mine]).next_time(self.table.world.now_ms())
        name = Instant(self.begin, self._action, State.COMPLETED, completion).file_name
        # New: its begin time is mine alone, and its completion time is above all that was listed under this lease.
        lease.publish_last(replace(staged, path=f"{TIMELINE}/{name}"), self._data)
        self.table.memory.remember(name, self._data)
        self.table.tell("committed", self.begin, completion=completion)
        return completion

    def _check_alive(self, heartbeat: WriterHeartbeat, seen: Now) -> None:
        begin, now = self.begin, seen.timeline
        if seen.listed and not now.is_pending(begin):
            raise Aborted(f"instant {begin} was rolled back by another writer, who took it for dead; begin again")
        if not heartbeat.alive:
            raise Aborted(f"the heartbeat of instant {begin} expired; others may roll it back; begin again")
        if rollback.is_planned(self.table, now, begin):
            raise Aborted(f"a rollback of instant {begin} is planned; begin again")
        if seen.config != self.config:
            check_writable(seen.config)
            raise Aborted("the table's properties were changed by another writer; open it again, and begin again")

    def _check_once(self, now: Timeline) -> None:
        done = None if self._once is None else committed_in(self.table, now, self._once)
        if self._once is not None and done is not None:
            raise self._once.found_in(done)

    def _check_conflicts(self, now: Timeline, stats: tuple[WriteStat, ...]) -> None:
        table, mine = self.table, self._as_operation(stats)
        if undone_since(self.timeline, now):
            raise WriteConflict(self.begin, max(_restores(now), default="a restore"), ())
        if self._may_have_missed(now):
            raise WriteConflict(self.begin, ARCHIVED, ())
        done = completed_since(self.timeline, now)
        self._check_columns(done)
        later = [(i, table.metadata_of(i)) for i in done] if self._may_overlap else []
        unseen = lost(self._snapshot, later) if self._snapshot is not None else frozenset()
        if unseen:  # cleaned before this writer listed the files: what it took for new keys may not be
            raise WriteConflict(self.begin, later[-1][0].file_name, tuple(sorted(unseen)))
        others = [Operation.of(i, metadata) for i, metadata in later]
        others += planned_services(table, now)
        if mine.is_table_service:
            others += pending_writes(table, now, self.begin)
        resolution = table.settings.resolution
        overlap = (resolution if self.config.bucket_index is None else by_bucket(resolution))(mine, others)
        if overlap is None:
            if self._keys is not None:
                refuse_shared(table, self.begin, self._keys, later)
            return
        lost_to = overlap.lost_to.file_name
        table.tell("conflict", self.begin, lost_to=overlap.lost_to.begin, file_groups=len(overlap.file_groups))
        raise WriteConflict(self.begin, lost_to, overlap.file_groups)

    def _may_have_missed(self, now: Timeline) -> bool:
        """Whether a write may be archived that my snapshot has not: it completed later, or while I listed others."""
        mine = self.timeline
        suspect = now.first_active > mine.first_active > "" or archived_since(mine, now)
        return suspect and not archived.tells_of_all(self.table, mine, now)

    def _check_columns(self, done: tuple[Instant, ...]) -> None:
        """A column that was added meanwhile is not in the schema that this commit would state, and so would be lost.

        Each commit states all columns, and had this check too: the last one tells.
        """
        for other in reversed(done):
            text = self.table.metadata_of(other).schema_json
            if text:
                mine = hudi_schema.outline(self.table.schema(self.timeline))
                if hudi_schema.outline(hudi_schema.from_avro(text)) != mine:
                    raise WriteConflict(self.begin, other.file_name, ())
                return

    @property
    def _may_overlap(self) -> bool:
        """Whether a completed write can touch what mine does; new file groups are nobody else's.

        Resolutions that look at more than file groups see all others, and so does a write that read a snapshot.
        """
        if (
            self._snapshot is not None
            or self._keys is not None
            or self.config.bucket_index is not None
            or self._stats is None
        ):
            return True
        fresh = not self._replaced and all(stat.prev_commit is None for stat in self._stats)
        return not (fresh and self.table.settings.resolution in (by_file_group, prefer_writer))

    def _as_operation(self, stats: tuple[WriteStat, ...]) -> Operation:
        return Operation.of(Instant(self.begin, self._action, State.INFLIGHT), self._metadata(stats))

    def _result(self, completion: str, conflicts: int, waited_s: float, stats: tuple[WriteStat, ...]) -> CommitResult:
        return CommitResult(
            instant=self.begin,
            completion=completion,
            inserted=sum(stat.num_inserts for stat in stats),
            updated=sum(stat.num_updates for stat in stats),
            deleted=sum(stat.num_deletes for stat in stats),
            file_groups=tuple(sorted(self._as_operation(stats).file_groups)),
            attempts=conflicts + 1,
            conflicts=conflicts,
            lock_wait_s=waited_s,
        )


def _passes(check: Callable[[pa.Schema], object], schema: pa.Schema) -> bool:
    try:
        check(schema)
    except TableError:
        return False
    return True


def _restores(timeline: Timeline) -> list[str]:
    return [instant.file_name for instant in timeline.instants if instant.action is Action.RESTORE]
