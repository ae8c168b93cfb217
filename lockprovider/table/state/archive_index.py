"""Read and cache Hudi's archive of completed instants, whose files never change.

Source: Hudi `LSMTimeline`, `ArchivedTimelineV2`.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import replace
from functools import partial, reduce
from typing import Any, TypeVar

import pyarrow.parquet as pq

from fsspec_cas import Version
from lockprovider.table.errors import Corrupt, HistoryGone
from lockprovider.table.files.base_file import reading
from lockprovider.table.format import lsm
from lockprovider.table.format.layout import HISTORY, Action, Instant, parse_instant
from lockprovider.table.format.lsm import Digest, Manifest
from lockprovider.table.format.metadata import SINK_KEY, batches_by_stream, decode_commit
from lockprovider.table.state.knowledge import History, TableKnowledge
from lockprovider.table.state.parallel import Stale, repeat_while_stale
from lockprovider.table.timeline.timeline import Timeline

T = TypeVar("T")

_WRITES = tuple(action.value for action in (Action.COMMIT, Action.DELTACOMMIT, Action.REPLACECOMMIT))
_TIMES = ("instantTime", "completionTime", "action")
_MOST_ROWS = 1_000_000  # per file; JVM Hudi ends one at 1 GB
_LEAST_MOST_BYTES, _MOST_TIMES = 2 << 30, 64  # decoded bytes per file, or a multiple of its size
_BATCH_ROWS = 16


def read_history(table: TableKnowledge) -> History:
    """Read the archive's manifest number and any new manifest; cache and return it."""
    return repeat_while_stale(partial(_refresh_history, table))


def _refresh_history(table: TableKnowledge) -> History:
    number, version = _number(table)
    history = table.history
    if number != history.number:
        files = _manifest(table, number) if number else {}
        history = table.history = History(number, files, version)
    return replace(history, version=version)


def _number(table: TableKnowledge) -> tuple[int, Version | None]:
    """Read the manifest number (0: nothing archived) and its file's version; without a valid one list manifests."""
    content = table.place.store.read_or_none(lsm.VERSION_FILE)
    if content is not None and re.fullmatch(rb"\s*[0-9]{1,18}\s*", content.data):
        return int(content.data), content.version
    names = (entry.path.rpartition("/")[2] for entry in table.place.store.list(f"{HISTORY}/manifest_"))
    numbers = (number for name in names if (number := lsm.parse_manifest_name(name)) is not None)
    return max(numbers, default=0), None if content is None else content.version


def _manifest(table: TableKnowledge, number: int) -> Manifest:
    path = lsm.manifest_path(number)
    content = table.place.store.read_or_none(path)
    if content is None:  # a later archival removed it, or it is lost
        raise Stale(Corrupt(f"{lsm.VERSION_FILE} names {path}, which is missing; restore that file from a copy"))
    return lsm.decode_manifest(content.data, path)


def reach(table: TableKnowledge, *, streams: bool = False) -> Digest:
    """Read and cache the greatest times of archived writes (empty: none) and, if `streams`, each stream's last batch.

    May raise `Corrupt`.
    """

    def read(name: str, size: int) -> Digest:
        return digest_of_file(open_file(table, name, size), name, size, streams=streams)

    cached = {name: digest for name, digest in table.digests.items() if not streams or digest.streams is not None}
    digests = table.digests = _of_files(table, cached, read)
    return reduce(Digest.plus, digests.values(), Digest())


def last_archived_batches(table: TableKnowledge) -> list[tuple[Instant, dict[str, int]]]:
    """Read each stream's last archived batch, by its commit, newest first."""
    by_commit: dict[Instant, dict[str, int]] = {}
    for stream, (batch, name) in (reach(table, streams=True).streams or {}).items():
        if (instant := parse_instant(name)) is not None:
            by_commit.setdefault(instant, {})[stream] = batch
    return sorted(by_commit.items(), key=lambda item: item[0].completion or "", reverse=True)


def has_all_archived(table: TableKnowledge, before: Timeline, timeline: Timeline) -> bool:
    """Read whether the archive has all writes of `before` off the timeline, and none since; False if corrupt."""
    try:
        names = {instant.file_name for instant in instants_since(table, before.first_active) if instant.changes_rows}
    except Corrupt:
        return False
    missing = {i.file_name for i in before.writes if i.begin < timeline.first_active} - timeline.written
    return missing <= names <= before.written


def instants_since(table: TableKnowledge, begin: str) -> tuple[Instant, ...]:
    """Read the archive's instants begun at `begin` or later."""
    spans = ((name, size, lsm.parse_file(name)) for name, size in read_history(table).files.items())
    late = [(name, size) for name, size, span in spans if span is None or span.greatest >= begin]
    instants = (parse_instant(file_name) for name, size in late for file_name in names_in(table, name, size))
    return tuple(instant for instant in instants if instant is not None and instant.begin >= begin)


def completions(table: TableKnowledge, begins: Collection[str]) -> dict[str, str]:
    """Completion times by begin time of those `begins` that are archived writes.

    Reads and caches the times of archive files that may have them; may raise `Corrupt`.
    """
    first, last = min(begins, default=""), max(begins, default="")

    def is_asked(name: str) -> bool:
        span = lsm.parse_file(name)
        return span is None or (span.greatest >= first and span.least <= last)

    def read(name: str, size: int) -> Mapping[str, str]:
        done = (parse_instant(file_name) for file_name in names_in(table, name, size))
        return {i.begin: i.completion or "" for i in done if i is not None and i.changes_rows}

    by_file = table.completions = _of_files(table, table.completions, read, is_asked)
    return {begin: times[begin] for times in by_file.values() for begin in begins if begin in times}


def _of_files(
    table: TableKnowledge,
    cached: Mapping[str, T],
    read: Callable[[str, int], T],
    is_asked: Callable[[str], bool] = bool,
) -> dict[str, T]:
    """Results by the manifest's file names: all in `cached`, else `read(name, size)` if `is_asked(name)`.

    Caches nothing. Repeats if a file is corrupt and the manifest changed, else raises `Corrupt`.
    """

    def look() -> dict[str, T]:
        """Read the manifest and its uncached, asked files.

        A corrupt one raises `Corrupt`, or `Stale` if the manifest changed.
        """
        history = read_history(table)
        results = {name: cached[name] for name in history.files if name in cached}
        try:
            return results | {n: read(n, size) for n, size in history.files.items() if n not in results and is_asked(n)}
        except Corrupt as error:
            if read_history(table).number == history.number:
                raise
            raise Stale(error) from error

    return repeat_while_stale(look)


def names_in(table: TableKnowledge, name: str, size: int) -> list[str]:
    """Read the timeline file names in one archive file."""
    return [_name(row) for row in rows_in(open_file(table, name, size), _TIMES, name, size)]


def open_file(table: TableKnowledge, name: str, size: int) -> pq.ParquetFile:
    """Open an archive file; raises `Corrupt` if missing, no Parquet file, or of over `_MOST_ROWS` rows."""
    path = f"{HISTORY}/{name}"
    with _reading(path):
        file, filesystem = table.place.source(path, size)
        parquet = pq.ParquetFile(file, filesystem=filesystem, page_checksum_verification=True)
    if parquet.metadata.num_rows > _MOST_ROWS:
        problem = f"archive file {path} states {parquet.metadata.num_rows:,} instants, more than {_MOST_ROWS:,}"
        raise Corrupt(f"{problem}; restore the file")
    return parquet


@contextlib.contextmanager
def _reading(path: str) -> Iterator[None]:
    try:
        with reading(path):
            yield
    except HistoryGone as error:
        raise Corrupt(f"archive file {path} is missing; restore it from a copy") from error


def digest_of_file(file: pq.ParquetFile, name: str, size: int, *, streams: bool) -> Digest:
    """File's digest from its footer, else (of JVM Hudi) from its rows; may raise `Corrupt`."""
    digest = lsm.digest_of(file.metadata.metadata)
    if digest is not None:
        return digest
    columns = (*_TIMES, "metadata") if streams else _TIMES
    return summary(rows_in(file, columns, name, size), streams=streams)


def summary(rows: Iterable[Mapping[str, Any]], *, streams: bool) -> Digest:
    """Digest of archive rows: the writes' greatest times and, if `streams`, each stream's greatest batch.

    Rows have `instantTime`, `completionTime`, `action` and, if `streams`, `metadata`. A batch comes with its commit's
    file name.
    """
    begin = completion = ""
    batches: dict[str, tuple[int, str]] = {}
    for row in rows:
        if row["action"] not in _WRITES:
            continue
        begin, completion = max(begin, row["instantTime"]), max(completion, row["completionTime"])
        data, name = row.get("metadata"), _name(row)
        if streams and data is not None and SINK_KEY.encode() in data:
            for stream, batch in batches_by_stream(decode_commit(data, name).extra).items():
                batches[stream] = max(batches.get(stream, (batch, name)), (batch, name))
    return Digest(begin, completion, batches if streams else None)


def _name(row: Mapping[str, Any]) -> str:
    return f"{row['instantTime']}_{row['completionTime']}.{row['action']}"


def rows_in(file: pq.ParquetFile, names: Iterable[str], name: str, size: int) -> Iterator[dict[str, Any]]:
    """Yield an archive file's rows as dicts of the columns `names`, which include `_TIMES`.

    Raises `Corrupt` if its `size` bytes unpack to too much, or columns, times or number of rows are not as an archiver
    writes them.
    """
    path, names = f"{HISTORY}/{name}", list(names)
    taken, most = 0, max(_LEAST_MOST_BYTES, _MOST_TIMES * size)
    missing = file.metadata.num_rows
    with _reading(path):
        kinds = {column.name: column.type for column in file.schema_arrow}
        if wrong := [column for column in names if kinds.get(column) != lsm.SCHEMA.field(column).type]:
            raise Corrupt(f"{path} lacks the columns {wrong} of an archive, or has other types; restore the file")
        for batch in file.iter_batches(_BATCH_ROWS, columns=names):
            taken += batch.nbytes
            if taken > most:
                raise Corrupt(f"{path} holds more than {most >> 30} GB of metadata; restore the file")
            if any(batch.column(column).null_count for column in _TIMES):
                raise Corrupt(f"{path} has an instant without time or action; restore the file")
            missing -= batch.num_rows
            yield from batch.to_pylist()
        if missing:
            rows = file.metadata.num_rows
            raise Corrupt(f"{path} states {rows} instants, and has {rows - missing}; restore the file")
