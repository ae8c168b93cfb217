"""Hudi's keys mean one thing, whoever reads them: the lock, a table, Spark's data source, the shell."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Callable, Mapping

import pytest

from lockprovider import InvalidSettings, LockProvider, LockSettings, hudi_keys
from lockprovider.commands.table_services import settings as of_the_shell
from lockprovider.table import TableSettings

OURS = {"hoodie.write.lock.provider": hudi_keys.STORAGE_PROVIDER}
VALIDITY, RENEW, OLDER = hudi_keys.VALIDITY, hudi_keys.RENEW, hudi_keys.RENEW_OLDER
WAIT, PAUSE = hudi_keys.WAIT_MS, hudi_keys.PAUSE_MS


def by_provider(config: Mapping[str, str]) -> LockSettings:
    return LockProvider.from_config({"hoodie.base.path": "memory://t/able", **config})._lock.settings


def by_table(config: Mapping[str, str]) -> LockSettings:
    return TableSettings.from_hudi(config).lock


def by_data_source(config: Mapping[str, str]) -> LockSettings:
    from lockprovider.table.engines.spark.options import SparkOptions

    return SparkOptions.of({"path": "memory://t/able", **config}).settings.lock


def by_shell(config: Mapping[str, str]) -> LockSettings:
    return of_the_shell(Namespace(hoodie=[f"{key}={value}" for key, value in config.items()])).lock


READERS = (by_provider, by_table, by_data_source, by_shell)
Reader = Callable[[Mapping[str, str]], LockSettings]


@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize(
    ("config", "settings"),
    [
        ({}, LockSettings()),
        ({VALIDITY: "60", RENEW: "6", WAIT: "2500", PAUSE: "250"}, LockSettings(60, 6, 2.5, 0.25)),
        ({VALIDITY: "60", OLDER: "6"}, LockSettings(60, 6)),
        ({OLDER: "6", RENEW: "6"}, LockSettings(renew=6)),
        (OURS, LockSettings()),
    ],
    ids=str,
)
def test_lock_of_one_config_is_the_same_for_every_reader(
    reader: Reader, config: dict[str, str], settings: LockSettings
) -> None:
    assert reader(config) == settings


REFUSED = [
    ({"hoodie.write.lock.provider": "a.b.ZookeeperBasedLockProvider"}, ["ZookeeperBased", "StorageBasedLock"]),
    ({"hoodie.write.lock.provider": ""}, ["lock.provider=", "StorageBasedLock"]),
    ({"hoodie.write.lock.zookeeper.url": "zk1"}, ["zookeeper.url", "StorageBasedLock"]),
    ({"hoodie.write.lock.dynamodb.table": "t"}, ["dynamodb.table", "StorageBasedLock"]),
    ({"hoodie.write.concurency.mode": "single_writer"}, ["concurency.mode", "did you mean", "concurrency.mode"]),
    ({"hoodie.write.lock.wait_time": "5"}, ["lock.wait_time ", "wait_time_ms"]),
    ({"hoodie.writes.lock.provider": "x"}, ["hoodie.writes.lock.provider", "hoodie.write.lock.provider"]),
    ({"hoodie.wirte.lock.provider": "x"}, ["hoodie.wirte.lock.provider", "hoodie.write.lock.provider"]),
    ({"hoodi.write.concurrency.mode": "x"}, ["hoodi.write", "hoodie.write.concurrency.mode"]),
    ({"hoodie.cleaner.policy.failed.write": "LAZY"}, ["failed.write ", "hoodie.cleaner.policy.failed.writes"]),
    ({"hoodie.keep.min.commit": "3"}, ["hoodie.keep.min.commits"]),
    ({"hoodie.index.types": "BUCKET"}, ["hoodie.index.type"]),
    ({"hoodie.client.heartbeat.interval_ms": "3"}, ["hoodie.client.heartbeat.interval_in_ms"]),
    ({"hoodie.write.nothing.like.it": "3"}, ["hoodie.write.nothing.like.it", "known here"]),
    ({"hoodie.clean.partition.filter.regex": "a.*"}, ["a.*", "all partitions", "leave it out"]),
    ({"hoodie.index.class": "a.Mine"}, ["a.Mine", "leave it out"]),
    ({"hoodie.write.table.version": "6"}, ["version=6", "8, 9"]),
    ({"hoodie.index.type": "BUKCET"}, ["type=BUKCET", "BUCKET, BLOOM"]),
    ({"hoodie.write.record.merge.mode": "CUSTOM"}, ["mode=CUSTOM", "EVENT_TIME_ORDERING"]),
    ({"hoodie.compact.inline.trigger.strategy": "TIME_ELAPSED"}, ["=TIME_ELAPSED", "NUM_COMMITS"]),
    ({"hoodie.compact.schedule.inline": "true"}, ["inline=true", "FALSE"]),
    ({"hoodie.clustering.schedule.inline": "true"}, ["inline=true", "FALSE"]),
    ({"hoodie.index.type": "GLOBAL_SIMPLE"}, ["type=GLOBAL_SIMPLE", "BUCKET, BLOOM, SIMPLE"]),
    ({"hoodie.index.type": "RECORD_INDEX"}, ["type=RECORD_INDEX", "BUCKET, BLOOM, SIMPLE"]),
    ({"hoodie.index.bucket.engine": "CONSISTENT_HASHING"}, ["engine=CONSISTENT_HASHING", "SIMPLE"]),
    ({"hoodie.clean.failed.writes.policy": "NEVER"}, ["policy=NEVER", "LAZY, EAGER"]),
    ({"hoodie.write.commit.callback.on": "true"}, ["callback.on=true", "FALSE"]),
    ({"hoodie.write.concurrency.early.conflict.detection.enable": "true"}, ["enable=true", "FALSE"]),
    ({"hoodie.metadata.record.index.enable": "true"}, ["record.index.enable=true", "FALSE"]),
    ({"hoodie.metadata.index.column.stats.enable": "true"}, ["column.stats.enable=true", "FALSE"]),
    ({"hoodie.table.format": "iceberg"}, ["format=iceberg", "NATIVE"]),
    ({"hoodie.table.multiple.base.file.formats.enable": "true"}, ["enable=true", "FALSE"]),
    ({"hoodie.table.cdc.enabled": "true"}, ["cdc.enabled=true", "FALSE"]),
    ({"hoodie.schema.on.read.enable": "true"}, ["on.read.enable=true", "FALSE"]),
    ({VALIDITY: "20", RENEW: "3"}, [f"{VALIDITY}=20", f"10 x {RENEW}=3"]),
    ({RENEW: "6", OLDER: "5"}, [f"{RENEW}=6", f"{OLDER}=5", "disagree"]),
    ({WAIT: "soon"}, [f"{WAIT}='soon'", "milliseconds"]),
    ({PAUSE: "0"}, [f"{PAUSE}=0", "above zero"]),
]


@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize(("config", "parts"), REFUSED, ids=str)
def test_invalid_config_is_refused_by_every_reader(reader: Reader, config: dict[str, str], parts: list[str]) -> None:
    if reader in (by_data_source, by_shell) and not all(key.startswith("hoodie.") for key in config):
        pytest.skip("options that do not begin with hoodie. are refused there as such")
    with pytest.raises(InvalidSettings) as refused:
        reader(config)
    assert [part for part in parts if part not in str(refused.value)] == []


# What a JVM writer is given in earnest, most of it without a meaning here.
WHOLE = {
    **OURS,
    "hoodie.table.name": "trips",
    "hoodie.datasource.write.recordkey.field": "id",
    "hoodie.datasource.write.partitionpath.field": "city",
    "hoodie.datasource.write.operation": "upsert",
    "hoodie.datasource.hive_sync.enable": "false",
    "hoodie.upsert.shuffle.parallelism": "8",
    "hoodie.parquet.max.file.size": "125829120",
    "hoodie.prewrite.cleaner.policy": "NONE",
    "hoodie.bloom.index.filter.type": "DYNAMIC_V0",
    "hoodie.bootstrap.index.type": "hfile",
    "hoodie.metadata.enable": "false",
    "hoodie.rollback.avoid.duplicate.plan": "true",
    "hoodie.write.auto.upgrade": "false",
    "hoodie.write.table.version": "8",
    "hoodie.write.markers.type": "DIRECT",
    "hoodie.write.lock.client.num_retries": "3",
    "hoodie.write.lock.num_retries": "3",
    "hoodie.write.lock.zookeeper.url": "left over from the lock before",
    "hoodie.write.commit.callback.on": "false",
    "hoodie.clean.automatic": "true",
    "hoodie.write.concurrency.mode": "optimistic_concurrency_control",
    "hoodie.cleaner.policy.failed.writes": "LAZY",
    "spark.serializer": "org.apache.spark.serializer.KryoSerializer",
}


@pytest.mark.parametrize("reader", READERS)
def test_writers_whole_config_is_accepted(reader: Reader) -> None:
    given = {k: v for k, v in WHOLE.items() if k.startswith("hoodie.") or reader not in (by_data_source, by_shell)}
    assert reader(given) == LockSettings()


def test_no_key_is_in_two_tables() -> None:
    assert not hudi_keys.HONOURED & hudi_keys.WITHOUT_EFFECT


@pytest.mark.parametrize("key", sorted(hudi_keys.HONOURED))
def test_keys_documented_as_honoured_are_read(key: str) -> None:
    """A value that nobody could mean is refused, so somebody reads it."""
    if key in _ANY_TEXT:
        return
    bucket = {"hoodie.index.type": "BUCKET"} if "bucket" in key else {}
    policy = {"hoodie.clean.policy": _POLICY[key.split(".")[2]]} if "retained" in key else {}
    with pytest.raises(InvalidSettings, match="(?i)no such value"):
        TableSettings.from_hudi({**bucket, **policy, key: "no such value"})


_ANY_TEXT = (
    hudi_keys.BASE_PATH,
    "hoodie.bucket.index.hash.field",
    "hoodie.clustering.plan.strategy.sort.columns",
    "hoodie.write.meta.key.prefixes",
    "hoodie.write.rolling.metadata.keys",
)
_POLICY = {
    "commits": "KEEP_LATEST_COMMITS",
    "hours": "KEEP_LATEST_BY_HOURS",
    "fileversions": "KEEP_LATEST_FILE_VERSIONS",
}
