"""What a doctor says of a bucket index: each bucket has one file group, and each row is in its key's."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from lockprovider.table.doctor.facts import Facts, TableFinding, some
from lockprovider.table.files.bucket_groups import look_like_buckets
from lockprovider.table.format.bucket import bucket_of
from lockprovider.table.format.layout import BUCKET_RULES
from lockprovider.table.format.properties import BUCKET, INDEX

_RULE = "buckets"


def buckets(facts: Facts) -> Iterator[TableFinding]:
    """By the file groups of the latest snapshot, and by the keys in them."""
    if facts.bucket_rules:
        what = f"a JVM writer keeps rules for its buckets below {BUCKET_RULES} (consistent hashing, or by partition)"
        yield TableFinding(_RULE, "wrong", what, "write this table with that writer only")
    if facts.config is None:
        return
    if facts.config.bucket_index is None:
        if facts.slices and look_like_buckets(one.file_id for one in facts.slices):
            what = f"the file groups are called as those of a bucket index, but {INDEX} is not set: {_paths(facts)}"
            mend = f"if a JVM writer has {INDEX}={BUCKET}, `lockprovider table adopt-buckets`; no write is taken before"
            yield TableFinding(_RULE, "note", what, mend)
        return
    yield from _strangers(facts, facts.config.bucket_index.buckets)
    yield from _twins(facts)
    yield from _bare(facts)
    if facts.misplaced:
        what = f"{sum(facts.misplaced.values())} rows are not in the bucket of their key: {some(facts.misplaced)}"
        mend = "a writer had other settings of the index: find it; overwrite these partitions with all their rows"
        yield TableFinding(_RULE, "wrong", what, mend)


def _strangers(facts: Facts, count: int) -> Iterator[TableFinding]:
    found = [one.paths[0] for one in facts.slices if (bucket := bucket_of(one.file_id)) is None or bucket >= count]
    if found:
        what = f"{len(found)} file groups are of none of the {count} buckets: {some(found)}"
        mend = "a writer had no bucket index: find it; overwrite these partitions with all their rows"
        yield TableFinding(_RULE, "wrong", what, mend)


def _bare(facts: Facts) -> Iterator[TableFinding]:
    found = [one.paths[0] for one in facts.slices if not one.path]
    if found:
        what = (
            f"{len(found)} file groups have log files alone: JVM readers see none of their rows while the write that "
            f"began first in them is pending: {some(found)}"
        )
        yield TableFinding(_RULE, "note", what, "`lockprovider table compact` gives them base files")


def _twins(facts: Facts) -> Iterator[TableFinding]:
    counts = Counter((one.partition, bucket_of(one.file_id)) for one in facts.slices)
    for (partition, bucket), count in counts.items():
        if count > 1 and bucket is not None:
            mine = [
                one.paths[0] for one in facts.slices if (one.partition, bucket_of(one.file_id)) == (partition, bucket)
            ]
            what = f"{count} file groups are of bucket {bucket} of partition {partition or '.'!r}: {some(mine)}"
            mend = "writers fail, and keys may be there twice: restore the table, or overwrite the partition once"
            yield TableFinding(_RULE, "wrong", what, mend)


def _paths(facts: Facts) -> str:
    return some(one.paths[0] for one in facts.slices)
