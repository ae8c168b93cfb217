"""Names in a table: build and parse paths and composite record keys.

All paths are relative to the table and use `/`.

Source: Hudi `FSUtils`, `MarkerUtils`, `HoodiePartitionMetadata`, `KeyGenUtils`, `PartitionPathEncodeUtils`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from enum import Enum

from lockprovider.table.errors import InvalidRecords, undamaged

META = ".hoodie"
TIMELINE = ".hoodie/timeline"
HISTORY = ".hoodie/timeline/history"
PROPERTIES = ".hoodie/hoodie.properties"
PROPERTIES_BACKUP = ".hoodie/hoodie.properties.backup"
MARKERS = ".hoodie/.temp"
STAGED = "staged-"  # beginning of the folder beside the markers in which Spark stages a write's rows
HEARTBEATS = ".hoodie/.heartbeat"
METADATA_TABLE = ".hoodie/metadata"
# The JVM keeps rules here for split buckets and bucket numbers by partition.
BUCKET_RULES = ".hoodie/.bucket_index"
LOCK = ".hoodie/.locks/table_lock.json"
PARTITION_METAFILE = ".hoodie_partition_metadata"
DEFAULT_PARTITION = "__HIVE_DEFAULT_PARTITION__"
NULL_KEY = "__null__"
EMPTY_KEY = "__empty__"
FileGroup = tuple[str, str]

_OWN_NAMES = frozenset({META, PARTITION_METAFILE})
_PLACEHOLDERS: dict[str | None, str | None] = {NULL_KEY: None, EMPTY_KEY: ""}

_MARKERS_FILE = re.compile(r"MARKERS\d+")
_MARKER = re.compile(
    rf"(?:.*/)?{re.escape(MARKERS)}/([0-9]+)/(?:(.+)/)?([^/]+)\.marker\.(CREATE|MERGE|APPEND)", re.ASCII
)
_UNSAFE = re.compile(r"[\x00-\x1f\"#%'*/:=?\\\x7f{\[\]^]")
# hudi-rs and Hadoop's `Path` misread these, and the JVM always decodes escapes.
_MISREAD = re.compile(r"[\x00-\x1f\x7f:]|%[0-9a-fA-F]{2}")
# A bare value with `=` reads as column and value.
_MISREAD_ALONE = re.compile(f"{_MISREAD.pattern}|=")
_CURE = "give the table URL encoding when it is made (TableSpec.url_encode), or "
_ESCAPED = re.compile(r"%([0-9a-fA-F]{2})")


class MarkerKind(str, Enum):
    """Kind of a marked file: a group's first file or a log, the next base file, or (old tables) a log."""

    CREATE = "CREATE"
    MERGE = "MERGE"
    APPEND = "APPEND"


@dataclass(frozen=True, slots=True)
class Marker:
    """Marker of a data file."""

    begin: str
    partition: str
    file_name: str
    kind: MarkerKind

    @property
    def data_path(self) -> str:
        return join(self.partition, self.file_name)


def join(partition: str, file_name: str) -> str:
    return f"{partition}/{file_name}" if partition else file_name


def names_by_partition(paths: Iterable[str]) -> dict[str, tuple[str, ...]]:
    grouped: dict[str, list[str]] = {}
    for path in paths:
        partition, _, name = path.rpartition("/")
        grouped.setdefault(partition, []).append(name)
    return {partition: tuple(names) for partition, names in grouped.items()}


def markers_dir(begin: str) -> str:
    return f"{MARKERS}/{begin}"


def marker_path(begin: str, partition: str, file_name: str, kind: MarkerKind) -> str:
    return f"{markers_dir(begin)}/{marker_name(partition, file_name, kind)}"


def marker_name(partition: str, file_name: str, kind: MarkerKind) -> str:
    return f"{join(partition, file_name)}.marker.{kind.value}"


def markers_type(begin: str) -> tuple[str, bytes]:
    return f"{markers_dir(begin)}/MARKERS.type", b"TIMELINE_SERVER_BASED"


def markers_file(begin: str, number: int, names: Iterable[str]) -> tuple[str, bytes]:
    return f"{markers_dir(begin)}/MARKERS{number}", "".join(f"{name}\n" for name in names).encode()


def parse_marker(path: str) -> Marker | None:
    match = _MARKER.fullmatch(path)
    return Marker(match[1], match[2] or "", match[3], MarkerKind(match[4])) if match else None


def markers_in(path: str, data: bytes) -> list[Marker]:
    """Parse a `markers_file`; skip other lines."""
    folder = path.rpartition("/")[0]
    with undamaged(f"{path} is no list of markers"):
        return list(filter(None, (parse_marker(f"{folder}/{line}") for line in data.decode().split("\n"))))


def is_markers_file(path: str) -> bool:
    return _MARKERS_FILE.fullmatch(path.rpartition("/")[2]) is not None


def heartbeat_path(begin: str) -> str:
    return f"{HEARTBEATS}/{begin}"


def partition_metafile(partition: str, begin: str) -> tuple[str, bytes]:
    depth = partition.count("/") + 1 if partition else 0
    content = f"#partition metadata\ncommitTime={begin}\npartitionDepth={depth}\n"
    return join(partition, PARTITION_METAFILE), content.encode("ascii")


def escape(value: str) -> str:
    return _UNSAFE.sub(lambda match: f"%{ord(match[0]):02X}", value)


def unescape(value: str) -> str:
    return _ESCAPED.sub(lambda match: chr(int(match[1], 16)), value)


def checked_path(path: str) -> str:
    if ".." in path.replace("\\", "/").split("/"):
        raise InvalidRecords(f"partition path {path!r} leaves the table; change the value")
    return path


def outer_of(partition: str) -> list[str]:
    levels = partition.split("/")
    return ["/".join(levels[:count]) for count in range(1, len(levels))]


def nested(partition: str, other: str) -> InvalidRecords:
    inner, outer = sorted((partition, other), key=len, reverse=True)
    return InvalidRecords(
        f"partition {inner!r} would be inside partition {outer!r}: JVM readers would find the outer one's rows only, "
        f"hudi-rs the inner one's; {_CURE}change the value"
    )


@dataclass(frozen=True, slots=True)
class PartitionStyle:
    """Mapping of partition values to folders and back, equal to the JVM's with the same settings.

    Different values have different paths.
    """

    fields: tuple[str, ...] = ()
    hive_style: bool = True
    url_encode: bool = False

    def folder_for(self, field: str, text: str | None) -> str:
        if fault := self.fault_of(field, text):
            cured = not self.url_encode and replace(self, url_encode=True).fault_of(field, text) is None
            raise InvalidRecords(
                f"value {text!r} of partition column {field!r} {fault}; {_CURE if cured else ''}change the value"
            )
        return self._folder(field, text)

    def _folder(self, field: str, text: str | None) -> str:
        folder = text or DEFAULT_PARTITION
        folder = escape(folder) if self.url_encode else folder
        return f"{field}={folder}" if self.hive_style else folder

    def fault_of(self, field: str, text: str | None) -> str | None:
        return None if text is None else next((why for bad, why in self._faults(field, text) if bad), None)

    def _faults(self, field: str, text: str) -> Iterator[tuple[object, str]]:
        """Yield a pair for each check: truthy if the value cannot be a folder, and why, to follow the value."""
        yield text in {"", DEFAULT_PARTITION}, "is null to Hudi's readers: give null if that is what it means"
        folder = self._folder(field, text)
        levels = folder.split("/")
        normal = {"", ".", "..", f"{field}="}.isdisjoint(levels)
        yield not normal, f"makes the path {folder!r}, which stores change to another one"
        blank = field == self.fields[0] and folder[:1].isspace()
        yield blank, f"makes the path {folder!r}, whose first blank some stores cut off"
        yield not _OWN_NAMES.isdisjoint(levels), "makes a folder that is Hudi's own"
        yield (
            len(levels) > 1 and len(self.fields) > 1,
            "has a '/', so that its path could be that of other values",
        )
        found = None if self.url_encode else (_MISREAD if self.hive_style else _MISREAD_ALONE).search(text)
        yield found, f"has {found and found[0]!r}, which readers fail at or take for something else"

    @property
    def can_nest(self) -> bool:
        return len(self.fields) == 1 and not self.url_encode

    def check_apart(self, paths: Iterable[str]) -> None:
        partitions = set(paths) if self.can_nest else set[str]()
        for path in partitions:
            if outer := partitions.intersection(outer_of(path)):
                raise nested(path, min(outer))

    def values_of(self, path: str) -> tuple[str | None, ...]:
        """Return the values in a partition path, None for the default partition; may raise `InvalidRecords`."""
        if not self.fields:
            return ()
        folders = [path] if len(self.fields) == 1 else path.split("/")
        if len(folders) != len(self.fields):
            raise InvalidRecords(f"partition path {path!r} does not have the levels {list(self.fields)}")
        return tuple(map(self._value, self.fields, folders))

    def _value(self, field: str, folder: str) -> str | None:
        text = folder.removeprefix(f"{field}=") if self.hive_style else folder
        if text == DEFAULT_PARTITION:
            return None
        return unescape(text) if self.url_encode else text


def key_of_texts(texts: Sequence[str | None], fields: Sequence[str]) -> str:
    """Return the record key `a:1,b:2` of several fields; null and empty text get placeholders.

    Raises `InvalidRecords` for a text that is a placeholder or has the next separator (`,b:`).

    Source: `KeyGenerator.constructRecordKey`, `KeyGenUtils.getRecordKey`.
    """
    key = ",".join(f"{field}:{_placeholder(text)}" for field, text in zip(fields, texts, strict=True))
    if ambiguous := _also_told(texts, fields):
        raise InvalidRecords(
            f"record key {key!r} is that of {dict(zip(fields, texts, strict=True))} and of "
            f"{dict(zip(fields, ambiguous, strict=True))}, which would be one row; change the value"
        )
    return key


def separators(fields: Sequence[str]) -> list[str]:
    return [*(f",{field}:" for field in fields[1:]), ""]


def _also_told(texts: Sequence[str | None], fields: Sequence[str]) -> list[str | None]:
    """Return one other list of texts with the same composite key, empty if there is none.

    There is one if a text is a placeholder or has a separator.
    """
    for at, (text, end) in enumerate(zip(texts, separators(fields), strict=True)):
        if text in _PLACEHOLDERS:
            return [*texts[:at], _PLACEHOLDERS[text], *texts[at + 1 :]]
        if text and end and end in text:
            head, _, tail = text.partition(end)
            return [*texts[:at], head, f"{tail}{end}{_placeholder(texts[at + 1])}", *texts[at + 2 :]]
    return []


def _placeholder(text: str | None) -> str:
    return NULL_KEY if text is None else text or EMPTY_KEY


_BASE_FILE = re.compile(r"([a-zA-Z0-9-]+)_([a-zA-Z0-9-]+)_([0-9]+)\.(parquet|hfile)", re.ASCII)
_LOG_FILE = re.compile(r"\.([^._]+)_([0-9]+)\.log\.([0-9]+)_([0-9]+-[0-9]+-[0-9]+)(\.cdc)?", re.ASCII)


@dataclass(frozen=True, slots=True)
class BaseFile:
    """Parsed name of a base file; the write token is `<task partition>-<stage>-<attempt>`."""

    file_id: str
    write_token: str
    begin: str

    @property
    def name(self) -> str:
        return f"{self.file_id}_{self.write_token}_{self.begin}.parquet"


def parse_base_file(name: str, suffix: str = "parquet") -> BaseFile | None:
    match = _BASE_FILE.fullmatch(name)
    return BaseFile(match[1], match[2], match[3]) if match and match[4] == suffix else None


@dataclass(frozen=True, slots=True)
class LogFile:
    """Parsed name of a log file; `version` counts within its instant's write.

    A log with `is_cdc` has changes for JVM change feeds, no rows.
    """

    file_id: str
    begin: str
    version: int
    write_token: str
    is_cdc: bool = False

    @property
    def name(self) -> str:
        cdc = ".cdc" if self.is_cdc else ""
        return f".{self.file_id}_{self.begin}.log.{self.version}_{self.write_token}{cdc}"

    @property
    def merge_order(self) -> tuple[str, int, str]:
        """Logs merge by begin time, not by completion."""
        return (self.begin, self.version, self.write_token)


def parse_log_file(name: str) -> LogFile | None:
    match = _LOG_FILE.fullmatch(name)
    return LogFile(match[1], match[2], int(match[3]), match[4], match[5] is not None) if match else None


def data_file(name: str) -> BaseFile | LogFile | None:
    return parse_base_file(name) or parse_log_file(name)


def hfile_at(path: str) -> tuple[str, BaseFile | LogFile] | None:
    partition, _, name = path.rpartition("/")
    file = parse_base_file(name, "hfile") or parse_log_file(name)
    return None if file is None else (partition, file)


def data_file_at(path: str) -> tuple[str, BaseFile | LogFile] | None:
    partition, _, name = path.rpartition("/")
    file = data_file(name)
    return None if file is None or partition.partition("/")[0] == META else (partition, file)


def data_files_in(paths: Iterable[str]) -> Iterator[tuple[FileGroup, BaseFile | LogFile, str]]:
    for path in paths:
        if (at := data_file_at(path)) is not None:
            yield (at[0], at[1].file_id), at[1], path
