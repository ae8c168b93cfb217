"""Share a table with JVM Hudi's writers: let its properties tell them what each would have to be told.

Under the table lock, with one conditional write. A table that `Table.create` made has these settings already. Jobs that
run have read the properties before: one that began without the lock goes on without it, until it is started again.

With `TableSettings(write_metadata=True)` a metadata table stays, and the properties say so: from then on writers here
keep its listing of files. Its statistics of columns and partitions are dropped, and Spark's writers told to make none.

Tables that JVM Hudi makes say `LOCAL` for the zone of their times: each writer's own. That is UTC if all of them ran in
it, and the store's clock tells: it has written each completed file at about the time that its name says.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from lockprovider.table.errors import UnsupportedTable
from lockprovider.table.format.layout import METADATA_TABLE, TIMELINE
from lockprovider.table.format.metadata_table import STATISTICS
from lockprovider.table.format.properties import PARTITIONS_KEY, TableConfig
from lockprovider.table.format.shapes import check_writable
from lockprovider.table.format.writer_settings import SettingChange, alone, shared, unshared, with_appearance
from lockprovider.table.services import plans
from lockprovider.table.state.context import keeps_listing
from lockprovider.table.state.key_spelling import spelled
from lockprovider.table.timeline.timeline import Timeline, drifts_ms, of_other_zones

if TYPE_CHECKING:
    from lockprovider.table.state.context import TableContext


def share(table: TableContext, *, dry_run: bool = False, all_in_utc: bool = False) -> tuple[SettingChange, ...]:
    """Write the settings; what was changed, or with `dry_run` would be. Safe to repeat.

    A transaction that is being written here ends with `Aborted`, as by every change of the properties. `all_in_utc`:
    the caller knows that all writers ran in UTC, whatever times the files have.

    Raises:
        UnsupportedTable: it cannot be written here: it has a metadata table, times of another zone than UTC, ...
        Aborted: a write is pending, whose writer may be building what is dropped; nothing was changed.
        VersionMismatch: a writer that does not take the lock changed the properties at the same moment; try again.
        NotAcquired, CasError: the lock or the store; may be repeated.
    """
    if dry_run:
        return _changes(table, spelled(table, table.config()), all_in_utc=all_in_utc)
    done: tuple[SettingChange, ...] = ()
    keeps = False

    def change(config: TableConfig) -> TableConfig:
        nonlocal done, keeps
        config = spelled(table, config)
        done, keeps = _changes(table, config, all_in_utc=all_in_utc), _keeps(table, config)
        if any(one.key == PARTITIONS_KEY for one in done):
            plans.check_no_write(table)
        return shared(config, keeps_listing=keeps) if done else config

    with table.lock.acquire() as lease:
        plans.change_properties(table, lease, change)
        for folder in STATISTICS if keeps else ():  # after they are named no more
            for entry in table.store.list(f"{METADATA_TABLE}/{folder}/"):
                table.store.delete(entry.path)
    return done


def unshare(table: TableContext, *, dry_run: bool = False) -> tuple[SettingChange, ...]:
    """Take the settings back, so that one JVM writer can have the table to itself; what was there. Safe to repeat.

    `dry_run`: nothing is written.

    Raises:
        Aborted: a write is pending, which that writer would roll back; nothing was changed.
        VersionMismatch: a writer that does not take the lock changed the properties at the same moment; try again.
        NotAcquired, CasError: the lock or the store; may be repeated.
    """
    if dry_run:
        return _taken(table.config())
    with table.lock.acquire() as lease:
        done = _taken(table.config())
        if done:
            plans.check_no_write(table)
            plans.change_properties(table, lease, alone)
    return done


def _taken(config: TableConfig) -> tuple[SettingChange, ...]:
    left = alone(config).raw
    return tuple(SettingChange(key, said, "") for key, said in sorted(config.raw.items()) if key not in left)


def set_appears(table: TableContext, wanted: str) -> None:
    """See `Table.set_appears`.

    What was decided before is there by then, and with the log all end that wait for a decision.
    """
    with_appearance(table.config(), wanted)  # refused before the lock is asked for
    with table.lock.acquire() as lease:
        plans.change_properties(table, lease, partial(with_appearance, wanted=wanted))


def _keeps(table: TableContext, config: TableConfig) -> bool:
    return bool(config.named_metadata) and keeps_listing(table, config)


def _changes(table: TableContext, config: TableConfig, *, all_in_utc: bool) -> tuple[SettingChange, ...]:
    keeps = _keeps(table, config)
    check_writable(shared(config, keeps_listing=keeps), keeps_listing=keeps)
    if config.timezone != "UTC" and not all_in_utc:
        _check_zone(table, config)
    return unshared(config, keeps_listing=keeps)


def _check_zone(table: TableContext, config: TableConfig) -> None:
    """All times on the timeline are of UTC, by the store's clock."""
    prefix = f"{TIMELINE}/"
    written_ms = {entry.path.removeprefix(prefix): entry.modified_ms for entry in table.store.list(prefix)}
    others = of_other_zones(drifts_ms(Timeline.of(written_ms), written_ms))
    if others:
        raise UnsupportedTable(
            f"table {config.name!r} has {len(others)} times that are not of UTC by the store's clock, the last is "
            f"{max(others)}: a writer ran in another zone, or the table was copied; if you know that all ran in UTC, "
            "give all_in_utc=True (`lockprovider table share --all-in-utc`)"
        )
