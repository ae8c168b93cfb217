"""Settings of a table's writers, by this library's names or Hudi's keys.

Source: Hudi `HoodieWriteConfig`, `HoodieCleanConfig`, `HoodieLockConfig`.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import TypeVar

from fsspec_cas import InvalidInput
from fsspec_cas.arguments import check_seconds, check_whole, shown
from lockprovider import InvalidSettings, LockSettings
from lockprovider.table.format.compatibility import FAILED_KEYS, METADATA_KEY, MODE_KEY, NON_BLOCKING, OPTIMISTIC
from lockprovider.table.format.properties import (
    BUCKET,
    BUCKET_ENGINE,
    BUCKETS,
    HASH_FIELD,
    INDEX,
    SIMPLE,
    TableConfig,
    list_at,
)
from lockprovider.table.timeline.conflict import (
    Resolution,
    by_file_group,
    by_partition,
    prefer_writer,
    refuse_unless_possible,
)
from lockprovider.table.timeline.retention import KeepActive, KeepCommits, KeepHours, KeepVersions, Policy
from lockprovider.table.timeline.rewrite_plan import LOG_COMPACTION_KEYS, ClusterEvery, CompactEvery

CARRIED_KEY = "hoodie.write.meta.key.prefixes"
_CARRIED_KEYS = CARRIED_KEY, "hoodie.write.rolling.metadata.keys"
RESOLUTION_KEY = "hoodie.write.lock.conflict.resolution.strategy"
_POLICY_KEYS = ("hoodie.clean.policy", "hoodie.cleaner.policy")
_RETAINED: Mapping[type[KeepCommits | KeepHours | KeepVersions], tuple[str, ...]] = {
    KeepCommits: ("hoodie.clean.commits.retained", "hoodie.cleaner.commits.retained"),
    KeepHours: ("hoodie.clean.hours.retained", "hoodie.cleaner.hours.retained"),
    KeepVersions: ("hoodie.clean.fileversions.retained", "hoodie.cleaner.fileversions.retained"),
}
_ACTIVE_KEYS = ("hoodie.keep.min.commits", "hoodie.keep.max.commits")
_AUTOMATIC_KEY = "hoodie.archive.automatic"
_COMPACT_KEYS = ("hoodie.compact.inline", "hoodie.compact.inline.max.delta.commits")
_CLUSTER_KEYS = (
    "hoodie.clustering.inline",
    "hoodie.clustering.inline.max.commits",
    "hoodie.clustering.plan.strategy.sort.columns",
    "hoodie.clustering.plan.strategy.target.file.max.bytes",
    "hoodie.clustering.plan.strategy.small.file.limit",
)
_HUDI_TARGET_BYTES, _HUDI_SMALL_BYTES = 1 << 30, 300 << 20
_INTERVAL_KEY, _MISSES_KEY = "hoodie.client.heartbeat.interval_in_ms", "hoodie.client.heartbeat.tolerable.misses"
_RESOLUTIONS: Mapping[str, Resolution] = {
    "SimpleConcurrentFileWritesConflictResolutionStrategy": by_file_group,
    "PreferWriterConflictResolutionStrategy": prefer_writer,
    by_partition.__name__: by_partition,
}


_Default = TypeVar("_Default")
_Number = TypeVar("_Number", int, float)


class Mode(str, Enum):
    """How writers share a table: alone, with conflict checks, or by non-blocking log writes."""

    SINGLE_WRITER = "single_writer"
    OPTIMISTIC = OPTIMISTIC
    NON_BLOCKING = NON_BLOCKING


class FailedWrites(str, Enum):
    """When a failed writer's files are rolled back.

    LAZY: by another writer, once the heartbeat is too old. EAGER: by the next write, even of a living writer.
    """

    LAZY = "LAZY"
    EAGER = "EAGER"


@dataclass(frozen=True, slots=True)
class HeartbeatSettings:
    """Heartbeats, by default as Hudi's.

    Attributes:
        interval_s: `hoodie.client.heartbeat.interval_in_ms`, in seconds.
        misses: `hoodie.client.heartbeat.tolerable.misses`.

    >>> HeartbeatSettings(interval_s=10).tolerance_s
    20
    """

    interval_s: float = 60.0
    misses: int = 2

    @property
    def tolerance_s(self) -> float:
        """Seconds without a beat after which a writer counts as dead."""
        return self.interval_s * self.misses


@dataclass(frozen=True, slots=True)
class IndexSettings:
    """Writer's index settings, which must agree with the table's index.

    Attributes:
        kind: `hoodie.index.type`, upper case. All but BUCKET are alike.
        buckets: `hoodie.bucket.index.num.buckets`.
        fields: `hoodie.bucket.index.hash.field`.
    """

    kind: str
    buckets: int | None = None
    fields: tuple[str, ...] = ()

    def check(self, config: TableConfig) -> None:
        """Raise `InvalidSettings` if these settings differ from the table's index; unset buckets and fields fit any."""
        index = config.bucket_index
        if (index is None) == (self.kind == BUCKET):
            kind = "no bucket index" if index is None else f"{INDEX}={BUCKET}"
            raise InvalidSettings(f"{INDEX}={self.kind}, but table {config.name!r} has {kind}: leave the setting out")
        if index is None:
            return
        buckets = () if self.buckets is None else (str(self.buckets),)
        for key, given, actual in (BUCKETS, buckets, (str(index.buckets),)), (HASH_FIELD, self.fields, index.fields):
            if given and {*given} != {*actual}:
                raise InvalidSettings(
                    f"{key}={','.join(given)}, but table {config.name!r} has {','.join(actual)}: leave the setting out"
                )


@dataclass(frozen=True, slots=True)
class TableSettings:
    """Settings of a writer. All writers of a table should agree on all but `resolution`.

    NOT promised, with `single_writer`: that a second writer's pending writes survive.

    Attributes:
        mode: `hoodie.write.concurrency.mode`. `non_blocking_concurrency_control` is for merge-on-read tables with
            buckets and an ordering column: writes that read nothing conflict with no others. README.md, "Non-blocking
            writers", has what is NOT promised.
        failed_writes: `hoodie.clean.failed.writes.policy`; None: EAGER for a single writer, else LAZY.
        resolution: which other writes a write loses to (see `conflict`).
        retention: what a clean keeps by default.
        archival: how many commits an archival leaves on the timeline by default.
        archive_automatically: whether an archival follows a commit once instants are due (`hoodie.archive.automatic`).
            It lists all files.
        compaction: after how many commits a committing writer compacts a merge-on-read table; None: never.
        clustering: the same, for tables without buckets.
        index: table's expected index; None: any.
        check_keys: whether a commit compares its new keys with those that others inserted since its snapshot.
        carried_keys: prefixes of commit metadata keys (`hoodie.write.meta.key.prefixes`; in Hudi 1.2
            `hoodie.write.rolling.metadata.keys`), which each commit copies, under the lock, from the last that has
            some.
        read_from_metadata: whether reads list files by the metadata table. Worthwhile from about 50,000 files on.
        write_metadata: whether writes maintain the metadata table's listing (`hoodie.metadata.enable`); None:
            as the table's properties say.

    Raises:
        InvalidSettings: a setting has the wrong kind or contradicts others.

    >>> settings = TableSettings(mode="single_writer", retention=KeepCommits(24))
    """

    lock: LockSettings = field(default_factory=LockSettings)
    heartbeat: HeartbeatSettings = field(default_factory=HeartbeatSettings)
    mode: Mode = Mode.OPTIMISTIC
    failed_writes: FailedWrites | None = None
    resolution: Resolution = by_file_group
    retention: Policy = field(default_factory=KeepCommits)
    archival: KeepActive = field(default_factory=KeepActive)
    archive_automatically: bool = False
    compaction: CompactEvery | None = None
    clustering: ClusterEvery | None = None
    index: IndexSettings | None = None
    check_keys: bool = False
    carried_keys: tuple[str, ...] = ()
    read_from_metadata: bool = False
    write_metadata: bool | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "mode", _mode(self.mode))
        if self.failed_writes is not None:
            object.__setattr__(self, "failed_writes", _failed(self.failed_writes))
        for name, kind in _KINDS.items():
            if not isinstance(getattr(self, name), kind):
                raise InvalidSettings(f"{name}={shown(getattr(self, name))} must be {_article(kind)}")
        prefixes = self.carried_keys
        if not isinstance(prefixes, tuple) or not all(isinstance(prefix, str) and prefix for prefix in prefixes):
            raise InvalidSettings(f"carried_keys={shown(prefixes)} must be a tuple of texts ({CARRIED_KEY})")
        if not callable(self.resolution):
            raise InvalidSettings(f"resolution={shown(self.resolution)} must be a function of table.timeline.conflict")
        check_retention(self.retention)
        _check_every("compaction", self.compaction, CompactEvery)
        _check_every("clustering", self.clustering, ClusterEvery)
        _check_heartbeat(self.heartbeat)
        _check_index(self.index)
        if self.mode is not Mode.SINGLE_WRITER and self.failed_writes is FailedWrites.EAGER:
            raise InvalidSettings(
                f"{FAILED_KEYS[0]}=EAGER would roll back live writers of {MODE_KEY}={self.mode.value}: set it to LAZY"
            )
        if self.archival.fault:
            raise InvalidSettings(self.archival.fault)

    def check(self, config: TableConfig) -> None:
        """Raise `InvalidSettings` for another index, or a table unfit for non-blocking writes."""
        if self.index is not None:
            self.index.check(config)
        if self.mode is Mode.NON_BLOCKING:
            refuse_unless_possible(config)

    @property
    def is_eager(self) -> bool:
        """Whether other writers' pending writes count as failed."""
        return self.mode is Mode.SINGLE_WRITER and self.failed_writes in (None, FailedWrites.EAGER)

    @classmethod
    def from_hudi(cls, config: Mapping[str, object]) -> TableSettings:
        """Read a JVM writer's settings; ignores keys that do not matter here.

        Missing keys have Hudi's defaults, so the default mode is `single_writer`; but without
        `hoodie.archive.automatic` no archival follows a commit, and without `hoodie.metadata.enable` the table's
        properties decide.

        Raises:
            InvalidSettings: another lock provider, a misspelt key, or an unsupported value.

        >>> TableSettings.from_hudi({"hoodie.cleaner.commits.retained": "24"}).retention
        KeepCommits(commits=24)
        """
        lock = LockSettings.from_hudi(config)
        options = {key: str(value) for key, value in config.items()}
        failed = _first(options, FAILED_KEYS)
        return cls(
            lock=lock,
            heartbeat=HeartbeatSettings(
                interval_s=_number(options, _INTERVAL_KEY, 60_000.0, float) / 1000,
                misses=_number(options, _MISSES_KEY, 2, int),
            ),
            mode=_mode(options.get(MODE_KEY, Mode.SINGLE_WRITER.value)),
            failed_writes=None if failed is None else _failed(failed),
            resolution=_resolution(options[RESOLUTION_KEY]) if RESOLUTION_KEY in options else by_file_group,
            retention=_retention(options),
            archival=KeepActive.of(*(_number(options, key, None, int) for key in _ACTIVE_KEYS)),
            archive_automatically=_flag(options, _AUTOMATIC_KEY),
            compaction=_compaction(options),
            clustering=_clustering(options),
            index=_index(options),
            carried_keys=tuple(name for key in _CARRIED_KEYS for name in list_at(options, key)),
            write_metadata=_flag(options, METADATA_KEY) if METADATA_KEY in options else None,
        )


def checked_table_settings(settings: object) -> TableSettings:
    if settings is None:
        return TableSettings()
    if not isinstance(settings, TableSettings):
        raise InvalidSettings(f"settings={shown(settings)} must be TableSettings(...)")
    return settings


def check_retention(policy: Policy) -> None:
    """Raise `InvalidSettings` unless `policy` keeps at least 1 commit or version, or 0 to finite hours."""
    match policy:
        case KeepCommits(least) | KeepVersions(least):
            is_possible = isinstance(least, int) and least >= 1
        case KeepHours(least):
            is_possible = isinstance(least, (int, float)) and 0 <= least < math.inf
        case _:
            raise InvalidSettings(
                f"{shown(policy)} is no retention: give KeepCommits(10), KeepHours(24) or KeepVersions(3)"
            )
    if isinstance(least, bool) or not is_possible:
        raise InvalidSettings(
            f"{shown(policy)} would keep nothing to read: keep one commit or version, or 0 hours, at least"
        )


def _check_every(name: str, every: CompactEvery | ClusterEvery | None, kind: type) -> None:
    """Raise `InvalidSettings`, with `name`, unless `every` is None or a possible setting of this `kind`."""
    if every is None:
        return
    if not isinstance(every, kind):
        raise InvalidSettings(f"{name}={shown(every)} must be {kind.__name__}(...) or None")
    try:
        check_whole(every.commits, "commits", least=1)
        if isinstance(every, ClusterEvery):
            every.rule  # noqa: B018 - it refuses what cannot be
    except InvalidInput as error:
        raise InvalidSettings(f"{name}: {error}") from error


def _check_heartbeat(settings: HeartbeatSettings) -> None:
    """Raise `InvalidSettings` unless both numbers are above 0, and in bounds."""
    with _naming(_INTERVAL_KEY):
        check_seconds(settings.interval_s, "interval_s", finite=True, above=True)
    with _naming(_MISSES_KEY):
        check_whole(settings.misses, "misses", least=1)


@contextlib.contextmanager
def _naming(key: str) -> Iterator[None]:
    """Raise the block's InvalidInput as `InvalidSettings`, with Hudi's key."""
    try:
        yield
    except InvalidInput as error:
        raise InvalidSettings(f"{error} ({key})") from None


def _check_index(index: object) -> None:
    """Raise `InvalidSettings` unless None, or an upper-case kind, buckets above 0 or None, and a tuple of fields."""
    if index is None:
        return
    if not isinstance(index, IndexSettings):
        raise InvalidSettings(f"index={shown(index)} must be IndexSettings(...) or None")
    kind, fields = index.kind, index.fields
    if not isinstance(kind, str) or not kind or kind != kind.upper():
        raise InvalidSettings(f"kind={shown(kind)} must be an index type in upper case, e.g. {BUCKET} ({INDEX})")
    if not isinstance(fields, tuple) or not all(isinstance(field, str) for field in fields):
        raise InvalidSettings(f"fields={shown(fields)} must be a tuple of texts ({HASH_FIELD})")
    with _naming(BUCKETS):
        check_whole(1 if index.buckets is None else index.buckets, "buckets", least=1)


_KINDS: Mapping[str, type | tuple[type, ...]] = {
    "lock": LockSettings,
    "heartbeat": HeartbeatSettings,
    "archival": KeepActive,
    **dict.fromkeys(("archive_automatically", "check_keys", "read_from_metadata"), bool),
    "write_metadata": (bool, type(None)),
}


def _article(kind: type | tuple[type, ...]) -> str:
    return f"{kind.__name__}(...)" if isinstance(kind, type) and kind is not bool else "True or False"


def _first(options: Mapping[str, str], keys: tuple[str, ...]) -> str | None:
    return next((options[key] for key in keys if key in options), None)


def _index(options: Mapping[str, str]) -> IndexSettings | None:
    """Read the expected index; None without a kind.

    `InvalidSettings`: buckets are no number, or a bucket index's engine is not SIMPLE.
    """
    kind = options.get(INDEX, "").strip().upper()
    if not kind:
        return None
    engine = options.get(BUCKET_ENGINE, SIMPLE).strip().upper()
    if kind == BUCKET and engine != SIMPLE:
        raise InvalidSettings(f"{BUCKET_ENGINE}={engine} is not supported here: use {SIMPLE}")
    return IndexSettings(kind, _number(options, BUCKETS, None, int), list_at(options, HASH_FIELD))


def _retention(options: Mapping[str, str]) -> Policy:
    """Read the retention by the policy's name, else the first number given, else commits; checks no range.

    InvalidSettings: unknown name, or no number.
    """
    numbers = {kind: _first(options, keys) for kind, keys in _RETAINED.items()}
    name = _first(options, _POLICY_KEYS) or next((kind.name for kind in numbers if numbers[kind]), KeepCommits.name)
    kind = next((kind for kind in numbers if kind.name == name.strip().upper()), None)
    if kind is None:
        raise InvalidSettings(f"{_POLICY_KEYS[0]}={name} is unknown: use {', '.join(known.name for known in numbers)}")
    number = numbers[kind]
    if number is None:
        return kind()
    try:
        return KeepHours(float(number)) if kind is KeepHours else kind(int(number))
    except ValueError:
        raise InvalidSettings(f"{_RETAINED[kind][0]}={number} is not a number") from None


def _compaction(options: Mapping[str, str]) -> CompactEvery | None:
    if key := next((key for key in LOG_COMPACTION_KEYS if _flag(options, key)), ""):
        raise InvalidSettings(f"{key}=true is not supported here; to compact log files use {_COMPACT_KEYS[0]}")
    every = CompactEvery(_number(options, _COMPACT_KEYS[1], CompactEvery().commits, int))
    return every if _flag(options, _COMPACT_KEYS[0]) else None


def _clustering(options: Mapping[str, str]) -> ClusterEvery | None:
    """Read the clustering settings, by default with Hudi's sizes; None unless inline.

    Unreadable values raise `InvalidSettings` even then.
    """
    inline, commits, columns, target, small = _CLUSTER_KEYS
    every = ClusterEvery(
        _number(options, commits, 4, int),
        list_at(options, columns),
        _number(options, target, _HUDI_TARGET_BYTES, int),
        _number(options, small, _HUDI_SMALL_BYTES, int),
    )
    return every if _flag(options, inline) else None


def _plain(value: object) -> str:
    return value if isinstance(value, str) else shown(value)


def _mode(text: str) -> Mode:
    try:
        return Mode(text.strip().lower())
    except (ValueError, AttributeError):
        modes = ", ".join(mode.value for mode in Mode)
        raise InvalidSettings(f"{MODE_KEY}={_plain(text)} is unknown: use {modes}") from None


def _failed(text: str) -> FailedWrites:
    try:
        return FailedWrites(text.strip().upper())
    except (ValueError, AttributeError):
        raise InvalidSettings(
            f"{FAILED_KEYS[0]}={_plain(text)} would let failed writes' files become visible: use LAZY or EAGER"
        ) from None


def _resolution(name: str) -> Resolution:
    short = name.rpartition(".")[2]
    if short not in _RESOLUTIONS:
        raise InvalidSettings(f"{RESOLUTION_KEY}={name} is not known here: use one of {', '.join(_RESOLUTIONS)}")
    return _RESOLUTIONS[short]


def _flag(options: Mapping[str, str], key: str) -> bool:
    text = options.get(key, "false").strip().lower()
    if text not in {"true", "false"}:
        raise InvalidSettings(f"{key}={options[key]} must be true or false")
    return text == "true"


def _number(options: Mapping[str, str], key: str, default: _Default, kind: type[_Number]) -> _Number | _Default:
    try:
        return kind(options[key]) if key in options else default
    except ValueError:
        expected = "a whole number" if kind is int else "a number"
        raise InvalidSettings(f"{key}={options[key]} is not {expected}") from None
