"""SQL statements are taken apart, and what cannot be carried out is refused with its place. No Spark is needed."""

from __future__ import annotations

import re

import pytest

pytest.importorskip("sqlglot")

from fsspec_cas import InvalidInput
from lockprovider.table.engines.spark.statement import (
    DeleteStatement,
    InsertStatement,
    MergeStatement,
    Target,
    UpdateStatement,
    WhenClause,
    parse_statement,
)


def test_merge_keeps_the_users_own_words() -> None:
    found = parse_statement(
        "MERGE INTO trips AS t USING (select *, ')' as x from late where a in (1, 2)) l\n"
        "ON t.id = l.trip AND l.part = t.part -- the key\n"
        "WHEN MATCHED AND l.gone THEN DELETE\n"
        "WHEN MATCHED THEN UPDATE SET t.value = t.value+l.more, "
        "`b c` = CASE WHEN l.x = 'when' THEN 1 ELSE f(2, 3) END\n"
        "WHEN NOT MATCHED BY TARGET AND NOT l.gone THEN INSERT (id, part, value) "
        "VALUES (l.trip, l.part, coalesce(l.more, 0));"
    )
    assert isinstance(found, MergeStatement)
    assert (found.target, found.source_alias) == (Target("trips", "t"), "l")
    assert found.source == "(select *, ')' as x from late where a in (1, 2))"
    assert found.on == (("id", "trip"), ("part", "part"))
    assert found.clauses == (
        WhenClause("delete", "l.gone", None),
        WhenClause(
            "update",
            None,
            (("value", "t.value+l.more"), ("b c", "CASE WHEN l.x = 'when' THEN 1 ELSE f(2, 3) END")),
        ),
        WhenClause("insert", "NOT l.gone", (("id", "l.trip"), ("part", "l.part"), ("value", "coalesce(l.more, 0)"))),
    )


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (
            "merge into trips using late on trips.id = late.id when matched then update set * when not matched then insert *",  # noqa: E501
            MergeStatement(
                Target("trips", "trips"), "late", "late", (("id", "id"),), "at character 32",
                (WhenClause("update", None, None), WhenClause("insert", None, None)),
            ),
        ),
        ("delete from trips", DeleteStatement(Target("trips", "trips"), None)),
        (
            "delete from `my trips` as t where t.id in (select id from gone where n > 1);",
            DeleteStatement(Target("my trips", "t"), "t.id in (select id from gone where n > 1)"),
        ),
        (
            "update trips set a = 'x = y', b = b[0] + 1 where c between 1 and 2 or d is null",
            UpdateStatement(
                Target("trips", "trips"), (("a", "'x = y'"), ("b", "b[0] + 1")), "c between 1 and 2 or d is null"
            ),
        ),
        (
            "insert into trips values (1, 'a')",
            InsertStatement(Target("trips", "trips"), "values (1, 'a')", None, False, False),
        ),
        (
            "INSERT INTO TABLE trips (id, part) (select 1, 2)",
            InsertStatement(Target("trips", "trips"), "(select 1, 2)", ("id", "part"), False, False),
        ),
        (
            "insert into trips by name select 1 as id",
            InsertStatement(Target("trips", "trips"), "select 1 as id", None, True, False),
        ),
        (
            "insert overwrite trips select * from late",
            InsertStatement(Target("trips", "trips"), "select * from late", None, False, True),
        ),
        (
            "insert overwrite table trips (select * from late)",
            InsertStatement(Target("trips", "trips"), "(select * from late)", None, False, True),
        ),
    ],
)  # fmt: skip
def test_statements_are_taken_apart(text: str, expected: object) -> None:
    assert parse_statement(text) == expected


MERGE = "merge into trips t using late s on t.id = s.id "


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("delete from trips where id = 1; -- done", DeleteStatement(Target("trips", "trips"), "id = 1")),
        (
            "update trips t set a = t.case, b = t.`when` where t.end = 1 and t.when = 2",
            UpdateStatement(
                Target("trips", "t"), (("a", "t.case"), ("b", "t.`when`")), "t.end = 1 and t.when = 2"
            ),
        ),
        (
            "merge into a t using late s on (t.id = s.id and (t.part = s.part)) when matched and s.then then delete",
            MergeStatement(
                Target("a", "t"), "late", "s", (("id", "id"), ("part", "part")), "at character 32",
                (WhenClause("delete", "s.then", None),),
            ),
        ),
    ],
)  # fmt: skip
def test_columns_named_like_keywords_comments_and_brackets_are_parsed(text: str, expected: object) -> None:
    assert parse_statement(text) == expected


@pytest.mark.parametrize("literal", ["r'where'", "r'('", "r')'", "x'1f'", "'where'"])
def test_literal_of_any_kind_is_neither_word_nor_bracket(literal: str) -> None:
    values = (("a", f"concat(b, {literal})"),)
    found = parse_statement(f"update trips set a = concat(b, {literal}) where id = 1")  # noqa: S608
    assert found == UpdateStatement(Target("trips", "trips"), values, "id = 1")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "expected MERGE, UPDATE, DELETE or INSERT"),
        ("select 1", "not 'select', at character 1"),
        ("optimize trips", "not 'optimize', at character 1"),
        ("truncate table trips", "not 'truncate', at character 1"),
        ("with x as (select 1) insert into trips select * from x", "not 'with', at character 1"),
        ("delete from trips; delete from trips", "has 2 statements"),
        ("delete from trips where (a = 1", "cannot be understood from '1' on, at character 30"),
        ("delete from trips where a = 'x", "cannot be understood"),
        ("merge into trips usng late on x", "cannot be understood from 'x' on, at character 31"),
        ("update trips set", "not the end, at character 17"),
        ("update trips set a = 1, a = 2", "expected each column once, not 'a', at character 25"),
        ("update trips t set u.a = 1", "expected a column of t, not 'u', at character 20"),
        ("update trips t set t.a.b = 1", "a field of a struct cannot be set"),
        ("delete from db.trips", "(without a dot), not '.', at character 15"),
        (MERGE + "when not matched by source then delete", "BY SOURCE is not supported"),
        (MERGE + "when not matched by source then delete", "not 'not', at character 53"),
        (MERGE + "when not matched then insert (id, part) values (s.id)", "one value for each of ['id', 'part']"),  # noqa: S608
        (
            "merge into trips t using late s on t.id = s.id or t.x = 1 when matched then delete",
            "ON must be t.KEY = s.KEY",
        ),
        (
            "merge into trips t using late s on t.id = s.id and t.x > 1 when matched then delete",
            "not 't.x > 1', at character 36",
        ),
        (
            "merge into trips t using late s on t.id = s.a and t.ID = s.b when matched then delete",
            "ON compares t.ID twice",
        ),
        ("merge into trips t using late s on t.id = 7 when matched then delete", "ON must be t.KEY = s.KEY"),
        ("merge into trips t using late s on id = s.id when matched then delete", "ON must be t.KEY = s.KEY"),
        ("merge into trips t using late s on t.id <=> s.id when matched then delete", "ON must be t.KEY = s.KEY"),
        ("merge into trips t using late s on t.id = s.s.id when matched then delete", "ON must be t.KEY = s.KEY"),
        ("merge into trips t using late s on t.t.id = s.id when matched then delete", "ON must be t.KEY = s.KEY"),
        (
            "merge into trips t using late T on t.id = t.id when matched then delete",
            "another name for the source than t",
        ),
        (MERGE + "when not matched then insert (s.id) values (s.id)", "a column of t, not 's', at character 78"),  # noqa: S608
        ("insert into trips (late.id) values (1)", "a column of trips, not 'late', at character 20"),
        ("merge into trips t using (select 1) on t.id = s.id when matched then delete", "a name for the query"),
        ("insert into trips partition (part = 'a') select 1, 2", "not 'partition', at character 19"),
        ("insert into trips replace where a = 1 select 2", "not 'replace', at character 19"),
    ],
)
def test_unsupported_statement_is_refused_with_its_position(text: str, words: str) -> None:
    with pytest.raises(InvalidInput, match=re.escape(words)):
        parse_statement(text)
