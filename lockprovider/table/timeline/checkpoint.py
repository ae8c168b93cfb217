"""A checkpoint: what a table consists of at one place of the lock's log, and its bytes. Pure.

JSON, deflated. File groups, begin times and the kinds of files are in the names of the files.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from lockprovider.table.format.data_files import parse_base_file, parse_log_file
from lockprovider.table.timeline.timeline import Timeline
from lockprovider.table.timeline.view import FileSlice, SliceLog

_VERSION = 1
_LEVEL = 1  # most of it are random ids

_Log = tuple[str, int, str]  # path, size in bytes, completion time
_Slice = tuple[str, int, tuple[_Log, ...]]  # path of the base file, empty if there is none; its size; the log files


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """The table at the place `place` of the log `log`.

    Attributes:
        instants: the file names of the timeline, but for the pending states of what is completed.
        files: the latest slice of each file group, by partition.
    """

    log: str
    place: int
    instants: tuple[str, ...]
    files: Mapping[str, tuple[_Slice, ...]]

    @classmethod
    def of(cls, log: str, place: int, timeline: Timeline, slices: Iterable[FileSlice]) -> Checkpoint:
        """What is known of a table."""
        done = {i.file_name for i in timeline.instants if i.is_completed}
        kept = done | {i.file_name for i in timeline.perhaps_pending}
        files: dict[str, list[_Slice]] = {}
        for one in sorted(slices):
            logs = tuple((log.path, log.size, log.completion) for log in one.logs)
            files.setdefault(one.partition, []).append((one.path, one.size, logs))
        return cls(log, place, tuple(sorted(kept)), {partition: tuple(rows) for partition, rows in files.items()})

    @property
    def timeline(self) -> Timeline:
        """All that is completed, and what was pending."""
        return Timeline.of(self.instants)

    @property
    def slices(self) -> tuple[FileSlice, ...]:
        """The latest of each file group."""
        return tuple(_slice(partition, row) for partition, rows in self.files.items() for row in rows)

    def encode(self) -> bytes:
        """As bytes."""
        said = {
            "version": _VERSION,
            "log": self.log,
            "place": self.place,
            "instants": self.instants,
            "files": dict(self.files),
        }
        return zlib.compress(json.dumps(said, separators=(",", ":")).encode(), _LEVEL)

    @classmethod
    def decode(cls, data: bytes) -> Checkpoint | None:
        """Read it; None if it is none, or one of another version: then the table is listed."""
        try:
            said = json.loads(zlib.decompress(data))
            if said["version"] != _VERSION:
                return None
            return cls(said["log"], said["place"], tuple(said["instants"]), said["files"])
        except (ValueError, KeyError, TypeError, zlib.error):
            return None


def _slice(partition: str, row: _Slice) -> FileSlice:
    path, size, rows = row
    logs = tuple(
        SliceLog(file, name, taken, done) for name, taken, done in rows if (file := parse_log_file(_name(name)))
    )
    base = parse_base_file(_name(path))
    if base is None:
        return FileSlice.of_logs(partition, logs[0].file.file_id, logs)
    return FileSlice(partition, base.file_id, base.begin, path, size, logs)


def _name(path: str) -> str:
    return path.rpartition("/")[2]
