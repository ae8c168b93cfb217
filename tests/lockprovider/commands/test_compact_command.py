"""The command line makes merge-on-read tables, shows their log files, and compacts them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from table.mor_tables import content, rows

from lockprovider.cli import main
from lockprovider.table import Table

COLUMNS = ["--column", "id:int64", "--column", "part:string", "--column", "value:string", "--column", "ts:int64"]


def run(capsys: pytest.CaptureFixture[str], *words: object) -> tuple[int, Any, str]:
    code = main(["table", *map(str, words), "--json"])
    seen = capsys.readouterr()
    return code, json.loads(seen.out) if seen.out.strip() else None, seen.err


def test_merge_on_read_table_is_made_shown_and_compacted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    url = tmp_path / "t"
    given = [*COLUMNS, "--key", "id", "--partition-by", "part", "--ordering", "ts", "--merge-on-read"]
    assert run(capsys, "create", url, *given)[0] == 0
    table = Table.open(str(url))
    for number in range(3):
        table.upsert(rows((1, "a", str(number), number), (2, "b", str(number), number)))
    seen = run(capsys, "info", url)[1]
    assert {"type": "MERGE_ON_READ", "files": 6, "log_files": 4, "pending_compactions": []}.items() <= seen.items()
    assert sum(".log." in one["path"] for one in run(capsys, "files", url)[1]) == 4
    for options, values in (([], ["2", "2"]), (["--read-optimized"], ["0", "0"])):
        assert [one["value"] for one in run(capsys, "read", url, *options)[1]] == values
    assert [row[2] for row in table.to_duckdb(read_optimized=True).fetchall()] == ["0", "0"]
    would = run(capsys, "compact", url, "--dry-run")[1]
    assert {(one["partition"], one["instant"]) for one in would} == {("a", ""), ("b", "")}
    begin = run(capsys, "compact", url, "--schedule")[1]["scheduled"]
    assert run(capsys, "info", url)[1]["pending_compactions"] == [begin]
    assert run(capsys, "compact", url, "--schedule")[1] == {"scheduled": None}
    assert run(capsys, "timeline", url)[1][0]["action"] == "compaction"
    assert run(capsys, "compact", url, "--unschedule", begin)[1] == {"unscheduled": begin}
    code, _, error = run(capsys, "compact", url, "--run", begin)
    assert (code != 0, f"no compaction that began at {begin}" in error) == (True, True)
    begin = run(capsys, "compact", url, "--schedule")[1]["scheduled"]
    assert {one["instant"] for one in run(capsys, "compact", url, "--run", begin)[1]} == {begin}
    assert run(capsys, "info", url)[1]["log_files"] == 0
    assert run(capsys, "compact", url)[1] == []
    assert content(table) == [(1, "a", "2", 2), (2, "b", "2", 2)]
    assert run(capsys, "log", url)[1][0]["operation"] == "COMPACT"
    assert run(capsys, "doctor", url)[0] == 0
