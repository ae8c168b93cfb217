"""A function in a transaction, again and again until it commits or has lost too often.

An attempt whose snapshot has become stale is rolled back, and the next one waits a little and begins from a fresh
snapshot: so the function must get all it reads from its transaction. Any other failure is rolled back too, and comes
out as it is. An attempt that found the table changed before it had begun does not count.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from fsspec_cas import InvalidInput
from fsspec_cas.given import whole
from fsspec_cas.sender import delay_s
from lockprovider.table.errors import PropertiesChanged
from lockprovider.table.state.as_of import is_stale
from lockprovider.table.state.context import TableContext
from lockprovider.table.transaction.start import Passed
from lockprovider.table.transaction.transaction import CommitResult, Face, Transaction

WHOLE_RETRIES = (
    3  # of a write that is given whole; a function is run once, unless its caller says that it may run again
)


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
    """See `Table.transact`; `face` makes what `fn` gets of the transaction."""
    if not isinstance(table, TableContext):
        raise InvalidInput(f"table is a {type(table).__name__}, and must be a Table: Table.open(url)")
    retries = whole(retries, "retries")
    if not callable(fn):
        raise InvalidInput(f"fn={fn!r} must be a function of a transaction")
    if extra is not None and not _is_text(extra):
        raise InvalidInput(f"extra={extra!r} must be names and texts: it goes into the commit's metadata as JSON text")
    conflicts = 0
    while True:
        txn = Transaction(table, pinned=pinned)
        given = txn if face is None else face(txn)
        txn.extra.update(extra or {})
        txn.may_begin_again = retries > 0 and not pinned
        txn.check_keys = txn.check_keys if check_keys is None else check_keys
        try:
            fn(given)
            result = given.commit(conflicts=conflicts)
        except (PropertiesChanged, Passed):
            txn.rollback()  # it has not begun; now the table is known
        except Exception as error:
            conflicts += 1
            txn.rollback()
            if conflicts > retries or not is_stale(table, txn.timeline, error):
                raise
            table.tell("retry", txn.begin, conflicts=conflicts)
            table.world.sleep(delay_s(conflicts, table.world.random()))
        except BaseException:
            txn.rollback()
            raise
        else:
            return result


def _is_text(extra: object) -> bool:
    """Whether all of it is text: a commit's metadata has no other values."""
    return isinstance(extra, Mapping) and all(isinstance(text, str) for pair in extra.items() for text in pair)
