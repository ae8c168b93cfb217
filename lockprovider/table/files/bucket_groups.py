"""A table's file groups as buckets: which is whose, and whether they may be taken for buckets at all.

Source: Hudi `HoodieSimpleBucketIndex.loadBucketIdToFileIdMappingForPartition`.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

import pyarrow.compute as pc

from lockprovider.table.errors import Corrupt, InvalidRecords
from lockprovider.table.format.bucket import BucketIndex, bucket_of
from lockprovider.table.format.metadata import WriteStat
from lockprovider.table.format.properties import TableConfig
from lockprovider.table.timeline.view import FileSlice

if TYPE_CHECKING:
    import pyarrow as pa


_LIKELY = 65_536  # a file id that begins with 8 digits below this is of a bucket: chance makes 2 of 100,000 look so


def index_of(config: TableConfig) -> BucketIndex:
    """The index of a table that has one."""
    if config.bucket_index is None:
        raise RuntimeError("a table without a bucket index has no buckets")
    return config.bucket_index


def of_keys(config: TableConfig, keys: pa.Array) -> pa.Array:
    """Each key's bucket, in a table that has a bucket index."""
    return index_of(config).of(keys, config.record_keys)


def misplaced(config: TableConfig, there: FileSlice, keys: pa.Array) -> int:
    """How many of a file's keys are of another bucket than it; all, if it is of none."""
    bucket = bucket_of(there.file_id)
    return len(keys) if bucket is None else pc.sum(pc.not_equal(of_keys(config, keys), bucket)).as_py() or 0


def groups(slices: Iterable[FileSlice], index: BucketIndex) -> dict[tuple[str, int], FileSlice]:
    """The file group of each (partition, bucket).

    Raises:
        Corrupt: a file group is of no bucket, or two are of the same one.
    """
    found: dict[tuple[str, int], FileSlice] = {}
    for one in slices:
        bucket = index.named_by(one.file_id)
        if bucket is None or (one.partition, bucket) in found:
            what = "is of no bucket" if bucket is None else f"is the second one of bucket {bucket}"
            raise Corrupt(f"file group {one.path!r} {what}: a writer without the bucket index was here; see the doctor")
        found[one.partition, bucket] = one
    return found


def check_written(config: TableConfig, stats: Iterable[WriteStat]) -> None:
    """Refuse files that would be of no bucket, or the second of one, in a table that has a bucket index.

    Raises:
        InvalidRecords: naming such a file.
    """
    index = config.bucket_index
    if index is None:
        return
    seen: set[tuple[str, int]] = set()
    for stat in stats:
        bucket = index.named_by(stat.file_id)
        if bucket is None or (stat.partition, bucket) in seen:
            what = "is of no bucket" if bucket is None else f"is the second one of bucket {bucket}"
            raise InvalidRecords(f"file {stat.path!r} {what} of the table; write by the functions of an engine")
        seen.add((stat.partition, bucket))


def look_like_buckets(file_ids: Iterable[str]) -> bool:
    """Whether all are called as file groups of buckets are."""
    return all((bucket := bucket_of(one)) is not None and bucket < _LIKELY for one in file_ids)
