"""Options of the Spark data source (SPARK.md).

InvalidInput: conflicting or unknown ones, except a write's `hoodie.` ones that seem to decide no rows.

Source: Hudi `DataSourceReadOptions`, `HoodieSqlCommonUtils.formatQueryInstant`, `DataSourceWriteOptions`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from enum import Enum
from typing import Any

import pyarrow as pa

from fsspec_cas import InvalidInput
from lockprovider import hudi_keys
from lockprovider.table.format.compatibility import MODE_KEY
from lockprovider.table.format.properties import TableConfig
from lockprovider.table.settings import Mode, TableSettings
from lockprovider.table.spec import TableSpec
from lockprovider.table.state.context import TableContext
from lockprovider.table.timeline.conflict import Fence

_HUDI = "hoodie."
_OF_CATALOGS = frozenset({"provider", "location"})
_INSTEAD = (
    "use save(url); for a table name in SQL, make a temporary view, or call register of "
    "lockprovider.table.engines.spark"
)
_IF_EXISTS = ("append", "error", "ignore")

Parser = Callable[[str, str], Any]  # takes an option's name and text; raises InvalidInput


def parsed(lowered: Mapping[str, str], parsers: Mapping[str, Parser]) -> dict[str, Any]:
    return {name: parse(name, lowered[name.lower()]) for name, parse in parsers.items() if name.lower() in lowered}


def text_option(_: str, text: str) -> str:
    return text


def count_option(name: str, text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise InvalidInput(f"{name}={text} is not a positive whole number: give 1 or more")
    return int(text)


def json_option(name: str, text: str) -> dict[str, Any]:
    """Parse a JSON object; raise InvalidInput for other text."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InvalidInput(f"{name} is not valid JSON: write it with json.dumps") from error
    if not isinstance(value, dict):
        raise InvalidInput(f"{name} is not a JSON object: write it with json.dumps of a dict")
    return value


def _names(_: str, text: str) -> tuple[str, ...]:
    return tuple(part.strip() for part in text.split(",") if part.strip())


def _some_names(name: str, text: str) -> tuple[str, ...]:
    if not (names := _names(name, text)):
        raise InvalidInput(f"{name}={text} names nothing: leave it out")
    return names


def _flag(name: str, text: str) -> bool:
    if text.lower() not in {"true", "false"}:
        raise InvalidInput(f"{name}={text} is neither true nor false")
    return text.lower() == "true"


def _fence(name: str, text: str) -> Fence:
    holder, _, epoch = text.rpartition(":")
    return Fence.of((holder, count_option(name, epoch)))


def _if_exists(name: str, text: str) -> str:
    if text.lower() not in _IF_EXISTS:
        raise InvalidInput(f"{name}={text.lower()} is none of {', '.join(_IF_EXISTS)}")
    return text.lower()


_PARSERS: Mapping[str, Parser] = {
    "storage_options": json_option,
    "columns": _some_names,
    "filter": text_option,
    "partitions": _some_names,
    "as_of": text_option,
    "begin": text_option,
    "end": text_option,
    "changes": _flag,
    "read_optimized": _flag,
    "stream_id": text_option,
    "starting": text_option,
    "max_commits": count_option,
    "mergeSchema": _flag,
    "if_exists": _if_exists,
    "fence": _fence,
}
_KNOWN = frozenset({"path", "checkpointlocation", *map(str.lower, _PARSERS)})


@dataclass(frozen=True)
class SparkOptions:
    """Options of one read or write.

    Attributes:
        columns, partitions: None: all.
        as_of, begin, end: versions: rows committed after `begin` (empty: all), until `end`.
        stream_id: sink's name for its stream; None: the query's id.
    """

    url: str
    storage_options: dict[str, Any] | None = None
    columns: tuple[str, ...] | None = None
    filter: str | None = None
    partitions: tuple[str, ...] | None = None
    as_of: str | None = None
    begin: str | None = None
    end: str | None = None
    changes: bool = False
    read_optimized: bool = False
    stream_id: str | None = None
    starting: str = "earliest"
    max_commits: int | None = None
    merge_schema: bool = False
    if_exists: str = "append"
    fence: Fence | None = None
    hudi: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def of(cls, options: Mapping[str, str]) -> SparkOptions:
        """Parse options, named in any case; translates Hudi's read options, and keeps all `hoodie.` ones unchecked.

        InvalidInput: an unknown, malformed or conflicting one, or no `path`.
        """
        lowered = {key.lower(): value for key, value in options.items()}
        if lowered.keys() >= _OF_CATALOGS:
            raise InvalidInput(f"a Python data source cannot be a table of Spark's catalog: {_INSTEAD}")
        for key in sorted(lowered):
            if key not in _KNOWN | _OBEYED_BY_READS and not key.startswith(_HUDI):
                alike = get_close_matches(key, _KNOWN | _OBEYED_BY_READS, n=1)
                hint = f"did you mean {alike[0]}? Use" if alike else "use"
                raise InvalidInput(f"option {key} is not known: {hint} one of {sorted(_KNOWN)}, or hoodie.*")
        lowered |= _ours(lowered)
        if not lowered.get("path"):
            raise InvalidInput(
                "no path: call load(url) or save(url), or set the option path. Spark does not pass the path of a table "
                f"of its catalog to a Python source (saveAsTable, CREATE TABLE, insertInto): {_INSTEAD}"
            )
        if ("begin" in lowered or "end" in lowered) and "as_of" in lowered:
            raise InvalidInput(
                "begin and end read changes, as_of reads the table at one moment: set begin and end, or only as_of"
            )
        hudi = {key: value for key, value in lowered.items() if key.startswith(_HUDI)}
        values = parsed(lowered, _PARSERS)
        result = cls(lowered["path"], hudi=hudi, merge_schema=values.pop("mergeSchema", False), **values)
        if result.read_optimized:
            result.refuse("a read of base files only", "begin", "end", "changes")
        if result.changes and (result.as_of is not None or result.filter is not None):
            raise InvalidInput(
                "changes=true cannot be used with as_of or filter: set begin and end, and call where on the DataFrame"
            )
        return result

    def refuse(self, purpose: str, *names: str) -> None:
        unused = [name for name in names if getattr(self, name) not in {None, "earliest", "append", False}]
        if unused:
            raise InvalidInput(f"options {unused} cannot be used with {purpose}: leave them out")

    @property
    def settings(self) -> TableSettings:
        """Optimistic unless Hudi's key says otherwise."""
        return TableSettings.from_hudi({MODE_KEY: Mode.OPTIMISTIC.value, **self.hudi})

    def open(self) -> TableContext:
        table = TableContext.open(self.url, storage_options=self.storage_options, settings=self.settings)
        return table if self.fence is None else table.under(self.fence)


_OF_READS = "hoodie.datasource.read."
_QUERY_TYPE = "hoodie.datasource.query.type"
_BEGIN, _END = f"{_OF_READS}begin.instanttime", f"{_OF_READS}end.instanttime"
_FORMAT = "hoodie.datasource.query.incremental.format"
_AS_OF = "as.of.instant"
_OFFSET = "hoodie.datasource.streaming.startoffset"
_OBEYED_BY_READS = frozenset({_QUERY_TYPE, _BEGIN, _END, _FORMAT, _AS_OF, _OFFSET})
_QUERY_TYPES = ("snapshot", "read_optimized", "incremental")

_INSIDE = ("hoodie.metadata.", "hoodie.memory.", "hoodie.parquet.", "hoodie.common.spillable.", "hoodie.filesystem.")
_WITHOUT_EFFECT_ON_READS: Mapping[str, tuple[str, ...]] = {
    "hoodie.enable.data.skipping": (),
    "hoodie.file.index.enable": (),
    "hoodie.datasource.read.file.index.listing.mode": (),
    "hoodie.datasource.read.file.index.listing.partition-path-prefix.analysis.enabled": (),
    "hoodie.datasource.read.file.index.optimize.listing.using.ro.path.filter": (),
    "hoodie.datasource.read.incr.skip_compact": (),
    "hoodie.datasource.read.incr.skip_cluster": (),
    "hoodie.datasource.read.incr.skip_insert_overwrite": ("false",),
    "hoodie.datasource.read.incr.fallback.fulltablescan.enable": ("false",),
    "hoodie.datasource.read.extract.partition.values.from.path": ("false",),
    "hoodie.datasource.read.use.new.parquet.file.format": (),
    "hoodie.datasource.read.streaming.table.version": ("8", "9"),
    "hoodie.datasource.read.handle.hollow.commit": ("use_transition_time",),
    "hoodie.read.timeline.holes.resolution.policy": ("use_transition_time",),
    "hoodie.datasource.merge.type": ("payload_combine",),
    "hoodie.schema.on.read.enable": ("false",),
}
_INSTEAD_OF = {
    "hoodie.datasource.read.incr.filters": "use the option filter",
    "hoodie.datasource.read.incr.path.glob": "use the option partitions",
    "hoodie.datasource.read.paths": "give the table's URL as path",
    "hoodie.datasource.read.incr.fallback.fulltablescan.enable": "catch HistoryGone, then read the whole table",
    "hoodie.datasource.overwrite.mode": "set hoodie.datasource.write.operation=insert_overwrite to replace partitions",
}
_CDC = "set changes=true instead, which adds the column _operation with the kind of each row's change"


def _ours(lowered: Mapping[str, str]) -> dict[str, str]:
    """Return only Hudi's read options, translated to this source's.

    InvalidInput for conflicting or unsupported ones.
    """
    translated: dict[str, str] = {}
    kind = lowered.get(_QUERY_TYPE, "snapshot").strip().lower()
    if kind not in _QUERY_TYPES:
        raise InvalidInput(f"{_QUERY_TYPE}={lowered[_QUERY_TYPE]} is none of {', '.join(_QUERY_TYPES)}")
    if kind == "read_optimized":
        translated["read_optimized"] = "true"
    window = [key for key in (_BEGIN, _END, _FORMAT) if key in lowered]
    if kind == "incremental" and _AS_OF in lowered:
        raise InvalidInput(
            f"{_AS_OF} reads the table at one moment, {_QUERY_TYPE}=incremental reads changes: set one of them"
        )
    if kind != "incremental" and window:
        raise InvalidInput(
            f"{window} cannot be used with {_QUERY_TYPE}={kind}: set {_QUERY_TYPE}=incremental, or leave them out"
        )
    if lowered.get(_FORMAT, "latest_state").strip().lower() != "latest_state":
        raise InvalidInput(f"{_FORMAT}={lowered[_FORMAT]} is not supported: {_CDC}")
    for key, name in ((_BEGIN, "begin"), (_END, "end"), (_AS_OF, "as_of"), (_OFFSET, "starting")):
        if key in lowered:
            translated[name] = _time(lowered[key]) or ("" if name in {"begin", "starting"} else lowered[key])
    conflicting = [name for name, value in translated.items() if lowered.get(name, value) != value]
    if conflicting:
        raise InvalidInput(
            f"options {conflicting} are given twice, by two names, with different values: give one of them"
        )
    return translated


def check_read(hudi: Mapping[str, str], *, of_stream: bool) -> None:
    """Raise InvalidInput for Hudi's options that a batch read or stream would not obey.

    Also for an incremental batch read without a begin.
    """
    if hudi.get(_QUERY_TYPE, "").strip().lower() == "incremental" and _BEGIN not in hudi and not of_stream:
        raise InvalidInput(
            f"{_QUERY_TYPE}=incremental needs {_BEGIN}: set a version to read after, or 000 to read all commits"
        )
    if of_stream and hudi.get(_QUERY_TYPE, "incremental").strip().lower() != "incremental":
        raise InvalidInput(
            f"{_QUERY_TYPE}={hudi[_QUERY_TYPE]} cannot be used with a stream, which is incremental: leave it out"
        )
    misplaced = [key for key in ((_BEGIN, _END) if of_stream else (_OFFSET,)) if key in hudi]
    if misplaced:
        instead = f"use {_OFFSET}, or the option starting" if of_stream else f"use {_BEGIN}"
        raise InvalidInput(f"{misplaced} cannot be used with a {'stream' if of_stream else 'batch read'}: {instead}")
    for key, value in hudi.items():
        if key not in _OBEYED_BY_READS:
            _check_key(key, value.strip().lower())


def _check_key(key: str, value: str) -> None:
    """Raise InvalidInput unless a read may ignore this option; `value` is stripped, in lower case."""
    if key in _WITHOUT_EFFECT_ON_READS:
        if (accepted := _WITHOUT_EFFECT_ON_READS[key]) and value not in accepted:
            instead = _INSTEAD_OF.get(key, f"use {' or '.join(accepted)}, or leave it out")
            raise InvalidInput(f"{key}={value} is not supported: {instead}")
    elif key in _INSTEAD_OF:
        raise InvalidInput(f"{key} is not supported: {_INSTEAD_OF[key]}")
    elif not (key in hudi_keys.HONOURED or key.startswith((*hudi_keys.OWNED, *_INSIDE))):
        alike = get_close_matches(key, sorted(_OBEYED_BY_READS | set(_WITHOUT_EFFECT_ON_READS)), n=1)
        hint = f"did you mean {alike[0]}?" if alike else "leave it out"
        raise InvalidInput(f"{key} is not a known option of a read: {hint}")


def _time(text: str) -> str:
    """Convert a date to an ISO time in UTC, zeros to "" (before all commits).

    A year and 10 or 13 zeros become the last version before it. Strips other texts.
    """
    stripped = text.strip()
    if stripped and not stripped.strip("0"):
        return ""
    if match := re.fullmatch(r"(\d{4})0{10}(?:000)?", stripped):
        return f"{int(match[1]) - 1:04}1231235959999"
    if match := re.fullmatch(r"(\d{4})-(\d\d)-(\d\d)(?:[ T](\d\d):(\d\d):(\d\d)(\.\d{1,3})?)?", stripped):
        day, clock = "-".join(match.groups()[:3]), ":".join(part or "00" for part in match.groups()[3:6])
        return f"{day}T{clock}{(match[7] or '.0').ljust(4, '0')}Z"
    return stripped


_OF_WRITES = "hoodie.datasource.write."
_OPERATION = f"{_OF_WRITES}operation"
KEY_OPTION = f"{_OF_WRITES}recordkey.field"
_NAME = "hoodie.table.name"
_ORDERING = "hoodie.table.ordering.fields"
# fields of `TableSpec`: how an option is parsed, the table's property, the option's names
_OF_TABLES: Mapping[str, tuple[Parser, str, tuple[str, ...]]] = {
    "record_keys": (_some_names, "record_keys", (KEY_OPTION, "hoodie.table.recordkey.fields")),
    "partition_by": (_names, "partition_fields", (f"{_OF_WRITES}partitionpath.field", "hoodie.table.partition.fields")),
    "ordering": (
        _names,
        "ordering_fields",
        (_ORDERING, f"{_OF_WRITES}precombine.field", "hoodie.table.precombine.field"),
    ),
    "name": (text_option, "name", (_NAME, f"{_OF_WRITES}table.name")),
    "table_type": (lambda _, text: text.upper(), "table_type", (f"{_OF_WRITES}table.type", "hoodie.table.type")),
    "hive_style": (_flag, "hive_style", (f"{_OF_WRITES}hive_style_partitioning",)),
    "url_encode": (_flag, "url_encode", (f"{_OF_WRITES}partitionpath.urlencode",)),
}
_OBEYED_BY_WRITES = frozenset({_OPERATION, *(name for _, _, names in _OF_TABLES.values() for name in names)})
_WITHOUT_EFFECT_ON_WRITES = (
    f"{_OF_WRITES}row.writer.enable",
    f"{_OF_WRITES}streaming.retry.",
    "hoodie.datasource.hive_sync.",
    "hoodie.datasource.meta.sync.",
    "hoodie.datasource.meta_sync.",
    "hoodie.datasource.compaction.",
    "hoodie.datasource.clustering.",
    "hoodie.table.services.",
    "hoodie.table.cdc.enabled",
    "hoodie.table.format",
    "hoodie.table.base.file.format",
    "hoodie.table.multiple.base.file.formats.enable",
)
_DECISIVE = ("hoodie.datasource.", "hoodie.table.", "hoodie.keygen.", "hoodie.compaction.payload.")
_ENDS = tuple({f".{name.removeprefix(_OF_WRITES).removeprefix(_HUDI)}" for name in _OBEYED_BY_WRITES})


class WriteOperation(str, Enum):
    """Values of `hoodie.datasource.write.operation`, without synonyms."""

    INSERT = "insert"
    UPSERT = "upsert"
    DELETE = "delete"
    INSERT_OVERWRITE = "insert_overwrite"
    INSERT_OVERWRITE_TABLE = "insert_overwrite_table"


@dataclass(frozen=True, slots=True)
class HudiWrite:
    """Hudi's options of a write: its operation, and the fields of `TableSpec` that they set."""

    operation: WriteOperation
    given: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def of(cls, options: Mapping[str, str], *, overwrite: bool = False) -> HudiWrite:
        """Parse Hudi's write options; `overwrite` is Spark's mode.

        InvalidInput: conflicting or unsupported ones, or unknown ones that decide rows; ignores others.
        """
        if strange := sorted(filter(_would_mislead, options)):
            alike = get_close_matches(strange[0], sorted(_OBEYED_BY_WRITES), n=1, cutoff=0.9)
            hint = f"did you mean {alike[0]}?" if alike else _INSTEAD_OF.get(strange[0], "leave them out")
            raise InvalidInput(f"options {strange} would have no effect here: {hint}")
        given = {
            name: parse(*option)
            for name, (parse, _, keys) in _OF_TABLES.items()
            if (option := _first(options, keys)) is not None
        }
        ordering = given.get("ordering", ())
        if len(ordering) > 1:
            raise InvalidInput(
                f"{_ORDERING}={','.join(ordering)} has several columns, and only one is supported: give one"
            )
        if mixed := [name for name in (*given.get("record_keys", ()), *given.get("partition_by", ())) if ":" in name]:
            raise InvalidInput(
                f"{mixed} are not column names: leave out the key generator's type (write city, not city:SIMPLE)"
            )
        return cls(_operation(options.get(_OPERATION), overwrite=overwrite, keyed="record_keys" in given), given)

    @property
    def gathers(self) -> bool:
        """Whether all rows must be gathered before any write."""
        return self.operation not in {WriteOperation.INSERT, WriteOperation.INSERT_OVERWRITE_TABLE}

    def spec(self, schema: pa.Schema) -> TableSpec:
        """Spec of a new table; InvalidInput without a name."""
        if not self.given.get("name"):
            raise InvalidInput(f"{_NAME} is missing: set it, as this write creates the table")
        ordering = next(iter(self.given.get("ordering", ())), None)
        return TableSpec(schema=schema, **{"record_keys": (), **self.given, "ordering": ordering})

    def check(self, config: TableConfig) -> None:
        """Raise InvalidInput if the options differ from the existing table."""
        for name, value in self.given.items():
            _, attribute, keys = _OF_TABLES[name]
            if value != (actual := getattr(config, attribute)):
                raise InvalidInput(
                    f"{keys[0]}={_text(value)}, but the existing table has {_text(actual) or 'none'}: leave the "
                    "option out"
                )


def _would_mislead(key: str) -> bool:
    """Whether an ignored option decides rows, or is almost an obeyed one."""
    if key in _OBEYED_BY_WRITES or key.startswith(_WITHOUT_EFFECT_ON_WRITES):
        return False
    return key.startswith(_DECISIVE) or bool(
        key.endswith(_ENDS) or get_close_matches(key, sorted(_OBEYED_BY_WRITES), n=1, cutoff=0.9)
    )


def _operation(option: str | None, *, overwrite: bool, keyed: bool) -> WriteOperation:
    """Operation `option`; by default upsert if `keyed`, else insert.

    `overwrite` makes all but insert_overwrite replace all rows. InvalidInput: an unknown one, or delete with
    `overwrite`.
    """
    known = {operation.value: operation for operation in WriteOperation} | {"bulk_insert": WriteOperation.INSERT}
    operation = WriteOperation.UPSERT if keyed else WriteOperation.INSERT
    if option is not None:
        name = option.strip().lower()
        if name not in known:
            raise InvalidInput(f"{_OPERATION}={option} is not supported: use one of {', '.join(sorted(known))}")
        operation = known[name]
    if not overwrite or operation is WriteOperation.INSERT_OVERWRITE:
        return operation
    if operation is WriteOperation.DELETE:
        raise InvalidInput(
            f"{_OPERATION}=delete deletes rows by key, mode('overwrite') replaces all: use mode('append')"
        )
    return WriteOperation.INSERT_OVERWRITE_TABLE


def _first(options: Mapping[str, str], keys: tuple[str, ...]) -> tuple[str, str] | None:
    values = {key: options[key].strip() for key in keys if key in options}
    if len({*values.values()}) > 1:
        raise InvalidInput(f"{values} contradict each other: give one of them")
    return next(iter(values.items()), None)


def _text(value: object) -> str:
    if isinstance(value, tuple):
        return ",".join(value)
    return str(value).lower() if isinstance(value, bool) else str(value)
