"""Log files: every one that the JVM wrote is read and written back byte for byte, and what is torn is no data."""

from __future__ import annotations

import io
import json
import re
import struct
from datetime import date, datetime, timezone
from decimal import Decimal

import fastavro
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from table.mor_written import LOGS, NAMES, log_files, table

from lockprovider.table.errors import Corrupt, UnsupportedSchema, UnsupportedTable
from lockprovider.table.format import layout, schema
from lockprovider.table.format.log_block import (
    MAGIC,
    BlockKind,
    Header,
    LogBlock,
    LogDelete,
    decode_avro,
    decode_blocks,
    decode_deletes,
    effective,
    encode_avro,
    encode_blocks,
    encode_deletes,
    ordering_values,
    wrapper_of,
)

BEGIN = "20261122013243900"
DAY = 86_400_000_000


def a_block(instant: str = BEGIN, content: bytes = b"rows", kind: BlockKind = BlockKind.AVRO, **more: str) -> LogBlock:
    return LogBlock(kind, {Header.INSTANT_TIME: instant, **{Header[key]: text for key, text in more.items()}}, content)


def test_stored_log_files_of_all_kinds_exist() -> None:
    kinds = {block.kind for name, path in LOGS for block in decode_blocks(log_files(name)[path], path)}
    assert kinds == {BlockKind.AVRO, BlockKind.PARQUET, BlockKind.DELETE}
    assert len(NAMES) >= 13


@pytest.mark.parametrize(("name", "path"), LOGS)
def test_every_log_file_of_the_jvm_is_read_and_written_back(name: str, path: str) -> None:
    found = layout.parse_log_file(path.rpartition("/")[2])
    assert found is not None
    assert found.name == path.rpartition("/")[2]
    data = log_files(name)[path]
    blocks = decode_blocks(data, path)
    assert encode_blocks(blocks) == data
    for block in blocks:
        assert block.instant == found.begin
        if block.kind is BlockKind.AVRO:
            text = block.header[Header.SCHEMA]
            assert encode_avro(decode_avro(block.content, text, path), text) == block.content
        elif block.kind is BlockKind.DELETE:
            deletes = decode_deletes(block.content, path)
            values = [one.values[0] for one in deletes] if deletes[0].values else None
            wrapper = deletes[0].wrappers[0] if deletes[0].wrappers else ""
            keys = [one.key for one in deletes]
            assert encode_deletes(keys, deletes[0].partition, values, wrapper) == block.content


def test_every_data_file_of_the_jvm_is_known_by_its_name() -> None:
    for name in NAMES:
        files = [path.rpartition("/")[2] for path in table(name) if not path.startswith(".hoodie/")]
        assert {one for one in files if layout.data_file(one) is None} <= {layout.PARTITION_METAFILE}


# -- names -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name",
    [
        f"f-0_{BEGIN}.log.1_0-1-2",  # without its dot
        f".f-0_{BEGIN}.log.1_a-1-2",  # M7: with letters in the token the JVM takes it for no log, and reads old rows
        f".f-0_{BEGIN}.log.1",
        f".f-0_{BEGIN}.archive.1_0-1-2",
        f".f-0_{BEGIN}.log.1_0-1-2.crc",
        f".f-0_{BEGIN}.log.x_0-1-2",
    ],
)
def test_other_files_are_no_log_files(name: str) -> None:
    assert layout.parse_log_file(name) is None


def test_log_files_are_merged_in_the_order_of_begin_version_and_token() -> None:
    later = str(int(BEGIN) + 1)
    names = [(later, 1, "0-0-0"), (BEGIN, 10, "0-0-0"), (BEGIN, 2, "0-0-1"), (BEGIN, 2, "0-0-0")]
    files = [layout.LogFile("f-0", begin, version, token) for begin, version, token in names]
    assert sorted(files, key=lambda one: one.merge_order) == files[::-1]


def test_change_feed_log_is_recognised_by_its_name() -> None:
    found = layout.parse_log_file(f".f-0_{BEGIN}.log.1_0-1-2.cdc")
    assert found is not None
    assert found.is_cdc
    assert found.name.endswith(".cdc")


# -- blocks ------------------------------------------------------------------------------------------------------------


@given(
    st.lists(
        st.tuples(st.sampled_from([0, 1, 3, 5]), st.dictionaries(st.integers(0, 8), st.text(max_size=9)), st.binary()),
        max_size=4,
    )
)
def test_blocks_survive_a_round_trip(given_blocks: list[tuple[int, dict[int, str], bytes]]) -> None:
    blocks = tuple(LogBlock(BlockKind(kind), header, content) for kind, header, content in given_blocks)
    found = decode_blocks(encode_blocks(blocks), "log")
    assert found == blocks
    assert [list(one.header) for one in found] == [list(one.header) for one in blocks]


@given(st.data())
def test_torn_tail_reads_as_if_it_were_not_there(data: st.DataObject) -> None:
    whole = encode_blocks([a_block(content=b"one"), a_block(content=b"two")])
    torn = encode_blocks([a_block(content=b"three")])
    cut = data.draw(st.integers(0, len(torn) - 1))
    assert [one.content for one in decode_blocks(whole + torn[:cut], "log")] == [b"one", b"two"]


@given(st.integers(0, 60))
def test_block_appended_after_a_torn_one_is_read(cut: int) -> None:
    torn = encode_blocks([a_block(content=b"dead")])[: len(MAGIC) + cut]
    after = encode_blocks([a_block(content=b"alive")])
    assert [one.content for one in decode_blocks(torn + after, "log")] == [b"alive"]


def test_empty_log_file_has_no_blocks() -> None:
    assert decode_blocks(b"", "log") == ()


def test_invalid_log_file_is_refused_by_name() -> None:
    with pytest.raises(Corrupt, match="'some.log'"):
        decode_blocks(b"PAR1 and more", "some.log")


def test_block_of_an_unknown_kind_is_refused_with_the_next_step() -> None:
    data = encode_blocks([a_block()])
    unknown = data.replace((1).to_bytes(4, "big") + (3).to_bytes(4, "big"), (1).to_bytes(4, "big") + b"\0\0\0\x09", 1)
    with pytest.raises(UnsupportedTable, match="kind 9.*compact"):
        decode_blocks(unknown, "log")


def test_rollback_block_removes_earlier_blocks_of_its_target() -> None:
    rollback = LogBlock(
        BlockKind.COMMAND,
        {Header.INSTANT_TIME: "3", Header.TARGET_INSTANT_TIME: "2", Header.COMMAND_BLOCK_TYPE: "0"},
    )
    one, two, again = a_block("1"), a_block("2", b"gone"), a_block("2", b"again")
    assert effective([one, two, rollback]) == (one,)
    assert effective([one, two, rollback, again]) == (one, again)
    with pytest.raises(UnsupportedTable, match="command"):
        effective([LogBlock(BlockKind.COMMAND, {Header.COMMAND_BLOCK_TYPE: "7"})])


def test_log_compaction_stands_where_the_newest_of_its_instants_was() -> None:
    one, two, three = (a_block(str(number), bytes([number])) for number in (1, 2, 3))
    compacted = a_block("4", b"1+2", COMPACTED_BLOCK_TIMES="1,2")
    assert effective([one, two, three, compacted]) == (compacted, three)
    assert effective([three, compacted]) == (three, compacted)
    twice = a_block("5", b"1+2+3", COMPACTED_BLOCK_TIMES="4,3")
    assert effective([one, two, three, compacted, twice]) == (twice,)


def test_change_feed_blocks_have_no_rows() -> None:
    assert effective([a_block(kind=BlockKind.CDC), a_block(kind=BlockKind.CORRUPT)]) == ()


# -- rows --------------------------------------------------------------------------------------------------------------

INNER = pa.map_(pa.string(), pa.list_(pa.field("element", pa.int32())))
COLUMNS = pa.schema(
    [
        ("b", pa.bool_()), ("i", pa.int32()), ("l", pa.int64()), ("f", pa.float32()), ("d", pa.float64()),
        ("s", pa.string()), ("y", pa.binary()), ("day", pa.date32()), ("t", pa.timestamp("us", "UTC")),
        ("n", pa.timestamp("us")), ("c", pa.decimal128(12, 3)),
        ("list", pa.list_(pa.field("element", pa.timestamp("us", "UTC")))),
        ("map", pa.map_(pa.string(), pa.date32())),
        ("struct", pa.struct([("x", pa.int64()), ("inner", INNER)])),
    ]
)  # fmt: skip
moments = st.datetimes(datetime(1800, 1, 1), datetime(2300, 1, 1))  # noqa: DTZ001
utc = moments.map(lambda one: one.replace(tzinfo=timezone.utc))
days = st.dates(date(1800, 1, 1), date(2300, 1, 1))
ints = st.integers(-(2**31), 2**31 - 1)
some_rows = st.fixed_dictionaries(
    {
        name: st.none() | values
        for name, values in {
            "b": st.booleans(), "i": ints, "l": st.integers(-(2**63), 2**63 - 1),
            "f": st.floats(width=32, allow_nan=False),
            "d": st.floats(allow_nan=False), "s": st.text(), "y": st.binary(), "day": days, "t": utc, "n": moments,
            "c": st.decimals(-(10**8), 10**8, places=3), "list": st.lists(st.none() | utc, max_size=3),
            "map": st.dictionaries(st.text(), st.none() | days, max_size=3).map(lambda one: list(one.items())),
            "struct": st.fixed_dictionaries({"x": st.none() | ints, "inner": st.none() | st.just([("k", [1, None])])}),
        }.items()
    }
)  # fmt: skip


@given(st.lists(some_rows, max_size=4))
def test_rows_of_all_types_survive_a_round_trip(rows: list[dict[str, object]]) -> None:
    there = pa.Table.from_pylist(rows, schema=COLUMNS)
    text = schema.to_avro(COLUMNS, "t")
    back = decode_avro(encode_avro(there, text), text, "log")
    assert back.schema.names == COLUMNS.names
    assert back.cast(COLUMNS).equals(there)


def test_time_beyond_the_years_that_python_knows_is_read() -> None:
    columns = pa.schema([("t", pa.timestamp("us", "UTC"))])
    there = pa.table([pa.array([10_000 * 366 * DAY], pa.timestamp("us", "UTC"))], schema=columns)
    text = schema.to_avro(columns, "t")
    assert decode_avro(encode_avro(there, text), text, "log").equals(there)


def test_rows_that_do_not_fit_their_schema_are_refused_by_name() -> None:
    text = schema.to_avro(pa.schema([("s", pa.string())]), "t")
    content = encode_avro(pa.table({"s": ["a long enough text"]}), text)
    other = schema.to_avro(pa.schema([("l", pa.int64())]), "t")
    for bad, schema_json in ((content[:-3], text), (content, other), (content[:5], text)):
        with pytest.raises(Corrupt, match="'some.log'"):
            decode_avro(bad, schema_json, "some.log")
    with pytest.raises(UnsupportedTable, match="version 9"):
        decode_avro((9).to_bytes(4, "big") + content[4:], text, "some.log")


# -- deletes -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "values", "wrapper", "found"),
    [
        (pa.int32(), [7], "IntWrapper", 7),
        (pa.int64(), [7], "LongWrapper", 7),
        (pa.float32(), [0.5], "FloatWrapper", 0.5),
        (pa.float64(), [0.5], "DoubleWrapper", 0.5),
        (pa.string(), ["x"], "StringWrapper", "x"),
        (pa.date32(), [3], "IntWrapper", date(1970, 1, 4)),  # a date wrapper makes the JVM reader fail
        (pa.timestamp("us", "UTC"), [DAY], "LongWrapper", datetime(1970, 1, 2, tzinfo=timezone.utc)),  # likewise
    ],
)
def test_m5_delete_has_the_ordering_type_that_all_readers_take(
    kind: pa.DataType, values: list[object], wrapper: str, found: object
) -> None:
    assert wrapper_of(kind) == wrapper
    deletes = decode_deletes(encode_deletes(["k"], "p", values, wrapper), "log")
    assert deletes == (LogDelete("k", "p", tuple(values), (wrapper,)),)
    assert ordering_values(deletes, [pa.field("ts", kind)], "log")[0].to_pylist() == [found]


@pytest.mark.parametrize(
    ("column", "wrapper", "value"), [(pa.int32(), "LongWrapper", 5), (pa.int64(), "StringWrapper", "5")]
)
def test_m5_delete_of_another_type_than_the_column_is_refused(column: pa.DataType, wrapper: str, value: object) -> None:
    deletes = decode_deletes(encode_deletes(["k"], "p", [value], wrapper), "some.log")
    with pytest.raises(Corrupt, match=f"'some.log'.*'k'.*{wrapper}.*roll"):
        ordering_values(deletes, [pa.field("ts", column)], "some.log")


def test_delete_without_value_or_with_int_0_wins_over_all_earlier_rows() -> None:
    always = LogDelete("k", "p")
    assert decode_deletes(encode_deletes(["k"], "p", None), "log") == (always,)
    assert decode_deletes(encode_deletes(["k"], "p", [0], "IntWrapper"), "log") == (always,)
    assert decode_deletes(encode_deletes(["k"], "p", [0], "LongWrapper"), "log") != (always,)


@pytest.mark.parametrize(
    ("value", "data"),
    [("2.500", "08e1bc9bf04000"), ("-3.250", "f47424687ae000"), ("0.000", "00"), ("-0.001", "ff172b5af000")],
)
def test_m5_decimal_is_stored_with_fifteen_fraction_digits(value: str, data: str) -> None:
    column = pa.field("ts", pa.decimal128(12, 3))
    assert wrapper_of(column.type) == "DecimalWrapper"
    deletes = decode_deletes(encode_deletes(["k"], "p", [Decimal(value)], "DecimalWrapper"), "log")
    assert deletes == (LogDelete("k", "p", (bytes.fromhex(data),), ("DecimalWrapper",)),)
    assert ordering_values(deletes, [column], "log")[0].to_pylist() == [Decimal(value)]


def test_jvm_delete_has_a_value_for_each_ordering_column() -> None:
    """As JVM Hudi 1.2 has written it; the list is nullable there, and would else be read as other numbers."""
    jvms = bytes.fromhex("000000030000001e0402023402026118020406020404000202350202611802040602040000" + "00")
    deletes = decode_deletes(jvms, "log")
    assert [(one.key, one.values) for one in deletes] == [("4", (1, 2)), ("5", (1, 0))]
    assert {one.wrappers for one in deletes} == {("LongWrapper", "IntWrapper")}
    columns = [pa.field("ts", pa.int64()), pa.field("seq", pa.int32())]
    assert [one.to_pylist() for one in ordering_values(deletes, columns, "log")] == [[1, 1], [2, 0]]


@pytest.mark.parametrize("kind", [pa.decimal128(20, 2), pa.decimal128(20, 16), pa.binary()])
def test_column_that_cannot_order_deletes_is_refused(kind: pa.DataType) -> None:
    with pytest.raises(UnsupportedSchema, match=re.escape(str(kind))):
        wrapper_of(kind)


def test_damaged_deletes_are_refused_by_name() -> None:
    content = encode_deletes(["a key"], "p", None)
    with pytest.raises(Corrupt, match="'some.log'"):
        decode_deletes(content[:-4], "some.log")
    with pytest.raises(UnsupportedTable, match="version 2"):
        decode_deletes((2).to_bytes(4, "big") + content[4:], "some.log")


def test_decimals_are_whole() -> None:
    columns = pa.schema([("c", pa.decimal128(38, 10))])
    there = pa.table(
        [pa.array([Decimal("12345678901234567890.0123456789"), None], pa.decimal128(38, 10))], schema=columns
    )
    text = schema.to_avro(columns, "t")
    assert decode_avro(encode_avro(there, text), text, "log").equals(there)


def test_avro_rows_of_the_jvm_s_types_are_read_by_their_schema() -> None:
    """Enums, UUIDs, both kinds of decimals and millisecond times, which other readers took for nulls or failed at."""
    kinds = {
        "kind": {"type": "enum", "name": "Kind", "symbols": ["A", "B"]},
        "uuid": {"type": "string", "logicalType": "uuid"},
        "price": {"type": "bytes", "logicalType": "decimal", "precision": 10, "scale": 2},
        "total": {"type": "fixed", "name": "Total", "size": 9, "logicalType": "decimal", "precision": 20, "scale": 2},
        "at": {"type": "long", "logicalType": "timestamp-millis"},
    }
    avro = {"type": "record", "name": "r", "fields": [{"name": name, "type": kind} for name, kind in kinds.items()]}
    text = "0f0e0d0c-0000-0000-0000-000000000001"
    at = datetime(2024, 7, 10, 1, 2, 3, 4000, tzinfo=timezone.utc)
    row = {"kind": "B", "uuid": text, "price": Decimal("-12.34"), "total": Decimal("123456789012345678.90"), "at": at}
    datum = io.BytesIO()
    fastavro.schemaless_writer(datum, fastavro.parse_schema(avro), row)
    content = struct.pack(">iii", 3, 1, datum.tell()) + datum.getvalue()
    assert decode_avro(content, json.dumps(avro), "x").to_pylist() == [row]
