"""Checkpoints in the lock folder: a table's content, to open it without listing; `services.checkpoint` writes them."""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import accumulate, pairwise, repeat
from operator import add
from typing import Any
from urllib.parse import quote

from fsspec_cas import Store
from lockprovider import Lock, Log
from lockprovider.bounded import as_text, as_whole, inflate, parse_json, plausible, text_in, whole_in
from lockprovider.table.format.layout import Action, Instant, InstantState, parse_base_file, parse_log_file
from lockprovider.table.timeline.timeline import Timeline
from lockprovider.table.timeline.view import FileSlice, SliceLog

CHECKPOINTS = ".hoodie/.locks/checkpoints/"
EVERY = 64  # positions
KEPT = 2  # per log


def checkpoint_path(log: str, number: int) -> str:
    """Checkpoint's path at position `number * EVERY` of a log."""
    return f"{_of_log(log)}{number}"


def find(store: Store, log: Log) -> Checkpoint | None:
    """Read the newest valid checkpoint among the last `KEPT` of `log`; else None.

    It is invalid if damaged, or if `log` does not reach back to it.
    """
    last = log.next // EVERY
    for number in range(last, max(0, last - KEPT), -1):
        content = store.read_or_none(checkpoint_path(log.name, number))
        checkpoint = None if content is None else Checkpoint.decode(content.data)
        if checkpoint is not None and checkpoint.log == log.name and log.since(checkpoint.position) is not None:
            return checkpoint
    return None


def remove_ended(store: Store, lock: Lock) -> None:
    """Delete the listed checkpoints of other logs than the lock record's; without a record, none."""
    paths = [entry.path for entry in store.list(CHECKPOINTS)]  # listed first, so that their logs have begun
    record = lock.look() if paths else None
    if record is not None:
        live = _of_log("" if record.log is None else record.log.name)
        store.delete_all([path for path in paths if not path.startswith(live)])


def _of_log(log: str) -> str:
    return f"{CHECKPOINTS}{quote(log, safe='')}/"


# Times of completed writes are differences, a fifth of their names' size.
_VERSION = 2
_LEVEL = 1  # most content is random ids
_DIGITS = 17  # of a time; shorter times are stored by name


@dataclass(frozen=True)
class Checkpoint:
    """Table at one position of a log; `slices`: latest of each file group."""

    log: str
    position: int
    timeline: Timeline
    slices: tuple[FileSlice, ...]

    def encode(self) -> bytes:
        """Compressed JSON."""
        done, names = _parted(self.timeline)
        files: dict[str, list[Any]] = {}
        for slice_ in sorted(self.slices):
            logs = [(log.path, log.size, log.completion) for log in slice_.logs]
            files.setdefault(slice_.partition, []).append((slice_.path, slice_.size, logs))
        fields = {
            "version": _VERSION,
            "log": self.log,
            "place": self.position,
            "done": {action: _differences(times) for action, times in done.items()},
            "instants": names,
            "files": files,
        }
        return zlib.compress(json.dumps(fields, separators=(",", ":")).encode(), _LEVEL)

    @classmethod
    def decode(cls, data: bytes) -> Checkpoint | None:
        """Decode a checkpoint; None for invalid or implausibly large bytes, or another version."""
        try:
            most = plausible(data)
            fields = parse_json(inflate(data, most=most), most=most, items=most)
            if fields["version"] != _VERSION:
                return None
            done = [
                instant for action, times in fields["done"].items() for instant in _instants(Action(action), *times)
            ]
            timeline = Timeline.of_done(done, fields["instants"])
            slices = tuple(_slice(partition, *row) for partition, rows in fields["files"].items() for row in rows)
            return cls(text_in(fields, "log"), whole_in(fields, "place"), timeline, slices)
        except (ValueError, KeyError, TypeError, AttributeError, IndexError, OverflowError, zlib.error):
            return None


def _parted(timeline: Timeline) -> tuple[dict[str, list[tuple[int, int]]], list[str]]:
    """Begin and completion of completed writes by action, and other instants' file names.

    Writes without 17-digit times are others. Drops pending files of completed instants.
    """
    unsure, done, names = {*timeline.perhaps_pending}, dict[str, list[tuple[int, int]]](), list[str]()
    for instant in timeline.instants:
        if instant in unsure:
            names.append(instant.file_name)
        elif instant.is_completed:
            begin, completion = instant.begin, instant.completion or ""
            if instant.changes_rows and len(begin) == len(completion) == _DIGITS and begin[0] > "0":
                action = instant.file_name.rpartition(".")[2]
                done.setdefault(action, []).append((int(begin), int(completion)))
            else:
                names.append(instant.file_name)
    return done, names


def _differences(times: list[tuple[int, int]]) -> tuple[list[int], list[int]]:
    begins = [0, *(begin for begin, _ in times)]
    return [b - a for a, b in pairwise(begins)], [completion - begin for begin, completion in times]


def _instants(action: Action, behind: list[int], took: list[int]) -> Iterator[Instant]:
    begins = [*accumulate(behind)]
    completions = map(str, map(add, begins, took))
    return map(Instant, map(str, begins), repeat(action), repeat(InstantState.COMPLETED), completions)


def _slice(partition: str, path: str, size: int, rows: Iterable[tuple[str, int, str]]) -> FileSlice:
    """Slice of a stored row; its logs are path, size, completion. May raise `ValueError`, `IndexError`."""
    logs = tuple(
        SliceLog(file, as_text(name, "a log"), as_whole(taken, "its size"), as_text(done, "its completion"))
        for name, taken, done in rows
        if (file := parse_log_file(_name(name)))
    )
    base = parse_base_file(_name(as_text(path, "a base file")))
    if base is None:
        return FileSlice.of_logs(partition, logs[0].file.file_id, logs)
    return FileSlice(partition, base.file_id, base.begin, path, as_whole(size, "its size"), logs)


def _name(path: str) -> str:
    return path.rpartition("/")[2]
