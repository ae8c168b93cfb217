"""Transactions on a table, and functions that run in them."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

import pyarrow as pa

from fsspec_cas import CasError, InvalidInput
from fsspec_cas.arguments import check_function, check_whole, shown
from fsspec_cas.sender import delay_s
from lockprovider import LockError, Pending
from lockprovider.table.convert.columns import with_columns
from lockprovider.table.errors import InvalidRecords, PropertiesChanged, UnsupportedTable, WriteConflict
from lockprovider.table.files.base_file import check_written, index_of, look_like_buckets
from lockprovider.table.files.group_writer import GroupWriter, WritesHere
from lockprovider.table.format import schema as hudi_schema
from lockprovider.table.format.layout import Action, FileGroup, markers_dir, parse_marker
from lockprovider.table.format.metadata import REPLACING, CommitMetadata, WriteStat, encode_commit, stats_by_partition
from lockprovider.table.format.properties import BUCKET, BUCKETS, INDEX
from lockprovider.table.services import anchors, checkpoint
from lockprovider.table.settings import Mode
from lockprovider.table.state.as_of import is_stale
from lockprovider.table.state.context import (
    TableContext,
    read_to_begin,
    with_key_spelling,
)
from lockprovider.table.timeline import conflict
from lockprovider.table.timeline.conflict import BatchId
from lockprovider.table.timeline.timeline import Timeline
from lockprovider.table.timeline.view import FileSlice, Snapshot, ended_groups
from lockprovider.table.transaction.decision import Basis, KeyCheck, Proposal, columns_digest, config_digest
from lockprovider.table.transaction.lifecycle import Committing, InstantKind, Started, State, Step, after, resume, start
from lockprovider.words import is_storable

if TYPE_CHECKING:
    from lockprovider.table.state.heartbeat import WriterHeartbeat

WHOLE_RETRIES = 3  # if all rows are given
_RESTARTS = 10


@dataclass(frozen=True, slots=True)
class CommitResult:
    """Outcome of a committed transaction.

    `instant` is its begin time, `completion` its completion time (17 digits, UTC). `file_groups` are those written or
    replaced. `attempts` counts tries, `conflicts` lost tries. `lock_wait_s`: seconds that the last try waited for
    the table lock.

    >>> rows = pa.table({"id": [1]})
    >>> table = Table.create("memory://docs/trips", TableSpec("trips", rows, "id"))
    >>> done = table.upsert(rows)
    >>> done.inserted, done.updated, done.attempts, done.conflicts
    (1, 0, 1, 0)
    """

    instant: str
    completion: str
    inserted: int
    updated: int
    deleted: int
    file_groups: tuple[FileGroup, ...]
    attempts: int
    conflicts: int
    lock_wait_s: float


class Transaction:
    """One writer's instant, taken at its first write; it commits or rolls back once. Not thread-safe.

    The constructor checks the store and reads the table; unless `pinned`, only properties and key spelling.
    """

    def __init__(self, table: TableContext, *, pinned: bool = True) -> None:
        table.lock.require_safe_store()  # begin creates a file conditionally
        self.table = table
        config, self._timeline = read_to_begin(table, pinned=pinned)
        self.config = with_key_spelling(table, config)
        self.extra: dict[str, str] = {}
        self._operation = "UPSERT"
        self._action = Action.DELTACOMMIT if self.config.is_merge_on_read else Action.COMMIT
        self._replaced: dict[str, tuple[str, ...]] = {}
        self._schema_json = ""  # with added columns
        self._snapshot: Snapshot | None = None
        self._target: Snapshot | None = None  # the slices of a blind write
        self._is_blind = False
        self.state = State.OPEN
        self.started: Started | None = None
        self.has_used_start_view = False  # a try has judged the commit by the start's view, which serves once
        self._stats: tuple[WriteStat, ...] = ()
        self.markers: list[str] = []  # of this process
        self.announced: set[str] = set()  # paths of the markers' data files
        self._tasks_write = False  # other processes write; only the store lists their markers
        self.is_listed = False  # in the metadata table
        self.staged: list[Pending] = []  # copies of the completed file
        self.result: CommitResult | None = None
        self._batch_id: BatchId | None = None
        self.check_keys = table.settings.check_keys

    @classmethod
    def resume(cls, table: TableContext, begin: str) -> Transaction:
        """Transaction of another process's inflight instant, on the current snapshot; starts its heartbeat.

        That process may live. A replacecommit replaces the whole snapshot. Raises `Aborted` unless the instant is
        inflight with a heartbeat.
        """
        txn, view = cls(table), table.now(listed=True)  # the log lacks the pending instant
        if view.timeline.pending_action(begin) is Action.REPLACECOMMIT:
            txn.end_partitions(txn.snapshot.partitions, "INSERT_OVERWRITE_TABLE")
        txn._tasks_write = True
        txn.started = resume(table, begin, view)  # last, since it starts the heartbeat
        txn.enter(Step.RESUME)
        return txn

    def __repr__(self) -> str:
        state = f"began {self.begin}" if self.begin else "not started"
        return f"<{type(self).__name__} on {self.table.url!r}, {state}>"

    @property
    def begin(self) -> str:
        """Begin time, or empty text before."""
        return "" if self.started is None else self.started.begin

    @property
    def heartbeat(self) -> WriterHeartbeat | None:
        return None if self.started is None else self.started.heartbeat

    def enter(self, step: Step) -> None:
        """Change the state; raises as `lifecycle.after`."""
        self.state = after(self.state, step)

    @property
    def operation(self) -> str:
        """Hudi's name of the write; setting it raises if no write may follow, as after a failed overwrite."""
        return self._operation

    @operation.setter
    def operation(self, operation: str) -> None:
        after(self.state, Step.BEGIN)
        if self.state is State.BEGUN and self._replaced:
            raise InvalidRecords("an overwrite has begun in this transaction; begin another one for other writes")
        self._operation = operation

    @property
    def timeline(self) -> Timeline:
        """Timeline that its writes build on: pinned, of its first read, or of its begin; may read the table."""
        if self._timeline is None:
            self._timeline = self.table.now().timeline
        return self._timeline

    @property
    def snapshot(self) -> Snapshot:
        """Files to read, by which conflicts are detected; the first access reads the table."""
        if self._snapshot is None:
            snapshot = self.table.current.current_files(self.timeline)
            self._snapshot = self._snapshot or snapshot  # parallel threads share the first result
        return self._snapshot

    @property
    def has_written(self) -> bool:
        return self.state in (State.WRITTEN, State.ASKED, State.REFUSED)

    @property
    def changes_nothing(self) -> bool:
        """Whether its commit would change no row, partition or column."""
        has_rows = any(stat.num_writes or stat.num_deletes for stat in self._stats)
        return not (has_rows or self._replaced or self._schema_json)

    def exactly_once(self, batch_id: BatchId) -> None:
        """Record the batch, then raise `AlreadyCommitted` or `WrongCheckpoint` if table or archive refuse it.

        A decided batch that is not stored passes: the commit looks again. Another batch than before raises
        `InvalidRecords`.
        """
        if self._batch_id not in (None, batch_id):
            raise InvalidRecords(f"this transaction writes {self._batch_id}; write {batch_id} in another one")
        self._batch_id = batch_id
        self.extra.update(batch_id.note(self.extra))
        done = batch_id.committed_by(self.table.current.batches_newest_first(self.timeline))
        if done is not None and (done.file_name not in self.timeline.names or self.table.current.has(done)):
            raise batch_id.duplicate_error(done)

    def start(self) -> str:
        """Begin if not begun; return the begin time, under which any process may write files."""
        self._tasks_write = True
        self.ensure_begun().wait_in_flight()
        return self.begin

    def start_here(self) -> WritesHere:
        """Begin if not begun, for files that only this process writes."""
        started = self.ensure_begun()
        return WritesHere(self.markers, self.announced, self.partitions, started.wait_to_write)

    def ensure_begun(self) -> Started:
        """Return the instant; if not begun, take one, report it, and clean up after dead writers.

        Raises `InvalidRecords` once it has written, `Aborted` once it is over, `PropertiesChanged` for old properties.
        """
        after(self.state, Step.BEGIN)
        if self.started is not None:
            return self.started
        kind = InstantKind(self._action, self.operation, self.config)
        started = start(self.table, kind, self._timeline or self.table.knowledge.latest)
        self.enter(Step.BEGIN)
        self.started = started
        self._timeline = self._timeline or started.view.timeline
        started.announce_and_clean(self.table, self._timeline)
        return started

    @property
    def expected_schema(self) -> pa.Schema | None:
        """Table's schema, cached or at the pinned timeline; None if unknown."""
        return self.table.knowledge.schema if self._timeline is None else self.table.schema(self._timeline)

    def planner(self, schema: pa.Schema | None = None) -> GroupWriter:
        """Make a `GroupWriter` without an instant, for keys and partitions.

        `schema`: None for the table's columns, read unless cached.
        """
        columns = self.table.schema(self.timeline) if schema is None else schema
        return GroupWriter(self.table.place, "", self.config, columns)

    def begin_to_write(self) -> pa.Schema:
        """Begin if not begun; return the columns of the rows to write.

        Raises `UnsupportedTable` for a JVM writer's unmarked buckets.
        """
        self.ensure_begun()
        self._refuse_unmarked_buckets()
        if self._is_blind and self._batch_id is not None:
            self.exactly_once(self._batch_id)  # batches in between precede the pinned timeline
        return self.table.schema(self.timeline)

    def _refuse_unmarked_buckets(self) -> None:
        """Raise `UnsupportedTable` for file groups named like JVM writers' buckets, if there is no bucket index.

        Reads commits, newest first, up to one with files.
        """
        for instant in reversed(self.timeline.writes) if self.config.bucket_index is None else ():
            ids = [file_id for _, file_id in self.table.metadata_of(instant).file_groups]
            if not ids:
                continue
            if look_like_buckets(ids) and look_like_buckets(file_slice.file_id for file_slice in self.snapshot.slices):
                raise UnsupportedTable(
                    f"table {self.config.name!r} has file groups like {ids[0]}, of a JVM writer with {INDEX}={BUCKET}: "
                    f"run `lockprovider table adopt-buckets` (Table.adopt_bucket_index) with that writer's {BUCKETS}"
                )
            return

    def write_blindly(self, partitions: Collection[str] | None) -> None:
        """If it `may_be_blind` and has not begun, write these partitions blindly, on a later timeline; None: do not.

        First commits missing anchors under the lock; raises `Aborted` while a restore is pending.
        """
        if partitions is None:
            self._is_blind = False  # as a failed write was
        elif self.may_be_blind and self.state is State.OPEN:
            anchors.ensure_anchors(self.table, partitions)
            self._is_blind, self._timeline = True, None

    @property
    def may_be_blind(self) -> bool:
        """Whether it is non-blocking, and has read no rows, ended no file groups and added no columns."""
        is_plain = self._action is Action.DELTACOMMIT and not self._schema_json
        return self.table.settings.mode is Mode.NON_BLOCKING and is_plain and self._snapshot is None

    def slices(self, partitions: Iterable[str] | None = None) -> tuple[FileSlice, ...]:
        """File slices of these partitions (None: all) into which changes go; lists files if not cached.

        Raises `WriteConflict` if other writers replaced a blind write's anchors in named partitions.
        """
        if not self._is_blind:
            return self.snapshot.within(partitions)
        if self._target is None:
            snapshot = self.table.knowledge.files_seen_last  # perhaps later: a replaced group conflicts
            if snapshot is None or not self.timeline.written <= snapshot.timeline.written:
                snapshot = self.table.knowledge.cache_files(self.table.snapshot_of(self.timeline))
            self._target = snapshot
        named = None if partitions is None else tuple(partitions)
        if conflict.bare_buckets(self._target, named or (), index_of(self.config).buckets):
            raise WriteConflict(self.begin, self.timeline.writes[-1].file_name, ())
        return self._target.within(named)

    @property
    def partitions(self) -> set[str]:
        """Partitions known to have a metafile; writers add to it."""
        return self.table.knowledge.partitions_at(self.timeline)

    def end_partitions(self, partitions: Iterable[str], operation: str = "INSERT_OVERWRITE") -> None:
        """Replace the snapshot's rows in these partitions by this commit; call it before the begin.

        Reads the snapshot; calls add up. Raises `InvalidRecords` after the begin, or for an `operation` that replaces
        nothing; `InvalidSettings` if non-blocking.
        """
        if self.table.settings.mode is Mode.NON_BLOCKING:
            conflict.refuse_replacing(operation)
        if self.state is not State.OPEN:
            raise InvalidRecords("overwriting comes first in a transaction, before its first write; begin another one")
        if operation not in REPLACING:
            raise InvalidRecords(f"operation {operation!r} replaces nothing; use one of {sorted(REPLACING)}")
        replaced = self.remaining(partitions)
        self._action, self.operation = Action.REPLACECOMMIT, operation
        for slice_ in replaced:
            self._replaced[slice_.partition] = (*self._replaced.get(slice_.partition, ()), slice_.file_id)

    def remaining(self, partitions: Iterable[str]) -> tuple[FileSlice, ...]:
        """Snapshot's slices in these partitions that it does not replace."""
        slices = self.slices(partitions)
        return tuple(slice_ for slice_ in slices if slice_.file_id not in self._replaced.get(slice_.partition, ()))

    def add_columns(self, columns: pa.Schema) -> None:
        """Let this commit add columns, or fields named by path, to the table's and earlier calls'.

        Raises `UnsupportedSchema` or `InvalidInput` for impossible ones, `UnsupportedTable` with schema-on-read.
        """
        if self.table.current.internal_schema(self.timeline):
            raise UnsupportedTable(
                f"the table at {self.table.url!r} has hoodie.schema.on.read.enable=true, which gives columns ids: "
                "add columns with JVM Hudi (ALTER TABLE ... ADD COLUMNS); rows can be written here"
            )
        before = self._schema_json and hudi_schema.stated_columns(self._schema_json)
        evolved = with_columns(before or self.table.schema(self.timeline), columns)
        self._schema_json = hudi_schema.to_avro(evolved, self.config.name)

    def add(self, stats: Iterable[WriteStat]) -> None:
        """Begin if not begun, iterate `stats`, by whose end all files are stored, and record these.

        An overwrite also writes and records missing anchors, empty base files.

        Raises `InvalidRecords` for a second call, a file group that this commit replaces, or a wrong bucket.
        """
        self.ensure_begun()
        files = tuple(stats)
        ended = [stat.path for stat in files if stat.file_id in self._replaced.get(stat.partition, ())]
        if ended:
            raise InvalidRecords(f"files {ended} are of file groups that are overwritten; insert their rows instead")
        check_written(self.config, files)
        self._stats = (*files, *self._new_anchors(files))
        self.enter(Step.WRITE)

    def _new_anchors(self, stats: Iterable[WriteStat]) -> Iterable[WriteStat]:
        """Write anchors into the buckets `left_bare` by an overwrite, and return their stats.

        There are none without an overwrite, or if non-blocking writes are impossible.
        """
        if not self._replaced or conflict.lacks_for_non_blocking(self.config):
            return ()
        ended = ended_groups(self.timeline, self.table.metadata_of)
        index, written = index_of(self.config), [stat.group for stat in stats]
        if not (bare := conflict.left_bare(self._replaced, written, ended, index.buckets)):
            return ()
        self._note_markers()  # anchors get the tasks' kind of markers
        schema = self.table.schema(self.timeline)
        writer = GroupWriter(self.table.place, self.begin, self.config, schema, self.start_here())
        replaced = {(partition, file_id) for partition, ids in self._replaced.items() for file_id in ids}
        return tuple(anchors.write_anchors(writer, bare, ended | replaced))

    def commit(self, *, conflicts: int = 0) -> CommitResult:
        """Delete stray data files, commit (perhaps under the lock), end the heartbeat; run inline services.

        First stores due footer notes in the background, and checks new keys if set. A second call returns the first
        result. After `PublishUnknown` the write may be visible; after other errors it will not be: the caller rolls
        back. `conflicts`: lost tries.
        """
        if self.result is not None:
            return self.result
        after(self.state, Step.ASK)
        assert self.started is not None  # noqa: S101 - it has written
        stats = self._stats
        self.started.wait_in_flight()
        self._note_markers()
        for path in self.announced - {stat.path for stat in stats}:
            self.table.store.delete(path)  # of a failed task attempt
        self.table.report("written", self.begin, files=len(stats))
        checkpoint.store_notes(self.table, self.begin, stats)
        proposal, basis = self._propose(stats)
        completion, waited_s = Committing(self, self.started, proposal, basis).run()
        self.result = _result(proposal, completion, conflicts=conflicts, lock_wait_s=waited_s)
        self.table.run_inline_services()
        return self.result

    def lost_to_others(self, error: Exception) -> bool:
        """Whether a retry may help: `error` is a conflict or a removed file. May list the timeline."""
        return is_stale(self.table, lambda: self.timeline, error)

    def leave(self) -> None:
        """Stop the heartbeat without a rollback."""
        if self.heartbeat is not None:
            self.heartbeat.leave()

    def rollback(self) -> None:
        """Remove everything it wrote unless decided, and stop its heartbeat; does nothing once over.

        Takes the lock if others may commit or remove it. Swallows store and lock errors; a later writer cleans up.
        """
        state, started = self.state, self.started
        if state is State.OVER:
            return
        self.enter(Step.END)
        if started is not None:
            by_lock = self._tasks_write or self.is_listed or state.may_be_decided
            started.roll_back(self.table, None if by_lock else [*self.announced, *self.markers])
        for copy in self.staged:
            with contextlib.suppress(CasError, LockError):  # a commit that was decided may need it
                self.table.lock.unstage(copy)

    def _propose(self, stats: tuple[WriteStat, ...]) -> tuple[Proposal, Basis]:
        """Make the commit to propose; also return its writer's knowledge, to judge it.

        With `check_keys` it first checks keys as `_look_for_keys`. With schema-on-read it stores the schema history.
        """
        keys, schema = self._look_for_keys(stats) if self.check_keys else None, self.table.schema(self.timeline)
        is_blind = self._is_blind and self._snapshot is None
        rule = conflict.non_blocking if is_blind else self.table.settings.resolution
        basis = Basis(self.config, self.timeline, rule, self._snapshot, keys)
        replaces = self._action is Action.REPLACECOMMIT and self.operation not in REPLACING  # an engine has renamed it
        operation = "INSERT_OVERWRITE" if replaces else self.operation
        stated = self.table.current.stated_schema(self.timeline, self.begin)
        _check_extra(self.extra)
        extra = {**conflict.with_fence(self.extra, self.table.fence), **stated}
        schema_json = self._schema_json or hudi_schema.to_avro(schema, self.config.name)
        metadata = CommitMetadata(stats_by_partition(stats), operation, schema_json, extra, self._replaced)
        proposal = Proposal(
            self.begin,
            self._action,
            basis.rule_name,
            self.config.bucket_index is not None,
            config_digest(self.config),
            columns_digest(schema),
            self._batch_id,
            keys is not None,
            encode_commit(metadata),
            metadata,
        )
        return proposal, basis

    def _look_for_keys(self, stats: Sequence[WriteStat]) -> KeyCheck | None:
        """Check new keys against the table; return the check to repeat at the commit, None with buckets.

        Without buckets it lists the timeline, reads keys, and raises `WriteConflict` for keys inserted since
        `timeline`. Raises `InvalidRecords` for an INSERT's known keys, and on a merge-on-read table for any write.
        """
        if self.config.is_merge_on_read:
            raise InvalidRecords(
                "check_keys needs a copy-on-write table: merge-on-read has keys in log files, too; upsert instead"
            )
        if self.config.bucket_index is None:
            keys = KeyCheck(self.table, self.begin, stats)  # before others wait for it
            if self.operation == "INSERT":
                keys.refuse_known(self.snapshot)
            keys.refuse_shared(conflict.completed_since(self.timeline, self.table.listed_timeline()))
            return keys
        if self.operation == "INSERT" and (count := sum(stat.num_updates for stat in stats)):
            raise InvalidRecords(f"{count} record keys are in the table already; upsert them instead")
        return None

    def _note_markers(self) -> None:
        if self._tasks_write:
            self.markers = [entry.path for entry in self.table.store.list(f"{markers_dir(self.begin)}/")]
            self.announced.update(marker.data_path for marker in filter(None, map(parse_marker, self.markers)))


def _result(proposal: Proposal, completion: str, *, conflicts: int, lock_wait_s: float) -> CommitResult:
    """Caller's result of a committed proposal: rows summed over its files."""
    stats = proposal.metadata.all_stats
    return CommitResult(
        instant=proposal.begin,
        completion=completion,
        inserted=sum(stat.num_inserts for stat in stats),
        updated=sum(stat.num_updates for stat in stats),
        deleted=sum(stat.num_deletes for stat in stats),
        file_groups=tuple(sorted(proposal.metadata.file_groups)),
        attempts=conflicts + 1,
        conflicts=conflicts,
        lock_wait_s=lock_wait_s,
    )


class TransactionHandle:
    """Transaction to pass to engine functions: `engines.spark.write(txn, df)`.

    Attributes:
        extra: texts for the commit's metadata.
    """

    def __init__(self, inner: Transaction) -> None:
        self._inner = inner
        self.extra = inner.extra

    @property
    def begin(self) -> str:
        """Begin time; empty before any write."""
        return self._inner.begin

    @property
    def timeline(self) -> Timeline:
        """Commits completed when it began or, if nothing was read before, at its first write."""
        return self._inner.timeline

    def exactly_once(self, stream: str, batch: int) -> None:
        """Name the stream batch that this transaction writes, before it writes; a batch is committed only once.

        Number a stream's batches upwards, and commit them in that order.

        Raises:
            AlreadyCommitted: this batch, or a later one, is in the table; `commit` raises it, too.
            InvalidInput: the stream is not a text, or the batch not a number from 0 on.

        >>> with table.transaction() as txn:
        ...     txn.exactly_once("orders", 17)
        ...     txn.append(pa.table({"id": [4], "city": ["bonn"]}))
        """
        self._inner.exactly_once(BatchId.of(stream, batch))

    def commit(self, *, conflicts: int = 0) -> CommitResult:
        """Make everything written visible, for good; `conflicts`: earlier ones to count in the result.

        Raises as `TableTransaction.commit`.
        """
        return self._inner.commit(conflicts=conflicts)

    def rollback(self) -> None:
        """Remove everything written; nothing of it was visible.

        >>> txn.append(pa.table({"id": [3], "city": ["ulm"]}))
        >>> txn.rollback()
        >>> table.count()
        2
        """
        self._inner.rollback()


AnyTransaction: TypeAlias = Transaction | TransactionHandle
Face: TypeAlias = Callable[[Transaction], TransactionHandle]


def inside(txn: Any) -> Transaction:
    """`Transaction` in a user's handle, or `txn` itself; else raises `InvalidInput`."""
    if isinstance(txn, TransactionHandle):
        return txn._inner  # noqa: SLF001 - kept for engines
    if not isinstance(txn, Transaction):
        raise InvalidInput(f"txn={txn!r} must be a transaction: `with table.transaction() as txn:`")
    return txn


def transact(
    table: TableContext,
    fn: Callable[[Any], object],
    *,
    retries: int = 0,
    extra: Mapping[str, str] | None = None,
    check_keys: bool | None = None,
    pinned: bool = True,
    face: Face | None = None,
) -> CommitResult:
    """Call `fn` with a transaction, wrapped by `face`; commit it, and repeat after conflicts.

    Conflicts include removed files. Rolls back each failed try; other errors pass. Reports and pauses before each of up
    to `retries` more tries, in new transactions. If the properties changed before the begin, repeats up to `_RESTARTS`
    times more; with `face` and no retries, raises. `check_keys` None: by the settings. `pinned`: reads the timeline
    now, else at first use.
    """
    _check_call(table, fn, extra)
    retries, conflicts, restarts = check_whole(retries, "retries"), 0, 0
    while True:
        txn = Transaction(table, pinned=pinned)
        handle = txn if face is None else face(txn)
        txn.extra.update(extra or {})
        txn.check_keys = txn.check_keys if check_keys is None else check_keys
        try:
            fn(handle)
            result = handle.commit(conflicts=conflicts)
        except PropertiesChanged:
            txn.rollback()  # it has not begun: this is no conflict
            restarts += 1
            if restarts > _RESTARTS or (face is not None and not retries):  # the function may have used up its input
                raise
            table.world.sleep(delay_s(restarts, table.world.random()))
        except Exception as error:
            conflicts += 1
            txn.rollback()
            if isinstance(error, WriteConflict) and not error.tries:
                error.tries = conflicts
            if conflicts > retries or not txn.lost_to_others(error):
                raise
            table.report("retry", txn.begin, conflicts=conflicts)
            table.world.sleep(delay_s(conflicts, table.world.random()))
        except BaseException:
            txn.rollback()
            raise
        else:
            return result


def _check_call(table: object, fn: object, extra: object) -> None:
    if not isinstance(table, TableContext):
        raise InvalidInput(f"table is a {type(table).__name__}, and must be a Table: Table.open(url)")
    check_function(fn, "fn", "of a transaction")
    _check_extra({} if extra is None else extra)


def _check_extra(extra: object) -> None:
    texts = [text for pair in extra.items() for text in pair] if isinstance(extra, Mapping) else [extra]
    if not all(isinstance(text, str) and is_storable(text) for text in texts):
        message = f"extra={shown(extra)} must be names and texts: it goes into the commit's metadata as JSON, in UTF-8"
        raise InvalidInput(message)
