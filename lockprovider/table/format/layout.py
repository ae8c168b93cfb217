"""Where things are in a table, and what their names mean; the names of files with rows among them.

All paths are relative to the table and use `/`.

Source: Hudi `FSUtils`, `MarkerUtils`, `HoodiePartitionMetadata`, `KeyGenUtils`, `PartitionPathEncodeUtils`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from enum import Enum

from lockprovider.table.errors import InvalidRecords

META = ".hoodie"
TIMELINE = ".hoodie/timeline"
HISTORY = ".hoodie/timeline/history"
PROPERTIES = ".hoodie/hoodie.properties"
PROPERTIES_BACKUP = ".hoodie/hoodie.properties.backup"
MARKERS = ".hoodie/.temp"
HEARTBEATS = ".hoodie/.heartbeat"
METADATA_TABLE = ".hoodie/metadata"
BUCKET_RULES = ".hoodie/.bucket_index"  # of the JVM's: buckets that are split, or of other numbers in each partition
LOCK = ".hoodie/.locks/table_lock.json"
PARTITION_METAFILE = ".hoodie_partition_metadata"
DEFAULT_PARTITION = "__HIVE_DEFAULT_PARTITION__"
NULL_KEY = "__null__"
EMPTY_KEY = "__empty__"
FileGroup = tuple[str, str]  # partition, file id

_OWN_NAMES = frozenset({META, PARTITION_METAFILE})
_PLACEHOLDERS: dict[str | None, str | None] = {NULL_KEY: None, EMPTY_KEY: ""}

_MARKERS_FILE = re.compile(r"MARKERS\d+")
_MARKER = re.compile(
    rf"(?:.*/)?{re.escape(MARKERS)}/([0-9]+)/(?:(.+)/)?([^/]+)\.marker\.(CREATE|MERGE|APPEND)", re.ASCII
)
_UNSAFE = re.compile(r"[\x00-\x1f\"#%'*/:=?\\\x7f{\[\]^]")
_MISREAD = re.compile(r"[\x00-\x1f\x7f:]|%[0-9a-fA-F]{2}")  # hudi-rs, Hadoop's Path; what the JVM decodes in any case
_MISREAD_ALONE = re.compile(f"{_MISREAD.pattern}|=")  # without the column's name before it, this is taken for one
_CURE = "give the table URL encoding when it is made (TableSpec.url_encode), or "
_ESCAPED = re.compile(r"%([0-9a-fA-F]{2})")


class MarkerKind(str, Enum):
    """What the announced data file is: the first of its group, a new slice, or (old tables) a log file."""

    CREATE = "CREATE"
    MERGE = "MERGE"
    APPEND = "APPEND"


@dataclass(frozen=True, slots=True)
class Marker:
    """An announcement, made before the data file is written, so that a rollback can find it."""

    begin: str
    partition: str
    file_name: str
    kind: MarkerKind

    @property
    def data_path(self) -> str:
        """The announced data file, relative to the table."""
        return join(self.partition, self.file_name)


def join(partition: str, file_name: str) -> str:
    """A file's path relative to the table; the partition of an unpartitioned table is empty."""
    return f"{partition}/{file_name}" if partition else file_name


def names_by_partition(paths: Iterable[str]) -> dict[str, tuple[str, ...]]:
    """The file names of these paths by their partition, both in their order."""
    found: dict[str, list[str]] = {}
    for path in paths:
        partition, _, name = path.rpartition("/")
        found.setdefault(partition, []).append(name)
    return {partition: tuple(names) for partition, names in found.items()}


def markers_dir(begin: str) -> str:
    """The folder of an instant's markers."""
    return f"{MARKERS}/{begin}"


def marker_path(begin: str, partition: str, file_name: str, kind: MarkerKind) -> str:
    """Where the (empty) direct marker of one data file goes."""
    return f"{markers_dir(begin)}/{marker_name(partition, file_name, kind)}"


def marker_name(partition: str, file_name: str, kind: MarkerKind) -> str:
    """What a marker says: which data file will be there, and of what kind it is."""
    return f"{join(partition, file_name)}.marker.{kind.value}"


def markers_type(begin: str) -> tuple[str, bytes]:
    """The object that says that an instant's markers are in `markers_file`s alone: where it goes, and its bytes."""
    return f"{markers_dir(begin)}/MARKERS.type", b"TIMELINE_SERVER_BASED"


def markers_file(begin: str, number: int, names: Iterable[str]) -> tuple[str, bytes]:
    """An object that is many markers in one: where it goes, and its bytes."""
    return f"{markers_dir(begin)}/MARKERS{number}", "".join(f"{name}\n" for name in names).encode()


def parse_marker(path: str) -> Marker | None:
    """Read a direct marker's path, relative to the table or longer; None for any other path."""
    found = _MARKER.fullmatch(path)
    return Marker(found[1], found[2] or "", found[3], MarkerKind(found[4])) if found else None


def markers_in(path: str, data: bytes) -> list[Marker]:
    """The markers in a `markers_file`, ours or that of JVM Hudi's timeline server."""
    folder = path.rpartition("/")[0]
    return list(filter(None, (parse_marker(f"{folder}/{line}") for line in data.decode().split("\n"))))


def is_markers_file(path: str) -> bool:
    """Whether an object is many markers in one."""
    return _MARKERS_FILE.fullmatch(path.rpartition("/")[2]) is not None


def heartbeat_path(begin: str) -> str:
    """The (empty) file whose modification time is the instant's last sign of life."""
    return f"{HEARTBEATS}/{begin}"


def partition_metafile(partition: str, begin: str) -> tuple[str, bytes]:
    """Path and content of the file without which JVM readers take a partition for no partition."""
    depth = partition.count("/") + 1 if partition else 0
    content = f"#partition metadata\ncommitTime={begin}\npartitionDepth={depth}\n"
    return join(partition, PARTITION_METAFILE), content.encode("ascii")


def escape(value: str) -> str:
    """Percent-encode the characters Hive and Hudi hold unsafe in a folder name, and no others."""
    return _UNSAFE.sub(lambda found: f"%{ord(found[0]):02X}", value)


def unescape(value: str) -> str:
    """Undo `escape`; a `%` that starts no code stays as it is."""
    return _ESCAPED.sub(lambda found: chr(int(found[1], 16)), value)


def checked_path(path: str) -> str:
    """The path itself, unless it would leave the table's folder.

    Raises:
        InvalidRecords: one of its levels is `..`.
    """
    if ".." in path.replace("\\", "/").split("/"):
        raise InvalidRecords(f"partition path {path!r} leaves the table; change the value")
    return path


def outer_of(partition: str) -> list[str]:
    """The paths of the partitions that this one would be inside of."""
    levels = partition.split("/")
    return ["/".join(levels[:count]) for count in range(1, len(levels))]


def nested(partition: str, other: str) -> InvalidRecords:
    """The error that says that of two partitions one is inside the other."""
    inner, outer = sorted((partition, other), key=len, reverse=True)
    return InvalidRecords(
        f"partition {inner!r} would be inside partition {outer!r}: JVM readers would find the outer one's rows only, "
        f"hudi-rs the inner one's; {_CURE}change the value"
    )


@dataclass(frozen=True, slots=True)
class PartitionStyle:
    """How partition values become folders.

    Promised: the paths are those the JVM writes with the same three settings; different values have different paths;
    and a value that this project, hudi-rs or the JVM would not find again, or would read as another, is refused.
    """

    fields: tuple[str, ...] = ()
    hive_style: bool = True
    url_encode: bool = False

    def folder_for(self, field: str, text: str | None) -> str:
        """The part of the path that a field's value makes, by its text: one level, or several without `url_encode`.

        Raises:
            InvalidRecords: readers would not find the value, or read it as another.
        """
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
        """Why a value cannot be a folder; None if it can."""
        return None if text is None else next((why for bad, why in self._faults(field, text) if bad), None)

    def _faults(self, field: str, text: str) -> Iterator[tuple[object, str]]:
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
        """Whether one partition can be inside another one: `a/b` in `a`."""
        return len(self.fields) == 1 and not self.url_encode

    def check_apart(self, paths: Iterable[str]) -> None:
        """Refuse partitions of which one is inside another.

        Raises:
            InvalidRecords: naming both.
        """
        there = set(paths) if self.can_nest else set[str]()
        for path in there:
            if outer := there.intersection(outer_of(path)):
                raise nested(path, min(outer))

    def values_of(self, path: str) -> tuple[str | None, ...]:
        """The partition values of a path, as text; None for the default partition (null and empty are one).

        Raises:
            InvalidRecords: the path has another number of levels than there are fields.
        """
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
    """The record key `a:1,b:2` of several fields' values, given as texts.

    Promised: no other values have this key.

    Raises:
        InvalidRecords: it could be that of others.

    Source: `KeyGenerator.constructRecordKey`, `KeyGenUtils.getRecordKey`.
    """
    key = ",".join(f"{field}:{_placeholder(text)}" for field, text in zip(fields, texts, strict=True))
    if others := _also_told(texts, fields):
        raise InvalidRecords(
            f"record key {key!r} is that of {dict(zip(fields, texts, strict=True))} and of "
            f"{dict(zip(fields, others, strict=True))}, which would be one row; change the value"
        )
    return key


def separators(fields: Sequence[str]) -> list[str]:
    """What comes after each field's value in a record key of several; empty after the last."""
    return [*(f",{field}:" for field in fields[1:]), ""]


def _also_told(texts: Sequence[str | None], fields: Sequence[str]) -> list[str | None]:
    """Other values that would have the same record key, if any."""
    for at, (text, end) in enumerate(zip(texts, separators(fields), strict=True)):
        if text in _PLACEHOLDERS:
            return [*texts[:at], _PLACEHOLDERS[text], *texts[at + 1 :]]
        if text and end and end in text:
            head, _, tail = text.partition(end)
            return [*texts[:at], head, f"{tail}{end}{_placeholder(texts[at + 1])}", *texts[at + 2 :]]
    return []


def _placeholder(text: str | None) -> str:
    return NULL_KEY if text is None else text or EMPTY_KEY


_BASE_FILE = re.compile(r"([a-zA-Z0-9-]+)_([a-zA-Z0-9-]+)_([0-9]+)\.parquet", re.ASCII)
_HFILE = re.compile(r"([a-zA-Z0-9-]+)_([a-zA-Z0-9-]+)_([0-9]+)\.hfile", re.ASCII)
_LOG_FILE = re.compile(r"\.([^._]+)_([0-9]+)\.log\.([0-9]+)_([0-9]+-[0-9]+-[0-9]+)(\.cdc)?", re.ASCII)


@dataclass(frozen=True, slots=True)
class BaseFile:
    """A base file's identity: the file group, the writing task attempt, and the instant.

    `file_id` is `<uuid>-<n>`, `write_token` is `<task partition>-<stage>-<attempt>`; both of letters, digits and `-`.
    """

    file_id: str
    write_token: str
    begin: str

    @property
    def name(self) -> str:
        """The file name, without the partition, of a data table."""
        return f"{self.file_id}_{self.write_token}_{self.begin}.parquet"


def parse_base_file(name: str) -> BaseFile | None:
    """Read a base file's name (without folders); None for any other file."""
    found = _BASE_FILE.fullmatch(name)
    return BaseFile(found[1], found[2], found[3]) if found else None


@dataclass(frozen=True, slots=True)
class LogFile:
    """A log file's identity: the file group, the instant of the write, and which one of that it is.

    `write_token` is of digits alone: with letters the JVM takes the file for no log. `is_cdc`: it says how rows
    changed, for change feeds of the JVM's, and has no rows of the table.
    """

    file_id: str
    begin: str
    version: int
    write_token: str
    is_cdc: bool = False

    @property
    def name(self) -> str:
        """The file name, without the partition."""
        cdc = ".cdc" if self.is_cdc else ""
        return f".{self.file_id}_{self.begin}.log.{self.version}_{self.write_token}{cdc}"

    @property
    def place(self) -> tuple[str, int, str]:
        """What log files of a file slice are merged in the order of; by begin times, whenever they were completed."""
        return (self.begin, self.version, self.write_token)


def parse_log_file(name: str) -> LogFile | None:
    """Read a log file's name (without folders); None for any other file, archived logs of old tables among them."""
    found = _LOG_FILE.fullmatch(name)
    return LogFile(found[1], found[2], int(found[3]), found[4], found[5] is not None) if found else None


def data_file(name: str) -> BaseFile | LogFile | None:
    """Read the name of a file with rows, or with how they changed; None for any other file."""
    return parse_base_file(name) or parse_log_file(name)


def hfile_at(path: str) -> tuple[str, BaseFile | LogFile] | None:
    """The partition of a base or log file of the metadata table, and what its name says; None for any other."""
    partition, _, name = path.rpartition("/")
    found = _HFILE.fullmatch(name)
    file = BaseFile(found[1], found[2], found[3]) if found else parse_log_file(name)
    return None if file is None else (partition, file)


def data_file_at(path: str) -> tuple[str, BaseFile | LogFile] | None:
    """The partition of a base or log file, and what its name says; None for any other, and below Hudi's own folder."""
    partition, _, name = path.rpartition("/")
    file = data_file(name)
    return None if file is None or partition.partition("/")[0] == META else (partition, file)


def data_files_in(paths: Iterable[str]) -> Iterator[tuple[FileGroup, BaseFile | LogFile, str]]:
    """The base and log files among these paths: the file group, what the name says, the path."""
    for path in paths:
        if (at := data_file_at(path)) is not None:
            yield (at[0], at[1].file_id), at[1], path
