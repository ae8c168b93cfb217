"""JVM Hudi's bucket index and ours: the same bucket for every key, the same file group for every bucket."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest
from table.format.test_bucket_hash import JVM
from table.tables import SCHEMA, by_hudi_rs, content, rows, upsert

from jvm.shared_table import DDL, OPTIONS, SETTINGS, Triple, theirs
from jvm.spark import HudiError, HudiSpark
from jvm.test_spark_writes import Writing
from lockprovider.demo.proof import reader_options
from lockprovider.table import Corrupt, Table, TableSpec, UnsupportedTable, WriteConflict
from lockprovider.table.doctor.rules import diagnose
from lockprovider.table.engines import arrow as engine
from lockprovider.table.format.bucket import BucketIndex, bucket_of
from lockprovider.table.transaction.transaction import Transaction, transact

if TYPE_CHECKING:
    from pathlib import Path

    from servers.seaweedfs import SeaweedFS

pytestmark = pytest.mark.jvm
SPEC = TableSpec("counters", SCHEMA, record_keys=("id",), partition_by=("part",), buckets=4)
NAMED = {
    "hoodie.index.type": "BUCKET",
    "hoodie.index.bucket.engine": "SIMPLE",
    "hoodie.bucket.index.num.buckets": "4",
    "hoodie.bucket.index.hash.field": "id",
}


@pytest.fixture
def table(seaweedfs: SeaweedFS) -> Table:
    return Table.create(seaweedfs.new_prefix(), SPEC, settings=SETTINGS, storage_options=seaweedfs.storage_options)


def groups(table: Table) -> dict[tuple[str, int], str]:
    """The file id of each (partition, bucket); every row is in the bucket of its key, and each bucket has one group."""
    found: dict[tuple[str, int], str] = {}
    index = table.config().bucket_index
    assert index is not None
    for one in table.snapshot().slices:
        bucket = bucket_of(one.file_id)
        assert bucket is not None
        assert (one.partition, bucket) not in found, "two file groups of one bucket"
        found[one.partition, bucket] = one.file_id
        keys = pa.parquet.read_table(pa.BufferReader(table.store.read(one.path).data))["_hoodie_record_key"]
        assert set(index.of(keys.combine_chunks(), table.config().record_keys).to_pylist()) == {bucket}
    return found


def agreed(hudi: HudiSpark, table: Table, expected: set[Triple]) -> None:
    options = reader_options(table.url, table.storage_options, {})
    assert content(table) == theirs(hudi, table) == by_hudi_rs(table.url, options) == expected


def test_jvm_finds_bucket_index_in_properties_and_writes_into_python_groups(hudi: HudiSpark, table: Table) -> None:
    upsert(table, *((key, "a", key) for key in range(10)), (1, "b", 1))
    before = groups(table)
    hudi.write(table.url, DDL, [(key, "a", -key) for key in range(5, 20)] + [(2, "c", 2)], OPTIONS)
    after = groups(table)
    assert before.items() <= after.items()
    expected = {(key, "a", key) for key in range(5)} | {(key, "a", -key) for key in range(5, 20)}
    expected |= {(1, "b", 1), (2, "c", 2)}
    agreed(hudi, table, expected)
    result = table.upsert(rows((2, "c", 20), (19, "a", 19), (30, "c", 30)))
    assert (result.inserted, result.updated) == (1, 2)
    assert after.items() <= groups(table).items()
    hudi.write(table.url, DDL, [(2, "c", 0)], OPTIONS | {"hoodie.datasource.write.operation": "delete"})
    expected = expected - {(19, "a", -19), (2, "c", 2)} | {(19, "a", 19), (30, "c", 30)}
    agreed(hudi, table, expected)


@pytest.mark.parametrize("operation", ["insert", "insert_overwrite"])
def test_other_jvm_operations_keep_to_the_buckets(hudi: HudiSpark, table: Table, operation: str) -> None:
    upsert(table, *((key, "a", key) for key in range(6)))
    hudi.write(
        table.url,
        DDL,
        [(key, "a", key) for key in range(6, 9)],
        OPTIONS | {"hoodie.datasource.write.operation": operation},
    )
    kept = range(9) if operation == "insert" else range(6, 9)
    upsert(table, (7, "a", 70), (40, "a", 40))
    assert groups(table)
    agreed(hudi, table, {(key, "a", key) for key in kept if key != 7} | {(7, "a", 70), (40, "a", 40)})


@pytest.mark.parametrize("there", [False, True], ids=["first file group", "bucket exists"])
def test_jvm_gets_conflict_when_python_inserted_the_same_new_key(
    hudi: HudiSpark, table: Table, tmp_path: Path, there: bool
) -> None:
    upsert(table, (5 if there else 2, "a", 0))
    with Writing(hudi, table, [(1, "a", 10)], tmp_path / "gate") as write:
        upsert(table, (1, "a", 100))
        with pytest.raises(HudiError, match="HoodieWriteConflictException"):
            write.finish()
    agreed(hudi, table, {(5 if there else 2, "a", 0), (1, "a", 100)})
    assert groups(table)


@pytest.mark.parametrize("there", [False, True], ids=["first file group", "bucket exists"])
def test_python_gets_conflict_when_jvm_inserted_the_same_new_key(hudi: HudiSpark, table: Table, there: bool) -> None:
    upsert(table, (5 if there else 2, "a", 0))
    mine = Transaction(table)
    engine.write(mine, upserts=rows((1, "a", 100)))
    hudi.write(table.url, DDL, [(1, "a", 10)], OPTIONS)
    with pytest.raises(WriteConflict, match="both wrote a/0000000"):
        mine.commit()
    mine.rollback()
    agreed(hudi, table, {(5 if there else 2, "a", 0), (1, "a", 10)})
    assert groups(table)


@pytest.mark.parametrize("other", [{"hoodie.bucket.index.num.buckets": "8"}, {"hoodie.index.type": "SIMPLE"}])
def test_jvm_refuses_its_writer_with_other_bucket_settings(
    hudi: HudiSpark, table: Table, other: dict[str, str]
) -> None:
    upsert(table, (1, "a", 1))
    with pytest.raises(HudiError, match="Config conflict"):
        hudi.write(table.url, DDL, [(2, "a", 2)], OPTIONS | NAMED | other)
    hudi.write(table.url, DDL, [(2, "a", 2)], OPTIONS | NAMED)
    agreed(hudi, table, {(1, "a", 1), (2, "a", 2)})


def test_jvm_bucket_table_is_writable_once_its_properties_name_the_index(hudi: HudiSpark, seaweedfs: SeaweedFS) -> None:
    url = seaweedfs.new_prefix()
    made = {
        "hoodie.datasource.write.recordkey.field": "id",
        "hoodie.datasource.write.partitionpath.field": "part",
        "hoodie.write.table.version": "8",
        "hoodie.table.timeline.timezone": "UTC",
    }
    hudi.write(url, DDL, [(key, "a", key) for key in range(9)], OPTIONS | NAMED | made)
    table = Table.open(url, settings=SETTINGS, storage_options=seaweedfs.storage_options)
    assert table.config().bucket_index is None, "theirs keep it to themselves"
    with pytest.raises(UnsupportedTable, match="adopt_bucket_index"):
        upsert(table, (1, "a", 10))
    with pytest.raises(UnsupportedTable, match="of other buckets"):
        table.adopt_bucket_index(9)
    table.adopt_bucket_index(4)
    before = groups(table)
    upsert(table, (1, "a", 10), (20, "a", 20))
    hudi.write(url, DDL, [(20, "a", 200), (21, "a", 21)], OPTIONS)
    assert groups(table) == before
    agreed(
        hudi, table, {(key, "a", key) for key in range(9) if key != 1} | {(1, "a", 10), (20, "a", 200), (21, "a", 21)}
    )


def test_second_jvm_bulk_insert_into_buckets_is_noticed(hudi: HudiSpark, table: Table) -> None:
    bulk = OPTIONS | {"hoodie.datasource.write.operation": "bulk_insert"}
    hudi.write(table.url, DDL, [(key, "a", key) for key in range(6)], bulk)
    before = groups(table)
    upsert(table, (1, "a", 10), (6, "a", 6))
    assert groups(table) == before
    expected = {(key, "a", key) for key in range(7) if key != 1} | {(1, "a", 10)}
    agreed(hudi, table, expected)
    hudi.write(table.url, DDL, [(7, "a", 7)], bulk)
    with pytest.raises(Corrupt, match="is the second one of bucket"):
        upsert(table, (7, "a", 70))
    with pytest.raises(HudiError, match="belong to the same bucket id"):
        hudi.write(table.url, DDL, [(7, "a", 70)], OPTIONS)
    found = [finding for rule, _, findings in diagnose(table) if rule == "buckets" for finding in findings]
    assert [finding.state for finding in found] == ["wrong"]
    whole = table.to_arrow()

    def mend(txn: Transaction) -> None:
        txn.end_partitions(["a"])
        engine.insert(txn, whole)

    transact(table, mend)
    hudi.write(table.url, DDL, [(7, "a", 70)], OPTIONS)
    assert groups(table)
    agreed(hudi, table, expected | {(7, "a", 70)})


def test_keys_of_all_types_and_several_columns_share_one_file_group(hudi: HudiSpark, seaweedfs: SeaweedFS) -> None:
    schema = pa.schema(
        [
            ("name", pa.string()),
            ("at", pa.timestamp("us", "UTC")),
            ("day", pa.date32()),
            ("price", pa.decimal128(8, 2)),
            ("on", pa.bool_()),
            ("value", pa.int64()),
        ]
    )
    spec = TableSpec("typed", schema, record_keys=tuple(schema.names[:-1]), buckets=16)
    table = Table.create(seaweedfs.new_prefix(), spec, settings=SETTINGS, storage_options=seaweedfs.storage_options)
    texts = ["plain", "x,y", "x:y", "x,y:z", "東京", "😀", "", None, "é"]
    selected = ["name", "timestamp_micros(at) at", "date(day) day", "cast(price as decimal(8,2)) price", "on", "value"]
    kind = "name string, at bigint, day string, price string, on boolean, value bigint"
    given = [(text, number * 10**15 + 7, f"2024-0{number + 1}-29", "12.50", True) for number, text in enumerate(texts)]
    named = OPTIONS | {"hoodie.table.name": "typed"}
    hudi.write(table.url, kind, [(*key, 1) for key in given], named, select=selected)
    found = table.to_arrow()
    before = groups(table)
    result = table.upsert(found.set_column(5, "value", pa.array([2] * len(texts))))
    assert (result.inserted, result.updated) == (0, len(texts))
    hudi.write(table.url, kind, [(*key, 3) for key in given], named, select=selected)
    assert table.to_arrow()["value"].to_pylist() == [3] * len(texts)
    assert groups(table) == before


def test_pinned_keys_are_in_the_buckets_of_the_jvm(hudi: HudiSpark) -> None:
    for fields, key, *expected in JVM:
        assert [hudi.buckets(fields, [key], count)[0] for count in (16, 1009, 2**31 - 1)] == expected


def is_endless(key: str, fields: list[str]) -> bool:
    """Whether their search for the end of a value never ends: no hash field's, with a `:` after it, but no `,`."""
    if "," not in key or ":" not in key:
        return False
    place = 0
    while place < len(key):
        colon = key.index(":", place)
        ends = [key.rfind(",", colon, at) for at in range(colon + 1, len(key)) if key[at] == ":"]
        end = next((comma for comma in ends if comma >= 0), None)
        if end is None:
            return bool(ends) and key[place:colon] not in fields
        place = end + 1
    return False


@pytest.mark.parametrize(("fields", "named"), [("id", ("id",)), ("a,b", ("a", "b")), ("a", ("a", "b"))])
def test_random_keys_are_in_the_buckets_of_the_jvm(hudi: HudiSpark, fields: str, named: tuple[str, ...]) -> None:
    rng = random.Random(7)
    signs = "abz019 -_./:,é東😀\x00\uffff"

    def text(signs: str) -> str:
        return "".join(rng.choices(signs, k=rng.randrange(1, 12)))

    keys = [f"a:{text(signs)},b:{text(signs)}" if len(named) > 1 else text(signs) for _ in range(1_500)]
    keys = [key for key in keys if not is_endless(key, fields.split(","))]
    assert len(keys) > 500
    found = BucketIndex(1009, tuple(fields.split(","))).of(pa.array(keys), named).to_pylist()
    assert found == hudi.buckets(fields, keys, 1009)
