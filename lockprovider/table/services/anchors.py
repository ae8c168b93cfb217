"""Anchors: empty base files for buckets without a file group, so that blind writes can log rows to these.

Source: Hudi RFC-66, `HoodieTableFileSystemView`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from functools import partial
from typing import TYPE_CHECKING

import pyarrow as pa

from fsspec_cas.bridge.threads import in_order
from lockprovider.table.errors import Aborted
from lockprovider.table.files.base_file import index_of
from lockprovider.table.files.group_writer import GroupWriter, NewGroup, WritesHere
from lockprovider.table.format import schema as hudi_schema
from lockprovider.table.format.layout import Action, FileGroup
from lockprovider.table.format.metadata import CommitMetadata, WriteStat, stats_by_partition
from lockprovider.table.services import plans
from lockprovider.table.timeline.conflict import Bucket, anchor_id, bare_buckets
from lockprovider.table.timeline.view import Snapshot, ended_groups

if TYPE_CHECKING:
    from lockprovider import Lease
    from lockprovider.table.state.context import TableContext
    from lockprovider.table.timeline.timeline import Timeline

_AT_ONCE = 16
_TOKEN = "0-0-0"  # noqa: S105 - Hudi's write token


def ensure_anchors(table: TableContext, partitions: Collection[str]) -> None:
    """Commit an empty base file for each bucket of these partitions without a file group.

    Commits with a heartbeat under the lock. Sends no request if this process knows that none is missing. Raises
    `Aborted` while a restore is pending.
    """
    if _have_anchors(table, table.knowledge.files_seen_last, partitions):
        return
    if _have_anchors(table, table.current.current_files(table.now().timeline), partitions):
        return
    # Rows logged meanwhile belong to the anchor's slice; completed ones would be hidden by it.
    with table.lock.acquire() as lease:
        listed = table.listed_timeline()
        if listed.pending(Action.RESTORE):
            raise Aborted("a restore of the table is not finished; wait for it or repeat it, then begin again")
        bare = bare_buckets(table.snapshot_of(listed), partitions, index_of(table.config()).buckets)
        if bare:
            _write_missing(table, lease, listed, bare)


def write_anchors(writer: GroupWriter, buckets: Sequence[Bucket], ended: Collection[FileGroup]) -> Iterable[WriteStat]:
    """Announce buckets' empty base files, create partitions; the result, while iterated, writes up to 16 files at once.

    Ids avoid the `ended` file groups.
    """
    rows, keys = writer.schema.empty_table(), pa.array([], pa.string())
    groups = [NewGroup(bucket[0], rows, keys, _TOKEN, anchor_id(bucket, ended)) for bucket in buckets]
    writer.announce([group.at(writer.begin) for group in groups])
    writer.open_partitions(dict.fromkeys(partition for partition, _ in buckets))  # once, before the threads
    return in_order((partial(writer.put, file) for file in writer.encode_each(groups)), _AT_ONCE)


def _have_anchors(table: TableContext, snapshot: Snapshot | None, partitions: Collection[str]) -> bool:
    config = table.knowledge.config or table.config()
    return snapshot is not None and not bare_buckets(snapshot, partitions, index_of(config).buckets)


def _write_missing(table: TableContext, lease: Lease, timeline: Timeline, bare: Sequence[Bucket]) -> None:
    """Commit under `lease` an empty base file for each bucket of `bare`, with a heartbeat; report it.

    Creates partitions; at last deletes the markers.
    """
    config, schema = table.config(), table.schema(timeline)
    local_writes = WritesHere([], set(), set(), lambda: None)
    with plans.claim_with_heartbeat(table, timeline) as begin:
        writer = GroupWriter(table.place, begin, config, schema, local_writes)
        writer.open_partitions({partition for partition, _ in bare})
        plans.put_plan(table, begin, Action.DELTACOMMIT, b"", lease)
        stats = stats_by_partition(write_anchors(writer, bare, ended_groups(timeline, table.metadata_of)))
        stated = table.current.stated_schema(timeline, begin)
        metadata = CommitMetadata(stats, "BULK_INSERT", hudi_schema.to_avro(schema, config.name), stated)
        plans.complete_write(table, lease, begin, Action.DELTACOMMIT, metadata)
        table.store.delete_all(local_writes.markers)
    table.report("anchored", begin, file_groups=len(bare))
