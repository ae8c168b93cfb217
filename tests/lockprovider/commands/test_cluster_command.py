"""The command line joins small files, plans that, takes it back, and says what is planned."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from table.tables import SETTINGS, SPEC, content, upsert

from lockprovider.cli import main
from lockprovider.table import Table


def run(capsys: pytest.CaptureFixture[str], *words: object) -> tuple[int, Any, str]:
    code = main(["table", *map(str, words), "--json"])
    seen = capsys.readouterr()
    return code, json.loads(seen.out) if seen.out.strip() else None, seen.err


def test_cluster_command_shows_plans_cancels_and_runs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    url = tmp_path / "t"
    table = Table.create(str(url), SPEC, settings=SETTINGS)
    for number in range(3):
        upsert(table, (2 * number, "a", 9 - number), (2 * number + 1, "b", number))
    seen = content(table)
    given = ["--sort-by", "value", "--target-file-bytes", 1 << 20, "--small-file-bytes", 1 << 20]
    would = run(capsys, "cluster", url, *given, "--dry-run")[1]
    assert {(one["instant"], one["state"]) for one in would} == {("", "ended")}
    assert len(would) == 6
    begin = run(capsys, "cluster", url, *given, "--schedule")[1]["scheduled"]
    assert run(capsys, "info", url)[1]["pending_clusterings"] == [begin]
    assert run(capsys, "timeline", url)[1][0]["action"] == "clustering"
    code, report, _ = run(capsys, "doctor", url)
    assert code == 0
    assert next(one["mend"] for one in report if f"clustering {begin} is planned" in one["what"]).count(begin) == 2
    assert run(capsys, "cluster", url, "--schedule")[1] == {"scheduled": None}
    assert run(capsys, "cluster", url, "--unschedule-after", "1")[1] == {"unscheduled": []}
    code, _, error = run(capsys, "cluster", url, *given, "--unschedule-after", "1")
    assert (code != 0, "its own order and sizes" in error) == (True, True)
    assert run(capsys, "cluster", url, "--unschedule", begin)[1] == {"unscheduled": begin}
    code, _, error = run(capsys, "cluster", url, "--run", begin)
    assert (code != 0, f"no clustering that began at {begin}" in error) == (True, True)
    begin = run(capsys, "cluster", url, *given, "--schedule")[1]["scheduled"]
    done = run(capsys, "cluster", url, "--run", begin)[1]
    assert ({one["instant"] for one in done}, [one["state"] for one in done].count("new")) == ({begin}, 2)
    assert len(run(capsys, "files", url)[1]) == 2
    assert run(capsys, "cluster", url)[1] == []
    assert content(table) == seen
    assert run(capsys, "log", url)[1][0]["operation"] == "CLUSTER"
    code, _, error = run(capsys, "cluster", url, "--sort-by", "nobody")
    assert (code != 0, "nobody" in error) == (True, True)


def test_cluster_command_prints_joined_files(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    table = Table.create(str(tmp_path / "t"), SPEC, settings=SETTINGS)
    upsert(table, (1, "a", 1))
    upsert(table, (2, "a", 2))
    assert main(["table", "cluster", table.url]) == 0
    assert "joined 2 files into 1" in capsys.readouterr().out
