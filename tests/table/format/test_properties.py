from __future__ import annotations

import shutil
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from table.jvm_written import TABLES, contents

from lockprovider.table.errors import Corrupt, UnsupportedTable
from lockprovider.table.format.compatibility import check_readable, check_writable
from lockprovider.table.format.properties import (
    TableConfig,
    checksum,
    encode_properties,
    escape_key,
    escape_value,
    pairs,
    parse_properties,
)

GOOD = TableConfig("t", ("id",), ("city",), ("ts",))
texts = st.text(st.characters(blacklist_categories=("Cs",)), max_size=20)


def jvm_file(table: str) -> bytes:
    return contents(table)[".hoodie/hoodie.properties"]


@pytest.mark.parametrize("table", TABLES)
def test_checksum_is_the_jvms(table: str) -> None:
    config = parse_properties(jvm_file(table))
    assert str(checksum(config.name, config.database)) == config.raw["hoodie.table.checksum"]


@pytest.mark.parametrize("table", TABLES)
def test_properties_of_the_jvm_survive_a_rewrite(table: str) -> None:
    before = dict(parse_properties(jvm_file(table)).raw)
    after = dict(parse_properties(encode_properties(parse_properties(jvm_file(table)))).raw)
    before.pop("hoodie.table.metadata.partitions.inflight", None)  # empty, and dropped with the metadata table
    stated_now = {"hoodie.populate.meta.fields": "true", "hoodie.table.base.file.format": "PARQUET"}
    assert after == stated_now | before


@pytest.mark.parametrize("table", TABLES)
def test_values_are_escaped_as_the_jvm_escapes_them(table: str) -> None:
    lines = {line for line in jvm_file(table).decode("ascii").splitlines() if line and not line.startswith("#")}
    ours = {f"{escape_key(key)}={escape_value(value)}" for key, value in parse_properties(jvm_file(table)).raw.items()}
    assert ours == lines


def test_wrong_checksum_is_corrupt() -> None:
    broken = encode_properties(GOOD).replace(b"hoodie.table.name=t", b"hoodie.table.name=u")
    with pytest.raises(Corrupt, match=r"hoodie\.table\.checksum"):
        parse_properties(broken)


@pytest.mark.parametrize("data", [b"", b"hoodie.table.type=COPY_ON_WRITE\n", b"hoodie.table.name=t\n"])
def test_half_a_file_is_corrupt(data: bytes) -> None:
    with pytest.raises(Corrupt, match=r"hoodie\.properties has"):
        parse_properties(data)


def test_new_table_is_written_and_read() -> None:
    found = parse_properties(encode_properties(GOOD))
    assert replace(found, raw={}, merge_mode=None, keygenerator="") == GOOD
    assert encode_properties(found) == encode_properties(GOOD)
    assert found.raw["hoodie.record.merge.strategy.id"] == "eeb8d96f-b1e4-49fd-bbf8-28ac514178e5"
    assert found.raw["hoodie.table.precombine.field"] == "ts"
    check_writable(found)


def test_new_table_of_version_8_has_all_properties_of_the_jvm() -> None:
    jvm = parse_properties(jvm_file("cow_v8_simplekeygen_nonhivestyle")).raw
    config = TableConfig("t", ("id",), ("city",), ("ts",), schema_json="{}", database="d")
    assert set(jvm) <= set(parse_properties(encode_properties(config)).raw)


def test_new_table_of_version_9_uses_its_own_names() -> None:
    found = parse_properties(encode_properties(replace(GOOD, version=9))).raw
    assert found["hoodie.table.ordering.fields"] == "ts"
    assert found["hoodie.table.format"] == "native"
    assert "hoodie.table.precombine.field" not in found
    assert "hoodie.record.merge.strategy.id" not in found


def test_retiring_the_metadata_table_takes_its_properties_away() -> None:
    mor = replace(parse_properties(jvm_file("mor_avro_v9_nonpartitioned_rollback")), metadata_partitions=("files",))
    assert "hoodie.table.metadata.partitions" in parse_properties(encode_properties(mor)).raw
    retired = parse_properties(
        encode_properties(replace(parse_properties(encode_properties(mor)), metadata_partitions=()))
    )
    assert not [key for key in retired.raw if key.startswith("hoodie.table.metadata.partitions")]


@pytest.mark.parametrize("table", ["cow_v8_nonpartitioned", "cow_v9_txns_simple_nometa"])
def test_plain_jvm_tables_can_be_written(table: str) -> None:
    check_writable(parse_properties(jvm_file(table)))


@pytest.mark.parametrize(
    ("config", "named"),
    [
        (replace(GOOD, version=6), r"hoodie\.table\.version=6 .*CALL upgrade_table.*'EIGHT'"),
        (replace(GOOD, version=10), r"hoodie\.table\.version=10 .*CALL downgrade_table.*'NINE'"),
        (replace(GOOD, layout_version=1), r"layout\.version=1"),
        (replace(GOOD, table_type="NO_TABLE"), r"NO_TABLE.*only COPY_ON_WRITE and MERGE_ON_READ"),
        (replace(GOOD, raw={"hoodie.table.base.file.format": "ORC"}), "ORC"),
        (
            replace(GOOD, raw={"hoodie.datasource.write.drop.partition.columns": "true"}),
            r"drop\.partition\.columns=true",
        ),
        (replace(GOOD, raw={"hoodie.populate.meta.fields": "false"}), r"populate\.meta\.fields=false"),
    ],
)
def test_tables_that_would_be_misread_are_refused_by_name(config: TableConfig, named: str) -> None:
    for check in (check_readable, check_writable):
        with pytest.raises(UnsupportedTable, match=named):
            check(config)


@pytest.mark.parametrize(
    ("config", "named"),
    [
        (replace(GOOD, metadata_partitions=("files",)), "hide these commits"),
        (replace(GOOD, timezone="LOCAL"), "LOCAL"),
        (replace(GOOD, record_keys=()), r"recordkey\.fields"),
        (replace(GOOD, keygenerator="TIMESTAMP"), "TIMESTAMP"),
        (replace(GOOD, partition_fields=("city:simple",)), "city:simple"),
        (replace(GOOD, ordering_fields=("a", "b")), "several fields"),
        (replace(GOOD, partition_fields=("city", "day"), keygenerator="SIMPLE"), "SIMPLE with .*city,day computes"),
        (replace(GOOD, record_keys=("id", "a.b")), "column a.b is nested"),
        (replace(GOOD, ordering_fields=("a.b",)), "column a.b is nested"),
        (replace(GOOD, merge_mode="CUSTOM"), "CUSTOM"),
        (replace(GOOD, merge_mode="EVENT_TIME_ORDERING", ordering_fields=()), "needs an ordering field"),
        (replace(GOOD, raw={"hoodie.table.keygenerator.class": "x.Y"}), r"x\.Y"),
        (
            replace(GOOD, raw={"hoodie.table.partial.update.mode": "IGNORE_DEFAULTS"}),
            "mode=IGNORE_DEFAULTS merges",
        ),
        (replace(GOOD, raw={"hoodie.record.merge.property.hoodie.payload.delete.marker": "D"}), "marker=D merges rows"),
        (replace(GOOD, metadata_inflight=("files",)), "hide these commits"),
    ],
)
def test_tables_that_a_write_would_damage_can_still_be_read(config: TableConfig, named: str) -> None:
    check_readable(config)
    with pytest.raises(UnsupportedTable, match=named):
        check_writable(config)


@pytest.mark.parametrize(
    ("keys", "partitions", "kind", "named"),
    [
        (("a",), (), "NON_PARTITION", False),
        (("a", "b"), (), "NON_PARTITION", False),
        (("a",), ("p",), "SIMPLE", False),
        (("a", "b"), ("p",), "COMPLEX", False),
        (("a",), ("p", "q"), "COMPLEX", True),
    ],
)
def test_key_generator_is_inferred_as_the_jvm_does(
    keys: tuple[str, ...], partitions: tuple[str, ...], kind: str, named: object
) -> None:
    config = TableConfig("t", keys, partitions)
    assert (config.keygenerator_type, config.names_single_key) == (kind, named)


@given(st.dictionaries(texts.filter(bool), texts, max_size=5))
def test_escapes_survive_a_round_trip(wanted: dict[str, str]) -> None:
    text = "".join(f"{escape_key(key)}={escape_value(value)}\n" for key, value in wanted.items())
    assert text.isascii()
    assert dict(pairs(text)) == wanted


def test_unusual_forms_of_the_format_are_read() -> None:
    text = "! note\n  # note\n\na b\nc:d\ne = f \\\n   g\\u00e9\nh\\=i\\ j=k\\\\\nlast\r\nx=\\ud83d\\ude00"
    assert dict(pairs(text)) == {
        "a": "b", "c": "d", "e": "f gé", "h=i j": "k\\", "last": "", "x": "😀",
    }  # fmt: skip


def test_java_reads_what_is_written(tmp_path: Path) -> None:
    java = shutil.which("java")
    if java is None:
        pytest.skip("no java on this machine")
    wanted = {"a b": " two  spaces", "é:=#!": "tab\t nl\n \\ 😀", "\x7f": "=", " x": "#"}
    text = "".join(f"{escape_key(key)}={escape_value(value)}\n" for key, value in wanted.items())
    (tmp_path / "p").write_text(text)
    (tmp_path / "P.java").write_text(
        "import java.util.*;import java.io.*;class P{public static void main(String[] a)throws Exception{"
        "var p=new Properties();p.load(new FileInputStream(a[0]));"
        'p.forEach((k,v)->System.out.println(HexFormat.of().formatHex((k+"\\0"+v).getBytes(java.nio.charset.'
        "StandardCharsets.UTF_8))));}}"
    )
    ran = subprocess.run(
        [java, str(tmp_path / "P.java"), str(tmp_path / "p")], capture_output=True, text=True, check=False
    )
    if ran.returncode and "compiler" in ran.stderr:
        pytest.skip("this java cannot compile")
    assert ran.returncode == 0, ran.stderr
    found = dict(bytes.fromhex(line).decode().split("\0") for line in ran.stdout.split())
    assert found == wanted
