"""Settings that a shared table stores for JVM Hudi's writers in Spark, and the visibility of commits.

Spark's writers adopt every setting in `hoodie.properties`, and fail with `Config conflict` if a job contradicts one.
HoodieStreamer, Flink, the Java client, `ALTER TABLE` and `archive_commits` ignore them.

Source: Hudi 1.2.0 `HoodieSparkSqlWriter.mergeParamsAndGetHoodieConfig`, `HoodieWriterUtils.validateTableConfig`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType

from fsspec_cas import InvalidInput
from lockprovider.table.format.metadata_table import STATISTICS
from lockprovider.table.format.properties import KEY_ENCODING, PARTITIONS_KEY, TableConfig, flag_text

MODE_KEY = "hoodie.write.concurrency.mode"
OPTIMISTIC, NON_BLOCKING = "optimistic_concurrency_control", "non_blocking_concurrency_control"
FAILED_KEYS = ("hoodie.clean.failed.writes.policy", "hoodie.cleaner.policy.failed.writes")
METADATA_KEY = "hoodie.metadata.enable"
STATISTICS_KEY = "hoodie.metadata.index.column.stats.enable"  # also of partitions
LOCK_KEY = "hoodie.write.lock.provider"
KEY_CHECK_KEY = "hoodie.write.complex.keygen.validation.enable"
ZONE_KEY = "hoodie.table.timeline.timezone"

SHARED: Mapping[str, str] = MappingProxyType(
    {
        LOCK_KEY: "org.apache.hudi.client.transaction.lock.StorageBasedLockProvider",
        MODE_KEY: OPTIMISTIC,
        # JVM writers must not roll back live writers; a job may set EAGER by the older name.
        **dict.fromkeys(FAILED_KEYS, "LAZY"),
        METADATA_KEY: "false",  # It would hide commits that it does not record.
        "hoodie.write.auto.upgrade": "false",  # It locks out older readers and rolls back live writers.
        "hoodie.rollback.avoid.duplicate.plan": "true",  # Two rollbacks of one write would fail.
    }
)


@dataclass(frozen=True, slots=True)
class SettingChange:
    """Property that `share` or `unshare` changes: the value `found`, None if new, and `wanted`, empty to remove it."""

    key: str
    found: str | None
    wanted: str


def shared(config: TableConfig, *, keeps_listing: bool = False) -> TableConfig:
    """Return the configuration with the settings `SHARED` and time zone UTC; writes nothing.

    A non-blocking table stays so if it is merge-on-read with buckets. With `keeps_listing` its metadata table stays,
    without statistics.
    """
    settings, partitions = _wanted(config, keeps_listing=keeps_listing), config.metadata_partitions
    if keeps_listing:
        partitions = tuple(name for name in partitions if name not in STATISTICS)
    raw = MappingProxyType({**config.raw, **settings})
    return replace(config, timezone="UTC", metadata_partitions=partitions, raw=raw)


def alone(config: TableConfig) -> TableConfig:
    """Return the configuration without the settings of `shared`; the zone stays UTC, like its instants."""
    keys = {*SHARED, STATISTICS_KEY}
    return replace(config, raw=MappingProxyType({key: value for key, value in config.raw.items() if key not in keys}))


def keeps_file_listing(config: TableConfig) -> bool:
    """Return whether the table makes Spark's writers keep a listing of files only."""
    settings = {METADATA_KEY: "true", STATISTICS_KEY: "false"}
    return bool(config.named_metadata) and all(config.raw.get(key) == value for key, value in settings.items())


def as_non_blocking(config: TableConfig) -> TableConfig:
    """Return the configuration that makes Spark's writers non-blocking."""
    return replace(config, raw=MappingProxyType({**config.raw, MODE_KEY: NON_BLOCKING}))


def _wanted(config: TableConfig, *, keeps_listing: bool) -> Mapping[str, str]:
    """Return the settings that `shared` adds; the mode stays non-blocking only if merge-on-read with buckets."""
    says_so = config.raw.get(MODE_KEY, "").strip().lower() == NON_BLOCKING
    is_possible = config.is_merge_on_read and config.bucket_index is not None
    mode = {MODE_KEY: NON_BLOCKING} if says_so and is_possible else {}
    listing = {METADATA_KEY: "true", STATISTICS_KEY: "false"} if keeps_listing else {}
    return {**SHARED, **mode, **listing, **_key_encoding(config)}


def _key_encoding(config: TableConfig) -> Mapping[str, str]:
    """Return the spelling of one-column keys in version 8, without which Hudi from 1.1 on refuses to write.

    Empty for other tables.
    """
    if not config.has_complex_single_key or config.version > 8:  # noqa: PLR2004 - the last that has two spellings
        return {}
    return {KEY_CHECK_KEY: "false", KEY_ENCODING: flag_text(not config.names_single_key)}


def without_metadata_table(config: TableConfig) -> TableConfig:
    """Return the configuration without a metadata table, which keeps Spark's writers from making one."""
    raw = MappingProxyType({**config.raw, METADATA_KEY: "false"})
    return replace(config, metadata_partitions=(), metadata_inflight=(), raw=raw)


def unshared(config: TableConfig, *, keeps_listing: bool = False) -> tuple[SettingChange, ...]:
    """Return the setting changes that `shared` would make with the same `keeps_listing`; empty if none.

    Values compare as in Hudi, without case and outer spaces.
    """
    wanted_by_key = _wanted(config, keeps_listing=keeps_listing)
    found = {key: config.raw.get(key) for key in wanted_by_key}
    changes = [
        SettingChange(key, found[key], wanted)
        for key, wanted in wanted_by_key.items()
        if (found[key] or "").strip().lower() != wanted.lower()
    ]
    zone = SettingChange(ZONE_KEY, config.timezone or None, "UTC")
    partitions = shared(config, keeps_listing=keeps_listing).metadata_partitions
    named = [SettingChange(PARTITIONS_KEY, ",".join(config.metadata_partitions), ",".join(partitions))]
    less = named if partitions != config.metadata_partitions else []
    return (*changes, *less, *(() if config.timezone == "UTC" else (zone,)))


# JVM Hudi keeps this property of this library.

VISIBILITY_KEY = "fsspec_cas.visibility"
VISIBILITIES = ORDERED, UNORDERED = ("ordered", "unordered")


def visibility(config: TableConfig) -> str:
    """Return the recorded visibility, even an invalid one."""
    return config.raw.get(VISIBILITY_KEY, ORDERED)


def is_unordered(config: TableConfig) -> bool:
    """Return whether the commits of one decision are stored at once, in any order; by default one after the other.

    JVM Hudi's incremental queries and hudi-rs, whose checkpoint is a completion time, MAY then MISS COMMITS.
    """
    return visibility(config) == UNORDERED


def with_visibility(config: TableConfig, wanted: str) -> TableConfig:
    """Return the configuration with this visibility; raise `InvalidInput` for an unknown one."""
    if not isinstance(wanted, str) or wanted not in VISIBILITIES:
        raise InvalidInput(f"visibility={wanted!r} is not valid: use {' or '.join(map(repr, VISIBILITIES))}")
    others = {key: value for key, value in config.raw.items() if key != VISIBILITY_KEY}
    setting = {} if wanted == ORDERED else {VISIBILITY_KEY: wanted}
    return replace(config, raw=MappingProxyType(others | setting))
