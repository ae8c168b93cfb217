"""Checks whether this library can read or write a table, and settings by which JVM Hudi's writers can share it.

Source: Hudi `HoodieTableConfig`, `HoodieTableVersion`; Hudi 1.2.0 `HoodieWriterUtils.validateTableConfig`,
`HoodieSparkSqlWriter.mergeParamsAndGetHoodieConfig`.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from types import MappingProxyType

from fsspec_cas import InvalidInput
from lockprovider import InvalidSettings, LockSettings
from lockprovider.table.errors import UnsupportedTable
from lockprovider.table.format import properties
from lockprovider.table.format.metadata import schema_text
from lockprovider.table.format.metadata_table import LISTING
from lockprovider.table.format.properties import (
    COMMIT_TIME,
    EVENT_TIME,
    ORDERED,
    PARTITIONS_KEY,
    READABLE_VERSIONS,
    VISIBILITIES,
    VISIBILITY_KEY,
    TableConfig,
)

MODE_KEY = "hoodie.write.concurrency.mode"
OPTIMISTIC, NON_BLOCKING = "optimistic_concurrency_control", "non_blocking_concurrency_control"
FAILED_KEYS = ("hoodie.clean.failed.writes.policy", "hoodie.cleaner.policy.failed.writes")
METADATA_KEY = "hoodie.metadata.enable"
STATISTICS = "column_stats", "partition_stats"  # partitions of a metadata table
STATISTICS_KEY = "hoodie.metadata.index.column.stats.enable"  # also of partitions
LOCK_KEY = "hoodie.write.lock.provider"
KEY_CHECK_KEY = "hoodie.write.complex.keygen.validation.enable"
ZONE_KEY = "hoodie.table.timeline.timezone"

SHARED: Mapping[str, str] = MappingProxyType(
    {
        LOCK_KEY: "org.apache.hudi.client.transaction.lock.StorageBasedLockProvider",
        MODE_KEY: OPTIMISTIC,
        # JVM writers must not roll back live ones.
        **dict.fromkeys(FAILED_KEYS, "LAZY"),
        METADATA_KEY: "false",  # It would hide commits.
        "hoodie.write.auto.upgrade": "false",
        "hoodie.rollback.avoid.duplicate.plan": "true",
    }
)


@dataclass(frozen=True, slots=True)
class SettingChange:
    """Property that `share` or `unshare` changes: the value `found`, None if new, and `wanted`, empty to remove it."""

    key: str
    found: str | None
    wanted: str


def shared(config: TableConfig, *, keeps_listing: bool = False) -> TableConfig:
    """Configuration with the settings `SHARED` and time zone UTC.

    A merge-on-read table with buckets stays non-blocking. With `keeps_listing` the metadata table stays, without
    statistics.
    """
    settings, partitions = _wanted(config, keeps_listing=keeps_listing), config.metadata_partitions
    if keeps_listing:
        partitions = tuple(name for name in partitions if name not in STATISTICS)
    raw = MappingProxyType({**config.raw, **settings})
    return replace(config, timezone="UTC", metadata_partitions=partitions, raw=raw)


def without_shared(config: TableConfig) -> TableConfig:
    keys = {*SHARED, STATISTICS_KEY}
    return replace(config, raw=MappingProxyType({key: value for key, value in config.raw.items() if key not in keys}))


def keeps_file_listing(config: TableConfig) -> bool:
    settings = {METADATA_KEY: "true", STATISTICS_KEY: "false"}
    return bool(config.named_metadata) and all(_same(config.raw.get(key), value) for key, value in settings.items())


def as_non_blocking(config: TableConfig) -> TableConfig:
    return replace(config, raw=MappingProxyType({**config.raw, MODE_KEY: NON_BLOCKING}))


def _wanted(config: TableConfig, *, keeps_listing: bool) -> Mapping[str, str]:
    """Properties that `shared` sets, by key; with `keeps_listing` the metadata table stays on.

    Non-blocking mode stays if merge-on-read with a bucket index. Up to version 8 also how a complex key generator
    writes keys of one column.
    """
    says_so = config.raw.get(MODE_KEY, "").strip().lower() == NON_BLOCKING
    is_possible = config.is_merge_on_read and config.bucket_index is not None
    mode = {MODE_KEY: NON_BLOCKING} if says_so and is_possible else {}
    listing = {METADATA_KEY: "true", STATISTICS_KEY: "false"} if keeps_listing else {}
    spelling = {}
    # Hudi from 1.1 on requires a choice.
    if config.has_complex_single_key and config.version <= 8:  # noqa: PLR2004
        spelling = {KEY_CHECK_KEY: "false", properties.KEY_ENCODING: properties.flag_text(not config.names_single_key)}
    return {**SHARED, **mode, **listing, **spelling}


def without_metadata_table(config: TableConfig) -> TableConfig:
    raw = MappingProxyType({**config.raw, METADATA_KEY: "false"})
    return replace(config, metadata_partitions=(), metadata_inflight=(), raw=raw)


def _same(found: str | None, wanted: str) -> bool:
    """Compare without case, as Hudi does."""
    return (found or "").lower() == wanted.lower()


def share_changes(config: TableConfig, *, keeps_listing: bool = False) -> tuple[SettingChange, ...]:
    """Changes that `shared` would make; empty if none."""
    wanted_by_key = _wanted(config, keeps_listing=keeps_listing)
    found = {key: config.raw.get(key) for key in wanted_by_key}
    changes = [
        SettingChange(key, found[key], wanted) for key, wanted in wanted_by_key.items() if not _same(found[key], wanted)
    ]
    zone = SettingChange(ZONE_KEY, config.timezone or None, "UTC")
    partitions = shared(config, keeps_listing=keeps_listing).metadata_partitions
    named = [SettingChange(PARTITIONS_KEY, ",".join(config.metadata_partitions), ",".join(partitions))]
    less = named if partitions != config.metadata_partitions else []
    return (*changes, *less, *(() if config.timezone == "UTC" else (zone,)))


def with_visibility(config: TableConfig, wanted: str) -> TableConfig:
    if not isinstance(wanted, str) or wanted not in VISIBILITIES:
        raise InvalidInput(f"visibility={wanted!r} is not valid: use {' or '.join(map(repr, VISIBILITIES))}")
    others = {key: value for key, value in config.raw.items() if key != VISIBILITY_KEY}
    setting = {} if wanted == ORDERED else {VISIBILITY_KEY: wanted}
    return replace(config, raw=MappingProxyType(others | setting))


_ENGINE = "use the engine that made it"
_KEYS = "hoodie.table.recordkey.fields"
_MODE = "hoodie.record.merge.mode"


@dataclass(frozen=True, slots=True)
class Property:
    """Known property, or all with the prefix `key` if it ends with a dot.

    Attributes:
        meaning: its effect, for SPECIFICATION.md.
        reads: values that reads accept, in lower case; None: any.
        writes: values that writes accept; None: as `reads`.
        why: effect of others, to follow `key=value`.
        elsewhere: how another engine makes the table acceptable.
    """

    key: str
    meaning: str
    reads: Sequence[str] | None = None
    writes: Sequence[str] | None = None
    why: str = ""
    elsewhere: str = ""


KNOWN_PROPERTIES = tuple(Property(**fields) for fields in json.loads(schema_text("known_properties")))
# judged like this library's settings
_WRITERS = (
    *("hoodie.write.", "hoodie.clean.", "hoodie.cleaner.", "hoodie.client.heartbeat.", "hoodie.keep."),
    *("hoodie.archive.", "hoodie.index.", "hoodie.bucket.index."),
)
_NAMED = {one.key: one for one in KNOWN_PROPERTIES if not one.key.endswith(".")}
_BUCKETS = {key for key in _NAMED if key.startswith(_WRITERS)} - {"hoodie.index.type"}
_FAMILIES = tuple(sorted((one for one in KNOWN_PROPERTIES if one.key.endswith(".")), key=lambda one: -len(one.key)))
_OURS = ("hoodie.", VISIBILITY_KEY.partition(".")[0] + ".")


@dataclass(frozen=True, slots=True)
class Reason:
    """Reason against writes and, if `reads`, reads: the property as `stated`, its fault, and a remedy elsewhere."""

    stated: str
    why: str
    elsewhere: str = ""
    reads: bool = True

    @property
    def text(self) -> str:
        return f"{self.stated} {self.why}"


@lru_cache(maxsize=1024)
def property_of(key: str) -> Property | None:
    return _NAMED.get(key) or next((known for known in _FAMILIES if key.startswith(known.key)), None)


def reasons(config: TableConfig, *, keeps_listing: bool = False) -> tuple[Reason, ...]:
    """Reasons against writes; those with `reads` also prevent reads.

    With `keeps_listing` the writer maintains a metadata table's listing.
    """
    against = (
        *_property_reasons(config.raw),
        *_read_reasons(config),
        *_write_reasons(config, keeps_listing=keeps_listing),
    )
    return tuple({reason.stated: reason for reason in against[::-1]}.values())[::-1]


def check_readable(config: TableConfig) -> None:
    against = tuple(reason for reason in reasons(config, keeps_listing=True) if reason.reads)
    if against:
        raise UnsupportedTable(_sentence(config, against, "read", _elsewhere(against)))


def check_writable(config: TableConfig, *, keeps_listing: bool = False) -> None:
    """Raise `UnsupportedTable`, with the next step, for `reasons`."""
    against = reasons(config, keeps_listing=keeps_listing)
    if against:
        raise UnsupportedTable(
            _sentence(config, against, "written", next_step_for(config, against, keeps_listing=keeps_listing))
        )


def next_step_for(config: TableConfig, against: tuple[Reason, ...], *, keeps_listing: bool = False) -> str:
    ways = ways_to_write(config, keeps_listing=keeps_listing)
    return ", or ".join(ways) or _elsewhere(against)


def _elsewhere(against: tuple[Reason, ...]) -> str:
    return "; ".join(reason.elsewhere for reason in against) if all(reason.elsewhere for reason in against) else _ENGINE


def _sentence(config: TableConfig, against: tuple[Reason, ...], verb: str, next_step: str) -> str:
    name = f"table {config.name!r}"
    if len(against) == 1:
        return f"{name}: {against[0].text}; {next_step}"
    numbered = "; ".join(f"({number}) {reason.text}" for number, reason in enumerate(against, 1))
    return f"{name} cannot be {verb} here, for {len(against)} reasons: {numbered}; {next_step}"


def ways_to_write(config: TableConfig, *, keeps_listing: bool = False) -> tuple[str, ...]:
    """Ways to make an unwritable table writable; empty if none known.

    At most one keeps all files; then at most one removes the metadata table. `keeps_listing`: writers maintain `files`.
    """
    against: dict[bool, str] = {}
    for removes, keeps, name, change in _WAYS:
        remaining = reasons(change(config), keeps_listing=keeps or keeps_listing)
        steps = [*(reason.elsewhere for reason in remaining), *filter(None, (name(config),))]
        is_vain = removes and (remaining or not config.named_metadata)
        if removes not in against and all(reason.elsewhere for reason in remaining) and not is_vain:
            against[removes] = ", then ".join(steps)
    return tuple(against.values())


def _share(config: TableConfig) -> str:
    zone = config.timezone not in {"", "UTC"}
    return f"Table.share() {'makes it UTC, if all writers ran in it' if zone else 'tells JVM writers how to share it'}"


def _keep(config: TableConfig) -> str:
    drops = [name for name in STATISTICS if name in config.named_metadata]
    also = f", and drops {' and '.join(drops)}" if drops else ""
    zone = ", and makes its zone UTC, if all writers ran in it" if config.timezone not in {"", "UTC"} else ""
    shell = "`lockprovider table share --hoodie hoodie.metadata.enable=true URL`"
    return f"Table.share() with TableSettings(write_metadata=True) keeps its listing of files{also}{zone} ({shell})"


def _retire(_: TableConfig) -> str:
    return "Table.retire_metadata_table() (`lockprovider table retire-metadata URL`) removes its metadata table"


# removes files, writers keep the listing, description, effect
_Way = tuple[bool, bool, Callable[[TableConfig], str], Callable[[TableConfig], TableConfig]]
_WAYS: tuple[_Way, ...] = (
    (False, False, lambda _: "", lambda config: config),
    (False, False, _share, shared),
    (False, True, _keep, partial(shared, keeps_listing=True)),
    (True, False, _retire, without_metadata_table),
    (
        *(True, False, lambda config: f"{_retire(config)}, then {_share(config)}"),
        lambda config: shared(without_metadata_table(config)),
    ),
)


def _property_reasons(raw: Mapping[str, str]) -> Iterator[Reason]:
    """Yield reasons against writes, with `Reason.reads` also reads.

    Unknown properties of Hudi or this library, unsupported values, unusable writer settings.
    """
    for key, text in raw.items():
        known, value = property_of(key), text.strip()
        if known is None:
            if key.startswith(_OURS) and value:
                yield Reason(f"{key}={value}", "is not known here, and may change what rows mean")
            continue
        for allowed, reads in ((known.reads, True), (known.writes, False)):
            if allowed is not None and value.lower() not in allowed:
                yield Reason(f"{key}={value}", known.why, known.elsewhere, reads)
                break
    settings = {key: value.strip() for key, value in raw.items() if key.startswith(_WRITERS) and key not in _BUCKETS}
    yield from _setting_reasons(settings)


def _setting_reasons(settings: Mapping[str, str]) -> Iterator[Reason]:
    if not (refused := _refusal(settings)):
        return
    alone = {f"{key}={value}": error for key, value in settings.items() if (error := _refusal({key: value}))}
    for stated, error in (alone or {", ".join(settings): refused}).items():
        yield Reason(stated, f"is set for all writers, and this library cannot use it: {error}", reads=False)


def _refusal(settings: Mapping[str, str]) -> str:
    try:
        LockSettings.from_hudi(settings)
    except InvalidSettings as error:
        return str(error)
    return ""


def _read_reasons(config: TableConfig) -> Iterator[Reason]:
    """Yield reasons against reads: table version not 8 or 9, timeline layout not 2, or an unknown table type."""
    call, to = ("upgrade_table", "EIGHT") if config.version < READABLE_VERSIONS[0] else ("downgrade_table", "NINE")
    if config.version not in READABLE_VERSIONS:
        to_do = f"JVM Hudi has `CALL {call}(table => '...', to_version => '{to}')`"
        yield Reason(f"hoodie.table.version={config.version}", "is not 8 or 9", to_do)
    if config.layout_version != 2:  # noqa: PLR2004
        to_do = "it comes with version 8 of the table" if config.version < READABLE_VERSIONS[0] else ""
        yield Reason(f"hoodie.timeline.layout.version={config.layout_version}", "is not supported, only 2 is", to_do)
    if config.table_type not in properties.TABLE_TYPES:
        only = f"is not supported, only {' and '.join(properties.TABLE_TYPES)} are"
        yield Reason(f"hoodie.table.type={config.table_type}", only)


def _write_reasons(config: TableConfig, *, keeps_listing: bool) -> Iterator[Reason]:
    """Yield reasons against writes from the merge rule, metadata table, time zone, index and keys.

    With `keeps_listing` the metadata table may have partition `files`.
    """
    against = partial(Reason, reads=False)
    mode = config.effective_merge_mode
    if odd := properties.unknown_merge(config):
        only = f"merges rows in a way unknown here; only {EVENT_TIME} and {COMMIT_TIME} can be written"
        yield against(odd, only)
    if mode == EVENT_TIME and not config.ordering_fields:
        yield against(f"{_MODE}={mode}", "needs an ordering field", f"set one, or {COMMIT_TIME}")
    hidden, elsewhere = listing_fault(config.metadata_partitions, config.metadata_inflight, keeps=keeps_listing)
    if hidden:
        yield against(f"{PARTITIONS_KEY}={','.join(config.named_metadata)}", hidden, elsewhere)
    if config.timezone not in {"", "UTC"}:
        yield against(f"hoodie.table.timeline.timezone={config.timezone}", "would mix two clocks")
    yield from _index_reasons(config)
    yield from _key_reasons(config)


def listing_fault(partitions: Iterable[str], inflight: Iterable[str], *, keeps: bool) -> tuple[str, str]:
    """Return why a metadata table prevents a write, and another engine's remedy; empty texts if none.

    Any partition does but `files` if the writer `keeps` it; any `inflight`, still being built, does.
    """
    named = tuple(dict.fromkeys((*partitions, *inflight)))
    other_partitions = [name for name in named if name != LISTING]
    if not named:
        return "", ""
    if not keeps:
        return "would hide these commits from JVM readers", ""
    if tuple(inflight):
        return "is being built", "wait until it is, then begin again"
    remedies = [f"JVM Hudi has `DROP INDEX {name} ON ...`" for name in other_partitions if name not in STATISTICS]
    elsewhere = "" if set(other_partitions) & set(STATISTICS) else "; ".join(remedies)
    return ("has more than `files`, which is all that is kept here", elsewhere) if other_partitions else ("", "")


def _key_reasons(config: TableConfig) -> Iterator[Reason]:
    """Yield reasons against writes: no record key, an unknown key generator, or several ordering columns.

    Also nested key, partition or ordering columns. A `:` in a partition field means an unknown generator.
    """
    against = partial(Reason, reads=False)
    if not config.record_keys:
        yield against(_KEYS, "is empty; rows without a key cannot be updated")
    if config.unknown_generator or any(":" in name for name in config.partition_fields):
        generator = config.unknown_generator or f"hoodie.table.keygenerator.type={config.keygenerator_type}"
        stated = f"{generator} with hoodie.table.partition.fields={','.join(config.partition_fields)}"
        yield against(stated, "computes keys or partitions in a way unknown here")
    columns = (*config.record_keys, *config.partition_fields, *config.ordering_fields)
    if nested := [name for name in columns if "." in name]:
        yield against(
            f"column {', '.join(nested)}", "is nested, and cannot be a key, partition or ordering column here"
        )
    if len(config.ordering_fields) > 1:
        stated = f"hoodie.table.ordering.fields={','.join(config.ordering_fields)}"
        yield against(stated, "has several fields, only one can be written")


def _index_reasons(config: TableConfig) -> Iterator[Reason]:
    """Yield reasons against writes; none without a bucket index.

    Engine other than SIMPLE, partition expressions, hash columns outside the record key.
    """
    index, against = config.bucket_index, partial(Reason, reads=False)
    if index is None:
        return
    engine = (config.raw.get("hoodie.index.bucket.engine") or properties.SIMPLE).strip().upper()
    rules = config.raw.get("hoodie.bucket.index.partition.expressions", "")
    if engine != properties.SIMPLE:
        yield against(f"hoodie.index.bucket.engine={engine}", f"cannot be written, only {properties.SIMPLE}")
    if rules:
        yield against(f"hoodie.bucket.index.partition.expressions={rules}", "cannot be written")
    strange = sorted(set(index.fields) - set(config.record_keys))
    if strange:
        stated = f"{properties.HASH_FIELD} has {strange}, which are not in {_KEYS}"
        yield against(stated, "", "name columns of the record key")
