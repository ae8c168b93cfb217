"""`python -m tests.everything`: kinds run one after the other, and its table keeps what each came to."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter

import pytest
from patience import until

sys.path.insert(0, __file__.rpartition("/tests/")[0])  # as `python -m tests.everything` has it

from tests import everything, more

PLAIN = """
tests/a.py::test_one PASSED                                              [  5%]
tests/a.py::test_two[FAILED word] SKIPPED (no store: give one)            [ 10%]
tests/a.py::test_three FAILED                                            [ 15%]
"""
XDIST = """
[gw1] [  1%] PASSED tests/a.py::test_one
[gw0] [ 50%] ERROR tests/a.py::test_two
[gw0] [100%] XFAIL tests/a.py::test_three
=========================== short test summary info ============================
ERROR tests/a.py::test_two - it broke
"""


def test_count_reads_verbose_output_with_and_without_xdist():
    assert everything.count(PLAIN) == Counter(PASSED=1, SKIPPED=1, FAILED=1)
    assert everything.count(XDIST) == Counter(PASSED=1, ERROR=1, XFAIL=1)


def test_run_goes_on_after_a_failure_and_writes_each_row(tmp_path, monkeypatch):
    (tmp_path / "test_red.py").write_text("def test_red():\n    assert False\n")
    (tmp_path / "test_green.py").write_text("def test_green():\n    pass\n")
    kinds = {kind: f"-c /dev/null {tmp_path}/test_{kind}.py" for kind in ("red", "green")}
    monkeypatch.setattr(everything, "KINDS", kinds)
    monkeypatch.setattr(everything, "LOGS", tmp_path / "logs")
    table = tmp_path / "table.md"
    table.write_text("# Before\n")
    assert everything.main(["--table", str(table)]) == 1
    text = table.read_text()
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in text.splitlines() if line.startswith("| ")]
    assert [row[0] for row in rows] == ["kind", "red", "green"]
    assert [row[3:6] for row in rows[1:]] == [["0", "1", "0"], ["1", "0", "0"]]
    assert [row[7] for row in rows[1:]] == ["exit status 1", ""]
    assert everything.main(["green", "--table", str(table)]) == 0
    assert text.startswith("# Before\n")
    assert table.read_text().count("| green |") == 1
    assert "| red |" in table.read_text()


def test_every_folder_with_soaks_is_in_a_kind_of_soaks():
    tests = everything.ROOT / "tests"
    marked = {path for path in tests.rglob("test_*.py") if "mark.soak" in path.read_text()} - {
        tests / "test_everything.py"
    }
    named = {tests / name for names in (more.MORE, more.ALIKE) for name in names if "*" not in name}
    places = [tests.parent / word for asked in everything.KINDS.values() if "soak" in asked for word in asked.split()]
    lost = [path for path in marked | named if not any(path.is_relative_to(place) for place in places)]
    assert lost == []


def test_unknown_kind_is_refused_before_anything_runs(capsys):
    with pytest.raises(SystemExit):
        everything.main(["defualt"])
    assert "defualt" in capsys.readouterr().err


def test_run_stops_a_kind_that_does_not_end(tmp_path, monkeypatch):
    (tmp_path / "test_stuck.py").write_text("import time\ndef test_stuck():\n    time.sleep(600)\n")
    monkeypatch.setattr(everything, "LOGS", tmp_path / "logs")
    row = everything.run("stuck", f"-c /dev/null {tmp_path}/test_stuck.py", 3)
    assert row.remark.startswith("stopped after")
    assert not row.green


def test_terminated_run_ends_the_kind_that_it_is_in(tmp_path):
    (tmp_path / "test_stuck.py").write_text(
        "import os, pathlib, time\ndef test_stuck():\n"
        f"    pathlib.Path({str(tmp_path / 'pid')!r}).write_text(str(os.getpid()))\n    time.sleep(600)\n"
    )
    program = f"""
import sys
from pathlib import Path
from tests import everything
everything.KINDS = {{"stuck": "-c /dev/null {tmp_path}/test_stuck.py"}}
everything.LOGS = Path({str(tmp_path)!r})
sys.exit(everything.main(["stuck", "--table", {str(tmp_path / "table.md")!r}]))
"""
    process = subprocess.Popen([sys.executable, "-c", program], cwd=everything.ROOT)
    pid = tmp_path / "pid"
    stuck = int(until(lambda: process.poll() is not None or (pid.exists() and pid.read_text())))
    assert process.poll() is None
    process.terminate()
    assert process.wait(90) == 1
    with pytest.raises(ProcessLookupError):
        os.kill(stuck, 0)
