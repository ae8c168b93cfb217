"""What a commit is validated by at its turn, when the table of the moment is seen.

    alive      its instant is still pending and its heartbeat beats, nobody plans to roll it back, and the table is
               still what its writer took it for
    batch      its batch is not in the table already
    conflicts  what it has read is still there, and no other has touched its file groups since, added columns or, where
               they are compared, inserted its keys

Others wait meanwhile: so of the commits since no more is read than is asked for (see `needed`), and each of them once.
NOT validated here: whether it is decided already; who commits knows.

Source: Hudi RFC-22; `TransactionUtils.resolveWriteConflictIfAny`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from fsspec_cas import ObjectNotFound
from lockprovider.table.errors import ARCHIVED, Aborted, WriteConflict
from lockprovider.table.format.instant import Action, Instant, InstantState, to_ms
from lockprovider.table.format.layout import (
    TIMELINE,
    FileGroup,
    Marker,
    data_file,
    is_markers_file,
    markers_dir,
    markers_in,
    parse_marker,
)
from lockprovider.table.format.metadata import CLUSTER, COMPACT, CommitMetadata, decode_commit
from lockprovider.table.format.service_metadata import decode_clustering_plan
from lockprovider.table.services import rollback
from lockprovider.table.state import archive_index
from lockprovider.table.state.as_of import with_logs
from lockprovider.table.state.context import writable_config
from lockprovider.table.state.fence import committed_in, fences_in, refuse_passed_in
from lockprovider.table.timeline.conflict import ConcurrentOperation, archived_since, completed_since, undone_since
from lockprovider.table.timeline.timeline import Timeline
from lockprovider.table.timeline.view import Snapshot, lost
from lockprovider.table.transaction.conflict_rules import columns_digest, refuse_columns, refuse_overlap
from lockprovider.table.transaction.key_check import refuse_shared

if TYPE_CHECKING:
    from lockprovider.table.state.context import TableContext
    from lockprovider.table.state.current import TableView
    from lockprovider.table.state.heartbeat import WriterHeartbeat
    from lockprovider.table.transaction.proposal import Proposal

LOOKED_AT_MS = 1000


def needed(table: TableContext, proposal: Proposal, now: Timeline) -> tuple[Instant, ...]:
    """The commits whose contents the validation is going to ask for: to have them at hand by then."""
    done = completed_since(proposal.timeline, now)
    return tuple(dict.fromkeys((*proposal.compared(done, table.settings.resolution), *done[-1:])))


def validate(table: TableContext, proposal: Proposal, heartbeat: WriterHeartbeat, seen: TableView) -> None:
    """Let a commit pass, or say what is in its way.

    Raises:
        Aborted: it was rolled back, its heartbeat expired, or the table changed.
        UnsupportedTable: it changed so that it cannot be written here any more.
        AlreadyCommitted: its batch is in the table.
        WrongCheckpoint: its stream went on from another checkpoint.
        Fenced: a commit of a newer epoch is.
        WriteConflict: another one was faster.
    """
    _check_alive(table, proposal, heartbeat, seen)
    _check_batch(table, proposal, seen.timeline)
    refuse_passed_in(table, seen.timeline, fences_in(proposal.metadata.extra))
    _check_conflicts(table, proposal, seen.timeline)


def _check_alive(table: TableContext, proposal: Proposal, heartbeat: WriterHeartbeat, seen: TableView) -> None:
    begin, now = proposal.begin, seen.timeline
    if not (now.is_pending(begin) if seen.listed else _is_there(table, proposal)):
        raise Aborted(f"instant {begin} was rolled back by another writer, who took it for dead; begin again")
    if not heartbeat.alive:
        raise Aborted(f"the heartbeat of instant {begin} expired; others may roll it back; begin again")
    if rollback.is_planned(table, now, begin):
        raise Aborted(f"a rollback of instant {begin} is planned; begin again")
    if seen.config != proposal.config:
        writable_config(table, seen.config)
        raise Aborted("the table's properties were changed by another writer; open it again, and begin again")


def _is_there(table: TableContext, proposal: Proposal) -> bool:
    """Whether the inflight file of the write still exists.

    A writer that knows no lock removes it when it rolls the write back, and the lock's log does not record that. A
    write that began less than `LOOKED_AT_MS` ago is not looked at, so a quick commit makes no extra request.
    """
    if table.clock.now_ms() - to_ms(proposal.begin) < LOOKED_AT_MS:
        return True
    try:
        table.store.head(f"{TIMELINE}/{proposal.inflight.file_name}")
    except ObjectNotFound:
        return False
    return True


def _check_batch(table: TableContext, proposal: Proposal, now: Timeline) -> None:
    done = None if proposal.batch_id is None else committed_in(table, now, proposal.batch_id)
    if proposal.batch_id is not None and done is not None:
        raise proposal.batch_id.found_in(done)


def _check_conflicts(table: TableContext, proposal: Proposal, now: Timeline) -> None:
    _check_snapshot(table, proposal, now)
    done = completed_since(proposal.timeline, now)
    if done:
        mine = columns_digest(table.schema(proposal.timeline))
        refuse_columns(proposal.begin, mine, ((i, table.metadata_of(i)) for i in reversed(done)))
    later = [(i, table.metadata_of(i)) for i in proposal.compared(done, table.settings.resolution)]
    unseen = frozenset[FileGroup]() if proposal.snapshot is None else _unseen(table, proposal.snapshot, later)
    if unseen:  # cleaned before this writer listed the files: what it took for new keys may not be
        raise WriteConflict(proposal.begin, later[-1][0].file_name, tuple(sorted(unseen)))
    _check_overlap(table, proposal, now, later)
    if proposal.keys is not None:
        refuse_shared(table, proposal.begin, proposal.keys, later)


def _unseen(table: TableContext, seen: Snapshot, later: list[tuple[Instant, CommitMetadata]]) -> frozenset[FileGroup]:
    """The file groups that the snapshot shows without files of theirs. Logs are cleaned after a compaction alone."""
    is_compacted = any(metadata.operation == COMPACT for _, metadata in later)
    return lost(seen, with_logs(table, seen.timeline) if is_compacted else [], later)


def _check_snapshot(table: TableContext, proposal: Proposal, now: Timeline) -> None:
    """What the writer has seen completed is not taken back, and what it has not seen can still be found."""
    if undone_since(proposal.timeline, now):
        raise WriteConflict(proposal.begin, max(_restores(now), default="a restore"), ())
    if _may_have_missed(table, proposal.timeline, now):
        raise WriteConflict(proposal.begin, ARCHIVED, ())


def _may_have_missed(table: TableContext, mine: Timeline, now: Timeline) -> bool:
    """Whether a write may be archived that my snapshot has not: it completed later, or while I listed others."""
    suspect = now.first_active > mine.first_active > "" or archived_since(mine, now)
    return suspect and not archive_index.tells_of_all(table.archived, mine, now)


def _check_overlap(
    table: TableContext, proposal: Proposal, now: Timeline, later: list[tuple[Instant, CommitMetadata]]
) -> None:
    # A compaction takes no row away: what is logged meanwhile is completed after it began, and stays for the next.
    others = [ConcurrentOperation.of(i, metadata) for i, metadata in later if metadata.operation != COMPACT]
    others += planned_services(table, now)
    if proposal.is_table_service:
        others += pending_writes(table, now, proposal.begin)
    buckets = proposal.config.bucket_index is not None
    try:
        refuse_overlap(proposal.operation, others, proposal.rule(table.settings.resolution), buckets=buckets)
    except WriteConflict as conflict:
        table.tell("conflict", proposal.begin, lost_to=conflict.lost_to, file_groups=len(conflict.file_groups))
        raise


def _restores(timeline: Timeline) -> list[str]:
    return [instant.file_name for instant in timeline.services if instant.action is Action.RESTORE]


# What writes that are not completed are known to touch: for the conflict check.
#
# A clustering says it in its plan. A writer says it by the markers of the files it has written so far, and
# a JVM writer, besides, in its inflight file.
#
# Source: Hudi `ConcurrentOperation`, `ClusteringUtils`.
def planned_services(table: TableContext, now: Timeline) -> tuple[ConcurrentOperation, ...]:
    """The clusterings that are planned and not completed, with the file groups they are going to replace.

    A pending overwrite, of the JVM's too, does not say what it will replace; it is checked when it commits.
    """
    requested = [Instant(begin, Action.CLUSTERING, InstantState.REQUESTED) for begin in now.pending(Action.CLUSTERING)]
    return tuple(
        ConcurrentOperation(i, CLUSTER, decode_clustering_plan(_content(table, i), i.file_name).file_groups)
        for i in requested
    )


def pending_writes(table: TableContext, now: Timeline, me: str) -> tuple[ConcurrentOperation, ...]:
    """The other writers that are not completed, with what they have written or announced so far."""
    return tuple(_pending_write(table, now, begin) for begin in now.pending_writes if begin != me)


def _pending_write(table: TableContext, now: Timeline, begin: str) -> ConcurrentOperation:
    inflight = Instant(begin, now.pending_action(begin) or Action.COMMIT, InstantState.INFLIGHT)
    content = _content(table, inflight)
    profile = decode_commit(content, inflight.file_name) if content else None
    announced = frozenset() if profile is None else profile.file_groups
    return ConcurrentOperation(
        inflight, "UNKNOWN" if profile is None else profile.operation, announced | _marked(table, begin)
    )


def _marked(table: TableContext, begin: str) -> frozenset[FileGroup]:
    markers: list[Marker] = []
    for entry in table.store.list(f"{markers_dir(begin)}/"):
        marker = parse_marker(entry.path)
        if marker is not None:
            markers.append(marker)
        elif is_markers_file(entry.path) and (content := table.store.read_or_none(entry.path)) is not None:
            markers += markers_in(entry.path, content.data)
    files = ((marker.partition, data_file(marker.file_name)) for marker in markers)
    return frozenset((partition, file.file_id) for partition, file in files if file is not None)


def _content(table: TableContext, instant: Instant) -> bytes:
    content = table.store.read_or_none(f"{TIMELINE}/{instant.file_name}")
    # None: completed or rolled back just now; under the lock only by a writer that does not hold it
    return b"" if content is None else content.data
