"""Hudi's configuration keys: honoured, without effect, or refused.

Source: Hudi 1.3.0-SNAPSHOT, with older names.
"""

from __future__ import annotations

from collections.abc import Mapping

from fsspec_cas.arguments import LARGEST_NUMBER, shown
from lockprovider.errors import InvalidSettings

BASE_PATH = "hoodie.base.path"
PROVIDER = "hoodie.write.lock.provider"
STORAGE_PROVIDER = "org.apache.hudi.client.transaction.lock.StorageBasedLockProvider"
VALIDITY = "hoodie.write.lock.storage.validity.timeout.secs"
RENEW = "hoodie.write.lock.storage.renew.interval.secs"
RENEW_OLDER = "hoodie.write.lock.storage.heartbeat.poll.secs"
WAIT_MS = "hoodie.write.lock.wait_time_ms"
PAUSE_MS = "hoodie.write.lock.wait_time_ms_between_retry"

# Hudi 1.2's keys of Azure credentials -> storage options.
MANAGED_IDENTITY = "managed_identity_client_id"  # becomes a credential object
AZURE: Mapping[str, str] = {
    "hoodie.write.lock.azure.connection.string": "connection_string",
    "hoodie.write.lock.azure.sas.token": "sas_token",
    "hoodie.write.lock.azure.managed.identity.client.id": MANAGED_IDENTITY,
    "hoodie.write.lock.azure.client.tenant.id": "tenant_id",
    "hoodie.write.lock.azure.client.id": "client_id",
    "hoodie.write.lock.azure.client.secret": "client_secret",
}

OWNED = (
    "hoodie.write.",
    "hoodie.clean.",
    "hoodie.cleaner.",
    "hoodie.client.heartbeat.",
    "hoodie.keep.",
    "hoodie.archive.",
    "hoodie.index.",
    "hoodie.bucket.index.",
)

HONOURED = frozenset(
    {
        BASE_PATH,
        PROVIDER,
        VALIDITY,
        RENEW,
        RENEW_OLDER,
        WAIT_MS,
        PAUSE_MS,
        "hoodie.write.lock.conflict.resolution.strategy",
        "hoodie.write.concurrency.mode",
        "hoodie.write.meta.key.prefixes",
        "hoodie.write.rolling.metadata.keys",
        "hoodie.clean.failed.writes.policy",
        "hoodie.cleaner.policy.failed.writes",
        "hoodie.clean.policy",
        "hoodie.cleaner.policy",
        "hoodie.clean.commits.retained",
        "hoodie.cleaner.commits.retained",
        "hoodie.clean.hours.retained",
        "hoodie.cleaner.hours.retained",
        "hoodie.clean.fileversions.retained",
        "hoodie.cleaner.fileversions.retained",
        "hoodie.client.heartbeat.interval_in_ms",
        "hoodie.client.heartbeat.tolerable.misses",
        "hoodie.keep.min.commits",
        "hoodie.keep.max.commits",
        "hoodie.archive.automatic",
        "hoodie.compact.inline",
        "hoodie.compact.inline.max.delta.commits",
        "hoodie.clustering.inline",
        "hoodie.clustering.inline.max.commits",
        "hoodie.clustering.plan.strategy.sort.columns",
        "hoodie.clustering.plan.strategy.target.file.max.bytes",
        "hoodie.clustering.plan.strategy.small.file.limit",
        "hoodie.index.type",
        "hoodie.index.bucket.engine",
        "hoodie.bucket.index.num.buckets",
        "hoodie.bucket.index.hash.field",
    }
)

# They concern only JVM writers, or the table's properties decide.
WITHOUT_EFFECT = frozenset(
    {
        # JVM Hudi repeats `wait_time_ms`, here the whole wait.
        "hoodie.write.lock.num_retries",
        "hoodie.write.lock.max_wait_time_ms_between_retry",
        "hoodie.write.lock.client.num_retries",
        "hoodie.write.lock.client.wait_time_ms_between_retry",
        "hoodie.write.num.retries.on.conflict.failures",
        "hoodie.write.lock.heartbeat_interval_ms",
        "hoodie.write.lock.app_id",
        # A commit finds all conflicts under the lock; see `_VALUES`.
        "hoodie.write.concurrency.schema.conflict.resolution.enable",
        "hoodie.write.concurrency.early.conflict.detection.strategy",
        "hoodie.write.concurrency.early.conflict.detection.enable",
        "hoodie.write.concurrency.early.conflict.check.commit.conflict",
        "hoodie.write.concurrency.async.conflict.detector.initial_delay_ms",
        "hoodie.write.concurrency.async.conflict.detector.period_ms",
        # `hoodie.properties` decides these; no table is upgraded.
        "hoodie.write.auto.upgrade",
        "hoodie.write.table.version",
        "hoodie.write.record.merge.mode",
        "hoodie.write.record.merge.strategy.id",
        "hoodie.write.complex.keygen.new.encoding",
        "hoodie.write.complex.keygen.validation.enable",
        "hoodie.write.application.id",
        "hoodie.write.buffer.limit.bytes",
        "hoodie.write.buffer.record.cache.limit",
        "hoodie.write.buffer.record.sampling.rate",
        "hoodie.write.can.ignore.post.commit.failures",
        "hoodie.write.concat.handle.class",
        "hoodie.write.config.keys.to.serialize.to.commit.metadata",
        "hoodie.write.executor.disruptor.buffer.limit.bytes",
        "hoodie.write.executor.disruptor.wait.strategy",
        "hoodie.write.executor.type",
        "hoodie.write.ignore.failed",
        "hoodie.write.markers.type",
        "hoodie.write.merge.handle.class",
        "hoodie.write.merge.handle.fallback",
        "hoodie.write.record.positions",
        "hoodie.write.rolling.metadata.timeline.lookback.commits",
        "hoodie.write.schema",
        "hoodie.write.set.null.for.missing.columns",
        "hoodie.write.status.storage.level",
        "hoodie.write.tagged.record.storage.level",
        "hoodie.write.track.event.time.watermark",
        # Only `Table.clean` cleans; only `Table.archive` and `hoodie.archive.automatic` archive.
        "hoodie.clean.automatic",
        "hoodie.clean.async",
        "hoodie.clean.async.enabled",
        "hoodie.clean.allow.multiple",
        "hoodie.clean.multiple.enabled",
        "hoodie.clean.trigger.strategy",
        "hoodie.clean.trigger.max.commits",
        "hoodie.clean.max.commits",
        "hoodie.clean.max.commits.to.clean",
        "hoodie.clean.incremental.enabled",
        "hoodie.cleaner.incremental.mode",
        "hoodie.clean.optimize.using.local.engine.context",
        "hoodie.clean.parallelism",
        "hoodie.cleaner.parallelism",
        "hoodie.clean.delete.bootstrap.base.file",
        "hoodie.cleaner.delete.bootstrap.base.file",
        "hoodie.write.empty.clean.interval.hours",
        "hoodie.archive.async",
        "hoodie.archive.beyond.savepoint",
        "hoodie.archive.block.on.latest.clean.ectr",
        "hoodie.archive.delete.parallelism",
        "hoodie.archive.limit.instants",
        "hoodie.index.bloom.fpp",
        "hoodie.index.bloom.num_entries",
        "hoodie.index.name",
        "hoodie.bucket.index.max.num.buckets",
        "hoodie.bucket.index.min.num.buckets",
        "hoodie.bucket.index.merge.threshold",
        "hoodie.bucket.index.split.threshold",
        "hoodie.bucket.index.partition.rule.type",
        "hoodie.bucket.index.query.pruning",
        "hoodie.bucket.index.remote.partitioner.enable",
    }
)
_OTHER_LOCKS = tuple(f"hoodie.write.lock.{lock}." for lock in ("zookeeper", "hivemetastore", "dynamodb", "filesystem"))
_WITHOUT_EFFECT = (*_OTHER_LOCKS, "hoodie.write.commit.callback.", "hoodie.index.hbase.")

REFUSED = {
    "hoodie.clean.partition.filter.regex": "a clean here is of all partitions",
    "hoodie.cleaner.partition.filter.regex": "a clean here is of all partitions",
    "hoodie.clean.partition.filter.selected": "a clean here is of all partitions",
    "hoodie.cleaner.partition.filter.selected": "a clean here is of all partitions",
    "hoodie.index.class": "indexes of users cannot be had here",
    "hoodie.bucket.index.partition.expressions": "all partitions have the same number of buckets here",
    "hoodie.write.partial.update.schema": "rows are written whole here",
    "hoodie.write.partial.update.unavailable.value": "rows are written whole here",
    "hoodie.write.record.merge.custom.implementation.classes": "mergers of users cannot be had here",
}
_VALUES = {
    "hoodie.write.table.version": ("8", "9"),
    # Other indexes find keys in all partitions, or keep data that writes here do not update.
    "hoodie.index.type": ("BUCKET", "BLOOM", "SIMPLE"),
    "hoodie.index.bucket.engine": ("SIMPLE",),
    "hoodie.clean.failed.writes.policy": ("LAZY", "EAGER"),
    "hoodie.cleaner.policy.failed.writes": ("LAZY", "EAGER"),
    "hoodie.write.commit.callback.on": ("FALSE",),
    "hoodie.write.concurrency.early.conflict.detection.enable": ("FALSE",),
    "hoodie.write.concurrency.schema.conflict.resolution.enable": ("TRUE",),
    # Writers cannot choose these properties.
    "hoodie.populate.meta.fields": ("TRUE",),
    "hoodie.table.cdc.enabled": ("FALSE",),
    "hoodie.table.format": ("NATIVE",),
    "hoodie.table.base.file.format": ("PARQUET",),
    "hoodie.table.multiple.base.file.formats.enable": ("FALSE",),
    "hoodie.schema.on.read.enable": ("FALSE",),
    "hoodie.datasource.write.drop.partition.columns": ("FALSE",),
    "hoodie.datasource.write.slash.separated.date.partitioning": ("FALSE",),
    # Of a metadata table, writes here maintain only the list of files.
    **dict.fromkeys(
        (
            "hoodie.metadata.index.bloom.filter.enable",
            "hoodie.metadata.index.column.stats.enable",
            "hoodie.metadata.index.partition.stats.enable",
            "hoodie.metadata.index.expression.enable",
            "hoodie.metadata.index.secondary.enable",
            "hoodie.metadata.record.index.enable",
            "hoodie.metadata.record.level.index.enable",
            "hoodie.metadata.global.record.level.index.enable",
        ),
        ("FALSE",),
    ),
    "hoodie.write.record.merge.mode": ("COMMIT_TIME_ORDERING", "EVENT_TIME_ORDERING"),
    "hoodie.compact.inline.trigger.strategy": ("NUM_COMMITS",),
    "hoodie.compact.schedule.inline": ("FALSE",),
    "hoodie.clustering.schedule.inline": ("FALSE",),
}
_ALIKE = 0.9  # a lower one would report Hudi's other keys


def check(config: Mapping[str, object]) -> None:
    """Raise `InvalidSettings` for another lock provider, an Azure credential, or a refused key or value.

    Also as `_check_name`. Empty values of refused keys pass.
    """
    for key, value in config.items():
        if isinstance(value, int) and abs(value) > LARGEST_NUMBER:
            size = f"is larger than {LARGEST_NUMBER} in size"
            raise InvalidSettings(f"{shown(key)} {size}, which no setting of Hudi's is")
    provider = config.get(PROVIDER, STORAGE_PROVIDER)
    if provider != STORAGE_PROVIDER:
        raise InvalidSettings(f"{PROVIDER}={provider} {_ANOTHER_LOCK}")
    for key, value in config.items():
        if not isinstance(key, str):
            raise InvalidSettings(f"{shown(key)} is no key of Hudi's: keys are text, as 'hoodie.base.path'")
        if key.startswith(_OTHER_LOCKS) and PROVIDER not in config:
            raise InvalidSettings(f"{key} {_ANOTHER_LOCK}")
        if key in AZURE:
            raise InvalidSettings(f"{key} is a credential of the store: give it {_CREDENTIAL}")
        _check_name(key)
        text = str(value).strip()
        if text and key in REFUSED:
            raise InvalidSettings(f"{key}={text}: {REFUSED[key]}; leave it out")
        if text and key in _VALUES and text.upper() not in _VALUES[key]:
            raise InvalidSettings(f"{key}={text} cannot be had here: use {', '.join(_VALUES[key])}, or leave it out")


_CREDENTIAL = "to LockProvider.from_config, or as one of the storage_options of a table"
_ANOTHER_LOCK = (
    "is another lock than this one, and the two would not exclude each other: "
    f"set {PROVIDER}={STORAGE_PROVIDER} for every writer"
)


def _check_name(key: str) -> None:
    """Raise `InvalidSettings` for an unknown key below `OWNED`'s prefixes, or one that resembles an honoured key."""
    if key in HONOURED or key in WITHOUT_EFFECT or key in REFUSED or key.startswith(_WITHOUT_EFFECT):
        return
    from difflib import get_close_matches  # noqa: PLC0415 - rare

    if key.lower().startswith(OWNED):
        alike = get_close_matches(key.lower(), sorted(HONOURED | WITHOUT_EFFECT), n=3)
        raise InvalidSettings(f"{key} is no setting of Hudi's that is known here; {_did_you_mean(alike)}")
    if alike := get_close_matches(key.lower(), sorted(HONOURED), n=1, cutoff=_ALIKE):
        raise InvalidSettings(f"{key} is no setting of Hudi's; {_did_you_mean(alike)}")


def _did_you_mean(alike: list[str]) -> str:
    return f"did you mean {' or '.join(alike)}?" if alike else "leave it out"
