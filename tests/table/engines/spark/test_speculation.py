"""Two attempts of one task that run at the same time, as Spark's speculation starts them, make one visible file."""

from __future__ import annotations

from pathlib import Path

import pytest
from table.own_process import told_by
from table.tables import SETTINGS, SPEC, by_hudi_rs, content, data_files, orphans

from lockprovider.table import Table


@pytest.mark.soak  # a minute of processor time, for three JVMs
def test_speculative_attempt_of_a_slow_task_makes_no_second_file_visible(tmp_path: Path) -> None:
    url = str(tmp_path / "t")
    table = Table.create(url, SPEC, settings=SETTINGS)
    seen = told_by("table.engines.spark.speculation_child", url, str(tmp_path), timeout_s=1500)
    tasks = {name.rpartition("-")[0] for name in seen["attempts"]}
    assert len(tasks) >= 2, "an append and an upsert, each with a slow task"
    assert {f"{task}-{attempt}" for task in tasks for attempt in (0, 1)} <= set(seen["attempts"]), "both attempts wrote"
    assert content(table) == by_hudi_rs(url) == {(n, "abcd"[n % 4], 2 if n >= 20 else 1) for n in range(60)}
    assert len(data_files(tmp_path / "t")) == sum(seen["groups"]), "a file that no commit names"
    assert orphans(tmp_path / "t") == set()
