"""Partition values of any text: what is written is found again, here and by hudi-rs; what would not be is refused."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hudi import HudiReadOptions, HudiTableBuilder
from hypothesis import given, settings
from hypothesis import strategies as st
from table.asked_for import at_rest
from table.tables import SCHEMA, SETTINGS, by_hudi_rs, content, orphans, rows

from lockprovider.table import InvalidRecords, Table, TableSpec
from lockprovider.table.files import base_file
from lockprovider.table.format.keygen import PartitionStyle

Triple = tuple[int, str | None, int]
# Texts as they come, and those made of what paths, URLs and Hudi have a use for.
texts = st.text(st.characters(exclude_categories=("Cs",)), max_size=12) | st.text("a./:%2F=\\\t ", max_size=6)
values = (
    st.none() | texts | st.sampled_from([".hoodie", "a/b", "p=a", "__HIVE_DEFAULT_PARTITION__", "http://x", "x" * 200])
)


def made(folder: str, *, hive: bool, encode: bool) -> Table:
    spec = TableSpec("t", SCHEMA, ("id",), ("part",), hive_style=hive, url_encode=encode)
    return Table.create(folder, spec, settings=SETTINGS)


@settings(max_examples=5)
@given(st.lists(values, min_size=1, max_size=4, unique=True), st.booleans(), st.booleans())
def test_accepted_row_is_found_changed_and_deleted_in_any_partition(
    parts: list[str | None], hive: bool, encode: bool
) -> None:
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        table = made(f"{folder}/t", hive=hive, encode=encode)
        there: set[Triple] = set()
        before = files_in(folder)
        for key, part in enumerate(parts):
            if refusal(table, [*(other for _, other, _ in there), part]) is None:
                there.add((key, part, key))
            else:
                with pytest.raises(InvalidRecords, match="partition"):
                    table.append(rows(*there, (key, part, key)))
        assert files_in(folder) == before
        table.append(rows(*there))
        assert content(table) == by_hudi_rs(table.url) == there
        for key, part, value in there:
            assert selected_by_us(table, part) == {(key, part, value)}
            if part is not None:
                assert selected_by_hudi_rs(table, part) == {(key, part, value)}
        changed = {(key, part, value + 10) for key, part, value in there}
        other = Table.open(table.url, settings=SETTINGS)
        other.upsert(rows(*changed))
        assert content(table) == by_hudi_rs(table.url) == changed
        assert other.delete(rows(*changed)).deleted == len(changed)
        assert content(table) == by_hudi_rs(table.url) == set()
        assert orphans(Path(folder) / "t") == set()


def refusal(table: Table, parts: list[str | None]) -> InvalidRecords | None:
    style = table.config().partition_style
    try:
        style.check_apart([style.folder_for("part", part) for part in parts])
    except InvalidRecords as refused:
        return refused
    return None


def selected_by_us(table: Table, part: str | None) -> set[Triple]:
    where = pc.field("part").is_null() if part is None else pc.field("part") == part
    return {tuple(row.values()) for row in table.to_arrow(filter=where).to_pylist()}


def selected_by_hudi_rs(table: Table, part: str) -> set[Triple]:
    options = HudiReadOptions(filters=[("part", "=", part)])
    batches = HudiTableBuilder.from_base_uri(table.url).build().read(options)
    return {tuple(row[name] for name in SCHEMA.names) for batch in batches for row in batch.to_pylist()}


def files_in(folder: str) -> set[Path]:
    return {path for path in Path(folder).rglob("*") if path.is_file()}


@pytest.mark.parametrize(("first", "second"), [("a", "a/b"), ("a/b", "a"), ("a/b/c", "a"), ("a", "a/b/c")])
@pytest.mark.parametrize("hive", [False, True])
def test_partition_inside_another_is_refused(tmp_path: Path, first: str, second: str, hive: bool) -> None:
    table = made(str(tmp_path / "t"), hive=hive, encode=False)
    table.append(rows((1, first, 1)))
    for other in (table, Table.open(table.url, settings=SETTINGS)):
        for write in (other.append, other.upsert):
            with pytest.raises(InvalidRecords, match="would be inside partition"):
                write(rows((2, second, 2), (3, "c", 3)))
    assert content(table) == by_hudi_rs(table.url) == {(1, first, 1)}
    table.append(rows((2, f"{first}x", 2)))
    assert content(table) == by_hudi_rs(table.url) == {(1, first, 1), (2, f"{first}x", 2)}


@pytest.mark.parametrize(("there", "new"), [("p05/x", "p{:02d}"), ("p05", "p{:02d}/x")])
def test_nested_partition_among_many_new_ones_is_refused(tmp_path: Path, there: str, new: str) -> None:
    table = made(str(tmp_path / "t"), hive=False, encode=False)
    table.append(rows((1, there, 1)))
    other = Table.open(table.url, settings=SETTINGS)
    for write in (other.append, other.upsert):
        with pytest.raises(InvalidRecords, match="partition 'p05/x' would be inside partition 'p05'"):
            write(rows(*((2 + n, new.format(n), n) for n in range(20))))
    assert (tmp_path / "t" / there / ".hoodie_partition_metadata").is_file()
    assert not (tmp_path / "t" / new.format(5) / ".hoodie_partition_metadata").exists()
    assert content(table) == {(1, there, 1)}


def test_two_nested_partitions_in_one_write_are_refused_before_any_write(tmp_path: Path) -> None:
    table = made(str(tmp_path / "t"), hive=False, encode=False)
    before = files_in(str(tmp_path))
    with pytest.raises(InvalidRecords, match="partition 'a/b/c' would be inside partition 'a'"):
        table.append(rows((1, "a", 1), (2, "a/b/c", 2)))
    assert files_in(str(tmp_path)) == before


def test_no_partition_is_inside_another_with_url_encoding(tmp_path: Path) -> None:
    table = made(str(tmp_path / "t"), hive=False, encode=True)
    table.append(rows((1, "a", 1), (2, "a/b", 2)))
    assert content(table) == by_hudi_rs(table.url) == {(1, "a", 1), (2, "a/b", 2)}


def test_rows_whose_keys_would_collide_are_refused_and_not_dropped(tmp_path: Path) -> None:
    schema = pa.schema([("a", pa.string()), ("b", pa.string()), ("n", pa.int64())])
    table = Table.create(str(tmp_path / "t"), TableSpec("t", schema, ("a", "b")), settings=SETTINGS)
    table.append(pa.table([["x"], ["y,b:z"], [1]], schema=schema))
    at_rest(table)
    before = files_in(str(tmp_path))
    for write in (table.append, table.upsert, table.delete):
        with pytest.raises(InvalidRecords, match="{'a': 'x,b:y', 'b': 'z'} and of {'a': 'x', 'b': 'y,b:z'}"):
            write(pa.table([["x", "x,b:y"], ["y,b:z", "z"], [1, 2]], schema=schema))
        with pytest.raises(InvalidRecords, match="{'a': 'x', 'b': '__null__'} and of {'a': 'x', 'b': None}"):
            write(pa.table([["x", "x"], [None, "__null__"], [1, 2]], schema=schema))
    assert files_in(str(tmp_path)) == before
    assert table.to_arrow().num_rows == 1


def test_pandas_append_of_a_nested_partition_is_refused(tmp_path: Path) -> None:
    table = made(str(tmp_path / "t"), hive=False, encode=False)
    with pytest.raises(InvalidRecords, match="value 'a:b' of partition column 'part' has ':'"):
        table.append(pd.DataFrame({"id": [1, 2], "part": ["fine", "a:b"], "value": [1, 2]}))
    assert content(table) == set()


@pytest.mark.parametrize("part", [".hoodie", "a\tb"])  # "a/" and "./a" are no path to any store
def test_mutant_without_the_refusal_loses_or_doubles_rows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, part: str
) -> None:
    monkeypatch.setattr(PartitionStyle, "fault_of", lambda *_: None)
    monkeypatch.setattr(PartitionStyle, "can_nest", property(lambda _: False))
    table = made(str(tmp_path / "t"), hive=False, encode=False)
    table.append(rows((1, part, 1)))
    other = Table.open(table.url, settings=SETTINGS)
    other.upsert(rows((1, part, 2)))
    found = content(Table.open(table.url, settings=SETTINGS))
    try:
        right = found == by_hudi_rs(table.url) == {(1, part, 2)}
    except Exception:  # noqa: BLE001 (hudi-rs has no type of its own for what it cannot read)
        right = False
    assert not right


def test_mutant_without_the_refusal_drops_one_of_two_colliding_rows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(base_file, "_refuse_ambiguous", lambda *_: None)
    schema = pa.schema([("a", pa.string()), ("b", pa.string())])
    table = Table.create(str(tmp_path / "t"), TableSpec("t", schema, ("a", "b")), settings=SETTINGS)
    table.upsert(pa.table([["x", "x,b:y"], ["y,b:z", "z"]], schema=schema))
    assert table.to_arrow().num_rows == 1


def test_url_encoding_property_of_hudi_is_obeyed(tmp_path: Path) -> None:
    made(str(tmp_path / "t"), hive=True, encode=True)
    text = (tmp_path / "t" / ".hoodie" / "hoodie.properties").read_text()
    assert "hoodie.datasource.write.partitionpath.urlencode=true\n" in text
    table = Table.open(str(tmp_path / "t"), settings=SETTINGS)
    table.append(rows((1, "a/b:c", 1)))
    assert (tmp_path / "t" / "part=a%2Fb%3Ac").is_dir()
