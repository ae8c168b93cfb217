"""SQL that changes rows of registered tables, each statement one transaction, with hudi-rs as the judge."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import AnalysisException
from pyspark.sql.functions import col
from table.engines.spark.spark_tables import filled, frame
from table.tables import SPEC, by_hudi_rs, content, data_files, upsert

from fsspec_cas import InvalidInput, Unavailable
from lockprovider.table import InvalidRecords, Table
from lockprovider.table.engines import spark as engine
from lockprovider.table.engines.spark import views

ROWS = {(1, "a", 1), (2, "a", 2), (3, "b", 3), (4, "c", 4)}


@pytest.fixture
def table(spark: Any, tmp_path: Path) -> Table:
    made = filled(tmp_path / "t", SPEC)
    engine.register(spark, made.url, "trips")
    return made


@pytest.fixture
def run(spark: Any, table: Table) -> Callable[..., Any]:
    """A statement; afterwards the view shows what is in the table, and so does hudi-rs."""

    def statement(text: str, **options: Any) -> Any:
        result = engine.sql(spark, text, **options)
        seen = {tuple(row) for row in spark.sql("select id, part, value from trips").collect()}
        assert seen == content(table) == by_hudi_rs(table.url)
        assert table.timeline().pending_writes == ()
        return result

    return statement


def test_merge_updates_deletes_and_inserts_in_one_commit(spark: Any, table: Table, run: Any) -> None:
    late = [(1, "a", 10, False), (2, "a", 0, True), (9, "b", 90, False), (8, "d", 80, True)]
    spark.createDataFrame(late, "`trip id` long, part string, more int, gone boolean").createOrReplaceTempView("late")
    before = len(table.history())
    result = run(
        "merge into trips t using late on t.id = late.`trip id` and t.part = late.part "
        "when matched and late.gone then delete "
        "when matched then update set value = t.value + more "
        "when not matched and not gone then insert (id, part, value) values (Late . `trip id`, late.part, more + 1)"
    )
    assert content(table) == {(1, "a", 11), (3, "b", 3), (4, "c", 4), (9, "b", 91)}
    assert (result.inserted, result.updated, result.deleted) == (1, 1, 1)
    assert len(table.history()) == before + 1
    run(
        "merge into trips using (select id, part, value * 2 as value from trips) twice "
        "on trips.id = twice.id and trips.part = twice.part "
        "when matched and trips.id > 1 then update set * when not matched then insert *"
    )
    assert content(table) == {(1, "a", 11), (3, "b", 6), (4, "c", 8), (9, "b", 182)}


def test_merge_pairs_columns_by_name_in_any_case(spark: Any, table: Table, run: Any) -> None:
    spark.createDataFrame([(1, "a", 10), (9, "z", 90)], "ID long, Part string, VALUE long").createOrReplaceTempView("s")
    merge = "merge into trips t using s on t.id = s.id and t.part = s.part when matched then update set *"
    result = run(f"{merge} when not matched then insert *")
    assert (result.inserted, result.updated) == (1, 1)
    assert content(table) == {(1, "a", 10), (2, "a", 2), (3, "b", 3), (4, "c", 4), (9, "z", 90)}
    late = spark.createDataFrame([(2, "a", 20), (8, "y", 80)], "ID long, PART string, Value long")
    engine.merge(table, late, engine.MatchedUpdate(), engine.NotMatchedInsert())
    assert content(table) == {(1, "a", 10), (2, "a", 20), (3, "b", 3), (4, "c", 4), (8, "y", 80), (9, "z", 90)}
    with pytest.raises(InvalidInput, match=r"several columns \['value'\]; it has \['id', 'part', 'value', 'VALUE'\]"):
        engine.sql(spark, merge.replace("using s", "using (select *, 1 as VALUE from trips) s"))


def test_bad_clause_is_refused_before_a_job(spark: Any, table: Table) -> None:
    clauses = (
        engine.MatchedUpdate({"value": 5}),  # type: ignore[dict-item]
        engine.MatchedUpdate({"value": None}),  # type: ignore[dict-item]
        engine.MatchedUpdate({1: "5", "value": "5"}),  # type: ignore[dict-item]
        engine.MatchedUpdate([("value", "5")]),  # type: ignore[arg-type]
        engine.MatchedDelete(col("s.value") == 1),  # type: ignore[arg-type]
    )
    for clause in clauses:
        with pytest.raises(InvalidInput, match="give conditions and values as Spark SQL texts"):
            engine.merge(table, frame(spark, (1, "a", 1)), clause)


def test_view_of_an_open_table_takes_no_storage_options(spark: Any, table: Table) -> None:
    with pytest.raises(InvalidInput, match="is open: give storage_options with a URL"):
        engine.register(spark, table, "trips", storage_options={"key": "x"})


def test_update_and_a_delete_rewrite_what_they_touch(table: Table, run: Any) -> None:
    before = data_files(Path(table.url))
    result = run(
        "update trips as t set value = t.value * 10 + (select max(value) from trips) where part = 'a' and t.id > 1"
    )
    assert content(table) == {(1, "a", 1), (2, "a", 24), (3, "b", 3), (4, "c", 4)}
    assert (result.updated, result.inserted) == (1, 0)
    assert {path.split("/")[0] for path in data_files(Path(table.url)) - before} == {"a"}
    assert run("update trips set value = null where id > 100").updated == 0
    result = run("delete from trips where trips.value in (select value from trips where id = 3) or part = 'c'")
    assert content(table) == {(1, "a", 1), (2, "a", 24)}
    assert result.deleted == 2
    assert run("delete from trips").deleted == 2
    assert content(table) == set()
    upsert(table, (7, "a", 7))  # the view does not show it yet
    assert run("delete from trips where exists (from trips |> where id = 7)").deleted == 1


def test_inserts_add_and_overwrite(table: Table, run: Any) -> None:
    run("insert into trips values (7, 'd', 70), (8, 'a', 80)")
    run("insert into trips (value, id, part) select value + 1, id + 100, part from trips where part = 'd'")
    run("insert into trips by name select 'e' as part, 9L as id")
    assert content(table) == ROWS | {(7, "d", 70), (8, "a", 80), (107, "d", 71), (9, "e", None)}
    run("insert overwrite trips select id, part, value from trips where part in ('a', 'd') and value > 2")
    assert content(table) == {(7, "d", 70), (8, "a", 80), (107, "d", 71)}
    assert table.history()[-1].operation == "INSERT_OVERWRITE_TABLE"


def test_committed_statement_whose_view_cannot_be_shown_returns_its_result(
    spark: Any, table: Table, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    real = views.RegisteredView.show

    def show(view: Any, session: Any, source: Any) -> None:
        if source is view.table:
            raise Unavailable("the store is out of reach")
        real(view, session, source)

    monkeypatch.setattr(views.RegisteredView, "show", show)
    assert engine.sql(spark, "insert into trips values (9, 'a', 9)").inserted == 1
    assert (9, "a", 9) in content(table)
    assert "register it again" in caplog.text


def test_statement_that_does_not_fit_the_table_is_refused(spark: Any, table: Table) -> None:
    merge = "merge into trips t using (select 1L as id, 'a' as part, 5 as n) s on t.id = s.id"
    both = f"{merge} and t.part = s.part"
    refused: list[tuple[str, type[Exception], str]] = [
        ("delete from other", InvalidInput, "no table is registered as 'other' in this session, which has ['"),
        (f"{merge} when matched then delete", InvalidInput, "ON must compare the key and partition columns"),
        (f"{both} when matched then update set *", InvalidInput, "the source lacks ['value']"),
        (
            "merge into trips t using (select 1L as x) s on t.id = s.x and t.part = s.id when matched then delete",
            InvalidInput,
            "the source has no column 'id'",
        ),
        (
            f"{both} when not matched then insert (id, value) values (s.id, 1)",  # noqa: S608
            InvalidInput,
            "part is a key or partition column",
        ),
        (f"{both} when matched then update set id = s.n", InvalidInput, "can only be set to s.id, as in ON"),
        (
            f"{merge.replace('part', 'date')} and t.part = s.date when matched then update set part = date '2024-1-1'",
            InvalidInput,
            "can only be set to s.date, as in ON",
        ),
        (f"{both} when matched then update set colour = 1", InvalidInput, "'colour' is no column of the table"),
        ("update trips set part = 'z'", InvalidRecords, "['part'] are key or partition columns"),
        ("insert into trips select 1, 'a'", InvalidInput, "the query has 2 columns for ['id', 'part', 'value']"),
        ("insert into trips (id, colour) values (1, 2)", InvalidInput, "'colour' is no column"),
        ("insert into trips values (cast(null as long), 'a', 1)", InvalidRecords, "null or empty"),
        ("delete from trips where colour = 1", AnalysisException, "colour"),
    ]
    for text, kind, words in refused:
        with pytest.raises(kind) as caught:
            engine.sql(spark, text)
        assert words in str(caught.value)
    engine.register(spark, table, "part_of_trips", filter="part = 'a'")
    with pytest.raises(InvalidInput, match="is a part of its table"):
        engine.sql(spark, "delete from part_of_trips")
    assert content(table) == by_hudi_rs(table.url) == ROWS
    assert table.timeline().pending_writes == ()


@pytest.mark.soak  # what test_functions.py does of merges
def test_concurrent_statements_lose_nothing(spark: Any, table: Table) -> None:
    def add(part: str) -> None:
        engine.sql(spark, "update trips set value = value + 1 where id = 1", retries=20)
        engine.sql(spark, f"insert into trips select {ord(part)}, '{part}', max(value) from trips", retries=20)  # noqa: S608

    with ThreadPoolExecutor(3) as threads:
        list(threads.map(add, "xyz"))
    found = by_hudi_rs(table.url)
    assert content(table) == found
    assert {row for row in found if row[0] == 1} == {(1, "a", 4)}, "an update was lost"
    assert {part for _, part, _ in found} == {*"abcxyz"}
