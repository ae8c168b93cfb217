"""Say in a table's properties that it has a bucket index: a JVM writer makes the buckets, and keeps it to itself.

Every key of the table is hashed first: a wrong number of buckets or a wrong field would put new rows of a key into
another file group than the old one. Then the properties are replaced under the table lock, with one conditional write,
if nothing was committed meanwhile.

Source: Hudi `HoodieSimpleBucketIndex`, `HoodieIndexConfig`.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from lockprovider.table.errors import Aborted, Corrupt, UnsupportedTable
from lockprovider.table.files.bucket_groups import groups, misplaced
from lockprovider.table.files.keys import KeyFile
from lockprovider.table.format.bucket import BucketIndex
from lockprovider.table.format.layout import BUCKET_RULES
from lockprovider.table.format.properties import BUCKETS, HASH_FIELD, TableConfig
from lockprovider.table.format.shapes import check_writable
from lockprovider.table.services import plans
from lockprovider.table.spec import named_columns

if TYPE_CHECKING:
    from collections.abc import Sequence

    from lockprovider.table.state.context import TableContext
    from lockprovider.table.timeline.timeline import Timeline

_TRIES = 10


def adopt_bucket_index(table: TableContext, buckets: int, bucket_by: Sequence[str] = ()) -> None:
    """Write the index into the properties, where every writer finds it. Safe to repeat.

    All keys are read. A table without rows can be given any index.

    Raises:
        UnsupportedTable: a row is not in the bucket of its key, or the table has another index.
        InvalidRecords: `bucket_by` is no part of the record key, or the number of buckets is impossible.
        Aborted: others committed each time while the keys were read; nothing was changed.
        VersionMismatch: a writer that does not take the lock changed the properties at the same moment; try again.
    """
    config = table.config()
    index = BucketIndex(buckets, named_columns("bucket_by", bucket_by) or config.record_keys).checked(
        config.record_keys
    )
    if config.bucket_index not in (None, index):
        raise UnsupportedTable(f"table {config.name!r} has {config.bucket_index}, which cannot be changed to {index}")
    wanted = replace(config, bucket_index=index)
    check_writable(wanted)
    if table.store.list(f"{BUCKET_RULES}/"):
        raise UnsupportedTable(
            f"table {config.name!r} has rules for its buckets below {BUCKET_RULES}; use its own engine"
        )
    for _ in range(_TRIES):
        seen = table.listed_timeline()
        _check_rows(table, seen, wanted, index)
        if _written(table, seen, index):
            return
    raise Aborted("others committed each time while the table's keys were read; try again when less is written")


def _check_rows(table: TableContext, seen: Timeline, wanted: TableConfig, index: BucketIndex) -> None:
    slices = table.snapshot_of(seen).slices
    try:
        groups(slices, index)
    except Corrupt as error:
        raise UnsupportedTable(f"table {wanted.name!r} has no buckets: {error}") from error
    for one in slices:
        others = misplaced(wanted, one, KeyFile(table.place, one.path, one.size).keys)
        if others:
            raise UnsupportedTable(
                f"{others} rows of {one.path!r} are of other buckets with {wanted.bucket_index}: ask its writer for "
                f"{BUCKETS} and {HASH_FIELD}"
            )


def _written(table: TableContext, seen: Timeline, index: BucketIndex) -> bool:
    """Whether the properties say so now; not, if something was committed since."""
    with table.lock.acquire() as lease:
        if table.listed_timeline().written != seen.written:
            return False
        plans.change_properties(table, lease, lambda config: replace(config, bucket_index=index))
    return True
