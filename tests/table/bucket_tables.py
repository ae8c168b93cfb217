"""Small tables with a bucket index, and what must hold of every one of them whatever happened to it."""

from __future__ import annotations

from dataclasses import replace

import pyarrow as pa
import pyarrow.parquet as pq
from table import tables

from lockprovider.table import Table
from lockprovider.table.format.bucket import BucketIndex, bucket_of

SPEC = replace(tables.SPEC, buckets=4)


def groups(table: Table) -> dict[tuple[str, int], str]:
    """The file id of each (partition, bucket); two of one fail."""
    found = {}
    for one in table.snapshot().slices:
        bucket = bucket_of(one.file_id)
        assert bucket is not None, f"{one.path} is of no bucket"
        assert (one.partition, bucket) not in found, "two file groups of one bucket"
        found[one.partition, bucket] = one.file_id
    return found


def in_their_buckets(table: Table, buckets: int = 4) -> None:
    """Every row is in the bucket of its key, as the file system has it."""
    for one in table.snapshot().slices:
        keys = pq.read_table(f"{table.url}/{one.path}", partitioning=None)["_hoodie_record_key"]
        expected = BucketIndex(buckets, ("id",)).of(keys.combine_chunks(), ("id",))
        assert set(expected.to_pylist()) <= {int(one.file_id[:8])}


def bucket(key: int, buckets: int = 4) -> int:
    """Of one row."""
    return int(BucketIndex(buckets, ("id",)).of(pa.array([str(key)]), ("id",))[0].as_py())
