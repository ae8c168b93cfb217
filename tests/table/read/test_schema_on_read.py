"""A table whose columns JVM Hudi 1.2 changed by schema-on-read: three samples, one after the other.

typed    `n` was an int when the file of rows 1 and 2 was written, and is a bigint
renamed  then `fare` became `price`
added    then `gone` was dropped, and another column of this name added
"""

from __future__ import annotations

from pathlib import Path
from zipfile import ZipFile

import pyarrow as pa
import pytest
from table.tables import SETTINGS

from lockprovider.table import Table, UnsupportedTable
from lockprovider.table.format.layout import TIMELINE
from lockprovider.table.format.metadata import decode_commit
from lockprovider.table.format.schema_on_read import (
    SchemaVersion,
    begin_of_schema_file,
    misread,
    parse_history,
    parse_version,
    schema_file,
)

SAMPLE = Path(__file__).parents[1] / "data" / "foreign" / "hudi120_schema_on_read.zip"
BY_JVM = [(1, 1.5, 10, "a"), (2, 2.5, 20, "a"), (3, 3.5, 30, "b")]


def opened(folder: Path, name: str) -> Table:
    with ZipFile(SAMPLE) as archive:
        archive.extractall(folder, [one for one in archive.namelist() if one.startswith(f"{name}/")])
    return Table.open(str(folder / name), settings=SETTINGS)


def test_rows_before_a_change_of_type_are_read_as_jvm_hudi_reads_them(tmp_path: Path) -> None:
    table = opened(tmp_path, "typed")
    assert table.schema().names == ["id", "fare", "n", "gone", "ts", "day"]  # its commit names Hudi's own columns too
    assert table.schema().field("n").type == pa.int64()
    found = table.to_arrow(columns=["id", "fare", "n", "day"]).to_pylist()
    assert sorted(tuple(row.values()) for row in found) == BY_JVM


@pytest.mark.parametrize("name", ["renamed", "added"])
def test_columns_renamed_since_a_file_was_written_are_refused_by_name(tmp_path: Path, name: str) -> None:
    """S5: `price` came back as null for the rows 1 to 3, and the dropped values of `gone` came back."""
    said = "'price' is called 'fare' there"
    table = opened(tmp_path, name)
    row = pa.table({"id": pa.array([1], pa.int32()), "day": ["a"]})
    uses = (table.to_arrow, table.count, lambda: table.delete(row), lambda: table.changes().to_arrow(), table.cluster)
    for use in uses:
        with pytest.raises(UnsupportedTable, match=said):
            use()
    found = [one for one in table.doctor() if said in one.what]
    assert ["cluster all partitions with JVM Hudi, then clean" in one.mend for one in found] == [True]


def test_time_before_the_rename_can_be_read(tmp_path: Path) -> None:
    table = opened(tmp_path, "renamed")
    before = [one for one in table.history() if one.operation == "INSERT"][1]
    found = table.to_arrow(as_of=before.completion, columns=["id", "fare", "n", "day"]).to_pylist()
    assert sorted(tuple(row.values()) for row in found) == BY_JVM


def test_commit_keeps_the_schema_of_jvm_readers_and_its_history(tmp_path: Path) -> None:
    table = opened(tmp_path, "typed")
    before = table.history()[-1].extra["latest_schema"]
    row = table.to_arrow(filter="id = 1").set_column(1, "fare", pa.array([9.0]))
    table.upsert(row)
    table.append(row.set_column(0, "id", pa.array([9], pa.int32())))
    assert table.cluster()
    assert [one.operation for one in table.history()[-3:]] == ["UPSERT", "INSERT", "CLUSTER"]
    for one in table.history()[-3:]:
        assert one.extra["latest_schema"] == before
        stored = table.store.read(schema_file(one.instant)).data
        assert parse_history(stored, "it")[-1] == parse_version(before, "it")
    assert table.count("fare = 9.0") == 2
    with pytest.raises(UnsupportedTable, match=r"schema.on.read.*ALTER TABLE"):
        table.add_columns(pa.schema([("more", pa.int64())]))
    path = f"{TIMELINE}/{table.timeline().writes[-1].file_name}"
    assert "latest_schema" in decode_commit(table.store.read(path).data, path).extra


def test_only_schema_versions_that_a_file_may_have_count() -> None:
    one, two, three = (SchemaVersion(n, {name: 1}) for n, name in ((0, "a"), (5, "b"), (9, "c")))
    assert misread([one, two, three], three, "4") == "'c' is called 'a' there"
    assert misread([one, two, three], three, "5") == "'c' is called 'b' there"
    assert misread([one, two, three], three, "9") == ""
    assert misread([], three, "4") == "the history of its columns is missing"
    again = SchemaVersion(9, {"a": 2})
    assert misread([one, again], again, "4") == "'a' is another column there, which was dropped"
    swapped = SchemaVersion(9, {"kept": 0, "b": 1})  # apache/hudi#7040: drop `b`, then rename `a` to `b`
    assert misread([SchemaVersion(0, {"kept": 0, "a": 1, "b": 2}), swapped], swapped, "4").startswith("'b' is another")
    nested = '{"version_id": 1, "fields": [{"id": 0, "name": "st", "type": {"type": "record", "fields": '
    nested += '[{"id": 1, "name": "x", "type": "int"}]}}, {"id": 2, "name": "l", "type": {"type": "array", "element": '
    nested += '{"type": "map", "value": {"type": "record", "fields": [{"id": 5, "name": "y", "type": "int"}]}}}}]}'
    assert parse_version(nested, "it").ids == {"st": 0, "st.x": 1, "l": 2, "l.element.value.y": 5}
    assert begin_of_schema_file(schema_file("20260101000000000")) == "20260101000000000"
    assert begin_of_schema_file(".hoodie/.schema/20260101000000000.schemacommit.inflight") == ""
