"""The command line makes tables with buckets, says so, and adopts a JVM writer's."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from table.tables import rows

from lockprovider.cli import main
from lockprovider.table import Table

COLUMNS = ["--column", "id:int64", "--column", "part:string", "--column", "value:int64", "--key", "id", "--key", "part"]


def run(capsys: pytest.CaptureFixture[str], *words: object) -> tuple[int, Any, str]:
    code = main(["table", *map(str, words), "--json"])
    seen = capsys.readouterr()
    return code, json.loads(seen.out) if seen.out.strip() else None, seen.err


def test_table_with_buckets_is_made_and_shown_by_info(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    url = tmp_path / "t"
    assert run(capsys, "create", url, *COLUMNS, "--buckets", 4, "--bucket-by", "id")[0] == 0
    assert {"buckets": 4, "bucket_by": ["id"]}.items() <= run(capsys, "info", url)[1].items()
    code, _, error = run(capsys, "info", url, "--hoodie", "hoodie.index.type=BLOOM")
    assert code == 2
    assert "hoodie.index.type=BLOOM, but table 't' has hoodie.index.type=BUCKET" in error
    code, _, error = run(capsys, "create", tmp_path / "u", *COLUMNS, "--bucket-by", "id")
    assert (code, "--bucket-by needs --buckets" in error) == (2, True)


def test_jvm_writers_options_make_such_a_table_too(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options = ["--hoodie", "hoodie.index.type=BUCKET", "--hoodie", "hoodie.bucket.index.num.buckets=3"]
    assert run(capsys, "create", tmp_path / "t", *COLUMNS, *options)[0] == 0
    assert {"buckets": 3, "bucket_by": ["id", "part"]}.items() <= run(capsys, "info", tmp_path / "t")[1].items()


def test_buckets_are_adopted_when_all_rows_are_in_their_bucket(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    url = tmp_path / "t"
    run(capsys, "create", url, *COLUMNS, "--buckets", 4)
    Table.open(str(url)).append(rows(*((key, "a", key) for key in range(20))))
    path = url / ".hoodie" / "hoodie.properties"
    path.write_text("".join(line for line in path.read_text().splitlines(keepends=True) if "index" not in line))
    assert run(capsys, "info", url)[1]["buckets"] is None
    code, _, error = run(capsys, "adopt-buckets", url, 5)
    assert (code, "are of other buckets" in error) == (2, True)
    assert run(capsys, "adopt-buckets", url, 4)[:2] == (0, {"buckets": 4, "bucket_by": ["id", "part"]})
    assert run(capsys, "info", url)[1]["buckets"] == 4
