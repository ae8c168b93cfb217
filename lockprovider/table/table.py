"""`Table`: public interface of a Hudi table."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from fsspec_cas import InvalidInput, Store
from fsspec_cas.arguments import check_flag
from lockprovider.recipes.values import check_storable
from lockprovider.table.convert.rows import Rows, as_stream, as_table
from lockprovider.table.doctor.facts import TableFinding
from lockprovider.table.doctor.rules import diagnose
from lockprovider.table.engines import arrow
from lockprovider.table.engines.scan import Scan, short_for
from lockprovider.table.errors import InvalidRecords
from lockprovider.table.format.compatibility import SettingChange
from lockprovider.table.format.layout import PROPERTIES
from lockprovider.table.format.service_metadata import Savepoint
from lockprovider.table.read import consistent
from lockprovider.table.read.consistent import Changes, CommitHistory, PointInTime, changes_since
from lockprovider.table.read.scan import Where
from lockprovider.table.rewrite import clustering, compaction, inline
from lockprovider.table.rewrite.clustering import ClusteringResult
from lockprovider.table.rewrite.compaction import CompactionResult
from lockprovider.table.services import archive, clean, metadata_table, rollback, share
from lockprovider.table.services.archive import ArchiveResult
from lockprovider.table.services.clean import CleanResult
from lockprovider.table.services.rollback import RestoreResult
from lockprovider.table.settings import TableSettings
from lockprovider.table.spec import TableSpec
from lockprovider.table.state.context import TableContext
from lockprovider.table.state.events import Watcher, ignore_event
from lockprovider.table.table_transaction import TableTransaction
from lockprovider.table.timeline.retention import KeepActive, Policy
from lockprovider.table.timeline.rewrite_plan import TARGET_FILE_BYTES, ClusteringRule
from lockprovider.table.timeline.timeline import Timeline
from lockprovider.table.timeline.versions import Order, TableVersion, latest_checkpoint
from lockprovider.table.timeline.view import Snapshot, given_partitions
from lockprovider.table.transaction.creation import add_columns, create_table
from lockprovider.table.transaction.transaction import WHOLE_RETRIES, CommitResult, Transaction, transact


class Table(TableContext):
    """An opened table that many writers share. Thread-safe.

    Promised:

    - Transactions on disjoint file groups all succeed. Of two on the same file group, the later gets
      `WriteConflict`, and none of its changes becomes visible.
    - A commit is one atomic create.
    - A writer that dies leaves nothing visible, and other writers clean up after it.
    - Services (`clean` and those below) are safe to repeat. A dry run writes nothing, and returns what it would do.

    NOT promised:

    - Anything, if writers bypass the table's lock.
    - Detection of two writers that insert the same new key at once, but by a bucket index (`TableSpec.buckets`), or by
      `check_keys` of all writers.

    Raises:
        CasError: the store failed.
        InvalidInput: an argument has the wrong kind, or a version is none (see `version`).
        WriteConflict: by writes: all `retries` + 1 tries lost to other writers of the same file groups.
        Aborted: by writes: the heartbeat expired, or another writer rolled this write back.
        NotAcquired, LeaseLost, PublishUnknown: by writes and services: the lock failed. After `PublishUnknown` the
            change may be visible.
        UnsupportedTable: by writes and services: the table cannot be written here.
        VersionMismatch: by `restore` and changes of the properties: a writer without the lock changed them meanwhile.
        Fenced: by writes, `clean`, `archive`, `restore`, compactions and clusterings `under` a fence: a newer epoch has
            committed.

    >>> rows = pa.table({"id": [1, 2], "city": ["ulm", "bonn"], "fare": [3.5, None]})
    >>> table = Table.create("memory://docs/trips", TableSpec("trips", rows, "id", "city"), exist_ok=True)
    >>> first = table.append(rows)
    >>> spec = TableSpec("logs", rows, "id", ordering="fare", buckets=1, table_type="merge_on_read")
    >>> logs = Table.create("memory://docs/logs", spec, exist_ok=True)
    >>> done = logs.append(rows.slice(0, 1)), logs.upsert(rows.slice(0, 1))
    """

    @classmethod
    def create(
        cls,
        url: str | os.PathLike[str],
        spec: TableSpec,
        *,
        storage_options: dict[str, Any] | None = None,
        settings: TableSettings | None = None,
        watcher: Watcher = ignore_event,
        exist_ok: bool = False,
    ) -> Table:
        """Create a table with one empty commit that carries its schema, and make it shared (see `share`).

        `exist_ok`: open an existing table instead, if key, partitions and their folders, ordering, type and buckets are
        the spec's.

        Raises:
            TableExists: a table exists (with `exist_ok`: a different one); nothing was changed.
            UnsupportedSchema, InvalidRecords: the spec cannot be stored; nothing was written.
            InvalidSettings: `settings` and `spec` name different indexes; nothing was written.

        >>> flat = TableSpec("flat", rows, record_keys="id")
        >>> Table.create("memory://docs/flat", flat).count()
        0
        """
        return create_table(
            cls, url, spec, storage_options=storage_options, settings=settings, watcher=watcher, exist_ok=exist_ok
        )

    @staticmethod
    def exists(url: str | os.PathLike[str], *, storage_options: dict[str, Any] | None = None) -> bool:
        """Whether a table exists, by one request.

        >>> Table.exists("memory://docs/trips"), Table.exists("memory://docs/none")
        (True, False)
        """
        return Store.from_url(url, storage_options).read_or_none(PROPERTIES) is not None

    @property
    def version(self) -> str:
        """Completion time of the last commit, 17 digits of UTC; empty without commits.

        Each access reads the timeline. A version means the table after that commit. `as_of`, `changes`, `savepoint` and
        `restore` also accept:

        - `CommitResult`, or `Commit` of `history()`
        - begin time of a savepoint
        - another time (17 or 14 digits of UTC, ISO text with its zone, aware datetime): the table after all commits
          completed by then

        >>> table.to_arrow(as_of=table.version) == table.to_arrow()
        True
        """
        return latest_checkpoint(self.timeline(), Order.COMPLETION)

    def history(self) -> CommitHistory:
        """List the timeline's completed writes, without archived ones, by completion time.

        >>> [commit.operation for commit in table.history()]  # the first has made the columns known
        ['UPSERT', 'INSERT']
        """
        return consistent.commits(self)

    def snapshot(self, timeline: Timeline | None = None, *, as_of: PointInTime = None) -> Snapshot:
        """Files with the completed rows of `timeline` (default: now), or of an earlier moment.

        With `timeline` it may name files that a clean removed; without, the read then repeats.

        Raises:
            HistoryGone: that moment cannot be read.

        >>> sorted(table.snapshot().partitions)
        ['bonn', 'ulm']
        """
        return consistent.snapshot(self, as_of) if timeline is None else consistent.snapshot_by(self, timeline, as_of)

    def scan(
        self,
        columns: Iterable[str] | None = None,
        filter: Where = None,  # noqa: A002 - as pyarrow calls it
        partitions: Iterable[str] | None = None,
        as_of: PointInTime = None,
        *,
        read_optimized: bool = False,
    ) -> Scan:
        """Describe a read of rows, now or as of a moment; sends no request.

        Args:
            columns: Hudi's own ones are allowed; None: all others.
            filter: SQL text (`"city = 'ulm' and fare is null"`, see `read.sql_where`), pyarrow expression or
                its list of tuples.
            partitions: paths, as folders are named.
            as_of: version, see `version`; `AsOf` has Hudi's own meaning of a time.
            read_optimized: read only base files: quicker, and as old as each file group's last compaction.

        Raises:
            InvalidInput: by methods of the scan: a column or time is unknown.
            HistoryGone: by methods: that moment cannot be read.
            UnsupportedTable: by methods: the table has log files, and an unknown way to merge rows.

        >>> table.scan(["id"], "fare is null").to_arrow().to_pylist()
        [{'id': 2}]
        >>> done = table.delete("id = 1")
        >>> table.scan().count(), table.scan(as_of=first).count()
        (1, 2)
        """
        return Scan(self, columns, filter, partitions, as_of, read_optimized)

    to_arrow = short_for(scan, Scan.to_arrow)
    to_pandas = short_for(scan, Scan.to_pandas)
    to_polars = short_for(scan, Scan.to_polars)
    to_duckdb = short_for(scan, Scan.to_duckdb)

    def count(
        self,
        filter: Where = None,  # noqa: A002 - as pyarrow calls it
        partitions: Iterable[str] | None = None,
        as_of: PointInTime = None,
    ) -> int:
        """Short for `scan(None, ...).count()`."""
        return self.scan(None, filter, partitions, as_of).count()

    def changes(
        self,
        after: TableVersion | None = None,
        until: TableVersion | None = None,
        *,
        order: Order | str = Order.COMPLETION,
        columns: Sequence[str] | None = None,
        partitions: Iterable[str] | None = None,
    ) -> Changes:
        """Read the net change of the commits in (after, until]: inserted, updated and deleted rows.

        Pass the `checkpoint` of one call as `after` to the next: no change is then missed or repeated.

        Args:
            after: checkpoint or a version; None: from the beginning, every row an insert.
            until: version; None: the last commit.
            order: `completion`, `fenced` or `begin`, see `Order`.
            columns: columns to read, after the operation; None: all but Hudi's own.
            partitions: paths; None: all.

        Raises:
            HistoryGone: files were cleaned or commits archived since `after` or `until`, the table was restored, or
                `after` is the time of no commit.
            InvalidInput: a time or column does not exist.

        >>> table.delete("city = 'ulm'").deleted
        1
        >>> changes = table.changes(after=first.completion)
        >>> changes.to_arrow().column("_operation").to_pylist()
        ['delete']
        """
        return changes_since(self, after, until, order=order, columns=columns, partitions=partitions)

    def append(
        self,
        rows: Rows,
        *,
        retries: int | None = None,
        extra: Mapping[str, str] | None = None,
        check_keys: bool | None = None,
    ) -> CommitResult:
        """Add rows: a pandas or polars DataFrame, a pyarrow Table, or a RecordBatchReader.

        A missing column becomes null. Without `check_keys`, existing keys are not checked (use `upsert`), and two
        appends never conflict. With a bucket index, a row whose key exists is replaced, and appends to one bucket
        conflict (`WriteConflict` after all `retries`). A reader is held whole only with such an index.

        Args:
            rows: new rows.
            retries: after conflicts; default 3, and 0 for a reader, for which more raise `InvalidRecords`.
            extra: texts for the commit's metadata.
            check_keys: whether the keys must be new to the table; None: as in the settings.

        Raises:
            DoesNotFit: a field is unknown, or its type does not fit, or a value would change.
            InvalidRecords: a key is null, comes twice in `rows` or (if checked) exists in the table.
            UnsupportedSchema: a DataFrame's column has no Arrow type.

        >>> table.append(pa.table({"id": [3], "city": ["ulm"]})).inserted
        1
        """
        converted = as_stream(rows, self.schema)
        is_reader = isinstance(converted, pa.RecordBatchReader)
        if retries and is_reader:
            raise InvalidRecords("a RecordBatchReader can be read only once: give a pyarrow Table to have retries")
        if retries is None:
            retries = 0 if is_reader else WHOLE_RETRIES

        def insert(txn: Transaction) -> None:
            nonlocal converted
            if isinstance(converted, pa.RecordBatchReader) and txn.config.bucket_index is not None:
                # `insert` may run again, but a reader can be read only once.
                converted = converted.read_all()
            arrow.insert(txn, converted)

        return transact(self, insert, retries=retries, extra=extra, check_keys=check_keys, pinned=False)

    def upsert(
        self,
        rows: Rows,
        *,
        deletes: Rows | None = None,
        retries: int = WHOLE_RETRIES,
        extra: Mapping[str, str] | None = None,
        check_keys: bool | None = None,
    ) -> CommitResult:
        """Insert rows, or replace them if their key is in the same partition; delete the keys in `deletes`.

        The rows have all columns of the table. Of several rows with one key, stored ones too, the highest value in the
        ordering field wins; without that field the last row. A key in both arguments is deleted, as by `delete`. With
        `check_keys`, a key that another writer inserted since the snapshot is a conflict. Other arguments: see
        `append`.

        Raises:
            InvalidRecords, UnsupportedSchema: as `append`; also for a missing column.

        >>> done = table.upsert(pa.table({"id": [2, 3], "city": ["bonn", "ulm"], "fare": [4.0, 5.0]}))
        >>> done.updated, done.inserted
        (1, 1)
        """
        upserts = as_table(rows, self.schema)
        keys = None if deletes is None else as_table(deletes, self.schema)
        write = partial(arrow.write, upserts=upserts, deletes=keys)
        return transact(self, write, retries=retries, extra=extra, check_keys=check_keys, pinned=False)

    def delete(
        self, keys: Rows | Where, *, retries: int = WHOLE_RETRIES, extra: Mapping[str, str] | None = None
    ) -> CommitResult:
        """Delete rows by key and partition columns, or by a condition: SQL text or pyarrow expression.

        Other columns of `keys` and unknown keys are ignored. A non-blocking writer also uses the ordering column, and
        then conflicts with no other writer. With a condition, rows that others add in new file groups after the
        snapshot stay. `retries`, `extra`: see `append`.

        Raises:
            InvalidRecords: a key is null, or a key or partition column is missing.
            InvalidInput: the condition does not fit the table.

        >>> table.delete("city = 'ulm' and fare > 3").deleted, table.delete(rows.select(["id", "city"])).deleted
        (1, 1)
        """
        if isinstance(keys, (str, pc.Expression)):
            return transact(self, partial(arrow.delete_where, where=keys), retries=retries, extra=extra)
        write = partial(arrow.write, deletes=as_table(keys, self.schema))
        return transact(self, write, retries=retries, extra=extra, pinned=False)

    def overwrite(
        self,
        rows: Rows,
        partitions: Iterable[str] | None = None,
        *,
        retries: int = WHOLE_RETRIES,
        extra: Mapping[str, str] | None = None,
    ) -> CommitResult:
        """Replace all rows of the table, or of `partitions` (paths, as folders are named), by `rows`.

        Rows that others append after the snapshot stay; another overwrite of a partition meanwhile is a conflict.
        `retries`, `extra`: see `append`.

        Raises:
            InvalidRecords, UnsupportedSchema: as `append`; also for a row of another partition.

        >>> done = table.overwrite(pa.table({"id": [9], "city": ["ulm"]}), partitions=["ulm"])
        >>> sorted(table.to_arrow().column("id").to_pylist())
        [2, 9]
        """
        write = partial(arrow.replace_all, rows=as_table(rows, self.schema), partitions=given_partitions(partitions))
        return transact(self, write, retries=retries, extra=extra)

    def add_columns(self, columns: pa.Schema, *, retries: int = 5) -> CommitResult:
        """Add columns, null in older rows, in a commit of their own; no file is rewritten.

        Add a field inside a column by its path (`st.y`, `l.element.y` of a list, `m.value.y` of a map), or by a wider
        struct. You cannot drop, rename or retype a column. Writers that began before and commit after this get
        `WriteConflict`.

        Raises:
            UnsupportedSchema: the field exists with another type, or its type cannot be stored.
            InvalidInput: `columns` is no schema, or a path leads nowhere.

        >>> done = table.add_columns(pa.schema([("tip", pa.float64())]))
        >>> table.schema().names
        ['id', 'city', 'fare', 'tip']
        """
        if not isinstance(columns, pa.Schema):
            raise InvalidInput(f"columns must be a pyarrow.schema([...]), not {type(columns).__name__}")
        return add_columns(self, columns, retries=retries)

    def transaction(self, *, pinned: bool = True) -> TableTransaction:
        """Begin a transaction on a fresh snapshot: `with table.transaction() as txn:`.

        Without `with`, call `commit()` or `rollback()`. For retries use `transact`. `pinned=False`: take the snapshot
        at the first read or write.

        >>> with table.transaction() as txn:
        ...     txn.upsert(txn.to_pandas(filter="fare is null").assign(fare=0.0))
        ...     txn.delete("city = 'ulm'")
        >>> table.to_arrow().to_pylist()
        [{'id': 2, 'city': 'bonn', 'fare': 0.0}]
        """
        return TableTransaction(Transaction(self, pinned=pinned))

    def transact(
        self,
        fn: Callable[[TableTransaction], object],
        *,
        retries: int = 0,
        extra: Mapping[str, str] | None = None,
        check_keys: bool | None = None,
        pinned: bool = True,
    ) -> CommitResult:
        """Run `fn` in a transaction and commit it; after a conflict run it again on a fresh snapshot.

        `fn` may run `retries` + 1 times and, if `retries` is above 0, again if the table's properties changed before
        its first write. It must read only from its transaction. `extra`: see `append`; `check_keys`: `upsert`;
        `pinned`: `transaction`.

        Raises:
            Aborted: also if the table's properties changed and `retries` is 0.

        >>> def raise_fares(txn):
        ...     txn.upsert(txn.to_pandas().assign(fare=lambda old: old["fare"] + 1))
        >>> table.transact(raise_fares, retries=3).updated
        2
        """
        return transact(
            self, fn, retries=retries, extra=extra, check_keys=check_keys, pinned=pinned, face=TableTransaction
        )

    def run_inline_services(self) -> None:
        """Archive, compact (also the metadata table) and cluster where due by the settings.

        Each commit does it. A failed service raises nothing; the watcher is notified.

        >>> table.run_inline_services()  # nothing, by default
        """
        inline.run_due(self)

    def clean(self, policy: Policy | None = None, *, dry_run: bool = False) -> tuple[CleanResult, ...]:
        """Remove files that no reader needs (default: by the settings' retention).

        Finishes dead cleaners' plans first, and returns these results. Plans nothing while another cleaner
        runs, or a restore is pending.

        Raises:
            InvalidSettings: the policy would keep nothing.

        >>> table.clean(KeepVersions(1))  # each file group has one version yet
        ()
        """
        return clean.clean(self, policy, dry_run=dry_run)

    def compact(self, *, dry_run: bool = False) -> tuple[CompactionResult, ...]:
        """Merge the log files of a merge-on-read table into new base files, while writers go on.

        Scheduled compactions without an executor come first; `dry_run` returns only the next.

        Raises:
            UnsupportedTable: the table is copy-on-write.
            HistoryGone, Aborted: as `run_compaction`.

        >>> len(logs.compact())
        1
        """
        return compaction.compact_table(self, dry_run=dry_run)

    def schedule_compaction(self) -> str | None:
        """Write a compaction plan for any process; returns its begin time, None if nothing is to merge.

        >>> instant = logs.schedule_compaction()
        """
        return compaction.schedule_compaction(self)

    def run_compaction(self, instant: str) -> CompactionResult:
        """Run a scheduled compaction, also one of JVM Hudi, or continue one whose executor died.

        Raises:
            HistoryGone: no such compaction exists, or files that it names are gone.
            Aborted: another executor runs it.

        >>> result = logs.run_compaction(logs.schedule_compaction())
        """
        return compaction.run_compaction(self, instant)

    def unschedule_compaction(self, instant: str | None = None, *, hours: float | None = None) -> tuple[str, ...]:
        """Remove a scheduled compaction, or all `hours` old without an executor; returns their begin times.

        Raises:
            InvalidInput: not exactly one is given, or `hours` is not above 0.
            HistoryGone: no such compaction exists.
            Aborted: an executor runs it.

        >>> logs.unschedule_compaction(hours=24)
        ()
        """
        return compaction.unschedule_compaction(self, instant, hours)

    def cluster(
        self,
        sort_by: Sequence[str] = (),
        target_file_bytes: int = TARGET_FILE_BYTES,
        small_file_bytes: int | None = None,
        *,
        dry_run: bool = False,
    ) -> tuple[ClusteringResult, ...]:
        """Join small files of each partition into larger ones, with sorted rows, while writers go on elsewhere.

        Scheduled clusterings without an executor come first. A write to a file group that is being clustered loses;
        with `prefer_writer` the clustering does.

        Args:
            sort_by: columns, nulls first; none: rows stay in the order of their files.
            target_file_bytes: about a new file's size.
            small_file_bytes: files below this size are joined, if a partition has two (default: half the target).
            dry_run: return only the next plan.

        Raises:
            InvalidInput: a column does not exist, or a size is invalid.
            UnsupportedTable: the table has buckets.
            WriteConflict: a write was faster, or is preferred; this clustering changed no row.
            HistoryGone, Aborted: as `run_clustering`.

        >>> more = table.append(pa.table({"id": [3], "city": ["ulm"]}))
        >>> plans = table.cluster(sort_by=["id"])
        >>> table.count()
        3
        """
        rule = ClusteringRule.of(sort_by, target_file_bytes, small_file_bytes)
        return clustering.cluster_table(self, rule, dry_run=dry_run)

    def schedule_clustering(
        self,
        sort_by: Sequence[str] = (),
        target_file_bytes: int = TARGET_FILE_BYTES,
        small_file_bytes: int | None = None,
    ) -> str | None:
        """Write a clustering plan for another process or JVM Hudi to run; returns its begin time.

        None: no files are to be joined. Arguments and errors as `cluster`.

        >>> table.schedule_clustering() is None  # a file in each partition
        True
        """
        rule = ClusteringRule.of(sort_by, target_file_bytes, small_file_bytes)
        return clustering.schedule_clustering(self, rule)

    def run_clustering(self, instant: str) -> ClusteringResult:
        """Run a scheduled clustering, like `run_compaction`.

        Raises:
            HistoryGone, Aborted: as `run_compaction`.
            WriteConflict: a write was faster, or is preferred; the plan was removed.

        >>> more = table.append(pa.table({"id": [3], "city": ["ulm"]}))
        >>> instant = table.schedule_clustering(sort_by=["id"])
        >>> result = instant and table.run_clustering(instant)
        """
        return clustering.run_clustering(self, instant)

    def unschedule_clustering(self, instant: str | None = None, *, hours: float | None = None) -> tuple[str, ...]:
        """Remove scheduled clusterings, like `unschedule_compaction`.

        >>> table.unschedule_clustering(hours=24)
        ()
        """
        return clustering.unschedule_clustering(self, instant, hours)

    def archive(self, keep: KeepActive | None = None, *, dry_run: bool = False) -> ArchiveResult:
        """Move the oldest instants off the timeline (default: by the settings' `archival`).

        If any is due, rolls back dead writers first; `dry_run` takes them for living.

        Raises:
            InvalidSettings: `keep` is impossible.
            Corrupt: a file of the archive, or an instant, cannot be parsed.

        >>> result = table.archive(KeepActive(20, 30), dry_run=True)
        """
        return archive.archive(self, keep, dry_run=dry_run)

    def sweep(self) -> tuple[str, ...]:
        """Roll back dead writers, finish dead rollbacks, restores, cleans; returns their begin times.

        Also removes clusterings that a dead process was to run itself, old heartbeats with their markers, dead writers'
        intents, and checkpoints of ended logs. Other scheduled services stay.

        Raises:
            Aborted: at the end, for a JVM process' dead rollback of a completed commit, which stays.

        >>> table.sweep()  # no writer has died
        ()
        """
        try:
            begins = rollback.sweep(self)
        except Exception:  # of a rollback or restore that stays
            clean.finish_dead_cleans(self)
            raise
        return (*begins, *(done.instant for done in clean.finish_dead_cleans(self)))

    def roll_back(self, instant: str, *, force: bool = False) -> None:
        """Roll back a pending write of a dead writer; with `force` also of a living one, which gets `Aborted`.

        Raises:
            HistoryGone: no such pending write exists.
            Aborted: its writer is alive.

        >>> table.roll_back("20260101000000000")
        Traceback (most recent call last):
        ...
        lockprovider.table.errors.HistoryGone: 20260101000000000 is no pending write; to take back commits, use restore
        """
        rollback.roll_back_dead(self, instant, force=check_flag(force, "force"))

    def savepoint(self, version: TableVersion | None = None, *, user: str = "", comment: str = "") -> str:
        """Keep a commit's files (default: the last's) from being cleaned, until `delete_savepoint`.

        An existing savepoint stays unchanged. Returns the commit's begin time, which names the savepoint, and is a
        version.

        Raises:
            HistoryGone: no such commit exists, or files that it needs were cleaned or are about to be.

        >>> kept = table.savepoint(comment="before the migration")
        >>> kept == first.instant, table.to_arrow(as_of=kept).num_rows, table.changes(after=kept).commits
        (True, 2, ())
        """
        check_storable(user, "user")
        check_storable(comment, "comment")
        return clean.create_savepoint(self, version, user=user, comment=comment)[0]

    def savepoints(self) -> dict[str, Savepoint]:
        """List savepoints by their commit's begin time, oldest first.

        Raises:
            Corrupt: a savepoint cannot be parsed.

        >>> instant = table.savepoint(comment="before the migration")
        >>> table.savepoints()[instant].comment
        'before the migration'
        """
        return clean.savepoints(self, self.timeline())

    def delete_savepoint(self, version: TableVersion) -> bool:
        """Delete a commit's savepoint, so that its files may be cleaned; returns False if it has none.

        Raises:
            HistoryGone: no such commit exists.

        >>> table.delete_savepoint(table.savepoint())
        True
        """
        return clean.delete_savepoint(self, version)

    def restore(self, version: TableVersion) -> RestoreResult:
        """Undo every commit that completed after `version`; the result lists them.

        Also removes pending writes, a metadata table, and these commits' epochs. NOT promised: anything, if JVM writers
        run meanwhile.

        Raises:
            HistoryGone: no such commit exists, files that it needs were cleaned, or a later commit has a
                savepoint or was archived.
            Aborted: the table has a metadata table and a pending write, whose writer may be building it.

        >>> before = table.version
        >>> done = table.delete("id = 1")
        >>> table.restore(before).taken_back == (done.instant,), table.count()
        (True, 2)
        """
        return rollback.restore(self, version)

    def adopt_bucket_index(self, buckets: int, bucket_by: Sequence[str] = ()) -> None:
        """Record in the properties that a JVM writer made buckets, or that an empty table shall have them.

        Reads all keys first.

        Raises:
            UnsupportedTable: a row is not in its key's bucket, or the table has another index.
            InvalidRecords: `bucket_by` is not part of the record key, or the number of buckets is impossible.
            Aborted: other writers committed each time while the keys were read.

        >>> Table.create("memory://docs/none", TableSpec("none", rows, "id")).adopt_bucket_index(4)
        """
        share.adopt_bucket_index(self, buckets, bucket_by)

    def share(self, *, dry_run: bool = False, all_in_utc: bool = False) -> tuple[SettingChange, ...]:
        """Write the properties by which JVM Hudi's Spark writers share the table; returns the changes.

        A running JVM job that began without the lock takes none until its restart. A transaction in progress ends with
        `Aborted`. Deletes the statistics of a metadata table whose listing writers here keep. `all_in_utc`: confirm
        that all writers ran in UTC; a copy of a table with local times needs it.

        Raises:
            Aborted: a write is pending, whose writer may be building what this removes; nothing was changed.

        >>> for change in table.share(dry_run=True):  # what JVM Hudi's writers will find in the table
        ...     assert change
        """
        return share.share(self, dry_run=dry_run, all_in_utc=check_flag(all_in_utc, "all_in_utc"))

    def unshare(self, *, dry_run: bool = False) -> tuple[SettingChange, ...]:
        """Remove properties that `share` wrote, to give the table to one JVM writer; returns them.

        Stop all other writers first: a single JVM writer takes no lock, and rolls back every pending write.

        Raises:
            Aborted: a write is pending; nothing was changed.

        >>> sorted(change.key for change in table.unshare(dry_run=True))[-1]
        'hoodie.write.lock.provider'
        """
        return share.unshare(self, dry_run=dry_run)

    def doctor(self, *, keys: bool = False) -> tuple[TableFinding, ...]:
        """Find the table's faults, with the next step for each; writes nothing.

        Works on tables that cannot be written here, too; `lockprovider table doctor URL` on those that cannot be
        opened. `keys`: read all record keys, and count those in several file groups.

        >>> [finding.what for finding in table.doctor() if finding.state == "wrong"]
        []
        """
        return tuple(finding for _, _, findings in diagnose(self, keys=keys) for finding in findings)

    def set_visibility(self, visibility: str) -> None:
        """Make commits appear `"ordered"` or `"unordered"`: see `TableSpec.visibility`.

        A transaction in progress ends with `Aborted`, as after every change of the properties.

        >>> table.set_visibility("ordered")
        """
        share.set_visibility(self, visibility)

    def retire_metadata_table(self, *, dry_run: bool = False) -> int:
        """Stop using JVM Hudi's metadata table and delete it; returns its number of files. `dry_run` only counts them.

        JVM writers in Spark do not make a new one; for others (HoodieStreamer, Flink, Java) set
        `hoodie.metadata.enable=false` first.

        Raises:
            Aborted: a write is pending, whose writer may be building the metadata table; nothing was changed.

        >>> table.retire_metadata_table()  # the table has none
        0
        """
        return metadata_table.retire_metadata_table(self, dry_run=dry_run)
