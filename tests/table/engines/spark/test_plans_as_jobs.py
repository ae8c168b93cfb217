"""Compaction and clustering as Spark jobs: the same files as by a run in one process, with hudi-rs as the judge."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from table.engines.rewriting import SORT, check_goes_on, check_same, with_plan
from table.tables import SETTINGS, SPEC

from lockprovider.table import HistoryGone, Table, UnsupportedTable
from lockprovider.table.engines import spark as engine
from lockprovider.table.engines.spark.functions import on_executors


def test_plan_run_by_spark_writes_the_same_files_as_a_local_run(spark: Any, tmp_path: Path) -> None:
    for compaction in (True, False):
        table, copy, begin = with_plan(tmp_path / str(compaction), compaction=compaction)
        if compaction:
            (done,), there = engine.compact(spark, table, begin), copy.run_compaction(begin)
            assert done.log_files == there.log_files > 3
            assert engine.compact(spark, table) == ()
        else:
            (clustered,) = engine.cluster(spark, table, instant=begin)
            assert clustered.new_file_groups == copy.run_clustering(begin).new_file_groups
            assert engine.cluster(spark, table, SORT) == ()
        check_same(table, copy, begin)


@pytest.mark.parametrize("compaction", [True, pytest.param(False, marks=pytest.mark.soak)])
def test_work_of_a_dead_executor_is_continued(spark: Any, tmp_path: Path, compaction: bool) -> None:
    def finish(table: Table) -> None:
        engine.compact(spark, table) if compaction else engine.cluster(spark, table, SORT)

    check_goes_on(tmp_path, on_executors(spark), finish, compaction=compaction)


def test_plan_that_cannot_be_run_is_refused_with_its_own_type(spark: Any, tmp_path: Path) -> None:
    table, _, begin = with_plan(tmp_path, compaction=True)
    plain = Table.create(str(tmp_path / "plain"), SPEC, settings=SETTINGS)
    with pytest.raises(UnsupportedTable, match="nothing to compact"):
        engine.compact(spark, plain)
    with pytest.raises(HistoryGone, match="no compaction that began at 20000101000000000"):
        engine.compact(spark, table, "20000101000000000")
    for path in Path(table.url).glob("a/.*.log.*"):
        path.unlink()
    with pytest.raises(HistoryGone, match="unschedule it"):
        engine.compact(spark, table, begin)
