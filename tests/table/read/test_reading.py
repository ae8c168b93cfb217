"""What a read brings, what it leaves alone, and what it was at a time; hudi-rs is asked the same."""

from __future__ import annotations

import pickle
import threading
from collections.abc import Callable
from dataclasses import replace
from datetime import date, datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from hudi import HudiReadOptions, HudiTableBuilder
from table.tables import SCHEMA, SETTINGS, SPEC, by_hudi_rs, content, rows, upsert

from fsspec_cas import InvalidInput, Store, Version
from fsspec_cas.backends.local import LocalBackend
from lockprovider.table import AsOf, Corrupt, HistoryGone, KeepVersions, Table, TableSpec
from lockprovider.table.engines import arrow as engine
from lockprovider.table.format.keygen import PartitionStyle
from lockprovider.table.read.scan import plan_scan, read_slice
from lockprovider.table.transaction.transaction import Transaction, transact

Triples = set[tuple[int, str, int]]


@pytest.fixture
def table(tmp_path: Path) -> Table:
    return Table.create(str(tmp_path / "t"), SPEC, settings=SETTINGS)


def triples(found: pa.Table | pa.RecordBatchReader) -> Triples:
    whole = found.read_all() if isinstance(found, pa.RecordBatchReader) else found
    return {tuple(row.values()) for row in whole.to_pylist()}


def then_by_hudi_rs(url: str, begin: str) -> Triples:
    """As of a begin time, by the independent reader."""
    found = HudiTableBuilder.from_base_uri(url).build().read(HudiReadOptions().with_as_of_timestamp(begin))
    return {tuple(row[name] for name in SCHEMA.names) for batch in found for row in batch.to_pylist()}


class Watched(LocalBackend):
    """A store that notes which data files are read through it, and is not called local, so that all are."""

    name = "watched"

    def __init__(self, before_the_first: Callable[[], None] = lambda: None) -> None:
        self.before_the_first = before_the_first
        self.seen: list[str] = []

    async def get(self, path: str, *args: Any, **kwargs: Any) -> Any:
        if path.endswith(".parquet"):
            self.seen.append(path.rsplit("/", 2)[1])
            if len(self.seen) == 1:
                self.before_the_first()
        answer = await super().get(path, *args, **kwargs)
        named = getattr(answer, "version", None)
        return answer if named is None else replace(answer, version=Version(self.name, named.token))


def watched(table: Table) -> tuple[Table, list[str]]:
    backend = Watched()
    return Table(Store(backend, table.url), table.url, settings=SETTINGS), backend.seen


def test_read_returns_the_named_columns_in_their_order(table: Table) -> None:
    upsert(table, (1, "a", 10))
    found = table.to_arrow(["value", "_hoodie_record_key", "id"])
    assert found.to_pylist() == [{"value": 10, "_hoodie_record_key": "1", "id": 1}]
    assert table.to_arrow().schema.names == SCHEMA.names


def test_missing_column_is_named(table: Table) -> None:
    with pytest.raises(InvalidInput, match=r"name some of \['id', 'part', 'value'\]"):
        table.to_arrow(["id", "nothing"])


def test_filter_returns_its_rows_also_on_columns_not_read(table: Table) -> None:
    upsert(table, (1, "a", 10), (2, "a", 20), (3, "b", 30))
    assert triples(table.to_arrow(filter=pc.field("value") > 10)) == {(2, "a", 20), (3, "b", 30)}
    assert table.to_arrow(["id"], filter=pc.field("value") == 20).to_pylist() == [{"id": 2}]
    assert table.to_arrow(["id"], filter=[("value", "in", [10, 30])]).num_rows == 2
    assert triples(table.scan(filter=(pc.field("part") == "b") | (pc.field("id") == 1)).to_reader()) == {
        (1, "a", 10),
        (3, "b", 30),
    }
    found = HudiTableBuilder.from_base_uri(table.url).build().read(HudiReadOptions(filters=[("part", "=", "b")]))
    assert [row["id"] for batch in found for row in batch.to_pylist()] == [3]


def test_single_text_is_refused_as_a_list_of_partitions(table: Table) -> None:
    with pytest.raises(InvalidInput, match=r"give \['abc'\]"):
        table.to_arrow(partitions="abc")


@pytest.mark.parametrize("bad", [pc.field("nothing") == 1, pc.field("id") == "text", [("id", "~", 1)]])
def test_filter_that_does_not_fit_is_refused_even_on_an_empty_table(table: Table, bad: Any) -> None:
    with pytest.raises(InvalidInput, match="does not fit the table"):
        table.to_arrow(filter=bad)


def test_files_of_other_partitions_are_not_opened(table: Table) -> None:
    upsert(table, (1, "a", 10), (2, "b", 20), (3, "c", 30))
    seeing, seen = watched(table)
    assert triples(seeing.to_arrow(filter=(pc.field("part") == "b") & (pc.field("value") > 5))) == {(2, "b", 20)}
    assert seen == ["b"]
    assert triples(seeing.scan(partitions=iter(["a"])).to_reader()) == {(1, "a", 10)}
    assert seen == ["b", "a"]
    assert triples(seeing.to_arrow(filter=pc.field("part").isin(["a", "c"]))) == {(1, "a", 10), (3, "c", 30)}
    assert sorted(seen[2:]) == ["a", "c"]
    seeing.to_arrow(filter=pc.field("value") == 10)
    assert len(seen) == 7, "nothing is known of the value without a look"


KINDS = pa.schema(
    [("id", pa.int64()), ("day", pa.date32()), ("no", pa.int32()), ("s", pa.string()), ("on", pa.bool_())]
)
ODD = [
    {"id": 1, "day": date(2024, 2, 29), "no": 7, "s": "a/b", "on": True},
    {"id": 2, "day": None, "no": 7, "s": "", "on": False},
    {"id": 3, "day": date(1969, 12, 31), "no": -7, "s": None, "on": None},
    {"id": 4, "day": date(2024, 2, 29), "no": None, "s": "s=x%2F", "on": True},
]


@pytest.mark.parametrize("fields", [("day",), ("no",), ("s",), ("on",), ("day", "no"), ("no", "on", "day")])
@pytest.mark.parametrize("hive_style", [False, True])
def test_partitions_of_every_type_are_pruned_without_losing_a_row(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fields: tuple[str, ...], *, hive_style: bool
) -> None:
    monkeypatch.setattr(PartitionStyle, "fault_of", lambda *_: None)  # other writers refuse none of these values
    spec = TableSpec("t", KINDS, record_keys=("id",), partition_by=fields, hive_style=hive_style)
    table = Table.create(str(tmp_path / "t"), spec, settings=SETTINGS)
    everything = pa.Table.from_pylist(ODD, KINDS)
    transact(table, lambda txn: engine.write(txn, upserts=everything))
    for name in fields:
        for value in {row[name] for row in ODD}:
            field = pc.field(name)
            for where in (field.is_null() if value is None else field == value, field != value, field.is_valid()):
                assert table.to_arrow(filter=where).sort_by("id") == everything.filter(where), str(where)


def test_row_groups_without_matching_rows_are_not_decoded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lockprovider.table.files.base_file.ROW_GROUP_ROWS", 100)
    table = Table.create(str(tmp_path / "t"), SPEC, settings=SETTINGS)
    upsert(table, *((n, "a", n) for n in range(1000)))
    (path,) = (tmp_path / "t" / "a").glob("*.parquet")
    chunk = pq.read_metadata(path).row_group(0).column(5)
    assert chunk.path_in_schema == "id"
    data, start = bytearray(path.read_bytes()), chunk.dictionary_page_offset or chunk.data_page_offset
    data[start : start + chunk.total_compressed_size] = bytes(chunk.total_compressed_size)
    path.write_bytes(data)
    assert triples(table.to_arrow(filter=pc.field("value") >= 950)) == {(n, "a", n) for n in range(950, 1000)}
    with pytest.raises(Corrupt, match="cannot be read"):
        table.to_arrow(filter=pc.field("value") < 50)


def test_scan_holds_one_row_group_and_not_the_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lockprovider.table.files.base_file.ROW_GROUP_ROWS", 1 << 13)
    table = Table.create(str(tmp_path / "t"), SPEC, settings=SETTINGS)
    count, parts = 1 << 17, 4
    for part in range(parts):
        columns = [
            pa.array(range(part * count, (part + 1) * count)),
            pa.repeat(str(part), count),
            pa.array([1] * count),
        ]
        transact(table, lambda txn, c=columns: engine.write(txn, upserts=pa.table(c, schema=SCHEMA)))
    del columns
    size = table.to_arrow().nbytes
    before, peak, seen = pa.total_allocated_bytes(), 0, 0
    for batch in table.scan().to_reader():
        seen += batch.num_rows
        peak = max(peak, pa.total_allocated_bytes() - before)
    assert seen == parts * count
    assert peak < size / 2, f"{peak} bytes were held of {size}"
    before = pa.total_allocated_bytes()
    whole = table.to_arrow()
    assert pa.total_allocated_bytes() - before > size / 2, "the measure would not notice"
    assert whole.num_rows == seen


def test_scan_opens_a_file_when_it_is_reached(table: Table) -> None:
    upsert(table, (1, "a", 10), (2, "b", 20), (3, "c", 30))
    seeing, seen = watched(table)
    reader = seeing.scan().to_reader()
    assert len(seen) <= 1
    reader.read_next_batch()
    assert len(seen) < 3
    assert reader.schema == SCHEMA.with_metadata(None)


def test_large_file_in_an_object_store_is_read_in_ranges(seaweedfs: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lockprovider.table.files.place.WHOLE_BYTES", 0)
    url, options = f"{seaweedfs.new_prefix()}/t", seaweedfs.storage_options
    table = Table.create(url, SPEC, storage_options=options, settings=SETTINGS)
    upsert(table, (1, "a", 10), (2, "b", 20))
    ranged = (
        triples(table.scan(filter=pc.field("value") > 10).to_reader()),
        triples(table.to_arrow(["id", "part", "value"])),
    )
    monkeypatch.undo()
    assert ranged == (triples(table.scan(filter=pc.field("value") > 10).to_reader()), triples(table.to_arrow()))
    assert ranged[1] == {(1, "a", 10), (2, "b", 20)}


def test_empty_table_reads_as_no_rows_with_its_columns(table: Table) -> None:
    assert table.to_arrow().schema.names == table.scan().to_reader().schema.names == SCHEMA.names
    assert table.scan(["id"], filter=pc.field("value") > 1).to_reader().read_all().num_rows == 0


def test_every_moment_of_the_past_can_be_read(table: Table) -> None:
    history: list[tuple[str, Triples]] = []
    for n in range(6):
        done = upsert(table, (n % 3, "ab"[n % 2], n), (100 + n, "a", n))
        history.append((done.completion, content(table)))
    gone = transact(table, lambda txn: engine.write(txn, deletes=pa.table({"id": [100], "part": ["a"]})))
    history.append((gone.completion, content(table)))
    for completion, expected in history:
        assert (
            triples(table.to_arrow(as_of=completion)) == triples(table.scan(as_of=completion).to_reader()) == expected
        )
    begins = [commit.instant for commit in table.history()][1:]
    for begin, (_, expected) in zip(begins, history, strict=True):
        assert triples(table.to_arrow(as_of=AsOf(begin, "begin"))) == expected == then_by_hudi_rs(table.url, begin)
    just_before = f"{int(history[-1][0]) - 1:017d}"
    assert triples(table.to_arrow(as_of=just_before)) == history[-2][1]


def test_as_of_takes_datetimes_with_a_zone_and_refuses_vague_times(table: Table) -> None:
    done = upsert(table, (1, "a", 1))
    upsert(table, (1, "a", 2))
    at = datetime.strptime(done.completion + "000", "%Y%m%d%H%M%S%f").replace(tzinfo=timezone.utc)
    assert triples(table.to_arrow(as_of=at.astimezone(timezone(timedelta(hours=5))))) == {(1, "a", 1)}
    for vague in (at.replace(tzinfo=None), "yesterday", "2024", 5):
        with pytest.raises(InvalidInput, match="is not a time"):
            table.to_arrow(as_of=vague)  # type: ignore[arg-type]


def test_late_finisher_is_in_past_reads_by_begin_and_not_by_completion(table: Table) -> None:
    upsert(table, (1, "a", 1), (2, "b", 2))
    slow = Transaction(table)
    engine.write(slow, upserts=rows((2, "b", 20)))
    quick = upsert(table, (1, "a", 10))
    late = slow.commit()
    assert late.instant < quick.instant < quick.completion < late.completion
    assert triples(table.to_arrow(as_of=quick.completion)) == {(1, "a", 10), (2, "b", 2)}
    by_begin = {(1, "a", 10), (2, "b", 20)}
    assert triples(table.to_arrow(as_of=AsOf(quick.instant, "begin"))) == by_begin
    assert then_by_hudi_rs(table.url, quick.instant) == by_begin


def test_time_before_the_table_is_refused_naming_the_first_time(table: Table) -> None:
    with pytest.raises(HistoryGone, match="there is no table .* ask for a later time"):
        table.to_arrow(as_of="20000101000000000")


def test_time_whose_files_were_cleaned_is_refused(table: Table) -> None:
    first = upsert(table, (1, "a", 1), (2, "b", 2))
    second = upsert(table, (1, "a", 10))
    (cleaned,) = Path(table.url).glob(f"a/*_{first.instant}.parquet")
    cleaned.unlink()
    with pytest.raises(HistoryGone, match="removed files of 1 file groups.*ask for a later time"):
        table.to_arrow(as_of=first.completion)
    assert triples(table.to_arrow(as_of=second.completion)) == content(table) == by_hudi_rs(table.url)


def test_file_cleaned_during_a_scan_raises_and_loses_no_row(table: Table) -> None:
    upsert(table, (1, "a", 1), (2, "b", 2))
    reader = table.scan().to_reader()
    for path in Path(table.url).glob("*/*.parquet"):
        path.unlink()
    with pytest.raises(HistoryGone, match="read again"):
        reader.read_all()


def test_current_read_overtaken_by_a_clean_is_repeated_and_past_one_raises(table: Table) -> None:
    first = upsert(table, (1, "a", 1), (2, "b", 2))

    def meanwhile() -> None:
        upsert(table, (1, "a", 10), (2, "b", 20))
        assert table.clean(KeepVersions(1))[0].files

    backend = Watched(meanwhile)
    overtaken = Table(Store(backend, table.url), table.url, settings=SETTINGS)
    assert triples(overtaken.to_arrow(partitions=iter("ab"))) == {(1, "a", 10), (2, "b", 20)}
    with pytest.raises(HistoryGone):
        overtaken.to_arrow(as_of=first.completion)


def test_read_during_commits_is_of_one_snapshot(table: Table) -> None:
    """Each commit moves a unit from one partition to the other: every moment has the same sum."""
    upsert(table, (1, "a", 50), (2, "b", 50))
    done = threading.Event()

    def move() -> None:
        for n in range(1, 15):
            upsert(table, (1, "a", 50 - n), (2, "b", 50 + n))
        done.set()

    mover = threading.Thread(target=move)
    mover.start()
    sums = set()
    while not done.is_set():
        sums.add(sum(table.to_arrow(["value"])["value"].to_pylist()))
    mover.join()
    assert sums == {100}


def test_planned_scan_can_be_sent_to_another_process(table: Table) -> None:
    upsert(table, (1, "a", 10), (2, "b", 20))
    seen = table.snapshot()
    scan = plan_scan(seen, table.schema(), table.config(), columns=["id"], where=pc.field("value") > 10)
    sent = pickle.loads(pickle.dumps(scan))
    assert [read_slice(table.place, sent, one).to_pylist() for one in sent.slices] == [[], [{"id": 2}]]


def test_table_in_memory_is_read_the_same_way() -> None:
    table = Table.create("memory://reading/in-memory", SPEC, settings=SETTINGS)
    upsert(table, (1, "a", 10), (2, "b", 20))
    assert triples(table.scan(["id", "part", "value"], filter=pc.field("id") == 2).to_reader()) == {(2, "b", 20)}
