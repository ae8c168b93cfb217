"""A filter on any column opens no file whose columns have no such value, and has every row that it has of the whole."""

from __future__ import annotations

import io
import subprocess
import sys
from datetime import date, datetime, timedelta, timezone
from math import nan
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st
from patience import until
from table.asked_for import counted
from table.read.test_filters import combined
from table.tables import SETTINGS

from lockprovider.table import Table, TableSpec
from lockprovider.table.convert import read_as
from lockprovider.table.engines import changes
from lockprovider.table.files import place as footers
from lockprovider.table.files.place import Range, Ranges, TablePlace
from lockprovider.table.read import scan
from lockprovider.table.read.scan import plan_scan, to_table
from lockprovider.table.state import checkpoint
from lockprovider.table.timeline.timeline import Timeline
from lockprovider.table.timeline.view import FileSlice, Snapshot

UTC = timezone.utc
MIDNIGHT = datetime(2024, 1, 1, tzinfo=UTC)
SCHEMA = pa.schema(
    [
        ("id", pa.int64()),
        ("n", pa.int64()),
        ("day", pa.date32()),
        ("at", pa.timestamp("us", "UTC")),
        ("s", pa.string()),
        ("x", pa.float64()),
    ]
)
SPEC = TableSpec("t", SCHEMA, record_keys="id")
FILES, ROWS = 40, 5


def rows(start: int, count: int) -> pa.Table:
    """Days, numbers, times and texts rise with the ids; every seventh row has no day."""
    ids = range(start, start + count)
    return pa.table(
        {
            "id": ids,
            "n": [number - 100 for number in ids],
            "day": [None if number % 7 == 0 else date(2024, 1, 1) + timedelta(number) for number in ids],
            "at": [MIDNIGHT + timedelta(minutes=number) for number in ids],
            "s": [f"{number:05}" for number in ids],
            "x": [float(number) for number in ids],
        },
        SCHEMA,
    )


FILTERS: list[tuple[str, int]] = [  # and of how many files some rows may be asked for
    ("n = -100", 1),
    ("n < -92 and s > '00004'", 1),
    ("day between '2024-01-11' and '2024-01-20'", 2),
    ("at >= '2024-01-01T03:15:00Z'", 1),
    ("s in ('00000', '00199', '7')", 2),
    ("day is null and n < -89", 3),
    ("n is null", 0),
    ("n < -92 and x >= 1.5", 2),
    ("x < 5.0", FILES),
    ("not (n > -96)", 1),
]


def read(table: Table, where: str) -> tuple[pa.Table, int]:
    """What a handle that knows nothing reads, and how many data files it asks for."""
    fresh, asked = counted(table, SETTINGS)
    found = fresh.to_arrow(filter=where)
    return found, asked.names.count("get data")


def put(table: Table) -> bool:
    return bool(table.store.list(footers.NOTES))


@pytest.fixture
def on_seaweedfs(seaweedfs: Any) -> Table:
    url, options = f"{seaweedfs.new_prefix()}/t", seaweedfs.storage_options
    return Table.create(url, SPEC, storage_options=options, settings=SETTINGS)


def test_filter_opens_only_files_that_may_have_matching_rows(
    on_seaweedfs: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(changes, "ROWS_PER_FILE", ROWS)
    whole = rows(0, FILES * ROWS)
    on_seaweedfs.append(whole)
    until(lambda: put(on_seaweedfs))
    assert len(on_seaweedfs.snapshot().slices) == FILES
    for where, files in FILTERS:
        found, opened = read(on_seaweedfs, where)
        by_all = scan.parse_where(where, SCHEMA).kept(on_seaweedfs.to_arrow())
        assert found.sort_by("id") == by_all.sort_by("id"), where
        assert opened == files, where
        assert bool(files) == bool(found.num_rows)


SCRIPT = """
import sys
from lockprovider.table import Table
from lockprovider.table.engines import changes
from table.read import test_left_out as here
changes.ROWS_PER_FILE = here.ROWS
Table.open(sys.argv[1], storage_options=eval(sys.argv[2])).append(here.rows(0, here.FILES * here.ROWS))
"""


def test_ranges_are_stored_before_a_script_exits(on_seaweedfs: Table) -> None:
    tests = str(Path(__file__).parents[2])
    call = [sys.executable, "-c", SCRIPT, on_seaweedfs.url, repr(on_seaweedfs.storage_options)]
    subprocess.run(call, check=True, env={"PYTHONPATH": tests, "PATH": "/usr/bin:/bin"})
    assert put(on_seaweedfs)
    assert read(on_seaweedfs, "n = -100")[1] == 1


def test_ranges_of_single_files_are_stored_by_the_checkpoint_writer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checkpoint, "EVERY", 10)
    table = Table.create(f"memory://left-out-{tmp_path.name}", SPEC, settings=SETTINGS)
    for number in range(33):
        table.append(rows(number * ROWS, ROWS))
    until(lambda: put(table))
    found, opened = read(table, "n = -100")
    assert found["id"].to_pylist() == [0]
    assert opened <= 1 + 10, "of files since the checkpoint little is known"
    same, asked = counted(table, SETTINGS)
    for _ in range(2):
        same.to_arrow(filter="n < -97")
    asked.names.clear()
    assert same.to_arrow(filter="s = '00000'").num_rows == 1
    assert asked.names.count("get data") == 1, "of all that were opened before, too"


def test_ranges_of_single_files_are_stored_together_by_their_writer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(footers, "_ONE_BY_ONE", 12)
    table = Table.create(f"memory://left-out-alone-{tmp_path.name}", SPEC, settings=SETTINGS)
    for number in range(30):
        table.append(rows(number * ROWS, ROWS))
    until(lambda: len(table.store.list(footers.NOTES)) == 2)
    found, opened = read(table, "n = -100")
    assert found["id"].to_pylist() == [0]
    assert opened <= 1 + 6


@pytest.mark.parametrize("day_ms", [None, -86_400_000])
def test_ranges_of_removed_files_are_dropped_after_a_day(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, day_ms: int | None
) -> None:
    monkeypatch.setattr(changes, "ROWS_PER_FILE", ROWS)
    monkeypatch.setattr(footers, "_OBJECTS", 2)
    if day_ms is not None:
        monkeypatch.setattr("lockprovider.table.services.checkpoint._DAY_MS", day_ms)
    table = Table.create(f"memory://left-out-{tmp_path.name}", SPEC, settings=SETTINGS)
    for _ in range(3):
        table.overwrite(rows(0, 10 * ROWS))
    (merged,) = [path for entry in table.store.list(footers.NOTES) if (path := entry.path).endswith("m")]
    said = footers.decode_notes(table.store.read(merged).data)
    assert len(said) == (30 if day_ms is None else 10), "of all commits, or of the second: the third is pending"
    assert read(table, "n = -100")[1] == 1


def test_all_readers_skip_files_by_ranges(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    dask = pytest.importorskip("lockprovider.table.engines.dask")
    monkeypatch.setattr(changes, "ROWS_PER_FILE", ROWS)
    table = Table.create(f"memory://left-out-{tmp_path.name}", SPEC, settings=SETTINGS)
    table.append(rows(0, FILES * ROWS))
    where = "n = -100"

    def by_transaction(fresh: Table) -> Any:
        with fresh.transaction() as txn:
            assert txn.scan(["id"], where).to_reader().read_all().num_rows == 1
            return txn.to_arrow(["id"], where)

    for reading in (
        lambda fresh: fresh.to_arrow(["id"], where),
        lambda fresh: fresh.scan(["id"], where).to_reader().read_all(),
        lambda fresh: fresh.to_pandas(["id"], where),
        lambda fresh: dask.read(fresh.scan(["id"], where)).compute(),
        lambda fresh: fresh.to_arrow(["id"], filter=where),
        by_transaction,
    ):
        fresh, asked = counted(table, SETTINGS)
        assert len(reading(fresh)) == 1
        assert asked.names.count("get data") <= 2


def test_ranges_of_files_written_by_dask_are_stored(tmp_path: Path) -> None:
    dask = pytest.importorskip("lockprovider.table.engines.dask")
    frames = pytest.importorskip("dask.dataframe")
    plain = rows(0, 60).select(["id", "n", "s"])
    table = Table.create(f"memory://left-out-{tmp_path.name}", TableSpec("t", plain, "id"), settings=SETTINGS)
    dask.append(table, frames.from_pandas(plain.to_pandas(), npartitions=12))
    assert len(table.snapshot().slices) == 12
    assert put(table)
    found, opened = read(table, "n = -100")
    assert (found.num_rows, opened) == (1, 1)


def test_ranges_of_files_written_by_spark_are_stored_and_used(tmp_path: Path, spark: Any) -> None:
    from lockprovider.table.engines import spark as hudi

    table = Table.create(str(tmp_path / "t"), SPEC, settings=SETTINGS)
    hudi.append(table, spark.createDataFrame(rows(0, 60).to_pandas()).coalesce(1).repartitionByRange(12, "id"))
    assert len(table.snapshot().slices) >= 9
    assert put(table)
    fresh = Table.open(table.url, settings=SETTINGS)
    assert len(fresh.scan(filter="n = -100").plan()) == 1
    frame = hudi.read(spark, fresh, ["id"], filter="n = -100 or s = '00059'")
    assert sorted(row["id"] for row in frame.collect()) == [0, 59]
    assert frame.rdd.getNumPartitions() == 2
    with fresh.transaction() as txn:
        hudi.delete_where(spark, txn, "n = -100")
    assert table.count() == 59


def test_slice_with_logs_is_never_skipped(tmp_path: Path) -> None:
    spec = TableSpec("t", SCHEMA, record_keys="id", ordering="n", buckets=12, table_type="merge_on_read")
    table = Table.create(f"memory://left-out-{tmp_path.name}", spec, settings=SETTINGS)
    table.append(rows(0, 200))
    changed = rows(0, 1).set_column(1, "n", pa.array([5000]))
    table.upsert(changed)
    assert put(table)
    assert read(table, "n = 5000")[0]["id"].to_pylist() == [0]
    assert table.to_arrow(filter="n = 5000", read_optimized=True).num_rows == 0
    table.compact()
    assert read(table, "n = 5000")[0]["id"].to_pylist() == [0]


def test_columns_added_later_are_null_in_older_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(changes, "ROWS_PER_FILE", ROWS)
    table = Table.create(f"memory://left-out-{tmp_path.name}", SPEC, settings=SETTINGS)
    table.append(rows(0, 60))
    table.add_columns(pa.schema([("more", pa.int64())]))
    more = rows(60, 60)
    table.append(more.append_column("more", pa.array(range(60))))
    assert read(table, "more is null")[0].num_rows == 60
    found, opened = read(table, "more < 5")
    assert (found["id"].to_pylist(), opened) == ([60, 61, 62, 63, 64], 1 + 12)


# -- against pyarrow's own filter --------------------------------------------------------------------------------------

NUMBERS = st.sampled_from([None, 0, 1, -3, 7, 2**40, -(2**40)])
TEXTS = st.sampled_from([None, "", "a", "b", "é", "a\x00", "a" * 70])
DAYS = st.sampled_from([None, date(1, 1, 1), date(1969, 12, 31), date(1970, 1, 2), date(9999, 12, 31)])
TIMES = st.sampled_from([None, MIDNIGHT, datetime(1899, 1, 1, tzinfo=UTC), MIDNIGHT + timedelta(microseconds=1)])
FLOATS = st.sampled_from([None, nan, 0.0, -0.0, 1.5, -2.0])
VALUES: dict[str, st.SearchStrategy[Any]] = {"n": NUMBERS, "day": DAYS, "at": TIMES, "s": TEXTS, "x": FLOATS}
COMPARE = ("__eq__", "__ne__", "__lt__", "__le__", "__gt__", "__ge__")


@st.composite
def leaves(draw: st.DrawFn) -> pc.Expression:
    name = draw(st.sampled_from([*VALUES]))
    field, kind, values = pc.field(name), SCHEMA.field(name).type, VALUES[name]
    match draw(st.integers(0, 4)):
        case 0:
            return field.isin(pa.array(draw(st.lists(values, max_size=3)), kind))
        case 1:
            return field.is_null()
        case 2:
            return field.is_valid()
        case _:
            return getattr(field, draw(st.sampled_from(COMPARE)))(pa.scalar(draw(values), kind))


EXPRESSIONS = combined(leaves())


@st.composite
def files(draw: st.DrawFn) -> list[pa.Table]:
    """As they were written: one may lack a column, or have numbers of 32 bits."""
    found = []
    for _ in range(draw(st.integers(1, 4))):
        several = draw(st.lists(st.fixed_dictionaries(VALUES), min_size=1, max_size=4))
        one = pa.Table.from_pylist(several, pa.schema([field for field in SCHEMA if field.name != "id"]))
        match draw(st.integers(0, 3)):
            case 0:
                one = one.drop([draw(st.sampled_from([*VALUES]))])
            case 1 if all(abs(number or 0) < 2**31 for number in one["n"].to_pylist()):
                one = one.set_column(0, "n", one["n"].cast(pa.int32()))
        found.append(one)
    return found


def snapshot_of(written: list[pa.Table], place: TablePlace) -> tuple[Snapshot, pa.Table, dict[str, Ranges]]:
    """The files in a store, all rows as they are now, and what is known of the files beside the lock."""
    slices, whole, known, start = [], [SCHEMA.empty_table()], {}, 0
    for number, one in enumerate(written):
        ids = pa.array(range(start, start := start + one.num_rows))
        out, path = io.BytesIO(), f"f{number}.parquet"
        pq.write_table(one.append_column("id", ids), out, row_group_size=2)
        data = out.getvalue()
        place.store.delete(path)
        place.store.put_if_absent(path, data).unwrap()
        slices.append(FileSlice("", f"f{number}", "1", path, len(data)))
        whole.append(read_as(one.append_column("id", ids), SCHEMA))
        known[path] = footers.FooterNote.of(pq.read_metadata(pa.BufferReader(data)))
    told = {path: note.ranges for path, note in footers.decode_notes(footers.encode_notes(known)).items()}
    return Snapshot(Timeline(), tuple(slices)), pa.concat_tables(whole), told


def found_by(place: TablePlace, seen: Snapshot, told: dict[str, Ranges], where: pc.Expression) -> list[int]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(scan, "FEW", 0)
        plan = plan_scan(
            seen, SCHEMA, SPEC.config(), where=where, ranges_of=lambda paths: {one: told[one] for one in paths}
        )
    return sorted(to_table(place, plan)["id"].to_pylist())


@given(files(), EXPRESSIONS)
def test_no_matching_row_is_skipped(written: list[pa.Table], where: pc.Expression) -> None:
    place = TablePlace("memory://left-out", None)
    seen, whole, told = snapshot_of(written, place)
    assert found_by(place, seen, told, where) == whole.filter(where)["id"].to_pylist(), str(where)


def forgets_nulls(one: Range) -> Range:
    return one._replace(has_nulls=False)


def narrow(one: Range) -> Range:
    return one._replace(greatest=one.least)


@pytest.mark.parametrize("twin", [forgets_nulls, narrow])
def test_mutant_with_a_wrong_range_loses_rows(twin: Any) -> None:
    place, where = TablePlace("memory://left-out-twin", None), pc.field("n").is_null() | (pc.field("n") > 5)
    seen, whole, told = snapshot_of([pa.table({"n": [1, None]}), pa.table({"n": [2, 7]})], place)
    wrong = {path: {name: twin(one) for name, one in ranges.items()} for path, ranges in told.items()}
    assert found_by(place, seen, told, where) == whole.filter(where)["id"].to_pylist() == [1, 3]
    assert found_by(place, seen, wrong, where) in ([1], [3])
