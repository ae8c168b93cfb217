"""Tables that released JVM Hudi wrote: our reader sees what hudi-rs sees, now, in the past, and in what changed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hudi import HudiReadOptions, HudiTableBuilder
from table.jvm_written import TABLES, contents

from lockprovider.table import AsOf, KeepActive, KeepCommits, Table, TableSettings

COPY_ON_WRITE = [name for name in TABLES if name.startswith("cow")]
META = ["_hoodie_commit_time", "_hoodie_record_key", "_hoodie_partition_path", "_hoodie_file_name"]


def unpacked(name: str, folder: Path) -> str:
    for path, data in contents(name).items():
        target = folder / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(data)
    return str(folder)


@pytest.fixture(params=COPY_ON_WRITE)
def table(request: pytest.FixtureRequest, tmp_path: Path) -> Table:
    return Table.open(unpacked(request.param, tmp_path / "t"))


def comparable(rows: list[dict[str, Any]]) -> list[str]:
    return sorted(repr(sorted(row.items())) for row in rows)


def by_hudi_rs(table: Table, names: list[str], options: HudiReadOptions | None = None) -> list[str]:
    batches = HudiTableBuilder.from_base_uri(table.url).build().read(options)
    return comparable([row for batch in batches for row in pa.record_batch(batch).select(names).to_pylist()])


def test_stored_jvm_tables_exist() -> None:
    assert len(COPY_ON_WRITE) >= 3


def test_latest_snapshot_is_that_of_hudi_rs_with_all_columns(table: Table) -> None:
    names = [*META, *table.schema().names]
    found = table.to_arrow(names)
    assert found.num_rows > 0
    assert comparable(found.to_pylist()) == by_hudi_rs(table, names)
    assert comparable(table.scan(names).to_reader().read_all().to_pylist()) == comparable(found.to_pylist())


def test_every_past_time_reads_as_by_hudi_rs_or_is_refused(table: Table) -> None:
    names = table.schema().names
    writes = table.timeline().writes
    assert writes
    for instant in writes:
        options = HudiReadOptions().with_as_of_timestamp(instant.begin)
        found = table.to_arrow(names, as_of=AsOf(instant.begin, "begin"))
        assert comparable(found.to_pylist()) == by_hudi_rs(table, names, options)
        assert comparable(table.to_arrow(names, as_of=instant.completion).to_pylist()) == comparable(found.to_pylist())


@pytest.mark.parametrize("order", ["completion", "fenced", "begin"])
def test_consumer_commit_by_commit_ends_with_the_table(table: Table, order: str) -> None:
    mirror: dict[tuple[str, str], dict[str, Any]] = {}
    checkpoint: str | None = None
    names = [*META[1:3], *table.schema().names]
    times = [i.completion if order == "completion" else i.begin for i in table.timeline().writes]
    for time in times:
        found = table.changes(checkpoint, time, order=order, columns=names)
        for row in found.to_arrow().to_pylist():
            operation, key = row.pop("_operation"), (row["_hoodie_partition_path"], row["_hoodie_record_key"])
            assert (key in mirror) == (operation != "insert")
            if operation == "delete":
                del mirror[key]
            else:
                mirror[key] = row
        checkpoint = found.checkpoint
    assert (
        comparable(list(mirror.values())) == comparable(table.to_arrow(names).to_pylist()) == by_hudi_rs(table, names)
    )


def test_filtered_read_of_a_jvm_table_equals_filtering_a_full_read(table: Table) -> None:
    everything = table.to_arrow()
    for name in table.schema().names:
        if pa.types.is_nested(everything.schema.field(name).type):
            continue
        for value in everything[name].unique()[:3]:
            equal = pc.field(name).is_null() if not value.is_valid else pc.field(name) == value
            for where in (equal, ~equal, ~(pc.field(name) < value), pc.field(name).isin([value])):
                expected = comparable(everything.filter(where).to_pylist())
                assert comparable(table.to_arrow(filter=where).to_pylist()) == expected, where


def test_running_clustering_shows_no_rows_whatever_is_archived(tmp_path: Path) -> None:
    folder = Path(unpacked("services/cow_v8_clustering_completed", tmp_path / "t"))
    timeline = folder / ".hoodie" / "timeline"
    *before, clustering, last = sorted({path.name[:17] for path in timeline.glob("2*")})
    for path in (*folder.rglob(f"*_{last}.parquet"), *timeline.glob(f"{last}*"), *timeline.glob(f"{clustering}_*")):
        path.unlink()
    table = Table.open(str(folder), settings=TableSettings(retention=KeepCommits(1)))
    for number in (97, 98, 99):
        table.append(pa.table({"id": [number], "part": ["a"], "v": ["x"], "ts": [1]}).cast(table.schema()))
    names = table.schema().names
    rows = comparable(table.to_arrow().to_pylist())
    assert len(rows) == 13
    done = table.archive(KeepActive(1, 2))
    assert [name[:17] for name in done.instants] == before[:-1]
    assert f"write {clustering} is pending" in done.held
    assert comparable(table.to_arrow().to_pylist()) == rows == by_hudi_rs(table, names)
    # The JVM's archiver leaves no write before it. (hudi-rs 0.5 then shows its rows twice.)
    for path in timeline.glob(f"{before[-1]}*"):
        path.unlink()
    table = Table.open(table.url)
    assert table.timeline().first_active > clustering
    assert comparable(table.to_arrow().to_pylist()) == rows
