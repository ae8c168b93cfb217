"""A scan is a question that can be asked again, of a table or of a transaction."""

from __future__ import annotations

import pickle
import sys
from dataclasses import FrozenInstanceError, replace
from inspect import signature
from itertools import product
from pathlib import Path

import pyarrow as pa
import pytest
from table.tables import SPEC, removed, rows

from fsspec_cas import InvalidInput, NotSupported
from lockprovider.table import Scan, Table, TableError, TableTransaction, engines
from lockprovider.table.engines import dask as by_dask

THREE = ((1, "a", 10), (2, "a", 20), (3, "b", 30))


@pytest.fixture
def table(tmp_path: Path) -> Table:
    made = Table.create(tmp_path / "t", SPEC)
    made.append(rows(*THREE))
    return made


def test_scan_gives_the_same_rows_by_each_method_as_often_as_asked(table: Table) -> None:
    scan = table.scan(iter(["id", "value"]), "value >= 20", iter(["a", "b"]))
    expected = [{"id": 2, "value": 20}, {"id": 3, "value": 30}]
    for _ in range(2):
        found = {
            "arrow": scan.to_arrow().sort_by("id").to_pylist(),
            "reader": scan.to_reader().read_all().sort_by("id").to_pylist(),
            "pandas": scan.to_pandas().sort_values("id").to_dict("records"),
            "polars": scan.to_polars().sort("id").to_dicts(),
            "duckdb": scan.to_duckdb().order("id").to_arrow_table().to_pylist(),
            "dask": scan.to_dask().compute().sort_values("id").to_dict("records"),
        }
        assert {name: rows for name, rows in found.items() if rows != expected} == {}
        assert scan.count() == 2
    assert pickle.loads(pickle.dumps(scan)).count() == 2
    with pytest.raises(FrozenInstanceError):
        scan.columns = ("id",)  # type: ignore[misc]


@pytest.mark.parametrize("kind", ["copy_on_write", "merge_on_read"])
def test_methods_of_a_scan_agree_on_schema_and_count(tmp_path: Path, kind: str) -> None:
    """As in pyiceberg #2250 (another schema by batches), Ray #65175 and polars #27968 (other counts)."""
    table = Table.create(tmp_path / "t", replace(SPEC, table_type=kind))
    table.append(rows(*THREE))
    table.upsert(rows((1, "a", 11)))
    for columns, where in product((None, [], ["part"], ["_hoodie_record_key"]), (None, "value > 11", "value > 99")):
        scan = table.scan(columns, where)
        whole, reader, frame = scan.to_arrow(), scan.to_reader(), scan.to_pandas()
        assert (whole.schema, [*frame]) == (reader.schema, whole.schema.names)
        counts = {sum(batch.num_rows for batch in reader), scan.count(), len(frame), len(scan.to_dask())}
        assert counts == {whole.num_rows} == {{None: 3, "value > 11": 2, "value > 99": 0}[where]}


def test_scan_reads_nothing_before_a_method_is_called(table: Table) -> None:
    removed(table)
    scan = table.scan(["id"], "value > 1", as_of="2026-11-21T08:00:00Z")
    assert isinstance(scan, Scan)
    with pytest.raises(TableError):
        scan.count()


def test_current_scan_is_read_anew_and_a_pinned_one_is_not(table: Table) -> None:
    now, then = table.scan(), table.scan(as_of=table.version)
    with table.transaction() as txn:
        own = txn.scan(filter="part = 'a'")
        table.append(rows((4, "a", 40)))
        assert (now.count(), then.count(), own.count(), own.to_dask().compute().shape[0]) == (4, 3, 2, 2)


def test_plan_lists_exactly_the_files_that_are_opened(table: Table) -> None:
    assert {(one.partition, one.path.partition("/")[0]) for one in table.scan().plan()} == {("a", "a"), ("b", "b")}
    assert [one.partition for one in table.scan(filter="part = 'b'").plan()] == ["b"]
    assert table.scan(partitions=[]).plan() == ()


def test_moment_is_refused_for_a_transaction_by_dask_too(table: Table) -> None:
    with table.transaction() as txn, pytest.raises(InvalidInput, match="reads its own snapshot"):
        by_dask.read(Scan(txn, as_of=table.version))


def test_short_forms_have_the_arguments_of_scan_and_their_own_result() -> None:
    for face, names in ((Table, ("arrow", "pandas", "polars", "duckdb")), (TableTransaction, ("arrow", "pandas"))):
        for short in (getattr(face, f"to_{name}") for name in names):
            assert signature(short).parameters == signature(face.scan).parameters
            assert (short.__module__, short.__qualname__) == (face.__module__, f"{face.__name__}.{short.__name__}")
    assert signature(Table.to_arrow).return_annotation is pa.Table


@pytest.mark.parametrize("name", ["pandas", "polars", "duckdb", "dask"])
def test_library_that_is_missing_is_named_with_its_extra(
    table: Table, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setitem(sys.modules, name, None)  # as where it is not installed
    monkeypatch.delitem(sys.modules, by_dask.__name__)
    monkeypatch.delattr(engines, "dask")
    with pytest.raises(NotSupported, match=rf"{name} is not installed: install the extra '{name}' of fsspec-cas"):
        getattr(table.scan(), f"to_{name}")()
