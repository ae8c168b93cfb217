"""Share a table with JVM Hudi's writers: let its properties tell them what each would have to be told.

Under the table lock, with one conditional write. A table that `Table.create` made has these settings already. Jobs that
run have read the properties before: one that began without the lock goes on without it, until it is started again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from lockprovider.table.format.properties import TableConfig, check_writable
from lockprovider.table.format.writer_settings import SettingChange, shared, unshared
from lockprovider.table.services import plans

if TYPE_CHECKING:
    from lockprovider.table.state.context import TableContext


def would_share(table: TableContext) -> tuple[SettingChange, ...]:
    """What `share` would change now. Nothing is written.

    Raises:
        UnsupportedTable: as for `share`.
    """
    return _changes(table.config())


def share(table: TableContext) -> tuple[SettingChange, ...]:
    """Write the settings; what was changed. Safe to repeat.

    A transaction that is being written here ends with `Aborted`, as by every change of the properties.

    Raises:
        UnsupportedTable: it cannot be written here: it has a metadata table, or times of another zone than UTC, ...
        VersionMismatch: a writer that does not take the lock changed the properties at the same moment; try again.
        NotAcquired, CasError: the lock or the store; may be repeated.
    """
    done: tuple[SettingChange, ...] = ()

    def change(config: TableConfig) -> TableConfig:
        nonlocal done
        done = _changes(config)
        return shared(config) if done else config

    with table.lock.acquire() as lease:
        plans.change_properties(table, lease, change)
    return done


def _changes(config: TableConfig) -> tuple[SettingChange, ...]:
    check_writable(config)
    return unshared(config)
