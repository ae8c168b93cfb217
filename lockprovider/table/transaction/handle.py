"""What users hold of a transaction: it can be read, ended, and given to an engine; how engines write is not theirs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

from fsspec_cas import InvalidInput
from lockprovider.table.timeline.timeline import Timeline
from lockprovider.table.transaction.exactly_once import BatchId
from lockprovider.table.transaction.proposal import CommitResult
from lockprovider.table.transaction.transaction import Transaction


class TransactionHandle:
    """A transaction for the functions of engines: `engines.spark.write(txn, df)`; not thread-safe, good for one commit.

    Attributes:
        extra: texts by name that go into the commit's metadata.
    """

    def __init__(self, inner: Transaction) -> None:
        self._inner = inner
        self.extra = inner.extra

    @property
    def begin(self) -> str:
        """Its name in the timeline, the time at which it began; empty until something is written."""
        return self._inner.begin

    @property
    def timeline(self) -> Timeline:
        """What was completed when it began; if nothing was read before it started to write, when it started."""
        return self._inner.timeline

    def exactly_once(self, stream: str, batch: int) -> None:
        """Name the batch that this transaction is, before it writes; a batch in the table is not committed again.

        Batches of one stream are numbered upwards by the caller, and committed in that order.

        Raises:
            AlreadyCommitted: this batch, or a later one of the stream, is in the table; so does `commit`.
            InvalidInput: the stream is no text, or the batch no number from 0 on.

        >>> with table.transaction() as txn:
        ...     txn.exactly_once("orders", 17)
        ...     txn.append(pa.table({"id": [4], "city": ["bonn"]}))
        """
        self._inner.exactly_once(BatchId.of(stream, batch))

    def commit(self, *, conflicts: int = 0) -> CommitResult:
        """Make what was written visible, all of it, for good; `conflicts` before it are told in the result.

        Raises:
            WriteConflict: a commit that completed since this began touched the same file groups; `rollback` then.
            Aborted: others took this writer for dead, or the table changed; `rollback` then.
            InvalidRecords: nothing was written.
        """
        return self._inner.commit(conflicts=conflicts)

    def rollback(self) -> None:
        """Remove everything that was written; nothing of it was visible. What cannot be removed now others will.

        >>> txn.append(pa.table({"id": [3], "city": ["ulm"]}))
        >>> txn.rollback()
        >>> table.count()
        2
        """
        self._inner.rollback()


AnyTransaction: TypeAlias = Transaction | TransactionHandle
Face: TypeAlias = Callable[[Transaction], TransactionHandle]


def inside(txn: Any) -> Transaction:
    """The transaction of what a user gave.

    Raises:
        InvalidInput: it is none.
    """
    if isinstance(txn, TransactionHandle):
        return txn._inner  # noqa: SLF001 - engines are the ones that it is kept for
    if not isinstance(txn, Transaction):
        raise InvalidInput(f"txn={txn!r} must be a transaction: `with table.transaction() as txn:`")
    return txn
