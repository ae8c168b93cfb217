"""`TableTransaction`, which `Table.transaction` begins."""

from __future__ import annotations

from collections.abc import Iterable
from types import TracebackType

import pyarrow as pa
import pyarrow.compute as pc

from lockprovider.table.convert import OnMissing
from lockprovider.table.convert.rows import Rows, as_table
from lockprovider.table.engines import arrow
from lockprovider.table.engines.scan import Scan, short_for
from lockprovider.table.errors import InvalidRecords
from lockprovider.table.read.scan import Where
from lockprovider.table.timeline.view import given_partitions
from lockprovider.table.transaction.lifecycle import State
from lockprovider.table.transaction.transaction import CommitResult, Transaction, TransactionHandle


class TableTransaction(TransactionHandle):
    """Transaction with `Table`'s methods; not thread-safe, and for one commit only.

    Promised: all reads are of one moment. A clean end of the `with` block commits all changes, unless another writer
    has changed the same file groups since; an exception discards them. NOT promised: that a row only read is unchanged
    at the commit; that a transaction reads its own changes.

    >>> rows = pa.table({"id": [1, 2], "city": ["ulm", "bonn"], "fare": [3.5, None]})
    >>> table = Table.create("memory://docs/trips", TableSpec("trips", rows, "id", "city"))
    >>> done = table.append(rows)
    >>> txn = table.transaction()
    """

    def __init__(self, inner: Transaction) -> None:
        super().__init__(inner)
        self._kind = ""
        self._rows: list[pa.Table] = []
        self._keys: list[pa.Table] = []
        self._partitions: tuple[str, ...] | None = None

    def scan(
        self,
        columns: Iterable[str] | None = None,
        filter: Where = None,  # noqa: A002 - as pyarrow calls it
        partitions: Iterable[str] | None = None,
    ) -> Scan:
        """Describe a read as of the transaction's begin, as `Table.scan`.

        >>> txn.scan(["id"], "city = 'ulm'").to_arrow().to_pylist()
        [{'id': 1}]
        """
        return Scan(self, columns, filter, partitions)

    to_arrow = short_for(scan, Scan.to_arrow)
    to_pandas = short_for(scan, Scan.to_pandas)
    to_polars = short_for(scan, Scan.to_polars)

    def append(self, rows: Rows) -> None:
        """Add rows at the commit, like `Table.append`; only more appends may follow.

        Until then they stay in memory, as those of `upsert` and `overwrite` do.

        >>> with txn:
        ...     txn.append(pa.table({"id": [3], "city": ["ulm"]}))
        >>> table.count()
        3
        """
        self._add_rows("append", as_table(rows, lambda: self._schema), "null")

    def upsert(self, rows: Rows, *, deletes: Rows | None = None) -> None:
        """Insert or replace rows, and delete the keys in `deletes`, at the commit, like `Table.upsert`.

        Upserts may follow until keys are deleted, then only deletes.

        Raises:
            InvalidRecords: a delete, append or overwrite came before; else as `Table.upsert`.

        >>> with txn:
        ...     txn.upsert(txn.to_pandas(filter="fare is null").assign(fare=0.0))
        >>> txn.result.updated
        1
        """
        if self._keys:
            raise InvalidRecords("call upsert before delete in a transaction: a key in both is deleted")
        found = None if deletes is None else self._matching(deletes)
        self._add_rows("upsert", as_table(rows, lambda: self._schema), "refuse")
        if found is not None:
            self._set_kind("delete")
            self._keys.append(found)

    def delete(self, keys: Rows | Where) -> None:
        """Delete rows at the commit, like `Table.delete`: by key, or by a condition on the rows at its begin, read now.

        No delete can follow an append or overwrite.

        >>> with txn:
        ...     txn.delete("city = 'ulm'")
        >>> table.count()
        1
        """
        found = self._matching(keys)
        self._set_kind("delete")
        self._keys.append(found)

    def overwrite(self, rows: Rows, partitions: Iterable[str] | None = None) -> None:
        """Replace all rows of the table, or of `partitions`, at the commit; the transaction's only write.

        Raises:
            InvalidRecords, UnsupportedSchema: the columns do not fit, or the transaction has other writes.

        >>> with txn:
        ...     txn.overwrite(rows.slice(0, 1))
        >>> table.count()
        1
        """
        if self._kind:
            raise InvalidRecords(f"overwrite must be the only write of a transaction; it cannot follow {self._kind}")
        self._partitions = given_partitions(partitions)
        self._add_rows("overwrite", as_table(rows, lambda: self._schema), "null")

    @property
    def _schema(self) -> pa.Schema:
        return self._inner.table.schema(self.timeline)

    def _matching(self, keys: Rows | Where) -> pa.Table:
        if isinstance(keys, (str, pc.Expression)):
            matching = self.to_arrow(self._inner.config.identifying, keys)
        else:
            matching = as_table(keys, lambda: self._schema)
        valued = self._inner.may_be_blind and self._inner.config.ordering_field in matching.column_names
        return self._inner.planner().deletes(matching, valued=valued)

    def _add_rows(self, kind: str, rows: pa.Table, missing: OnMissing) -> None:
        stored = self._inner.planner().plan(rows.schema, missing)(rows)
        self._set_kind(kind)
        self._rows.append(stored)

    def _set_kind(self, kind: str) -> None:
        before = ("", kind, "upsert") if kind == "delete" else ("", kind)
        if self._kind not in before or (kind == "overwrite" and self._rows):
            raise InvalidRecords(f"{kind} cannot follow {self._kind} in one transaction; begin another one")
        self._kind = kind

    def commit(self, *, conflicts: int = 0) -> CommitResult:
        """Write all changes and make them visible for good; `conflicts`, the number before, goes into the result.

        Afterwards runs due inline services. After success, a repeated call returns the same result.

        Raises:
            WriteConflict: a commit since the begin changed the same file groups; call `rollback`.
            Aborted: the heartbeat expired, another writer rolled this write back, or the table changed; call
                `rollback`.
            PublishUnknown: the changes may be visible; call `commit` again to find out.
            InvalidRecords: there is nothing to write (also after a failed `commit`), or a row is invalid.

        >>> txn.append(pa.table({"id": [3], "city": ["ulm"]}))
        >>> txn.commit().inserted
        1
        """
        self._write()
        return super().commit(conflicts=conflicts)

    @property
    def result(self) -> CommitResult | None:
        """Result of the commit; None before it."""
        return self._inner.result

    def _write(self) -> None:
        """Write the collected rows and deletes into the inner transaction.

        Repeated calls do nothing, even after an error.
        """
        kind, self._kind = self._kind, ""
        all_rows, self._rows, all_keys, self._keys = self._rows, [], self._keys, []
        rows = pa.concat_tables(all_rows, promote_options="default") if all_rows else None
        keys = pa.concat_tables(all_keys, promote_options="default") if all_keys else None
        if kind == "overwrite":
            arrow.replace_all(self._inner, rows, self._partitions)
        elif kind == "append":
            arrow.insert(self._inner, rows)
        elif kind:
            arrow.write(self._inner, rows, keys)

    def __repr__(self) -> str:
        state = "committed" if self.result is not None else f"began {self.begin}" if self.begin else "nothing written"
        return f"<TableTransaction on {self._inner.table.url!r}, {state}>"

    def __enter__(self) -> TableTransaction:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Commit after a clean block that wrote something, else roll back, also after a failed commit."""
        if self._inner.state is State.OVER:
            return
        if error is not None or not (self._kind or self._inner.has_written):
            self.rollback()
            return
        try:
            self.commit()
        except BaseException:
            self.rollback()
            raise
