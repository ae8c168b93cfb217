"""Names in a table: build and parse names of instants, markers and data files, and paths.

All paths are relative to the table and use `/`.

Source: Hudi `FSUtils`, `MarkerUtils`, `HoodiePartitionMetadata`; table versions 8 and 9, `InstantFileNameGeneratorV2`,
`HoodieInstantTimeGenerator`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from enum import Enum
from functools import lru_cache

from lockprovider.table.errors import Corrupt, InvalidRecords, undamaged

META = ".hoodie"
TIMELINE = ".hoodie/timeline"
HISTORY = ".hoodie/timeline/history"
PROPERTIES = ".hoodie/hoodie.properties"
PROPERTIES_BACKUP = ".hoodie/hoodie.properties.backup"
MARKERS = ".hoodie/.temp"
STAGED = "staged-"  # prefix of a Spark write's folder, next to the markers
HEARTBEATS = ".hoodie/.heartbeat"
METADATA_TABLE = ".hoodie/metadata"
# The JVM's rules for split buckets and bucket numbers by partition.
BUCKET_RULES = ".hoodie/.bucket_index"
LOCK = ".hoodie/.locks/table_lock.json"
PARTITION_METAFILE = ".hoodie_partition_metadata"
FileGroup = tuple[str, str]

_MARKERS_FILE = re.compile(r"MARKERS\d+")
_MARKER = re.compile(
    rf"(?:.*/)?{re.escape(MARKERS)}/([0-9]+)/(?:(.+)/)?([^/]+)\.marker\.(CREATE|MERGE|APPEND)", re.ASCII
)


class Action(str, Enum):
    """Action of an instant."""

    COMMIT = "commit"
    DELTACOMMIT = "deltacommit"
    REPLACECOMMIT = "replacecommit"
    CLUSTERING = "clustering"
    COMPACTION = "compaction"
    LOGCOMPACTION = "logcompaction"
    CLEAN = "clean"
    ROLLBACK = "rollback"
    RESTORE = "restore"
    INDEXING = "indexing"
    SAVEPOINT = "savepoint"


class InstantState(str, Enum):
    """State of an instant."""

    REQUESTED = "requested"
    INFLIGHT = "inflight"
    COMPLETED = "completed"


# Hudi names completed services by their effect's action.
_COMPLETED_AS = {
    Action.CLUSTERING: Action.REPLACECOMMIT,
    Action.COMPACTION: Action.COMMIT,
    Action.LOGCOMPACTION: Action.DELTACOMMIT,
}
_WRITES = frozenset({Action.COMMIT, Action.DELTACOMMIT, Action.REPLACECOMMIT})
_TIME = r"\d{17}|\d{14}"
_ACTIONS = "|".join(action.value for action in Action)
_PENDING = re.compile(rf"({_TIME})(?:\.({_ACTIONS}))?\.(requested|inflight)", re.ASCII)
_COMPLETED = re.compile(rf"({_TIME})_({_TIME})\.({_ACTIONS})", re.ASCII)
_EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)
_SECONDS_ONLY = 14


@dataclass(frozen=True, slots=True)
class Instant:
    """One state of one action on the timeline; only a completed instant has a `completion` time.

    A completed service parses as the commit that its file name states.
    """

    begin: str
    action: Action
    state: InstantState
    completion: str | None = None

    @property
    def is_completed(self) -> bool:
        return self.state is InstantState.COMPLETED

    @property
    def changes_rows(self) -> bool:
        return _COMPLETED_AS.get(self.action, self.action) in _WRITES

    @property
    def file_name(self) -> str:
        if self.state is InstantState.COMPLETED:
            return f"{self.begin}_{self.completion}.{_COMPLETED_AS.get(self.action, self.action).value}"
        if self.action is Action.COMMIT and self.state is InstantState.INFLIGHT:
            return f"{self.begin}.inflight"  # Hudi's old name
        return f"{self.begin}.{self.action.value}.{self.state.value}"


@lru_cache(maxsize=1 << 15)
def parse_instant(name: str) -> Instant | None:
    """Instant that a timeline file name states; None for any other name."""
    if done := _COMPLETED.fullmatch(name):
        return Instant(done[1], Action(done[3]), InstantState.COMPLETED, done[2])
    pending = _PENDING.fullmatch(name)
    if pending is None:
        return None
    state = InstantState(pending[3])
    if pending[2] is None:
        return Instant(pending[1], Action.COMMIT, state) if state is InstantState.INFLIGHT else None
    if pending[2] == Action.COMMIT.value and state is InstantState.INFLIGHT:
        return None
    return Instant(pending[1], Action(pending[2]), state)


def format_ms(ms: int) -> str:
    moment = _EPOCH + timedelta(milliseconds=ms)
    return f"{moment:%Y%m%d%H%M%S}".zfill(_SECONDS_ONLY) + f"{ms % 1000:03d}"


def to_ms(text: str) -> int:
    """Parse 14 or 17 digits in UTC as epoch milliseconds; raise `Corrupt` for other text or an impossible date.

    As in Hudi, 14 digits mean the last millisecond of their second.
    """
    if not re.fullmatch(_TIME, text, re.ASCII):
        raise Corrupt(f"{text!r} is not an instant time; expected yyyyMMddHHmmssSSS")
    try:
        moment = datetime.strptime(text[:_SECONDS_ONLY], "%Y%m%d%H%M%S").replace(tzinfo=timezone.utc)
    except ValueError as error:
        raise Corrupt(f"{text!r} is not an instant time: {error}") from error
    ms = 999 if len(text) == _SECONDS_ONLY else int(text[_SECONDS_ONLY:])
    return (moment - _EPOCH) // timedelta(milliseconds=1) + ms


def after(text: str) -> str:
    return format_ms(to_ms(text) + 1)


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


def checked_path(path: str) -> str:
    if ".." in path.replace("\\", "/").split("/"):
        raise InvalidRecords(f"partition path {path!r} leaves the table; change the value")
    return path


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
