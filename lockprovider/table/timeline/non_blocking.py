"""Non-blocking concurrency control: of which tables it can be had, and which anchors it needs.

A blind write, of a transaction that has read nothing, puts one log file for each bucket, and conflicts with no other
such write: readers merge them by the ordering value. An anchor is an empty base file. A group that has one shows its
completed logs, whoever else is still at work; without it JVM readers see none of them as long as the write that began
first is not completed (apache/hudi issue 19774).

Source: Hudi RFC-66; `BucketIdentifier.newBucketFileIdForNBCC`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from itertools import count

from lockprovider import InvalidSettings
from lockprovider.table.format.bucket import bucket_of, fixed_file_id
from lockprovider.table.format.layout import FileGroup
from lockprovider.table.format.properties import EVENT_TIME, TableConfig
from lockprovider.table.format.writer_settings import MODE_KEY, NON_BLOCKING, OPTIMISTIC
from lockprovider.table.timeline.view import Snapshot

Bucket = tuple[str, int]  # its partition and its number


def missing(config: TableConfig) -> tuple[str, ...]:
    """What a table would need for it, and has not; nothing if it can be had."""
    conditions = {
        "table_type='merge_on_read'": config.is_merge_on_read,
        "a bucket index (buckets=)": config.bucket_index is not None,
        "one ordering column (ordering=)": len(config.ordering_fields) == 1,
        f"hoodie.record.merge.mode={EVENT_TIME}": config.effective_merge_mode == EVENT_TIME,
    }
    return tuple(what for what, is_met in conditions.items() if not is_met)


def refuse_unless_possible(config: TableConfig) -> None:
    """Refuse a table that does not have all it needs.

    Raises:
        InvalidSettings: naming what is missing.
    """
    if lacks := missing(config):
        raise InvalidSettings(
            f"{MODE_KEY}={NON_BLOCKING} cannot be had for table {config.name!r}, it lacks {', '.join(lacks)}: "
            f"use {OPTIMISTIC}, or make a table that has it"
        )


def refuse_replacing(operation: str) -> None:
    """Refuse what ends file groups, of a non-blocking writer: others log into them, and JVM writers do not look.

    Raises:
        InvalidSettings: naming the operation.
    """
    raise InvalidSettings(
        f"{operation} ends file groups, which {MODE_KEY}={NON_BLOCKING} cannot do: open the table with {OPTIMISTIC} "
        "for it, while no JVM writer writes without blocking"
    )


def bare_buckets(seen: Snapshot, partitions: Iterable[str], buckets: int) -> tuple[Bucket, ...]:
    """The buckets of these partitions that have no file group."""
    there = {(one.partition, bucket_of(one.file_id)) for one in seen.slices}
    wanted = [(partition, bucket) for partition in sorted(set(partitions)) for bucket in range(buckets)]
    return tuple(one for one in wanted if one not in there)


def anchor_id(bucket: Bucket, ended: Collection[FileGroup]) -> str:
    """The file id of a bucket's anchor: the first of the fixed ones that no replacecommit has ended.

    A group that was replaced is hidden by its id for ever, and JVM writers would go on writing into it.
    """
    partition, number = bucket
    ids = (fixed_file_id(number, generation) for generation in count())
    return next(file_id for file_id in ids if (partition, file_id) not in ended)


def left_bare(
    replaced: Mapping[str, Collection[str]],
    written: Iterable[FileGroup],
    ended: Collection[FileGroup],
    buckets: int,
) -> tuple[Bucket, ...]:
    """The buckets of replaced partitions into which JVM writers would go on writing by an id that is hidden.

    `replaced` are the file ids that a commit ends, `written` its new groups, `ended` those of commits before it.
    """
    gone = {*ended, *((partition, file_id) for partition, ids in replaced.items() for file_id in ids)}
    there = {(partition, bucket_of(file_id)) for partition, file_id in written}
    wanted = [(partition, bucket) for partition in sorted(replaced) for bucket in range(buckets)]
    return tuple(one for one in wanted if one not in there and (one[0], fixed_file_id(one[1])) in gone)
