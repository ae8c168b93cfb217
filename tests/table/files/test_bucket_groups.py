"""What properties say of a bucket index, and how it changes the conflict check."""

from __future__ import annotations

from dataclasses import replace

import pytest

from lockprovider.table import Corrupt, UnsupportedTable
from lockprovider.table.files.base_file import bucket_groups, look_like_buckets
from lockprovider.table.format.bucket import BucketIndex, file_id
from lockprovider.table.format.compatibility import check_readable, check_writable
from lockprovider.table.format.layout import Action, Instant, InstantState, format_ms
from lockprovider.table.format.properties import (
    TableConfig,
    encode_properties,
    parse_properties,
)
from lockprovider.table.timeline.conflict import (
    ConcurrentOperation,
    by_bucket,
    by_file_group,
    by_partition,
    prefer_writer,
)
from lockprovider.table.timeline.view import FileSlice

A, B = format_ms(1_000), format_ms(2_000)
CONFIG = TableConfig("t", ("id", "day"), bucket_index=BucketIndex(8, ("id",)))
MINE, THEIRS = "f81d4fae-7dec-11d0-a765-00a0c91e6bf6-0", "a81d4fae-0000-11d0-a765-00a0c91e6bf6-0"


def reworded(old: str, new: str) -> TableConfig:
    text = encode_properties(CONFIG).decode()
    assert old in text
    return parse_properties(text.replace(old, new).encode())


def operation(
    *ids: str, state: InstantState = InstantState.COMPLETED, name: str = "UPSERT", part: str = "p"
) -> ConcurrentOperation:
    instant = Instant(A, Action.COMMIT, state, B if state is InstantState.COMPLETED else None)
    return ConcurrentOperation(instant, name, frozenset((part, one) for one in ids))


def test_index_is_written_as_jvm_writers_read_it_and_read_back() -> None:
    lines = encode_properties(CONFIG).decode().splitlines()
    assert [line for line in lines if "index" in line] == [
        "hoodie.bucket.index.hash.field=id",
        "hoodie.bucket.index.num.buckets=8",
        "hoodie.index.bucket.engine=SIMPLE",
        "hoodie.index.type=BUCKET",
    ]
    found = parse_properties(encode_properties(CONFIG))
    assert found.bucket_index == CONFIG.bucket_index
    assert (
        parse_properties(encode_properties(replace(found, metadata_partitions=("files",)))).bucket_index
        == CONFIG.bucket_index
    )
    check_writable(found)


def test_missing_index_setting_has_the_default_of_hudi() -> None:
    assert reworded("hoodie.bucket.index.num.buckets=8\n", "").bucket_index == BucketIndex(256, ("id",))
    assert reworded("hoodie.bucket.index.hash.field=id\n", "").bucket_index == BucketIndex(8, ("id", "day"))
    assert reworded("hoodie.index.type=BUCKET", "hoodie.index.type=BLOOM").bucket_index is None


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("engine=SIMPLE", "engine=CONSISTENT_HASHING", "engine=CONSISTENT_HASHING cannot be written"),
        ("hash.field=id", "hash.field=id,other", r"has \['other'\], which are not in"),
        ("hoodie.index.type", "hoodie.bucket.index.partition.expressions=a,1\nhoodie.index.type", "expressions=a,1"),
    ],
)
def test_index_that_cannot_be_kept_is_read_but_not_written(old: str, new: str, said: str) -> None:
    config = reworded(old, new)
    check_readable(config)
    with pytest.raises(UnsupportedTable, match=said):
        check_writable(config)


@pytest.mark.parametrize("count", ["0", "-1", "100000000", "many"])
def test_impossible_number_of_buckets_is_a_damaged_file(count: str) -> None:
    with pytest.raises(Corrupt, match=f"num.buckets='?{count}"):
        reworded("num.buckets=8", f"num.buckets={count}")


@pytest.mark.parametrize("resolution", [by_file_group, prefer_writer])
def test_file_groups_overlap_only_within_one_bucket(resolution: object) -> None:
    resolve = by_bucket(resolution)  # type: ignore[arg-type]
    mine = operation(file_id(3, MINE), state=InstantState.INFLIGHT)
    theirs = operation(file_id(3, THEIRS), file_id(4, THEIRS))
    overlap = resolve(mine, [operation(file_id(4, MINE)), theirs])
    assert overlap is not None
    assert overlap.file_groups == (("p", file_id(3, THEIRS)),)
    assert resolve(mine, [operation(file_id(3, THEIRS), part="q"), operation(file_id(4, THEIRS))]) is None
    assert resolution(mine, [theirs]) is None  # type: ignore[operator]


def test_partition_conflict_also_counts_with_buckets() -> None:
    theirs = operation(file_id(1, THEIRS), file_id(2, THEIRS))
    overlap = by_bucket(by_partition)(operation(file_id(3, MINE), state=InstantState.INFLIGHT), [theirs])
    assert overlap is not None
    assert overlap.file_groups == (("p", file_id(1, THEIRS)), ("p", file_id(2, THEIRS)))


def test_planned_service_of_no_bucket_stands_for_itself() -> None:
    planned = operation(MINE, state=InstantState.REQUESTED, name="CLUSTER")
    assert by_bucket(by_file_group)(operation(file_id(3, MINE), state=InstantState.INFLIGHT), [planned]) is None
    assert by_bucket(by_file_group)(operation(MINE, state=InstantState.INFLIGHT), [planned]) is not None


def test_file_groups_are_distinguished_by_their_bucket() -> None:
    def at(name: str, part: str = "p") -> FileSlice:
        return FileSlice(part, name, A, f"{part}/{name}_0-0-0_{A}.parquet", 1)

    first, second = at(file_id(1, MINE)), at(file_id(1, MINE), "q")
    index = BucketIndex(4, ("id",))
    assert bucket_groups([first, second], index) == {("p", 1): first, ("q", 1): second}
    with pytest.raises(Corrupt, match="the second one of bucket 1"):
        bucket_groups([first, at(file_id(1, THEIRS))], index)
    with pytest.raises(Corrupt, match="of no bucket"):
        bucket_groups([first, at(MINE)], index)
    with pytest.raises(Corrupt, match="of no bucket"):
        bucket_groups([at(file_id(4, MINE))], index)
    assert look_like_buckets([file_id(1, MINE), file_id(65_535, MINE)])
    assert not look_like_buckets([file_id(1, MINE), "12345678-7dec-11d0-a765-00a0c91e6bf6-0"])
