from __future__ import annotations

import pickle
import posixpath
from datetime import date

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from table.jvm_written import TABLES, base_files, contents
from table.key_texts import path_for

from lockprovider.table.errors import InvalidRecords, WriteConflict
from lockprovider.table.format import keygen, layout
from lockprovider.table.format.keygen import PartitionStyle
from lockprovider.table.format.layout import BaseFile, Marker, MarkerKind

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
def test_base_file_names_survive_a_round_trip(file_id: str, token: str, begin: int) -> None:
    base = BaseFile(file_id, token, f"{begin:017d}")
    assert layout.parse_base_file(base.name) == base


@given(st.lists(folders, max_size=3).map("/".join), words, st.sampled_from(MarkerKind))
def test_marker_paths_survive_a_round_trip(partition: str, name: str, kind: MarkerKind) -> None:
    path = layout.marker_path(BEGIN, partition, f"{name}.parquet", kind)
    if any(char in partition for char in "\n\r\x0b\x0c\x1c\x1d\x1e\x85\u2028\u2029"):
        return  # no store takes such names; see the partition test for what is refused
    assert layout.parse_marker(path) == Marker(BEGIN, partition, f"{name}.parquet", kind)
    assert layout.parse_marker(f"bucket/table/{path}") == Marker(BEGIN, partition, f"{name}.parquet", kind)


def test_marker_is_where_the_jvm_looks_for_it() -> None:
    path = layout.marker_path(BEGIN, "city=x", "f-0_0-1-2_9.parquet", MarkerKind.MERGE)
    assert path == f".hoodie/.temp/{BEGIN}/city=x/f-0_0-1-2_9.parquet.marker.MERGE"
    found = layout.parse_marker(path)
    assert found is not None
    assert found.data_path == "city=x/f-0_0-1-2_9.parquet"
    assert layout.parse_marker(f".hoodie/.temp/{BEGIN}/MARKERS.type") is None


def test_marker_objects_survive_a_round_trip() -> None:
    names = [layout.marker_name("city=x", f"f-{n}_0-1-2_9.parquet", MarkerKind.CREATE) for n in range(3)]
    path, data = layout.markers_file(BEGIN, 12, names)
    assert layout.is_markers_file(path)
    assert not layout.is_markers_file(layout.markers_type(BEGIN)[0])
    assert [marker.data_path for marker in layout.markers_in(path, data)] == [
        f"city=x/f-{n}_0-1-2_9.parquet" for n in range(3)
    ]


@pytest.mark.parametrize("table", TABLES)
def test_partition_metafile_equals_the_jvms(table: str) -> None:
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


def test_partition_depth_counts_the_levels() -> None:
    assert b"partitionDepth=2\n" in layout.partition_metafile("a=1/b=2", BEGIN)[1]


@pytest.mark.parametrize(
    ("style", "values", "path"),
    [
        (PartitionStyle(("city",)), ["oslo"], "city=oslo"),
        (PartitionStyle(("city",), hive_style=False), ["oslo"], "oslo"),
        (PartitionStyle(("city",)), [None], "city=__HIVE_DEFAULT_PARTITION__"),
        (PartitionStyle(("city",), hive_style=False), [None], "__HIVE_DEFAULT_PARTITION__"),
        (PartitionStyle(("day",), hive_style=False), ["2013/01/09"], "2013/01/09"),
        (PartitionStyle(("day",)), ["2013/01/09"], "day=2013/01/09"),
        (PartitionStyle(("y", "m")), [2013, 1], "y=2013/m=1"),
        (PartitionStyle(("y", "m"), hive_style=False), [2013, None], "2013/__HIVE_DEFAULT_PARTITION__"),
        (PartitionStyle(("day",), url_encode=True), ["2013/01:é {x}"], "day=2013%2F01%3Aé %7Bx}"),
        (PartitionStyle(("day",)), [date(2013, 1, 9)], "day=2013-01-09"),
        (PartitionStyle(("flag",)), [True], "flag=true"),
        (PartitionStyle(), [], ""),
    ],
)
def test_partition_paths_are_the_jvms(style: PartitionStyle, values: list[object], path: str) -> None:
    assert path_for(style, values) == path


texts = st.text(st.characters(exclude_categories=("Cs",))) | st.text("a.:/%=4\t1", max_size=5)


@example(["\x85"], False, True)
@given(st.lists(st.none() | texts, min_size=1, max_size=3), st.booleans(), st.booleans())
def test_accepted_partition_path_is_normal_and_returns_its_values(
    values: list[str | None], hive: bool, encode: bool
) -> None:
    style = PartitionStyle(("a", "b", "c")[: len(values)], hive_style=hive, url_encode=encode)
    try:
        path = path_for(style, values)
    except InvalidRecords:
        blank = not hive and (values[0] or "")[:1].isspace()  # some stores cut off the first blank of a path
        assert blank or any(value is not None and (value in REFUSED or not encode) for value in values)
        return
    assert path == posixpath.normpath(path)
    assert not path.startswith("/")
    assert ".hoodie" not in path.split("/")
    assert not any(character < " " or character in "\x7f:" for character in path)
    assert style.values_of(path) == tuple(values)


REFUSED = ["", ".", "..", ".hoodie", ".hoodie_partition_metadata", "__HIVE_DEFAULT_PARTITION__"]
ODD = [
    *("/", "a/", "/a", "a//b", "./a", "a/.", "a/..", "../x", "http://x", "a:b", "x/a:b", ".hoodie/x", "a/.hoodie/x"),
    *("\x00", "a\tb", "\n", "\x7f", "%2F", "a%41", "p=a", "="),
]


@pytest.mark.parametrize("value", [*REFUSED, *ODD])
def test_partition_value_that_readers_would_misread_is_refused_by_name(value: str) -> None:
    with pytest.raises(InvalidRecords) as refused:
        path_for(PartitionStyle(("p",), hive_style=False), [value])
    assert f"value {value!r} of partition column 'p'" in str(refused.value)
    assert ("TableSpec.url_encode" in str(refused.value)) == (value in ODD)
    assert str(refused.value).endswith("change the value")


@pytest.mark.parametrize("value", ODD)
def test_most_refused_partition_values_work_with_url_encoding(value: str) -> None:
    for hive in (False, True):
        style = PartitionStyle(("p",), hive_style=hive, url_encode=True)
        assert style.values_of(path_for(style, [value])) == (value,)


def test_ambiguous_slash_in_a_partition_value_is_refused() -> None:
    with pytest.raises(InvalidRecords, match="value 'a/b' of partition column 'p' has a '/'"):
        path_for(PartitionStyle(("p", "q"), hive_style=False), ["a/b", "c"])


def test_key_of_several_fields_names_them() -> None:
    assert keygen.key_of_texts(["1", None, ""], ["a", "b", "c"]) == "a:1,b:__null__,c:__empty__"


@pytest.mark.parametrize(
    ("values", "others"),
    [
        (["x,b:y", "z"], "{'a': 'x', 'b': 'y,b:z'}"),
        (["__null__", "z"], "{'a': None, 'b': 'z'}"),
        (["x", "__empty__"], "{'a': 'x', 'b': ''}"),
    ],
)
def test_ambiguous_composite_key_is_refused_with_both_values(values: list[str], others: str) -> None:
    with pytest.raises(InvalidRecords, match="which would be one row; change the value") as refused:
        keygen.key_of_texts(values, ["a", "b"])
    assert others in str(refused.value)
    assert str(dict(zip(["a", "b"], values, strict=True))) in str(refused.value)


@given(st.lists(st.none() | st.text("ab:,_") | st.sampled_from(["x,b:y", "__null__"]), min_size=4, max_size=4))
def test_composite_keys_are_equal_only_if_their_values_are(values: list[str | None]) -> None:
    first, second = values[:2], values[2:]
    try:
        keys = [keygen.key_of_texts(pair, ["a", "b"]) for pair in (first, second)]
    except InvalidRecords:
        return
    assert (keys[0] == keys[1]) == (first == second)


def test_conflict_survives_pickling_from_a_worker_process() -> None:
    error = WriteConflict(BEGIN, f"{BEGIN}_{BEGIN}.commit", (("city=x", "f-0"),))
    copy = pickle.loads(pickle.dumps(error))
    assert (copy.instant, copy.lost_to, copy.file_groups) == (error.instant, error.lost_to, error.file_groups)
    assert str(copy) == str(error)
    assert "city=x/f-0" in str(copy)
