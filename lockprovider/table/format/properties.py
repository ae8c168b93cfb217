"""Codec of `hoodie.properties`, a table's configuration as Java properties text.

Source: the documentation of `java.util.Properties.load` and `store`; Hudi `HoodieTableConfig`, `HoodieTableVersion`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from zlib import crc32

from lockprovider.table.errors import Corrupt
from lockprovider.table.format.bucket import MOST_BUCKETS, BucketIndex
from lockprovider.table.format.keygen import PartitionStyle

_ESCAPES = {"\t": "\\t", "\n": "\\n", "\r": "\\r", "\f": "\\f", **{mark: f"\\{mark}" for mark in "\\=:#!"}}
_UNESCAPES = {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}
_SEQUENCE = re.compile(r"\\(?:u([0-9a-fA-F]{4})|(.)|$)", re.DOTALL)
_KEY = re.compile(r"((?:[^\\=: \t\f]|\\.)*)[ \t\f]*[=:]?[ \t\f]*(.*)", re.DOTALL)
_UTF16_UNIT = re.compile(rb"(..)", re.DOTALL)


def pairs(text: str) -> Iterator[tuple[str, str]]:
    for line in _logical_lines(text):
        match = _KEY.fullmatch(line)
        if match is not None:
            yield _unescape(match[1]), _unescape(match[2])


def _logical_lines(text: str) -> Iterator[str]:
    """Yield the lines except blanks and comments, without leading blanks.

    An odd number of final backslashes joins the next line.
    """
    joined, continues = "", False
    for natural in re.split(r"\r\n|\r|\n", text):
        line = natural.lstrip(" \t\f")
        if not continues and (not line or line[0] in "#!"):
            continue
        trailing = len(line) - len(line.rstrip("\\"))
        continues = trailing % 2 == 1
        joined += line[:-1] if continues else line
        if not continues:
            yield joined
            joined = ""
    if joined:
        yield joined


def _unescape(text: str) -> str:
    """Resolve Java's escapes in a key or value; half of a surrogate pair becomes U+FFFD."""

    def one(match: re.Match[str]) -> str:
        if match[1]:
            return chr(int(match[1], 16))
        return _UNESCAPES.get(match[2] or "", match[2] or "")

    units = _SEQUENCE.sub(one, text)
    # Two escaped UTF-16 units may form one character.
    return units.encode("utf-16-be", "surrogatepass").decode("utf-16-be", "replace")


def escape_key(text: str) -> str:
    return "".join(map(_escape_one, text)).replace(" ", "\\ ")


def escape_value(text: str) -> str:
    out = "".join(map(_escape_one, text))
    return f"\\{out}" if out.startswith(" ") else out


def _escape_one(char: str) -> str:
    if char in _ESCAPES:
        return _ESCAPES[char]
    if " " <= char <= "~":
        return char
    units = char.encode("utf-16-be", "surrogatepass")
    return "".join(f"\\u{int.from_bytes(unit, 'big'):04X}" for unit in _UTF16_UNIT.findall(units))


def list_at(raw: Mapping[str, str], key: str) -> tuple[str, ...]:
    return tuple(part.strip() for part in raw.get(key, "").split(",") if part.strip())


def flag_at(raw: Mapping[str, str], key: str, *, default: bool) -> bool:
    value = raw.get(key, "").strip().lower()
    return value == "true" if value else default


def number_at(raw: Mapping[str, str], key: str, file_name: str) -> int:
    try:
        return int(raw[key])
    except (KeyError, ValueError) as error:
        raise Corrupt(f"{file_name} has {key}={raw.get(key)!r}; it must be a number, restore the file") from error


def flag_text(value: bool) -> str:  # noqa: FBT001 - it is the value written
    return "true" if value else "false"


FILE_NAME = "hoodie.properties"
READABLE_VERSIONS = (8, 9)
TABLE_TYPES = COPY_ON_WRITE, MERGE_ON_READ = ("COPY_ON_WRITE", "MERGE_ON_READ")

_LARGEST = 1 << 20
_NAME = "hoodie.table.name"
_DATABASE = "hoodie.database.name"
_TYPE = "hoodie.table.type"
_VERSION = "hoodie.table.version"
_LAYOUT = "hoodie.timeline.layout.version"
_CHECKSUM = "hoodie.table.checksum"
_KEYS = "hoodie.table.recordkey.fields"
_PARTITIONS = "hoodie.table.partition.fields"
_ORDERING_V8 = "hoodie.table.precombine.field"
_ORDERING_V9 = "hoodie.table.ordering.fields"
_KEYGEN = "hoodie.table.keygenerator.type"
_KEYGEN_CLASS = "hoodie.table.keygenerator.class"
_HIVE = "hoodie.datasource.write.hive_style_partitioning"
_ENCODE = "hoodie.datasource.write.partitionpath.urlencode"
_ZONE = "hoodie.table.timeline.timezone"
_SCHEMA = "hoodie.table.create.schema"
_MODE = "hoodie.record.merge.mode"
PARTITIONS_KEY = "hoodie.table.metadata.partitions"
_MDT_INFLIGHT = "hoodie.table.metadata.partitions.inflight"
_KEY_ENCODING = "hoodie.table.complex.keygen.encoding"  # newer Hudi
KEY_ENCODING = "hoodie.write.complex.keygen.new.encoding"  # true omits the name (version 8)
# The JVM does not store these.
INDEX = "hoodie.index.type"
BUCKET_ENGINE = "hoodie.index.bucket.engine"
BUCKETS = "hoodie.bucket.index.num.buckets"
HASH_FIELD = "hoodie.bucket.index.hash.field"
BUCKET, SIMPLE = "BUCKET", "SIMPLE"
DEFAULT_BUCKETS = 256

_PLAIN_KEYGENS = frozenset({"SIMPLE", "NON_PARTITION", "SIMPLE_AVRO", "NON_PARTITION_AVRO"})
_KEYGENS = {"SIMPLE": "Simple", "COMPLEX": "Complex", "NON_PARTITION": "Nonpartitioned"}
EVENT_TIME = "EVENT_TIME_ORDERING"
COMMIT_TIME = "COMMIT_TIME_ORDERING"
STRATEGY = "hoodie.record.merge.strategy.id"
PAYLOAD = "hoodie.compaction.payload.class"
_OLD_STRATEGY = "hoodie.compaction.record.merger.strategy"

# In version 8 the JVM requires that all three agree.
V8_MERGE = {
    EVENT_TIME: {
        STRATEGY: "eeb8d96f-b1e4-49fd-bbf8-28ac514178e5",
        PAYLOAD: "org.apache.hudi.common.model.DefaultHoodieRecordPayload",
    },
    COMMIT_TIME: {
        STRATEGY: "ce9acb64-bde0-424c-9b91-f6ebba25356d",
        PAYLOAD: "org.apache.hudi.common.model.OverwriteWithLatestAvroPayload",
    },
}

# Flink's default
_SAME_PAYLOAD = {"org.apache.hudi.common.model.EventTimeAvroPayload": V8_MERGE[EVENT_TIME][PAYLOAD]}

_OWN_RULE = "hoodie.table.partial.update.mode"  # which columns count as not given
# marks of deletes or unknown values
_OWN_RULES = "hoodie.record.merge.property.", "hoodie.payload."


# which JVM Hudi keeps
VISIBILITY_KEY = "fsspec_cas.visibility"
VISIBILITIES = ORDERED, UNORDERED = ("ordered", "unordered")


# Source: Hudi `RecordMergeMode`, `HoodieTableConfig.inferMergingConfigs`.
def own_rule(raw: Mapping[str, str]) -> str:
    rule = (key for key in sorted(raw) if key == _OWN_RULE or key.startswith(_OWN_RULES))
    return next((f"{key}={raw[key]}" for key in rule if raw[key].strip().upper() not in {"", "NONE"}), "")


@dataclass(frozen=True, slots=True)
class TableConfig:
    """Configuration of a table; `raw` holds every property as found, so that a rewrite keeps unknown ones.

    `timezone`: of instant times; if empty, JVM writers use their local one. Partitions in `metadata_inflight` are still
    being built.
    """

    name: str
    record_keys: tuple[str, ...]
    partition_fields: tuple[str, ...] = ()
    ordering_fields: tuple[str, ...] = ()
    hive_style: bool = True
    url_encode: bool = False
    version: int = 8
    database: str = ""
    schema_json: str | None = None
    table_type: str = COPY_ON_WRITE
    layout_version: int = 2
    merge_mode: str | None = None
    metadata_partitions: tuple[str, ...] = ()
    metadata_inflight: tuple[str, ...] = ()
    timezone: str = "UTC"
    keygenerator: str = ""
    bucket_index: BucketIndex | None = None
    # in the data files; None: by properties
    key_is_named: bool | None = field(default=None, compare=False)
    raw: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}), repr=False)

    @property
    def is_merge_on_read(self) -> bool:
        return self.table_type == MERGE_ON_READ

    @property
    def visibility(self) -> str:
        return self.raw.get(VISIBILITY_KEY, ORDERED)

    @property
    def is_unordered(self) -> bool:
        """Whether the commits of one decision are stored at once, in any order."""
        return self.visibility == UNORDERED

    @property
    def named_metadata(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys((*self.metadata_partitions, *self.metadata_inflight)))

    @property
    def deciding_fields(self) -> tuple[str, ...]:
        """Columns whose higher values win between rows of one key; empty if the later commit wins."""
        return self.ordering_fields if self.effective_merge_mode == EVENT_TIME else ()

    @property
    def ordering_field(self) -> str | None:
        return next(iter(self.deciding_fields), None)

    @property
    def identifying(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys((*self.record_keys, *self.partition_fields)))

    @property
    def key_column(self) -> str | None:
        """Column whose values as text are the record keys, or None."""
        known = self.keygenerator_type in _PLAIN_KEYGENS and not self.unknown_generator
        return self.record_keys[0] if known and len(self.record_keys) == 1 else None

    # Source: Hudi `KeyGeneratorType.getKeyGeneratorClassName`.
    @property
    def unknown_generator(self) -> str:
        """The `key=value` of a key generator unknown here, or empty.

        A class must be the stated type's, a type allow so many partition fields.
        """
        kind, stated = self.keygenerator_type.removesuffix("_AVRO"), self.raw.get(_KEYGEN_CLASS, "").strip()
        name = f"org.apache.hudi.keygen.{_KEYGENS.get(kind, '')}KeyGenerator"
        if stated and (not self.keygenerator or stated.replace("AvroKey", "Key") != name):
            return f"{_KEYGEN_CLASS}={stated}"
        most = {"SIMPLE": 1, "NON_PARTITION": 0}.get(kind, len(self.partition_fields))
        is_known = kind in _KEYGENS and len(self.partition_fields) <= most
        return "" if is_known else f"{_KEYGEN}={self.keygenerator_type}"

    @property
    def bucket_by(self) -> tuple[str, ...]:
        return self.bucket_index.fields if self.bucket_index else ()

    @property
    def partition_style(self) -> PartitionStyle:
        return PartitionStyle(self.partition_fields, self.hive_style, self.url_encode)

    @property
    def names_single_key(self) -> bool:
        if self.key_is_named is not None:
            return self.key_is_named
        if recorded := self.raw.get(_KEY_ENCODING, "").strip().upper():
            return recorded != "VALUE_ONLY"
        leaves_out = self.version <= 8 and flag_at(self.raw, KEY_ENCODING, default=False)  # noqa: PLR2004
        return self.has_complex_single_key and not leaves_out

    @property
    def has_complex_single_key(self) -> bool:
        return len(self.record_keys) == 1 and self.keygenerator_type.startswith("COMPLEX")

    @property
    def keygenerator_type(self) -> str:
        if self.keygenerator:
            return self.keygenerator
        if not self.partition_fields:
            return "NON_PARTITION"
        return "SIMPLE" if len(self.partition_fields) == len(self.record_keys) == 1 else "COMPLEX"

    @property
    def effective_merge_mode(self) -> str:
        return self.merge_mode or (EVENT_TIME if self.ordering_fields else COMMIT_TIME)


def checksum(name: str, database: str) -> int:
    return crc32(f"{database}.{name}".encode())


def encode_properties(config: TableConfig) -> bytes:
    """Keep the unknown properties of `raw`; equal configurations give equal bytes."""
    stated, optional = _stated(config), _optional(config)
    owned = {*stated, *optional, _ORDERING_V8, _ORDERING_V9}
    kept = {key: value for key, value in config.raw.items() if key not in owned}
    merged = {**_fixed(config), **kept, **stated, **{key: value for key, value in optional.items() if value}}
    lines = (f"{escape_key(key)}={escape_value(value)}\n" for key, value in sorted(merged.items()))
    return "".join(lines).encode("ascii")


def _fixed(config: TableConfig) -> dict[str, str]:
    """Default properties of the table's version, which `config.raw` overrides."""
    own = {
        "hoodie.table.initial.version": str(config.version),
        "hoodie.table.base.file.format": "PARQUET",
        "hoodie.populate.meta.fields": "true",
        "hoodie.datasource.write.drop.partition.columns": "false",
        "hoodie.timeline.path": "timeline",
        "hoodie.timeline.history.path": "history",
        "hoodie.archivelog.folder": "archived",
    }
    if config.version > 8:  # noqa: PLR2004 - the last version that names strategy and payload
        return {**own, "hoodie.table.format": "native"}
    return {**own, **V8_MERGE.get(config.effective_merge_mode, {})}


def _optional(config: TableConfig) -> dict[str, str]:
    """Properties, also empty ones, that the file omits if empty, even if `config.raw` has them."""
    ordering = _ORDERING_V8 if config.version <= 8 else _ORDERING_V9  # noqa: PLR2004
    return {
        _PARTITIONS: ",".join(config.partition_fields),
        ordering: ",".join(config.ordering_fields),
        PARTITIONS_KEY: ",".join(config.metadata_partitions),
        _MDT_INFLIGHT: ",".join(config.metadata_inflight),
        _SCHEMA: config.schema_json or "",
        _ZONE: config.timezone,
    }


def _stated(config: TableConfig) -> dict[str, str]:
    """Properties of required fields and bucket index, which override `config.raw`."""
    buckets, index = dict[str, str](), config.bucket_index
    if index is not None:
        buckets = {
            INDEX: BUCKET,
            BUCKET_ENGINE: SIMPLE,
            BUCKETS: str(index.buckets),
            HASH_FIELD: ",".join(index.fields),
        }
    return {
        _NAME: config.name,
        _DATABASE: config.database,
        _TYPE: config.table_type,
        _VERSION: str(config.version),
        _LAYOUT: str(config.layout_version),
        _KEYS: ",".join(config.record_keys),
        _KEYGEN: config.keygenerator_type,
        _HIVE: flag_text(config.hive_style),
        _ENCODE: flag_text(config.url_encode),
        _MODE: config.effective_merge_mode,
        _CHECKSUM: str(checksum(config.name, config.database)),
        **buckets,
    }


def parse_properties(data: bytes, file_name: str = FILE_NAME) -> TableConfig:
    """Parse the file's text; raise `Corrupt` above 1 MiB or without table name, version or layout version.

    Also for a wrong checksum or number of buckets.
    """
    if len(data) > _LARGEST:
        raise Corrupt(f"{file_name} has {len(data)} bytes, and {_LARGEST} are the most that is read; restore the file")
    raw = dict(pairs(data.decode("latin-1")))
    name, database = raw.get(_NAME, ""), raw.get(_DATABASE, "")
    if not name:
        raise Corrupt(f"{file_name} has no {_NAME}; restore the file, perhaps from {file_name}.backup")
    if raw.get(_CHECKSUM, "").strip() not in {"", str(checksum(name, database))}:
        raise Corrupt(
            f"{file_name} says {_CHECKSUM}={raw[_CHECKSUM]}, but table {name!r} of database {database!r} has "
            f"{checksum(name, database)}; restore the file, perhaps from {file_name}.backup"
        )
    return TableConfig(
        name=name,
        database=database,
        record_keys=list_at(raw, _KEYS),
        partition_fields=list_at(raw, _PARTITIONS),
        ordering_fields=list_at(raw, _ORDERING_V9) or list_at(raw, _ORDERING_V8),
        hive_style=flag_at(raw, _HIVE, default=False),
        url_encode=flag_at(raw, _ENCODE, default=False),
        version=number_at(raw, _VERSION, file_name),
        schema_json=raw.get(_SCHEMA) or None,
        table_type=raw.get(_TYPE, COPY_ON_WRITE).strip().upper(),
        layout_version=number_at(raw, _LAYOUT, file_name),
        merge_mode=raw.get(_MODE) or None,
        metadata_partitions=list_at(raw, PARTITIONS_KEY),
        metadata_inflight=list_at(raw, _MDT_INFLIGHT),
        timezone=raw.get(_ZONE, "").strip().upper(),
        keygenerator=raw.get(_KEYGEN, "").strip().upper(),
        bucket_index=_bucket_index(raw, file_name),
        raw=MappingProxyType(dict(raw)),
    )


def _bucket_index(raw: Mapping[str, str], file_name: str) -> BucketIndex | None:
    if raw.get(INDEX, "").strip().upper() != BUCKET:
        return None
    buckets = number_at(raw, BUCKETS, file_name) if BUCKETS in raw else DEFAULT_BUCKETS
    if not 1 <= buckets <= MOST_BUCKETS:
        raise Corrupt(f"{file_name} has {BUCKETS}={buckets}; it must be 1 to {MOST_BUCKETS}, restore the file")
    return BucketIndex(buckets, list_at(raw, HASH_FIELD) or list_at(raw, _KEYS))


def unknown_merge(config: TableConfig) -> str:
    """Unknown merge rule's `key=value`, or empty text."""
    mode = config.effective_merge_mode
    if mode not in V8_MERGE:
        return f"{_MODE}={mode}"
    known = dict(V8_MERGE[mode])
    if not config.raw.get(STRATEGY, "").strip():  # which replaces the older name
        known[_OLD_STRATEGY] = known[STRATEGY]
    stated = ((key, config.raw.get(key, "").strip()) for key in known)
    odd = (f"{key}={text}" for key, text in stated if text and _SAME_PAYLOAD.get(text, text) != known[key])
    return next(odd, own_rule(config.raw))
