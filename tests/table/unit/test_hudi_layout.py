from __future__ import annotations

import pickle
from datetime import date, datetime, timedelta, timezone
from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st
from jvm_written import TABLES, base_files, contents

from lockprovider.table import layout
from lockprovider.table.errors import InvalidRecords, WriteConflict
from lockprovider.table.layout import BaseFile, Marker, MarkerKind, PartitionStyle

BEGIN = "20250713010535797"
words = st.text("abcXYZ019-", min_size=1, max_size=8)
folders = st.text(st.characters(blacklist_characters="/", blacklist_categories=("Cs",)), min_size=1, max_size=8)


@pytest.mark.parametrize(("table", "path"), base_files())
def test_every_base_file_name_the_jvm_wrote_is_read_and_written_back(table: str, path: str) -> None:
    name = path.rsplit("/", 1)[-1]
    found = layout.parse_base_file(name)
    assert found is not None
    assert found.name == name
    assert found.begin.isdigit(), table


@pytest.mark.parametrize(
    "name",
    [
        ".036ded81-0_20251220210123755.log.1_0-1022-2928", ".hoodie_partition_metadata", "a_b_1.parquet.crc",
        ".a_b_1.parquet", "a_b_1.orc", "a_b_c_1.parquet", "a_b_x.parquet", "dir/a_b_1.parquet",
    ],
)  # fmt: skip
def test_other_files_are_no_base_files(name: str) -> None:
    assert layout.parse_base_file(name) is None


@given(words, words, st.integers(0, 10**17 - 1))
def test_base_file_names_go_both_ways(file_id: str, token: str, begin: int) -> None:
    base = BaseFile(file_id, token, f"{begin:017d}")
    assert layout.parse_base_file(base.name) == base


@given(st.lists(folders, max_size=3).map("/".join), words, st.sampled_from(MarkerKind))
def test_marker_paths_go_both_ways(partition: str, name: str, kind: MarkerKind) -> None:
    path = layout.marker_path(BEGIN, partition, f"{name}.parquet", kind)
    if any(char in partition for char in "\n\r\x0b\x0c\x1c\x1d\x1e\x85\u2028\u2029"):
        return  # no store takes such names; see the partition test for what is refused
    assert layout.parse_marker(path) == Marker(BEGIN, partition, f"{name}.parquet", kind)
    assert layout.parse_marker(f"bucket/table/{path}") == Marker(BEGIN, partition, f"{name}.parquet", kind)


def test_a_marker_is_where_the_jvm_looks_for_it() -> None:
    path = layout.marker_path(BEGIN, "city=x", "f-0_0-1-2_9.parquet", MarkerKind.MERGE)
    assert path == f".hoodie/.temp/{BEGIN}/city=x/f-0_0-1-2_9.parquet.marker.MERGE"
    found = layout.parse_marker(path)
    assert found is not None
    assert found.data_path == "city=x/f-0_0-1-2_9.parquet"
    assert layout.parse_marker(f".hoodie/.temp/{BEGIN}/MARKERS.type") is None


@pytest.mark.parametrize("table", TABLES)
def test_the_partition_metafile_says_what_the_jvms_says(table: str) -> None:
    seen = 0
    for path, theirs in contents(table).items():
        partition, _, name = path.rpartition("/")
        if name != layout.PARTITION_METAFILE or partition.startswith(".hoodie"):
            continue
        lines = theirs.decode().splitlines()
        begin = next(line for line in lines if line.startswith("commitTime=")).removeprefix("commitTime=")
        ours_path, ours = layout.partition_metafile(partition, begin)
        assert ours_path == path
        stated = {line for line in lines if not line.startswith("#")}
        assert {line for line in ours.decode().splitlines() if not line.startswith("#")} == stated
        seen += 1
    assert seen >= 1


def test_the_depth_counts_the_levels() -> None:
    assert b"partitionDepth=2\n" in layout.partition_metafile("a=1/b=2", BEGIN)[1]


@pytest.mark.parametrize(
    ("style", "values", "path"),
    [
        (PartitionStyle(("city",)), ["oslo"], "city=oslo"),
        (PartitionStyle(("city",), hive_style=False), ["oslo"], "oslo"),
        (PartitionStyle(("city",)), [None], "city=__HIVE_DEFAULT_PARTITION__"),
        (PartitionStyle(("city",), hive_style=False), [""], "__HIVE_DEFAULT_PARTITION__"),
        (PartitionStyle(("y", "m")), [2013, 1], "y=2013/m=1"),
        (PartitionStyle(("y", "m"), hive_style=False), [2013, None], "2013/__HIVE_DEFAULT_PARTITION__"),
        (PartitionStyle(("day",), url_encode=True), ["2013/01:é {x}"], "day=2013%2F01%3Aé %7Bx}"),
        (PartitionStyle(("day",)), [date(2013, 1, 9)], "day=2013-01-09"),
        (PartitionStyle(("flag",)), [True], "flag=true"),
        (PartitionStyle(), [], ""),
    ],
)
def test_partition_paths_are_the_jvms(style: PartitionStyle, values: list[object], path: str) -> None:
    assert style.path_for(values) == path


@given(st.lists(st.none() | st.text(min_size=1), min_size=1, max_size=3), st.booleans())
def test_encoded_partition_paths_go_both_ways(values: list[str | None], hive: bool) -> None:
    style = PartitionStyle(("a", "b", "c")[: len(values)], hive_style=hive, url_encode=True)
    if not hive and ".." in values:
        return
    if any(value == layout.DEFAULT_PARTITION for value in values):
        return
    assert style.values_of(style.path_for(values)) == tuple(values)


@pytest.mark.parametrize("value", ["..", "a/../../b", "..\\x"])
def test_a_partition_does_not_leave_the_table(value: str) -> None:
    with pytest.raises(InvalidRecords, match="leaves the table"):
        PartitionStyle(("p",), hive_style=False).path_for([value])


def test_one_key_field_is_its_value_and_several_are_named() -> None:
    assert layout.record_key(["x"], ["id"]) == "x"
    assert layout.record_key(["x"], ["id"], named=True) == "id:x"
    assert layout.record_key([1, None, ""], ["a", "b", "c"]) == "a:1,b:__null__,c:__empty__"


@pytest.mark.parametrize(("values", "fields"), [([None], ["id"]), ([""], ["id"]), ([None, ""], ["a", "b"])])
def test_a_key_of_nothing_is_refused(values: list[object], fields: list[str]) -> None:
    with pytest.raises(InvalidRecords, match="null or empty"):
        layout.record_key(values, fields)


def test_values_have_hudis_text_form() -> None:
    moment = datetime(1970, 1, 1, 1, 0, 0, 7, tzinfo=timezone(timedelta(hours=1)))
    assert layout.text_of(moment, "t") == "7"
    assert layout.text_of(moment.replace(tzinfo=None), "t") == "3600000007"
    assert layout.text_of(Decimal("1.50"), "d") == "1.50"
    with pytest.raises(InvalidRecords, match="'f' of type float"):
        layout.text_of(1.5, "f")


def test_a_conflict_survives_the_way_from_a_worker_process() -> None:
    error = WriteConflict(BEGIN, f"{BEGIN}_{BEGIN}.commit", (("city=x", "f-0"),))
    copy = pickle.loads(pickle.dumps(error))
    assert (copy.instant, copy.lost_to, copy.file_groups) == (error.instant, error.lost_to, error.file_groups)
    assert str(copy) == str(error)
    assert "city=x/f-0" in str(copy)
