"""Each of Hudi's read options is obeyed by the data source, or refused with what to write instead."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

pytest.importorskip("pyspark.sql.datasource")

from pyspark.errors import PySparkException
from pyspark.sql.streaming.datasource import ReadAllAvailable
from pyspark.sql.types import LongType, StructType
from table.tables import SETTINGS

from fsspec_cas import InvalidInput
from lockprovider.table import CommitResult, HistoryGone, KeepActive, KeepCommits, Table, TableSpec, UnsupportedSchema
from lockprovider.table.engines.spark.data_source import HudiCas, StreamReader
from lockprovider.table.engines.spark.errors import typed_errors

TYPE = "hoodie.datasource.query.type"
BEGIN = "hoodie.datasource.read.begin.instanttime"
END = "hoodie.datasource.read.end.instanttime"
FORMAT = "hoodie.datasource.query.incremental.format"
OFFSET = "hoodie.datasource.streaming.startOffset"
INCREMENTAL = {TYPE: "incremental"}


@pytest.fixture
def table(tmp_path: Path) -> Table:
    return Table.create(tmp_path / "t", TableSpec("t", pa.table({"id": [1]}), "id"), settings=SETTINGS)


@pytest.fixture
def done(table: Table) -> list[CommitResult]:
    return [table.append(pa.table({"id": [number]})) for number in range(3)]


def source(table: Table, options: dict[str, str]) -> HudiCas:
    return HudiCas({"path": table.url, **options})


def read(table: Table, options: dict[str, str], columns: StructType | None = None) -> list[int]:
    """Read the ids; `columns`: those that a user gives, in which case Spark does not ask the source for its own."""
    with typed_errors():
        found = source(table, options)
        reader = found.reader(found.schema() if columns is None else columns)
        batches = [batch for part in reader.partitions() for batch in reader.read(part)]
    return sorted(value for batch in batches for value in batch.column("id").to_pylist())


def test_incremental_query_reads_what_was_committed_after_a_version(table: Table, done: list[CommitResult]) -> None:
    first, second = done[:2]
    assert read(table, {}) == read(table, {TYPE: "snapshot"}) == [0, 1, 2]
    assert read(table, {**INCREMENTAL, BEGIN: first.completion}) == [1, 2]
    assert read(table, {**INCREMENTAL, BEGIN: first.instant}) == [1, 2]
    assert read(table, {**INCREMENTAL, BEGIN: first.instant, END: second.instant}) == [1]
    assert read(table, {**INCREMENTAL, BEGIN: "000", END: second.completion, FORMAT: "latest_state"}) == [0, 1]
    assert read(table, {**INCREMENTAL, BEGIN: "2026-01-02"}) == [0, 1, 2]
    assert read(table, {**INCREMENTAL, BEGIN: "20100000000000", END: "29990000000000"}) == [0, 1, 2]
    assert read(table, {**INCREMENTAL, BEGIN: second.instant, END: second.instant}) == []
    assert read(table, {**INCREMENTAL, BEGIN: table.version}) == []
    assert read(table, {"begin": first.instant, "end": second.completion}) == [1]


@pytest.mark.parametrize("options", [{}, {"changes": "true"}])
def test_read_up_to_archived_commits_has_their_rows_or_fails(
    table: Table, done: list[CommitResult], options: dict[str, str]
) -> None:
    table.append(pa.table({"id": [3]}))
    archiving = Table.open(table.url, settings=replace(SETTINGS, retention=KeepCommits(1)))
    assert done[1].instant in str(archiving.archive(KeepActive(1, 2)).instants)
    assert read(table, {**options, "end": done[1].completion}) == [0, 1]
    with pytest.raises(HistoryGone, match="were archived"):
        read(table, {**options, "end": done[0].completion})


def test_as_of_instant_reads_the_table_after_its_commit(table: Table, done: list[CommitResult]) -> None:
    for version in (done[1].instant, done[1].completion):
        assert read(table, {"as.of.instant": version}) == read(table, {"as_of": version}) == [0, 1]
    assert read(table, {"as.of.instant": "2999-01-02 12:30:00.5"}) == [0, 1, 2]


@pytest.mark.parametrize(
    ("options", "ids"),
    [
        ({"as_of": "END"}, [0, 1]),
        ({"as.of.instant": "END"}, [0, 1]),
        ({"as_of": "END", "columns": "id"}, [0, 1]),
        ({"as_of": "END", "filter": "id >= 1"}, [1]),
        ({"as_of": "END", "hoodie.datasource.query.type": "read_optimized"}, [0, 1]),
        ({"end": "END"}, [0, 1]),
        ({"begin": "BEGIN", "end": "END"}, [1]),
        ({"begin": "BEGIN", "end": "END", "filter": "id >= 1"}, [1]),
        ({"begin": "END", "end": "END"}, []),
        ({**INCREMENTAL, BEGIN: "BEGIN", END: "END"}, [1]),
        ({"changes": "true", "begin": "BEGIN", "end": "END"}, [1]),
        ({"changes": "true", "end": "END"}, [0, 1]),
        ({"changes": "true", "end": "20100101000000000"}, []),
    ],
)
def test_read_that_ends_before_a_column_was_added_has_the_columns_of_its_end(
    table: Table, done: list[CommitResult], options: dict[str, str], ids: list[int]
) -> None:
    table.add_columns(pa.schema([("note", pa.string())]))
    table.append(pa.table({"id": [9], "note": ["new"]}))
    times = {"BEGIN": done[0].completion, "END": done[1].completion}
    ended = {name: times.get(value, value) for name, value in options.items()}
    assert read(table, ended) == ids
    assert source(table, ended).schema().names == [*["_operation"] * ("changes" in options), "id"]
    assert source(table, {"as_of": table.version or ""}).schema().names == ["id", "note"]


@pytest.mark.parametrize("options", [{}, {"changes": "true"}, {"filter": "note is null"}])
def test_stream_reads_null_in_batches_that_end_before_a_column_was_added(
    table: Table, done: list[CommitResult], options: dict[str, str]
) -> None:
    table.add_columns(pa.schema([("note", pa.string())]))
    table.append(pa.table({"id": [9], "note": ["new"]}))
    found = source(table, options)
    stream = found.streamReader(found.schema())
    offsets = [{"completion": ""}, *({"completion": commit.completion} for commit in done)]
    for number, (start, end) in enumerate(pairwise(offsets)):
        rows = [
            row for part in stream.partitions(start, end) for batch in stream.read(part) for row in batch.to_pylist()
        ]
        assert [(row["id"], row["note"]) for row in rows] == [(number, None)]


def test_stream_starts_where_the_offset_says(table: Table, done: list[CommitResult]) -> None:
    def start(offset: str) -> str:
        found = source(table, {OFFSET: offset, **INCREMENTAL})
        stream = found.streamReader(found.schema())
        assert isinstance(stream, StreamReader)
        return stream.initialOffset()["completion"]

    assert start("2010-01-02") == ""
    assert start("2999-01-02 12:00:00") == done[2].completion
    assert start("earliest") == start("000") == ""
    assert start("latest") == done[2].completion
    assert start(done[1].instant) == start(done[1].completion) == done[1].completion


def test_stream_of_net_changes_can_select_columns(table: Table, done: list[CommitResult]) -> None:
    found = source(table, {"changes": "true", "columns": "id"})
    stream = found.streamReader(found.schema())
    end = stream.latestOffset(stream.initialOffset(), stream.getDefaultReadLimit())
    assert end == {"completion": done[2].completion}
    parts = stream.partitions(stream.initialOffset(), end)
    rows = [row for part in parts for batch in stream.read(part) for row in batch.to_pylist()]
    assert sorted(row["id"] for row in rows) == [0, 1, 2]
    assert {row["_operation"] for row in rows} == {"insert"}


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({TYPE: "realtime"}, "realtime is none of snapshot, read_optimized, incremental"),
        (INCREMENTAL, "needs hoodie.datasource.read.begin.instanttime"),
        ({BEGIN: "000"}, "set hoodie.datasource.query.type=incremental"),
        ({BEGIN: "000", TYPE: "snapshot"}, "cannot be used with hoodie.datasource.query.type=snapshot"),
        ({**INCREMENTAL, BEGIN: "soon"}, "'soon' is not a time"),
        ({**INCREMENTAL, BEGIN: "000", FORMAT: "cdc"}, "set changes=true instead"),
        ({**INCREMENTAL, BEGIN: "000", "as.of.instant": "2026-01-02"}, "set one of them"),
        ({**INCREMENTAL, BEGIN: "20260102000000000", END: "20260101000000000"}, "is before begin"),
        ({"as.of.instant": "2026-01-02", "as_of": "20260103000000000"}, "given twice"),
        ({OFFSET: "earliest"}, "cannot be used with a batch read: use hoodie.datasource.read.begin.instanttime"),
        ({"hoodie.datasource.query.typ": "incremental"}, "did you mean hoodie.datasource.query.type?"),
        ({"hoodie.query.type": "incremental"}, "not a known option of a read"),
        ({"hoodie.datasource.read.begin.instant": "000"}, "did you mean hoodie.datasource.read.begin.instanttime?"),
        ({"hoodie.datasource.read.incr.path.glob": "/a*"}, "use the option partitions"),
        ({"hoodie.datasource.read.incr.fallback.fulltablescan.enable": "true"}, "catch HistoryGone"),
        ({"hoodie.datasource.merge.type": "skip_merge"}, "use payload_combine, or leave it out"),
        ({"hoodie.datasource.write.recordkey.field": "id"}, "not a known option of a read"),
        ({"hoodie.write.concurency.mode": "x"}, "did you mean hoodie.write.concurrency.mode"),
        ({"as.of.instnt": "x"}, "did you mean as.of.instant?"),
        ({"filtr": "id = 1"}, "did you mean filter?"),
        ({"timestampAsOf": "2026-01-02"}, "timestampasof is not known"),
        ({"as.of.instant": "000"}, "'000' is not a time"),
        ({"as_of": ""}, "'' is not a time"),
        ({"end": ""}, "'' is not a time"),
        ({"columns": ","}, "columns=, names nothing"),
        ({"partitions": ""}, "partitions= names nothing"),
    ],
)
def test_option_that_is_not_obeyed_is_refused(table: Table, options: dict[str, str], why: str) -> None:
    with pytest.raises((InvalidInput, PySparkException, ValueError), match=why) as refused:
        read(table, options)
    assert type(refused.value).__name__ in {"InvalidInput", "InvalidSettings"}


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"changes": "true", "filter": "id = 1"}, "changes=true cannot be used with as_of or filter"),
        ({"changes": "true", "as_of": "2999-01-02"}, "changes=true cannot be used with as_of or filter"),
        ({"begin": "20260102000000000", "end": "20260101000000000"}, "is before begin"),
        ({"as_of": ""}, "'' is not a time"),
        ({"changes": "true"}, "the given columns lack _operation"),
    ],
)
def test_option_is_refused_if_the_user_gives_the_columns(table: Table, options: dict[str, str], why: str) -> None:
    with pytest.raises(InvalidInput, match=why):
        read(table, options, StructType().add("id", LongType()))


@pytest.mark.parametrize("name", ["_operation", "_OPERATION"])
def test_own_operation_column_is_kept_but_not_with_changes(tmp_path: Path, name: str) -> None:
    rows = pa.table({"id": [1], name: ["buy"]})
    table = Table.create(tmp_path / "own", TableSpec("t", rows, "id"), settings=SETTINGS)
    table.append(rows)
    for columns in ({}, {"columns": f"id,{name}"}):
        found = source(table, columns)
        stream = found.streamReader(found.schema())
        assert isinstance(stream, StreamReader)
        start = stream.initialOffset()
        parts = stream.partitions(start, stream.latestOffset(start, stream.getDefaultReadLimit()))
        assert [row for part in parts for batch in stream.read(part) for row in batch.to_pylist()] == rows.to_pylist()
    for refused in (source(table, {"changes": "true"}).schema, table.changes):
        with pytest.raises(InvalidInput, match=f"column '{name}' of the table has the name of the operation"):
            refused()
    stream = HudiCas({"path": table.url, "columns": f"id,{name}"}).streamReader(
        StructType().add("id", LongType()).add(name, LongType())
    )
    with pytest.raises(UnsupportedSchema, match=f"columns .'{name} string'. of the table"):
        stream.latestOffset(stream.initialOffset(), ReadAllAvailable())


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({TYPE: "snapshot"}, "cannot be used with a stream"),
        ({**INCREMENTAL, BEGIN: "000"}, "use hoodie.datasource.streaming.startoffset, or the option starting"),
        ({"as.of.instant": "2026-01-02"}, r"\['as_of'\] cannot be used with a stream"),
        ({"hoodie.datasource.streaming.startOfset": "latest"}, "did you mean hoodie.datasource.streaming.startoffset?"),
    ],
)
def test_option_that_a_stream_does_not_obey_is_refused(table: Table, options: dict[str, str], why: str) -> None:
    found: Any = source(table, options)
    with pytest.raises(InvalidInput, match=why):
        found.streamReader(source(table, {}).schema())


def test_options_about_how_a_reader_works_inside_are_accepted(table: Table, done: list[CommitResult]) -> None:
    inside = {
        "hoodie.metadata.enable": "true",
        "hoodie.enable.data.skipping": "true",
        "hoodie.datasource.read.incr.skip_compact": "true",
        "hoodie.write.lock.wait_time_ms": "1000",
    }
    assert read(table, inside) == list(range(len(done)))
