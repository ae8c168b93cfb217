"""Archive files, changed under the table lock by archivals, restores and savepoints.

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
from lockprovider.table.format.layout import HISTORY, TIMELINE, Action, parse_instant
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
from lockprovider.table.timeline.retention import BESIDES, Archivable

if TYPE_CHECKING:
    from lockprovider.table.state.context import TableContext

_MERGED = 10  # (`hoodie.timeline.compaction.batch.size`)
_MERGED_BYTES = 128 << 20  # stored; a merge runs in memory
_LEVELS = 9  # A level is one digit.
_MANIFESTS = 3  # kept for running readers (`hoodie.timeline.manifest.retained.versions`)


def settle_archive(table: TableContext, lease: Lease) -> History:
    """Create a missing `_version_` if manifests exist, or point it to a dead archiver's newer, valid one.

    Returns the history that `_version_` then names; empty without manifests.
    """
    history, sizes = archive_index.read_history(table.knowledge), _list_sizes(table)
    later = sorted(number for number in _numbers(sizes) if number > history.number)
    if history.number and history.version is None:
        _point_version(table, history.number, None)  # A writer died before this.
    if later and _is_valid(table, history, later[-1], sizes):
        lease.check()
        _point_version(table, later[-1], history.version)
        return archive_index.read_history(table.knowledge)
    return history


def add_instants(table: TableContext, lease: Lease, instants: Sequence[Archived]) -> None:
    """Store one or more instants in a new archive file, and publish it; they stay on the timeline."""
    begins = sorted(instant.begin for instant in instants)
    name = HistoryFile(begins[0], begins[-1], 0).name
    rows = rows_of(instants)
    size = _store_file(table, name, encode_file(rows, archive_index.summary(rows, streams=True)))
    history = archive_index.read_history(table.knowledge)
    _decide(table, lease, history, {**history.files, name: size})


def compact(table: TableContext, lease: Lease) -> None:
    """Merge the ten oldest files of level 0 into one of level 1, and so on, until a level has fewer or too large ones.

    Then deletes obsolete manifests and files.
    """
    merged = 0
    for level in range(_LEVELS):
        history = archive_index.read_history(table.knowledge)
        batch = _batch(history.files, level)
        if not batch:
            break
        _merge(table, lease, history, batch)
        merged += 1
    _remove_obsolete(table, lease, _MANIFESTS + merged)


def _batch(files: Manifest, level: int) -> list[str]:
    spans = sorted(span for name in files if (span := parse_file(name)) is not None and span.level == level)
    batch = [span.name for span in spans[:_MERGED]]
    return batch if len(batch) == _MERGED and sum(files[name] for name in batch) <= _MERGED_BYTES else []


def _merge(table: TableContext, lease: Lease, history: History, batch: list[str]) -> None:
    """Store these archive files' rows, each once, in a file of the next level.

    Publishes a manifest with it instead, and points `_version_` there. The old files stay.
    """
    digest, parts = Digest(), []
    for name in batch:
        file, size = archive_index.open_file(table.knowledge, name, history.files[name]), history.files[name]
        digest = digest.plus(archive_index.digest_of_file(file, name, size, streams=True))
        parts.append(archive_index.rows_in(file, SCHEMA.names, name, size))
    merged = heapq.merge(*parts, key=itemgetter("instantTime"))
    spans = [span for name in batch if (span := parse_file(name)) is not None]
    least, greatest = min(span.least for span in spans), max(span.greatest for span in spans)
    name = HistoryFile(least, greatest, spans[0].level + 1).name
    size = _store_file(table, name, encode_file(_without_repeats(merged), digest))
    remaining = {file_name: length for file_name, length in history.files.items() if file_name not in batch}
    _decide(table, lease, history, {**remaining, name: size})


def _without_repeats(rows: Iterable[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    yielded = set[tuple[str, ...]]()
    for row in rows:
        instant = row["instantTime"], row["completionTime"], row["action"]
        if instant not in yielded:
            yielded.add(instant)
            yield row


def _decide(table: TableContext, lease: Lease, history: History, files: Manifest) -> None:
    """Publish the next manifest, naming `files`, under the lease; then point `_version_` to it."""
    # A paused archiver finds `_version_` changed, and stops.
    number = max([history.number, *_numbers(_list_sizes(table))]) + 1
    lease.publish(manifest_path(number), encode_manifest(files))
    _point_version(table, number, history.version)


def _point_version(table: TableContext, number: int, version: Version | None) -> None:
    """Write `number` to `_version_`, drop its checksum; `Refused` unless it has this `version` (None: absent)."""
    data = str(number).encode()
    if version is None:
        table.store.put_if_absent(VERSION_FILE, data).unwrap()
    else:
        table.store.put_if_match(VERSION_FILE, data, version).unwrap()
    _drop_checksum(table, "_version_")


def _store_file(table: TableContext, name: str, data: bytes) -> int:
    """Store an archive file, or replace a dead archiver's and delete its Hadoop checksum; return its size."""
    path = f"{HISTORY}/{name}"
    if not isinstance(table.store.put_if_absent(path, data), Won):
        stored = table.store.read(path)
        if stored.data != data:
            table.store.put_if_match(path, data, stored.version).unwrap()
        _drop_checksum(table, name)
    return len(data)


def _drop_checksum(table: TableContext, name: str) -> None:
    if table.store.kind == "local":
        table.store.delete(f"{HISTORY}/.{name}.crc")


def _list_sizes(table: TableContext) -> dict[str, int]:
    return {name: entry.size for name, entry in files_below(table.store, HISTORY).items()}


def _numbers(sizes: dict[str, int]) -> list[int]:
    return [number for name in sizes if (number := parse_manifest_name(name)) is not None]


def _is_valid(table: TableContext, history: History, number: int, sizes: dict[str, int]) -> bool:
    """Read manifest `number` and the timeline; return whether `_version_` may point to it.

    It must be readable, add files, name files as in `sizes` (stored), and add only instants on the timeline.
    """
    try:
        files = decode_manifest(table.store.read(manifest_path(number)).data, manifest_path(number))
        if any(sizes.get(name) != size for name, size in files.items()):
            return False
        added = [name for name in files if name not in history.files]
        fresh = [name for name in added if (span := parse_file(name)) is not None and span.level == 0]
        names = [instant for name in fresh for instant in archive_index.names_in(table.knowledge, name, files[name])]
    except (Corrupt, ObjectNotFound):
        return False
    instants = {name for name in names if parse_instant(name) is not None}
    return bool(added) and instants <= table.listed_timeline().names


def _remove_obsolete(table: TableContext, lease: Lease, keep: int) -> None:
    """Delete all manifests but the newest `keep` up to the present one, also those after it.

    Then deletes archive files that the kept do not name. Deletes nothing if it keeps all.
    """
    sizes = _list_sizes(table)
    number = archive_index.read_history(table.knowledge).number
    kept_numbers = sorted((at for at in _numbers(sizes) if at <= number), reverse=True)[:keep]
    obsolete = [manifest_path(at) for at in _numbers(sizes) if at not in kept_numbers]
    if not obsolete:
        return
    named = {name for at in kept_numbers for name in decode_manifest(table.store.read(manifest_path(at)).data, str(at))}
    unnamed = [f"{HISTORY}/{name}" for name in sizes if parse_file(name) is not None and name not in named]
    lease.check()
    table.store.delete_all(obsolete)
    table.store.delete_all(unnamed)


# Without its completed file an instant would look pending.
# Source: Hudi `TimelineArchiverV2.deleteArchivedActions`.
def finish_removal(table: TableContext, lease: Lease) -> None:
    """Finish a dead archiver's work: settle the archive, then delete archived instants from the timeline.

    Those with a savepoint stay.
    """
    history = settle_archive(table, lease)
    if not history.files:
        return
    timeline = table.listed_timeline()
    savepoints = {instant.begin for instant in timeline.instants if instant.action is Action.SAVEPOINT}
    candidates = (i for i in timeline.instants if i.is_completed and (i.changes_rows or i.action in BESIDES))
    completed = [instant for instant in candidates if instant.begin not in savepoints]
    oldest = min((instant.begin for instant in completed), default="~")
    archived = {instant.file_name for instant in archive_index.instants_since(table.knowledge, oldest)}
    removed = [instant for instant in completed if instant.file_name in archived]
    states = (
        [i for i in timeline.begun_at(done.begin) if (i.changes_rows and done.changes_rows) or i.action is done.action]
        for done in removed
    )
    remove_archived(table, lease, map(Archivable.of, states))


def remove_archived(table: TableContext, lease: Lease, actions: Iterable[Archivable]) -> None:
    """Delete these archived instants from the timeline: all pending states, then completed ones, oldest first.

    First waits until no publish can appear late. Safe to repeat.
    """
    archived = list(actions)
    if archived:
        table.lock.wait_for_late()  # A late commit would hide archived and younger ones.
    lease.check()
    table.store.delete_all([f"{TIMELINE}/{i.file_name}" for action in archived for i in action.pending])
    for name in sorted(i.file_name for action in archived for i in action.completed):
        lease.check()
        table.store.delete(f"{TIMELINE}/{name}")
