"""`Table`: one Hudi table that many writers share.

    table = Table.create(url, TableSpec("trips", df, record_keys=("id",), partition_by=("city",)))
    with table.transaction() as txn:
        txn.upsert(txn.to_pandas(filter="fare is null").assign(fare=0.0))

Promised: transactions on disjoint file groups all succeed; of two that touch the same one the later gets
`WriteConflict`, and nothing of it is ever visible. A commit is one atomic create. A writer that dies leaves nothing
visible, and the others clean up after it. NOT promised: anything for writers that bypass the table's lock; and that two
writers that insert the same new key at once are detected: they write different file groups, both succeed, and the key
is there twice. A bucket index (`TableSpec.buckets`) promises it, and `check_keys` if all writers have it.

This is the face, and no more; the floors behind it are in the package's README.

Source: Hudi RFC-22 (optimistic concurrency control), RFC-91 (storage lock), table version 8.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from fsspec_cas import Entry, Store
from lockprovider.table.convert.rows import Rows, as_stream, as_table
from lockprovider.table.doctor.facts import TableFinding
from lockprovider.table.doctor.rules import diagnose
from lockprovider.table.engines import arrow
from lockprovider.table.engines.scan import Scan, short_for
from lockprovider.table.errors import InvalidRecords
from lockprovider.table.format.layout import PROPERTIES
from lockprovider.table.format.service_metadata import Savepoint
from lockprovider.table.format.writer_settings import SettingChange
from lockprovider.table.read import consistent
from lockprovider.table.read.changes import Changes, changes_since
from lockprovider.table.read.consistent import CommitHistory, PointInTime
from lockprovider.table.read.scan import Where
from lockprovider.table.rewrite import clustering, compaction, inline
from lockprovider.table.rewrite.clustering import ClusteringResult
from lockprovider.table.rewrite.compaction import CompactionResult
from lockprovider.table.services import archive, clean, metadata_table, restore, rollback, share
from lockprovider.table.services import share as sharing
from lockprovider.table.services.archive import ArchiveResult
from lockprovider.table.services.clean import CleanResult
from lockprovider.table.services.restore import RestoreResult
from lockprovider.table.settings import TableSettings
from lockprovider.table.spec import TableSpec
from lockprovider.table.state.context import TableContext
from lockprovider.table.state.events import Watcher, nobody
from lockprovider.table.table_transaction import TableTransaction
from lockprovider.table.timeline.archival import KeepActive
from lockprovider.table.timeline.retention import Policy
from lockprovider.table.timeline.rewrite_plan import TARGET_FILE_BYTES, ClusteringRule
from lockprovider.table.timeline.timeline import Timeline
from lockprovider.table.timeline.versions import Order, TableVersion, latest_checkpoint
from lockprovider.table.timeline.view import Snapshot, given_partitions
from lockprovider.table.transaction import retry
from lockprovider.table.transaction.retry import WHOLE_RETRIES
from lockprovider.table.transaction.transaction import CommitResult, Transaction


class Table(TableContext):
    """An opened table. Thread-safe: each transaction stands for itself.

    >>> rows = pa.table({"id": [1, 2], "city": ["ulm", "bonn"], "fare": [3.5, None]})
    >>> table = Table.create("memory://docs/trips", TableSpec("trips", rows, "id", "city"), exist_ok=True)
    >>> first = table.append(rows)
    """

    @classmethod
    def create(
        cls,
        url: str | os.PathLike[str],
        spec: TableSpec,
        *,
        storage_options: dict[str, Any] | None = None,
        settings: TableSettings | None = None,
        watcher: Watcher = nobody,
        exist_ok: bool = False,
    ) -> Table:
        """Make a new table, shared (see `share`), with one empty commit that carries its schema.

        `exist_ok`: open the one that is there, if its key, partitions, ordering, type and buckets are those of `spec`.

        Raises:
            TableExists: there is one already (with `exist_ok`: another one); nothing was changed.
            UnsupportedSchema, InvalidRecords: the spec cannot be stored; nothing was written.
            InvalidSettings: they name another index than the spec; nothing was written.

        >>> flat = TableSpec("flat", rows, record_keys="id")
        >>> Table.create("memory://docs/flat", flat).count()
        0
        >>> Table.create("memory://docs/flat", flat)
        Traceback (most recent call last):
        ...
        lockprovider.table.errors.TableExists: ...
        """
        return retry.create_table(
            cls,
            url,
            spec,
            storage_options=storage_options,
            settings=settings,
            watcher=watcher,
            exist_ok=exist_ok,
        )

    @staticmethod
    def exists(url: str | os.PathLike[str], *, storage_options: dict[str, Any] | None = None) -> bool:
        """Whether there is a table at `url`. One request.

        Raises:
            CasError: the URL or the store failed.

        >>> Table.exists("memory://docs/trips"), Table.exists("memory://docs/none")
        (True, False)
        """
        return Store.from_url(url, storage_options).read_or_none(PROPERTIES) is not None

    # -- reading -------------------------------------------------------------------------------------------------------

    @property
    def version(self) -> str:
        """The table's version: the completion time of the last commit, 17 digits of UTC; empty if there is none.

        It is read from the timeline each time. `as_of`, `changes`, `savepoint` and `restore` take it, and mean the
        table after that commit. They take a `CommitResult`, a `Commit` of `history()`, the begin time of a savepoint,
        and any other time, too: 17 or 14 digits of UTC, ISO text with its zone, an aware datetime. A time means the
        table after all commits that had completed by then.

        >>> table.to_arrow(as_of=table.version) == table.to_arrow()
        True
        """
        return latest_checkpoint(self.timeline(), Order.COMPLETION)

    def history(self) -> CommitHistory:
        """All completed writes on the timeline, in the order of their completion; what is archived is not there.

        >>> [commit.operation for commit in table.history()]  # the first has made the columns known
        ['UPSERT', 'INSERT']
        """
        return consistent.commits(self)

    def snapshot(
        self,
        timeline: Timeline | None = None,
        *,
        as_of: PointInTime = None,
        files: Iterable[Entry] | None = None,
    ) -> Snapshot:
        """The completed rows of `timeline` (default: now), or of a moment before it; `files` if listed already.

        Raises:
            HistoryGone: that moment cannot be read (any more).

        >>> sorted(table.snapshot().partitions)
        ['bonn', 'ulm']
        """
        if timeline is None and files is None:
            return consistent.snapshot(self, as_of)
        return consistent.snapshot_by(self, timeline or self.timeline(), as_of, files)

    def scan(
        self,
        columns: Iterable[str] | None = None,
        filter: Where = None,  # noqa: A002 - as pyarrow calls it
        partitions: Iterable[str] | None = None,
        as_of: PointInTime = None,
        *,
        read_optimized: bool = False,
    ) -> Scan:
        """A read of these rows, now or as of a moment; the methods of `Scan` read them. This method sends no request.

        Args:
            columns: all without Hudi's own, or these (which may be Hudi's).
            filter: SQL text (`"city = 'ulm' and fare is null"`, see `read.sql_where`), a pyarrow expression or its list
                of tuples; files and row groups without such rows are not read.
            partitions: paths of partitions, as folders are named.
            as_of: a version: a commit's result, or a time; see `version`, and `AsOf` for Hudi's own meaning.
            read_optimized: of a merge-on-read table what its base files have, without merging the log files: quicker,
                and as old as the last compaction of each file group. Of others the same as without.

        Raises:
            InvalidInput: an argument is of a wrong kind; by the methods of the scan: there is no such column or time,
                or the filter does not fit the columns.
            HistoryGone: by the methods of the scan: that moment cannot be read (any more).
            UnsupportedTable: by them: there are log files, and the table merges rows in a way that is not known here.

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
        """What the commits in (after, until] changed, as a whole: inserted, updated and deleted rows.

        Give the `checkpoint` of one call as `after` to the next, and nothing is missed or given twice, whatever order
        commits finish in; see `Order` for other orders than that of completion, and what they promise.

        Args:
            after: a checkpoint, or a version, see `version`; None for the beginning, when every row is an insert. A
                text is the time of a commit of this table: a feed does not go on over another table at its path.
            until: a version; None for all there is.
            order: `completion`, `fenced` or `begin`.
            columns: all without Hudi's own, or these; the operation comes first in any case.
            partitions: paths of partitions; all if None.

        Raises:
            HistoryGone: files were cleaned or commits archived since `after`, or the table was restored, or `after` is
                no commit's.
            InvalidInput: a time or column that does not exist.

        >>> table.delete("city = 'ulm'").deleted
        1
        >>> changes = table.changes(after=first.completion)
        >>> changes.to_arrow().column("_operation").to_pylist()
        ['delete']
        >>> table.changes(after=changes.checkpoint).commits
        ()
        """
        return changes_since(self, after, until, order=order, columns=columns, partitions=partitions)

    # -- writing -------------------------------------------------------------------------------------------------------

    def append(
        self,
        rows: Rows,
        *,
        retries: int | None = None,
        extra: Mapping[str, str] | None = None,
        check_keys: bool | None = None,
    ) -> CommitResult:
        """Add rows: a pandas or polars DataFrame, a pyarrow Table, or a RecordBatchReader, which is never held whole.

        `retries` after conflicts: 3, of a reader 0, as it can be read only once.

        A column that is missing becomes null. NOT checked, but with `check_keys` (None: as the settings say): that the
        keys are new to the table; if they may not be, `upsert`. Two appends never conflict otherwise. `extra` goes into
        the commit's metadata. In a table with a bucket index a row whose key is there is replaced, appends of one
        bucket do conflict, and a reader is held whole.

        Raises:
            DoesNotFit: a field is not the table's, is of a type that does not fit, or has a value that would change.
            InvalidRecords: a key is null, comes twice in `rows` or (if checked) is in the table.
            UnsupportedSchema: a DataFrame's column has no Arrow type.
            Aborted: others took this writer for dead.

        >>> table.append(pa.table({"id": [3], "city": ["ulm"]})).inserted
        1
        """
        given = as_stream(rows, self.schema)
        is_reader = isinstance(given, pa.RecordBatchReader)
        if retries and is_reader:
            raise InvalidRecords("a RecordBatchReader can be read only once: give a pyarrow Table to have retries")
        if retries is None:
            retries = 0 if is_reader else WHOLE_RETRIES

        def insert(txn: Transaction) -> None:
            nonlocal given
            if isinstance(given, pa.RecordBatchReader) and txn.config.bucket_index is not None:
                given = given.read_all()  # once: where the table's properties have changed, this is run again
            arrow.insert(txn, given)

        return retry.transact(self, insert, retries=retries, extra=extra, check_keys=check_keys, pinned=False)

    def upsert(
        self,
        rows: Rows,
        *,
        deletes: Rows | None = None,
        retries: int = WHOLE_RETRIES,
        extra: Mapping[str, str] | None = None,
        check_keys: bool | None = None,
    ) -> CommitResult:
        """Insert rows, or replace them where their key is in the same partition; and delete the keys in `deletes`.

        The rows have all columns of the table. Of several with one key the one with the highest value in the ordering
        field counts, without that field the last; in the table too the higher one stays. A key in both is deleted. With
        `check_keys` (None: as the settings say) a key that others have inserted meanwhile is a conflict, too.

        Raises:
            WriteConflict: others changed the same file groups first, at each of `retries` + 1 tries.
            InvalidRecords, UnsupportedSchema, Aborted: as for `append`; a missing column is refused.

        >>> done = table.upsert(pa.table({"id": [2, 3], "city": ["bonn", "ulm"], "fare": [4.0, 5.0]}))
        >>> done.updated, done.inserted
        (1, 1)
        """
        given = as_table(rows, self.schema)
        gone = None if deletes is None else as_table(deletes, self.schema)
        write = partial(arrow.write, upserts=given, deletes=gone)
        return retry.transact(self, write, retries=retries, extra=extra, check_keys=check_keys, pinned=False)

    def delete(
        self,
        keys: Rows | Where,
        *,
        retries: int = WHOLE_RETRIES,
        extra: Mapping[str, str] | None = None,
    ) -> CommitResult:
        """Delete rows by their key and partition columns; other columns do not matter, nor do keys that are not there.

        To a non-blocking writer the ordering column does: with it nothing is read, and nobody conflicts.

        Or those for which a condition is true, as SQL text or a pyarrow expression: `delete("fare is null")`. Rows that
        come in by others meanwhile, in new file groups, stay.

        Raises:
            WriteConflict: others changed the same file groups first, at each of `retries` + 1 tries.
            InvalidRecords: a key is null, or a key or partition column is missing.
            InvalidInput: the condition does not fit the table.

        >>> table.delete("city = 'ulm' and fare > 3").deleted, table.delete(rows.select(["id", "city"])).deleted
        (1, 1)
        """
        if isinstance(keys, (str, pc.Expression)):
            return retry.transact(self, partial(arrow.delete_where, where=keys), retries=retries, extra=extra)
        write = partial(arrow.write, deletes=as_table(keys, self.schema))
        return retry.transact(self, write, retries=retries, extra=extra, pinned=False)

    def overwrite(
        self,
        rows: Rows,
        partitions: Iterable[str] | None = None,
        *,
        retries: int = WHOLE_RETRIES,
        extra: Mapping[str, str] | None = None,
    ) -> CommitResult:
        """Put rows in place of all there are, in the whole table or in these partitions (paths, as folders are named).

        Rows that come in by other writers meanwhile, in new file groups, stay: they count as written after.

        Raises:
            WriteConflict: others changed the same file groups first, at each of `retries` + 1 tries.
            InvalidInput: `partitions` is one text, or no list.
            InvalidRecords, UnsupportedSchema, Aborted: as for `append`; a row for another partition.

        >>> done = table.overwrite(pa.table({"id": [9], "city": ["ulm"]}), partitions=["ulm"])
        >>> sorted(table.to_arrow().column("id").to_pylist())
        [2, 9]
        """
        write = partial(arrow.replace_all, rows=as_table(rows, self.schema), partitions=given_partitions(partitions))
        return retry.transact(self, write, retries=retries, extra=extra)

    def add_columns(self, columns: pa.Schema, *, retries: int = 5) -> CommitResult:
        """Add columns, in a commit of their own; older rows have nulls there. Files are not rewritten.

        A field inside a column is added by its path (`st.y`, `l.element.y` of a list, `m.value.y` of a map), or by a
        wider struct. It comes last in its struct.

        Writers that began before and commit after it get `WriteConflict`, and know the columns when they try again.
        Other changes of the schema are not possible: no column is dropped, renamed, or given another type.

        Raises:
            UnsupportedSchema: a field is there with another type, or is of a type that cannot be stored.
            InvalidInput: a path leads nowhere.
            WriteConflict: others added columns first, at each of `retries` + 1 tries.
            Fenced: a commit of a newer epoch was made, see `under`.

        >>> done = table.add_columns(pa.schema([("tip", pa.float64())]))
        >>> table.schema().names
        ['id', 'city', 'fare', 'tip']
        """
        if not isinstance(columns, pa.Schema):
            raise InvalidRecords(f"columns must be a pyarrow.schema([...]), not {type(columns).__name__}")
        return retry.add_columns(self, columns, retries=retries)

    def transaction(self, *, pinned: bool = True) -> TableTransaction:
        """Begin a transaction on a fresh snapshot: `with table.transaction() as txn:`.

        A clean end commits, an exception rolls back; without `with` do so yourself: `commit()` or `rollback()`. A
        conflict comes out of it as `WriteConflict`; to try again give `transact` a function instead.

        Not `pinned`: for one that has read nothing before it starts to write; its snapshot is of then.

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
        """Run `fn` in a transaction and commit it; after a conflict again, from a fresh snapshot.

        `fn` may run `retries` + 1 times and must get all it reads from its transaction. `extra` goes into the commit's
        extra metadata. `check_keys` is in place of the settings' (see `KeyCheck`): a key that another has
        inserted meanwhile is a conflict, too. `pinned`: see `transaction`.

        Raises:
            WriteConflict: others were faster at each try.
            Aborted: others took this writer for dead; or the table's properties have changed, and there are no retries.
            Fenced: a commit of a newer epoch was made, see `under`.

        >>> def raise_fares(txn):
        ...     txn.upsert(txn.to_pandas().assign(fare=lambda old: old["fare"] + 1))
        >>> table.transact(raise_fares, retries=3).updated
        2
        """
        return retry.transact(
            self, fn, retries=retries, extra=extra, check_keys=check_keys, pinned=pinned, face=TableTransaction
        )

    def run_inline_services(self) -> None:
        """Archive, compact, cluster, if the settings say so and it is time to: what follows each commit of this table.

        >>> table.run_inline_services()  # as its settings say: nothing, by default
        """
        inline.run_due(self)

    # -- services ------------------------------------------------------------------------------------------------------

    def clean(self, policy: Policy | None = None, *, dry_run: bool = False) -> tuple[CleanResult, ...]:
        """Remove files that no reader needs any more (default: by the settings' retention).

        While another cleaner is at work, this one does nothing. `dry_run`: nothing is written; what it would remove.
        `under` a fence, the epoch is compared when the plan is made; the clean does not record it.

        Raises:
            Fenced: a commit of a newer epoch was made; nothing more is planned.
            InvalidSettings: the policy would keep nothing.
            UnsupportedTable: the table cannot be written here.
            NotAcquired, CasError: the lock or the store; a plan that was made is finished by the next clean.

        >>> table.clean(KeepVersions(1))  # each file group has one version yet
        ()
        """
        return clean.clean(self, policy, dry_run=dry_run)

    def compact(self, *, dry_run: bool = False) -> tuple[CompactionResult, ...]:
        """Merge the log files of a merge-on-read table into new base files, while writers go on.

        What is scheduled and nobody runs comes first. `dry_run`: nothing is written; what it would schedule. `under` a
        fence, the epoch is compared at each step under the lock, and the compaction records it.

        Raises:
            Fenced: a commit of a newer epoch was made; what is scheduled is left to whoever follows.
            UnsupportedTable: the table is copy-on-write, or cannot be written here.

        >>> spec = TableSpec("logs", rows, "id", ordering="fare", buckets=1, table_type="merge_on_read")
        >>> logs = Table.create("memory://docs/logs", spec)
        >>> done = logs.append(rows.slice(0, 1)), logs.upsert(rows.slice(0, 1))
        >>> len(logs.compact())
        1
        """
        return compaction.compact_table(self, dry_run=dry_run)

    def schedule_compaction(self) -> str | None:
        """Write down what is to be merged, for another to run; its begin time, None if there is nothing.

        `under` a fence, the epoch is compared; the plan does not record it.

        >>> spec = TableSpec("logs", rows, "id", ordering="fare", buckets=1, table_type="merge_on_read")
        >>> logs = Table.create("memory://docs/logs", spec)
        >>> done = logs.append(rows.slice(0, 1)), logs.upsert(rows.slice(0, 1))
        >>> instant = logs.schedule_compaction()  # to be run here or elsewhere
        """
        return compaction.schedule_compaction(self)

    def run_compaction(self, instant: str) -> CompactionResult:
        """Run a scheduled compaction, of the JVM's too, or go on with one whose executor died; see `compaction`.

        Raises:
            HistoryGone: there is no such compaction, or files that it names are gone.
            Aborted: another executor is at work.

        >>> spec = TableSpec("logs", rows, "id", ordering="fare", buckets=1, table_type="merge_on_read")
        >>> logs = Table.create("memory://docs/logs", spec)
        >>> done = logs.append(rows.slice(0, 1)), logs.upsert(rows.slice(0, 1))
        >>> result = logs.run_compaction(logs.schedule_compaction())
        """
        return compaction.run_compaction(self, instant)

    def unschedule_compaction(self, instant: str | None = None, *, hours: float | None = None) -> tuple[str, ...]:
        """Take a scheduled compaction back; no row changes by it.

        With `hours`, in place of an instant, all that were scheduled so long ago, by the store's clock, and that nobody
        runs. Returns the begin times of what was taken back.

        Raises:
            InvalidInput: not one of the two is given, or `hours` is no number of hours above 0.
            HistoryGone: there is no such compaction.
            Aborted: an executor is at work.

        >>> spec = TableSpec("logs", rows, "id", ordering="fare", buckets=1, table_type="merge_on_read")
        >>> logs = Table.create("memory://docs/logs", spec)
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
        """Join small files of each partition into larger ones, their rows sorted, while writers go on elsewhere.

        What is scheduled and nobody runs comes first. A row stays what it is, of the commit that wrote it. A write of a
        file group that is being clustered gives way, or with `prefer_writer` the clustering does; see `clustering`.
        `under` a fence, the epoch is compared at each step under the lock, and the clustering records it.

        Args:
            sort_by: columns, nulls first; none: rows stay in the order of their files.
            target_file_bytes: about how large a new file is to be.
            small_file_bytes: files below this are joined, if a partition has two (default: half of the target).
            dry_run: nothing is written; what it would schedule first.

        Raises:
            Fenced: a commit of a newer epoch was made; what is scheduled is left to whoever follows.
            InvalidInput: there are no such columns, or sizes.
            UnsupportedTable: the table has buckets (one file group each: nothing to join), or cannot be written here.
            WriteConflict: a write was faster, or is preferred; no row changed by the clustering that gave way.

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
        """Write down what is to be joined, for another to run, JVM Hudi too; its begin time, None if there is nothing.

        Until then writes of those file groups give way. Arguments and errors are those of `cluster`. `under` a fence,
        the epoch is compared; the plan does not record it.

        >>> table.schedule_clustering() is None  # a file in each partition: there is nothing to join
        True
        """
        rule = ClusteringRule.of(sort_by, target_file_bytes, small_file_bytes)
        return clustering.schedule_clustering(self, rule)

    def run_clustering(self, instant: str) -> ClusteringResult:
        """Run a scheduled clustering, of the JVM's too, or go on with one whose executor died; see `clustering`.

        Raises:
            HistoryGone: there is no such clustering, or files that it names are gone.
            Aborted: another executor is at work.
            WriteConflict: a write was faster, or is preferred; the plan was taken back.

        >>> more = table.append(pa.table({"id": [3], "city": ["ulm"]}))
        >>> instant = table.schedule_clustering(sort_by=["id"])
        >>> result = instant and table.run_clustering(instant)
        """
        return clustering.run_clustering(self, instant)

    def unschedule_clustering(self, instant: str | None = None, *, hours: float | None = None) -> tuple[str, ...]:
        """Take a scheduled clustering back; no row changes by it.

        With `hours`, in place of an instant, all that were scheduled so long ago, by the store's clock, and that nobody
        runs. Returns the begin times of what was taken back.

        Raises:
            InvalidInput: not one of the two is given, or `hours` is no number of hours above 0.
            HistoryGone: there is no such clustering.
            Aborted: an executor is at work.

        >>> table.unschedule_clustering(hours=24)
        ()
        """
        return clustering.unschedule_clustering(self, instant, hours)

    def archive(self, keep: KeepActive | None = None, *, dry_run: bool = False) -> ArchiveResult:
        """Move the oldest instants off the timeline (default: by the settings' `archival`); their rows stay.

        `dry_run`: nothing is written; what it would archive, if no writer is dead. `under` a fence, the epoch is
        compared in each round that has something to archive; the archive does not record it.

        Raises:
            Fenced: a commit of a newer epoch was made.
            InvalidSettings: what is to be kept cannot be.
            UnsupportedTable: the table cannot be written here.
            Corrupt: a file of the archive, or an instant, cannot be understood.
            NotAcquired, LeaseLost, CasError: the lock or the store; may be repeated.

        >>> result = table.archive(KeepActive(20, 30), dry_run=True)
        """
        return archive.archive(self, keep, dry_run=dry_run)

    def sweep(self) -> tuple[str, ...]:
        """Roll back what dead writers left, and finish what dead services planned; the begin times of all that.

        Raises:
            NotAcquired, CasError: the lock or the store; may be repeated.

        >>> table.sweep()  # nobody has died
        ()
        """
        return (*rollback.sweep(self), *(done.instant for done in clean.finish_dead(self)))

    def roll_back(self, instant: str, *, force: bool = False) -> None:
        """Remove a pending write of a dead writer; with `force` that of a living one too, which gets `Aborted`.

        Raises:
            HistoryGone: there is no such pending write.
            Aborted: its writer is alive.
            NotAcquired, CasError: the lock or the store; may be repeated.

        >>> table.roll_back("20260101000000000")
        Traceback (most recent call last):
        ...
        lockprovider.table.errors.HistoryGone: 20260101000000000 is no pending write; to take back commits, use restore
        """
        rollback.roll_back_dead(self, instant, force=force)

    def savepoint(self, version: TableVersion | None = None, *, user: str = "", comment: str = "") -> str:
        """Keep the files of a commit (default: the last) from being cleaned, until `delete_savepoint`.

        `version` names the commit, see `Table.version`; a time names the last that had completed by then. Returns the
        begin time of the commit that was chosen. Hudi names savepoints by it, and it is a version itself.

        Raises:
            InvalidInput: it names no version.
            HistoryGone: there is no such commit, or files that it needs were cleaned or are about to be.
            UnsupportedTable: the table cannot be written here.
            NotAcquired, CasError: the lock or the store; may be repeated.

        >>> kept = table.savepoint(comment="before the migration")
        >>> kept == first.instant, table.to_arrow(as_of=kept).num_rows, table.changes(after=kept).commits
        (True, 2, ())
        """
        return restore.save(self, version, user=user, comment=comment)[0]

    def savepoints(self) -> dict[str, Savepoint]:
        """All savepoints by the begin time of their commit, oldest first.

        Raises:
            Corrupt: one cannot be understood.

        >>> instant = table.savepoint(comment="before the migration")
        >>> table.savepoints()[instant].comment
        'before the migration'
        """
        return restore.savepoints(self, self.timeline())

    def delete_savepoint(self, version: TableVersion) -> bool:
        """Let the files of a commit's savepoint be cleaned again; False if it has none.

        Raises:
            InvalidInput: it names no version.
            HistoryGone: there is no such commit.
            NotAcquired, CasError: the lock or the store; may be repeated.

        >>> table.delete_savepoint(table.savepoint())
        True
        """
        return restore.delete_savepoint(self, version)

    def restore(self, version: TableVersion) -> RestoreResult:
        """Undo: take back every commit that completed after a version, see `version`; which, the result says.

        NOT promised: anything for JVM writers that run meanwhile; stop them first. `under` a fence, the epoch is
        compared before anything is taken back; the restore does not record it, and removes the epochs of what it takes
        back.

        Raises:
            Fenced: a commit of a newer epoch was made.
            InvalidInput: it names no version.
            HistoryGone: there is no such commit (any more), files that it needs were cleaned, or a later commit has a
                savepoint or was archived.
            UnsupportedTable: the table cannot be written here.
            NotAcquired, LeaseLost, CasError: the lock or the store; may be repeated.

        >>> before = table.version
        >>> done = table.delete("id = 1")
        >>> table.restore(before).taken_back == (done.instant,), table.count()
        (True, 2)
        """
        return restore.restore(self, version)

    def adopt_bucket_index(self, buckets: int, bucket_by: Sequence[str] = ()) -> None:
        """Say in the properties that a JVM writer made buckets, or that an empty table is to have them.

        Reads all keys of the table first. Safe to repeat.

        Raises:
            UnsupportedTable: a row is not in the bucket of its key, or the table has another index.
            InvalidRecords: `bucket_by` is no part of the record key, or the number of buckets is impossible.
            Aborted: others committed each time while the keys were read; nothing was changed.

        >>> Table.create("memory://docs/none", TableSpec("none", rows, "id")).adopt_bucket_index(4)
        """
        share.adopt_bucket_index(self, buckets, bucket_by)

    def share(self, *, dry_run: bool = False, all_in_utc: bool = False) -> tuple[SettingChange, ...]:
        """Let the properties tell JVM Hudi's writers in Spark how to share the table; what changed. Safe to repeat.

        A job that says otherwise fails. `dry_run`: nothing is written. `all_in_utc`: you know that all writers ran in
        UTC; needed for a copy of a table with local times, whose files have other times than those of their writing.

        Raises:
            UnsupportedTable: it cannot be written here. NotAcquired, CasError: may be repeated.

        >>> for change in table.share(dry_run=True):  # what JVM Hudi's writers will find in the table
        ...     assert change
        """
        return sharing.share(self, dry_run=dry_run, all_in_utc=all_in_utc)

    def unshare(self, *, dry_run: bool = False) -> tuple[SettingChange, ...]:
        """Take back what `share` wrote, so that the table can go back to one JVM writer; what was there.

        Stop all other writers first, those of this library too: a single JVM writer takes no lock, and rolls back
        whatever is pending. The zone of the table's times stays UTC. `dry_run`: nothing is written.

        Raises:
            Aborted: a write is pending; nothing was changed. NotAcquired, CasError: may be repeated.

        >>> sorted(change.key for change in table.unshare(dry_run=True))[-1]
        'hoodie.write.lock.provider'
        """
        return sharing.unshare(self, dry_run=dry_run)

    def doctor(self, *, keys: bool = False) -> tuple[TableFinding, ...]:
        """What is wrong with the table, and what to do about it; nothing is written.

        `keys`: all record keys in base files are read, and those that are in several file groups are counted.

        Tables that cannot be written here can be looked at, too; `lockprovider table doctor URL` also looks at those
        that cannot be opened. NOT promised: that a finding is still true when it is read.

        Raises:
            CasError: the store failed.

        >>> [finding.what for finding in table.doctor() if finding.state == "wrong"]
        []
        """
        return tuple(finding for _, _, found in diagnose(self, keys=keys) for finding in found)

    def set_visibility(self, visibility: str) -> None:
        """Let commits appear `"ordered"`, or `"unordered"`: see `TableSpec.visibility`. Safe to repeat.

        A transaction that is being written ends with `Aborted`, as by every change of the properties.

        Raises:
            InvalidInput: it is none of the two. NotAcquired, CasError: may be repeated.

        >>> table.set_visibility("ordered")  # as it is, if nobody asked for more
        """
        sharing.set_visibility(self, visibility)

    def retire_metadata_table(self) -> int:
        """Stop using a metadata table of JVM Hudi's, and remove it; how many files it had. Safe to repeat.

        JVM writers in Spark make none from then on; set `hoodie.metadata.enable=false` on others (Flink, Java) first.

        Raises:
            Aborted: a write is pending, whose writer may be building it. NotAcquired, CasError: may be repeated.

        >>> table.retire_metadata_table()  # none is there
        0
        """
        return metadata_table.retire_metadata_table(self)
