"""The functions over DataFrames work through Spark Connect: tasks run in the server, the transaction in the client."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest
from table.own_process import told_by
from table.tables import by_hudi_rs, content, orphans

from lockprovider.table import Table

NEEDED = ("grpc", "grpc_status", "google.rpc", "zstandard")


def missing() -> list[str]:
    return [name for name in NEEDED if not found(name)]


def found(name: str) -> bool:
    try:
        return importlib.util.find_spec(name) is not None
    except ModuleNotFoundError:
        return False


@pytest.mark.soak
@pytest.mark.skipif(bool(missing()), reason=f"Spark Connect needs {missing()}: pip install 'pyspark[connect]'")
def test_spark_connect_client_writes_reads_and_gets_typed_errors(tmp_path: Path) -> None:
    url = str(tmp_path / "t")
    seen = told_by("table.engines.spark.connect_child", url, timeout_s=500)
    assert "connect" in seen["session"], "not a session of Spark Connect"
    rows = {(1, "a", 6), (7, "c", 0), (9, "d", 9)}
    assert content(Table.open(url)) == by_hudi_rs(url) == rows == {tuple(row) for row in seen["rows"]}
    (by_auto, by_python), (files, by_spark) = seen["natively"]
    assert (by_auto, files > 0, by_python) == (0, True, by_spark), "the server may be on another machine"
    assert {tuple(row) for row in seen["changes"]} == {
        ("update", 2, "a", 20),
        ("insert", 4, "c", 4),
        ("delete", 3, "b", 3),
    }
    assert "null or empty in 1 rows" in seen["raised"][0]
    assert seen["raised"][1:] == ["WriteConflict"]
    assert orphans(tmp_path / "t") == set()


@pytest.mark.soak
@pytest.mark.skipif(bool(missing()), reason=f"Spark Connect needs {missing()}: pip install 'pyspark[connect]'")
def test_stream_by_spark_connect_needs_a_name_and_writes_each_batch_once(tmp_path: Path) -> None:
    seen = told_by("table.engines.spark.connect_stream_child", str(tmp_path), timeout_s=500)
    assert "pass stream_id" in seen["unnamed"]
    assert (seen["first"], seen["second"]) == ("", "")
    assert "give it a new stream_id" in seen["anew"]
    assert {tuple(row) for row in seen["rows"]} == {(1, "a", 1), (10, "a", 1), (2, "a", 2), (20, "a", 2)}
