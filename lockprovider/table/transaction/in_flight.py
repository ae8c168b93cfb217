"""What writes that are not completed are known to touch: for the conflict check.

A clustering says it in its plan. A writer says it by the markers of the files it has written so far, and
a JVM writer, besides, in its inflight file.

Source: Hudi `ConcurrentOperation`, `ClusteringUtils`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from lockprovider.table.format.data_files import data_file
from lockprovider.table.format.instant import Action, Instant, InstantState
from lockprovider.table.format.layout import (
    TIMELINE,
    FileGroup,
    Marker,
    is_markers_file,
    markers_dir,
    markers_in,
    parse_marker,
)
from lockprovider.table.format.metadata import CLUSTER, decode_commit
from lockprovider.table.format.plan.clustering import decode_clustering_plan
from lockprovider.table.timeline.conflict import ConcurrentOperation
from lockprovider.table.timeline.timeline import Timeline

if TYPE_CHECKING:
    from lockprovider.table.state.context import TableContext


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
