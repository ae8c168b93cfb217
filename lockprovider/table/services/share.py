"""Changes of a table's properties under its lock."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from lockprovider.table.errors import Aborted, Corrupt, UnsupportedTable
from lockprovider.table.files.base_file import bucket_groups, misplaced
from lockprovider.table.files.merge_log import MergeRule
from lockprovider.table.files.slice_rows import merged_keys
from lockprovider.table.format.bucket import BucketIndex
from lockprovider.table.format.compatibility import (
    STATISTICS,
    SettingChange,
    check_writable,
    share_changes,
    shared,
    with_visibility,
    without_shared,
)
from lockprovider.table.format.layout import BUCKET_RULES, METADATA_TABLE, TIMELINE
from lockprovider.table.format.properties import BUCKETS, HASH_FIELD, PARTITIONS_KEY, TableConfig
from lockprovider.table.services import plans
from lockprovider.table.spec import named_columns
from lockprovider.table.state.context import keeps_listing, with_key_spelling
from lockprovider.table.state.parallel import files_below
from lockprovider.table.timeline.timeline import Timeline, drifts_ms, of_other_zones

if TYPE_CHECKING:
    from lockprovider.table.state.context import TableContext


def share(table: TableContext, *, dry_run: bool = False, all_in_utc: bool = False) -> tuple[SettingChange, ...]:
    """Write under the lock the properties that JVM writers adopt; return the changes. `dry_run` only returns them.

    Also deletes statistics of a kept metadata table; if properties name them, a pending write raises `Aborted`.
    `all_in_utc` skips the check of zones. Raises UnsupportedTable if the table would not be writable.
    """
    done: tuple[SettingChange, ...] = ()
    keeps = False

    def change(config: TableConfig) -> TableConfig:
        nonlocal done, keeps
        config = with_key_spelling(table, config)
        done, keeps = _setting_changes(table, config, all_in_utc=all_in_utc), _keeps_listing(table, config)
        if any(setting.key == PARTITIONS_KEY for setting in done):
            plans.check_no_write(table)
        return shared(config, keeps_listing=keeps) if done else config

    if dry_run:
        change(table.config())
        return done
    with table.lock.acquire() as lease:
        plans.change_properties(table, lease, change)
        for folder in STATISTICS if keeps else ():
            table.store.delete_all([entry.path for entry in table.store.list(f"{METADATA_TABLE}/{folder}/")])
    return done


def unshare(table: TableContext, *, dry_run: bool = False) -> tuple[SettingChange, ...]:
    """Remove under the lock those properties of `share` that `without_shared` drops, and return them.

    `dry_run` only returns them. Raises `Aborted` for a pending write, if any of these exist.
    """
    if dry_run:
        return _removed_settings(table)
    with table.lock.acquire() as lease:
        done = _removed_settings(table)
        if done:
            plans.change_properties(table, lease, without_shared)
    return done


def _removed_settings(table: TableContext) -> tuple[SettingChange, ...]:
    """Properties that `unshare` removes; if any, lists the timeline, and raises `Aborted` for a pending write."""
    config = table.config()
    removed = sorted(config.raw.items() - without_shared(config).raw.items())
    if removed:
        plans.check_no_write(table)
    return tuple(SettingChange(key, value, "") for key, value in removed)


def set_visibility(table: TableContext, visibility: str) -> None:
    """Write the order in which commits become visible; this ends the lock's log and undecided intents."""
    with_visibility(table.config(), visibility)
    with table.lock.acquire() as lease:
        plans.change_properties(table, lease, partial(with_visibility, wanted=visibility))


def _keeps_listing(table: TableContext, config: TableConfig) -> bool:
    return bool(config.named_metadata) and keeps_listing(table, config)


def _setting_changes(table: TableContext, config: TableConfig, *, all_in_utc: bool) -> tuple[SettingChange, ...]:
    keeps = _keeps_listing(table, config)
    check_writable(shared(config, keeps_listing=keeps), keeps_listing=keeps)
    if config.timezone != "UTC" and not all_in_utc:
        _check_zone(table, config)
    return share_changes(config, keeps_listing=keeps)


def _check_zone(table: TableContext, config: TableConfig) -> None:
    """Raise `UnsupportedTable` if a completion time is over 7.5 minutes off the store's time of its file."""
    written_ms = {name: entry.modified_ms for name, entry in files_below(table.store, TIMELINE).items()}
    foreign = of_other_zones(drifts_ms(Timeline.of(written_ms), written_ms))
    if foreign:
        raise UnsupportedTable(
            f"table {config.name!r} has {len(foreign)} times that differ from UTC by the store's clock, the last is "
            f"{max(foreign)}: a writer ran in another zone, or the table was copied; if you know that all ran in UTC, "
            "give all_in_utc=True (`lockprovider table share --all-in-utc`)"
        )


# Source: Hudi `HoodieSimpleBucketIndex`, `HoodieIndexConfig`.
_TRIES = 10


def adopt_bucket_index(table: TableContext, buckets: int, bucket_by: Sequence[str] = ()) -> None:
    """Read all keys; if each is in its bucket, write the bucket index to the properties under the lock.

    `bucket_by`: the hashed columns; empty: all record keys. Raises `InvalidRecords` for invalid arguments,
    UnsupportedTable for misplaced rows, another index or bucket rules, `Aborted` if writers committed during each of
    ten tries.
    """
    config = table.config()
    keys = config.record_keys
    index = BucketIndex(buckets, named_columns("bucket_by", bucket_by) or keys).checked(keys)
    if config.bucket_index not in (None, index):
        raise UnsupportedTable(f"table {config.name!r} has {config.bucket_index}, which cannot be changed to {index}")
    changed = replace(config, bucket_index=index)
    check_writable(changed)
    if table.store.list(f"{BUCKET_RULES}/"):
        raise UnsupportedTable(
            f"table {config.name!r} has rules for its buckets below {BUCKET_RULES}; use the engine that set them"
        )
    for _ in range(_TRIES):
        timeline = table.listed_timeline()
        _check_rows(table, timeline, changed, index)
        with table.lock.acquire() as lease:
            if table.listed_timeline().written == timeline.written:
                plans.change_properties(table, lease, lambda config: replace(config, bucket_index=index))
                return
    raise Aborted("other writers committed each time while the table's keys were read; try again when fewer are active")


def _check_rows(table: TableContext, timeline: Timeline, config: TableConfig, index: BucketIndex) -> None:
    """List files, read all keys; raise UnsupportedTable if a row or file id is not of its bucket.

    `config` must have `index`.
    """
    slices = table.snapshot_of(timeline).slices
    try:
        bucket_groups(slices, index)
    except Corrupt as error:
        raise UnsupportedTable(f"table {config.name!r} has no buckets: {error}") from error
    schema, rule = table.schema(timeline), MergeRule.of(config)
    for file_slice in slices:
        parts = merged_keys(table.place, file_slice, schema, rule)
        count = sum(misplaced(config, file_slice, keys) for keys in parts)
        if count:
            raise UnsupportedTable(
                f"{count} rows of {file_slice.paths[0]!r} are of other buckets with {config.bucket_index}: ask "
                f"its writer for {BUCKETS} and {HASH_FIELD}"
            )
