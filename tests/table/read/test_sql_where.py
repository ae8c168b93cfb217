"""Filters written as SQL keep the rows that SQL would keep; what cannot be understood is refused."""

from __future__ import annotations

import io
import pickle
import random
import threading
from datetime import date, datetime, timezone
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from fsspec_cas import InvalidInput
from lockprovider.table import TableSpec
from lockprovider.table.files.place import TablePlace
from lockprovider.table.format.layout import BaseFile
from lockprovider.table.read.filters import Filter, OneOf
from lockprovider.table.read.scan import plan_scan, to_table
from lockprovider.table.read.sql_where import parse_where
from lockprovider.table.timeline.timeline import Timeline
from lockprovider.table.timeline.view import FileSlice, Snapshot

NOON = datetime(2026, 1, 2, 12, tzinfo=timezone.utc)
TABLE = pa.table(
    {
        "n": pa.array([1, 2, 3, None], pa.int64()),
        "city": ["ulm", "bonn", "o'hare", None],
        "fare": [0.5, 1.5, 2.5, None],
        "day": pa.array([date(2026, 1, 1), date(2026, 1, 2), None, None], pa.date32()),
        "at": pa.array([NOON, None, None, None], pa.timestamp("us", "UTC")),
        "local": pa.array([NOON.replace(tzinfo=None), None, None, None], pa.timestamp("us")),
        "paid": [True, False, None, None],
        "d": pa.array([Decimal("1.00"), Decimal("1.50"), Decimal("1.51"), None], pa.decimal128(10, 2)),
        "order": pa.array([1, 2, 3, 4], pa.int32()),
        'a"b': pa.array([1, 2, 3, 4], pa.int32()),
        "date": pa.array([1, 2, 3, 4], pa.int32()),
    }
)


def kept(text: str, table: pa.Table = TABLE, column: str = "order") -> list[Any]:
    found: list[Any] = parse_where(text, table.schema).kept(table)[column].to_pylist()
    return found


@pytest.mark.parametrize(
    ("text", "rows"),
    [
        ("n = 2", [2]),
        ("n == 2", [2]),
        ("n != 2", [1, 3]),
        ("n <> 2 AND fare < 2", [1]),
        ("city = 'o''hare'", [3]),
        ("`city` in ('ulm', 'bonn')", [1, 2]),
        ("city not in ('ulm')", [2, 3]),
        ("not city in ('ulm')", [2, 3]),
        ("city in ('ulm', null)", [1]),
        ("city not in ('ulm', null)", []),
        ("not (city in (null) or n = 1)", []),
        ("n between 2 and 3 and not (n = 3)", [2]),
        ("n not between 2 and 9", [1]),
        ("not n between 2 and 9", [1]),
        ("city is null", [4]),
        ("not city is null", [1, 2, 3]),
        ("not not city is not null", [1, 2, 3]),
        ("city is not null and (n < 2 or fare >= 2.5)", [1, 3]),
        ("n = 1 or n = 2 and fare > 9", [1]),
        ("n = 1 or n = 2 or not (n != 3)", [1, 2, 3]),
        ("n != 1 and n != 2 and order > 0", [3]),
        ("not (n != 1 and n != 2) or n in (2, 3)", [1, 2, 3]),
        ("day = '2026-01-02'", [2]),
        ("day = date '2026-01-02'", [2]),
        ("day < timestamp '2026-01-01 00:00:01'", [1]),
        ("day in (date '2026-01-01', '2026-01-02')", [1, 2]),
        ("at >= '2026-01-02T12:00:00'", [1]),
        ("at > '2026-01-02T12:00:00Z'", []),
        ("at <= '2026-01-02T13:00:00+01:00'", [1]),
        ("at = timestamp '2026-01-02 12:00'", [1]),
        ("at > timestamp '2026-01-02 11:59:59.9999999'", [1]),
        ("at < timestamp '2026-01-02 12:00:00.0000001'", [1]),
        ("at = timestamp '2026-01-02 12:00:00.0000001'", []),
        ("at >= date '2026-01-02' and at < date '2026-01-03'", [1]),
        ("at > '2026-01-02' and local > '2026-01-02' and local < '2026-01-02 12:00:01'", [1]),
        ("paid = true or paid = FALSE", [1, 2]),
        ("paid", [1]),
        ("not paid", [2]),
        ("paid and n = 1 or not paid and n = 2", [1, 2]),
        ("true and n = 1 or false", [1]),
        ("paid != true", [2]),
        ("n > -1", [1, 2, 3]),
        ("city like 'u%'", [1]),
        ("city like '_onn'", [2]),
        ("city not like '%o%'", [1]),
        ("city like 'o''%'", [3]),
        ("city like '%\\%%'", []),
        ('"order" = 1', [1]),
        ('"a""b" >= 4', [4]),
        ("date = 2", [2]),
        ("fare > 1 and fare < 1e1 and fare in (1.5, 2.50)", [2, 3]),
        ("n = 1e0 or n = 2.00", [1, 2]),
        ("n = .2e1", [2]),
        ("(((n = 1)))", [1]),
    ],
)
def test_filter_keeps_the_rows_of_sql(text: str, rows: list[Any]) -> None:
    assert kept(text) == rows


@pytest.mark.parametrize(
    ("text", "rows"),
    [
        ("d = 1.004", []),
        ("d = 1.505", []),
        ("d != 1.505", [1, 2, 3]),
        ("d > 1.505", [3]),
        ("d >= 1.505", [3]),
        ("d < 1.505", [1, 2]),
        ("d <= 1.505", [1, 2]),
        ("d between 1.499 and 1.501", [2]),
        ("d in (1.004, 1.5, 1.510)", [2, 3]),
        ("d not in (1.004, 1.5)", [1, 3]),
        ("d = 1", [1]),
        ("d < 100000000", [1, 2, 3]),
        ("d < 1e1000000000", [1, 2, 3]),
        ("d > -1e1000000000", [1, 2, 3]),
        ("d > 1e-1000000000", [1, 2, 3]),
        ("n < 100000000000000000000", [1, 2, 3]),
        ("n > -100000000000000000000", [1, 2, 3]),
        ("n = 100000000000000000000", []),
        ("n != 100000000000000000000", [1, 2, 3]),
        ("not n = 100000000000000000000", [1, 2, 3]),
        (f"n < {'9' * 10_000}", [1, 2, 3]),
        ("n in (1.5, 2, 100000000000000000000)", [2]),
        ("n = 1.5", []),
        ("n < 1.5", [1]),
        ("n >= 1.5", [2, 3]),
        ("n < -0.5 or n > 2.5", [3]),
        ("order <= 2147483648", [1, 2, 3, 4]),
        ("fare < 1e400", [1, 2, 3]),
        ("fare = 1e400 or fare > 1e400 or fare < -1e400", []),
    ],
)
def test_literal_decides_exactly_when_the_column_cannot_hold_it(text: str, rows: list[Any]) -> None:
    assert kept(text) == rows


def test_filter_of_floats_means_the_nearest_float() -> None:
    table = pa.table({"x": [0.1, -0.0, float("nan"), float("inf")], "f": pa.array([0.1, 0.0, 1.0, 2.0], pa.float32())})
    assert [len(kept(text, table, "x")) for text in ("x = 0.1", "f = 0.1", "x = 0", "x in (0.0, 7)")] == [1] * 4
    assert [len(kept(text, table, "x")) for text in ("x > 1e400", "x < 5", "not x < 5", "x = 1e400")] == [1, 2, 2, 0]


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "expected a column, not 'the end'"),
        ("colour = 1", "at character 1: 'colour' is not a column"),
        ("n = ", "expected a literal"),
        ("n = city", "expected a literal"),
        ('city = "ulm"', "double quotes are for names, a text stands in ''"),
        ("n = null", "`is null` asks for it"),
        ("n in ()", "expected a literal"),
        ("n in (1", "cannot be understood|expected"),
        ("n in (1, 2", "expected"),
        ("n like 'x'", "at character 3: expected a comparison of numbers or times, as 'n' is int64, not 'like'"),
        ("city like n", "expected a text in ''"),
        ("city like 'a\\b'", "a backslash comes before"),
        ("n", r"expected a comparison \(=, !=, <, <=, >, >=, is, in, between, like\), not 'the end'"),
        ("city ilike 'U%'", r"between, like\), not 'ilike'"),
        ("n > 1 & n < 3", "cannot be understood from '& n < 3' on: write and$"),
        ("n = 1 || n = 3", r"cannot be understood from '\|\| n = 3' on: write or$"),
        ("n not 3", "expected in, between or like"),
        ("n = 1 n = 2", "expected and, or, or the end"),
        ("n = 1)", r"expected and, or, or the end, not '\)'"),
        ("(n = 1", r"expected '\)'"),
        ("n = 'one'", "'one' is no number; 'n' is int64"),
        ("n < 1e9999999999999999999", "at character 5: .* has an exponent that is too large"),
        ("n = true", "True is no number"),
        ("paid = 1", "1 is no boolean"),
        ("city = 1", "1 is no text"),
        ("city = true", "True is no text"),
        ("day = 'soon'", "'soon' is no day"),
        ("day = '2026-02-30'", "'2026-02-30' is no day"),
        ("day = '2026-01-02 12:00:00'", "is no day"),
        ("day = 7", "7 is no day"),
        ("day = timestamp '2026-01-01T00:00:00Z'", "a moment with a time zone is no day"),
        ("at = '2026-01-02T25:00:00'", "is no time"),
        ("local = '2026-01-02T12:00:00Z'", "has a time zone"),
        ("n = 1; drop table t", "at character 6: cannot be understood from '; drop table t' on$"),
        ("n = 1abc", "cannot be understood"),
        ("n and paid", "expected a comparison"),
    ],
)
def test_unsupported_filter_is_refused(text: str, why: str) -> None:
    with pytest.raises(InvalidInput, match=why):
        parse_where(text, TABLE.schema)


def test_refusal_of_a_long_filter_shows_only_the_position() -> None:
    with pytest.raises(InvalidInput, match="at character 8801: 'x' is no number") as refused:
        parse_where("n = 1 or " * 977 + "   n = 'x'" + " or n = 1" * 1000, TABLE.schema)
    assert len(str(refused.value)) < 500


# -- long and deep -----------------------------------------------------------------------------------------------------

LONG = {
    "in, numbers": f"n in ({','.join(map(str, range(-999_998, 2)))})",
    "in, texts": "city in ({})".format(", ".join(f"'{number}'" for number in range(1_000_000)) + ", 'ulm'"),
    "or of =": "n = 1" + "".join(f" or n = -{number}" for number in range(20_000)),
    "and of !=": "n <> 2" + "".join(f" and n <> {number}" for number in range(3, 20_000)),
    "or of two columns": "n = 1" + " or city = 'x' or fare = 9 " * 10_000,
    "and of >": "n < 2 " + "".join(f" and n > -{number}" for number in range(1, 20_000)),
    "and of two": "n = 1 " + "".join(f" or (n = -1 and fare = {number})" for number in range(5_000)),
    "parentheses": "(" * 100_000 + "n = 1" + ")" * 100_000,
    "not": "not " * 100_000 + "n = 1",
    "not of parentheses": "not (" * 100_000 + "n = 1" + ")" * 100_000,
    "to the right": "(n > 5 or " * 5_000 + "n = 1" + ")" * 5_000,
    "to the right, folded": "(n = -5 or " * 5_000 + "n = 1" + ")" * 5_000,
    "to the right, by turns": "(n = 1 and (n > 5 or " * 5_000 + "n = 1" + "))" * 5_000,
}


def in_a_small_stack(work: Any) -> Any:
    """What it comes to in a thread with 512 KB of stack."""
    found: list[Any] = []
    former = threading.stack_size(512 * 1024)
    try:
        thread = threading.Thread(target=lambda: found.append(work()))
        thread.start()
    finally:
        threading.stack_size(former)
    thread.join()
    return found[0]


@pytest.mark.parametrize("which", LONG)
def test_filter_of_any_length_and_depth_needs_a_small_stack(which: str) -> None:
    def work() -> tuple[list[Any], Any]:
        found = parse_where(LONG[which], TABLE.schema)
        bound = found.bound()
        within = TABLE if bound is None else TABLE.filter(bound)
        return pickle.loads(pickle.dumps(found)).kept(TABLE)["n"].to_pylist(), found.kept(within)["n"].to_pylist()

    assert in_a_small_stack(work) == ([1], [1])


@pytest.mark.parametrize("which", ["or of =", "and of !=", "to the right, folded"])
def test_chain_of_conditions_on_one_column_is_one_condition(which: str) -> None:
    (only,) = parse_where(LONG[which], TABLE.schema).steps
    assert isinstance(only, OneOf)


# -- against DuckDB ----------------------------------------------------------------------------------------------------

TYPES = {
    "i": pa.int32(),
    "n": pa.int64(),
    "d": pa.decimal128(6, 2),
    "b": pa.bool_(),
    "s": pa.string(),
    "y": pa.date32(),
    "t": pa.timestamp("us"),
}
TEXTS = ["", "a", "ab", "abc", "b%", "ä", "a_c", "x\ny", "B"]
DAYS = [date(2026, 1, day) for day in range(1, 5)]


def a_value(name: str, drawn: random.Random) -> Any:
    match name:
        case "i" | "n":
            return drawn.randrange(-3, 4)
        case "d":
            return Decimal(drawn.randrange(-150, 151)) / 100
        case "b":
            return drawn.random() < 0.5
        case "s":
            return drawn.choice(TEXTS)
        case "y":
            return drawn.choice(DAYS)
    day = drawn.choice(DAYS)
    return datetime(day.year, day.month, day.day, drawn.randrange(3), microsecond=drawn.randrange(2))  # noqa: DTZ001


def a_literal(name: str, drawn: random.Random) -> str:
    match name:
        case "i" | "n" | "d":
            number = str(a_value("d" if drawn.random() < 0.5 else "n", drawn))
            return drawn.choice([number, f"{number}5" if "." in number else f"{number}.0", "99999999999999"])
        case "b":
            return drawn.choice(["true", "false"])
        case "s":
            return f"'{a_value('s', drawn)}'"
        case "y":
            return f"{drawn.choice(['date ', ''])}'{a_value('y', drawn)}'"
    return f"timestamp '{a_value('t', drawn)}'"


def a_filter(drawn: random.Random, depth: int) -> str:  # noqa: PLR0911 - one for each kind
    if depth and drawn.random() < 0.8:
        word = drawn.choice([" and ", " or "])
        joined = word.join(a_filter(drawn, depth - 1) for _ in range(drawn.randrange(1, 5)))
        return f"{drawn.choice(['not ', '', ''])}({joined})"
    name = drawn.choice([*TYPES])
    negated = drawn.choice(["not ", ""])
    match drawn.randrange(6):
        case 0:
            return f"{name} is {negated}null"
        case 1:
            listed = [a_literal(name, drawn) for _ in range(drawn.randrange(1, 5))]
            return f"{name} {negated}in ({', '.join([*listed, *drawn.choice([[], [], ['null']])])})"
        case 2:
            return f"{name} {negated}between {a_literal(name, drawn)} and {a_literal(name, drawn)}"
        case 3 if name == "s":
            return f"s {negated}like '{drawn.choice(['%', 'a%', '_', '%b%', 'a_c', '%c', 'ä', 'x_y', ''])}'"
        case 3 if name == "b":
            return f"{negated}b"
    return f"{name} {drawn.choice(['=', '!=', '<>', '<', '<=', '>', '>='])} {a_literal(name, drawn)}"


def random_rows(drawn: random.Random) -> pa.Table:
    columns = {
        name: pa.array([None if drawn.random() < 0.2 else a_value(name, drawn) for _ in range(60)], kind)
        for name, kind in TYPES.items()
    }
    return pa.table({"row": pa.array(range(60), pa.int64()), **columns})


def test_random_filters_keep_the_rows_that_duckdb_keeps(seed: int) -> None:
    duckdb = pytest.importorskip("duckdb")
    drawn = random.Random(seed)
    rows = random_rows(drawn)
    with duckdb.connect() as connection:
        connection.register("rows", rows)
        for _ in range(200):
            text = a_filter(drawn, drawn.randrange(4))
            asked = f"select row from rows where {text} order by row"  # noqa: S608
            expected = [row for (row,) in connection.sql(asked).fetchall()]
            found = parse_where(text, rows.schema)
            assert found.kept(rows)["row"].to_pylist() == expected, text
            check_bound(found, rows, text)


def check_bound(found: Filter, rows: pa.Table, text: str) -> None:
    bound = found.bound()
    assert bound is None or found.kept(rows.filter(bound)) == found.kept(rows), text


# -- files and their statistics ----------------------------------------------------------------------------------------


def test_random_filters_lose_no_row_to_statistics_of_older_files(seed: int) -> None:
    """Of columns that were narrower when the file was written, too."""
    drawn = random.Random(seed)
    whole = random_rows(drawn).sort_by(drawn.choice(["n", "d", "s", "y", "t"]))
    stored, out = whole.set_column(2, "n", whole["n"].cast(pa.int32())), io.BytesIO()
    pq.write_table(stored, out, row_group_size=5)
    place, base = TablePlace("memory://older", None), BaseFile("f-0", "0-0-0", "20240101000000000")
    place.store.delete(base.name)
    place.store.put_if_absent(base.name, out.getvalue()).unwrap()
    snapshot = Snapshot(Timeline(), (FileSlice("", "f-0", base.begin, base.name, len(out.getvalue())),))
    config = TableSpec("t", whole.schema, "row").config()
    texts = ["n < 3000000000", "n > 3000000000", "n in (1, 3000000000)", "n = 2.5", "d > 1.005", "s like 'a%'"]
    for text in [*texts, *(a_filter(drawn, drawn.randrange(3)) for _ in range(60))]:
        scan = plan_scan(snapshot, whole.schema, config, columns=["row"], where=text)
        assert to_table(place, scan)["row"].to_pylist() == kept(text, whole, "row"), text
