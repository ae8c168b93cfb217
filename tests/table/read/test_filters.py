"""A filter of a read has the rows that pyarrow's own `filter` has of the whole table: NaN, nulls and zeros too."""

from __future__ import annotations

import io
from math import inf, nan
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from table.tables import SETTINGS

from fsspec_cas import InvalidInput
from lockprovider.table import Table, TableSpec
from lockprovider.table.files import encoding
from lockprovider.table.files.place import TablePlace
from lockprovider.table.format.layout import BaseFile
from lockprovider.table.read.scan import ScanPlan, Where, plan_scan, to_reader, to_table
from lockprovider.table.timeline.timeline import Timeline
from lockprovider.table.timeline.view import FileSlice, Snapshot

INNER = pa.struct([("y", pa.float64())])
SCHEMA = pa.schema(
    [
        ("id", pa.int64()),
        ("part", pa.string()),
        ("x", pa.float64()),
        ("f", pa.float32()),
        ("no", pa.int32()),
        ("s", pa.string()),
        ("on", pa.bool_()),
        ("inner", INNER),
    ]
)
SPEC = TableSpec("t", SCHEMA, record_keys=("id",), partition_by=("part",))
CONFIG = SPEC.config()
BASE = BaseFile("f-0", "0-0-0", "20240101000000000")

FLOATS = st.sampled_from([None, nan, 0.0, -0.0, 1.5, -2.0, inf, -inf])
NUMBERS = st.sampled_from([None, 0, 1, -3, 7])
TEXTS = st.sampled_from([None, "", "a", "b", "\xe9", "a" * 70])
VALUES: dict[str, st.SearchStrategy[Any]] = {
    "x": FLOATS,
    "f": FLOATS,
    "no": NUMBERS,
    "s": TEXTS,
    "on": st.sampled_from([None, True, False]),
}
ROWS = st.lists(st.tuples(*VALUES.values(), st.none() | st.fixed_dictionaries({"y": FLOATS})), min_size=1, max_size=12)
COMPARE = ("__eq__", "__ne__", "__lt__", "__le__", "__gt__", "__ge__")


@st.composite
def leaves(draw: st.DrawFn) -> pc.Expression:
    name = draw(st.sampled_from([*VALUES, "y"]))
    field = pc.field("inner", "y") if name == "y" else pc.field(name)
    kind, values = (pa.float64(), FLOATS) if name == "y" else (SCHEMA.field(name).type, VALUES[name])
    match draw(st.integers(0, 5)):
        case 0:
            return field.isin(pa.array(draw(st.lists(values, max_size=3)), kind))
        case 1:
            return field.is_null(nan_is_null=draw(st.booleans()))
        case 2:
            return field.is_valid()
        case 3 if pa.types.is_floating(kind):
            return pc.is_nan(field)
        case 4 if name in ("x", "f", "no"):
            return getattr(field, draw(st.sampled_from(COMPARE)))(pc.field(draw(st.sampled_from(["x", "f", "no"]))))
        case _:
            return getattr(field, draw(st.sampled_from(COMPARE)))(pa.scalar(draw(values), kind))


def combined(leaves: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    """Expressions of these, with not, and, or."""
    return st.recursive(
        leaves,
        lambda some: st.one_of(
            some.map(lambda one: ~one),
            st.tuples(some, some).map(lambda both: both[0] & both[1]),
            st.tuples(some, some).map(lambda both: both[0] | both[1]),
        ),
        max_leaves=4,
    )


EXPRESSIONS = combined(leaves())


def table_of(rows: list[tuple[Any, ...]]) -> pa.Table:
    names = [*VALUES, "inner"]
    return pa.Table.from_pylist(
        [{"id": n, "part": "p", **dict(zip(names, row, strict=True))} for n, row in enumerate(rows)], SCHEMA
    )


def by_pyarrow(rows: pa.Table, size: int) -> bytes:
    out = io.BytesIO()
    pq.write_table(rows, out, row_group_size=size)
    return out.getvalue()


def by_us(rows: pa.Table, size: int) -> bytes:
    keys = rows["id"].cast(pa.string()).combine_chunks()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("lockprovider.table.files.base_file.ROW_GROUP_ROWS", size)
        return encoding.encode_base_file(
            encoding.all_fresh(rows, BASE), SCHEMA, keys=keys, partition="p", base_file=BASE, table_name="t"
        ).data


@pytest.mark.parametrize("write", [by_pyarrow, by_us])
@settings(max_examples=40)
@given(rows=ROWS, size=st.integers(1, 4), where=EXPRESSIONS)
@example(rows=[(nan,) * 2 + (None,) * 4, (9.0,) * 2 + (None,) * 4], size=2, where=~(pc.field("x") < 5))
@example(rows=[(nan,) * 2 + (None,) * 4, (0.0,) * 2 + (None,) * 4], size=2, where=pc.field("f") != 0)
@example(rows=[(0.0,) * 2 + (None,) * 4] * 2, size=1, where=pc.field("x").isin([0.0]))
@example(rows=[(nan,) * 2 + (None,) * 4, (1.0,) * 2 + (None,) * 4], size=2, where=pc.is_nan(pc.field("x")))
@example(rows=[(None,) * 5 + ({"y": nan},), (None,) * 5 + ({"y": 1.0},)], size=2, where=pc.field("inner", "y") != 1.0)
def test_filtered_read_equals_filter_of_the_whole_table(
    write: Any, rows: list[tuple[Any, ...]], size: int, where: pc.Expression
) -> None:
    whole = table_of(rows)
    expected = whole.filter(where)["id"].to_pylist()
    home, data = TablePlace("memory://filters", None), write(whole, size)
    home.store.delete(f"p/{BASE.name}")
    home.store.put_if_absent(f"p/{BASE.name}", data).unwrap()
    snapshot = Snapshot(Timeline(), (FileSlice("p", "f-0", BASE.begin, f"p/{BASE.name}", len(data)),))
    for columns in (["id"], ["x", "id"]):
        scan = plan_scan(snapshot, SCHEMA, CONFIG, columns=columns, where=where)
        for found in (to_table(home, scan), to_reader(home, scan).read_all()):
            assert found.column_names == columns
            assert found["id"].to_pylist() == expected, str(where)


ODD = [nan, 0.0, -0.0, 4.0, 6.0, None, nan, nan, 0.0, 0.0, 9.0, nan]
NAN_AND_ZERO = [
    pc.is_nan(pc.field("x")),
    pc.field("x").isin([nan]),
    pc.field("x").isin([0.0]),
    pc.field("x") != 0,
    ~(pc.field("x") < 5),
    (pc.field("x") > 5) | (pc.field("part") == "a"),
    (pc.field("part") == "b") & pc.field("x").is_null(nan_is_null=True),
]


@pytest.fixture
def table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Table:
    monkeypatch.setattr("lockprovider.table.files.base_file.ROW_GROUP_ROWS", 2)
    table = Table.create(str(tmp_path / "t"), SPEC, settings=SETTINGS)
    for partition in "ab":
        start = 100 * "ab".index(partition)
        rows = [{"id": start + n, "part": partition, "x": x} for n, x in enumerate(ODD)]
        table.append(pa.Table.from_pylist(rows, SCHEMA))
    return table


def ids(rows: Any) -> list[int]:
    return sorted(rows["id"].to_pylist())


@pytest.mark.parametrize("where", NAN_AND_ZERO, ids=str)
def test_no_read_loses_a_row_with_nan_or_zero(table: Table, where: pc.Expression) -> None:
    dask = pytest.importorskip("lockprovider.table.engines.dask")
    whole = table.to_arrow()
    expected = ids(whole.filter(where))
    assert 0 < len(expected) < whole.num_rows
    assert ids(table.to_arrow(["id"], filter=where)) == expected
    assert ids(table.scan(["id"], filter=where).to_reader().read_all()) == expected
    assert ids(table.to_arrow(filter=where, partitions=["b"])) == [one for one in expected if one >= 100]
    assert sorted(dask.read(table.scan(["id"], where)).compute()["id"]) == expected
    assert sorted(table.to_arrow(["x"], filter=where)["x"].cast(pa.string()).fill_null("").to_pylist()) == sorted(
        whole.filter(where)["x"].cast(pa.string()).fill_null("").to_pylist()
    )


def test_text_filters_lose_no_row_with_nan(table: Table) -> None:
    found = {text: ids(table.to_arrow(["id"], text)) for text in ("x != 0", "not x < 5", "not x in (0, 4)")}
    odd = [(100 * part + n, x) for part in range(2) for n, x in enumerate(ODD) if x is not None]
    assert found == {
        "x != 0": [n for n, x in odd if x != 0],
        "not x < 5": [n for n, x in odd if not x < 5],
        "not x in (0, 4)": [n for n, x in odd if x not in {0, 4}],
    }


def test_pruning_by_float_statistics_would_lose_rows(table: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lockprovider.table.read.filters.has_floats", lambda _: False)
    whole = table.to_arrow()
    lost = [where for where in NAN_AND_ZERO if ids(table.to_arrow(filter=where)) != ids(whole.filter(where))]
    assert len(lost) >= 4


def test_filter_on_a_column_number_is_refused(table: Table) -> None:
    with pytest.raises(InvalidInput, match=r"by its number; use its name, one of \['_hoodie_commit_time'"):
        table.to_arrow(filter=pc.field(0) == "x")


def test_filter_prunes_row_groups_except_by_floats(table: Table) -> None:
    def plan(where: Where) -> ScanPlan:
        return plan_scan(table.snapshot(), table.schema(), table.config(), columns=["id"], where=where)

    assert plan(pc.field("s") == "a").bound is not None
    assert plan((pc.field("s") == "a") & (pc.field("x") > 1)).bound is None
    assert plan(pc.field("inner").is_valid()).bound is None
    assert str(plan("s = 'a' and x > 1").bound) == '(s == "a")'
    assert plan("s = 'a' or x > 1").bound is None
    assert plan((pc.field("x") > 1) & (pc.field("_hoodie_record_key") == "1")).read.names == [
        "id",
        "_hoodie_record_key",
        "x",
    ]
