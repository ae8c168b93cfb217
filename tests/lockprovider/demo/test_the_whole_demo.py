"""`lockprovider demo` as a user runs it: three Spark drivers, and one of them killed."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from hudi import HudiTableBuilder

from lockprovider.table import Table, TableError

pytestmark = pytest.mark.soak  # three Spark drivers
DEADLINE_S = 400.0


def start(*arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "lockprovider.cli", "demo", "--fast", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def test_three_pipelines_share_a_table_and_no_row_is_lost(tmp_path: Path) -> None:
    picture = tmp_path / "run.svg"
    done = start("--json", "--url", str(tmp_path / "table"), "--out", str(picture))
    out, err = done.communicate(timeout=DEADLINE_S)
    assert done.returncode == 0, err
    report = json.loads(out)
    assert report["ok"]
    assert picture.read_text().startswith("<svg")


def test_compaction_service_runs_next_to_pipelines_and_leaves_no_log_file(tmp_path: Path) -> None:
    picture, url = tmp_path / "run.svg", str(tmp_path / "table")
    done = start("--json", "--merge-on-read", "--url", url, "--out", str(picture))
    out, err = done.communicate(timeout=DEADLINE_S)
    assert done.returncode == 0, err
    report = json.loads(out)
    assert report["ok"]
    told = {one["pipeline"]: one for one in report["pipelines"]}["compact"]
    assert told["commits"] >= 1
    assert told["conflicts"] == 0
    assert ">compact<" in picture.read_text()
    table = Table.open(url)
    assert [one for one in table.snapshot().slices if one.logs] == []
    assert table.count() == report["proof"]["expected_rows"]


def wait_until_it_writes(url: str, conductor: subprocess.Popen[str]) -> None:
    """Until protect has committed once, so that it surely is in the middle of its work."""
    deadline = time.monotonic() + DEADLINE_S
    while time.monotonic() < deadline and conductor.poll() is None:
        try:
            table = Table.open(url)
            if any(commit.extra.get("demo.role") == "protect" for commit in table.history()):
                return
        except TableError:
            pass
        time.sleep(0.1)
    raise AssertionError("nothing was written")


def test_killed_pipeline_leaves_a_table_that_the_others_keep_writing(tmp_path: Path) -> None:
    url = str(tmp_path / "table")
    conductor = start("--url", url)
    assert conductor.stderr is not None
    first = conductor.stderr.readline()
    pids = dict(re.findall(r"(\w+) (\d+)(?=,|$)", first.partition("processes ")[2].strip()))
    try:
        wait_until_it_writes(url, conductor)
        os.kill(int(pids["protect"]), signal.SIGKILL)
        out, err = conductor.communicate(timeout=DEADLINE_S)
    finally:
        conductor.kill()
    assert conductor.returncode == 1, err
    assert "protect" in out + err
    table = Table.open(url)
    assert table.timeline().pending_writes == (), "the dead instant is rolled back"
    roles = [commit.extra.get("demo.role") for commit in table.history()]
    assert roles.count("ingest") == 6, "the others went on"
    assert roles.count("backfill") == 3
    assert sum(batch.num_rows for batch in HudiTableBuilder.from_base_uri(url).build().read()) > 50_000
