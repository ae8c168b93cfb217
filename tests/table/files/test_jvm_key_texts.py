"""Keys and partitions beside those of released JVM Hudi: the same text, or refused, whatever it was written by.

What the JVM makes was stored by `jvm/test_key_texts.py`, of four releases and every way to write.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from table.key_values import EMPTY, KINDS, NULL, TEXTS, VERSIONS, stored
from table.tables import SETTINGS

from lockprovider.table import InvalidRecords, Table, TableSpec, UnsupportedSchema, UnsupportedTable
from lockprovider.table.files import base_file
from lockprovider.table.format.keygen import PartitionStyle
from lockprovider.table.format.properties import TableConfig
from lockprovider.table.format.schema import refuse_timestamp_partitions

if TYPE_CHECKING:
    from pathlib import Path

REFUSED = "refused"
STORED = stored()
# What is written here is what these write; what others write is refused or told apart, see below.
NEWEST = VERSIONS[-2:]
TWO_SPELLINGS = {"timestamp", "timestamp_ntz"}


def groups(prefix: str) -> Iterator[tuple[str, dict[str, str], dict[str, Any]]]:
    """The types, texts and writers of a shape; without those that cannot write it."""
    for shape, alike in STORED.items():
        if shape.startswith(f"{prefix}: "):
            for group in alike:
                if "error" not in group["texts"]:
                    yield shape.partition(": ")[2], group["texts"], group["by"]


def value_of(name: str, label: str) -> Any:
    return {NULL: None, EMPTY: ""}.get(label) if label in {NULL, EMPTY} else KINDS[name].values[label]


def our_key(name: str, label: str, *, others: bool) -> str:
    rows = pa.table({"id": ["0"], "k": pa.array([value_of(name, label)], KINDS[name].arrow)})
    try:
        key: str = base_file.record_keys(rows, ["id", "k"] if others else ["k"])[0].as_py()
    except InvalidRecords:
        return REFUSED
    return key.removeprefix("id:0,k:")


def our_partition(name: str, label: str) -> str:
    rows = pa.table({"p": pa.array([value_of(name, label)], KINDS[name].arrow)})
    try:
        refuse_timestamp_partitions("t", rows.schema, ["p"])
        path: str = base_file.partition_paths(rows, PartitionStyle(("p",)))[0].as_py()
    except (InvalidRecords, UnsupportedSchema):
        return REFUSED
    return path.removeprefix("p=")


def test_key_texts_of_all_releases_and_types_are_stored() -> None:
    for shape in ("composite key", "composite partition"):
        for name in KINDS.keys() - {"bytes"}:
            found = {version for other, _, by in groups(shape) if other == name for version in by}
            # Releases before 1.1 cannot write a timestamp without a zone.
            assert found == set(NEWEST if name == "timestamp_ntz" else VERSIONS), (shape, name)
    for name in ("timestamp", "date", "decimal of many places", "bytes"):
        assert {version for other, _, by in groups("simple key") if other == name for version in by} == set(VERSIONS)


@pytest.mark.parametrize("shape", ["composite key", "simple key"])
def test_key_has_the_text_of_all_releases_or_is_refused(shape: str) -> None:
    refused = set()
    for name, texts, _ in groups(shape):
        ours = {label: our_key(name, label, others=shape == "composite key") for label in texts}
        if REFUSED in ours.values():
            refused.add(name)
            assert {text for label, text in ours.items() if label != NULL} == {REFUSED}
        elif name not in TWO_SPELLINGS:
            assert ours == texts, name
    assert refused <= {"float", "double", "bytes"}


@pytest.mark.parametrize("shape", ["composite key", "simple key"])
@pytest.mark.parametrize("version", VERSIONS)
def test_time_in_a_key_has_the_text_that_upsert_gives_it(shape: str, version: str) -> None:
    for name, texts, by in groups(shape):
        if name in TWO_SPELLINGS and "upsert" in by.get(version, ()):
            assert {label: our_key(name, label, others=shape == "composite key") for label in texts} == texts


@pytest.mark.parametrize("shape", ["composite partition", "simple partition"])
def test_partition_has_the_path_of_all_releases_or_is_refused(shape: str) -> None:
    refused = set()
    for name, texts, _ in groups(shape):
        ours = {label: our_partition(name, label) for label in texts}
        refused |= {name if label != EMPTY else EMPTY for label, text in ours.items() if text == REFUSED}
        assert {label: text for label, text in texts.items() if ours[label] != REFUSED} == {
            label: text for label, text in ours.items() if text != REFUSED
        }, name
    assert refused <= {"float", "double", "bytes", *TWO_SPELLINGS, EMPTY}


def test_encoded_partition_has_the_path_of_all_releases() -> None:
    ours = {label: PartitionStyle(("p",), url_encode=True).folder_for("p", text)[2:] for label, text in TEXTS.items()}
    assert [group["texts"] for group in STORED["encoded partition"]] == [ours]


@pytest.mark.parametrize("version", NEWEST)
def test_key_of_one_column_and_two_partitions_has_the_newest_form(version: str) -> None:
    config = TableConfig("t", ("k",), ("p", "q"), version=9)
    rows = pa.table({"k": ["a"]})
    for group in STORED["one key of two partitions"]:
        if version in group["by"]:
            ours = base_file.record_keys(rows, ["k"], named=config.names_single_key)
            assert group["texts"] == {"'a'": ours[0].as_py()}


def test_every_spelling_of_a_single_column_key_is_compared_with_files() -> None:
    config, rows = TableConfig("t", ("k",), ("p", "q")), pa.table({"k": ["a"]})
    ours = {
        base_file.record_keys(rows, ["k"], named=replace(config, key_is_named=named).names_single_key)[0].as_py()
        for named in (False, True)
    }
    shapes = [alike for shape, alike in STORED.items() if shape.startswith("one key of two partitions")]
    assert {text for alike in shapes for group in alike for text in group["texts"].values()} == ours


def others() -> list[Any]:
    """Times in keys as some writer spells them, and we do not."""
    found = {
        (name, label, text): None
        for name, texts, _ in groups("composite key")
        for label, text in texts.items()
        if name in TWO_SPELLINGS and label != NULL and text != our_key(name, label, others=True)
    }
    flink = ("timestamp", "'2016-12-29T09:54:00Z'", "2016-12-29T09:54")  # bulk_insert before HUDI-5729
    return [pytest.param(*case, id=f"{case[0]}-{case[2]}") for case in (*found, flink)]


@pytest.mark.parametrize(("name", "label", "text"), others())
def test_table_with_another_spelling_of_a_time_is_refused_for_writing(
    tmp_path: Path, name: str, label: str, text: str
) -> None:
    kind = KINDS[name]
    rows = pa.table({"at": pa.array([kind.values[label]], kind.arrow), "v": [1]})
    url = str(tmp_path / "t")
    Table.create(url, TableSpec("t", rows.schema, ("at",)), settings=SETTINGS).append(rows)
    for path in tmp_path.rglob("*.parquet"):
        there = pq.read_table(path, partitioning=None)
        place = there.column_names.index("_hoodie_record_key")
        pq.write_table(there.set_column(place, "_hoodie_record_key", pa.array([text])), path)
    with pytest.raises(UnsupportedTable, match="where \\['at'\\] makes"):
        Table.open(url, settings=SETTINGS).upsert(rows)
