"""Sharing of a table with JVM Hudi's writers, by settings in its properties; adoption of a bucket index."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from lockprovider.table.errors import Aborted, Corrupt, UnsupportedTable
from lockprovider.table.files.base_file import bucket_groups, misplaced
from lockprovider.table.files.keys import KeyFile
from lockprovider.table.format.bucket import BucketIndex
from lockprovider.table.format.layout import BUCKET_RULES, METADATA_TABLE, TIMELINE
from lockprovider.table.format.metadata_table import STATISTICS
from lockprovider.table.format.properties import BUCKETS, HASH_FIELD, PARTITIONS_KEY, TableConfig
from lockprovider.table.format.shapes import check_writable
from lockprovider.table.format.writer_settings import SettingChange, alone, shared, unshared, with_visibility
from lockprovider.table.services import plans
from lockprovider.table.spec import named_columns
from lockprovider.table.state.context import keeps_listing
from lockprovider.table.state.key_spelling import with_key_spelling
from lockprovider.table.state.parallel import files_below
from lockprovider.table.timeline.timeline import Timeline, drifts_ms, of_other_zones

if TYPE_CHECKING:
    from lockprovider.table.state.context import TableContext


def share(table: TableContext, *, dry_run: bool = False, all_in_utc: bool = False) -> tuple[SettingChange, ...]:
    """Write the properties by which JVM writers share the table; see `Table.share`."""
    if dry_run:
        return _changes(table, with_key_spelling(table, table.config()), all_in_utc=all_in_utc)
    done: tuple[SettingChange, ...] = ()
    keeps = False

    def change(config: TableConfig) -> TableConfig:
        nonlocal done, keeps
        config = with_key_spelling(table, config)
        done, keeps = _changes(table, config, all_in_utc=all_in_utc), _keeps(table, config)
        if any(one.key == PARTITIONS_KEY for one in done):
            plans.check_no_write(table)
        return shared(config, keeps_listing=keeps) if done else config

    with table.lock.acquire() as lease:
        plans.change_properties(table, lease, change)
        for folder in STATISTICS if keeps else ():  # The properties no longer name them.
            table.store.delete_all([entry.path for entry in table.store.list(f"{METADATA_TABLE}/{folder}/")])
    return done


def unshare(table: TableContext, *, dry_run: bool = False) -> tuple[SettingChange, ...]:
    """Remove the properties that `share` wrote; see `Table.unshare`."""
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


def set_visibility(table: TableContext, wanted: str) -> None:
    """Write the order in which commits become visible; this ends the lock's log and all undecided intents."""
    with_visibility(table.config(), wanted)  # A wrong value raises before the lock is requested.
    with table.lock.acquire() as lease:
        plans.change_properties(table, lease, partial(with_visibility, wanted=wanted))


def _keeps(table: TableContext, config: TableConfig) -> bool:
    return bool(config.named_metadata) and keeps_listing(table, config)


def _changes(table: TableContext, config: TableConfig, *, all_in_utc: bool) -> tuple[SettingChange, ...]:
    keeps = _keeps(table, config)
    check_writable(shared(config, keeps_listing=keeps), keeps_listing=keeps)
    if config.timezone != "UTC" and not all_in_utc:
        _check_zone(table, config)
    return unshared(config, keeps_listing=keeps)


def _check_zone(table: TableContext, config: TableConfig) -> None:
    """Refuse a timeline whose times (`LOCAL` in JVM tables) differ from UTC by the store's clock."""
    written_ms = {name: entry.modified_ms for name, entry in files_below(table.store, TIMELINE).items()}
    others = of_other_zones(drifts_ms(Timeline.of(written_ms), written_ms))
    if others:
        raise UnsupportedTable(
            f"table {config.name!r} has {len(others)} times that are not of UTC by the store's clock, the last is "
            f"{max(others)}: a writer ran in another zone, or the table was copied; if you know that all ran in UTC, "
            "give all_in_utc=True (`lockprovider table share --all-in-utc`)"
        )


# Source of bucket adoption: Hudi `HoodieSimpleBucketIndex`, `HoodieIndexConfig`.
_TRIES = 10


def adopt_bucket_index(table: TableContext, buckets: int, bucket_by: Sequence[str] = ()) -> None:
    """Check a JVM writer's bucket index against all keys, and write it; see `Table.adopt_bucket_index`.

    A wrong index would put new rows of a key into another file group.
    """
    config = table.config()
    index = BucketIndex(buckets, named_columns("bucket_by", bucket_by) or config.record_keys).checked(
        config.record_keys
    )
    if config.bucket_index not in (None, index):
        raise UnsupportedTable(f"table {config.name!r} has {config.bucket_index}, which cannot be changed to {index}")
    wanted = replace(config, bucket_index=index)
    check_writable(wanted)
    if table.store.list(f"{BUCKET_RULES}/"):
        raise UnsupportedTable(
            f"table {config.name!r} has rules for its buckets below {BUCKET_RULES}; use its own engine"
        )
    for _ in range(_TRIES):
        seen = table.listed_timeline()
        _check_rows(table, seen, wanted, index)
        if _written(table, seen, index):
            return
    raise Aborted("others committed each time while the table's keys were read; try again when less is written")


def _check_rows(table: TableContext, seen: Timeline, wanted: TableConfig, index: BucketIndex) -> None:
    """Raise `UnsupportedTable` if a row of the snapshot is not in the bucket of its key."""
    slices = table.snapshot_of(seen).slices
    try:
        bucket_groups(slices, index)
    except Corrupt as error:
        raise UnsupportedTable(f"table {wanted.name!r} has no buckets: {error}") from error
    for one in slices:
        others = misplaced(wanted, one, KeyFile(table.place, one.path, one.size).keys)
        if others:
            raise UnsupportedTable(
                f"{others} rows of {one.path!r} are of other buckets with {wanted.bucket_index}: ask its writer for "
                f"{BUCKETS} and {HASH_FIELD}"
            )


def _written(table: TableContext, seen: Timeline, index: BucketIndex) -> bool:
    """Write the index under the lock; return False if something was committed since `seen`."""
    with table.lock.acquire() as lease:
        if table.listed_timeline().written != seen.written:
            return False
        plans.change_properties(table, lease, lambda config: replace(config, bucket_index=index))
    return True
