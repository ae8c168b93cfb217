"""Files of the archive: add instants, merge and remove files; all under the table lock.

Source: Hudi `LSMTimelineWriter`.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator, Sequence
from operator import itemgetter
from typing import TYPE_CHECKING, Any

from fsspec_cas import ObjectNotFound, Version, Won
from lockprovider import Lease
from lockprovider.table.errors import Corrupt
from lockprovider.table.format.instant import Action, Instant, parse_instant
from lockprovider.table.format.layout import HISTORY, TIMELINE
from lockprovider.table.format.lsm import (
    SCHEMA,
    VERSION_FILE,
    Archived,
    Digest,
    HistoryFile,
    Manifest,
    decode_manifest,
    encode_file,
    encode_manifest,
    manifest_path,
    parse_file,
    parse_manifest_name,
    rows_of,
)
from lockprovider.table.state import archive_index
from lockprovider.table.state.knowledge import History
from lockprovider.table.state.parallel import files_below
from lockprovider.table.timeline.archival import BESIDES, Archivable
from lockprovider.table.timeline.timeline import Timeline

if TYPE_CHECKING:
    from lockprovider.table.state.context import TableContext

_MERGED = 10  # files of one level (`hoodie.timeline.compaction.batch.size`)
_MERGED_BYTES = 128 << 20  # of all merged files together, compressed; the merge runs in memory
_LEVELS = 9  # A level is one digit.
_MANIFESTS = 3  # kept for running readers (`hoodie.timeline.manifest.retained.versions`)


def settle(table: TableContext, lease: Lease) -> History:
    """Return the archive, after pointing `_version_` to a manifest decided under an earlier lease."""
    history, there = archive_index.read_history(table.knowledge), _listed(table)
    later = sorted(number for number in _numbers(there) if number > history.number)
    if history.number and history.version is None:
        _point(table, history.number, None)  # A writer died before it created `_version_`.
    if later and _holds(table, history, later[-1], there):
        lease.check()
        _point(table, later[-1], history.version)
        return archive_index.read_history(table.knowledge)
    return history


def add_instants(table: TableContext, lease: Lease, instants: Sequence[Archived]) -> None:
    """Add these instants to the archive, in a file of their own.

    Raises `LeaseLost` before the decision, or `Refused` if a writer without the lock changed the archive.
    """
    begins = sorted(one.begin for one in instants)
    name = HistoryFile(begins[0], begins[-1], 0).name
    rows = rows_of(instants)
    size = _put(table, name, encode_file(rows, archive_index.summary(rows, streams=True)))
    history = archive_index.read_history(table.knowledge)
    _decide(table, lease, history, {**history.files, name: size})


def compact(table: TableContext, lease: Lease) -> None:
    """Merge the oldest files of each level that has ten; then remove obsolete files."""
    merged = 0
    for level in range(_LEVELS):
        history = archive_index.read_history(table.knowledge)
        batch = _batch(history.files, level)
        if not batch:
            break
        _merge(table, lease, history, batch)
        merged += 1
    _sweep(table, lease, _MANIFESTS + merged)


def _batch(files: Manifest, level: int) -> list[str]:
    spans = sorted(span for name in files if (span := parse_file(name)) is not None and span.level == level)
    batch = [span.name for span in spans[:_MERGED]]
    return batch if len(batch) == _MERGED and sum(files[name] for name in batch) <= _MERGED_BYTES else []


def _merge(table: TableContext, lease: Lease, history: History, batch: list[str]) -> None:
    """Merge these files into one of the next level, and publish it in the manifest."""
    digest, parts = Digest(), []
    for name in batch:
        file, size = archive_index.open_file(table.knowledge, name, history.files[name]), history.files[name]
        digest = digest.plus(archive_index.digest_of_file(file, name, size, streams=True))
        parts.append(archive_index.rows_in(file, SCHEMA.names, name, size))
    merged = heapq.merge(*parts, key=itemgetter("instantTime"))
    spans = [span for name in batch if (span := parse_file(name)) is not None]
    least, greatest = min(span.least for span in spans), max(span.greatest for span in spans)
    name = HistoryFile(least, greatest, spans[0].level + 1).name
    size = _put(table, name, encode_file(_once(merged), digest))
    left = {one: length for one, length in history.files.items() if one not in batch}
    _decide(table, lease, history, {**left, name: size})


def _once(rows: Iterable[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """Yield each instant's row once: a dead archiver may have left two."""
    seen = set[tuple[str, ...]]()
    for row in rows:
        instant = row["instantTime"], row["completionTime"], row["action"]
        if instant not in seen:
            seen.add(instant)
            yield row


def _decide(table: TableContext, lease: Lease, history: History, files: Manifest) -> None:
    # An archiver that was paused before this finds `_version_` changed, and stops.
    number = max([history.number, *_numbers(_listed(table))]) + 1
    lease.publish(manifest_path(number), encode_manifest(files))
    _point(table, number, history.version)


def _point(table: TableContext, number: int, version: Version | None) -> None:
    data = str(number).encode()
    if version is None:
        table.store.put_if_absent(VERSION_FILE, data).unwrap()
    else:
        table.store.put_if_match(VERSION_FILE, data, version).unwrap()
    _drop_checksum(table, "_version_")


def _put(table: TableContext, name: str, data: bytes) -> int:
    """Store a file of the archive, over a dead archiver's; return its size in bytes."""
    path = f"{HISTORY}/{name}"
    if not isinstance(table.store.put_if_absent(path, data), Won):
        found = table.store.read(path)
        if found.data != data:
            table.store.put_if_match(path, data, found.version).unwrap()
        _drop_checksum(table, name)
    return len(data)


def _drop_checksum(table: TableContext, name: str) -> None:
    """Delete Hadoop's checksum of a local file, which is wrong after a write here."""
    if table.store.kind == "local":
        table.store.delete(f"{HISTORY}/.{name}.crc")


def _listed(table: TableContext) -> dict[str, int]:
    return {name: entry.size for name, entry in files_below(table.store, HISTORY).items()}


def _numbers(there: dict[str, int]) -> list[int]:
    return [number for name in there if (number := parse_manifest_name(name)) is not None]


def _holds(table: TableContext, history: History, number: int, there: dict[str, int]) -> bool:
    """Return whether `_version_` may point to this decided manifest.

    Its files must exist, and the instants it adds must still be on the timeline: they leave it only after the pointing,
    or if they were taken back.
    """
    try:
        files = decode_manifest(table.store.read(manifest_path(number)).data, manifest_path(number))
        if any(there.get(name) != size for name, size in files.items()):
            return False
        added = [name for name in files if name not in history.files]
        fresh = [name for name in added if (span := parse_file(name)) is not None and span.level == 0]
        names = [one for name in fresh for one in archive_index.names_in(table.knowledge, name, files[name])]
    except (Corrupt, ObjectNotFound):
        return False
    return bool(added) and {one for one in names if parse_instant(one) is not None} <= table.listed_timeline().names


def _sweep(table: TableContext, lease: Lease, keep: int) -> None:
    """Remove all but the newest `keep` manifests, and files that these do not name."""
    there = _listed(table)
    number = archive_index.read_history(table.knowledge).number
    kept = sorted((one for one in _numbers(there) if one <= number), reverse=True)[:keep]
    gone = [manifest_path(one) for one in _numbers(there) if one not in kept]
    if not gone:
        return
    named = {name for one in kept for name in decode_manifest(table.store.read(manifest_path(one)).data, str(one))}
    lost = [f"{HISTORY}/{name}" for name in there if parse_file(name) is not None and name not in named]
    lease.check()
    table.store.delete_all(gone)
    table.store.delete_all(lost)


# Pending states go first: without its completed file an instant would look pending, and readers lose its rows.
# Completed files go one by one, oldest first. A concurrent listing can still miss a later one and show an earlier one;
# `as_of.may_lack_files` detects that.
# Source: Hudi `TimelineArchiverV2.deleteArchivedActions`.
def finish_removal(table: TableContext, lease: Lease) -> None:
    """Remove archived instants that a dead archiver left on the timeline."""
    history = settle(table, lease)
    if not history.files:
        return
    now = table.listed_timeline()
    kept = {instant.begin for instant in now.instants if instant.action is Action.SAVEPOINT}
    may = (i for i in now.instants if i.is_completed and (i.changes_rows or i.action in BESIDES))
    done = [instant for instant in may if instant.begin not in kept]
    oldest = min((instant.begin for instant in done), default="~")
    there = {instant.file_name for instant in archive_index.instants_since(table.knowledge, oldest)}
    remove_archived(table, lease, [_whole(now, instant) for instant in done if instant.file_name in there])


def remove_archived(table: TableContext, lease: Lease, actions: Iterable[Archivable]) -> None:
    """Remove these archived instants from the timeline. Safe to repeat, also by the next archiver after `LeaseLost`."""
    found = list(actions)
    if found:
        table.lock.wait_for_late()  # A commit that appears late would hide all archived and younger ones.
    lease.check()
    table.store.delete_all([f"{TIMELINE}/{i.file_name}" for action in found for i in action.pending])
    for name in sorted(i.file_name for action in found for i in action.completed):
        lease.check()
        table.store.delete(f"{TIMELINE}/{name}")


def _whole(now: Timeline, done: Instant) -> Archivable:
    return Archivable.of(i for i in now.instants if i.begin == done.begin and _is_same(i, done))


def _is_same(one: Instant, done: Instant) -> bool:
    return (one.changes_rows and done.changes_rows) or one.action is done.action
