"""Streams out of one table into others: nothing missing, nothing twice, also after kill -9 at the worst moment."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
from pyspark.errors import StreamingQueryException
from table.engines.spark.spark_tables import RUN_S, forget_last_batch, to_its_end
from table.tables import SETTINGS, SPEC, by_hudi_rs, content, orphans, rows, upsert

from fsspec_cas import OutcomeUnknown, Unavailable
from lockprovider import LeaseLost, PublishUnknown
from lockprovider import table as table_package
from lockprovider.table import HistoryGone, Table, TableEvent
from lockprovider.table.engines import arrow
from lockprovider.table.engines import spark as engine
from lockprovider.table.engines.spark import stream
from lockprovider.table.engines.spark.data_source import HudiCas, register
from lockprovider.table.engines.spark.errors import translated
from lockprovider.table.engines.spark.stream import batches, upserts
from lockprovider.table.errors import UnsupportedSchema
from lockprovider.table.format.metadata import SINK_KEY

SCRIPT = Path(__file__).with_name("streaming_child.py")


def made(folder: Path) -> Table:
    return Table.create(str(folder), SPEC, settings=SETTINGS)


def batches_in(table: Table) -> list[int]:
    notes = [json.loads(commit.extra.get(SINK_KEY, "{}")) for commit in table.history()]
    return [int(number) for note in notes for number in note.values()]


def test_stream_follows_a_table_and_takes_each_change_once(spark: Any, tmp_path: Path) -> None:
    register(spark)
    source, sink = made(tmp_path / "source"), made(tmp_path / "sink")
    late = source.transaction()  # begins first, finishes last
    arrow.write(late, upserts=rows((9, "z", 9)))
    upsert(source, (1, "a", 1), (2, "b", 2))

    def change(txn: Any, changed: Any) -> None:
        engine.write(txn, upserts=changed.where("value >= 0"), deletes=changed.where("value < 0"))

    def run() -> None:
        stream = spark.readStream.format("hudi_cas").load(source.url)
        sunk = stream.writeStream.foreachBatch(batches(sink, change)).trigger(availableNow=True)
        assert to_its_end(sunk.option("checkpointLocation", str(tmp_path / "checkpoint")).start)

    run()
    assert content(sink) == by_hudi_rs(sink.url) == {(1, "a", 1), (2, "b", 2)}
    forget_last_batch(tmp_path / "checkpoint")
    upsert(source, (1, "a", -1), (3, "c", 3))
    late.commit()
    run()
    assert content(sink) == by_hudi_rs(sink.url) == {(2, "b", 2), (3, "c", 3), (9, "z", 9)}
    assert batches_in(sink) == [0, 1]


def test_repeated_batch_of_a_stream_is_not_appended_again(spark: Any, tmp_path: Path) -> None:
    register(spark)
    source, sink = made(tmp_path / "source"), made(tmp_path / "sink")
    upsert(source, (1, "a", 1), (2, "b", 2))

    def run() -> None:
        stream = spark.readStream.format("hudi_cas").option("max_commits", "2").load(source.url)
        sunk = stream.writeStream.format("hudi_cas").outputMode("append").trigger(availableNow=True)
        assert to_its_end(partial(sunk.option("checkpointLocation", str(tmp_path / "checkpoint")).start, sink.url))

    run()
    forget_last_batch(tmp_path / "checkpoint")
    upsert(source, (3, "c", 3))
    run()
    assert content(sink) == by_hudi_rs(sink.url) == {(1, "a", 1), (2, "b", 2), (3, "c", 3)}
    assert batches_in(sink) == [0, 1]
    assert orphans(Path(sink.url)) == set()


def run_each(spark: Any, source: Table, checkpoint: Path, each: Any) -> None:
    register(spark)
    sink = spark.readStream.format("hudi_cas").load(source.url).writeStream.foreachBatch(each)
    assert to_its_end(sink.trigger(availableNow=True).option("checkpointLocation", str(checkpoint)).start)


def test_each_write_of_one_batch_is_committed_once(spark: Any, tmp_path: Path) -> None:
    events: list[TableEvent] = []
    source, sink = made(tmp_path / "source"), Table.create(str(tmp_path / "sink"), SPEC, watcher=events.append)
    news, more, results = batches(sink, engine.insert), upserts(sink), []
    fails = True

    def each(rows: Any, batch: int) -> None:
        results.append(news(rows.where("id < 10"), batch))
        if fails:
            raise RuntimeError("between two writes")
        results.append(more(rows.where("id >= 10"), batch))
        results.append(more(rows.where("id >= 100"), batch))

    upsert(source, (2, "a", 2), (20, "a", 2))
    with pytest.raises(StreamingQueryException, match="between two writes"):
        run_each(spark, source, tmp_path / "checkpoint", each)
    fails = False
    run_each(spark, source, tmp_path / "checkpoint", each)
    forget_last_batch(tmp_path / "checkpoint")
    run_each(spark, source, tmp_path / "checkpoint", each)
    assert content(sink) == by_hudi_rs(sink.url) == content(source)
    made_ = [one is not None for one in results]
    assert made_ == [True, False, True, False, False, False, False]
    left_out = [str(event.detail["why"]) for event in events if event.kind == "left_out"]
    assert [why == "it has no rows" for why in left_out] == [False, True, False, False, True]
    assert len(sink.history()) == 1 + 2, "a write without rows made a commit"


def test_numbers_of_writes_are_kept_for_the_last_streams_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stream, "_STREAMS", 3)
    monkeypatch.setattr(stream, "_query", lambda rows: rows)
    monkeypatch.setattr(stream, "_TRIES", {})
    table = SimpleNamespace(url="t")

    def write(name: str) -> int:
        with stream._numbered(table, (name, "first try"), 0, None) as batch:  # type: ignore[arg-type]
            return batch.write

    assert [write(name) for name in "aabcada"] == [1, 2, 1, 1, 3, 1, 4]
    assert len(stream._TRIES) == 3
    assert write("b") == 1, "forgotten"


def test_new_checkpoint_with_an_old_stream_id_is_refused(spark: Any, tmp_path: Path) -> None:
    source, sink = made(tmp_path / "source"), made(tmp_path / "sink")
    upsert(source, (1, "a", 1))
    run_each(spark, source, tmp_path / "one", upserts(sink, stream_id="orders"))
    upsert(source, (2, "a", 2))
    with pytest.raises(StreamingQueryException, match=r"WrongCheckpoint.*or give it a new stream_id"):
        run_each(spark, source, tmp_path / "two", upserts(sink, stream_id="orders"))
    assert content(sink) == {(1, "a", 1)}


def test_batches_of_changes_delete_rows_of_the_copy(spark: Any, tmp_path: Path) -> None:
    """As SPARK.md writes it."""
    page = (Path(table_package.__file__).parent / "SPARK.md").read_text()
    scope: dict[str, Any] = {"hudi": engine}
    code = re.search(r"^def change\(.*?\n(?=\n|```)", page, re.MULTILINE | re.DOTALL)[0]  # type: ignore[index]
    exec(code, scope)  # noqa: S102 - that is the point
    source, copy = made(tmp_path / "source"), made(tmp_path / "copy")
    register(spark)
    for write in (
        lambda: upsert(source, (1, "a", 1), (2, "b", 2), (3, "a", 3)),
        lambda: (source.delete("id = 3"), upsert(source, (2, "b", 20))),
    ):
        write()
        stream = spark.readStream.format("hudi_cas").option("changes", "true").load(source.url)
        sink = stream.writeStream.foreachBatch(batches(copy, scope["change"])).trigger(availableNow=True)
        assert to_its_end(sink.option("checkpointLocation", str(tmp_path / "checkpoint")).start)
        assert content(copy) == content(source)


@pytest.mark.parametrize("changes", ["false", pytest.param("true", marks=pytest.mark.soak)])
def test_stream_fails_when_its_table_gets_a_column_and_goes_on_with_it(
    spark: Any, tmp_path: Path, changes: str
) -> None:
    source, seen = made(tmp_path / "source"), []

    def run(stream: Any) -> None:
        written = stream.writeStream.foreachBatch(lambda rows, _: seen.extend(row.asDict() for row in rows.collect()))
        written = written.trigger(availableNow=True).option("checkpointLocation", str(tmp_path / "checkpoint"))
        assert to_its_end(written.start)

    register(spark)
    upsert(source, (1, "a", 1))
    read = spark.readStream.format("hudi_cas").option("changes", changes)
    stream = read.load(source.url)
    run(stream)
    source.add_columns(pa.schema([("note", pa.string())]))
    source.upsert(pa.table({"id": [9], "part": ["a"], "value": [9], "note": ["new"]}))
    with pytest.raises(StreamingQueryException) as raised:
        run(stream)
    error = translated(str(raised.value))
    assert isinstance(error, UnsupportedSchema), str(raised.value)
    assert [row["id"] for row in seen] == [1]
    run(read.load(source.url))
    assert [(row["id"], row["note"]) for row in seen[1:]] == [(9, "new")]


@pytest.mark.parametrize("kind", [Unavailable, OutcomeUnknown, LeaseLost, PublishUnknown, HistoryGone])
def test_errors_of_tasks_keep_their_types(kind: type[Exception]) -> None:
    text = f"Traceback (most recent call last):\n{kind.__module__}.{kind.__name__}: the reason\n\tat org.apache.spark"
    assert type(translated(text)) is kind
    assert str(translated(text)) == "the reason"


def test_running_stream_refuses_a_new_column_before_its_offset_moves(tmp_path: Path) -> None:
    source = made(tmp_path / "source")
    upsert(source, (1, "a", 1))
    whole, some = HudiCas({"path": source.url}), HudiCas({"path": source.url, "columns": "id"})
    readers = [one.streamReader(one.schema()) for one in (whole, some)]
    start = readers[0].initialOffset()
    offset = readers[0].latestOffset(start, readers[0].getDefaultReadLimit())
    source.add_columns(pa.schema([("note", pa.string())]))
    for refused in (
        lambda: readers[0].latestOffset(offset, readers[0].getDefaultReadLimit()),
        lambda: readers[0].partitions(start, offset),
    ):
        with pytest.raises(UnsupportedSchema, match=r"\['note string'\] .* start the query with the same checkpoint"):
            refused()
    assert readers[1].latestOffset(offset, readers[1].getDefaultReadLimit()) != offset
    assert whole.streamReader(whole.schema()).latestOffset(offset, readers[1].getDefaultReadLimit()) != offset


@pytest.mark.parametrize("operation", [pytest.param("insert", marks=pytest.mark.soak), "upsert"])
def test_sink_makes_no_commit_of_a_batch_without_rows(spark: Any, tmp_path: Path, operation: str) -> None:
    register(spark)
    source, sink = made(tmp_path / "source"), made(tmp_path / "sink")
    stream = spark.readStream.format("hudi_cas").load(source.url).where("value >= 0").writeStream.format("hudi_cas")
    stream = stream.option("hoodie.datasource.write.operation", operation)
    stream = stream.option("checkpointLocation", str(tmp_path / "checkpoint")).trigger(availableNow=True)
    for value in (-1, 1, -2):
        upsert(source, (value, "a", value))
        assert to_its_end(partial(stream.start, sink.url))
    assert content(sink) == {(1, "a", 1)}
    assert batches_in(sink) == [1]
    assert sink.timeline().pending_writes == ()
    assert orphans(Path(sink.url)) == set()


@pytest.mark.soak
@pytest.mark.parametrize("sink", ["format", "foreach"])
def test_stream_killed_between_its_commit_and_sparks_writes_once(tmp_path: Path, sink: str) -> None:
    source, table = made(tmp_path / "source"), made(tmp_path / "sink")
    for number in range(2):
        upsert(source, (number, "ab"[number], number))

    def run(*more: str) -> int:
        command = [sys.executable, str(SCRIPT), str(tmp_path), sink, *more]
        with subprocess.Popen(command, start_new_session=True) as child:
            try:
                return child.wait(RUN_S)
            finally:
                child.kill()

    assert run("kill") == -signal.SIGKILL
    commits = tmp_path / "checkpoint" / "commits"
    assert (commits / "0").exists(), "Spark did not note the batch before"
    assert not (commits / "1").exists(), "it was not killed before Spark noted the batch"
    assert batches_in(table) == [1], "the batch was not committed before the kill"  # batch 0 has no rows, so no commit
    assert run() == 0
    assert content(table) == by_hudi_rs(table.url) == {(0, "a", 0), (1, "b", 1)}
    assert batches_in(table) == [1, 2]
    assert orphans(Path(table.url)) == set()
    assert table.timeline().pending_writes == ()
