"""A user's script by `spark-submit` on a standalone cluster, whose executors are killed: each row is there once."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("pyspark", minversion="4.2")

from table.engines.spark.cluster import ROOT, standalone, submit
from table.tables import by_hudi_rs, content, orphans

from lockprovider.table import Table

SCRIPT = Path(__file__).with_name("submitted_job.py")
KILLED = {"spark.executor.memory": "1g", "spark.executor.cores": "1", "spark.task.maxFailures": "8"}


def value(number: int) -> int:
    changed = number + 1 if number % 2 == 0 else number
    return 10 * changed if number < 10 else changed


@pytest.mark.soak
def test_submitted_script_writes_each_row_once_though_executors_are_killed(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "-w", str(tmp_path / "wheel"), str(ROOT)]
    subprocess.run(command, check=True)
    (wheel,) = (tmp_path / "wheel").glob("fsspec_cas-*.whl")
    package = wheel.rename(tmp_path / "package.zip")  # Spark's executors do not import from a `.whl`
    url = str(tmp_path / "t")
    with standalone(tmp_path) as master:
        told = submit(master, SCRIPT, url, conf=KILLED, files=package)
    (line,) = (line for line in told.splitlines() if line.startswith("seen: "))
    seen = json.loads(line.removeprefix("seen: "))
    assert ".zip" in seen["driver"], "not what was given by --py-files"
    assert all(".zip" in place for place in seen["executors"])
    assert seen["killed"] >= 1, "no executor was killed between the last file and the commit"
    assert (seen["appended"], seen["upserted"], seen["merged"], seen["deleted"]) == (4000, [2000, 0], 10, 1000)
    expected = {(number, f"p{number % 4}", value(number)) for number in range(3000)}
    assert seen["sum"] == sum(row[2] for row in expected)
    assert content(Table.open(url)) == by_hudi_rs(url) == expected
    assert orphans(tmp_path / "t") == set()
