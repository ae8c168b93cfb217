"""Rows that have one of some keys: by numbers they are those that are found by texts, and what is no number is not."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from lockprovider.table import Table, TableSpec
from lockprovider.table.errors import Corrupt
from lockprovider.table.files.keys import KeyFile, NumberMatch, TextMatch, number_match, text_match
from lockprovider.table.files.merge_log import MergeRule
from lockprovider.table.files.place import FooterNote, TablePlace
from lockprovider.table.files.slice_rows import columns_to_merge
from lockprovider.table.format.properties import TableConfig
from lockprovider.table.format.schema import RECORD_KEY, with_meta

INT32, INT64 = st.integers(-(2**31), 2**31 - 1), st.integers(-(2**63), 2**63 - 1)
COLUMNS = pa.schema([("id", pa.int64())])


def stored(ids: list[int], kind: pa.DataType) -> pa.Table:
    return pa.table({RECORD_KEY: pa.array(map(str, ids), pa.string()), "id": pa.array(ids, kind)})


def met(match: NumberMatch | TextMatch | None, rows: pa.Table) -> list[tuple[int, int]]:
    assert match is not None
    return list(zip(*(found.tolist() for found in match.met(rows)), strict=True))


@given(st.data(), st.booleans())
def test_numbers_and_texts_of_keys_find_the_same_rows(data: st.DataObject, wide: bool) -> None:
    rows = stored(data.draw(st.lists(INT64 if wide else INT32)), pa.int64() if wide else pa.int32())
    near = st.sampled_from([0, *rows.column("id").to_pylist()]) | INT64
    keys = pa.array(map(str, data.draw(st.lists(near, unique=True))), pa.string())
    assert met(number_match(keys, "id", rows.schema), rows) == met(TextMatch(keys), rows)


@given(st.lists(st.from_regex(r"[+-]?0{0,2}[0-9]{1,3}", fullmatch=True) | st.text(max_size=3), min_size=1, unique=True))
@example(["7", "007"])
@example(["-0"])
@example(["0x7"])
@example([" 7"])
@example(["9223372036854775808"])
def test_keys_that_are_no_canonical_number_are_found_only_by_text(keys: list[str]) -> None:
    def is_text_of_a_number(key: str) -> bool:
        return key.isascii() and key.lstrip("-").isdigit() and str(int(key)) == key and int(key) < 2**63

    found = number_match(pa.array(keys), "id", COLUMNS)
    assert (found is not None) == all(map(is_text_of_a_number, keys))


def test_mutant_that_parses_all_texts_as_numbers_finds_other_rows() -> None:
    rows, keys = stored([7, 8], pa.int64()), pa.array(["007"])
    assert met(NumberMatch(keys.cast(pa.int64()).to_numpy(), "id"), rows) != met(TextMatch(keys), rows) == []


@pytest.mark.parametrize("kind", [pa.string(), pa.float64(), pa.uint64(), pa.timestamp("us"), pa.int16()])
def test_only_columns_of_whole_numbers_are_compared(kind: pa.DataType) -> None:
    assert number_match(pa.array(["1"]), "id", COLUMNS, pa.schema([("id", kind)])) is None
    assert number_match(pa.array(["1"]), "id", COLUMNS, pa.schema([("other", kind)])) is None
    assert number_match(pa.array(["1"]), None, COLUMNS) is None


def test_row_without_a_key_is_reported() -> None:
    rows = pa.table({"id": pa.array([1, None])})
    with pytest.raises(Corrupt, match="without a value in key column 'id'"):
        met(number_match(pa.array(["1"]), "id", COLUMNS), rows)
    texts = pa.schema([("id", pa.string())])
    with pytest.raises(Corrupt, match="without a value in key column 'id'"):
        met(text_match(pa.array(["1"]), "id", texts), rows.cast(texts))


def test_key_column_is_compared_instead_of_record_keys_when_all_have_it() -> None:
    texts, numbers = pa.schema([("id", pa.string())]), pa.schema([("id", pa.int64())])
    keys = pa.array(["b"])
    assert met(text_match(keys, "id", texts, texts), pa.table({"id": ["a", "b"]})) == [(1, 0)]
    assert text_match(keys, "id", texts, numbers).column == RECORD_KEY
    assert text_match(keys, None, texts).column == RECORD_KEY


@pytest.mark.parametrize(
    ("config", "column"),
    [
        (TableConfig("t", ("id",)), "id"),
        (TableConfig("t", ("id",), ("city",)), "id"),
        (TableConfig("t", ("id",), ("city", "day")), None),  # by the complex key generator: may be `id:1`
        (TableConfig("t", ("id", "v")), None),
        (TableConfig("t", ()), None),
        (TableConfig("t", ("id",), keygenerator="CUSTOM"), None),
        (TableConfig("t", ("id",), raw={"hoodie.table.keygenerator.class": "org.example.Mine"}), None),
        (
            TableConfig(
                *("t", ("id",)),
                keygenerator="NON_PARTITION",
                raw={"hoodie.table.keygenerator.class": "org.example.Mine"},
            ),
            None,
        ),
    ],
)
def test_key_column_is_used_only_for_tables_with_one_key_column(config: TableConfig, column: str | None) -> None:
    assert config.key_column == column


@pytest.mark.parametrize("kind", [pa.int64(), pa.int32(), pa.string()])
@pytest.mark.parametrize("buckets", [None, 2])
def test_logs_are_merged_alike_with_the_key_column_or_without(
    kind: pa.DataType, buckets: int | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    columns = pa.schema([("id", kind), ("v", pa.string()), ("ts", pa.int64())])

    def rows(ids: range, ts: int) -> pa.Table:
        return pa.table([pa.array(ids).cast(kind), [f"{ts}"] * len(ids), [ts] * len(ids)], schema=columns)

    spec = TableSpec("t", columns, ("id",), ordering="ts", table_type="merge_on_read", buckets=buckets)
    table = Table.create(str(tmp_path / "t"), spec)
    table.append(rows(range(0, 400, 2), 5))
    table.upsert(rows(range(-3, 100, 3), 7))
    table.upsert(rows(range(90, 120), 3))
    table.delete(rows(range(6, 30, 5), 9).select(["id"]))
    expected = dict.fromkeys(range(0, 400, 2), "5")
    expected |= dict.fromkeys(range(-3, 100, 3), "7")
    expected |= {number: "3" for number in range(90, 120) if number not in expected}
    for number in range(6, 30, 5):
        expected.pop(number, None)
    found = dict(zip(table.to_arrow().column("id").cast(pa.int64()).to_pylist(), table.to_arrow()["v"].to_pylist()))  # noqa: B905
    assert found == expected
    assert sorted(table.to_arrow(["v"])["v"].to_pylist()) == sorted(expected.values())
    whole = table.to_arrow()
    monkeypatch.setattr(TableConfig, "key_column", None)
    assert columns_to_merge(with_meta(columns), MergeRule.of(table.config())) == [RECORD_KEY, "ts"]
    assert table.to_arrow().equals(whole)


def test_keys_of_a_file_are_looked_up_once_each(tmp_path: Path) -> None:
    table = Table.create(str(tmp_path / "t"), TableSpec("t", COLUMNS, ("id",)))
    table.append(pa.table({"id": range(0, 50_000, 2)}))
    one, place = table.snapshot().slices[0], table.place
    asked = pa.array([str(number) for number in (*range(20_000), 4, 4, 5, -1)])
    file, each = KeyFile(place, one.path, one.size), asked.unique()
    expected = [int(key) in range(0, 20_000, 2) for key in each.to_pylist()]
    assert file.has(each).tolist() == file.has(each, number_match(each, "id", COLUMNS)).tolist() == expected
    assert file.among(asked).to_pylist() == [str(number) for number in range(0, 20_000, 2)]


def test_damaged_bloom_filter_is_reported_with_its_file(tmp_path: Path) -> None:
    table = Table.create(str(tmp_path / "t"), TableSpec("t", COLUMNS, ("id",)))
    table.append(pa.table({"id": [1]}))
    one, place = table.snapshot().slices[0], TablePlace(table.url, None)
    place.footer_notes.add(one.path, FooterNote(None, "damaged"))
    with pytest.raises(Corrupt, match=f"{one.path}'.* bloom filter"):
        KeyFile(place, one.path, one.size).has(pa.array(["1"]))
