from __future__ import annotations

import base64
import io
from dataclasses import dataclass
from datetime import datetime, timezone
from decimal import Decimal
from mmap import mmap
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyarrow.parquet import encryption
from pyarrow.parquet.encryption import CryptoFactory, EncryptionConfiguration, KmsClient, KmsConnectionConfig
from table.jvm_written import TABLES, base_files, contents
from table.key_texts import path_for, record_key

from lockprovider.table import Table, TableSpec
from lockprovider.table.convert import read_as
from lockprovider.table.errors import Corrupt, InvalidRecords, UnsupportedSchema, UnsupportedTable
from lockprovider.table.files import base_file, encoding
from lockprovider.table.files import merge as merging
from lockprovider.table.files.encoding import java_order
from lockprovider.table.format import bloom, schema
from lockprovider.table.format.keygen import PartitionStyle
from lockprovider.table.format.layout import BaseFile
from lockprovider.table.format.properties import parse_properties

BASE = BaseFile("f-0", "3-0-0", "20250713010535797")
NEXT = BaseFile("f-0", "0-0-0", "20250713010536861")
ROWS = pa.table({"id": ["a", "b"], "ts": pa.array([1, 2], pa.int64()), "v": ["x", None]})
keys_of = st.sampled_from(["a", "b", "c", "d", "\ue000", "\U00010000"])  # the last two are in another order in Java


def write(rows: pa.Table, start: int = 0) -> bytes:
    parts, keys = encoding.all_fresh(rows, BASE, start), base_file.record_keys(rows, ["id"])
    return encoding.encode_base_file(
        parts, rows.schema, keys=keys, partition="p=1", base_file=BASE, table_name="t"
    ).data


def read_base_file(source: Any, columns: list[str] | None = None) -> pa.Table:
    return base_file.read_columns(base_file.open_base_file(source), columns)


# --- base files -----------------------------------------------------------------------------------------------------


def test_base_file_has_hudis_columns_and_footer() -> None:
    data = write(ROWS, 7)
    assert read_base_file(data).to_pydict() == {
        "_hoodie_commit_time": [BASE.begin] * 2,
        "_hoodie_commit_seqno": [f"{BASE.begin}_3_7", f"{BASE.begin}_3_8"],
        "_hoodie_record_key": ["a", "b"],
        "_hoodie_partition_path": ["p=1"] * 2,
        "_hoodie_file_name": [BASE.name] * 2,
        **ROWS.to_pydict(),
    }
    footer = pq.ParquetFile(io.BytesIO(data)).metadata.metadata
    assert footer[b"hoodie_min_record_key"] == b"a"
    assert footer[b"hoodie_max_record_key"] == b"b"
    assert footer[b"hoodie_bloom_filter_type_code"] == b"DYNAMIC_V0"
    assert footer[b"org.apache.hudi.bloomfilter"].decode() == bloom.encode_filter(["a", "b"])
    assert schema.from_avro(footer[b"parquet.avro.schema"].decode()) == schema.with_meta(ROWS.schema)


@given(st.sets(st.integers(0, 10**9 - 1)))
def test_row_s_number_in_its_file_ends_its_sequence_number(places: set[int]) -> None:
    rows = pa.table({"v": pa.nulls(len(places), pa.int64())})
    found = encoding.fresh(rows, BASE, np.array(sorted(places), dtype=np.int64))
    assert found["_hoodie_commit_seqno"].to_pylist() == [f"{BASE.begin}_3_{place}" for place in sorted(places)]


def test_filterable_columns_have_statistics() -> None:
    group = pq.ParquetFile(io.BytesIO(write(ROWS))).metadata.row_group(0)
    with_them = [group.column(n).path_in_schema for n in range(group.num_columns) if group.column(n).is_stats_set]
    assert with_them == ["_hoodie_commit_time", "_hoodie_record_key", *ROWS.column_names]


def test_equal_input_gives_equal_bytes() -> None:
    assert write(ROWS) == write(ROWS)


@pytest.mark.parametrize("table", TABLES)
def test_footer_has_every_hudi_key_of_the_jvms(table: str) -> None:
    path = next(path for path in contents(table) if path.endswith(".parquet"))
    theirs = pq.ParquetFile(io.BytesIO(contents(table)[path])).metadata.metadata
    hudis = {key for key in theirs if b"hoodie" in key or b"hudi" in key}
    assert len(hudis) == 4
    assert hudis <= set(pq.ParquetFile(io.BytesIO(write(ROWS))).metadata.metadata)


@pytest.mark.parametrize(("table", "path"), base_files())
def test_jvm_file_written_again_holds_the_same(table: str, path: str) -> None:
    config = parse_properties(contents(table)[".hoodie/hoodie.properties"])
    old = read_base_file(contents(table)[path])
    target = schema.from_avro(config.schema_json or "")
    rows = read_as(old.select(target.names), target)
    assert base_file.record_keys(rows, config.record_keys).to_pylist() == old["_hoodie_record_key"].to_pylist()
    assert (
        base_file.partition_paths(rows, config.partition_style).to_pylist() == old["_hoodie_partition_path"].to_pylist()
    )
    data = encoding.encode_base_file(
        [
            pa.table(
                [old["_hoodie_commit_time"], old["_hoodie_commit_seqno"], *rows.columns],
                ["_hoodie_commit_time", "_hoodie_commit_seqno", *rows.column_names],
            )
        ],
        target,
        keys=base_file.record_keys(rows, config.record_keys),
        partition=path.rpartition("/")[0],
        base_file=BASE,
        table_name=config.name,
    ).data
    again = read_base_file(data)
    assert again["_hoodie_file_name"].unique().to_pylist() == [BASE.name]
    assert again.drop_columns("_hoodie_file_name").to_pylist() == old.drop_columns("_hoodie_file_name").to_pylist()


def test_parts_of_a_file_are_read() -> None:
    data = write(ROWS)
    assert base_file.keys_of(base_file.open_base_file(data)).to_pylist() == ["a", "b"]
    assert read_base_file(data, ["v"]).column_names == ["v"]
    assert read_base_file(io.BytesIO(data), ["id"]).num_rows == 2


def test_error_of_a_file_system_is_no_damage() -> None:
    """That of GCS raises OSError without a number when it may not read."""

    class Refusing(io.BytesIO):
        def read(self, size: int | None = -1, /) -> bytes:
            if refuses:
                raise OSError("Forbidden: no permission")
            return super().read(size)

    refuses = False
    opened = base_file.open_base_file(Refusing(write(ROWS)))
    refuses = True
    with pytest.raises(OSError, match="Forbidden"):
        base_file.read_columns(opened)
    with pytest.raises(OSError, match="Forbidden"):
        base_file.open_base_file(Refusing(write(ROWS)))


def test_empty_file_group_can_be_written() -> None:
    assert base_file.keys_of(base_file.open_base_file(write(ROWS[:0]))).to_pylist() == []


def test_torn_file_is_corrupt() -> None:
    with pytest.raises(Corrupt, match="'in memory' cannot be read: .*backup"):
        read_base_file(write(ROWS)[:100])


class KeysInFile(KmsClient):  # type: ignore[misc]
    def __init__(self, _: object) -> None:
        super().__init__()

    def wrap_key(self, key: bytes, _: str) -> bytes:
        return base64.b64encode(key)


@pytest.mark.parametrize("plain_footer", [False, True])
def test_encrypted_file_is_called_encrypted(tmp_path: Path, plain_footer: bool) -> None:
    table = Table.create(str(tmp_path), TableSpec("t", ROWS, "id"))
    table.append(ROWS)
    (path,) = tmp_path.glob("*.parquet")
    content = pq.read_table(path)
    secret = EncryptionConfiguration("f", column_keys={"c": ["id", "ts"]}, plaintext_footer=plain_footer)
    how = CryptoFactory(KeysInFile).file_encryption_properties(KmsConnectionConfig(), secret)
    pq.write_table(content, path, encryption_properties=how)
    table = Table.open(str(tmp_path))
    for call in (table.to_arrow, lambda: table.count("ts > 1"), lambda: table.upsert(ROWS)):
        with pytest.raises(UnsupportedTable, match=f"'{path.name}' is encrypted"):
            call()
    assert any("is encrypted" in finding.what for finding in table.doctor(keys=True))


def test_file_that_pyarrow_cannot_read_is_not_called_damaged() -> None:
    unread = pa.ArrowNotImplementedError("Nested data conversions not implemented for chunked array outputs")
    with (
        pytest.raises(UnsupportedTable, match="'a/b' cannot be read by pyarrow: Nested data"),
        base_file.reading("a/b"),
    ):
        raise unread


class PlainKeys(encryption.KmsClient):
    """A service that wraps no key."""

    def wrap_key(self, key: bytes, _: str) -> str:
        return base64.b64encode(key).decode()

    def unwrap_key(self, wrapped: str, _: str) -> bytes:
        return base64.b64decode(wrapped)


@pytest.mark.parametrize("plaintext_footer", [False, True])
def test_encrypted_file_is_not_called_damaged(plaintext_footer: bool) -> None:
    settings = encryption.EncryptionConfiguration("f", column_keys={"c": ["id"]}, plaintext_footer=plaintext_footer)
    factory, rows, out = encryption.CryptoFactory(lambda _: PlainKeys()), pa.table({"id": ["a"]}), io.BytesIO()
    keys = factory.file_encryption_properties(encryption.KmsConnectionConfig(), settings)
    with pq.ParquetWriter(out, rows.schema, encryption_properties=keys) as writer:
        writer.write_table(rows)
    with pytest.raises(UnsupportedTable, match="'in memory' is encrypted.*read it with JVM Hudi"):
        read_base_file(out.getvalue())


# --- keys and partitions --------------------------------------------------------------------------------------------

values = st.fixed_dictionaries(
    {
        "s": st.none()
        | st.text(st.characters(blacklist_categories=("Cs",)), max_size=4)
        | st.sampled_from(["__null__", "x,i:1", "a/b", ":", "__HIVE_DEFAULT_PARTITION__"]),
        "i": st.none() | st.integers(-(2**31), 2**31 - 1),
        "d": st.none() | st.dates(),
        "b": st.none() | st.booleans(),
        "t": st.none() | st.datetimes(),
        "n": st.none() | st.decimals(-999, 999, places=2).map(lambda number: number + Decimal("0.00")),
    }
)
KINDS = pa.schema(
    [("s", pa.string()), ("i", pa.int32()), ("d", pa.date32()), ("b", pa.bool_()), ("t", pa.timestamp("us")),
     ("n", pa.decimal128(5, 2))]
)  # fmt: skip


@settings(max_examples=30)
@given(st.lists(values, min_size=1, max_size=5), st.lists(st.sampled_from(KINDS.names), min_size=1, max_size=3))
def test_keys_of_many_rows_are_the_keys_of_each(rows: list[dict[str, object]], fields: list[str]) -> None:
    table = pa.Table.from_pylist(rows, KINDS)
    try:
        wanted = [record_key([row[field] for field in fields], fields) for row in rows]
    except InvalidRecords:
        with pytest.raises(InvalidRecords, match="null or empty|would be one row"):
            base_file.record_keys(table, fields)
    else:
        assert base_file.record_keys(table, fields).to_pylist() == wanted


@settings(max_examples=30)
@given(st.lists(values, max_size=5), st.lists(st.sampled_from(KINDS.names), max_size=3), st.booleans(), st.booleans())
def test_paths_of_many_rows_are_the_paths_of_each(
    rows: list[dict[str, object]],
    fields: list[str],
    hive: bool,
    encode: bool,
) -> None:
    style = PartitionStyle(tuple(fields), hive_style=hive, url_encode=encode)
    try:
        wanted = [path_for(style, [row[field] for field in fields]) for row in rows]
    except InvalidRecords:
        with pytest.raises(InvalidRecords, match="of partition column"):
            base_file.partition_paths(pa.Table.from_pylist(rows, KINDS), style)
    else:
        assert base_file.partition_paths(pa.Table.from_pylist(rows, KINDS), style).to_pylist() == wanted


def test_null_key_is_refused_with_its_row() -> None:
    table = pa.table({"id": ["a", None, "", "d"]})
    with pytest.raises(InvalidRecords, match="in 2 rows, the first is row 1"):
        base_file.record_keys(table, ["id"])


def test_missing_or_unfit_key_column_is_named() -> None:
    with pytest.raises(InvalidRecords, match="'id' is missing"):
        base_file.record_keys(pa.table({"x": [1]}), ["id"])
    with pytest.raises(InvalidRecords, match="'x' of type double"):
        base_file.record_keys(pa.table({"x": [1.5]}), ["x"])


def test_single_key_can_carry_its_name() -> None:
    assert base_file.record_keys(ROWS, ["id"], named=True).to_pylist() == ["id:a", "id:b"]


def test_categorical_key_is_its_value() -> None:
    assert base_file.record_keys(
        pa.table({"id": pa.array(["b", "a", "b"]).dictionary_encode()}), ["id"]
    ).to_pylist() == [
        "b",
        "a",
        "b",
    ]


def test_old_value_that_no_promotion_makes_is_corrupt() -> None:
    with pytest.raises(Corrupt, match="an old file does not fit the table: a: string does not fit int32"):
        read_as(pa.table({"a": ["1"]}), pa.schema([("a", pa.int32())]))
    assert read_as(pa.table({"a": [1]}), pa.schema([("b", pa.int8())])).to_pydict() == {"b": [None]}


# --- merging --------------------------------------------------------------------------------------------------------

Change = tuple[str, int | None, str]
changes = st.lists(
    st.tuples(keys_of, st.none() | st.integers(0, 3), st.text("xyz", max_size=2)), max_size=6, unique_by=lambda c: c[0]
)


def table_of(rows: list[Change]) -> pa.Table:
    return pa.table(
        {
            "id": pa.array([row[0] for row in rows], pa.string()),
            "ts": pa.array([row[1] for row in rows], pa.int64()),
            "v": pa.array([row[2] for row in rows], pa.string()),
        }
    )


def merged_by_hand(
    old: list[Change], new: list[Change], deleted: set[str], *, ordered: bool, ties_lose: bool = False
) -> tuple[dict[str, Change], int, int, int]:
    """One row at a time, with a dict; `ties_lose` is the deliberately wrong twin."""
    state = {row[0]: row for row in old}
    inserts = updates = 0
    for row in new:
        if row[0] in deleted:
            continue
        before = state.get(row[0])
        if before is None:
            inserts += 1
        elif ordered and None not in {before[1], row[1]} and before[1] + ties_lose > row[1]:
            continue
        else:
            updates += 1
        state[row[0]] = row
    gone = deleted & set(state)
    return {key: row for key, row in state.items() if key not in gone}, inserts, updates, len(gone)


@dataclass
class Merged:
    """A base file, and the plan by which it came from another one."""

    plan: merging.MergePlan
    data: bytes

    @property
    def file(self) -> pa.Table:
        return read_base_file(self.data)


def merged(old: bytes, upserts: pa.Table, deletes: pa.Array, ordering_field: str | None = None) -> Merged:
    file, keys = base_file.open_base_file(old), upserts["id"].combine_chunks()
    plan = merging.merge_plan(file, upserts, keys, deletes, ordering_field) or merging.untouched(file)
    plan = plan.with_new(keys, deletes)
    data = encoding.encode_base_file(
        merging.merged(file, plan, upserts, NEXT), upserts.schema, keys=plan.keys, partition="p=1", base_file=NEXT,
        table_name="t", known=None if plan.deletes else file,
    ).data  # fmt: skip
    return Merged(plan, data)


def merge(old: list[Change], new: list[Change], deleted: set[str], *, ordered: bool) -> Merged:
    gone = pa.array(sorted(deleted), pa.string())
    return merged(write(table_of(old)), table_of(new), gone, "ts" if ordered else None)


def seen(done: Merged) -> tuple[dict[str, Change], int, int, int]:
    rows = {row["id"]: (row["id"], row["ts"], row["v"]) for row in done.file.to_pylist()}
    return rows, done.plan.inserts, done.plan.updates, done.plan.deletes


@settings(max_examples=40)
@given(changes, changes, st.sets(keys_of, max_size=3), st.booleans(), st.integers(1, 3))
def test_merge_is_what_a_dict_would_do(
    old: list[Change], new: list[Change], deleted: set[str], ordered: bool, rows: int
) -> None:
    with pytest.MonkeyPatch.context() as patched:  # parts and row groups of a few rows
        for module, name, size in (
            (merging, "BATCH_ROWS", rows),
            (encoding, "BATCH_ROWS", 2),
            (base_file, "ROW_GROUP_ROWS", 2),
        ):
            patched.setattr(module, name, size)
        done = merge(old, new, deleted, ordered=ordered)
    assert seen(done) == merged_by_hand(old, new, deleted, ordered=ordered)
    assert done.plan.keys.to_pylist() == done.file["id"].to_pylist() == done.file["_hoodie_record_key"].to_pylist()
    footer = pq.ParquetFile(io.BytesIO(done.data)).metadata.metadata
    keys = done.plan.keys.to_pylist()
    assert footer[b"org.apache.hudi.bloomfilter"].decode() == bloom.encode_filter(keys)
    assert [footer.get(b"hoodie_min_record_key"), footer.get(b"hoodie_max_record_key")] == (
        [min(keys, key=java_order).encode(), max(keys, key=java_order).encode()] if keys else [None, None]
    )
    assert done.plan.changed == (done.plan.inserts + done.plan.updates + done.plan.deletes > 0)


def test_mutant_merge_where_ties_lose_is_caught() -> None:
    old, new = [("a", 1, "old")], [("a", 1, "new")]
    assert seen(merge(old, new, set(), ordered=True)) != merged_by_hand(old, new, set(), ordered=True, ties_lose=True)
    assert seen(merge(old, new, set(), ordered=True)) == merged_by_hand(old, new, set(), ordered=True)


def test_rows_left_alone_keep_their_commit_and_changed_ones_get_the_new() -> None:
    found = merge([("a", 1, "x"), ("b", 1, "x"), ("c", 9, "x")], [("b", 2, "y"), ("c", 2, "late"), ("d", 1, "z")],
                  {"a"}, ordered=True).file  # fmt: skip
    assert found.select(
        ["id", "v", "_hoodie_commit_time", "_hoodie_commit_seqno", "_hoodie_file_name"]
    ).to_pylist() == [
        dict(zip(["id", "v", "_hoodie_commit_time", "_hoodie_commit_seqno", "_hoodie_file_name"], row, strict=True))
        for row in [
            ("b", "y", NEXT.begin, f"{NEXT.begin}_0_0", NEXT.name),
            ("c", "x", BASE.begin, f"{BASE.begin}_3_2", NEXT.name),
            ("d", "z", NEXT.begin, f"{NEXT.begin}_0_2", NEXT.name),
        ]
    ]


def test_merge_brings_new_columns_and_refuses_to_lose_any() -> None:
    more = pa.table({"id": ["c"], "ts": pa.array([1], pa.int64()), "v": ["z"], "w": pa.array([5], pa.int32())})
    none = pa.array([], pa.string())
    assert merged(write(ROWS), more, none).file["w"].to_pylist() == [None, None, 5]
    assert merged(write(ROWS), more, none, "w").file["w"].to_pylist() == [None, None, 5]  # to be ordered by
    with pytest.raises(UnsupportedSchema, match=r"\['v'\] of the table are missing"):
        merged(write(ROWS), more.select(["id", "ts"]), none)


def test_merged_dictionary_columns_keep_no_unused_entry() -> None:
    keys = [f"{number:03}" for number in range(300)]
    old = write(table_of([(key, None, "old" if key < "200" else "new") for key in keys]))
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(merging, "BATCH_ROWS", 64)
        patched.setattr(base_file, "ROW_GROUP_ROWS", 150)
        changed = table_of([(key, None, "end") for key in keys[:100]] + [("300", 1, "end")])
        done = merged(old, changed, pa.array(keys[100:200]))
    assert done.file["v"].to_pylist() == ["end"] * 100 + ["new"] * 100 + ["end"]
    assert done.file["_hoodie_commit_time"].to_pylist() == [NEXT.begin] * 100 + [BASE.begin] * 100 + [NEXT.begin]
    again = pq.ParquetFile(io.BytesIO(done.data), read_dictionary=["v"]).read(["v"])["v"]
    assert [chunk.dictionary.to_pylist() for chunk in again.chunks] == [["end", "new"], ["new", "end"]]


@settings(max_examples=40)
@given(
    st.lists(st.tuples(keys_of, st.none() | st.integers(0, 3), st.text("xyz", max_size=2)), max_size=8), st.booleans()
)
def test_highest_and_then_last_of_duplicates_is_kept(
    rows: list[Change],
    ordered: bool,
) -> None:
    best: dict[str, tuple[int, int]] = {}
    for place, (key, order, _) in enumerate(rows):
        rank = -1 if order is None or not ordered else order
        best[key] = max(best.get(key, (-2, -2)), (rank, place))
    wanted = [rows[place] for place in sorted(place for _, place in best.values())]
    table = table_of(rows)
    kept, keys = merging.dedupe(table, table["id"].combine_chunks(), "ts" if ordered else None)
    assert [(row["id"], row["ts"], row["v"]) for row in kept.to_pylist()] == wanted
    assert keys.to_pylist() == [row[0] for row in wanted]


def test_rows_cannot_be_ordered_by_a_struct_or_a_missing_column() -> None:
    rows = pa.table({"id": ["a", "a"], "o": [{"x": 1}, {"x": 2}]})
    with pytest.raises(UnsupportedSchema, match=r"'o' of type struct.* cannot be compared"):
        merging.dedupe(rows, rows["id"].combine_chunks(), "o")
    with pytest.raises(InvalidRecords, match="'p' is missing"):
        merging.dedupe(rows, rows["id"].combine_chunks(), "p")


@pytest.mark.parametrize("where", [None, pc.field("id") == "a"])
def test_int96_timestamps_beyond_the_years_of_nanoseconds_are_read(where: Any, tmp_path: Path) -> None:
    times = [datetime(9999, 12, 31, tzinfo=timezone.utc), datetime(1500, 1, 1, tzinfo=timezone.utc)]
    columns = pa.schema([("id", pa.string()), ("at", pa.timestamp("us", "UTC"))])
    table = Table.create(str(tmp_path / "t"), TableSpec("t", columns, ("id",)))
    table.upsert(pa.table({"id": ["a", "b"], "at": times}, columns))
    (path,) = (tmp_path / "t").glob("*.parquet")
    pq.write_table(pq.read_table(path), path, use_deprecated_int96_timestamps=True)
    assert Table.open(table.url).to_arrow(filter=where).column("at").to_pylist() == times[: 2 if where is None else 1]
    assert (
        base_file.read_columns(base_file.open_base_file(str(path)), ["at"])
        .column("at")
        .cast(columns.field("at").type)
        .to_pylist()
        == times
    )


@pytest.mark.parametrize(("size", "count", "named"), [(1 << 30, 3, False), ((1 << 31) - 2, 1, True)])
def test_keys_of_two_gibibytes_in_one_call_are_refused(size: int, count: int, *, named: bool) -> None:
    text = pa.Array.from_buffers(pa.string(), 1, [None, pa.array([0, size], pa.int32()).buffers()[1], allocated(size)])
    with pytest.raises(InvalidRecords, match="'a' cannot be a key .* write fewer rows at once"):
        base_file.record_keys(pa.table({"a": pa.chunked_array([text] * count)}), ["a"], named=named)


def allocated(size: int) -> pa.Buffer:
    """Memory that nothing touches takes no page."""
    return pa.py_buffer(mmap(-1, size))
